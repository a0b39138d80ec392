"""Training by shards of the labels (docs/cluster.md): shards propose labels, a driver chooses the steps."""

from xmlpreck.kernels.arrays import BLOCK, ELAPSED, SCALE
from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.marks import new_marks
from xmlpreck.kernels.recall import new_recalled, split_recalled
from xmlpreck.kernels.rules import choose_row
from xmlpreck.kernels.steps import apply_steps
from xmlpreck.kernels.threads import fetch_add
from xmlpreck.kernels.topk import insert
from xmlpreck.kernels.training import score_for_choice, split_scores


@kernel
def propose_rows(rows, order, learner, settings, noise, work, claimed, remembered, proposals):
    """Fill a shard's proposals for rows[order]: the scores of its relevant labels, and its best others.

    Threads share `claimed`. A shard's labels begin at a whole block, and go by their ids among all labels, but in
    `remembered`, that of training.train_rows, by those in the shard.
    """
    n_labels = learner.scored.dense_rows.shape[1]
    first_label = settings.first_block * BLOCK
    scale, recalled, marks = learner.clock[SCALE], new_recalled(remembered, work), new_marks(n_labels)
    while True:
        slot = fetch_add(claimed, 0, 1)
        if slot >= len(order):
            break
        row = order[slot]
        relevant = rows.labels[rows.label_offsets[row] : rows.label_offsets[row + 1]]
        n_best = max(settings.k, settings.n_hard, settings.n_remembered)
        if settings.recalls:
            proposals.n_neg[slot], proposals.n_weak[slot] = split_recalled(
                row, rows, relevant, remembered[row], n_best, learner.scored, scale, settings, noise, work, recalled,
                marks,
            )  # fmt: skip
        else:
            score_for_choice(row, rows, relevant, learner.scored, scale, settings, noise, work)
            found = split_scores(row, relevant, n_best, settings, n_labels, work)
            proposals.n_neg[slot], proposals.n_weak[slot] = found
        for i in range(proposals.n_neg[slot]):
            proposals.neg[slot, i], proposals.neg_labels[slot, i] = work.neg[i], first_label + work.neg_labels[i]
        for i in range(proposals.n_weak[slot]):
            proposals.weak[slot, i], proposals.weak_labels[slot, i] = work.weak[i], first_label + work.weak_labels[i]
        start = proposals.pos_offsets[slot]
        for i in range(len(relevant)):
            proposals.pos[start + i] = work.pos[i]
            proposals.pos_labels[start + i] = first_label + work.pos_labels[i]


@kernel
def merge_proposals(proposals, merged):
    """Add the proposals of one shard to those of others, row by row in the order of scores."""
    for row in range(len(proposals.n_neg)):
        for p in range(proposals.pos_offsets[row], proposals.pos_offsets[row + 1]):
            merged.n_pos[row] = insert(
                proposals.pos[p], proposals.pos_labels[p], merged.pos[row], merged.pos_labels[row],
                merged.n_pos[row], merged.pos.shape[1],
            )  # fmt: skip
        for i in range(proposals.n_neg[row]):
            merged.n_neg[row] = insert(
                proposals.neg[row, i], proposals.neg_labels[row, i], merged.neg[row], merged.neg_labels[row],
                merged.n_neg[row], merged.neg.shape[1],
            )  # fmt: skip
        for i in range(proposals.n_weak[row]):
            merged.n_weak[row] = insert(
                proposals.weak[row, i], proposals.weak_labels[row, i], merged.weak[row], merged.weak_labels[row],
                merged.n_weak[row], merged.weak.shape[1],
            )  # fmt: skip


@kernel
def choose_rows(merged, settings, n_batches, batch):
    """Choose the steps of rows whose merged proposals are complete, as train_rows does after n_batches batches."""
    eta = settings.eta / (n_batches + 1) ** settings.decay
    for row in range(len(merged.n_pos)):
        choose_row(
            merged.pos[row], merged.pos_labels[row], merged.n_pos[row],
            merged.neg[row], merged.neg_labels[row], merged.n_neg[row],
            merged.weak[row], merged.weak_labels[row], merged.n_weak[row],
            merged.pos_labels[row, :0], merged.pos[row, :0], settings, eta, row, row, batch,
        )  # fmt: skip


@kernel
def apply_rows(thread, n_threads, rows, order, learner, pair_offsets, pair_labels, pair_steps):
    """Apply the steps of rows[order] to a shard: row i has the pairs from pair_offsets[i] on, by ids of the shard."""
    marks = new_marks(learner.weights.dense_rows.shape[1])
    for slot in range(len(order)):
        start, stop = pair_offsets[slot], pair_offsets[slot + 1]
        if start < stop:
            first, last = rows.offsets[order[slot]], rows.offsets[order[slot] + 1]
            apply_steps(
                thread, n_threads, rows.features[first:last], rows.values[first:last], learner.clock[ELAPSED], learner,
                pair_labels[start:stop], pair_steps[start:stop], 0, marks,
            )  # fmt: skip
