"""The arithmetic of training and prediction: rules, scoring, updates, and the threads that share them.

One file on purpose: numba's cache on disk notices edits of a function's own file only. Letters are the paper's
(Kar, Narasimhan & Jain, ICML 2015): k, n_+ (`n_pos`), s+ and s- (`pos`, `neg`), k' (`kept`), D, eta, tau.

Every order of summation is fixed: a score adds features in the order of the row, a weight takes its steps in the order
of the rows, and no `fastmath` is on where it could reorder a sum. So the result has the same bits for any number of
threads and for dense and sparse rows alike. Where dense rows are in bfloat16, scores take every weight cut to that.
"""

import os

import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from xmlpreck.kernels.bfloat import as_scored, as_stored

# Labels to a block of the accumulator. Only blocks that a row opens are zeroed, searched or perturbed, so that the
# cost of a row follows its support and not n_labels.
BLOCK = 64

# A feature that touches more than 1 / DENSE_SHARE of the labels has a dense row in training (tools/bench_kernels.py),
# where steps need no search in it; in prediction a smaller table, of which more stays in the caches, is faster.
DENSE_SHARE = 16
DENSE_SHARE_PREDICTING = 8

# Features are dealt to threads by feature % FEATURE_GROUPS: fixed groups, so that sums over them do not depend on the
# number of threads.
FEATURE_GROUPS = 64

# Below this scale the weights are multiplied out, so that float32 never overflows under a small radius.
LEAST_SCALE = 1e-3

# Gumbel noise is read from a table in runs of BLOCK, each block of labels at its own pseudo-random place.
NOISE_PLACES = 1 << 14

# Places in a learner's clock: batches done, scale of the weights, sum of scales over the averaged batches, how many.
STEPS, SCALE, ELAPSED, AVERAGED = range(4)

# Rules: the choice of y^ (perceptron or SGD) and of the relevant labels that are raised (avg or max).
PERCEPTRON_AVG, PERCEPTRON_MAX, SGD_AVG, SGD_MAX = range(4)
RULES = {
    "perceptron-avg": PERCEPTRON_AVG,
    "perceptron-max": PERCEPTRON_MAX,
    "sgd-avg": SGD_AVG,
    "sgd-max": SGD_MAX,
}


# --- threads ---------------------------------------------------------------------------------------------------------

# A counter that threads share is set to this to make them return: no count gets so far.
STOPPED = 1 << 62

_yield_core = types.ExternalFunction("sched_yield" if os.name == "posix" else "SwitchToThread", types.int32())


@intrinsic
def _fetch_add(typing_context, counters, place, amount):
    """Atomic: old = counters[place]; counters[place] += amount; return old."""

    def generate(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        place = context.cast(builder, args[1], signature.args[1], types.intp)
        pointer = cgutils.get_item_pointer(context, builder, signature.args[0], array, [place])
        return builder.atomic_rmw("add", pointer, args[2], "seq_cst")

    return types.int64(counters, place, types.int64), generate


@njit(cache=True, nogil=True)
def _wait_for_all(arrived, n_threads):
    """Barrier: True when all threads of the team have come as often as this one, False when the team is stopped."""
    count = _fetch_add(arrived, 0, 1)
    goal = (count // n_threads + 1) * n_threads
    spins = 0
    while True:
        count = _fetch_add(arrived, 0, 0)
        if count >= STOPPED:
            return False
        if count >= goal:
            return True
        spins += 1
        if spins > 500:  # tens of microseconds: the others have lost their core, let them have this one
            _yield_core()


# --- scoring ---------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _begin_row(work):
    """A new stamp, no block opened yet."""
    work.counts[0] += 1
    work.counts[1] = 0


@njit(cache=True, nogil=True)
def _open_block(block, n_labels, work):
    """The first touch of a block by this row: zero it and remember it."""
    end = (block + 1) * BLOCK
    work.scores[end - BLOCK : end] = 0
    work.scores[n_labels:end] = -np.inf  # padding of the last block
    work.opened[block] = work.counts[0]
    work.blocks[work.counts[1]] = block
    work.counts[1] += 1


@njit(cache=True, nogil=True)
def _open_at(label, n_labels, work):
    """Open the block of a label, if this row has not."""
    if work.opened[label // BLOCK] != work.counts[0]:
        _open_block(label // BLOCK, n_labels, work)


@njit(cache=True, nogil=True)
def _open_all(n_labels, work):
    for block in range(len(work.opened)):
        if work.opened[block] != work.counts[0]:
            _open_block(block, n_labels, work)


@njit(cache=True, nogil=True)
def _add_one(scores, v, w):
    for i in range(len(w)):
        scores[i] += v * as_scored(w[i], w)


@njit(cache=True, nogil=True)
def _add_two(scores, v0, w0, v1, w1):
    """Two dense rows in one sweep: one load and store of the scores instead of two. Order as in two _add_one."""
    for i in range(len(w0)):
        score = scores[i] + v0 * as_scored(w0[i], w0)
        scores[i] = score + v1 * as_scored(w1[i], w1)


@njit(cache=True, nogil=True)
def _add_four(scores, v0, w0, v1, w1, v2, w2, v3, w3):
    """The same for four dense rows."""
    for i in range(len(w0)):
        score = scores[i] + v0 * as_scored(w0[i], w0)
        score = score + v1 * as_scored(w1[i], w1)
        score = score + v2 * as_scored(w2[i], w2)
        scores[i] = score + v3 * as_scored(w3[i], w3)


@njit(cache=True, nogil=True)
def _add_sparse(scores, v, labels, w, dense_rows):
    for i in range(len(labels)):
        label = np.uint32(labels[i])  # unsigned: no test for a negative index, half the time
        scores[label] += v * as_scored(w[i], dense_rows)


@njit(cache=True, nogil=True)
def _score_row(features, values, weights, n_labels, work):
    """s_l = <w_l, x> for all labels of the opened blocks; every other label has score 0."""
    dense_of, dense_rows, offsets, labels, row_values = weights
    scores = work.scores
    n = len(features)
    any_dense = False
    for i in range(n):
        any_dense = any_dense or dense_of[features[i]] >= 0
    if any_dense:
        _open_all(n_labels, work)
    i = 0
    while i < n:
        d = dense_of[features[i]]
        if d >= 0:
            d1 = dense_of[features[i + 1]] if i + 1 < n else -1
            d2 = dense_of[features[i + 2]] if i + 2 < n else -1
            d3 = dense_of[features[i + 3]] if i + 3 < n else -1
            if d1 >= 0 and d2 >= 0 and d3 >= 0:
                _add_four(
                    scores, values[i], dense_rows[d], values[i + 1], dense_rows[d1],
                    values[i + 2], dense_rows[d2], values[i + 3], dense_rows[d3],
                )  # fmt: skip
                i += 4
                continue
            if d1 >= 0:
                _add_two(scores, values[i], dense_rows[d], values[i + 1], dense_rows[d1])
                i += 2
                continue
            _add_one(scores, values[i], dense_rows[d])
        elif any_dense:
            first, last = offsets[features[i]], offsets[features[i] + 1]
            _add_sparse(scores, values[i], labels[first:last], row_values[first:last], dense_rows)
        else:
            v = values[i]
            for p in range(offsets[features[i]], offsets[features[i] + 1]):
                label = labels[p]
                _open_at(label, n_labels, work)
                scores[label] += v * as_scored(row_values[p], dense_rows)
        i += 1


@njit(cache=True, nogil=True)
def _mix(key):
    """splitmix64's finaliser: 64 well-mixed bits of a key."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


@njit(cache=True, nogil=True)
def _noise_place(row_key, block):
    """Where in the table the noise of a row's block of labels begins."""
    key = row_key + np.uint64(block) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(_mix(key) % np.uint64(NOISE_PLACES))


@njit(cache=True, nogil=True)
def _perturb(noise, row_key, first_block, work):
    """scores += noise, a draw that depends on the row's key and the label only."""
    for i in range(work.counts[1]):
        block = work.blocks[i]
        place = _noise_place(row_key, first_block + block)
        block_scores = work.scores[block * BLOCK : block * BLOCK + BLOCK]  # a slice, or LLVM finds no SIMD here
        block_noise = noise[place : place + BLOCK]
        for j in range(BLOCK):
            block_scores[j] += block_noise[j]


# --- choice ----------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _insert(score, label, scores, labels, n, size):
    """Keep the `size` best in order: higher score first, then the lower label. Returns how many there are now."""
    if n == size:
        if score < scores[n - 1] or (score == scores[n - 1] and label > labels[n - 1]):
            return n
        n -= 1
    i = n
    while i > 0 and (scores[i - 1] < score or (scores[i - 1] == score and labels[i - 1] > label)):
        scores[i] = scores[i - 1]
        labels[i] = labels[i - 1]
        i -= 1
    scores[i] = score
    labels[i] = label
    return n + 1


@njit(cache=True, nogil=True)
def _any_from(block_scores, least):
    """Is a score of the block at least `least`? Counts without early exit, so that it becomes SIMD."""
    n = 0
    for i in range(BLOCK):
        n += block_scores[i] >= least
    return n > 0


@njit(cache=True, nogil=True)
def _top_labels(k, n_labels, work, top, top_labels):
    """The k best labels by score, then lower id, that are not marked -inf. Returns how many there are."""
    scores = work.scores
    n = 0
    for i in range(work.counts[1]):
        first = work.blocks[i] * BLOCK
        if n == k and not _any_from(scores[first : first + BLOCK], top[k - 1]):
            continue
        for label in range(first, first + BLOCK):
            if scores[label] > -np.inf and (n < k or scores[label] >= top[k - 1]):
                n = _insert(scores[label], label, top, top_labels, n, k)
    if work.counts[1] < len(work.opened) and (n < k or top[k - 1] <= 0):
        for label in range(n_labels):  # unopened: score 0. They come by rising id, so the first that fails ends it
            if work.opened[label // BLOCK] != work.counts[0]:
                if n == k and (top[k - 1] > 0 or (top[k - 1] == 0 and top_labels[k - 1] < label)):
                    break
                n = _insert(0.0, label, top, top_labels, n, k)
    return n


@njit(cache=True, nogil=True)
def _best_kept(pos, n_pos, neg, n_neg, k, by_max):
    """(surrogate, k*): the largest A(k') or M(k') of MATH.md, ties to the largest k'.

    A(k') = (k-k') + sum_{i<=k-k'} s-_i - D(k') sum_{i>k'} s+_i, D(k') = (k-k')/(n_+ - k')   (avg, Algorithm 4)
    M(k') = (k-k') + sum_{i<=k-k'} s-_i - (the k-k' lowest s+)                              (max)
    """
    tail = 0.0
    for i in range(k, n_pos):
        tail += pos[i]
    lowest = 0.0
    negatives = 0.0
    best = 0.0
    best_kept = k
    for m in range(1, min(k, n_neg) + 1):
        kept = k - m
        negatives += neg[m - 1]
        tail += pos[kept]
        lowest += pos[n_pos - m]
        value = m + negatives - (lowest if by_max else m / (n_pos - kept) * tail)
        if value > best:
            best = value
            best_kept = kept
    return best, best_kept


@njit(cache=True, nogil=True)
def _kept_at_top(pos, pos_labels, n_pos, neg, neg_labels, n_neg, k):
    """How many of the k best labels are relevant: k - prec@k."""
    i = 0
    j = 0
    while i + j < k:
        if j < n_neg and (i == n_pos or neg[j] > pos[i] or (neg[j] == pos[i] and neg_labels[j] < pos_labels[i])):
            j += 1
        else:
            i += 1
    return i


@njit(cache=True, nogil=True)
def _split_labels(relevant, n_best, n_labels, work):
    """The scores in `work`, split: relevant labels by falling score, and the n_best best irrelevant ones.

    Returns how many there are of the latter. Spoils work.scores of the relevant labels.
    """
    n_pos = len(relevant)
    for i in range(n_pos):
        _insert(work.scores[relevant[i]], relevant[i], work.pos, work.pos_labels, i, n_pos)
    for i in range(n_pos):
        work.scores[relevant[i]] = -np.inf
    return _top_labels(n_best, n_labels, work, work.neg, work.neg_labels)


@njit(cache=True, nogil=True)
def _choose_pairs(pos, pos_labels, n_pos, neg, neg_labels, n_neg, k, rule, n_lowered, out_labels, out_steps):
    """One rule of MATH.md section 2 on scores by falling order: writes (label, coefficient) pairs without eta.

    The m = k - k' best irrelevant labels get -1. Of the relevant ones in falling order of score:
    Perceptron@k-avg (Algorithm 1) and SGD@k-avg (Algorithms 3, 4) raise all after k' by D = m / (n_+ - k');
    Perceptron@k-max (Algorithm 2) raises the m after k' by 1, SGD@k-max the m lowest by 1.
    k' is the number of relevant labels in the top k for the perceptrons, the maximiser of the surrogate for SGD.
    With n_lowered > m the n_lowered best irrelevant labels get -m / n_lowered each instead: beyond the paper, for the
    places behind the few labels of a row (docs/tuning.md).
    Returns (pairs, surrogate, mistakes). Needs the max(min(k, n_+), n_lowered) best irrelevant labels; more do no harm.
    """
    k = min(k, n_pos)
    if k == 0:
        return 0, 0.0, 0
    by_max = rule in (PERCEPTRON_MAX, SGD_MAX)
    surrogate, best_kept = _best_kept(pos, n_pos, neg, n_neg, k, by_max)
    at_top = _kept_at_top(pos, pos_labels, n_pos, neg, neg_labels, n_neg, k)
    kept = best_kept if rule in (SGD_AVG, SGD_MAX) else at_top
    m = k - kept
    if m == 0:
        return 0, surrogate, k - at_top
    first, last, raise_by = kept, n_pos, m / (n_pos - kept)
    if by_max:
        first, raise_by = (kept if rule == PERCEPTRON_MAX else n_pos - m), 1.0
        last = first + m
    n_lowered = min(max(m, n_lowered), n_neg)
    for i in range(n_lowered):
        out_labels[i] = neg_labels[i]
        out_steps[i] = -m / n_lowered
    for i in range(first, last):
        out_labels[n_lowered + i - first] = pos_labels[i]
        out_steps[n_lowered + i - first] = raise_by
    return n_lowered + last - first, surrogate, k - at_top


@njit(cache=True, nogil=True)
def _pair_weight(label, label_weights, relevant, relevance):
    """a_l = label_weights[l] * (relevance of l in this row); either may be empty, which means 1 for every label."""
    weight = label_weights[label] if len(label_weights) > 0 else label_weights.dtype.type(1)
    if len(relevance) > 0:
        weight *= relevance[_find(relevant, 0, len(relevant), label)]
    return weight


@njit(cache=True, nogil=True)
def _weigh_pairs(labels, steps, label_weights, relevant, relevance):
    """Each pair of a raised label l and a lowered one counts a_l times (see _pair_weight), instead of once.

    A raised label's step is multiplied by its own a_l, a lowered one's by the mean a_l of the raised, so that what is
    raised is still as much as what is lowered.
    """
    total = 0.0
    n_raised = 0
    for i in range(len(labels)):
        if steps[i] > 0:
            total += _pair_weight(labels[i], label_weights, relevant, relevance)
            n_raised += 1
    for i in range(len(labels)):
        if steps[i] > 0:
            steps[i] *= _pair_weight(labels[i], label_weights, relevant, relevance)
        else:
            steps[i] *= total / n_raised


@njit(cache=True, nogil=True)
def _choose_row(pos, pos_labels, n_pos, neg, neg_labels, n_neg, relevant, relevance, settings, eta, slot, place, batch):
    """The step of one row, with eta and the labels' weights, into slot; `place` is the row's within the call."""
    pair_labels, pair_steps = batch.pair_labels[slot], batch.pair_steps[slot]
    n_pairs, surrogate, mistakes = _choose_pairs(
        pos, pos_labels, n_pos, neg, neg_labels, n_neg, settings.k, settings.rule, settings.n_lowered,
        pair_labels, pair_steps,
    )  # fmt: skip
    if len(settings.label_weights) > 0 or len(relevance) > 0:
        _weigh_pairs(pair_labels[:n_pairs], pair_steps[:n_pairs], settings.label_weights, relevant, relevance)
    pair_steps[:n_pairs] *= eta
    batch.n_pairs[slot] = n_pairs
    batch.surrogates[place] = surrogate
    batch.mistakes[place] = mistakes
    batch.updated[place] = n_pairs > 0


# --- training --------------------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _find(labels, first, end, label):
    """Place of a label in a sorted run, or -1."""
    last = end
    while first < last:
        middle = (first + last) // 2
        if labels[middle] < label:
            first = middle + 1
        else:
            last = middle
    return first if first < end and labels[first] == label else -1


@njit(cache=True, nogil=True)
def _apply_steps(me, n_threads, features, values, elapsed, learner, labels, steps, n_frozen):
    """weights[f, l] += step_l * x_f within the support, for this thread's features; sums for the lazy average.

    The first n_frozen labels stay as they are.
    """
    weights, scored_rows = learner.weights, learner.scored.dense_rows
    for i in range(len(features)):
        f = features[i]
        group = f % FEATURE_GROUPS
        if group % n_threads != me:
            continue
        d = weights.dense_of[f]
        grown = 0.0
        for j in range(len(labels)):  # no slices in here: threads would meet at the counts of references to the arrays
            label, step = labels[j], steps[j] * values[i]
            if label < n_frozen:
                continue
            if d >= 0:
                if learner.dense_mask[d, label >> 3] >> (label & 7) & 1:
                    grown += (2 * weights.dense_rows[d, label] + step) * step
                    weights.dense_rows[d, label] += step
                    scored_rows[d, label] = as_stored(weights.dense_rows[d, label], scored_rows)
                    if elapsed != 0:  # before averaging begins, a third of the memory is not touched
                        learner.dense_sums[d, label] += elapsed * step
            else:
                place = _find(weights.labels, weights.offsets[f], weights.offsets[f + 1], label)
                if place >= 0:
                    grown += (2 * weights.values[place] + step) * step
                    weights.values[place] += step
                    learner.sums[place] += elapsed * step
        learner.norms[group] += grown


@njit(cache=True, nogil=True)
def _relevance_of(row, rows):
    """The relevance of a row's labels; empty if all labels count 1."""
    if len(rows.relevance) == 0:
        return rows.relevance
    return rows.relevance[rows.label_offsets[row] : rows.label_offsets[row + 1]]


@njit(cache=True, nogil=True)
def add_centroids(me, n_threads, rows, learner, shares):
    """w_l += shares[l] * r * x for every row x and each of its labels l, of relevance r, within the support."""
    for row in range(len(rows.offsets) - 1):
        first, last = rows.offsets[row], rows.offsets[row + 1]
        relevant = rows.labels[rows.label_offsets[row] : rows.label_offsets[row + 1]]
        steps = shares[relevant]
        if len(rows.relevance) > 0:
            steps *= _relevance_of(row, rows)
        _apply_steps(
            me, n_threads, rows.features[first:last], rows.values[first:last], 0.0, learner, relevant, steps, 0
        )


@njit(cache=True, nogil=True)
def _multiply_out(me, n_threads, learner, scale, elapsed):
    """weights *= scale, and what the mean has so far moves into sums: then scale is 1 and elapsed 0 again."""
    weights, scored_rows = learner.weights, learner.scored.dense_rows
    for f in range(len(weights.dense_of)):
        if f % FEATURE_GROUPS % n_threads == me:
            d = weights.dense_of[f]
            if d >= 0:
                for label in range(weights.dense_rows.shape[1]):
                    learner.dense_sums[d, label] -= elapsed * weights.dense_rows[d, label]
                    weights.dense_rows[d, label] *= scale
                    scored_rows[d, label] = as_stored(weights.dense_rows[d, label], scored_rows)
            for p in range(weights.offsets[f], weights.offsets[f + 1]):
                learner.sums[p] -= elapsed * weights.values[p]
                weights.values[p] *= scale
    for group in range(me, FEATURE_GROUPS, n_threads):
        learner.norms[group] *= scale * scale


@njit(cache=True, nogil=True)
def _score_for_choice(row, rows, relevant, weights, scale, settings, noise, work):
    """Scores of a row as the rule sees them: of the true weights, perturbed if that is wanted."""
    n_labels = weights.dense_rows.shape[1]
    _begin_row(work)
    for i in range(len(relevant)):  # so that their mark -inf is seen
        _open_at(relevant[i], n_labels, work)
    first, last = rows.offsets[row], rows.offsets[row + 1]
    _score_row(rows.features[first:last], rows.values[first:last], weights, n_labels, work)
    if scale != 1:
        for i in range(work.counts[1]):
            work.scores[work.blocks[i] * BLOCK : work.blocks[i] * BLOCK + BLOCK] *= scale
    if settings.perturbed:
        _perturb(noise, _mix(settings.noise_key + np.uint64(row)), settings.first_block, work)


@njit(cache=True, nogil=True)
def train_rows(me, n_threads, rows, order, learner, settings, noise, work, batch, hardest):
    """Train on rows[order] in synchronous batches; every thread of the team calls this with its number `me`.

    Phase 1, rows dealt out as threads ask: score with the weights of the batch's start, choose the step.
    Phase 2, features dealt by group: apply all steps of the batch in row order. Each weight has one writer.
    `hardest`, if it is not empty, takes the best irrelevant label of each row; -1 = there is none.
    Once batch.arrived is STOPPED all threads return, within a row each: the learner is then of no further use.
    """
    n_labels = learner.scored.dense_rows.shape[1]
    batch_rows = len(batch.n_pairs)
    clock = learner.clock.copy()  # every thread keeps the same time by itself: one barrier less
    for start in range(0, len(order), batch_rows):
        size = min(batch_rows, len(order) - start)
        scale = clock[SCALE]
        eta = settings.eta / (clock[STEPS] + 1) ** settings.decay / scale
        while True:
            slot = _fetch_add(batch.claimed, start // batch_rows, 1)
            if slot >= size or batch.arrived[0] >= STOPPED:
                break
            row = order[start + slot]
            relevant = rows.labels[rows.label_offsets[row] : rows.label_offsets[row + 1]]
            n_best = max(min(settings.k, len(relevant)), settings.n_lowered)
            n_neg = 0
            if len(relevant) > 0:
                _score_for_choice(row, rows, relevant, learner.scored, scale, settings, noise, work)
                n_neg = _split_labels(relevant, n_best, n_labels, work)
            if len(hardest) > 0:
                hardest[row] = work.neg_labels[0] if n_neg > 0 else -1
            _choose_row(
                work.pos, work.pos_labels, len(relevant), work.neg, work.neg_labels, n_neg, relevant,
                _relevance_of(row, rows), settings, eta, slot, start + slot, batch,
            )  # fmt: skip
        if not _wait_for_all(batch.arrived, n_threads):
            return
        for slot in range(size):
            n_pairs = batch.n_pairs[slot]
            if n_pairs > 0:
                row = order[start + slot]
                first, last = rows.offsets[row], rows.offsets[row + 1]
                _apply_steps(
                    me, n_threads, rows.features[first:last], rows.values[first:last], clock[ELAPSED], learner,
                    batch.pair_labels[slot, :n_pairs], batch.pair_steps[slot, :n_pairs], settings.n_frozen,
                )  # fmt: skip
        if not _wait_for_all(batch.arrived, n_threads):
            return
        if settings.radius > 0:  # projection onto the ball |w| <= radius, by the scale
            norm = np.sqrt(learner.norms.sum())
            if norm * scale > settings.radius:
                clock[SCALE] = settings.radius / norm
        if clock[SCALE] < LEAST_SCALE:
            if not _wait_for_all(batch.arrived, n_threads):  # all have read the norms
                return
            _multiply_out(me, n_threads, learner, clock[SCALE], clock[ELAPSED])
            clock[ELAPSED] = 0
            clock[SCALE] = 1
            if not _wait_for_all(batch.arrived, n_threads):
                return
        if settings.averaging:
            clock[ELAPSED] += clock[SCALE]
            clock[AVERAGED] += 1
        clock[STEPS] += 1
    if _wait_for_all(batch.arrived, n_threads) and me == 0:
        learner.clock[:] = clock


# --- training by shards of the labels ---------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def propose_rows(rows, order, learner, settings, noise, work, claimed, proposals):
    """What one shard of the labels says to rows[order]: the scores of its relevant labels, and its k best others.

    Threads share `claimed`. A shard's labels begin at a whole block, and go by their ids among all labels.
    """
    n_labels = learner.scored.dense_rows.shape[1]
    first_label = settings.first_block * BLOCK
    while True:
        slot = _fetch_add(claimed, 0, 1)
        if slot >= len(order):
            break
        row = order[slot]
        relevant = rows.labels[rows.label_offsets[row] : rows.label_offsets[row + 1]]
        _score_for_choice(row, rows, relevant, learner.scored, learner.clock[SCALE], settings, noise, work)
        n_neg = _split_labels(relevant, settings.k, n_labels, work)
        proposals.n_neg[slot] = n_neg
        proposals.neg[slot, :n_neg] = work.neg[:n_neg]
        for i in range(n_neg):
            proposals.neg_labels[slot, i] = first_label + work.neg_labels[i]
        start = proposals.pos_offsets[slot]
        for i in range(len(relevant)):
            proposals.pos[start + i] = work.pos[i]
            proposals.pos_labels[start + i] = first_label + work.pos_labels[i]


@njit(cache=True, nogil=True)
def merge_proposals(proposals, merged):
    """Add what one shard said to what the others did, row by row in the order of scores."""
    for row in range(len(proposals.n_neg)):
        for p in range(proposals.pos_offsets[row], proposals.pos_offsets[row + 1]):
            merged.n_pos[row] = _insert(
                proposals.pos[p], proposals.pos_labels[p], merged.pos[row], merged.pos_labels[row],
                merged.n_pos[row], merged.pos.shape[1],
            )  # fmt: skip
        for i in range(proposals.n_neg[row]):
            merged.n_neg[row] = _insert(
                proposals.neg[row, i], proposals.neg_labels[row, i], merged.neg[row], merged.neg_labels[row],
                merged.n_neg[row], merged.neg.shape[1],
            )  # fmt: skip


@njit(cache=True, nogil=True)
def choose_rows(merged, settings, n_batches, batch):
    """The steps of rows whose merged proposals are whole, as train_rows chooses them after so many batches."""
    eta = settings.eta / (n_batches + 1) ** settings.decay
    for row in range(len(merged.n_pos)):
        _choose_row(
            merged.pos[row], merged.pos_labels[row], merged.n_pos[row],
            merged.neg[row], merged.neg_labels[row], merged.n_neg[row], merged.pos_labels[row, :0], merged.pos[row, :0],
            settings, eta, row, row, batch,
        )  # fmt: skip


@njit(cache=True, nogil=True)
def apply_rows(me, n_threads, rows, order, learner, pair_offsets, pair_labels, pair_steps):
    """Apply the steps of rows[order] to a shard: row i has the pairs from pair_offsets[i] on, by ids of the shard."""
    for slot in range(len(order)):
        start, stop = pair_offsets[slot], pair_offsets[slot + 1]
        if start < stop:
            first, last = rows.offsets[order[slot]], rows.offsets[order[slot] + 1]
            _apply_steps(
                me, n_threads, rows.features[first:last], rows.values[first:last], learner.clock[ELAPSED], learner,
                pair_labels[start:stop], pair_steps[start:stop], 0,
            )  # fmt: skip


# --- prediction ------------------------------------------------------------------------------------------------------

# Rows that a thread takes at a time.
CLAIM = 16


@njit(cache=True, nogil=True)
def _predict_row(features, values, weights, bonus, work, top_labels, top_scores):
    """The best labels of a row by score + bonus (none if it is empty; a label with bonus -inf is never among them)."""
    n_labels = weights.dense_rows.shape[1]
    _begin_row(work)
    if len(bonus) > 0:
        _open_all(n_labels, work)
    _score_row(features, values, weights, n_labels, work)
    if len(bonus) > 0:
        _add_one(work.scores, 1, bonus)
    return _top_labels(len(top_labels), n_labels, work, top_scores, top_labels)


@njit(cache=True, nogil=True)
def predict_rows(rows, weights, bonus, work, claimed, top_labels, top_scores):
    """The best labels of each row and their scores, (n_rows, k) each; threads share `claimed`, until it is STOPPED."""
    n_rows = len(top_labels)
    while True:
        start = _fetch_add(claimed, 0, CLAIM)
        if start >= n_rows:
            break
        for row in range(start, min(start + CLAIM, n_rows)):
            first, last = rows.offsets[row], rows.offsets[row + 1]
            features, values = rows.features[first:last], rows.values[first:last]
            _predict_row(features, values, weights, bonus, work, top_labels[row], top_scores[row])


@njit(cache=True, nogil=True)
def predict_one(features, values, n_given, unit_norm, weights, bonus, work, top_labels, top_scores):
    """The same for one row, the first n_given of whose values are scaled to length 1 in place if asked for.

    Returns the number of labels, or -1 if an id is out of range or does not rise, or a value is not finite.
    """
    n_features = len(weights.dense_of) - (len(features) - n_given)
    before = -1
    for i in range(n_given):
        if features[i] <= before or features[i] >= n_features or not np.isfinite(values[i]):
            return -1
        before = features[i]
    if unit_norm:
        square = 0.0
        for i in range(n_given):
            square += np.float64(values[i]) * np.float64(values[i])
        norm = np.sqrt(square) if square > 0 else 1.0
        for i in range(n_given):
            values[i] = values[i] / norm
    return _predict_row(features, values, weights, bonus, work, top_labels, top_scores)


@njit(cache=True, nogil=True)
def score_candidates(rows, weights, work, candidate_offsets, candidates, scores):
    """Scores of each row's own candidate labels."""
    n_labels = weights.dense_rows.shape[1]
    for row in range(len(candidate_offsets) - 1):
        _begin_row(work)
        first, last = rows.offsets[row], rows.offsets[row + 1]
        _score_row(rows.features[first:last], rows.values[first:last], weights, n_labels, work)
        for p in range(candidate_offsets[row], candidate_offsets[row + 1]):
            is_open = work.opened[candidates[p] // BLOCK] == work.counts[0]
            scores[p] = work.scores[candidates[p]] if is_open else 0.0


@njit(cache=True, nogil=True)
def score_rows(rows, weights, work, scores):
    """All scores of each row, (n_rows, n_labels)."""
    n_rows, n_labels = scores.shape
    for row in range(n_rows):
        _begin_row(work)
        _open_all(n_labels, work)
        first, last = rows.offsets[row], rows.offsets[row + 1]
        _score_row(rows.features[first:last], rows.values[first:last], weights, n_labels, work)
        scores[row] = work.scores[:n_labels]


@njit(cache=True, nogil=True)
def choose_step(scores, relevant, k, rule, work, out_labels, out_steps):
    """A rule on given scores of all labels: (pairs, surrogate, mistakes); see _choose_pairs."""
    _begin_row(work)
    _open_all(len(scores), work)
    work.scores[: len(scores)] = scores
    n_pos = len(relevant)
    n_neg = _split_labels(relevant, min(k, n_pos), len(scores), work) if n_pos > 0 else 0
    return _choose_pairs(
        work.pos, work.pos_labels, n_pos, work.neg, work.neg_labels, n_neg, k, rule, 0, out_labels, out_steps
    )


# --- bipartite ranking -----------------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def train_points(points, order, ks, batch_points, settings, learner, work):
    """Train one w on points[order]: each batch_points of them are one ranking, the i-th of them for its top ks[i].

    s = X w;  w += eta / t^decay * sum of coefficient * x, by the rule;  then w is scaled to |w| <= radius, if that is
    not 0. Equal scores: the point that comes first in the batch is ranked first.
    Returns sums over the batches: (surrogate, mistakes, 1 if w changed).
    """
    w, sums, clock = learner.weights, learner.sums, learner.clock
    scores, steps = np.empty(batch_points), np.empty(batch_points)
    places, relevant = np.empty(batch_points, np.int32), np.empty(batch_points, np.int32)
    total, n_mistakes, n_updates = 0.0, 0, 0
    for i in range(len(ks)):
        batch = order[i * batch_points : (i + 1) * batch_points]
        for j in range(len(batch)):
            score = 0.0
            for p in range(points.offsets[batch[j]], points.offsets[batch[j] + 1]):
                score += points.values[p] * w[points.features[p]]
            scores[j] = score
        # The rule gets the points as ranked, so that its insertions move nothing: n log n for a batch, not n^2.
        ranking = np.argsort(-scores[: len(batch)], kind="mergesort")  # stable
        n_pos = 0
        for place in range(len(batch)):
            if points.relevance[batch[ranking[place]]]:
                relevant[n_pos] = place
                n_pos += 1
        n_pairs, surrogate, mistakes = choose_step(
            scores[ranking], relevant[:n_pos], ks[i], settings.rule, work, places, steps
        )
        clock[STEPS] += 1
        eta = settings.eta / clock[STEPS] ** settings.decay
        for j in range(n_pairs):
            point = batch[ranking[places[j]]]
            step = eta * steps[j]
            for p in range(points.offsets[point], points.offsets[point + 1]):
                w[points.features[p]] += step * points.values[p]
        if settings.radius > 0:
            square = 0.0
            for f in range(len(w)):
                square += w[f] * w[f]
            if square > settings.radius**2:
                w *= settings.radius / np.sqrt(square)
        sums += w
        total += surrogate
        n_mistakes += mistakes
        n_updates += n_pairs > 0
    return total, n_mistakes, n_updates
