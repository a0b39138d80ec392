"""Read and write raw texts with label names: JSON lines and fastText lines."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from xmlpreck.data.dataset import MAX_ID, Documents
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.contents import numbered_lines, write_lines

_LABEL = re.compile(r"[ \t]*__label__([^ \t]+)")
_LATE_LABEL = re.compile(r"(?:^|[ \t])(__label__[^ \t]*)")
# What fastText takes as white space: a label that holds one would come back as two.
_BLANK = re.compile(r"[\s\0]")

Document = tuple[str, list[str]]
LineParser = Callable[[str], Document | None]

# Fields of a text and of its labels: the first of these that an object has.
TEXT_FIELDS = (("text",), ("title", "content"))
LABEL_FIELDS = ("labels", "target_ind")
MAX_FIELDS = 100  # remembered per file: objects may have a million names


class Fields:
    """Names of the fields, or columns, that a reader has found: those that it read and those that it ignored."""

    def __init__(self) -> None:
        self.read: dict[str, None] = {}  # in the order of the file
        self.unread: dict[str, None] = {}

    def add(self, names: Iterable[str], wanted: Sequence[str]) -> None:
        """Add the field names of one object, or the columns of a table."""
        for name in names:
            if name in wanted:
                self.read[name] = None
            elif len(self.unread) < MAX_FIELDS:
                self.unread[name] = None


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
    # JSON allows half of a surrogate pair, but no file can hold one.
    if "\\u" in line and any(0xD800 <= ord(letter) <= 0xDFFF for letter in json.dumps(fields, ensure_ascii=False)):
        raise ValueError("holds half of a surrogate pair (\\ud800 to \\udfff): no text can hold it")
    return fields


def _field(fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name, kind())
    if not isinstance(value, kind):
        noun = "string" if kind is str else "list"
        raise ValueError(f"{name!r} is {json.dumps(value)[:40]}: it must be a {noun}")
    return value


def _label_name(label: Any) -> str:
    if isinstance(label, int) and not isinstance(label, bool):
        return str(label)
    if not isinstance(label, str) or not label:
        raise ValueError(f"label {json.dumps(label)[:40]} is not a name: labels are strings or whole numbers")
    return label


def _indexed_name(label: Any, titles: list[str] | None) -> str:
    n_labels = MAX_ID if titles is None else len(titles)
    if not isinstance(label, int) or isinstance(label, bool):
        raise ValueError(f"target_ind holds {json.dumps(label)[:40]}: ids are whole numbers from 0")
    if not 0 <= label < n_labels:
        raise ValueError(f"target_ind holds {label!r:.40}, which is out of range: there are {n_labels} labels")
    return str(label) if titles is None else titles[label]


def shown_fields(names: Iterable[str]) -> str:
    """Quote the first field names for a message."""
    return ", ".join(repr(name)[:40] for name in list(names)[:8]) or "nothing"


def _json_parser(titles: list[str] | None, found: Fields) -> LineParser:
    def parse(line: str) -> Document | None:
        if not line.strip():
            return None
        fields = parse_object(line)
        text_fields = next((names for names in TEXT_FIELDS if any(name in fields for name in names)), None)
        if text_fields is None:
            raise ValueError(
                f"has the fields {shown_fields(fields)}: it needs text and labels, or title, content and target_ind"
            )
        # The repository's title and content come with target_ind, texts of others with labels.
        label_fields = LABEL_FIELDS if text_fields == ("text",) else LABEL_FIELDS[::-1]
        label_field = next((name for name in label_fields if name in fields), label_fields[0])
        text = " ".join(part for name in text_fields if (part := _field(fields, name, str)))
        entries = _field(fields, label_field, list)
        labels = [_label_name(label) if label_field == "labels" else _indexed_name(label, titles) for label in entries]
        found.add(fields, (*text_fields, label_field))
        return text, labels

    return parse


def _parse_fasttext(line: str) -> Document:
    labels, end = [], 0
    while match := _LABEL.match(line, end):
        labels.append(match[1])
        end = match.end()
    # One blank belongs to the format, so that a text may begin with blanks of its own.
    text = line[end + 1 :] if line[end : end + 1] in (" ", "\t") else line[end:]
    if late := _LATE_LABEL.search(text):
        raise ValueError(f"{late[1][:40]!r} is inside the text: put the labels before it")
    return text, labels


def _first_repeated(names: list[str]) -> str | None:
    if len(set(names)) == len(names):
        return None
    return next(name for name, count in Counter(names).items() if count > 1)


def _read_lines(path: AnyPath, parse: LineParser, rows_per_chunk: int) -> Iterator[Documents]:
    texts: list[str] = []
    labels: list[list[str]] = []
    n_chunks = 0
    for number, line in numbered_lines(path):
        try:
            document = parse(line)
        except ValueError as error:
            raise FormatError(f"{path}:{number}: {error}") from None
        if document is None:
            continue
        if (name := _first_repeated(document[1])) is not None:
            raise FormatError(f"{path}:{number}: label {name[:40]!r} appears twice: remove one")
        texts.append(document[0])
        labels.append(document[1])
        if len(texts) == rows_per_chunk:
            yield Documents(texts, labels)
            texts, labels, n_chunks = [], [], n_chunks + 1
    if texts or not n_chunks:
        yield Documents(texts, labels)


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


def read_jsonl(path: AnyPath, rows_per_chunk: int, found: Fields | None = None) -> Iterator[Documents]:
    """Read objects with `text`, or `title` and `content`, and with `labels` or `target_ind`; skip blank lines.

    Ids in `target_ind` are named by `lbl.json` beside the file. The names of the fields are added to `found`.
    """
    labels = (Path(path).with_name(name) for name in ("lbl.json", "lbl.json.gz"))
    titles = next((read_titles(file) for file in labels if file.is_file()), None)
    return _read_lines(path, _json_parser(titles, found or Fields()), rows_per_chunk)


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
    if _parse_fasttext(line) != (text, labels):
        raise ValueError("the text holds __label__: write jsonl")
    return line


def write_documents(path: AnyPath, chunks: Iterable[Documents], format: str) -> None:
    """Write `{"text": ..., "labels": [...]}` (jsonl) or fastText lines; refuse what such a line cannot hold."""

    def lines() -> Iterator[str]:
        documents = (document for chunk in chunks for document in zip(chunk.texts, chunk.labels, strict=True))
        for row, (text, labels) in enumerate(documents):
            try:
                if format == "jsonl":
                    line = json.dumps({"text": text, "labels": labels}, ensure_ascii=False)
                else:
                    line = _format_fasttext(text, labels)
                line.encode()
            except UnicodeEncodeError:
                raise FormatError(f"{path}: row {row}: holds half of a surrogate pair: no file can hold it") from None
            except ValueError as error:
                raise FormatError(f"{path}: row {row}: {error}") from None
            yield line

    write_lines(path, lines())
