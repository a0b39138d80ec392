"""Rules, scoring and top-k of the kernels against the slow reference; threads that wait."""

import time

import numpy as np
import pytest
import reference
from helpers import draw_scorer, sparse_from
from scipy.sparse import random_array

from xmlpreck.config import RowsConfig, TrainConfig
from xmlpreck.kernels import bfloat, prediction, rules, scoring, topk
from xmlpreck.kernels.arrays import BLOCK, EVERY, new_work, noise_table, sparse_weights
from xmlpreck.kernels.bounds import find_bounds, new_trial
from xmlpreck.kernels.hashing import mix
from xmlpreck.kernels.rules import RULES
from xmlpreck.kernels.threads import SLEEPERS, new_bell, ring, run_team, wait_until
from xmlpreck.model import Model, all_sparse, kernel_rows, lay_out, layout
from xmlpreck.train.trainer import pass_settings

ALL_RULES = sorted(reference.RULES)


def kernel_step(scores, relevance, k, rule):
    """The kernel's coefficients as a vector, its surrogate and its mistakes."""
    relevant = np.flatnonzero(relevance).astype(np.int32)
    work = new_work(len(scores), k, len(relevant), np.float64)
    labels = np.zeros(k + len(relevant), np.int32)
    steps = np.zeros(k + len(relevant))
    n_pairs, surrogate, mistakes = rules.choose_step(scores, relevant, k, RULES[rule], work, labels, steps)
    assert len(set(labels[:n_pairs])) == n_pairs
    coefficients = np.zeros(len(scores))
    coefficients[labels[:n_pairs]] = steps[:n_pairs]
    return coefficients, surrogate, mistakes


def check_step(scores, relevance, k, rule):
    coefficients, surrogate, mistakes = kernel_step(scores, relevance, k, rule)
    np.testing.assert_allclose(coefficients, reference.RULES[rule](scores, relevance, k), rtol=1e-12)
    k_row = min(k, int(relevance.sum()))
    if k_row:
        assert surrogate == pytest.approx(reference.SURROGATE_OF[rule](scores, relevance, k_row)[0], abs=1e-9)
        assert mistakes == reference.mistakes(scores, relevance, k_row)
    else:
        assert (surrogate, mistakes) == (0, 0)


@pytest.mark.parametrize("rule", ALL_RULES)
def test_rules_on_random_draws(rule):
    rng = np.random.default_rng(RULES[rule])
    for draw in range(3000):
        n = int(rng.integers(1, 9))
        k = int(rng.integers(1, 6))
        # Scores on a coarse grid tie often, and exactly: quarters add up without rounding.
        scores = rng.integers(-8, 9, n) / 4 if draw % 2 else rng.normal(size=n)
        check_step(scores, rng.random(n) < rng.choice([0.2, 0.5, 0.9]), k, rule)


@pytest.mark.parametrize("rule", ALL_RULES)
@pytest.mark.parametrize("relevant", [[], [0], [69], [0, 1, 2], [1, 30, 64, 65, 69], range(70)])
@pytest.mark.parametrize("k", [1, 3, 5, 100])
def test_rules_at_corners_over_several_blocks(rule, relevant, k):
    relevance = np.zeros(70, bool)
    relevance[list(relevant)] = True
    rng = np.random.default_rng(k)
    for scores in (np.zeros(70), rng.normal(size=70), rng.integers(-2, 3, 70) / 2, -np.arange(70.0)):
        check_step(scores, relevance, k, rule)


@pytest.mark.parametrize("rule", ["sgd-avg", "sgd-max"])
def test_brute_force_equals_kernel(rule):
    """The surrogate as a maximum over all k-subsets, straight from the definition."""
    brute = {"sgd-avg": reference.avg_brute, "sgd-max": reference.max_brute}[rule]
    rng = np.random.default_rng(1)
    for _ in range(300):
        n = int(rng.integers(2, 8))
        relevance = rng.random(n) < 0.6
        relevance[0] = True
        k = int(rng.integers(1, relevance.sum() + 1))
        scores = rng.integers(-6, 7, n) / 2
        assert kernel_step(scores, relevance, k, rule)[1] == pytest.approx(brute(scores, relevance, k), abs=1e-12)


@pytest.mark.parametrize("k", [1, 5, 80, 300])
def test_top_labels_equal_brute_force(k):
    """Rows that open all blocks, some or none; unopened labels have score 0 and are ranked by id."""
    rng = np.random.default_rng(k)
    scorer, matrix = draw_scorer(rng)
    rows = random_array((200, 30), density=0.08, rng=rng, data_sampler=lambda size: rng.integers(1, 4, size)).tocsr()
    rows = rows.astype(np.float32)
    assert (np.diff(rows.indptr) == 0).any()
    top = scorer.predict_topk(rows, k, n_threads=2, guess_empty=True)
    scores = rows.toarray() @ matrix
    for row in range(200):
        assert top.labels[row].tolist() == list(reference.top_labels(scores[row], k))
        np.testing.assert_array_equal(top.scores[row], scores[row][top.labels[row]])
    np.testing.assert_array_equal(scorer.decision_function(rows), scores)


@pytest.mark.parametrize("in_16_bits", [False, True])
def test_layout_does_not_change_bits(monkeypatch, in_16_bits):
    """Dense, sparse and hybrid rows add in the same order, so float32 sums agree to the last bit."""
    rng = np.random.default_rng(0)
    matrix = np.where(rng.random((40, 100)) < 0.1, rng.normal(size=(40, 100)), 0).astype(np.float32)
    if in_16_bits:
        bfloat.round_all(matrix)
    rows = random_array((50, 40), density=0.4, rng=rng).tocsr().astype(np.float32)
    scores = []
    for share, n_dense in ((0, 0), (10, None), (10**6, 40)):
        monkeypatch.setattr(layout, "DENSE_SHARE", share)
        weights = lay_out(sparse_from(matrix))
        assert n_dense is None or len(weights.dense_rows) == n_dense
        assert weights.dense_rows.dtype == (np.uint16 if in_16_bits else np.float32)
        scores.append(Model(weights, RowsConfig(unit_norm=False, bias=0)).decision_function(rows))
        round_trip = all_sparse(weights)
        np.testing.assert_array_equal(round_trip.values, matrix[np.nonzero(matrix)])
    assert len(lay_out(sparse_from(matrix)).dense_rows) > 0
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])


def test_cost_follows_the_support():
    """A row whose features touch few of a million labels opens only their blocks."""
    n_labels = 1_000_000
    offsets = np.array([0, 3, 4])
    labels = np.array([5, 70, 999_999, 70], np.int32)
    weights = sparse_weights(offsets, labels, np.array([1, 2, 3, -1], np.float32), n_labels)
    scorer = Model(lay_out(weights), RowsConfig(unit_norm=False, bias=0))
    rows = kernel_rows(random_array((1, 2), density=1.0, rng=np.random.default_rng(0)).tocsr())
    work = new_work(n_labels, 6)
    top, top_scores = np.zeros((1, 6), np.int32), np.zeros((1, 6), np.float32)
    no_bonus = np.zeros(0, scorer.weights.values.dtype)
    bounds = find_bounds(scorer.weights)
    trial = new_trial(bounds, no_bonus, np.float32)
    claimed = np.zeros(1, np.int64)
    prediction.predict_rows(1, rows, scorer.weights, bounds, trial, no_bonus, work, claimed, top, top_scores)
    assert work.counts[1] == 3
    x = rows.values
    expected = {999_999: 3 * x[0], 70: 2 * x[0] - x[1], 5: x[0]}
    best = sorted(expected, key=lambda label: (-expected[label], label))
    assert top[0].tolist() == best + [0, 1, 2]


def perturbed(config, pass_number, row, n_labels):
    """The noise that the kernel adds to a row's scores."""
    work = new_work(n_labels, dtype=np.float64)
    work.counts[:] = 1, 0
    scoring.open_all(n_labels, work)
    key = pass_settings(config, pass_number, n_labels, np.zeros(0)).noise_key
    row_key = mix(key + np.uint64(row))
    scoring.perturb(noise_table(config.seed, config.tau, np.float64), np.uint64(row_key), 0, work)
    return work.scores[:n_labels].copy()


@pytest.mark.parametrize(("seed", "pass_number", "row"), [(0, 1, 0), (7, 2, 3), (7, 2, 4), (2**64 - 1, 9, 10**9)])
def test_noise_is_the_documented_formula(seed, pass_number, row):
    config = TrainConfig(algo="sgd-avg", seed=seed, tau=0.7)
    expected = reference.gumbel_noise(seed, 0.7, pass_number, row, 500)
    np.testing.assert_array_equal(perturbed(config, pass_number, row, 500), expected)


def test_noise_is_gumbel_and_independent():
    draws = np.array([reference.gumbel_noise(7, 1.0, 1, row, 500) for row in range(100)])
    # Mean 0.5772, variance pi^2/6. The table has 16,448 draws, so its own mean has a standard error of 0.01.
    assert draws.mean() == pytest.approx(0.5772, abs=0.04)
    assert draws.var() == pytest.approx(np.pi**2 / 6, rel=0.06)
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < 0.3  # labels of one block
    assert abs(np.corrcoef(draws[:, 0], draws[:, 100])[0, 1]) < 0.3
    assert abs(np.corrcoef(draws[0], draws[1])[0, 1]) < 0.2


def test_team_of_more_threads_than_cores_takes_turns():
    """Each of four threads sleeps until it is its turn. Sleeps are of a minute: a ring that is missed would show."""
    turns, bell, taken = np.zeros(1, np.int64), new_bell(max_seconds=60), []

    def work(thread):
        for step in range(10):
            wait_until(turns, 0, 4 * step + thread, bell)
            taken.append(thread)
            time.sleep(0.002)  # longer than anybody spins
            turns[0] += 1
            ring(bell)

    began = time.monotonic()
    run_team(4, work)
    assert taken == [0, 1, 2, 3] * 10
    assert bell[SLEEPERS] == 0
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(6))
def test_best_labels_among_ties(seed, dtype):
    """Blocks come in any order, and most scores are equal, as those of labels that share the bias only."""
    rng, n_labels, n_best = np.random.default_rng(seed), 1000, 40
    work = new_work(n_labels, n_best, 1, dtype, n_best)
    scoring.begin_row(work)
    scoring.open_all(n_labels, work)
    rng.shuffle(work.blocks)
    scores = np.where(rng.random(n_labels) < 0.02, rng.normal(size=n_labels), 0.05 * (seed - 1)).astype(dtype)
    work.scores[:n_labels] = scores
    peaks = work.scores.reshape(-1, BLOCK // EVERY, EVERY).max(axis=1)[work.blocks]
    ranked = np.lexsort((np.arange(n_labels), -scores))
    for k in (1, 5, 33, n_best):
        assert topk.take_top(k, n_labels, work, work.neg, work.neg_labels) == k
        assert work.neg_labels[:k].tolist() == ranked[:k].tolist()
        for least in (-1e30, scores[ranked[k - 1]]):
            found = topk.take_many(k, dtype(least), 0, 1, peaks.max(axis=1), n_labels, work, work.neg, work.neg_labels)
            assert found == k
            assert work.neg_labels[:k].tolist() == ranked[:k].tolist()
        turn = [label for label in ranked if label % EVERY == seed and scores[label] >= dtype(1e-9)][:k]
        by_turn = peaks[:, seed]
        found = topk.take_many(k, dtype(1e-9), seed, EVERY, by_turn, n_labels, work, work.weak, work.weak_labels)
        assert work.weak_labels[:found].tolist() == turn
