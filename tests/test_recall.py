"""Remembered negatives: later passes score a row's labels and its hardest negatives of the second pass, no others."""

import numpy as np
import pytest
import reference
from helpers import as_dataset, dense, draw_rows, orders

from xmlpreck.config import BOTH, RowsConfig, RunConfig, TrainConfig
from xmlpreck.data.survey import survey_of
from xmlpreck.data.synthetic import make_dataset
from xmlpreck.kernels import marks, recall, scoring
from xmlpreck.kernels.arrays import no_weights, sparse_weights
from xmlpreck.model import layout
from xmlpreck.train import PreparedRows, Trainer, facts, fit, tune, update
from xmlpreck.train.trainer import pass_settings


def trained(X, Y, config, dtype=np.float64):
    rows = PreparedRows(as_dataset(X, Y), RowsConfig(unit_norm=False, bias=0), config.block_rows)
    trainer = Trainer(no_weights(X.shape[1], Y.shape[1], dtype), config)
    trainer.grow(rows)
    return trainer, [trainer.run_pass(rows) for _ in range(config.n_passes)]


def bits(model):
    return [array.tobytes() for array in model.weights]


@pytest.mark.parametrize("share", [0, 3, 10**6], ids=["all sparse", "both", "all dense"])
@pytest.mark.parametrize(
    "settings",
    [
        {"algo": "hinge", "remember": 20},
        {"algo": "hinge", "remember": 5, "negatives": 40},
        {"algo": "sgd-avg", "remember": 3, "tau": 0.5},
        {"algo": "sgd-max", "remember": 4, "spread": True},
        {"algo": "perceptron-avg", "remember": 2, "radius": 1.5},
        {"algo": "sgd-avg", "remember": 4, "widen": True},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_weights_equal_the_reference(monkeypatch, settings, share):
    monkeypatch.setattr(layout, "DENSE_SHARE", share)
    config = TrainConfig(**{"epochs": 4, "k": 3, "eta": 0.3, "batch_rows": 8, "threads": 2, "seed": 5} | settings)
    X, Y = draw_rows(seed=21, n_labels=60, density=0.1)
    X = np.abs(X)  # so that many labels have a positive score
    trainer, facts = trained(X, Y, config)

    def noise(number, row):
        return reference.gumbel_noise(config.seed, config.tau, number, int(row), Y.shape[1])

    same = {
        "rule": config.algo, "k": 3, "orders": orders(config, len(X)), "batch_rows": 8, "eta": 0.3, "average_from": 2,
        "radius": config.radius, "noise": noise if config.tau else None, "spread": config.spread, "seed": config.seed,
        "widened": 3 if config.widen else None, "n_hard": config.negatives,
    }  # fmt: skip
    slow, all_labels = (reference.train(X, Y, **same, remember=n) for n in (config.remember, 0))
    np.testing.assert_allclose(dense(trainer.weights()), slow.average, rtol=1e-8, atol=1e-11)
    assert [f.updated for f in facts] == slow.updated
    n_labelled = Y.any(axis=1).sum()
    np.testing.assert_allclose([f.surrogate * n_labelled for f in facts], slow.surrogate, rtol=1e-8)
    assert not np.allclose(slow.average, all_labels.average, rtol=1e-3)  # what is remembered matters here


@pytest.mark.parametrize("algo", ["hinge", "sgd-avg", BOTH])
def test_same_bits_for_any_threads_and_blocks(algo):
    X, Y = draw_rows(seed=4, n_rows=200, n_labels=150)
    train = {"algo": algo, "epochs": 4, "remember": 10, "tau": 0.0 if algo == "hinge" else 0.1}
    models = [fit(as_dataset(X, Y), RunConfig(train=TrainConfig(**train, threads=threads))) for threads in (1, 2, 3, 8)]
    assert [bits(model) for model in models[1:]] == [bits(models[0])] * 3
    blocks = [fit(as_dataset(X, Y), RunConfig(train=TrainConfig(**train, block_rows=64, threads=n))) for n in (1, 2)]
    assert bits(blocks[0]) == bits(blocks[1])


def test_every_member_remembers_its_own_negatives():
    """The second pass of each looks at all labels, and what the member before it remembered is forgotten."""
    for algo, of_second in (("hinge", [0, 7, 0, 0]), (BOTH, [0] * 4)):
        config = TrainConfig(algo=algo, epochs=4, members=2 if algo == "hinge" else 1, remember=7)
        seen = [pass_settings(config, number, 100, np.zeros(0)) for number in range(1, 9)]
        assert [each.n_remembered for each in seen] == [0, 7, 0, 0, *of_second]
        assert [each.recalls for each in seen[2:6]] == [True, True, False, False]
        assert seen[7].recalls == (algo == "hinge")
    assert not any(pass_settings(TrainConfig(remember=7, epochs=2), n, 100, np.zeros(0)).n_remembered for n in (1, 2))
    X, Y = draw_rows(seed=1, n_labels=90)
    found, _ = trained(X, Y, TrainConfig(algo="sgd-avg", members=2, epochs=3, k=3, eta=0.4, seed=3, remember=5))
    passes = orders(TrainConfig(epochs=6, seed=3), len(X))
    means = [
        reference.train(
            X, Y, rule="sgd-avg", orders=passes[first : first + 3], eta=0.4, k=3, batch_rows=32, average_from=2,
            remember=5, start=X.T @ Y / (Y.sum(axis=0) + 1) if first else None,
        ).average
        for first in (0, 3)
    ]  # fmt: skip
    np.testing.assert_allclose(dense(found.weights()), np.mean(means, axis=0), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("n_wanted", [1, 2, 40, 400])
def test_scores_of_marked_labels_have_the_bits_of_all(n_wanted):
    """Of dense rows, of sparse rows that are searched for few labels, and of those that are read for many."""
    rng = np.random.default_rng(3)
    n_labels = 5000
    density = rng.choice([0.002, 0.05, 0.3], (30, 1))
    matrix = rng.normal(size=(30, n_labels)).astype(np.float32) * (rng.random((30, n_labels)) < density)
    features, labels = np.nonzero(matrix)
    offsets = np.searchsorted(features, np.arange(31))
    weights = layout.lay_out(sparse_weights(offsets, labels.astype(np.int32), matrix[features, labels], n_labels))
    lengths = np.diff(offsets)[weights.dense_of < 0]
    assert (lengths < marks.LONG_ROW).any()
    assert (lengths > marks.LONG_ROW).any()
    assert (weights.dense_of >= 0).any()
    wanted = np.sort(rng.choice(n_labels, n_wanted, replace=False)).astype(np.int32)
    x, ids = rng.normal(size=30).astype(np.float32), np.arange(30, dtype=np.int32)
    one, other, room = np.zeros(n_wanted, np.float32), np.zeros(n_wanted, np.float32), marks.new_marks(n_labels)
    scoring.score_labels(ids, x, weights, wanted, one)
    recall.score_marked(ids, x, weights, wanted, n_wanted, other, room)
    np.testing.assert_array_equal(one, other)
    assert one.any()
    assert not room.words.any()


def test_facts_choose_it_where_labels_are_many(monkeypatch):
    rows = make_dataset(1100, 90, 80, features_per_row=60, labels_per_row=6, seed=5)
    assert tune(rows, RunConfig())[0].train.remember == 0
    monkeypatch.setattr(facts, "MANY_MORE", 0.5)
    per_row = facts.labels_per_row(survey_of(rows, 1100))
    assert tune(rows, RunConfig())[0].train.remember == round(facts.REMEMBER_A_LABEL * per_row)
    assert tune(rows, RunConfig(train=TrainConfig(effort="quick")))[0].train.remember == 0  # two passes
    vague = make_dataset(1100, 90, 80, features_per_row=9, labels_per_row=6, seed=5)
    assert tune(vague, RunConfig())[0].train.remember == 0  # short rows with many labels
    short = make_dataset(1100, 90, 80, features_per_row=9, labels_per_row=2, seed=5)
    assert tune(short, RunConfig())[0].train.remember == facts.MIN_REMEMBERED
    assert tune(short, RunConfig(train=TrainConfig(effort="quick")))[0].train.remember == 0  # SGD@k-avg alone
    given = RunConfig(train=TrainConfig(remember=0), fixed=frozenset({"remember"}))
    assert tune(rows, given)[0].train.remember == 0
    assert tune(rows, RunConfig(rows=RowsConfig(n_dense=90)))[0].train.remember == 0


def test_an_update_looks_at_all_labels():
    """New rows have nothing to recall."""
    X, Y = draw_rows(seed=4)
    found = [
        update(fit(as_dataset(X, Y), config), as_dataset(X, Y), config)
        for config in (RunConfig(train=TrainConfig(algo="hinge", epochs=2, remember=n)) for n in (0, 5))
    ]
    assert bits(found[0]) == bits(found[1])
