"""The trainer against the slow reference: weights, averages, facts; and the same bits for any number of threads."""

import numpy as np
import pytest
import reference
from scipy.sparse import csr_array

from xmlpreck.config import ALGORITHMS, RowsConfig, RunConfig, TrainConfig
from xmlpreck.formats import Dataset
from xmlpreck.kernels import linear
from xmlpreck.model import all_sparse, kernel_rows
from xmlpreck.train import RULES, Trainer, TrainingError, fit, split_heldout


def draw_rows(seed, n_rows=70, n_features=40, n_labels=90, density=0.2, most_labels=9):
    """Dense (X, Y) with rows without labels, rows without features, a label of all rows and labels of none."""
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((n_rows, n_features)) < density, rng.normal(size=(n_rows, n_features)), 0)
    X = X.astype(np.float32).astype(np.float64)  # values as the kernels have them
    Y = np.zeros((n_rows, n_labels), bool)
    for i in range(n_rows):
        popular = rng.integers(0, n_labels, 2 * most_labels) % rng.integers(1, n_labels - 5)
        Y[i, popular[: rng.integers(0, most_labels + 1)]] = True
    Y[:, 0] = True
    Y[3] = False
    X[5] = 0
    return X, Y


def trained(X, Y, config, dtype=np.float64):
    rows = kernel_rows(csr_array(X.astype(np.float32)), csr_array(Y.astype(np.float32)))
    trainer = Trainer(X.shape[1], Y.shape[1], config, dtype)
    trainer.grow(rows)
    return trainer, [trainer.run_pass(rows) for _ in range(config.epochs)]


def dense(weights, mask=None):
    sparse = all_sparse(weights, mask)
    shape = (len(sparse.dense_of), sparse.dense_rows.shape[1])
    return csr_array((sparse.values, sparse.labels, sparse.offsets), shape=shape).toarray()


def orders(config, n_rows):
    return [np.random.default_rng([config.seed, e]).permutation(n_rows) for e in range(1, config.epochs + 1)]


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize(
    "settings",
    [
        {"k": 3, "eta": 0.3},
        {"k": 1, "eta": 1.0, "batch_rows": 1, "average_from": 2},
        {"k": 5, "eta": 0.7, "decay": "sqrt", "batch_rows": 7},
        {"k": 4, "eta": 0.5, "radius": 1.5, "batch_rows": 4},
        {"k": 2, "eta": 1.0, "radius": 0.6, "batch_rows": 2},
    ],
)
def test_weights_equal_the_reference(algo, settings):
    config = TrainConfig(algo=algo, epochs=2, seed=3, threads=2, **settings)
    X, Y = draw_rows(seed=len(algo))
    trainer, facts = trained(X, Y, config)
    slow = reference.train(
        X, Y, rule=algo, k=config.k, orders=orders(config, len(X)), batch_rows=config.batch_rows, eta=config.eta,
        decay=config.decay, radius=config.radius, average_from=config.average_from,
    )  # fmt: skip
    # float64 throughout: what is left is the order of sums
    scale = trainer.learner.clock[linear.SCALE]
    np.testing.assert_allclose(dense(trainer.learner.weights) * scale, slow.last, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dense(trainer.weights()), slow.average, rtol=1e-9, atol=1e-12)
    n_labelled = np.count_nonzero(Y.any(axis=1))
    np.testing.assert_allclose([f.surrogate * n_labelled for f in facts], slow.surrogate, rtol=1e-9)
    assert [f.mistakes * n_labelled for f in facts] == pytest.approx(slow.mistakes)
    assert [f.updated for f in facts] == slow.updated
