"""Shard sets: every row comes back, damage is refused by name, and sharding never changes a bit of a model."""

import json
import os

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import as_dataset, assert_same_dataset, draw_rows, fitted_bits, write_set

from xmlpreck.config import InputError
from xmlpreck.data.formats import Dataset
from xmlpreck.data.rows import Subset
from xmlpreck.data.shards import KINDS, ShardError, ShardSet, write_shards


@pytest.fixture(scope="module")
def data():
    X, Y = draw_rows(seed=3, n_rows=230)
    plain = as_dataset(X, Y)
    return Dataset(plain.rows, plain.labels, [f"label {i}" for i in range(90)], [f"é{i}" for i in range(40)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows_per_shard", "chunk_rows"), [(33, 50), (230, 7), (1000, 1000), (1, 230)])
def test_round_trip(tmp_path, data, kind, rows_per_shard, chunk_rows):
    write_set(tmp_path / "set", data, kind, rows_per_shard, chunk_rows)
    shards = ShardSet(tmp_path / "set")
    assert [shard.n_rows for shard in shards.shards][:-1] == [rows_per_shard] * (len(shards.shards) - 1)
    assert shards.provenance == {"made_from": "a test"}
    assert_same_dataset(shards.read(0, 230), data)
    for start, stop in ((0, 1), (32, 34), (10, 150), (229, 230), (5, 5)):
        assert_same_dataset(shards.read(start, stop), data.read(start, stop))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


def test_other_tools_read_the_files(tmp_path, data):
    write_set(tmp_path / "parquet", data, "parquet", 230)
    table = pq.read_table(tmp_path / "parquet" / "shard-00000.parquet")
    assert [str(kind) for kind in table.schema.types] == [
        "list<element: int32>",
        "list<element: float>",
        "list<element: int32>",
    ]
    assert table.schema.metadata[b"n_labels"] == b"90"
    assert table["labels"][7].as_py() == data.labels[[7]].indices.tolist()
    write_set(tmp_path / "hdf5", data, "hdf5", 230)
    with h5py.File(tmp_path / "hdf5" / "shard-00000.h5") as file:
        np.testing.assert_array_equal(file["rows/values"], data.rows.data)
        assert file["rows/values"].compression == "gzip"


def test_sharding_does_not_change_a_bit(tmp_path, data):
    """One data set in memory, 7 Parquet shards, 3 HDF5 shards: the same model, hash and held-out scores."""
    parquet = write_set(tmp_path / "p", data, "parquet", 33)
    hdf5 = write_set(tmp_path / "h", data, "hdf5", 80)
    assert (len(parquet.shards), len(hdf5.shards)) == (7, 3)
    expected = fitted_bits(data, 1)
    assert fitted_bits(parquet, 2) == expected
    assert fitted_bits(hdf5, 2) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_shuffling_permutes_rows(tmp_path, data, kind):
    mixed = write_set(tmp_path / "a", data, kind, 50, shuffle_seed=1)
    again = write_set(tmp_path / "b", data, kind, 50, shuffle_seed=1)
    other = write_set(tmp_path / "c", data, kind, 50, shuffle_seed=2)
    rows = [tuple(line) for line in mixed.read(0, 230).rows.toarray()]
    assert rows != [tuple(line) for line in data.rows.toarray()]
    assert sorted(rows) == sorted(tuple(line) for line in data.rows.toarray())
    assert_same_dataset(again.read(0, 230), mixed.read(0, 230))
    assert (other.read(0, 230).rows != mixed.read(0, 230).rows).nnz
    assert mixed.provenance["shuffled_with_seed"] == 1


def test_subset_reads_far_apart_rows_in_steps(data):
    rows = np.array([0, 1, 5, 100, 101, 229])
    subset = Subset(data, rows)
    assert_same_dataset(subset.read(0, 6), data._replace(rows=data.rows[rows], labels=data.labels[rows]))
    assert_same_dataset(subset.read(2, 4), data._replace(rows=data.rows[rows[2:4]], labels=data.labels[rows[2:4]]))
    assert subset.read(3, 3).n_rows == 0


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def edit_manifest(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rename_shard(folder, name):
    entries = json.loads((folder / "manifest.json").read_text())["shards"]
    edit_manifest(folder, shards=[entries[0] | {"file": name}, *entries[1:]])


DAMAGE = {
    "truncated": (
        lambda f, e: os.truncate(f / f"shard-00002{e}", 100),
        r"shard-00002\..*: has 100 bytes, but the manifest",
    ),
    "flipped": (lambda f, e: flip(f / f"shard-00001{e}", 300), r"shard-00001\..*: has changed since the manifest"),
    "missing": (lambda f, e: (f / f"shard-00001{e}").unlink(), r"shard-00001\..*: cannot be read: No such file"),
    "names": (lambda f, e: (f / "labels.txt").write_text("a\n"), r"labels\.txt: has 2 bytes, but the manifest"),
    "rows": (lambda f, e: edit_manifest(f, n_rows=5), r"manifest\.json: the rows of the shards do not add up to 5"),
    "no manifest": (lambda f, e: (f / "manifest.json").unlink(), r"manifest\.json: cannot be read"),
    "not ours": (lambda f, e: (f / "manifest.json").write_text("{}"), r"is not an xmlpreck shards file"),
    "newer": (lambda f, e: edit_manifest(f, format_version=2), r"has format version 2, this xmlpreck reads 1"),
    "kind": (lambda f, e: edit_manifest(f, kind="csv"), r"is not a manifest: kind 'csv'"),
    "outside": (lambda f, e: rename_shard(f, "../secret"), r"'\.\./secret' is not the name of a file in this folder"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_refused_by_name(tmp_path, data, kind, case):
    damage, message = DAMAGE[case]
    write_set(tmp_path / "set", data, kind)
    damage(tmp_path / "set", KINDS[kind])
    with pytest.raises(ShardError, match=message):
        ShardSet(tmp_path / "set")


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_that_lies_is_refused_when_read(tmp_path, data, kind):
    """The manifest's sums are right, the content is not: too few labels by the manifest."""
    write_set(tmp_path / "set", data, kind)
    edit_manifest(tmp_path / "set", n_labels=10, names={})
    with pytest.raises(ShardError, match=r"shard-00000\..*: rows 0 to 32 cannot be read: a label id is out of range"):
        ShardSet(tmp_path / "set").read(0, 40)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "csv"}, "'csv' is not a kind of shard: choose parquet or hdf5"),
        ({"rows_per_shard": 0}, "rows per shard must be 1 or more, but is 0"),
    ],
)
def test_bad_arguments(tmp_path, data, arguments, message):
    with pytest.raises(ShardError, match=message):
        write_set(tmp_path / "set", data, **arguments)
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_what_was_there(tmp_path, data):
    write_set(tmp_path / "set", data)
    before = ShardSet(tmp_path / "set").shards

    def broken():
        yield data.read(0, 100)
        raise OSError(28, "No space left on device")

    with pytest.raises(ShardError, match="set: cannot be written: No space left on device"):
        write_shards(tmp_path / "set", broken(), "parquet", 20, {})
    assert ShardSet(tmp_path / "set").shards == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep me")
    with pytest.raises(ShardError, match="notes: exists and is not a shard set"):
        write_set(tmp_path / "notes", data)
    with pytest.raises(ShardError, match="there are no rows to write"):
        write_shards(tmp_path / "none", iter(()), "hdf5", 20, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "set"]


@pytest.mark.parametrize("name", ["thesis.tex", "shard-00099.parquet", "src/x"])
def test_files_of_others_in_a_shard_set_are_left_alone(tmp_path, data, name):
    """Also one that is called like a shard, but is not in the manifest."""
    write_set(tmp_path / "set", data)
    path = tmp_path / "set" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("years")
    shown = name.partition("/")[0]
    with pytest.raises(
        ShardError, match=f"set: holds '{shown}', which is not part of a shard set: nothing was replaced"
    ):
        write_set(tmp_path / "set", data)
    assert path.read_text() == "years"
    assert os.listdir(tmp_path) == ["set"]


@pytest.mark.parametrize("kind", KINDS)
def test_any_flipped_byte_is_refused_or_harmless(tmp_path, data, kind):
    """A flip in the text of the manifest's provenance, say, changes no row; every other one is told."""
    write_set(tmp_path / "set", data, kind, 100)
    files = sorted((tmp_path / "set").iterdir())
    rng = np.random.default_rng(5)
    n_refused = 0
    for _ in range(300):
        path = files[rng.integers(len(files))]
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            assert_same_dataset(ShardSet(tmp_path / "set").read(0, 230), data)
        except ShardError:
            n_refused += 1
        path.write_bytes(content)
    assert n_refused > 200


def test_a_name_with_a_line_break_is_refused_before_anything_is_written(tmp_path, data):
    names = ["two\nlines", *data.label_names[1:]]
    with pytest.raises(InputError, match="holds a line break"):
        write_set(tmp_path / "set", data._replace(label_names=names))
    assert not list(tmp_path.iterdir())
