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


class PrecisionAtK:
    """P@k = 1/n sum_i |top k of row i that are relevant| / k, in per cent, over rows that come block by block."""

    def __init__(self, ks: Sequence[int] = REPORTED_KS) -> None:
        self.ks = tuple(ks)
        self.n_rows = 0
        self.n_hits = dict.fromkeys(self.ks, 0)

    def add(self, top: TopK, labels: csr_array) -> None:
        hit = hits(top, labels)
        for k in self.ks:
            if k > hit.shape[1]:
                raise InputError(
                    f"P@{k} needs {k} predicted labels a row, but there are {hit.shape[1]}: use --topk {k}"
                )
            self.n_hits[k] += int(hit[:, :k].sum())
        self.n_rows += len(hit)

    def result(self) -> dict[str, float]:
        return {f"P@{k}": 100.0 * self.n_hits[k] / (max(self.n_rows, 1) * k) for k in self.ks}


def precision_at_k(top: TopK, labels: csr_array, ks: Sequence[int] = REPORTED_KS) -> dict[str, float]:
    """P@k of rows in memory, for each k."""
    counted = PrecisionAtK(ks)
    counted.add(top, labels)
    return counted.result()
