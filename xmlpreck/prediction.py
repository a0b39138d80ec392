"""Which labels a prediction has: all or some of them, so many, from which score on; block by block."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError
from xmlpreck.formats import TopK
from xmlpreck.formats.dataset import build_csr
from xmlpreck.formats.files import numbered_lines
from xmlpreck.formats.json_rows import as_matrix, line_batches, parse_row
from xmlpreck.model import LinearScorer, Shortlist, progress_bar
from xmlpreck.model.scorer import BLOCK_ROWS
from xmlpreck.shards import RowSource, read_blocks


@dataclass(frozen=True)
class Choice:
    """At most k labels a row, those whose score is `least` or more, but at least so many whatever their score.

    `bonus` (n_labels) is added to the scores; -inf bars a label. With `as_probabilities` the scores that come out, and
    `least`, are probabilities; the model must have been calibrated. With a shortlist, only its candidates are scored.
    """

    k: int = 5
    least: float = -math.inf
    at_least: int = 0
    bonus: np.ndarray | None = None
    as_probabilities: bool = False
    shortlist: Shortlist | None = None

    def predict(
        self, scorer: LinearScorer, rows: csr_array, n_threads: int = 1, candidates: TopK | None = None
    ) -> TopK:
        """The labels of some rows; with `candidates`, of those lists only."""
        if candidates is None:
            top = scorer.predict_topk(rows, self.k, n_threads, self.bonus, self.shortlist)
        else:
            top = scorer.rank_candidates(rows, listed(candidates, scorer.n_labels), self.k, self.bonus)
        return self.finish(top, scorer)

    def finish(self, top: TopK, scorer: LinearScorer) -> TopK:
        """The best labels of some rows, by their margins, as they are told."""
        if self.as_probabilities:
            if scorer.calibration is None:
                raise InputError("the model has no calibration: make one with xmlpreck calibrate, or ask for scores")
            top = scorer.calibration.probabilities(top)
        return keep_from(top, self.least, self.at_least)


def listed(top: TopK, n_labels: int) -> csr_array:
    """Lists of labels as the pattern of a matrix."""
    labels = np.sort(np.where(top.labels < 0, n_labels, top.labels), axis=1)
    chosen = labels < n_labels
    offsets = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))])
    return build_csr(np.ones(offsets[-1], np.float32), labels[chosen], offsets, (len(labels), n_labels))


def keep_from(top: TopK, least: float, at_least: int = 0) -> TopK:
    """Only the labels with a score of `least` or more, and the first `at_least` of each row."""
    kept = (top.scores >= least) | (np.arange(top.labels.shape[1]) < at_least)
    return TopK(np.where(kept, top.labels, -1).astype(np.int32), np.where(kept, top.scores, -np.inf).astype(np.float32))


def label_bonus(
    n_labels: int,
    only: Sequence[int] | None = None,
    exclude: Sequence[int] | None = None,
    weights: np.ndarray | None = None,
) -> np.ndarray | None:
    """ln(weight) of each label, as if its margin were log-odds; -inf for those that may not be predicted."""
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


def read_labels(path: str | Path, scorer: LinearScorer) -> list[int]:
    """Labels of a file, one a line: names, or ids where the model has no such name."""
    column_of = {name: column for column, name in enumerate(scorer.label_names or [])}
    labels = []
    for number, line in numbered_lines(path):
        if line in column_of:
            labels.append(column_of[line])
        elif line.isdecimal() and int(line) < scorer.n_labels:
            labels.append(int(line))
        else:
            raise InputError(f"{path}:{number}: {line[:60]!r} is no label of the model: give its name or its id")
    return labels


# Some rows and what each is called.
Batch = tuple[Sequence[Any], csr_array]


def source_batches(source: RowSource) -> Iterator[Batch]:
    """The rows of a source by their numbers; two blocks are in memory at a time."""
    for start, block in read_blocks(source, BLOCK_ROWS):
        yield range(start, start + block.n_rows), block.rows


def text_batches(chunks: Iterable[list[str]], scorer: LinearScorer) -> Iterator[Batch]:
    """Texts as rows, by the model's own vectorizer; one chunk is in memory at a time."""
    if scorer.vectorizer is None:
        raise InputError("the model was trained on numbers, not on texts: give it rows of numbers")
    start = 0
    for texts in chunks:
        yield range(start, start + len(texts)), scorer.vectorizer.transform(texts)
        start += len(texts)


def json_batches(lines: Iterable[bytes], scorer: LinearScorer) -> Iterator[Batch]:
    """JSON lines as they come: texts for a model of texts, features and values for any."""
    column_of = {name: column for column, name in enumerate(scorer.feature_names or [])}
    number = 0
    for batch in line_batches(lines):
        parsed = []
        for line in batch:
            number += 1
            if line.strip():
                parsed.append(parse_row(line, f"line {number}", number - 1))
        for is_text, run in groupby(parsed, key=lambda row: row.text is not None):
            rows = list(run)
            if is_text:
                matrix = next(text_batches([[row.text or "" for row in rows]], scorer))[1]
            else:
                matrix = as_matrix(rows, scorer.n_features, column_of)
            yield [row.id for row in rows], matrix


def predict_batches(
    scorer: LinearScorer,
    batches: Iterable[Batch],
    choice: Choice,
    n_threads: int = 1,
    n_rows: int | None = None,
    candidates: Iterator[TopK] | None = None,
    progress: bool = False,
) -> Iterator[tuple[Sequence[Any], TopK]]:
    """The labels of rows that come batch by batch; `candidates` come in the same batches."""
    with progress_bar(n_rows, "predict", progress) as bar:
        for ids, rows in batches:
            lists = next(candidates) if candidates is not None else None
            yield ids, choice.predict(scorer, rows, n_threads, lists)
            bar.update(rows.shape[0])
