"""Score predictions and models against true labels: evaluate one, compare several, report on runs."""

import datetime
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from xmlpreck import metrics
from xmlpreck.api.engine import Note, RayEngine, log, refuse_text, shared_rows
from xmlpreck.api.inputs import AUTO, AnyModel, as_model, open_location
from xmlpreck.api.labels import read_ancestors
from xmlpreck.config import ConfigError, InputError
from xmlpreck.data import catalog, corpus, formats
from xmlpreck.data.dataset import Dataset
from xmlpreck.data.formats.predictions import Predictions
from xmlpreck.data.location import Data, DataLocation, locate, remembered_columns
from xmlpreck.data.rows import RowSource
from xmlpreck.evaluation import comparison, tables
from xmlpreck.evaluation.comparison import BLOCK_ROWS, Comparison, LabelCounts, Rankings
from xmlpreck.files.progress import Reading
from xmlpreck.machine import n_cores
from xmlpreck.metrics import Meter, Scores
from xmlpreck.model import Model
from xmlpreck.model.directory import open_head
from xmlpreck.model.prediction import Choice
from xmlpreck.model.seal import ABOUT


@dataclass(frozen=True)
class EvaluationOptions:
    """How predictions are scored."""

    ks: Sequence[int] = metrics.REPORTED_KS
    convention: str = "repository"  # or pyxclib, napkinxc, rp
    drop_empty: bool = False  # leave out rows without labels
    train: str | None = None  # training rows, for label frequencies; None: those of the data, if it has them
    propensity: tuple[float, float] | None = None  # constants A, B; None: of the card, else metrics.PROPENSITY
    inverse_propensities: str | Path | None = None  # file of inverse propensities, one per line; overrides propensity
    bins: Sequence[int] = metrics.BIN_EDGES  # training rows that divide tail, torso and head
    hierarchy: str | Path | None = None  # vocabulary whose broader labels give hP, hR and hF1
    filter: str | Path | None = None  # file of (row, label) pairs to leave out; None: of the data's folder
    use_filter: bool = True  # apply the filter file of the data's folder
    fix: bool = False  # repair bad predictions, and say how many
    n_resamples: int = metrics.N_RESAMPLES  # of the bootstrap; 0 = no intervals
    seed: int = 0  # of the bootstrap
    n_threads: int = 0  # 0 = one for each core
    labels: str | None = (
        None  # "auto": a model predicts as many labels as `optimize` has chosen, and ks has their limit
    )


@dataclass(frozen=True)
class Truth:
    """True labels, and what is needed to score predictions of them."""

    rows: RowSource
    n_labels: int  # that can be predicted: raw text may have more
    training: LabelCounts | None
    inverse_propensity: np.ndarray | None
    ancestors: csr_array | None  # of each label, by the hierarchy
    pairs: csr_array | None  # (row, label) to leave out
    ks: tuple[int, ...]
    options: EvaluationOptions

    @property
    def n_threads(self) -> int:
        return self.options.n_threads or n_cores()

    def rankings(self, predictions: str) -> Rankings:
        """Open a prediction file, or a model directory that predicts now."""
        options, auto = self.options, self.options.labels == AUTO
        n_threads = self.n_threads
        return Rankings(
            predictions, self.rows, max(self.ks), self.n_labels, fix=options.fix, n_threads=n_threads, auto=auto
        )

    def meter(self) -> Meter:
        """Make a meter; those of one truth draw the same resamples."""
        options = self.options
        return Meter(
            self.rows.n_labels,
            self.ks,
            options.convention,
            inverse_propensity=self.inverse_propensity,
            label_counts=None if self.training is None else self.training.counts,
            edges=list(options.bins),
            ancestors=self.ancestors,
            drop_empty=options.drop_empty,
            n_resamples=options.n_resamples,
            seed=options.seed,
            n_threads=self.n_threads,
        )


def open_truth(
    location: DataLocation,
    model: Model | None,
    options: EvaluationOptions,
    note: Note = log.info,
    progress: bool = False,
) -> Truth:
    """Open the true labels, training frequencies, propensities and the filter; `model` reads raw text."""
    metrics.find_convention(options.convention)
    rows = open_location(location, model, progress)
    training = count_training(location, rows, model, options, note, progress)
    path = options.filter
    if path is None and options.use_filter:
        folder = location.folder()
        path = None if folder is None else formats.find_filter(folder, location.split)
    pairs = None if path is None else formats.read_filter(path, rows.n_rows, rows.n_labels)
    if pairs is not None:
        note(f"{path}: {pairs.nnz:,} pairs of row and label are left out")
    return Truth(
        rows=rows,
        n_labels=rows.n_labels if model is None else model.n_labels,
        training=training,
        inverse_propensity=_inverse_propensity(location, rows, training, options),
        ancestors=None if options.hierarchy is None else read_ancestors(options.hierarchy, rows),
        pairs=pairs,
        ks=metrics.check_ks(options.ks),
        options=options,
    )


def count_training(
    location: DataLocation,
    rows: RowSource,
    model: Model | None,
    options: EvaluationOptions = EvaluationOptions(),
    note: Note = log.info,
    progress: bool = False,
) -> LabelCounts | None:
    """Count the training rows of each label, where these rows are to be had."""
    if options.train is not None:
        training = replace(location, path=options.train, split="train", table=None)
    elif not location.is_whole and (model is not None or catalog.has_split(location.path, "train", location.data_dir)):
        training = location.at("train")
    else:
        for flag, given in (("--propensity", options.propensity), ("--bins", tuple(options.bins) != metrics.BIN_EDGES)):
            if given:
                raise InputError(f"{flag} has no effect without training rows; name them by --train: leave it out")
        note("no training rows: no propensities and no frequencies; name them by --train")
        return None
    texts = None if model is None else training.of_model(model.info).documents()
    if texts is not None and rows.label_names is not None:  # which need not become rows for that
        return LabelCounts(*corpus.count_labels(texts, rows.label_names, Reading("label frequencies", progress)))
    source = open_location(training, model, progress)
    if model is None and source.n_labels != rows.n_labels:
        raise InputError(
            f"the training rows have {source.n_labels} labels, but those to be judged have {rows.n_labels}"
        )
    counted = comparison.count_labels(source, progress)
    counted.counts.resize(rows.n_labels, refcheck=False)  # raw text: labels unseen in training are the last ones
    return counted


def _inverse_propensity(
    location: DataLocation, rows: RowSource, training: LabelCounts | None, options: EvaluationOptions
) -> np.ndarray | None:
    if options.inverse_propensities is not None:
        return formats.read_inverse_propensities(options.inverse_propensities, rows.n_labels)
    if training is None:
        return None
    card = catalog.find_card(location.name)
    of_card = metrics.PROPENSITY if card is None else (card.propensity_a, card.propensity_b)
    return metrics.inverse_propensities(training.counts, training.n_rows, *(options.propensity or of_card))


@dataclass(frozen=True)
class Evaluation:
    """Scores of one prediction file or model, and what should be known about them."""

    path: str
    scores: Scores
    truth: Truth
    notes: list[str]
    seen: dict[str, Any] | None  # what a model knows of the rows already; None for a file, which does not say

    def to_dict(self) -> dict[str, Any]:
        """Return scores, intervals and bins for JSON."""
        return self.scores.to_dict() | {"seen": self.seen}

    def to_table(self, style: str = "text") -> str:
        """Format scores and bins as text, markdown, latex or csv."""
        return tables.scores_text(self.scores, style)


def evaluate(
    predictions: str | Path,
    data: Data,
    options: EvaluationOptions = EvaluationOptions(),
    *,
    model: AnyModel | None = None,
    per_label: str | Path | None = None,
    engine: RayEngine | None = None,
    note: Note = log.info,
    progress: bool = False,
) -> Evaluation:
    """Score a prediction file of any tool, or a model directory, against true labels (a path means its test split).

    Raw text needs the `model` whose labels were predicted. `per_label` writes the counts of every label as .csv.
    On a cluster (`engine`) the model's predictions are made by many nodes.
    """
    path, location = str(predictions), _locate(data)
    if per_label is not None and Path(per_label).suffix != ".csv":
        raise InputError(f"{per_label}: the counts of labels are written as .csv")
    if engine is not None:
        if not Path(path).is_dir():
            raise InputError(f"{path}: is no model directory, so there is nothing for --engine ray to predict")
        refuse_text(location)
    if options.labels is not None:
        options = _with_auto(options, path, engine)
    location = _for_models(location, [path])
    truth = open_truth(location, None if model is None else as_model(model), options, note, progress)
    with ExitStack() as until_scored:
        if engine is None:
            rankings = truth.rankings(path)
        else:
            rankings = _rankings_on_ray(path, truth, location, engine, note, until_scored)
        scores = comparison.measure(truth.rows, rankings.blocks(), truth.meter(), truth.pairs, progress)
    found = _evaluation(rankings, scores, truth, note)
    if per_label is not None:
        counts = None if truth.training is None else truth.training.counts
        tables.write_label_counts(per_label, scores, truth.rows.label_names, counts)
    return found


def _with_auto(options: EvaluationOptions, path: str, engine: RayEngine | None) -> EvaluationOptions:
    """Add the most labels that a model gives a row to the ks: at this k nothing of its own choice is cut off."""
    if options.labels != AUTO:
        raise ConfigError(f"--labels must be auto, but is {options.labels!r:.40}")
    if not Path(path).is_dir():
        raise InputError(
            f"{path}: --labels auto is for a model directory: a file says itself how many labels a row has"
        )
    if engine is not None:
        raise InputError("--labels auto works on one machine only: leave out --labels or --engine ray")
    model = Model.load(path)
    return replace(options, ks=sorted({*options.ks, min(model.label_rule.k, model.n_labels)}))


def _evaluation(rankings: Rankings, scores: Scores, truth: Truth, note: Note) -> Evaluation:
    notes = rankings.notes(truth.ks)
    for text in notes:
        note(text)
    return Evaluation(rankings.path, scores, truth, notes, None if rankings.seen is None else rankings.seen._asdict())


def _locate(data: Data) -> DataLocation:
    location = locate(data, "test")
    if location is None:
        raise InputError("evaluation looks for companion files beside the rows: give a path or a DataLocation")
    return location


def _for_models(location: DataLocation, predictions: Sequence[str | Path]) -> DataLocation:
    """Return the location with dense rows beside it, if one of the predictions is a model that needs them."""
    heads = [open_head(Path(path)) for path in predictions if (Path(path) / ABOUT).is_file()]
    if not (with_dense := [head for head in heads if head.rows.n_dense]):
        return location
    return replace(location.of_model(with_dense[0].about), n_dense=with_dense[0].rows.n_dense)


def _rankings_on_ray(
    path: str, truth: Truth, location: DataLocation, engine: RayEngine, note: Note, until_scored: ExitStack
) -> Rankings:
    from xmlpreck.cluster.prediction import ClusterRankings, predict_rows

    found = predict_rows(
        until_scored.enter_context(engine.connect(note)),
        path,
        shared_rows(location, truth.rows),
        truth.rows,
        Choice(max(truth.ks)),
        BLOCK_ROWS,
        label_shards=engine.label_shards,
        n_threads=truth.options.n_threads,
    )
    return ClusterRankings(path, (top for _, top in found), truth.rows)


@dataclass(frozen=True)
class Comparisons:
    """Scores of several prediction files or models, and each but the first against the first."""

    evaluations: list[Evaluation]
    against_first: list[Comparison]

    def to_dict(self) -> dict[str, Any]:
        """Return all for JSON."""
        paths = [each.path for each in self.evaluations]
        return {
            "files": {each.path: each.to_dict() for each in self.evaluations},
            "against": paths[0],
            "comparisons": {path: each.to_dict() for path, each in zip(paths[1:], self.against_first, strict=True)},
        }

    def to_table(self, style: str = "text") -> str:
        """Format scores and differences as text, markdown, latex or csv."""
        scores = [each.scores for each in self.evaluations]
        names = self.evaluations[0].truth.rows.label_names
        return tables.comparison_text(
            [each.path for each in self.evaluations], scores, self.against_first, names, style
        )


def compare(
    files: Sequence[str | Path],
    data: Data,
    options: EvaluationOptions = EvaluationOptions(),
    *,
    model: AnyModel | None = None,
    note: Note = log.info,
    progress: bool = False,
) -> Comparisons:
    """Compare prediction files or model directories on the same rows, each with the first: paired differences."""
    if len(files) < 2:
        raise InputError("compare needs two or more prediction files or model directories")
    location = _for_models(_locate(data), files)
    truth = open_truth(location, None if model is None else as_model(model), options, note, progress)
    rankings = [truth.rankings(str(path)) for path in files]
    blocks = [each.blocks() for each in rankings]
    results, against_first = comparison.compare(truth.rows, blocks, truth.meter, truth.pairs, progress)
    row_ids = truth.rows.row_ids if isinstance(truth.rows, Dataset) else None
    if row_ids is not None:
        named = ([replace(row, id=row_ids[row.row]) for row in each.changed] for each in against_first)
        against_first = [replace(each, changed=rows) for each, rows in zip(against_first, named, strict=True)]
    found = [_evaluation(each, scores, truth, note) for each, scores in zip(rankings, results, strict=True)]
    return Comparisons(found, against_first)


def report(
    runs: Sequence[str | Path],
    out: str | Path = "report.html",
    data: DataLocation | str | None = None,
    *,
    train: str | None = None,
    fix: bool = False,
    n_threads: int = 0,
    note: Note = log.info,
    progress: bool = False,
) -> int:
    """Write one HTML page on model directories and prediction files of any tool; returns the number of rows.

    `data` are the rows to score (a path means its test split); None: the test rows beside those that the first model
    was trained on. `train` are training rows, for label frequencies (None: those beside `data`). `fix` repairs bad
    predictions, as `evaluate` does.
    """
    from xmlpreck.evaluation import report as pages

    names = [Path(run).resolve().name for run in runs]
    if len(set(names)) < len(names):  # all have one name, as in a/model b/model
        names = [str(Path(run)) for run in runs]
    models = {str(run): Model.load(run) for run in runs if not Path(run).is_file()}
    model = next(iter(models.values()), None)
    location = DataLocation(data, "test") if isinstance(data, str) else data
    if location is None or not location.path:
        if model is None:
            raise InputError("prediction files do not say which rows they are of: name these by --data")
        location = data_of(model, next(iter(models)), location or DataLocation("", "test"))
    documents = (location if model is None else location.of_model(model.info)).documents()
    if documents is not None and model is None:
        raise InputError(
            f"{location.path}: is raw text, whose labels a model has in order: name the model whose labels were "
            "predicted among the runs, too"
        )
    rows = open_location(location, model, progress)
    n_labels = rows.n_labels if model is None else model.n_labels
    paths = [str(run) for run in runs if str(run) not in models]
    sizes, names_of_labels = (rows.n_rows, n_labels), rows.label_names
    files = {path: formats.open_predictions(path, *sizes, fix, label_names=names_of_labels) for path in paths}
    scorers: dict[str, Model | Predictions] = {**models, **files}
    opened = [pages.Run(name, scorers[str(run)]) for name, run in zip(names, runs, strict=True)]
    # A model knows the labels of raw text; rows of numbers need none for that.
    of_text = model if model is not None and model.vectorizer is not None else None
    training = count_training(location, rows, of_text, EvaluationOptions(train=train), note, progress)
    scored = pages.ScoredRows(
        location.name,
        location.split,
        rows,
        None if training is None else training.counts,
        _inverse_propensity(location, rows, training, EvaluationOptions()),
        None if documents is None else documents.texts_of,
    )
    pages.write_report(out, opened, scored, datetime.date.today(), n_threads or n_cores(), progress=progress)
    for path, file in files.items():
        for what, number in file.repairs.items():
            note(f"{path}: repaired: {what}: {number:,}")
    return rows.n_rows


def data_of(model: Model, name: str, given: DataLocation) -> DataLocation:
    """Find the rows beside those that a model was trained on; what `given` says of columns and format wins."""
    known = model.info.get("data", {})
    if "place" not in known:
        raise InputError(f"{name}: does not say what it was trained on: name the rows by --data")
    remembered, columns = remembered_columns(known), given.columns
    columns = replace(
        columns,
        delimiter=columns.delimiter or remembered.delimiter,
        encoding=columns.encoding or remembered.encoding,
    )
    found = DataLocation(known["place"], given.split, given.format or known.get("format"), columns, given.data_dir)
    if found.split == "test" and not found.has_split("test"):
        raise InputError(
            f"{found.path}: {name} was trained on it, and it has no test rows: name rows that the model has not "
            "seen by --data, or report on its training rows on purpose by --split train"
        )
    return found


def parse_propensity(text: str) -> tuple[float, float]:
    """Parse the two constants A,B."""
    try:
        a, b = (float(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"--propensity must be two numbers A,B, not {text!r}") from None
    return a, b
