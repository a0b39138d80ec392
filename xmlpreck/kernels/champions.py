"""Shortlists: each feature's strongest labels, the labels of a row that they bring up, and the exact scores of these.

The order of summation is that of linear.py, feature by feature as the row has them, so that a score here has the bits
of the score there. Nothing of linear.py is called: numba's cache would not notice an edit of it.
"""

import numpy as np
from numba import njit

from xmlpreck.kernels.bfloat import as_scored


@njit(cache=True, nogil=True)
def _take_best(scores, labels, n, most, best):
    """The `most` best of labels[:n] by score, then lower id, into `best` by rising id. Returns how many there are."""
    if n <= most:
        best[:n] = labels[:n]
        best[:n].sort()
        return n
    its_scores = scores[labels[:n]]
    least = np.partition(its_scores, n - most)[n - most]
    n_taken = 0
    for i in range(n):
        if its_scores[i] > least:
            best[n_taken] = labels[i]
            n_taken += 1
    equal = labels[:n][its_scores == least]
    equal.sort()
    best[n_taken:most] = equal[: most - n_taken]
    best[:most].sort()
    return most


@njit(cache=True, nogil=True)
def _kth_largest(row, k, heap):
    """By a heap of the k largest so far, the least of them first: most of a long row is only compared with that one.
    np.partition takes ten times as long for a dense row of mostly zeros."""
    n = 0
    for i in range(len(row)):
        value = row[i]
        if n < k:  # the new one rises from the end
            place = n
            n += 1
            while place > 0 and heap[(place - 1) // 2] > value:
                heap[place] = heap[(place - 1) // 2]
                place = (place - 1) // 2
            heap[place] = value
        elif value > heap[0]:  # it takes the place of the least, and sinks
            place = 0
            while 2 * place + 1 < k:
                child = 2 * place + 1
                if child + 1 < k and heap[child + 1] < heap[child]:
                    child += 1
                if heap[child] >= value:
                    break
                heap[place] = heap[child]
                place = child
            heap[place] = value
    return heap[0]


@njit(cache=True, nogil=True)
def take_champions(me, n_threads, weights, offsets, labels, values):
    """The labels with the largest weights of each feature f, offsets[f + 1] - offsets[f] of them, by rising label."""
    for f in range(me, len(offsets) - 1, n_threads):
        d = weights.dense_of[f]
        room = offsets[f + 1] - offsets[f]
        if room == 0:
            continue
        first = 0 if d >= 0 else weights.offsets[f]
        row = np.empty((weights.dense_rows.shape[1] if d >= 0 else weights.offsets[f + 1]) - first, values.dtype)
        for i in range(len(row)):
            row[i] = as_scored(weights.dense_rows[d, i], weights.dense_rows) if d >= 0 else weights.values[first + i]
        least = _kth_largest(row, room, np.empty(room, values.dtype))
        n_equal = room - np.sum(row > least)  # of the weights that are as large as the least, so many are taken
        place = offsets[f]
        for i in range(len(row)):
            if row[i] > least or (row[i] == least and n_equal > 0):
                n_equal -= row[i] == least
                labels[place] = i if d >= 0 else weights.labels[first + i]
                values[place] = row[i]
                place += 1


@njit(cache=True, nogil=True)
def _find_from(labels, first, end, label):
    """First place from `first` on whose label is not smaller, in a sorted run: by steps that double, then halving."""
    step = 1
    while first + step < end and labels[first + step] < label:
        first += step
        step *= 2
    last = min(first + step, end)
    while first < last:
        middle = (first + last) // 2
        if labels[middle] < label:
            first = middle + 1
        else:
            last = middle
    return first


@njit(cache=True, nogil=True)
def _score_exactly(features, values, weights, candidates, scores):
    """s_l = <w_l, x> of the candidates, which rise."""
    scores[:] = 0
    for i in range(len(features)):
        f, v = features[i], values[i]
        d = weights.dense_of[f]
        place, end = weights.offsets[f], weights.offsets[f + 1]
        for j in range(len(candidates)):
            if d >= 0:
                scores[j] += v * as_scored(weights.dense_rows[d, candidates[j]], weights.dense_rows)
            else:
                place = _find_from(weights.labels, place, end, candidates[j])
                if place == end:
                    break
                if weights.labels[place] == candidates[j]:
                    scores[j] += v * weights.values[place]


@njit(cache=True, nogil=True)
def _bring_up(features, values, champions, partial, touched):
    """Partial scores over the champions of a row's features; `partial` is -inf elsewhere. Returns how many labels."""
    n = 0
    for i in range(len(features)):
        for p in range(champions.offsets[features[i]], champions.offsets[features[i] + 1]):
            label = champions.labels[p]
            if partial[label] == -np.inf:
                partial[label] = 0
                touched[n] = label
                n += 1
            partial[label] += values[i] * champions.values[p]
    return n


@njit(cache=True, nogil=True)
def predict_shortlisted(me, n_threads, rows, weights, champions, n_candidates, top_labels, top_scores, unsure):
    """The best of each row's candidates and their exact scores. A row is unsure if one of these is not above 0:
    labels that no champion list brings up may stand there."""
    n_labels = weights.dense_rows.shape[1]
    n_rows, k = top_labels.shape
    partial = np.full(n_labels, -np.inf, weights.values.dtype)
    touched = np.empty(n_labels, np.int32)
    candidates = np.empty(n_candidates, np.int32)
    scores = np.empty(n_candidates, weights.values.dtype)
    for row in range(me, n_rows, n_threads):
        first, last = rows.offsets[row], rows.offsets[row + 1]
        features, values = rows.features[first:last], rows.values[first:last]
        n_touched = _bring_up(features, values, champions, partial, touched)
        n = _take_best(partial, touched, n_touched, n_candidates, candidates)
        for i in range(n_touched):
            partial[touched[i]] = -np.inf
        _score_exactly(features, values, weights, candidates[:n], scores[:n])
        unsure[row] = n < k
        for place in range(min(k, n)):
            best = np.argmax(scores[:n])  # of equal ones the first, and labels rise
            top_labels[row, place], top_scores[row, place] = candidates[best], scores[best]
            unsure[row] |= scores[best] <= 0
            scores[best] = -np.inf
