"""Relevance weights: values of Dataset.labels other than 1 multiply the steps of a row's labels."""

import numpy as np
import pytest
import reference
from helpers import as_dataset, dense, draw_rows, orders, trainer_bits
from scipy.sparse import csr_array

from xmlpreck import metrics
from xmlpreck.config import InputError, RowsConfig, RunConfig, TrainConfig
from xmlpreck.data.formats import Dataset, TopK
from xmlpreck.data.formats.splits import write_split
from xmlpreck.data.shards import write_shards
from xmlpreck.data.survey import Survey, survey_of
from xmlpreck.kernels.arrays import no_weights
from xmlpreck.kernels.rules import RULES
from xmlpreck.train import PreparedRows, Trainer, fit

AS_THEY_ARE = RowsConfig(unit_norm=False, bias=0.0)


def draw_relevance(Y, seed=0):
    """Weights that float32 holds exactly, 1 among them."""
    return np.where(Y, np.random.default_rng(seed).integers(1, 13, Y.shape) / 4, 0.0)


def trained(X, relevance, config, dtype=np.float64):
    rows = PreparedRows(as_dataset(X, relevance), AS_THEY_ARE, config.block_rows)
    trainer = Trainer(no_weights(X.shape[1], relevance.shape[1], dtype), config)
    trainer.grow(rows)
    survey = survey_of(rows.source, config.block_rows)
    trainer.favour_tail(survey.label_counts, survey.n_rows)
    trainer.start_at_centroids(rows, survey.relevance_sums)
    return trainer, [trainer.run_pass(rows) for _ in range(config.epochs)]


@pytest.mark.parametrize("algo", sorted(RULES))
@pytest.mark.parametrize("favour", ["top", "tail"])
@pytest.mark.parametrize("settings", [{"k": 3}, {"k": 5, "spread": True, "batch_rows": 1}, {"k": 2, "radius": 1.5}])
def test_weights_equal_the_reference(algo, favour, settings):
    settings = settings | ({"spread": False} if algo == "hinge" else {})
    config = TrainConfig(algo=algo, favour=favour, epochs=2, eta=0.3, centroid=0.0, average_from=1, **settings)
    X, Y = draw_rows(seed=len(algo))
    relevance = draw_relevance(Y)
    trainer, facts = trained(X, relevance, config)
    label_weights = trainer.label_weights if favour == "tail" else None
    slow = reference.train(
        X, Y, rule=algo, k=config.k, orders=orders(config, len(X)), batch_rows=config.batch_rows, eta=config.eta,
        radius=config.radius, spread=config.spread, label_weights=label_weights, relevance=relevance,
        seed=config.seed,
    )  # fmt: skip
    np.testing.assert_allclose(dense(trainer.weights()), slow.average, rtol=1e-9, atol=1e-12)
    assert [f.updated for f in facts] == slow.updated


def test_centroids_weigh_rows_by_relevance():
    """w_l = sum of r x / (sum of r + 1) over the rows x of the label, each with its relevance r."""
    X, Y = draw_rows(seed=7)
    relevance = draw_relevance(Y)
    rows = PreparedRows(as_dataset(X, relevance), AS_THEY_ARE, 17)
    trainer = Trainer(no_weights(X.shape[1], Y.shape[1], np.float64), TrainConfig())
    trainer.grow(rows)
    trainer.start_at_centroids(rows, survey_of(rows.source, 17).relevance_sums)
    expected = X.T @ relevance / (relevance.sum(axis=0) + 1)
    np.testing.assert_allclose(dense(trainer.learner.weights), expected, rtol=1e-9, atol=1e-12)


def test_equal_relevance_is_a_longer_step():
    """Relevance 2 everywhere gives the bits of twice the eta; relevance 1 those of no weights."""
    X, Y = draw_rows(seed=4)
    config = TrainConfig(epochs=2, eta=0.25, centroid=0.0, threads=2)
    twice, _ = trained(X, 2.0 * Y, config, np.float32)
    longer, _ = trained(X, 1.0 * Y, TrainConfig(epochs=2, eta=0.5, centroid=0.0), np.float32)
    assert trainer_bits(twice) == trainer_bits(longer)
    assert trainer_bits(twice) != trainer_bits(trained(X, 1.0 * Y, config, np.float32)[0])


@pytest.mark.parametrize(
    "settings", [{}, {"favour": "tail", "algo": "sgd-avg", "tau": 0.3}, {"block_rows": 64, "widen": True}]
)
def test_same_bits_for_any_number_of_threads(settings):
    X, Y = draw_rows(seed=4, n_rows=200, n_labels=150)
    relevance = draw_relevance(Y)
    relevance[:64] = Y[:64]  # a block of ones among others
    runs = [trained(X, relevance, TrainConfig(epochs=3, threads=n, **settings), np.float32)[0] for n in (1, 2, 3)]
    assert trainer_bits(runs[0]) == trainer_bits(runs[1]) == trainer_bits(runs[2])


def test_fit_takes_relevance_and_says_so_in_its_hash():
    X, Y = draw_rows(seed=4)
    plain, weighted = (fit(as_dataset(X, Z), RunConfig()) for Z in (Y, draw_relevance(Y)))
    assert weighted.info["data"]["n_rows"] == plain.info["data"]["n_rows"]
    assert weighted.info["data"]["sha256"] != plain.info["data"]["sha256"]
    assert (dense(weighted.weights) != dense(plain.weights)).any()


def test_the_hash_depends_on_no_blocks():
    X, Y = draw_rows(seed=4)
    relevance = np.where(np.arange(len(Y))[:, None] < 30, 1.0, 2.5) * Y
    hashes = {survey_of(as_dataset(X, relevance), n).to_dict()["sha256"] for n in (1, 7, 1000)}
    assert len(hashes) == 1
    assert survey_of(as_dataset(X, Y), 7).to_dict()["sha256"] not in hashes


def test_the_hash_of_ones_is_as_it_was():
    """Models of older versions know their rows by it."""
    survey = Survey()
    survey.add(Dataset(csr_array(np.eye(2, 3, dtype=np.float32)), csr_array(np.eye(2, 2, dtype=np.float32))))
    assert survey.to_dict()["sha256"] == "1bce2ee9e3c36bdf049237854278923ec28eb9d3eba19034cb27b9a6143bf7f8"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-2.0, "row 2 has relevance -2.0 for label 1: it must be a positive number"),
        (np.nan, "row 2 has a value that is not a finite number: nan for label 1"),
        (np.inf, "row 2 has a value that is not a finite number: inf for label 1"),
    ],
)
def test_other_relevance_is_refused(value, said):
    Y = np.eye(4, 3)
    Y[2, 1] = value
    with pytest.raises(InputError, match=said):
        fit(Dataset(csr_array(np.ones((4, 2), np.float32)), csr_array(Y)), RunConfig())


def test_metrics_count_any_stored_label():
    Y = csr_array(np.array([[0.5, 0, 3], [0, 1, 0]]))
    top = TopK(np.array([[0, 2], [0, 1]], np.int32), np.zeros((2, 2), np.float32))
    assert metrics.precision_at_k(top, Y, [1, 2]) == {"P@1": 50.0, "P@2": 75.0}


@pytest.mark.parametrize("format", ["repository", "libsvm", "npz", "split"])
def test_no_file_drops_relevance_silently(tmp_path, format):
    X, Y = draw_rows(seed=1)
    data = as_dataset(X, draw_relevance(Y))
    with pytest.raises(InputError, match="cannot hold relevance weights"):
        write_split(tmp_path, "train", [data], format)
    with pytest.raises(InputError, match="cannot hold relevance weights"):
        write_shards(tmp_path / "shards", [data], "parquet", 20, {})
    assert not (tmp_path / "shards").exists()
