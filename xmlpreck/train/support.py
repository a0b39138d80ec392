"""Which label may use which feature: the pattern of X^T Y. Known before training, so that weights never grow in it."""

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.kernels.arrays import Rows, Weights, no_weights, sparse_weights
from xmlpreck.kernels.patterns import mark_hardest, mark_strongest, merge_rows, support_of
from xmlpreck.kernels.threads import run_team

NO_STRENGTHS = np.zeros(0, np.float32)


class Cut(NamedTuple):
    """What a limit on the number of weights has removed from the support."""

    most_weights: int  # the limit
    most_features: int  # that a label may use, then
    n_labels: int  # that have lost some


class TooManyWeights(Exception):
    """The support has outgrown its limit."""

    def __init__(self, n_rows: int, n_weights: int) -> None:
        super().__init__(f"{n_weights:,} weights after {n_rows:,} rows")
        self.n_rows, self.n_weights = n_rows, n_weights


def find_support(
    blocks: Iterable[Rows],
    n_features: int,
    n_labels: int,
    n_threads: int,
    dtype: Any = np.float32,
    max_weights: int = sys.maxsize,
) -> Weights:
    """Gather zero weights wherever a label may use a feature, from rows that come block by block."""
    support = no_weights(n_features, n_labels, dtype)
    n_rows = 0
    for rows in blocks:
        found, _ = support_of_block(rows, n_features, n_labels, n_threads)
        n_rows += len(rows.offsets) - 1
        if len(support.labels) + len(found.labels) > max_weights:  # before the union is made
            raise TooManyWeights(n_rows, max(len(support.labels), len(found.labels)))
        support = union_of(support, found, with_positions=False)[0] if len(support.labels) else found
    return support._replace(values=np.zeros(len(support.labels), dtype))


def find_strongest(
    blocks: Iterable[Rows], n_features: int, n_labels: int, n_threads: int, max_weights: int, dtype: Any = np.float32
) -> tuple[Weights, Cut | None]:
    """Find a support of at most about `max_weights` weights: for each label its strongest features.

    A feature is as strong for a label as the sum of its sizes in the label's rows. All labels have the same limit. With
    many blocks the support is cut as it grows, so a feature that gathers its strength late may be lost.
    """
    support, strengths, cut = no_weights(n_features, n_labels, dtype), NO_STRENGTHS, None
    for rows in blocks:
        found, found_strengths = support_of_block(rows, n_features, n_labels, n_threads, weighing=True)
        both, positions = union_of(support, found)
        summed = np.zeros(len(both.labels), np.float32)
        summed[positions] += strengths
        summed[union_of(found, support)[1]] += found_strengths
        support, strengths, now = keep_strongest(both, summed, max_weights)
        cut = now or cut
    return support._replace(values=np.zeros(len(support.labels), dtype)), cut


def keep_strongest(support: Weights, strengths: np.ndarray, max_weights: int) -> tuple[Weights, np.ndarray, Cut | None]:
    """Keep at most `max_weights` entries (but one for each label), by one limit on the features of a label."""
    n_labels = support.dense_rows.shape[1]
    n_features_of = np.bincount(support.labels, minlength=n_labels)
    if len(support.labels) <= max_weights:
        return support, strengths, None
    # With a limit of c features the weights are sum(min(n_features_of, c)), which rises with c.
    low, high = 1, int(n_features_of.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(n_features_of, middle).sum() <= max_weights else (low, middle - 1)
    kept = np.zeros(len(support.labels), bool)
    mark_strongest(support.offsets, support.labels, strengths, n_labels, low, kept)
    offsets = np.concatenate([[0], np.cumsum(kept)])[support.offsets]
    cut = Cut(max_weights, low, int(np.count_nonzero(n_features_of > low)))
    return support._replace(offsets=offsets, labels=support.labels[kept]), strengths[kept], cut


def support_of_block(
    rows: Rows, n_features: int, n_labels: int, n_threads: int, weighing: bool = False
) -> tuple[Weights, np.ndarray]:
    """Find the pattern of X^T Y of rows in memory, without values, and the strength of each entry if asked for."""
    n_rows = len(rows.offsets) - 1
    by_feature = csr_array((rows.values, rows.features, rows.offsets), shape=(n_rows, n_features)).tocsc()
    feature_offsets = by_feature.indptr.astype(np.int64)
    feature_rows = by_feature.indices.astype(np.int32)
    offsets = np.zeros(n_features + 1, np.int64)
    labels, strengths = np.zeros(0, np.int32), NO_STRENGTHS

    def scan(thread: int) -> None:
        seen = np.full(n_labels, -1, np.int32)
        columns = (feature_offsets, feature_rows, by_feature.data)
        support_of(thread, n_threads, *columns, rows, seen, offsets, labels, strengths)

    run_team(n_threads, scan)
    np.cumsum(offsets, out=offsets)
    labels = np.zeros(offsets[-1], np.int32)
    strengths = np.zeros(offsets[-1], np.float32) if weighing else NO_STRENGTHS
    run_team(n_threads, scan)
    return sparse_weights(offsets, labels, np.zeros(0, np.float32), n_labels), strengths


def support_of_hardest(rows: Rows, hardest: np.ndarray, dense_of: np.ndarray, dense_mask: np.ndarray) -> Weights:
    """The features of each row for its hardest label: bits in the mask of dense features, a pattern of the others."""
    no_keys = np.zeros(0, np.int64)
    keys = np.empty(mark_hardest(rows, hardest, dense_of, dense_mask, no_keys), np.int64)
    mark_hardest(rows, hardest, dense_of, dense_mask, keys)
    features, labels = np.divmod(np.unique(keys), dense_mask.shape[1] * 8)
    offsets = np.searchsorted(features, np.arange(len(dense_of) + 1))
    return sparse_weights(offsets, labels.astype(np.int32), np.zeros(0, np.float32), dense_mask.shape[1] * 8)


def union_of(first: Weights, second: Weights, with_positions: bool = True) -> tuple[Weights, np.ndarray]:
    """Unite two supports, without values; return also the positions of the entries of the first."""
    offsets = np.zeros(len(first.offsets), np.int64)
    labels, positions = np.zeros(0, np.int32), np.zeros(len(first.labels) if with_positions else 0, np.int64)
    patterns = (first.offsets, first.labels, second.offsets, second.labels)
    merge_rows(*patterns, offsets, labels, positions)
    np.cumsum(offsets, out=offsets)
    labels = np.zeros(offsets[-1], np.int32)
    merge_rows(*patterns, offsets, labels, positions)
    return first._replace(offsets=offsets, labels=labels, values=np.zeros(0, first.values.dtype)), positions
