"""Writing a shard set: in one step, with one shard in memory, shuffled if asked for."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from xmlpreck.config import InputError
from xmlpreck.data.formats import Dataset
from xmlpreck.data.rows import concatenate, read_blocks
from xmlpreck.data.shards.files import as_table, read_parquet, write_hdf5, write_parquet
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
from xmlpreck.files.atomic import Kind, atomic_folder, refuse_strangers, scratch_folder
from xmlpreck.files.contents import file_sha256, write_names

_OWN_NAME = re.compile(r"shard-\d{5,}\.(parquet|h5)|(labels|features)\.txt")


def _own_names(folder: Path) -> list[str]:
    """The files that a manifest lists, and at last the manifest, without which nobody would know the others."""
    names: list[str] = []
    # Where it is damaged or somebody else's, nobody knows that the other files are ours.
    with suppress(InputError, KeyError, TypeError, AttributeError):
        about = read_manifest(folder / MANIFEST)
        names = [str(entry["file"]) for entry in [*about["shards"], *about["names"].values()]]
    return [*filter(_OWN_NAME.fullmatch, names), MANIFEST]


SHARD_SET = Kind("a shard set", MANIFEST, _own_names, ShardError)


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
    try:
        refuse_strangers(folder, SHARD_SET)
        with atomic_folder(folder, SHARD_SET) as ready:
            if shuffle_seed is None:
                _write_set(ready, chunks, kind, rows_per_shard, provenance)
            else:
                with scratch_folder(folder) as scratch:
                    _write_set(scratch, chunks, kind, rows_per_shard, provenance)
                    plain = ShardSet(scratch, verify=False)
                    mixed = _shuffled(plain, rows_per_shard, shuffle_seed, scratch)
                    about = provenance | {"shuffled_with_seed": shuffle_seed}
                    _write_set(ready, mixed, kind, rows_per_shard, about)
    except OSError as error:
        raise ShardError(f"{folder}: cannot be written: {error.strerror or error}") from None
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
        shards.append(_entry(path, last.rows.shape[0]))
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
        "n_features": last.rows.shape[1],
        "n_labels": last.labels.shape[1],
        "provenance": provenance,
        "names": names,
        "shards": [asdict(shard) for shard in shards],
    }
    (folder / MANIFEST).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _entry(path: Path, n_rows: int) -> Shard:
    return Shard(path.name, n_rows, path.stat().st_size, file_sha256(path))


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
            table = as_table(block._replace(rows=block.rows[mine], labels=block.labels[mine]))
            if bucket not in writers:
                writers[bucket] = pq.ParquetWriter(paths[bucket], table.schema, compression="zstd")
            writers[bucket].write_table(table)
    for bucket, writer in sorted(writers.items()):
        writer.close()
        n_rows = pq.ParquetFile(paths[bucket]).metadata.num_rows
        rows = source.dataset(*read_parquet(paths[bucket], 0, n_rows))
        order = rng.permutation(n_rows)
        yield rows._replace(rows=rows.rows[order], labels=rows.labels[order])
