"""Find how much to prune: by share, by bytes, or by the loss of P@k on rows with known labels."""

from typing import NamedTuple

import numpy as np

from xmlpreck.config import InputError
from xmlpreck.data.rows import RowSource
from xmlpreck.model import Model, all_sparse, bytes_a_weight

FINEST_STEP = 0.01  # of the weights: the search for a loss ends here


class Pruned(NamedTuple):
    """A threshold, the share of weights that it keeps, and P@k with it."""

    threshold: float
    kept: float
    scores: dict[str, float]


def threshold_for_share(model: Model, kept: float) -> float:
    """Find the threshold that keeps this share of the weights, or a little less where weights tie."""
    sizes = np.sort(np.abs(all_sparse(model.weights).values))
    sizes = sizes[np.searchsorted(sizes, 0, side="right") :]
    n_dropped = round(len(sizes) * (1 - kept))
    if 0 < n_dropped < len(sizes):  # weights of one size go together, and many have the same 16 bits
        n_dropped = int(np.searchsorted(sizes, sizes[n_dropped - 1], side="right"))
    return float(sizes[min(n_dropped, len(sizes) - 1)]) if len(sizes) else 0.0


def threshold_for_bytes(model: Model, n_bytes: int) -> float:
    """Find the threshold that leaves at most `n_bytes` of weights."""
    offsets = 8 * (len(model.weights.dense_of) + 1)
    n_kept = (n_bytes - offsets) // bytes_a_weight(model.weights)
    if n_kept < 1:
        raise InputError(f"{n_bytes:,} bytes are too few: the offsets alone take {offsets:,}")
    return threshold_for_share(model, min(1.0, n_kept / max(model.n_weights, 1)))


def largest_pruning(
    model: Model, rows: RowSource, max_loss: float, n_threads: int = 1
) -> tuple[dict[str, float], list[Pruned]]:
    """Return P@k of the model as it is, and the prunings tried; the last loses at most `max_loss` of every P@k.

    Bisects the share kept, as if P@k never rose with fewer weights; the pruning returned has been measured.
    """
    before = model.score(rows, n_threads)
    if not any(before.values()):
        raise InputError("no first label of these rows is right: give rows with known labels, like those of training")
    tried: list[Pruned] = []
    low, high = 0.0, 1.0  # kept: too few, enough
    while high - low > FINEST_STEP:
        kept = (low + high) / 2
        threshold = threshold_for_share(model, kept)
        after = model.prune(threshold).score(rows, n_threads)
        tried.append(Pruned(threshold, kept, after))
        if all(before[name] - after[name] <= max_loss for name in before):
            high = kept
        else:
            low = kept
    best = next((one for one in tried if one.kept == high), Pruned(0.0, 1.0, before))
    return before, [*(one for one in tried if one is not best), best]
