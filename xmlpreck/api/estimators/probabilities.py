"""Probabilities of an estimator that has trained on all rows: learned from scores of rows that were held out.

The model itself has seen every row, and its scores on them say little. So a second model is trained with the same
settings on all rows but a fifth, and scores these; where that is few rows, the next fifth is held out too. The rows are
chosen by a hash of their features: equal rows are held out together, and the order of the rows does not matter.
"""

from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np
import scipy  # its optimize is loaded at its first use
from scipy.sparse import csr_array
from scipy.special import logsumexp, softmax

from xmlpreck.config import InputError, RunConfig
from xmlpreck.data.dataset import Dataset, TopK, stack_rows
from xmlpreck.data.rows import Subset, split_heldout
from xmlpreck.model import Model
from xmlpreck.model.calibration import DEPTH, Calibration
from xmlpreck.train import TrainingError, fit

N_PARTS, MAX_HELDOUT = 5, 5_000  # a fifth of the rows is held out at a time, at most this many
ENOUGH_ROWS = 2_000  # to learn from
MAX_SCORES = 10_000_000  # that the scale of a softmax is learned from
MAX_LOG_SCALE = 7.0


class Scored(NamedTuple):
    """Rows that a model has scored without having been trained on them."""

    model: Model
    rows: csr_array
    labels: csr_array


def score_heldout(model: Model, data: Dataset, settings: RunConfig) -> list[Scored]:
    """Return rows with a model that has not seen them: those that training held out, else by training again."""
    if settings.train.heldout:
        heldout = split_heldout(data, settings.train.heldout, settings.train.seed)[1]
        block = heldout.read(0, heldout.n_rows)
        return [Scored(model, block.rows, block.labels)]
    keys = row_keys(data.rows)
    parts = []
    for is_out in _turns(keys):
        ids = np.flatnonzero(is_out)
        kept = Subset(data, np.flatnonzero(~is_out))
        if not len(ids) or not kept.n_rows:
            continue
        try:
            other = fit(kept, settings)
        except (InputError, TrainingError):  # the rows that are left have no label
            continue
        ids = ids[np.argsort(keys[ids], kind="stable")]
        parts.append(Scored(other, data.rows[ids], data.labels[ids]))
    return parts


def row_keys(rows: csr_array) -> np.ndarray:
    """Return a number for each row that depends on its features alone."""
    ids, values = (np.ascontiguousarray(part).data for part in (rows.indices, rows.data))
    keys = (crc32(values[start:end], crc32(ids[start:end])) for start, end in pairwise(rows.indptr.tolist()))
    return np.fromiter(keys, np.uint32, rows.shape[0])


def _turns(keys: np.ndarray) -> list[np.ndarray]:
    """Return which rows are held out, turn by turn, until enough were; equal keys are in one turn."""
    size = min(-(-len(keys) // N_PARTS), MAX_HELDOUT)
    n_turns = min(-(-ENOUGH_ROWS // size), N_PARTS)
    bounds = [*np.sort(keys)[: n_turns * size + 1 : size].tolist(), 1 << 32][: n_turns + 1]
    return [(low <= keys) & (keys < high) for low, high in pairwise(bounds)]


def learn_calibration(parts: list[Scored], n_labels: int, n_threads: int) -> Calibration | None:
    """Learn how likely the first labels of a row are; None where too little is known for that."""
    tops = [part.model.predict_topk(part.rows, DEPTH, n_threads, guess_empty=True) for part in parts]
    blocks = [(top, _pattern(part.labels)) for top, part in zip(tops, parts, strict=True)]
    try:
        return Calibration.fit(blocks, n_labels)
    except InputError:  # no held-out row has a label
        return None


def _pattern(labels: csr_array) -> csr_array:
    return csr_array((np.ones_like(labels.data), labels.indices, labels.indptr), labels.shape)


def learn_scale(parts: list[Scored]) -> float:
    """Find the scale of the scores whose softmax has the smallest log loss (temperature scaling, Guo et al. 2017).

    A share of 1 / (n + 2) of each of n rows counts as a row of another class: the scale stays finite.
    """
    n_labels = parts[0].labels.shape[1]
    n_rows = max(MAX_SCORES // n_labels // len(parts), 10)
    scores = np.concatenate([part.model.decision_function(part.rows[:n_rows]) for part in parts]).astype(np.float64)
    labels = stack_rows([part.labels[:n_rows] for part in parts])
    doubt = 1 / (len(scores) + 2)
    true = scores[np.arange(len(scores)), labels.indices]
    expected = (1 - doubt) * true + doubt * (scores.sum(axis=1) - true) / max(n_labels - 1, 1)

    def loss(log_scale: float) -> float:
        scale = np.exp(log_scale)
        return float(np.mean(logsumexp(scale * scores, axis=1) - scale * expected))

    found = scipy.optimize.minimize_scalar(loss, bounds=(-MAX_LOG_SCALE, MAX_LOG_SCALE), method="bounded")
    return float(np.exp(found.x))


def class_probabilities(scores: np.ndarray, scale: float) -> np.ndarray:
    """Return the softmax of scaled scores: each row sums to 1."""
    return np.asarray(softmax(scale * scores.astype(np.float64), axis=1))


def matrix_of(top: TopK, n_labels: int) -> csr_array:
    """Return the probabilities of each row's first labels as CSR."""
    n_rows, k = top.labels.shape
    order = np.argsort(top.labels, axis=1)
    ids, values = (np.take_along_axis(part, order, axis=1).ravel() for part in top)
    return csr_array((values, ids, np.arange(n_rows + 1) * k), (n_rows, n_labels))
