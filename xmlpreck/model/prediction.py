"""Choose and write the labels of rows, batch by batch: how many, which ones, from which score on."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError, parse_whole
from xmlpreck.data.dataset import Documents, build_csr, stack_rows
from xmlpreck.data.formats import TopK, prediction_kind
from xmlpreck.data.formats.json_rows import BadLine, JsonRow, Line, RowParser
from xmlpreck.data.formats.prediction_output import Found, json_lines, write_found
from xmlpreck.data.formats.prediction_tables import WIDE, TableStyle
from xmlpreck.data.rows import RowSource, read_blocks
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.contents import numbered_lines, write_lines
from xmlpreck.files.progress import progress_bar
from xmlpreck.model import Model
from xmlpreck.model.label_rule import LabelRule
from xmlpreck.model.model import BLOCK_ROWS


@dataclass(frozen=True)
class Choice:
    """At most k labels per row: those with a score of `min_score` or more, and the first `min_labels` in any case.

    `bonus` (n_labels) is added to the scores; -inf bars a label. With `as_probabilities` the scores that come out, and
    `min_score`, are probabilities: the model must be calibrated. A row without any feature gets no label, unless
    `guess_empty` lets the bias alone choose. A `rule` chooses among the k labels by their margins or probabilities,
    whichever come out.
    """

    k: int = 5
    min_score: float = -math.inf
    min_labels: int = 0
    bonus: np.ndarray | None = None
    as_probabilities: bool = False
    guess_empty: bool = False
    rule: LabelRule | None = None

    def predict(self, model: Model, rows: csr_array, n_threads: int = 1, candidates: TopK | None = None) -> TopK:
        """Predict the labels of some rows; with `candidates`, from those lists only."""
        if candidates is None:
            top = model.predict_topk(rows, self.k, n_threads, self.bonus, self.guess_empty)
        else:
            top = model.rank_candidates(rows, listed(candidates, model.n_labels), self.k, self.bonus)
        return self.finish(top, model)

    def finish(self, top: TopK, model: Model) -> TopK:
        """Turn margins into the scores wanted, and drop labels below the minimum."""
        shown = top
        if self.as_probabilities:
            if model.calibration is None:
                raise InputError("the model has no calibration: make one with xmlpreck calibrate, or ask for scores")
            shown = model.calibration.probabilities(top)
        if self.rule is not None:
            shown = self.rule.keep(top, model.calibration, shown)
        return keep_from(shown, self.min_score, self.min_labels)


def listed(top: TopK, n_labels: int) -> csr_array:
    """Return lists of labels as the pattern of a matrix."""
    labels = np.sort(np.where(top.labels < 0, n_labels, top.labels), axis=1)
    chosen = labels < n_labels
    offsets = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))])
    return build_csr(np.ones(offsets[-1], np.float32), labels[chosen], offsets, (len(labels), n_labels))


def keep_from(top: TopK, min_score: float, min_labels: int = 0) -> TopK:
    """Keep the labels with a score of `min_score` or more, and the first `min_labels` of each row."""
    kept = (top.scores >= min_score) | (np.arange(top.labels.shape[1]) < min_labels)
    return TopK(np.where(kept, top.labels, -1).astype(np.int32), np.where(kept, top.scores, -np.inf).astype(np.float32))


def label_bonus(
    n_labels: int,
    only: Sequence[int] | None = None,
    exclude: Sequence[int] | None = None,
    weights: np.ndarray | None = None,
) -> np.ndarray | None:
    """Return ln(weight) of each label, as if margins were log-odds; -inf for labels that may not be predicted."""
    if only is None and exclude is None and weights is None:
        return None
    bonus = np.zeros(n_labels, np.float32) if weights is None else np.log(weights).astype(np.float32)
    if only is not None:
        barred = np.ones(n_labels, bool)
        barred[list(only)] = False
        bonus[barred] = -np.inf
    bonus[list(exclude or ())] = -np.inf
    if not np.isfinite(bonus).any():
        raise InputError("no label may be predicted: all are excluded")
    return bonus


def read_labels(path: str | Path, model: Model) -> list[int]:
    """Read labels from a file, one per line: names or ids of a vocabulary, or numbers where there is no such name."""
    column_of = label_columns(model)
    labels = []
    for number, line in numbered_lines(path):
        if line in column_of:
            labels.append(column_of[line])
        elif (label := parse_whole(line)) is not None and label < model.n_labels:
            labels.append(label)
        else:
            raise InputError(f"{path}:{number}: {line[:60]!r} is no label of the model: give its name or its id")
    return labels


def label_columns(model: Model) -> dict[str, int]:
    """Return the columns of labels by their names and ids; what the data call them comes first, then ids."""
    column_of: dict[str, int] = {}
    for names in (model.label_names, model.label_ids, model.shown_names):
        for column, name in enumerate(names or ()):
            column_of.setdefault(name, column)
    return column_of


# Rows with their ids; a row whose id is a BadLine could not be read, and is empty.
Batch = tuple[Sequence[Any], csr_array]


def source_batches(source: RowSource, block_rows: int = BLOCK_ROWS) -> Iterator[Batch]:
    """Yield the rows of a source, with their numbers as ids; two blocks are in memory at a time."""
    for start, block in read_blocks(source, block_rows):
        yield range(start, start + block.n_rows), block.rows


def text_batches(
    chunks: Iterable[Documents], model: Model, dense: tuple[np.ndarray, str] | None = None
) -> Iterator[Batch]:
    """Yield texts as rows of the model, with their own ids; one chunk is in memory at a time.

    `dense` are the dense features of all texts, and their name; None: as the model makes them.
    """
    start = 0
    for texts, _, ids in chunks:
        stop = start + len(texts)
        rows = model.rows_of(texts, None if dense is None else dense[0][start:stop])
        yield range(start, stop) if ids is None else ids, rows
        start = stop
    if dense is not None and len(dense[0]) != start:
        raise InputError(f"{dense[1]}: has {len(dense[0])} rows, but there are {start} texts")


def json_batches(batches: Iterable[Sequence[Line]], model: Model, strict: bool = False) -> Iterator[Batch]:
    """Yield rows of JSON lines that come in batches, e.g. from `arriving_lines`: texts, or features and values.

    Every line becomes a row, in the order of the lines. The id of one that cannot be read is a BadLine; if `strict`,
    that is an error.
    """
    parser = RowParser(model.n_features, model.feature_names, model.vectorizer is not None)
    number = 0
    for lines in batches:
        parsed = [parser.parse(line, number + i) for i, line in enumerate(lines, start=1)]
        number += len(lines)
        bad = next((row for row in parsed if isinstance(row, BadLine)), None) if strict else None
        if bad is not None:
            parsed = parsed[: parsed.index(bad)]
        for is_text, rows in groupby(parsed, key=lambda row: isinstance(row, JsonRow) and row.text is not None):
            yield _json_batch(list(rows), model, is_text)
        if bad is not None:
            raise FormatError(f"line {bad.line}: {bad.error}")


def _json_batch(rows: list[JsonRow | BadLine], model: Model, is_text: bool) -> Batch:
    ids = [row if isinstance(row, BadLine) else row.id for row in rows]
    if is_text:
        texts = [row.text for row in rows if isinstance(row, JsonRow) and row.text is not None]
        return ids, next(text_batches([Documents(texts, [])], model))[1]
    nothing = csr_array((1, model.n_features), dtype=np.float32)
    features = [row.features if isinstance(row, JsonRow) else nothing for row in rows]
    return ids, stack_rows([nothing if row is None else row for row in features])


def predict_batches(
    model: Model,
    batches: Iterable[Batch],
    choice: Choice,
    n_threads: int = 1,
    n_rows: int | None = None,
    candidates: Iterator[TopK] | None = None,
    progress: bool = False,
) -> Iterator[Found]:
    """Predict the labels of rows batch by batch; `candidates` come in the same batches."""
    with progress_bar(n_rows, "predict", progress) as bar:
        for ids, rows in batches:
            lists = next(candidates) if candidates is not None else None
            yield ids, choice.predict(model, rows, n_threads, lists)
            bar.update(rows.shape[0])


@dataclass
class Counts:
    """Number of rows answered, labels predicted, rows without a label, and lines that could not be read."""

    n_rows: int = 0
    n_predicted: int = 0
    n_rows_without_labels: int = 0
    n_bad_lines: int = 0

    def add(self, ids: Sequence[Any], top: TopK) -> None:
        is_row = np.array([not isinstance(id, BadLine) for id in ids], bool)
        n_labels_of = (top.labels[is_row] >= 0).sum(axis=1)
        self.n_rows += n_labels_of.size
        self.n_predicted += int(n_labels_of.sum())
        self.n_rows_without_labels += int(np.count_nonzero(n_labels_of == 0))
        self.n_bad_lines += int(np.count_nonzero(~is_row))


def answer_lines(found: Iterable[Found], model: Model, counts: Counts) -> Iterator[list[str]]:
    """Yield the answers as JSON lines, batch by batch; a bad line is answered by its error."""
    for ids, top in found:
        counts.add(ids, top)
        yield list(json_lines(top, model.shown_names, ids, model.label_ids))


def write_answers(
    path: AnyPath, found: Iterable[Found], model: Model, style: TableStyle = WIDE, k: int | None = None
) -> Counts:
    """Write the labels of rows in the format of the file's suffix; only JSON lines can hold a bad line."""
    counts = Counts()
    if prediction_kind(path) == ".jsonl":
        write_lines(path, (line for lines in answer_lines(found, model, counts) for line in lines))
        return counts

    def answers() -> Iterator[Found]:
        for ids, top in found:
            if bad := next((id for id in ids if isinstance(id, BadLine)), None):
                raise FormatError(f"line {bad.line}: {bad.error}; only .jsonl can hold errors")
            counts.add(ids, top)
            yield ids, top

    write_found(path, answers(), model.n_labels, model.shown_names, style, k, model.label_ids)
    return counts
