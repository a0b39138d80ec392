"""--favour tail: the pairs of a rare label count more, by its inverse propensity; what that does to weights and PSP."""

import json
import math

import numpy as np
import pytest
import reference
from helpers import as_dataset, dense, draw_rows, interrupt, model_bits, orders, stop_after
from hypothesis import given
from hypothesis import strategies as st

from xmlpreck import metrics
from xmlpreck.cli import main
from xmlpreck.config import ConfigError, RowsConfig, RunConfig, TrainConfig
from xmlpreck.data import catalog
from xmlpreck.kernels.arrays import no_weights
from xmlpreck.kernels.rules import RULES, weigh_pairs
from xmlpreck.train import Checkpoints, PreparedRows, Safety, Trainer, fit, update

TAIL = TrainConfig(favour="tail", epochs=2, k=3, eta=0.3, threads=1, batch_rows=8, centroid=0.0)


def expected_weights(Y):
    """The square root of 1 + (ln N - 1) 2.5^0.55 (N_l + 1.5)^-0.55, mean 1 over the ones of Y."""
    counts = Y.sum(axis=0)
    roots = np.sqrt(1 + (math.log(len(Y)) - 1) * 2.5**0.55 * (counts + 1.5) ** -0.55)
    return roots * Y.sum() / (counts * roots).sum()


@pytest.mark.parametrize("algo", sorted(RULES))
@pytest.mark.parametrize("settings", [{"k": 3}, {"k": 1, "batch_rows": 1}, {"k": 5, "radius": 1.5, "decay": "sqrt"}])
def test_weights_equal_the_reference(algo, settings):
    X, Y = draw_rows(seed=len(algo))
    config = TrainConfig(**{"algo": algo, "favour": "tail", "epochs": 2, "eta": 0.3, "batch_rows": 7, **settings})
    rows = PreparedRows(as_dataset(X, Y), RowsConfig(unit_norm=False, bias=0.0), 10**6)
    trainer = Trainer(no_weights(X.shape[1], Y.shape[1], np.float64), config)
    trainer.grow(rows)
    trainer.favour_tail(Y.sum(axis=0), len(Y))
    facts = [trainer.run_pass(rows) for _ in range(2)]
    slow = reference.train(
        X, Y, rule=algo, k=config.k, orders=orders(config, len(X)), batch_rows=config.batch_rows, eta=config.eta,
        decay=config.decay, radius=config.radius, average_from=config.average_from, label_weights=expected_weights(Y),
    )  # fmt: skip
    np.testing.assert_allclose(dense(trainer.weights()), slow.average, rtol=1e-9, atol=1e-12)
    assert [f.updated for f in facts] == slow.updated


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=5), st.integers(1, 4), st.booleans())
def test_pairs_raise_as_much_as_they_lower(raised, n_lowered, same_weight):
    weights = np.array([0.0] * n_lowered + raised)  # a lowered label's own weight does not matter
    if same_weight:
        weights[n_lowered:] = 1
    steps = np.array([-1.0] * n_lowered + [n_lowered / len(raised)] * len(raised))
    weighed = steps.copy()
    no_labels, no_relevance = np.zeros(0, np.int32), np.zeros(0, np.float32)
    weigh_pairs(np.arange(len(steps), dtype=np.int32), weighed, weights, no_labels, no_relevance)
    assert weighed.sum() == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(weighed[n_lowered:], steps[n_lowered:] * weights[n_lowered:])
    if same_weight:
        np.testing.assert_allclose(weighed, steps)


def test_rare_labels_count_more_and_the_mean_is_one():
    counts = np.array([0, 1, 10, 500])
    trainer = Trainer(no_weights(1, 4), TAIL)
    trainer.favour_tail(counts, 600)
    assert (np.diff(trainer.label_weights) < 0).all()
    assert (trainer.label_weights * counts).sum() == pytest.approx(counts.sum(), rel=1e-6)


def test_threads_and_interruptions_change_no_bit(tmp_path):
    data = as_dataset(*draw_rows(seed=3))
    runs = [RunConfig(RowsConfig(), TrainConfig(**{**vars(TAIL), "threads": threads})) for threads in (1, 3)]
    whole = fit(data, runs[0])
    assert model_bits(fit(data, runs[1])) == model_bits(whole)
    checkpoints = Checkpoints(tmp_path / "m")
    interrupt(data, runs[0], checkpoints)
    resumed = fit(data, runs[0], safety=Safety(checkpoints, resume=True, stop=stop_after(10**6)))
    assert model_bits(resumed) == model_bits(whole)
    plain = RunConfig(RowsConfig(), TrainConfig(**{**vars(TAIL), "favour": "top"}))
    assert model_bits(fit(data, plain)) != model_bits(whole)


def test_an_update_favours_the_tail_too():
    data = as_dataset(*draw_rows(seed=3))
    top, tail = (RunConfig(RowsConfig(), TrainConfig(**{**vars(TAIL), "favour": way})) for way in ("top", "tail"))
    start = fit(data, top)
    assert model_bits(update(start, data, tail)) != model_bits(update(start, data, top))


def test_rare_labels_are_found_more_often():
    """On the demo's test rows: PSP@k up, by more than P@k down."""
    rows, test = catalog.load("demo", "train"), catalog.load("demo", "test")
    counts = np.bincount(rows.labels.indices, minlength=rows.n_labels)
    weights = metrics.inverse_propensities(counts, rows.n_rows, *metrics.PROPENSITY)
    scores = {}
    for way in ("top", "tail"):
        meter = metrics.Meter(test.n_labels, (1, 3, 5), inverse_propensity=weights, n_resamples=0)
        scorer = fit(rows, RunConfig(train=TrainConfig(favour=way, epochs=2)))
        meter.add(scorer.predict_topk(test.rows, 5), test.labels)
        scores[way] = {name: estimate.value for name, estimate in meter.result().values.items()}
    gain = {name: scores["tail"][name] - scores["top"][name] for name in scores["top"]}
    for k in (1, 3, 5):
        assert gain[f"PSP@{k}"] > max(0.3, -gain[f"P@{k}"])


def test_flag_and_model_say_what_was_favoured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("4 2 2\n0 0:1\n0 0:1\n0,1 1:1\n0 0:1 1:1\n")
    words = ["train", "--data", "train.txt", "--out", "m"]
    assert main([*words, "--favour", "tail"]) == 0
    assert json.loads((tmp_path / "m" / "model.json").read_text())["config"]["train"]["favour"] == "tail"
    assert main([*words, "--favour", "head"]) == 2
    assert "train.favour must be one of top, tail, but is 'head'" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        TrainConfig(favour="")
