"""Self-tuning and the start at centroids: the formula, the same choice every time, what is fixed, what is kept."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import reference
from helpers import as_dataset, dense, draw_rows, timeless, trainer_bits
from scipy.sparse import csr_array

from xmlpreck.cli import main
from xmlpreck.config import ALGORITHMS, ConfigError, RowsConfig, RunConfig, TrainConfig
from xmlpreck.data.formats import Dataset, write_repository_text
from xmlpreck.data.shards import write_shards
from xmlpreck.data.survey import survey_of
from xmlpreck.data.synthetic import make_dataset
from xmlpreck.evaluation import tables
from xmlpreck.kernels.arrays import SCALE, no_weights
from xmlpreck.train import (
    Checkpoints,
    Interrupted,
    OverBudget,
    PreparedRows,
    Safety,
    Trainer,
    fit,
    fit_tuned,
    plan,
    tune,
    tuning,
)
from xmlpreck.train.record import Record

SGD = [algo for algo in ALGORITHMS if algo.startswith("sgd")]
GIVEN = {"tau": 0.2, "eta": 0.3, "k": 3, "epochs": 3, "spread": True, "prune": 0.03, "decay": "sqrt", "widen": True}


@pytest.fixture(autouse=True)
def _two_passes(monkeypatch):
    """The budget of large data: small data may have a hundred times as much."""
    monkeypatch.setattr(tuning, "FREE_WORK", 0.0)


# --- the start at centroids ------------------------------------------------------------------------------------


def centroids(X, Y, centroid):
    """w_fl = centroid * (sum over the rows of label l of x_f) / (their number + 1), in float64."""
    W = np.zeros((X.shape[1], Y.shape[1]))
    for label in range(Y.shape[1]):
        W[:, label] = centroid * X[Y[:, label]].sum(axis=0) / (Y[:, label].sum() + 1)
    return W


def started(X, Y, config, dtype=np.float64, n_known=None):
    """A trainer at its start, with the support of the first `n_known` rows (None = all), and its rows."""
    as_they_are = RowsConfig(unit_norm=False, bias=0.0)
    rows = PreparedRows(as_dataset(X, Y), as_they_are, config.block_rows)
    trainer = Trainer(no_weights(X.shape[1], Y.shape[1], dtype), config)
    trainer.grow(PreparedRows(as_dataset(X[:n_known], Y[:n_known]), as_they_are, config.block_rows))
    trainer.start_at_centroids(rows, Y.sum(axis=0))
    return trainer, rows


def block_orders(config, n_rows):
    """The row orders of all passes: blocks in an order that is drawn, then the rows of each."""
    starts = np.arange(0, n_rows, config.block_rows)
    for number in range(1, config.epochs + 1):
        rng = np.random.default_rng([config.seed, number])
        blocks = starts[rng.permutation(len(starts))]
        yield np.concatenate([start + rng.permutation(min(config.block_rows, n_rows - start)) for start in blocks])


@pytest.mark.parametrize("algo", SGD)
@pytest.mark.parametrize("centroid", [1.0, 0.4])
@pytest.mark.parametrize("block_rows", [1000, 17])
def test_start_is_the_formula(algo, centroid, block_rows):
    X, Y = draw_rows(seed=7)
    trainer, _ = started(X, Y, TrainConfig(algo=algo, centroid=centroid, block_rows=block_rows))
    expected = centroids(X, Y, centroid)
    assert np.count_nonzero(expected) > 500
    np.testing.assert_allclose(dense(trainer.learner.weights), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(trainer.learner.norms.sum(), (expected**2).sum(), rtol=1e-9)


def test_start_stays_within_the_support():
    """As where memory has cut it: other rows of a label add nothing to features that it may not use."""
    X, Y = draw_rows(seed=7)
    trainer, _ = started(X, Y, TrainConfig(), n_known=20)
    allowed, everywhere = reference.support(X[:20], Y[:20]), centroids(X, Y, 1.0)
    assert everywhere[~allowed].any()
    np.testing.assert_allclose(dense(trainer.learner.weights), np.where(allowed, everywhere, 0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("config", [TrainConfig(algo="perceptron-avg"), TrainConfig(algo="perceptron-max"),
                                    TrainConfig(centroid=0.0)])  # fmt: skip
def test_perceptrons_and_the_paper_start_at_nothing(config):
    trainer, _ = started(*draw_rows(seed=7), config)
    learner = trainer.learner
    arrays = (learner.weights.values, learner.weights.dense_rows, learner.norms, learner.sums, learner.dense_sums)
    assert not any(array.any() for array in arrays)


@pytest.mark.parametrize("algo", SGD)
@pytest.mark.parametrize(
    "settings", [{"average_from": 1}, {"average_from": 3, "decay": "sqrt"}, {"radius": 1.5}, {"average_from": 0}]
)
@pytest.mark.parametrize("block_rows", [1000, 32])
def test_training_from_centroids_equals_the_reference(algo, settings, block_rows):
    X, Y = draw_rows(seed=9, n_rows=96)  # three blocks of four whole batches
    few = {"epochs": 3, "k": 3, "eta": 0.3, "batch_rows": 8, "seed": 3, "threads": 2}
    config = TrainConfig(algo=algo, block_rows=block_rows, **few | settings)
    trainer, rows = started(X, Y, config)
    for _ in range(config.epochs):
        trainer.run_pass(rows)
    slow = reference.train(
        X, Y, rule=algo, k=3, orders=block_orders(config, len(X)), batch_rows=8, eta=0.3,
        decay=config.decay, radius=config.radius, average_from=config.average_from or 1, start=centroids(X, Y, 1.0),
    )  # fmt: skip
    last = dense(trainer.learner.weights) * trainer.learner.clock[SCALE]
    np.testing.assert_allclose(last, slow.last, rtol=1e-9, atol=1e-12)
    expected = slow.average if config.average_from else slow.last
    np.testing.assert_allclose(dense(trainer.weights()), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_change_no_bit_of_the_start_and_what_follows(dtype):
    X, Y = draw_rows(seed=4, n_rows=200, n_labels=150)
    found = []
    for threads in (1, 2):
        trainer, rows = started(X, Y, TrainConfig(epochs=2, threads=threads, block_rows=64), dtype)
        found.append([trainer_bits(trainer)])
        trainer.run_pass(rows)
        found[-1].append(trainer_bits(trainer))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


# --- the choice ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows():
    return make_dataset(1500, 300, 40, features_per_row=15, labels_per_row=3, seed=5)


def settings(fixed=(), **train):
    start = {"algo": "sgd-avg", "eta": 1.0, "epochs": 3, "threads": 1}
    return RunConfig(train=TrainConfig(**start | train), fixed=frozenset({"algo", *fixed}))


def test_same_choice_for_threads_and_shards(rows, tmp_path):
    chunks = (rows.read(start, min(start + 400, rows.n_rows)) for start in range(0, rows.n_rows, 400))
    shards = write_shards(tmp_path / "set", chunks, "parquet", 350, {})
    config, evidence = tune(rows, settings())
    for source, threads in ((rows, 2), (shards, 1), (shards, 2)):
        other, same = tune(source, settings(threads=threads))
        assert same == evidence
        assert replace(other, train=replace(other.train, threads=1)) == config
    assert tune(rows, settings(seed=1))[1]["rungs"] != evidence["rungs"]


def test_free_work_buys_more_than_two_passes_up_to_a_limit(rows, monkeypatch):
    assert tune(rows, settings())[1]["budget"] == tuning.BUDGET_SHARE * tuning.FEW_PASSES
    with monkeypatch.context() as rare:
        rare.setattr(tuning, "ROWS_SEEN", 10**6)  # as if labels were rare
        evidence = tune(rows, settings())[1]
    assert evidence["budget"] == tuning.BUDGET
    assert (evidence["chosen"]["widen"], evidence["chosen"]["decay"]) == (True, "constant")
    work = rows.rows.nnz * rows.n_labels
    for passes, budget in ((6, 6), (1e6, tuning.MAX_BUDGET)):
        monkeypatch.setattr(tuning, "FREE_WORK", passes * work)
        assert tune(rows, settings())[1]["budget"] == pytest.approx(budget, rel=0.05)  # by the held-out rows


@pytest.mark.parametrize("algo", ["sgd-avg", "perceptron-avg"])
@pytest.mark.parametrize("free_passes", [0, 12])
@pytest.mark.parametrize("fixed", [(), ("eta", "k"), ("tau", "epochs")])
def test_evidence(rows, monkeypatch, algo, free_passes, fixed):
    monkeypatch.setattr(tuning, "FREE_WORK", float(free_passes * rows.rows.nnz * rows.n_labels))
    before = settings(fixed, algo=algo, **{name: GIVEN[name] for name in fixed})
    config, evidence = tune(rows, before)
    assert json.loads(json.dumps(evidence)) == evidence
    assert set(evidence) == {"heldout_rows", "budget", "spent", "fixed", "rungs", "history", "pruned", "chosen"}
    assert evidence["heldout_rows"] == 300
    assert 0 < evidence["spent"] <= 1.05 * evidence["budget"]
    spent = [rung["rows"] * rung["passes"] * len(rung["trials"]) for rung in evidence["rungs"]]
    assert evidence["spent"] == pytest.approx(sum(spent) / rows.n_rows)
    for rung in evidence["rungs"]:
        assert set(rung) == {"rows", "passes", "trials"}
        assert 1 <= rung["rows"] <= rows.n_rows - 300
        assert [trial["kept"] for trial in rung["trials"]].count(True) == 1
        for trial in rung["trials"]:
            assert set(trial) == {"settings", "scores", "value", "kept"}
            assert trial["value"] == pytest.approx(np.mean([trial["scores"][f"P@{k}"] for k in (1, 3, 5)]))
    kept = [next(trial for trial in rung["trials"] if trial["kept"]) for rung in evidence["rungs"]]
    for rung, trial in zip(evidence["rungs"], kept, strict=True):  # the first that is nearly as good as the best
        good = max(one["value"] for one in rung["trials"]) - tuning.WORTH
        assert trial == next(one for one in rung["trials"] if one["value"] >= good)
    assert [one["passes"] for one in evidence["history"]] == list(range(1, evidence["rungs"][-1]["passes"] + 1))
    assert evidence["history"][-1]["value"] == kept[-1]["value"]
    assert evidence["fixed"] == {name: GIVEN[name] for name in fixed}
    assert evidence["chosen"]["tau"] == kept[0]["settings"]["tau"]
    assert {name: evidence["chosen"][name] for name in ("k", "spread")} == {
        name: kept[-1]["settings"][name] for name in ("k", "spread")
    }
    assert config == replace(before, train=replace(before.train, **evidence["chosen"]))


@pytest.mark.parametrize("given", [{name: value} for name, value in GIVEN.items()] + [{"eta": 0.11}, {"eta": 0.42}])
def test_a_given_setting_is_never_changed(rows, given):
    """To the last bit: a resumed run compares it with the checkpoint's."""
    config, evidence = tune(rows, settings(given, **given))
    ((name, value),) = given.items()
    assert getattr(config.train, name) == value
    assert evidence["fixed"] == given
    trials = [trial["settings"] for rung in evidence["rungs"] for trial in rung["trials"]]
    assert {one.get(name, value) for one in trials} == {value}
    assert len({tuple(one.items()) for one in trials}) > 1


def test_nothing_left_to_choose(rows):
    assert set(tuning.TUNED) == set(GIVEN)
    told = []
    assert tune(rows, settings(GIVEN, **GIVEN), Safety(tell=told.append)) is None
    assert told == ["not tuned: every setting is given"]
    assert tune(rows, settings({*GIVEN} - {"k"}, **GIVEN)) is not None
    # A perceptron's ranking does not depend on these three.
    meant = {name: value for name, value in GIVEN.items() if name not in ("eta", "spread", "decay")}
    assert tune(rows, settings(meant, algo="perceptron-avg", **meant)) is None


def test_what_is_not_given_is_chosen_whatever_is(rows, monkeypatch):
    """Once the fourth of tau, eta, k and epochs was given, spread, prune, decay and widen were no longer chosen."""
    given = {name: GIVEN[name] for name in ("tau", "eta", "k", "epochs")}
    config, evidence = tune(rows, settings(given, **given))
    assert set(evidence["chosen"]) >= {"spread", "prune", "decay", "widen"}
    assert [len(rung["trials"]) for rung in evidence["rungs"]] == [2, 1]  # spread, then what pruning costs
    assert {trial["settings"]["spread"] for trial in evidence["rungs"][0]["trials"]} == {False, True}
    assert config.train.prune in (0, *tuning.PRUNES)
    assert {name: getattr(config.train, name) for name in given} == given
    # What follows from a rule needs no trial.
    given = {name: value for name, value in GIVEN.items() if name not in tuning.BY_RULE}
    monkeypatch.setattr(tuning, "ROWS_SEEN", 10**6)  # as if labels were rare
    monkeypatch.setattr(tuning.Tuning, "_try", None)
    config, evidence = tune(rows, settings(given, **given))
    assert (evidence["rungs"], evidence["history"], evidence["spent"]) == ([], [], 0)
    assert (config.train.decay, config.train.widen) == ("linear", True)
    assert "chosen: " in tables.tuning_text(evidence)


def test_a_wider_support_gets_the_passes_that_it_needs(rows, monkeypatch):
    """Two passes never come to it: it was asked for in silence, or chosen for nothing."""
    # One pass is best by far.
    monkeypatch.setattr(tuning.Trial, "values", property(lambda self: [90.0] + [0.0] * (len(self.history) - 1)))
    assert tune(rows, settings())[0].train.epochs < 3
    config, _ = tune(rows, settings({"widen"}, widen=True))
    assert (config.train.widen, config.train.epochs) == (True, 3)
    monkeypatch.setattr(tuning, "ROWS_SEEN", 10**6)  # as if labels were rare
    config, _ = tune(rows, settings())
    assert (config.train.widen, config.train.epochs) == (False, 2)
    with pytest.raises(ConfigError, match="before pass 3, but there are 2: give --epochs 3 or more"):
        fit(rows, settings(widen=True, epochs=2))
    with pytest.raises(ConfigError, match="before pass 3, but there are 2: give --epochs 3 or more"):
        fit_tuned(rows, settings({"widen", "epochs"}, widen=True, epochs=2))


@pytest.mark.parametrize("where", ["behind", "between"])
def test_labels_without_rows_change_no_choice(rows, where):
    """1,000 columns that no row has: the rule counted them, and some were among the best irrelevant labels."""
    labels = rows.labels
    ids = np.arange(labels.shape[1]) * (1 if where == "behind" else 26)
    more = csr_array((labels.data, ids[labels.indices], labels.indptr), (rows.n_rows, labels.shape[1] + 1000))
    wide = Dataset(rows.rows, more)
    (config, evidence), (other, same) = tune(rows, settings()), tune(wide, settings())
    assert other == config
    assert same == evidence


def test_too_few_rows(rows):
    assert tune(rows.read(0, tuning.MIN_ROWS - 1), settings()) is None
    assert tune(rows.read(0, tuning.MIN_ROWS), settings()) is not None


def test_a_pause_can_stop_it(rows):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(rows, settings(), Safety(stop=stop))


def test_trials_that_diverge_do_not_stop_it(rows):
    """Steps of 6e37 and more: some trials, or all, leave float32. Rows of 1e38: their scores do."""
    huge = rows._replace(rows=rows.rows * np.float32(1e38))
    values = {}
    for case, source, config in (
        ("some", rows, settings({"eta", "decay"}, eta=6e37, decay="constant")),
        ("all", rows, settings({"eta", "decay"}, eta=1e38, decay="constant")),
        ("rows", huge, replace(settings(), rows=RowsConfig(unit_norm=False))),
    ):
        with np.errstate(over="ignore", invalid="ignore"):
            tuned, evidence = tune(source, config)
        assert json.loads(json.dumps(evidence, allow_nan=False)) == evidence
        assert "chosen: " in tables.tuning_text(evidence)
        assert [sum(trial["kept"] for trial in rung["trials"]) for rung in evidence["rungs"]] == [1, 1, 1]
        assert tuned.train.epochs >= 1
        values[case] = [trial["value"] for trial in evidence["rungs"][0]["trials"]]
    assert min(values["some"]) == 0 < max(values["some"])
    assert max(values["all"]) == 0


def drawn_by_lot(ratio, seed, n_rows=2000, n_groups=5, n_members=8, n_words=50):
    """A row's first feature names its group, three are chance; its one label is the group's m-th with p ~ ratio^m.

    Near 1 no label has half of its group: the largest margin is then no guide to the most frequent one.
    """
    rng = np.random.default_rng(seed)
    shares = ratio ** np.arange(n_members)
    every, group = np.arange(n_rows), rng.integers(0, n_groups, n_rows)
    X, Y = np.zeros((n_rows, n_groups + n_words), np.float32), np.zeros((n_rows, n_groups * n_members), np.float32)
    X[every, group] = 1
    np.put_along_axis(X, n_groups + rng.integers(0, n_words, (n_rows, 3)), 1, axis=1)
    Y[every, group * n_members + rng.choice(n_members, n_rows, p=shares / shares.sum())] = 1
    return Dataset(csr_array(X), csr_array(Y))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_noisy_labels_get_noise_and_clean_ones_none(seed):
    noisy, clean = (tune(drawn_by_lot(ratio, seed), settings()) for ratio in (0.8, 0.0))
    assert noisy[0].train.tau > 0
    assert clean[0].train.tau == 0


# --- stopped and gone on with ------------------------------------------------------------------------------------


@pytest.fixture
def n_tried(monkeypatch):
    """Counts the trials that are run."""
    tried, once = [], tuning.Tuning._try
    monkeypatch.setattr(tuning.Tuning, "_try", lambda *args: tried.append(1) or once(*args))
    return tried


def stop_after(n_pauses):
    asked = []
    return lambda: asked.append(1) or len(asked) >= n_pauses


def test_finished_trials_are_not_run_again(rows, tmp_path, n_tried):
    """However often it is stopped: a start that gets through one trial and a little more goes on from there."""
    whole = tune(rows, settings())
    n_trials = len(n_tried)
    checkpoints, told = Checkpoints(tmp_path / "m"), []
    checkpoints.folder.mkdir()
    n_stops = 0
    while True:
        try:  # five pauses a trial: stopped in the second one
            again = tune(
                rows, settings(threads=1 + n_stops % 2), Safety(checkpoints, stop=stop_after(7), tell=told.append)
            )
            break
        except Interrupted:
            n_stops += 1
    assert n_stops == n_trials - 1
    assert again[1] == whole[1]
    assert replace(again[0].train, threads=1) == whole[0].train
    assert len(n_tried) == n_trials + n_trials + n_stops  # each start but the last ran one in vain
    assert told == []
    assert tune(rows, settings(), Safety(checkpoints))[1] == whole[1]
    assert len(n_tried) == 2 * n_trials + n_stops


def test_a_record_of_something_else_is_of_no_use(rows, tmp_path, n_tried, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "m")
    checkpoints.folder.mkdir()
    tune(rows, settings(), Safety(checkpoints))
    one = rows.rows.copy()
    one.data[0] += 1
    for other, config in (
        (rows._replace(rows=one), settings()),
        (rows, settings(seed=1)),
        (rows, replace(settings(), rows=RowsConfig(bias=0.1))),
        (rows, settings({"prune"}, prune=0.0)),  # nothing is tried for pruning: of the last rung nothing is known
    ):
        n_tried.clear()
        assert tune(other, config, Safety(checkpoints))[1] == tune(other, config)[1]
        assert len(n_tried) == (9 + 9 if "prune" not in config.fixed else 2 + 9)
    monkeypatch.setattr("xmlpreck.__version__", "0")
    n_tried.clear()
    tune(rows, settings(), Safety(checkpoints))
    assert len(n_tried) == 9


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("P@1", "P@2", 1),
        lambda text: text.replace('"n_passes": 5', '"n_passes": 4', 1),
        lambda text: json.dumps({"entries": 3}),
        lambda text: "[" * 10**5,
        lambda text: "\0" * 100,
    ],
    ids=["empty", "cut", "renamed", "changed", "no entries", "nested", "zeros"],
)
def test_a_damaged_record_is_passed_over(rows, tmp_path, n_tried, damage):
    checkpoints, told = Checkpoints(tmp_path / "m"), []
    checkpoints.folder.mkdir()
    safety = Safety(checkpoints, tell=told.append)
    whole = tune(rows, settings(), safety)
    checkpoints.record.write_text(damage(checkpoints.record.read_text()))
    n_tried.clear()
    assert tune(rows, settings(), safety) == whole
    assert len(n_tried) == 9
    assert told == [f"{checkpoints.record}: is damaged: its trials are run again"]


@pytest.mark.parametrize("result", [None, {}, {"n_passes": 5, "history": [], "pruned": []}, [1],
                                    {"n_passes": 5, "history": [{"P@1": float("nan")}], "pruned": []}])  # fmt: skip
def test_a_result_that_is_none_is_found_again(result):
    assert tuning.read_trial({}, result) is None


def test_a_record_that_cannot_be_written_does_not_end_it(rows, tmp_path):
    told = []
    found = tune(rows, settings(), Safety(Checkpoints(tmp_path / "nowhere" / "m"), tell=told.append))
    assert found == tune(rows, settings())
    assert len(told) == 9
    assert all("cannot be written" in text and "tuning goes on" in text for text in told)


# --- what is planned is what is run ------------------------------------------------------------------------------


def planned(found):
    """All of a plan but what the process and the machine have to do with."""
    about = found.to_dict()
    about["parts"] = {name: size for name, size in about["parts"].items() if name not in UNSTABLE}
    return {name: value for name, value in about.items() if name not in ("peak_bytes", "limit_bytes", "pass_seconds")}


UNSTABLE = ("libraries and loaded rows", "more while tuning")


@pytest.mark.parametrize("is_rare", [False, True])
@pytest.mark.parametrize("fixed", [(), ("widen", "prune", "epochs")])
def test_plan_is_of_what_is_done(rows, monkeypatch, is_rare, fixed):
    """With the wider support that the rule will ask for, which no plan knew, and with the trials."""
    monkeypatch.setattr(tuning, "ROWS_SEEN", 10**6 if is_rare else 80)
    config = settings(fixed, widen=False, epochs=2, prune=0.0)
    told = []
    scorer = fit_tuned(rows, config, on_plan=told.append)
    (before,) = told
    assert planned(before) == planned(plan(rows, config, tuned=True))
    assert before.tuning["trials"] == sum(len(rung["trials"]) for rung in scorer.info["tuning"]["rungs"])
    assert before.tuning["rows"] == max(rung["rows"] for rung in scorer.info["tuning"]["rungs"])
    assert before.tuning["passes"] == scorer.info["tuning"]["budget"]
    without = plan(rows, config)
    assert without.tuning is None
    assert (before.n_weights > without.n_weights) == (is_rare and "widen" not in fixed)
    assert (scorer.n_weights > without.n_weights) <= (before.n_weights > without.n_weights)
    after = plan(rows, replace(config, train=replace(config.train, **scorer.info["tuning"]["chosen"])))
    assert planned(before)["n_weights"] == after.n_weights
    assert before.parts["copies"] >= after.parts["copies"]


def test_memory_is_looked_at_before_the_first_trial(rows, n_tried):
    with pytest.raises(OverBudget, match="may be used: give more by --memory"):
        fit_tuned(rows, settings(), safety=Safety(memory=1 << 20))
    with pytest.raises(OverBudget, match="may be used: give more by --memory"):
        plan(rows, settings(), Safety(memory=1 << 20), tuned=True)
    assert n_tried == []


def test_trials_stay_within_the_memory(rows, tmp_path, n_tried):
    """A sample whose trials would not fit is halved until they do; a resumed run has the samples that it began with."""

    def opened():
        made = tuning.Tuning(rows, settings())
        made.meet(survey_of(rows, 500))
        return made

    record, told = Record(tmp_path / "tuning.json"), []
    needs = [opened()._sample(n).peak_bytes(settings().train) for n in (1, 75)]
    assert opened().outline()["rows"] == 75
    assert needs[1] > needs[0]
    # Between the two by far: the memory of the process is part of both, and is not the same every time.
    made = opened()
    peaks = {75: 10**9, 37: 10**8, 18: 10**7}
    made._sample = lambda n_rows: SimpleNamespace(peak_bytes=lambda train: peaks[n_rows])
    assert made.fit_samples(Safety(tell=told.append), record, limit=5 * 10**7) == 10**7
    assert told == ["tuning tries on 18 rows and not 75, to stay within the memory"]
    assert max(rung["rows"] for rung in made_rungs(made)) == 18
    later = opened()
    later.fit_samples(Safety(resume=True, tell=told.append), Record(tmp_path / "tuning.json"), limit=10**12)
    assert later.outline()["rows"] == 18
    fresh = opened()
    fresh.fit_samples(Safety(), Record(tmp_path / "tuning.json"), limit=10**12)
    assert fresh.outline()["rows"] == 75


def made_rungs(made):
    del made._sample
    return made.run(Safety(), Record(None))[1]["rungs"]


@pytest.mark.parametrize(("share", "which"), [(1e-9, "none"), (0.9999, "all")])
def test_a_share_that_holds_nothing_out_is_refused(rows, share, which):
    with pytest.raises(ConfigError, match=f"train.heldout {share:g} of 1,500 rows is {which} of them: give another"):
        fit(rows, settings(heldout=share))


# --- the command line ------------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Trains the demo into a folder; returns its model.json."""
    monkeypatch.chdir(tmp_path)

    def run(name, *words, code=0):
        assert main(["train", "--data", "demo", "--algo", "sgd-avg", "--threads", "1", "--out", name, *words]) == code
        return None if code else json.loads(Path(name, "model.json").read_text())

    return run


def test_training_tunes_unless_told_not_to(trained, capsys):
    about = trained("a")
    assert "tuned in " in capsys.readouterr().out
    chosen = about["tuning"]["chosen"]
    assert set(chosen) == set(tuning.TUNED)
    assert chosen.items() <= about["config"]["train"].items()
    assert len(about["history"]) == chosen["epochs"]
    assert "tuning" not in trained("b", "--no-tune", "--epochs", "1")
    flags = ["--eta", "0.3", "--tau", "0", "--k", "5", "--epochs", "2"]
    assert "tuned in " not in capsys.readouterr().out
    assert set(trained("c", *flags)["tuning"]["chosen"]) >= {"spread", "prune", "decay", "widen"}


def test_a_stopped_run_resumes_with_what_it_chose(trained, monkeypatch):
    """Ctrl-C after the first checkpoint; what --resume ends with is what a run that was left alone ends with."""
    flags = ["--eta", "0.3"]
    whole = trained("whole", *flags)
    assert whole["tuning"]["fixed"] == {"eta": 0.3}
    save, n_tuned, once = Checkpoints.save, [], tuning.Tuning.run
    monkeypatch.setattr(tuning.Tuning, "run", lambda *args: n_tuned.append(1) or once(*args))

    def save_and_stop(self, *state):
        folder = save(self, *state)
        if self.numbers() == [1]:
            signal.raise_signal(signal.SIGINT)
        return folder

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_stop)
        patch.setattr("xmlpreck.train.keeper.SPARED_SECONDS", -1.0)
        trained("parts", *flags, code=128 + signal.SIGINT)
    assert Checkpoints(Path("parts")).numbers() == [2, 1]
    assert len(n_tuned) == 1
    resumed = trained("parts", *flags, "--resume")
    assert len(n_tuned) == 1
    assert timeless(resumed.pop("history")) == timeless(whole.pop("history"))
    for about in (resumed, whole):
        about["sha256"].pop("model.json")  # it has the seconds in it
    assert resumed == whole
    arrays = [{path.name: path.read_bytes() for path in Path(name).glob("*.npy")} for name in ("whole", "parts")]
    assert arrays[0] == arrays[1]
    assert arrays[0]


def test_report_says_how_the_settings_were_chosen(trained):
    pytest.importorskip("matplotlib", reason="needs the extra `report`")
    tuned = trained("a", "--k", "5", "--epochs", "2")
    trained("b", "--no-tune", "--epochs", "1")
    assert main(["report", "a", "b", "-o", "page.html"]) == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "How the settings were chosen" in page
    assert f"scored on {tuned['tuning']['heldout_rows']:,} held-out rows" in page
    assert "Not tuned: " in page


def test_sweep_does_not_tune(trained, capsys):
    trained("a", "--sweep", "k=1,3", "--tune", code=2)
    assert "all others being equal: leave out --tune" in capsys.readouterr().err


def test_data_of_the_same_name_do_not_share_a_folder(tmp_path, monkeypatch, capsys):
    """x1/train.txt and x2/train.txt are both called train."""
    monkeypatch.chdir(tmp_path)
    places = []
    for name, seed in (("x1", 1), ("x2", 2)):
        places.append(tmp_path / name / "train.txt")
        places[-1].parent.mkdir()
        write_repository_text(places[-1], make_dataset(60, 40, 12, features_per_row=6, labels_per_row=2, seed=seed))
    words = ["train", "--no-tune", "--epochs", "1", "--threads", "1", "--data"]
    assert main([*words, "x1/train.txt"]) == 0
    before = (tmp_path / "runs" / "train" / "row_weights.npy").read_bytes()
    assert main([*words, "x1/train.txt"]) == 0  # of the same data it is replaced
    capsys.readouterr()
    assert main([*words, "x2/train.txt"]) == 2
    told = capsys.readouterr()
    assert told.out == ""  # refused before any work
    assert str(places[0]) in told.err
    assert str(places[1]) in told.err
    assert told.err.strip().endswith("choose a folder by --out")
    assert (tmp_path / "runs" / "train" / "row_weights.npy").read_bytes() == before
    assert main([*words, "x2/train.txt", "--sweep", "k=1,2", "--heldout", "0.2"]) == 0
    assert main([*words, "x1/train.txt", "--sweep", "k=1,2", "--heldout", "0.2"]) == 2
    assert main([*words, "x2/train.txt", "--out", "runs/train"]) == 0
    assert (tmp_path / "runs" / "train" / "row_weights.npy").read_bytes() != before


def test_plan_knows_the_words_of_train(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = []
    for words in ([], ["--tune"], ["--no-tune"]):
        assert main(["plan", "--data", "demo", "--algo", "sgd-avg", "--threads", "1", "--json", *words]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [one["tuning"] is None for one in found] == [False, False, True]
    assert found[0]["tuning"] == found[1]["tuning"]
    assert main(["plan", "--data", "demo", "--algo", "sgd-avg", "--threads", "1"]) == 0
    assert "tuning 9 trials on at most " in capsys.readouterr().out
