"""The bipartite ranker against the slow reference, the paper's mistake bounds, and scikit-learn's contract."""

from types import SimpleNamespace

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csc_array, csr_array, csr_matrix
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from xmlpreck.bipartite import PrecAtKRanker, prec_at_kappa, surrogates
from xmlpreck.config import PAPER_RULES, InputError


def noisy_points(n_rows=230, n_features=6, share=0.3, seed=0):
    """Overlapping classes with continuous features: no two scores tie, so rounding decides nothing."""
    rng = np.random.default_rng(seed)
    y = rng.random(n_rows) < share
    return rng.normal(size=(n_rows, n_features)) + 0.4 * y[:, None], y


def separable_points(gamma, n_rows=400, n_features=5, seed=0):
    """A unit w* separates the classes by a strong gamma-margin."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_rows) % 4 == 0
    w = rng.normal(size=n_features)
    w /= np.linalg.norm(w)
    X = rng.normal(size=(n_rows, n_features))
    along = np.where(y, 1, -1) * (gamma / 2 + rng.random(n_rows))
    return X - np.outer(X @ w, w) + np.outer(along, w), y, w


def orders(n_rows, passes, seed=0):
    return [np.random.default_rng([seed, number]).permutation(n_rows) for number in range(1, passes + 1)]


def check_against_reference(X, y, *, algo, batch_points, passes=3, seed=0, **settings):
    """Both weights and the facts of every pass; 1e-9 is float64 rounding with room to spare."""
    given = {"kappa": 0.25, "eta": 0.1, "decay": "sqrt"} | settings
    rule = {"k": None, **given}
    expected = reference.train_points(X, y, rule=algo, orders=orders(len(y), passes, seed),
                                      batch_points=batch_points, **rule)  # fmt: skip
    for average, weights in ((True, expected.average), (False, expected.last)):
        ranker = PrecAtKRanker(algo, batch_points=batch_points, passes=passes, seed=seed, average=average, **given)
        ranker.fit(X, y)
        np.testing.assert_allclose(ranker.coef_, weights, rtol=1e-9, atol=1e-9)
    for facts, surrogate, mistakes, updated in zip(
        ranker.history_, expected.surrogate, expected.mistakes, expected.updated, strict=True
    ):
        n_ranked = facts["batches"] - facts["skipped"]
        assert facts["surrogate"] * n_ranked == pytest.approx(surrogate, rel=1e-9)
        assert facts["mistakes"] * n_ranked == pytest.approx(mistakes)
        assert facts["updated"] == updated
    return ranker


@pytest.mark.parametrize("algo", PAPER_RULES)
@pytest.mark.parametrize("decay", ["sqrt", "constant"])
@pytest.mark.parametrize("radius", [0.0, 0.5])
@pytest.mark.parametrize("top", [{"kappa": 0.25}, {"kappa": 1.0}, {"k": 3}])
def test_weights_equal_the_reference(algo, decay, radius, top):
    X, y = noisy_points()
    ranker = check_against_reference(X, y, algo=algo, decay=decay, radius=radius, batch_points=40, seed=5, **top)
    assert radius == 0 or np.linalg.norm(ranker.coef_) <= radius * (1 + 1e-12)


@pytest.mark.parametrize("algo", PAPER_RULES)
@pytest.mark.parametrize("eta", [0.001, 3.0, 30.0])
def test_every_length_of_step(algo, eta):
    """With short steps the margin of 1 decides k*, with long ones the scores do."""
    X, y = noisy_points(share=0.5)
    check_against_reference(X, y, algo=algo, eta=eta, batch_points=50)


@pytest.mark.parametrize("algo", ["perceptron-max", "sgd-max"])
def test_ties_go_to_the_point_that_comes_first(algo):
    """Whole features and steps of 1/4 add up exactly: scores tie, and there is nothing else to decide."""
    rng = np.random.default_rng(3)
    for seed in range(30):
        X = rng.integers(-1, 2, (60, 2)).astype(float)
        y = rng.random(60) < 0.4
        check_against_reference(X, y, algo=algo, eta=0.25, decay="constant", batch_points=20, seed=seed)


@pytest.mark.parametrize("algo", PAPER_RULES)
def test_batches_of_one_kind_take_no_step_but_count(algo):
    X, y = noisy_points(n_rows=101, share=0.15)
    ranker = check_against_reference(X, y, algo=algo, batch_points=4)
    skipped = [facts["skipped"] for facts in ranker.history_]
    expected = [sum(not y[order[i : i + 4]].any() for i in range(0, 101, 4)) for order in orders(101, 3)]
    assert skipped == expected
    assert min(skipped) > 0
    check_against_reference(X, ~y, algo=algo, batch_points=4)  # now some have no negative


@pytest.mark.parametrize("algo", PAPER_RULES)
@pytest.mark.parametrize("k", [1, 50, 10_000])
def test_k_beyond_the_positives_is_their_number(algo, k):
    X, y = noisy_points(n_rows=90)
    check_against_reference(X, y, algo=algo, k=k, batch_points=30)
    if k == 10_000:
        by_k = PrecAtKRanker(algo, k=k, batch_points=30, passes=2).fit(X, y)
        by_kappa = PrecAtKRanker(algo, kappa=1.0, batch_points=30, passes=2).fit(X, y)
        assert np.array_equal(by_k.coef_, by_kappa.coef_)
        assert by_k.score(X, y) == by_kappa.score(X, y)


def test_one_batch_longer_than_the_data():
    X, y = noisy_points(n_rows=70)
    check_against_reference(X, y, algo="sgd-avg", batch_points=1000)


@pytest.mark.parametrize("algo", PAPER_RULES)
def test_sparse_and_dense_give_the_same_bits(algo):
    X, y = noisy_points()
    X[np.abs(X) < 0.5] = 0
    dense = PrecAtKRanker(algo, batch_points=40, passes=3).fit(X, y)
    for kind in (csr_array, csr_matrix, csc_array, coo_array):
        sparse = clone(dense).fit(kind(X), y)
        assert np.array_equal(sparse.coef_, dense.coef_)
        np.testing.assert_allclose(sparse.decision_function(kind(X)), dense.decision_function(X), rtol=1e-12)


def test_the_seed_decides_everything():
    X, y = noisy_points()
    ranker = PrecAtKRanker(batch_points=40, passes=3, seed=1)
    first = ranker.fit(X, y).coef_
    assert np.array_equal(clone(ranker).fit(X, y).coef_, first)
    assert np.array_equal(ranker.fit(X, y).coef_, first)  # nothing is left of the fit before
    assert not np.array_equal(clone(ranker).set_params(seed=2).fit(X, y).coef_, first)


@pytest.mark.parametrize("algo", PAPER_RULES)
@pytest.mark.parametrize("kappa", [0.25, 1.0])
def test_separable_points_are_ranked_without_mistake(algo, kappa):
    X, y, _ = separable_points(gamma=1.0)
    ranker = PrecAtKRanker(algo, kappa=kappa, batch_points=50, passes=50, average=False).fit(X, y)
    assert ranker.score(X, y) == 1
    assert ranker.history_[0]["mistakes"] > 0
    assert ranker.history_[-1]["mistakes"] == 0


def total_mistakes(ranker):
    return sum(facts["mistakes"] * (facts["batches"] - facts["skipped"]) for facts in ranker.history_)


@pytest.mark.parametrize("algo", ["perceptron-avg", "perceptron-max"])
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("gamma", [0.2, 1.0])
def test_mistake_bound_of_separable_points(algo, k, gamma):
    """4 k R^2 / gamma^2; a strong margin is also a (k, gamma)-margin, so the bound is one for both perceptrons."""
    X, y, w = separable_points(gamma)
    R = np.linalg.norm(X, axis=1).max()
    assert surrogates.strong_margin(X @ w, y, 1) >= gamma
    made = total_mistakes(PrecAtKRanker(algo, k=k, batch_points=40, passes=100).fit(X, y))
    assert 0 < made <= 4 * k * R**2 / gamma**2


@pytest.mark.parametrize(("algo", "surrogate"), [("perceptron-avg", "avg"), ("perceptron-max", "max")])
@pytest.mark.parametrize("k", [1, 4])
def test_mistake_bound_of_any_points(algo, surrogate, k):
    """(|w| R sqrt(4k) + sqrt(sum of surrogate(w)))^2, for w = 0, for w that were learned, and at other scales."""
    X, y = noisy_points(n_rows=400)
    R = np.linalg.norm(X, axis=1).max()
    ranker = PrecAtKRanker(algo, k=k, batch_points=40, passes=5).fit(X, y)
    made = total_mistakes(ranker)
    batches = [order[i : i + 40] for order in orders(400, 5) for i in range(0, 400, 40)]
    value = getattr(surrogates, f"{surrogate}_surrogate")
    direction = ranker.coef_ / np.linalg.norm(ranker.coef_)
    for length in (0, 0.01, 0.1, 1, 10):
        s = X @ (length * direction)
        total = sum(value(s[batch], y[batch], min(k, int(y[batch].sum()))) for batch in batches)
        assert 0 < made <= (length * R * np.sqrt(4 * k) + np.sqrt(total)) ** 2


@pytest.mark.parametrize("algo", PAPER_RULES)
def test_a_constant_feature_learns_nothing(algo):
    """The coefficients of a step add up to 0: hence no intercept."""
    X, y = noisy_points()
    plain = PrecAtKRanker(algo, batch_points=40, passes=3).fit(X, y)
    with_constant = clone(plain).fit(np.hstack([X, np.ones((len(X), 1))]), y)
    assert plain.intercept_ == 0
    assert np.abs(plain.coef_).max() > 0.01
    np.testing.assert_allclose(with_constant.coef_, [*plain.coef_, 0], atol=1e-9)


@pytest.mark.parametrize("average", [True, False])
def test_on_step_sees_the_weights_as_they_grow(average):
    X, y = noisy_points()  # 230 points: 6 batches a pass
    seen = []
    ranker = PrecAtKRanker(batch_points=40, passes=3, average=average)
    ranker.fit(X, y, on_step=lambda seconds, w: seen.append((seconds, w)))
    for n_batches, (_, w) in zip((1, 2, 4, 6, 8, 12, 16, 18), seen, strict=True):  # powers of 2 and ends of passes
        n_whole, rest = divmod(n_batches, 6)
        begun = orders(230, n_whole + 1)
        so_far = [*begun[:n_whole], begun[n_whole][: rest * 40]] if rest else begun[:n_whole]
        expected = reference.train_points(
            X, y, rule="sgd-avg", orders=so_far, batch_points=40, kappa=0.25, eta=ranker.eta, decay="sqrt"
        )
        np.testing.assert_allclose(w, expected.average if average else expected.last, rtol=1e-9, atol=1e-9)
    times = [seconds for seconds, _ in seen]
    assert times == sorted(times)
    assert np.array_equal(seen[-1][1], ranker.coef_)
    assert [facts["pass"] for facts in ranker.history_] == [1, 2, 3]
    assert [facts["batches"] for facts in ranker.history_] == [6, 6, 6]
    assert ranker.history_[-1]["seconds"] == times[-1]


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves on by 1 with every look at it, so that each call of the kernel takes one second."""
    clock = SimpleNamespace(now=0.0)

    def look():
        clock.now += 1
        return clock.now

    monkeypatch.setattr("xmlpreck.bipartite.ranker.time", SimpleNamespace(perf_counter=look))
    return clock


def test_only_training_is_timed(clock):
    X, y = noisy_points()

    def dawdle(seconds, w):
        clock.now += 1000

    ranker = PrecAtKRanker(batch_points=40, passes=2).fit(X, y, on_step=dawdle)
    assert [facts["seconds"] for facts in ranker.history_] == [4, 6]  # 1, 2, 4, 6 and 8, 12 batches


@pytest.mark.parametrize(("limit", "n_passes", "n_batches"), [(1, 1, 1), (2.5, 1, 4), (4, 1, 6), (5, 2, 2), (99, 3, 6)])
def test_time_limit(clock, limit, n_passes, n_batches):
    X, y = noisy_points()
    seen = []
    ranker = PrecAtKRanker(batch_points=40, passes=3, time_limit=limit)
    ranker.fit(X, y, on_step=lambda seconds, w: seen.append(w))
    assert ranker.n_iter_ == len(ranker.history_) == n_passes
    assert ranker.history_[-1]["batches"] == n_batches
    assert np.array_equal(ranker.coef_, seen[-1])


def test_contract_of_scikit_learn():
    X, y = noisy_points()
    settings = {"algo": "sgd-max", "kappa": 0.5, "k": 7, "batch_points": 30, "passes": 2, "eta": 0.3,
                "decay": "constant", "radius": 2.0, "average": False, "seed": 9, "time_limit": 60.0}  # fmt: skip
    ranker = PrecAtKRanker(**settings)
    assert ranker.get_params() == settings
    assert clone(ranker).get_params() == settings
    assert ranker.fit(X, y) is ranker
    assert ranker.get_params() == settings
    assert ranker.n_features_in_ == 6
    assert ranker.coef_.shape == (6,)
    np.testing.assert_allclose(ranker.decision_function(X), X @ ranker.coef_, rtol=1e-12)
    assert cross_val_score(PrecAtKRanker(passes=2), X, y, cv=3).shape == (3,)


def test_both_ways_to_write_y():
    X, y = noisy_points()
    ranker = PrecAtKRanker(batch_points=40, passes=2).fit(X, y)
    for written, classes in (
        (y.astype(int), [0, 1]),
        (np.where(y, 1, -1), [-1, 1]),
        (np.where(y, 1.0, -1.0).tolist(), [-1, 1]),
    ):
        other = clone(ranker).fit(X, written)
        assert np.array_equal(other.coef_, ranker.coef_)
        assert other.classes_.tolist() == classes
        assert other.score(X, written) == ranker.score(X, y)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"algo": "sgd"}, "algo must be one of sgd-avg, .* but is 'sgd'"),
        ({"kappa": 0}, "kappa must be .* but is 0"),
        ({"kappa": 1.5}, "kappa must be .* but is 1.5"),
        ({"kappa": "a"}, "kappa must be .* but is 'a'"),
        ({"k": 0}, "k must be .* but is 0"),
        ({"k": 2.5}, "k must be .* but is 2.5"),
        ({"k": True}, "k must be .* but is True"),
        ({"batch_points": 0}, "batch_points must be .* but is 0"),
        ({"passes": 0}, "passes must be .* but is 0"),
        ({"eta": 0.0}, "eta must be .* but is 0.0"),
        ({"eta": float("inf")}, "eta must be .* but is inf"),
        ({"decay": "linear"}, "decay must be one of constant, sqrt, but is 'linear'"),
        ({"radius": -1.0}, "radius must be .* but is -1.0"),
        ({"average": 2}, "average must be .* but is 2"),
        ({"seed": -1}, "seed must be .* but is -1"),
        ({"time_limit": 0}, "time_limit must be .* but is 0"),
    ],
)
def test_wrong_settings(wrong, words):
    X, y = noisy_points(20)
    with pytest.raises(InputError, match=f"^{words}$"):
        PrecAtKRanker(**wrong).fit(X, y)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([1, 2, 1], "but point 1 has 2"),
        ([1, -1, 0], "but point 2 has 0"),
        ([0.0, 1.0, np.nan], "but point 2 has nan"),
        (["0", "1", "1"], "but has type <U1"),
        ([1, 1, 1], "y has no negative point"),
        ([0, 0, 0], "y has no positive point"),
        ([-1, -1, -1], "y has no positive point"),
    ],
)
def test_wrong_y(y, words):
    with pytest.raises(InputError, match=words) as error:
        PrecAtKRanker().fit(np.eye(3), y)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("X", "y"), [(np.eye(3), [0, 1]), ([[np.nan], [1.0]], [0, 1]), (np.zeros((0, 2)), [])])
def test_wrong_points(X, y):
    with pytest.raises(ValueError, match=r"inconsistent|NaN|minimum of 1"):
        PrecAtKRanker().fit(X, y)


def test_features_too_large_for_scores():
    X, y = noisy_points()
    with pytest.raises(InputError, match="scores are not finite in pass 1: scale the features"):
        PrecAtKRanker(batch_points=40).fit(1e200 * X, y)


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=1, max_size=12), st.floats(0.01, 1))
def test_prec_at_kappa_by_hand(points, kappa):
    scores, y = [float(score) for score, _ in points], [int(positive) for _, positive in points]
    if not any(y):
        with pytest.raises(InputError, match="no positive point"):
            prec_at_kappa(scores, y, kappa)
        return
    k = max(1, round(kappa * sum(y)))
    best = sorted(range(len(y)), key=lambda i: (-scores[i], i))[:k]
    assert prec_at_kappa(scores, y, kappa) == pytest.approx(sum(y[i] for i in best) / k, abs=1e-12)
    assert prec_at_kappa(scores, [2 * label - 1 for label in y], kappa) == prec_at_kappa(scores, y, kappa)


@pytest.mark.parametrize("kappa", [0, -0.1, 1.01, float("nan")])
def test_prec_at_kappa_of_a_wrong_kappa(kappa):
    with pytest.raises(InputError, match="kappa must be"):
        prec_at_kappa([1.0, 0.0], [1, 0], kappa)
