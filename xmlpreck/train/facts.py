"""The rule and its settings by facts of the rows: no trials, no cost (docs/tuning.md)."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import BOTH, RunConfig, TrainConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.data.survey import Survey
from xmlpreck.train.dense_facts import suit_dense_rows
from xmlpreck.train.emphasis import idf
from xmlpreck.train.record import Record
from xmlpreck.train.safety import Safety
from xmlpreck.train.trainer import REMEMBERED_PASS, WIDENED_PASS


class Effort(NamedTuple):
    """What a value of `train.effort` means: the rule for short rows with few labels, passes by rule, members."""

    short_rows: str
    epochs: dict[str, int]
    members: int = 1


EFFORTS = {
    "quick": Effort("sgd-avg", {"hinge": 2, "sgd-avg": 3, BOTH: 2}),
    "normal": Effort(BOTH, {"hinge": 5, BOTH: 5}),
    "best": Effort(BOTH, {"hinge": 5, BOTH: 5}, members=2),
}
# From this many labels of a row on (their mean), the hinge takes the place of the paper's SGD@k-avg: with more labels,
# more of them are missing or by chance. So it does from this many values of a row on: of shorter rows each weight says
# more, and the noise of SGD@k-avg keeps it from learning them by heart. The mean of both is better than either there.
MANY_LABELS, MANY_VALUES = 5.0, 30.0
TAU = 0.1
SGD_ETA = 0.75  # of SGD@k-avg alone
# Where labels have fewer rows than this on average, a wider support helps them.
FEW_ROWS = 20
# Rows with few labels take larger steps: eta = ETA_LABELS / (labels of a row), within these bounds.
ETA_LABELS, MIN_ETA, MAX_ETA = 5.3, 0.67, 1.0
PRUNE = 0.01  # smaller weights are dropped
# Up to this many values, and this many pairs of a row and a label to score, a pass takes well under a second, and a
# second member is worth its time (docs/tuning.md).
SMALL, SMALL_PAIRS, SMALL_MEMBERS = 1_000_000, 50_000_000, 2
# Values rise with the rarity of their features in tf-idf, and hardly in counts: below this slope, where features differ
# in rarity by this spread (see rarity_of_values), training scales them by IDF (docs/tuning.md).
MAX_SLOPE, MIN_SPREAD, IDF = 0.4, 0.3, 1.0
# Passes of the hinge after the second look at this many hard negatives for each label of a row, within these bounds,
# where there are MANY_MORE times as many labels: the scores of fewer labels cost little. Short rows with many labels
# have too many hard negatives that score alike (docs/tuning.md).
REMEMBER_A_LABEL, MIN_REMEMBERED, MAX_REMEMBERED, MANY_MORE = 16, 64, 300, 32
CHOSEN = ("algo", "eta", "epochs", "members", "prune", "idf", "remember")
LISTED = (*CHOSEN, "k", "tau", "spread", "decay", "widen", "negatives")  # where they are given


def suit_the_hinge(rows: Dataset) -> bool:
    """Tell whether rows, without those that have no label, have MANY_LABELS labels or MANY_VALUES values on average."""
    is_labelled = np.diff(rows.labels.indptr) > 0
    n_values, n_rows = int(np.diff(rows.rows.indptr)[is_labelled].sum()), int(np.count_nonzero(is_labelled))
    return n_rows > 0 and (rows.labels.nnz >= MANY_LABELS * n_rows or n_values >= MANY_VALUES * n_rows)


class Rarity(NamedTuple):
    """How the values of rows follow the idf of their features, both as logarithms, within rows."""

    slope: float  # of a value over the idf: about 1 for tf-idf, 0 for counts and for values that are all the same
    spread: float  # standard deviation of the idf: 0 where all features are equally rare

    @property
    def is_missing(self) -> bool:
        """Whether features differ in rarity, and values do not say so."""
        return self.slope < MAX_SLOPE and self.spread >= MIN_SPREAD


def rarity_of_values(rows: csr_array) -> Rarity:
    """Measure how the values of rows follow the rarity of their features among these rows."""
    n_rows, is_value = rows.shape[0], rows.data != 0
    features, row_ids = rows.indices[is_value], np.repeat(np.arange(n_rows), np.diff(rows.indptr))[is_value]
    feature_counts, lengths = np.bincount(features, minlength=rows.shape[1]), np.bincount(row_ids, minlength=n_rows)

    def within_rows(numbers: np.ndarray) -> np.ndarray:
        means = np.bincount(row_ids, numbers, n_rows) / np.maximum(lengths, 1)
        return numbers - means[row_ids]

    rarity = within_rows(np.log(idf(feature_counts, n_rows))[features])
    sizes = within_rows(np.log(np.abs(rows.data[is_value].astype(np.float64))))
    square = float(rarity @ rarity)
    return Rarity(float(sizes @ rarity) / square if square else 0.0, math.sqrt(square / max(len(rarity), 1)))


def labels_per_row(survey: Survey) -> float:
    """Return the mean number of labels of the rows that have any."""
    return float(survey.label_counts.sum() / max(survey.n_rows - survey.n_rows_without_labels, 1))


def values_per_row(survey: Survey) -> float:
    """Return the mean number of values of a row."""
    return float(survey.feature_counts.sum() / max(survey.n_rows, 1))


def is_small(survey: Survey) -> bool:
    """Tell whether a pass over the rows takes well under a second."""
    n_pairs = survey.n_rows * int(np.count_nonzero(survey.label_counts))
    return bool(survey.feature_counts.sum() <= SMALL and n_pairs <= SMALL_PAIRS)


class Facts:
    """A choice of settings by what the rows are like; see tuning.Tuning for one by trials."""

    def __init__(self, config: RunConfig, algo: str, some_rows: csr_array) -> None:
        """Choose settings for a rule; `some_rows` are a sample of the rows."""
        self.config, self.algo = config, algo
        self.rarity = rarity_of_values(some_rows[:, : some_rows.shape[1] - config.rows.n_dense])

    def choose(self, survey: Survey) -> dict[str, Any]:
        """Choose the settings that nobody gave."""
        effort = EFFORTS[self.config.train.effort]
        epochs, members = effort.epochs[self.algo], effort.members
        if self.config.train.effort != "quick" and is_small(survey):
            members *= SMALL_MEMBERS
        eta = round(float(np.clip(ETA_LABELS / max(labels_per_row(survey), 1), MIN_ETA, MAX_ETA)), 2)
        chosen = {"algo": self.algo, "eta": eta, "epochs": epochs, "members": members, "prune": PRUNE}
        chosen["idf"] = IDF if self.rarity.is_missing else 0.0
        has_later = self._not_given({"epochs": epochs}).get("epochs", self.config.train.epochs) > REMEMBERED_PASS
        chosen["remember"] = self._remember(survey) if has_later else 0
        if self.algo != "hinge":
            n_labels = max(int(np.count_nonzero(survey.label_counts)), 1)
            has_pass = replace(self.config.train, **self._not_given(chosen)).n_passes >= WIDENED_PASS
            chosen |= {"tau": TAU, "widen": bool(has_pass and survey.label_counts.sum() < FEW_ROWS * n_labels)}
        if self.algo == "sgd-avg":
            chosen |= {"eta": SGD_ETA, "remember": 0}  # see TrainConfig.of_member
        chosen = suit_dense_rows(chosen, self.config, survey)
        return self._not_given(chosen)

    def _remember(self, survey: Survey) -> int:
        """Return how many negatives of a row are remembered; 0 where that costs P@k, or was not measured."""
        wanted = round(REMEMBER_A_LABEL * labels_per_row(survey))
        n_remembered = min(max(wanted, MIN_REMEMBERED), MAX_REMEMBERED)
        is_large = np.count_nonzero(survey.label_counts) >= MANY_MORE * n_remembered
        is_vague = labels_per_row(survey) >= MANY_LABELS and values_per_row(survey) < MANY_VALUES
        return n_remembered if is_large and not is_vague and not self.config.rows.n_dense else 0

    def _not_given(self, chosen: dict[str, Any]) -> dict[str, Any]:
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
            "facts": {
                "labels_per_row": labels_per_row(self.survey),
                "values_per_row": values_per_row(self.survey),
                "slope_over_idf": self.rarity.slope,
                "spread_of_idf": self.rarity.spread,
            },
            "fixed": {name: getattr(train, name) for name in LISTED if name in self.config.fixed},
            "rungs": [],
            "history": [],
            "pruned": [],
            "chosen": chosen,
        }
        return replace(self.config, train=replace(train, **chosen)), evidence
