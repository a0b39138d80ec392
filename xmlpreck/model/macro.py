"""Weights of labels that make macro precision, recall or F1 of k labels a row as large as possible.

Schultheis, Kotłowski, Wydmuch, Babbar, Borman and Dembczyński (2024), "Consistent algorithms for multi-label
classification with macro-at-k metrics". A row gets the k labels with the largest a p + b, where p is a label's
probability and a and b are the label's own numbers: the gradient of the metric in the confusion matrix. Frank-Wolfe
finds them; of its steps the one is kept that is best by itself, since a mixture of several would choose at random.
"""

from typing import NamedTuple

import numpy as np

N_STEPS = 20
LINE = np.linspace(0, 1, 101)[:-1]  # shares of a step that are tried


class LabelWeights(NamedTuple):
    """The numbers of some labels, and those of all others."""

    labels: np.ndarray  # ascending ids
    slopes: np.ndarray  # a; one more than labels: the last is that of all others
    shifts: np.ndarray  # b, as a

    def gains(self, labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
        """Return a p + b of each label; -inf where there is none."""
        places = np.searchsorted(self.labels, labels)
        known = np.append(self.labels, -1)[places] == labels
        places = np.where(known, places, len(self.labels))
        return np.where(labels >= 0, self.slopes[places] * probabilities + self.shifts[places], -np.inf)


class Confusion(NamedTuple):
    """Shares of rows, by label."""

    hits: np.ndarray
    kept: np.ndarray
    true: np.ndarray

    def mixed(self, other: "Confusion", share: float) -> "Confusion":
        return Confusion(*((1 - share) * own + share * their for own, their in zip(self, other, strict=True)))


def value(goal: str, found: Confusion, least: float) -> float:
    """Return the macro metric; `least` keeps a label without rows from a division by 0."""
    hits, kept, true = found
    if goal == "f1":
        return float(np.mean(2 * hits / (kept + true + least)))
    return float(np.mean(hits / ((kept if goal == "precision" else true) + least)))


def gradient(goal: str, found: Confusion, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a and b of each label: what one more row with this label adds to n times the metric, right and wrong."""
    hits, kept, true = found
    if goal == "f1":
        below = kept + true + least
        return 2 / below, -2 * hits / below**2
    if goal == "precision":
        return 1 / (kept + least), -hits / (kept + least) ** 2
    return 1 / (true + least), np.zeros(len(true))


def best_k(gains: np.ndarray, k: int) -> np.ndarray:
    """Tell which k of each row are the largest; the first of equal ones, and none of -inf."""
    order = np.argsort(-gains, axis=1, kind="stable")[:, :k]
    kept = np.zeros(gains.shape, bool)
    np.put_along_axis(kept, order, True, axis=1)
    return kept & (gains > -np.inf)


def frank_wolfe(
    labels: np.ndarray, probabilities: np.ndarray, hit: np.ndarray, n_true: np.ndarray, k: int, goal: str
) -> tuple[LabelWeights, list[float]]:
    """Find weights by rows with labels, their probabilities and whether they are right; n_true counts rows by label.

    Returns the best weights, and the metric (a share) of every step; the first is that of the k likeliest labels.
    """
    n_rows, n_labels = len(labels), len(n_true)
    least = 1 / n_rows  # a label that no row has counts as one row would

    def confusion(gains: np.ndarray) -> Confusion:
        kept = best_k(gains, k)
        n_hits, n_kept = (np.bincount(labels[mask], minlength=n_labels) for mask in (kept & hit, kept))
        return Confusion(n_hits / n_rows, n_kept / n_rows, n_true / n_rows)

    # What a label that no row has and none is given gets; it is the same in every step.
    nothing = Confusion(np.zeros(1), np.zeros(1), np.zeros(1))
    slopes, shifts, others = np.ones(n_labels), np.zeros(n_labels), (np.ones(1), np.zeros(1))
    state = confusion(np.where(labels >= 0, probabilities, -np.inf))
    values, best = [value(goal, state, least)], (slopes, shifts)
    for _ in range(N_STEPS):
        slopes, shifts = gradient(goal, state, least)
        step = confusion(np.where(labels >= 0, slopes[labels] * probabilities + shifts[labels], -np.inf))
        if value(goal, step, least) > max(values):
            best, others = (slopes, shifts), gradient(goal, nothing, least)
        values.append(value(goal, step, least))
        shares = [value(goal, state.mixed(step, share), least) for share in LINE]
        share = LINE[int(np.argmax(shares))]
        if share == 0:
            break
        state = state.mixed(step, share)
    known = np.unique(np.concatenate([labels[labels >= 0], np.flatnonzero(n_true)]))
    return LabelWeights(known, *(np.append(own[known], rest) for own, rest in zip(best, others, strict=True))), values
