"""Rank points with one linear scorer: the bipartite setting of Kar, Narasimhan and Jain (ICML 2015).

A batch of points is one ranking. Its positives are the relevant items, n+ of them, and k = max(1, round(kappa n+)).
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data

from xmlpreck.bipartite.surrogates import kappa_to_k, prec_at_k
from xmlpreck.config import PAPER_RULES, STEP_DECAYS, InputError, require
from xmlpreck.data.matrix import check_structure
from xmlpreck.kernels.arrays import Work, new_work
from xmlpreck.kernels.points import train_points
from xmlpreck.kernels.rules import RULES

OnStep = Callable[[float, np.ndarray], None]
Step = tuple[np.ndarray, dict[str, Any]]  # the weights so far, and their entry of the history


class Points(NamedTuple):
    """Points as CSR, and which of them are positive."""

    offsets: np.ndarray  # (n_rows + 1) int64
    features: np.ndarray  # int32
    values: np.ndarray  # float64
    relevance: np.ndarray  # (n_rows) bool


class StepSettings(NamedTuple):
    """Step size eta_t = eta / t^decay, t = number of the batch; radius 0 = no projection."""

    rule: int
    eta: float
    decay: float
    radius: float


class PointLearner(NamedTuple):
    """Mutable state of training."""

    weights: np.ndarray  # (n_features) float64
    sums: np.ndarray  # sum of the weights after every batch
    clock: np.ndarray  # float64: batches done


def _is_whole(value: object, minimum: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= minimum


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


# Check and description of each setting, for all rankers that have it.
SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "algo": (lambda value: value in PAPER_RULES, "one of " + ", ".join(PAPER_RULES)),
    "kappa": (lambda value: _is_number(value) and 0 < value <= 1, "a number above 0 and at most 1"),
    "k": (lambda value: value is None or _is_whole(value, 1), "None or a whole number, 1 or more"),
    "batch_points": (lambda value: _is_whole(value, 1), "a whole number, 1 or more"),
    "passes": (lambda value: _is_whole(value, 1), "a whole number, 1 or more"),
    "eta": (lambda value: _is_number(value) and value > 0, "a positive number"),
    "decay": (lambda value: value in tuple(STEP_DECAYS), "one of " + ", ".join(STEP_DECAYS)),
    "radius": (lambda value: _is_number(value) and value >= 0, "0 (no limit) or a positive number"),
    "average": (lambda value: isinstance(value, bool | np.bool_), "True or False"),
    "seed": (lambda value: _is_whole(value, 0), "a whole number, 0 or more"),
    "time_limit": (lambda value: value is None or (_is_number(value) and value > 0), "None or a positive number"),
}


def read_relevance(y: Any) -> np.ndarray:
    """Convert y of 0 and 1, or of -1 and 1, to booleans: True = positive."""
    y = column_or_1d(y)
    if y.dtype.kind not in "biuf":
        raise InputError(f"y must be 0 and 1, or -1 and 1, but has type {y.dtype}")
    is_allowed = np.isin(y, (-1, 1) if (y == -1).any() else (0, 1))
    if not is_allowed.all():
        point = int(np.argmin(is_allowed))
        raise InputError(f"y must be 0 and 1, or -1 and 1, but point {point} has {y[point]}")
    return np.asarray(y == 1)


def top_size(n_pos: int, kappa: float, k: int | None = None) -> int:
    """Return k for n+ positives: max(1, round(kappa n+)), or min(k, n+) if k is given; 0 if n+ = 0."""
    if n_pos == 0:
        return 0
    return kappa_to_k(n_pos, kappa) if k is None else min(k, n_pos)


def precision_at_top(scores: Any, y: Any, kappa: float, k: int | None = None) -> float:
    """Return the share of positives among the best `top_size` points; ties go to the lower index."""
    relevance = read_relevance(y)
    k = top_size(int(relevance.sum()), kappa, k)
    if k == 0:
        raise InputError("y has no positive point: precision at the top needs one")
    return 1 - prec_at_k(scores, relevance, k) / k


def prec_at_kappa(scores: Any, y: Any, kappa: float) -> float:
    """Return the precision (0 to 1) of the max(1, round(kappa n+)) best points: 1 - surrogates.prec_at_kappa."""
    require(SETTINGS["kappa"][0](kappa), "kappa", kappa, SETTINGS["kappa"][1])
    return precision_at_top(scores, y, kappa)


class LinearRanker(BaseEstimator):
    """Base of all rankers: checks settings, reads points, scores X coef_ + intercept_."""

    kappa: float
    k: int | None
    coef_: np.ndarray
    intercept_: float

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the score of every point."""
        check_is_fitted(self, "coef_")
        return np.asarray(self._read_rows(X) @ self.coef_ + self.intercept_)

    def score(self, X: Any, y: Any) -> float:
        """Return the precision of the best points: prec@kappa, or of min(k, n+) points if k is set."""
        return precision_at_top(self.decision_function(X), y, self.kappa, self.k)

    def _check_settings(self) -> None:
        for name, value in self.get_params().items():
            if name in SETTINGS:
                is_right, rule = SETTINGS[name]
                require(is_right(value), name, value, rule)

    def _read_rows(self, X: Any, reset: bool = False) -> Any:
        """Convert X to float64, dense or CSR."""
        if issparse(X):
            check_structure(X)
        return validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=reset)

    def _read_points(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        """Read X and y of a new model; refuse y without positive or without negative points."""
        rows = self._read_rows(X, reset=True)
        relevance = read_relevance(y)
        check_consistent_length(rows, relevance)
        if relevance.all() or not relevance.any():
            kind = "negative" if relevance.all() else "positive"
            raise InputError(f"y has no {kind} point: a ranking needs both kinds")
        self.classes_ = np.unique(y)
        return rows, relevance


class SteppedRanker(LinearRanker):
    """Base of rankers that are trained in steps, with timing, a time limit and a callback."""

    time_limit: float | None

    def _follow(self, steps: Iterator[Step], on_step: OnStep | None) -> Self:
        """Run steps to their end or to the time limit, timing only them; the last weights are the model."""
        self.intercept_ = 0.0
        self.history_: list[dict[str, Any]] = []
        seconds, since = 0.0, time.perf_counter()
        for w, facts in steps:
            seconds += time.perf_counter() - since
            if not (np.isfinite(w).all() and all(map(math.isfinite, facts.values()))):
                raise InputError(
                    f"scores are not finite in pass {facts['pass']}: scale the features of X, e.g. to [0, 1]"
                )
            self.coef_ = w
            self.history_[facts["pass"] - 1 :] = [facts | {"seconds": seconds}]
            if on_step is not None:
                on_step(seconds, w)
            if self.time_limit is not None and seconds >= self.time_limit:
                break
            since = time.perf_counter()
        self.n_iter_ = len(self.history_)
        return self


@dataclass(eq=False, repr=False, kw_only=True)
class BatchRanker(SteppedRanker):
    """Settings of rankers that are trained by mini-batches."""

    kappa: float = 0.25
    k: int | None = None
    batch_points: int = 500
    passes: int = 25
    eta: float = 0.1
    decay: str = "sqrt"
    radius: float = 0.0
    average: bool = True
    seed: int = 0
    time_limit: float | None = None


@dataclass(eq=False, repr=False)
class PrecAtKRanker(BatchRanker):
    """Train a linear ranking of points by mini-batches for precision at the top: Algorithms 1 to 4 of the paper.

    Parameters
    ----------
    algo : {"sgd-avg", "sgd-max", "perceptron-avg", "perceptron-max"}
        Update rule.
    kappa : float
        A batch with n+ positives is ranked for its best k = max(1, round(kappa n+)) points.
    k : int or None
        The same k for every batch, in place of kappa; at most the number of positives of the batch.
    batch_points : int
        Points per batch; the last batch of a pass may have fewer.
    passes : int
        Passes over the points, each in a new order.
    eta : float
        Step size (sgd only: a perceptron's ranking does not depend on it).
    decay : {"sqrt", "constant"}
        Step size of the t-th batch: eta / sqrt(t), or eta (sgd only).
    radius : float
        Maximum norm of the weights; 0 = no limit.
    average : bool
        Return the mean of the weights after every batch instead of the last weights.
    seed : int
        Order of the points in pass p is default_rng([seed, p]).permutation; the same seed and data give the same bits.
    time_limit : float or None
        Stop at the first step after this many seconds of training.

    Attributes
    ----------
    coef_, intercept_ : ndarray of shape (n_features,), float
        Score = X coef_. The intercept is 0: the coefficients of every step add up to 0.
    history_ : list of dict
        For each pass: `seconds` of training so far, number of `batches`, number `skipped` without positive points,
        number that `updated` the weights; means of `surrogate` and `mistakes` over the batches not skipped.
    n_iter_ : int
        Number of passes, including an incomplete last one.
    """

    algo: str = "sgd-avg"

    def fit(self, X: Any, y: Any, on_step: OnStep | None = None) -> Self:
        """Train from zero; call on_step(seconds, weights) after batches 1, 2, 4, 8, ... and after every pass."""
        self._check_settings()
        rows, relevance = self._read_points(X, y)
        rows = csr_array(rows)
        points = Points(rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data, relevance)
        learner = PointLearner(np.zeros(rows.shape[1]), np.zeros(rows.shape[1]), np.zeros(1))
        size = min(self.batch_points, len(relevance))
        work = new_work(size, size, size, np.float64)
        is_sgd, none = self.algo.startswith("sgd"), np.zeros(0, np.int64)
        eta, decay = (float(self.eta), STEP_DECAYS[self.decay]) if is_sgd else (1.0, 0.0)
        settings = StepSettings(RULES[self.algo], eta, decay, float(self.radius))
        train_points(points, none, none, size, settings, learner, work)  # compile before timing
        return self._follow(self._train(points, size, settings, learner, work), on_step)

    def _train(
        self, points: Points, size: int, settings: StepSettings, learner: PointLearner, work: Work
    ) -> Iterator[Step]:
        """Yield the weights and the history entry after batches 1, 2, 4, 8, ... and after the last of each pass."""
        n_rows = len(points.relevance)
        largest = np.abs(points.values).max(initial=0)
        n_done = 0
        for number in range(1, self.passes + 1):
            order = np.random.default_rng([self.seed, number]).permutation(n_rows)
            n_pos = np.add.reduceat(points.relevance[order], np.arange(0, n_rows, size), dtype=np.int64)
            ks = np.array([top_size(int(n), self.kappa, self.k) for n in n_pos])
            totals = np.zeros(3)
            for first, last in pairwise(_stops(n_done, len(ks))):
                part = order[first * size : last * size]
                totals += train_points(points, part, ks[first:last], size, settings, learner, work)
                n_ranked = int(np.count_nonzero(ks[:last]))
                weights = learner.sums / learner.clock[0] if self.average else learner.weights.copy()
                with np.errstate(over="ignore"):
                    highest_score = largest * np.abs(weights).sum()  # the kernel's comparisons would hide an overflow
                yield (
                    weights * (1.0 if np.isfinite(highest_score) else np.nan),
                    {
                        "pass": number,
                        "surrogate": float(totals[0]) / max(n_ranked, 1),
                        "mistakes": float(totals[1]) / max(n_ranked, 1),
                        "batches": last,
                        "skipped": last - n_ranked,
                        "updated": int(totals[2]),
                    },
                )
            n_done += len(ks)


def _stops(n_done: int, n_batches: int) -> list[int]:
    """Return 0, n_batches, and the stops between where the count of all batches is a power of two."""
    powers = (2**i - n_done for i in range((n_done + n_batches).bit_length()))
    return [0, *(stop for stop in powers if 0 < stop < n_batches), n_batches]
