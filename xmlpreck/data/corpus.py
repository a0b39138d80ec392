"""Find raw text and turn it into rows.

What was recognised and what was not read, and labels that look like several in one field, are logged once.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from xmlpreck.config import InputError, TextConfig
from xmlpreck.data import formats
from xmlpreck.data.dataset import stack_rows
from xmlpreck.data.formats import Columns, Dataset, Documents
from xmlpreck.data.formats.column_choice import ANY, LIKELY_SHARE, NONE, SEPARATORS, shown_names, split_labels
from xmlpreck.data.formats.tables import Opened, open_table
from xmlpreck.data.shards import is_remote
from xmlpreck.data.text import TextVectorizer, fit_labels, fit_text, label_matrix
from xmlpreck.files.progress import Reading

ROWS_PER_CHUNK = 4096

_log = logging.getLogger(__name__)


class Corpus:
    """Documents of one split, read again for each pass."""

    def __init__(
        self,
        path: Path,
        split: str,
        columns: Columns = ANY,
        format: str | None = None,
        table: Any = None,  # in memory, instead of files
        remembered: Columns | None = None,  # of a model: where it found its texts and labels
    ) -> None:
        self.path, self.split, self.columns, self.format = path, split, columns, format
        self.table, self.remembered = table, remembered
        self._is_logged = False

    @cached_property
    def opened(self) -> Opened:
        """What is read of the documents, chosen at first use."""
        if self.table is not None:
            return open_table(self.table, self.name, self.columns, self.remembered)
        return formats.open_documents(self.path, self.split, self.format, self.columns, self.remembered)

    @property
    def resolved(self) -> Columns:
        """The columns with what was recognised of texts, labels and ids, for a model to remember."""
        chosen = self.opened.chosen
        if chosen is None:
            return self.columns
        separator = chosen.separator or self.columns.separator
        return replace(self.columns, text=chosen.text_setting, labels=chosen.labels, separator=separator, id=chosen.id)

    def chunks(self) -> Iterator[Documents]:
        """Read all documents, some thousands at a time."""
        is_first, self._is_logged = not self._is_logged, True
        chosen, written, _ = self.opened
        if is_first and chosen is not None and (written is not None or not chosen.is_plain):
            _log.warning("%s: %s%s", self.name, "" if written is None else f"{written}; ", chosen)
        labelling = _Labelling()
        separator = self.columns.separator if chosen is None else None
        for chunk in self.opened.chunks(ROWS_PER_CHUNK):
            if separator not in (None, NONE):
                chunk = chunk._replace(labels=[split_labels(names, separator) for names in chunk.labels])
            labelling.add(chunk.labels)
            yield chunk
        for text in labelling.notes() if is_first and self.columns.separator is None else ():
            _log.warning("%s: %s", self.name, text)

    @property
    def name(self) -> str:
        return f"{self.path}, split {self.split}" if self.path.is_dir() else str(self.path)

    def unlabelled(self) -> str:
        """Say that no document has a label, and where labels are read from."""
        chosen = self.opened.chosen
        if chosen is None:
            wanted = "__label__NAME before the text" if self.path.is_file() else "NAME.tsv or NAME.key beside NAME.txt"
            return f"{self.name}: no label found: labels are read from {wanted}"
        if chosen.labels is None:
            return f"{self.name}: no label found: {str(chosen.doubt).removeprefix(f'{self.path}: ')}"
        fields = shown_names(chosen.names)
        return (
            f"{self.name}: no label found: the column {chosen.labels!r:.40} has none: name another by --labels-column; "
            f"the columns are {fields}"
        )


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


def find_corpus(
    data: str, split: str, columns: Columns, format: str | None = None, remembered: Columns | None = None
) -> Corpus | None:
    """Find the documents of a file or folder; None where `data` has numbers (all URIs do) or no such split."""
    given = columns.given()
    if is_remote(data):
        if given:
            raise InputError(f"{data}: raw text is read from local files only: copy them here")
        return None
    path = Path(data)
    if path.exists() and format not in formats.NUMERIC_FORMATS:
        # A folder may have numbers beside the texts that they were made of: columns say which are meant.
        is_text = given or (remembered is not None and remembered.text is not None)
        kinds = formats.DOCUMENT_FORMATS if is_text else formats.FORMATS
        source = formats.find_source(path, split, format, kinds)
        if source is None:
            return None
        if source.format in formats.DOCUMENT_FORMATS:
            return Corpus(path, split, columns, source.format, remembered=remembered)
    if given:
        raise InputError(f"{data}: is not raw text: leave out {given[0]}")
    return None


def learn(corpus: Corpus, config: TextConfig, reading: Reading | None = None) -> tuple[TextVectorizer, list[str]]:
    """Learn vocabulary and label names in one pass over the documents."""
    chosen = corpus.opened.chosen
    if chosen is not None and chosen.doubt is not None:
        raise InputError(chosen.doubt if chosen.labels is not None else corpus.unlabelled())
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
    rows, label_lists, row_ids = [], [], []
    for chunk in (reading or Reading("texts")).over(corpus.chunks()):
        rows.append(vectorizer.transform(chunk.texts))
        label_lists += chunk.labels
        row_ids += chunk.ids or []
    if not label_lists:
        raise InputError(f"{corpus.path}: has no documents")
    if not any(label_lists):  # fine for explain; scoring and training refuse them
        _log.warning("%s", corpus.unlabelled())
    names = fit_labels([label_lists], label_names)
    labels = label_matrix(label_lists, {name: column for column, name in enumerate(names)})
    return Dataset(stack_rows(rows), labels, names, vectorizer.feature_names, row_ids or None)
