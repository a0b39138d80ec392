"""Throw damaged files at every reader: each must give data that obey all rules, or an InputError, within 5 seconds.

    python tools/fuzz.py --cases 100000 --seed 1 [--target repository ...]

What is read from numeric text must also be what a plain Python parser makes of the same bytes, and reading in chunks
must end as reading at once does. A target runs in a process of its own that may use 1.5 GB more than it starts with, so
that who believes a header's size is found out; a hang or a crash of compiled code is seen from outside. The first case
that fails is kept in a folder, which is named, and ends the run.
"""

import argparse
import faulthandler
import gzip
import io
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_damage import damage, restore_checksums
from fuzz_models import MODELS, checkpoint_target, model_target
from fuzz_rules import Target, check_csr, files_of, outcome
from fuzz_tables import TABLES, table_files
from plain_formats import Files, Refused, plain_libsvm, plain_pair, plain_repository, plain_split
from scipy.sparse import save_npz

from xmlpreck import config
from xmlpreck.data import catalog, formats
from xmlpreck.data.fetch.archives import unpack
from xmlpreck.data.formats import Dataset, Documents, TopK, build_csr, predictions, splits
from xmlpreck.data.formats.prediction_output import write_found
from xmlpreck.data.formats.prediction_tables import TableStyle
from xmlpreck.data.shards import ShardSet, write_shards
from xmlpreck.data.text import TextVectorizer, fit_text
from xmlpreck.files.contents import line_blocks

SECONDS = 5
MEMORY = 1500 << 20
N_ROWS, N_LABELS = 4, 9  # of all predictions and of the files beside them
SEEDS = 24


# --- rules that all data obey


def as_plain(dataset: Dataset) -> Any:
    """The data as the plain parsers give it, once it is known to obey the rules."""
    rows, labels = dataset.rows, dataset.labels
    check_csr(rows, False)
    check_csr(labels, True)
    assert rows.shape[0] == labels.shape[0]
    plain = []
    for row in range(rows.shape[0]):
        own, relevant = (slice(*matrix.indptr[row : row + 2]) for matrix in (rows, labels))
        features = dict(zip(rows.indices[own].tolist(), rows.data[own].tolist(), strict=True))
        plain.append((features, labels.indices[relevant].tolist()))
    return plain, (rows.shape[1], labels.shape[1])


def join(chunks: list[Dataset]) -> Any:
    parts = [as_plain(chunk) for chunk in chunks]
    assert len({widths for _, widths in parts}) == 1
    return [row for rows, _ in parts for row in rows], parts[0][1]


def normal(plain: Any) -> object:
    rows, widths = plain
    return [(sorted((f, float(v)) for f, v in features.items()), sorted(labels)) for features, labels in rows], widths


# --- readers


def existing(folder: Path, name: str) -> Path:
    return folder / name if (folder / name).exists() else folder / f"{name}.gz"


def numeric_reader(format: str, name: str) -> Callable[[Path, Random], object]:
    def read(folder: Path, rng: Random) -> object:
        path = existing(folder, name)
        # Blocks of a few bytes, so that each of these small files has many.
        splits.BLOCK_BYTES = rng.choice((1, 3, 16, 64, 1 << 22))
        n_rows = rng.choice((1, 2, 7, 1000))
        whole = outcome(lambda: as_plain(formats.read_split(path, "train", format)))
        if rng.random() < 0.3:
            chunked = outcome(lambda: join(list(formats.read_chunks(path, "train", format, n_rows))))
            assert (whole is None) == (chunked is None), "whole and chunked reading do not agree on the file"
            assert whole is None or normal(whole) == normal(chunked), "whole and chunked reading differ"
        if rng.random() < 0.1:
            recognised = outcome(lambda: formats.recognise(path))
            assert recognised is None or recognised in formats.FORMATS
        return whole

    return read


def document_reader(format: str, name: str) -> Callable[[Path, Random], object]:
    def check(documents: Documents) -> Documents:
        assert len(documents.texts) == len(documents.labels)
        for text, labels in zip(documents.texts, documents.labels, strict=True):
            text.encode()
            assert len(set(labels)) == len(labels)
            assert all(label and label.encode() for label in labels)
        return documents

    def read(folder: Path, rng: Random) -> object:
        path = existing(folder, name)
        whole = outcome(lambda: check(formats.read_documents(path, "train", format)))
        if rng.random() < 0.3:
            chunks = outcome(lambda: list(formats.document_chunks(path, "train", format, rng.choice((1, 2, 7)))))
            assert (whole is None) == (chunks is None), "whole and chunked reading do not agree on the file"
            if whole is not None:
                assert whole.texts == [text for chunk in chunks for text in chunk.texts]
                assert whole.labels == [labels for chunk in chunks for labels in chunk.labels]
                again = folder / "again.jsonl"
                formats.write_split(again, "train", [whole], "jsonl")
                assert formats.read_documents(again, "train", "jsonl") == whole, "does not survive a round trip"
                again.unlink()
        return whole

    return read


def check_topk(topk: TopK, n_labels: int) -> list[list[tuple[int, float]]]:
    """The lists of all rows, once they are known to obey the rules."""
    there = topk.labels >= 0
    assert topk.labels.dtype == np.int32
    assert topk.scores.dtype == np.float32
    assert topk.labels.shape == topk.scores.shape
    assert (topk.labels < n_labels).all()
    assert np.isfinite(topk.scores[there]).all()
    assert np.isneginf(topk.scores[~there]).all()
    assert (np.diff(there.astype(int), axis=1) <= 0).all()
    lists = []
    for labels, scores in zip(topk.labels, topk.scores, strict=True):
        own, score = labels[labels >= 0], scores[labels >= 0]
        assert len(set(own.tolist())) == len(own)
        assert (np.diff(score) <= 0).all()
        lists.append(list(zip(own.tolist(), score.tolist(), strict=True)))
    return lists


def prediction_reader(name: str) -> Callable[[Path, Random], object]:
    def lists(path: Path, fix: bool, sizes: tuple[int | None, int | None], block_rows: int) -> Any:
        opened = formats.open_predictions(path, *sizes, fix=fix)
        blocks = [check_topk(block, opened.n_labels) for block in opened.blocks(block_rows)]
        found = [row for block in blocks for row in block]
        assert len(found) == opened.n_rows
        assert all(len(block) == block_rows for block in blocks[:-1])
        return found, sum(opened.repairs.values())

    def read(folder: Path, rng: Random) -> object:
        path, sizes = existing(folder, name), rng.choice(((None, None), (N_ROWS, N_LABELS)))
        predictions.line_blocks = partial(line_blocks, block_bytes=rng.choice((3, 16, 1 << 22)))
        as_it_is = outcome(lambda: lists(path, False, sizes, rng.choice((1, 2, 3, 1000))))
        assert as_it_is is None or as_it_is[1] == 0, "something was mended that nobody asked for"
        if rng.random() < 0.5:
            mended = outcome(lambda: lists(path, True, sizes, rng.choice((1, 2, 3, 1000))))
            assert as_it_is is None or mended == as_it_is, "mending changes what is right"
            assert mended is None or as_it_is is not None or mended[1] > 0, "it was mended, and nothing was wrong"
        return as_it_is

    return read


def read_filter(folder: Path, rng: Random) -> object:
    pairs = outcome(lambda: formats.read_filter(folder / "filter_labels_test.txt", N_ROWS, N_LABELS))
    if pairs is not None:
        assert pairs.shape == (N_ROWS, N_LABELS)
        check_csr(pairs.astype(np.float32), True)
    return pairs


def read_propensities(folder: Path, rng: Random) -> object:
    values = outcome(lambda: formats.read_inverse_propensities(folder / "inv_prop.txt", N_LABELS))
    assert values is None or (values.shape == (N_LABELS,) and np.isfinite(values).all() and (values > 0).all())
    return values


def read_shards(folder: Path, rng: Random) -> object:
    def read() -> object:
        rows = ShardSet(folder)
        step = rng.choice((1, 2, 1000))
        assert rows.n_rows < 10**8, "so many rows are not in these files"
        blocks = [rows.read(start, min(start + step, rows.n_rows)) for start in range(0, rows.n_rows, step)]
        found = join(blocks or [rows.read(0, 0)])
        assert len(found[0]) == rows.n_rows
        return found

    return outcome(read)


def read_text_model(folder: Path, rng: Random) -> object:
    def read() -> object:
        vectorizer = TextVectorizer.load(folder)
        rows = vectorizer.transform(["alpha beta alpha", "", "gamma"])
        check_csr(rows, False)
        assert rows.shape == (3, vectorizer.n_features)
        return vectorizer

    return outcome(read)


def read_archive(folder: Path, rng: Random) -> object:
    out = folder.parent / "unpacked"
    try:

        def read() -> int:
            unpack(folder / "archive", out / "inner")
            return 1

        taken = outcome(read)
        assert [path.name for path in out.iterdir()] == ["inner"], "a file left its folder"
        for path in out.rglob("*"):
            assert not path.is_symlink(), "a link was made"
            assert path.is_dir() or path.is_file(), "a device was made"
        return taken
    finally:
        shutil.rmtree(out, ignore_errors=True)


def read_config(folder: Path, rng: Random) -> object:
    return outcome(lambda: config.load(folder / "run.toml"))


def read_card(folder: Path, rng: Random) -> object:
    def read() -> object:
        card = catalog._read_card(folder / "x.toml")
        assert all(type(alias) is str for alias in card.aliases)
        for mirror in card.mirrors:
            assert type(mirror.note) is str
            for archive in mirror.archives:
                assert type(archive.address) is str
                named = {**archive.files, **archive.optional}
                assert all(type(pattern) is str and name not in ("", ".", "..") for name, pattern in named.items())
        catalog.card_text(card, str(folder))
        return card

    return outcome(read)


# --- valid files


def random_dataset(rng: np.random.Generator) -> Dataset:
    n_rows, n_features, n_labels = (int(n) for n in rng.integers((0, 1, 1), (6, 12, 8)))
    parts = []
    for width in (n_features, n_labels):
        dense = (rng.random((n_rows, width)) < 0.3) * rng.normal(size=(n_rows, width))
        row, ids = np.nonzero(dense)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n_rows))])
        parts.append(build_csr(dense[row, ids].astype(np.float32), ids.astype(np.int32), offsets, dense.shape))
    parts[1].data[:] = 1
    return Dataset(*parts)


def is_stale(base: Files, files: Files) -> bool:
    """Whether a manifest of shards is as it was, and something else is not."""
    return "manifest.json" in files and files["manifest.json"] == base["manifest.json"] and files != base


def random_topk(rng: np.random.Generator) -> TopK:
    labels = np.array([rng.permutation(N_LABELS)[:3] for _ in range(N_ROWS)], np.int32)
    labels[rng.random(labels.shape) < 0.2] = -1
    return TopK(labels, np.where(labels < 0, -np.inf, rng.normal(size=labels.shape)).astype(np.float32))


def random_documents(rng: np.random.Generator) -> Documents:
    words = ["alpha", "b", "c\u00e9", "\u2028", "x:1", "12", '"q"', "\\", "{", "\U0001f600"]
    n_rows = int(rng.integers(0, 5))
    texts = [" ".join(rng.choice(words, rng.integers(0, 4))) for _ in range(n_rows)]
    return Documents(
        texts, [rng.choice(["a", "b", "7", "\u00e9t\u00e9"], k, False).tolist() for k in rng.integers(0, 3, n_rows)]
    )


def write_other_npz(folder: Path, dataset: Dataset, kind: str) -> None:
    for name, matrix in (("X_train.npz", dataset.rows), ("Y_train.npz", dataset.labels)):
        save_npz(folder / name, matrix.asformat(kind))


def data_files(format: str, rng: np.random.Generator) -> list[Files]:
    make = random_documents if format in formats.WRITTEN_DOCUMENTS else random_dataset
    seeds = []
    for number in range(SEEDS):
        compress = number % 4 == 0 and format != "split"
        data = make(rng)
        seeds.append(
            files_of(partial(formats.write_split, split="train", chunks=[data], format=format, compress=compress))
        )
    if format == "npz":
        for kind in ("coo", "csc", "bsr", "dia"):
            seeds += [files_of(partial(write_other_npz, dataset=random_dataset(rng), kind=kind)) for _ in range(3)]
    if format == "jsonl":
        seeds += [
            {
                "train.jsonl": b'{"uid": "a", "title": "T", "content": "some text", "target_ind": [0, 2]}\n'
                b'{"title": "U", "target_ind": [], "target_rel": [1.0]}\n\n{"content": "v", "target_ind": [1]}\n',
                "lbl.json": b'{"uid": "0", "title": "one"}\n{"title": "two"}\n{"title": "two"}\n',
            }
        ] * 12
    return seeds


def prediction_files(kind: str, rng: np.random.Generator) -> Files:
    topk = random_topk(rng)
    lists = [
        [(label, float(score)) for label, score in zip(labels, scores, strict=True) if label >= 0]
        for labels, scores in zip(*topk, strict=True)
    ]
    ranked = [sorted(row, key=lambda entry: -entry[1]) for row in lists]
    if kind == "dense":
        out = io.BytesIO()
        scores = rng.normal(size=(N_ROWS, N_LABELS)).astype(rng.choice(["<f2", "<f4", "<f8"]))
        np.save(out, np.asfortranarray(scores) if rng.random() < 0.3 else scores)
        return {"p.npy": out.getvalue()}
    if kind in ("napkinxc", "omikuji"):
        pair, blank = ("{}:{:.6g}", " ") if kind == "napkinxc" else ("{} {:.3f}", "\t")
        lines = "".join(blank.join(pair.format(*entry) for entry in row) + "\n" for row in ranked).encode()
        return {"p.txt.gz": gzip.compress(lines)} if rng.random() < 0.2 else {"p.txt": lines}
    if kind in ("csv", "tsv"):
        excel = [None, "comma", "semicolon"][rng.integers(3)] if kind == "csv" else None
        style = TableStyle(["wide", "long"][rng.integers(2)], excel)
        ids = range(N_ROWS) if rng.random() < 0.5 else [f"id {row}" for row in range(N_ROWS)]
        return files_of(lambda folder: write_found(folder / f"p.{kind}", [(ids, topk)], N_LABELS, None, style))
    return files_of(lambda folder: formats.write_predictions(folder / f"p.{kind}", topk, N_LABELS))


def shard_files(kind: str, rng: np.random.Generator) -> Files:
    data = random_dataset(rng)
    while not data.n_rows:
        data = random_dataset(rng)
    if rng.random() < 0.5:
        data = data._replace(label_names=[f"label {i}" for i in range(data.n_labels)])
    return files_of(lambda folder: write_shards(folder, [data], kind, 2, {"made": "by the fuzzer"}))


def with_shard(seed: Files, write: Callable[[Path], None]) -> Files:
    """A shard set whose first shard is another file."""
    name = next(name for name in seed if name.startswith("shard"))
    return restore_checksums({**seed, name: files_of(lambda folder: write(folder / name))[name]})


def odd_parquet(seed: Files) -> list[Files]:
    """Shards of two rows with columns of types and with entries that are none of ours."""
    ids, values = pa.array([[0], [0]], pa.list_(pa.int32())), pa.array([[1.0], [0.5]], pa.list_(pa.float32()))
    right = {"features": ids, "values": values, "labels": ids}
    kinds = (pa.int64(), pa.uint8(), pa.float64(), pa.string(), pa.bool_())
    wrong = [{name: right[name].cast(pa.list_(kind), safe=False)} for name in right for kind in kinds]
    wrong += [
        {name: pa.array(entries, right[name].type)}
        for name, entries in (
            ("features", [[0], None]),
            ("features", [[None], [0]]),
            ("features", [[0, 0], [0]]),
            ("features", [[-1], [0]]),
            ("values", [[math.nan], [1]]),
            ("labels", [[2**31 - 1], [0]]),
        )
    ]
    tables = [pa.table({**right, **changed}) for changed in ({}, {"labels": pa.array([0, 0])}, *wrong)]
    tables.append(tables[0].append_column("features", ids))
    return [with_shard(seed, lambda path, table=table: pq.write_table(table, path)) for table in tables]


def odd_hdf5(seed: Files) -> list[Files]:
    """Shards of two rows with types, shapes, offsets and links that are none of ours."""
    right: dict[str, Any] = {
        "rows/offsets": np.array([0, 1, 2]),
        "rows/features": np.zeros(2, np.int32),
        "rows/values": np.ones(2, np.float32),
        "labels/offsets": np.array([0, 1, 2]),
        "labels/ids": np.zeros(2, np.int32),
    }
    wrong = [
        {"rows/offsets": offsets}
        for offsets in (
            [0, 10**12, 2],
            [0, 10**6, 2],
            [-2, -1, 2],
            [0, 2, 1],
            [0.0, 1.0, 2.0],
            [[0, 1, 2]],
            [2**62] * 3,
        )
    ]
    wrong += [{"rows/features": np.array(features)} for features in ([0.5, 0], [2**32, 0], [b"a", b"b"], [[0], [0]])]
    wrong += [{"rows/values": np.array(values)} for values in ([1e300, 1], [1j, 0], [math.nan, 0], [b"a", b"b"])]
    claims = {"rows/features": np.int32, "rows/values": np.float32, "rows/offsets": np.int64}

    def write(path: Path, changed: dict[str, Any], claimed: dict[str, Any], linked: object = None) -> None:
        with h5py.File(path, "w") as file:
            for name, data in {**right, **changed}.items():
                if name in claimed:
                    file.create_dataset(name, (10**12,), claimed[name], chunks=(1 << 16,))
                elif linked is not None and name == "rows/features":
                    file[name] = linked
                else:
                    file.create_dataset(name, data=np.asarray(data))

    made = [with_shard(seed, partial(write, changed=changed, claimed={})) for changed in wrong]
    made += [with_shard(seed, partial(write, changed={"rows/offsets": [0, 10**12, 10**12]}, claimed=claims))]
    made += [
        with_shard(seed, partial(write, changed={"rows/offsets": [0, 1, 10**12]}, claimed={"rows/features": "i4"}))
    ]
    links = (h5py.ExternalLink("/etc/passwd", "/x"), h5py.SoftLink("/rows/features"), h5py.SoftLink("/labels/ids"))
    return made + [with_shard(seed, partial(write, changed={}, claimed={}, linked=link)) for link in links]


def text_files(rng: np.random.Generator) -> Files:
    texts = [" ".join(rng.choice(["alpha", "beta", "gamma", "delta"], 3)) for _ in range(6)]
    hashed = 16 if rng.random() < 0.3 else 0
    vectorizer = fit_text([texts], min_df=1, max_df=1.0, hashed_features=hashed, ngrams=int(rng.integers(1, 3)))
    return files_of(vectorizer.save)


def archive_files(kind: int) -> Files:
    members = {
        "data/train.txt": b"1 2 3\n0 1:1\n",
        "data/test.txt": b"1 2 3\n0 1:1\n" * 20,
        "readme": b"",
        "\u00e9": b"x",
    }
    out = io.BytesIO()
    if kind == 0:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    elif kind in (1, 2):
        with tarfile.open(fileobj=out, mode="w:gz" if kind == 1 else "w", format=tarfile.PAX_FORMAT) as archive:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size, info.pax_headers = len(content), {"comment": "x"}
                archive.addfile(info, io.BytesIO(content))
    else:
        out.write(gzip.compress(members["data/test.txt"]))
    return {"archive": out.getvalue()}


def shipped(folder: str, name: str) -> list[Files]:
    paths = sorted(catalog.resource_folder(folder).glob("*.toml"))
    return [{name: path.read_bytes().replace(f'"{path.stem}"'.encode(), b'"x"')} for path in paths]


def make_target(name: str, rng: np.random.Generator) -> Target:
    kind, _, what = name.partition(".")
    if kind == "predictions":
        seeds = [prediction_files(what, rng) for _ in range(SEEDS)]
        file = {"dense": "p.npy", "napkinxc": "p.txt", "omikuji": "p.txt"}.get(what, f"p.{what}")
        return Target(seeds, prediction_reader(file))
    if kind == "shards":
        seeds = [shard_files(what, rng) for _ in range(SEEDS)]
        odd = (odd_parquet if what == "parquet" else odd_hdf5)(seeds[0])
        return Target(seeds, read_shards, odd=odd, finish=restore_checksums, must_fail=is_stale)
    if kind == "model":
        return model_target(what, rng)
    if kind == "checkpoint":
        return checkpoint_target(what)
    if name in NUMERIC:
        file, plain = NUMERIC[name]
        return Target(data_files(name, rng), numeric_reader(name, file), plain)
    if name in TABLES:
        return Target([table_files(name, rng) for _ in range(SEEDS)], document_reader(*TABLES[name]))
    if name in formats.WRITTEN_DOCUMENTS:
        return Target(data_files(name, rng), document_reader(name, "train.jsonl" if name == "jsonl" else "train.ft"))
    pairs = [{"filter_labels_test.txt": b"".join(b"%d %d\n" % (i % 4, i % 9) for i in range(n))} for n in range(9)]
    weights = [{"inv_prop.txt": b"".join(b"%.6f\n" % value for value in 1 + rng.random(N_LABELS))} for _ in range(9)]
    return {
        "filter": lambda: Target(pairs, read_filter),
        "propensities": lambda: Target(weights, read_propensities),
        "text": lambda: Target([text_files(rng) for _ in range(SEEDS)], read_text_model),
        "archives": lambda: Target([archive_files(kind) for kind in range(4)], read_archive),
        "config": lambda: Target(shipped("configs", "run.toml"), read_config),
        "cards": lambda: Target(shipped("datasets", "x.toml"), read_card),
    }[name]()


NUMERIC: dict[str, tuple[str, Callable[[Files], object] | None]] = {
    "repository": ("train.txt", plain_repository),
    "pair": ("trn_X_Xf.txt", plain_pair),
    "libsvm": ("train.svm", plain_libsvm),
    "npz": ("X_train.npz", None),
    "split": ("x_data.txt", plain_split),
}
TARGETS = (
    *NUMERIC,
    *formats.WRITTEN_DOCUMENTS,
    *TABLES,
    *(f"predictions.{kind}" for kind in ("parquet", "npz", "dense", "txt", "napkinxc", "omikuji", "csv", "tsv")),
    *("filter", "propensities", "shards.parquet", "shards.hdf5", "text", "archives", "config", "cards"),
    *(f"model.{kind}" for kind in MODELS),
    *("checkpoint.plain", "checkpoint.wide"),
)


# --- the run


def place(files: Files, folder: Path) -> None:
    """Exactly these files in the folder."""
    for name in os.listdir(folder):
        if name not in files:
            os.unlink(folder / name)
    for name, content in files.items():
        with open(folder / name, "wb") as out:
            out.write(content)


def make_case(target: Target, seed: int, case: int) -> tuple[Files, bool, Random]:
    """The files of a case, whether they must be refused, and the generator for what reads them."""
    rng = Random(seed * 2**40 + case)
    base = rng.choice(target.odd) if target.odd and rng.random() < 0.2 else rng.choice(target.seeds)
    files = damage(base, rng.choice(target.seeds), rng)
    if target.finish is None:
        return files, False, rng
    if rng.random() < 0.85:
        return target.finish(files), False, rng
    return files, target.must_fail(base, files), rng


def run_case(target: Target, files: Files, folder: Path, rng: Random, must_fail: bool = False) -> bool:
    """Whether the files were taken; an AssertionError when that is wrong."""
    place(files, folder)
    found = target.read(folder, rng)
    assert found is None or not must_fail, "the checksum is wrong, and it is taken"
    if target.plain is not None:
        try:
            expected: Any = target.plain(files)
        except Refused:
            expected = None
        assert (found is None) == (expected is None), f"plain Python {'refuses' if expected is None else 'accepts'} it"
        assert found is None or normal(found) == normal(expected), "plain Python reads other data"
    return found is not None


def limit_memory() -> None:
    """What this process may use: what it has, and 1.5 GB."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def work(name: str, cases: range, seed: int, root: Path, progress: Any) -> None:
    """All cases of one target, in a process of its own; `progress` is (case, accepted)."""
    faulthandler.enable()
    np.seterr(all="ignore")
    warnings.simplefilter("ignore")  # numpy's about headers of Python 2
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    target = make_target(name, np.random.default_rng(seed))
    folder = root / "case"
    # Whole files first: they are fine, and the parsers are compiled before any case is timed.
    for files in target.seeds:
        assert run_case(target, files, folder, Random(seed)), f"whole files are refused: {files!r:.500}"
    limit_memory()
    for case in cases:
        progress[0] = case
        files, must_fail, rng = make_case(target, seed, case)
        started = time.process_time()
        progress[1] += run_case(target, files, folder, rng, must_fail)
        assert time.process_time() - started < SECONDS, "took too long"


def watch(name: str, cases: range, seed: int, root: Path) -> tuple[int, str]:
    """(accepted, what went wrong or nothing) of one target."""
    progress = multiprocessing.RawArray("q", [-1, 0])  # the case, and how many were accepted
    (root / "case").mkdir()

    def guarded() -> None:
        try:
            work(name, cases, seed, root, progress)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    process = multiprocessing.get_context("fork").Process(target=guarded)
    process.start()
    case, since = progress[0], time.monotonic()
    while process.is_alive():
        process.join(1)
        if progress[0] != case:
            case, since = progress[0], time.monotonic()
        # Python cannot interrupt compiled code, so the process is ended from here. (Before case 0 it compiles.)
        if time.monotonic() - since > (4 * SECONDS if case >= 0 else 600):
            process.kill()
            process.join()
    if process.exitcode == 0:
        return progress[1], ""
    kept = tempfile.mkdtemp(prefix=f"fuzz-{name}-{seed}-{progress[0]}-")
    shutil.copytree(root / "case", kept, dirs_exist_ok=True)
    how = "hangs" if process.exitcode == -signal.SIGKILL else f"fails (exit {process.exitcode})"
    return progress[1], f"{name}: case {progress[0]} of seed {seed} {how}: its files are in {kept}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="damaged files for every reader")
    parser.add_argument("--cases", type=int, default=100_000, help="in all, dealt out to the targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--target", nargs="+", choices=TARGETS, default=TARGETS, metavar="NAME", help=", ".join(TARGETS)
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first case, to try one again")
    args = parser.parse_args(argv)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    n_cases = -(-args.cases // len(args.target))
    for name in args.target:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=memory) as root:
            accepted, problem = watch(name, range(args.first, args.first + n_cases), args.seed, Path(root))
        if problem:
            print(problem, file=sys.stderr)
            return 1
        seconds, refused = time.perf_counter() - started, n_cases - accepted
        shown = f"refused {refused / n_cases:6.1%}  {n_cases / seconds:6.0f} cases/s"
        print(f"{name:20} {n_cases:8} cases  {shown}  {seconds:6.1f} s  seed {args.seed}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
