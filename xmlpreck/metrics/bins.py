"""Bins of labels by their training rows: tail, torso and head; zero-, few- and many-shot."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from xmlpreck.config import InputError

SHOTS = (51,)  # EURLEX57K's bins: labels without training rows, with up to 50 (few-shot), with more (many-shot)
BIN_EDGES = (10, 100)  # tail: under 10 training rows, torso: under 100, head: 100 or more


def divide_labels(
    n_labels: int, label_counts: np.ndarray | None, edges: Sequence[int]
) -> tuple[list[tuple[str, int, int | None]], np.ndarray]:
    """Return (name, min_rows, max_rows) of each bin, frequent labels first, and the bin of each label."""
    if label_counts is None:
        return [("all", 0, None)], np.zeros(n_labels, np.int64)
    if len(label_counts) != n_labels:
        raise InputError(f"training rows have {len(label_counts)} labels, but the predicted rows have {n_labels}")
    if list(edges) != sorted(set(edges)) or not edges or edges[0] < 2:
        raise InputError(f"bins must be ascending numbers of training rows, 2 or more, but are {list(edges)}")
    floors = [0, 1, *edges]
    bounds: list[tuple[int, int | None]] = [*((a, b - 1) for a, b in pairwise(floors)), (floors[-1], None)]
    names = ["unseen", *(f"{low}-{high}" for low, high in bounds[1:-1]), f"{floors[-1]}+"]
    if len(edges) == 2:
        names = ["unseen", "tail", "torso", "head"]
    if tuple(edges) == SHOTS:
        names = ["zero-shot", "few-shot", "many-shot"]
    bin_of = np.searchsorted(floors, label_counts, side="right") - 1
    ordered = [(name, *bound) for name, bound in zip(names, bounds, strict=True)][::-1]
    return ordered, len(ordered) - 1 - bin_of
