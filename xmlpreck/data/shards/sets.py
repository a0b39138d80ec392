"""Read sharded data sets: a folder of shards under one manifest, with random access to rows."""

import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xmlpreck.config import InputError
from xmlpreck.data import formats
from xmlpreck.data.dataset import Dataset, build_csr, check_count, check_offsets
from xmlpreck.data.rows import RowSource, concatenate
from xmlpreck.data.shards.files import read_hdf5, read_parquet
from xmlpreck.data.shards.remote import STORE_ERRORS, FileFacts, RemotePath, ShardPath, is_remote, locate, reason
from xmlpreck.files import FormatError
from xmlpreck.files.contents import check_format, file_sha256, parse_names, read_bytes, read_json

MANIFEST = "manifest.json"
FORMAT = "xmlpreck shards"
MANIFEST_VERSION = 1
KINDS = {"parquet": ".parquet", "hdf5": ".h5"}
SIZES = ("n_rows", "n_features", "n_labels")
# Empty rows compress well, but a manifest that claims more than this only makes readers reserve memory.
MAX_ROWS_PER_BYTE = 1000
# Concurrent requests to a store: each takes about ten milliseconds, and there may be thousands of files.
MAX_REQUESTS = 16


class ShardError(InputError):
    """A shard set that cannot be read or written."""


@dataclass(frozen=True)
class Shard:
    """One file of a shard set."""

    file: str
    n_rows: int
    n_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        """Refuse invalid entries of a forged manifest."""
        counts = (self.n_rows, self.n_bytes)
        if type(self.file) is not str or type(self.sha256) is not str or any(type(n) is not int for n in counts):
            raise TypeError(f"the entry of {self.file!r:.40} must have file, n_rows, n_bytes and sha256")
        if not 0 <= self.n_rows <= MAX_ROWS_PER_BYTE * self.n_bytes:
            raise ValueError(f"{self.n_bytes} bytes do not hold {self.n_rows} rows")
        if not self.file.isprintable() or Path(self.file).name != self.file or self.file in ("", ".."):
            raise ValueError(f"{self.file!r:.40} is not the name of a file in this folder")


class ShardSet:
    """The shards of a folder or a URI as one sequence of rows; `ShardSet(shards.path)` opens it in another process."""

    keeper: Any = None  # of a temporary folder, which is removed with the last reference to it

    def __init__(self, folder: str | ShardPath, verify: bool | None = None) -> None:
        """Read the manifest and check the size of every file against it, and the sha256 if `verify`.

        By default local files are verified and remote ones are not, as all their bytes would have to be transferred.
        """
        self.folder = locate(folder)
        self.path = self.folder.uri if isinstance(self.folder, RemotePath) else str(self.folder.absolute())
        verify = isinstance(self.folder, Path) if verify is None else verify
        manifest = self.folder / MANIFEST
        about = read_manifest(manifest)
        try:
            self.kind = str(about["kind"])
            self.n_rows, self.n_features, self.n_labels = (check_count(about[name]) for name in SIZES)
            self.shards = [Shard(**entry) for entry in about["shards"]]
            self.provenance = dict(about["provenance"])
            names = {name: Shard(**entry) for name, entry in about["names"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ShardError(f"{manifest}: is not a manifest: {error!r}") from None
        if self.kind not in KINDS:
            raise ShardError(f"{manifest}: is not a manifest: kind {self.kind!r:.40} is not known")
        if sum(shard.n_rows for shard in self.shards) != self.n_rows:
            raise ShardError(f"{manifest}: the rows of the shards do not add up to {self.n_rows}")
        if len({shard.file for shard in self.shards}) < len(self.shards):
            raise ShardError(f"{manifest}: a shard is listed twice")
        files = [*self.shards, *names.values()]
        with ThreadPoolExecutor(1 if isinstance(self.folder, Path) else MAX_REQUESTS) as pool:
            stamps = pool.map(lambda shard: _check_file(self.folder, shard, verify), files)
            self.stamps = {shard.file: stamp for shard, stamp in zip(files, stamps, strict=True)}
        self.starts = np.concatenate([[0], np.cumsum([shard.n_rows for shard in self.shards])])
        self.label_names = self._names(names.get("labels"), self.n_labels)
        self.feature_names = self._names(names.get("features"), self.n_features)

    def _names(self, entry: Shard | None, n_names: int) -> list[str] | None:
        if entry is None:
            return None
        path = self.folder / entry.file
        try:
            content = read_bytes(path).tobytes() if isinstance(path, Path) else path.read_bytes()
        except STORE_ERRORS as error:
            raise ShardError(f"{path}: cannot be read: {reason(error)}") from None
        return parse_names(path, content, n_names)

    def read(self, start: int, stop: int) -> Dataset:
        """Read rows start to stop - 1."""
        parts = []
        for shard, first in zip(self.shards, self.starts[:-1], strict=True):
            low, high = max(start - first, 0), min(stop - first, shard.n_rows)
            if low < high:
                parts.append(self._read_part(shard, int(low), int(high)))
        if not parts:
            none, offsets = np.zeros(0, np.int32), np.zeros(1, np.int64)
            return self.dataset(none, none.astype(np.float32), none, offsets, offsets)
        return concatenate(parts)

    def _read_part(self, shard: Shard, low: int, high: int) -> Dataset:
        path = self.folder / shard.file
        read = read_parquet if self.kind == "parquet" else read_hdf5
        # A pass may come hours after the first check: a file that has changed since is checked again.
        if _stamp(path) != self.stamps[shard.file]:
            self.stamps[shard.file] = _check_file(self.folder, shard, verify=True)
        try:
            return self.dataset(*read(path, low, high))
        except FormatError:
            raise
        except Exception as error:  # a damaged file can fail anywhere in h5py or pyarrow
            raise ShardError(f"{path}: rows {low} to {high - 1} cannot be read: {reason(error)}") from error

    def dataset(self, features: Any, values: Any, labels: Any, row_offsets: Any, label_offsets: Any) -> Dataset:
        """Check the arrays of some rows and combine them."""
        n_rows = len(row_offsets) - 1
        for ids, n, noun in ((features, self.n_features, "feature"), (labels, self.n_labels, "label")):
            if len(ids) and (ids.min() < 0 or ids.max() >= n):
                raise ValueError(f"a {noun} id is out of range: there are {n}")
        if not np.isfinite(values).all():
            raise ValueError("a value is not a finite number")
        row_offsets = check_offsets(row_offsets, len(features))
        label_offsets = check_offsets(label_offsets, len(labels))
        rows = build_csr(values, features, row_offsets, (n_rows, self.n_features))
        relevant = build_csr(np.ones(len(labels), np.float32), labels, label_offsets, (n_rows, self.n_labels))
        if not (rows.has_canonical_format and relevant.has_canonical_format):
            raise ValueError("the ids of a row are not ascending")
        return Dataset(rows, relevant, self.label_names, self.feature_names)


def find_shards(path: str | ShardPath, split: str) -> ShardPath | None:
    """Find the folder with the shards of a split: `path` itself, or `path/split`."""
    top = locate(path)
    return next((folder for folder in (top, top / split) if (folder / MANIFEST).is_file()), None)


def is_one_set(path: str | ShardPath) -> bool:
    """Tell whether a folder is one shard set without splits, whose rows serve as any split."""
    return (locate(path) / MANIFEST).is_file()


def open_split(path: str | Path, split: str, format: str | None = None) -> RowSource:
    """Open one split of a folder, file or URI: as shards if it has any, else read into memory by `formats`."""
    folder = find_shards(path, split)
    if folder is None and is_remote(path):
        advice = "check bucket and folder; make shards with xmlpreck data convert and copy them there"
        raise ShardError(f"{locate(path)}: has no {MANIFEST}, nor has its folder {split}: {advice}")
    if folder is None:
        return formats.read_split(path, split, format)
    if format is not None:
        raise ShardError(f"{locate(path)}: has shards, which have no format {format!r:.40}: leave out the format")
    return ShardSet(folder)


def has_split(path: str | Path, split: str) -> bool:
    """Tell whether `open_split` would find the split."""
    return find_shards(path, split) is not None or (not is_remote(path) and formats.has_split(path, split))


def read_manifest(path: ShardPath) -> dict[str, Any]:
    """Read a manifest and check only its format."""
    try:
        about = read_json(path) if isinstance(path, Path) else json.loads(path.read_bytes().decode())
    except (*STORE_ERRORS, ValueError, RecursionError) as error:
        raise ShardError(f"{path}: cannot be read: {reason(error)}") from None
    return check_format(about, path, FORMAT, MANIFEST_VERSION, ShardError)


def sha256_of(path: ShardPath) -> str:
    """Return the SHA-256 of a shard, local or remote."""
    if isinstance(path, Path):
        return file_sha256(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _as_stamp(found: os.stat_result | FileFacts) -> tuple[int, ...]:
    """Return values that change when the file does."""
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _stamp(path: ShardPath) -> tuple[int, ...]:
    """Return the stamp of a file, () if it is missing."""
    with suppress(*STORE_ERRORS):
        return _as_stamp(path.stat())
    return ()


def _check_file(folder: ShardPath, shard: Shard, verify: bool) -> tuple[int, ...]:
    """Check a file against its entry in the manifest, and return its stamp."""
    path = folder / shard.file
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a device is endless, and a pipe blocks
            raise ShardError(f"{path}: cannot be read: it is not a file")
        if found.st_size != shard.n_bytes:
            what = f"has {found.st_size:,} bytes, but the manifest says {shard.n_bytes:,}"
            raise ShardError(f"{path}: {what}: convert the data again")
        if verify and sha256_of(path) != shard.sha256:
            raise ShardError(f"{path}: has changed since the manifest was written (sha256): convert the data again")
    except STORE_ERRORS as error:
        raise ShardError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or reason(error)}") from None
    return _as_stamp(found)
