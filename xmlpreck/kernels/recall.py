"""Remembered negatives: later passes score a row's labels and the hardest negatives of an earlier pass, no others.

The scores of all labels take most of a pass where there are many; hard negatives hardly change after two passes
(docs/tuning.md).
"""

import numpy as np

from xmlpreck.kernels.arrays import BLOCK, EVERY
from xmlpreck.kernels.bfloat import as_scored
from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.hashing import mix
from xmlpreck.kernels.marks import LONG_ROW, find_marked, index_of, mark, unmark
from xmlpreck.kernels.scoring import add_feature, noise_index
from xmlpreck.kernels.topk import ABOVE_ZERO, find_peaks, gather_many, insert, keep_best


@kernel
def new_recalled(remembered, work):
    """Room for the labels of a row and what is remembered of it, and for their scores."""
    size = 2 * remembered.shape[1] + BLOCK + 1 + len(work.pos)  # see arrays.room_for
    return np.empty(size, np.int32), np.empty(size, work.pos.dtype)


@kernel
def remember(n_labels, has_peaks, work, recalled, remembered):
    """Keep the best labels of a row, whose relevant ones are marked -inf: those above 0, ascending; behind them -1."""
    labels, scores = recalled
    least = scores.dtype.type(ABOVE_ZERO)
    if not has_peaks:
        find_peaks(work)
    n = gather_many(len(remembered), least, 0, 1, work.block_peaks, n_labels, work, scores, labels)
    remembered[:n] = labels[:n]
    remembered[:n].sort()
    remembered[n:] = -1


@kernel
def _join(relevant, remembered, labels):
    """Merge two ascending lists, the second with -1 at its end; returns how many there are."""
    i, j, n = 0, 0, 0
    while i < len(relevant) or (j < len(remembered) and remembered[j] >= 0):
        if i < len(relevant) and (j == len(remembered) or remembered[j] < 0 or relevant[i] <= remembered[j]):
            labels[n] = relevant[i]
            i += 1
        else:
            labels[n] = remembered[j]
            j += 1
        n += 1
    return n


@kernel
def score_marked(features, values, weights, labels, n, scores, marks):
    """scores[j] = <w_l, x> of the ascending labels l = labels[:n], with the bits of scoring.score_row."""
    scores[:n] = 0
    mark(labels, 0, n, marks)
    for i in range(len(features)):
        f, v = features[i], values[i]
        d = weights.dense_of[f]
        start, stop = weights.offsets[f], weights.offsets[f + 1]
        if d >= 0:
            for j in range(np.uint32(n)):
                weight = weights.dense_rows[np.uint32(d), np.uint32(labels[j])]
                scores[j] += v * as_scored(weight, weights.dense_rows)
        elif stop - start > LONG_ROW * n:
            add_feature(f, v, weights, labels[:n], scores)
        else:
            for k in range(find_marked(weights.labels, start, stop, marks)):
                at = np.uint64(start) + marks.chosen[k]
                j = index_of(weights.labels[at], labels, marks)
                scores[j] += v * as_scored(weights.values[at], weights.dense_rows)
    unmark(labels, 0, n, marks)


@kernel
def split_recalled(
    row, rows, relevant, remembered, n_best, weights, scale, settings, noise, work, recalled, marks
):  # fmt: skip
    """Do what training.score_for_choice and split_scores do, with no irrelevant labels but the remembered ones."""
    labels, scores = recalled
    first, last = rows.offsets[row], rows.offsets[row + 1]
    n = _join(relevant, remembered, labels)
    score_marked(rows.features[first:last], rows.values[first:last], weights, labels, n, scores, marks)
    key = mix(settings.noise_key + np.uint64(row))
    turn = np.int64(key % np.uint64(EVERY))
    n_pos, n_neg, n_weak = 0, 0, 0
    for j in range(n):
        label = labels[j]
        if scale != 1:
            scores[j] *= scale
        if settings.perturbed:
            scores[j] += noise[noise_index(key, settings.first_block + label // BLOCK) + label % BLOCK]
        score = scores[j]
        if n_pos < len(relevant) and label == relevant[n_pos]:
            n_pos = insert(score, label, work.pos, work.pos_labels, n_pos, len(relevant))
            continue
        if score > 0 and label % EVERY == turn and settings.n_weak > 0:
            n_weak = insert(score, label, work.weak, work.weak_labels, n_weak, settings.n_weak)
        scores[n_neg], labels[n_neg] = score, label
        n_neg += 1
    n_neg = keep_best(scores, labels, n_neg, n_best)
    work.neg[:n_neg], work.neg_labels[:n_neg] = scores[:n_neg], labels[:n_neg]
    return n_neg, n_weak
