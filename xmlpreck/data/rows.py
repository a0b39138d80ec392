"""Read rows that may be larger than memory, block by block."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from xmlpreck.config import ConfigError
from xmlpreck.data.dataset import Dataset, build_csr, stack_rows
from xmlpreck.data.matrix import as_dataset


class RowSource(Protocol):
    """Rows that may be larger than memory: a Dataset, a ShardSet or a Subset."""

    @property
    def label_names(self) -> list[str] | None: ...
    @property
    def feature_names(self) -> list[str] | None: ...
    @property
    def n_rows(self) -> int: ...
    @property
    def n_features(self) -> int: ...
    @property
    def n_labels(self) -> int: ...
    def read(self, start: int, stop: int) -> Dataset: ...


class Subset:
    """Some rows of a source, in ascending order."""

    def __init__(self, source: RowSource, row_ids: np.ndarray) -> None:
        self.source, self.row_ids = source, row_ids
        self.n_rows, self.n_features, self.n_labels = len(row_ids), source.n_features, source.n_labels
        self.label_names, self.feature_names = source.label_names, source.feature_names

    def read(self, start: int, stop: int) -> Dataset:
        """Read the source in steps of stop - start rows, so that rows far apart need no more memory."""
        wanted = self.row_ids[start:stop]
        parts: list[Dataset] = []
        done = 0
        while done < len(wanted) or not parts:
            first = int(wanted[done]) if len(wanted) else 0
            taken = wanted[done : np.searchsorted(wanted, first + max(stop - start, 1))]
            block = self.source.read(first, int(taken[-1]) + 1 if len(taken) else first)
            chosen = taken - first
            parts.append(block._replace(rows=block.rows[chosen], labels=block.labels[chosen], row_ids=None))
            done += len(taken)
        return concatenate(parts)


class MoreLabels:
    """Rows of a source with columns behind their own for labels that none of them has."""

    def __init__(self, source: RowSource, n_labels: int, label_names: list[str] | None) -> None:
        self.source, self.n_labels, self.label_names = source, n_labels, label_names
        self.n_rows, self.n_features, self.feature_names = source.n_rows, source.n_features, source.feature_names

    def read(self, start: int, stop: int) -> Dataset:
        """Read rows start to stop - 1."""
        block = self.source.read(start, stop)
        labels = build_csr(block.labels.data, block.labels.indices, block.labels.indptr, (block.n_rows, self.n_labels))
        return block._replace(labels=labels, label_names=self.label_names)


def with_more_labels(source: RowSource, n_labels: int, label_names: list[str] | None) -> RowSource:
    """Return rows with at least `n_labels` columns of labels; `label_names` name all of these."""
    if source.n_labels >= n_labels:
        return source
    wider = MoreLabels(source, n_labels, label_names)
    return wider.read(0, source.n_rows) if isinstance(source, Dataset) else wider


def concatenate(parts: list[Dataset]) -> Dataset:
    """Concatenate the rows of several blocks."""
    if len(parts) == 1:
        return parts[0]
    rows, labels = (stack_rows([getattr(part, name) for part in parts]) for name in ("rows", "labels"))
    return parts[0]._replace(rows=rows, labels=labels, row_ids=None)


def checked(source: RowSource) -> RowSource:
    """Check rows that are in memory, so that the kernels may trust them; readers of files check their own."""
    return as_dataset(source) if isinstance(source, Dataset) else source


def read_blocks(
    source: RowSource,
    block_rows: int,
    order: Iterable[int] | None = None,
    prepare: Callable[[Dataset], Any] = lambda block: block,
) -> Iterator[tuple[int, Any]]:
    """Yield (first row, prepared rows) of each block of `block_rows` rows; the next is read in the background."""
    blocks = range(-(-source.n_rows // block_rows)) if order is None else order
    starts = [int(block) * block_rows for block in blocks]

    def read(start: int) -> Any:
        return prepare(source.read(start, min(start + block_rows, source.n_rows)))

    with ThreadPoolExecutor(1) as reader:
        pending = [reader.submit(read, start) for start in starts[:1]]
        for start, following in zip(starts, [*starts[1:], None], strict=False):
            block = pending.pop().result()
            if following is not None:
                pending.append(reader.submit(read, following))
            yield start, block
            del block  # or three blocks would be in memory


def split_heldout(source: RowSource, share: float, seed: int) -> tuple[RowSource, RowSource]:
    """Split into (rows to train on, rows held out), drawn by default_rng([seed, 0]); both keep their order."""
    n_heldout = round(source.n_rows * share)
    if share and source.n_rows and n_heldout in (0, source.n_rows):
        which = "none" if n_heldout == 0 else "all"
        raise ConfigError(
            f"train.heldout {share:g} of {source.n_rows:,} rows is {which} of them: give another share, or 0"
        )
    shuffled = np.random.default_rng([seed, 0]).permutation(source.n_rows)
    heldout = Subset(source, np.sort(shuffled[:n_heldout]))
    return (Subset(source, np.sort(shuffled[n_heldout:])) if n_heldout else source), heldout
