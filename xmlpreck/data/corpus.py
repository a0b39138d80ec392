"""Find raw text and turn it into rows.

What was recognised and what was not read, and labels that look like several in one field, are logged once.
"""

import logging
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError, TextConfig
from xmlpreck.data import formats
from xmlpreck.data.dataset import build_csr, stack_rows
from xmlpreck.data.formats import Columns, Dataset, Documents
from xmlpreck.data.formats.column_choice import ANY, LIKELY_SHARE, NONE, SEPARATORS, shown_names, split_labels
from xmlpreck.data.formats.tables import Opened, open_table
from xmlpreck.data.rows import concatenate
from xmlpreck.data.shards import ShardSet, is_remote, write_shards
from xmlpreck.data.text import TextVectorizer, fit_labels, fit_rows, fit_text, label_matrix
from xmlpreck.files.progress import Reading
from xmlpreck.machine import free_bytes

ROWS_PER_CHUNK = 4096
ROWS_PER_SHARD = 1 << 15  # of rows that go to a temporary folder
KEPT_SHARE = 0.25  # of the free memory, for the counts of terms in all texts, and for their rows

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

    def texts_of(self, row_ids: Sequence[int]) -> dict[int, str]:
        """Read the texts of some rows by their numbers, in a pass that ends with the last of them."""
        found: dict[int, str] = {}
        wanted, start = set(row_ids), 0
        for chunk in self.opened.chunks(ROWS_PER_CHUNK):
            if len(found) == len(wanted):
                break
            found |= {row: chunk.texts[row - start] for row in wanted if 0 <= row - start < chunk.n_rows}
            start += chunk.n_rows
        return found

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
    if path.exists() and format not in formats.READ_NUMBERS:
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


class _Labels:
    """Labels of the documents that were read, as numbers, and ids of the documents."""

    def __init__(self) -> None:
        self.number_of: dict[str, int] = {}
        self.numbers, self.sizes = array("i"), array("i")
        self.row_ids: list[Any] = []

    def over(self, chunks: Iterable[Documents]) -> Iterator[list[str]]:
        """Keep what documents have beside their texts; returns the texts of each chunk."""
        number_of = self.number_of
        for chunk in chunks:
            for names in chunk.labels:
                self.numbers.extend([number_of.setdefault(name, len(number_of)) for name in names])
            self.sizes.extend(map(len, chunk.labels))
            self.row_ids += chunk.ids or []
            yield chunk.texts

    def names(self, known: list[str]) -> list[str]:
        """List the names in `known`, then all others in order."""
        return fit_labels([[list(self.number_of)]], known)

    def dataset(self, rows: Iterable[csr_array], vectorizer: TextVectorizer, known: list[str]) -> Dataset:
        """Put them beside their rows. Labels beyond `known` get the last columns."""
        names = self.names(known)
        column_of = {name: column for column, name in enumerate(names)}
        columns = np.array([column_of[name] for name in self.number_of], np.int32)
        offsets = np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)])
        ids = columns[np.array(self.numbers, np.int64)]
        labels = build_csr(np.ones(len(ids), np.float32), ids, offsets, (len(self.sizes), len(names)))
        labels.sum_duplicates()  # a name that a row has twice counts once
        labels.data[:] = 1
        return Dataset(stack_rows(list(rows)), labels, names, vectorizer.feature_names, self.row_ids or None)


def learn(
    corpus: Corpus, config: TextConfig, reading: Reading | None = None, threads: int = 0, max_bytes: int | None = None
) -> tuple[TextVectorizer, Dataset | ShardSet]:
    """Learn vocabulary and label names, and turn all documents into rows.

    Documents are read and split into words once, if what is counted takes at most max_bytes (None: KEPT_SHARE of the
    free memory), else twice. Rows that take more than max_bytes go to a temporary folder, which is removed with the
    last reference to them. The rows are the same in all cases, and for any number of threads.
    """
    _check_labels(corpus)
    reading, found = reading or Reading("texts"), _Labels()
    if max_bytes is None:
        max_bytes = int(KEPT_SHARE * free_bytes())
    texts = found.over(reading.over(corpus.chunks()))
    vectorizer, rows = fit_rows(texts, max_bytes, threads, **asdict(config))
    if not found.number_of:
        raise InputError(corpus.unlabelled())
    if rows is not None:
        return vectorizer, found.dataset(rows, vectorizer, [])
    names = found.names([])
    del found
    return vectorizer, _held_or_stored(row_chunks(corpus, vectorizer, names, reading, threads), max_bytes)


def _check_labels(corpus: Corpus) -> None:
    """Refuse to learn where it is in doubt what the labels are."""
    chosen = corpus.opened.chosen
    if chosen is not None and chosen.doubt is not None:
        raise InputError(chosen.doubt if chosen.labels is not None else corpus.unlabelled())


def learn_names(
    corpora: list[Corpus], config: TextConfig, reading: Reading | None = None, threads: int = 0
) -> tuple[TextVectorizer, list[str]]:
    """Learn the vocabulary of the first documents, and the label names of all."""
    _check_labels(corpora[0])
    reading, found = reading or Reading("texts"), _Labels()
    vectorizer = fit_text(found.over(reading.over(corpora[0].chunks())), threads, **asdict(config))
    if not found.number_of:
        raise InputError(corpora[0].unlabelled())
    names = found.names([])
    for corpus in corpora[1:]:
        names = fit_labels((chunk.labels for chunk in reading.over(corpus.chunks())), names)
    return vectorizer, names


def row_chunks(
    corpus: Corpus, vectorizer: TextVectorizer, names: list[str], reading: Reading | None = None, threads: int = 0
) -> Iterator[Dataset]:
    """Turn documents into rows, some thousands at a time; all labels must be among `names`."""
    column_of = {name: column for column, name in enumerate(names)}
    for chunk in (reading or Reading("texts")).over(corpus.chunks()):
        rows = vectorizer.transform(chunk.texts, threads)
        yield Dataset(rows, label_matrix(chunk.labels, column_of), names, vectorizer.feature_names, chunk.ids)


def count_labels(corpus: Corpus, names: list[str], reading: Reading | None = None) -> tuple[np.ndarray, int]:
    """Count the documents of each label, and all documents; labels that are not among `names` are left out."""
    column_of = {name: column for column, name in enumerate(names)}
    counts, n_documents = np.zeros(len(names), np.int64), 0
    for chunk in (reading or Reading("texts")).over(corpus.chunks()):
        found = [column_of[name] for labels in chunk.labels for name in set(labels) if name in column_of]
        counts += np.bincount(np.array(found, np.int64), minlength=len(names))
        n_documents += chunk.n_rows
    return counts, n_documents


def _held_or_stored(chunks: Iterator[Dataset], max_bytes: int) -> Dataset | ShardSet:
    """Hold rows in memory or, if they take more than max_bytes, write them to a temporary folder."""
    held: list[Dataset] = []
    n_bytes = 0
    for chunk in chunks:
        held.append(chunk)
        n_bytes += chunk.rows.data.nbytes + chunk.rows.indices.nbytes
        if n_bytes > max_bytes:
            return _stored(held, chunks)
    row_ids = [row_id for chunk in held for row_id in chunk.row_ids or []]
    return concatenate(held)._replace(row_ids=row_ids or None)


def _stored(held: list[Dataset], rest: Iterator[Dataset]) -> ShardSet:
    def chunks() -> Iterator[Dataset]:
        held.reverse()
        while held:
            yield held.pop()
        yield from rest

    keeper = tempfile.TemporaryDirectory(prefix="xmlpreck-rows-", ignore_cleanup_errors=True)
    made = write_shards(Path(keeper.name) / "rows", chunks(), "parquet", ROWS_PER_SHARD, {"source": "texts"})
    made.keeper = keeper
    return made


def vectorize(
    corpus: Corpus,
    vectorizer: TextVectorizer,
    label_names: list[str],
    reading: Reading | None = None,
    threads: int = 0,
) -> Dataset:
    """Turn all documents into rows. Labels beyond `label_names` get the last columns: no model predicts these."""
    found = _Labels()
    texts = found.over((reading or Reading("texts")).over(corpus.chunks()))
    rows = [vectorizer.transform(chunk, threads) for chunk in texts]
    if not rows:
        raise InputError(f"{corpus.path}: has no documents")
    if not found.number_of:  # fine for explain; scoring and training refuse them
        _log.warning("%s", corpus.unlabelled())
    return found.dataset(rows, vectorizer, label_names)
