"""Compute precision at the top of one bipartite ranking: the loss, its surrogates and its margins, in float64.

n items carry scores s and relevance y; n+ of them are relevant, and 1 <= k <= n+. Always

    prec@k    <=    ramp    <=    avg    <=    max
                      ^            ^            ^
                weak margin    k margin    strong margin

where a surrogate is 0 exactly when the margin under it is at least 1. `struct` (Joachims) is separate: it
equals avg at k = n+ and bounds nothing when k < n+. The source is section 3 of Kar, Narasimhan and Jain,
"Surrogate Functions for Maximizing Precision at the Top", ICML 2015.

Each surrogate is a maximum over all candidates y^ with k ones. Among those with k' relevant ones the best
takes the k' best relevant and the k-k' best irrelevant items, so the maximum runs over k' = 0..k. Below,
s+_1 >= s+_2 >= ... are the relevant scores and s-_1 >= s-_2 >= ... the irrelevant ones; a k' which asks for
more irrelevant items than there are is skipped.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Surrogate = Callable[[npt.ArrayLike, npt.ArrayLike, int], float]


def prec_at_k(scores: npt.ArrayLike, relevance: npt.ArrayLike, k: int) -> int:
    """Count the irrelevant items among the k highest scores, 0..k (eq. preck-def).

    prec@k(s) = Σ_{i<=k} (1 - y_i), items numbered by descending score, ties by ascending index.
    """
    s, y = _check(scores, relevance, k)
    top = np.argsort(-s, kind="stable")[:k]
    return int(k - np.count_nonzero(y[top]))


def struct_surrogate(scores: npt.ArrayLike, relevance: npt.ArrayLike, k: int) -> float:
    """Compute Joachims' surrogate: convex, but may be below prec@k if k < n+ (appendix, "Structural SVM").

    max_y^ { Δ(y,y^) + Σ (y^_i - y_i) s_i }  =  max_k' { (k-k') + Σ_{i<=k-k'} s-_i - Σ_{i>k'} s+_i }
    """
    return _maximise(scores, relevance, k, lambda relevant, kept: relevant[kept:].sum())


def ramp_surrogate(scores: npt.ArrayLike, relevance: npt.ArrayLike, k: int) -> float:
    """Compute the tightest of the three upper bounds, which is not convex (eq. ramp_surr).

    max_y^ { Δ(y,y^) + Σ y^_i s_i } - Σ_{i<=k} s+_i
      =  max_k' { (k-k') + Σ_{i<=k-k'} s-_i - Σ_{k'<i<=k} s+_i }
    """
    return _maximise(scores, relevance, k, lambda relevant, kept: relevant[kept:k].sum())


def avg_surrogate(scores: npt.ArrayLike, relevance: npt.ArrayLike, k: int) -> float:
    """Compute the tighter convex upper bound: false negatives count by their mean (eq. avg_surr).

    max_y^ { Δ(y,y^) + Σ (y^_i - y_i) s_i + (n+ - k)/(n+ - K(y,y^)) Σ (1 - y^_i) y_i s_i }
      =  max_k' { (k-k') + Σ_{i<=k-k'} s-_i - (k-k')/(n+ - k') Σ_{i>k'} s+_i },  the last term 0 at k' = k
    """

    def relevant_part(relevant: Vector, kept: int) -> float:
        return (k - kept) * relevant[kept:].mean() if kept < k else 0.0

    return _maximise(scores, relevance, k, relevant_part)


def max_surrogate(scores: npt.ArrayLike, relevance: npt.ArrayLike, k: int) -> float:
    """Compute the looser convex upper bound: the lowest relevant items count (eq. max_surr).

    max_y^ { Δ(y,y^) + Σ (y^_i - y_i) s_i + the n+ - k best relevant scores outside y^ }
      =  max_k' { (k-k') + Σ_{i<=k-k'} s-_i - Σ_{i>n+-(k-k')} s+_i }
    """
    return _maximise(scores, relevance, k, lambda relevant, kept: relevant[len(relevant) - (k - kept) :].sum())


def weak_margin(scores: npt.ArrayLike, relevance: npt.ArrayLike, k: int) -> float:
    """Compute the largest weak (k,gamma)-margin (def. weak-k-margin): s+_k - s-_1; +inf if all items are relevant."""
    relevant, irrelevant = _split(scores, relevance, k)
    return _above_best(irrelevant, relevant[k - 1])


def k_margin(scores: npt.ArrayLike, relevance: npt.ArrayLike, k: int) -> float:
    """Compute the largest (k,gamma)-margin (def. k-margin): mean(s+_k .. s+_n+) - s-_1; +inf if all are relevant.

    The definition requires it of every n+-k+1 relevant items; the lowest ones decide.
    """
    relevant, irrelevant = _split(scores, relevance, k)
    return _above_best(irrelevant, relevant[k - 1 :].mean())


def strong_margin(scores: npt.ArrayLike, relevance: npt.ArrayLike, k: int) -> float:
    """Compute the largest strong gamma-margin (def. strong-k-margin): s+_n+ - s-_1; +inf if all are relevant.

    It does not depend on k, which is only checked, so that all margins have the same signature.
    """
    relevant, irrelevant = _split(scores, relevance, k)
    return _above_best(irrelevant, relevant[-1])


def kappa_to_k(n_relevant: int, kappa: float) -> int:
    """Return the k of prec@κ: max(1, round(κ n+)), 0 < κ <= 1; halves round to even, as in Python."""
    if n_relevant < 1:
        raise ValueError(f"n_relevant must be at least 1, but is {n_relevant}")
    if not 0 < kappa <= 1:
        raise ValueError(f"kappa must be above 0 and at most 1, but is {kappa}")
    return max(1, round(kappa * n_relevant))


def prec_at_kappa(scores: npt.ArrayLike, relevance: npt.ArrayLike, kappa: float) -> float:
    """Compute prec@κ(s) = prec@k(s) / k with k = kappa_to_k(n+, κ): the share of mistakes, 0..1."""
    return surrogate_at_kappa(prec_at_k, scores, relevance, kappa)


def surrogate_at_kappa(surrogate: Surrogate, scores: npt.ArrayLike, relevance: npt.ArrayLike, kappa: float) -> float:
    """Compute surrogate(s) / k with k = kappa_to_k(n+, κ), which bounds prec@κ if the surrogate bounds prec@k."""
    k = kappa_to_k(int(np.count_nonzero(relevance)), kappa)
    return surrogate(scores, relevance, k) / k


def _maximise(
    scores: npt.ArrayLike,
    relevance: npt.ArrayLike,
    k: int,
    relevant_part: Callable[[Vector, int], float],
) -> float:
    """Compute max_k' { (k-k') + Σ_{i<=k-k'} s-_i - relevant_part(s+, k') } over the feasible k'."""
    relevant, irrelevant = _split(scores, relevance, k)
    min_kept = max(0, k - len(irrelevant))
    return float(
        max(
            (k - kept) + irrelevant[: k - kept].sum() - relevant_part(relevant, kept) for kept in range(min_kept, k + 1)
        )
    )


def _above_best(irrelevant: Vector, score: float) -> float:
    """Return the distance of a score above the best irrelevant one."""
    return float(score - irrelevant[0]) if len(irrelevant) else float("inf")


def _split(scores: npt.ArrayLike, relevance: npt.ArrayLike, k: int) -> tuple[Vector, Vector]:
    """Check the input; return the relevant scores s+ and the irrelevant scores s-, both descending."""
    s, y = _check(scores, relevance, k)
    return np.sort(s[y])[::-1], np.sort(s[~y])[::-1]


def _check(scores: npt.ArrayLike, relevance: npt.ArrayLike, k: int) -> tuple[Vector, npt.NDArray[np.bool_]]:
    """Convert scores to float64 and relevance to booleans; raise ValueError for a wrong value."""
    s = np.asarray(scores, dtype=np.float64)
    y = np.asarray(relevance, dtype=np.float64)
    for name, values in (("scores", s), ("relevance", y)):
        if values.ndim != 1:
            raise ValueError(f"{name} must have one dimension, but has shape {values.shape}")
    if len(s) != len(y):
        raise ValueError(f"scores and relevance must have the same length, but have {len(s)} and {len(y)}")
    if not np.isfinite(s).all():
        item = int(np.argmin(np.isfinite(s)))
        raise ValueError(f"scores must be finite, but item {item} has {s[item]}")
    if not np.isin(y, (0, 1)).all():
        item = int(np.argmin(np.isin(y, (0, 1))))
        raise ValueError(f"relevance must be 0 or 1, but item {item} has {y[item]}")
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise ValueError(f"k must be an integer, but is {k!r}")
    n_relevant = int(y.sum())
    if not 1 <= k <= n_relevant:
        raise ValueError(f"k must be between 1 and the {n_relevant} relevant items, but is {k}")
    return s, y == 1
