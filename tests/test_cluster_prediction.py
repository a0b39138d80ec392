"""Prediction and evaluation on a real Ray cluster: the bytes of one machine, whatever is parted, killed or missing."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import ROOT, draw_model, reseal
from hypothesis import given, settings
from hypothesis import strategies as st

from xmlpreck import train
from xmlpreck.cli import main
from xmlpreck.config import InputError, RunConfig, TrainConfig
from xmlpreck.data import catalog
from xmlpreck.data.formats import TopK
from xmlpreck.data.shards import open_split, write_shards
from xmlpreck.model import Model, all_sparse, lay_out
from xmlpreck.model.prediction import Choice, label_bonus

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'xmlpreck[cluster]'")

from xmlpreck.cluster import parts, prediction  # noqa: E402
from xmlpreck.cluster.rows import share_rows  # noqa: E402
from xmlpreck.cluster.session import Node, connect  # noqa: E402
from xmlpreck.data.location import DataLocation  # noqa: E402


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A calibrated model `m`, and 2,000 rows that it was not trained on as shards in `rows`."""
    folder = tmp_path_factory.mktemp("cluster")
    config = RunConfig(train=TrainConfig(epochs=1, threads=1))
    train.fit(catalog.load("demo", "train"), config).save(folder / "m")
    for split in ("train", "test"):
        write_shards(folder / "rows" / split, [catalog.load("demo", split)], "parquet", 700, {})
    assert main(["calibrate", "--model", str(folder / "m"), "--data", str(folder / "rows"), "--split", "test"]) == 0
    return folder


@pytest.fixture(autouse=True)
def small_steps(monkeypatch, place):
    """Many items, and several blocks of a file."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(place)
    monkeypatch.setattr(prediction, "ITEM_ROWS", 64)
    names = ("model.model", "model.prediction", "evaluation.comparison", "api.prediction", "api.evaluation")
    for module in [import_module(f"xmlpreck.{name}") for name in names]:  # all, before the first is changed
        monkeypatch.setattr(module, "BLOCK_ROWS", 512)


def predict(out, *words):
    assert main(["predict", "--model", "m", "--data", "rows", "--out", out, *words]) == 0
    return Path(out).read_bytes()


def raylets(starter):
    """Process ids of all Ray nodes that a process has started: others may run Ray on this machine, too."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            words = path.read_text().split("\0")
            if words[0].endswith("/raylet") and any(
                re.fullmatch(rf"--session_dir=.*_{starter}", word) for word in words
            ):
                found.add(int(path.parent.name))
    return found


# --- labels in parts


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3, 7, 300]), st.sampled_from([1, 5, 80, 400]), st.booleans())
def test_merged_parts_have_the_bits_of_the_whole(tmp_path_factory, seed, n_parts, k, barred):
    folder = tmp_path_factory.mktemp("model") / "m"
    scorer, rows = draw_model(seed)
    if not barred:  # weights that 16 bits cannot hold
        sparse = all_sparse(scorer.weights)
        scorer = scorer.fresh(weights=lay_out(sparse._replace(values=sparse.values * np.float32(1.1))))
    scorer.save(folder)
    whole = Model.load(folder)
    bonus = label_bonus(whole.n_labels, exclude=[0, 1, 2, 150]) if barred else None
    cut = parts.part_labels(folder, whole.n_labels, n_parts)
    assert [part.first for part in cut] == [0, *(part.last for part in cut[:-1])]
    assert cut[-1].last == whole.n_labels
    tops = []
    for part in cut:
        own = parts.load_part(folder, part)
        top = own.predict_topk(rows, k, bonus=None if bonus is None else bonus[part.first : part.last])
        tops.append(TopK(np.where(top.labels < 0, -1, top.labels + part.first), top.scores))
    expected = whole.predict_topk(rows, k, bonus=bonus)
    merged = parts.merge(tops, min(k, whole.n_labels))
    assert merged.labels.tolist() == expected.labels.tolist()
    assert merged.scores.tobytes() == expected.scores.tobytes()


def test_parts_are_cut_the_same_however_many_weights_are_looked_at_together(monkeypatch, place):
    n_labels = parts.open_without_weights(place / "m").n_labels
    cut = parts.part_labels(place / "m", n_labels, 3)
    whole = [parts.load_part(place / "m", part).weights for part in cut]
    monkeypatch.setattr(parts, "CHUNK", 1000)
    assert parts.part_labels(place / "m", n_labels, 3) == cut
    for part, weights in zip(cut, whole, strict=True):
        for array, other in zip(parts.load_part(place / "m", part).weights, weights, strict=True):
            np.testing.assert_array_equal(array, other)


def test_parts_have_about_the_same_number_of_weights(place):
    n_labels = parts.open_without_weights(place / "m").n_labels
    counts = [part.n_weights for part in parts.part_labels(place / "m", n_labels, 4)]
    assert sum(counts) == Model.load(place / "m").n_weights
    assert max(counts) < 1.3 * min(counts)  # the labels' own counts are far from even
    with pytest.raises(InputError, match="cannot be parted"):
        parts.part_labels(place / "m", n_labels, n_labels + 1)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("row_labels", lambda array: array.astype(np.int64)),
        ("row_labels", lambda array: np.full_like(array, 60_000)),
        ("row_offsets", lambda array: array[::-1]),
        ("row_weights", lambda array: array[:-1]),
        ("row_weights", lambda array: array * np.float32(np.nan)),
    ],
)
def test_damaged_models_are_refused(tmp_path, place, name, spoil):
    shutil.copytree(place / "m", tmp_path / "m")
    np.save(tmp_path / "m" / f"{name}.npy", spoil(np.load(place / "m" / f"{name}.npy")))
    reseal(tmp_path / "m")
    n_labels = parts.open_without_weights(tmp_path / "m").n_labels
    with pytest.raises(InputError):
        parts.load_part(tmp_path / "m", parts.part_labels(tmp_path / "m", n_labels, 2)[0])


def test_a_small_node_makes_label_shards(monkeypatch, place):
    class Small:
        def nodes(self):
            return [
                Node("b", "big", 2, 10**12, 0),
                Node("s", "small", 2, (place / "m/row_labels.npy").stat().st_size, 0),
            ]

        def tell(self, text):
            told.append(text)

    told = []
    n_labels = parts.open_without_weights(place / "m").n_labels
    assert len(parts.choose_parts(Small(), place / "m", n_labels, None)) >= 3
    assert "node small" in told[0]
    assert parts.choose_parts(Small(), place / "m", n_labels, 1) == [None]
    assert len(told) == 1


# --- the same bytes


def test_a_cluster_of_its_own_has_the_same_bytes_and_is_stopped(place):
    """In a process of its own: one that has started Ray once cannot go back to another cluster."""
    words = ("--model", "m", "--data", "rows", "--out", "one.parquet", "--engine", "ray", "--label-shards", "1")
    begin = [sys.executable, "-m", "xmlpreck", "predict", *words]
    with open("said.txt", "w+") as said, subprocess.Popen(begin, stdout=said, stderr=said) as process:
        seen = set()
        while process.poll() is None:
            seen |= raylets(process.pid)
            time.sleep(0.1)
        said.seek(0)
        text = said.read()
    assert process.returncode == 0, text
    assert "Ray starts on this machine" in text
    assert len(seen) == 1
    predict("local.parquet")
    assert pq.read_table("one.parquet").equals(pq.read_table("local.parquet"))  # its blocks are larger
    assert raylets(process.pid) == set()


NICENESS = """
import os, ray
from xmlpreck.cluster.session import connect
with connect(None, lambda text: None):
    print(ray.get(ray.remote(lambda: os.getpriority(os.PRIO_PROCESS, 0)).remote()))
"""


def test_a_cluster_of_its_own_is_no_slower_than_its_neighbours(monkeypatch):
    """Ray's workers are nice by 15 unless told otherwise: beside busy processes they then start in minutes."""
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    ended = subprocess.run([sys.executable, "-c", NICENESS], cwd=ROOT, capture_output=True, text=True)
    assert ended.stdout == f"{os.getpriority(os.PRIO_PROCESS, 0)}\n", ended.stderr


@pytest.mark.parametrize(
    ("out", "n_parts", "words"),
    [
        ("p.parquet", "2", ["--scores", "probability", "--threshold", "0.2", "--at-least", "1"]),
        ("p.jsonl", "4", ["--topk", "40", "--exclude-labels", "barred.txt", "--threads", "1"]),
    ],
)
def test_label_shards_have_the_bytes_of_one_machine(ray_cluster, out, n_parts, words):
    Path("barred.txt").write_text("0\n3\n17\n")
    there = predict(out, "--engine", "ray", "--address", ray_cluster.address, "--label-shards", n_parts, *words)
    assert there == predict(f"local-{out}", *words)


def test_evaluation_has_the_values_of_one_machine(ray_cluster, monkeypatch, capsys):
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)
    values = []
    for engine in ("local", "ray"):
        assert main(["evaluate", "--pred", "m", "--data", "rows", "--json", "--engine", engine]) == 0
        values.append(json.loads(capsys.readouterr().out))
    assert values[0] == values[1]


# --- losses


def kill_workers(monkeypatch, n_kills):
    """Kill a worker that is busy with items, so many times; gives the list of those killed."""
    deal, killed, pid_of = prediction.Pool._deal, [], {}

    def deal_and_kill(pool, *args):
        for worker in pool.workers:
            if worker.is_open and worker not in pid_of:
                pid_of[worker] = ray.get(worker.actor.__ray_call__.remote(lambda worker: os.getpid()))
        deal(pool, *args)
        alive = [worker for worker in pool.workers if worker in pid_of and worker not in killed]
        busy = [worker for worker in alive if worker.n_items == prediction.ITEMS_A_WORKER]
        if busy and len(killed) < n_kills:
            killed.append(busy[0])
            os.kill(pid_of[busy[0]], signal.SIGKILL)

    monkeypatch.setattr(prediction.Pool, "_deal", deal_and_kill)
    return killed


def test_killed_workers_do_not_show(ray_cluster, monkeypatch, capsys):
    expected = predict("local.parquet")
    killed = kill_workers(monkeypatch, 2)
    assert predict("p.parquet", "--engine", "ray", "--address", ray_cluster.address) == expected
    assert len(killed) == 2
    assert "is lost" in capsys.readouterr().err


def ask_until_lost(actor):
    while True:
        ray.get(actor.__ray_call__.remote(lambda worker: None))


def test_a_node_that_goes_does_not_show(ray_cluster, monkeypatch):
    hire, hired = prediction.Pool._hire, []
    monkeypatch.setattr(prediction.Pool, "_hire", lambda pool, n: (hire(pool, n), hired.extend(pool.workers)))
    node = ray_cluster.add_node(num_cpus=2, object_store_memory=100_000_000)
    rows = open_split("rows", "test")
    expected = Model.load("m").predict_topk(rows.read(0, rows.n_rows).rows, 5)
    told = []
    with connect(ray_cluster.address, told.append) as session:
        assert len(session.nodes()) == 4
        found = prediction.predict_rows(
            session, "m", share_rows(rows, DataLocation("rows", "test")), rows, Choice(5), 64, label_shards=4
        )
        tops = [next(found)[1]]
        ray_cluster.remove_node(node, allow_graceful=False)
        there = next(worker.actor for worker in hired if worker.node.id == node.node_id)
        with pytest.raises(ray.exceptions.RayError):  # it may outlive its node for seconds, and do all of its work
            ask_until_lost(there)
        tops += [top for _, top in found]
    assert any("is lost" in text for text in told)
    assert np.concatenate([top.labels for top in tops]).tobytes() == expected.labels.tobytes()
    assert np.concatenate([top.scores for top in tops]).tobytes() == expected.scores.tobytes()


def test_a_node_that_has_gone_unnoticed_is_left_out(ray_cluster):
    node = ray_cluster.add_node(num_cpus=2, object_store_memory=100_000_000)
    ray_cluster.remove_node(node, allow_graceful=False)
    told = []
    with connect(ray_cluster.address, told.append) as session:
        assert len(session.nodes()) == 3
    assert all("has gone" in text or "still waiting" in text for text in told)


def test_work_that_always_kills_is_given_up(ray_cluster, monkeypatch, capsys):
    kill_workers(monkeypatch, 10**6)
    monkeypatch.setattr(prediction, "MAX_TRIES", 2)
    said = refused(capsys, "--engine", "ray", "--address", ray_cluster.address, "--label-shards", "2")
    assert "a worker was lost 2 times over the same work" in said
    assert not Path("refused.npz").exists()


# --- what is refused


def refused(capsys, *words, command="predict"):
    """The one line that a command exits with 2 for."""
    first = ["predict", "--model", "m", "--out", "refused.npz"] if command == "predict" else ["evaluate"]
    data = [] if "--data" in words else ["--data", "rows"]
    assert main([*first, *data, *words]) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_an_address_starts_nothing(capsys):
    before = raylets(os.getpid())
    said = refused(capsys, "--engine", "ray", "--address", "127.0.0.1:1")
    assert "no Ray cluster at 127.0.0.1:1" in said
    assert "ray start --head" in said
    assert raylets(os.getpid()) <= before
    assert not ray.is_initialized()


def test_an_address_of_the_environment_starts_nothing(capsys, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    assert "no Ray cluster at nowhere" in (said := refused(capsys, "--engine", "ray"))
    assert "RAY_ADDRESS" in said


def test_without_ray(capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("xmlpreck.cluster")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refused(capsys, "--engine", "ray") == "xmlpreck: --engine ray needs Ray: pip install 'xmlpreck[cluster]'"


def test_other_versions_on_a_node(ray_cluster, capsys, monkeypatch):
    monkeypatch.setattr("xmlpreck.__version__", "99.0")
    said = refused(capsys, "--engine", "ray", "--address", ray_cluster.address)
    assert "has xmlpreck 0." in said
    assert "but here is xmlpreck 99.0" in said


@pytest.mark.parametrize("flag", ["--model", "--data"])
def test_a_path_that_only_the_driver_has(ray_cluster, capsys, monkeypatch, flag):
    for name in ("xmlpreck.cluster.prediction.ITEM_ROWS", "xmlpreck.api.prediction.BLOCK_ROWS"):
        monkeypatch.setattr(name, 4096)  # one item, one worker
    path = "/proc/self/cwd/" + {"--model": "m", "--data": "rows"}[flag]  # a worker's own folder is another one
    said = refused(capsys, flag, path, "--engine", "ray", "--address", ray_cluster.address)
    assert said.startswith("xmlpreck: node ")
    assert f"{path}: is not there" in said or f"{path}/test: is not there" in said
    assert "shared filesystem" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--address", "auto"], "--address is for a Ray cluster"),
        (["--label-shards", "2"], "--label-shards is for a Ray cluster"),
        (["--engine", "spark"], "--engine must be local or ray"),
        (["--engine", "ray", "--label-shards", "0"], "--label-shards must be a whole number"),
        (["--engine", "ray", "--candidates", "p.npz"], "--candidates works on one machine only"),
        (["--engine", "ray", "--data", "-"], "--data - is read on this machine only"),
        (["--engine", "ray", "--data", "texts"], "is raw text"),
    ],
)
def test_what_a_cluster_cannot_do(capsys, words, said):
    Path("texts").mkdir(exist_ok=True)
    Path("texts/test.jsonl").write_text('{"text": "a b", "labels": ["x"]}\n')
    assert said in refused(capsys, *words)


def test_evaluate_needs_a_model_to_predict(capsys):
    assert "is no model directory" in refused(capsys, "--pred", "p.npz", "--engine", "ray", command="evaluate")
