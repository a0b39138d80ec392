"""Which label may use which feature: the pattern of X^T Y."""

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
