"""Partial credit in a hierarchy of labels: hP, hR and hF1 of Kiritchenko, Matwin and Famili (2005).

Predicted and true labels of a row are joined by all of their ancestors, without a root that is above all labels. hP is
the share of the first set that is in the second, hR that of the second in the first, each of sums over rows.
"""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array, eye_array

from xmlpreck.data.dataset import TopK
from xmlpreck.data.vocabulary import Label


def with_ancestors(labels: Sequence[Label]) -> csr_array:
    """Return (n, n): row l has 1 at l and at every label above it; a broader label that is not there is skipped."""
    place_of = {label.id: place for place, label in enumerate(labels)}
    pairs = [
        (place, place_of[other]) for place, label in enumerate(labels) for other in label.broader if other in place_of
    ]
    rows, columns = np.array(pairs, np.int64).reshape(-1, 2).T
    n = len(labels)
    above = _ones(csr_array((np.ones(len(pairs)), (rows, columns)), (n, n)) + eye_array(n))
    while (further := _ones(csr_array(above @ above))).nnz > above.nnz:  # as often as the depth has bits
        above = further
    is_root = np.bincount(above.indices, minlength=n) == n
    if n > 1 and is_root.any():
        above = csr_array(above.multiply(~is_root))
        above.eliminate_zeros()
    above.sort_indices()
    return above


def shared_ancestors(above: csr_array, top: TopK, labels: csr_array, ks: Sequence[int]) -> np.ndarray:
    """Count the labels of each row with their ancestors: true ones, then for each k shared and predicted ones.

    The first labels of `above` are those of the rows; it may have more.
    """
    known = csr_array(above[: labels.shape[1]])
    true = _ones(csr_array(labels @ known))
    columns = [np.diff(true.indptr)]
    for k in ks:
        first = top.labels[:, :k]
        is_label = first >= 0
        offsets = np.concatenate([[0], np.cumsum(is_label.sum(axis=1))])
        chosen = csr_array((np.ones(int(offsets[-1])), first[is_label], offsets), labels.shape)
        predicted = _ones(csr_array(chosen @ known))
        columns += [np.diff(csr_array(predicted.multiply(true)).indptr), np.diff(predicted.indptr)]
    return np.stack(columns, axis=1).astype(np.float64)


def _ones(matrix: csr_array) -> csr_array:
    """Set every entry to 1."""
    matrix.data = np.ones(matrix.nnz)
    return matrix
