"""Rows that every node opens itself, by path: none of them passes through the driver."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from xmlpreck.cluster.session import need_path, this_node
from xmlpreck.config import InputError
from xmlpreck.data import catalog
from xmlpreck.data.location import DataLocation
from xmlpreck.data.rows import RowSource
from xmlpreck.data.shards import MANIFEST, ShardSet, find_shards, is_remote


class SharedRows(NamedTuple):
    """Rows that every node opens at the same location, and a digest that tells others apart."""

    location: DataLocation
    digest: str

    def open(self) -> RowSource:
        """Open the rows on a node. The driver has verified shards, so that not every node has to read all of them."""
        path, split = self.location.path, self.location.split
        if not is_remote(path) and Path(path).is_absolute():
            need_path(path)
        folder = find_shards(path, split)
        if folder is None:
            rows = catalog.load(path, split, None, self.location.format, fetch=False)
        else:
            rows = ShardSet(folder, verify=False)
        if digest_rows(rows) != self.digest:
            raise InputError(f"node {this_node()}: {path}: are not the rows that the driver has: copy them again")
        return rows


def share_rows(rows: RowSource, location: DataLocation) -> SharedRows:
    """Name rows that the driver has opened at a location, by a path that means the same on every node."""
    if isinstance(rows, ShardSet):
        path = rows.path
    else:
        folder = Path(location.path) if Path(location.path).exists() else location.folder()
        path = location.path if folder is None else str(folder.absolute())
    return SharedRows(DataLocation(path, location.split, location.format), digest_rows(rows))


def digest_rows(rows: RowSource) -> str:
    """Identify rows: by the manifest of shards, which has the hashes of all bytes, else by their sizes."""
    if isinstance(rows, ShardSet):
        return hashlib.sha256((rows.folder / MANIFEST).read_bytes()).hexdigest()
    return f"{rows.n_rows} rows, {rows.n_features} features, {rows.n_labels} labels"
