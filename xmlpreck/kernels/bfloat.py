"""bfloat16: the upper 16 bits of a float32. Half the bytes to read for a score, at no loss (docs/architecture.md).

Kernels see what an array is by its type: uint16 holds bfloat16, and anything else is what it says.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

CHUNK = 1 << 20  # numbers that are rounded at a time

_WORD, _UPPER = ir.IntType(32), ir.IntType(16)


def _if_cut(weight, rows, cut_type, cut_weight):
    """An intrinsic of (weight, rows): where rows are bfloat16 cut_weight(builder, weight), else the weight."""
    if rows.dtype != types.uint16:
        return weight(weight, rows), lambda context, builder, signature, args: args[0]
    return cut_type(weight, rows), lambda context, builder, signature, args: cut_weight(builder, args[0])


@intrinsic
def as_scored(typing_context, weight, rows):
    """The number that a weight counts as in a score where dense rows are like `rows`: cut to bfloat16, or as it is."""

    def cut_weight(builder, value):
        if weight == types.uint16:
            bits = builder.shl(builder.zext(value, _WORD), _WORD(16))
        else:
            bits = builder.and_(builder.bitcast(value, _WORD), _WORD(0xFFFF0000))
        return builder.bitcast(bits, ir.FloatType())

    return _if_cut(weight, rows, types.float32, cut_weight)


@intrinsic
def as_stored(typing_context, weight, rows):
    """A weight as `rows` hold it: cut to bfloat16, or as it is."""

    def cut_weight(builder, value):
        return builder.trunc(builder.lshr(builder.bitcast(value, _WORD), _WORD(16)), _UPPER)

    return _if_cut(weight, rows, types.uint16, cut_weight)


def widen(rows: np.ndarray) -> np.ndarray:
    """bfloat16 as float32; other arrays as they are."""
    return (rows.astype(np.uint32) << 16).view(np.float32) if rows.dtype == np.uint16 else rows


def cut(weights: np.ndarray) -> np.ndarray:
    """float32 as bfloat16, the lower bits forgotten."""
    return weights.view(np.uint16)[..., 1::2].copy()  # memory is little-endian wherever numba runs


def round_all(weights: np.ndarray) -> None:
    """In place: every float32 becomes the nearest that bfloat16 can hold, of two as near the one with an even end."""
    bits = weights.reshape(-1).view(np.uint32)
    for start in range(0, len(bits), CHUNK):
        part = bits[start : start + CHUNK]
        part += ((part >> 16) & 1) + np.uint32(0x7FFF)
        part &= np.uint32(0xFFFF0000)


def can_hold(weights: np.ndarray) -> bool:
    """Are all these numbers float32 and in bfloat16, too?"""
    return weights.dtype == np.float32 and not weights.view(np.uint16)[::2].any()
