"""Predict the labels of rows that come from anywhere, and write them or return them."""

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from xmlpreck.api.engine import STDIN, Note, RayEngine, log, refuse_text, shared_rows
from xmlpreck.api.inputs import AUTO, AnyModel, as_model
from xmlpreck.config import ConfigError, InputError
from xmlpreck.data import formats
from xmlpreck.data.dataset import Documents
from xmlpreck.data.formats.json_rows import arriving_lines
from xmlpreck.data.formats.prediction_output import TABLES, Found
from xmlpreck.data.formats.prediction_tables import WIDE, TableStyle
from xmlpreck.data.location import Data, DataLocation, locate
from xmlpreck.data.rows import RowSource
from xmlpreck.data.shards import is_remote
from xmlpreck.machine import n_cores
from xmlpreck.model import Model
from xmlpreck.model.model import BLOCK_ROWS
from xmlpreck.model.prediction import (
    Batch,
    Choice,
    Counts,
    answer_lines,
    json_batches,
    label_bonus,
    predict_batches,
    read_labels,
    source_batches,
    text_batches,
    write_answers,
)


@dataclass(frozen=True)
class PredictionOptions:
    """Which labels a row gets, and how they are scored."""

    k: int = 5  # labels per row, at most
    min_labels: int = 0  # labels per row, even below the threshold
    threshold: float | None = None  # only labels with this score or more
    only_labels: str | Path | None = None  # file of labels: predict no others
    exclude_labels: str | Path | None = None  # file of labels: never predict these
    label_weights: str | Path | None = None  # file of positive numbers, one per label: ln of it is added to the score
    candidates: str | Path | None = None  # prediction file of any tool: rank each row's own labels
    probabilities: bool = False  # scores are probabilities; the model must be calibrated
    labels: str | None = None  # "auto": as many as `optimize` has chosen, instead of k, min_labels and threshold
    guess_empty: bool = False  # rows without any known feature get the labels that the bias ranks first
    strict: bool = False  # JSON lines: stop at a line that cannot be read

    def choice(self, model: Model) -> Choice:
        """Read the files that are named, and check all against the model."""
        if self.k < 1 or self.min_labels < 0:
            raise ConfigError(f"k must be 1 or more and min_labels 0 or more, but are {self.k} and {self.min_labels}")
        if self.min_labels > self.k:
            raise ConfigError(f"--at-least {self.min_labels} is more than --topk {self.k}")
        only, exclude = (
            None if path is None else read_labels(path, model) for path in (self.only_labels, self.exclude_labels)
        )
        weights = None
        if self.label_weights is not None:
            weights = formats.read_inverse_propensities(self.label_weights, model.n_labels)
        bonus = label_bonus(model.n_labels, only, exclude, weights)
        if self.labels not in (None, AUTO):
            raise ConfigError(f"--labels must be auto, but is {self.labels!r:.40}: give a number by --topk")
        if self.labels == AUTO:
            given = (self.k, self.min_labels, self.threshold)
            if given != (PredictionOptions.k, PredictionOptions.min_labels, PredictionOptions.threshold):
                raise ConfigError(
                    "--labels auto chooses the number of labels: leave out --topk, --at-least, --threshold"
                )
            rule = model.label_rule
            return Choice(
                rule.k, bonus=bonus, as_probabilities=self.probabilities, guess_empty=self.guess_empty, rule=rule
            )
        threshold = -math.inf if self.threshold is None else self.threshold
        return Choice(self.k, threshold, self.min_labels, bonus, self.probabilities, self.guess_empty)


class Written(NamedTuple):
    """Predictions on disk."""

    path: str
    k: int  # labels per row, at most
    counts: Counts


class Predictions(NamedTuple):
    """Labels of rows, batch by batch as they are found; the model names them."""

    model: Model
    batches: Iterable[Found]
    k: int  # labels per row, at most


def predict(
    model: AnyModel,
    data: Data | list[str],
    out: str | Path,
    options: PredictionOptions = PredictionOptions(),
    *,
    verify: bool = False,
    n_threads: int = 0,
    engine: RayEngine | None = None,
    style: TableStyle = WIDE,
    note: Note = log.info,
    progress: bool = False,
) -> Written:
    """Write the best labels of every row to a file: .parquet, .jsonl, .csv, .tsv, .npz or .txt.

    `data` is a path (its test split), a location, a table, rows, or a list of texts; "-" reads JSON lines from stdin.
    Rows keep the ids that they have in it. `style` is the layout of .csv and .tsv. For arrays in memory use
    `Model.predict_topk`.
    """
    kind = formats.prediction_kind(out)  # refuses an unknown suffix before any work
    if style != WIDE and kind not in TABLES:
        raise InputError(f"{out}: --layout and --excel are for .csv and .tsv: leave them out")
    if style.excel is not None and kind == ".tsv":
        raise InputError(f"{out}: --excel is for .csv: call it so")
    with ExitStack() as until_written:
        found = open_predictions(model, data, options, verify, n_threads, engine, note, progress, until_written)
        counts = write_answers(out, found.batches, found.model, style, found.k)
    return Written(str(out), found.k, counts)


def predict_lines(
    model: AnyModel,
    data: Data | list[str],
    options: PredictionOptions = PredictionOptions(),
    counts: Counts | None = None,
    *,
    verify: bool = False,
    n_threads: int = 0,
    engine: RayEngine | None = None,
    note: Note = log.info,
) -> Iterator[list[str]]:
    """Yield the best labels of every row as JSON lines, batch by batch; `counts` is filled along the way."""
    with ExitStack() as until_written:
        found = open_predictions(model, data, options, verify, n_threads, engine, note, False, until_written)
        yield from answer_lines(found.batches, found.model, Counts() if counts is None else counts)


def open_predictions(
    model: AnyModel,
    data: Data | list[str],
    options: PredictionOptions,
    verify: bool,
    n_threads: int,
    engine: RayEngine | None,
    note: Note,
    progress: bool,
    until_written: ExitStack,
) -> Predictions:
    """Open model and rows; labels are predicted as they are asked for."""
    if engine is not None:
        return _predict_on_ray(model, data, options, verify, n_threads, engine, note, progress, until_written)
    loaded = as_model(model, verify)
    choice = options.choice(loaded)
    n_rows, batches = _row_batches(data, loaded, options.strict)
    candidates = None
    if options.candidates is not None:
        if n_rows is None:
            raise InputError("--candidates needs rows of numbers from a file, not text or stdin")
        candidates = formats.open_predictions(
            options.candidates, n_rows, loaded.n_labels, label_names=loaded.label_names
        ).blocks(BLOCK_ROWS)
    threads = n_threads or n_cores()
    found = predict_batches(loaded, batches, choice, threads, n_rows, candidates, progress)
    return Predictions(loaded, found, min(choice.k, loaded.n_labels))


def _predict_on_ray(
    model: AnyModel,
    data: Data | list[str],
    options: PredictionOptions,
    verify: bool,
    n_threads: int,
    engine: RayEngine,
    note: Note,
    progress: bool,
    until_written: ExitStack,
) -> Predictions:
    if options.candidates is not None:
        raise InputError("--candidates works on one machine only: leave out --candidates or --engine ray")
    if isinstance(model, Model) or is_remote(model):
        raise InputError("nodes of a cluster load the model by themselves: give its folder, which all of them can open")
    location = _location(data)
    refuse_text(location)
    assert location is not None
    from xmlpreck.cluster.parts import open_without_weights
    from xmlpreck.cluster.prediction import predict_rows

    head = open_without_weights(model, verify)
    choice = options.choice(head)
    rows = location.open()
    session = until_written.enter_context(engine.connect(note))
    place = shared_rows(location, rows)
    found = predict_rows(
        session, str(model), place, rows, choice, BLOCK_ROWS,
        label_shards=engine.label_shards, n_threads=n_threads, progress=progress,
    )  # fmt: skip
    return Predictions(head, found, min(choice.k, head.n_labels))


def _location(data: Data | list[str]) -> DataLocation | None:
    return None if isinstance(data, list) else locate(data, "test")


def _row_batches(data: Data | list[str], model: Model, strict: bool) -> tuple[int | None, Iterator[Batch]]:
    """Return how many rows there are, where that is known, and the rows."""
    location = _location(data)
    if location is None:
        if isinstance(data, list):
            return None, text_batches([Documents(data, [])], model)
        rows: RowSource = data  # type: ignore[assignment]
        return rows.n_rows, source_batches(rows, BLOCK_ROWS)
    if location.path == STDIN:
        if sys.stdin is None:
            raise InputError("--data -: stdin is closed: send JSON lines to it")
        return None, json_batches(arriving_lines(sys.stdin.fileno()), model, strict)
    documents = location.of_model(model.info).documents()
    if documents is None:
        rows = location.open(n_dense=model.rows.n_dense)
        return rows.n_rows, source_batches(rows, BLOCK_ROWS)
    if model.vectorizer is None:
        raise InputError(f"{location.path}: is raw text, but the model was trained on numbers: give it such rows")
    given = location.open_dense() if model.rows.n_dense else None
    return None, text_batches(documents.chunks(), model, given)
