"""Work on whole sparse matrices, without temporary copies: patterns, their union, dense rows, unit rows."""

import numpy as np

from xmlpreck.kernels.bfloat import as_scored, as_stored
from xmlpreck.kernels.caching import kernel


@kernel
def support_of(thread, n_threads, col_offsets, col_rows, col_values, rows, seen, offsets, labels, strengths):
    """The pattern of X^T Y: labels that share a row with each feature, sorted. X is given by its columns (CSC).

    First call, with empty `labels`: offsets[f + 1] = number of labels of feature f. Second call, with offsets summed
    up: fills labels and, unless that is empty, strengths = the entries of |X|^T Y. `seen` holds n_labels times -1.
    """
    filling = len(labels) > 0
    weighing = len(strengths) > 0
    sums = np.zeros(len(seen) if weighing else 0)
    for f in range(thread, len(offsets) - 1, n_threads):
        n = offsets[f] if filling else 0
        for p in range(col_offsets[f], col_offsets[f + 1]):
            row = col_rows[p]
            for q in range(rows.label_offsets[row], rows.label_offsets[row + 1]):
                label = rows.labels[q]
                if seen[label] != f:
                    seen[label] = f
                    if filling:
                        labels[n] = label
                    n += 1
                if weighing:
                    sums[label] += abs(col_values[p])
        if filling:
            labels[offsets[f] : n].sort()
            if weighing:
                for p in range(offsets[f], n):
                    strengths[p] = sums[labels[p]]
                    sums[labels[p]] = 0.0
        else:
            offsets[f + 1] = n


@kernel
def mark_strongest(offsets, labels, strengths, n_labels, max_features, kept):
    """kept = is the entry among the `max_features` strongest of its label? Of equal ones the lower feature."""
    counts = np.zeros(n_labels + 1, np.int64)
    for p in range(len(labels)):
        counts[labels[p] + 1] += 1
    starts = np.cumsum(counts)
    next_entry = starts[:-1].copy()
    by_label = np.empty(len(labels), strengths.dtype)
    for p in range(len(labels)):
        by_label[next_entry[labels[p]]] = strengths[p]
        next_entry[labels[p]] += 1
    threshold = np.zeros(n_labels, strengths.dtype)  # strength of the weakest that is kept
    n_equal = np.zeros(n_labels, np.int64)  # of these, how many are kept
    for label in range(n_labels):
        mine = by_label[starts[label] : starts[label + 1]]
        if len(mine) > max_features:
            mine.sort()
            threshold[label] = mine[len(mine) - max_features]
            n_equal[label] = max_features - np.sum(mine > threshold[label])
    for p in range(len(labels)):
        label = labels[p]
        if counts[label + 1] <= max_features or strengths[p] > threshold[label]:
            kept[p] = True
        elif strengths[p] == threshold[label] and n_equal[label] > 0:
            kept[p] = True
            n_equal[label] -= 1


@kernel
def merge_rows(offsets_a, labels_a, offsets_b, labels_b, offsets, labels, positions):
    """Union of two patterns of sorted rows, and the positions of the entries of the first in it.

    First call, with empty `labels`: offsets[f + 1] = length of row f of the union. Second call, with offsets summed
    up: fills labels and, unless that is empty, positions.
    """
    filling = len(labels) > 0
    for f in range(len(offsets) - 1):
        a, b = offsets_a[f], offsets_b[f]
        n = offsets[f] if filling else 0
        while a < offsets_a[f + 1] or b < offsets_b[f + 1]:
            from_a = b == offsets_b[f + 1] or (a < offsets_a[f + 1] and labels_a[a] <= labels_b[b])
            label = labels_a[a] if from_a else labels_b[b]
            if b < offsets_b[f + 1] and labels_b[b] == label:
                b += 1
            if filling:
                labels[n] = label
                if from_a and len(positions):
                    positions[a] = n
            a += from_a
            n += 1
        if not filling:
            offsets[f + 1] = n


@kernel
def fill_dense(offsets, labels, values, dense_of, dense_rows):
    """Copy the sparse rows of dense features into dense_rows."""
    for f in range(len(dense_of)):
        if dense_of[f] >= 0:
            for p in range(offsets[f], offsets[f + 1]):
                dense_rows[dense_of[f], labels[p]] = as_stored(values[p], dense_rows)


@kernel
def rows_rise(offsets, labels, n_labels):
    """Do the labels of each feature rise, from 0 or more to less than n_labels?"""
    for f in range(len(offsets) - 1):
        before = -1
        for p in range(offsets[f], offsets[f + 1]):
            if labels[p] <= before or labels[p] >= n_labels:
                return False
            before = labels[p]
    return True


@kernel
def gather_rows(weights, dense_mask, min_size, offsets, labels, values):
    """Every feature as a sparse row, of the entries whose size is `min_size` or more.

    With min_size 0 a sparse row keeps its zeros, and a dense row those under the mask, if there is one.
    First call, with empty `labels`: offsets[f + 1] = length of row f. Second call, with offsets summed up: fills labels
    and values.
    """
    filling = len(labels) > 0
    masked = len(dense_mask) > 0
    for f in range(len(offsets) - 1):
        n = offsets[f] if filling else 0
        dense = weights.dense_of[f]
        stop = weights.dense_rows.shape[1] if dense >= 0 else weights.offsets[f + 1]
        for p in range(0 if dense >= 0 else weights.offsets[f], stop):
            label = p if dense >= 0 else weights.labels[p]
            value = as_scored(weights.dense_rows[dense, p], weights.dense_rows) if dense >= 0 else weights.values[p]
            if min_size > 0:
                kept = abs(value) >= min_size
            elif dense >= 0 and masked:
                kept = (dense_mask[dense, label >> 3] >> (label & 7)) & 1 == 1
            else:
                kept = dense < 0 or value != 0
            if kept:
                if filling:
                    labels[n] = label
                    values[n] = value
                n += 1
        if not filling:
            offsets[f + 1] = n


@kernel
def fill_mask(offsets, labels, dense_of, dense_mask):
    """Set a bit of dense_mask for every entry of the sparse rows of dense features."""
    for f in range(len(dense_of)):
        if dense_of[f] >= 0:
            for p in range(offsets[f], offsets[f + 1]):
                dense_mask[dense_of[f], labels[p] >> 3] |= np.uint8(1 << (labels[p] & 7))


@kernel
def mark_hardest(rows, hardest, dense_of, dense_mask, keys):
    """Set the bit of dense_mask for each row's dense features and its hardest label (-1 = it has none).

    Of its other features come keys, feature * n_labels + label, as many as fit. Returns how many there are.
    """
    n_labels = dense_mask.shape[1] * 8
    n = 0
    for row in range(len(hardest)):
        label = hardest[row]
        if label < 0:
            continue
        for p in range(rows.offsets[row], rows.offsets[row + 1]):
            d = dense_of[rows.features[p]]
            if d >= 0:
                dense_mask[d, label >> 3] |= np.uint8(1 << (label & 7))
            else:
                if n < len(keys):
                    keys[n] = np.int64(rows.features[p]) * n_labels + label
                n += 1
    return n


@kernel
def fill_prepared(offsets, features, values, unit_norm, bias, n_features, new_features, new_values):
    """Copy rows: their values / |row| if unit_norm (a row of length 0 stays), then the bias if it is not 0.

    Returns False, with the copy unfinished, at the first row whose ids do not rise within the n_features or whose
    values are not all finite.
    """
    n = 0
    for row in range(len(offsets) - 1):
        square = 0.0
        before = -1
        rises = True
        for p in range(offsets[row], offsets[row + 1]):
            square += np.float64(values[p]) * np.float64(values[p])
            rises &= features[p] > before
            before = features[p]
        if not (rises and before < n_features and square < np.inf):  # NaN is not below infinity
            return False
        norm = np.sqrt(square) if unit_norm and square > 0 else 1.0
        for p in range(offsets[row], offsets[row + 1]):
            new_features[n] = features[p]
            new_values[n] = values[p] / norm
            n += 1
        if bias != 0:
            new_features[n] = n_features
            new_values[n] = bias
            n += 1
    return True


@kernel
def add_squares(offsets, values, norms):
    """norms[f % len(norms)] += squared length of row f."""
    for f in range(len(offsets) - 1):
        for p in range(offsets[f], offsets[f + 1]):
            norms[f % len(norms)] += np.float64(values[p]) * np.float64(values[p])
