"""The side-by-side tool: its tables on made-up results, and a whole bench on `demo` with a peer that is none."""

import json
import sys
from importlib.metadata import version

import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import bench_peers
import peer_train
import peers_page

# Predicts the most frequent labels for every row, and writes down each training.
FAKE = f"""
import sys
from pathlib import Path

sys.path.insert(0, {str(ROOT / "tools")!r})
import numpy as np
import peer_train

def train(folder, place, threads):
    labels = peer_train.read(folder, "Y_train")
    place.mkdir()
    np.save(place / "frequent.npy", np.argsort(-labels.sum(axis=0).A1, kind="stable")[:5])
    with open(folder / "trained", "a") as trained:
        trained.write(f"{{threads}}\\n")
    return 12.5

def load(folder, place, threads):
    frequent, n_labels = np.load(place / "frequent.npy"), peer_train.read(folder, "Y_train").shape[1]
    def predict(rows):
        labels = np.tile(frequent, (rows.shape[0], 1))
        return peer_train.as_matrix(labels, np.tile(np.arange(5, 0, -1.0), (len(labels), 1)), labels >= 0, n_labels)
    return predict

peer_train.SYSTEMS["fake"] = peer_train.System(train, load, {{}})
peer_train.SYSTEMS["broken"] = peer_train.System(lambda *_: sys.exit("it has no wheel"), load, {{}})
peer_train.main()
"""


@pytest.fixture
def fake_peers(tmp_path, monkeypatch):
    """Two peers whose environment is this interpreter: one that works and one that fails."""
    runner, python = tmp_path / "runner.py", tmp_path / "envs" / "here" / "bin" / "python"
    runner.write_text(FAKE)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(bench_peers, "RUNNER", runner)
    monkeypatch.setattr(bench_peers, "own_systems", lambda: ["xmlpreck-quick"])
    monkeypatch.setattr(bench_peers, "warm_up", lambda work, threads: None)  # the tests' kernels are compiled before
    monkeypatch.setattr(bench_peers, "PEERS", {"fake": "here", "broken": "here"})
    here = bench_peers.environment("numpy", version("numpy"))
    monkeypatch.setattr(bench_peers, "ENVIRONMENTS", {"here": here})
    for name in ("fake", "broken"):
        monkeypatch.setitem(peer_train.SYSTEMS, name, peer_train.System(None, None, {"of": name}))


def run_bench(tmp_path, *words):
    out, page = tmp_path / "peers.json", tmp_path / "peers.md"
    places = ["--work", str(tmp_path / "work"), "--envs", str(tmp_path / "envs"), "--out", str(out)]
    bench_peers.main(["--data", "demo", "--threads", "1", *places, "--markdown", str(page), *words])
    results = json.loads(out.read_text())["results"]
    return {entry["identity"]["system"]: entry for entry in results}, page.read_text()


def test_a_bench_from_end_to_end(tmp_path, fake_peers):
    results, page = run_bench(tmp_path)
    ours, fake = results["xmlpreck-quick"], results["fake"]
    assert ours["values"]["P@1"] > 80 > fake["values"]["P@1"] > 0
    assert ours["values"]["train_s"] < ours["values"]["command_s"], "reading and saving are not training"
    assert fake["values"]["train_s"] == 12.5, "its train call, as it said"
    assert fake["values"]["command_s"] < 12.5
    assert fake["values"]["nDCG@1"] == fake["values"]["P@1"]
    for entry in (ours, fake):
        assert min(entry["values"].values()) > 0
        assert entry["load"] >= 0
    assert "it has no wheel" in results["broken"]["skipped"]
    assert "- broken: ended with 1: it has no wheel" in page
    assert "| xmlpreck-quick against the best peer | +" in page
    against = ours["against"]["P@1"]
    assert against["peer"] == "fake"
    assert against["difference"] == pytest.approx(ours["values"]["P@1"] - fake["values"]["P@1"])
    assert against["low"] < against["difference"] < against["high"]
    assert "<svg" in (tmp_path / "peers.svg").read_text()

    trained = tmp_path / "work" / "demo" / "trained"
    again, _ = run_bench(tmp_path, "--peers", "fake")
    assert again == {"xmlpreck-quick": ours, "fake": fake}
    assert trained.read_text() == "1\n", "what is in the cache is not measured again"
    run_bench(tmp_path, "--peers", "fake", "--again", "fake")
    assert trained.read_text() == "1\n1\n"
    stored = json.loads((tmp_path / "work" / "results.json").read_text())
    assert [entry["identity"]["system"] for entry in stored] == ["xmlpreck-quick", "fake"], (
        "the new result in place of the old"
    )


def test_xmlpreck_gets_no_config_of_known_data(tmp_path):
    """The rows stand in a folder whose name has no card, or the defaults would not be what is measured."""
    facts = bench_peers.write_features("demo", tmp_path)
    assert facts["name"] == "demo"
    assert bench_peers.catalog.find_config(None, str(tmp_path / "rows")) is None
    assert bench_peers.catalog.load(str(tmp_path / "rows"), "test").n_labels == facts["n_labels"]
    assert bench_peers.write_features("demo", tmp_path) == facts, "the same data have the same hash"


def test_every_system_can_be_run():
    systems = [*bench_peers.own_systems(), *bench_peers.PEERS]
    assert systems[0] == "xmlpreck"
    assert set(systems) <= set(peer_train.SYSTEMS)
    assert set(bench_peers.PEERS.values()) == set(bench_peers.ENVIRONMENTS)
    assert set(bench_peers.ONE_VS_REST) <= set(bench_peers.PEERS)


def test_one_vs_rest_that_takes_hours_is_refused():
    large = {"n_labels": 670_091, "n_nonzeros": 37_000_000}
    with pytest.raises(bench_peers.Failed, match=r"one-vs-rest would take about \d+\.\d hours \(--all runs it\)"):
        bench_peers.refuse_hours("liblinear", large, 2)
    bench_peers.refuse_hours("pecos", large, 2)
    bench_peers.refuse_hours("liblinear", {"n_labels": 159, "n_nonzeros": 300_000}, 2)


def made_up(system, precision, cost, data="few", difference=None):
    facts = {"name": data, "n_train": 1000, "n_test": 10, "n_features": 7, "n_labels": 3}
    identity = {"data": facts, "system": system, "settings": {"of": system}, "version": "1", "threads": 2}
    values = {column.key: precision if column.is_score else cost for column in peers_page.COLUMNS}
    machine = {"cores": 2, "cpu": f"of {data}", "python": "3.11", "commit": "abc"}
    entry = {"identity": identity, "values": values, "machine": machine}
    if difference is not None:
        interval = {"peer": "near", "difference": difference, "low": difference - 0.2, "high": difference + 0.2}
        entry["against"] = {column.key: interval for column in peers_page.SCORES}
    return entry


@pytest.fixture
def content():
    results = [made_up("xmlpreck", 60, 3, difference=0.5), made_up("near", 59.5, 6), made_up("cheap", 40, 2)]
    results += [made_up("xmlpreck", 10, 1, "other", -10), made_up("near", 20, 4, "other")]
    results.append({"identity": results[0]["identity"] | {"system": "slow"}, "skipped": "takes hours"})
    return {"results": results}


def rows_of(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_the_page_marks_the_best_and_compares(content):
    text = peers_page.page(content)
    few, other = text.split("## few")[1].split("## other")
    titles, _, ours, near, cheap, against = rows_of(few)
    assert len({len(row) for row in rows_of(few)}) == 1
    assert titles[1:4] == ["P@1", "P@3", "P@5"]
    assert (ours[1], near[1], cheap[1]) == ("**60.00**", "59.50", "40.00")
    assert (ours[-1], near[-1], cheap[-1]) == ("3.0", "6.0", "**2.0**")
    assert (against[1], against[-1]) == ("+0.50 (+0.30 to +0.70)", "1.50 x"), (
        "the best peer is another one in each column"
    )
    assert "- slow: takes hours" in few
    assert rows_of(other)[-1][1:2] == ["-10.00 (-10.20 to -9.80)"]
    assert rows_of(other)[-1][-1] == "0.25 x"
    assert '- near 1: `{"of": "near"}`' in text
    assert "- few: 2 cores (of few), 2 threads, Python 3.11, commit abc.\n- other: 2 cores (of other)" in text


def test_other_data_sets_stay(tmp_path, content):
    bench_peers.store(tmp_path / "peers.json", content)
    new = [made_up("xmlpreck", 70, 3)]
    assert bench_peers.kept_results(tmp_path / "peers.json", new) == content["results"][3:5]
    assert bench_peers.kept_results(tmp_path / "none.json", new) == []


@pytest.mark.parametrize("difference", [0.1, None])
def test_what_may_be_chance_is_not_bold(difference):
    ours, near = made_up("xmlpreck", 60, 3, difference=difference), made_up("near", 59.9, 6)
    text = peers_page.compact({"results": [ours, near]})
    assert [row[2] for row in rows_of(text)[2:]] == ["60.00", "59.90"]


def test_pages_are_made_from_the_json_alone(tmp_path, content):
    out, page, readme = tmp_path / "peers.json", tmp_path / "peers.md", tmp_path / "README.md"
    bench_peers.store(out, content)
    readme.write_text(f"before\n{peers_page.BEGIN}\nstale\n{peers_page.END}\nafter\n")
    words = ["--render-only", "--out", str(out), "--markdown", str(page), "--update", str(readme)]
    bench_peers.main(words)
    assert page.read_text() == peers_page.page(content)
    text = readme.read_text()
    assert text.startswith(f"before\n{peers_page.BEGIN}\n| data | system |")
    assert text.endswith(f"{peers_page.END}\nafter\n")
    assert "stale" not in text
    assert [row[:3] for row in rows_of(text)[2:]] == [
        ["few", "xmlpreck", "**60.00**"],
        ["few", "near", "59.50"],
        ["few", "cheap", "40.00"],
        ["other", "xmlpreck", "10.00"],
        ["other", "near", "**20.00**"],
    ]
    readme.write_text("no marks\n")
    with pytest.raises(SystemExit, match="has no lines"):
        bench_peers.main(words)
    assert readme.read_text() == "no marks\n"
