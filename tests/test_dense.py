"""Rows that share many features, such as embeddings: products of a batch against single rows and the slow reference."""

import numpy as np
import pytest
import reference
from helpers import as_dataset, dense, orders, trainer_bits

from xmlpreck.config import RowsConfig, RunConfig, TrainConfig
from xmlpreck.kernels import bfloat
from xmlpreck.kernels.arrays import BLOCK, SCALE, new_work, no_weights, sparse_weights
from xmlpreck.kernels.dense import MIN_SHARED, TILE_ROWS
from xmlpreck.kernels.screening import MIN_ROWS, new_screen, predict_screened
from xmlpreck.model import Model, kernel_rows, lay_out, prepare_rows
from xmlpreck.train import PreparedRows, Trainer, fit


def draw_mixed(seed, n_rows=70, n_sparse=12, n_dense=MIN_SHARED + 5, n_labels=90):
    """Rows that have few of the first features and all of the last; the labels of some are none."""
    rng = np.random.default_rng(seed)
    words = np.where(rng.random((n_rows, n_sparse)) < 0.2, rng.normal(size=(n_rows, n_sparse)), 0.0)
    X = np.hstack([words, rng.normal(size=(n_rows, n_dense))]).astype(np.float32)
    return X, rng.random((n_rows, n_labels)) < 0.04


def trained(X, Y, config, dtype=np.float64):
    rows = PreparedRows(as_dataset(X, Y), RowsConfig(unit_norm=False, bias=0), config.block_rows)
    trainer = Trainer(no_weights(X.shape[1], Y.shape[1], dtype), config)
    trainer.grow(rows)
    for _ in range(config.epochs):
        trainer.run_pass(rows)
    return trainer


def model_of(weights, config):
    """A model of dense weights (n_features, n_labels)."""
    n_features, n_labels = weights.shape
    offsets = np.arange(n_features + 1) * n_labels
    labels = np.tile(np.arange(n_labels, dtype=np.int32), n_features)
    return Model(lay_out(sparse_weights(offsets, labels, weights.reshape(-1), n_labels)), config)


@pytest.mark.parametrize("algo", ["hinge", "sgd-avg", "perceptron-max"])
@pytest.mark.parametrize("settings", [{"batch_rows": 32, "radius": 1.5}, {"batch_rows": 5}, {"batch_rows": 1}])
def test_weights_equal_the_reference(algo, settings):
    config = TrainConfig(algo=algo, epochs=2, k=3, eta=0.1, average_from=1, threads=2, **settings)
    X, Y = draw_mixed(seed=len(algo))
    trainer = trained(X, Y, config)
    slow = reference.train(
        X.astype(np.float64), Y, rule=algo, k=config.k, orders=orders(config, len(X)), batch_rows=config.batch_rows,
        eta=config.eta, decay=config.decay, radius=config.radius, average_from=config.average_from,
    )  # fmt: skip
    scale = trainer.learner.clock[SCALE]
    np.testing.assert_allclose(dense(trainer.learner.weights) * scale, slow.last, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dense(trainer.weights()), slow.average, rtol=1e-9, atol=1e-12)


def test_threads_do_not_change_the_bits():
    X, Y = draw_mixed(seed=1, n_rows=200)
    config = TrainConfig(algo="sgd-avg", epochs=3, k=3, tau=0.1, widen=True)
    bits = [trainer_bits(trained(X, Y, TrainConfig(**vars(config) | {"threads": n}), np.float32)) for n in (1, 2, 5)]
    assert bits[0] == bits[1] == bits[2]


@pytest.mark.parametrize("n_labels", [1, 63, 64, 130])
def test_scores_depend_on_the_row_alone(n_labels):
    """A product has the bits of one row at a time, whatever rows are beside it and however many threads there are."""
    X, Y = draw_mixed(seed=2, n_rows=2 * TILE_ROWS + 9, n_labels=n_labels)
    Y[0] = True
    model = fit(as_dataset(X, Y), RunConfig(train=TrainConfig(epochs=2, threads=1)))
    k = min(5, n_labels)
    top = model.predict_topk(X, k)
    single = [model.predict_one(X[i : i + 1], k) for i in range(len(X))]
    assert np.array_equal(top.scores, [one.scores for one in single])
    assert np.array_equal(top.labels, [one.labels for one in single])
    for part in (slice(3, 20), slice(TILE_ROWS - 1, TILE_ROWS + 5), slice(5, 6)):
        some = model.predict_topk(X[part], k, n_threads=2)
        assert np.array_equal(some.scores, top.scores[part])
        assert np.array_equal(some.labels, top.labels[part])
    everything = model.decision_function(X)
    assert np.array_equal(np.take_along_axis(everything, top.labels, axis=1), top.scores)


def test_rows_that_share_fewer_features_are_scored_alone():
    """One row without the last features in the same call: all have the bits that they have by themselves."""
    X, Y = draw_mixed(seed=3)
    model = fit(as_dataset(X, Y), RunConfig(train=TrainConfig(epochs=2, threads=1)))
    X[7, -3:] = 0
    top = model.predict_topk(X, 3)
    assert np.array_equal(top.scores, [model.predict_one(X[i : i + 1], 3).scores for i in range(len(X))])


def test_bonus_bars_labels_in_a_product():
    X, Y = draw_mixed(seed=4)
    model = fit(as_dataset(X, Y), RunConfig(train=TrainConfig(epochs=1, threads=1)))
    bonus = np.zeros(Y.shape[1], np.float32)
    bonus[model.predict_topk(X, 1).labels[:, 0]] = -np.inf
    top = model.predict_topk(X, 3, bonus=bonus)
    assert np.isfinite(bonus[top.labels]).all()


def test_screened_labels_are_those_of_single_rows():
    """Bounds by integers miss no label: lengths from 1e-30 to 1e4, equal labels, labels and rows of zeros, large k."""
    rng = np.random.default_rng(6)
    n_labels, n_dense = 3 * BLOCK + 5, MIN_SHARED + 4
    W = rng.normal(size=(n_dense, n_labels)) * 10.0 ** rng.integers(-30, 5, n_labels)
    W[:, 10:40] = W[:, 9:10]  # equal scores: the lower label comes first
    W[:, 50:60] = 0
    weights = np.ascontiguousarray(W, np.float32)
    bfloat.round_all(weights)
    X = rng.normal(size=(MIN_ROWS + 3, n_dense)).astype(np.float32)
    X[3] *= 1e-30
    X[4] *= 1e30
    bonus = rng.normal(size=n_labels).astype(np.float32)
    bonus[:5] = -np.inf
    model = model_of(weights, RowsConfig(unit_norm=False, bias=0))
    for k in (1, 5, n_labels):
        for given in (None, bonus):
            top = model.predict_topk(X, k, bonus=given, n_threads=2)
            single = [model.predict_one(X[i : i + 1], k, given) for i in range(len(X))]
            assert np.array_equal(top.labels, [one.labels for one in single])
            assert np.array_equal(top.scores, [one.scores for one in single])


def test_few_labels_are_scored_exactly():
    """Where most labels are far from the best, integers keep them from being scored."""
    rng = np.random.default_rng(7)
    n_labels, n_dense = 40 * BLOCK, 64
    weights = rng.normal(size=(n_dense, n_labels)).astype(np.float32)
    X = rng.normal(size=(MIN_ROWS, n_dense)).astype(np.float32)
    bfloat.round_all(weights)
    model = model_of(weights, RowsConfig(unit_norm=False, bias=0))
    rows = kernel_rows(prepare_rows(X, model.rows))
    work, top = new_work(n_labels), (np.full((MIN_ROWS, 5), -1, np.int32), np.full((MIN_ROWS, 5), -np.inf, np.float32))
    screen = new_screen(MIN_ROWS, False, n_dense, n_labels // BLOCK, top[1])
    n_scored = predict_screened(rows, 0, MIN_ROWS, n_dense, model.weights, np.zeros(0, np.float32), work, screen, *top)
    assert n_scored < 0.06 * MIN_ROWS * n_labels
