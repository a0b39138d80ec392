"""The best labels of a row without scoring all of them: bounds of common features prove that the others are no better.

Labels l, l + n_groups, l + 2 n_groups, ... are a group of GROUP_LABELS. For a feature that many labels know, only the
highest weight of each group is read; rarer features are added label by label. The sum bounds every score from above.
Labels whose bound reaches the k-th best score are scored exactly, in the order of the row: all bits are those of
scoring.score_row. Groups of 16 leave 32 labels of wordnet-rel's 60,258 for an average row (docs/large.md).
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from xmlpreck.kernels.arrays import ALIGNED, BLOCK, Weights
from xmlpreck.kernels.bfloat import as_scored
from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.scoring import add_feature, add_one, add_sparse, score_labels
from xmlpreck.kernels.topk import any_from, insert

GROUP_LABELS = 16
# A feature of more than 1 / COMMON_SHARE of the labels is bounded, not added (32 is no faster on real rows).
COMMON_SHARE = 16
# More labels that may be among the best than this: all labels are scored instead.
MAX_CANDIDATES = 1024
# Groups whose best label is tried first, beside k of them.
MORE_TRIED = 11
# Rounding of a sum of n numbers in float32 is at most (n + 1) UNIT times the sum of their sizes.
UNIT = 2.0**-24


class Bounds(NamedTuple):
    """Bounds of the weights of a model; all empty where they are not used."""

    row_of: np.ndarray  # (n_features) int32: a common feature's row in `highest`, or -1
    highest: np.ndarray  # (n_common, n_groups) float32: highest weight in each group, or 0 if that is higher
    sizes: np.ndarray  # (n_features) float32: the largest absolute weight


class Trial(NamedTuple):
    """One thread's buffers for one row."""

    scores: np.ndarray  # (GROUP_LABELS * n_groups): sums over features that are not common; -inf behind the last label
    limits: np.ndarray  # (n_groups): bounds of the sums over common features
    bounds: np.ndarray  # (n_groups): bounds of the whole scores
    labels: np.ndarray  # (MAX_CANDIDATES) int32
    label_scores: np.ndarray  # their scores
    best: np.ndarray  # (MAX_CANDIDATES): the best scores so far
    best_ids: np.ndarray  # int32: their labels or groups
    bonus_size: float  # the largest finite absolute bonus of a label


def no_bounds() -> Bounds:
    return Bounds(np.zeros(0, np.int32), np.zeros((0, 0), np.float32), np.zeros(0, np.float32))


def find_bounds(weights: Weights) -> Bounds:
    """Bound the weights of all features; reads each of them once."""
    n_labels = weights.dense_rows.shape[1]
    is_common = (weights.dense_of >= 0) | (np.diff(weights.offsets) * COMMON_SHARE > n_labels)
    row_of = np.where(is_common, np.cumsum(is_common) - 1, -1).astype(np.int32)
    n_groups = -(-n_labels // (GROUP_LABELS * BLOCK)) * BLOCK
    highest = np.zeros((np.count_nonzero(is_common), n_groups), np.float32)
    sizes = np.zeros(len(row_of), np.float32)
    fill_bounds(weights, row_of, highest, sizes)
    return Bounds(row_of, highest, sizes)


def size_of(bonus: np.ndarray) -> float:
    """Return the largest finite absolute bonus of a label, see Trial."""
    return float(np.abs(bonus[bonus > -np.inf]).max(initial=0.0))


def new_trial(bounds: Bounds, bonus: np.ndarray, dtype: Any) -> Trial:
    n_groups = bounds.highest.shape[1]
    return Trial(
        scores=np.full(GROUP_LABELS * n_groups, -np.inf, dtype),
        limits=np.zeros(n_groups, dtype),
        bounds=np.zeros(n_groups, dtype),
        labels=np.zeros(MAX_CANDIDATES, np.int32),
        label_scores=np.zeros(MAX_CANDIDATES, dtype),
        best=np.zeros(MAX_CANDIDATES, dtype),
        best_ids=np.zeros(MAX_CANDIDATES, np.int32),
        bonus_size=size_of(bonus),
    )


@kernel
def fill_bounds(weights, row_of, highest, sizes):
    n_labels, n_groups = weights.dense_rows.shape[1], highest.shape[1]
    for f in range(len(row_of)):
        d, row = weights.dense_of[f], row_of[f]
        first = 0 if d >= 0 else weights.offsets[f]
        size = np.float32(0)
        for p in range(first, n_labels if d >= 0 else weights.offsets[f + 1]):
            label = p if d >= 0 else weights.labels[p]
            weight = np.float32(
                as_scored(weights.dense_rows[d, p], weights.dense_rows)
                if d >= 0
                else as_scored(weights.values[p], weights.dense_rows)
            )
            size = max(size, abs(weight))
            if row >= 0:
                highest[row, label % n_groups] = max(highest[row, label % n_groups], weight)
        sizes[f] = size


@intrinsic
def _highest_of_groups(typing_context, scores, first, n_groups, bounds):
    """bounds[g] = max of scores[g :: n_groups], for BLOCK groups from `first` on.

    Explicit vectors: LLVM finds none here, and half the time of a row would go into this.
    """

    def generate(context, builder, signature, args):
        lanes, word = ir.VectorType(context.get_value_type(scores.dtype), BLOCK), ir.IntType(64)
        data = context.make_array(scores)(context, builder, args[0]).data
        target = builder.gep(context.make_array(bounds)(context, builder, args[3]).data, [args[1]])

        def load(part):
            place = builder.gep(data, [builder.add(args[1], builder.mul(args[2], word(part)))])
            return builder.load(builder.bitcast(place, lanes.as_pointer()), align=ALIGNED)

        highest = load(0)
        for part in range(1, GROUP_LABELS):
            other = load(part)
            highest = builder.select(builder.fcmp_ordered(">", other, highest), other, highest)
        builder.store(highest, builder.bitcast(target, lanes.as_pointer()), align=ALIGNED)
        return context.get_dummy_value()

    return types.void(scores, types.int64, types.int64, bounds), generate


@kernel
def _bound_groups(trial):
    """bounds = limits + the highest sum of each group's labels."""
    n_groups = len(trial.limits)
    for first in range(0, n_groups, BLOCK):
        _highest_of_groups(trial.scores, first, n_groups, trial.bounds)
    add_one(trial.bounds, 1, trial.limits)


@kernel
def _try_groups(n_tried, trial):
    """Fill trial.labels with the label of the highest sum of each of the n_tried groups with the highest bounds."""
    n, n_groups = 0, len(trial.bounds)
    least = trial.best.dtype.type(-np.inf)
    for first in range(0, n_groups, BLOCK):
        if not any_from(trial.bounds[first : first + BLOCK], least):
            continue
        for group in range(first, first + BLOCK):
            if trial.bounds[group] >= least:
                n = insert(trial.bounds[group], group, trial.best, trial.best_ids, n, n_tried)
                if n == n_tried:
                    least = trial.best[n - 1]
    for i in range(n_tried):
        best = trial.best_ids[i]
        for label in range(trial.best_ids[i], len(trial.scores), n_groups):
            if trial.scores[label] > trial.scores[best]:
                best = label
        trial.labels[i] = best
    trial.labels[:n_tried].sort()


@kernel
def _find_candidates(least, trial):
    """Fill trial.labels, ascending, with those whose bound is `least` or more; returns how many, -1 if too many."""
    n, n_groups = 0, len(trial.bounds)
    for first in range(0, n_groups, BLOCK):
        if not any_from(trial.bounds[first : first + BLOCK], least):
            continue
        for group in range(first, first + BLOCK):
            if trial.bounds[group] < least:
                continue
            for label in range(group, len(trial.scores), n_groups):
                if trial.scores[label] + trial.limits[group] >= least:
                    if n == len(trial.labels):
                        return -1
                    trial.labels[n] = label
                    n += 1
    trial.labels[:n].sort()
    return n


@kernel
def _bound_best(features, values, weights, bounds, k, n, slack, trial):
    """Score trial.labels[:n], but for rounding, and return a score that the k best labels of all reach."""
    labels, scores = trial.labels[:n], trial.label_scores[:n]
    for j in range(n):
        scores[j] = trial.scores[labels[j]]
    for i in range(len(features)):
        if bounds.row_of[features[i]] >= 0:
            add_feature(features[i], values[i], weights, labels, scores)
    n_best = 0
    for j in range(n):
        n_best = insert(scores[j], labels[j], trial.best, trial.best_ids, n_best, k)
    return trial.best.dtype.type(trial.best[k - 1] - slack)


@kernel
def predict_bounded(features, values, weights, bounds, bonus, trial, top_labels, top_scores):
    """Fill the best labels by score + bonus, and their scores, and return True; False if bounds do not tell them."""
    n_labels, k, n_features = weights.dense_rows.shape[1], len(top_labels), len(features)
    if 2 * (k + MORE_TRIED) > min(MAX_CANDIDATES, len(trial.bounds)):
        return False
    size, any_dense = trial.bonus_size, False
    for i in range(n_features):
        any_dense = any_dense or weights.dense_of[features[i]] >= 0
        if values[i] < 0 and bounds.row_of[features[i]] >= 0:
            return False
        size += abs(values[i]) * bounds.sizes[features[i]]
    if not any_dense:  # the cost of score_row follows the support
        return False
    # A bound, a score by _bound_best and an exact one may each be rounded off by a quarter of this; twice for a score.
    slack = 4 * (n_features + 4) * UNIT * size
    trial.limits[:] = 0
    if len(bonus) > 0:
        trial.scores[:n_labels] = bonus
    else:
        trial.scores[:n_labels] = 0
    for i in range(n_features):
        row = bounds.row_of[features[i]]
        if row >= 0:
            add_one(trial.limits, values[i], bounds.highest[row])
        else:
            first, last = weights.offsets[features[i]], weights.offsets[features[i] + 1]
            add_sparse(
                trial.scores, values[i], weights.labels[first:last], weights.values[first:last], weights.dense_rows
            )
    _bound_groups(trial)
    _try_groups(k + MORE_TRIED, trial)
    least = _bound_best(features, values, weights, bounds, k, k + MORE_TRIED, slack, trial)
    n = _find_candidates(least, trial)
    if n < 0:
        return False
    least = _bound_best(features, values, weights, bounds, k, n, slack, trial)
    n_kept = 0
    for j in range(n):
        if trial.label_scores[j] >= least:
            trial.labels[n_kept] = trial.labels[j]
            n_kept += 1
    score_labels(features, values, weights, trial.labels[:n_kept], trial.label_scores[:n_kept])
    n = 0
    for j in range(n_kept):
        label, score = trial.labels[j], trial.label_scores[j]
        n = insert(score + bonus[label] if len(bonus) > 0 else score, label, top_scores, top_labels, n, k)
    return True
