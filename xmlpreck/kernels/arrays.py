"""What the kernels work on: named tuples of arrays, and how they are made.

Kernels know these by field names only. Counts of non-zeros are int64, ids int32; weights float32 (float64 in tests).
"""

from typing import Any, NamedTuple

import numpy as np

from xmlpreck.kernels.threads import new_bell

# Labels to a block of scores. Only blocks that a row opens are zeroed, searched or perturbed, so that the cost of a row
# follows its support and not n_labels.
BLOCK = 64

# Labels take turns as weak negatives of the hinge (rules.py): one in EVERY is looked at. BLOCK is a multiple of it.
EVERY = 8

ALIGNED = 4  # bytes: arrays of float32 begin anywhere

# Features are dealt out by feature % FEATURE_GROUPS: fixed groups, so that sums over them do not depend on the
# number of threads.
FEATURE_GROUPS = 64

# Gumbel noise is read from a table in runs of BLOCK, each block of labels from its own pseudo-random start.
NOISE_STARTS = 1 << 14

# Indices into a learner's clock: batches done, scale of the weights, sum of scales over the averaged batches, how many.
STEPS, SCALE, ELAPSED, AVERAGED = range(4)

# Counters of a batch: rows, and parts of the features, that threads have taken and done. Those of batch b begin at
# N_COUNTERS * (b + 1), a cache line from the next; BATCHES_DONE is one for all.
BATCHES_DONE, ROWS_TAKEN, ROWS_DONE, PARTS_TAKEN, PARTS_DONE, N_COUNTERS = 0, 0, 1, 2, 3, 8


class Rows(NamedTuple):
    """Sparse rows (CSR) and the relevant labels of each, both sorted by id."""

    offsets: np.ndarray  # (n_rows + 1) int64
    features: np.ndarray  # int32
    values: np.ndarray  # float32
    label_offsets: np.ndarray  # (n_rows + 1) int64
    labels: np.ndarray  # int32
    relevance: np.ndarray  # float32, like labels: what each label counts in its row; empty = 1 for all


class Weights(NamedTuple):
    """Scorers of all labels, feature by feature: a dense row, or a sparse row of sorted labels."""

    dense_of: np.ndarray  # (n_features) int32: the feature's row in dense_rows, or -1
    dense_rows: np.ndarray  # (n_dense, n_labels); as uint16 they are bfloat16
    offsets: np.ndarray  # (n_features + 1) int64 into labels and values; not used for a dense feature
    labels: np.ndarray  # int32
    values: np.ndarray


def sparse_weights(offsets: np.ndarray, labels: np.ndarray, values: np.ndarray, n_labels: int) -> Weights:
    """Weights without dense rows."""
    dense_of = np.full(len(offsets) - 1, -1, np.int32)
    return Weights(dense_of, np.zeros((0, n_labels), values.dtype), offsets, labels, values)


def no_weights(n_features: int, n_labels: int, dtype: Any = np.float32) -> Weights:
    """Weights of a model that has learned nothing: no label may use any feature yet."""
    return sparse_weights(np.zeros(n_features + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, dtype), n_labels)


class Learner(NamedTuple):
    """What training changes. True weights = scale * weights; their mean over time = (elapsed * weights - sums) / n."""

    weights: Weights
    scored: Weights  # what rows are scored with: float32 weights cut to bfloat16, of float64 the weights themselves
    dense_mask: np.ndarray  # (n_dense, ceil(n_labels / 8)) uint8: bit = this label may use this feature
    dense_sums: np.ndarray  # like weights.dense_rows: sum of elapsed * step (lazy averaging)
    sums: np.ndarray  # like weights.values
    feature_steps: np.ndarray  # (n_features): factor of a feature's steps
    clock: np.ndarray  # float64, indexed by STEPS, SCALE, ELAPSED, AVERAGED
    norms: np.ndarray  # (FEATURE_GROUPS) float64: squared norm of weights, kept only when there is a radius


class Settings(NamedTuple):
    """One pass. eta_t = eta / t^decay, t = number of the batch; radius 0 = no projection."""

    rule: int
    k: int
    n_lowered: int  # irrelevant labels that share what is lowered, if the rule names fewer; at most k
    eta: float
    decay: float
    radius: float
    perturbed: bool  # add noise to the scores before the choice
    averaging: bool
    noise_key: np.uint64
    label_weights: np.ndarray  # (n_labels): what it counts to miss a label; empty = 1 for every label
    n_hard: int = 0  # best irrelevant labels that the hinge may lower; 0 for the other rules
    n_weak: int = 0  # best ones of those whose turn it is, see EVERY
    n_remembered: int = 0  # best irrelevant labels of a row that this pass remembers, see recall.py
    recalls: bool = False  # look at no irrelevant labels but those
    n_frozen: int = 0  # labels with an id below this do not change
    first_block: int = 0  # where these labels begin, if they are a shard of all


def n_negatives(settings: Settings) -> int:
    """Count the best irrelevant labels of a row that a pass asks for, at most."""
    return max(settings.k, settings.n_hard, settings.n_remembered)


def max_pairs(settings: Settings, max_labels: int) -> int:
    """Count the steps of a row at most: of its labels and of irrelevant ones."""
    return max_labels + max(settings.k, settings.n_hard) + settings.n_weak


class Work(NamedTuple):
    """One thread's buffers: the scores of one row. Labels outside opened blocks have score 0."""

    scores: np.ndarray  # (n_blocks * BLOCK); the last block is padded with -inf
    opened: np.ndarray  # (n_blocks) int64: stamp of the row that opened the block last
    blocks: np.ndarray  # (n_blocks) int32: the opened blocks
    counts: np.ndarray  # int64: stamp, number of opened blocks
    peaks: np.ndarray  # (n_blocks, EVERY): highest score of the labels of an opened block, by label % EVERY
    block_peaks: np.ndarray  # (n_blocks): highest of all its labels
    pos_labels: np.ndarray  # (max_labels) int32, by descending score
    pos: np.ndarray  # their scores
    neg_labels: np.ndarray  # (room_for(k)) int32, see topk.gather_many
    neg: np.ndarray
    weak_labels: np.ndarray  # (room_for(n_weak)) int32
    weak: np.ndarray


class Proposals(NamedTuple):
    """What one shard of the labels says to some rows; labels by their ids among all."""

    pos_offsets: np.ndarray  # (n_rows + 1) int32: they travel
    pos_labels: np.ndarray  # int32: the shard's relevant labels of each row
    pos: np.ndarray  # their scores
    n_neg: np.ndarray  # (n_rows) int32
    neg_labels: np.ndarray  # (n_rows, k) int32: the shard's best irrelevant labels
    neg: np.ndarray
    n_weak: np.ndarray  # (n_rows) int32
    weak_labels: np.ndarray  # (n_rows, n_weak) int32: its best of those whose turn it is
    weak: np.ndarray


class Merged(NamedTuple):
    """What all shards say to some rows: relevant and irrelevant labels by descending score."""

    n_pos: np.ndarray  # (n_rows) int64
    pos_labels: np.ndarray  # (n_rows, max_labels) int32
    pos: np.ndarray
    n_neg: np.ndarray  # (n_rows) int64
    neg_labels: np.ndarray  # (n_rows, k) int32
    neg: np.ndarray
    n_weak: np.ndarray  # (n_rows) int64
    weak_labels: np.ndarray  # (n_rows, n_weak) int32
    weak: np.ndarray


class Batch(NamedTuple):
    """What the threads share: the steps of one batch, their counters, and facts about each row of the call."""

    pair_labels: np.ndarray  # (batch_rows, max_pairs) int32
    pair_steps: np.ndarray  # same shape: coefficient of each label
    n_pairs: np.ndarray  # (batch_rows) int64
    counters: np.ndarray  # int64: see ROWS_TAKEN; the threads return once all are STOPPED
    bell: np.ndarray  # rung when all rows of a batch are chosen, and when the batch is done
    surrogates: np.ndarray  # (rows of the call) float64
    mistakes: np.ndarray  # (rows of the call) int64
    updated: np.ndarray  # (rows of the call) bool


def room_for(k: int) -> int:
    """Return the room in which topk.gather_many finds the k best: twice as many, and a block."""
    return 2 * k + BLOCK + 1


def new_work(n_labels: int, k: int = 1, max_labels: int = 1, dtype: Any = np.float32, n_weak: int = 0) -> Work:
    """Buffers for one thread: the k best labels of a row that has at most `max_labels` relevant ones."""
    n_blocks = -(-n_labels // BLOCK)
    return Work(
        scores=np.full(n_blocks * BLOCK, -np.inf, dtype),
        opened=np.zeros(n_blocks, np.int64),
        blocks=np.zeros(n_blocks, np.int32),
        counts=np.zeros(2, np.int64),
        peaks=np.zeros((n_blocks, EVERY), dtype),
        block_peaks=np.zeros(n_blocks, dtype),
        pos_labels=np.zeros(max(max_labels, 1), np.int32),
        pos=np.zeros(max(max_labels, 1), dtype),
        neg_labels=np.zeros(room_for(k), np.int32),
        neg=np.zeros(room_for(k), dtype),
        weak_labels=np.zeros(room_for(n_weak), np.int32),
        weak=np.zeros(room_for(n_weak), dtype),
    )


def new_batch(n_rows: int, batch_rows: int, max_pairs: int, dtype: Any = np.float32) -> Batch:
    """What the threads share in one call of training.train_rows on n_rows rows."""
    return Batch(
        pair_labels=np.zeros((batch_rows, max_pairs), np.int32),
        pair_steps=np.zeros((batch_rows, max_pairs), dtype),
        n_pairs=np.zeros(batch_rows, np.int64),
        counters=np.zeros(N_COUNTERS * (1 + -(-n_rows // batch_rows)), np.int64),
        bell=new_bell(),
        surrogates=np.zeros(n_rows),
        mistakes=np.zeros(n_rows, np.int64),
        updated=np.zeros(n_rows, np.bool_),
    )


def new_proposals(n_relevant: np.ndarray, settings: Settings, dtype: Any = np.float32) -> Proposals:
    """Room for the proposals of a shard; n_relevant: relevant labels of each row in this shard."""
    offsets = np.concatenate([[0], np.cumsum(n_relevant)]).astype(np.int32)
    return Proposals(
        pos_offsets=offsets,
        pos_labels=np.zeros(offsets[-1], np.int32),
        pos=np.zeros(offsets[-1], dtype),
        **_new_irrelevant(len(n_relevant), settings, np.int32, dtype),
    )


def new_merged(n_rows: int, max_labels: int, settings: Settings, dtype: Any = np.float32) -> Merged:
    """Room for what all shards say to rows with at most max_labels relevant labels."""
    return Merged(
        n_pos=np.zeros(n_rows, np.int64),
        pos_labels=np.zeros((n_rows, max_labels), np.int32),
        pos=np.zeros((n_rows, max_labels), dtype),
        **_new_irrelevant(n_rows, settings, np.int64, dtype),
    )


def _new_irrelevant(n_rows: int, settings: Settings, count_type: Any, dtype: Any) -> dict[str, np.ndarray]:
    """Room for the best irrelevant labels of rows, and for the best of those whose turn it is."""
    found = {}
    for name, size in (("neg", n_negatives(settings)), ("weak", settings.n_weak)):
        found[f"n_{name}"] = np.zeros(n_rows, count_type)
        found[f"{name}_labels"] = np.zeros((n_rows, size), np.int32)
        found[name] = np.zeros((n_rows, size), dtype)
    return found


def noise_table(seed: int, tau: float, dtype: Any = np.float32) -> np.ndarray:
    """Draw the noise of training.train_rows: tau * Gumbel(0, 1), see scoring.perturb."""
    return (tau * np.random.default_rng(seed).gumbel(size=NOISE_STARTS + BLOCK)).astype(dtype)
