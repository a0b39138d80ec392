"""Which label may use which feature: the pattern of X^T Y. Known before training, so that weights never grow in it."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.kernels.arrays import Rows, Weights, no_weights, run_team, sparse_weights
from xmlpreck.kernels.patterns import merge_rows, support_of


def find_support(blocks: Iterable[Rows], n_features: int, n_labels: int, n_threads: int, dtype: Any) -> Weights:
    """Zero weights wherever a label may use a feature, gathered from rows that come block by block."""
    support = no_weights(n_features, n_labels, dtype)
    for rows in blocks:
        found = support_of_block(rows, n_features, n_labels, n_threads)
        support = union_of(support, found, with_places=False)[0] if len(support.labels) else found
    return support._replace(values=np.zeros(len(support.labels), dtype))


def support_of_block(rows: Rows, n_features: int, n_labels: int, n_threads: int) -> Weights:
    """The pattern of X^T Y of rows in memory, without values."""
    n_rows = len(rows.offsets) - 1
    by_feature = csr_array(
        (np.ones(len(rows.features), np.int8), rows.features, rows.offsets), shape=(n_rows, n_features)
    ).tocsc()
    feature_offsets = by_feature.indptr.astype(np.int64)
    feature_rows = by_feature.indices.astype(np.int32)
    offsets = np.zeros(n_features + 1, np.int64)
    labels = np.zeros(0, np.int32)

    def scan(me: int) -> None:
        seen = np.full(n_labels, -1, np.int32)
        support_of(me, n_threads, feature_offsets, feature_rows, rows, seen, offsets, labels)

    run_team(n_threads, scan)
    np.cumsum(offsets, out=offsets)
    labels = np.zeros(offsets[-1], np.int32)
    run_team(n_threads, scan)
    return sparse_weights(offsets, labels, np.zeros(0, np.float32), n_labels)


def union_of(first: Weights, second: Weights, with_places: bool = True) -> tuple[Weights, np.ndarray]:
    """The union of two supports, without values, and where the entries of the first stand in it."""
    offsets = np.zeros(len(first.offsets), np.int64)
    labels, places = np.zeros(0, np.int32), np.zeros(len(first.labels) if with_places else 0, np.int64)
    patterns = (first.offsets, first.labels, second.offsets, second.labels)
    merge_rows(*patterns, offsets, labels, places)
    np.cumsum(offsets, out=offsets)
    labels = np.zeros(offsets[-1], np.int32)
    merge_rows(*patterns, offsets, labels, places)
    return first._replace(offsets=offsets, labels=labels, values=np.zeros(0, first.values.dtype)), places
