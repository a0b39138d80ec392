"""Data sets and predictions on disk: repository text, CSR `.npz`, Parquet; every write is atomic."""

import gzip
import os
import re
import secrets
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_array, csr_matrix, load_npz, save_npz

from xmlpreck.config import InputError
from xmlpreck.kernels import parsing

AnyPath = str | os.PathLike[str]

_MAX_ID = 2**31 - 1
_SPLIT_FILES = {
    "train": ("train.txt", "train.txt.gz", "X_train.npz", "X.trn.npz"),
    "test": ("test.txt", "test.txt.gz", "X_test.npz", "X.tst.npz"),
}


class FormatError(InputError):
    """A file that cannot be read or written as asked."""


class Dataset(NamedTuple):
    """Rows and their labels: float32 values, ascending int32 ids; every stored label is 1."""

    rows: csr_array
    labels: csr_array
    label_names: list[str] | None = None
    feature_names: list[str] | None = None


class TopK(NamedTuple):
    """Each row's k labels, higher score first, then lower id; -1 with score -inf = no label there."""

    labels: np.ndarray
    scores: np.ndarray


@contextmanager
def atomic_path(path: AnyPath) -> Iterator[Path]:
    """Yield a temporary name beside `path`; it takes the place of `path` only when the block ends well."""
    target = Path(path)
    # The suffix stays last: numpy and scipy add their own to a name without it.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp{target.suffix}")
    try:
        yield temporary
        with open(temporary, "r+b") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # it is gone after a good end, and the first error is the one to tell
            temporary.unlink()


def build_csr(values: np.ndarray, ids: np.ndarray, offsets: np.ndarray, shape: tuple[int, int]) -> csr_array:
    """CSR with int32 ids; scipy gives them the type of the offsets, so these are int32 where they fit."""
    index = np.int32 if offsets[-1] <= _MAX_ID else np.int64
    return csr_array((values, ids.astype(index, copy=False), offsets.astype(index, copy=False)), shape)


def _bytes_of(path: Path) -> np.ndarray:
    """The bytes of a file, unpacked when its name ends in .gz."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                return np.frombuffer(stream.read(), np.uint8)
        # A map, not a read: a file of many GB need not stand in memory beside its matrix.
        return np.asarray(np.memmap(path, np.uint8, "r")) if path.stat().st_size else np.empty(0, np.uint8)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _checked(matrix: csr_array, path: Path, noun: str, first_line: int | None = None) -> csr_array:
    """Sort the ids within rows; refuse an id that stands twice in a row and a value that is not finite."""

    def complain(entry: int, what: str) -> FormatError:
        row = int(np.searchsorted(matrix.indptr, entry, side="right")) - 1
        where = f"{path}: row {row}" if first_line is None else f"{path}:{row + first_line}"
        return FormatError(f"{where}: {noun} {matrix.indices[entry]} {what}")

    if not matrix.has_canonical_format:
        matrix.sort_indices()
        starts_row = np.zeros(matrix.nnz + 1, bool)
        starts_row[matrix.indptr] = True
        twice = np.flatnonzero((np.diff(matrix.indices) == 0) & ~starts_row[1 : matrix.nnz])
        if twice.size:
            raise complain(int(twice[0]), "stands twice: remove one")
    if not np.isfinite(matrix.data).all():
        entry = int(np.flatnonzero(~np.isfinite(matrix.data))[0])
        raise complain(entry, f"has the value {matrix.data[entry]}: values must be finite float32 numbers")
    return matrix


def _parse(path: Path, header: str, nouns: tuple[str, str]) -> tuple[csr_array, csr_array]:
    """The (rows, labels) of a text file whose first line has the numbers named in `header`."""
    text = _bytes_of(path)
    first = text[:100].tobytes().partition(b"\n")[0]
    names, words = header.split(), first.decode("ascii", "replace").split()
    is_whole = len(words) == len(names) and len(first) < 100
    if not is_whole or not all(word.isdecimal() and int(word) <= _MAX_ID for word in words):
        shown = "the file is empty" if text.size == 0 else f"header {' '.join(words)[:60]!r} is wrong"
        raise FormatError(f"{path}:1: {shown}: the first line must be {len(names)} numbers, {header}")
    sizes = {name: int(word) for name, word in zip(names, words, strict=True)}
    n_rows, n_columns, n_labels = sizes["n_rows"], sizes[names[1]], sizes["n_labels"]
    start = min(len(first) + 1, text.size)
    parsed = parsing.parse_rows(text, start, n_rows, n_columns, n_labels if "n_features" in sizes else 0)
    label_offsets, label_ids, offsets, ids, values, (code, line, position) = parsed
    if code == parsing.TOO_FEW_ROWS:
        raise FormatError(f"{path}:{line}: the file ends after {line - 1} rows: the header says {n_rows}")
    if code != parsing.OK:
        shown = text[position : position + 60].tobytes().decode("ascii", "backslashreplace")
        token = re.split("[ \t\r\n]", shown)[0]
        raise FormatError(f"{path}:{line}: {parsing.explain(code, token, sizes, nouns)}")
    rows = build_csr(values, ids, offsets, (n_rows, n_columns))
    labels = build_csr(np.ones(label_ids.size, np.float32), label_ids, label_offsets, (n_rows, n_labels))
    return _checked(rows, path, nouns[0], first_line=2), _checked(labels, path, "label", first_line=2)


def _pairs(matrix: csr_array) -> Iterator[str]:
    """Each row as `id:value id:value ...`; nine digits bring every float32 back exactly."""
    for start, end in pairwise(matrix.indptr.tolist()):
        entries = zip(matrix.indices[start:end].tolist(), matrix.data[start:end].tolist(), strict=True)
        yield " ".join(map("%d:%.9g".__mod__, entries))


def _write_lines(path: AnyPath, lines: Iterator[str]) -> None:
    with atomic_path(path) as temporary, open(temporary, "wb") as raw, ExitStack() as stack:
        out: IO[bytes] | gzip.GzipFile = raw
        if Path(path).suffix == ".gz":
            # No name and no time in the gzip header: the same data give the same bytes.
            out = stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0))
        out.writelines(f"{line}\n".encode() for line in lines)


def read_repository_text(path: AnyPath) -> Dataset:
    """Read `n_rows n_features n_labels`, then lines `l1,l2,... f:v f:v ...`; `.gz` is unpacked."""
    return Dataset(*_parse(Path(path), "n_rows n_features n_labels", ("feature", "value")))


def write_repository_text(path: AnyPath, dataset: Dataset) -> None:
    """Write what `read_repository_text` reads; a row without labels starts with a space."""
    rows, labels = dataset.rows, dataset.labels

    def lines() -> Iterator[str]:
        yield f"{rows.shape[0]} {rows.shape[1]} {labels.shape[1]}"
        for (start, end), features in zip(pairwise(labels.indptr.tolist()), _pairs(rows), strict=True):
            yield f"{','.join(map(str, labels.indices[start:end].tolist()))} {features}"

    _write_lines(path, lines())


def _read_npz(path: Path, noun: str) -> csr_array:
    """One scipy matrix as checked float32 CSR."""
    try:
        matrix = load_npz(path)
        # Ids outside the shape would let scipy's compiled conversions read foreign memory.
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
        if matrix.ndim != 2 or matrix.dtype.kind not in "biuf" or matrix.shape[1] > _MAX_ID:
            raise ValueError(f"shape {matrix.shape} of {matrix.dtype} is not a matrix of real numbers")
        with np.errstate(over="ignore"):
            rows = csr_array(matrix, dtype=np.float32)
    except Exception as error:  # a damaged file fails anywhere within zipfile, zlib, numpy or scipy
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise FormatError(f"{path}: cannot be read as a scipy.sparse matrix: {reason}") from error
    if matrix.format == "coo" and rows.nnz != matrix.nnz:
        raise FormatError(f"{path}: a {noun} stands twice in a row: call sum_duplicates() before saving")
    return _checked(build_csr(rows.data, rows.indices, rows.indptr, rows.shape), path, noun)


def read_npz_pair(rows_path: AnyPath, labels_path: AnyPath) -> Dataset:
    """Read two scipy `.npz` matrices of any sparse format; a label is relevant where its value is not 0."""
    rows, labels = _read_npz(Path(rows_path), "feature"), _read_npz(Path(labels_path), "label")
    if rows.shape[0] != labels.shape[0]:
        raise FormatError(f"{labels_path}: has {labels.shape[0]} rows, but {rows_path} has {rows.shape[0]}")
    labels.eliminate_zeros()
    labels.data[:] = 1.0
    return Dataset(rows, labels)


def _save_csr(path: AnyPath, matrix: csr_array) -> None:
    with atomic_path(path) as temporary:
        # As csr_matrix: PECOS insists on that class, and a csr_array would come back as a csr_array.
        save_npz(temporary, csr_matrix(matrix))


def write_npz_pair(folder: AnyPath, split: str, dataset: Dataset) -> None:
    """Write `X_<split>.npz` and `Y_<split>.npz` into an existing folder."""
    _save_csr(Path(folder) / f"X_{split}.npz", dataset.rows)
    _save_csr(Path(folder) / f"Y_{split}.npz", dataset.labels)


def _first_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _find_split(path: Path, split: str) -> Path | None:
    if split not in _SPLIT_FILES:
        raise FormatError(f"split {split!r} is not known: say train or test")
    if path.is_dir():
        return _first_file(path, _SPLIT_FILES[split])
    return path if path.is_file() else None


def has_split(path: AnyPath, split: str) -> bool:
    """Whether `read_split` would find a file."""
    return _find_split(Path(path), split) is not None


def _read_names(folder: Path, stem: str, count: int) -> list[str] | None:
    """One name a line, or None without such a file; an empty line is an empty name."""
    path = _first_file(folder, (f"{stem}.txt", f"{stem}.txt.gz"))
    if path is None:
        return None
    try:
        text = _bytes_of(path).tobytes().decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error
    names = text.removesuffix("\n").split("\n") if text else []
    if len(names) != count:
        raise FormatError(f"{path}: has {len(names)} names, but there are {count} {stem}: give one a line")
    return names


def read_split(path: AnyPath, split: str) -> Dataset:
    """Read one split of a folder (with the names in `labels.txt` and `features.txt`), or a file as it is."""
    place = Path(path)
    found = _find_split(place, split)
    if found is None:
        looked_for = f"no {split} data here: looked for {', '.join(_SPLIT_FILES[split])}"
        raise FormatError(f"{path}: {looked_for if place.is_dir() else 'no such file or folder'}")
    if found.suffix != ".npz":
        dataset = read_repository_text(found)
    elif found.name.startswith("X"):
        dataset = read_npz_pair(found, found.with_name("Y" + found.name[1:]))
    else:
        raise FormatError(f"{found}: name the file of rows X....npz and that of labels Y....npz")
    if not place.is_dir():
        return dataset
    rows, labels = dataset.rows, dataset.labels
    names = (_read_names(place, "labels", labels.shape[1]), _read_names(place, "features", rows.shape[1]))
    return Dataset(rows, labels, *names)


def prediction_kind(path: AnyPath) -> str:
    """`.npz`, `.parquet` or `.txt`; any other suffix is an error."""
    suffix = Path(path).suffix
    if suffix not in (".npz", ".parquet", ".txt"):
        raise FormatError(f"{path}: unknown kind {suffix!r}: predictions are .npz, .parquet or .txt")
    return suffix


def _scored(path: AnyPath, ids: np.ndarray, scores: np.ndarray, counts: np.ndarray, n_labels: int) -> csr_array:
    """Scores of labels, listed row by row, as checked CSR."""
    offsets = np.concatenate([[0], np.cumsum(counts)])
    outside = np.flatnonzero((ids < 0) | (ids >= n_labels))
    if outside.size:
        row, label = np.searchsorted(offsets, outside[0], side="right") - 1, ids[outside[0]]
        raise FormatError(f"{path}: row {row}: label {label} is out of range: there are {n_labels} labels")
    # Copies, because the ids get sorted in place.
    matrix = build_csr(np.array(scores), np.array(ids), offsets, (len(counts), n_labels))
    return _checked(matrix, Path(path), "label")


def write_predictions(path: AnyPath, topk: TopK, n_labels: int, label_names: list[str] | None = None) -> None:
    """Write predictions as the suffix says: `.npz`, `.parquet` (the only one with names) or `.txt`."""
    suffix = prediction_kind(path)
    chosen = topk.labels >= 0
    matrix = _scored(path, topk.labels[chosen], topk.scores[chosen], chosen.sum(axis=1), n_labels)
    if suffix == ".npz":
        _save_csr(path, matrix)
    elif suffix == ".txt":
        # The repository's Matlab evaluator marks a chosen label by the score 0, and sparse files drop zeros:
        # scores must be positive. Scores that differ by less than nine digits around 1 become ties.
        score = matrix.data.astype(np.float64)
        matrix.data = np.where(score >= 0, 1 + score, 1 / (1 + np.abs(score)))
        _write_lines(path, chain([f"{matrix.shape[0]} {n_labels}"], _pairs(matrix)))
    else:
        lists = {"labels": pa.array(topk.labels[chosen], pa.int32())}
        lists["scores"] = pa.array(topk.scores[chosen], pa.float32())
        if label_names is not None:
            lists["names"] = pa.array(label_names, pa.string()).take(lists["labels"])
        offsets = pa.array(matrix.indptr, pa.int32())
        columns = {name: pa.ListArray.from_arrays(offsets, flat) for name, flat in lists.items()}
        table = pa.table({"row": np.arange(matrix.shape[0], dtype=np.int64)} | columns)
        with atomic_path(path) as temporary:
            pq.write_table(table.replace_schema_metadata({"n_labels": str(n_labels)}), temporary)


def _read_parquet(path: Path, n_labels: int | None) -> csr_array:
    """Lists of labels and scores as CSR; a file that does not say its n_labels has the caller's."""
    types = {"row": pa.int64(), "labels": pa.list_(pa.int32()), "scores": pa.list_(pa.float32())}
    try:
        table = pq.ParquetFile(path).read()
        width = (table.schema.metadata or {}).get(b"n_labels", n_labels)
        table = table.select(list(types)).cast(pa.schema(types)).sort_by("row")
        row, labels, scores = (column.combine_chunks() for column in table.columns)
        if any(c.null_count for c in (row, labels, scores, labels.flatten(), scores.flatten())):
            raise ValueError("an entry is null")
        ids = labels.flatten().to_numpy()
        n_columns = int(ids.max(initial=-1)) + 1 if width is None else int(width)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise FormatError(f"{path}: cannot be read as row, labels and scores: {reason}") from error
    counts = labels.value_lengths().to_numpy()
    if (misplaced := row.to_numpy() != np.arange(len(row))).any():
        raise FormatError(f"{path}: row {misplaced.argmax()} is missing or another one stands twice")
    if (uneven := counts != scores.value_lengths().to_numpy()).any():
        raise FormatError(f"{path}: row {uneven.argmax()}: has not as many scores as labels")
    return _scored(path, ids, scores.flatten().to_numpy(), counts, n_columns)


def _ranked(matrix: csr_array) -> TopK:
    counts = np.diff(matrix.indptr)
    row = np.repeat(np.arange(counts.size), counts)
    order = np.lexsort((matrix.indices, -matrix.data, row))
    rank = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], counts)
    shape = (counts.size, max(1, counts.max(initial=0)))
    topk = TopK(np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32))
    topk.labels[row, rank], topk.scores[row, rank] = matrix.indices[order], matrix.data[order]
    return topk


def read_predictions(path: AnyPath, n_rows: int | None = None, n_labels: int | None = None) -> TopK:
    """Read predictions by suffix, ranked anew; `n_rows` and `n_labels` are what the file must have."""
    suffix, place = prediction_kind(path), Path(path)
    if suffix == ".npz":
        matrix = _read_npz(place, "label")
    elif suffix == ".txt":
        matrix = _parse(place, "n_rows n_labels", ("label", "score"))[0]
    else:
        matrix = _read_parquet(place, n_labels)
    for name, expected, found in zip(("rows", "labels"), (n_rows, n_labels), matrix.shape, strict=True):
        if expected is not None and expected != found:
            raise FormatError(f"{path}: predicts for {found} {name}, but the data have {expected} {name}")
    return _ranked(matrix)
