"""Rows that every node opens itself, by path: none of them passes through the driver."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from xmlpreck.cluster.session import need_path, this_node
from xmlpreck.config import InputError
from xmlpreck.data import catalog
from xmlpreck.data.rows import RowSource
from xmlpreck.data.shards import MANIFEST, ShardSet, find_shards, is_remote


class Place(NamedTuple):
    """Where rows are (a file, folder, URI, or the name of a synthetic set), and a digest of them."""

    path: str
    split: str
    format: str | None
    digest: str

    def open(self) -> RowSource:
        """On a node. The driver has verified the shards, so that not every node has to read all of them."""
        if not is_remote(self.path) and Path(self.path).is_absolute():
            need_path(self.path)
        folder = find_shards(self.path, self.split)
        if folder is None:
            rows = catalog.load(self.path, self.split, None, self.format, fetch=False)
        else:
            rows = ShardSet(folder, verify=False)
        if digest_rows(rows) != self.digest:
            what = "are not the rows that the driver has: copy them again"
            raise InputError(f"node {this_node()}: {self.path}: {what}")
        return rows


def find_place(rows: RowSource, data: str, split: str, data_dir: str | None, format: str | None) -> Place:
    """Return the place of rows that the driver has opened by these words."""
    if isinstance(rows, ShardSet):
        path = rows.path
    else:
        folder = Path(data) if Path(data).exists() else catalog.find_folder(data, split, data_dir)
        path = data if folder is None else str(folder.absolute())
    return Place(path, split, format, digest_rows(rows))


def digest_rows(rows: RowSource) -> str:
    """Identify rows: by the manifest of shards, which has the hashes of all bytes, else by their sizes."""
    if isinstance(rows, ShardSet):
        return hashlib.sha256((rows.folder / MANIFEST).read_bytes()).hexdigest()
    return f"{rows.n_rows} rows, {rows.n_features} features, {rows.n_labels} labels"
