"""The hinge where rows have many labels, with settings by facts of the rows: no trials, no cost (docs/tuning.md)."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from xmlpreck.config import RunConfig, TrainConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.data.survey import Survey
from xmlpreck.train.record import Record
from xmlpreck.train.safety import Safety


class Effort(NamedTuple):
    """What a value of `train.effort` means for the hinge."""

    epochs: int
    negatives: int


EFFORTS = {"quick": Effort(2, 100), "normal": Effort(5, 300), "best": Effort(10, 300)}
# From this many labels of a row on (their mean), the hinge takes the place of the paper's SGD@k-avg: with more labels,
# more of them are missing or by chance.
MANY_LABELS = 5.0
# Rows with few labels take larger steps: eta = ETA_LABELS / (labels of a row), within these bounds.
ETA_LABELS, MIN_ETA, MAX_ETA = 5.3, 0.67, 1.0
PRUNE = 0.01  # smaller weights are dropped
CHOSEN = ("algo", "eta", "epochs", "negatives", "prune")


def has_many_labels(rows: Dataset) -> bool:
    """Tell whether rows, without those that have no label, have MANY_LABELS labels on average."""
    n_labelled = int(np.count_nonzero(np.diff(rows.labels.indptr)))
    return bool(rows.labels.nnz >= MANY_LABELS * max(n_labelled, 1))


def labels_per_row(survey: Survey) -> float:
    """Return the mean number of labels of the rows that have any."""
    return float(survey.label_counts.sum() / max(survey.n_rows - survey.n_rows_without_labels, 1))


class Facts:
    """A choice of the hinge and its settings by what the rows are like; see tuning.Tuning for one by trials."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def choose(self, survey: Survey) -> dict[str, Any]:
        """Choose the settings that nobody gave."""
        eta = round(float(np.clip(ETA_LABELS / max(labels_per_row(survey), 1), MIN_ETA, MAX_ETA)), 2)
        chosen = {"algo": "hinge", "eta": eta, **EFFORTS[self.config.train.effort]._asdict(), "prune": PRUNE}
        return {name: value for name, value in chosen.items() if name not in self.config.fixed}

    def needed(self, survey: Survey) -> TrainConfig:
        return replace(self.config.train, **self.choose(survey))

    def meet(self, survey: Survey) -> None:
        self.survey = survey

    def fit_samples(self, safety: Safety, record: Record, limit: int) -> int:
        """Nothing is tried, which needs no memory."""
        return 0

    def outline(self) -> dict[str, Any]:
        return {"trials": 0, "rows": 0, "passes": 0.0}

    def run(self, safety: Safety, record: Record, progress: bool = False) -> tuple[RunConfig, dict[str, Any]]:
        """Return the settings, and the facts that they follow from."""
        chosen, train = self.choose(self.survey), self.config.train
        evidence = {
            "heldout_rows": 0,
            "budget": 0.0,
            "spent": 0.0,
            "facts": {"labels_per_row": labels_per_row(self.survey)},
            "fixed": {name: getattr(train, name) for name in CHOSEN if name in self.config.fixed},
            "rungs": [],
            "history": [],
            "pruned": [],
            "chosen": chosen,
        }
        return replace(self.config, train=replace(train, **chosen)), evidence
