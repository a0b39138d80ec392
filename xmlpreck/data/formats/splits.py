"""Read and write one split of a data set in any format, whole or in chunks."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.data.dataset import (
    Dataset,
    Documents,
    Sizes,
    as_labels,
    regroup,
    same_widths,
    stack_rows,
    with_equal_labels,
)
from xmlpreck.data.formats import columns, documents, fulltext, npz, repository, tables
from xmlpreck.data.formats.column_choice import ANY, Columns
from xmlpreck.data.formats.dense_files import read_dense
from xmlpreck.data.formats.recognition import (
    DOCUMENT_FORMATS,
    READ_NUMBERS,
    SHORT_NAMES,
    SPLITS,
    WRITTEN_DOCUMENTS,
    Source,
    check_format,
    check_split,
    find_source,
    is_fulltext_folder,
    list_files,
    partner,
    require_source,
)
from xmlpreck.data.formats.tables import Opened
from xmlpreck.files import AnyPath, FormatError, write_errors
from xmlpreck.files.contents import BLOCK_BYTES, parse_names, read_bytes, write_names

Parts = Iterator[csr_array]

# Formats with rows and labels in two files.
_PAIRED = ("npz", "npy", "pair")
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


class FileOptions(TypedDict, total=False):
    """What a format leaves open: the sizes of LIBSVM text (default: its largest ids), the column of row numbers."""

    n_features: int
    n_labels: int
    split_column: int


def has_split(path: AnyPath, split: str) -> bool:
    """Tell whether there is a file that may hold the split, without looking into it."""
    check_split(split)
    folder = Path(path)
    if folder.is_dir():
        if list_files(folder, split) or columns.find_data(folder, split) is not None:
            return True
        return split == "train" and is_fulltext_folder(folder)
    return folder.is_file()


def _sizes(source: Source, split: str, options: FileOptions) -> Sizes:
    if source.format == "libsvm":
        # Both splits of a folder must agree on the sizes, so both are measured.
        others = (find_source(source.asked, name, "libsvm") for name in SPLITS) if source.asked.is_dir() else ()
        files = dict.fromkeys([source.path, *(other.path for other in others if other)])
        found = repository.measure_libsvm(files)
        widths = (options.get("n_features", found.n_features), options.get("n_labels", found.n_labels))
        return Sizes(found.n_rows, *widths)
    if source.format not in _PAIRED:
        header = repository.read_header(source.path)
        if source.format == "split":
            header["n_rows"] = columns.row_ids(source.path, split, options.get("split_column", 0)).size
        return Sizes(**header)
    labels_path = partner(source.path)
    if source.format == "npy":  # the dense values come beside, see DataLocation.open_dense
        n_rows, n_features = len(read_dense(source.path)), 0
        n_label_rows, n_labels = npz.read_shape(labels_path)
    elif source.format == "npz":
        (n_rows, n_features), (n_label_rows, n_labels) = npz.read_shape(source.path), npz.read_shape(labels_path)
    else:
        n_rows, n_features = repository.read_header(source.path, repository.FEATURES).values()
        n_label_rows, n_labels = repository.read_header(labels_path, repository.LABELS).values()
    if n_rows != n_label_rows:
        raise FormatError(f"{labels_path}: has {n_label_rows} rows, but {source.path} has {n_rows}")
    return Sizes(n_rows, n_features, n_labels)


def _parts(
    source: Source, split: str, options: FileOptions, block_bytes: int | None
) -> Iterator[tuple[csr_array, csr_array]]:
    """Yield (rows, labels) of the formats that have both in one file."""
    if source.format == "repository":
        return repository.read_text(source.path, repository.REPOSITORY, block_bytes)
    if source.format == "split":
        return columns.read_columns(source.path, split, options.get("split_column", 0), block_bytes)
    if "n_features" in options and "n_labels" in options:
        sizes = Sizes(0, options["n_features"], options["n_labels"])
    else:
        sizes = _sizes(source, split, options)
    return repository.read_libsvm(source.path, sizes, block_bytes or BLOCK_BYTES)


def _paired_parts(source: Source, split: str, block_bytes: int | None) -> tuple[Parts, Parts]:
    """Return rows and labels of the formats that have them in two files of as many rows, in parts of any size."""
    sizes = _sizes(source, split, {})
    labels_path = partner(source.path)
    if source.format == "npy":
        rows = iter([csr_array((sizes.n_rows, 0), dtype=np.float32)])
        labels = (
            npz.read_matrix_rows(labels_path, "label") if block_bytes else iter([npz.read_matrix(labels_path, "label")])
        )
    elif source.format == "npz" and block_bytes is None:
        rows, labels = iter([npz.read_matrix(source.path, "feature")]), iter([npz.read_matrix(labels_path, "label")])
    elif source.format == "npz":
        rows, labels = npz.read_matrix_rows(source.path, "feature"), npz.read_matrix_rows(labels_path, "label")
    else:
        rows, labels = (
            (part for part, _ in repository.read_text(path, layout, block_bytes))
            for path, layout in ((source.path, repository.FEATURES), (labels_path, repository.LABELS))
        )
    return rows, map(as_labels, labels)


def _read_names(source: Source, stem: str, n_names: int) -> list[str] | None:
    """Read the names of labels or features of a folder, if it has them."""
    files = [source.asked / name for name in (f"{stem}.txt", f"{stem}.txt.gz")] if source.asked.is_dir() else []
    path = next((file for file in files if file.is_file()), None)
    return None if path is None else parse_names(path, read_bytes(path).tobytes(), n_names)


def _with_names(source: Source, chunks: Iterator[tuple[csr_array, ...]]) -> Iterator[Dataset]:
    names: list[list[str] | None] = []
    for rows, labels in chunks:
        if not names:
            names = [_read_names(source, "labels", labels.shape[1]), _read_names(source, "features", rows.shape[1])]
        yield Dataset(rows, labels, *names)


def sizes(path: AnyPath, split: str, format: str | None = None, **options: Unpack[FileOptions]) -> Sizes:
    """Find (n_rows, n_features, n_labels) of one split, from its header if it has one."""
    return _sizes(require_source(path, split, format, READ_NUMBERS), split, options)


def read_chunks(
    path: AnyPath,
    split: str,
    format: str | None = None,
    rows_per_chunk: int = 65_536,
    **options: Unpack[FileOptions],
) -> Iterator[Dataset]:
    """Read one split of features, `rows_per_chunk` rows at a time, each as wide as the whole; at least one chunk.

    Only one chunk is in memory. Errors in later rows are raised with their chunk.
    """
    _check_rows_per_chunk(rows_per_chunk)
    source = require_source(path, split, format, READ_NUMBERS)
    if source.format not in _PAIRED:
        return _with_names(source, regroup(_parts(source, split, options, BLOCK_BYTES), rows_per_chunk))
    streams = _paired_parts(source, split, BLOCK_BYTES)
    both = (regroup(((part,) for part in parts), rows_per_chunk) for parts in streams)
    return _with_names(source, ((rows, labels) for (rows,), (labels,) in zip(*both, strict=True)))


def read_split(path: AnyPath, split: str, format: str | None = None, **options: Unpack[FileOptions]) -> Dataset:
    """Read one split of a folder (with the names in `labels.txt` and `features.txt`), or a file as it is."""
    source = require_source(path, split, format, READ_NUMBERS)
    if source.format in _PAIRED:
        parts = [list(stream) for stream in _paired_parts(source, split, None)]
    else:
        parts = [list(matrices) for matrices in zip(*_parts(source, split, options, None), strict=True)]
    return next(_with_names(source, iter([tuple(map(stack_rows, parts))])))


def open_documents(
    path: AnyPath,
    split: str,
    format: str | None = None,
    chosen: Columns = ANY,
    remembered: Columns | None = None,
) -> Opened:
    """Open one split of texts; what `chosen` leaves open is as `remembered` says, or recognised."""
    source = require_source(path, split, format, DOCUMENT_FORMATS)
    _refuse_unused(source, chosen)
    if source.format == "jsonl":
        return documents.open_jsonl(source.path, chosen, remembered)
    if source.format == "fasttext":
        return Opened(None, None, partial(documents.read_fasttext, source.path))
    if source.format == "fulltext":
        return Opened(None, None, partial(fulltext.read_fulltext, source.path, encoding=chosen.encoding))
    if source.format == "parquet":
        return tables.open_parquet(source.path, chosen, remembered)
    if source.format == "tsv":
        chosen = replace(chosen, delimiter="\t")
    return tables.open_delimited(source.path, chosen, remembered)


def _refuse_unused(source: Source, chosen: Columns) -> None:
    """Refuse what the format has no use for."""
    used = {"--text-columns", "--labels-column", "--label-separator", "--id-column"}
    if source.format in ("csv", "tsv"):
        return
    if source.format in ("fasttext", "fulltext"):
        used = {"--label-separator"} if source.format == "fasttext" else {"--encoding"}
    for flag in chosen.given():
        if flag not in used:
            raise FormatError(f"{source.path}: {flag} has no effect on {source.format}: leave it out")


def document_chunks(
    path: AnyPath,
    split: str,
    format: str | None = None,
    rows_per_chunk: int = 4_096,
    columns: Columns = ANY,
) -> Iterator[Documents]:
    """Read one split of texts, `rows_per_chunk` at a time; at least one chunk."""
    _check_rows_per_chunk(rows_per_chunk)
    return open_documents(path, split, format, columns).chunks(rows_per_chunk)


def read_documents(path: AnyPath, split: str, format: str | None = None, columns: Columns = ANY) -> Documents:
    """Read all texts of one split, and the names of their labels."""
    return next(document_chunks(path, split, format, sys.maxsize, columns))


def _check_rows_per_chunk(rows_per_chunk: int) -> None:
    if rows_per_chunk < 1:
        raise FormatError(f"rows_per_chunk must be at least 1, but is {rows_per_chunk}")


def _target(path: Path, split: str, format: str, compress: bool) -> Path:
    """Return the file to write: the path itself if it is named like a file, else the format's own name in it."""
    # Only known suffixes: a folder may be called eurlex-4.3k.
    if path.suffix in _SUFFIXES and not path.is_dir():
        return path
    with write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    name = _FILE_NAMES[format].format(split=split, short=SHORT_NAMES[split], folder=path.resolve().name)
    return path / (f"{name}.gz" if compress and format != "npz" else name)


def _keep_names(folder: Path, chunks: Iterable[Dataset]) -> Iterator[Dataset]:
    """Yield the chunks unchanged; write the names of the first one into the folder."""
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
    and features. Format `split` keeps the rows of the other split that the file has already.
    """
    check_split(split)
    check_format(format)
    if format not in _FILE_NAMES:
        raise FormatError(f"{path}: {format} is read, not written: write {' or '.join(WRITTEN_DOCUMENTS)}")
    target = _target(Path(path), split, format, compress)
    kind = Documents if format in WRITTEN_DOCUMENTS else Dataset
    checked = _of_kind(target, chunks, kind, format)
    if kind is Documents:
        documents.write_documents(target, checked, format)
        return target
    rows = same_widths(target, with_equal_labels(checked, target))
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
