"""Shortlists: each feature's strongest labels (its champions), and prediction among those of a row's features."""

import numpy as np

from xmlpreck.kernels.bfloat import as_scored
from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.scoring import score_labels


@kernel
def _take_best(scores, labels, n, max_best, best):
    """Fill `best` with the max_best best of labels[:n] by score, then lower id, ascending. Returns how many."""
    if n <= max_best:
        best[:n] = labels[:n]
        best[:n].sort()
        return n
    its_scores = scores[labels[:n]]
    threshold = np.partition(its_scores, n - max_best)[n - max_best]
    n_taken = 0
    for i in range(n):
        if its_scores[i] > threshold:
            best[n_taken] = labels[i]
            n_taken += 1
    equal = labels[:n][its_scores == threshold]
    equal.sort()
    best[n_taken:max_best] = equal[: max_best - n_taken]
    best[:max_best].sort()
    return max_best


@kernel
def _kth_largest(row, k, heap):
    """Find the k-th largest value with a heap of the k largest so far, the smallest of them first.

    Most of a long row is only compared with that one: np.partition takes ten times as long for a dense row of mostly
    zeros.
    """
    n = 0
    for i in range(len(row)):
        value = row[i]
        if n < k:  # the new one rises from the end
            node = n
            n += 1
            while node > 0 and heap[(node - 1) // 2] > value:
                heap[node] = heap[(node - 1) // 2]
                node = (node - 1) // 2
            heap[node] = value
        elif value > heap[0]:  # it replaces the smallest, and sinks
            node = 0
            while 2 * node + 1 < k:
                child = 2 * node + 1
                if child + 1 < k and heap[child + 1] < heap[child]:
                    child += 1
                if heap[child] >= value:
                    break
                heap[node] = heap[child]
                node = child
            heap[node] = value
    return heap[0]


@kernel
def take_champions(thread, n_threads, weights, offsets, labels, values):
    """Fill the labels with the offsets[f + 1] - offsets[f] largest weights of each feature f, in ascending order."""
    for f in range(thread, len(offsets) - 1, n_threads):
        d = weights.dense_of[f]
        room = offsets[f + 1] - offsets[f]
        if room == 0:
            continue
        first = 0 if d >= 0 else weights.offsets[f]
        row = np.empty((weights.dense_rows.shape[1] if d >= 0 else weights.offsets[f + 1]) - first, values.dtype)
        for i in range(len(row)):
            row[i] = as_scored(weights.dense_rows[d, i], weights.dense_rows) if d >= 0 else weights.values[first + i]
        threshold = _kth_largest(row, room, np.empty(room, values.dtype))
        n_equal = room - np.sum(row > threshold)  # weights equal to the threshold that are taken
        p = offsets[f]
        for i in range(len(row)):
            if row[i] > threshold or (row[i] == threshold and n_equal > 0):
                n_equal -= row[i] == threshold
                labels[p] = i if d >= 0 else weights.labels[first + i]
                values[p] = row[i]
                p += 1


@kernel
def _bring_up(features, values, champions, partial, touched):
    """Sum partial scores over the champions of a row's features; others keep -inf. Returns the number of labels."""
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


@kernel
def predict_shortlisted(thread, n_threads, rows, weights, champions, n_candidates, top_labels, top_scores, unsure):
    """Predict the best of each row's candidates, with exact scores.

    A row is unsure if one of these is not above 0: labels that are nobody's champion may rank there.
    """
    n_labels = weights.dense_rows.shape[1]
    n_rows, k = top_labels.shape
    partial = np.full(n_labels, -np.inf, weights.values.dtype)
    touched = np.empty(n_labels, np.int32)
    candidates = np.empty(n_candidates, np.int32)
    scores = np.empty(n_candidates, weights.values.dtype)
    for row in range(thread, n_rows, n_threads):
        first, last = rows.offsets[row], rows.offsets[row + 1]
        features, values = rows.features[first:last], rows.values[first:last]
        n_touched = _bring_up(features, values, champions, partial, touched)
        n = _take_best(partial, touched, n_touched, n_candidates, candidates)
        for i in range(n_touched):
            partial[touched[i]] = -np.inf
        score_labels(features, values, weights, candidates[:n], scores[:n])
        unsure[row] = n < k
        for rank in range(min(k, n)):
            best = np.argmax(scores[:n])  # of equal ones the first, and labels ascend
            top_labels[row, rank], top_scores[row, rank] = candidates[best], scores[best]
            unsure[row] |= scores[best] <= 0
            scores[best] = -np.inf
