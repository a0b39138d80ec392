"""Evaluate predictions against the true labels of a data set, block by block, or compare several."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError
from xmlpreck.data.dataset import TopK, take_rows
from xmlpreck.data.formats import drop_filtered, open_predictions
from xmlpreck.data.rows import RowSource, read_blocks
from xmlpreck.files.progress import progress_bar
from xmlpreck.metrics import BinScores, Difference, Meter, Scores, difference, sign_test
from xmlpreck.model import Model
from xmlpreck.model.choosing import Seen, seen_rows
from xmlpreck.model.label_rule import LabelRule

BLOCK_ROWS = 8192  # with 100 labels per row, a block takes 7 MB
CHANGED_ROWS = 10  # shown in a comparison


class LabelCounts(NamedTuple):
    """Number of training rows per label, and of all training rows."""

    counts: np.ndarray
    n_rows: int


def count_labels(source: RowSource, progress: bool = False) -> LabelCounts:
    """Count the rows of each label."""
    counts = np.zeros(source.n_labels, np.int64)
    with progress_bar(source.n_rows, "label frequencies", progress) as bar:
        for _, block in read_blocks(source, BLOCK_ROWS):
            counts += np.bincount(block.labels.indices, minlength=source.n_labels)
            bar.update(block.n_rows)
    return LabelCounts(counts, source.n_rows)


class Rankings:
    """Ranked labels of each row, from a prediction file or predicted by a model directory."""

    rule: LabelRule | None = None  # how many labels a model gives a row; None: k

    def __init__(
        self,
        path: str,
        source: RowSource,
        k: int,
        n_labels: int,
        *,
        fix: bool = False,
        n_threads: int = 1,
        auto: bool = False,
    ) -> None:
        """Open a model, which predicts k labels per row, or a file, which must have `n_labels` labels.

        With `auto` a model predicts as many labels as `optimize` has chosen for it.
        """
        self.path, self.source, self.k, self.n_threads = path, source, k, n_threads
        self.longest = 0  # longest list of labels so far
        self.model = Model.load(path) if Path(path).is_dir() else None
        if auto and self.model is not None:
            self.rule = self.model.label_rule
        names = source.label_names
        self.file = None if self.model else open_predictions(path, source.n_rows, n_labels, fix, label_names=names)
        # Whether the model was trained or tuned on these rows; unknown for a file.
        self.seen: Seen | None = None if self.model is None else seen_rows(self.model, source)

    def blocks(self) -> Iterator[TopK]:
        """Yield blocks of BLOCK_ROWS rows."""
        for top in self._rankings():
            self.longest = max(self.longest, int((top.labels >= 0).sum(axis=1).max(initial=0)))
            yield top

    def _rankings(self) -> Iterator[TopK]:
        if self.file is not None:
            yield from self.file.blocks(BLOCK_ROWS)
        if self.model is not None:
            for _, block in read_blocks(self.source, BLOCK_ROWS):
                top = self.model.predict_topk(block.rows, self.rule.k if self.rule else self.k, self.n_threads)
                yield self.rule.keep(top, self.model.calibration) if self.rule else top

    def notes(self, ks: Sequence[int]) -> list[str]:
        """List, after the last block: rows seen in training, repairs, and each k that the lists are too short for."""
        notes = [] if self.seen is None else self.seen.notes()
        repairs = self.file.repairs if self.file is not None else {}
        notes += [f"repaired: {what}: {number:,}" for what, number in repairs.items() if number]
        short = [str(k) for k in ks if k > self.longest and self.rule is None]  # a rule gives fewer on purpose
        if short:
            what = f"no row has more than {self.longest} predictions"
            notes.append(f"{what}: at k = {', '.join(short)} the missing ones count as wrong")
        return [f"{self.path}: {note}" for note in notes]


class ScoredBlock(NamedTuple):
    """Some rows: their true labels, and the predictions and statistics of each file."""

    first_row: int
    labels: csr_array
    tops: list[TopK]
    stats: list[np.ndarray]


def score_blocks(
    source: RowSource,
    predictions: Sequence[Iterable[TopK]],
    meters: Sequence[Meter],
    pairs: csr_array | None = None,
    progress: bool = False,
) -> Iterator[ScoredBlock]:
    """Add the predictions, in blocks of BLOCK_ROWS rows, to the meters; leave out the (row, label) `pairs`."""
    n_true = 0
    with progress_bar(source.n_rows, "evaluate", progress) as bar:
        for (start, block), *tops in zip(read_blocks(source, BLOCK_ROWS), *predictions, strict=True):
            labels = block.labels
            n_true += labels.nnz
            if pairs is not None:
                left_out = take_rows(pairs, start, start + block.n_rows)
                labels = csr_array(labels - labels.multiply(left_out))
                labels.eliminate_zeros()
                labels.sort_indices()
                tops = [drop_filtered(top, left_out) for top in tops]
            stats = [meter.add(top, labels) for meter, top in zip(meters, tops, strict=True)]
            yield ScoredBlock(start, labels, tops, stats)
            bar.update(block.n_rows)
    if source.n_rows and not n_true:
        raise InputError(f"none of the {source.n_rows:,} rows has a label to score predictions against")


def measure(
    source: RowSource,
    predictions: Iterable[TopK],
    meter: Meter,
    pairs: csr_array | None = None,
    progress: bool = False,
) -> Scores:
    """Compute all metrics of one file."""
    for _ in score_blocks(source, [predictions], [meter], pairs, progress):
        pass
    return meter.result()


class SignTest(NamedTuple):
    """Rows where the second file is better, rows where it is worse, and the p-value of no difference."""

    n_won: int
    n_lost: int
    p_value: float


@dataclass(frozen=True)
class ChangedRow:
    """A row that two files rank differently: its score in each, its true labels and the predictions of each."""

    row: int
    scores: tuple[float, float]
    truth: list[int]
    tops: tuple[list[int], list[int]]
    id: Any = None  # of the row, where it has one


@dataclass(frozen=True)
class Comparison:
    """One file against the first; differences are its value minus that of the first."""

    differences: dict[str, Difference]
    bins: dict[str, dict[str, Difference]]  # by label frequency
    signs: dict[str, SignTest]  # for the precision at each k
    changed: list[ChangedRow]  # largest change of nDCG at the largest k first

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "differences": {name: value._asdict() for name, value in self.differences.items()},
            "bins": {
                name: {metric: value._asdict() for metric, value in values.items()}
                for name, values in self.bins.items()
            },
            "sign_tests": {name: test._asdict() for name, test in self.signs.items()},
            "changed_rows": [asdict(row) for row in self.changed],
        }


def compare(
    source: RowSource,
    predictions: Sequence[Iterable[TopK]],
    new_meter: Callable[[], Meter],
    pairs: csr_array | None = None,
    progress: bool = False,
) -> tuple[list[Scores], list[Comparison]]:
    """Score each file, and compare all but the first with the first.

    `new_meter` must return meters of the same seed, so that they resample the same rows and differences are paired.
    """
    meters = [new_meter() for _ in predictions]
    if not meters[0].n_resamples:
        raise InputError("a comparison needs resamples: give 1 or more")
    rivals = [_RowComparison(meters[0].convention.precision, meters[0].ks) for _ in predictions[1:]]
    for block in score_blocks(source, predictions, meters, pairs, progress):
        first, *others = (meter.row_scores(stats) for meter, stats in zip(meters, block.stats, strict=True))
        for rival, other, top in zip(rivals, others, block.tops[1:], strict=True):
            rival.add(block, first, other, top)
    results = [meter.result() for meter in meters]
    return results, [rival.result(results[0], other) for rival, other in zip(rivals, results[1:], strict=True)]


class _RowComparison:
    """Two files row by row: the rows that each wins, and the rows that they rank most differently."""

    def __init__(self, precision: str, ks: Sequence[int]) -> None:
        self.k = ks[-1]
        self.won = dict.fromkeys((f"{precision}@{k}" for k in ks), 0)
        self.lost = dict(self.won)
        self.changed: list[tuple[float, int, ChangedRow]] = []  # a heap by (change, -row), smallest first

    def add(self, block: ScoredBlock, first: dict[str, np.ndarray], second: dict[str, np.ndarray], top: TopK) -> None:
        for name in self.won:
            self.won[name] += int(np.count_nonzero(second[name] > first[name]))
            self.lost[name] += int(np.count_nonzero(second[name] < first[name]))
        before, after = first[f"nDCG@{self.k}"], second[f"nDCG@{self.k}"]
        changes = np.abs(after - before)
        for index in np.argsort(-changes, kind="stable")[:CHANGED_ROWS].tolist():
            key = (float(changes[index]), -(block.first_row + index))
            if not changes[index] or (len(self.changed) == CHANGED_ROWS and key < self.changed[0][:2]):
                break
            start, stop = block.labels.indptr[index : index + 2]
            row = ChangedRow(
                row=block.first_row + index,
                scores=(float(before[index]), float(after[index])),
                truth=block.labels.indices[start:stop].tolist(),
                tops=(self._labels(block.tops[0], index), self._labels(top, index)),
            )
            (heapq.heappush if len(self.changed) < CHANGED_ROWS else heapq.heapreplace)(self.changed, (*key, row))

    def _labels(self, top: TopK, index: int) -> list[int]:
        labels = top.labels[index, : self.k]
        return labels[labels >= 0].tolist()

    def result(self, first: Scores, second: Scores) -> Comparison:
        bins = zip(first.bins, second.bins, strict=True)
        signs = {name: SignTest(won, lost := self.lost[name], sign_test(won, lost)) for name, won in self.won.items()}
        return Comparison(
            differences=_differences(first, second),
            bins={mine.name: _differences(mine, theirs) for mine, theirs in bins},
            signs=signs,
            changed=[row for *_, row in sorted(self.changed, key=lambda entry: entry[:2], reverse=True)],
        )


def _differences(first: Scores | BinScores, second: Scores | BinScores) -> dict[str, Difference]:
    """Compare each metric that was resampled."""
    return {
        name: difference(first.values[name].value, second.values[name].value, drawn, second.draws[name])
        for name, drawn in first.draws.items()
    }
