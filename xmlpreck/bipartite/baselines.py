"""Train the paper's baselines: the struct surrogate, by cutting planes and by stochastic batches; and classifiers.

All rank points by one w. With n+ relevant points, k of `top_size`, and a candidate y^ of k ones,

    struct(w) = max_y^ { Delta(y,y^) + Σ (y^_i - y_i) <w, x_i> }          (surrogates.struct_surrogate)

is convex, but not bounded below when k < n+: longer weights alone lower it. A constant feature would shift all
scores, and struct by (k - n+) times the shift, whatever the other weights are: so there is no intercept. For the same
reason, coefficients that add up to k - n+, the learned ranking depends on the origin of the features.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from xmlpreck.bipartite.ranker import SETTINGS, BatchRanker, LinearRanker, OnStep, Step, SteppedRanker, top_size
from xmlpreck.config import STEP_DECAYS, require

Vector = npt.NDArray[np.float64]
Relevance = npt.NDArray[np.bool_]

METHODS = ("sgd", "1pmb")
RIDGE = 1e-13  # of the largest diagonal element: makes the dual of linearly dependent cuts strictly concave
PRECISION = 1e-10  # of a multiplier, in units of the loss
IDLE_ITERATIONS = 20  # drop a cut that had no weight for this many iterations


def most_violated(scores: Vector, relevant: Relevance, k: int) -> tuple[float, Vector]:
    """Return (Delta, y^ - y) of the candidate that attains struct = Delta + Σ (y^_i - y_i) s_i, in O(n).

    Each item adds s_i + (1 - y_i) on its own, so y^ holds the k largest of these; ties go to relevant items
    (the largest k'), then to lower indices. y^ - y is a subgradient by the scores.
    """
    gains = scores + ~relevant
    lowest = np.partition(gains, len(gains) - k)[len(gains) - k]
    chosen = gains > lowest
    tied = np.flatnonzero(gains == lowest)
    tied = tied[np.argsort(~relevant[tied], kind="stable")]
    chosen[tied[: k - np.count_nonzero(chosen)]] = True
    return float(np.count_nonzero(chosen & ~relevant)), chosen.astype(np.float64) - relevant


@dataclass(eq=False, repr=False)
class CuttingPlaneRanker(SteppedRanker):
    """Joachims' SVM for multivariate measures (ICML 2005): precision at k, all points as one ranking, one slack.

        min_w P(w) = |w|²/2 + C R(w),   R(w) = struct(w)/k,   or max(0, struct(w)/k) if `nonnegative`

    A candidate y^ is a cut R(w) >= loss + <w, direction>: loss = Delta/k, direction = Σ (y^_i - y_i) x_i / k. Over the
    cuts so far the best lower bound on P is the dual

        max_alpha { <alpha, loss> - |w|²/2 : alpha >= 0, Σ alpha = C },   w = -Σ alpha_j direction_j

    and the candidate most violated at that w is the next cut. It ends when P(w) - dual <= epsilon |P(w)| for the best w
    so far, which is the model. `nonnegative` is the slack >= 0 of Joachims' program: one more candidate, 0 + <w, 0>.
    history_ has for each iteration (`pass`): `seconds`, `objective` = P, `dual`, `gap`, `surrogate` = R.
    """

    kappa: float = 0.25
    k: int | None = None
    C: float = 1.0
    epsilon: float = 1e-3
    max_iter: int = 2000
    nonnegative: bool = False
    time_limit: float | None = None

    def fit(self, X: Any, y: Any, on_step: OnStep | None = None) -> Self:
        """Train from zero; call on_step(seconds, best w so far) after every iteration."""
        self._check_settings()
        for name, alike in {"C": "eta", "epsilon": "eta", "max_iter": "passes"}.items():
            is_right, rule = SETTINGS[alike]
            require(is_right(getattr(self, name)), name, getattr(self, name), rule)
        rows, relevant = self._read_points(X, y)
        return self._follow(self._cut(rows, relevant), on_step)

    def _cut(self, rows: Any, relevant: Relevance) -> Iterator[Step]:
        """Iterate: w of the dual, its primal, the cut at w; yield the w of the lowest primal so far."""
        k = top_size(int(relevant.sum()), self.kappa, self.k)
        cuts = Cuts(rows.shape[1], self.C)
        # The first cut is at w = 0, which ranks nothing and is never the model, however good its primal is.
        _, loss, direction = cut_at(np.zeros(rows.shape[1]), rows, relevant, k)
        primal = math.inf
        for iteration in range(1, self.max_iter + 1):
            cuts.add(loss, direction)
            dual, w = cuts.solve()
            cuts.drop_idle()
            risk, loss, direction = cut_at(w, rows, relevant, k)
            if self.nonnegative and risk < 0:
                risk, loss, direction = 0.0, 0.0, np.zeros_like(w)
            value = float(w @ w / 2 + self.C * risk)
            if not value >= primal:  # accepts nan too, which is refused later
                primal, surrogate, best = value, risk, w
            gap = primal - dual
            yield best, {"pass": iteration, "objective": primal, "dual": dual, "gap": gap, "surrogate": surrogate}
            if gap <= self.epsilon * abs(primal):
                return


def cut_at(w: Vector, rows: Any, relevant: Relevance, k: int) -> tuple[float, float, Vector]:
    """Return (struct/k, loss, direction) of the candidate most violated at w: struct/k = loss + <w, direction>."""
    n_wrong, changes = most_violated(rows @ w, relevant, k)
    direction = rows.T @ changes / k
    return float(n_wrong / k + w @ direction), n_wrong / k, direction


class Cuts:
    """The cuts so far, and the alpha of their best mixture; alpha stays feasible, so the dual never decreases."""

    def __init__(self, n_features: int, C: float) -> None:
        self.C = C
        self.losses, self.alpha, self.idle = np.zeros(0), np.zeros(0), np.zeros(0, dtype=int)
        self.directions, self.gram = np.zeros((0, n_features)), np.zeros((0, 0))

    def add(self, loss: float, direction: Vector) -> None:
        products = self.directions @ direction
        self.gram = np.block([[self.gram, products[:, None]], [products[None, :], direction @ direction]])
        self.losses = np.append(self.losses, loss)
        self.directions = np.vstack([self.directions, direction])
        self.idle = np.append(self.idle, 0)
        self.alpha = np.append(self.alpha, 0.0 if len(self.alpha) else self.C)

    def solve(self) -> tuple[float, Vector]:
        """Return the largest dual and its w."""
        self.alpha = best_mixture(self.gram, self.losses, self.alpha)
        w = -self.alpha @ self.directions
        return float(self.alpha @ self.losses - w @ w / 2), w

    def drop_idle(self) -> None:
        self.idle = np.where(self.alpha > 0, 0, self.idle + 1)
        kept = np.flatnonzero(self.idle < IDLE_ITERATIONS)
        self.losses, self.directions = self.losses[kept], self.directions[kept]
        self.gram, self.alpha, self.idle = self.gram[np.ix_(kept, kept)], self.alpha[kept], self.idle[kept]


def best_mixture(gram: Vector, losses: Vector, start: Vector) -> Vector:
    """Find argmax { <alpha, losses> - <alpha, gram alpha>/2 : alpha >= 0, Σ alpha = Σ start } by active sets.

    Move to the optimum over the active cuts; if that needs a negative alpha, only until the first alpha is 0, and
    deactivate its cut. At such an optimum all active cuts have the same gain, losses - gram alpha; activate the other
    cut of the largest gain, until none is larger. Every move raises the value, so no set of cuts repeats.
    """
    alpha, used = start.copy(), np.flatnonzero(start)
    for _ in range(50 * len(start)):  # usually a few per cut; rounding could make dependent cuts cycle
        here, goal = alpha[used], _best_on(used, gram, losses, alpha)
        leaves = goal < 0
        if leaves.any():
            reach = here[leaves] / (here[leaves] - goal[leaves])
            alpha[used] = np.maximum(here + reach.min() * (goal - here), 0.0)
            first = np.flatnonzero(leaves)[np.argmin(reach)]
            alpha[used[first]] = 0.0
            used = np.delete(used, first)
            continue
        alpha[used] = goal
        gains = losses - gram @ alpha
        entering = int(np.argmax(gains))
        if gains[entering] - gains[used].max() <= PRECISION * (1 + abs(gains[entering])):
            break
        used = np.append(used, entering)
    return alpha


def _best_on(used: npt.NDArray[np.intp], gram: Vector, losses: Vector, alpha: Vector) -> Vector:
    """Return the optimal alpha of these cuts, of either sign, with their present sum.

    r, the cut of the largest alpha, takes the remainder. They move by t with H t = gain - gain_r, where
    H_ij = <direction_i - direction_r, direction_j - direction_r>.
    """
    r = used[np.argmax(alpha[used])]
    others = used[used != r]
    gains = losses - gram @ alpha
    H = gram[np.ix_(others, others)] - gram[others, r][:, None] - gram[r, others] + gram[r, r]
    H[np.diag_indices_from(H)] += RIDGE * gram.diagonal().max()
    moves = np.linalg.solve(H, gains[others] - gains[r])
    goal = alpha.copy()
    goal[others] += moves
    goal[r] -= moves.sum()
    return goal[used]


@dataclass(eq=False, repr=False)
class StructRanker(BatchRanker):
    """Train by stochastic subgradients of struct: a batch is one ranking, as in PrecAtKRanker, with the same settings.

        w <- w - eta_t Σ (y^_i - y_i) x_i,   then projected into the ball of `radius`, if that is not 0

    "1pmb" is the one-pass method with mini-batches of Kar, Narasimhan and Jain (NIPS 2014): one pass, eta / sqrt(t),
    the mean of the weights after every batch; `passes`, `decay` and `average` are for "sgd" only. Without a ball the
    weights grow with every step. A batch without positive or without negative points makes none, and is `skipped`.
    """

    method: str = "sgd"
    radius: float = field(default=1.0, kw_only=True)

    def fit(self, X: Any, y: Any, on_step: OnStep | None = None) -> Self:
        """Train from zero; call on_step(seconds, weights) after batches 1, 2, 4, 8, ... and after every pass."""
        self._check_settings()
        require(self.method in METHODS, "method", self.method, "one of " + ", ".join(METHODS))
        rows, relevant = self._read_points(X, y)
        passes, decay, average = (self.passes, self.decay, self.average) if self.method == "sgd" else (1, "sqrt", True)
        return self._follow(self._train(rows, relevant, passes, STEP_DECAYS[decay], average), on_step)

    def _train(self, rows: Any, relevant: Relevance, passes: int, decay: float, average: bool) -> Iterator[Step]:
        """Yield the weights after batches 1, 2, 4, 8, ... and after the last of each pass."""
        n_rows, n_features = rows.shape
        w, w_sum, t = np.zeros(n_features), np.zeros(n_features), 0
        for number in range(1, passes + 1):
            order = np.random.default_rng([self.seed, number]).permutation(n_rows)
            batches = np.split(order, range(self.batch_points, n_rows, self.batch_points))
            values: list[float] = []
            for n_done, batch in enumerate(batches, start=1):
                t += 1
                k = top_size(int(relevant[batch].sum()), self.kappa, self.k)
                if k > 0 and not relevant[batch].all():
                    value, _, direction = cut_at(w, rows[batch], relevant[batch], k)
                    values.append(k * value)
                    w = _into_ball(w - self.eta / t**decay * k * direction, self.radius)
                w_sum += w
                if t.bit_count() == 1 or n_done == len(batches):
                    surrogate = sum(values) / max(len(values), 1)
                    facts = {"pass": number, "surrogate": surrogate, "batches": n_done, "skipped": n_done - len(values)}
                    yield w_sum / t if average else w, facts


def _into_ball(w: Vector, radius: float) -> Vector:
    length = float(np.linalg.norm(w))
    # A length that overflows must not end as w = 0: such a w is kept, and refused later.
    return w * (radius / length) if 0 < radius < length < math.inf else w


@dataclass(eq=False, repr=False)
class ClassifierRanker(LinearRanker):
    """Rank by the scores of a linear classifier of scikit-learn; on_step is called once, at the end."""

    classifier: Any
    kappa: float = 0.25
    k: int | None = None

    def fit(self, X: Any, y: Any, on_step: OnStep | None = None) -> Self:
        self._check_settings()
        rows, relevant = self._read_points(X, y)
        since = perf_counter()
        fitted = clone(self.classifier).fit(rows, relevant)
        seconds = perf_counter() - since
        self.coef_, self.intercept_ = fitted.coef_[0], float(fitted.intercept_[0])
        self.history_ = [{"pass": 1, "seconds": seconds}]
        if on_step is not None:
            on_step(seconds, self.coef_)
        return self


def linear_baselines(kappa: float = 0.25, seed: int = 0) -> dict[str, ClassifierRanker]:
    """Return classifiers that ignore the top: logistic regression and linear SVM with scikit-learn's defaults."""
    return {
        "logistic": ClassifierRanker(LogisticRegression(max_iter=1000, random_state=seed), kappa),
        "svm": ClassifierRanker(LinearSVC(random_state=seed), kappa),
    }
