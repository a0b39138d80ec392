"""Work on whole sparse matrices, without temporary copies: patterns, their union, dense rows, unit rows."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def support_of(me, n_threads, feature_offsets, feature_rows, rows, seen, offsets, labels):
    """The pattern of X^T Y: labels that share a row with each feature, sorted. X is given by feature (CSC).

    First call, with empty `labels`: offsets[f + 1] = number of labels of feature f. Second call, with offsets summed
    up: fills labels. `seen` holds n_labels times -1.
    """
    filling = len(labels) > 0
    for f in range(me, len(offsets) - 1, n_threads):
        n = offsets[f] if filling else 0
        for p in range(feature_offsets[f], feature_offsets[f + 1]):
            row = feature_rows[p]
            for q in range(rows.label_offsets[row], rows.label_offsets[row + 1]):
                label = rows.labels[q]
                if seen[label] != f:
                    seen[label] = f
                    if filling:
                        labels[n] = label
                    n += 1
        if filling:
            labels[offsets[f] : n].sort()
        else:
            offsets[f + 1] = n


@njit(cache=True, nogil=True)
def merge_rows(offsets_a, labels_a, offsets_b, labels_b, offsets, labels, places_a):
    """Union of two patterns of sorted rows, and where the entries of the first stand in it.

    First call, with empty `labels`: offsets[f + 1] = length of row f of the union. Second call, with offsets summed
    up: fills labels and, unless that is empty, places_a.
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
                if from_a and len(places_a):
                    places_a[a] = n
            a += from_a
            n += 1
        if not filling:
            offsets[f + 1] = n


@njit(cache=True, nogil=True)
def fill_dense(offsets, labels, values, dense_of, dense_rows):
    """Copy the sparse rows of dense features into dense_rows."""
    for f in range(len(dense_of)):
        if dense_of[f] >= 0:
            for p in range(offsets[f], offsets[f + 1]):
                dense_rows[dense_of[f], labels[p]] = values[p]


@njit(cache=True, nogil=True)
def fill_mask(offsets, labels, dense_of, dense_mask):
    """Set a bit of dense_mask for every entry of the sparse rows of dense features."""
    for f in range(len(dense_of)):
        if dense_of[f] >= 0:
            for p in range(offsets[f], offsets[f + 1]):
                dense_mask[dense_of[f], labels[p] >> 3] |= np.uint8(1 << (labels[p] & 7))


@njit(cache=True, nogil=True)
def unit_rows(offsets, values, scaled):
    """scaled = values / |row|; a row of length 0 stays."""
    for row in range(len(offsets) - 1):
        square = 0.0
        for p in range(offsets[row], offsets[row + 1]):
            square += np.float64(values[p]) * np.float64(values[p])
        norm = np.sqrt(square) if square > 0 else 1.0
        for p in range(offsets[row], offsets[row + 1]):
            scaled[p] = values[p] / norm


@njit(cache=True, nogil=True)
def add_squares(offsets, values, norms):
    """norms[f % len(norms)] += squared length of row f."""
    for f in range(len(offsets) - 1):
        for p in range(offsets[f], offsets[f + 1]):
            norms[f % len(norms)] += np.float64(values[p]) * np.float64(values[p])
