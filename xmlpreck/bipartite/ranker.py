"""One linear scorer for the points at the top: the bipartite setting of Kar, Narasimhan and Jain (ICML 2015).

A batch of points is one ranking. Its positives are the relevant items, n+ of them, and k = max(1, round(kappa n+)).
"""

import math
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data

from xmlpreck.bipartite.surrogates import kappa_to_k, prec_at_k
from xmlpreck.config import ALGORITHMS, STEP_DECAYS, InputError, require
from xmlpreck.data.matrix import check_structure
from xmlpreck.kernels import linear
from xmlpreck.kernels.arrays import Work, new_work

OnStep = Callable[[float, np.ndarray], None]
Step = tuple[np.ndarray, dict[str, Any]]  # the model as it is now, and what the history says of it


class Points(NamedTuple):
    """Sparse rows (CSR), and which of them are positive."""

    offsets: np.ndarray  # (n_rows + 1) int64
    features: np.ndarray  # int32
    values: np.ndarray  # float64
    relevance: np.ndarray  # (n_rows) bool


class StepSettings(NamedTuple):
    """eta_t = eta / t^decay, t = number of the batch; radius 0 = no projection."""

    rule: int
    eta: float
    decay: float
    radius: float


class PointLearner(NamedTuple):
    """What training changes."""

    weights: np.ndarray  # (n_features) float64
    sums: np.ndarray  # of the weights after every batch
    clock: np.ndarray  # float64: batches done


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


# What a setting may be, for every ranker that has one of this name.
SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "algo": (lambda value: value in ALGORITHMS, "one of " + ", ".join(ALGORITHMS)),
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
    """Which points are positive, of a y that is 0 and 1, or -1 and 1."""
    y = column_or_1d(y)
    if y.dtype.kind not in "biuf":
        raise InputError(f"y must be 0 and 1, or -1 and 1, but has type {y.dtype}")
    is_allowed = np.isin(y, (-1, 1) if (y == -1).any() else (0, 1))
    if not is_allowed.all():
        point = int(np.argmin(is_allowed))
        raise InputError(f"y must be 0 and 1, or -1 and 1, but point {point} has {y[point]}")
    return np.asarray(y == 1)


def top_size(n_pos: int, kappa: float, k: int | None = None) -> int:
    """The k of a ranking with n+ positives: max(1, round(kappa n+)), or min(k, n+) if k is given; 0 if n+ is."""
    if n_pos == 0:
        return 0
    return kappa_to_k(n_pos, kappa) if k is None else min(k, n_pos)


def precision_at_top(scores: Any, y: Any, kappa: float, k: int | None = None) -> float:
    """The share of positives among the best `top_size` points: higher score first, then the lower index."""
    relevance = read_relevance(y)
    k = top_size(int(relevance.sum()), kappa, k)
    if k == 0:
        raise InputError("y has no positive point: precision at the top needs one")
    return 1 - prec_at_k(scores, relevance, k) / k


def prec_at_kappa(scores: Any, y: Any, kappa: float) -> float:
    """Precision, 0..1, among the max(1, round(kappa n+)) best points: 1 - surrogates.prec_at_kappa, which is a loss."""
    require(SETTINGS["kappa"][0](kappa), "kappa", kappa, SETTINGS["kappa"][1])
    return precision_at_top(scores, y, kappa)


class LinearRanker(BaseEstimator):
    """What all rankers share: settings are checked, points read, scores are X coef_ + intercept_."""

    kappa: float
    k: int | None
    coef_: np.ndarray
    intercept_: float

    def decision_function(self, X: Any) -> np.ndarray:
        """The score of every point."""
        check_is_fitted(self, "coef_")
        return np.asarray(self._read_rows(X) @ self.coef_ + self.intercept_)

    def score(self, X: Any, y: Any) -> float:
        """Precision among the best points: prec@kappa, or that of min(k, n+) points if k is set."""
        return precision_at_top(self.decision_function(X), y, self.kappa, self.k)

    def _check_settings(self) -> None:
        for name, value in self.get_params().items():
            if name in SETTINGS:
                is_right, rule = SETTINGS[name]
                require(is_right(value), name, value, rule)

    def _read_rows(self, X: Any, reset: bool = False) -> Any:
        """X as float64, dense or CSR."""
        if issparse(X):
            check_structure(X)
        return validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=reset)

    def _read_points(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:
        """X of a new model, and which of its points are positive; both kinds must be there."""
        rows = self._read_rows(X, reset=True)
        relevance = read_relevance(y)
        check_consistent_length(rows, relevance)
        if relevance.all() or not relevance.any():
            kind = "negative" if relevance.all() else "positive"
            raise InputError(f"y has no {kind} point: a ranking needs both kinds")
        self.classes_ = np.unique(y)
        return rows, relevance


class SteppedRanker(LinearRanker):
    """A ranker that is trained in steps, whose seconds are counted and whose weights are shown one by one."""

    time_limit: float | None

    def _follow(self, steps: Iterator[Step], on_step: OnStep | None) -> Self:
        """Take steps to their end or to the time limit; only they are timed. The last weights are the model."""
        self.intercept_ = 0.0
        self.history_: list[dict[str, Any]] = []
        seconds, since = 0.0, time.perf_counter()
        for w, facts in steps:
            seconds += time.perf_counter() - since
            if not (np.isfinite(w).all() and all(map(math.isfinite, facts.values()))):
                raise InputError(
                    f"scores are no longer finite in pass {facts['pass']}: scale the features of X, to [0, 1] say"
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


class PrecAtKRanker(SteppedRanker):
    """Linear ranking of points by mini-batches, for precision at the top: Algorithms 1 to 4 of the paper.

    Parameters
    ----------
    algo : {"sgd-avg", "sgd-max", "perceptron-avg", "perceptron-max"}
        Rule of the update.
    kappa : float
        A batch with n+ positives is ranked for its best k = max(1, round(kappa n+)) points.
    k : int or None
        The same number for every batch, in place of kappa; a batch with fewer positives takes as many.
    batch_points : int
        Points of a batch; the last one of a pass may have fewer.
    passes : int
        Passes over the points, each in an order of its own.
    eta : float
        Length of a step (sgd only: a perceptron's ranking does not depend on it).
    decay : {"sqrt", "constant"}
        The t-th batch takes a step of eta / sqrt(t), or of eta (sgd only).
    radius : float
        Keep the norm of the weights within this; 0 = free.
    average : bool
        Return the mean of the weights after every batch, not the last ones.
    seed : int
        Order of the points in pass p is default_rng([seed, p]).permutation; the same seed and data give the same bits.
    time_limit : float or None
        Stop at the first step after so many seconds of training.

    Attributes
    ----------
    coef_, intercept_ : ndarray of shape (n_features,), float
        Score = X coef_. The intercept is 0: the coefficients of every step add up to 0, so none is ever learned.
    history_ : list of dict
        For each pass: `seconds` of training so far, `batches`, those `skipped` because they have no positive point,
        those that `updated` the weights; `surrogate` and `mistakes`, means over the batches that were not skipped.
    n_iter_ : int
        Passes, a last one that was cut short included.
    """

    def __init__(
        self,
        algo: str = "sgd-avg",
        kappa: float = 0.25,
        k: int | None = None,
        batch_points: int = 500,
        passes: int = 25,
        eta: float = 0.1,
        decay: str = "sqrt",
        radius: float = 0.0,
        average: bool = True,
        seed: int = 0,
        time_limit: float | None = None,
    ) -> None:
        self.algo = algo
        self.kappa = kappa
        self.k = k
        self.batch_points = batch_points
        self.passes = passes
        self.eta = eta
        self.decay = decay
        self.radius = radius
        self.average = average
        self.seed = seed
        self.time_limit = time_limit

    def fit(self, X: Any, y: Any, on_step: OnStep | None = None) -> Self:
        """Train anew. on_step(seconds of training, weights) after batches 1, 2, 4, 8, ... and after every pass."""
        self._check_settings()
        rows, relevance = self._read_points(X, y)
        rows = csr_array(rows)
        points = Points(rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data, relevance)
        learner = PointLearner(np.zeros(rows.shape[1]), np.zeros(rows.shape[1]), np.zeros(1))
        size = min(self.batch_points, len(relevance))
        work = new_work(size, size, size, np.float64)
        settings, none = self._step_settings(), np.zeros(0, np.int64)
        linear.train_points(points, none, none, size, settings, learner, work)  # compiled before the time is taken
        return self._follow(self._train(points, size, settings, learner, work), on_step)

    def _step_settings(self) -> StepSettings:
        is_sgd = self.algo.startswith("sgd")
        return StepSettings(
            linear.RULES[self.algo],
            float(self.eta) if is_sgd else 1.0,
            STEP_DECAYS[self.decay] if is_sgd else 0.0,
            float(self.radius),
        )

    def _train(
        self, points: Points, size: int, settings: StepSettings, learner: PointLearner, work: Work
    ) -> Iterator[Step]:
        """The weights, and facts about the pass, after batches 1, 2, 4, 8, ... of all and after its last."""
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
                totals += linear.train_points(points, part, ks[first:last], size, settings, learner, work)
                n_ranked = int(np.count_nonzero(ks[:last]))
                weights = learner.sums / learner.clock[0] if self.average else learner.weights.copy()
                with np.errstate(over="ignore"):
                    highest_score = largest * np.abs(weights).sum()  # the rule's comparisons would hide an overflow
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
    """0, n_batches, and in between where the count of all batches is a power of two."""
    powers = (2**i - n_done for i in range((n_done + n_batches).bit_length()))
    return [0, *(stop for stop in powers if 0 < stop < n_batches), n_batches]
