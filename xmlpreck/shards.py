"""Sharded data sets: Parquet or HDF5 files under one manifest, any rows of which are read without the others.

A shard set is a directory: `manifest.json` (sizes, provenance, and for each shard its rows, bytes and sha256), the
shards, and `labels.txt` / `features.txt` where there are names. Parquet shards have list columns `features` (int32),
`values` (float32) and `labels` (int32), which any Arrow tool reads; HDF5 shards have CSR groups `rows` and `labels`.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_array

from xmlpreck import formats
from xmlpreck.config import InputError
from xmlpreck.formats import Dataset, build_csr
from xmlpreck.formats.dataset import stack_rows

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
KINDS = {"parquet": ".parquet", "hdf5": ".h5"}

# Rows that are compressed together: what a reader of a few rows has to unpack.
ROWS_A_GROUP = 4096


class ShardError(InputError):
    """A shard set that cannot be read or written."""


class RowSource(Protocol):
    """Rows that may be larger than memory: a Dataset, a ShardSet or a Subset."""

    @property
    def label_names(self) -> list[str] | None: ...
    @property
    def feature_names(self) -> list[str] | None: ...
    @property
    def n_rows(self) -> int: ...
    @property
    def n_features(self) -> int: ...
    @property
    def n_labels(self) -> int: ...
    def read(self, start: int, stop: int) -> Dataset: ...


@dataclass(frozen=True)
class Shard:
    """One file of a shard set."""

    file: str
    n_rows: int
    n_bytes: int
    sha256: str


class ShardSet:
    """The shards of a directory as one sequence of rows."""

    def __init__(self, folder: str | Path, verify: bool = True) -> None:
        """Read the manifest and hold every file to it: by its size, and by its sha256 if `verify`."""
        self.folder = Path(folder)
        about = _read_manifest(self.folder / MANIFEST)
        try:
            self.kind = str(about["kind"])
            self.n_rows, self.n_features, self.n_labels = (int(about[n]) for n in ("n_rows", "n_features", "n_labels"))
            self.shards = [Shard(**entry) for entry in about["shards"]]
            self.provenance = dict(about["provenance"])
            names = {name: Shard(**entry) for name, entry in about["names"].items()}
        except (KeyError, TypeError, ValueError) as error:
            raise ShardError(f"{self.folder / MANIFEST}: is not a manifest: {error!r}") from None
        if self.kind not in KINDS or min(self.n_rows, self.n_features, self.n_labels) < 0:
            raise ShardError(f"{self.folder / MANIFEST}: is not a manifest: kind {self.kind!r}, {self.n_rows} rows")
        if sum(shard.n_rows for shard in self.shards) != self.n_rows:
            raise ShardError(f"{self.folder / MANIFEST}: the rows of the shards do not add up to {self.n_rows}")
        for shard in [*self.shards, *names.values()]:
            _check_file(self.folder, shard, verify)
        self.starts = np.concatenate([[0], np.cumsum([shard.n_rows for shard in self.shards])])
        self.label_names = self._names(names.get("labels"), self.n_labels)
        self.feature_names = self._names(names.get("features"), self.n_features)

    def _names(self, entry: Shard | None, n: int) -> list[str] | None:
        if entry is None:
            return None
        names = (self.folder / entry.file).read_bytes().decode("utf-8", errors="replace").split("\n")[:-1]
        if len(names) != n:
            raise ShardError(f"{self.folder / entry.file}: has {len(names)} names, but the manifest says {n}")
        return names

    def read(self, start: int, stop: int) -> Dataset:
        """Rows start to stop - 1."""
        parts = []
        for shard, first in zip(self.shards, self.starts[:-1], strict=True):
            low, high = max(start - first, 0), min(stop - first, shard.n_rows)
            if low < high:
                parts.append(self._read_part(shard, int(low), int(high)))
        if not parts:
            none, nowhere = np.zeros(0, np.int32), np.zeros(1, np.int64)
            return self.dataset(none, none.astype(np.float32), none, nowhere, nowhere)
        return concatenate(parts)

    def _read_part(self, shard: Shard, low: int, high: int) -> Dataset:
        path = self.folder / shard.file
        read = _read_parquet if self.kind == "parquet" else _read_hdf5
        try:
            features, values, labels, row_offsets, label_offsets = read(path, low, high)
            return self.dataset(features, values, labels, row_offsets, label_offsets)
        except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
            reason = str(error).partition("\n")[0]
            raise ShardError(f"{path}: rows {low} to {high - 1} cannot be read: {reason}") from None

    def dataset(self, features: Any, values: Any, labels: Any, row_offsets: Any, label_offsets: Any) -> Dataset:
        n_rows = len(row_offsets) - 1
        for ids, n, noun in ((features, self.n_features, "feature"), (labels, self.n_labels, "label")):
            if len(ids) and (ids.min() < 0 or ids.max() >= n):
                raise ValueError(f"a {noun} id is out of range: there are {n}")
        if not np.isfinite(values).all():
            raise ValueError("a value is not a finite number")
        rows = build_csr(values, features, row_offsets, (n_rows, self.n_features))
        relevant = build_csr(np.ones(len(labels), np.float32), labels, label_offsets, (n_rows, self.n_labels))
        for matrix in (rows, relevant):
            if not matrix.has_canonical_format:
                raise ValueError("the ids of a row do not rise")
        return Dataset(rows, relevant, self.label_names, self.feature_names)


def find_shards(path: str | Path, split: str) -> Path | None:
    """The folder with the shards of a split: `path` itself, or `path/split`."""
    folders = (Path(path), Path(path) / split)
    return next((folder for folder in folders if (folder / MANIFEST).is_file()), None)


def open_split(path: str | Path, split: str, format: str | None = None) -> RowSource:
    """One split of a folder or file: its shards if it has some, else whatever `formats` reads, in memory."""
    folder = find_shards(path, split)
    return formats.read_split(path, split, format) if folder is None else ShardSet(folder)


def has_split(path: str | Path, split: str) -> bool:
    """Whether `open_split` would find something."""
    return find_shards(path, split) is not None or formats.has_split(path, split)


class Subset:
    """Some rows of a source, in their order there."""

    def __init__(self, source: RowSource, row_ids: np.ndarray) -> None:
        self.source, self.row_ids = source, row_ids
        self.n_rows, self.n_features, self.n_labels = len(row_ids), source.n_features, source.n_labels
        self.label_names, self.feature_names = source.label_names, source.feature_names

    def read(self, start: int, stop: int) -> Dataset:
        """Reads the source in steps of stop - start rows, so that far-apart rows need no more memory."""
        wanted = self.row_ids[start:stop]
        parts: list[Dataset] = []
        done = 0
        while done < len(wanted) or not parts:
            first = int(wanted[done]) if len(wanted) else 0
            taken = wanted[done : np.searchsorted(wanted, first + max(stop - start, 1))]
            block = self.source.read(first, int(taken[-1]) + 1 if len(taken) else first)
            parts.append(block._replace(rows=block.rows[taken - first], labels=block.labels[taken - first]))
            done += len(taken)
        return concatenate(parts)


def concatenate(parts: list[Dataset]) -> Dataset:
    """Rows of several blocks, one after the other."""
    if len(parts) == 1:
        return parts[0]
    rows, labels = (stack_rows([getattr(part, name) for part in parts]) for name in ("rows", "labels"))
    return parts[0]._replace(rows=rows, labels=labels)


def read_blocks(
    source: RowSource,
    block_rows: int,
    order: Iterable[int] | None = None,
    prepare: Callable[[Dataset], Any] = lambda block: block,
) -> Iterator[tuple[int, Any]]:
    """(first row, prepared rows) of each block of `block_rows` rows; the next one is read in the background."""
    blocks = range(-(-source.n_rows // block_rows)) if order is None else order
    starts = [int(block) * block_rows for block in blocks]

    def read(start: int) -> Any:
        return prepare(source.read(start, min(start + block_rows, source.n_rows)))

    with ThreadPoolExecutor(1) as reader:
        coming = [reader.submit(read, start) for start in starts[:1]]
        for start, following in zip(starts, [*starts[1:], None], strict=True):
            block = coming.pop().result()
            if following is not None:
                coming.append(reader.submit(read, following))
            yield start, block
            del block  # or three blocks would be alive


def write_shards(
    folder: str | Path,
    chunks: Iterable[Dataset],
    kind: str,
    rows_per_shard: int,
    provenance: dict[str, Any],
    shuffle_seed: int | None = None,
) -> ShardSet:
    """Write rows that come in chunks of any size; memory holds one shard. The directory appears when it is complete.

    With a seed the rows are shuffled: dealt at random to as many buckets as there are shards, each then permuted.
    """
    folder = Path(folder)
    if kind not in KINDS:
        raise ShardError(f"{kind!r} is no kind of shard: choose {' or '.join(KINDS)}")
    if rows_per_shard < 1:
        raise ShardError(f"rows per shard must be 1 or more, but is {rows_per_shard}")
    taken = folder.is_file() or (folder.is_dir() and any(folder.iterdir()))
    if taken and not (folder / MANIFEST).is_file():
        raise ShardError(f"{folder}: exists and is not a shard set: it is left alone, choose another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            written = Path(scratch) / "written"
            _write_set(written, chunks, kind, rows_per_shard, provenance)
            if shuffle_seed is not None:
                mixed = _shuffled(ShardSet(written, verify=False), rows_per_shard, shuffle_seed, Path(scratch))
                about = provenance | {"shuffled_with_seed": shuffle_seed}
                written = Path(scratch) / "shuffled"
                _write_set(written, mixed, kind, rows_per_shard, about)
            if folder.exists():
                os.replace(folder, Path(scratch) / "old")
            os.replace(written, folder)
    except OSError as error:
        raise ShardError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return ShardSet(folder, verify=False)


def _write_set(
    folder: Path, chunks: Iterable[Dataset], kind: str, rows_per_shard: int, provenance: dict[str, Any]
) -> None:
    folder.mkdir()
    write = _write_parquet if kind == "parquet" else _write_hdf5
    shards: list[Shard] = []
    last = None
    for last in _cut(chunks, rows_per_shard):
        path = folder / f"shard-{len(shards):05d}{KINDS[kind]}"
        write(path, last)
        shards.append(_entry(path, last.rows.shape[0]))
    if last is None:
        raise ShardError("there are no rows to write")
    names = {}
    for noun, lines in (("labels", last.label_names), ("features", last.feature_names)):
        if lines is not None:
            path = folder / f"{noun}.txt"
            path.write_bytes("".join(f"{line}\n" for line in lines).encode())
            names[noun] = asdict(_entry(path, len(lines)))
    about = {
        "format": "xmlpreck shards",
        "format_version": MANIFEST_VERSION,
        "kind": kind,
        "n_rows": sum(shard.n_rows for shard in shards),
        "n_features": last.rows.shape[1],
        "n_labels": last.labels.shape[1],
        "provenance": provenance,
        "names": names,
        "shards": [asdict(shard) for shard in shards],
    }
    (folder / MANIFEST).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _entry(path: Path, n_rows: int) -> Shard:
    return Shard(path.name, n_rows, path.stat().st_size, _sha256(path))


def _cut(chunks: Iterable[Dataset], rows_per_shard: int) -> Iterator[Dataset]:
    """The same rows in pieces of exactly rows_per_shard; the last may be shorter."""
    held: list[Dataset] = []
    n_held = 0
    for chunk in chunks:
        held.append(chunk)
        n_held += chunk.rows.shape[0]
        while n_held >= rows_per_shard:
            whole = concatenate(held)
            yield whole.read(0, rows_per_shard)
            held = [whole.read(rows_per_shard, n_held)]
            n_held -= rows_per_shard
    if n_held:
        yield concatenate(held)


def _shuffled(source: ShardSet, rows_per_shard: int, seed: int, scratch: Path) -> Iterator[Dataset]:
    """All rows in random order, in memory one bucket (about a shard) at a time."""
    rng = np.random.default_rng(seed)
    n_buckets = -(-source.n_rows // rows_per_shard)
    paths = [scratch / f"bucket-{bucket}.parquet" for bucket in range(n_buckets)]
    writers: dict[int, pq.ParquetWriter] = {}
    for _, block in read_blocks(source, rows_per_shard):
        bucket_of = rng.integers(n_buckets, size=block.n_rows)
        for bucket in np.unique(bucket_of):
            mine = np.flatnonzero(bucket_of == bucket)
            table = _table(block._replace(rows=block.rows[mine], labels=block.labels[mine]))
            if bucket not in writers:
                writers[bucket] = pq.ParquetWriter(paths[bucket], table.schema, compression="zstd")
            writers[bucket].write_table(table)
    for bucket, writer in sorted(writers.items()):
        writer.close()
        n_rows = pq.ParquetFile(paths[bucket]).metadata.num_rows
        rows = source.dataset(*_read_parquet(paths[bucket], 0, n_rows))
        order = rng.permutation(n_rows)
        yield rows._replace(rows=rows.rows[order], labels=rows.labels[order])


# --- files -----------------------------------------------------------------------------------------------------------


def _read_parquet(path: Path, low: int, high: int) -> tuple[np.ndarray, ...]:
    """Group by group, so that Arrow's own memory stays small."""
    parts: list[list[np.ndarray]] = []
    with pq.ParquetFile(path) as file:
        first = 0
        for group in range(file.num_row_groups):
            n_rows = file.metadata.row_group(group).num_rows
            if first < high and first + n_rows > low:
                table = file.read_row_group(group, ["features", "values", "labels"], use_threads=False)
                begin = max(low - first, 0)
                parts.append(_lists(table.slice(begin, min(high - first, n_rows) - begin)))
            first += n_rows
    pa.default_memory_pool().release_unused()
    if high > first:
        raise ValueError(f"the file has {first} rows")
    features, values, labels, n_features_of, n_labels_of = (
        np.concatenate(arrays) for arrays in zip(*parts, strict=True)
    )
    offsets = [np.concatenate([[0], np.cumsum(lengths)]) for lengths in (n_features_of, n_labels_of)]
    return features, values, labels, *offsets


def _lists(table: pa.Table) -> list[np.ndarray]:
    """Ids, values and labels of all rows, then how many features and labels each has."""
    columns = [table.column(name).combine_chunks() for name in ("features", "values", "labels")]
    n_features_of, n_values_of, n_labels_of = (column.value_lengths().to_numpy() for column in columns)
    if not np.array_equal(n_features_of, n_values_of):
        raise ValueError("a row has not as many values as features")
    flat = [column.flatten().to_numpy() for column in columns]
    kinds = (np.int32, np.float32, np.int32)
    return [*(np.array(array, kind) for array, kind in zip(flat, kinds, strict=True)), n_features_of, n_labels_of]


def _read_hdf5(path: Path, low: int, high: int) -> tuple[np.ndarray, ...]:
    with h5py.File(path, "r") as file:
        row_offsets, label_offsets = (file[f"{group}/offsets"][low : high + 1] for group in ("rows", "labels"))
        if len(row_offsets) != high - low + 1 or len(label_offsets) != high - low + 1:
            raise ValueError("the file has fewer rows")
        in_rows, in_labels = slice(row_offsets[0], row_offsets[-1]), slice(label_offsets[0], label_offsets[-1])
        features, values = file["rows/features"][in_rows], file["rows/values"][in_rows]
        labels = file["labels/ids"][in_labels]
    return features, values, labels, row_offsets - row_offsets[0], label_offsets - label_offsets[0]


def _table(data: Dataset) -> pa.Table:
    def lists(matrix: csr_array, flat: np.ndarray, kind: Any) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array(matrix.indptr, pa.int32()), pa.array(flat, kind))

    columns = {
        "features": lists(data.rows, data.rows.indices, pa.int32()),
        "values": lists(data.rows, data.rows.data, pa.float32()),
        "labels": lists(data.labels, data.labels.indices, pa.int32()),
    }
    sizes = {"n_features": str(data.rows.shape[1]), "n_labels": str(data.labels.shape[1])}
    return pa.table(columns).replace_schema_metadata(sizes)


def _write_parquet(path: Path, data: Dataset) -> None:
    pq.write_table(_table(data), path, row_group_size=ROWS_A_GROUP, compression="zstd")


def _write_hdf5(path: Path, data: Dataset) -> None:
    arrays = {
        "rows/offsets": data.rows.indptr.astype(np.int64),
        "rows/features": data.rows.indices.astype(np.int32),
        "rows/values": data.rows.data.astype(np.float32),
        "labels/offsets": data.labels.indptr.astype(np.int64),
        "labels/ids": data.labels.indices.astype(np.int32),
    }
    with h5py.File(path, "w", track_order=True) as file:
        file.attrs["n_features"], file.attrs["n_labels"] = data.rows.shape[1], data.labels.shape[1]
        for name, array in arrays.items():
            chunked = {"chunks": (1 << 16,), "maxshape": (None,), "compression": "gzip", "compression_opts": 1}
            file.create_dataset(name, data=array, **(chunked if len(array) else {}))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ShardError(f"{path}: cannot be read: {error}") from None
    if not isinstance(about, dict) or about.get("format") != "xmlpreck shards":
        raise ShardError(f"{path}: is not a manifest of xmlpreck shards")
    if about.get("format_version") != MANIFEST_VERSION:
        raise ShardError(f"{path}: has version {about.get('format_version')}, this xmlpreck reads {MANIFEST_VERSION}")
    return about


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_file(folder: Path, shard: Shard, verify: bool) -> None:
    if Path(shard.file).name != shard.file:
        raise ShardError(f"{folder / MANIFEST}: {shard.file!r} is not the name of a file in this folder")
    path = folder / shard.file
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ShardError(f"{path}: cannot be read: {error.strerror}") from None
    if size != shard.n_bytes:
        raise ShardError(f"{path}: has {size:,} bytes, but the manifest says {shard.n_bytes:,}: convert the data again")
    if verify and _sha256(path) != shard.sha256:
        raise ShardError(f"{path}: has changed since the manifest was written (sha256): convert the data again")
