"""The best labels of many rows that share features: sums of small integers choose the labels to score exactly.

Rows and labels are rounded to vectors of 16-bit integers. Their integer product, which is exact in any order and more
than twice as fast as that of floats, bounds a score from above; only a label whose bound reaches the k best so far is
scored, with the bits of `scoring.score_row`. So what comes out does not depend on tiles, threads or rounding.
"""

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from xmlpreck.kernels.arrays import ALIGNED, BLOCK
from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.dense import GROUP_ROWS, LANES, add_products, fill_panel
from xmlpreck.kernels.scoring import begin_row, open_all, score_row
from xmlpreck.kernels.topk import LOWEST, insert

# Rows of a tile: many, since the weights are read and rounded once for all of them; and calls that are worth it.
MAX_ROWS, MIN_ROWS = 512, 64
START_BYTES = 1 << 25  # of what the other features of a tile's rows add, a number for each label

# Rows and labels whose integer sums are in registers at a time: 8 registers of 256 bits.
PAIR_ROWS, PAIR_LABELS, PAIR_LANES = 4, 16, 8
HAS_MADD = bool(llvm.get_host_cpu_features().get("avx2"))

SIZE = 32_000  # length of the integer vectors: neither a number overflows 16 bits, nor a product of two vectors 32
SMALLEST = 1e-32  # squared length below which vectors are rounded as if they had this one
TOGETHER = 4  # scores that are added up side by side: each alone would wait for its own last sum


@intrinsic
def _add_pairs(typing_context, pairs, packed, sums, first_row, part):
    """sums[r, l] = sum over i of the products of both halves of pairs[r, i] and packed[part, i, l], in int32.

    Of PAIR_ROWS rows and the PAIR_LABELS labels of a part. Explicit vectors, as in dense.add_products.
    """
    signature = types.void(pairs, packed, sums, types.intp, types.intp)

    def generate(context, builder, signature, args):
        word, number = ir.IntType(64), ir.IntType(32)
        lanes, halves = ir.VectorType(number, PAIR_LANES), ir.VectorType(ir.IntType(16), 2 * PAIR_LANES)
        undefined, n_vectors = ir.Constant(lanes, ir.Undefined), PAIR_LABELS // PAIR_LANES

        def multiply(one, other):
            one, other = builder.bitcast(one, halves), builder.bitcast(other, halves)
            if HAS_MADD:
                name = "llvm.x86.avx2.pmadd.wd"
                madd = builder.module.globals.get(name) or ir.Function(
                    builder.module, ir.FunctionType(lanes, [halves, halves]), name
                )
                return builder.call(madd, [one, other])
            products = []
            for first in (0, 1):
                chosen = ir.Constant(lanes, list(range(first, 2 * PAIR_LANES, 2)))
                a, b = (builder.shuffle_vector(x, ir.Constant(halves, ir.Undefined), chosen) for x in (one, other))
                products.append(builder.mul(builder.sext(a, lanes), builder.sext(b, lanes)))
            return builder.add(*products)

        def array(position):
            return context.make_array(signature.args[position])(context, builder, args[position])

        def at(pointer):
            return builder.bitcast(pointer, lanes.as_pointer())

        pair_array, packed_array, sum_array = array(0), array(1), array(2)
        _, _, _, first_row, part = args
        n, n_sums = builder.extract_value(pair_array.shape, 1), builder.extract_value(sum_array.shape, 1)
        rows = [builder.add(first_row, word(i)) for i in range(PAIR_ROWS)]
        given = [builder.gep(pair_array.data, [builder.mul(row, n)]) for row in rows]
        weights = builder.gep(packed_array.data, [builder.mul(builder.mul(part, n), word(PAIR_LABELS))])
        before, loop, after = builder.block, builder.append_basic_block("pairs"), builder.append_basic_block("summed")
        builder.branch(loop)

        builder.position_at_end(loop)
        i = builder.phi(word)
        i.add_incoming(word(0), before)
        running = [builder.phi(lanes) for _ in range(PAIR_ROWS * n_vectors)]
        first = builder.mul(i, word(PAIR_LABELS))
        of_labels = [
            builder.load(at(builder.gep(weights, [builder.add(first, word(v * PAIR_LANES))])), align=ALIGNED)
            for v in range(n_vectors)
        ]
        added = []
        for r, row in enumerate(given):
            value = builder.insert_element(undefined, builder.load(builder.gep(row, [i])), number(0))
            spread = builder.shuffle_vector(value, undefined, ir.Constant(lanes, [0] * PAIR_LANES))
            for v in range(n_vectors):
                added.append(builder.add(running[r * n_vectors + v], multiply(spread, of_labels[v])))
        following = builder.add(i, word(1))
        i.add_incoming(following, loop)
        for sum_so_far, end in zip(running, added, strict=True):
            sum_so_far.add_incoming(ir.Constant(lanes, None), before)
            sum_so_far.add_incoming(end, loop)
        builder.cbranch(builder.icmp_signed("<", following, n), loop, after)

        builder.position_at_end(after)
        for r, row in enumerate(rows):
            target = builder.add(builder.mul(row, n_sums), builder.mul(part, word(PAIR_LABELS)))
            for v in range(n_vectors):
                place = builder.gep(sum_array.data, [builder.add(target, word(v * PAIR_LANES))])
                builder.store(added[r * n_vectors + v], at(place), align=ALIGNED)
        return context.get_dummy_value()

    return signature, generate


@kernel
def count_rows(n_threads, n_rows, has_others, n_labels, itemsize):
    """Count the rows of a tile: two tiles or more for each thread, and what START_BYTES allow."""
    n = min(MAX_ROWS, -(-n_rows // (2 * n_threads)))
    if has_others:
        n = min(n, START_BYTES // (n_labels * itemsize))
    return max(n, GROUP_ROWS) // GROUP_ROWS * GROUP_ROWS


@kernel
def new_screen(n_rows, has_others, n_shared, n_blocks, like):
    """Room for a tile: values and integers of its rows, weights of a block of labels, scores and bounds."""
    n_pairs = (n_shared + 1) // 2
    return (
        np.zeros((n_rows, n_shared), like.dtype),  # values of the shared features
        np.zeros((n_rows, n_pairs), np.int32),  # the same as integers, two in each
        np.zeros(n_rows, like.dtype),  # what 1 is worth in them
        np.zeros((BLOCK // LANES, n_shared, LANES), like.dtype),  # weights of a block
        np.zeros((BLOCK // PAIR_LABELS, n_pairs, PAIR_LABELS), np.int32),
        np.zeros(BLOCK, like.dtype),
        np.zeros((n_rows if has_others else 0, n_blocks * BLOCK), like.dtype),  # what other features add
        np.zeros((n_rows, BLOCK), like.dtype),  # exact scores of a block
        np.zeros((n_rows, BLOCK), np.int32),  # integer products of a block
        np.zeros((n_rows * BLOCK, 2), np.int32),  # rows and labels within the block to score exactly
    )


@kernel
def _as_integer(value, scale):
    """Round to the nearest integer; the error is below 0.51, since float32 has room for 1/128 beside 65,536."""
    return np.int32(value * scale + 32768.5) - np.int32(32768)


@kernel
def _load_rows(rows, start, size, n_shared, weights, work, screen):
    """Read the rows of a tile: values, integers and what their other features add."""
    values, pairs, steps, starts = screen[0], screen[1], screen[2], screen[6]
    n_labels = weights.dense_rows.shape[1]
    for i in range(size):
        first, last = rows.offsets[start + i], rows.offsets[start + i + 1] - n_shared
        square = 0.0
        for j in range(n_shared):
            values[i, j] = rows.values[last + j]
            square += np.float64(values[i, j]) * np.float64(values[i, j])
        step = np.sqrt(max(square, SMALLEST)) / SIZE
        steps[i] = step
        for j in range(0, n_shared, 2):
            second = _as_integer(values[i, j + 1], 1 / step) if j + 1 < n_shared else 0
            pairs[i, j // 2] = (second << 16) | (_as_integer(values[i, j], 1 / step) & 0xFFFF)
        if len(starts) > 0:
            begin_row(work)
            open_all(n_labels, work)
            score_row(rows.features[first:last], rows.values[first:last], weights, n_labels, work)
            starts[i] = work.scores


@kernel
def _pack(screen):
    """Round the panel's labels to integers, two features in each."""
    panel, packed, steps = screen[3], screen[4], screen[5]
    one = panel.dtype.type(1)
    for part in range(BLOCK // LANES):
        square = np.full(LANES, SMALLEST, panel.dtype)
        for j in range(panel.shape[1]):
            for lane in range(LANES):
                square[lane] += panel[part, j, lane] * panel[part, j, lane]
        for lane in range(LANES):
            steps[part * LANES + lane] = np.sqrt(square[lane]) / SIZE
            square[lane] = one / steps[part * LANES + lane]
        target, first = part * LANES // PAIR_LABELS, part * LANES % PAIR_LABELS
        for j in range(0, panel.shape[1], 2):
            if j + 1 < panel.shape[1]:
                for lane in range(LANES):
                    high = _as_integer(panel[part, j + 1, lane], square[lane])
                    low = _as_integer(panel[part, j, lane], square[lane])
                    packed[target, j // 2, first + lane] = (high << 16) | (low & 0xFFFF)
            else:
                for lane in range(LANES):
                    packed[target, j // 2, first + lane] = _as_integer(panel[part, j, lane], square[lane]) & 0xFFFF


@kernel
def _find_hits(first_label, width, size, n_shared, bonus, screen, counts, top_scores, n_before):
    """List the labels whose bound reaches the k best of their row so far. Returns their number.

    x = steps_x (q + d), |d_i| < 0.51, and w alike: |<x, w> - steps_x steps_w <q_x, q_w>| is at most steps_x steps_w
    (2 SIZE r + 3 r^2), r = 0.51 sqrt(n). Adding n products to a start in floats is off by n eps (|start| + |x| |w|).
    """
    steps_x, steps_w, starts, sums, hits = screen[2], screen[5], screen[6], screen[8], screen[9]
    k = top_scores.shape[1]
    number = steps_x.dtype.type
    radius = 0.51 * np.sqrt(n_shared)
    relative = 4.0 * (n_shared + 8) * 2.0**-24
    slack = number(1.01 * (2 * SIZE * radius + 3 * radius * radius) + relative * SIZE * SIZE)
    off = number(relative)
    bounds = np.empty(BLOCK, steps_x.dtype)
    n = 0
    for i in range(size):
        least = top_scores[n_before + i, k - 1] if counts[i] == k else number(-np.inf)
        for label in range(BLOCK):
            bounds[label] = (number(sums[i, label]) + slack) * steps_w[label] * steps_x[i]
        if len(starts) > 0:
            for label in range(width):
                begun = starts[i, first_label + label]
                bounds[label] += begun + abs(begun) * off
        if len(bonus) > 0:
            for label in range(width):
                bounds[label] += bonus[first_label + label] + abs(bonus[first_label + label]) * off
        n_below = 0
        for label in range(BLOCK):
            n_below += bounds[label] < least
        if n_below == BLOCK:
            continue
        for label in range(width):
            if not bounds[label] < least:  # also where it overflowed
                hits[n, 0], hits[n, 1] = i, label
                n += 1
    return n


@kernel
def _score_hits(first_label, n_hits, screen):
    """Score the hits exactly, TOGETHER at a time."""
    values, panel, starts, scores, hits = screen[0], screen[3], screen[6], screen[7], screen[9]
    n_shared = values.shape[1]
    for h in range(0, n_hits, TOGETHER):
        # Behind the last hit the last is scored again.
        h1, h2, h3 = min(h + 1, n_hits - 1), min(h + 2, n_hits - 1), min(h + 3, n_hits - 1)
        i0, i1, i2, i3 = hits[h, 0], hits[h1, 0], hits[h2, 0], hits[h3, 0]
        l0, l1, l2, l3 = hits[h, 1], hits[h1, 1], hits[h2, 1], hits[h3, 1]
        s0 = s1 = s2 = s3 = values.dtype.type(0)
        if len(starts) > 0:
            s0, s1 = starts[i0, first_label + l0], starts[i1, first_label + l1]
            s2, s3 = starts[i2, first_label + l2], starts[i3, first_label + l3]
        for j in range(n_shared):
            s0 += values[i0, j] * panel[l0 // LANES, j, l0 % LANES]
            s1 += values[i1, j] * panel[l1 // LANES, j, l1 % LANES]
            s2 += values[i2, j] * panel[l2 // LANES, j, l2 % LANES]
            s3 += values[i3, j] * panel[l3 // LANES, j, l3 % LANES]
        scores[i0, l0], scores[i1, l1], scores[i2, l2], scores[i3, l3] = s0, s1, s2, s3


@kernel
def _score_block(first_label, size, screen):
    """Score all rows of the tile for a block of labels, where most would be hits: the first block."""
    values, panel, starts, scores = screen[0], screen[3], screen[6], screen[7]
    for i in range(size):
        if len(starts) > 0:
            scores[i] = starts[i, first_label : first_label + BLOCK]
        else:
            scores[i] = 0
    for part in range(BLOCK // LANES):
        for i in range(0, -(-size // GROUP_ROWS) * GROUP_ROWS, GROUP_ROWS):
            add_products(values, panel, scores, i, part, part * LANES)


@kernel
def predict_screened(rows, start, size, n_shared, weights, bonus, work, screen, top_labels, top_scores):
    """Find the best labels of rows start to start + size - 1 by score + bonus, block by block of the labels.

    Returns the number of labels that were scored exactly.
    """
    n_labels, k = weights.dense_rows.shape[1], top_labels.shape[1]
    scores, sums, hits = screen[7], screen[8], screen[9]
    counts = np.zeros(size, np.int64)
    n_scored = 0
    _load_rows(rows, start, size, n_shared, weights, work, screen)
    for first_label in range(0, n_labels, BLOCK):
        width = min(BLOCK, n_labels - first_label)
        fill_panel(screen[3], weights, n_shared, first_label)
        _pack(screen)
        for part in range(BLOCK // PAIR_LABELS):
            for i in range(0, size, PAIR_ROWS):
                _add_pairs(screen[1], screen[4], sums, i, part)
        n_hits = _find_hits(first_label, width, size, n_shared, bonus, screen, counts, top_scores, start)
        n_scored += n_hits
        if n_hits * LANES > size * BLOCK:
            _score_block(first_label, size, screen)
        else:
            _score_hits(first_label, n_hits, screen)
        for h in range(n_hits):
            i, label = hits[h, 0], first_label + hits[h, 1]
            score = scores[i, hits[h, 1]]
            if len(bonus) > 0:
                score += bonus[label]
            if score >= LOWEST:
                row = start + i
                counts[i] = insert(score, label, top_scores[row], top_labels[row], counts[i], k)
    return n_scored
