"""The fuzzer itself: it runs on every reader, and it notices a reader that is wrong."""

import subprocess
import sys
from random import Random

import numpy as np
import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import fuzz

from xmlpreck.model import seal
from xmlpreck.train import trainer

N_CASES = 40


def run_fuzz(*words):
    # Processes of their own, because the tool limits their memory.
    command = [sys.executable, str(ROOT / "tools" / "fuzz.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=1200)


def test_every_reader_survives_some_damage():
    done = run_fuzz("--cases", str(N_CASES * len(fuzz.TARGETS)), "--seed", "3")
    assert done.returncode == 0, done.stderr[-3000:]
    expected = [[name, str(N_CASES), "cases"] for name in fuzz.TARGETS]
    assert [line.split()[:3] for line in done.stdout.splitlines()] == expected


@pytest.mark.parametrize("wrong", ["raises", "refuses all", "other data"])
def test_a_wrong_reader_is_noticed(tmp_path, wrong):
    target = fuzz.make_target("repository", np.random.default_rng(0))
    files = {"train.txt": b"1 3 2\n0 1:1\n"}
    assert fuzz.run_case(target, files, tmp_path, Random(0))

    def read(folder, rng):
        if wrong == "raises":
            raise KeyError("x")
        return None if wrong == "refuses all" else ([({1: 2.0}, [0])], (3, 2))

    with pytest.raises((AssertionError, KeyError)):
        fuzz.run_case(target._replace(read=read), files, tmp_path, Random(0))


@pytest.mark.parametrize("name", ["shards.parquet", "model.plain", "checkpoint.plain"])
def test_a_changed_byte_under_an_old_checksum_must_be_refused(tmp_path, monkeypatch, name):
    for module, constant in ((seal, "HASHED_BYTES"), (trainer, "ROWS_A_CALL")):
        monkeypatch.setattr(module, constant, getattr(module, constant))  # which the target sets for its process
    folder = tmp_path / "case"
    folder.mkdir()
    target = fuzz.make_target(name, np.random.default_rng(0))
    stale = [case for case in range(300) if fuzz.make_case(target, 0, case)[1]]
    assert len(stale) > 10
    careless = target._replace(read=lambda folder, rng: "taken")
    for case in stale:
        files, must_fail, rng = fuzz.make_case(target, 0, case)
        assert not fuzz.run_case(target, files, folder, rng, must_fail)
        with pytest.raises(AssertionError, match="checksum"):
            fuzz.run_case(careless, files, folder, rng, must_fail)


WORKERS = {
    # Ray's test cluster leaves a handler in the process that all tests share.
    "ends": ("import os, signal; signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15)", "fails (exit -15)"),
    "wants memory": ("bytearray(4 << 30)", "fails (exit 1)"),
    "waits": ("import time; time.sleep(600)", "hangs"),
}


@pytest.mark.parametrize("what", WORKERS)
def test_a_process_that_does_not_come_back_is_noticed(tmp_path, monkeypatch, what):
    code, message = WORKERS[what]

    def work(name, cases, seed, root, progress):
        fuzz.limit_memory()
        progress[0] = 7
        (root / "case" / "train.txt").write_bytes(b"harm")
        exec(code)

    monkeypatch.setattr(fuzz, "work", work)
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(fuzz.tempfile, "tempdir", None)
    _, problem = fuzz.watch("repository", range(9), 1, tmp_path)
    assert f"repository: case 7 of seed 1 {message}" in problem
    assert (tmp_path / problem.rpartition("/")[2] / "train.txt").read_bytes() == b"harm"
