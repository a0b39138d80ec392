"""Read and write sharded data sets: Parquet or HDF5 files under one manifest, with random access to rows.

A shard set is a folder, local or in a store (by URI: s3, gs, abfs, hdfs): `manifest.json` (sizes, provenance, and for
each shard its rows, bytes and sha256), the shards, and `labels.txt` / `features.txt` if there are names. Parquet shards
have list columns `features` (int32), `values` (float32) and `labels` (int32), which any Arrow tool reads; HDF5 shards
have CSR groups `rows` and `labels`.
"""

from xmlpreck.data.shards.remote import RemoteKind, RemotePath, ShardPath, is_remote, locate
from xmlpreck.data.shards.sets import (
    KINDS,
    MANIFEST,
    ShardError,
    ShardSet,
    find_shards,
    has_split,
    is_one_set,
    open_split,
)
from xmlpreck.data.shards.writing import write_shards

__all__ = [
    "KINDS",
    "MANIFEST",
    "RemoteKind",
    "RemotePath",
    "ShardError",
    "ShardPath",
    "ShardSet",
    "find_shards",
    "has_split",
    "is_one_set",
    "is_remote",
    "locate",
    "open_split",
    "write_shards",
]
