"""The best labels of one row by its scores: higher score first, then the lower label."""

import numpy as np

from xmlpreck.kernels.arrays import BLOCK
from xmlpreck.kernels.caching import kernel


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
    if work.counts[1] < len(work.opened) and (n < k or top[k - 1] <= 0):
        for label in range(n_labels):  # unopened: score 0. They come by ascending id, so the first that fails ends it
            if work.opened[label // BLOCK] != work.counts[0]:
                if n == k and (top[k - 1] > 0 or (top[k - 1] == 0 and top_labels[k - 1] < label)):
                    break
                n = insert(0.0, label, top, top_labels, n, k)
    return n


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
    return take_top(n_best, n_labels, work, work.neg, work.neg_labels)
