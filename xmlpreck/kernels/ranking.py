"""Rankings against true labels: what each row adds to every metric, and the same under resampled rows."""

import numpy as np

from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.hashing import mix
from xmlpreck.kernels.search import find

# Columns of a row's statistics: some once, some for each k, some for each bin of label frequency, and the hits of
# each bin for each k. A metric is a ratio of sums of columns.
COUNTED, TRUE, RECIPROCAL = range(3)
PER_ROW = 3
HITS, PREDICTED, NDCG, RECALL, R_PRECISION, SERVED, PS_GAIN, PS_BEST, PSN_GAIN, PSN_BEST = range(10)
PER_K = 10

DRAWS_A_WORD = 4  # 16 bits each


@kernel
def mark_hits(top, offsets, labels, out):
    """out[row, rank] = is the label at this rank relevant?"""
    for row in range(top.shape[0]):
        for rank in range(top.shape[1]):
            out[row, rank] = find(labels, offsets[row], offsets[row + 1], top[row, rank]) >= 0


@kernel
def _best_weights(weights, labels, start, stop, best):
    """best = the len(best) largest weights of labels[start:stop], descending; 0 where there are no more."""
    best[:] = 0.0
    for entry in range(start, stop):
        weight = weights[labels[entry]]
        i = len(best)
        while i > 0 and best[i - 1] < weight:
            if i < len(best):
                best[i] = best[i - 1]
            i -= 1
        if i < len(best):
            best[i] = weight


@kernel
def _fill_at_k(stats, k, n_true, sums, ideals, full_ideal):
    """Fill the statistics of a row for one k from the sums over its first k ranks."""
    n_hits, n_predicted, dcg, gain, best_gain, gain_dcg, best_dcg = sums
    reachable = min(k, n_true)
    ideal = ideals[k] if full_ideal or n_true == 0 else ideals[reachable]
    stats[HITS] = n_hits
    stats[PREDICTED] = n_predicted
    if n_true > 0:
        stats[NDCG] = dcg / ideals[reachable]
        stats[RECALL] = n_hits / n_true
        stats[R_PRECISION] = n_hits / reachable
    stats[SERVED] = 1.0 if n_hits > 0 else 0.0
    stats[PS_GAIN] = gain
    stats[PS_BEST] = best_gain
    stats[PSN_GAIN] = gain_dcg / ideal
    stats[PSN_BEST] = best_dcg / ideal


@kernel
def judge_rows(top, offsets, labels, weights, bin_of, n_bins, ks, drop_empty, full_ideal, stats, totals, by_label):
    """Fill stats (n_rows, n_columns); add to totals (n_columns) and by_label (2: hits, predicted; n_ks, n_labels).

    `weights` are inverse propensities; ks ascend. by_label counts a rank at the first k that reaches it, so the count
    for a k is a sum over the ks up to it. `full_ideal`: PSnDCG divides by the discounts of k ranks even where a row
    has fewer labels. With `drop_empty` a row without labels adds nothing.
    """
    n_ks, max_k = len(ks), ks[-1]
    first_of_bins = PER_ROW + n_ks * PER_K
    discounts = 1.0 / np.log2(np.arange(2, max_k + 2))
    ideals = np.zeros(max_k + 1)  # of 0, 1, ... labels
    for rank in range(max_k):
        ideals[rank + 1] = ideals[rank] + discounts[rank]
    best = np.zeros(max_k)
    stats[:] = 0.0
    for row in range(top.shape[0]):
        start, stop = offsets[row], offsets[row + 1]
        n_true = stop - start
        if n_true == 0 and drop_empty:
            continue
        mine = stats[row]
        mine[COUNTED] = 1.0
        mine[TRUE] = n_true
        for entry in range(start, stop):
            mine[first_of_bins + bin_of[labels[entry]]] += 1.0
        _best_weights(weights, labels, start, stop, best)
        n_hits = n_predicted = 0
        dcg = gain = gain_dcg = best_gain = best_dcg = 0.0
        at = 0  # the first k that reaches the rank
        for rank in range(max(top.shape[1], max_k)):
            label = top[row, rank] if rank < top.shape[1] else -1
            is_hit = label >= 0 and find(labels, start, stop, label) >= 0
            if is_hit and mine[RECIPROCAL] == 0.0:
                mine[RECIPROCAL] = 1.0 / (rank + 1)
            if rank >= max_k:
                if mine[RECIPROCAL] > 0.0:
                    break
                continue
            if label >= 0:
                n_predicted += 1
                by_label[1, at, label] += 1
            if is_hit:
                n_hits += 1
                by_label[0, at, label] += 1
                dcg += discounts[rank]
                gain += weights[label]
                gain_dcg += weights[label] * discounts[rank]
                for later in range(at, n_ks):
                    mine[first_of_bins + n_bins * (1 + later) + bin_of[label]] += 1.0
            best_gain += best[rank]
            best_dcg += best[rank] * discounts[rank]
            if rank + 1 == ks[at]:
                here = mine[PER_ROW + at * PER_K : PER_ROW + (at + 1) * PER_K]
                sums = (n_hits, n_predicted, dcg, gain, best_gain, gain_dcg, best_dcg)
                _fill_at_k(here, ks[at], n_true, sums, ideals, full_ideal)
                at += 1
        for column in range(stats.shape[1]):
            totals[column] += mine[column]


@kernel
def add_resampled(stats, first_row, seed, poisson, first_word, sums):
    """sums[column, r] += sum over rows of stats[row, column] * (how often resample r has drawn the row).

    That number is Poisson(1), looked up in `poisson` (2^16 entries) by 16 bits of a hash of (seed, row, resample): the
    same whatever block the row comes in and whichever thread has the resample. `sums` is the part of a thread, from
    resample first_word * DRAWS_A_WORD.
    """
    n_resamples = sums.shape[1]
    drawn = np.zeros(n_resamples)
    step = np.uint64(0x9E3779B97F4A7C15)
    for row in range(stats.shape[0]):
        key = mix(seed + np.uint64(first_row + row) * step)
        for word in range(n_resamples // DRAWS_A_WORD):
            bits = mix(key + np.uint64(first_word + word + 1) * step)
            for draw in range(DRAWS_A_WORD):
                drawn[word * DRAWS_A_WORD + draw] = poisson[bits & np.uint64(0xFFFF)]
                bits >>= np.uint64(16)
        for column in range(stats.shape[1]):
            value = stats[row, column]
            if value != 0.0:
                mine = sums[column]
                for r in range(n_resamples):
                    mine[r] += value * drawn[r]
