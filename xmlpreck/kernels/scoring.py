"""Scores of one row: <w_l, x> for all labels, block by block, or for given labels; and noise on them.

Every order of summation is fixed: a score adds features in the order of the row, and no `fastmath` is on where it could
reorder a sum. So scores have the same bits for dense and sparse rows alike. Where dense rows are in bfloat16, scores
take every weight cut to that.
"""

import numpy as np

from xmlpreck.kernels.arrays import BLOCK, NOISE_STARTS
from xmlpreck.kernels.bfloat import as_scored
from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.hashing import mix
from xmlpreck.kernels.search import lower_bound_near


@kernel
def begin_row(work):
    """Begin a row: a new stamp, no block opened yet."""
    work.counts[0] += 1
    work.counts[1] = 0


@kernel
def _open_block(block, n_labels, work):
    """Zero a block that this row touches first, and remember it."""
    end = (block + 1) * BLOCK
    work.scores[end - BLOCK : end] = 0
    work.scores[n_labels:end] = -np.inf  # padding of the last block
    work.opened[block] = work.counts[0]
    work.blocks[work.counts[1]] = block
    work.counts[1] += 1


@kernel
def open_at(label, n_labels, work):
    """Open the block of a label, if this row has not."""
    if work.opened[label // BLOCK] != work.counts[0]:
        _open_block(label // BLOCK, n_labels, work)


@kernel
def open_all(n_labels, work):
    """Open all blocks of a row, before anything is added to its scores: at once, a third of the time of one by one."""
    work.scores[:n_labels] = 0
    work.scores[n_labels:] = -np.inf  # padding of the last block
    n_blocks = len(work.opened)
    for block in range(n_blocks):
        work.opened[block] = work.counts[0]
        work.blocks[block] = block
    work.counts[1] = n_blocks


@kernel
def add_one(scores, v, w):
    for i in range(len(w)):
        scores[i] += v * as_scored(w[i], w)


@kernel
def _add_two(scores, v0, w0, v1, w1):
    """Two dense rows in one sweep: one load and store of the scores instead of two. Order as in two add_one."""
    for i in range(len(w0)):
        score = scores[i] + v0 * as_scored(w0[i], w0)
        scores[i] = score + v1 * as_scored(w1[i], w1)


@kernel
def _add_four(scores, v0, w0, v1, w1, v2, w2, v3, w3):
    """The same for four dense rows."""
    for i in range(len(w0)):
        score = scores[i] + v0 * as_scored(w0[i], w0)
        score = score + v1 * as_scored(w1[i], w1)
        score = score + v2 * as_scored(w2[i], w2)
        scores[i] = score + v3 * as_scored(w3[i], w3)


@kernel
def add_sparse(scores, v, labels, w, dense_rows):
    for i in range(len(labels)):
        label = np.uint32(labels[i])  # unsigned: no test for a negative index, half the time
        scores[label] += v * as_scored(w[i], dense_rows)


@kernel
def score_row(features, values, weights, n_labels, work):
    """s_l = <w_l, x> for all labels of the opened blocks; every other label has score 0."""
    dense_of, dense_rows, offsets, labels, row_values = weights
    scores = work.scores
    n = len(features)
    any_dense = False
    for i in range(n):
        any_dense = any_dense or dense_of[features[i]] >= 0
    if any_dense:
        open_all(n_labels, work)
    i = 0
    while i < n:
        d = dense_of[features[i]]
        if d >= 0:
            d1 = dense_of[features[i + 1]] if i + 1 < n else -1
            d2 = dense_of[features[i + 2]] if i + 2 < n else -1
            d3 = dense_of[features[i + 3]] if i + 3 < n else -1
            if d1 >= 0 and d2 >= 0 and d3 >= 0:
                _add_four(
                    scores, values[i], dense_rows[d], values[i + 1], dense_rows[d1],
                    values[i + 2], dense_rows[d2], values[i + 3], dense_rows[d3],
                )  # fmt: skip
                i += 4
                continue
            if d1 >= 0:
                _add_two(scores, values[i], dense_rows[d], values[i + 1], dense_rows[d1])
                i += 2
                continue
            add_one(scores, values[i], dense_rows[d])
        elif any_dense:
            first, last = offsets[features[i]], offsets[features[i] + 1]
            add_sparse(scores, values[i], labels[first:last], row_values[first:last], dense_rows)
        else:
            v = values[i]
            for p in range(offsets[features[i]], offsets[features[i] + 1]):
                label = labels[p]
                open_at(label, n_labels, work)
                scores[label] += v * as_scored(row_values[p], dense_rows)
        i += 1


@kernel
def add_feature(f, v, weights, labels, scores):
    """scores[j] += v * weight of feature f and the ascending labels[j]."""
    d = weights.dense_of[f]
    p, stop = weights.offsets[f], weights.offsets[f + 1]
    for j in range(len(labels)):
        if d >= 0:
            scores[j] += v * as_scored(weights.dense_rows[d, labels[j]], weights.dense_rows)
        else:
            p = lower_bound_near(weights.labels, p, stop, labels[j])
            if p == stop:
                break
            if weights.labels[p] == labels[j]:
                scores[j] += v * as_scored(weights.values[p], weights.dense_rows)


@kernel
def score_labels(features, values, weights, labels, scores):
    """scores[j] = <w_l, x> of the ascending labels l = labels[j], with the bits of score_row."""
    scores[:] = 0
    for i in range(len(features)):
        add_feature(features[i], values[i], weights, labels, scores)


@kernel
def noise_index(row_key, block):
    """Index in the noise table at which the noise of a row's block of labels begins."""
    key = row_key + np.uint64(block) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mix(key) % np.uint64(NOISE_STARTS))


@kernel
def perturb(noise, row_key, first_block, work):
    """Add noise[noise_index(row_key, b) + l % BLOCK] to the score of each label l of an opened block b = l // BLOCK.

    row_key = mix(key of the pass + row): the draw depends on the pass, the row and the label only.
    """
    for i in range(work.counts[1]):
        block = work.blocks[i]
        start = noise_index(row_key, first_block + block)
        block_scores = work.scores[block * BLOCK : block * BLOCK + BLOCK]  # a slice, or LLVM finds no SIMD here
        block_noise = noise[start : start + BLOCK]
        for j in range(BLOCK):
            block_scores[j] += block_noise[j]
