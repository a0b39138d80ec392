"""xmlpreck.bipartite.baselines: struct by cutting planes and by batches, against plain solvers and closed forms."""

import itertools
import math
import os
import stat
import sys

import numpy as np
import pytest
import reference
from helpers import ROOT, SIX_X, SIX_Y, draws
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from xmlpreck.bipartite import PrecAtKRanker, baselines, surrogates
from xmlpreck.bipartite.baselines import ClassifierRanker, CuttingPlaneRanker, StructRanker, linear_baselines
from xmlpreck.config import InputError

sys.path.insert(0, str(ROOT / "tools"))
import run_svm_perf

ROUNDING = 1e-9  # relative, of sums of some thousand products


def points(seed, n=300, d=5, share=0.3, noise=1.0):
    """Overlapping classes of given share; every column has zeros, so CSR is not dense in disguise."""
    rng = np.random.default_rng(seed)
    y = (rng.uniform(size=n) < share).astype(int)
    y[:2] = (0, 1)
    X = rng.normal(0, noise, (n, d)) + np.outer(y, np.linspace(0, 1, d))
    return X * (rng.uniform(size=X.shape) < 0.7), y


def struct_objective(w, X, y, k, C, nonnegative=False):
    risk = surrogates.struct_surrogate(X @ w, y, k) / k
    return w @ w / 2 + C * (max(0.0, risk) if nonnegative else risk)


# ---- the most violated candidate ----


def test_most_violated_attains_struct_at_the_largest_k_prime():
    n_ties = 0
    for s, y, k in draws(20, 3000):
        n_wrong, changes = baselines.most_violated(s, y, k)
        value, k_star = reference.struct_sorted(s, y, k)
        assert n_wrong + changes @ s == pytest.approx(value, abs=1e-12)
        assert n_wrong == k - k_star
        y_hat = [*reference.positives(s, y)[:k_star], *reference.negatives(s, y)[: k - k_star]]
        np.testing.assert_array_equal(changes, np.isin(np.arange(len(s)), y_hat) * 1.0 - y)
        n_ties += len(np.unique(s)) < len(s)
    assert n_ties > 500


def test_subgradient_is_the_slope_of_struct():
    rng, h, n_smooth, n_kinks = np.random.default_rng(21), 1e-6, 0, 0
    for s, y, k in draws(21, 800):
        X, w = np.column_stack([s, rng.integers(-2, 3, len(s))]), rng.integers(-2, 3, 2).astype(float)
        share, loss, direction = baselines.cut_at(w, X, y, k)
        value, gradient = k * share, k * direction
        assert value == pytest.approx(surrogates.struct_surrogate(X @ w, y, k), abs=1e-12)
        assert share == pytest.approx(loss + w @ direction, abs=1e-12)
        for i, e in enumerate(np.eye(2) * h):
            left = (value - surrogates.struct_surrogate(X @ (w - e), y, k)) / h
            right = (surrogates.struct_surrogate(X @ (w + e), y, k) - value) / h
            # struct is piecewise linear, so 1e-7 is the rounding of values below 100 over h
            if right - left < 1e-7:
                assert gradient[i] == pytest.approx((left + right) / 2, abs=1e-7)
                n_smooth += 1
            else:
                assert left - 1e-7 <= gradient[i] <= right + 1e-7
                n_kinks += 1
    assert n_smooth > 1000
    assert n_kinks > 100


# ---- cutting planes ----


def solved_by_scipy(X, y, k, C, nonnegative):
    """min |w|²/2 + C slack under one constraint for each candidate, all of them written out."""
    losses, directions = [], []
    for y_hat in itertools.combinations(range(len(y)), k):
        losses.append(reference.Delta(y, y_hat) / k)
        directions.append((X[list(y_hat)].sum(0) - X[y == 1].sum(0)) / k)
    losses, directions = np.array(losses), np.array(directions)
    if nonnegative:
        losses, directions = np.append(losses, 0.0), np.vstack([directions, np.zeros(X.shape[1])])
    found = minimize(
        lambda v: v[:-1] @ v[:-1] / 2 / C + v[-1],
        np.append(np.zeros(X.shape[1]), losses.max()),
        jac=lambda v: np.append(v[:-1] / C, 1.0),
        constraints={
            "type": "ineq",
            "fun": lambda v: v[-1] - losses - directions @ v[:-1],
            "jac": lambda v: np.column_stack([-directions, np.ones(len(losses))]),
        },
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert found.success, found.message
    return C * found.fun


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("C", [0.05, 1.0, 20.0])
def test_objective_is_that_of_a_general_solver(C, nonnegative):
    for seed in range(8):
        X, y = points(seed, n=9, d=3, share=0.5)
        k = 1 + seed % int(y.sum())
        ranker = CuttingPlaneRanker(k=k, C=C, epsilon=1e-7, nonnegative=nonnegative).fit(X, y)
        wanted = solved_by_scipy(X, y, k, C, nonnegative)
        found = struct_objective(ranker.coef_, X, y, k, C, nonnegative)
        assert ranker.history_[-1]["objective"] == pytest.approx(found, rel=ROUNDING, abs=1e-12)
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize(("kappa", "C", "d"), [(0.25, 0.1, 5), (0.25, 100.0, 5), (1.0, 10.0, 5), (1.0, 1000.0, 1)])
def test_bounds_close_in_from_both_sides(kappa, C, d, nonnegative):
    X, y = points(3, n=500, d=d)
    ranker = CuttingPlaneRanker(kappa=kappa, C=C, epsilon=1e-6, nonnegative=nonnegative).fit(X, y)
    primal, dual, gap = (np.array([facts[key] for facts in ranker.history_]) for key in ("objective", "dual", "gap"))
    slack = ROUNDING * np.abs(primal).max()
    assert len(primal) > 2
    assert (dual <= primal + slack).all()
    assert (dual <= primal[-1] + slack).all()
    assert (np.diff(dual) >= -slack).all()
    assert (np.diff(primal) <= 0).all()
    np.testing.assert_allclose(gap, primal - dual)
    assert gap[-1] <= 1e-6 * abs(primal[-1])
    k = surrogates.kappa_to_k(int(y.sum()), kappa)
    assert primal[-1] == pytest.approx(struct_objective(ranker.coef_, X, y, k, C, nonnegative), rel=ROUNDING)
    surrogate = surrogates.struct_surrogate(X @ ranker.coef_, y, k) / k
    surrogate = max(0.0, surrogate) if nonnegative else surrogate
    assert ranker.history_[-1]["surrogate"] == pytest.approx(surrogate, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_dropped_cuts_cost_nothing(nonnegative, monkeypatch):
    X, y = points(4, n=400, d=8)
    settings = {"kappa": 0.7 if nonnegative else 1.0, "C": 100.0, "epsilon": 1e-6, "nonnegative": nonnegative}
    kept = CuttingPlaneRanker(**settings).fit(X, y)
    sizes, drop = [], baselines.Cuts.drop_idle

    def watched(cuts):
        drop(cuts)
        sizes.append((len(cuts.losses), len(cuts.alpha), *cuts.gram.shape, len(cuts.directions)))

    monkeypatch.setattr(baselines, "IDLE_ITERATIONS", 1)
    monkeypatch.setattr(baselines.Cuts, "drop_idle", watched)
    dropped = CuttingPlaneRanker(**settings).fit(X, y)
    assert all(len(set(shape)) == 1 for shape in sizes)
    assert max(shape[0] for shape in sizes) < dropped.n_iter_ / 2
    assert dropped.history_[-1]["gap"] <= 1e-6 * dropped.history_[-1]["objective"]
    assert dropped.history_[-1]["objective"] == pytest.approx(kept.history_[-1]["objective"], rel=2e-6)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 4), st.sampled_from([1e-3, 1.0, 1e3]), st.booleans())
def test_best_mixture_is_optimal(seed, n_cuts, n_features, total, repeated):
    """At the optimum of a concave function over a simplex every cut in use has the largest gain."""
    rng = np.random.default_rng(seed)
    directions, losses = rng.normal(size=(n_cuts, n_features)), rng.uniform(size=n_cuts)
    if repeated:  # cuts that are the same, or differ by their loss alone
        directions[n_cuts // 2 :] = directions[0]
        losses[-1] = losses[0]
    start = np.zeros(n_cuts)
    start[rng.integers(n_cuts)] = total
    gram = directions @ directions.T
    alpha = baselines.best_mixture(gram, losses, start)
    gains = losses - gram @ alpha
    assert (alpha >= 0).all()
    assert alpha.sum() == pytest.approx(total, rel=1e-12)
    # Σ alpha (largest gain - gain) bounds what is missing of the maximum.
    assert alpha @ (gains.max() - gains) <= 1e-8 * total * (1 + np.abs(gains).max())


# ---- six points on which struct fails (appendix of the paper), through training ----


@pytest.mark.parametrize("C", [0.3, 0.9, 4.0])
def test_six_points_cutting_planes_choose_the_wrong_sign(C):
    X = SIX_X[:, None]
    ranker = CuttingPlaneRanker(k=1, C=C, epsilon=1e-9).fit(X, SIX_Y)
    # At w < 0 struct is 1 - |w|, so |w|²/2 + C (1 - |w|) is least at |w| = C; a slack >= 0 stops at struct = 0.
    assert ranker.coef_ == pytest.approx([-C], rel=1e-6)
    assert ranker.history_[-1]["objective"] == pytest.approx(C - C**2 / 2, abs=1e-8)
    clipped = CuttingPlaneRanker(k=1, C=C, epsilon=1e-9, nonnegative=True).fit(X, SIX_Y)
    assert clipped.coef_ == pytest.approx([-min(C, 1.0)], rel=1e-6)
    assert ranker.score(X, SIX_Y) == clipped.score(X, SIX_Y) == 0.0


@pytest.mark.parametrize("method", baselines.METHODS)
def test_six_points_batches_choose_the_wrong_sign(method):
    X = SIX_X[:, None]
    ranker = StructRanker(method, k=1, batch_points=6).fit(X, SIX_Y)
    assert ranker.coef_[0] < 0
    assert ranker.score(X, SIX_Y) == 0.0
    ours = PrecAtKRanker("sgd-avg", k=1, batch_points=6).fit(X, SIX_Y)
    assert ours.coef_[0] > 0
    assert ours.score(X, SIX_Y) == 1.0


# ---- stochastic batches ----


def slow_struct(X, y, orders, *, kappa, k, batch, eta, decay, radius, average):
    w, w_sum, t = np.zeros(X.shape[1]), np.zeros(X.shape[1]), 0
    for order in orders:
        for start in range(0, len(y), batch):
            t += 1
            part = order[start : start + batch]
            n_plus = int(y[part].sum())
            if 0 < n_plus < len(part):
                s, k_batch = X[part] @ w, max(1, round(kappa * n_plus)) if k is None else min(k, n_plus)
                k_star = reference.struct_sorted(s, y[part], k_batch)[1]
                up = reference.positives(s, y[part])[k_star:]
                down = reference.negatives(s, y[part])[: k_batch - k_star]
                w = w + eta / t**decay * (X[part[up]].sum(0) - X[part[down]].sum(0))
                if radius and np.linalg.norm(w) > radius:
                    w = w * radius / np.linalg.norm(w)
            w_sum += w
    return w_sum / t if average else w


@pytest.mark.parametrize("given_k", [None, 4])
@pytest.mark.parametrize(("decay", "power"), [("sqrt", 0.5), ("constant", 0.0)])
@pytest.mark.parametrize("radius", [0.0, 0.5])
@pytest.mark.parametrize("average", [True, False])
def test_sgd_is_the_slow_one(given_k, decay, power, radius, average):
    X, y = points(5, n=130)
    ranker = StructRanker(
        k=given_k, kappa=0.5, batch_points=20, passes=3, eta=0.05, decay=decay, radius=radius, average=average, seed=7
    ).fit(X, y)
    orders = [np.random.default_rng([7, number]).permutation(len(y)) for number in (1, 2, 3)]
    wanted = slow_struct(
        X, y, orders, kappa=0.5, k=given_k, batch=20, eta=0.05, decay=power, radius=radius, average=average
    )
    np.testing.assert_allclose(ranker.coef_, wanted, rtol=ROUNDING)
    if radius:
        assert np.linalg.norm(ranker.coef_) <= radius * (1 + ROUNDING)


def test_1pmb_is_one_averaged_pass_with_falling_steps():
    X, y = points(6, n=130)
    ranker = StructRanker("1pmb", batch_points=20, passes=9, eta=0.05, decay="constant", average=False).fit(X, y)
    orders = [np.random.default_rng([0, 1]).permutation(len(y))]
    wanted = slow_struct(X, y, orders, kappa=0.25, k=None, batch=20, eta=0.05, decay=0.5, radius=1.0, average=True)
    np.testing.assert_allclose(ranker.coef_, wanted, rtol=ROUNDING)
    assert ranker.n_iter_ == 1


def test_batches_of_one_kind_make_no_step_and_count_in_the_mean():
    X, y = points(7, n=40, share=0.1)
    y = (np.arange(40) < 2).astype(int)
    ranker = StructRanker(batch_points=1, passes=2).fit(X, y)
    assert not ranker.coef_.any()
    assert [facts["skipped"] for facts in ranker.history_] == [40, 40]
    ranker = StructRanker(batch_points=10, passes=2).fit(X, y)
    orders = [np.random.default_rng([0, number]).permutation(len(y)) for number in (1, 2)]
    wanted = slow_struct(X, y, orders, kappa=0.25, k=None, batch=10, eta=0.1, decay=0.5, radius=1.0, average=True)
    np.testing.assert_allclose(ranker.coef_, wanted, rtol=ROUNDING)
    skipped = [sum(not y[order[start : start + 10]].any() for start in range(0, 40, 10)) for order in orders]
    assert [facts["skipped"] for facts in ranker.history_] == skipped
    assert 0 < sum(skipped) < 8


def test_history_has_the_mean_struct_of_the_batches():
    X, y = points(18, n=60)
    ranker = StructRanker(kappa=0.5, batch_points=60, passes=2, average=False).fit(X, y)
    k, shown = surrogates.kappa_to_k(int(y.sum()), 0.5), []
    StructRanker(kappa=0.5, batch_points=60, passes=1, average=False).fit(X, y, lambda seconds, w: shown.append(w))
    for facts, w in zip(ranker.history_, (np.zeros(5), shown[0]), strict=True):
        assert facts["surrogate"] == pytest.approx(surrogates.struct_surrogate(X @ w, y, k), rel=ROUNDING)


def test_steps_are_shown_after_doubling_numbers_of_batches_and_every_pass():
    X, y = points(8, n=100)
    shown = []
    ranker = StructRanker(batch_points=10, passes=2).fit(X, y, on_step=lambda seconds, w: shown.append(w.copy()))
    assert len(shown) == len([1, 2, 4, 8, 10, 16, 20])
    assert [facts["pass"] for facts in ranker.history_] == [1, 2]
    assert [facts["batches"] for facts in ranker.history_] == [10, 10]
    assert len({w.tobytes() for w in shown}) == len(shown)  # what was shown does not change afterwards


# ---- what all of them promise ----


def rankers():
    return {
        "cuts": CuttingPlaneRanker(),
        "sgd": StructRanker(batch_points=50, passes=3),
        "1pmb": StructRanker("1pmb", batch_points=50),
        **linear_baselines(0.25, 0),
    }


@pytest.mark.parametrize("name", rankers())
def test_sparse_rows_are_dense_rows(name):
    X, y = points(9)
    dense = rankers()[name].fit(X, y)
    for rows in (csr_matrix(X), csr_array(X)):
        sparse = rankers()[name].fit(rows, y)
        np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-5 if name in ("logistic", "svm") else ROUNDING)
        np.testing.assert_allclose(sparse.decision_function(rows), dense.decision_function(X), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", rankers())
def test_contract(name):
    X, y = points(10)
    calls = []
    ranker = rankers()[name]
    assert clone(ranker).get_params().keys() == ranker.get_params().keys()
    assert ranker.fit(X, y, on_step=lambda seconds, w: calls.append((seconds, w))) is ranker
    again = clone(ranker).fit(X, np.where(y == 1, 1, -1))
    np.testing.assert_array_equal(again.coef_, ranker.coef_)
    assert ranker.coef_.shape == (5,)
    np.testing.assert_array_equal(calls[-1][1], ranker.coef_)
    seconds = [call[0] for call in calls]
    assert seconds == sorted(seconds)
    assert seconds[-1] == ranker.history_[-1]["seconds"] > 0
    np.testing.assert_allclose(ranker.decision_function(X), X @ ranker.coef_ + ranker.intercept_, rtol=1e-12)
    assert ranker.score(X, y) == 1 - surrogates.prec_at_kappa(ranker.decision_function(X), y, 0.25)


def test_seeds():
    X, y = points(11)
    first, same, other = (StructRanker(batch_points=20, passes=2, seed=seed).fit(X, y) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.coef_, same.coef_)
    assert (first.coef_ != other.coef_).any()


@pytest.mark.parametrize("name", ["cuts", "sgd"])
def test_only_training_is_timed(name, monkeypatch):
    """A clock that moves by 1 whenever it is read, and by 1000 in on_step."""
    clock = itertools.count()
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0] + next(clock))

    def on_step(seconds, w):
        now[0] += 1000

    X, y = points(12)
    ranker = rankers()[name].set_params(time_limit=2.0).fit(X, y, on_step=on_step)
    # Two readings of the clock for each step, 1 apart: the second step reaches the limit.
    assert ranker.history_[-1]["seconds"] == 2.0


def test_max_iter_and_no_more():
    X, y = points(13, n=200)
    ranker = CuttingPlaneRanker(kappa=1.0, C=100.0, epsilon=1e-12, max_iter=3).fit(X, y)
    assert ranker.n_iter_ == 3
    assert ranker.history_[-1]["gap"] > 0


def test_no_weights_at_all_are_never_the_model():
    X, y = points(17)
    ranker = CuttingPlaneRanker(kappa=1.0, C=1e-5).fit(X, y)
    # w = 0 would do: its primal is C (every place of k wrong), and the dual is that near
    assert 1e-5 - ranker.history_[0]["dual"] <= 1e-3 * 1e-5
    assert ranker.coef_.any()


def test_linear_baselines_are_scikit_learn():
    X, y = points(14)
    found = linear_baselines(kappa=0.5, seed=3)
    for name, plain in (
        ("logistic", LogisticRegression(max_iter=1000, random_state=3)),
        ("svm", LinearSVC(random_state=3)),
    ):
        np.testing.assert_array_equal(
            found[name].fit(X, y).decision_function(X), plain.fit(X, y == 1).decision_function(X)
        )
        assert found[name].kappa == 0.5


BAD = [
    (CuttingPlaneRanker(kappa=0.0), "kappa must be .*, but is 0.0"),
    (CuttingPlaneRanker(k=0), "k must be .*, but is 0"),
    (CuttingPlaneRanker(C=0.0), "C must be a positive number, but is 0.0"),
    (CuttingPlaneRanker(C=math.inf), "C must be a positive number, but is inf"),
    (CuttingPlaneRanker(epsilon=0.0), "epsilon must be a positive number, but is 0.0"),
    (CuttingPlaneRanker(max_iter=1.5), "max_iter must be a whole number, 1 or more, but is 1.5"),
    (CuttingPlaneRanker(max_iter=0), "max_iter must be a whole number, 1 or more, but is 0"),
    (CuttingPlaneRanker(time_limit=0.0), "time_limit must be .*, but is 0.0"),
    (StructRanker("2pmb"), "method must be one of sgd, 1pmb, but is '2pmb'"),
    (StructRanker(eta=-1.0), "eta must be .*, but is -1.0"),
    (StructRanker(batch_points=0), "batch_points must be .*, but is 0"),
    (StructRanker(radius=-1.0), "radius must be .*, but is -1.0"),
    (ClassifierRanker(LinearSVC(), kappa=2.0), "kappa must be .*, but is 2.0"),
]


@pytest.mark.parametrize(("ranker", "message"), BAD)
def test_bad_settings_are_named(ranker, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        ranker.fit(*points(15, n=20))


@pytest.mark.parametrize("name", rankers())
def test_bad_points_are_named(name):
    X, y = points(15, n=20)
    for wrong, message in ((y * 0, "no positive point"), (y * 0 + 1, "no negative point"), (y * 3, "point 1 has 3")):
        with pytest.raises(InputError, match=f"^[^\n]*{message}[^\n]*$"):
            rankers()[name].fit(X, wrong)


@pytest.mark.parametrize("name", ["cuts", "sgd", "1pmb"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_overflow_is_told(name):
    X, y = points(16, n=100)
    with pytest.raises(InputError, match=r"^[^\n]*scores are not finite in pass \d+: scale the features of X[^\n]*$"):
        rankers()[name].fit(X * 1e200, y)


# ---- tools/run_svm_perf.py: a stand-in for the program, which is not at hand ----

STAND_IN = """#!{python}
import sys
from pathlib import Path
points, model = map(Path, sys.argv[-2:])
Path({log!r}).write_text("|".join(sys.argv[1:-2]) + "|" + points.read_text().splitlines()[-1])
model.write_text("SVM-light Version V6.20\\n0 # kernel type\\n0 # threshold b, each following line is a SV\\n"
                 "1 1:0.5 3:-2 #\\n-2 1:1 2:0.25 #\\n")
"""


def test_svm_perf_is_called_and_its_weights_read(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    X, y = np.array([[0.0, 0.0, 2.0], [1.0, 0.0, 1.5]]), np.array([False, True])
    assert not run_svm_perf.svm_perf_available()
    with pytest.raises(InputError, match=r"^svm_perf_learn: not on the PATH"):
        run_svm_perf.run_svm_perf(X, y, 0.25, 2.0)
    program, log = tmp_path / "svm_perf_learn", tmp_path / "log"
    program.write_text(STAND_IN.format(python=sys.executable, log=str(log)))
    os.chmod(program, stat.S_IRWXU)
    assert run_svm_perf.svm_perf_available()
    w, seconds = run_svm_perf.run_svm_perf(X, y, 0.25, 2.0)
    np.testing.assert_array_equal(w, [-1.5, -0.5, -2.0])
    assert seconds > 0
    assert log.read_text() == "-c|2.0|-w|3|-l|4|--p|0.25|--b|0|1 1:1 3:1.5"


def test_svm_perf_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "svm_perf_learn"
    program.write_text("#!/bin/sh\necho no memory\nexit 3\n")
    os.chmod(program, stat.S_IRWXU)
    with pytest.raises(InputError, match=r"^svm_perf_learn: wrote no model \(exit 3\): no memory$"):
        run_svm_perf.run_svm_perf(np.eye(2), np.array([True, False]), 0.25, 1.0)
    (tmp_path / "model").write_text("something else\n")
    with pytest.raises(InputError, match="not a model file of SVM-perf"):
        run_svm_perf.read_weights(tmp_path / "model", 2)
