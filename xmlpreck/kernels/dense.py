"""Scores and steps of features that many rows share, for a batch of rows at a time.

Rows of embeddings all end in the same features, and a matrix product reads their weights once for the batch. A score
adds a row's features in their order, as `scoring.score_row` does, so its bits do not depend on the batch, on the
number of threads or on the width of the machine's registers.
"""

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from xmlpreck.kernels.arrays import ALIGNED, BLOCK, FEATURE_GROUPS
from xmlpreck.kernels.bfloat import as_scored, as_stored
from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.scoring import begin_row, open_all, score_row

# Fewer shared features than this are not worth a product: the bias alone is one.
MIN_SHARED = 16

# Rows that one product takes at most, and at least: of fewer, each is faster alone.
TILE_ROWS = 32
MIN_TILE_ROWS = 4

# Rows and labels whose sums are in registers at a time: 8 registers of 512 bits, or of 256 where these are the widest.
GROUP_ROWS = 8
LANES = 16 if llvm.get_host_cpu_features().get("avx512f") else 8


@intrinsic
def add_products(typing_context, values, panel, scores, first_row, part, first_label):
    """scores[r, l] += values[r, i] * panel[part, i, l - first_label], i ascending, of GROUP_ROWS rows and LANES labels.

    Explicit vectors: LLVM does not keep all these sums in registers by itself. Products and sums are not fused.
    """
    signature = types.void(values, panel, scores, types.intp, types.intp, types.intp)

    def generate(context, builder, signature, args):
        number, word = context.get_value_type(scores.dtype), ir.IntType(64)
        lanes, index = ir.VectorType(number, LANES), ir.IntType(32)
        undefined = ir.Constant(lanes, ir.Undefined)

        def array(position):
            return context.make_array(signature.args[position])(context, builder, args[position])

        def width_of(struct, axis):
            return builder.extract_value(struct.shape, axis)

        def load(pointer):
            return builder.load(builder.bitcast(pointer, lanes.as_pointer()), align=ALIGNED)

        value_array, panel_array, score_array = array(0), array(1), array(2)
        _, _, _, first_row, part, first_label = args
        n, n_scores = width_of(value_array, 1), width_of(score_array, 1)
        rows, targets = [], []
        for i in range(GROUP_ROWS):
            row = builder.add(first_row, word(i))
            rows.append(builder.gep(value_array.data, [builder.mul(row, n)]))
            targets.append(builder.gep(score_array.data, [builder.add(builder.mul(row, n_scores), first_label)]))
        weights = builder.gep(panel_array.data, [builder.mul(builder.mul(part, n), word(LANES))])
        sums = [load(target) for target in targets]
        before = builder.block
        loop, after = builder.append_basic_block("features"), builder.append_basic_block("summed")
        builder.cbranch(builder.icmp_signed(">", n, word(0)), loop, after)

        builder.position_at_end(loop)
        feature = builder.phi(word)
        feature.add_incoming(word(0), before)
        running = [builder.phi(lanes) for _ in sums]
        of_labels = load(builder.gep(weights, [builder.mul(feature, word(LANES))]))
        added = []
        for row, sum_so_far in zip(rows, running, strict=True):
            value = builder.insert_element(undefined, builder.load(builder.gep(row, [feature])), index(0))
            spread = builder.shuffle_vector(value, undefined, ir.Constant(ir.VectorType(index, LANES), [0] * LANES))
            added.append(builder.fadd(sum_so_far, builder.fmul(spread, of_labels)))
        following = builder.add(feature, word(1))
        feature.add_incoming(following, loop)
        for sum_so_far, start, end in zip(running, sums, added, strict=True):
            sum_so_far.add_incoming(start, before)
            sum_so_far.add_incoming(end, loop)
        builder.cbranch(builder.icmp_signed("<", following, n), loop, after)

        builder.position_at_end(after)
        finished = [builder.phi(lanes) for _ in sums]
        for result, start, end in zip(finished, sums, added, strict=True):
            result.add_incoming(start, before)
            result.add_incoming(end, loop)
        for result, target in zip(finished, targets, strict=True):
            builder.store(result, builder.bitcast(target, lanes.as_pointer()), align=ALIGNED)
        return context.get_dummy_value()

    return signature, generate


@kernel
def fill_blended(
    offsets, features, values, n_features, n_dense, unit_norm, sparse_length, dense_length, bias, new_offsets,
    new_features, new_values,
):  # fmt: skip
    """Copy rows whose last n_dense features are a block of their own, then the bias if it is not 0.

    Each block is scaled to its length if unit_norm, else multiplied by it; a block of length 0 is left out. The dense
    block is copied with all of its features: one that a row lacks is 0. Returns False, with the copy unfinished, at
    the first row whose ids do not rise within the n_features or whose values are not all finite.
    """
    first_dense = n_features - n_dense
    n = 0
    for row in range(len(offsets) - 1):
        sparse_square, dense_square = 0.0, 0.0
        before = -1
        for p in range(offsets[row], offsets[row + 1]):
            square = np.float64(values[p]) * np.float64(values[p])
            if not (before < features[p] < n_features and square < np.inf):  # NaN is not below infinity
                return False
            before = features[p]
            if before < first_dense:
                sparse_square += square
            else:
                dense_square += square
        sparse_scale, dense_scale = np.float64(sparse_length), np.float64(dense_length)
        if unit_norm:
            sparse_scale /= np.sqrt(sparse_square) if sparse_square > 0 else 1.0
            dense_scale /= np.sqrt(dense_square) if dense_square > 0 else 1.0
        p = offsets[row]
        while p < offsets[row + 1] and features[p] < first_dense:
            if sparse_length > 0:
                new_features[n], new_values[n] = features[p], values[p] * sparse_scale
                n += 1
            p += 1
        if dense_length > 0:
            for f in range(first_dense, n_features):
                new_features[n], new_values[n] = f, 0.0
                if p < offsets[row + 1] and features[p] == f:
                    new_values[n] = values[p] * dense_scale
                    p += 1
                n += 1
        if bias != 0:
            new_features[n], new_values[n] = n_features, bias
            n += 1
        new_offsets[row + 1] = n
    return True


@kernel
def count_shared(rows, order, start, stop, weights):
    """Count the last features that rows[order[start:stop]] all have, and that have dense rows of weights."""
    n_features = len(weights.dense_of)
    n_shared = 0
    while n_shared < n_features and weights.dense_of[n_features - 1 - n_shared] >= 0:
        n_shared += 1
    for i in range(start, stop):
        first, last = rows.offsets[order[i]], rows.offsets[order[i] + 1]
        n = 0  # ids rise, so the last n are the last features if the first of them is
        while n < n_shared and last - n > first and rows.features[last - 1 - n] == n_features - 1 - n:
            n += 1
        n_shared = n
    return n_shared


@kernel
def new_tile(n_shared, n_blocks, like):
    """Room for a tile: the rows' values of the shared features, a panel of their weights, and scores; types as `like`.

    Without shared features there is none.
    """
    values = np.zeros((TILE_ROWS, n_shared), like.dtype)
    panel = np.zeros((BLOCK // LANES, n_shared, LANES), like.dtype)
    scores = np.zeros((TILE_ROWS, n_blocks * BLOCK if n_shared > 0 else 0), like.dtype)
    return values, panel, scores


@kernel
def score_tile(rows, order, start, size, n_shared, weights, work, tile):
    """Score rows[order[start : start + size]] for all labels; `load_row` hands out the scores of one of them."""
    values, panel, scores = tile
    n_labels = weights.dense_rows.shape[1]
    for i in range(size):
        first, last = rows.offsets[order[start + i]], rows.offsets[order[start + i] + 1]
        begin_row(work)
        open_all(n_labels, work)
        score_row(rows.features[first : last - n_shared], rows.values[first : last - n_shared], weights, n_labels, work)
        scores[i] = work.scores
        for j in range(n_shared):
            values[i, j] = rows.values[last - n_shared + j]
    n_rows = -(-size // GROUP_ROWS) * GROUP_ROWS  # those beyond `size` have scores that nobody reads
    for first_label in range(0, scores.shape[1], BLOCK):
        fill_panel(panel, weights, n_shared, first_label)
        for part in range(BLOCK // LANES):
            for i in range(0, n_rows, GROUP_ROWS):
                add_products(values, panel, scores, i, part, first_label + part * LANES)


@kernel
def fill_panel(panel, weights, n_shared, first_label):
    """panel[part, j, lane] = weight of label first_label + part * LANES + lane; 0 behind the last label."""
    dense_rows = weights.dense_rows
    first_feature, width = len(weights.dense_of) - n_shared, dense_rows.shape[1] - first_label
    for j in range(n_shared):
        d = weights.dense_of[first_feature + j]
        if width >= BLOCK:
            for part in range(BLOCK // LANES):
                for lane in range(LANES):  # no slices: they contend on atomic reference counts
                    label = first_label + part * LANES + lane
                    panel[part, j, lane] = as_scored(dense_rows[d, label], dense_rows)
        else:
            for label in range(BLOCK):
                inside = label < width
                weight = as_scored(dense_rows[d, first_label + label], dense_rows) if inside else 0.0
                panel[label // LANES, j, label % LANES] = weight


@kernel
def load_row(i, n_labels, tile, work):
    """Begin row i of a tile: all blocks are opened, and have its scores."""
    begin_row(work)
    open_all(n_labels, work)
    work.scores[:] = tile[2][i]


@kernel
def apply_shared(part, n_parts, start, size, n_shared, rows, order, learner, n_frozen, batch, elapsed):
    """Apply the steps of a batch to the shared features of one part, feature by feature.

    A weight takes its steps in the order of the rows, as in training.apply_steps; but the dense row of one feature is
    in the cache for all rows of the batch.
    """
    first_group, last_group = part * FEATURE_GROUPS // n_parts, (part + 1) * FEATURE_GROUPS // n_parts
    weights, scored_rows = learner.weights, learner.scored.dense_rows
    n_features = len(weights.dense_of)
    for j in range(n_shared):
        f = n_features - n_shared + j
        group = f % FEATURE_GROUPS
        if group < first_group or group >= last_group:
            continue
        d = weights.dense_of[f]
        grown = 0.0
        for slot in range(size):
            value = rows.values[rows.offsets[order[start + slot] + 1] - n_shared + j] * learner.feature_steps[f]
            for p in range(batch.n_pairs[slot]):
                label, step = batch.pair_labels[slot, p], batch.pair_steps[slot, p] * value
                if label >= n_frozen and learner.dense_mask[d, label >> 3] >> (label & 7) & 1:
                    grown += (2 * weights.dense_rows[d, label] + step) * step
                    weights.dense_rows[d, label] += step
                    scored_rows[d, label] = as_stored(weights.dense_rows[d, label], scored_rows)
                    if elapsed != 0:
                        learner.dense_sums[d, label] += elapsed * step
        learner.norms[group] += grown
