"""Where rows are and how they are read: a path, a name or a table, a split, a format and columns of raw text."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from xmlpreck.config import InputError, TextConfig, without_secrets
from xmlpreck.data import catalog, corpus, formats
from xmlpreck.data.corpus import Corpus
from xmlpreck.data.dataset import Dataset
from xmlpreck.data.dense import as_dense, put_beside, stored_dense
from xmlpreck.data.embedding import embed_chunks
from xmlpreck.data.formats import Columns
from xmlpreck.data.formats.dense_files import column_of, read_dense
from xmlpreck.data.formats.recognition import is_dense_file
from xmlpreck.data.formats.tables import as_arrow, is_table
from xmlpreck.data.rows import RowSource
from xmlpreck.data.shards import ShardSet, is_one_set
from xmlpreck.data.text import TextVectorizer
from xmlpreck.files.progress import Reading

SPLITS = ("train", "test")
NO_DENSE = "none"  # instead of a file: leave out the dense rows of a folder


@dataclass(frozen=True)
class DataLocation:
    """One split of a data set, found by a catalogue name, a file, a folder, or the URI of shards; or a table.

    `table` is a data frame of pandas or polars, an Arrow table or a data set of `datasets`; `path` is its name then.
    """

    path: str
    split: str = "train"
    format: str | None = None  # None: recognised
    columns: Columns = field(default_factory=Columns)
    data_dir: str | None = None  # folder of catalogue data; None: $XMLPRECK_DATA, then the cache
    table: Any = None
    remembered: Columns | None = None  # columns that a model was trained on: they are read where they are there
    # Dense rows beside these: a file, a matrix, a column of the table, or "none"; None: E_train.npy of a folder.
    dense: Any = None
    n_dense: int = 0  # dense features of the models that are compared on these rows, where no one model opens them
    embed: str | None = None  # model that makes dense rows of raw text, see data/embedding.py

    def of_model(self, info: Mapping[str, Any]) -> "DataLocation":
        """Return the location with the columns and the embedding that a model remembers in its `info`."""
        embed = info.get("embed") if self.dense is None else None
        return replace(self, remembered=remembered_columns(info.get("data") or {}), embed=embed)

    def at(self, split: str) -> "DataLocation":
        """Return the location of another split of the same data; dense rows that were given are of one split."""
        left_out = isinstance(self.dense, str) and self.dense == NO_DENSE
        return replace(self, split=split, dense=NO_DENSE if left_out else None)

    def open_dense(self, progress: bool = False) -> tuple[np.ndarray, str] | None:
        """Open the dense rows beside these, or make them of their texts, and name them; None where there are none."""
        if self.embed is not None and self.dense is not None:
            raise InputError("--dense gives dense rows, and --embed makes them of texts: give one of the two")
        if self.embed is not None:
            documents = self.documents()
            if documents is None:
                raise InputError(f"{self.path}: has no texts for --embed: give their file, or dense rows by --dense")
            chunks = (chunk.texts for chunk in documents.chunks())
            return embed_chunks(self.embed, chunks, progress), f"the embedding of {self.path}"
        given = self.dense
        if given is None:
            given = self._find_dense()
        if given is None or (isinstance(given, str) and given == NO_DENSE):
            return None
        if self.table is not None and isinstance(given, str):
            return column_of(as_arrow(self.table, self.path), given, self.path), f"{self.path}: {given}"
        if isinstance(given, str | os.PathLike):
            return read_dense(given), os.fspath(given)
        return as_dense(given), "dense"

    def _find_dense(self) -> Path | None:
        """Find E_train.npy or E_test.npy: the file that is named, or that of its folder."""
        if self.table is not None or self.path == "-":
            return None
        path = Path(self.path)
        if is_dense_file(path):
            return path
        beside = self.folder() if path.is_dir() else None
        found = None if beside is None else beside / f"E_{self.split}.npy"
        return found if found is not None and found.is_file() else None

    def join_dense(self, rows: RowSource, n_dense: int) -> RowSource:
        """Put the dense rows beside the others, for a model that has n_dense such features."""
        n_dense = n_dense or self.n_dense
        found = self.open_dense() if n_dense else None
        if found is None:
            return rows
        if found[0].shape[1] != n_dense:
            raise InputError(f"{found[1]}: has {found[0].shape[1]} columns, but the model was trained on {n_dense}")
        return put_beside(rows, *found)

    @property
    def name(self) -> str:
        """A short name to show."""
        if self.table is not None:
            return self.path
        return catalog.describe(self.path)

    @property
    def saved_path(self) -> str:
        """The path as a model remembers it: absolute, without credentials."""
        return str(Path(self.path).resolve()) if Path(self.path).exists() else without_secrets(self.path)

    @property
    def is_whole(self) -> bool:
        """Tell whether all is one split: a table in memory, a file, or a folder of full texts."""
        path = Path(self.path)
        if self.table is not None or path.is_file():
            return True
        return path.is_dir() and (self.format == "fulltext" or formats.is_fulltext_folder(path))

    def has_split(self, split: str) -> bool:
        """Tell whether another split is here. A file or one shard set is its own train split, and has no other."""
        if self.is_whole or is_one_set(self.path):
            return False
        return catalog.has_split(self.path, split, self.data_dir)

    def documents(self) -> Corpus | None:
        """Find raw text; None where the data are numbers."""
        if self.table is not None:
            return Corpus(Path(self.path), self.split, self.columns, table=self.table, remembered=self.remembered)
        found = corpus.find_corpus(self.path, self.split, self.columns, self.format, self.remembered)
        if found is None and self.columns.text is not None:
            raise InputError(f"{self.path}: has no {self.split} documents: name their file, or another --split")
        return found

    def open(
        self,
        vectorizer: TextVectorizer | None = None,
        label_names: list[str] | None = None,
        n_dense: int = 0,
        progress: bool = False,
    ) -> RowSource:
        """Open the rows; raw text goes through the vectorizer and label names of a model, dense rows come beside."""
        documents = self.documents()
        if documents is None:
            return self.join_dense(catalog.load(self.path, self.split, self.data_dir, self.format), n_dense)
        if vectorizer is None or label_names is None:
            raise InputError(
                f"{self.path}: is raw text, which needs the vocabulary of a model trained on text: name that model by "
                "--model, or give rows of numbers"
            )
        rows = corpus.vectorize(documents, vectorizer, label_names, Reading("texts", progress))
        return self.join_dense(rows, n_dense)

    def learn(
        self,
        config: TextConfig,
        note: Callable[[str], None] = lambda text: None,
        progress: bool = False,
        threads: int = 0,
        memory: int | None = None,
    ) -> tuple[RowSource, TextVectorizer | None]:
        """Open rows to train on; raw text gets a vectorizer that learns its words; `note` hears its seconds.

        Rows of raw text that take more than a share of the memory (bytes; None: what is free) stay on disk.
        """
        documents = self.documents()
        if documents is None:
            rows = catalog.load(self.path, self.split, self.data_dir, self.format)
            return rows, self._converted_text(rows.n_features - stored_dense(rows))
        note("reading text")
        reading, started = Reading("texts", progress), time.perf_counter()
        max_bytes = None if memory is None else int(corpus.KEPT_SHARE * memory)
        vectorizer, rows = corpus.learn(documents, config, reading, threads, max_bytes)
        seconds = time.perf_counter() - started - reading.seconds
        note(
            f"{rows.n_rows:,} texts read in {reading.seconds:.1f} s, "
            f"made into rows of {vectorizer.n_features:,} features in {seconds:.1f} s"
        )
        if isinstance(rows, ShardSet):
            n_bytes = sum(shard.n_bytes for shard in rows.shards)
            note(f"rows on disk while the run lasts: {n_bytes / 2**20:,.1f} MB in {rows.folder}")
        return rows, vectorizer

    def _converted_text(self, n_features: int) -> TextVectorizer | None:
        """Load the vectorizer that `data convert` has put beside shards of texts."""
        for folder in (Path(self.path), Path(self.path).parent):
            if is_one_set(str(folder / "train")) and (folder / "text.json").is_file():
                vectorizer = TextVectorizer.load(folder)
                if vectorizer.n_features != n_features:
                    raise InputError(
                        f"{folder}: its words are {vectorizer.n_features}, but its rows have {n_features} features"
                    )
                return vectorizer
        return None

    def chunks(self) -> Iterator[Dataset]:
        """Read rows of numbers some thousands at a time, never all into memory."""
        return catalog.read_chunks(self.path, self.split, self.data_dir, self.format)

    def folder(self) -> Path | None:
        """Find the local folder of the files, where companion files may be."""
        return catalog.find_folder(self.path, self.split, self.data_dir)


# How model.json calls what is known of columns.
REMEMBERED = {
    "text": "text_column",
    "labels": "labels_column",
    "separator": "label_separator",
    "id": "id_column",
    "delimiter": "delimiter",
    "encoding": "encoding",
}


def remembered_columns(about: Mapping[str, Any]) -> Columns:
    """Read columns from the "data" entry of `model.json`."""
    return Columns(**{name: about.get(key) for name, key in REMEMBERED.items()})


# What library functions accept as data: a location, its path, a table, or rows in memory or on disk.
Data = str | os.PathLike[str] | DataLocation | RowSource


def locate(data: Any, split: str = "train") -> DataLocation | None:
    """Return the location that `data` names; None for rows that are open already."""
    if isinstance(data, DataLocation):
        return data
    if isinstance(data, str | os.PathLike):
        return DataLocation(os.fspath(data), split)
    return DataLocation(type(data).__name__, split, table=data) if is_table(data) else None


def load_data(
    data: Any,
    split: str = "train",
    *,
    format: str | None = None,
    data_dir: str | None = None,
    text: str | None = None,
    labels: str | None = None,
    label_separator: str | None = None,
    id: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    quotes: bool | None = None,
    header: bool | None = None,
) -> RowSource | DataLocation:
    """Open one split of a data set as rows of numbers, or say where raw text is.

    Parameters
    ----------
    data : path, str or table
        A catalogue name (demo, bibtex, ...; fetched if it is not on this machine), a file, a folder, the URI of
        shards; or a data frame of pandas or polars, an Arrow table, a data set of `datasets`.
    split : str
        train or test, of a folder.
    format, data_dir
        A file format that is not recognised; the folder of catalogue data.
    text, labels, id : str, optional
        Columns of a table; several of texts as in ``"title*2,abstract"``. None = recognised by names and content.
    label_separator : str, optional
        What separates the labels of one field, or ``"none"``. None = recognised.
    delimiter, encoding, quotes, header
        How CSV is written. None = recognised, and UTF-8.

    Returns
    -------
    Dataset, ShardSet or DataLocation
        Files are read into a `Dataset`; shards stay on disk and are read block by block. Raw text has no rows until a
        model gives it a vocabulary: its `DataLocation` is what `fit`, `predict` and the others take.
    """
    columns = Columns(text, labels, label_separator, id, delimiter, encoding, quotes, header)
    if is_table(data):
        return DataLocation(type(data).__name__, split, format, columns, table=data)
    location = DataLocation(os.fspath(data), split, format, columns, data_dir)
    return location.open() if location.documents() is None else location
