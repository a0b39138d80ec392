"""Where rows are and how they are read: a path or a catalogue name, a split, a format and columns of raw text."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from xmlpreck.config import InputError, TextConfig, without_secrets
from xmlpreck.data import catalog, corpus
from xmlpreck.data.corpus import Columns, Corpus
from xmlpreck.data.dataset import Dataset
from xmlpreck.data.rows import RowSource
from xmlpreck.data.shards import is_one_set
from xmlpreck.data.text import TextVectorizer
from xmlpreck.files.progress import Reading

SPLITS = ("train", "test")


@dataclass(frozen=True)
class DataLocation:
    """One split of a data set, found by a catalogue name, a file, a folder, or the URI of shards."""

    path: str
    split: str = "train"
    format: str | None = None  # None: recognised
    columns: Columns = field(default_factory=Columns)
    data_dir: str | None = None  # folder of catalogue data; None: $XMLPRECK_DATA, then the cache

    def at(self, split: str) -> "DataLocation":
        """Return the location of another split of the same data."""
        return replace(self, split=split)

    @property
    def name(self) -> str:
        """A short name to show."""
        return catalog.describe(self.path)

    @property
    def saved_path(self) -> str:
        """The path as a model remembers it: absolute, without credentials."""
        return str(Path(self.path).resolve()) if Path(self.path).exists() else without_secrets(self.path)

    def has_split(self, split: str) -> bool:
        """Tell whether another split is here. A file or one shard set is its own train split, and has no other."""
        if Path(self.path).is_file() or is_one_set(self.path):
            return False
        if self.columns.text is not None:
            return corpus.find_corpus(self.path, split, self.columns, self.format) is not None
        return catalog.has_split(self.path, split, self.data_dir)

    def documents(self) -> Corpus | None:
        """Find raw text; None where the data are numbers."""
        found = corpus.find_corpus(self.path, self.split, self.columns, self.format)
        if found is None and self.columns.text is not None:
            raise InputError(f"{self.path}: has no {self.split} documents: leave out --text-column, or name their file")
        return found

    def open(self, vectorizer: TextVectorizer | None = None, label_names: list[str] | None = None) -> RowSource:
        """Open the rows; raw text goes through the vectorizer and label names of a model."""
        documents = self.documents()
        if documents is None:
            return catalog.load(self.path, self.split, self.data_dir, self.format)
        if vectorizer is None or label_names is None:
            raise InputError(
                f"{self.path}: is raw text, which needs the vocabulary of a model trained on text: name that model by "
                "--model, or give rows of numbers"
            )
        return corpus.vectorize(documents, vectorizer, label_names)

    def learn(
        self, config: TextConfig, note: Callable[[str], None] = lambda text: None, progress: bool = False
    ) -> tuple[RowSource, TextVectorizer | None]:
        """Open rows to train on; raw text gets a vectorizer that learns its words; `note` hears its seconds."""
        documents = self.documents()
        if documents is None:
            return catalog.load(self.path, self.split, self.data_dir, self.format), None
        note("reading text")
        reading, started = Reading("texts", progress), time.perf_counter()
        vectorizer, label_names = corpus.learn(documents, config, reading)
        rows = corpus.vectorize(documents, vectorizer, label_names, reading)
        seconds = time.perf_counter() - started - reading.seconds
        note(
            f"{rows.n_rows:,} texts read in {reading.seconds:.1f} s, "
            f"made into rows of {vectorizer.n_features:,} features in {seconds:.1f} s"
        )
        return rows, vectorizer

    def chunks(self) -> Iterator[Dataset]:
        """Read rows of numbers some thousands at a time, never all into memory."""
        return catalog.read_chunks(self.path, self.split, self.data_dir, self.format)

    def folder(self) -> Path | None:
        """Find the local folder of the files, where companion files may be."""
        return catalog.find_folder(self.path, self.split, self.data_dir)


# What library functions accept as data: a location, its path, or rows in memory or on disk.
Data = str | os.PathLike[str] | DataLocation | RowSource


def locate(data: Data, split: str = "train") -> DataLocation | None:
    """Return the location that `data` names; None for rows that are open already."""
    if isinstance(data, DataLocation):
        return data
    return DataLocation(os.fspath(data), split) if isinstance(data, str | os.PathLike) else None


def load_data(
    path: str | os.PathLike[str],
    split: str = "train",
    *,
    format: str | None = None,
    data_dir: str | None = None,
) -> RowSource:
    """Open one split of a data set as rows of numbers.

    `path` is a catalogue name (demo, bibtex, ...; fetched if it is not on this machine), a file, a folder, or the URI
    of shards. Files are read into a `Dataset`; shards stay on disk and are read block by block. Raw text has no rows
    until a model gives it a vocabulary: give its path to `fit`.
    """
    return DataLocation(os.fspath(path), split, format, data_dir=data_dir).open()
