"""Write a shard set whole or not at all, with one shard in memory, optionally shuffled."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from xmlpreck.config import InputError
from xmlpreck.data.dataset import Dataset, with_equal_labels
from xmlpreck.data.rows import concatenate, read_blocks
from xmlpreck.data.shards.files import as_table, read_parquet, write_hdf5, write_parquet
from xmlpreck.data.shards.remote import RemoteKind, RemotePath, ShardPath, locate
from xmlpreck.data.shards.sets import (
    FORMAT,
    KINDS,
    MANIFEST,
    MANIFEST_VERSION,
    Shard,
    ShardError,
    ShardSet,
    read_manifest,
)
from xmlpreck.files import write_errors
from xmlpreck.files.atomic import Kind, atomic_folder, refuse_strangers, scratch_folder
from xmlpreck.files.contents import file_sha256, write_names

_OWN_NAME = re.compile(r"shard-\d{5,}\.(parquet|h5)|(labels|features)\.txt")


def _own_names(folder: Path) -> list[str]:
    """List the files in a manifest, and last the manifest itself, which identifies the others."""
    names: list[str] = []
    # With a damaged or foreign manifest, no other file is known to be ours.
    with suppress(InputError, KeyError, TypeError, AttributeError):
        about = read_manifest(folder / MANIFEST)
        names = [str(entry["file"]) for entry in [*about["shards"], *about["names"].values()]]
    return [*filter(_OWN_NAME.fullmatch, names), MANIFEST]


SHARD_SET = Kind("a shard set", MANIFEST, _own_names, ShardError)
REMOTE_SET = RemoteKind("a shard set", MANIFEST, lambda name: name == MANIFEST or bool(_OWN_NAME.fullmatch(name)))


def write_shards(
    folder: str | ShardPath,
    chunks: Iterable[Dataset],
    kind: str,
    rows_per_shard: int,
    provenance: dict[str, Any],
    shuffle_seed: int | None = None,
) -> ShardSet:
    """Write chunks of any size as shards, holding one shard in memory; the folder appears when it is complete.

    With a seed the rows are shuffled: assigned at random to as many buckets as shards, then permuted within each.
    A set for a store (by URI) is written to a temporary folder of this machine first.
    """
    folder = locate(folder)
    if isinstance(folder, RemotePath):
        REMOTE_SET.refuse_strangers(folder)  # before the work, not after it
        with TemporaryDirectory(prefix="xmlpreck-") as scratch:
            made = Path(scratch) / "set"
            write_shards(made, chunks, kind, rows_per_shard, provenance, shuffle_seed)
            REMOTE_SET.replace(folder, made)
        return ShardSet(folder)
    if kind not in KINDS:
        raise ShardError(f"{kind!r} is not a kind of shard: choose {' or '.join(KINDS)}")
    if rows_per_shard < 1:
        raise ShardError(f"rows per shard must be 1 or more, but is {rows_per_shard}")
    chunks = with_equal_labels(chunks, folder)
    with write_errors(folder, ShardError):
        refuse_strangers(folder, SHARD_SET)
        with atomic_folder(folder, SHARD_SET) as ready:
            if shuffle_seed is None:
                _write_set(ready, chunks, kind, rows_per_shard, provenance)
            else:
                with scratch_folder(folder) as scratch:
                    _write_set(scratch, chunks, kind, rows_per_shard, provenance)
                    plain = ShardSet(scratch, verify=False)
                    shuffled = _shuffle(plain, rows_per_shard, shuffle_seed, scratch)
                    about = provenance | {"shuffled_with_seed": shuffle_seed}
                    _write_set(ready, shuffled, kind, rows_per_shard, about)
    return ShardSet(folder, verify=False)


def _write_set(
    folder: Path, chunks: Iterable[Dataset], kind: str, rows_per_shard: int, provenance: dict[str, Any]
) -> None:
    write = write_parquet if kind == "parquet" else write_hdf5
    shards: list[Shard] = []
    last = None
    for last in _cut(chunks, rows_per_shard):
        path = folder / f"shard-{len(shards):05d}{KINDS[kind]}"
        write(path, last)
        shards.append(_entry(path, last.n_rows))
    if last is None:
        raise ShardError("there are no rows to write")
    names = {}
    for noun, lines in (("labels", last.label_names), ("features", last.feature_names)):
        if lines is not None:
            path = folder / f"{noun}.txt"
            write_names(path, lines)
            names[noun] = asdict(_entry(path, len(lines)))
    about = {
        "format": FORMAT,
        "format_version": MANIFEST_VERSION,
        "kind": kind,
        "n_rows": sum(shard.n_rows for shard in shards),
        "n_features": last.n_features,
        "n_labels": last.n_labels,
        "provenance": provenance,
        "names": names,
        "shards": [asdict(shard) for shard in shards],
    }
    (folder / MANIFEST).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _entry(path: Path, n_rows: int) -> Shard:
    return Shard(path.name, n_rows, path.stat().st_size, file_sha256(path))


def _cut(chunks: Iterable[Dataset], rows_per_shard: int) -> Iterator[Dataset]:
    """Yield the same rows in pieces of exactly rows_per_shard; the last may be shorter."""
    held: list[Dataset] = []
    n_held = 0
    for chunk in chunks:
        held.append(chunk)
        n_held += chunk.n_rows
        while n_held >= rows_per_shard:
            whole = concatenate(held)
            yield whole.read(0, rows_per_shard)
            held = [whole.read(rows_per_shard, n_held)]
            n_held -= rows_per_shard
    if n_held:
        yield concatenate(held)


def _shuffle(source: ShardSet, rows_per_shard: int, seed: int, scratch: Path) -> Iterator[Dataset]:
    """Yield all rows in random order, one bucket (about a shard) in memory at a time."""
    rng = np.random.default_rng(seed)
    n_buckets = -(-source.n_rows // rows_per_shard)
    paths = [scratch / f"bucket-{bucket}.parquet" for bucket in range(n_buckets)]
    writers: dict[int, pq.ParquetWriter] = {}
    for _, block in read_blocks(source, rows_per_shard):
        bucket_of = rng.integers(n_buckets, size=block.n_rows)
        for bucket in np.unique(bucket_of):
            chosen = np.flatnonzero(bucket_of == bucket)
            table = as_table(block._replace(rows=block.rows[chosen], labels=block.labels[chosen]))
            if bucket not in writers:
                writers[bucket] = pq.ParquetWriter(paths[bucket], table.schema, compression="zstd")
            writers[bucket].write_table(table)
    for bucket, writer in sorted(writers.items()):
        writer.close()
        n_rows = pq.ParquetFile(paths[bucket]).metadata.num_rows
        rows = source.dataset(*read_parquet(paths[bucket], 0, n_rows))
        order = rng.permutation(n_rows)
        yield rows._replace(rows=rows.rows[order], labels=rows.labels[order])
