"""Read and write pairs of CSR matrices in scipy's `.npz` files, whole or some rows at a time."""

import math
import os
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import tee, zip_longest
from typing import IO

import numpy as np
from scipy.sparse import csr_array, csr_matrix, load_npz, save_npz

from xmlpreck.data.dataset import MAX_ID, Dataset, build_csr, check_matrix, check_offsets
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.atomic import atomic_path
from xmlpreck.files.contents import Spool, reading_as, refuse_bomb

_ROWS_AT_ONCE = 8192
# Deflate compresses at most about 1030:1; an array that claims more is damaged.
_DEFLATE_LIMIT = 1100
# A matrix that is not stored by rows may claim any number of them; more rows per entry are refused.
_ROWS_AN_ENTRY = 1000


_reading = partial(reading_as, "a scipy.sparse matrix")


def _check_matrix_kind(shape: tuple[int, ...], dtype: np.dtype) -> None:
    if len(shape) != 2 or dtype.kind not in "biuf" or shape[0] < 0 or not 0 <= shape[1] <= MAX_ID:
        raise ValueError(f"shape {tuple(map(int, shape))} of {dtype} is not a matrix of real numbers")


def _open_array(archive: zipfile.ZipFile, name: str) -> tuple[IO[bytes], tuple[int, ...], np.dtype]:
    """Return (stream of items, shape, dtype); refuse a header that claims more than the file can hold."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is compressed in a way that numpy does not use")
    stream = archive.open(info)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name} has the unknown version {version}")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects: save it as numbers")
    n_bytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0:  # the product of two is positive
        raise ValueError(f"{name} has the shape {shape}")
    if n_bytes > info.file_size or info.file_size > _DEFLATE_LIMIT * (info.compress_size + 1):
        raise ValueError(f"{name} claims {n_bytes} bytes, more than the file holds")
    return stream, shape, dtype


def _read_small(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Read the format or the shape of a matrix: a few bytes."""
    stream, shape, dtype = _open_array(archive, name)
    if math.prod(shape) > 2 or dtype.itemsize > 64:
        raise ValueError(f"{name} is too large")
    return np.frombuffer(stream.read(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


def _read_kind(archive: zipfile.ZipFile) -> tuple[str, tuple[int, ...]]:
    """Read the sparse format and the shape, after checking the size of every array of the archive."""
    path, members = str(archive.filename), archive.infolist()
    for info in members:
        _open_array(archive, info.filename.removesuffix(".npy"))[0].close()
    # Packed sizes may be forged too; only the size of the file is certain.
    if sum(info.compress_size for info in members) > os.stat(path).st_size:
        raise ValueError("its arrays claim more packed bytes than the file has")
    refuse_bomb(path, sum(info.file_size for info in members))
    kind, shape = _read_small(archive, "format"), _read_small(archive, "shape")
    if kind.ndim or kind.dtype.kind not in "SU" or shape.ndim != 1 or shape.dtype.kind not in "iu":
        raise ValueError("format or shape is not that of a matrix")
    return kind.item().decode() if kind.dtype.kind == "S" else kind.item(), tuple(shape.tolist())


def read_shape(path: AnyPath) -> tuple[int, int]:
    """Read the shape without the entries."""
    with _reading(path), zipfile.ZipFile(path) as archive:
        shape = _read_kind(archive)[1]
        _check_matrix_kind(shape, np.dtype(np.float32))
        return shape[0], shape[1]


def _load_matrix(path: AnyPath, noun: str) -> csr_array:
    """Read a matrix that is not stored row by row."""
    with _reading(path):
        matrix = load_npz(path)
        # Wrong offsets or ids would make scipy's compiled conversions read foreign memory. Its own check skips the
        # offsets if the last one is 0, and misses some that overflow.
        if hasattr(matrix, "check_format"):
            matrix.check_format(full_check=True)
        if hasattr(matrix, "indptr"):
            check_offsets(matrix.indptr, len(matrix.indices))
        _check_matrix_kind(matrix.shape, matrix.dtype)
        if matrix.shape[0] > _ROWS_AN_ENTRY * (matrix.nnz + 1000):
            raise ValueError(f"{matrix.shape[0]} rows have {matrix.nnz} entries: save it as CSR")
        with np.errstate(over="ignore"):
            rows = csr_array(matrix, dtype=np.float32)
    if matrix.format == "coo" and rows.nnz != matrix.nnz:
        raise FormatError(f"{path}: a {noun} appears twice in a row: call sum_duplicates() before saving")
    return check_matrix(build_csr(rows.data, rows.indices, rows.indptr, rows.shape), path, noun)


class _Items:
    """Reads the items of one array of an archive, in order."""

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        self._stream, shape, self.dtype = _open_array(archive, name)
        if len(shape) != 1:
            raise ValueError(f"{name} of shape {shape} is not that of a matrix")
        self._name, self.size = name, shape[0]

    def read(self, count: int) -> np.ndarray:
        data = self._stream.read(count * self.dtype.itemsize)
        if len(data) < count * self.dtype.itemsize:
            raise ValueError(f"{self._name} ends too early")
        return np.frombuffer(data, self.dtype)

    def finish(self) -> None:
        """Read to the end, where the archive's checksum is verified."""
        if self._stream.read(1):
            raise ValueError(f"{self._name} has more bytes than items")


def _read_csr(archive: zipfile.ZipFile, shape: tuple[int, ...], rows_at_once: int) -> Iterator[csr_array]:
    offsets, ids, values = (_Items(archive, name) for name in ("indptr", "indices", "data"))
    _check_matrix_kind(shape, values.dtype)
    if {offsets.dtype.kind, ids.dtype.kind} - set("iu"):
        raise ValueError(f"offsets of {offsets.dtype} and ids of {ids.dtype} are not whole numbers")
    if offsets.size != shape[0] + 1 or ids.size != values.size:
        raise ValueError(f"{offsets.size} offsets, {ids.size} ids and {values.size} values do not make {shape[0]} rows")
    row, last = 0, int(offsets.read(1)[0])
    if last != 0:
        raise ValueError(f"the first row starts at {last}")
    while True:
        ends = offsets.read(min(rows_at_once, shape[0] - row))
        stop = int(ends[-1]) if len(ends) else last
        if stop > ids.size:
            raise ValueError(f"the offsets after row {row} do not rise to {ids.size}")
        bounds = check_offsets(np.concatenate([np.array([last], ends.dtype), ends]), stop, last)
        count = stop - last
        columns = ids.read(count)
        if count and not 0 <= int(columns.min()) <= int(columns.max()) < shape[1]:
            raise ValueError(f"an id after row {row} is outside the {shape[1]} columns")
        with np.errstate(over="ignore"):
            data = values.read(count).astype(np.float32)
        row, last = row + ends.size, stop
        is_last = row == shape[0]
        if is_last and last != ids.size:
            raise ValueError(f"the last row ends at {last} of {ids.size} entries")
        if is_last:
            for items in (offsets, ids, values):
                items.finish()
        yield build_csr(data, columns.astype(np.int32), bounds - bounds[0], (ends.size, shape[1]))
        if is_last:
            return


def read_matrix_rows(path: AnyPath, noun: str, rows_at_once: int = _ROWS_AT_ONCE) -> Iterator[csr_array]:
    """Yield some rows of the matrix at a time; one that is not stored row by row comes whole."""
    with _reading(path), zipfile.ZipFile(path) as archive:
        kind, shape = _read_kind(archive)
        if kind == "csr":
            row = 0
            for part in _read_csr(archive, shape, rows_at_once):
                yield check_matrix(part, path, noun, row)
                row += part.shape[0]
            return
    yield _load_matrix(path, noun)


def read_matrix(path: AnyPath, noun: str) -> csr_array:
    """Read a scipy matrix of any sparse format as checked float32 CSR."""
    return next(read_matrix_rows(path, noun, MAX_ID))


def save_csr(path: AnyPath, matrix: csr_array) -> None:
    """Write one matrix as scipy does."""
    with atomic_path(path) as temporary:
        # As csr_matrix: PECOS requires that class.
        save_npz(temporary, csr_matrix(matrix))


_DTYPES: dict[str, type[np.generic]] = {"indices": np.int32, "indptr": np.int64, "data": np.float32}


def _store(archive: zipfile.ZipFile, name: str, spool: Spool) -> None:
    header = {"descr": np.dtype(_DTYPES[name]).str, "fortran_order": False, "shape": (spool.n_items,)}
    # A ZipInfo has no time, so that the same data give the same bytes.
    info = zipfile.ZipInfo(f"{name}.npy")
    info.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(info, "w", force_zip64=True) as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        spool.copy_to(stream)


def _write_matrix(path: AnyPath, parts: Iterable[csr_array]) -> Iterator[None]:
    """Write a matrix, one part per step; the file appears after the last."""
    n_columns = 0
    with atomic_path(path) as temporary, ExitStack() as stack:
        spools = {name: stack.enter_context(Spool(path)) for name in _DTYPES}

        def add(name: str, items: np.ndarray) -> None:
            spools[name].add_array(np.ascontiguousarray(items, _DTYPES[name]))

        add("indptr", np.zeros(1))
        for part in parts:
            add("indptr", part.indptr[1:].astype(np.int64) - part.indptr[0] + spools["data"].n_items)
            add("data", part.data)
            add("indices", part.indices)
            n_columns = part.shape[1]
            yield
        shape = np.array([spools["indptr"].n_items - 1, n_columns])
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, spool in spools.items():
                _store(archive, name, spool)
            for name, small in (("format", np.array(b"csr")), ("shape", shape)):
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w") as stream:
                    np.lib.format.write_array(stream, small, allow_pickle=False)


def write_npz_chunks(rows_path: AnyPath, labels_path: AnyPath, chunks: Iterable[Dataset]) -> None:
    """Write the rows and the labels of chunks as two CSR matrices."""
    left, right = tee(chunks)
    # Side by side, so that each chunk is freed before the next one is made.
    for _ in zip_longest(
        _write_matrix(rows_path, (chunk.rows for chunk in left)),
        _write_matrix(labels_path, (chunk.labels for chunk in right)),
    ):
        pass
