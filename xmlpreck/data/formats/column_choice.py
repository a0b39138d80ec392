"""Choose which columns of a table hold texts, labels and ids: those that are named, else by names and content."""

import ast
import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from xmlpreck.config import ConfigError
from xmlpreck.files import FormatError

SAMPLE_ROWS = 1000  # that a guess looks at
MAX_NAMES = 100  # remembered of a file: JSON objects may have a million

# Names that say what a column holds, in any case; `text` alone beats all others of its kind.
TEXT_NAMES = (
    "text", "texts", "title", "titel", "headline", "abstract", "summary", "zusammenfassung", "description",
    "beschreibung", "content", "contents", "body", "document", "sentence", "question", "comment", "message", "review",
)  # fmt: skip
LABEL_NAMES = (
    "labels", "label", "target_ind", "tags", "tag", "subjects", "subject_uris", "subject", "categories", "category",
    "topics", "topic", "keywords", "schlagwörter", "schlagworte", "classes", "class", "genres", "descriptors",
    "concepts",
)  # fmt: skip
ID_NAMES = ("id", "ids", "uid", "uuid", "doc_id", "docid", "document_id", "identifier", "key")

# Words for what no single separator can say.
NONE, URIS, LISTS = "none", "uris", "lists"
# What people put between labels; a comma is also a part of many names.
SEPARATORS = (";", "|", "\t", ",")
LIKELY_SHARE = 0.2  # of the labelled rows that have a separator in their label
KNOWN_SHARE = 0.5  # of the parts that are in another row, too: then they are labels
MIN_WORDS = 4  # of a cell on average, for a column of texts without a name that tells

_URI = r"(?:<[^\s<>]+>|https?://[^\s<>]+)"
_ALL_URIS = re.compile(rf"\s*{_URI}(?:\s+{_URI})*\s*")
_NUMBER = re.compile(r"\s*[-+]?[\d.,:/-]*\s*")  # and dates
_WEIGHTED = re.compile(r"(.+?)\s*\*\s*(\d{1,2})")


_FLAGS = {
    "text": "text-columns", "labels": "labels-column", "separator": "label-separator", "id": "id-column",
    "delimiter": "delimiter", "encoding": "encoding", "quotes": "no-quotes", "header": "no-header",
}  # fmt: skip


@dataclass(frozen=True)
class Columns:
    """Which columns hold texts, labels and ids, and how the file of a table is written; None = recognised."""

    text: str | None = None  # one or more with commas between them; `title*2` counts twice
    labels: str | None = None
    separator: str | None = None  # between labels of one field; or none, uris, lists
    id: str | None = None  # or none, for the numbers of rows
    delimiter: str | None = None  # between the columns of CSV
    encoding: str | None = None  # None: UTF-8, or what a byte order mark says
    quotes: bool | None = None  # False: quotes are letters like all others
    header: bool | None = None  # False: the first row is data, and columns are called 1, 2, ...

    def __post_init__(self) -> None:
        if self.separator == "":
            raise ConfigError("--label-separator must be one character or more, but is empty")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ConfigError(f"--delimiter must be one character, no quote and no line break: not {self.delimiter!r}")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except (LookupError, ValueError, UnicodeError):
                raise ConfigError(f"--encoding {self.encoding!r:.40} is not known: say e.g. utf-8 or cp1252") from None

    def given(self) -> list[str]:
        """List the flags of what is given."""
        return [f"--{flag}" for name, flag in _FLAGS.items() if getattr(self, name) is not None]


ANY = Columns()  # all is recognised


class Chosen(NamedTuple):
    """Columns to read, all by name; `separator` None = a field is one label, or a list of labels."""

    names: list[str]
    text: list[tuple[str, int]]  # with their weights
    labels: str | None
    separator: str | None
    id: str | None
    doubt: str | None = None  # what must be asked before training

    @property
    def unread(self) -> list[str]:
        read = {self.labels, self.id, *(name for name, _ in self.text)}
        return [name for name in self.names if name not in read]

    @property
    def is_plain(self) -> bool:
        """Tell whether there is nothing to say: columns `text` and `labels` without others."""
        return not self.unread and self.separator is None and [name for name, _ in self.text] == ["text"]

    @property
    def text_setting(self) -> str:
        """The columns as `Columns.text` takes them."""
        return ",".join(name if weight == 1 else f"{name}*{weight}" for name, weight in self.text)

    def __str__(self) -> str:
        parts = ["text from " + ", ".join(f"{name!r}{f'*{n}' if n > 1 else ''}" for name, n in self.text)]
        if self.labels is None:
            parts.append("no labels")
        else:
            split = {None: "", URIS: ", split into URIs", LISTS: ", which are written as lists"}
            parts.append(f"labels from {self.labels!r}{split.get(self.separator, f', split at {self.separator!r}')}")
        if self.id is not None:
            parts.append(f"ids from {self.id!r}")
        if self.unread:
            parts.append(f"not read: {shown_names(self.unread)}")
        return "; ".join(parts)


def shown_names(names: Iterable[str]) -> str:
    """Quote the first names for a message."""
    names = list(names)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(repr(name)[:40] for name in names[:8]) or "nothing") + more


def shown_row(names: Sequence[str], values: Sequence[Any]) -> str:
    """Show the first row for a message."""
    cells = [f"{name!r:.30}: {str(value)[:40]!r}" for name, value in list(zip(names, values, strict=False))[:8]]
    return f"the first row is {', '.join(cells)}" if cells else "there are no rows"


class Chooser:
    """Choose columns of one table by what was given, what a model remembers, names, and a sample of rows."""

    def __init__(self, path: object, names: list[str], sample: Sequence[Sequence[Any]]) -> None:
        self.path, self.names, self.sample = path, names, sample

    def choose(self, given: Columns, remembered: Columns | None = None) -> Chosen:
        """Choose all columns; raise FormatError if a given one is missing or no column of texts is certain."""
        remembered = remembered or Columns()
        row_id = self._ids(given.id, remembered.id)
        labels, doubt = self._given("--labels-column", given.labels) or self._known(remembered.labels), None
        if labels is None:
            labels, doubt = self._guess_labels()
        text = self._texts(given.text, remembered.text, {labels, row_id})
        taken = {name for name, _ in text}
        if given.labels is None and labels in taken:
            labels = None
        if given.id is None and (row_id in taken or row_id == labels):
            row_id = None
        separator = given.separator
        if separator is None and labels is not None and labels == remembered.labels:
            separator = remembered.separator
        if separator is None and labels is not None:
            separator, doubt = self._guess_separator(labels)
        return Chosen(self.names, text, labels, None if separator == NONE else separator, row_id, doubt)

    def error(self, problem: str) -> FormatError:
        """Ask for what is missing, showing the first row."""
        return FormatError(f"{self.path}: {problem}; {shown_row(self.names, self.sample[0] if self.sample else ())}")

    def _given(self, flag: str, name: str | None) -> str | None:
        if name is None:
            return None
        if self.names.count(name) == 1:
            return name
        if name in self.names:
            raise FormatError(f"{self.path}: {flag}: two columns are called {name!r:.40}: rename one")
        near = difflib.get_close_matches(name, self.names, n=1)
        hint = f": do you mean {near[0]!r:.40}?" if near else ""
        raise FormatError(f"{self.path}: has no column {name!r:.40}{hint}: there are {shown_names(self.names)}; {flag}")

    def _known(self, name: str | None) -> str | None:
        return name if self.names.count(name or "") == 1 else None

    def _ids(self, given: str | None, remembered: str | None) -> str | None:
        if given is not None:
            return None if given == NONE else self._given("--id-column", given)
        found = self._known(remembered) or self._named(ID_NAMES)
        if found is None:
            return None
        values = [row[self.names.index(found)] for row in self.sample]
        # Ids that repeat are not ids; a row without one has none that could be written.
        return found if all(type(id) in (str, int) for id in values) and len(set(values)) == len(values) else None

    def _named(self, wanted: Sequence[str]) -> str | None:
        """Find the only column with one of these names; the first of them wins over all others."""
        found = [name for name in self.names if name.strip().casefold() in wanted]
        first = [name for name in found if name.strip().casefold() == wanted[0]]
        return (first or found)[0] if len(first or found) == 1 else None

    def _texts(self, given: str | None, remembered: str | None, others: set[str | None]) -> list[tuple[str, int]]:
        if given is not None:
            return parse_texts(given, self)
        if remembered is not None:
            wanted = [name for name, _ in split_weights(remembered, self.names)]
            there = [name for name in wanted if self.names.count(name) == 1]
            if len(there) == len(wanted):
                return split_weights(remembered, self.names)
            if there:
                what = f"the model was trained on {remembered!r:.60}, but only {shown_names(there)} is here"
                raise self.error(f"{what}: name the columns of texts by --text-columns")
        named = [name for name in self.names if name.strip().casefold() in TEXT_NAMES and name not in others]
        plain = [name for name in named if name.strip().casefold() == "text"]
        unnamed = [name for name in self.names if name not in others]
        found = plain or named or [name for name in unnamed if self._holds_texts(name)]
        if not found and len(unnamed) == 1 and (not self._cells(unnamed[0]) or self._holds_texts(unnamed[0], 1)):
            found = unnamed  # there is nothing else that could be texts
        if not found or (len(found) > 1 and not named) or len(set(found)) < len(found):
            why = f"{shown_names(found)} may all be texts" if found else "no column has a name that tells texts"
            raise self.error(f"{why}: name the column of texts by --text-columns (without a header, say --no-header)")
        return [(name, 1) for name in found]

    def _cells(self, name: str) -> list[Any]:
        column = self.names.index(name)
        return [row[column] for row in self.sample if row[column] not in (None, "")]

    def _holds_texts(self, name: str, min_words: int = MIN_WORDS) -> bool:
        cells = self._cells(name)
        if not cells or not all(isinstance(cell, str) for cell in cells) or self.names.count(name) > 1:
            return False
        if all(is_uris(cell) or _NUMBER.fullmatch(cell) for cell in cells):
            return False
        return sum(len(cell.split()) for cell in cells) >= min_words * len(cells)

    def _guess_labels(self) -> tuple[str | None, str | None]:
        """Find the column of labels by its name, or the only one with lists or URIs; else say why there is none."""
        if (named := self._named(LABEL_NAMES)) is not None:
            return named, None
        several = [name for name in self.names if name.strip().casefold() in LABEL_NAMES]
        if not several:
            telling = [name for name in dict.fromkeys(self.names) if self._holds_lists(name)]
            if len(telling) == 1:
                return telling[0], None
        why = f"{shown_names(several)} may all be labels" if several else "no column has a name that tells labels"
        return None, str(self.error(f"{why}: name it by --labels-column"))

    def _holds_lists(self, name: str) -> bool:
        cells = self._cells(name)
        return bool(cells) and (all(isinstance(cell, list) for cell in cells) or all(map(is_uris, cells)))

    def _guess_separator(self, name: str) -> tuple[str | None, str | None]:
        """Guess what separates labels within a field; else say what is doubtful."""
        cells = [cell for cell in self._cells(name) if not isinstance(cell, list)]
        texts = [cell for cell in cells if isinstance(cell, str)]
        if not texts:
            return None, None
        if all(map(is_uris, texts)):
            return URIS, None
        if all(read_list(text) is not None for text in texts):
            return LISTS, None
        for separator in SEPARATORS:
            having = [text for text in texts if separator in text]
            share = len(having) / len(texts)
            known = known_share(texts, having, separator)
            if known >= KNOWN_SHARE or (share >= LIKELY_SHARE and separator != ","):
                return separator, None
            if share >= LIKELY_SHARE:
                one = f"{name!r:.40} holds fields such as {having[0]!r:.60}: is that one label or several?"
                return None, str(self.error(f"{one} say --label-separator {separator!r} or --label-separator none"))
        return None, None


def is_uris(cell: object) -> bool:
    """Tell whether a cell is nothing but URIs, as in Annif's corpora."""
    return isinstance(cell, str) and _ALL_URIS.fullmatch(cell) is not None


def read_list(text: str) -> list[Any] | None:
    """Read a list that was written as text, as JSON does or as pandas does; None if it is none."""
    text = text.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            found = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return found if isinstance(found, list) else None
    return None


def split_labels(names: Iterable[str], separator: str | None) -> list[str]:
    """Split each name into parts, without blanks around them, each once."""
    parts: Iterable[str] = names
    if separator == URIS:
        parts = (part.removeprefix("<").removesuffix(">") for name in names for part in name.split())
    elif separator is not None:
        parts = (part.strip() for name in names for part in name.split(separator))
    return list(dict.fromkeys(part for part in parts if part))


def known_share(texts: list[str], having: list[str], separator: str) -> float:
    """Return which share of the parts of some fields is a part of another field, too."""
    counts = Counter(part for text in texts for part in split_labels([text], separator))
    parts = [part for text in having for part in split_labels([text], separator)]
    return sum(counts[part] > 1 for part in parts) / len(parts) if parts else 0.0


def split_weights(text: str, names: Sequence[str]) -> list[tuple[str, int]]:
    """Split `title*2,abstract` into names and weights; a name of the table may hold commas and stars itself."""
    if text in names:
        return [(text, 1)]
    found = []
    for part in text.split(","):
        part = part.strip()
        weighted = None if part in names else _WEIGHTED.fullmatch(part)
        found.append((weighted[1], int(weighted[2])) if weighted else (part, 1))
    return found


def parse_texts(text: str, chooser: Chooser) -> list[tuple[str, int]]:
    """Parse the columns of texts that were given, all of which must be there."""
    found = split_weights(text, chooser.names)
    for name, weight in found:
        chooser._given("--text-columns", name)
        if weight < 1:
            raise ConfigError(f"--text-columns: {name}*{weight}: a column counts once or more: leave it out instead")
    return found
