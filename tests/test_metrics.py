"""Every metric against hand-computed fractions, the exact loops of reference_metrics, napkinXC and scikit-learn."""

import bisect
import random
import re

import numpy as np
import pytest
import reference
import reference_metrics as slow
from helpers import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, csr_matrix
from scipy.stats import binomtest, poisson
from sklearn.metrics import label_ranking_average_precision_score, ndcg_score, precision_recall_fscore_support

from xmlpreck import metrics
from xmlpreck.config import InputError
from xmlpreck.data.formats import TopK
from xmlpreck.kernels import ranking
from xmlpreck.metrics import (
    CONVENTIONS,
    Meter,
    difference,
    hits,
    inverse_propensities,
    precision_at_k,
    sign_test,
)

KS = (1, 3, 5)
N_LABELS = 9
TRAINING_COUNTS = np.array([200, 100, 99, 25, 10, 9, 4, 1, 0])  # head 0-1, torso 2-4, tail 5-7, unseen 8
N_TRAINING_ROWS = 300
WEIGHTS = np.array([slow.inverse_propensity(int(count), N_TRAINING_ROWS, 0.55, 1.5) for count in TRAINING_COUNTS])

# One corner a row: (score of each predicted label, true labels).
CORNERS = [
    ({0: 0.9, 1: 0.8, 2: 0.7, 3: 0.6, 4: 0.5, 5: 0.4}, {0, 1, 2}),  # all found, in order
    ({0: 0.9, 3: 0.8, 2: 0.7, 1: 0.6, 7: 0.5, 5: 0.4}, {5, 7}),  # one below place 5
    ({0: 0.9, 1: 0.8, 2: 0.7, 3: 0.6, 4: 0.5}, set()),  # nothing is true
    ({}, {3, 4}),  # nothing is predicted
    ({}, set()),
    ({8: 0.5, 7: 0.5, 6: 0.5, 5: 0.5, 1: 0.5, 0: 0.5}, {6, 8}),  # ties: ids 0 1 5 6 7 are the top 5
    ({8: 0.25}, {8}),  # fewer predictions than places, a label unseen in training
    ({label: -float(label) for label in range(N_LABELS)}, set(range(N_LABELS))),  # everything is true
    ({4: 2.0, 2: 1.0}, {2, 7}),
    ({7: 3.0, 6: 2.0, 5: 1.0}, {0}),  # no hit
    ({1: 5.0, 0: 4.0, 8: 3.0, 4: 2.0, 6: 1.0}, {0, 4, 1, 6, 3, 2}),  # more labels than places
    ({3: 1.0, 0: 0.5, 2: 0.5, 1: 0.5, 4: 0.1}, {1, 2}),
]
RANKINGS = [slow.rank(scores) for scores, _ in CORNERS]
TRUTHS = [truth for _, truth in CORNERS]


def top_of(labels):
    """A TopK of ranked ids, -1 = none; scores fall along a row."""
    labels = np.array(labels, np.int32)
    falling = np.arange(labels.shape[1], 0, -1, dtype=np.float32)
    return TopK(labels, np.where(labels >= 0, falling, -np.inf).astype(np.float32))


def padded(rankings, width):
    return top_of([(list(ranking) + [-1] * width)[:width] for ranking in rankings])


def matrix_of(truths, n_labels):
    ids = [label for truth in truths for label in sorted(truth)]
    offsets = np.cumsum([0] + [len(truth) for truth in truths])
    return csr_array((np.ones(len(ids), np.float32), np.array(ids, np.int32), offsets), shape=(len(truths), n_labels))


def scored(rankings, truths, n_labels=N_LABELS, *, width=N_LABELS, cuts=(), **options):
    """Scores of a Meter that gets the rows in blocks, cut before the given rows; no resampling unless asked for."""
    top, labels = padded(rankings, width), matrix_of(truths, n_labels)
    meter = Meter(n_labels, **{"ks": KS, "n_resamples": 0} | options)
    for start, stop in zip((0, *cuts), (*cuts, len(rankings)), strict=True):
        meter.add(TopK(top.labels[start:stop], top.scores[start:stop]), labels[start:stop])
    return meter.result()


def values_of(result):
    return {name: estimate.value for name, estimate in result.values.items()}


@st.composite
def problems(draw):
    """(rankings, truths, n_labels): empty rows, empty lists, short lists, few or many labels."""
    n_labels = draw(st.integers(1, 9))
    ids = st.integers(0, n_labels - 1)
    rankings = st.lists(ids, unique=True, max_size=n_labels)
    rows = draw(st.lists(st.tuples(rankings, st.sets(ids)), min_size=1, max_size=12))
    return [ranking for ranking, _ in rows], [truth for _, truth in rows], n_labels


# Hand-computed fractions


def test_hand_computed_fractions():
    """Three hits of one row, none of a row without labels, one of a row with fewer predictions than k."""
    truth = csr_array(np.array([[1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]]))
    top = top_of([[0, 3, 1, 4, 2], [0, 1, 2, 3, 4], [5, -1, -1, -1, -1]])
    assert precision_at_k(top, truth) == pytest.approx(
        {"P@1": 100 * 2 / 3, "P@3": 100 * (2 + 0 + 1) / 9, "P@5": 100 * (3 + 0 + 1) / 15}
    )


def test_every_metric_by_hand():
    """Two rows, k = 2: [1 0] of {1 2 3} (weights 1 2 3 4 of labels 0-3), and [3] of {3}."""
    got = values_of(
        scored([[1, 0], [3]], [{1, 2, 3}, {3}], 5, width=2, ks=(2,), inverse_propensity=np.array([1.0, 2, 3, 4, 5]))
    )
    second = 1 / np.log2(3)  # the discount of place 2; place 1 has 1
    expected = {
        "P@2": (1 / 2 + 1 / 2) / 2,
        "RP@2": (1 / 2 + 1) / 2,
        "R@2": (1 / 3 + 1) / 2,
        "nDCG@2": (1 / (1 + second) + 1) / 2,
        "PSP@2": (2 + 4) / ((4 + 3) + 4),
        "PSnDCG@2": (2 + 4) / ((4 + 3 * second) + 4),
        "microP@2": 2 / 3,
        "microR@2": 2 / 4,
        "microF1@2": 2 * 2 / (3 + 4),
        "macroP@2": (0 + 1 + 0 + 1 + 0) / 5,
        "macroR@2": (0 + 1 + 0 + 1 / 2 + 0) / 5,
        "macroF1@2": (0 + 1 + 0 + 2 / 3 + 0) / 5,
        "coverage@2": 2 / 3,
        "abandonment@2": 0,
        "MRR": 1,
    }
    assert got == pytest.approx({name: 100 * value for name, value in expected.items()}, rel=1e-12)


def test_inverse_propensities_by_hand():
    """N = 100, A = 0.5, B = 3: C = (ln 100 - 1) 2, and labels with 1 and 0 rows have 4^-1/2 and 3^-1/2."""
    C = 2 * (np.log(100) - 1)
    assert inverse_propensities(np.array([1, 0]), 100, 0.5, 3) == pytest.approx([1 + C / 2, 1 + C / 3**0.5], rel=1e-14)


def test_bins_by_hand():
    """The parts of P@k add up to P@k; R@k is the share of the bin's true (row, label) pairs that were found."""
    result = scored(RANKINGS, TRUTHS, label_counts=TRAINING_COUNTS)
    bins = {part.name: part for part in result.bins}
    assert [(part.name, part.n_labels, part.n_true) for part in result.bins] == [
        ("head", 2, 2 + 2 + 1 + 2 + 1),  # true in rows 0 7 9 10 11
        ("torso", 3, 1 + 2 + 3 + 1 + 3 + 1),  # 0 3 7 8 10 11
        ("tail", 3, 2 + 1 + 3 + 1 + 1),  # 1 5 7 8 10
        ("unseen", 1, 1 + 1 + 1),  # 5 6 7
    ]
    for name, labels in {"head": {0, 1}, "torso": {2, 3, 4}, "tail": {5, 6, 7}, "unseen": {8}}.items():
        for k in KS:
            part, recall = slow.bin_part(RANKINGS, TRUTHS, k, labels)
            assert bins[name].values[f"P@{k}"].value == pytest.approx(float(100 * part), rel=1e-12)
            assert bins[name].values[f"R@{k}"].value == pytest.approx(float(100 * recall), rel=1e-12)
    for k in KS:
        whole = sum(part.values[f"P@{k}"].value for part in result.bins)
        assert whole == pytest.approx(values_of(result)[f"P@{k}"], rel=1e-12)


# Against the exact loops


def test_the_reference_knows_all_conventions():
    assert tuple(CONVENTIONS) == slow.CONVENTIONS
    assert all(convention.name == name and convention.text for name, convention in CONVENTIONS.items())


@pytest.mark.parametrize("drop_empty", [False, True])
@pytest.mark.parametrize("convention", slow.CONVENTIONS)
def test_corners_equal_the_reference(convention, drop_empty):
    result = scored(RANKINGS, TRUTHS, convention=convention, drop_empty=drop_empty, inverse_propensity=WEIGHTS)
    expected = slow.evaluate(RANKINGS, TRUTHS, KS, convention, N_LABELS, WEIGHTS, drop_empty)
    assert values_of(result) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert (result.n_rows, result.n_rows_without_labels) == (12, 2)


@given(problem=problems(), convention=st.sampled_from(slow.CONVENTIONS), drop_empty=st.booleans())
@settings(deadline=None)
def test_drawn_problems_equal_the_reference(problem, convention, drop_empty):
    rankings, truths, n_labels = problem
    weights = WEIGHTS[:n_labels]
    got = scored(*problem, convention=convention, drop_empty=drop_empty, inverse_propensity=weights)
    expected = slow.evaluate(rankings, truths, KS, convention, n_labels, weights, drop_empty)
    assert values_of(got) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_counts_of_labels():
    result = scored(RANKINGS, TRUTHS)
    for place, k in enumerate(KS):
        counts = np.array(slow.label_counts(RANKINGS, TRUTHS, k, N_LABELS))
        np.testing.assert_array_equal(result.label_hits[place], counts[:, 0])
        np.testing.assert_array_equal(result.label_predicted[place], counts[:, 1])
        np.testing.assert_array_equal(result.label_truth, counts[:, 2])


def test_lists_shorter_than_k_miss_in_the_places_they_do_not_have():
    got = values_of(scored(RANKINGS, TRUTHS, width=2, inverse_propensity=WEIGHTS))
    expected = slow.evaluate([r[:2] for r in RANKINGS], TRUTHS, KS, "repository", N_LABELS, WEIGHTS)
    assert got == pytest.approx(expected, rel=1e-12)


def test_without_propensities_there_is_no_psp():
    assert not [name for name in scored(RANKINGS, TRUTHS).values if name.startswith("PS")]


def test_no_labels_at_all_is_zero_and_not_nan():
    result = scored([[0, 1], [2]], [set(), set()], inverse_propensity=WEIGHTS)
    expected = slow.evaluate([[0, 1], [2]], [set(), set()], KS, "repository", N_LABELS, WEIGHTS)
    assert values_of(result) == expected
    assert {name for name, value in expected.items() if value} == {f"abandonment@{k}" for k in KS}


# Against other tools


@pytest.fixture(scope="module")
def napkinxc():
    return pytest.importorskip("napkinxc.metrics", reason="napkinXC judges its own convention: pip install napkinxc")


def test_equals_napkinxc(napkinxc):
    got = values_of(scored(RANKINGS, TRUTHS, convention="napkinxc", inverse_propensity=WEIGHTS))
    truths = [sorted(truth) for truth in TRUTHS]
    theirs = {
        "P": napkinxc.precision_at_k(truths, RANKINGS, k=5),
        "R": napkinxc.recall_at_k(truths, RANKINGS, k=5),
        "nDCG": napkinxc.ndcg_at_k(truths, RANKINGS, k=5),
        "PSP": napkinxc.psprecision_at_k(truths, RANKINGS, WEIGHTS, k=5),
        "PSnDCG": napkinxc.psndcg_at_k(truths, RANKINGS, WEIGHTS, k=5),
        "coverage": napkinxc.coverage_at_k(truths, RANKINGS, k=5),
        "abandonment": napkinxc.abandonment_at_k(truths, RANKINGS, k=5),
        "macroP": napkinxc.macro_precision_at_k(truths, RANKINGS, k=5),
        "macroR": napkinxc.macro_recall_at_k(truths, RANKINGS, k=5),
        "macroF1": napkinxc.macro_f1_measure_at_k(truths, RANKINGS, k=5),
        "microF1": [napkinxc.f1_measure(truths, [r[:k] for r in RANKINGS], average="micro") for k in range(1, 6)],
    }
    expected = {f"{name}@{k}": 100 * values[k - 1] for name, values in theirs.items() for k in KS}
    assert {name: got[name] for name in expected} == pytest.approx(expected, rel=1e-12)


def test_napkinxc_leaves_out_columns_after_the_largest_id_seen(napkinxc):
    rankings, truths = [[1, 0], [1]], [{0}, {0, 1}]
    narrow = values_of(scored(rankings, truths, convention="napkinxc"))
    assert narrow["macroF1@5"] == pytest.approx(100 * napkinxc.macro_f1_measure_at_k([[0], [0, 1]], rankings)[4])
    wide = values_of(scored(rankings, truths))
    assert wide["macroF1@5"] == pytest.approx(narrow["macroF1@5"] * 2 / N_LABELS)


def test_napkinxc_propensities(napkinxc):
    counts = TRAINING_COUNTS[None, :] > np.arange(N_TRAINING_ROWS)[:, None]
    theirs = napkinxc.Jain_et_al_inverse_propensity(csr_matrix(counts.astype(np.float64)), A=0.6, B=2.6)
    assert inverse_propensities(TRAINING_COUNTS, N_TRAINING_ROWS, 0.6, 2.6) == pytest.approx(theirs, rel=1e-13)


def test_pyxclib_up_to_its_float32():
    """pyxclib keeps nDCG, and numerator and denominator of PSnDCG, in float32: what it prints is that rounding."""
    got = values_of(scored(RANKINGS, TRUTHS, convention="pyxclib", inverse_propensity=WEIGHTS))
    for k in KS:
        printed = np.float32(float(slow.ndcg(RANKINGS, TRUTHS, k)))
        assert np.float32(got[f"nDCG@{k}"] / 100) == printed
        above, below = slow.ps_ndcg_parts(RANKINGS, TRUTHS, k, WEIGHTS, lambda n, k=k: min(k, n))
        printed = np.float32(float(above)) / np.float32(float(below))
        assert abs(got[f"PSnDCG@{k}"] / 100 - printed) < 1.5 * np.finfo(np.float32).eps


def test_psndcg_of_the_matlab_script_is_not_that_of_the_python_tools(napkinxc):
    """The same lists: a divisor of k places for every row, or of min(k, |y|) places of the row."""
    got = {
        name: values_of(scored(RANKINGS, TRUTHS, convention=name, inverse_propensity=WEIGHTS))["PSnDCG@5"]
        for name in ("repository", "pyxclib", "napkinxc")
    }
    theirs = 100 * napkinxc.psndcg_at_k([sorted(t) for t in TRUTHS], RANKINGS, WEIGHTS)[4]
    assert got["napkinxc"] == got["pyxclib"] == pytest.approx(theirs, rel=1e-12)
    assert abs(got["repository"] - theirs) > 0.1


def test_tied_scores_where_pyxclib_and_napkinxc_disagree(napkinxc):
    """One row, labels 0 and 1 with the same score, 1 is true. Both are reproduced by giving the order they take:
    napkinXC sorts -scores (a short row: the lower id), pyxclib reverses a rising sort (a short row: the higher id)."""
    tied = np.array([0.5, 0.5])
    orders = {"napkinxc": [[0, 1]], "pyxclib": [np.argsort(tied)[::-1].tolist()]}
    assert orders["pyxclib"] == [[1, 0]]
    at_1 = {name: values_of(scored(order, [{1}], 2, convention=name))["P@1"] for name, order in orders.items()}
    assert at_1 == {"napkinxc": 0.0, "pyxclib": 100.0}
    assert napkinxc.precision_at_k([[1]], csr_matrix(tied[None]), k=1) == [0.0]


@pytest.mark.parametrize("average", ["micro", "macro"])
def test_equals_scikit_learn_on_the_indicator_of_the_top_k(average):
    got = values_of(scored(RANKINGS, TRUTHS))
    indicator = matrix_of(TRUTHS, N_LABELS).toarray()
    for k in KS:
        chosen = matrix_of([set(ranking[:k]) for ranking in RANKINGS], N_LABELS).toarray()
        three = precision_recall_fscore_support(indicator, chosen, average=average, zero_division=0)[:3]
        assert [got[f"{average}{what}@{k}"] for what in ("P", "R", "F1")] == pytest.approx(
            [100 * value for value in three], rel=1e-12
        )
        recall = precision_recall_fscore_support(indicator, chosen, average="samples", zero_division=0)[1]
        assert got[f"R@{k}"] == pytest.approx(100 * recall, rel=1e-12)


def test_equals_scikit_learn_on_full_rankings():
    """nDCG of complete lists without ties; MRR where each row has one label, which is average precision there."""
    rng = np.random.default_rng(1)
    scores = rng.permuted(np.tile(np.arange(N_LABELS), (40, 1)), axis=1)
    rankings = (-scores).argsort(axis=1).tolist()
    truth = (rng.random(scores.shape) < 0.3).astype(int)
    got = values_of(scored(rankings, [set(np.flatnonzero(row).tolist()) for row in truth]))
    for k in KS:
        assert got[f"nDCG@{k}"] == pytest.approx(100 * ndcg_score(truth, scores, k=k), rel=1e-12)
    only = np.eye(N_LABELS, dtype=int)[rng.integers(0, N_LABELS, 40)]
    got = values_of(scored(rankings, [{int(row.argmax())} for row in only]))
    assert got["MRR"] == pytest.approx(100 * label_ranking_average_precision_score(only, scores), rel=1e-12)


# What must hold for any data


@given(problem=problems(), data=st.data())
@settings(deadline=None)
def test_order_of_rows_does_not_matter(problem, data):
    rankings, truths, n_labels = problem
    order = data.draw(st.permutations(range(len(truths))))
    shuffled = scored(
        [rankings[i] for i in order], [truths[i] for i in order], n_labels, inverse_propensity=WEIGHTS[:n_labels]
    )
    expected = values_of(scored(*problem, inverse_propensity=WEIGHTS[:n_labels]))
    assert values_of(shuffled) == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(problem=problems(), data=st.data())
@settings(deadline=None)
def test_names_of_labels_do_not_matter(problem, data):
    """Rankings are given, so there are no ties to settle."""
    rankings, truths, n_labels = problem
    new_id = data.draw(st.permutations(range(n_labels)))
    weights = np.empty(n_labels)
    weights[list(new_id)] = WEIGHTS[:n_labels]
    renamed = scored(
        [[new_id[label] for label in ranking] for ranking in rankings],
        [{new_id[label] for label in truth} for truth in truths],
        n_labels,
        inverse_propensity=weights,
    )
    expected = values_of(scored(*problem, inverse_propensity=WEIGHTS[:n_labels]))
    assert values_of(renamed) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_the_top_5_say_as_much_as_all_scores():
    rng = np.random.default_rng(2)
    rankings = [rng.permutation(N_LABELS).tolist() for _ in range(50)]
    truths = [set(np.flatnonzero(row).tolist()) for row in rng.random((50, N_LABELS)) < 0.3]
    whole = values_of(scored(rankings, truths, inverse_propensity=WEIGHTS))
    cut = values_of(scored(rankings, truths, width=5, inverse_propensity=WEIGHTS))
    assert whole.pop("MRR") > cut.pop("MRR")  # the one metric that looks further
    assert whole == cut


def assert_same_bits(one, other):
    assert one.to_dict() == other.to_dict()
    assert one.values == other.values
    for name in ("label_truth", "label_hits", "label_predicted"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for these, those in zip((one, *one.bins), (other, *other.bins), strict=True):
        assert these.draws.keys() == those.draws.keys()
        for name, drawn in these.draws.items():
            np.testing.assert_array_equal(drawn, those.draws[name])


@given(problem=problems(), data=st.data())
@settings(deadline=None, max_examples=50)
def test_blocks_do_not_matter_to_the_bit(problem, data):
    rankings, truths, n_labels = problem
    cuts = sorted(data.draw(st.sets(st.integers(0, len(truths)))))
    options = {
        "inverse_propensity": WEIGHTS[:n_labels],
        "label_counts": TRAINING_COUNTS[:n_labels],
        "n_resamples": 20,
        "convention": data.draw(st.sampled_from(slow.CONVENTIONS)),
        "drop_empty": data.draw(st.booleans()),
    }
    whole = scored(rankings, truths, n_labels, **options)
    assert_same_bits(whole, scored(rankings, truths, n_labels, cuts=cuts, **options))


def test_neither_blocks_nor_threads_matter_to_the_bit_on_many_rows():
    """Enough rows that sums in another order would end in other bits."""
    rng = np.random.default_rng(3)
    rankings = [rng.permutation(N_LABELS)[: rng.integers(0, 8)].tolist() for _ in range(3000)]
    truths = [set(np.flatnonzero(row).tolist()) for row in rng.random((3000, N_LABELS)) < 0.3]
    options = {"inverse_propensity": WEIGHTS, "label_counts": TRAINING_COUNTS, "n_resamples": 30}
    whole = scored(rankings, truths, **options)
    for cuts, n_threads in (((1, 2, 1000, 2999), 1), ((), 2), (range(64, 3000, 64), 3), ((777,), 2)):
        assert_same_bits(whole, scored(rankings, truths, cuts=tuple(cuts), n_threads=n_threads, **options))


@given(problem=problems())
@settings(deadline=None)
def test_bounds(problem):
    got = values_of(scored(*problem, ks=(1, 2, 3, 4, 5), inverse_propensity=WEIGHTS[: problem[2]]))
    assert all(-1e-9 <= value <= 100 + 1e-9 for value in got.values())
    for k in (1, 2, 3, 4, 5):
        assert got[f"RP@{k}"] >= max(got[f"P@{k}"], got[f"R@{k}"]) - 1e-9
        assert got[f"microF1@{k}"] <= max(got[f"microP@{k}"], got[f"microR@{k}"]) + 1e-9
    for k in (1, 2, 3, 4):  # hits can only be added further down
        assert got[f"P@{k}"] * k <= got[f"P@{k + 1}"] * (k + 1) + 1e-9
        for name in ("R", "microR", "macroR", "coverage"):
            assert got[f"{name}@{k}"] <= got[f"{name}@{k + 1}"] + 1e-9
        assert got[f"abandonment@{k}"] >= got[f"abandonment@{k + 1}"] - 1e-9


@given(problem=problems(), convention=st.sampled_from(slow.CONVENTIONS))
@settings(deadline=None)
def test_the_oracle_has_100(problem, convention):
    """True labels by falling weight: nobody can do better, whatever the definition."""
    _, truths, n_labels = problem
    weights = WEIGHTS[:n_labels]
    oracle = [sorted(truth, key=lambda label: -weights[label]) for truth in truths]
    got = values_of(
        scored(oracle, truths, n_labels, convention=convention, inverse_propensity=weights, drop_empty=True)
    )
    if any(truths):
        names = [f"{name}@{k}" for name in ("RP", "nDCG", "PSP", "PSnDCG") for k in KS]
        assert [got[name] for name in names] == pytest.approx([100] * len(names), rel=1e-12)


# Uncertainty


def test_rows_are_drawn_poisson_1():
    """The table has Poisson(1)'s shares to its 16 bits; 1,000 sums of 2,000 draws have mean and variance 2,000."""
    shares = np.bincount(metrics._POISSON.astype(int)) / 2**16
    np.testing.assert_allclose(shares, poisson(1).pmf(np.arange(len(shares))), rtol=0, atol=2**-16)
    sums = np.zeros((1, 1000))
    ranking.add_resampled(np.ones((2000, 1)), 0, np.uint64(7), metrics._POISSON, 0, sums)
    assert abs(sums.mean() - 2000) < 5 * (2000 / 1000) ** 0.5  # five standard errors
    assert abs(sums.var() / 2000 - 1) < 5 * (2 / 1000) ** 0.5


def test_intervals_hold_the_truth_as_often_as_they_say():
    """300 data sets of 150 rows drawn from 200 kinds of row, whose mean is the truth: 95% intervals, 90-99% asked.

    (A binomial share of 300 at 0.95 has deviation 0.013; a percentile interval of 150 rows is a little short.)
    """
    rng = np.random.default_rng(4)
    kinds = rng.random((200, N_LABELS)) < rng.beta(1, 3, size=(200, 1))
    truths = [set(np.flatnonzero(row).tolist()) for row in kinds]
    rankings = [slow.rank({label: float(label in t) + rng.normal() for label in range(N_LABELS)}, 5) for t in truths]
    truth = slow.evaluate(rankings, truths, (5,), "repository", N_LABELS, WEIGHTS)
    held = {"P@5": 0, "PSP@5": 0}
    n_sets = 300
    for seed in range(n_sets):
        drawn = rng.integers(0, 200, 150)
        result = scored(
            [rankings[i] for i in drawn], [truths[i] for i in drawn], width=5, ks=(5,),
            inverse_propensity=WEIGHTS, n_resamples=300, seed=seed,
        )  # fmt: skip
        for name in held:
            estimate = result.values[name]
            held[name] += estimate.low <= truth[name] <= estimate.high
    assert all(0.90 <= count / n_sets <= 0.99 for count in held.values()), held


def test_which_metrics_have_intervals():
    """Means over rows and their ratios; not macro and coverage, which lose labels in every resample."""
    result = scored(RANKINGS, TRUTHS, inverse_propensity=WEIGHTS, n_resamples=200)
    for name, estimate in result.values.items():
        if name.startswith(("macro", "coverage")):
            assert estimate.low is None, name
            assert estimate.high is None, name
        else:
            assert 0 <= estimate.low <= estimate.value <= estimate.high <= 100, name
    assert all(e.low is None and e.high is None for e in scored(RANKINGS, TRUTHS).values.values())


def test_intervals_are_drawn_from_the_seed():
    first, again, other = (scored(RANKINGS, TRUTHS, n_resamples=50, seed=seed).values for seed in (1, 1, 2))
    assert first == again
    assert first["P@5"].value == other["P@5"].value
    assert first["nDCG@5"][1:] != other["nDCG@5"][1:]


def test_the_same_predictions_do_not_differ_and_a_better_one_does():
    """Meters of the same seed draw the same rows, so that the difference of equals is 0 in every resample."""
    worse = [ranking[::-1] for ranking in RANKINGS]
    first, again, other = (scored(r, TRUTHS, n_resamples=200) for r in (RANKINGS, RANKINGS, worse))
    for name, drawn in first.draws.items():
        value = first.values[name].value
        assert difference(value, again.values[name].value, drawn, again.draws[name]) == (0.0, 0.0, 0.0, 1.0)
    found = difference(first.values["MRR"].value, other.values["MRR"].value, first.draws["MRR"], other.draws["MRR"])
    assert found.value == other.values["MRR"].value - first.values["MRR"].value
    assert found.low <= found.value <= found.high


def test_p_value_by_hand():
    """Of 9 resampled differences one is not positive: 2 (1 + 1) / (9 + 1)."""
    drawn = np.array([-1.0, 1, 2, 3, 4, 5, 6, 7, 8])
    assert difference(10.0, 14.0, np.zeros(9), drawn) == pytest.approx((4.0, -0.6, 7.8, 0.4))


@given(n_won=st.integers(0, 200), n_lost=st.integers(0, 200))
def test_sign_test_is_the_exact_binomial_one(n_won, n_lost):
    expected = binomtest(n_won, n_won + n_lost).pvalue if n_won + n_lost else 1.0
    assert sign_test(n_won, n_lost) == pytest.approx(expected, rel=1e-9)


# Refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ks": (0, 1)}, r"numbers from 1.*\[0, 1\]"),
        ({"ks": (1, 3, 3)}, r"different numbers.*\[1, 3, 3\]"),
        ({"ks": ()}, r"numbers from 1.*\[\]"),
        ({"convention": "matlab"}, "matlab.*repository"),
        ({"inverse_propensity": np.ones(4)}, "4.*9"),
        ({"label_counts": np.ones(4, int)}, "4.*9"),
        ({"label_counts": TRAINING_COUNTS, "edges": (100, 10)}, r"ascending.*\[100, 10\]"),
        ({"label_counts": TRAINING_COUNTS, "edges": (1, 10)}, r"2 or more.*\[1, 10\]"),
    ],
)
def test_refuses_senseless_settings(options, words):
    with pytest.raises(InputError, match=words):
        Meter(N_LABELS, **options)


@pytest.mark.parametrize(
    ("labels", "shape", "words"),
    [
        ([[0, 1, 2, 3, 4]], (2, N_LABELS), "predictions have 1 rows, but the data has 2"),
        ([[0, 1, 2, 3, 9]], (1, N_LABELS), "label 9 is out of range: the data has 9 labels"),
        ([[0, 1, 2, 3, 4]], (1, 7), "7.*9|9.*7"),
    ],
)
def test_refuses_rows_that_do_not_fit(labels, shape, words):
    with pytest.raises(InputError, match=words):
        Meter(N_LABELS).add(top_of(labels), csr_array(shape, dtype=np.float32))


# Size


def test_amazon_670k_sized_data_needs_no_dense_matrix():
    """20,000 rows x 670,000 labels: a dense matrix of single bits would have 1.7 GB; counts of labels have 38 MB."""
    resource = pytest.importorskip("resource", reason="peak memory is asked from the operating system")
    n_rows, n_labels, block = 20_000, 670_000, 5_000
    rng = np.random.default_rng(5)
    meter = Meter(n_labels, n_resamples=100, inverse_propensity=np.full(n_labels, 2.0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(0, n_rows, block):
        ids = np.sort(rng.integers(0, n_labels // 8, (block, 5)) + np.arange(5) * (n_labels // 8), axis=1)
        labels = csr_array(
            (np.ones(ids.size, np.float32), ids.ravel().astype(np.int32), np.arange(0, ids.size + 1, 5)),
            (block, n_labels),
        )
        top = ids.astype(np.int32)
        top[:, 1:] = n_labels - 1 - np.arange(4)  # one true label, four that are true nowhere
        meter.add(top_of(top), labels)
    result = meter.result()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert values_of(result)["P@5"] == pytest.approx(20.0)
    assert grown < 1e9, f"{grown / 1e6:.0f} MB"


# The worked example of docs/evaluation.md


def simulated(n_rows, seed):
    """Rows of 1 to 8 of 300 labels with frequencies 1/id, one in twenty without labels, and lists that find about half.

    Only random() is asked: Python keeps its numbers for ever.
    """
    rng = random.Random(seed)
    mass = np.cumsum(1 / np.arange(1, 301)).tolist()

    def draw(n):
        return {bisect.bisect(mass, rng.random() * mass[-1]) for _ in range(n)}

    truths = [draw(1 + int(8 * rng.random() ** 3)) if rng.random() > 0.05 else set() for _ in range(n_rows)]
    rankings = []
    for truth in truths:
        guessed = draw(6) | {label for label in sorted(truth) if rng.random() < 0.6}
        guesses = {label: rng.random() + (label in truth) * rng.random() for label in sorted(guessed)}
        rankings.append(slow.rank(guesses, depth=2 if rng.random() < 0.1 else 10))
    return rankings, truths


def percent(value):
    return 100 * float(value)


def test_worked_example_of_the_documentation():
    """Each line of the table `| metric | definition | ... | value |` is computed here, by Meter where it can."""
    rankings, truths = simulated(2000, seed=1)
    _, training = simulated(5000, seed=2)
    counts = np.bincount([label for truth in training for label in truth], minlength=300)
    q = inverse_propensities(counts, 5000, 0.55, 1.5)
    got = {
        name: values_of(scored(rankings, truths, 300, width=10, convention=name, inverse_propensity=q))
        for name in CONVENTIONS
    }
    dropped = values_of(scored(rankings, truths, 300, width=10, drop_empty=True, inverse_propensity=q))
    rows = list(zip(rankings, truths, strict=True))
    ndcgs = [slow.ndcg([r], [t], 5) if t else 1 for r, t in rows]
    gained = [(sum(slow.weights_of_hits(r, t, q)[:5]), sum(slow.best_weights(t, q)[:5])) for r, t in rows]
    seen = len(set().union(*truths))
    values = [
        got["repository"]["P@5"],
        dropped["P@5"],
        percent(slow.mean(slow.ratio(slow.n_hits(r, t, 5), len(r[:5])) for r, t in rows)),
        percent(slow.mean(slow.Fraction(slow.n_hits(r, t, 5), 5) if len(r) >= 5 else 0 for r, t in rows)),
        got["rp"]["RP@5"],
        got["repository"]["nDCG@5"],
        dropped["nDCG@5"],
        percent(slow.mean(ndcgs)),
        got["repository"]["PSP@5"],
        percent(slow.mean(slow.ratio(above, below) for above, below in gained)),
        percent(slow.mean(above / 5 for above, _ in gained)),
        got["repository"]["PSnDCG@5"],
        got["pyxclib"]["PSnDCG@5"],
        got["repository"]["macroF1@5"],
        got["repository"]["macroF1@5"] * 300 / seen,
        got["repository"]["abandonment@5"],
        got["napkinxc"]["abandonment@5"],
    ]
    text = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    table = text.split("## The same predictions")[1].split("## ")[0]
    printed = re.findall(r"^\| .* \| ([0-9.]+) \|$", table, flags=re.MULTILINE)
    assert printed == [f"{value:.2f}" for value in values]


# hits and precision_at_k


def test_equals_the_reference():
    rng = np.random.default_rng(0)
    Y = rng.random((60, 9)) < 0.3
    labels = np.array([rng.permutation(9)[:5] for _ in range(60)])
    labels[rng.random(60) < 0.3, 3:] = -1
    scores = precision_at_k(top_of(labels), csr_array(Y), (1, 2, 3, 4, 5))
    for k in (1, 2, 3, 4, 5):
        assert scores[f"P@{k}"] == pytest.approx(100 * reference.precision_at_k(labels.tolist(), Y, k))


def test_no_labels_at_all():
    truth = csr_array((2, 3))
    assert not hits(top_of([[0], [1]]), truth).any()
    assert precision_at_k(top_of([[0], [1]]), truth, [1]) == {"P@1": 0.0}


@pytest.mark.parametrize(
    ("top", "ks", "message"),
    [
        ([[0]], [1], "predictions have 1 rows, but the data has 2"),
        ([[0], [7]], [1], "label 7 is out of range: the data has 3 labels"),
        ([[0], [1]], [3], "P@3 needs 3 predicted labels per row, but there are 1"),
    ],
)
def test_refuses_what_does_not_fit(top, ks, message):
    with pytest.raises(InputError, match=message):
        precision_at_k(top_of(top), csr_array((2, 3)), ks)
