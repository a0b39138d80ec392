"""Read and write raw texts with label names: JSON lines and fastText lines."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from xmlpreck.data.dataset import MAX_ID, Documents
from xmlpreck.data.formats.column_choice import (
    LISTS,
    MAX_NAMES,
    SAMPLE_ROWS,
    Chooser,
    Chosen,
    Columns,
    shown_names,
    split_labels,
)
from xmlpreck.data.formats.tables import Opened, id_of, label_name
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.contents import numbered_lines, write_lines

_LABEL = re.compile(r"[ \t]*__label__([^ \t]+)")
_LATE_LABEL = re.compile(r"(?:^|[ \t])(__label__[^ \t]*)")
# What fastText takes as white space: a label that holds one would come back as two.
_BLANK = re.compile(r"[\s\0]")

Document = tuple[str, list[str], Any]  # text, labels, id
LineParser = Callable[[str], Document | None]

# The repository's own files have these; each line may have either.
LABEL_FIELDS = ("labels", "target_ind")


def parse_object(line: str) -> dict[str, Any]:
    """Parse one line as a JSON object; raise ValueError if it is something else."""
    try:
        fields = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"is not JSON: {str(error).partition(chr(10))[0]}") from None
    except ValueError:  # int() reads at most 4,300 digits
        raise ValueError("holds a whole number of thousands of digits: write it as text, or shorter") from None
    if not isinstance(fields, dict):
        raise ValueError(f"holds {line[:40]!r}: each line must be a JSON object in braces")
    if "\\u" in line:
        try:  # JSON allows half of a surrogate pair, but no file can hold one
            json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("holds half of a surrogate pair (\\ud800 to \\udfff): no text can hold it") from None
    return fields


def _field(fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name, kind())
    if not isinstance(value, kind):
        noun = "string" if kind is str else "list"
        raise ValueError(f"{name!r} is {json.dumps(value)[:40]}: it must be a {noun}")
    return value


def _indexed_name(label: Any, titles: list[str] | None) -> str:
    n_labels = MAX_ID if titles is None else len(titles)
    if not isinstance(label, int) or isinstance(label, bool):
        raise ValueError(f"target_ind holds {json.dumps(label)[:40]}: ids are whole numbers from 0")
    if not 0 <= label < n_labels:
        raise ValueError(f"target_ind holds {label!r:.40}, which is out of range: there are {n_labels} labels")
    return str(label) if titles is None else titles[label]


class _JsonParser:
    """Parse lines of JSON by the fields that were chosen for all of them."""

    def __init__(self, chosen: Chosen, titles: list[str] | None) -> None:
        self.chosen, self.titles = chosen, titles

    def __call__(self, line: str) -> Document | None:
        if not line.strip():
            return None
        fields, chosen = parse_object(line), self.chosen
        if not any(name in fields for name, _ in chosen.text):
            wanted = shown_names(name for name, _ in chosen.text)
            raise ValueError(f"has the fields {shown_names(fields)}, but the text is read from {wanted}")
        parts = [part for name, weight in chosen.text if (part := _field(fields, name, str)) for _ in range(weight)]
        row_id = None if chosen.id is None else id_of(fields.get(chosen.id))
        return " ".join(parts), self._labels(fields), row_id

    def _labels(self, fields: dict[str, Any]) -> list[str]:
        name = self.chosen.labels
        if name in LABEL_FIELDS:
            # The repository's title and content come with target_ind, texts of others with labels.
            order = LABEL_FIELDS if self.chosen.text[0][0] == "text" else LABEL_FIELDS[::-1]
            name = next((field for field in order if field in fields), name)
        value = fields.get(name) if name is not None else None
        if name == "target_ind":
            return [_indexed_name(label, self.titles) for label in _field(fields, name, list)]
        if isinstance(value, str):
            return split_labels([value], self.chosen.separator)
        if name is None or name not in fields:
            return []
        labels = [label_name(label) for label in _field(fields, name, list)]
        return labels if self.chosen.separator in (None, LISTS) else split_labels(labels, self.chosen.separator)


def _parse_fasttext(line: str) -> Document:
    labels, end = [], 0
    while match := _LABEL.match(line, end):
        labels.append(match[1])
        end = match.end()
    # One blank belongs to the format, so that a text may begin with blanks of its own.
    text = line[end + 1 :] if line[end : end + 1] in (" ", "\t") else line[end:]
    if late := _LATE_LABEL.search(text):
        raise ValueError(f"{late[1][:40]!r} is inside the text: put the labels before it")
    return text, labels, None


def _first_repeated(names: list[str]) -> str | None:
    if len(set(names)) == len(names):
        return None
    return next(name for name, count in Counter(names).items() if count > 1)


def _read_lines(path: AnyPath, parse: LineParser, rows_per_chunk: int, has_ids: bool = False) -> Iterator[Documents]:
    chunk: list[Document] = []
    n_chunks = 0

    def documents() -> Documents:
        ids = [row_id for _, _, row_id in chunk] if has_ids else None
        return Documents([text for text, _, _ in chunk], [labels for _, labels, _ in chunk], ids)

    for number, line in numbered_lines(path):
        try:
            document = parse(line)
        except ValueError as error:
            raise FormatError(f"{path}:{number}: {error}") from None
        if document is None:
            continue
        if (name := _first_repeated(document[1])) is not None:
            raise FormatError(f"{path}:{number}: label {name[:40]!r} appears twice: remove one")
        chunk.append(document)
        if len(chunk) == rows_per_chunk:
            yield documents()
            chunk, n_chunks = [], n_chunks + 1
    if chunk or not n_chunks:
        yield documents()


def read_titles(path: AnyPath) -> list[str]:
    """Read the label names of `lbl.json` in order; labels that share a title get their number appended."""
    titles = []
    for number, line in numbered_lines(path):
        if line.strip():
            try:
                titles.append(_field(parse_object(line), "title", str))
            except ValueError as error:
                raise FormatError(f"{path}:{number}: {error}") from None
    seen = Counter(titles)
    names = [f"{title} #{i}".lstrip() if seen[title] > 1 or not title else title for i, title in enumerate(titles)]
    if (name := _first_repeated(names)) is not None:
        raise FormatError(f"{path}: two labels are called {name[:40]!r}: rename one")
    return names


def open_jsonl(path: AnyPath, columns: Columns, remembered: Columns | None = None) -> Opened:
    """Open objects with texts, labels and ids; blank lines are skipped.

    Ids in `target_ind` are named by `lbl.json` beside the file.
    """
    labels = (Path(path).with_name(name) for name in ("lbl.json", "lbl.json.gz"))
    titles = next((read_titles(file) for file in labels if file.is_file()), None)
    sample: list[dict[str, Any]] = []
    names: dict[str, None] = {}
    for number, line in islice(numbered_lines(path), SAMPLE_ROWS):
        if line.strip():
            try:
                sample.append(parse_object(line))
            except ValueError as error:
                raise FormatError(f"{path}:{number}: {error}") from None
            names |= dict.fromkeys(islice(sample[-1], MAX_NAMES - len(names)))
    if sample:
        rows = [[fields.get(name) for name in names] for fields in sample]
        chosen = Chooser(path, list(names), rows).choose(columns, remembered)
    else:
        chosen = Chosen([], [("text", 1)], "labels", None, None)
    parse = _JsonParser(chosen, titles)
    return Opened(chosen, None, lambda n: _read_lines(path, parse, n, chosen.id is not None))


def read_fasttext(path: AnyPath, rows_per_chunk: int) -> Iterator[Documents]:
    """Read lines `__label__a __label__b some text`; one without labels may begin with a space."""
    return _read_lines(path, _parse_fasttext, rows_per_chunk)


def _format_fasttext(text: str, labels: list[str]) -> str:
    for label in labels:
        if not label or _BLANK.search(label):
            raise ValueError(f"label {label[:40]!r} is empty or holds white space, which fastText cannot: write jsonl")
    if "\n" in text or "\r" in text:
        raise ValueError("the text holds a line break, which fastText cannot: write jsonl")
    line = " ".join(f"__label__{label}" for label in labels) + " " + text
    if _parse_fasttext(line) != (text, labels, None):
        raise ValueError("the text holds __label__: write jsonl")
    return line


def write_documents(path: AnyPath, chunks: Iterable[Documents], format: str) -> None:
    """Write `{"text": ..., "labels": [...]}` (jsonl, with ids) or fastText lines; refuse what a line cannot hold."""

    def lines() -> Iterator[str]:
        row = 0
        for chunk in chunks:
            for i, (text, labels) in enumerate(zip(chunk.texts, chunk.labels, strict=True)):
                try:
                    if format == "jsonl":
                        ids = {} if chunk.ids is None else {"id": chunk.ids[i]}
                        line = json.dumps(ids | {"text": text, "labels": labels}, ensure_ascii=False)
                    else:
                        line = _format_fasttext(text, labels)
                    line.encode()
                except UnicodeEncodeError:
                    what = "holds half of a surrogate pair: no file can hold it"
                    raise FormatError(f"{path}: row {row}: {what}") from None
                except ValueError as error:
                    raise FormatError(f"{path}: row {row}: {error}") from None
                yield line
                row += 1

    write_lines(path, lines())
