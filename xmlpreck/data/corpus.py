"""Find raw text and turn it into rows.

Fields that were not read, and labels that look like several in one field, are logged once.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from xmlpreck.config import ConfigError, InputError, TextConfig
from xmlpreck.data import formats
from xmlpreck.data.dataset import stack_rows
from xmlpreck.data.formats import Dataset, Documents
from xmlpreck.data.formats.documents import LABEL_FIELDS, Fields, shown_fields
from xmlpreck.data.shards import is_remote
from xmlpreck.data.text import TextVectorizer, fit_labels, fit_text, label_matrix, read_parquet_documents
from xmlpreck.files.progress import Reading

# A held-back split has one of these names.
PARQUET_FILES = {"train": ("train.parquet",), "test": ("test.parquet", "dev.parquet")}

# Separators that people put between labels. If at least LIKELY_SHARE of the documents have a single label with one of
# these in it, it is likely several labels.
SEPARATORS = (";", "|", ",", "\t")
LIKELY_SHARE = 0.2

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Columns:
    """Where raw text and its labels are: columns of a Parquet file, and what separates labels within one field."""

    text: str | None = None
    labels: str | None = None
    separator: str | None = None  # splits each label into several

    def __post_init__(self) -> None:
        if self.separator == "":
            raise ConfigError("--label-separator must be one character or more, but is empty")


class Corpus:
    """Documents of one split, read again for each pass."""

    def __init__(self, path: Path, split: str, columns: Columns, format: str | None = None) -> None:
        self.path, self.split, self.columns, self.format = path, split, columns, format
        self.fields = Fields()
        self._is_logged = False  # what was not read

    def chunks(self) -> Iterator[Documents]:
        """Read all documents, some thousands at a time."""
        labelling = _Labelling()
        for chunk in self._read():
            if self.columns.separator is not None:
                chunk = chunk._replace(labels=[split_labels(names, self.columns.separator) for names in chunk.labels])
            labelling.add(chunk.labels)
            yield chunk
        if not self._is_logged:
            self._is_logged = True
            if self.fields.unread:
                read, unread = shown_fields(self.fields.read), shown_fields(self.fields.unread)
                _log.warning("%s: read: %s; not read: %s", self.name, read, unread)
            for text in labelling.notes():
                _log.warning("%s: %s", self.name, text)

    def _read(self) -> Iterator[Documents]:
        if self.columns.text is not None:
            return read_parquet_documents(self.path, self.columns.text, self.columns.labels, found=self.fields)
        return formats.document_chunks(self.path, self.split, self.format, found=self.fields)

    @property
    def name(self) -> str:
        return f"{self.path}, split {self.split}" if self.path.is_dir() else str(self.path)

    def unlabelled(self) -> str:
        """Say, after a pass, that no document has a label, and where labels are read from."""
        fields = [*self.fields.read, *self.fields.unread]
        if self.columns.text is not None:
            wanted = "the column of --labels-column" + (f", {self.columns.labels!r}" if self.columns.labels else "")
        elif fields:
            wanted = " or ".join(map(repr, LABEL_FIELDS))
        else:
            wanted = "__label__NAME before the text"
        there = f"the fields are {shown_fields(fields)}; " if fields else ""
        return f"{self.name}: no label found: {there}labels are read from {wanted}"


def split_labels(names: list[str], separator: str) -> list[str]:
    """Split each name into parts, without blanks around them, each once."""
    parts = (part.strip() for name in names for part in name.split(separator))
    return list(dict.fromkeys(part for part in parts if part))


class _Labelling:
    """Count documents that have a single label with a separator in it."""

    def __init__(self) -> None:
        self.n_labelled = 0
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, lists: list[list[str]]) -> None:
        self.n_labelled += sum(map(bool, lists))
        for names in lists:
            if len(names) == 1:
                for separator in SEPARATORS:
                    if separator in names[0]:
                        self.counts[separator] += 1
                        self.first.setdefault(separator, names[0])

    def notes(self) -> list[str]:
        if not self.counts or max(self.counts.values()) < LIKELY_SHARE * self.n_labelled:
            return []
        separator, count = self.counts.most_common(1)[0]
        share = f"{100 * count / self.n_labelled:.0f}% of the labelled documents"
        one = f"have one label such as {self.first[separator]!r:.60}"
        return [f"{share} {one}: if these are several, split them by --label-separator {separator!r}"]


def find_corpus(data: str, split: str, columns: Columns, format: str | None = None) -> Corpus | None:
    """Find the documents of a file or folder; None where `data` has numbers (all URIs do) or no such split."""
    if is_remote(data):
        if columns.text is not None or columns.separator is not None:
            raise InputError(f"{data}: raw text is read from local files only: copy them here")
        return None
    path = Path(data)
    if columns.text is not None:
        names = PARQUET_FILES[split]
        files = [path / name for name in names] if path.is_dir() else [path]
        found = next((file for file in files if file.is_file()), None)
        if found is None and split == "train":
            raise InputError(f"{path}: no {split} documents here: looked for {', '.join(names)}")
        return None if found is None else Corpus(found, split, columns)
    if path.exists() and not formats.has_split(path, split):
        return None
    if path.exists() and (format or formats.recognise(path)) in formats.DOCUMENT_FORMATS:
        return Corpus(path, split, columns, format)
    if columns.separator is not None:
        raise InputError(f"{data}: is not raw text: leave out --label-separator, or name its columns by --text-column")
    return None


def learn(corpus: Corpus, config: TextConfig, reading: Reading | None = None) -> tuple[TextVectorizer, list[str]]:
    """Learn vocabulary and label names in one pass over the documents."""
    seen: set[str] = set()
    reading = reading or Reading("texts")

    def texts() -> Iterator[list[str]]:
        for chunk in reading.over(corpus.chunks()):
            seen.update(name for names in chunk.labels for name in names)
            yield chunk.texts

    vectorizer = fit_text(texts(), **asdict(config))
    if not seen:
        raise InputError(corpus.unlabelled())
    return vectorizer, fit_labels([[sorted(seen)]])


def vectorize(
    corpus: Corpus, vectorizer: TextVectorizer, label_names: list[str], reading: Reading | None = None
) -> Dataset:
    """Turn all documents into rows. Labels beyond `label_names` get the last columns: no model predicts these."""
    rows, label_lists = [], []
    for chunk in (reading or Reading("texts")).over(corpus.chunks()):
        rows.append(vectorizer.transform(chunk.texts))
        label_lists += chunk.labels
    if not rows:
        raise InputError(f"{corpus.path}: has no documents")
    if not any(label_lists):  # fine for explain; scoring and training refuse them
        _log.warning("%s", corpus.unlabelled())
    names = fit_labels([label_lists], label_names)
    labels = label_matrix(label_lists, {name: column for column, name in enumerate(names)})
    return Dataset(stack_rows(rows), labels, names, vectorizer.feature_names)
