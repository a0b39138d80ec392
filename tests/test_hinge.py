"""The squared hinge of each label by itself: weights equal to the reference, and the same bits."""

import numpy as np
import pytest
import reference
from helpers import as_dataset, dense, draw_rows, orders

from xmlpreck.config import ConfigError, RowsConfig, RunConfig, TrainConfig
from xmlpreck.data.survey import survey_of
from xmlpreck.data.synthetic import make_dataset
from xmlpreck.kernels import label_shards
from xmlpreck.kernels.arrays import EVERY, max_pairs, new_batch, new_merged, new_proposals, no_weights
from xmlpreck.kernels.rules import HARDEST, HINGE_STEP, MIN_HARDEST
from xmlpreck.train import PreparedRows, Trainer, fit
from xmlpreck.train.trainer import pass_settings


def trained(X, labels, config, dtype=np.float64):
    """Train on labels whose values are their relevance."""
    rows = PreparedRows(as_dataset(X, labels), RowsConfig(unit_norm=False, bias=0), 10**6)
    trainer = Trainer(no_weights(X.shape[1], labels.shape[1], dtype), config)
    trainer.grow(rows)
    survey = survey_of(rows.source, 17)
    trainer.favour_tail(survey.label_counts, survey.n_rows)
    return trainer, [trainer.run_pass(rows) for _ in range(config.epochs)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"negatives": 3},
        {"negatives": 40, "batch_rows": 1},
        {"negatives": 1, "radius": 1.5, "decay": "sqrt"},
        {"negatives": 300, "decay": "constant", "batch_rows": 7},
    ],
)
def test_weights_equal_the_reference(settings):
    config = TrainConfig(algo="hinge", epochs=2, seed=3, threads=2, eta=0.2, average_from=1, **settings)
    X, Y = draw_rows(seed=len(settings), n_labels=90)
    X = np.abs(X)  # so that more labels than HARDEST have a positive score
    trainer, facts = trained(X, Y, config)
    slow = reference.train(
        X, Y, rule="hinge", k=config.k, orders=orders(config, len(X)), batch_rows=config.batch_rows, eta=config.eta,
        decay=config.decay, radius=config.radius, n_hard=config.negatives, seed=config.seed,
    )  # fmt: skip
    np.testing.assert_allclose(dense(trainer.weights()), slow.average, rtol=1e-9, atol=1e-12)
    assert [f.updated for f in facts] == slow.updated
    n_labelled = Y.any(axis=1).sum()
    for name in ("surrogate", "mistakes"):
        found = [getattr(f, name) for f in facts]
        np.testing.assert_allclose(found, np.array(getattr(slow, name)) / n_labelled, rtol=1e-9)
    assert all(f.mistakes <= f.surrogate for f in facts)


def test_weak_negatives_take_turns():
    """Labels after the hardest are lowered every eighth turn, eight times as much: once each in eight turns."""
    s, y = np.linspace(0.9, 0.1, 81), np.arange(81) == 80
    steps = [reference.squared_hinge(s, y, 72, turn) for turn in range(EVERY)]
    np.testing.assert_allclose(sum(steps)[:72], -8 * s[:72])
    assert not sum(steps)[72:80].any()
    assert {np.count_nonzero(step[MIN_HARDEST:72]) for step in steps} == {8}


@pytest.mark.parametrize("favour", ["top", "tail"])
def test_weights_of_labels_and_rows(favour):
    config = TrainConfig(algo="hinge", negatives=4, favour=favour, epochs=2, eta=0.2, centroid=0.0, average_from=1)
    X, Y = draw_rows(seed=9)
    relevance = Y * np.random.default_rng(2).choice([0.25, 0.5, 1.0, 3.0], Y.shape)
    trainer, _ = trained(X, relevance, config)
    slow = reference.train(
        X, Y, rule="hinge", k=config.k, orders=orders(config, len(X)), batch_rows=config.batch_rows, eta=0.2,
        label_weights=trainer.label_weights if favour == "tail" else None, relevance=relevance, n_hard=4,
    )  # fmt: skip
    np.testing.assert_allclose(dense(trainer.weights()), slow.average, rtol=1e-9, atol=1e-12)


def test_a_label_at_rest_takes_no_step():
    """Relevant labels at 1 or more and irrelevant ones at 0 or less are where the hinge wants them."""
    s, y = np.array([1.0, 1.7, 0.0, -0.5, 0.4]), np.array([True, True, False, False, False])
    assert reference.squared_hinge(s, y, 3).tolist() == [0, 0, 0, 0, -0.4]
    assert not reference.squared_hinge(s, y & False, 3).any()
    assert reference.squared_hinge(np.array([0.25, 0.5]), np.array([True, False]), 1).tolist() == [0.75, -0.5]


def test_same_bits_for_any_number_of_threads():
    X, Y = draw_rows(seed=5)
    runs = [trained(X, Y, TrainConfig(algo="hinge", epochs=3, threads=n), np.float32)[0].weights() for n in (1, 2, 3)]
    for other in runs[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(runs[0], other, strict=True))


def test_shards_of_the_labels_choose_the_same_steps():
    """Proposals of two shards, merged, give the pairs of one machine; some weak labels are among the hardest too."""
    rng = np.random.default_rng(0)
    n_rows, n_labels, n_hard = 6, 300, 90
    config = TrainConfig(algo="hinge", negatives=n_hard, k=2, eta=0.5, decay="constant")
    settings = pass_settings(config, 1, n_labels, np.zeros(0, np.float32))
    assert (settings.n_hard, settings.n_weak) == (HARDEST, n_hard // EVERY)
    scores = rng.normal(size=8).astype(np.float32)[rng.integers(0, 8, (n_rows, n_labels))]
    Y = rng.random((n_rows, n_labels)) < 0.02
    merged = new_merged(n_rows, max(int(Y.sum(axis=1).max()), 1), settings)
    for labels in (range(0, 128), range(128, n_labels)):
        label_shards.merge_proposals(propose(scores, Y, labels, settings), merged)
    batch = new_batch(n_rows, n_rows, max_pairs(settings, n_labels))
    label_shards.choose_rows(merged, settings, 0.0, batch)
    for row in range(n_rows):
        s, y = scores[row].astype(float), Y[row]
        expected = reference.squared_hinge(s, y, n_hard, row % EVERY)
        found = np.zeros(n_labels)
        n = batch.n_pairs[row]
        np.add.at(found, batch.pair_labels[row, :n], batch.pair_steps[row, :n])
        np.testing.assert_allclose(found, 0.5 * HINGE_STEP * expected, rtol=1e-5, atol=1e-6)


def propose(scores, Y, labels, settings):
    """What a shard with these labels would say; in row i it is the turn of labels with l % EVERY == i % EVERY."""
    proposals = new_proposals(Y[:, labels].sum(axis=1), settings)
    for row, s in enumerate(scores):
        mine = [label for label in reference.positives(s, Y[row]) if label in labels]
        others = [label for label in reference.negatives(s, Y[row]) if label in labels]
        weak = [label for label in others if label % EVERY == row % EVERY and s[label] > 0]
        start = proposals.pos_offsets[row]
        proposals.pos_labels[start : start + len(mine)], proposals.pos[start : start + len(mine)] = mine, s[mine]
        for found, name, most in ((others, "neg", settings.n_hard), (weak, "weak", settings.n_weak)):
            n = getattr(proposals, f"n_{name}")[row] = len(found[:most])
            getattr(proposals, f"{name}_labels")[row, :n] = found[:most]
            getattr(proposals, name)[row, :n] = s[found[:most]]
    return proposals


def test_it_learns_noisy_labels_better_than_the_rule_alone():
    """Every label of a row is missing with probability 1/2: prec@k surrogates push such labels down, the hinge less."""
    whole = make_dataset(3600, 300, 60, features_per_row=20, labels_per_row=6, seed=3)
    rows, truth = whole.read(0, 3000), whole.read(3000, 3600)
    rng = np.random.default_rng(1)
    kept = rows.labels.copy()
    kept.data[rng.random(kept.nnz) < 0.5] = 0
    kept.eliminate_zeros()
    noisy = rows._replace(labels=kept)
    scores = {
        algo: fit(noisy, RunConfig(train=TrainConfig(algo=algo, eta=eta, threads=1))).score(truth)["P@5"]
        for algo, eta in (("sgd-avg", 1.0), ("hinge", 0.3))
    }
    assert scores["hinge"] > scores["sgd-avg"] + 1


@pytest.mark.parametrize("settings", [{"tau": 0.1}, {"spread": True}])
def test_settings_of_the_other_rules_are_refused(settings):
    with pytest.raises(ConfigError, match=r"for train.algo = hinge"):
        TrainConfig(algo="hinge", **settings)
    TrainConfig(**settings)
