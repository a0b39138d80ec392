"""The slow judge of metrics: every formula as a loop over rows in exact fractions. Never optimise it.

Written from what the sources compute: the XML repository's Matlab scripts (precision_k, nDCG_k, precision_wt_k,
nDCG_wt_k, recall_k), pyxclib's xc_metrics, napkinXC's metrics, LibMultiLabel's metrics. It imports nothing of xmlpreck.
rankings: a list of label ids for each row, best first, only labels that were predicted; truths: a set of label ids for
each row; k: places that count. Values are in per cent. Only logarithms and weights are rounded, once, to float64.
"""

import math
from fractions import Fraction

CONVENTIONS = ("repository", "pyxclib", "napkinxc", "rp")


def rank(scores, depth=None):
    """Label ids of {label: score}: higher score first, then lower id."""
    return sorted(scores, key=lambda label: (-scores[label], label))[:depth]


def mean(values):
    values = list(values)
    return sum(values, Fraction(0)) / len(values) if values else Fraction(0)


def ratio(part, whole):
    """part / whole; 0 where there is nothing to divide by."""
    return Fraction(part) / Fraction(whole) if whole else Fraction(0)


def n_hits(ranking, truth, k):
    return sum(1 for label in ranking[:k] if label in truth)


def discount(place):
    """Places count from 1."""
    return Fraction(1 / math.log2(place + 1))


def discounted(gains, k):
    """DCG of gains in their order."""
    return sum((gain * discount(place) for place, gain in enumerate(gains[:k], start=1)), Fraction(0))


def precision(rankings, truths, k):
    return mean(Fraction(n_hits(r, t, k), k) for r, t in zip(rankings, truths, strict=True))


def r_precision(rankings, truths, k):
    return mean(ratio(n_hits(r, t, k), min(k, len(t))) for r, t in zip(rankings, truths, strict=True))


def recall(rankings, truths, k):
    return mean(ratio(n_hits(r, t, k), len(t)) for r, t in zip(rankings, truths, strict=True))


def ndcg(rankings, truths, k):
    """Each row's DCG over that of min(k, |y|) hits in a row."""

    def one(ranking, truth):
        return ratio(discounted([int(label in truth) for label in ranking], k), discounted([1] * len(truth), k))

    return mean(one(r, t) for r, t in zip(rankings, truths, strict=True))


def weights_of_hits(ranking, truth, weights):
    return [Fraction(weights[label]) if label in truth else Fraction(0) for label in ranking]


def best_weights(truth, weights):
    return sorted((Fraction(weights[label]) for label in truth), reverse=True)


def ps_precision(rankings, truths, k, weights):
    """Mean weight of the hits over the mean of the best attainable: a ratio of means, not a mean of ratios."""
    reached = mean(sum(weights_of_hits(r, t, weights)[:k]) / k for r, t in zip(rankings, truths, strict=True))
    return ratio(reached, mean(sum(best_weights(t, weights)[:k], Fraction(0)) / k for t in truths))


def ps_ndcg_parts(rankings, truths, k, weights, n_divided):
    """Numerator and denominator of PSnDCG@k; each row's DCG is divided by the discounts of n_divided(|y|) places."""

    def normed(gains, truth):
        return ratio(discounted(gains, k), discounted([1] * n_divided(len(truth)), k))

    reached = mean(normed(weights_of_hits(r, t, weights), t) for r, t in zip(rankings, truths, strict=True))
    return reached, mean(normed(best_weights(t, weights), t) for t in truths)


def ps_ndcg(rankings, truths, k, weights, convention):
    """The Matlab script divides every row by k places, pyxclib and napkinXC by min(k, |y|)."""
    by_row = convention in ("pyxclib", "napkinxc")
    return ratio(*ps_ndcg_parts(rankings, truths, k, weights, lambda n: min(k, n) if by_row else k))


def label_counts(rankings, truths, k, n_labels):
    """Of each label: (hits, times in a top k, times in truth)."""
    counts = [[0, 0, 0] for _ in range(n_labels)]
    for ranking, truth in zip(rankings, truths, strict=True):
        for label in ranking[:k]:
            counts[label][0] += label in truth
            counts[label][1] += 1
        for label in truth:
            counts[label][2] += 1
    return counts


def precision_recall_f1(hits, predicted, true):
    return ratio(hits, predicted), ratio(hits, true), ratio(2 * hits, predicted + true)


def micro(rankings, truths, k, n_labels):
    return precision_recall_f1(*map(sum, zip(*label_counts(rankings, truths, k, n_labels), strict=True)))


def macro(rankings, truths, k, n_labels, convention):
    """Over all columns; in napkinXC over ids 0 to the largest in truth or a top k."""
    counts = label_counts(rankings, truths, k, n_labels)
    if convention == "napkinxc":
        seen = [label for label, (_, predicted, true) in enumerate(counts) if predicted or true]
        counts = counts[: max(seen, default=0) + 1]
    return tuple(map(mean, zip(*(precision_recall_f1(*count) for count in counts), strict=True)))


def coverage(rankings, truths, k):
    hit = {label for r, t in zip(rankings, truths, strict=True) for label in r[:k] if label in t}
    return ratio(len(hit), len(set().union(*truths)))


def abandonment(rankings, truths, k, convention):
    """Rows without a hit; napkinXC gives this name to the rows that have one."""
    has_hit = [n_hits(r, t, k) > 0 for r, t in zip(rankings, truths, strict=True)]
    return mean(Fraction(hit == (convention == "napkinxc")) for hit in has_hit)


def reciprocal_rank(rankings, truths):
    """1 / place of the first hit, 0 without one, over the whole list."""

    def one(ranking, truth):
        return next((Fraction(1, place) for place, label in enumerate(ranking, start=1) if label in truth), Fraction(0))

    return mean(one(r, t) for r, t in zip(rankings, truths, strict=True))


def bin_part(rankings, truths, k, labels):
    """(part of P@k, R@k) of some labels: their hits over k places of every row, and over their true occurrences."""
    hits = sum(
        n_hits([label for label in r[:k] if label in labels], t, k) for r, t in zip(rankings, truths, strict=True)
    )
    return ratio(hits, k * len(truths)), ratio(hits, sum(len(t & labels) for t in truths))


def closure(labels, broader):
    """Labels with all of their ancestors; `broader` has the broader labels of each."""
    found, waiting = set(), list(labels)
    while waiting:
        label = waiting.pop()
        if label not in found:
            found.add(label)
            waiting += broader.get(label, ())
    return found


def hierarchical(rankings, truths, k, broader, n_labels):
    """Kiritchenko, Matwin and Famili (2005): hP, hR, hF1 of sums over rows, ancestors included and the root not."""
    above_all = set.intersection(*(closure({label}, broader) for label in range(n_labels)))
    shared = predicted = true = 0
    for ranking, truth in zip(rankings, truths, strict=True):
        chosen, right = closure(ranking[:k], broader) - above_all, closure(truth, broader) - above_all
        shared += len(chosen & right)
        predicted += len(chosen)
        true += len(right)
    return precision_recall_f1(shared, predicted, true)


def evaluate(rankings, truths, ks, convention, n_labels, weights=None, drop_empty=False):
    """{name: per cent} of every metric."""
    if drop_empty:
        kept = [(r, t) for r, t in zip(rankings, truths, strict=True) if t]
        rankings, truths = [r for r, _ in kept], [t for _, t in kept]
    values = {"MRR": reciprocal_rank(rankings, truths)}
    for k in ks:
        if convention != "rp":
            values[f"P@{k}"] = precision(rankings, truths, k)
        values[f"RP@{k}"] = r_precision(rankings, truths, k)
        values[f"nDCG@{k}"] = ndcg(rankings, truths, k)
        values[f"R@{k}"] = recall(rankings, truths, k)
        if weights is not None:
            values[f"PSP@{k}"] = ps_precision(rankings, truths, k, weights)
            values[f"PSnDCG@{k}"] = ps_ndcg(rankings, truths, k, weights, convention)
        averages = (
            ("micro", micro(rankings, truths, k, n_labels)),
            ("macro", macro(rankings, truths, k, n_labels, convention)),
        )
        for name, three in averages:
            values |= {f"{name}{what}@{k}": value for what, value in zip(("P", "R", "F1"), three, strict=True)}
        values[f"coverage@{k}"] = coverage(rankings, truths, k)
        values[f"abandonment@{k}"] = abandonment(rankings, truths, k, convention)
    return {name: float(100 * value) for name, value in values.items()}


def inverse_propensity(count, n_rows, a, b):
    """Jain, Prabhu and Varma (KDD 2016): 1/p = 1 + C (N_l + B)^-A with C = (ln N - 1)(B + 1)^A, N of training."""
    return 1 + (math.log(n_rows) - 1) * (b + 1) ** a * (count + b) ** -a
