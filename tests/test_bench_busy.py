"""The bench beside busy loops: it times nothing unless all numbers of threads give the same bits."""

import json
import sys

import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import bench_busy


def test_ratios_are_of_the_times_that_count(tmp_path, capsys):
    out = tmp_path / "busy.json"
    bench_busy.main(["--threads", "1", "2", "--repeat", "1", "--patience", "0", "--loops", "1", "--out", str(out)])
    found = json.loads(out.read_text())["results"]
    assert found.keys() == {"1 threads, pass", "2 threads, pass"}
    for each in found.values():
        assert each["ratio"] == each["seconds"]["busy"] / each["seconds"]["quiet"]
        assert all(samples[0]["cpu"] > 0 for samples in each["samples"].values())
    assert "checked: 1, 2, 3, 8 threads give the same bits" in capsys.readouterr().out


def test_other_bits_are_not_timed(monkeypatch):
    state = bench_busy.Trainer.state

    def other_state(trainer):
        arrays = state(trainer)
        if trainer.config.n_threads == 3:
            arrays["values"] = arrays["values"] + 1
        return arrays

    monkeypatch.setattr(bench_busy.Trainer, "state", other_state)
    with pytest.raises(SystemExit, match="3 threads give other bits than 1: nothing is timed"):
        bench_busy.main([])
