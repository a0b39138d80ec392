"""Steps: what the chosen labels of a row, and their coefficients, add to the weights of its features.

A weight has one writer, and takes its steps in the order of the rows. There are no slices here: they contend on atomic
counts of references.
"""

import numpy as np

from xmlpreck.kernels.arrays import FEATURE_GROUPS
from xmlpreck.kernels.bfloat import as_stored
from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.marks import LONG_ROW, find_marked, index_of, mark, unmark
from xmlpreck.kernels.search import lower_bound_near


@kernel
def _step_dense(d, value, labels, steps, first, elapsed, learner, chosen):
    """Let the labels from index `first` on take their steps in a dense row; returns the growth of its square.

    Which labels may use the feature is found out first, without a branch that a processor would guess wrong.
    """
    dense_rows, scored_rows, mask = learner.weights.dense_rows, learner.scored.dense_rows, learner.dense_mask
    n = np.uint32(0)
    for j in range(np.uint32(first), np.uint32(len(labels))):
        label = np.uint32(labels[j])
        chosen[n] = j
        n = np.uint32(n + (mask[d, label >> np.uint32(3)] >> (label & np.uint32(7)) & np.uint32(1)))
    grown = 0.0
    for i in range(n):
        label, step = np.uint32(labels[chosen[i]]), steps[chosen[i]] * value
        grown += (2 * dense_rows[d, label] + step) * step
        dense_rows[d, label] += step
        scored_rows[d, label] = as_stored(dense_rows[d, label], scored_rows)
    if elapsed != 0:  # before averaging begins, a third of the memory is not touched
        for i in range(n):
            label, step = np.uint32(labels[chosen[i]]), steps[chosen[i]] * value
            learner.dense_sums[d, label] += elapsed * step
    return grown


@kernel
def _step_sparse(start, stop, value, labels, steps, first, elapsed, learner, marks):
    """The same in the sparse row of the entries start:stop."""
    entries, values, sums = learner.weights.labels, learner.weights.values, learner.sums
    grown = 0.0
    if stop - start > LONG_ROW * (len(labels) - first):
        p = start
        for j in range(first, len(labels)):
            p = lower_bound_near(entries, p, stop, labels[j])
            if p == stop:
                break
            if entries[p] == labels[j]:
                step = steps[j] * value
                grown += (2 * values[p] + step) * step
                values[p] += step
                sums[p] += elapsed * step
        return grown
    for i in range(find_marked(entries, start, stop, marks)):
        at = np.uint64(start) + marks.chosen[i]
        step = steps[index_of(entries[at], labels, marks)] * value
        grown += (2 * values[at] + step) * step
        values[at] += step
        sums[at] += elapsed * step
    return grown


@kernel
def apply_steps(part, n_parts, features, values, elapsed, learner, labels, steps, n_frozen, marks):
    """weights[f, l] += step_l * x_f * feature_steps[f] within the support, for one part of the features.

    The sums of the lazy average take `elapsed` times as much. A part is a range of groups of features, group =
    f % FEATURE_GROUPS. Labels ascend; those with an id below n_frozen do not change.
    """
    first_group, last_group = part * FEATURE_GROUPS // n_parts, (part + 1) * FEATURE_GROUPS // n_parts
    weights = learner.weights
    first = 0
    while first < len(labels) and labels[first] < n_frozen:
        first += 1
    mark(labels, first, len(labels), marks)
    for i in range(len(features)):
        f = features[i]
        group = f % FEATURE_GROUPS
        if group < first_group or group >= last_group:
            continue
        value, d = values[i] * learner.feature_steps[f], weights.dense_of[f]
        if d >= 0:
            grown = _step_dense(np.uint32(d), value, labels, steps, first, elapsed, learner, marks.chosen)
        else:
            start, stop = weights.offsets[f], weights.offsets[f + 1]
            grown = _step_sparse(start, stop, value, labels, steps, first, elapsed, learner, marks)
        learner.norms[group] += grown
    unmark(labels, first, len(labels), marks)
