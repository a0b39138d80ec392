"""Plan what a run will need, before its first pass: weights, memory, disk and time."""

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xmlpreck.config import ConfigError, TrainConfig
from xmlpreck.kernels.arrays import Weights
from xmlpreck.kernels.dense import MIN_SHARED, TILE_ROWS
from xmlpreck.machine import free_bytes, resident_bytes
from xmlpreck.model import bytes_a_weight
from xmlpreck.model.layout import have_dense_rows
from xmlpreck.train.passes import PreparedRows
from xmlpreck.train.support import Cut
from xmlpreck.train.trainer import REMEMBERED_PASS, WIDENED_PASS, TrainingError

# As large for any number of weights.
FIXED_PARTS = ("libraries and loaded rows", "rows being read", "buffers", "remembered negatives")
TUNING_PART = "more while tuning"
KEY_BYTES = 24  # a possible new weight, while those that are new are found: keys of 8 bytes, in order, each once
FREE_SHARE = 0.8  # of the free memory, where no limit is given
MAX_BYTES = 1 << 60
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class OverBudget(TrainingError):
    """The run would need more memory than it may have."""


@dataclass(frozen=True)
class Plan:
    """Bytes at the peak of a run, by what they are for, and what goes to disk. Seconds are of a pass, if measured."""

    n_rows: int
    n_features: int
    n_labels: int
    n_weights: int  # that may become other than 0: the support
    n_dense: int  # features whose row of weights is dense
    parts: dict[str, int]
    checkpoint_bytes: int
    model_bytes: int  # at most: weights that end as 0 are not stored
    limit_bytes: int
    pass_seconds: float | None = None
    cut: Cut | None = None
    tuning: dict[str, Any] | None = None  # trials, max rows of one, and passes over all rows that they may cost

    @property
    def peak_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def need(self) -> str:
        return f"{self.n_weights:,} weights need {format_bytes(self.peak_bytes)} of memory at the peak"

    def weights_within(self, limit: int) -> int:
        """Estimate how many weights would fit, if each needs what one needs now; with a little room to spare."""
        fixed = sum(self.parts[name] for name in FIXED_PARTS)
        return max(int(0.95 * self.n_weights * (limit - fixed) / max(self.peak_bytes - fixed, 1)), 1)

    def with_tuning(self, outline: dict[str, Any], peak_bytes: int) -> "Plan":
        """Plan for tuning before the run, which may need more memory than the run itself."""
        parts = self.parts | {TUNING_PART: max(peak_bytes - self.peak_bytes, 0)}
        return replace(self, parts=parts, tuning=outline)

    def to_dict(self) -> dict[str, object]:
        numbers = {name: value for name, value in vars(self).items() if name != "cut"}
        return numbers | {"peak_bytes": self.peak_bytes, "cut": None if self.cut is None else self.cut._asdict()}


def plan_run(
    support: Weights,
    rows: PreparedRows,
    config: TrainConfig,
    has_heldout: bool,
    limit: int,
    feature_counts: np.ndarray,
    is_dense: np.ndarray | None = None,
) -> Plan:
    """Plan a run whose support has just been found, and is in memory with all that is loaded.

    feature_counts: number of rows per feature.
    """
    lengths = np.diff(support.offsets)
    if is_dense is None:
        is_dense = have_dense_rows(lengths, rows.n_labels)
    n_weights, n_sparse, n_dense = len(support.labels), int(lengths[~is_dense].sum()), int(is_dense.sum())
    cells, value = n_dense * rows.n_labels, support.values.dtype.itemsize
    entry = support.labels.itemsize + value
    widening = 0
    if config.widen and config.n_passes >= WIDENED_PASS:  # at most a weight for every value of the rows
        share = rows.n_labels / rows.source.n_labels  # of a shard: about
        n_new, n_new_sparse = (
            int(share * counts.sum()) for counts in (feature_counts, feature_counts[~is_dense[: len(feature_counts)]])
        )
        widening = n_sparse * (entry + value) + n_new_sparse * KEY_BYTES
        n_weights, n_sparse = n_weights + n_new, n_sparse + n_new_sparse
    averages = (n_sparse + cells) * value
    scored_cell = 2 if value == 4 else 0  # the cells of dense rows once more, in bfloat16, to score with
    n_remembered = min(config.remember, rows.n_labels) if config.epochs > REMEMBERED_PASS else 0
    remembered = rows.n_rows * n_remembered * support.labels.itemsize
    steps = config.batch_rows * ((min(config.k, rows.n_labels) + rows.max_labels) * entry + 8)  # of a batch
    # Beside the weights and averages are in memory, one after the other: the support from which they are laid out (when
    # there are no averages yet); copies of the weights, to score held-out rows; what a wider support is made from; the
    # model as it is pruned or saved (when the averages are gone).
    laying_out = support.labels.nbytes - averages
    scoring = 2 * averages if has_heldout else 0
    finishing = n_weights * entry * (2 if config.prune else 1) - averages
    # Rows that all have the last features are scored many at a time (kernels/dense.py).
    is_tiled = len(feature_counts) >= MIN_SHARED and bool((feature_counts[-MIN_SHARED:] == rows.n_rows).all())
    rows_scored = 1 + (TILE_ROWS if is_tiled else 0)
    parts = {
        "libraries and loaded rows": resident_bytes() - support.labels.nbytes,
        "weights": n_sparse * entry + cells * (value + scored_cell) + cells // 8,
        "averages": averages,
        "rows being read": rows.streamed_bytes,
        "buffers": config.n_threads * rows_scored * rows.n_labels * value + steps,
        "remembered negatives": remembered,
        "copies": max(laying_out, scoring, widening, finishing, 0),
    }
    return Plan(
        rows.n_rows,
        rows.n_features,
        rows.n_labels,
        n_weights,
        n_dense,
        parts,
        checkpoint_bytes=2 * averages + remembered,
        model_bytes=n_weights * bytes_a_weight(support) + support.offsets.nbytes + _names_bytes(rows),
        limit_bytes=limit,
    )


def _names_bytes(rows: PreparedRows) -> int:
    names = (rows.source.label_names or [], rows.source.feature_names or [])
    return sum(len(name.encode()) + 1 for each in names for name in each)


def parse_bytes(text: str) -> int:
    """Parse 4GB, 512 MB, 1.5g or a plain number of bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", text.upper())
    if found is None or not 0 < float(found[1]) * UNITS[found[2]] < MAX_BYTES:
        raise ConfigError(f"memory must be a size such as 4GB or 512MB, but is {text!r:.60}")
    return int(float(found[1]) * UNITS[found[2]])


def format_bytes(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.2f} GB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:.0f} MB"


def default_limit() -> int:
    """Return the default limit of memory: what this process has, and a share of what is free."""
    return resident_bytes() + int(FREE_SHARE * free_bytes())


def over_budget(what: str, limit: int) -> OverBudget:
    return OverBudget(
        f"{what}, but {format_bytes(limit)} may be used: give more by --memory, let --fit-memory keep each label's "
        "strongest features, or drop rare features from the data"
    )
