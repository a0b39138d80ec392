"""Evaluation formulas, each named by its convention.

Convention `repository` (the XML repository's Matlab script, pyxclib, napkinXC, PECOS): every row counts, one without
labels scores 0; P@k divides by k even where fewer labels were predicted; ties are settled before, in the TopK (higher
score, then lower label id).
"""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError
from xmlpreck.formats import TopK

REPORTED_KS = (1, 3, 5)


def hits(top: TopK, labels: csr_array) -> np.ndarray:
    """Boolean (n_rows, k): is the label at this place relevant?"""
    n_rows, n_labels = labels.shape
    if len(top.labels) != n_rows:
        raise InputError(f"predictions have {len(top.labels)} rows, but the data has {n_rows}: not the same rows")
    if top.labels.size and top.labels.max() >= n_labels:
        raise InputError(f"predicted label {top.labels.max()} is out of range: the data has {n_labels} labels")
    # One sorted key for each (row, label): CSR order with sorted ids is sorted already.
    row_of = np.repeat(np.arange(n_rows, dtype=np.int64), np.diff(labels.indptr))
    relevant = row_of * n_labels + labels.indices
    asked = np.arange(n_rows, dtype=np.int64)[:, None] * n_labels + top.labels
    if not len(relevant):
        return np.zeros(top.labels.shape, dtype=bool)
    places = np.minimum(np.searchsorted(relevant, asked), len(relevant) - 1)
    return (relevant[places] == asked) & (top.labels >= 0)


def precision_at_k(top: TopK, labels: csr_array, ks: Sequence[int] = REPORTED_KS) -> dict[str, float]:
    """P@k = 1/n sum_i |top k of row i that are relevant| / k, in per cent, for each k (convention `repository`)."""
    hit = hits(top, labels)
    for k in ks:
        if k > hit.shape[1]:
            raise InputError(f"P@{k} needs {k} predicted labels a row, but there are {hit.shape[1]}: use --topk {k}")
    n_rows = max(len(hit), 1)
    return {f"P@{k}": 100.0 * float(hit[:, :k].sum()) / (n_rows * k) for k in ks}
