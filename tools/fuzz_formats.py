"""Throw damaged files at every reader: each must give data that obey all rules, or a FormatError, within 5 seconds.

    python tools/fuzz_formats.py --cases 100000 --seed 1 [--format repository]

What is read from numeric text must also be what a plain Python parser makes of the same bytes, and reading in chunks
must end as reading at once does. The first case that fails is kept in a folder, which is named, and ends the run.
"""

import argparse
import faulthandler
import gzip
import io
import re
import resource
import shutil
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from plain_formats import Files, Refused, plain_libsvm, plain_pair, plain_repository, plain_split
from scipy.sparse import save_npz

from xmlpreck import formats
from xmlpreck.formats import Dataset, Documents, FormatError, TopK, build_csr, splits

SECONDS = 5
TOKENS = (
    *(b"0 1 -1 2147483647 2147483648 99999999999999999999 1e39 1e-50 nan inf 0.1".split()),
    *(b"1: :1 , ,, : 0:0 3:1 __label__".split()),
    *(b'__label__x {} [] null true "text" "labels" \\ud800 " { } \xff \xc3\xa9 \xe2\x80\xa8 \0'.split(b" ")),
    *(b"\n", b"\r\n", b" ", b"\t", b"\n\n", b" \n", b"\x0b", b"\x1c"),
)


class Target(NamedTuple):
    """A reader under test: valid files, what reads them, and what a plain parser makes of them (or None)."""

    seeds: list[Files]
    read: Callable[[Path, np.random.Generator], object]
    plain: Callable[[Files], object] | None = None


# --- rules that all data obey


def check_csr(matrix: object, is_labels: bool) -> None:
    assert matrix.data.dtype == np.float32
    assert matrix.indices.dtype == np.int32
    offsets, ids = matrix.indptr, matrix.indices
    assert len(offsets) == matrix.shape[0] + 1
    assert offsets[0] == 0
    assert offsets[-1] == len(ids) == len(matrix.data)
    assert (np.diff(offsets) >= 0).all()
    assert ((ids >= 0) & (ids < matrix.shape[1])).all()
    assert np.isfinite(matrix.data).all()
    for start, end in pairwise(offsets.tolist()):
        assert (np.diff(ids[start:end]) > 0).all()
    if is_labels:
        assert (matrix.data == 1).all()


def as_plain(dataset: Dataset) -> object:
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


def join(chunks: list[Dataset]) -> object:
    parts = [as_plain(chunk) for chunk in chunks]
    assert len({widths for _, widths in parts}) == 1
    return [row for rows, _ in parts for row in rows], parts[0][1]


def outcome(read: Callable[[], object]) -> object:
    """What a reader gives; all its errors are one."""
    try:
        return read()
    except FormatError as error:
        is_fine = "\n" not in str(error) and not isinstance(error.__cause__, MemoryError)
        if not is_fine:
            raise AssertionError("the message has more than one line, or too much memory was asked for") from error
        return None


def normal(plain: object) -> object:
    rows, widths = plain
    return [(sorted((f, float(v)) for f, v in features.items()), sorted(labels)) for features, labels in rows], widths


def numeric_reader(format: str, name: str) -> Callable[[Path, np.random.Generator], object]:
    def read(folder: Path, rng: np.random.Generator) -> object:
        path = folder / name if (folder / name).exists() else folder / f"{name}.gz"
        # Blocks of a few bytes, so that each of these small files has many.
        splits.BLOCK_BYTES = int(rng.choice([1, 3, 16, 64, 1 << 22]))
        n_rows = int(rng.choice([1, 2, 7, 1000]))
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


def document_reader(format: str, name: str) -> Callable[[Path, np.random.Generator], object]:
    def check(documents: Documents) -> Documents:
        assert len(documents.texts) == len(documents.labels)
        for text, labels in zip(documents.texts, documents.labels, strict=True):
            text.encode()
            assert len(set(labels)) == len(labels)
            assert all(label and label.encode() for label in labels)
        return documents

    def read(folder: Path, rng: np.random.Generator) -> object:
        path = folder / name if (folder / name).exists() else folder / f"{name}.gz"
        whole = outcome(lambda: check(formats.read_documents(path, "train", format)))
        n_rows = int(rng.choice([1, 2, 7]))
        chunks = outcome(lambda: list(formats.document_chunks(path, "train", format, n_rows)))
        assert (whole is None) == (chunks is None), "whole and chunked reading do not agree on the file"
        if whole is not None:
            assert whole.texts == [text for chunk in chunks for text in chunk.texts]
            assert whole.labels == [labels for chunk in chunks for labels in chunk.labels]
            again = folder / "again.jsonl"
            formats.write_split(again, "train", [whole], "jsonl")
            assert formats.read_documents(again, "train", "jsonl") == whole, "does not survive a round trip"
        return whole

    return read


def prediction_reader(name: str) -> Callable[[Path, np.random.Generator], object]:
    def read(folder: Path, rng: np.random.Generator) -> object:
        topk = outcome(lambda: formats.read_predictions(folder / name))
        if topk is not None:
            there = topk.labels >= 0
            assert topk.labels.shape == topk.scores.shape
            assert np.isfinite(topk.scores[there]).all()
            assert np.isneginf(topk.scores[~there]).all()
            assert (np.diff(there.astype(int), axis=1) <= 0).all()
            for labels, scores in zip(topk.labels, topk.scores, strict=True):
                own, score = labels[labels >= 0], scores[labels >= 0]
                assert len(set(own.tolist())) == len(own)
                assert (np.diff(score) <= 0).all()
        return topk

    return read


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


def random_topk(rng: np.random.Generator) -> TopK:
    labels = np.array([rng.permutation(9)[:3] for _ in range(4)], np.int32)
    labels[rng.random(labels.shape) < 0.2] = -1
    return TopK(labels, np.where(labels < 0, -np.inf, rng.normal(size=labels.shape)).astype(np.float32))


def random_documents(rng: np.random.Generator) -> Documents:
    words = ["alpha", "b", "c\u00e9", "\u2028", "x:1", "12", '"q"', "\\", "{", "\U0001f600"]
    n_rows = int(rng.integers(0, 5))
    texts = [" ".join(rng.choice(words, rng.integers(0, 4))) for _ in range(n_rows)]
    return Documents(
        texts, [rng.choice(["a", "b", "7", "\u00e9t\u00e9"], k, False).tolist() for k in rng.integers(0, 3, n_rows)]
    )


def files_of(write: Callable[[Path], object]) -> Files:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "x"
        folder.mkdir()
        write(folder)
        return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def write_other_npz(folder: Path, dataset: Dataset, kind: str) -> None:
    for name, matrix in (("X_train.npz", dataset.rows), ("Y_train.npz", dataset.labels)):
        save_npz(folder / name, matrix.asformat(kind))


def write_topk(folder: Path, name: str, topk: TopK) -> None:
    formats.write_predictions(folder / name, topk, 9)


def seeds_of(format: str, rng: np.random.Generator) -> list[Files]:
    make = random_documents if format in formats.DOCUMENT_FORMATS else random_dataset
    seeds = []
    for number in range(24):
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


def make_targets(rng: np.random.Generator) -> dict[str, Target]:
    numeric = {
        "repository": ("train.txt", plain_repository),
        "pair": ("trn_X_Xf.txt", plain_pair),
        "libsvm": ("train.svm", plain_libsvm),
        "npz": ("X_train.npz", None),
        "split": ("x_data.txt", plain_split),
    }
    targets = {
        name: Target(seeds_of(name, rng), numeric_reader(name, file), plain) for name, (file, plain) in numeric.items()
    }
    for name, file in (("jsonl", "train.jsonl"), ("fasttext", "train.ft")):
        targets[name] = Target(seeds_of(name, rng), document_reader(name, file))
    for suffix in ("npz", "parquet", "txt"):
        name = f"p.{suffix}"
        seeds = [files_of(partial(write_topk, name=name, topk=random_topk(rng))) for _ in range(24)]
        targets[f"predictions.{suffix}"] = Target(seeds, prediction_reader(name))
    return targets


# --- damage


def mutate_once(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    n = len(data)
    start, length = int(rng.integers(0, n + 1)), int(rng.geometric(0.2))
    kind = int(rng.integers(0, 9))
    if kind == 0 and n:  # a bit
        at = min(start, n - 1)
        return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(0, 8)))]) + data[at + 1 :]
    if kind == 1:
        return data[:start] + data[start + length :]
    if kind == 2:
        return data[: start + length] + data[start:]
    if kind == 3 and rng.random() < 0.3:
        return data[:start]
    if kind == 4 and rng.random() < 0.5:
        return data[:start] + other[int(rng.integers(0, len(other) + 1)) :]
    if kind in (5, 6):
        if numbers := list(re.finditer(rb"\d+", data)):
            found = numbers[int(rng.integers(0, len(numbers)))]
            near = max(0, int(found[0][-9:]) + int(rng.integers(-2, 3)))
            new = str(near).encode() if kind == 5 else TOKENS[int(rng.integers(0, 11))]
            return data[: found.start()] + new + data[found.end() :]
        return data
    if kind == 7:
        lines = data.split(b"\n")
        moved = lines.pop(int(rng.integers(0, len(lines))))
        lines.insert(int(rng.integers(0, len(lines) + 1)), moved)
        return b"\n".join(lines)
    return data[:start] + TOKENS[int(rng.integers(0, len(TOKENS)))] + data[start:]


def mutate(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    for _ in range(int(rng.integers(1, 4))):
        data = mutate_once(data, other, rng)
    return data


def mutate_archive(data: bytes, rng: np.random.Generator) -> bytes:
    """Damage within an array, under a right checksum: what a zip's own checks do not find."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = list(members)[int(rng.integers(0, len(members)))]
    members[name] = mutate(members[name], members[next(iter(members))], rng)
    if rng.random() < 0.05:
        del members[name]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def damage(files: Files, other: Files, rng: np.random.Generator) -> Files:
    name = list(files)[int(rng.integers(0, len(files)))]
    data, donor = files[name], other.get(name, b"")
    if name.endswith(".npz") and rng.random() < 0.8:
        new = mutate_archive(data, rng)
    elif name.endswith(".gz") and rng.random() < 0.7:
        new = gzip.compress(mutate(gzip.decompress(data), donor, rng), 1)
    else:
        new = mutate(data, donor, rng)
    return {**files, name: new}


# --- the run


def run_case(target: Target, files: Files, folder: Path, rng: np.random.Generator) -> bool:
    """Whether the files were taken; an AssertionError when that is wrong."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    found = target.read(folder, rng)
    if target.plain is not None:
        try:
            expected = target.plain(files)
        except Refused:
            expected = None
        assert (found is None) == (expected is None), f"plain Python {'refuses' if expected is None else 'accepts'} it"
        assert found is None or normal(found) == normal(expected), "plain Python reads other data"
    return found is not None


def run(name: str, target: Target, n_cases: int, seed: int, root: Path) -> tuple[int, int]:
    n_taken = 0
    # Whole files first: they are fine, and the parser is compiled before any case is timed.
    for number, files in enumerate(target.seeds):
        folder = root / f"seed{number}"
        folder.mkdir()
        assert run_case(target, files, folder, np.random.default_rng(seed)), f"whole files are refused: {files}"
        shutil.rmtree(folder)
    for case in range(n_cases):
        rng = np.random.default_rng([seed, case])
        files, other = (target.seeds[i] for i in rng.integers(0, len(target.seeds), 2))
        folder = root / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        # Python cannot interrupt compiled code: a hang ends the process, with the case left on disk.
        faulthandler.dump_traceback_later(4 * SECONDS, exit=True)
        started = time.perf_counter()
        try:
            n_taken += run_case(target, damage(files, other, rng), folder, rng)
            assert time.perf_counter() - started < SECONDS, "took too long"
        except BaseException:
            kept = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-{seed}-{case}-"))
            shutil.copytree(folder, kept, dirs_exist_ok=True)
            print(f"{name}: case {case} of seed {seed} fails: its files are in {kept}", file=sys.stderr)
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
    return n_taken, n_cases - n_taken


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="damaged files for every reader")
    parser.add_argument("--cases", type=int, default=100_000, help="for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", help="only this reader")
    args = parser.parse_args(argv)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (1 << 34, resource.RLIM_INFINITY))
    np.seterr(over="ignore")
    warnings.simplefilter("ignore")  # numpy's about headers of Python 2
    targets = make_targets(np.random.default_rng(args.seed))
    if args.format and args.format not in targets:
        parser.error(f"format {args.format!r} is not known: say one of {', '.join(targets)}")
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as root:
        for name in [args.format] if args.format else targets:
            started = time.perf_counter()
            taken, refused = run(name, targets[name], args.cases, args.seed, Path(root))
            seconds = time.perf_counter() - started
            print(
                f"{name:20} {args.cases} cases {seconds:7.1f} s  refused {refused}  accepted {taken}  seed {args.seed}",
                flush=True,
            )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
