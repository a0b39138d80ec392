"""Read and write one shard: Parquet with list columns, or HDF5 with CSR groups."""

import functools
import io
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_array

from xmlpreck.data.dataset import Dataset, check_offsets
from xmlpreck.data.shards.remote import ShardPath
from xmlpreck.files.contents import refuse_bomb

# Rows compressed together, which a reader of a few rows has to unpack.
ROWS_PER_GROUP = 4096
# Bytes per request for the metadata of a remote HDF5 file.
PAGE_BYTES = 1 << 16

_COLUMNS = {"features": pa.list_(pa.int32()), "values": pa.list_(pa.float32()), "labels": pa.list_(pa.int32())}


def _open(path: ShardPath) -> AbstractContextManager[Any]:
    """Return what pyarrow and h5py read from: a local path as it is, or an open remote file."""
    return nullcontext(path) if isinstance(path, Path) else path.open_parts()


def read_parquet(path: ShardPath, low: int, high: int) -> tuple[np.ndarray, ...]:
    """Read rows low to high - 1, group by group to bound Arrow's memory; a remote group comes in one request."""
    parts: list[list[np.ndarray]] = []
    with _open(path) as source, pq.ParquetFile(source, pre_buffer=source is not path) as file:
        for name, kind in _COLUMNS.items():
            # By value type: other tools name the items of a list differently.
            found = file.schema_arrow.field(name).type
            if not pa.types.is_list(found) or found.value_type != kind.value_type:
                raise ValueError(f"{name} are {found}, not {kind}")
        first = 0
        for group in range(file.num_row_groups):
            n_rows = file.metadata.row_group(group).num_rows
            if first < high and first + n_rows > low:
                table = file.read_row_group(group, list(_COLUMNS), use_threads=False)
                begin = max(low - first, 0)
                parts.append(_lists(table.slice(begin, min(high - first, n_rows) - begin)))
            first += n_rows
    pa.default_memory_pool().release_unused()
    if high > first:
        raise ValueError(f"the file has {first} rows")
    features, values, labels, n_features_of, n_labels_of = (
        np.concatenate(arrays) for arrays in zip(*parts, strict=True)
    )
    if len(n_features_of) != high - low:
        raise ValueError(f"its columns hold only {len(n_features_of)} of these rows")
    offsets = [np.concatenate([[0], np.cumsum(lengths)]) for lengths in (n_features_of, n_labels_of)]
    return features, values, labels, *offsets


def _lists(table: pa.Table) -> list[np.ndarray]:
    """Return ids, values and labels of all rows, then the numbers of features and labels per row."""
    columns = [table.column(name).combine_chunks() for name in _COLUMNS]
    flat = [column.flatten() for column in columns]
    if any(array.null_count for array in (*columns, *flat)):
        raise ValueError("an entry is null")
    n_features_of, n_values_of, n_labels_of = (column.value_lengths().to_numpy() for column in columns)
    if not np.array_equal(n_features_of, n_values_of):
        raise ValueError("the numbers of features and values of a row differ")
    # A copy, so that Arrow's memory is freed group by group.
    return [*(np.array(array) for array in flat), n_features_of, n_labels_of]


class _Pages(io.RawIOBase):
    """A remote file that caches its pages: HDF5 reads pieces of some hundred bytes all over the file."""

    def __init__(self, source: pa.NativeFile) -> None:
        self.source, self.position = source, 0
        self.pages: dict[int, bytes] = {}

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.source.size()}[whence]
        self.position = start + offset
        return self.position

    def tell(self) -> int:
        return self.position

    def readinto(self, target: Any) -> int:
        n_bytes = len(target)
        first, stop = self.position // PAGE_BYTES, -(-(self.position + n_bytes) // PAGE_BYTES)
        if n_bytes >= PAGE_BYTES:  # a chunk, which HDF5 caches itself
            content = self.source.read_at(n_bytes, self.position)
        else:
            for number in range(first, stop):
                if number not in self.pages:
                    self.pages[number] = self.source.read_at(PAGE_BYTES, number * PAGE_BYTES)
            pages = b"".join(self.pages[number] for number in range(first, stop))
            content = pages[self.position - first * PAGE_BYTES :][:n_bytes]
        target[: len(content)] = content
        self.position += len(content)
        return len(content)


def _part(file: h5py.File, path: ShardPath, name: str, low: int, high: int, kind: str) -> np.ndarray:
    """Read items low to high - 1 of one array, which must be in this file itself, as must its parent groups."""
    data = file
    for step in name.split("/"):
        # One step at a time: looking up the whole path would follow a group's link into another file.
        if not isinstance(data, h5py.Group) or not isinstance(data.get(step, getlink=True), h5py.HardLink):
            raise ValueError(f"{name} is not an array of this file")
        data = data[step]
    if not isinstance(data, h5py.Dataset) or data.external or data.is_virtual:
        raise ValueError(f"{name} is not an array of this file")
    if data.ndim != 1 or data.dtype.kind not in kind:
        raise ValueError(f"{name} is of shape {data.shape} and {data.dtype}")
    if not 0 <= low <= high <= len(data):
        raise ValueError(f"{name} has {len(data)} items, not {low} to {high}")
    refuse_bomb(str(path), (high - low) * data.dtype.itemsize, file.id.get_filesize())
    return data[low:high]


def read_hdf5(path: ShardPath, low: int, high: int) -> tuple[np.ndarray, ...]:
    """Read rows low to high - 1."""
    with _open(path) as source, h5py.File(path if source is path else _Pages(source), "r") as file:
        part = functools.partial(_part, file, path)
        offsets = [part(f"{group}/offsets", low, high + 1, "i").astype(np.int64) for group in ("rows", "labels")]
        for ends in offsets:
            check_offsets(ends, int(ends[-1]), int(ends[0]))
        in_rows, in_labels = ((int(ends[0]), int(ends[-1])) for ends in offsets)
        features, labels = part("rows/features", *in_rows, "iu"), part("labels/ids", *in_labels, "iu")
        values = part("rows/values", *in_rows, "f").astype(np.float32)
    return features, values, labels, *(ends - ends[0] for ends in offsets)


def as_table(data: Dataset) -> pa.Table:
    def lists(matrix: csr_array, flat: np.ndarray, kind: Any) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array(matrix.indptr, pa.int32()), pa.array(flat, kind))

    columns = {
        "features": lists(data.rows, data.rows.indices, pa.int32()),
        "values": lists(data.rows, data.rows.data, pa.float32()),
        "labels": lists(data.labels, data.labels.indices, pa.int32()),
    }
    sizes = {"n_features": str(data.rows.shape[1]), "n_labels": str(data.labels.shape[1])}
    return pa.table(columns).replace_schema_metadata(sizes)


def write_parquet(path: Path, data: Dataset) -> None:
    pq.write_table(as_table(data), path, row_group_size=ROWS_PER_GROUP, compression="zstd")


def write_hdf5(path: Path, data: Dataset) -> None:
    arrays = {
        "rows/offsets": data.rows.indptr.astype(np.int64),
        "rows/features": data.rows.indices.astype(np.int32),
        "rows/values": data.rows.data.astype(np.float32),
        "labels/offsets": data.labels.indptr.astype(np.int64),
        "labels/ids": data.labels.indices.astype(np.int32),
    }
    # In memory first: on a full disk h5py does not raise but crashes when the file is closed.
    image = io.BytesIO()
    with h5py.File(image, "w", track_order=True) as file:
        file.attrs["n_features"], file.attrs["n_labels"] = data.rows.shape[1], data.labels.shape[1]
        for name, array in arrays.items():
            chunked = {"chunks": (1 << 16,), "maxshape": (None,), "compression": "gzip", "compression_opts": 1}
            file.create_dataset(name, data=array, **(chunked if len(array) else {}))
    path.write_bytes(image.getbuffer())
