"""Prediction: the best labels of rows, and the scores of all labels or of candidates."""

import numpy as np

from xmlpreck.kernels.arrays import BLOCK
from xmlpreck.kernels.bounds import predict_bounded
from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.dense import MIN_SHARED, MIN_TILE_ROWS, TILE_ROWS, count_shared, load_row, new_tile, score_tile
from xmlpreck.kernels.scoring import add_one, begin_row, open_all, score_row
from xmlpreck.kernels.screening import MIN_ROWS, count_rows, new_screen, predict_screened
from xmlpreck.kernels.threads import fetch_add
from xmlpreck.kernels.topk import take_top

# Rows that a thread takes at a time.
CLAIM = 16
# A thread tries bounds on this many rows, and goes on as long as they tell the best labels of half of its rows.
PROBED = 64


@kernel
def _predict_by_all(features, values, weights, bonus, work, top_labels, top_scores):
    """Find the best labels of a row by score + bonus, from the scores of all labels.

    `bonus` is empty for none; a label with bonus -inf is never among the best.
    """
    n_labels = weights.dense_rows.shape[1]
    begin_row(work)
    if len(bonus) > 0:
        open_all(n_labels, work)
    score_row(features, values, weights, n_labels, work)
    return _take_best(n_labels, bonus, work, top_labels, top_scores)


@kernel
def _take_best(n_labels, bonus, work, top_labels, top_scores):
    if len(bonus) > 0:
        add_one(work.scores, 1, bonus)
    return take_top(len(top_labels), n_labels, work, top_scores, top_labels)


@kernel
def predict_rows(n_threads, rows, weights, bounds, trial, bonus, work, claimed, top_labels, top_scores):
    """The best labels of each row and their scores, (n_rows, k) each; threads share `claimed`, until it is STOPPED."""
    n_rows, n_labels = len(top_labels), weights.dense_rows.shape[1]
    order = np.arange(n_rows)
    n_shared = count_shared(rows, order, 0, n_rows, weights)
    if n_shared >= MIN_SHARED and n_rows >= MIN_ROWS:
        _screen_rows(n_threads, rows, n_shared, weights, bonus, work, claimed, top_labels, top_scores)
        return
    is_tiled = n_shared >= MIN_SHARED and n_rows >= MIN_TILE_ROWS
    claim = TILE_ROWS if is_tiled else CLAIM
    tile = new_tile(n_shared if is_tiled else 0, len(work.opened), top_scores)
    n_tried, n_told = 0, 0  # rows by bounds
    while True:
        start = fetch_add(claimed, 0, claim)
        if start >= n_rows:
            break
        stop = min(start + claim, n_rows)
        if is_tiled:
            score_tile(rows, order, start, stop - start, n_shared, weights, work, tile)
            for row in range(start, stop):
                load_row(row - start, n_labels, tile, work)
                _take_best(n_labels, bonus, work, top_labels[row], top_scores[row])
            continue
        for row in range(start, stop):
            first, last = rows.offsets[row], rows.offsets[row + 1]
            features, values = rows.features[first:last], rows.values[first:last]
            top, scores = top_labels[row], top_scores[row]
            if n_tried < PROBED or 2 * n_told > n_tried:
                n_tried += 1
                if predict_bounded(features, values, weights, bounds, bonus, trial, top, scores):
                    n_told += 1
                    continue
            _predict_by_all(features, values, weights, bonus, work, top, scores)


@kernel
def _screen_rows(n_threads, rows, n_shared, weights, bonus, work, claimed, top_labels, top_scores):
    """Do what predict_rows does for many rows whose last n_shared features are the same."""
    n_rows = len(top_labels)
    has_others = rows.offsets[n_rows] - rows.offsets[0] > n_rows * n_shared
    claim = count_rows(n_threads, n_rows, has_others, weights.dense_rows.shape[1], top_scores.itemsize)
    screen = new_screen(claim, has_others, n_shared, len(work.opened), top_scores)
    while True:
        start = fetch_add(claimed, 0, claim)
        if start >= n_rows:
            break
        size = min(claim, n_rows - start)
        predict_screened(rows, start, size, n_shared, weights, bonus, work, screen, top_labels, top_scores)


@kernel
def predict_one(features, values, n_given, unit_norm, weights, bounds, trial, bonus, work, top_labels, top_scores):
    """The same for one row, the first n_given of whose values are scaled to length 1 in place if asked for.

    Returns the number of labels, or -1 if an id is out of range or does not rise, or a value is not finite.
    """
    n_features = len(weights.dense_of) - (len(features) - n_given)
    before = -1
    for i in range(n_given):
        if features[i] <= before or features[i] >= n_features or not np.isfinite(values[i]):
            return -1
        before = features[i]
    if unit_norm:
        square = 0.0
        for i in range(n_given):
            square += np.float64(values[i]) * np.float64(values[i])
        norm = np.sqrt(square) if square > 0 else 1.0
        for i in range(n_given):
            values[i] = values[i] / norm
    if predict_bounded(features, values, weights, bounds, bonus, trial, top_labels, top_scores):
        return len(top_labels)
    return _predict_by_all(features, values, weights, bonus, work, top_labels, top_scores)


@kernel
def score_candidates(rows, weights, work, candidate_offsets, candidates, scores):
    """Scores of each row's own candidate labels."""
    n_labels = weights.dense_rows.shape[1]
    for row in range(len(candidate_offsets) - 1):
        begin_row(work)
        first, last = rows.offsets[row], rows.offsets[row + 1]
        score_row(rows.features[first:last], rows.values[first:last], weights, n_labels, work)
        for p in range(candidate_offsets[row], candidate_offsets[row + 1]):
            is_open = work.opened[candidates[p] // BLOCK] == work.counts[0]
            scores[p] = work.scores[candidates[p]] if is_open else 0.0


@kernel
def score_rows(rows, weights, work, scores):
    """All scores of each row, (n_rows, n_labels)."""
    n_rows, n_labels = scores.shape
    for row in range(n_rows):
        begin_row(work)
        open_all(n_labels, work)
        first, last = rows.offsets[row], rows.offsets[row + 1]
        score_row(rows.features[first:last], rows.values[first:last], weights, n_labels, work)
        scores[row] = work.scores[:n_labels]
