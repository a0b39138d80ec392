"""Rows and weights as the kernels take them: prepared rows, hybrid dense and sparse weights."""

import math
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from xmlpreck.config import InputError, RowsConfig
from xmlpreck.data.dataset import build_csr, offsets_rise
from xmlpreck.data.matrix import as_rows
from xmlpreck.kernels import bfloat
from xmlpreck.kernels.arrays import Rows, Weights, sparse_weights
from xmlpreck.kernels.dense import fill_blended
from xmlpreck.kernels.patterns import fill_dense, fill_prepared, gather_rows

# A feature that touches more than 1 / DENSE_SHARE of the labels has a dense row in training (tools/bench_kernels.py),
# where steps need no search in it; in prediction a smaller table, of which more stays in the caches, is faster.
DENSE_SHARE = 16
DENSE_SHARE_PREDICTING = 8

NO_MASK = np.zeros((0, 0), np.uint8)
ANY_SIZE = 5e-324  # the smallest number above 0: the size of any weight but 0


def prepare_rows(rows: Any, config: RowsConfig) -> csr_array:
    """Return rows as they are scored: float32, unit length if asked for, the bias as one more feature behind the last.

    Any matrix will do: sound CSR is checked while it is copied, anything else goes through `as_rows`.
    """
    if not is_plain_csr(rows):
        rows = as_rows(rows)
    prepared = _prepare(rows, config)
    if prepared is None:  # ids out of order or range, or values that are not finite: mended, or refused by name
        prepared = _prepare(as_rows(rows), config)
    assert prepared is not None
    return prepared


def is_plain_csr(rows: Any) -> bool:
    """Tell whether a matrix is CSR of int32 ids whose offsets fit its arrays; the ids are not checked."""
    if not issparse(rows) or rows.format != "csr" or rows.ndim != 2 or rows.indices.dtype != np.int32:
        return False
    fits = len(rows.indptr) == rows.shape[0] + 1 and len(rows.indices) == len(rows.data)
    return rows.dtype.kind in "biuf" and fits and offsets_rise(rows.indptr, len(rows.indices))


def _prepare(rows: csr_array, config: RowsConfig) -> csr_array | None:
    """Return the prepared rows, or None if the given ones are not sound."""
    n_rows, n_features = rows.shape
    has_bias = config.bias > 0
    if config.n_dense:
        return _prepare_blocks(rows, config)
    offsets = rows.indptr + has_bias * np.arange(n_rows + 1, dtype=rows.indptr.dtype)
    features, values = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.float32)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        data = rows.data.astype(np.float32, copy=False)
    given = (rows.indptr.astype(np.int64), rows.indices.astype(np.int32, copy=False), data)
    if not fill_prepared(*given, config.unit_norm, np.float32(config.bias), n_features, features, values):
        return None
    return csr_array((values, features, offsets), shape=(n_rows, n_features + has_bias))


def _prepare_blocks(rows: csr_array, config: RowsConfig) -> csr_array | None:
    """Do what _prepare does for rows whose last features are dense.

    The blocks have length sqrt(1 - w) and sqrt(w), w = config.dense_weight, so that the product of two rows is the
    weighted mean of the products of their blocks; without any other feature the dense block has length 1.
    """
    (n_rows, n_features), n_dense = rows.shape, config.n_dense
    if n_dense > n_features:
        raise InputError(f"rows.n_dense is {n_dense}, but rows have {n_features} features: give the dense ones, too")
    weight = 1.0 if n_dense == n_features else config.dense_weight
    n_at_most = len(rows.indices) + n_rows * (n_dense * (weight > 0) + 1)
    offsets = np.zeros(n_rows + 1, np.int64)
    features, values = np.empty(n_at_most, np.int32), np.empty(n_at_most, np.float32)
    with np.errstate(over="ignore"):
        data = rows.data.astype(np.float32, copy=False)
    given = (rows.indptr.astype(np.int64), rows.indices.astype(np.int32, copy=False), data)
    sizes = (n_features, n_dense, config.unit_norm, math.sqrt(1 - weight), math.sqrt(weight), np.float32(config.bias))
    if not fill_blended(*given, *sizes, offsets, features, values):
        return None
    n = int(offsets[-1])
    return build_csr(values[:n], features[:n], offsets, (n_rows, n_features + (config.bias > 0)))


def kernel_rows(rows: csr_array, labels: csr_array | None = None) -> Rows:
    """Return CSR rows as the kernels take them; the values of labels are their relevance."""
    n_rows = rows.shape[0]
    relevance = np.ones(0, np.float32) if labels is None else labels.data.astype(np.float32, copy=False)
    return Rows(
        rows.indptr.astype(np.int64),
        rows.indices.astype(np.int32, copy=False),
        rows.data.astype(np.float32, copy=False),
        np.zeros(n_rows + 1, np.int64) if labels is None else labels.indptr.astype(np.int64),
        np.zeros(0, np.int32) if labels is None else labels.indices.astype(np.int32, copy=False),
        relevance if (relevance != 1).any() else np.zeros(0, np.float32),
    )


NO_ROWS = kernel_rows(csr_array((0, 0), dtype=np.float32))


def find_empty(rows: Rows, has_bias: bool) -> np.ndarray:
    """Return the rows that have no feature but the bias; a stored 0 is none."""
    counts = np.diff(rows.offsets)
    if not rows.values.all():
        counts = np.diff(np.concatenate([[0], np.cumsum(rows.values != 0)])[rows.offsets])
    return np.flatnonzero(counts == has_bias)


def with_dense_rows(sparse: Weights, is_dense: np.ndarray | None = None, narrow: bool = True) -> Weights:
    """Add a dense row beside the sparse one to each feature with many labels, or to those that are given.

    In bfloat16 if that can hold the weights, unless they shall change: then not `narrow`.
    """
    n_labels = sparse.dense_rows.shape[1]
    if is_dense is None:
        is_dense = np.diff(sparse.offsets) * DENSE_SHARE_PREDICTING > n_labels
    dense_of = np.where(is_dense, np.cumsum(is_dense) - 1, -1).astype(np.int32)
    dtype = np.dtype(np.uint16) if narrow and bfloat.can_hold(sparse.values) else sparse.values.dtype
    dense_rows = np.zeros((int(is_dense.sum()), n_labels), dtype)
    fill_dense(sparse.offsets, sparse.labels, sparse.values, dense_of, dense_rows)
    return sparse._replace(dense_of=dense_of, dense_rows=dense_rows)


def have_dense_rows(n_labels_of: np.ndarray, n_labels: int) -> np.ndarray:
    """Tell which features have a dense row in training, by the number of labels of each."""
    return n_labels_of * DENSE_SHARE > n_labels


def lay_out(sparse: Weights, is_dense: np.ndarray | None = None, narrow: bool = True) -> Weights:
    """Lay out rows as training needs them: a feature has either a dense row or a sparse one.

    Of a shard of the labels, `is_dense` says which ones have a dense row among all labels. See with_dense_rows for
    `narrow`.
    """
    lengths = np.diff(sparse.offsets)
    if is_dense is None:
        is_dense = have_dense_rows(lengths, sparse.dense_rows.shape[1])
    weights = with_dense_rows(sparse, is_dense, narrow)
    is_sparse = ~is_dense
    in_sparse = np.repeat(is_sparse, lengths)
    offsets = np.concatenate([[0], np.cumsum(np.where(is_sparse, lengths, 0))])
    return weights._replace(offsets=offsets, labels=sparse.labels[in_sparse], values=sparse.values[in_sparse])


def all_sparse(weights: Weights, dense_mask: np.ndarray | None = None, min_size: float = 0.0) -> Weights:
    """Return every feature as a sparse row: of the weights whose size is `min_size` or more; if that is 0, of all that
    are stored (of a dense row those under the mask, or without one those that are not 0)."""
    mask = NO_MASK if dense_mask is None else dense_mask
    offsets = np.zeros(len(weights.dense_of) + 1, np.int64)
    labels, values = np.zeros(0, np.int32), np.zeros(0, weights.values.dtype)
    gather_rows(weights, mask, min_size, offsets, labels, values)
    np.cumsum(offsets, out=offsets)
    labels, values = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], weights.values.dtype)
    if len(labels):
        gather_rows(weights, mask, min_size, offsets, labels, values)
    return sparse_weights(offsets, labels, values, int(weights.dense_rows.shape[1]))


def rounded(weights: Weights) -> Weights:
    """Round float32 weights to bfloat16, in place, and return them with dense rows of that; keep float64 as it is."""
    if weights.values.dtype != np.float32:
        return weights
    for array in (weights.dense_rows, weights.values):
        bfloat.round_all(array)
    return weights._replace(dense_rows=bfloat.cut(weights.dense_rows))


def count_weights(weights: Weights) -> int:
    """Count the weights that are not 0."""
    lengths, none = np.zeros(len(weights.dense_of) + 1, np.int64), weights.values[:0]
    gather_rows(weights, NO_MASK, ANY_SIZE, lengths, np.zeros(0, np.int32), none)
    return int(lengths.sum())
