"""The best labels of one row by its scores: higher score first, then the lower label."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from xmlpreck.kernels.arrays import ALIGNED, BLOCK, EVERY
from xmlpreck.kernels.caching import kernel

MANY = 16  # more labels than this are selected and sorted, not inserted one by one
LOWEST, ABOVE_ZERO = -np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal


@kernel
def insert(score, label, scores, labels, n, size):
    """Insert into the `size` best, in order, if it is one of them. Returns how many there are now."""
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


@kernel
def any_from(block_scores, threshold):
    """Is any score of a block >= threshold? Counts without early exit, so that it becomes SIMD."""
    n = 0
    for i in range(BLOCK):
        n += block_scores[i] >= threshold
    return n > 0


@kernel
def is_better(score, label, other_score, other_label):
    return score > other_score or (score == other_score and label < other_label)


@kernel
def _bound(first, least, least_label, scores):
    """Return the lowest score that a label from `first` on must have to be better than one of score `least`.

    Where thousands of labels have one score, as those of which a row has no feature but the bias, this skips them.
    """
    return np.nextafter(least, scores.dtype.type(np.inf)) if first > least_label else least


@kernel
def _select(scores, labels, n, k):
    """Reorder the first n so that the k best of them come first, the least of these at k - 1 (Hoare's quickselect)."""
    low, high = 0, n - 1
    while low < high:
        pivot, pivot_label = scores[(low + high) // 2], labels[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while is_better(scores[i], labels[i], pivot, pivot_label):
                i += 1
            while is_better(pivot, pivot_label, scores[j], labels[j]):
                j -= 1
            if i <= j:
                scores[i], scores[j] = scores[j], scores[i]
                labels[i], labels[j] = labels[j], labels[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break


@kernel
def _sift(scores, labels, i, n):
    """Move element i of a heap down to where no child is worse than its parent."""
    score, label = scores[i], labels[i]
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and is_better(scores[child], labels[child], scores[child + 1], labels[child + 1]):
            child += 1
        if not is_better(score, label, scores[child], labels[child]):
            break
        scores[i], labels[i] = scores[child], labels[child]
        i = child
    scores[i], labels[i] = score, label


@kernel
def sort_best_first(scores, labels, n):
    """Sort the first n: higher score first, then the lower label (heapsort: in place, and never slow)."""
    for i in range(n // 2 - 1, -1, -1):
        _sift(scores, labels, i, n)
    for last in range(n - 1, 0, -1):
        scores[0], scores[last] = scores[last], scores[0]
        labels[0], labels[last] = labels[last], labels[0]
        _sift(scores, labels, 0, last)


@kernel
def keep_best(scores, labels, n, k):
    """Sort the k best of the first n to the front; returns how many these are."""
    if n > k:
        _select(scores, labels, n, k)
        n = k
    sort_best_first(scores, labels, n)
    return n


@kernel
def _take_unopened(k, n_labels, work, top, top_labels, n):
    """Insert labels of unopened blocks, whose score is 0, where the n best so far leave room among the k best."""
    if work.counts[1] < len(work.opened) and (n < k or top[k - 1] <= 0):
        for label in range(n_labels):  # by ascending id, so the first that fails ends it
            if work.opened[label // BLOCK] != work.counts[0]:
                if n == k and (top[k - 1] > 0 or (top[k - 1] == 0 and top_labels[k - 1] < label)):
                    break
                n = insert(0.0, label, top, top_labels, n, k)
    return n


@intrinsic
def _highest_by_turn(typing_context, scores, first, peaks, i):
    """peaks[i, turn] = max of scores[first + turn :: EVERY] within the block; returns the highest of them.

    Explicit vectors: LLVM finds none here, and half the time of a choice would go into this.
    """

    def generate(context, builder, signature, args):
        number = context.get_value_type(scores.dtype)
        lanes, word = ir.VectorType(number, EVERY), ir.IntType(64)

        def higher(one, other):
            return builder.select(builder.fcmp_ordered(">", one, other), one, other)

        def load(pointer):
            return builder.load(builder.bitcast(pointer, lanes.as_pointer()), align=ALIGNED)

        score_array = context.make_array(scores)(context, builder, args[0])
        peak_array = context.make_array(peaks)(context, builder, args[2])
        highest = load(builder.gep(score_array.data, [args[1]]))
        for start in range(EVERY, BLOCK, EVERY):
            highest = higher(load(builder.gep(score_array.data, [builder.add(args[1], word(start))])), highest)
        target = builder.gep(peak_array.data, [builder.mul(args[3], word(EVERY))])
        builder.store(highest, builder.bitcast(target, lanes.as_pointer()), align=ALIGNED)
        width = EVERY
        while width > 1:  # halves against each other, until one is left
            width //= 2
            index = ir.VectorType(ir.IntType(32), width)
            halves = (ir.Constant(index, list(range(start, start + width))) for start in (0, width))
            undefined = ir.Constant(highest.type, ir.Undefined)
            highest = higher(*(builder.shuffle_vector(highest, undefined, half) for half in halves))
        return builder.extract_element(highest, ir.IntType(32)(0))

    return scores.dtype(scores, types.int64, peaks, types.int64), generate


@kernel
def find_peaks(work):
    """Find the highest scores of each opened block, see _highest_by_turn."""
    for i in range(work.counts[1]):
        work.block_peaks[i] = _highest_by_turn(work.scores, np.int64(work.blocks[i]) * BLOCK, work.peaks, i)


@kernel
def _bound_by_peaks(k, least, peaks, n_peaks, highest):
    """Return a score that at least k labels reach, or `least` if it is higher: the k-th highest peak.

    `highest` has room for k scores, and becomes a heap of the highest peaks, with the least of them in front.
    """
    n = 0
    bound = least
    for i in range(n_peaks):
        peak = peaks[i]
        if peak <= bound:
            continue
        if n < k:
            j = n
            n += 1
            while j > 0 and highest[(j - 1) // 2] > peak:
                highest[j] = highest[(j - 1) // 2]
                j = (j - 1) // 2
        else:
            j = 0
            while 2 * j + 1 < k:
                child = 2 * j + 1
                if child + 1 < k and highest[child + 1] < highest[child]:
                    child += 1
                if highest[child] >= peak:
                    break
                highest[j] = highest[child]
                j = child
        highest[j] = peak
        if n == k:
            bound = highest[0]
    return bound


@kernel
def gather_many(k, least, turn, every, peaks, n_labels, work, top, top_labels):
    """Fill, in any order, the k best of the labels in opened blocks with label % every == turn and a score >= `least`.

    Returns how many there are. Blocks are passed over by their `peaks`, the highest score of such a label in each.
    `top` and `top_labels` have room for arrays.room_for(k). A label is written before its score is looked at, without a
    branch that a processor would guess wrong.
    """
    scores = work.scores
    least = _bound_by_peaks(k, least, peaks, work.counts[1], top)
    n, least_label = np.uint32(0), n_labels
    for i in range(work.counts[1]):
        if peaks[i] < least:
            continue
        first = work.blocks[i] * BLOCK
        bound = _bound(first, least, least_label, scores)
        for label in range(np.uint32(first + turn), np.uint32(first + BLOCK), np.uint32(every)):
            top[n], top_labels[n] = scores[label], label
            n = np.uint32(n + (scores[label] >= bound))
        if n > 2 * k:
            _select(top, top_labels, np.int64(n), k)
            n, least, least_label = np.uint32(k), top[k - 1], top_labels[k - 1]
    if n > k:
        _select(top, top_labels, np.int64(n), k)
    return min(np.int64(n), k)


@kernel
def take_many(k, least, turn, every, peaks, n_labels, work, top, top_labels):
    """Do what gather_many does, and sort the k best; returns how many these are."""
    n = gather_many(k, least, turn, every, peaks, n_labels, work, top, top_labels)
    sort_best_first(top, top_labels, n)
    return n


@kernel
def take_top(k, n_labels, work, top, top_labels):
    """Fill the k best labels that are not marked -inf, and their scores. Returns how many there are."""
    scores = work.scores
    n = 0
    bound = scores.dtype.type(LOWEST)
    for i in range(work.counts[1]):
        first = work.blocks[i] * BLOCK
        if n == k:
            bound = _bound(first, top[k - 1], top_labels[k - 1], scores)
        if not any_from(scores[first : first + BLOCK], bound):
            continue
        for label in range(first, first + BLOCK):
            if scores[label] >= bound:
                n = insert(scores[label], label, top, top_labels, n, k)
                if n == k:
                    bound = _bound(label, top[k - 1], top_labels[k - 1], scores)
    return _take_unopened(k, n_labels, work, top, top_labels, n)


@kernel
def _take_relevant(relevant, work):
    """Sort the relevant labels by descending score, and mark them -inf."""
    n_pos = len(relevant)
    for i in range(n_pos):
        insert(work.scores[relevant[i]], relevant[i], work.pos, work.pos_labels, i, n_pos)
    for i in range(n_pos):
        work.scores[relevant[i]] = -np.inf


@kernel
def _take_best(k, n_labels, work):
    """Do what take_top does, for a large k and once the peaks are found, into work.neg."""
    lowest = work.neg.dtype.type(LOWEST)
    n = take_many(k, lowest, 0, 1, work.block_peaks, n_labels, work, work.neg, work.neg_labels)
    return _take_unopened(k, n_labels, work, work.neg, work.neg_labels, n)


@kernel
def split_labels(relevant, n_best, n_labels, work):
    """Split the scores in `work`: relevant labels by descending score, and the n_best best irrelevant ones.

    Returns the number of the latter. Overwrites work.scores of the relevant labels.
    """
    _take_relevant(relevant, work)
    if n_best > MANY:
        find_peaks(work)
        return _take_best(n_best, n_labels, work)
    return take_top(n_best, n_labels, work, work.neg, work.neg_labels)


@kernel
def split_with_weak(relevant, n_best, turn, n_weak, n_labels, work):
    """Do what split_labels does, and find the n_weak best irrelevant labels with label % EVERY == turn, above 0.

    Returns both numbers.
    """
    _take_relevant(relevant, work)
    find_peaks(work)
    above_zero = work.weak.dtype.type(ABOVE_ZERO)
    peaks = work.peaks[:, turn]
    found = take_many(n_weak, above_zero, turn, EVERY, peaks, n_labels, work, work.weak, work.weak_labels)
    return _take_best(n_best, n_labels, work), found
