"""The fuzzer itself: it runs on every reader, and it notices a reader that is wrong."""

import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import fuzz_formats
import numpy as np


def test_every_reader_survives_some_damage():
    # A process of its own, because the tool limits its memory.
    command = [sys.executable, str(ROOT / "tools" / "fuzz_formats.py"), "--cases", "60", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1:3] for line in lines[:-1]] == [["60", "cases"]] * 10


@pytest.mark.parametrize("wrong", ["raises", "refuses all", "other data"])
def test_a_wrong_reader_is_noticed(tmp_path, monkeypatch, wrong):
    target = fuzz_formats.make_targets(np.random.default_rng(0))["repository"]
    files = {"train.txt": b"1 3 2\n0 1:1\n"}
    rng = np.random.default_rng(0)
    assert fuzz_formats.run_case(target, files, tmp_path, rng)

    def read(folder, rng):
        if wrong == "raises":
            raise KeyError("x")
        return None if wrong == "refuses all" else ([({1: 2.0}, [0])], (3, 2))

    with pytest.raises((AssertionError, KeyError)):
        fuzz_formats.run_case(target._replace(read=read), files, tmp_path, rng)
