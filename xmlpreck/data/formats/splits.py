"""One split of a data set in any format: read whole or in chunks, written from chunks."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scipy.sparse import csr_array

from xmlpreck.data.dataset import Dataset, Documents, Sizes, as_labels, regroup, same_widths, stack_rows
from xmlpreck.data.formats import columns, documents, npz, repository
from xmlpreck.data.formats.recognition import (
    DOCUMENT_FORMATS,
    NUMERIC_FORMATS,
    SPLITS,
    Source,
    check_format,
    check_split,
    find_source,
    list_files,
    partner,
    require_source,
)
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.contents import BLOCK_BYTES, read_names, write_names

Parts = Iterator[csr_array]

# Formats whose rows and labels stand in two files.
_PAIRED = ("npz", "pair")
_FILE_NAMES = {
    "repository": "{split}.txt",
    "pair": "{short}_X_Xf.txt",
    "libsvm": "{split}.svm",
    "npz": "X_{split}.npz",
    "split": "{folder}_data.txt",
    "jsonl": "{split}.jsonl",
    "fasttext": "{split}.ft",
}
_SUFFIXES = (".txt", ".svm", ".libsvm", ".npz", ".json", ".jsonl", ".ft", ".fasttext", ".gz")


class Given(NamedTuple):
    """What a format leaves open: the sizes of LIBSVM text (None: the largest ids), the column of row numbers."""

    n_features: int | None = None
    n_labels: int | None = None
    split_column: int = 0


def has_split(path: AnyPath, split: str) -> bool:
    """Whether there is a file that may hold the split; what it holds is not looked at."""
    check_split(split)
    place = Path(path)
    if place.is_dir():
        return bool(list_files(place, split)) or columns.find_data(place, split) is not None
    return place.is_file()


def _sizes(source: Source, split: str, given: Given) -> Sizes:
    if source.format == "libsvm":
        # Both splits of a folder must agree on the sizes, so both are looked at.
        others = (find_source(source.asked, name, "libsvm") for name in SPLITS) if source.asked.is_dir() else ()
        files = dict.fromkeys([source.path, *(other.path for other in others if other)])
        found = repository.measure_libsvm(files)
        widths = [own if own is not None else size for own, size in zip(given[:2], found[1:], strict=True)]
        return Sizes(found.n_rows, *widths)
    if source.format == "npz":
        shapes = [npz.read_shape(path) for path in (source.path, partner(source.path))]
    elif source.format == "pair":
        headers = [
            repository.read_header(path, layout)
            for path, layout in ((source.path, repository.FEATURES), (partner(source.path), repository.LABELS))
        ]
        shapes = [
            (header["n_rows"], header[name]) for header, name in zip(headers, ("n_features", "n_labels"), strict=True)
        ]
    else:
        header = repository.read_header(source.path)
        n_rows = (
            columns.count_rows(source.path, split, given.split_column) if source.format == "split" else header["n_rows"]
        )
        return Sizes(n_rows, header["n_features"], header["n_labels"])
    if shapes[0][0] != shapes[1][0]:
        raise FormatError(f"{partner(source.path)}: has {shapes[1][0]} rows, but {source.path} has {shapes[0][0]}")
    return Sizes(*shapes[0], shapes[1][1])


def _parts(source: Source, split: str, given: Given, block_bytes: int | None) -> Iterator[tuple[csr_array, csr_array]]:
    """(rows, labels) of the formats that have both in one file."""
    if source.format == "repository":
        return repository.read_text(source.path, repository.REPOSITORY, block_bytes)
    if source.format == "split":
        return columns.read_columns(source.path, split, given.split_column, block_bytes)
    n_features, n_labels = given.n_features, given.n_labels
    if n_features is None or n_labels is None:
        _, n_features, n_labels = _sizes(source, split, given)
    return repository.read_libsvm(source.path, Sizes(0, n_features, n_labels), block_bytes or BLOCK_BYTES)


def _paired_parts(source: Source, block_bytes: int | None) -> tuple[Parts, Parts]:
    """Rows and labels of the formats that have them in two files, each at its own pace."""
    labels_path = partner(source.path)
    if source.format == "npz" and block_bytes is None:
        rows, labels = iter([npz.read_matrix(source.path, "feature")]), iter([npz.read_matrix(labels_path, "label")])
    elif source.format == "npz":
        rows, labels = npz.read_matrix_rows(source.path, "feature"), npz.read_matrix_rows(labels_path, "label")
    else:
        rows, labels = (
            (part for part, _ in repository.read_text(path, layout, block_bytes))
            for path, layout in ((source.path, repository.FEATURES), (labels_path, repository.LABELS))
        )
    return rows, map(as_labels, labels)


def _read_names(folder: Path, stem: str, count: int) -> list[str] | None:
    """One name a line, or None without such a file; an empty line is an empty name."""
    files = (folder / name for name in (f"{stem}.txt", f"{stem}.txt.gz"))
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        return None
    names = read_names(path)
    if len(names) != count:
        raise FormatError(f"{path}: has {len(names)} names, but there are {count} {stem}: give one a line")
    return names


def _named(source: Source, chunks: Iterator[tuple[csr_array, ...]]) -> Iterator[Dataset]:
    """Chunks with the names that stand beside them in a folder."""
    names: tuple[list[str] | None, ...] | None = None
    for rows, labels in chunks:
        if names is None:
            widths = (("labels", labels.shape[1]), ("features", rows.shape[1]))
            is_folder = source.asked.is_dir()
            names = tuple(_read_names(source.asked, stem, n) if is_folder else None for stem, n in widths)
        yield Dataset(rows, labels, *names)


def sizes(
    path: AnyPath,
    split: str,
    format: str | None = None,
    *,
    n_features: int | None = None,
    n_labels: int | None = None,
    split_column: int = 0,
) -> Sizes:
    """(n_rows, n_features, n_labels) of one split, from its header where there is one."""
    source = require_source(path, split, format, NUMERIC_FORMATS)
    return _sizes(source, split, Given(n_features, n_labels, split_column))


def read_chunks(
    path: AnyPath,
    split: str,
    format: str | None = None,
    rows_per_chunk: int = 65_536,
    *,
    n_features: int | None = None,
    n_labels: int | None = None,
    split_column: int = 0,
) -> Iterator[Dataset]:
    """One split of features, `rows_per_chunk` rows at a time and each as wide as the whole; at least one chunk.

    Memory follows the chunk. `n_features` and `n_labels` are the sizes of LIBSVM text, which else are its largest
    ids; `split_column` chooses among the columns of row numbers. Errors in later rows come with their chunk.
    """
    _check_rows_per_chunk(rows_per_chunk)
    source = require_source(path, split, format, NUMERIC_FORMATS)
    given = Given(n_features, n_labels, split_column)
    if source.format not in _PAIRED:
        return _named(source, regroup(_parts(source, split, given, BLOCK_BYTES), rows_per_chunk))
    _sizes(source, split, given)  # both files must have as many rows
    both = (regroup(((part,) for part in parts), rows_per_chunk) for parts in _paired_parts(source, BLOCK_BYTES))
    return _named(source, ((rows, labels) for (rows,), (labels,) in zip(*both, strict=True)))


def read_split(
    path: AnyPath,
    split: str,
    format: str | None = None,
    *,
    n_features: int | None = None,
    n_labels: int | None = None,
    split_column: int = 0,
) -> Dataset:
    """Read one split of a folder (with the names in `labels.txt` and `features.txt`), or a file as it is."""
    source = require_source(path, split, format, NUMERIC_FORMATS)
    given = Given(n_features, n_labels, split_column)
    if source.format in _PAIRED:
        _sizes(source, split, given)  # both files must have as many rows
        parts = [list(stream) for stream in _paired_parts(source, None)]
    else:
        parts = [list(matrices) for matrices in zip(*_parts(source, split, given, None), strict=True)]
    return next(_named(source, iter([tuple(map(stack_rows, parts))])))


def document_chunks(
    path: AnyPath,
    split: str,
    format: str | None = None,
    rows_per_chunk: int = 4_096,
    met: documents.Fields | None = None,
) -> Iterator[Documents]:
    """One split of texts, `rows_per_chunk` at a time; at least one chunk. `met` learns which fields there are."""
    _check_rows_per_chunk(rows_per_chunk)
    source = require_source(path, split, format, DOCUMENT_FORMATS)
    if source.format == "jsonl":
        return documents.read_jsonl(source.path, rows_per_chunk, met)
    return documents.read_fasttext(source.path, rows_per_chunk)


def read_documents(path: AnyPath, split: str, format: str | None = None) -> Documents:
    """Read all texts of one split, and the names of their labels."""
    return next(document_chunks(path, split, format, sys.maxsize))


def _check_rows_per_chunk(rows_per_chunk: int) -> None:
    if rows_per_chunk < 1:
        raise FormatError(f"rows_per_chunk must be at least 1, but is {rows_per_chunk}")


def _target(path: Path, split: str, format: str, compress: bool) -> Path:
    """The file to write: the path itself when it is named like one, else the format's own name in that folder."""
    # Not any suffix: a folder may well be called eurlex-4.3k.
    if path.suffix in _SUFFIXES and not path.is_dir():
        return path
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from error
    short = {"train": "trn", "test": "tst"}[split]
    name = _FILE_NAMES[format].format(split=split, short=short, folder=path.resolve().name)
    return path / (f"{name}.gz" if compress and format != "npz" else name)


def _keep_names(folder: Path, chunks: Iterable[Dataset]) -> Iterator[Dataset]:
    """The chunks as they are; the names of the first one are written into the folder."""
    for number, chunk in enumerate(chunks):
        if number == 0:
            for stem, names in (("labels", chunk.label_names), ("features", chunk.feature_names)):
                if names is not None:
                    write_names(folder / f"{stem}.txt", names)
        yield chunk


def write_split(
    path: AnyPath,
    split: str,
    chunks: Iterable[Dataset] | Iterable[Documents],
    format: str,
    compress: bool = False,
) -> Path:
    """Write chunks (of Dataset, or of Documents for jsonl and fasttext) and return the file of the rows.

    `path` is a file (`.gz` is packed) or a folder, which gets the format's own file names and the names of labels
    and features. Format `split` keeps the rows of the other split that stand in the file already.
    """
    check_split(split)
    check_format(format)
    target = _target(Path(path), split, format, compress)
    kind = Documents if format in DOCUMENT_FORMATS else Dataset
    checked = _of_kind(target, chunks, kind, format)
    if kind is Documents:
        write = documents.write_jsonl if format == "jsonl" else documents.write_fasttext
        write(target, checked)
        return target
    rows = same_widths(target, checked)
    if Path(path).is_dir():
        rows = _keep_names(Path(path), rows)
    if format == "repository":
        repository.write_repository(target, rows)
    elif format == "libsvm":
        repository.write_libsvm(target, rows)
    elif format == "split":
        columns.write_columns(target, split, rows)
    else:
        write_both = npz.write_npz_chunks if format == "npz" else repository.write_pair
        write_both(target, partner(target), rows)
    return target


def _of_kind(path: Path, chunks: Iterable[Any], kind: type, format: str) -> Iterator[Any]:
    for chunk in chunks:
        if not isinstance(chunk, kind):
            raise FormatError(f"{path}: {format} takes {kind.__name__}, not {type(chunk).__name__}")
        yield chunk
