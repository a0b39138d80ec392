"""Predictions against the true labels of a data set, block by block: measure them, or compare several."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError
from xmlpreck.data.dataset import take_rows
from xmlpreck.data.formats import TopK, drop_filtered, open_predictions
from xmlpreck.data.rows import RowSource, read_blocks
from xmlpreck.files.progress import progress_bar
from xmlpreck.metrics import BinScores, Difference, Meter, Scores, difference, sign_test
from xmlpreck.model import Model
from xmlpreck.model.choosing import Seen, seen_rows

BLOCK_ROWS = 8192  # a list of 100 labels a row takes 7 MB
SHOWN_ROWS = 10  # of a comparison, where two differ most


class LabelCounts(NamedTuple):
    """How many of the training rows have each label."""

    counts: np.ndarray
    n_rows: int


def count_labels(source: RowSource, progress: bool = False) -> LabelCounts:
    counts = np.zeros(source.n_labels, np.int64)
    with progress_bar(source.n_rows, "label frequencies", progress) as bar:
        for _, block in read_blocks(source, BLOCK_ROWS):
            counts += np.bincount(block.labels.indices, minlength=source.n_labels)
            bar.update(block.n_rows)
    return LabelCounts(counts, source.n_rows)


class Rankings:
    """The labels of each row, best first: from a prediction file, or from a model directory that predicts them now."""

    def __init__(
        self, path: str, source: RowSource, k: int, n_labels: int, *, fix: bool = False, n_threads: int = 1
    ) -> None:
        """A model predicts k labels a row; a file must be of `n_labels` labels."""
        self.path, self.source, self.k, self.n_threads = path, source, k, n_threads
        self.longest = 0  # list of labels so far
        self.model = Model.load(path) if Path(path).is_dir() else None
        self.file = None if self.model else open_predictions(path, source.n_rows, n_labels, fix=fix)
        # What the model knows of the rows; of a file that is not known.
        self.seen: Seen | None = None if self.model is None else seen_rows(self.model, source)

    def blocks(self) -> Iterator[TopK]:
        """Blocks of BLOCK_ROWS rows."""
        for top in self._rankings():
            self.longest = max(self.longest, int((top.labels >= 0).sum(axis=1).max(initial=0)))
            yield top

    def _rankings(self) -> Iterator[TopK]:
        if self.file is not None:
            yield from self.file.blocks(BLOCK_ROWS)
        if self.model is not None:
            for _, block in read_blocks(self.source, BLOCK_ROWS):
                yield self.model.predict_topk(block.rows, self.k, self.n_threads)

    def notes(self, ks: Sequence[int]) -> list[str]:
        """After the last block: rows that the model knows, what was mended, and which k the lists are too short for."""
        notes = [] if self.seen is None else [f"{self.path}: {text}" for text in self.seen.notes()]
        mended = self.file.repairs if self.file is not None else {}
        notes += [f"{self.path}: mended: {what}: {number:,}" for what, number in mended.items() if number]
        if short := [str(k) for k in ks if k > self.longest]:
            least = f"no row has more than {self.longest} predictions"
            notes.append(f"{self.path}: {least}: at k = {', '.join(short)} the places behind count as misses")
        return notes


class Judged(NamedTuple):
    """Some rows: their true labels, each file's ranking of them, and what each file's meter has found."""

    first_row: int
    labels: csr_array
    tops: list[TopK]
    stats: list[np.ndarray]


def judge(
    source: RowSource,
    predictions: Sequence[Iterable[TopK]],
    meters: Sequence[Meter],
    pairs: csr_array | None = None,
    progress: bool = False,
) -> Iterator[Judged]:
    """Feed each meter with its predictions, which come in blocks of BLOCK_ROWS rows.

    `pairs` are (row, label) to be left out, of the truth and of the predictions.
    """
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
            yield Judged(start, labels, tops, stats)
            bar.update(block.n_rows)
    if source.n_rows and not n_true:
        raise InputError(
            f"none of the {source.n_rows:,} rows has a label: there is nothing to score predictions against"
        )


def measure(
    source: RowSource,
    predictions: Iterable[TopK],
    meter: Meter,
    pairs: csr_array | None = None,
    progress: bool = False,
) -> Scores:
    """All metrics of one file."""
    for _ in judge(source, [predictions], [meter], pairs, progress):
        pass
    return meter.result()


class SignTest(NamedTuple):
    """Rows on which the second is better, rows on which it is worse, and the p-value of no difference."""

    n_won: int
    n_lost: int
    p_value: float


@dataclass(frozen=True)
class ChangedRow:
    """A row that two files rank differently: its score in each, its true labels and the labels of each."""

    row: int
    scores: tuple[float, float]
    truth: list[int]
    tops: tuple[list[int], list[int]]


@dataclass(frozen=True)
class Versus:
    """One file against the first of a comparison; differences are its own value minus that of the first."""

    differences: dict[str, Difference]
    bins: dict[str, dict[str, Difference]]  # by frequency of the labels
    signs: dict[str, SignTest]  # row by row, for the precision at each k
    changed: list[ChangedRow]  # by nDCG at the largest k, largest change first

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
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
) -> tuple[list[Scores], list[Versus]]:
    """The scores of each file, and each file but the first against the first.

    `new_meter` gives meters of the same seed: then they draw the same rows, and differences are paired.
    """
    meters = [new_meter() for _ in predictions]
    if not meters[0].n_resamples:
        raise InputError("a comparison needs resamples: say 1 or more")
    duels = [_Duel(meters[0].convention.precision, meters[0].ks) for _ in predictions[1:]]
    for judged in judge(source, predictions, meters, pairs, progress):
        first, *others = (meter.row_scores(stats) for meter, stats in zip(meters, judged.stats, strict=True))
        for duel, other, top in zip(duels, others, judged.tops[1:], strict=True):
            duel.add(judged, first, other, top)
    results = [meter.result() for meter in meters]
    return results, [duel.result(results[0], other) for duel, other in zip(duels, results[1:], strict=True)]


class _Duel:
    """Two files row by row: how many rows each wins, and the rows that they rank most differently."""

    def __init__(self, precision: str, ks: Sequence[int]) -> None:
        self.k = ks[-1]
        self.won = dict.fromkeys((f"{precision}@{k}" for k in ks), 0)
        self.lost = dict(self.won)
        self.changed: list[tuple[float, int, ChangedRow]] = []  # a heap by (change, -row): the least stands first

    def add(self, judged: Judged, first: dict[str, np.ndarray], second: dict[str, np.ndarray], top: TopK) -> None:
        for name in self.won:
            self.won[name] += int(np.count_nonzero(second[name] > first[name]))
            self.lost[name] += int(np.count_nonzero(second[name] < first[name]))
        before, after = first[f"nDCG@{self.k}"], second[f"nDCG@{self.k}"]
        changes = np.abs(after - before)
        for place in np.argsort(-changes, kind="stable")[:SHOWN_ROWS].tolist():
            rank = (float(changes[place]), -(judged.first_row + place))
            if not changes[place] or (len(self.changed) == SHOWN_ROWS and rank < self.changed[0][:2]):
                break
            tops = [self._listed(each, place) for each in (judged.tops[0], top)]
            start, stop = judged.labels.indptr[place : place + 2]
            row = ChangedRow(
                row=judged.first_row + place,
                scores=(float(before[place]), float(after[place])),
                truth=judged.labels.indices[start:stop].tolist(),
                tops=(tops[0], tops[1]),
            )
            (heapq.heappush if len(self.changed) < SHOWN_ROWS else heapq.heapreplace)(self.changed, (*rank, row))

    def _listed(self, top: TopK, place: int) -> list[int]:
        labels = top.labels[place, : self.k]
        return labels[labels >= 0].tolist()

    def result(self, first: Scores, second: Scores) -> Versus:
        bins = zip(first.bins, second.bins, strict=True)
        signs = {name: SignTest(won, lost := self.lost[name], sign_test(won, lost)) for name, won in self.won.items()}
        return Versus(
            differences=_differences(first, second),
            bins={mine.name: _differences(mine, theirs) for mine, theirs in bins},
            signs=signs,
            changed=[row for *_, row in sorted(self.changed, key=lambda entry: entry[:2], reverse=True)],
        )


def _differences(first: Scores | BinScores, second: Scores | BinScores) -> dict[str, Difference]:
    """For each metric that was resampled."""
    return {
        name: difference(first.values[name].value, second.values[name].value, drawn, second.draws[name])
        for name, drawn in first.draws.items()
    }
