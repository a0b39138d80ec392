"""Trials of tuning: settings that were tried, and the samples of rows that they were tried on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import RunConfig, TrainConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.data.rows import RowSource
from xmlpreck.kernels.arrays import Weights
from xmlpreck.train.passes import PreparedRows
from xmlpreck.train.plan import plan_run
from xmlpreck.train.support import find_support
from xmlpreck.train.trainer import Trainer


def mean(scores: dict[str, float]) -> float:
    return float(np.mean(list(scores.values())))


@dataclass
class Trial:
    """Settings that were tried, and P@k of the averaged model on the held-out rows."""

    settings: dict[str, Any]
    n_passes: int = 0  # that ended well
    history: list[dict[str, float]] = field(default_factory=list)  # after each pass, if all were scored
    pruned: list[tuple[float, float]] = field(default_factory=list)  # (least weight, mean P@k), if that was tried

    @property
    def values(self) -> list[float]:
        return [mean(scores) for scores in self.history]

    @property
    def value(self) -> float:
        return self.values[-1]


class LabelsWithRows:
    """Rows of a source without the label columns that no row of it has."""

    def __init__(self, source: RowSource, label_counts: np.ndarray) -> None:
        self.source = source
        self.n_rows, self.n_features = source.n_rows, source.n_features
        self.n_labels = int(np.count_nonzero(label_counts))
        self.label_names, self.feature_names = None, source.feature_names
        self.new_ids = np.cumsum(label_counts > 0) - 1

    def read(self, start: int, stop: int) -> Dataset:
        block = self.source.read(start, stop)
        ids = self.new_ids[block.labels.indices].astype(block.labels.indices.dtype)
        shape = (block.n_rows, self.n_labels)
        return Dataset(block.rows, csr_array((block.labels.data, ids, block.labels.indptr), shape))


class Sample:
    """Some rows, with the support and label counts that their trials share."""

    def __init__(self, source: RowSource, config: RunConfig) -> None:
        self.rows = PreparedRows(source, config.rows, config.train.block_rows)
        self.label_counts, self.relevance_sums = np.zeros(source.n_labels, np.int64), np.zeros(source.n_labels)
        self.feature_counts = np.zeros(source.n_features, np.int64)
        blocks = (block for _, block in self.rows.blocks(range(self.rows.n_blocks), self._count))
        self.support: Weights = find_support(blocks, self.rows.n_features, self.rows.n_labels, config.train.n_threads)

    def _count(self, block: Dataset) -> None:
        ids, n_labels = block.labels.indices, len(self.label_counts)
        self.label_counts += np.bincount(ids, minlength=n_labels)
        self.relevance_sums += np.bincount(ids, block.labels.data, n_labels)
        self.feature_counts += np.bincount(block.rows.indices, minlength=len(self.feature_counts))

    def peak_bytes(self, train: TrainConfig) -> int:
        """Plan the largest trial on these rows: a run that is scored and pruned, beside the support."""
        plan = plan_run(self.support, self.rows, train, True, 0, np.zeros(0, np.int64))
        pruning = 2 * (self.support.labels.itemsize + self.support.values.itemsize) * plan.n_weights
        return plan.peak_bytes + self.support.labels.nbytes + (pruning if train.prune else 0)

    def train(self, config: RunConfig, after_pass: Callable[[Trainer], None], pause: Callable[[], None]) -> None:
        trainer = Trainer(self.support._replace(values=np.zeros_like(self.support.values)), config.train)
        trainer.favour_tail(self.label_counts, self.rows.n_rows)
        trainer.scale_features(self.feature_counts, self.rows.n_rows)
        trainer.start_at_centroids(self.rows, self.relevance_sums)
        for _ in range(config.train.epochs):
            trainer.run_pass(self.rows, pause=pause)
            after_pass(trainer)


def read_trial(settings: dict[str, Any], known: Any) -> Trial | None:
    """Make the trial of what a record has, if it has it and that is sound."""
    try:
        history = [{str(name): float(value) for name, value in scores.items()} for scores in known["history"]]
        pruned = [(float(least), float(value)) for least, value in known["pruned"]]
        trial = Trial(settings, int(known["n_passes"]), history, pruned)
        return trial if all(np.isfinite(trial.values)) and trial.history else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
