"""Bipartite training: each batch of points is one ranking, and there is one vector of weights."""

import numpy as np

from xmlpreck.kernels.arrays import STEPS
from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.rules import choose_step


@kernel
def train_points(points, order, ks, batch_points, settings, learner, work):
    """Train one w on points[order]: each batch_points of them are one ranking, the i-th of them for its top ks[i].

    s = X w;  w += eta / t^decay * sum of coefficient * x, by the rule;  then w is scaled to |w| <= radius, if that is
    not 0. Equal scores: the point that comes first in the batch is ranked first.
    Returns sums over the batches: (surrogate, mistakes, 1 if w changed).
    """
    w, sums, clock = learner.weights, learner.sums, learner.clock
    scores, steps = np.empty(batch_points), np.empty(batch_points)
    chosen, relevant = np.empty(batch_points, np.int32), np.empty(batch_points, np.int32)
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
        for rank in range(len(batch)):
            if points.relevance[batch[ranking[rank]]]:
                relevant[n_pos] = rank
                n_pos += 1
        n_pairs, surrogate, mistakes = choose_step(
            scores[ranking], relevant[:n_pos], ks[i], settings.rule, work, chosen, steps
        )
        clock[STEPS] += 1
        eta = settings.eta / clock[STEPS] ** settings.decay
        for j in range(n_pairs):
            point = batch[ranking[chosen[j]]]
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
