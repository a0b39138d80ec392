"""One shard as a file: Parquet with list columns, or HDF5 with CSR groups."""

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_array

from xmlpreck.formats import Dataset
from xmlpreck.formats.files import refuse_bomb

# Rows that are compressed together: what a reader of a few rows has to unpack.
ROWS_A_GROUP = 4096


_COLUMNS = {"features": pa.list_(pa.int32()), "values": pa.list_(pa.float32()), "labels": pa.list_(pa.int32())}


def read_parquet(path: Path, low: int, high: int) -> tuple[np.ndarray, ...]:
    """Group by group, so that Arrow's own memory stays small."""
    parts: list[list[np.ndarray]] = []
    with pq.ParquetFile(path) as file:
        for name, kind in _COLUMNS.items():
            # By value type: other tools call the items of a list otherwise.
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
        raise ValueError(f"its columns hold {len(n_features_of)} of these rows")
    offsets = [np.concatenate([[0], np.cumsum(lengths)]) for lengths in (n_features_of, n_labels_of)]
    return features, values, labels, *offsets


def _lists(table: pa.Table) -> list[np.ndarray]:
    """Ids, values and labels of all rows, then how many features and labels each has."""
    columns = [table.column(name).combine_chunks() for name in _COLUMNS]
    flat = [column.flatten() for column in columns]
    if any(array.null_count for array in (*columns, *flat)):
        raise ValueError("an entry is null")
    n_features_of, n_values_of, n_labels_of = (column.value_lengths().to_numpy() for column in columns)
    if not np.array_equal(n_features_of, n_values_of):
        raise ValueError("a row has not as many values as features")
    # A copy: Arrow's memory goes back group by group.
    return [*(np.array(array) for array in flat), n_features_of, n_labels_of]


def _part(file: h5py.File, name: str, low: int, high: int, kind: str) -> np.ndarray:
    """Items low to high - 1 of one array, which must stand in this very file."""
    link, data = file.get(name, getlink=True), file[name]
    if not isinstance(link, h5py.HardLink) or not isinstance(data, h5py.Dataset) or data.external or data.is_virtual:
        raise ValueError(f"{name} is not an array of this file")
    if data.ndim != 1 or data.dtype.kind not in kind:
        raise ValueError(f"{name} is of shape {data.shape} and {data.dtype}")
    if not 0 <= low <= high <= len(data):
        raise ValueError(f"{name} has {len(data)} items, not {low} to {high}")
    refuse_bomb(file.filename, (high - low) * data.dtype.itemsize)
    return data[low:high]


def read_hdf5(path: Path, low: int, high: int) -> tuple[np.ndarray, ...]:
    with h5py.File(path, "r") as file:
        offsets = [_part(file, f"{group}/offsets", low, high + 1, "i").astype(np.int64) for group in ("rows", "labels")]
        in_rows, in_labels = ((int(part[0]), int(part[-1])) for part in offsets)
        features, labels = _part(file, "rows/features", *in_rows, "iu"), _part(file, "labels/ids", *in_labels, "iu")
        values = _part(file, "rows/values", *in_rows, "f").astype(np.float32)
    return features, values, labels, *(part - part[0] for part in offsets)


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
    pq.write_table(as_table(data), path, row_group_size=ROWS_A_GROUP, compression="zstd")


def write_hdf5(path: Path, data: Dataset) -> None:
    arrays = {
        "rows/offsets": data.rows.indptr.astype(np.int64),
        "rows/features": data.rows.indices.astype(np.int32),
        "rows/values": data.rows.data.astype(np.float32),
        "labels/offsets": data.labels.indptr.astype(np.int64),
        "labels/ids": data.labels.indices.astype(np.int32),
    }
    # In memory first: on a full disk h5py does not raise but takes the process down as the file is closed.
    image = io.BytesIO()
    with h5py.File(image, "w", track_order=True) as file:
        file.attrs["n_features"], file.attrs["n_labels"] = data.rows.shape[1], data.labels.shape[1]
        for name, array in arrays.items():
            chunked = {"chunks": (1 << 16,), "maxshape": (None,), "compression": "gzip", "compression_opts": 1}
            file.create_dataset(name, data=array, **(chunked if len(array) else {}))
    path.write_bytes(image.getbuffer())
