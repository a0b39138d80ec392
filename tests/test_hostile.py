"""Files of strangers that mean harm: each is refused in one line, before it has taken much memory or any time.

All attacks run in one process that may use 1.5 GB more than it starts with (`python test_hostile.py FOLDER`), so a
reader that believes a header is found out by a MemoryError, and one that crashes or waits takes nobody with it.
"""

import gzip
import io
import json
import os
import pickle
import re
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import reseal
from scipy.sparse import csc_array, csr_array, save_npz

from xmlpreck.config import InputError, RowsConfig
from xmlpreck.data import formats
from xmlpreck.data.fetch.archives import unpack
from xmlpreck.data.formats import Dataset
from xmlpreck.data.shards import ShardSet, write_shards
from xmlpreck.data.text import TextVectorizer, fit_text
from xmlpreck.kernels.arrays import sparse_weights
from xmlpreck.model import Model
from xmlpreck.model.calibration import Calibration

KEPT = Path(__file__).parent / "hostile"  # what the fuzzer has found; a folder is named <reader>-<what is wrong>
MEMORY = 1500 << 20


def read_all_predictions(folder):
    return list(formats.open_predictions(next(folder.glob("p.*"))).blocks(100_000))


def read_shards(folder):
    rows = ShardSet(folder)
    return rows.read(0, rows.n_rows)


def read_part(folder):
    from xmlpreck.cluster.parts import Part, load_part

    return load_part(folder, Part(0, 2, 4))


READERS = {
    "data": lambda folder: formats.read_split(folder, "train"),
    "chunks": lambda folder: list(formats.read_chunks(folder, "train")),
    "split": lambda folder: formats.read_split(folder, "train", "split"),
    "documents": lambda folder: formats.read_documents(folder, "train"),
    "predictions": read_all_predictions,
    "filter": lambda folder: formats.read_filter(folder / "filter_labels_test.txt", 4, 9),
    "propensities": lambda folder: formats.read_inverse_propensities(folder / "inv_prop.txt", 9),
    "shards": read_shards,
    "text": TextVectorizer.load,
    "model": Model.load,
    "part": read_part,
    "archive": lambda folder: unpack(folder / "archive", folder / "unpacked"),
}
ATTACKS = {}


def attack(reader, match, *cases):
    """Register what writes the files; with cases, once for each of them."""

    def register(write):
        name = write.__name__.replace("_", " ")
        for number, case in enumerate(cases):
            ATTACKS[f"{name} {number}: {case!r:.40}"] = (
                reader,
                match,
                lambda folder, write=write, case=case: write(folder, case),
            )
        if not cases:
            ATTACKS[name] = (reader, match, write)
        return write

    return register


def write_gzip(path, start, filling):
    """A start, then 150 MB of the filling in 150 kB."""
    block = gzip.compress(filling * (10**6 // len(filling)), 9)
    path.write_bytes(gzip.compress(start) + block * 150)


def npy(descr="<f4", shape=(10**12,), order=False, body=b"\0" * 64):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": order, "shape": shape})
    return out.getvalue() + body


def change_npz(path, **members):
    with zipfile.ZipFile(path) as archive:
        content = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**content, **{f"{name}.npy": data for name, data in members.items()}}.items():
            archive.writestr(name, data, zipfile.ZIP_DEFLATED)


def write_npz(folder, rows=None, **members):
    save_npz(folder / "X_train.npz", csr_array(np.eye(2, dtype=np.float32)) if rows is None else rows)
    save_npz(folder / "Y_train.npz", csr_array(np.eye(2, dtype=np.float32)))
    change_npz(folder / "X_train.npz", **members)


def forge_sizes(path, name, packed, unpacked):
    """Other sizes of a member in the directory of an archive."""
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02", 0, data.rindex(name.encode()))
    data[at + 20 : at + 28] = struct.pack("<II", packed, unpacked)
    path.write_bytes(data)


# --- text


@attack("data", "the header says 2000000000", b"2000000000 2000000000 2000000000\n0 1:1\n", b"2000000000 9 9\n\n")
def giant_header(folder, text):
    (folder / "train.txt").write_bytes(text)


@attack("predictions", "the header says 2000000000")
def giant_header_of_predictions(folder):
    (folder / "p.txt").write_bytes(b"2000000000 2000000000\n1:1\n")


@attack("data", "a bomb", b"\n", b" ", b"0:1 ", b"\0")
def gzip_bomb(folder, filling):
    write_gzip(folder / "train.txt.gz", b"3 2 2\n", filling)


@attack("chunks", "a bomb|out of range", b"\n", b" ", b"1")
def gzip_bomb_in_chunks(folder, filling):
    write_gzip(folder / "train.txt.gz", b"3 2 2\n", filling)


@attack("documents", "a bomb", b"\n", b"x")
def gzip_bomb_of_texts(folder, filling):
    write_gzip(folder / "train.jsonl.gz", b'{"text": "x", "labels": []}\n', filling)


@attack("predictions", "a bomb")
def gzip_bomb_of_predictions(folder):
    write_gzip(folder / "p.txt.gz", b"3 2\n", b"\n")


@attack("filter", "a bomb")
def gzip_bomb_of_pairs(folder):
    write_gzip(folder / "filter_labels_test.txt", b"0 0\n", b"\n")


@attack("split", "is not a row", b"0" * 5000 + b"1" * 5000, b"000000000000000000015", b"9" * 5000)
def row_number_with_many_digits(folder, number):
    (folder / "x_data.txt").write_bytes(b"1 2 2\n0 1:1\n")
    (folder / "x_trSplit.txt").write_bytes(number + b"\n")


@attack("documents", "is not JSON|is not a name|must be")
def json_nested_deeply(folder):
    (folder / "train.jsonl").write_bytes(b'{"text": "\\u00e9", "labels": ' + b"[" * 10**6 + b"]" * 10**6 + b"}\n")


@attack(
    "documents",
    "not JSON|not a name|surrogate|thousands of digits",
    b"1e999",
    b"NaN",
    b"9" * 5000,
    b'"\\ud800"',
    b"-1e999",
)
def json_label_that_is_none(folder, label):
    (folder / "train.jsonl").write_bytes(b'{"text": "x", "labels": [' + label + b"]}\n")


@attack("filter", "is not a pair|out of range", b"9" * 5000 + b" 1", b"-1 0", b"0 9", b"4 0", b"0 0 0", b"1e3 0")
def pair_that_is_none(folder, line):
    (folder / "filter_labels_test.txt").write_bytes(b"0 0\n" + line + b"\n")


@attack("propensities", "is not an inverse propensity", b"1e999", b"nan", b"-1", b"0", b"", b"9" * 5000)
def propensity_that_is_none(folder, line):
    (folder / "inv_prop.txt").write_bytes(b"1\n" * 8 + line + b"\n2\n")


# --- npz and npy


@attack("data", "bytes, more than the file holds", "data", "indices", "indptr")
def array_that_claims_more(folder, name):
    write_npz(folder, **{name: npy("<f4" if name == "data" else "<i4")})


@attack("data", "more packed bytes than the file")
def array_whose_packed_size_is_a_lie(folder):
    """With a file of column offsets, which is read by np.load."""
    write_npz(folder, csc_array(np.eye(2)), data=npy("<f8", (5 * 10**8,)))
    forge_sizes(folder / "X_train.npz", "data.npy", 4 * 10**9 + 500, 4 * 10**9 + 500)


@attack("data", "has the shape", (-3, 2**62), (-1, -4), (-1,))
def array_with_a_negative_shape(folder, shape):
    write_npz(folder, csc_array(np.eye(2)), data=npy("<f8", shape))


@attack("data", "a bomb", csr_array, csc_array)
def array_of_zeros(folder, kind):
    write_npz(folder, kind(np.eye(2)), data=npy("<f8", (2 * 10**7,), body=bytes(16 * 10**7)))


@attack("data", "Python objects", "data", "indptr", "shape", "format")
def pickle_in_npz(folder, name):
    write_npz(folder, **{name: npy("|O", (2,), body=pickle.dumps([print, 1]))})


@attack("data", "compressed in a way")
def array_packed_by_lzma(folder):
    write_npz(folder)
    with zipfile.ZipFile(folder / "X_train.npz") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(folder / "X_train.npz", "w", zipfile.ZIP_LZMA) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


@attack("data", "cannot be read|has 2 rows", (-1, 2), (2, -1), (2**40, 2), (2, 2**31), (2**62, 2**62), (2,), (2, 2, 2))
def shape_that_is_none(folder, shape):
    write_npz(folder, shape=npy("<i8", (len(shape),), body=np.array(shape).tobytes()))


@attack("data", "cannot be read", (0, 10**6, 2), (0, -5, 2), (5, 1, 2), (0, 2, 1))
def offsets_into_foreign_memory(folder, offsets):
    write_npz(folder, indptr=npy("<i4", (3,), body=np.array(offsets, np.int32).tobytes()))


# Each passes a check of differences, which wrap round; the second one where offsets are converted first.
WRAPPING = (
    np.array([0, 5 * 2**32 + 3 * 10**6, 2**63 - 1, -(2**63), -1, 6]),
    np.array([0, 2**63 + 5, 1, 2, 3, 6], np.uint64),
)


def as_npy(array):
    return npy(array.dtype.str, array.shape, body=array.tobytes())


def five_rows(offsets):
    """Arrays of a matrix of 5 rows, 7 columns and 6 entries."""
    ids, values = np.arange(6), np.ones(6, np.float32)
    return {
        "indptr": as_npy(offsets),
        "indices": as_npy(ids),
        "data": as_npy(values),
        "shape": as_npy(np.array([5, 7])),
    }


@attack("data", "do not rise", *WRAPPING)
def offsets_that_wrap(folder, offsets):
    write_npz(folder, **five_rows(offsets))
    save_npz(folder / "Y_train.npz", csr_array(np.eye(5, dtype=np.float32)))


@attack("data", "do not rise|cannot be read", *WRAPPING)
def offsets_of_columns_that_wrap(folder, offsets):
    write_npz(folder, csc_array(np.eye(2)), **five_rows(offsets) | {"shape": as_npy(np.array([7, 5]))})
    save_npz(folder / "Y_train.npz", csr_array(np.eye(7, dtype=np.float32)))


@attack("predictions", "do not rise|cannot be read", *WRAPPING)
def offsets_of_predictions_that_wrap(folder, offsets):
    save_npz(folder / "p.npz", csr_array(np.eye(2, dtype=np.float32)))
    change_npz(folder / "p.npz", **five_rows(offsets))


@attack("predictions", "cannot be read", (10**6, 10**6), (-1, 5), (2**31, 0), (2**62, 2**62), (4,))
def dense_scores_that_are_not_there(folder, shape):
    (folder / "p.npy").write_bytes(npy("<f4", shape))


@attack("predictions", "cannot be read", "|O", "|V4", "<c8", "<i4", "<U4", "<M8[s]", "<f16")
def dense_scores_of_a_type_that_is_none(folder, descr):
    (folder / "p.npy").write_bytes(npy(descr, (2, 2), body=pickle.dumps([print] * 20) * 3))


@attack("predictions", "keep the best 100")
def one_long_row_of_predictions(folder):
    """All rows of a block would be as wide as the longest: 80 GB."""
    offsets = np.concatenate([[0], np.full(100_000, 100_000)])
    scores = (np.ones(100_000, np.float32), np.arange(100_000), offsets)
    save_npz(folder / "p.npz", csr_array(scores, (100_000, 100_000)))


# --- Parquet and HDF5


@attack("predictions", "n_labels", "2147483648", "-1", "x", "9" * 5000)
def parquet_of_so_many_labels(folder, n_labels):
    lists = {"row": [0], "labels": [[0]], "scores": [[1.0]]}
    pq.write_table(pa.table(lists).replace_schema_metadata({"n_labels": n_labels}), folder / "p.parquet")


def write_set(folder, kind="parquet"):
    """Two rows, one in each shard."""
    eye = csr_array(np.eye(2, dtype=np.float32))
    folder.rmdir()
    write_shards(folder, [Dataset(eye, eye, ["a", "b"])], kind, 1, {})


def change_set(folder, **changes):
    """Other entries of the manifest; `file`, `shard_rows` are those of its first shard. Sums are right again."""
    path = folder / "manifest.json"
    about = json.loads(path.read_text()) | changes
    for entry in [*about["shards"], *about["names"].values()]:
        data = (folder / entry["file"]).read_bytes()
        entry |= {"n_bytes": len(data), "sha256": sha256(data).hexdigest()}
    path.write_text(json.dumps(about))


@attack("shards", "is not a manifest", 10**15, -1, 1e999, 0.5, "2", True, None, 2**31, [2])
def manifest_with_a_wrong_count(folder, count):
    write_set(folder)
    change_set(folder, n_labels=count)


@attack("shards", "do not hold")
def manifest_with_rows_that_are_not_there(folder):
    write_set(folder)
    entries = json.loads((folder / "manifest.json").read_text())["shards"]
    change_set(folder, n_rows=2**31 - 1, shards=[entries[0] | {"n_rows": 2**31 - 2}, entries[1]])


@attack("shards", "the file has 1 rows")
def manifest_with_a_row_that_is_not_there(folder):
    write_set(folder)
    entries = json.loads((folder / "manifest.json").read_text())["shards"]
    change_set(folder, n_rows=3, shards=[entries[0] | {"n_rows": 2}, entries[1]])


def edit_entry(folder, **changes):
    write_set(folder)
    about = json.loads((folder / "manifest.json").read_text())
    about["shards"][0] |= changes
    (folder / "manifest.json").write_text(json.dumps(about))


@attack(
    "shards", "not the name of a file|must have file", "../x", "/etc/passwd", "..", ".", "", "a\0b", "a\nb", "\ud800", 5
)
def shard_in_another_folder(folder, name):
    edit_entry(folder, file=name)


@attack("shards", "File name too long")
def shard_with_a_long_name(folder):
    edit_entry(folder, file="x" * 300)


@attack("shards", "do not hold|must have file", -1, 0.5, "1", None)
def shard_with_a_wrong_count(folder, n_rows):
    edit_entry(folder, n_rows=n_rows)


@attack("shards", "is listed twice")
def shard_that_stands_twice(folder):
    write_set(folder)
    entries = json.loads((folder / "manifest.json").read_text())["shards"]
    change_set(folder, shards=[entries[0], entries[0]])


@attack("shards", "cannot be read")
def manifest_nested_deeply(folder):
    (folder / "manifest.json").write_bytes(b"[" * 10**6)


@attack("shards", "has format version")
def manifest_of_a_version_in_two_lines(folder):
    write_set(folder)
    change_set(folder, format_version="1\n2")


@attack("shards", "not a file")
def names_without_an_end(folder):
    write_set(folder)
    (folder / "labels.txt").unlink()
    (folder / "labels.txt").symlink_to("/dev/zero")


@attack("shards", "not a file")
def shard_that_is_a_pipe(folder):
    write_set(folder)
    (folder / "shard-00000.parquet").unlink()
    os.mkfifo(folder / "shard-00000.parquet")


@attack("shards", "cannot be read", pa.int64(), pa.float64(), pa.string())
def parquet_ids_of_another_type(folder, kind):
    """As int32, the id 2**32 would be 0."""
    write_set(folder)
    ids = pa.array([[str(2**32) if kind == pa.string() else 2**32]], pa.list_(kind))
    values = pa.array([[1.0]], pa.list_(pa.float32()))
    table = pa.table({"features": ids, "values": values, "labels": pa.array([[0]], pa.list_(pa.int32()))})
    pq.write_table(table, folder / "shard-00000.parquet")
    change_set(folder)


HDF5 = {
    "items that were never written": {"rows/offsets": [0, 10**12], "rows/features": 10**12, "rows/values": 10**12},
    "offsets that fall": {"rows/offsets": [5, 1]},
    "offsets below 0": {"rows/offsets": [-1, 1]},
    "offsets behind the end": {"rows/offsets": [0, 10**6]},
    "offsets in a table": {"rows/offsets": [[0, 1]]},
    "offsets that are broken numbers": {"rows/offsets": [0.0, 1.0]},
    "ids beyond int32": {"rows/features": [2**32]},
    "texts": {"labels/ids": [b"0"]},
    "a link out of the file": {"rows/features": h5py.ExternalLink("/etc/passwd", "/x")},
    "a link within the file": {"rows/features": h5py.SoftLink("/labels/ids")},
    "bytes of another file": {"rows/features": "/etc/passwd"},
    "a group": {"rows/features": None},
    "a group of another file": {"rows": h5py.ExternalLink("/etc/passwd", "/rows")},
    "a group of another shard": {"rows": h5py.ExternalLink("shard-00001.h5", "/rows")},
    "a group by a link": {"rows": h5py.SoftLink("/labels")},
    "an array for a group": {"rows": [0, 1]},
    "offsets that wrap": {"labels/offsets": WRAPPING[0][1:3]},
}


@attack("shards", "cannot be read|a bomb", *HDF5)
def hdf5_of(folder, what):
    write_set(folder, "hdf5")
    with h5py.File(folder / "shard-00000.h5", "a") as file:
        for name, data in HDF5[what].items():
            del file[name]
            if isinstance(data, int):
                file.create_dataset(name, (data,), "f4" if name.endswith("values") else "i8", chunks=(1 << 16,))
            elif isinstance(data, str):
                file.create_dataset(name, (1,), "i4", external=[(data, 0, 4)])
            elif data is None:
                file.create_group(name)
            else:
                file[name] = data
    change_set(folder)


# --- text models


def write_text_model(folder, **changes):
    fit_text([["alpha beta", "beta gamma"]], min_df=1, max_df=1.0).save(folder)
    path = folder / "text.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@attack("text", "must be a count from 1|of type|settings", 10**400, -1, 1e999, "3", True, None, 2**63)
def text_model_with_a_wrong_count(folder, count):
    write_text_model(folder, n_documents=count)


@attack(
    "text", "settings", {"ngrams": 1e999}, {"token_pattern": "("}, {"token_pattern": "(" * 5000}, {"x": 1}, [1], None
)
def text_model_with_wrong_settings(folder, settings):
    write_text_model(folder, settings=settings)


@attack(
    "text", "idf.npy", npy("<f8"), npy("|O", (3,), body=pickle.dumps([print] * 3)), npy("<f8", (10**6, 0)), b"PK\3\4"
)
def text_model_with_a_wrong_array(folder, data):
    write_text_model(folder)
    (folder / "idf.npy").write_bytes(data)


@attack(
    "text",
    "is there twice|follows|whole lines|UTF|utf",
    b"alpha\nalpha\nbeta\n",
    b"b\na\nc\n",
    b"\n" * 9,
    b"\xff\na\nb\n",
)
def vocabulary_that_is_none(folder, text):
    write_text_model(folder)
    (folder / "vocabulary.txt").write_bytes(text)


@attack("text", "not a file", "text.json", "vocabulary.txt", "idf.npy")
def text_model_without_an_end(folder, name):
    write_text_model(folder)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")


@attack("text", "cannot be read")
def text_model_nested_deeply(folder):
    (folder / "text.json").write_bytes(b'{"a":' * 10**6)


# --- models


def write_model(folder, *steps):
    """Five features, two labels, text and calibration; `steps` change files, whose hashes are true again then."""
    offsets, labels = np.arange(6) * 2, np.tile(np.arange(2, dtype=np.int32), 5)
    weights = sparse_weights(offsets, labels, np.ones(10, np.float32), 2)
    text = fit_text([["alpha beta gamma", "beta gamma delta epsilon"]], min_df=1, max_df=1.0)
    calibration = Calibration(np.float32(0), np.array([[0.0], [0.5]]), np.zeros(2, np.float32))
    folder.rmdir()
    Model(weights, RowsConfig(bias=0), ["a", "b"], None, {}, text, calibration).save(folder)
    for step in steps:
        step(folder)
        reseal(folder)


@attack("model", "do not rise", *WRAPPING)
def offsets_of_a_model_that_wrap(folder, offsets):
    offsets = offsets.astype(np.int64)
    offsets[-1] = 10
    write_model(folder, lambda place: np.save(place / "row_offsets.npy", offsets))


if find_spec("ray") is not None:

    @attack("part", "do not rise")
    def offsets_of_a_part_that_wrap(folder):
        offsets = WRAPPING[0].copy()
        offsets[-1] = 10
        write_model(folder, lambda place: np.save(place / "row_offsets.npy", offsets))


MODEL_FILES = (
    *("model.json", "row_offsets.npy", "row_labels.npy", "row_weights.npy", "labels.txt", "text.json", "idf.npy"),
    *("vocabulary.txt", "calibration_slope.npy", "calibration_knots.npy", "calibration_shifts.npy"),
)


@attack("model", "not a file", *MODEL_FILES)
def model_without_an_end(folder, name):
    write_model(folder)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")


@attack("model", "not a file", *MODEL_FILES)
def model_of_a_pipe(folder, name):
    write_model(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)


@attack("model", "not a file|cannot be read", *MODEL_FILES)
def model_of_a_folder(folder, name):
    write_model(folder)
    (folder / name).unlink()
    (folder / name).mkdir()


@attack("model", "cannot be read|whole lines|names, but", *MODEL_FILES)
def model_of_nothing(folder, name):
    write_model(folder)
    (folder / name).write_bytes(b"")
    if name != "model.json":
        reseal(folder)


@attack("model", "cannot be read", b"[" * 10**6, b'{"a":' * 10**6, b" " * (40 << 20), b"9" * 5000)
def model_json_that_is_none(folder, text):
    write_model(folder)
    (folder / "model.json").write_bytes(text)


@attack("model", "cannot be read|holds", "row_offsets", "row_labels", "row_weights", "calibration_shifts")
def array_of_a_model_that_is_not_there(folder, name):
    write_model(folder, lambda place: (place / f"{name}.npy").write_bytes(npy("<f4")))


@attack("model", "not a file of a model", "../x", "/etc/passwd", "thesis.tex", "")
def hash_of_another_file(folder, name):
    write_model(folder)
    about = json.loads((folder / "model.json").read_text())
    about["sha256"][name] = "0" * 64
    (folder / "model.json").write_text(json.dumps(about))


# --- archives


@attack(
    "archive",
    "outside its folder|control characters|too long",
    "../x",
    "/x",
    "a/../../x",
    "C:x",
    "a\\..\\..\\x",
    "a\nb",
    "x" * 300,
)
def archive_with_a_wrong_name(folder, name):
    with zipfile.ZipFile(folder / "archive", "w") as archive:
        archive.writestr(name, "x")


@attack("archive", "neither stored nor deflated", zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)
def archive_packed_in_another_way(folder, kind):
    with zipfile.ZipFile(folder / "archive", "w", kind) as archive:
        archive.writestr("x", "x")


@attack("archive", "damaged")
def archive_with_a_place_before_its_start(folder):
    with zipfile.ZipFile(folder / "archive", "w") as archive:
        archive.writestr("x", "x")
    data = (folder / "archive").read_bytes()
    end = data.rindex(b"PK\x05\x06")
    (folder / "archive").write_bytes(data[: end + 16] + struct.pack("<I", 10**6) + data[end + 20 :])


@attack("archive", "damaged", "-1", "-1000000", "9" * 400)
def tar_with_a_wrong_size(folder, size):
    with tarfile.open(folder / "archive", "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("x")
        info.size, info.pax_headers = 4, {"size": size}
        archive.addfile(info, io.BytesIO(b"data"))
        archive.addfile(tarfile.TarInfo("y"))


# --- what the fuzzer has found

for kept in sorted(KEPT.iterdir()):
    ATTACKS[kept.name] = (
        kept.name.partition("-")[0],
        "is damaged" if kept.name.startswith("archive") else "cannot be read",
        lambda folder, kept=kept: shutil.copytree(kept, folder, dirs_exist_ok=True),
    )


# --- the run


def limit_memory():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)


def run_all(root):
    """Read every folder of `root`, `<reader>-<number>`, and print what came of it, one line of JSON each."""
    limit_memory()
    for folder in sorted(root.iterdir()):
        print(json.dumps(folder.name), end=" ", flush=True)
        error = None
        try:
            READERS[folder.name.partition("-")[0]](folder)
        except Exception as raised:
            error = raised
        is_fine = isinstance(error, InputError) and not isinstance(error.__context__, MemoryError)
        print(json.dumps([is_fine, f"{type(error).__name__}: {error}"]), flush=True)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Name of the attack -> (refused by an InputError without a MemoryError, message)."""
    root = tmp_path_factory.mktemp("hostile")
    names = {}
    for number, (name, (reader, _, write)) in enumerate(ATTACKS.items()):
        folder = root / f"{reader}-{number:03d}"
        folder.mkdir()
        write(folder)
        names[folder.name] = name
    done = subprocess.run([sys.executable, __file__, str(root)], capture_output=True, text=True, timeout=240)
    lines = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    found = {names[json.loads(folder)]: json.loads(rest or '[false, "crashed"]') for folder, rest in lines}
    assert done.returncode == 0, f"{done.stdout[-300:]} {done.stderr[-3000:]}"
    return found


@pytest.mark.parametrize("name", ATTACKS)
def test_is_refused_in_one_line(outcomes, name):
    refused, message = outcomes[name]
    assert refused, message[:500]
    assert "\n" not in message
    assert len(message) < 1000
    assert re.search(ATTACKS[name][1], message), message


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
