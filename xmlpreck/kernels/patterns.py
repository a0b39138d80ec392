"""Patterns of sorted sparse rows: that of X^T Y, and the union of two."""

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
    up: fills labels and places_a.
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
                if from_a:
                    places_a[a] = n
            a += from_a
            n += 1
        if not filling:
            offsets[f + 1] = n
