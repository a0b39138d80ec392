"""The best labels of one row by its scores: higher score first, then the lower label."""

import numpy as np

from xmlpreck.kernels.arrays import BLOCK
from xmlpreck.kernels.caching import kernel

MANY = 16  # more labels than this are selected and sorted, not inserted one by one


@kernel
def insert(score, label, scores, labels, n, size):
    """Insert into the `size` best, in order, if it is one of them. Returns how many there are now."""
    if n == size:
        if score < scores[n - 1] or (score == scores[n - 1] and label > labels[n - 1]):
            return n
        n -= 1
    i = n
    while i > 0 and (scores[i - 1] < score or (scores[i - 1] == score and labels[i - 1] > label)):
        scores[i] = scores[i - 1]
        labels[i] = labels[i - 1]
        i -= 1
    scores[i] = score
    labels[i] = label
    return n + 1


@kernel
def _any_from(block_scores, threshold):
    """Is any score of a block >= threshold? Counts without early exit, so that it becomes SIMD."""
    n = 0
    for i in range(BLOCK):
        n += block_scores[i] >= threshold
    return n > 0


@kernel
def _is_better(score, label, other_score, other_label):
    return score > other_score or (score == other_score and label < other_label)


@kernel
def _select(scores, labels, n, k):
    """Reorder the first n so that the k best of them come first, the least of these at k - 1 (Hoare's quickselect)."""
    low, high = 0, n - 1
    while low < high:
        pivot, pivot_label = scores[(low + high) // 2], labels[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while _is_better(scores[i], labels[i], pivot, pivot_label):
                i += 1
            while _is_better(pivot, pivot_label, scores[j], labels[j]):
                j -= 1
            if i <= j:
                scores[i], scores[j] = scores[j], scores[i]
                labels[i], labels[j] = labels[j], labels[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break


@kernel
def _sift(scores, labels, i, n):
    """Move element i of a heap down to where no child is worse than its parent."""
    score, label = scores[i], labels[i]
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and _is_better(scores[child], labels[child], scores[child + 1], labels[child + 1]):
            child += 1
        if not _is_better(score, label, scores[child], labels[child]):
            break
        scores[i], labels[i] = scores[child], labels[child]
        i = child
    scores[i], labels[i] = score, label


@kernel
def sort_best_first(scores, labels, n):
    """Sort the first n: higher score first, then the lower label (heapsort: in place, and never slow)."""
    for i in range(n // 2 - 1, -1, -1):
        _sift(scores, labels, i, n)
    for last in range(n - 1, 0, -1):
        scores[0], scores[last] = scores[last], scores[0]
        labels[0], labels[last] = labels[last], labels[0]
        _sift(scores, labels, 0, last)


@kernel
def _take_unopened(k, n_labels, work, top, top_labels, n):
    """Insert labels of unopened blocks, whose score is 0, where the n best so far leave room among the k best."""
    if work.counts[1] < len(work.opened) and (n < k or top[k - 1] <= 0):
        for label in range(n_labels):  # by ascending id, so the first that fails ends it
            if work.opened[label // BLOCK] != work.counts[0]:
                if n == k and (top[k - 1] > 0 or (top[k - 1] == 0 and top_labels[k - 1] < label)):
                    break
                n = insert(0.0, label, top, top_labels, n, k)
    return n


@kernel
def take_many(k, n_labels, work, top, top_labels):
    """Do what take_top does, for a large k: `top` and `top_labels` have room for 2 k."""
    scores = work.scores
    n = 0
    least = scores.dtype.type(-np.inf)
    for i in range(work.counts[1]):
        first = work.blocks[i] * BLOCK
        if not _any_from(scores[first : first + BLOCK], least):
            continue
        for label in range(first, first + BLOCK):
            if scores[label] >= least and scores[label] > -np.inf:
                top[n], top_labels[n] = scores[label], label
                n += 1
                if n == 2 * k:
                    _select(top, top_labels, n, k)
                    n, least = k, top[k - 1]
    if n > k:
        _select(top, top_labels, n, k)
        n = k
    sort_best_first(top, top_labels, n)
    return _take_unopened(k, n_labels, work, top, top_labels, n)


@kernel
def take_top(k, n_labels, work, top, top_labels):
    """Fill the k best labels that are not marked -inf, and their scores. Returns how many there are."""
    scores = work.scores
    n = 0
    for i in range(work.counts[1]):
        first = work.blocks[i] * BLOCK
        if n == k and not _any_from(scores[first : first + BLOCK], top[k - 1]):
            continue
        for label in range(first, first + BLOCK):
            if scores[label] > -np.inf and (n < k or scores[label] >= top[k - 1]):
                n = insert(scores[label], label, top, top_labels, n, k)
    return _take_unopened(k, n_labels, work, top, top_labels, n)


@kernel
def split_labels(relevant, n_best, n_labels, work):
    """Split the scores in `work`: relevant labels by descending score, and the n_best best irrelevant ones.

    Returns the number of the latter. Overwrites work.scores of the relevant labels.
    """
    n_pos = len(relevant)
    for i in range(n_pos):
        insert(work.scores[relevant[i]], relevant[i], work.pos, work.pos_labels, i, n_pos)
    for i in range(n_pos):
        work.scores[relevant[i]] = -np.inf
    if n_best > MANY:
        return take_many(n_best, n_labels, work, work.neg, work.neg_labels)
    return take_top(n_best, n_labels, work, work.neg, work.neg_labels)
