"""Settings of the hinge that follow from the labels of a row: the rule, what is given, and what is said."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

import xmlpreck
from xmlpreck.cli import main
from xmlpreck.config import BOTH, EFFORTS, InputError, RunConfig, TrainConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.data.shards import write_shards
from xmlpreck.data.synthetic import make_dataset
from xmlpreck.train import Safety, facts, fit, fit_tuned, plan, tune, tuning
from xmlpreck.train.facts import CHOSEN
from xmlpreck.train.facts import EFFORTS as MEANINGS


def rows_with(labels_per_row, n_rows=40, n_labels=60, n_empty=0):
    """Rows of one feature, each with labels_per_row labels, and rows without any."""
    Y = np.zeros((n_rows + n_empty, n_labels), np.float32)
    for row in range(n_rows):
        Y[row, (row + np.arange(labels_per_row)) % n_labels] = 1
    return Dataset(csr_array(np.ones((n_rows + n_empty, 1), np.float32)), csr_array(Y))


def settings(fixed=(), **train):
    return RunConfig(train=TrainConfig(**{"threads": 1, "algo": "hinge"} | train), fixed=frozenset({"algo", *fixed}))


@pytest.mark.parametrize(("labels_per_row", "eta"), [(1, 1.0), (5, 1.0), (6, 0.88), (8, 0.67), (30, 0.67)])
def test_rows_with_many_labels_take_small_steps(labels_per_row, eta):
    for n_empty in (0, 25):  # rows without labels say nothing
        config, evidence = tune(rows_with(labels_per_row, n_empty=n_empty), settings())
        assert config.train.eta == evidence["chosen"]["eta"] == eta
        same_rarity = {"slope_over_idf": 0, "spread_of_idf": 0}
        assert evidence["facts"] == {"labels_per_row": labels_per_row, "values_per_row": 1} | same_rarity
        assert evidence["rungs"] == []
        assert evidence["spent"] == 0


@pytest.mark.parametrize("effort", EFFORTS)
def test_effort_says_how_many_passes(effort):
    config, _ = tune(rows_with(3), settings(effort=effort))
    assert config.train.epochs == MEANINGS[effort].epochs["hinge"]
    config, evidence = tune(rows_with(3), settings({"epochs"}, effort=effort, epochs=7))
    assert config.train.epochs == 7
    assert evidence["fixed"] == {"algo": "hinge", "epochs": 7}
    assert "epochs" not in evidence["chosen"]


@pytest.mark.parametrize(("effort", "members"), [("quick", (1, 1)), ("normal", (2, 1)), ("best", (4, 2))])
def test_small_data_are_trained_twice(monkeypatch, effort, members):
    rows = rows_with(3)
    n_values, n_pairs = rows.rows.nnz, rows.n_rows * int(np.count_nonzero(rows.labels.sum(axis=0)))
    small, large = members
    for bounds, n_members in (
        ((n_values, n_pairs), small),
        ((n_values - 1, n_pairs), large),
        ((n_values, n_pairs - 1), large),
    ):
        monkeypatch.setattr(facts, "SMALL", bounds[0])
        monkeypatch.setattr(facts, "SMALL_PAIRS", bounds[1])
        assert tune(rows, settings(effort=effort))[0].train.members == n_members
        assert tune(rows, settings({"members"}, effort=effort, members=7))[0].train.members == 7


def test_efforts_are_those_of_the_settings():
    assert tuple(MEANINGS) == EFFORTS
    for algo in ("hinge", BOTH):
        passes = [one.epochs[algo] * one.members for one in MEANINGS.values()]
        assert passes == sorted({*passes})


@pytest.mark.parametrize(("labels_per_row", "values_per_row", "fixed", "algo"), [
    (8, 9, {}, "hinge"), (8, 9, {"k": 3}, "hinge"), (8, 9, {"algo": "sgd-max"}, "sgd-max"),
    (8, 9, {"tau": 0.1}, "sgd-avg"), (3, 9, {}, BOTH), (3, 50, {}, "hinge"), (3, 50, {"algo": BOTH}, BOTH),
])  # fmt: skip
def test_rows_with_many_labels_or_values_get_the_hinge(labels_per_row, values_per_row, fixed, algo):
    """Unless a setting is given that it does not have. Others get the mean of both."""
    rows = make_dataset(1100, 90, 40, features_per_row=values_per_row, labels_per_row=labels_per_row, seed=5)
    config, evidence = tune(rows, RunConfig(train=TrainConfig(threads=1, **fixed), fixed=frozenset(fixed)))
    assert config.train.algo == algo
    by_facts = algo in ("hinge", BOTH)
    assert (evidence["rungs"] == []) == by_facts
    assert evidence["chosen"].get("algo", "none") == (algo if by_facts and "algo" not in fixed else "none")


def test_quick_has_no_trials():
    rows = make_dataset(1100, 60, 40, features_per_row=9, labels_per_row=3, seed=5)
    config, evidence = tune(rows, RunConfig(train=TrainConfig(effort="quick")))
    assert (config.train.algo, config.train.tau, evidence["rungs"]) == ("sgd-avg", 0.1, [])
    told = []
    given = RunConfig(train=TrainConfig(effort="quick", algo="sgd-max"), fixed=frozenset({"algo"}))
    assert tune(rows, given, Safety(tell=told.append)) is None
    assert told == ["not tuned: there are no trials with train.effort quick"]


@pytest.mark.parametrize("fixed", [{"algo"}, set()])
def test_best_doubles_the_passes(monkeypatch, fixed):
    """By trials and by facts."""
    monkeypatch.setattr(tuning, "FREE_WORK", 0.0)
    rows = make_dataset(1100, 60, 40, features_per_row=9, labels_per_row=3, seed=5)
    runs = [RunConfig(train=TrainConfig(effort=effort), fixed=frozenset(fixed)) for effort in ("normal", "best")]
    passes = [tune(rows, run)[0].train.n_passes for run in runs]
    assert passes[1] == 2 * passes[0]


def test_rare_labels_get_a_wider_support():
    """Where there is a pass for it: SGD@k-avg as the second member has none of its own to wait for."""
    for n_labels, is_rare in ((400, True), (40, False)):
        rows = make_dataset(1100, 90, n_labels, features_per_row=9, labels_per_row=2, seed=5)
        for epochs in (1, 2, 3):
            given = RunConfig(train=TrainConfig(epochs=epochs), fixed=frozenset({"epochs", "members"}))
            assert tune(rows, given)[0].train.widen == (is_rare and 2 * epochs >= 3)


def test_nothing_left_to_choose():
    told = []
    given = {name: getattr(TrainConfig(algo="hinge"), name) for name in CHOSEN}
    assert tune(rows_with(3), settings(given, **given), Safety(tell=told.append)) is None
    assert told == ["not tuned: every setting is given"]


def test_a_run_is_the_one_with_the_chosen_settings(tmp_path):
    """Whatever the rows come in; the plan is of the run."""
    rows = make_dataset(300, 100, 40, features_per_row=9, labels_per_row=7, seed=5)
    chunks = (rows.read(start, start + 100) for start in range(0, 300, 100))
    shards = write_shards(tmp_path / "set", chunks, "parquet", 90, {})
    told = []
    made = fit_tuned(rows, settings(), on_plan=told.append)
    chosen = made.info["tuning"]["chosen"]
    assert set(chosen) == {*CHOSEN} - {"algo"}
    for other in (fit(rows, settings(**chosen)), fit_tuned(shards, settings(threads=2))):
        for ours, theirs in zip(made.weights, other.weights, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert told[0].n_weights == plan(rows, settings(**chosen)).n_weights
    assert told[0].tuning == {"trials": 0, "rows": 0, "passes": 0.0}


def test_an_effort_without_tuning_is_refused():
    with pytest.raises(InputError, match=r"train.effort quick is for runs that are tuned: leave out --no-tune"):
        xmlpreck.fit("demo", tune=False, effort="quick")


def test_the_command_says_what_it_chose(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--data", "demo", "--effort", "quick", "--threads", "1", "--out", "m"]) == 0
    out = capsys.readouterr().out
    assert "labels per row " in out
    assert "chosen: algo hinge, eta 1, epochs 2, members 1, prune 0.01" in out
    assert "trials" not in out
    about = json.loads(Path("m", "model.json").read_text())
    assert len(about["history"]) == 2
    pytest.importorskip("matplotlib", reason="needs the extra `report`")
    assert main(["report", "m", "-o", "page.html"]) == 0
    assert "No trials. By the labels per row " in Path("page.html").read_text(encoding="utf-8")
