"""Self-tuning and the start at centroids: the formula, the same choice every time, what is fixed, what is kept."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import reference
from scipy.sparse import csr_array
from test_checkpoint import timeless
from test_train import as_dataset, bits, dense, draw_rows

from xmlpreck import tables
from xmlpreck.cli import main
from xmlpreck.config import ALGORITHMS, RowsConfig, RunConfig, TrainConfig
from xmlpreck.formats import Dataset
from xmlpreck.kernels import linear
from xmlpreck.kernels.arrays import no_weights
from xmlpreck.shards import write_shards
from xmlpreck.synthetic import make_dataset
from xmlpreck.train import Checkpoints, PreparedRows, Trainer, run, tune, tuning

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
    last = dense(trainer.learner.weights) * trainer.learner.clock[linear.SCALE]
    np.testing.assert_allclose(last, slow.last, rtol=1e-9, atol=1e-12)
    expected = slow.average if config.average_from else slow.last
    np.testing.assert_allclose(dense(trainer.weights()), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_change_no_bit_of_the_start_and_what_follows(dtype):
    X, Y = draw_rows(seed=4, n_rows=200, n_labels=150)
    found = []
    for threads in (1, 2):
        trainer, rows = started(X, Y, TrainConfig(epochs=2, threads=threads, block_rows=64), dtype)
        found.append([bits(trainer)])
        trainer.run_pass(rows)
        found[-1].append(bits(trainer))
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


# --- the choice ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows():
    return make_dataset(1500, 300, 40, features_per_row=15, labels_per_row=3, seed=5)


def settings(fixed=(), **train):
    return RunConfig(train=TrainConfig(**{"threads": 1} | train), fixed=frozenset(fixed))


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
    for passes, budget in ((6, 6), (1e6, tuning.MOST_BUDGET)):
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
    assert tune(rows, settings(GIVEN, **GIVEN)) is None
    assert tune(rows, settings({*GIVEN} - {"k"}, **GIVEN)) is not None


def test_too_few_rows(rows):
    assert tune(rows.read(0, tuning.LEAST_ROWS - 1), settings()) is None
    assert tune(rows.read(0, tuning.LEAST_ROWS), settings()) is not None


def test_a_pause_can_stop_it(rows):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(rows, settings(), stop)


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


# --- the command line ------------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Trains the demo into a folder; returns its model.json."""
    monkeypatch.chdir(tmp_path)

    def run(name, *words, code=0):
        assert main(["train", "--data", "demo", "--threads", "1", "--out", name, *words]) == code
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
    assert "tuning" not in trained("c", *flags)
    assert "tuned in " not in capsys.readouterr().out


def test_a_stopped_run_resumes_with_what_it_chose(trained, monkeypatch):
    """Ctrl-C after the first checkpoint; what --resume ends with is what a run that was left alone ends with."""
    flags = ["--eta", "0.3"]
    whole = trained("whole", *flags)
    assert whole["tuning"]["fixed"] == {"eta": 0.3}
    save, n_tuned = Checkpoints.save, []
    monkeypatch.setattr("xmlpreck.train.tune", lambda *args, **more: n_tuned.append(1) or tune(*args, **more))

    def save_and_stop(self, *state):
        folder = save(self, *state)
        if self.numbers() == [1]:
            signal.raise_signal(signal.SIGINT)
        return folder

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_stop)
        patch.setattr(run, "SPARED_SECONDS", -1.0)
        trained("parts", *flags, code=128 + signal.SIGINT)
    assert Checkpoints(Path("parts")).numbers() == [2, 1]
    assert len(n_tuned) == 1
    resumed = trained("parts", *flags, "--resume")
    assert len(n_tuned) == 1
    assert timeless(resumed.pop("history")) == timeless(whole.pop("history"))
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
