"""The slow reference: every formula in float64, as plainly as it can be written. Never optimise it.

It is written from Kar, Narasimhan and Jain (ICML 2015), with their letters, and imports nothing of xmlpreck.
s: scores of n items; y: their relevance; n_plus: how many are relevant; y_hat: the indices of a candidate's
k ones. Order everywhere: higher score first, then lower index.
"""

import math
import re
import unicodedata
from itertools import combinations as subsets
from typing import NamedTuple

import numpy as np

OUT_OF_SIGHT = -1e9  # the score of a label that a row is not compared with


def ranked(s, items):
    return sorted(items, key=lambda i: (-s[i], i))


def positives(s, y):
    return ranked(s, [i for i in range(len(s)) if y[i]])


def negatives(s, y):
    return ranked(s, [i for i in range(len(s)) if not y[i]])


def top_labels(scores, k):
    return ranked(scores, range(len(scores)))[:k]


def total(s, items):
    return sum(float(s[i]) for i in items)


def Delta(y, y_hat):
    return sum(1 for i in y_hat if not y[i])


def mistakes(s, y, k):
    """prec@k, the loss: irrelevant items among the top k."""
    return Delta(y, top_labels(s, k))


def false_negatives(y, y_hat):
    return [i for i in range(len(y)) if y[i] and i not in y_hat]


def struct_brute(s, y, k):
    pos = positives(s, y)
    return max(Delta(y, y_hat) + total(s, y_hat) - total(s, pos) for y_hat in subsets(range(len(s)), k))


def ramp_brute(s, y, k):
    P = max(total(s, y_tilde) for y_tilde in subsets(positives(s, y), k))
    return max(Delta(y, y_hat) + total(s, y_hat) for y_hat in subsets(range(len(s)), k)) - P


def avg_brute(s, y, k):
    pos, values = positives(s, y), []
    for y_hat in subsets(range(len(s)), k):
        fn = false_negatives(y, y_hat)  # n_plus - K of them
        value = Delta(y, y_hat) + total(s, y_hat) - total(s, pos)
        if fn:
            value += (len(pos) - k) / len(fn) * total(s, fn)
        values.append(value)
    return max(values)


def max_brute(s, y, k):
    pos, values = positives(s, y), []
    for y_hat in subsets(range(len(s)), k):
        inner = max(total(s, y_tilde) for y_tilde in subsets(false_negatives(y, y_hat), len(pos) - k))
        values.append(Delta(y, y_hat) + total(s, y_hat) - total(s, pos) + inner)
    return max(values)


def best_k_prime(s, y, k, relevant_part):
    """The sorted forms: the maximum over k' = K(y, y_hat), as (value, k_star)."""
    pos, neg = positives(s, y), negatives(s, y)
    value, k_star = -math.inf, None
    for k_prime in range(k + 1):
        if k - k_prime <= len(neg):  # else there are too few irrelevant items
            v = (k - k_prime) + total(s, neg[: k - k_prime]) - relevant_part(pos, k_prime)
            if v >= value:  # of equal values the largest k'
                value, k_star = v, k_prime
    return value, k_star


def struct_sorted(s, y, k):
    return best_k_prime(s, y, k, lambda pos, k_prime: total(s, pos[k_prime:]))


def ramp_sorted(s, y, k):
    return best_k_prime(s, y, k, lambda pos, k_prime: total(s, pos[k_prime:k]))


def D(n_plus, k, k_prime):
    return (k - k_prime) / (n_plus - k_prime) if k_prime < k else 0.0


def avg_sorted(s, y, k):
    return best_k_prime(s, y, k, lambda pos, k_prime: D(len(pos), k, k_prime) * total(s, pos[k_prime:]))


def max_sorted(s, y, k):
    return best_k_prime(s, y, k, lambda pos, k_prime: total(s, pos[len(pos) - (k - k_prime) :]))


def coefficients(n, down, up, up_by):
    """A rule's answer: for each item the multiple of its features which a step of length 1 adds."""
    c = np.zeros(n)
    for i in down:
        c[i] = -1.0
    for i in up:
        c[i] = up_by
    return c


def weighted(c, a):
    """A rule's answer as a sum over pairs of a raised and a lowered item, where each counts a of the raised one."""
    up, down = np.flatnonzero(c > 0), np.flatnonzero(c < 0)
    of_pairs = np.zeros(len(c))
    for i in up:
        for j in down:
            of_pairs[i] -= a[i] * c[j] / len(up)
            of_pairs[j] += a[i] * c[j] / len(up)
    return of_pairs


def perceptron_avg(s, y, k):
    """Algorithm 1."""
    y_hat = top_labels(s, min(k, len(positives(s, y))))
    fp, fn = [i for i in y_hat if not y[i]], false_negatives(y, y_hat)
    return coefficients(len(s), fp, fn, len(fp) / len(fn)) if fp else np.zeros(len(s))


def perceptron_max(s, y, k):
    """Algorithm 2: of the false negatives only the Delta best."""
    y_hat = top_labels(s, min(k, len(positives(s, y))))
    fp, fn = [i for i in y_hat if not y[i]], false_negatives(y, y_hat)
    return coefficients(len(s), fp, ranked(s, fn)[: len(fp)], 1.0)


def sgd_avg(s, y, k):
    """Algorithm 4: minus a subgradient of avg."""
    pos, neg = positives(s, y), negatives(s, y)
    k = min(k, len(pos))
    _, k_star = avg_sorted(s, y, k)
    return coefficients(len(s), neg[: k - k_star], pos[k_star:], D(len(pos), k, k_star))


def sgd_max(s, y, k):
    """Minus a subgradient of max."""
    pos, neg = positives(s, y), negatives(s, y)
    k = min(k, len(pos))
    _, k_star = max_sorted(s, y, k)
    return coefficients(len(s), neg[: k - k_star], pos[len(pos) - (k - k_star) :], 1.0)


RULES = {
    "perceptron-avg": perceptron_avg,
    "perceptron-max": perceptron_max,
    "sgd-avg": sgd_avg,
    "sgd-max": sgd_max,
}
SURROGATE_OF = {rule: avg_sorted if rule.endswith("avg") else max_sorted for rule in RULES}


# ---- multi-label training: each row is one ranking of the labels ----


class Trained(NamedTuple):
    last: np.ndarray  # (n_features, n_labels)
    average: np.ndarray
    surrogate: list  # these three: one number a pass
    mistakes: list
    updated: list


def support(X, Y):
    """(n_features, n_labels): some row has the feature and the label."""
    allowed = np.zeros((X.shape[1], Y.shape[1]), dtype=bool)
    for x, y in zip(X, Y, strict=True):
        allowed |= np.outer(x != 0, y)
    return allowed


def squared_hinge(s, y, n_hard, turn=0, a=None):
    """Minus half the gradient of sum_{l in y} a_l max(0, 1 - s_l)^2 + mean(a) sum_{l hard} max(0, s_l)^2 in s; the hard
    labels are the best irrelevant ones, three for each relevant label, 8 at least and 64 at most, never more than
    n_hard. If that is above 8, the n_hard // 8 best of the labels with l % 8 == turn are hard too, and lowered eight
    times as much. A row without labels takes no step."""
    c = np.zeros(len(s))
    relevant = np.flatnonzero(y)
    if len(relevant):
        a = np.ones(len(s)) if a is None else np.broadcast_to(a, len(s))
        c[relevant] = a[relevant] * np.maximum(0, 1 - s[relevant])
        irrelevant = negatives(s, y)
        weak = [label for label in irrelevant if label % 8 == turn][: n_hard // 8 if n_hard > 8 else 0]
        hardest = irrelevant[: min(n_hard, max(8, min(3 * len(relevant), 64)))]
        for times, labels in ((8, weak), (1, hardest)):
            c[labels] = -times * a[relevant].mean() * np.maximum(0, s[labels])
    return c


def idf_steps(X, power):
    """c idf_f^(2 power), idf_f = 1 + ln((n + 1) / (n_f + 1)), n_f of the n rows have feature f; the mean of all values
    of all rows is 1."""
    counts = [sum(x[f] != 0 for x in X) for f in range(X.shape[1])]
    steps = [(1 + math.log((len(X) + 1) / (count + 1))) ** (2 * power) for count in counts]
    mean = sum(count * step for count, step in zip(counts, steps, strict=True)) / sum(counts)
    return np.array(steps) / mean


def spread_out(c, s, y, k):
    """What c lowers, in equal parts on the k best irrelevant labels (all there are, if fewer): same sum."""
    total = -c[c < 0].sum()
    irrelevant = [label for label in negatives(s, y) if s[label] > OUT_OF_SIGHT / 2]
    c = np.where(c > 0, c, 0.0)
    if total > 0:
        c[irrelevant[:k]] = -total / len(irrelevant[:k])
    return c


def group_bounds(W, x, is_common, n_groups):
    """Bounds of the scores of labels g, g + n_groups, ...: what common features add at most, and the highest rest."""
    most = np.where(is_common, np.maximum(x, 0), 0)
    bounds = np.full(n_groups, -np.inf)
    for group in range(n_groups):
        columns = W[:, group::n_groups]
        if columns.shape[1] > 0:
            rest = (np.where(is_common, 0, x) @ columns).max()
            bounds[group] = most @ np.maximum(columns.max(axis=1), 0) + rest
    return bounds


def cut_to_bfloat16(W):
    """Towards 0 to 8 significant bits, as a float32 without its lower 16 bits has them."""
    fraction, exponent = np.frexp(W.astype(np.float32).astype(float))  # |fraction| in [1/2, 1)
    return np.ldexp(np.trunc(fraction * 256) / 256, exponent)


def eta_at(eta, decay, t, pass_number, n_passes):
    """Of batch t, in a pass; linear: eta, then less by eta / n_passes in each pass."""
    if decay == "linear":
        return eta - (pass_number - 1) * eta / n_passes
    return {"constant": eta, "sqrt": eta / math.sqrt(t)}[decay]


def hardest_label(s, y):
    """The irrelevant label with the highest score, the lower one of equals; None if the row has none, or no label."""
    irrelevant = [label for label in range(len(s)) if not y[label]]
    return min(irrelevant, key=lambda label: (-s[label], label)) if y.any() and irrelevant else None


def mixed(key):
    """The finaliser of splitmix64 (Steele, Lea & Flood, OOPSLA 2014): 64 bits in, 64 bits out."""
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    key = (key ^ key >> 27) * 0x94D049BB133111EB % 2**64
    return key ^ key >> 31


def pass_key(seed, pass_number):
    return int(np.random.default_rng([seed, pass_number, 1]).integers(2**63))


def gumbel_noise(seed, tau, pass_number, row, n_labels):
    """tau times a Gumbel draw for each label: from one table, a block of 64 labels from an index that is hashed."""
    table = tau * np.random.default_rng(seed).gumbel(size=2**14 + 64)
    row_key = mixed((pass_key(seed, pass_number) + row) % 2**64)
    noise = np.zeros(n_labels)
    for label in range(n_labels):
        index = mixed((row_key + label // 64 * 0x9E3779B97F4A7C15) % 2**64) % 2**14
        noise[label] = table[index + label % 64]
    return noise


def step(s, y, rule, k, spread, weights):
    """The coefficients of a row: those of the rule, spread out and weighted if asked for."""
    c = RULES[rule](s, y, k)
    if spread and rule.startswith("sgd"):
        c = spread_out(c, s, y, k)
    return c if weights is None else weighted(c, weights)


def pair_weights(row, label_weights, relevance):
    """The weights of a row's labels, or None if they all count 1."""
    if label_weights is None and relevance is None:
        return None
    return (1.0 if label_weights is None else label_weights) * (1.0 if relevance is None else relevance[row])


def measured(s, y, rule, k, c):
    """(surrogate, mistakes, does it change the weights?) of a row; 0 without labels."""
    k_i = min(k, int(y.sum()))
    if k_i == 0:
        return np.zeros(3)
    surrogate = 2 * c @ (y - s) if rule == "hinge" else SURROGATE_OF[rule](s, y, k_i)[0]
    return np.array([surrogate, mistakes(s, y, k_i), c.any()])


def projected(W, radius):
    """Onto the ball of this radius; 0 = no projection."""
    norm = np.linalg.norm(W)
    return W * (radius / norm) if 0 < radius < norm else W


def widened_support(allowed, X, hardest):
    """Let the hardest label of each row use the row's features."""
    allowed = allowed.copy()
    for row, label in hardest.items():
        if label is not None:
            allowed[X[row] != 0, label] = True
    return allowed


def row_scores(x, W):
    """<w_l, x> of all labels, added feature by feature: BLAS, by its own order, may break ties of equal columns."""
    features = np.flatnonzero(x)
    return (x[features, None] * W[features]).sum(axis=0)


def train(X, Y, *, rule, k, orders, batch_rows, eta, decay="linear", radius=0.0, average_from=1, noise=None,
          restrict=True, label_weights=None, relevance=None, start=None, spread=False, cut=False,
          widened=None, remember=0, n_hard=300, seed=0, passes_before=0, feature_steps=None):  # fmt: skip
    """One pass for each row order in `orders`, from W = `start` (None = 0).

    noise(pass_number, row) is added to a row's scores; with `spread` an SGD rule lowers the k best irrelevant labels by
    equal parts; with `cut` rows are scored with W cut to bfloat16; `relevance` (rows, labels) multiplies the weights of
    a row's labels; from pass `widened` on the label that was the hardest for a row in the pass before may use its
    features; with `remember` a row has no labels from pass 3 on but its own and that many of its hardest in pass 2; the
    hinge has `n_hard` hard labels, and draws by `seed` and the number of the pass, after `passes_before` of other
    members, whose turn it is to be one; `feature_steps` multiply the steps of each feature.
    """
    factors = np.ones((X.shape[1], 1)) if feature_steps is None else np.reshape(feature_steps, (-1, 1))
    W = np.zeros((X.shape[1], Y.shape[1])) if start is None else np.array(start, dtype=float)
    W_sum, n_summed, t = np.zeros(W.shape), 0, 0
    allowed = support(X, Y) if restrict else np.ones(W.shape, dtype=bool)
    facts, hardest, remembered, orders = [], {}, {}, list(orders)
    for pass_number, order in enumerate(orders, start=1):
        facts.append(np.zeros(3))
        if pass_number == widened:
            allowed = widened_support(allowed, X, hardest)
        for first in range(0, len(order), batch_rows):
            t += 1
            eta_t = eta_at(eta, decay, t, pass_number, len(orders)) if not rule.startswith("perceptron") else 1.0
            W_before = cut_to_bfloat16(W) if cut else W.copy()
            for row in order[first : first + batch_rows]:
                s = row_scores(X[row], W_before) + (0.0 if noise is None else noise(pass_number, row))
                if pass_number + 1 == widened:
                    hardest[row] = hardest_label(s, Y[row])
                if remember and pass_number == 2:
                    remembered[row] = [label for label in negatives(s, Y[row]) if s[label] > 0][:remember]
                elif remember and pass_number > 2:
                    s = np.where(Y[row] | np.isin(np.arange(len(s)), remembered[row]), s, OUT_OF_SIGHT)
                weights = pair_weights(row, label_weights, relevance)
                if rule == "hinge":
                    key = pass_key(seed, passes_before + pass_number)
                    c = squared_hinge(s, Y[row], n_hard, mixed(key + int(row)) % 8, weights)
                else:
                    c = step(s, Y[row], rule, k, spread, weights)
                length = 0.3 * eta_t if rule == "hinge" else eta_t
                W = W + np.where(allowed, length * factors * np.outer(X[row], c), 0.0)
                facts[-1] += measured(s, Y[row], rule, k, c)
            W = projected(W, radius)
            if pass_number >= average_from:
                W_sum += W
                n_summed += 1
    return Trained(W, W_sum / n_summed, *np.array(facts).T.tolist())


def precision_at_k(top, Y, k):
    """Mean over all rows of (right labels among the first k) / k; a missing one (-1, short list) is wrong."""
    hits = 0
    for labels, y in zip(top, Y, strict=True):
        for label in labels[:k]:
            if label >= 0 and y[label]:
                hits += 1
    return hits / k / len(top)


# ---- bipartite training: each batch of points is one ranking, and there is one w ----


def train_points(X, y, *, rule, orders, batch_points, kappa=None, k=None, eta=1.0, decay="constant", radius=0.0):
    """One pass for each order of the points in `orders`; k is given, or max(1, round(kappa * n_plus)) of each batch."""
    w, w_sum, t = np.zeros(X.shape[1]), np.zeros(X.shape[1]), 0
    facts = []
    for order in orders:
        facts.append(np.zeros(3))
        for first in range(0, len(order), batch_points):
            t += 1
            eta_t = eta_at(eta, decay, t, 1, 1) if rule.startswith("sgd") else 1.0
            batch = order[first : first + batch_points]
            n_plus = int(sum(y[batch]))
            if n_plus > 0:
                k_t = min(k, n_plus) if k else max(1, round(kappa * n_plus))
                s = X[batch] @ w
                c = RULES[rule](s, y[batch], k_t)
                w = w + eta_t * (c @ X[batch])
                facts[-1] += measured(s, y[batch], rule, k_t, c)
            w = projected(w, radius)
            w_sum = w_sum + w
    return Trained(w, w_sum / t, *np.array(facts).T.tolist())


# Words of every script (docs/text.md), from the names and categories that Unicode gives to characters.

_KANA = ("HIRAGANA", "KATAKANA", "HENTAIGANA", "COMBINING KATAKANA", "VERTICAL KANA", "MASU MARK")
_IDEOGRAPHS = ("CJK ", "IDEOGRAPHIC ", "VERTICAL IDEOGRAPHIC ", "HANGZHOU ", *_KANA)
_SYLLABIC = ("THAI ", "LAO ", "MYANMAR ", "KHMER ")
_LOOKS = ("SOFT HYPHEN", "ZERO WIDTH NON-JOINER", "ZERO WIDTH JOINER", "WORD JOINER", "ZERO WIDTH NO-BREAK SPACE")


def kind_of_character(character):
    """One letter: w(ord), i(deograph), s(yllabic), h(yphen), + (a sign), or a blank."""
    category = unicodedata.category(character)
    name = unicodedata.name(character, "")
    if category[0] in "LM" or category == "Nl":
        return "i" if name.startswith(_IDEOGRAPHS) else "s" if name.startswith(_SYLLABIC) else "w"
    return "w" if category[0] == "N" else "h" if character == "-" else "+" if character in "+#" else " "


def terms_of(text, ngrams=1, lowercase=True, char_lengths=()):
    """All terms of a text, each as often as it occurs; `char_lengths` are those of runs of characters of a word."""
    text = unicodedata.normalize("NFKC", text)
    names = [unicodedata.name(character, "") for character in text]
    is_kept = [name not in _LOOKS and not name.startswith("VARIATION SELECTOR-") for name in names]
    text = "".join(character for character, kept in zip(text, is_kept, strict=True) if kept)
    if lowercase:
        text = "".join(unicodedata.normalize("NFKC", character.casefold()) for character in text)
    text = text.replace("\N{HYPHEN}", "-")
    terms, units = [], []
    for found in re.finditer(r"(w+(?:hw+)*)(\+{1,2}+(?!w))?|i+|s+", "".join(map(kind_of_character, text))):
        whole = text[slice(*found.span())]
        if found[1] is None:
            lengths = range(1, 3) if found[0][0] == "i" else range(2, 5)
            runs = [whole[at : at + n] for n in lengths for at in range(len(whole) - n + 1)]
            terms += runs or [whole]
            units = []
            continue
        parts = text[slice(*found.span(1))].split("-")
        terms += parts if parts == [whole] else [*parts, whole]
        units.append(whole)
        padded = f" {whole} "
        runs = [padded[at : at + n] for n in char_lengths for at in range(len(padded) - n + 1)]
        terms += runs or ([padded] if char_lengths else [])
        terms += [" ".join(units[-n:]) for n in range(2, min(ngrams, len(units)) + 1)]
    return terms


def saturated(counts, idf, mean_terms, k=1.2, b=0.75):
    """BM25's weights of each text's counts (a dict by term), in rows of length 1."""
    rows = []
    for count in counts:
        half = k * (1 - b + b * len(count) / mean_terms)
        row = {term: idf[term] * n / (n + half) for term, n in count.items()}
        length = math.sqrt(sum(value * value for value in row.values()))
        rows.append({term: value / length for term, value in row.items()})
    return rows
