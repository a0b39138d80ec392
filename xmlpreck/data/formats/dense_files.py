"""Read dense rows, such as embeddings, from `.npy`, `.npz`, HDF5 or Parquet."""

import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from xmlpreck.config import InputError
from xmlpreck.files import AnyPath, FormatError, read_errors
from xmlpreck.files.contents import load_array, open_regular, reading_as, refuse_bomb

DENSE_SUFFIXES = (".npy", ".npz", ".h5", ".hdf5", ".parquet")
# What arrays and columns of embeddings are called, preferred first, where a file has several.
DENSE_NAMES = ("dense", "embedding", "embeddings", "E", "vector", "vectors")
ROWS_AT_ONCE = 8192


def read_dense(path: AnyPath) -> np.ndarray:
    """Read a matrix of float16, float32 or float64, (n_rows, n_dense); `.npy` is mapped, not read.

    Of several arrays or columns, the one that DENSE_NAMES has, or the only one that is such a matrix.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in DENSE_SUFFIXES:
        raise FormatError(f"{path}: dense rows are read from {', '.join(DENSE_SUFFIXES)}: save them as .npy")
    with read_errors(path, FormatError), reading_as("dense rows", path):
        if suffix == ".npy":
            return checked_shape(load_array(path), path)
        if suffix == ".npz":
            return checked_shape(_read_npz(path), path)
        if suffix == ".parquet":
            open_regular(path).close()
            with pq.ParquetFile(path) as file:
                name = _choose(path, [field.name for field in file.schema_arrow if is_dense_type(field.type)])
                return checked_shape(column_of(file.read([name]), name, path), path)
        return checked_shape(_read_hdf5(path), path)


def checked_shape(matrix: np.ndarray, path: object) -> np.ndarray:
    """Refuse what is not a matrix of real numbers; its values are checked where they are used."""
    if matrix.ndim != 2 or matrix.dtype.kind != "f":
        raise InputError(
            f"{path}: dense rows must be a matrix of float16 or float32, not {matrix.dtype} of {matrix.shape}"
        )
    return matrix


def _choose(path: AnyPath, names: list[str]) -> str:
    known = [name for name in DENSE_NAMES if name in names]
    if known or len(names) == 1:
        return (known or names)[0]
    found = f"has {', '.join(names[:8])}" if names else "has no matrix of numbers"
    raise FormatError(f"{path}: {found}: call the one that holds the dense rows {DENSE_NAMES[0]!r}")


def _read_npz(path: AnyPath) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        name = _choose(path, list(infos))
        refuse_bomb(path, infos[name].file_size)
    with np.load(path, allow_pickle=False) as arrays:
        return arrays[name]


def _read_hdf5(path: AnyPath) -> np.ndarray:
    open_regular(path).close()
    with h5py.File(path, "r") as file:
        here = [name for name in file if isinstance(file.get(name, getlink=True), h5py.HardLink)]
        found = {name: file[name] for name in here if isinstance(file[name], h5py.Dataset)}
        plain = {
            name: data for name, data in found.items() if not (data.external or data.is_virtual) and data.ndim == 2
        }
        data = plain[_choose(path, list(plain))]
        refuse_bomb(path, data.size * data.dtype.itemsize)
        return data[:]


def is_dense_type(kind: Any) -> bool:
    """Tell whether a column of Arrow holds lists of floats."""
    is_list = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return is_list and pa.types.is_floating(kind.value_type)


def column_of(table: pa.Table, name: str, path: object) -> np.ndarray:
    """Return a column of lists of floats as a matrix; refuse lists of unequal lengths, and what is missing."""
    if name not in table.column_names or not is_dense_type(table.schema.field(name).type):
        found = "no column of that name" if name not in table.column_names else f"{table.schema.field(name).type}"
        raise FormatError(f"{path}: column {name!r:.40} must hold lists of floats, but is {found}")
    column = table.column(name).combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) and column.num_chunks else column
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise FormatError(f"{path}: row {row} of column {name!r} is missing: every row needs its dense values")
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
    else:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        width = int(lengths[0]) if len(lengths) else 0
        if (wrong := lengths != width).any():
            row = int(wrong.argmax())
            raise FormatError(f"{path}: row {row} of column {name!r} has {lengths[row]} values, row 0 has {width}")
    values = column.flatten()
    if values.null_count:
        row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))) // max(width, 1)
        raise FormatError(f"{path}: row {row} of column {name!r} has a value that is missing")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(column), width)
