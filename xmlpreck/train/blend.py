"""How much dense features count beside the others: chosen on held-out rows, before the other settings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xmlpreck import metrics
from xmlpreck.config import RunConfig
from xmlpreck.data.rows import RowSource, Subset, split_heldout
from xmlpreck.train.run import fit

WEIGHTS = (0.0, 0.25, 0.5, 0.75)
MAX_ROWS = 20_000  # of a trial; dense features help less with more rows, so a small sample would favour them
MIN_ROWS = 200  # below, nothing can be told: the default stays
HELDOUT = 0.2
PASSES = 2
MIN_GAIN = 0.1  # of the mean P@k, in percent: a smaller one is not worth a larger model


@dataclass(frozen=True)
class Weighed:
    """Settings with the chosen weight, and how each weight scored."""

    settings: RunConfig
    evidence: dict[str, Any]


def choose_dense_weight(
    source: RowSource, config: RunConfig, note: Callable[[str], None] = lambda text: None
) -> Weighed | None:
    """Choose rows.dense_weight by short runs; None where there is nothing to choose.

    WEIGHTS are tried in ascending order, until one is worse than the one before it.
    """
    n_dense = config.rows.n_dense
    if not n_dense or n_dense == source.n_features or "dense_weight" in config.fixed:
        return None
    kept, _ = split_heldout(source, config.train.heldout, config.train.seed)
    if kept.n_rows < MIN_ROWS:
        return None
    rng = np.random.default_rng([config.train.seed, 21])
    chosen = np.sort(rng.permutation(kept.n_rows)[:MAX_ROWS])
    trial_rows, heldout = split_heldout(Subset(kept, chosen), HELDOUT, config.train.seed)
    trial = replace(config, train=replace(config.train, heldout=0.0, epochs=PASSES, prune=0.0, widen=False))
    scores: dict[float, dict[str, float]] = {}
    means: dict[float, float] = {}
    for weight in WEIGHTS:
        rows = replace(config.rows, dense_weight=weight)
        model = fit(trial_rows, replace(trial, rows=rows))
        scores[weight] = model.score(heldout, config.train.n_threads, ks=metrics.REPORTED_KS)
        means[weight] = float(np.mean(list(scores[weight].values())))
        if means[weight] < max(means.values()):
            break
    best = max(means, key=lambda weight: means[weight])
    if means[best] < means[0.0] + MIN_GAIN:
        best = 0.0
    shown = ", ".join(f"{weight:g}: {mean:.2f}" for weight, mean in means.items())
    note(f"dense features: weight {best:g} (mean P@k of {heldout.n_rows:,} held-out rows by weight: {shown})")
    evidence = {
        "dense_weight": best,
        "n_rows": trial_rows.n_rows,
        "n_heldout": heldout.n_rows,
        "scores": [{"dense_weight": weight, **found} for weight, found in scores.items()],
    }
    return Weighed(replace(config, rows=replace(config.rows, dense_weight=best)), evidence)
