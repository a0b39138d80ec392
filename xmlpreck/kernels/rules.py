"""The four rules of the paper and the squared hinge: which labels of a row are raised and lowered, by how much.

Letters are those of Kar, Narasimhan & Jain (ICML 2015): k, n_+ (`n_pos`), s+ and s- (`pos`, `neg`), k' (`kept`), D,
eta.
"""

from xmlpreck.kernels.arrays import EVERY
from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.scoring import begin_row, open_all
from xmlpreck.kernels.search import find
from xmlpreck.kernels.topk import is_better, sort_best_first, split_labels

# The choice of y^ (perceptron or SGD) and of the relevant labels that are raised (avg or max); or each label by itself.
PERCEPTRON_AVG, PERCEPTRON_MAX, SGD_AVG, SGD_MAX, HINGE = range(5)
RULES = {
    "hinge": HINGE,
    "perceptron-avg": PERCEPTRON_AVG,
    "perceptron-max": PERCEPTRON_MAX,
    "sgd-avg": SGD_AVG,
    "sgd-max": SGD_MAX,
}

# The step of the hinge at eta = 1, in half gradients: with twice as much, batches of 32 rows overshoot.
HINGE_STEP = 0.3
# The hinge lowers the best irrelevant labels of a row, HARD_A_LABEL for each relevant one within these bounds, and the
# best of one in EVERY of all others. 32 for every row are no better and take longer (docs/tuning.md).
HARD_A_LABEL, MIN_HARDEST, HARDEST = 3, 8, 64


@kernel
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


@kernel
def _kept_at_top(pos, pos_labels, n_pos, neg, neg_labels, n_neg, k):
    """Count the relevant labels among the k best: k - prec@k."""
    i = 0
    j = 0
    while i + j < k:
        if j < n_neg and (i == n_pos or neg[j] > pos[i] or (neg[j] == pos[i] and neg_labels[j] < pos_labels[i])):
            j += 1
        else:
            i += 1
    return i


@kernel
def _choose_pairs(pos, pos_labels, n_pos, neg, neg_labels, n_neg, k, rule, n_lowered, out_labels, out_steps):
    """Apply one rule of MATH.md section 2 to scores in descending order: write (label, coefficient) pairs without eta.

    The m = k - k' best irrelevant labels get -1. Of the relevant ones, in descending order of score:
    Perceptron@k-avg (Algorithm 1) and SGD@k-avg (Algorithms 3, 4) raise all after k' by D = m / (n_+ - k');
    Perceptron@k-max (Algorithm 2) raises the m after k' by 1, SGD@k-max the m lowest by 1.
    k' is the number of relevant labels in the top k for the perceptrons, the maximiser of the surrogate for SGD.
    With n_lowered > m the n_lowered best irrelevant labels get -m / n_lowered each instead: beyond the paper, for the
    ranks behind the few labels of a row (docs/tuning.md).
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


@kernel
def _pair_weight(label, label_weights, relevant, relevance):
    """a_l = label_weights[l] * (relevance of l in this row); either may be empty, which means 1 for every label."""
    weight = label_weights[label] if len(label_weights) > 0 else label_weights.dtype.type(1)
    if len(relevance) > 0:
        weight *= relevance[find(relevant, 0, len(relevant), label)]
    return weight


@kernel
def weigh_pairs(labels, steps, label_weights, relevant, relevance):
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


@kernel
def count_hardest(n_pos, n_hard):
    """Count the best irrelevant labels that the hinge lowers for a row with n_pos relevant ones, n_hard at most."""
    return min(n_hard, max(HARD_A_LABEL * n_pos, MIN_HARDEST))


@kernel
def _hinge_pairs(
    pos, pos_labels, n_pos, neg, neg_labels, n_neg, weak, weak_labels, n_weak, relevant, relevance, settings,
    out_labels, out_steps,
):  # fmt: skip
    """Write minus half the gradient of the one-label squared hinge; returns (pairs, twice the loss).

    The loss is sum_{l relevant} a_l max(0, 1 - s_l)^2 + a sum_{l hard} max(0, s_l)^2: relevant labels are drawn to 1,
    hard ones to 0, the score of a label without any weight. a_l is the weight of _pair_weight, a its mean over the row.
    The hard labels are the best irrelevant ones, see count_hardest, and of those whose turn it is (one in EVERY of all
    labels, drawn for each row) the settings.n_weak best, which are lowered EVERY times as much, unless they are
    among the first. They are weak and many: together they matter (docs/tuning.md has what it brings), and finding and
    lowering a part of them takes a part of the time.
    Twice the loss is at least the number of mistakes in the first k <= min(n_+, HARDEST): each has a relevant label at
    s and an irrelevant one at t >= s, where (1 - s)^2 + t^2 >= 1/2.
    """
    is_weighted = len(settings.label_weights) > 0 or len(relevance) > 0
    n_pairs = 0
    total = 0.0
    loss = 0.0
    for i in range(n_pos):
        weight = 1.0
        if is_weighted:
            weight = _pair_weight(pos_labels[i], settings.label_weights, relevant, relevance)
        total += weight
        if pos[i] < 1:
            out_labels[n_pairs] = pos_labels[i]
            out_steps[n_pairs] = (1 - pos[i]) * weight
            loss += (1 - pos[i]) ** 2 * weight
            n_pairs += 1
    mean_weight = total / n_pos
    n_hard = min(n_neg, count_hardest(n_pos, settings.n_hard))
    for i in range(n_hard):
        if neg[i] <= 0:
            break
        out_labels[n_pairs] = neg_labels[i]
        out_steps[n_pairs] = -neg[i] * mean_weight
        loss += neg[i] ** 2 * mean_weight
        n_pairs += 1
    for i in range(n_weak):
        if is_better(neg[n_hard - 1], neg_labels[n_hard - 1], weak[i], weak_labels[i]):
            out_labels[n_pairs] = weak_labels[i]
            out_steps[n_pairs] = -EVERY * weak[i] * mean_weight
            loss += EVERY * weak[i] ** 2 * mean_weight
            n_pairs += 1
    return n_pairs, 2 * loss


@kernel
def _sort_pairs(labels, steps, n):
    """Sort the first n by ascending label; no label is there twice."""
    sort_best_first(labels, steps, n)
    for i in range(n // 2):
        j = n - 1 - i
        labels[i], labels[j] = labels[j], labels[i]
        steps[i], steps[j] = steps[j], steps[i]


@kernel
def choose_row(
    pos, pos_labels, n_pos, neg, neg_labels, n_neg, weak, weak_labels, n_weak, relevant, relevance, settings, eta, slot,
    index, batch,
):  # fmt: skip
    """Write the step of one row, with eta and the labels' weights, into slot, by ascending label.

    The step of the hinge is HINGE_STEP * eta long; `index` is the row's within the call.
    """
    pair_labels, pair_steps = batch.pair_labels[slot], batch.pair_steps[slot]
    n_pairs, surrogate, mistakes = 0, 0.0, 0
    if settings.rule == HINGE:
        if n_pos > 0:
            n_pairs, surrogate = _hinge_pairs(
                pos, pos_labels, n_pos, neg, neg_labels, n_neg, weak, weak_labels, n_weak, relevant, relevance,
                settings, pair_labels, pair_steps,
            )  # fmt: skip
            k = min(settings.k, n_pos)
            mistakes = k - _kept_at_top(pos, pos_labels, n_pos, neg, neg_labels, n_neg, k)
    else:
        n_pairs, surrogate, mistakes = _choose_pairs(
            pos, pos_labels, n_pos, neg, neg_labels, n_neg, settings.k, settings.rule, settings.n_lowered,
            pair_labels, pair_steps,
        )  # fmt: skip
        if len(settings.label_weights) > 0 or len(relevance) > 0:
            weigh_pairs(pair_labels[:n_pairs], pair_steps[:n_pairs], settings.label_weights, relevant, relevance)
    pair_steps[:n_pairs] *= eta * HINGE_STEP if settings.rule == HINGE else eta
    _sort_pairs(pair_labels, pair_steps, n_pairs)
    batch.n_pairs[slot] = n_pairs
    batch.surrogates[index] = surrogate
    batch.mistakes[index] = mistakes
    batch.updated[index] = n_pairs > 0


@kernel
def choose_step(scores, relevant, k, rule, work, out_labels, out_steps):
    """Apply a rule to given scores of all labels: (pairs, surrogate, mistakes); see _choose_pairs."""
    begin_row(work)
    open_all(len(scores), work)
    work.scores[: len(scores)] = scores
    n_pos = len(relevant)
    n_neg = split_labels(relevant, min(k, n_pos), len(scores), work) if n_pos > 0 else 0
    return _choose_pairs(
        work.pos, work.pos_labels, n_pos, work.neg, work.neg_labels, n_neg, k, rule, 0, out_labels, out_steps
    )
