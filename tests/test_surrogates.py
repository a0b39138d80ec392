"""xmlpreck.bipartite.surrogates against the brute force of tests/reference.py and against the claims of the paper."""

import itertools
import math

import numpy as np
import pytest
import reference
from helpers import SIX_X, SIX_Y, draws

from xmlpreck.bipartite import surrogates

NAMES = ("struct", "ramp", "avg", "max")
EXACT = 1e-12  # float64 rounding of sums of at most a dozen scores below 10


def ours(name, s, y, k):
    return getattr(surrogates, f"{name}_surrogate")(s, y, k)


def test_draws_reach_every_corner():
    corners = {"one relevant": 0, "k = n+": 0, "k < n+": 0, "all relevant": 0, "one irrelevant": 0,
               "k' infeasible": 0, "ties across": 0}  # fmt: skip
    for s, y, k in draws(0, 3000):
        n_plus, n_minus = y.sum(), (~y).sum()
        corners["one relevant"] += n_plus == 1
        corners["k = n+"] += k == n_plus > 1
        corners["k < n+"] += k < n_plus
        corners["all relevant"] += n_minus == 0
        corners["one irrelevant"] += n_minus == 1
        corners["k' infeasible"] += n_minus < k
        corners["ties across"] += bool(np.isin(s[y], s[~y]).any())
    assert min(corners.values()) > 250, corners


@pytest.mark.parametrize("name", NAMES)
def test_brute_force_sorted_form_and_ours_agree(name):
    brute = getattr(reference, f"{name}_brute")
    by_sorting = getattr(reference, f"{name}_sorted")
    for s, y, k in draws(0, 3000):
        value = brute(s, y, k)
        assert by_sorting(s, y, k)[0] == pytest.approx(value, abs=EXACT)
        assert ours(name, s, y, k) == pytest.approx(value, abs=EXACT)


def test_by_hand():
    s, y = [2.0, 1.0, 0.0, -1.0], [0, 1, 0, 1]
    assert surrogates.prec_at_k(s, y, 1) == 1
    assert ours("ramp", s, y, 1) == 2.0  # 1 + 2 - 1
    assert ours("avg", s, y, 1) == 3.0  # 1 + 2 - (1 - 1) / 2
    assert ours("max", s, y, 1) == 4.0  # 1 + 2 - (-1)
    assert ours("struct", s, y, 1) == 3.0  # 1 + 2 - (1 - 1)
    assert surrogates.weak_margin(s, y, 1) == -1.0
    assert surrogates.k_margin(s, y, 1) == -2.0
    assert surrogates.strong_margin(s, y, 1) == -3.0


def test_mistakes_and_ties():
    for s, y, k in draws(1, 2000):
        assert surrogates.prec_at_k(s, y, k) == reference.mistakes(s, y, k)
    # all scores equal: the lower index is ranked first
    assert surrogates.prec_at_k([0.0, 0.0, 0.0], [0, 1, 1], 1) == 1
    assert surrogates.prec_at_k([0.0, 0.0, 0.0], [1, 0, 1], 1) == 0


def test_equal_values_take_the_largest_k_prime():
    # A(0) = 1 + 0 - 1 = 0 = A(1): no step is taken
    assert reference.avg_sorted([1.0, 0.0], [1, 0], 1) == (0.0, 1)
    assert not reference.sgd_avg([1.0, 0.0], [1, 0], 1).any()


# ---- the hierarchy (figure surrogate-hierarchy) ----


def test_hierarchy_of_surrogates():
    strict = np.zeros(3, dtype=int)
    for s, y, k in draws(2, 4000, max_items=12):
        chain = [surrogates.prec_at_k(s, y, k), *(ours(name, s, y, k) for name in ("ramp", "avg", "max"))]
        steps = np.diff(chain)
        assert (steps >= -EXACT).all(), (s, y, k)
        strict += steps > 0.01
    assert (strict > 500).all()  # none of the bounds is an equality in disguise


def test_struct_is_avg_at_full_k():
    for s, y, _ in draws(3, 1500, max_items=12):
        n_plus = int(y.sum())
        assert ours("struct", s, y, n_plus) == pytest.approx(ours("avg", s, y, n_plus), abs=EXACT)


def test_margins_match_their_definitions():
    for s, y, k in draws(4, 2000):
        n_plus = int(y.sum())
        best = max(s[~y], default=-math.inf)
        weak = max(min(S) for S in itertools.combinations(s[y], k)) - best
        middle = min(sum(S) / len(S) for S in itertools.combinations(s[y], n_plus - k + 1)) - best
        strong = min(s[y]) - best
        assert surrogates.weak_margin(s, y, k) == pytest.approx(weak, abs=EXACT)
        assert surrogates.k_margin(s, y, k) == pytest.approx(middle, abs=EXACT)
        assert surrogates.strong_margin(s, y, k) == pytest.approx(strong, abs=EXACT)
        assert strong <= middle + EXACT
        assert middle <= weak + EXACT


@pytest.mark.parametrize(("name", "margin"), [("ramp", "weak"), ("avg", "k"), ("max", "strong")])
def test_surrogate_is_zero_exactly_under_its_margin(name, margin):
    margin_of = getattr(surrogates, f"{margin}_margin")
    rng = np.random.default_rng(5)
    for s, y, k in draws(5, 1500, max_items=12):
        if y.all():
            assert margin_of(s, y, k) == math.inf
            assert ours(name, s, y, k) == 0.0
            continue
        wanted = 1.0 + rng.choice([-0.5, 0.0, 0.5])
        s = s + np.where(y, wanted - margin_of(s, y, k), 0.0)
        assert margin_of(s, y, k) == pytest.approx(wanted, abs=EXACT)
        if wanted >= 1:
            assert ours(name, s, y, k) == pytest.approx(0.0, abs=EXACT)
            assert surrogates.prec_at_k(s, y, k) == 0
        else:  # k' = k - 1 alone gives 1 - margin
            assert ours(name, s, y, k) >= 1 - wanted - EXACT


# ---- convexity ----


@pytest.mark.parametrize("name", ["struct", "avg", "max"])
def test_convex_along_segments(name):
    rng = np.random.default_rng(6)
    for s, y, k in draws(6, 2000, max_items=12):
        end, part = rng.normal(0, 3, len(s)), rng.uniform()
        chord = (1 - part) * ours(name, s, y, k) + part * ours(name, end, y, k)
        assert ours(name, (1 - part) * s + part * end, y, k) <= chord + EXACT


def test_ramp_is_not_convex():
    y, a, b = [1, 1, 0], np.array([2.0, -2.0, 0.0]), np.array([-2.0, 2.0, 0.0])
    assert ours("ramp", a, y, 1) == ours("ramp", b, y, 1) == 0.0
    assert ours("ramp", (a + b) / 2, y, 1) == 1.0


# ---- the rules of the reference are (sub)gradients, or read straight from the algorithms ----


@pytest.mark.parametrize("name", ["avg", "max"])
def test_sgd_rule_is_minus_the_gradient(name):
    h = 1e-6
    n_smooth, n_kinks = 0, 0
    for s, y, k in draws(7, 1200):
        step = reference.RULES[f"sgd-{name}"](s, y, k)
        for i, e in enumerate(np.eye(len(s))):
            left = (ours(name, s, y, k) - ours(name, s - h * e, y, k)) / h
            right = (ours(name, s + h * e, y, k) - ours(name, s, y, k)) / h
            # The surrogate is piecewise linear, so 1e-8 is the rounding of values below 100 over h.
            if right - left < 1e-8:
                assert -step[i] == pytest.approx((left + right) / 2, abs=1e-8)
                n_smooth += 1
            else:
                assert left - 1e-8 <= -step[i] <= right + 1e-8
                n_kinks += 1
    assert n_smooth > 3000
    assert n_kinks > 200


@pytest.mark.parametrize("name", ["avg", "max"])
def test_sgd_rule_is_a_subgradient_everywhere(name):
    rng = np.random.default_rng(8)
    for s, y, k in draws(8, 1500, max_items=12):
        g = -reference.RULES[f"sgd-{name}"](s, y, k)
        for scale in (0.1, 1.0, 10.0):
            other = s + rng.normal(0, scale, len(s))
            assert ours(name, other, y, k) >= ours(name, s, y, k) + g @ (other - s) - 1e-11


def test_perceptron_rules_read_from_algorithms_1_and_2():
    n_steps = 0
    for s, y, k in draws(9, 3000, max_items=12):
        y_hat = np.zeros(len(s), dtype=int)
        y_hat[np.lexsort((np.arange(len(s)), -s))[:k]] = 1
        y = y.astype(int)
        delta = ((1 - y) * y_hat).sum()
        avg = np.zeros(len(s))
        fast = np.zeros(len(s))
        if delta > 0:
            D = delta / (y.sum() - (y * y_hat).sum())
            avg = -(1.0 - y) * y_hat + D * (1 - y_hat) * y
            false_negatives = np.flatnonzero((1 - y_hat) * y)
            chosen = false_negatives[np.argsort(-s[false_negatives], kind="stable")[:delta]]
            fast = -(1.0 - y) * y_hat
            fast[chosen] += 1
            n_steps += 1
        np.testing.assert_array_equal(reference.perceptron_avg(s, y, k), avg)
        np.testing.assert_array_equal(reference.perceptron_max(s, y, k), fast)
    assert n_steps > 1000


@pytest.mark.parametrize("rule", reference.RULES)
def test_rules_are_balanced_clip_k_and_skip_the_unlabelled(rule):
    step = reference.RULES[rule]
    for s, y, k in draws(10, 500):
        # What the irrelevant items lose the relevant ones gain: D shares Delta over the false negatives.
        assert step(s, y, k).sum() == pytest.approx(0.0, abs=EXACT)
        n_plus = int(y.sum())
        np.testing.assert_array_equal(step(s, y, n_plus + 3), step(s, y, n_plus))
        assert not step(s, np.zeros(len(s), dtype=bool), k).any()
        assert not step(s, np.ones(len(s), dtype=bool), k).any()


# ---- the six points of the appendix "Structural SVM Surrogate", prec@1 ----


def paper_struct(w):
    """The appendix's form, Delta/k + (1/n) sum (y^ - y) w x, at k = 1, where y^ names one point i."""
    relevant = (SIX_Y * SIX_X * w).sum() / 6
    return max(1 + (w * SIX_X[i] / 6 - SIX_Y[i]) - relevant for i in range(6))


def test_six_points_struct_prefers_the_wrong_sign():
    for w in np.linspace(0.1, 20, 200):
        # Right sign: no mistake, yet the surrogate grows. The appendix claims w/2 for all w > 3/2, which
        # is the maximum only from w = 3 on; between, 1 + w/6 is larger. Its conclusion stands.
        assert surrogates.prec_at_k(w * SIX_X, SIX_Y, 1) == 0
        assert paper_struct(w) == pytest.approx(1 + w / 6 if w <= 3 else w / 2, abs=EXACT)
        # Wrong sign: a mistake, yet the surrogate falls: below prec@1 at once, below 0 from w = -6.
        assert surrogates.prec_at_k(-w * SIX_X, SIX_Y, 1) == 1
        assert paper_struct(-w) == pytest.approx(1 - w / 6, abs=EXACT)
        assert paper_struct(-w) < min(1, paper_struct(w))
        # Without the 1/n the same holds at a sixth of w: 1 + w up to 1/2, then 3w; below 0 from w = -1.
        assert ours("struct", w * SIX_X, SIX_Y, 1) == pytest.approx(max(1 + w, 3 * w), abs=1e-11)
        assert ours("struct", -w * SIX_X, SIX_Y, 1) == pytest.approx(1 - w, abs=1e-11)
        for v in (w, -w):
            assert ours("struct", v * SIX_X / 6, SIX_Y, 1) == pytest.approx(paper_struct(v), abs=EXACT)
    assert paper_struct(1.75) > 1.75 / 2  # between 3/2 and 3
    assert paper_struct(-7.0) < 0
    assert ours("struct", -1.5 * SIX_X, SIX_Y, 1) < 0


def test_six_points_upper_bounds_choose_the_right_sign():
    grid = np.linspace(-5, 5, 201)
    # At w > 0 irrelevant points score -3w; of the relevant ones the best -w, the mean -4w/3, the lowest -2w.
    for name, slope in (("ramp", 2), ("avg", 5 / 3), ("max", 1)):
        values = np.array([ours(name, w * SIX_X, SIX_Y, 1) for w in grid])
        right = grid >= 0
        np.testing.assert_allclose(values[right], np.maximum(0, 1 - slope * grid[right]), atol=EXACT)
        assert (values[~right] > 1).all()
    struct = [ours("struct", w * SIX_X, SIX_Y, 1) for w in grid]
    assert grid[np.argmin(struct)] == -5  # the edge of the grid: it falls without end


# ---- prec@kappa ----


@pytest.mark.parametrize(
    ("n_relevant", "kappa", "k"),
    [(3, 0.1, 1), (1, 1.0, 1), (4, 1.0, 4), (10, 0.24, 2), (10, 0.26, 3), (10, 0.25, 2), (10, 0.75, 8)],
)
def test_kappa_to_k(n_relevant, kappa, k):
    assert surrogates.kappa_to_k(n_relevant, kappa) == k


def test_kappa_forms_are_divided_by_k():
    for s, y, k in draws(11, 500):
        kappa = k / int(y.sum())
        assert surrogates.prec_at_kappa(s, y, kappa) == reference.mistakes(s, y, k) / k
        for name in NAMES:
            surrogate = getattr(surrogates, f"{name}_surrogate")
            assert surrogates.surrogate_at_kappa(surrogate, s, y, kappa) == surrogate(s, y, k) / k


# ---- errors ----

BAD = [
    ([[1.0, 2.0]], [1, 0], 1, r"scores must have one dimension, but has shape \(1, 2\)"),
    ([1.0, 2.0], [[1, 0]], 1, r"relevance must have one dimension, but has shape \(1, 2\)"),
    ([1.0, 2.0, 3.0], [1, 0], 1, "same length, but have 3 and 2"),
    ([1.0, math.nan], [1, 0], 1, "scores must be finite, but item 1 has nan"),
    ([-math.inf, 1.0], [1, 0], 1, "scores must be finite, but item 0 has -inf"),
    ([1.0, 2.0], [1, 2], 1, "relevance must be 0 or 1, but item 1 has 2"),
    ([1.0, 2.0], [math.nan, 1], 1, "relevance must be 0 or 1, but item 0 has nan"),
    ([1.0, 2.0], [1, 0], 1.0, "k must be an integer, but is 1.0"),
    ([1.0, 2.0], [1, 0], True, "k must be an integer, but is True"),
    ([1.0, 2.0, 3.0, 4.0], [1, 1, 1, 0], 5, "k must be between 1 and the 3 relevant items, but is 5"),
    ([1.0, 2.0], [1, 0], 0, "k must be between 1 and the 1 relevant items, but is 0"),
    ([1.0, 2.0], [0, 0], 1, "k must be between 1 and the 0 relevant items, but is 1"),
    ([], [], 1, "k must be between 1 and the 0 relevant items, but is 1"),
]
FUNCTIONS = [
    "prec_at_k",
    *(f"{name}_surrogate" for name in NAMES),
    "weak_margin",
    "k_margin",
    "strong_margin",
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("s", "y", "k", "message"), BAD)
def test_bad_input_is_named(function, s, y, k, message):
    with pytest.raises(ValueError, match=message):
        getattr(surrogates, function)(s, y, k)


@pytest.mark.parametrize(
    ("n_relevant", "kappa", "message"),
    [
        (0, 0.5, "n_relevant must be at least 1, but is 0"),
        (3, 0.0, "kappa must be above 0 and at most 1, but is 0.0"),
        (3, 1.01, "kappa must be above 0 and at most 1, but is 1.01"),
        (3, math.nan, "kappa must be above 0 and at most 1, but is nan"),
    ],
)
def test_bad_kappa_is_named(n_relevant, kappa, message):
    with pytest.raises(ValueError, match=message):
        surrogates.kappa_to_k(n_relevant, kappa)
    with pytest.raises(ValueError, match=message):
        surrogates.prec_at_kappa(np.zeros(3), np.arange(3) < n_relevant, kappa)


def test_accepts_lists_floats_booleans_and_numpy_integers():
    for s in ([3, 1, 2], np.array([3, 1, 2], dtype=np.float32)):
        for y in ([1, 0, 1], [True, False, True], np.array([1.0, 0.0, 1.0])):
            assert surrogates.max_surrogate(s, y, np.int32(2)) == 0.0
