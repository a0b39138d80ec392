"""Gather the facts of a report, in one pass over the scored rows per run, and over some rows for pruned models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from xmlpreck import metrics
from xmlpreck.config import InputError
from xmlpreck.data.dataset import Dataset, TopK
from xmlpreck.data.formats.predictions import Predictions
from xmlpreck.data.rows import RowSource, Subset, read_blocks
from xmlpreck.data.survey import Survey
from xmlpreck.evaluation.comparison import BLOCK_ROWS
from xmlpreck.files.progress import progress_bar
from xmlpreck.model import Model, bytes_a_weight
from xmlpreck.model.calibration import Reliability, reliability
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
    """A model or a file of predictions, and its name in the report."""

    name: str
    scorer: Model | Predictions


@dataclass(frozen=True)
class ScoredRows:
    """The rows that all runs are scored on, and label statistics of the training rows, if known."""

    name: str
    split: str
    source: RowSource
    label_counts: np.ndarray | None = None
    inverse_propensity: np.ndarray | None = None
    read_texts: Callable[[Sequence[int]], Mapping[int, str]] | None = None  # by row; None where rows are numbers


class PrunedFacts(NamedTuple):
    """A pruned model, scored on some of the rows."""

    n_bytes: int  # of the weights on disk
    n_rows: int
    precision: dict[str, float]


@dataclass(frozen=True)
class RunFacts:
    """One run on all rows."""

    name: str
    info: dict[str, Any] | None  # of model.json: config, data, history; None for a file
    scores: metrics.Scores
    best_scores: np.ndarray  # (n_rows) score of each row's top label
    best_hits: np.ndarray  # (n_rows) whether the top label is right
    outcomes: np.ndarray  # (n_rows) ALL_FOUND, ...
    reliability: Reliability | None = None  # of the probabilities of the top labels, if the model is calibrated
    pruned: list[PrunedFacts] = field(default_factory=list)  # none for a file
    seen: Seen | None = None  # whether the model was trained or tuned on the rows; a file does not say
    choices: list[dict[str, Any]] = field(default_factory=list)  # made on these rows

    @property
    def history(self) -> list[dict[str, Any]]:
        """What training has recorded of each pass."""
        return (self.info or {}).get("history", [])


class Sample(NamedTuple):
    """A row with its true labels, and each run's top labels."""

    row_id: int
    row: Dataset
    tops: list[TopK]
    text: str | None


@dataclass(frozen=True)
class Facts:
    data: ScoredRows
    survey: dict[str, Any]  # n_rows, n_rows_without_labels and sha256 of the scored rows
    runs: list[RunFacts]
    samples: list[Sample]
    label_names: list[str] | None
    feature_names: list[str] | None
    explained: tuple[int, Model] | None  # the first run that is a model, and its place

    @property
    def rows_name(self) -> str:
        """Name the scored rows by their split, or training rows if a run was trained on them."""
        return "training rows" if any(run.seen and run.seen.trained for run in self.runs) else f"{self.data.split} rows"


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
    explained = next(((i, run.scorer) for i, run in enumerate(runs) if isinstance(run.scorer, Model)), None)
    return Facts(
        data,
        survey.to_dict(),
        facts,
        _samples(data, runs, facts[0].outcomes),
        _shown_names(data.source, explained[1] if explained else None),
        data.source.feature_names or (explained[1].feature_names if explained else None),
        explained,
    )


def _shown_names(source: RowSource, model: Model | None) -> list[str] | None:
    """Return the names of a model's vocabulary, and those of the data for labels that it does not have."""
    if model is None or model.vocabulary is None:
        return source.label_names or (model.label_names if model is not None else None)
    return [*model.vocabulary.names, *(source.label_names or [])[model.n_labels :]]


def _check_fit(run: Run, data: ScoredRows) -> None:
    if not isinstance(run.scorer, Model):
        return  # files are held to the data where they are opened
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
    calibration = run.scorer.calibration if isinstance(run.scorer, Model) else None
    for block, top in _ranked_blocks(run.scorer, data.source, max(ks), n_threads, progress):
        if survey is not None:
            survey.add(block)
        meter.add(top, block.labels)
        hit = metrics.hits(top, block.labels)
        parts.append((top.scores[:, 0], hit[:, 0], _outcomes(hit, np.diff(block.labels.indptr))))
        if calibration is not None:
            is_filled = top.labels >= 0
            predictions.append((calibration.probabilities(top).scores[is_filled], hit[is_filled]))
    best_scores, best_hits, outcomes = (np.concatenate(part) for part in zip(*parts, strict=True))
    scored = (meter.result(), best_scores, best_hits, outcomes)
    if not isinstance(run.scorer, Model):
        return RunFacts(run.name, None, *scored)
    return RunFacts(
        run.name,
        run.scorer.info,
        *scored,
        None if calibration is None else _reliability(predictions),
        _prune(run.scorer, data.source, n_threads),
        seen_rows(run.scorer, data.source),
        choice_records(run.scorer),
    )


def _reliability(predictions: list[tuple[np.ndarray, np.ndarray]]) -> Reliability:
    probabilities, is_right = (np.concatenate(part) for part in zip(*predictions, strict=True))
    return reliability(probabilities, is_right)


def _ranked_blocks(
    scorer: Model | Predictions, source: RowSource, k: int, n_threads: int, progress: bool
) -> Iterator[tuple[Dataset, TopK]]:
    """Yield rows and their k first labels, block by block."""
    if isinstance(scorer, Model):
        yield from scorer.predict_blocks(source, k, n_threads, progress)
        return
    with progress_bar(source.n_rows, "read predictions", progress) as bar:
        for (_, block), top in zip(read_blocks(source, BLOCK_ROWS), scorer.blocks(BLOCK_ROWS), strict=True):
            yield block, _first(top, k)
            bar.update(block.n_rows)


def _first(top: TopK, k: int) -> TopK:
    """Cut or fill lists to k labels."""
    missing = ((0, 0), (0, max(0, k - top.labels.shape[1])))
    return TopK(
        np.pad(top.labels[:, :k], missing, constant_values=-1),
        np.pad(top.scores[:, :k], missing, constant_values=-np.inf),
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
    chosen: list[int] = []
    for outcome, n_wanted in SAMPLES.items():
        drawn = np.random.default_rng(0).permutation(np.flatnonzero(outcomes == outcome))[:n_wanted]
        chosen += np.sort(drawn).tolist()
    rows = [data.source.read(row_id, row_id + 1) for row_id in chosen]
    tops = [_tops_of(run.scorer, chosen, rows) for run in runs]
    texts = {} if data.read_texts is None else data.read_texts(chosen)
    return [
        Sample(row_id, rows[i], [of_run[i] for of_run in tops], texts.get(row_id)) for i, row_id in enumerate(chosen)
    ]


def _tops_of(scorer: Model | Predictions, row_ids: Sequence[int], rows: Sequence[Dataset]) -> list[TopK]:
    """Return the first labels of some rows; those of a file are read in one more pass over it."""
    k = max(KS)
    if isinstance(scorer, Model):
        return [scorer.predict_topk(row.rows, k) for row in rows]
    found: dict[int, TopK] = {}
    for start, top in zip(range(0, scorer.n_rows, BLOCK_ROWS), scorer.blocks(BLOCK_ROWS), strict=True):
        for row_id in row_ids:
            if 0 <= row_id - start < len(top.labels):
                found[row_id] = _first(TopK(*(part[row_id - start : row_id - start + 1] for part in top)), k)
    return [found[row_id] for row_id in row_ids]


def label_f1(scores: metrics.Scores) -> np.ndarray:
    """Compute F1 of each label in the top k (the largest k) of all rows: 2 right / (predicted + true), in per cent."""
    either = scores.label_predicted[-1] + scores.label_truth
    return np.asarray(200 * scores.label_hits[-1] / np.maximum(either, 1))
