"""Members: the weights are the mean of several models, each trained from the start."""

import numpy as np
import pytest
import reference
from helpers import as_dataset, dense, draw_rows, orders

from xmlpreck.config import BOTH, SGD_SHARE, ConfigError, RowsConfig, RunConfig, TrainConfig
from xmlpreck.data.survey import survey_of
from xmlpreck.kernels.arrays import no_weights
from xmlpreck.train import PreparedRows, Trainer, fit, update

EPOCHS = 3


def trained(X, Y, config, relevance=None):
    """Train in float64 from the centroids."""
    rows = PreparedRows(
        as_dataset(X, Y if relevance is None else relevance), RowsConfig(unit_norm=False, bias=0), 10**6
    )
    trainer = Trainer(no_weights(X.shape[1], Y.shape[1], np.float64), config)
    trainer.grow(rows)
    trainer.start_at_centroids(rows, survey_of(rows.source, 17).relevance_sums)
    for _ in range(config.n_passes):
        trainer.run_pass(rows)
    return dense(trainer.weights())


def centroids(X, relevance):
    return X.T @ relevance / (relevance.sum(axis=0) + 1)


@pytest.mark.parametrize(
    "train", [{}, {"tau": 0.3, "spread": True}, {"average_from": 1, "decay": "constant", "eta": 0.2}]
)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_mean_of_two_references(train, is_weighted):
    config = TrainConfig(**{"algo": BOTH, "epochs": EPOCHS, "seed": 3, "threads": 2, "k": 3, "eta": 0.4} | train)
    X, Y = draw_rows(seed=1, n_labels=90)
    relevance = Y * np.random.default_rng(2).choice([0.5, 1.0, 2.0], Y.shape) if is_weighted else None
    found = trained(X, Y, config, relevance)
    start = centroids(X, Y if relevance is None else relevance)
    both = {
        "k": config.k, "batch_rows": config.batch_rows, "decay": config.decay, "average_from": config.average_from,
        "start": start, "relevance": relevance, "seed": config.seed,
    }  # fmt: skip
    passes = orders(TrainConfig(epochs=2 * EPOCHS, seed=3), len(X))

    def noise(number, row):
        return reference.gumbel_noise(config.seed, config.tau, EPOCHS + number, int(row), Y.shape[1])

    hinge = reference.train(X, Y, rule="hinge", orders=passes[:EPOCHS], eta=config.eta, **both)
    ranking = reference.train(
        X,
        Y,
        rule="sgd-avg",
        orders=passes[EPOCHS:],
        eta=SGD_SHARE * config.eta,
        spread=config.spread,
        noise=noise,
        **both,
    )
    np.testing.assert_allclose(found, (hinge.average + ranking.average) / 2, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("algo", ["hinge", "sgd-max", "perceptron-avg"])
def test_the_mean_of_one_rule_in_several_orders(algo):
    config = TrainConfig(algo=algo, epochs=2, members=3, seed=3, threads=2, k=3, eta=0.4)
    X, Y = draw_rows(seed=1, n_labels=90)
    found = trained(X, Y, config)
    start = centroids(X, Y) if config.has_eta else np.zeros((X.shape[1], Y.shape[1]))
    passes = orders(TrainConfig(epochs=config.n_passes, seed=3), len(X))
    means = [
        reference.train(
            X, Y, rule=algo, orders=passes[first : first + 2], eta=config.eta, k=config.k, decay=config.decay,
            batch_rows=config.batch_rows, average_from=config.average_from, start=start, seed=config.seed,
            passes_before=first,
        ).average
        for first in (0, 2, 4)
    ]  # fmt: skip
    np.testing.assert_allclose(found, np.mean(means, axis=0), rtol=1e-8, atol=1e-11)


def test_members_have_the_same_bits_for_any_number_of_threads():
    X, Y = draw_rows(seed=5)
    one, two = (
        fit(as_dataset(X, Y), RunConfig(train=TrainConfig(algo="hinge", epochs=2, members=2, threads=threads)))
        for threads in (1, 3)
    )
    assert all(np.array_equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))


def test_a_model_of_both_is_updated_by_the_last():
    X, Y = draw_rows(seed=4)
    config = RunConfig(train=TrainConfig(algo=BOTH, epochs=1, eta=0.8, tau=0.1))
    model = fit(as_dataset(X, Y), config)
    alone = RunConfig(train=TrainConfig(algo="sgd-avg", epochs=1, eta=0.8 * SGD_SHARE, tau=0.1))
    found, expected = (update(model, as_dataset(X, Y), each).weights for each in (config, alone))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_without_averaging_there_is_no_mean():
    with pytest.raises(ConfigError, match=r"train.average_from must be 1 or more for hinge\+sgd-avg, but is 0"):
        TrainConfig(algo=BOTH, average_from=0)
    with pytest.raises(ConfigError, match=r"must be 1 or more with several train.members, but is 0"):
        TrainConfig(members=2, average_from=0)
