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

from xmlpreck.api.engine import log
from xmlpreck.config import InputError, RunConfig
from xmlpreck.data.dataset import Dataset, TopK
from xmlpreck.data.rows import Subset, split_heldout
from xmlpreck.model import Model
from xmlpreck.model.calibration import DEPTH, Calibration
from xmlpreck.train import TrainingError, fit

N_PARTS, MAX_HELDOUT = 5, 5_000  # a fifth of the rows is held out at a time, at most this many
ENOUGH_ROWS = 2_000  # to learn from
MAX_SCORES = 10_000_000  # that the scale of a softmax is learned from
MAX_LOG_SCALE = 7.0


class Scored(NamedTuple):
    """Rows scored by a model that was not trained on them."""

    top: TopK  # of the first DEPTH labels
    labels: csr_array
    scores: np.ndarray  # of all labels, for the first rows; for none where a row may have many labels


def score_heldout(model: Model, data: Dataset, settings: RunConfig, one_class: bool) -> list[Scored]:
    """Score rows by a model that has not seen them: those that training held out, else by training again."""

    def score(scorer: Model, rows: csr_array, labels: csr_array) -> Scored:
        top = scorer.predict_topk(rows, DEPTH, settings.train.n_threads, guess_empty=True)
        n_scored = max(MAX_SCORES // data.n_labels, 10) if one_class else 0
        return Scored(top, _pattern(labels), scorer.decision_function(rows[:n_scored]))

    if settings.train.heldout:
        heldout = split_heldout(data, settings.train.heldout, settings.train.seed)[1]
        block = heldout.read(0, heldout.n_rows)
        return [score(model, block.rows, block.labels)]
    keys = row_keys(data.rows)
    parts = []
    for is_out in _turns(keys):
        ids = np.flatnonzero(is_out)
        ids = ids[np.argsort(keys[ids], kind="stable")]
        kept = Subset(data, np.flatnonzero(~is_out))
        if not len(ids) or not kept.n_rows:
            continue
        try:
            parts.append(score(fit(kept, settings), data.rows[ids], data.labels[ids]))
        except TrainingError as error:  # no memory for a second model, say
            log.info("not calibrated: %s", error)
            return []
        except InputError:  # the rows that are left have no label
            continue
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


def learn_calibration(parts: list[Scored], n_labels: int) -> Calibration | None:
    """Learn how likely the first labels of a row are; None where too little is known for that."""
    try:
        return Calibration.fit(((part.top, part.labels) for part in parts), n_labels)
    except InputError:  # no held-out row has a label
        return None


def _pattern(labels: csr_array) -> csr_array:
    return csr_array((np.ones_like(labels.data), labels.indices, labels.indptr), labels.shape)


def learn_scale(parts: list[Scored]) -> float:
    """Find the scale of the scores whose softmax has the smallest log loss (temperature scaling, Guo et al. 2017).

    A share of 1 / (n + 2) of each of n rows counts as a row of another class: the scale stays finite.
    """
    scores = np.concatenate([part.scores for part in parts]).astype(np.float64)
    true_columns = np.concatenate([part.labels.indices[: len(part.scores)] for part in parts])
    n_labels = scores.shape[1]
    doubt = 1 / (len(scores) + 2)
    true = scores[np.arange(len(scores)), true_columns]
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
