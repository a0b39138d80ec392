"""Scores as probabilities: how likely is a label that stands among a row's first ones to be right?

    index = score + slope * (the row's best score)
    P(label is relevant) = sigmoid(logit(curve(index)) + shift of the label), or that of the label before it if smaller

`curve` is nondecreasing and the same for all labels. A label's shift is 0 unless held-out rows say otherwise. All of it
is learned from rows that were not trained on: on the others, nearly every first label is right. Labels keep the order
that their scores have: whoever sorts them by probability gets the same list.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy  # its optimize is loaded at its first use: 28 MB that prediction does not need
from scipy.sparse import csr_array
from scipy.special import expit, log_expit, logit

from xmlpreck.config import InputError
from xmlpreck.data.dataset import TopK
from xmlpreck.files import read_errors
from xmlpreck.files.atomic import atomic_path
from xmlpreck.files.contents import load_array
from xmlpreck.metrics import hits

DEPTH = 10  # places of a row to learn from; probabilities of fewer places are as good, those of more are not
MOST_KNOTS = 128  # of the curve; 30 to 1,024 serve equally well
SPREADS = 2.0 ** np.arange(-5, 2)  # standard deviations of the shifts that are tried
NEWTON_STEPS = 50
N_BINS, N_STEPS = 15, 20

# float32 has no number between 1 and 1 - LEAST, so that no probability gets to be 1.
LEAST = 2.0**-24

DTYPES: dict[str, type[np.generic]] = {"slope": np.float32, "knots": np.float64, "shifts": np.float32}


@dataclass(frozen=True, eq=False)
class Calibration:
    slope: np.ndarray  # () float32
    knots: np.ndarray  # (2, n_knots) float64: rising indices, and their nondecreasing probabilities within (0, 1)
    shifts: np.ndarray  # (n_labels) float32

    @classmethod
    def fit(cls, blocks: Iterable[tuple[TopK, csr_array]], n_labels: int, depth: int = DEPTH) -> "Calibration":
        """Learn from the first `depth` labels of held-out rows, which come with their true labels, block by block.

        13 bytes are kept of each place. The slope is the one whose curve has the least log loss.
        """
        labels, scores, best, hit = _gather(blocks, n_labels, depth)

        def loss(slope: float) -> float:
            index = scores + np.float32(slope) * best
            return _log_loss(np.interp(index, *_curve(index, hit)), hit)

        found = scipy.optimize.minimize_scalar(loss, bounds=(-1, 1), method="bounded", options={"xatol": 0.01})
        slope = np.asarray(found.x, np.float32)
        index = scores + slope * best
        knots = _curve(index, hit)
        return cls(slope, knots, _shifts(logit(np.interp(index, *knots)), labels, hit, n_labels))

    def probabilities(self, top: TopK) -> TopK:
        """The same labels in the same places, with probabilities for scores: within (0, 1), falling where scores fall.

        Those of a row's first labels do not depend on how many labels follow.
        """
        _check_labels(top, len(self.shifts))
        is_there = top.labels >= 0
        scores = np.where(is_there, top.scores, np.float32(0))
        logits = logit(np.interp(scores + self.slope * scores[:, :1], *self.knots)) + self.shifts[top.labels]
        falling = _keep_order(np.clip(expit(logits), LEAST, 1 - LEAST).astype(np.float32), scores)
        return TopK(top.labels, np.where(is_there, falling, np.float32(-np.inf)))

    def save(self, folder: str | Path) -> None:
        """Write calibration_*.npy into the folder."""
        for name in DTYPES:
            with atomic_path(_file(folder, name)) as path, path.open("wb") as file:
                np.save(file, getattr(self, name), allow_pickle=False)

    @classmethod
    def load(cls, folder: str | Path, n_labels: int) -> "Calibration":
        """Read what `save` wrote; what does not fit together is refused by the name of its file."""
        slope, knots, shifts = (_load_array(_file(folder, name), dtype) for name, dtype in DTYPES.items())

        def demand(holds: object, name: str, what: str) -> None:
            if not holds:
                raise InputError(f"{_file(folder, name)}: {what}: calibrate the model again")

        demand(slope.shape == () and abs(slope) <= 1, "slope", "is not one number from -1 to 1")
        is_curve = knots.ndim == 2 and len(knots) == 2 and knots.size and np.isfinite(knots).all()
        demand(is_curve, "knots", "does not hold two rows of finite numbers")
        index, probabilities = knots
        demand((np.diff(index) > 0).all(), "knots", "indices do not rise")
        demand((np.diff(probabilities) >= 0).all(), "knots", "probabilities fall")
        demand(probabilities[0] > 0 and probabilities[-1] < 1, "knots", "a probability is not between 0 and 1")
        demand(shifts.shape == (n_labels,), "shifts", f"has shape {shifts.shape}, but the model has {n_labels} labels")
        demand(np.isfinite(shifts).all(), "shifts", "a shift is not a finite number")
        return cls(slope, knots, shifts)


def _file(folder: str | Path, name: str) -> Path:
    return Path(folder) / f"calibration_{name}.npy"


def _load_array(path: Path, dtype: type[np.generic]) -> np.ndarray:
    with read_errors(path, InputError):
        array = np.array(load_array(path))
    if array.dtype != dtype:
        raise InputError(f"{path}: holds {array.dtype}, not {np.dtype(dtype)}: calibrate the model again")
    return array


def _keep_order(probabilities: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The running minimum along each row, lower by one float32 at least wherever the score falls."""
    n_falls = np.cumsum(np.diff(scores, axis=1, prepend=scores[:, :1]) < 0, axis=1, dtype=np.int32)
    # The bits of positive floats rise as the floats do: one less is the next smaller number.
    bits = np.minimum.accumulate(probabilities.view(np.int32) + n_falls, axis=1) - n_falls
    return bits.view(np.float32)


def _check_labels(top: TopK, n_labels: int) -> None:
    if top.labels.size and top.labels.max() >= n_labels:
        raise InputError(f"predicted label {top.labels.max()} is out of range: the calibration has {n_labels} labels")


def _gather(blocks: Iterable[tuple[TopK, csr_array]], n_labels: int, depth: int) -> tuple[np.ndarray, ...]:
    """Label, score, best score of the row and hit of every place that holds a label."""
    if depth < 1:
        raise InputError(f"depth must be 1 or more, but is {depth}")
    parts, n_true = [], 0
    for top, labels in blocks:
        n_true += labels.nnz
        first = TopK(top.labels[:, :depth], top.scores[:, :depth])
        _check_labels(first, n_labels)
        is_there = first.labels >= 0
        best = np.broadcast_to(first.scores[:, :1], is_there.shape)
        parts.append([part[is_there] for part in (first.labels, first.scores, best, hits(first, labels))])
    if not sum(len(part[0]) for part in parts):
        raise InputError("no held-out row has a predicted label to learn probabilities from: hold out more rows")
    if not n_true:
        raise InputError("no row has a label to learn probabilities from: give rows with known labels")
    labels, scores, best, hit = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not np.isfinite(scores).all():
        raise InputError(f"label {labels[~np.isfinite(scores)][0]} has a score that is not a finite number")
    return labels, scores, best, hit


def _curve(index: np.ndarray, hit: np.ndarray) -> np.ndarray:
    """Isotonic regression of hits on the index: mean index and probability of each of its steps, (2, n_steps).

    A step with h hits among n places has the probability (h + 1/2) / (n + 1). Places are put into MOST_KNOTS cells of
    equal size first, equal indices into one.
    """
    edges = np.unique(np.quantile(index, np.arange(1, MOST_KNOTS) / MOST_KNOTS))
    cell = np.searchsorted(edges, index, side="right")
    counts = np.bincount(cell)
    is_used = counts > 0
    counts, sums, n_hits = (part[is_used] for part in (counts, np.bincount(cell, index), np.bincount(cell, hit)))
    steps = scipy.optimize.isotonic_regression(n_hits / counts, weights=counts).blocks[:-1]
    counts, sums, n_hits = (np.add.reduceat(part, steps) for part in (counts, sums, n_hits))
    # Half a hit more pulls small steps to the middle, at times past their neighbours.
    return np.stack([sums / counts, np.maximum.accumulate((n_hits + 0.5) / (counts + 1))])


def _shifts(logits: np.ndarray, labels: np.ndarray, hit: np.ndarray, n_labels: int) -> np.ndarray:
    """The most likely shift of each label under a normal prior, whose spread s is the one with the largest evidence:

    log likelihood - sum_l (shift_l^2 / (2 s^2) + log(s^2 c_l) / 2),  c_l = 1 / s^2 + sum p (1 - p)   (Laplace)
    """
    most, found = -np.inf, np.zeros(n_labels)
    shifts = np.zeros(n_labels)
    for spread in SPREADS:
        for _ in range(NEWTON_STEPS):
            p = expit(logits + shifts[labels])
            curvature = np.bincount(labels, p * (1 - p), n_labels) + spread**-2
            slope = np.bincount(labels, hit - p, n_labels) - shifts / spread**2
            # Within 1 the curvature changes by a factor e at most, so that Newton's steps of that length converge.
            step = np.clip(slope / curvature, -1, 1)
            shifts += step
            if np.abs(step).max() < 1e-6:
                break
        shifted = logits + shifts[labels]
        evidence = log_expit(np.where(hit, shifted, -shifted)).sum()
        evidence -= ((shifts / spread) ** 2 + np.log(spread**2 * curvature)).sum() / 2
        if evidence > most:
            most, found = evidence, shifts.copy()
    return found.astype(np.float32)


def _log_loss(probabilities: np.ndarray, hit: np.ndarray) -> float:
    return float(-np.mean(np.log(np.where(hit, probabilities, 1 - probabilities))))


class Reliability(NamedTuple):
    """Probabilities against what happened: in bins of equal size, from low to high, and in single numbers."""

    predicted: np.ndarray  # (n_bins) mean probability
    observed: np.ndarray  # (n_bins) share of hits
    counts: np.ndarray  # (n_bins) places
    spread: np.ndarray  # (N_STEPS) places by their probability, in equal steps from 0 to 1
    ece: float  # expected calibration error: mean of |predicted - observed| over all places
    brier: float  # mean of (probability - hit)^2
    log_loss: float  # mean of -ln(probability of what happened)


def reliability(probabilities: np.ndarray, hit: np.ndarray, n_bins: int = N_BINS) -> Reliability:
    """Of places with a probability within (0, 1) each, and whether their labels are right."""
    if not len(probabilities):
        raise InputError("there are no predicted labels whose probabilities could be measured")
    p, is_hit = np.asarray(probabilities, np.float64), np.asarray(hit, bool)
    bins = np.array_split(np.argsort(p, kind="stable"), min(n_bins, len(p)))
    predicted, observed = (np.array([values[one].mean() for one in bins]) for values in (p, is_hit))
    counts = np.array([len(one) for one in bins])
    return Reliability(
        predicted,
        observed,
        counts,
        spread=np.histogram(p, N_STEPS, (0, 1))[0],
        ece=float(np.average(np.abs(predicted - observed), weights=counts)),
        brier=float(np.mean((p - is_hit) ** 2)),
        log_loss=_log_loss(p, is_hit),
    )


def uncalibrated(top: TopK) -> TopK:
    """sigmoid(score), which is no probability: margins are not trained to be one. To compare with."""
    scores = np.clip(expit(top.scores.astype(np.float64)), LEAST, 1 - LEAST)
    return TopK(top.labels, np.where(top.labels >= 0, scores, -np.inf).astype(np.float32))
