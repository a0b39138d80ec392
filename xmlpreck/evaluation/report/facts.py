"""Gather the facts of a report, in one pass over the scored rows per run, and over some rows for pruned models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from xmlpreck import metrics
from xmlpreck.config import InputError
from xmlpreck.data.dataset import Dataset, TopK
from xmlpreck.data.rows import RowSource, Subset
from xmlpreck.data.survey import Survey
from xmlpreck.model import Model, bytes_a_weight
from xmlpreck.model.calibration import Reliability, reliability, uncalibrated
from xmlpreck.model.choosing import Seen, choice_records, seen_rows
from xmlpreck.model.pruning import threshold_for_share

KS = (1, 2, 3, 4, 5)
MAX_RUNS = 6  # as many as there are colours that everybody can tell apart

# Shares of the weights that pruned models keep, and the number of rows that these are scored on.
KEPT_SHARES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02)
PRUNING_ROWS = 5000

MIN_TRUE_ROWS = 5  # a label's F1 on fewer rows is chance

# Outcomes of a row: min(k, labels) of its labels found, some, none; it has no labels. And sample rows of each.
ALL_FOUND, SOME_FOUND, NONE_FOUND, NO_LABELS = range(4)
SAMPLES = {ALL_FOUND: 4, SOME_FOUND: 3, NONE_FOUND: 3}


@dataclass(frozen=True)
class Run:
    """A model and its name in the report."""

    name: str
    scorer: Model


@dataclass(frozen=True)
class ScoredRows:
    """The rows that all runs are scored on, and label statistics of the training rows, if known."""

    name: str
    split: str
    source: RowSource
    label_counts: np.ndarray | None = None
    inverse_propensity: np.ndarray | None = None


class PrunedFacts(NamedTuple):
    """A pruned model, scored on some of the rows."""

    n_bytes: int  # of the weights on disk
    n_rows: int
    precision: dict[str, float]


@dataclass(frozen=True)
class RunFacts:
    """One run on all rows."""

    name: str
    info: dict[str, Any]  # of model.json: config, data, history
    scores: metrics.Scores
    best_scores: np.ndarray  # (n_rows) score of each row's top label
    best_hits: np.ndarray  # (n_rows) whether the top label is right
    outcomes: np.ndarray  # (n_rows) ALL_FOUND, ...
    reliability: Reliability  # of the probabilities of the top labels, or of the sigmoids of their scores
    is_calibrated: bool
    pruned: list[PrunedFacts]
    seen: Seen  # whether the model was trained or tuned on the rows
    choices: list[dict[str, Any]]  # made on these rows


class Sample(NamedTuple):
    """A row with its true labels, and each run's top labels."""

    row_id: int
    row: Dataset
    tops: list[TopK]


@dataclass(frozen=True)
class Facts:
    data: ScoredRows
    survey: dict[str, Any]  # n_rows, n_rows_without_labels and sha256 of the scored rows
    runs: list[RunFacts]
    samples: list[Sample]
    label_names: list[str] | None
    feature_names: list[str] | None
    first: Model  # of the first run

    @property
    def rows_name(self) -> str:
        """Name the scored rows by their split, or training rows if a run was trained on them."""
        return "training rows" if any(run.seen.trained for run in self.runs) else f"{self.data.split} rows"


def gather(data: ScoredRows, runs: Sequence[Run], n_threads: int = 1, progress: bool = False) -> Facts:
    """Score every run on all rows."""
    if not 1 <= len(runs) <= MAX_RUNS:
        raise InputError(f"a report shows 1 to {MAX_RUNS} runs, but {len(runs)} were given")
    if not data.source.n_rows:
        raise InputError(f"{data.name}, split {data.split}: has no rows to report on")
    for run in runs:
        _check_fit(run, data)
    survey = Survey()
    facts = [_measure(run, data, survey if run is runs[0] else None, n_threads, progress) for run in runs]
    if survey.n_rows_without_labels == survey.n_rows:
        raise InputError(f"{data.name}, split {data.split}: no row has a label to score against")
    named = runs[0].scorer
    return Facts(
        data,
        survey.to_dict(),
        facts,
        _samples(data, runs, facts[0].outcomes),
        data.source.label_names or named.label_names,
        data.source.feature_names or named.feature_names,
        named,
    )


def _check_fit(run: Run, data: ScoredRows) -> None:
    known, given = ((x.n_features, x.n_labels) for x in (run.scorer, data.source))
    if known[0] != given[0] or known[1] > given[1]:  # raw text may have labels that were not in training
        raise InputError(
            f"{run.name}: has {known[0]} features and {known[1]} labels, but {data.name} has {given[0]} and "
            f"{given[1]}: give the data that the model was made for with --data"
        )


def _measure(run: Run, data: ScoredRows, survey: Survey | None, n_threads: int, progress: bool) -> RunFacts:
    ks = [k for k in KS if k <= run.scorer.n_labels]
    meter = metrics.Meter(
        data.source.n_labels,
        ks,
        inverse_propensity=data.inverse_propensity,
        label_counts=data.label_counts,
        n_threads=n_threads,
    )
    parts, predictions = [], []
    calibration = run.scorer.calibration
    for block, top in run.scorer.predict_blocks(data.source, max(ks), n_threads, progress):
        if survey is not None:
            survey.add(block)
        meter.add(top, block.labels)
        hit = metrics.hits(top, block.labels)
        parts.append((top.scores[:, 0], hit[:, 0], _outcomes(hit, np.diff(block.labels.indptr))))
        probable = uncalibrated(top) if calibration is None else calibration.probabilities(top)
        predictions.append((probable.scores[top.labels >= 0], hit[top.labels >= 0]))
    best_scores, best_hits, outcomes = (np.concatenate(part) for part in zip(*parts, strict=True))
    probabilities, is_right = (np.concatenate(part) for part in zip(*predictions, strict=True))
    return RunFacts(
        run.name,
        run.scorer.info,
        meter.result(),
        best_scores,
        best_hits,
        outcomes,
        reliability(probabilities, is_right),
        calibration is not None,
        _prune(run.scorer, data.source, n_threads),
        seen_rows(run.scorer, data.source),
        choice_records(run.scorer),
    )


def _outcomes(hit: np.ndarray, n_true: np.ndarray) -> np.ndarray:
    n_hits = hit.sum(axis=1)
    cases = [n_true == 0, n_hits == np.minimum(hit.shape[1], n_true), n_hits > 0]
    return np.select(cases, [NO_LABELS, ALL_FOUND, SOME_FOUND], NONE_FOUND).astype(np.uint8)


def _prune(scorer: Model, source: RowSource, n_threads: int) -> list[PrunedFacts]:
    """Score models that keep ever fewer of the largest weights."""
    n_rows = min(source.n_rows, PRUNING_ROWS)
    rows = Subset(source, np.arange(n_rows) * source.n_rows // n_rows)
    facts = []
    for share in KEPT_SHARES:
        smaller = scorer.prune(threshold_for_share(scorer, share))
        n_bytes = 8 * (len(smaller.weights.dense_of) + 1) + smaller.n_weights * bytes_a_weight(smaller.weights)
        facts.append(PrunedFacts(n_bytes, n_rows, smaller.score(rows, n_threads)))
    return facts


def _samples(data: ScoredRows, runs: Sequence[Run], outcomes: np.ndarray) -> list[Sample]:
    """Draw rows of each outcome in the first run by default_rng(0), in the order of the data."""
    samples = []
    for outcome, n_wanted in SAMPLES.items():
        drawn = np.random.default_rng(0).permutation(np.flatnonzero(outcomes == outcome))[:n_wanted]
        for row_id in np.sort(drawn).tolist():
            row = data.source.read(row_id, row_id + 1)
            tops = [run.scorer.predict_topk(row.rows, max(KS)) for run in runs]
            samples.append(Sample(row_id, row, tops))
    return samples


def label_f1(scores: metrics.Scores) -> np.ndarray:
    """Compute F1 of each label in the top k (the largest k) of all rows: 2 right / (predicted + true), in per cent."""
    either = scores.label_predicted[-1] + scores.label_truth
    return np.asarray(200 * scores.label_hits[-1] / np.maximum(either, 1))
