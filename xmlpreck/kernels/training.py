"""Training on rows in synchronous batches, by threads that share the weights.

Every order of summation is fixed: a weight takes its steps in the order of the rows. So the result has the same bits
for any number of threads.
"""

import numpy as np

from xmlpreck.kernels.arrays import (
    AVERAGED,
    BATCHES_DONE,
    BLOCK,
    ELAPSED,
    EVERY,
    N_COUNTERS,
    PARTS_DONE,
    PARTS_TAKEN,
    ROWS_DONE,
    ROWS_TAKEN,
    SCALE,
    STEPS,
)
from xmlpreck.kernels.bfloat import as_stored
from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.dense import (
    GROUP_ROWS,
    MIN_SHARED,
    MIN_TILE_ROWS,
    TILE_ROWS,
    apply_shared,
    count_shared,
    load_row,
    new_tile,
    score_tile,
)
from xmlpreck.kernels.hashing import mix
from xmlpreck.kernels.marks import new_marks
from xmlpreck.kernels.recall import new_recalled, remember, split_recalled
from xmlpreck.kernels.rules import choose_row, count_hardest
from xmlpreck.kernels.scoring import begin_row, open_at, perturb, score_row
from xmlpreck.kernels.steps import apply_steps
from xmlpreck.kernels.threads import fetch, fetch_add, ring, wait_until
from xmlpreck.kernels.topk import split_labels, split_with_weak

# Below this scale the weights are multiplied out, so that float32 never overflows under a small radius.
MIN_SCALE = 1e-3


@kernel
def _relevance_of(row, rows):
    """The relevance of a row's labels; empty if all labels count 1."""
    if len(rows.relevance) == 0:
        return rows.relevance
    return rows.relevance[rows.label_offsets[row] : rows.label_offsets[row + 1]]


@kernel
def add_centroids(thread, n_threads, rows, learner, shares):
    """Let every row x take the step shares[l] * r of each of its labels l, of relevance r, see apply_steps."""
    marks = new_marks(learner.weights.dense_rows.shape[1])
    for row in range(len(rows.offsets) - 1):
        first, last = rows.offsets[row], rows.offsets[row + 1]
        relevant = rows.labels[rows.label_offsets[row] : rows.label_offsets[row + 1]]
        steps = shares[relevant]
        if len(rows.relevance) > 0:
            steps *= _relevance_of(row, rows)
        apply_steps(
            thread,
            n_threads,
            rows.features[first:last],
            rows.values[first:last],
            0.0,
            learner,
            relevant,
            steps,
            0,
            marks,
        )


@kernel
def multiply_out(learner, scale, elapsed):
    """weights *= scale, and what the mean has so far moves into sums: then scale is 1 and elapsed 0 again."""
    weights, scored_rows = learner.weights, learner.scored.dense_rows
    for d in range(len(weights.dense_rows)):
        for label in range(weights.dense_rows.shape[1]):
            learner.dense_sums[d, label] -= elapsed * weights.dense_rows[d, label]
            weights.dense_rows[d, label] *= scale
            scored_rows[d, label] = as_stored(weights.dense_rows[d, label], scored_rows)
    for p in range(len(weights.values)):
        learner.sums[p] -= elapsed * weights.values[p]
        weights.values[p] *= scale
    learner.norms[:] *= scale * scale


@kernel
def step_clock(clock, averaging):
    """Count a batch, and if averaging its scale for the mean of the weights."""
    if averaging:
        clock[ELAPSED] += clock[SCALE]
        clock[AVERAGED] += 1
    clock[STEPS] += 1


@kernel
def score_for_choice(row, rows, relevant, weights, scale, settings, noise, work):
    """Score a row as the rule sees it: with the true weights, perturbed if the settings say so."""
    n_labels = weights.dense_rows.shape[1]
    begin_row(work)
    for i in range(len(relevant)):  # so that split_labels can mark them
        open_at(relevant[i], n_labels, work)
    first, last = rows.offsets[row], rows.offsets[row + 1]
    score_row(rows.features[first:last], rows.values[first:last], weights, n_labels, work)
    adjust_scores(row, scale, settings, noise, work)


@kernel
def adjust_scores(row, scale, settings, noise, work):
    """Multiply the scores in opened blocks by the scale of the weights, and add noise if the settings say so."""
    if scale != 1:
        for i in range(work.counts[1]):
            work.scores[work.blocks[i] * BLOCK : work.blocks[i] * BLOCK + BLOCK] *= scale
    if settings.perturbed:
        perturb(noise, mix(settings.noise_key + np.uint64(row)), settings.first_block, work)


@kernel
def split_scores(row, relevant, n_best, settings, n_labels, work):
    """Split what score_for_choice made into relevant, n_best irrelevant and weak labels; returns (n_neg, n_weak).

    Whose turn it is to be a weak label depends on the pass and the row only.
    """
    if settings.n_weak == 0:
        return split_labels(relevant, n_best, n_labels, work), 0
    turn = np.int64(mix(settings.noise_key + np.uint64(row)) % np.uint64(EVERY))
    return split_with_weak(relevant, n_best, turn, settings.n_weak, n_labels, work)


@kernel
def _choose_batch(
    start, size, at, n_shared, claim, rows, order, learner, settings, noise, work, tile, batch, hardest, remembered,
    recalled, marks,
):  # fmt: skip
    """Phase 1: take rows until there are none, score them with the weights of the batch's start, choose the steps."""
    n_labels = learner.scored.dense_rows.shape[1]
    # If the batch has ended meanwhile these are of another, but then there is no row to take.
    scale = learner.clock[SCALE]
    eta = settings.eta / (learner.clock[STEPS] + 1) ** settings.decay / scale
    while True:
        first_slot = fetch_add(batch.counters, at + ROWS_TAKEN, claim)
        if first_slot >= size:
            return
        n_taken = min(claim, size - first_slot)
        if n_shared > 0:
            score_tile(rows, order, start + first_slot, n_taken, n_shared, learner.scored, work, tile)
        for slot in range(first_slot, first_slot + n_taken):
            row = order[start + slot]
            relevant = rows.labels[rows.label_offsets[row] : rows.label_offsets[row + 1]]
            n_hard = count_hardest(len(relevant), settings.n_hard)
            n_best = max(min(settings.k, len(relevant)), settings.n_lowered, n_hard)
            n_neg, n_weak = 0, 0
            if len(relevant) > 0 and settings.recalls:
                n_neg, n_weak = split_recalled(
                    row, rows, relevant, remembered[row], n_best, learner.scored, scale, settings, noise, work,
                    recalled, marks,
                )  # fmt: skip
            elif len(relevant) > 0:
                if n_shared > 0:
                    load_row(slot - first_slot, n_labels, tile, work)
                    adjust_scores(row, scale, settings, noise, work)
                else:
                    score_for_choice(row, rows, relevant, learner.scored, scale, settings, noise, work)
                n_neg, n_weak = split_scores(row, relevant, n_best, settings, n_labels, work)
            if settings.n_remembered > 0 and len(relevant) > 0:
                remember(n_labels, settings.n_weak > 0, work, recalled, remembered[row])
            if len(hardest) > 0:
                hardest[row] = work.neg_labels[0] if n_neg > 0 else -1
            choose_row(
                work.pos, work.pos_labels, len(relevant), work.neg, work.neg_labels, n_neg, work.weak, work.weak_labels,
                n_weak, relevant, _relevance_of(row, rows), settings, eta, slot, start + slot, batch,
            )  # fmt: skip
        if fetch_add(batch.counters, at + ROWS_DONE, n_taken) == size - n_taken:
            ring(batch.bell)


@kernel
def _apply_batch(start, size, at, n_parts, n_shared, rows, order, learner, settings, batch, marks):
    """Phase 2: take parts of the features until there are none, and apply all steps of the batch to them in row order.

    Who does the last part also sets the clock for the next batch.
    """
    while True:
        part = fetch_add(batch.counters, at + PARTS_TAKEN, 1)
        if part >= n_parts:
            return
        for slot in range(size):
            n_pairs = batch.n_pairs[slot]
            if n_pairs > 0:
                row = order[start + slot]
                first, last = rows.offsets[row], rows.offsets[row + 1] - n_shared
                apply_steps(
                    part, n_parts, rows.features[first:last], rows.values[first:last], learner.clock[ELAPSED], learner,
                    batch.pair_labels[slot, :n_pairs], batch.pair_steps[slot, :n_pairs], settings.n_frozen,
                    marks,
                )  # fmt: skip
        if n_shared > 0:
            elapsed = learner.clock[ELAPSED]
            apply_shared(part, n_parts, start, size, n_shared, rows, order, learner, settings.n_frozen, batch, elapsed)
        if fetch_add(batch.counters, at + PARTS_DONE, 1) == n_parts - 1:
            _end_batch(learner, settings)
            fetch_add(batch.counters, BATCHES_DONE, 1)
            ring(batch.bell)


@kernel
def _end_batch(learner, settings):
    """Project onto the ball |w| <= radius, by the scale, and count the batch."""
    clock = learner.clock
    if settings.radius > 0:
        norm = np.sqrt(learner.norms.sum())
        if norm * clock[SCALE] > settings.radius:
            clock[SCALE] = settings.radius / norm
    if clock[SCALE] < MIN_SCALE:
        multiply_out(learner, clock[SCALE], clock[ELAPSED])
        clock[ELAPSED] = 0
        clock[SCALE] = 1
    step_clock(clock, settings.averaging)


@kernel
def train_rows(n_parts, rows, order, learner, settings, noise, work, batch, hardest, remembered):
    """Train on rows[order] in synchronous batches; every thread of the team calls this.

    Phase 1 of a batch is dealt out by rows, phase 2 by n_parts parts of the features: each weight has one writer.
    Threads take work as they come, and wait until all work is done, not for each other: one without a core holds up
    what it has in hand and nothing else, and finds no work left in batches that end meanwhile.
    `hardest`, unless it is empty, gets the best irrelevant label of each row; -1 = there is none. `remembered` has
    those that a pass remembers or recalls, see recall.py.
    Once all batch.counters are STOPPED no work is left: all threads return within a row or part, and the learner must
    not be used any more.
    """
    batch_rows = len(batch.n_pairs)
    n_batches = -(-len(order) // batch_rows)
    n_shared = count_shared(rows, order, 0, len(order), learner.scored)
    if n_shared < MIN_SHARED or batch_rows < MIN_TILE_ROWS or settings.recalls:
        n_shared = 0
    # A batch of 32 for one thread, half of it for each of two; fewer than 8 rows take as long as 8.
    claim = max(TILE_ROWS // max(n_parts // 2, 1), GROUP_ROWS) if n_shared > 0 else 1
    tile = new_tile(n_shared, len(work.opened), work.scores)
    recalled, marks = new_recalled(remembered, work), new_marks(learner.weights.dense_rows.shape[1])
    while True:
        number = fetch(batch.counters, BATCHES_DONE)
        if number >= n_batches:
            return
        start, at = number * batch_rows, N_COUNTERS * (number + 1)
        size = min(batch_rows, len(order) - start)
        _choose_batch(
            start, size, at, n_shared, claim, rows, order, learner, settings, noise, work, tile, batch, hardest,
            remembered, recalled, marks,
        )  # fmt: skip
        wait_until(batch.counters, at + ROWS_DONE, size, batch.bell)
        _apply_batch(start, size, at, n_parts, n_shared, rows, order, learner, settings, batch, marks)
        wait_until(batch.counters, BATCHES_DONE, number + 1, batch.bell)
