"""Rows that may be larger than memory, read block by block."""

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from xmlpreck.formats import Dataset
from xmlpreck.formats.dataset import stack_rows
from xmlpreck.formats.matrix import as_dataset

# mallopt's number for "from this size on, memory is mapped and not kept".
M_MMAP_THRESHOLD = -3


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
    """Some rows of a source, in their order there."""

    def __init__(self, source: RowSource, row_ids: np.ndarray) -> None:
        self.source, self.row_ids = source, row_ids
        self.n_rows, self.n_features, self.n_labels = len(row_ids), source.n_features, source.n_labels
        self.label_names, self.feature_names = source.label_names, source.feature_names

    def read(self, start: int, stop: int) -> Dataset:
        """Reads the source in steps of stop - start rows, so that far-apart rows need no more memory."""
        wanted = self.row_ids[start:stop]
        parts: list[Dataset] = []
        done = 0
        while done < len(wanted) or not parts:
            first = int(wanted[done]) if len(wanted) else 0
            taken = wanted[done : np.searchsorted(wanted, first + max(stop - start, 1))]
            block = self.source.read(first, int(taken[-1]) + 1 if len(taken) else first)
            parts.append(block._replace(rows=block.rows[taken - first], labels=block.labels[taken - first]))
            done += len(taken)
        return concatenate(parts)


def concatenate(parts: list[Dataset]) -> Dataset:
    """Rows of several blocks, one after the other."""
    if len(parts) == 1:
        return parts[0]
    rows, labels = (stack_rows([getattr(part, name) for part in parts]) for name in ("rows", "labels"))
    return parts[0]._replace(rows=rows, labels=labels)


def checked(source: RowSource) -> RowSource:
    """Return rows that the kernels may trust: those in memory go through the gate, readers of files have their own."""
    return as_dataset(source) if isinstance(source, Dataset) else source


def read_blocks(
    source: RowSource,
    block_rows: int,
    order: Iterable[int] | None = None,
    prepare: Callable[[Dataset], Any] = lambda block: block,
) -> Iterator[tuple[int, Any]]:
    """(first row, prepared rows) of each block of `block_rows` rows; the next one is read in the background."""
    blocks = range(-(-source.n_rows // block_rows)) if order is None else order
    starts = [int(block) * block_rows for block in blocks]

    def read(start: int) -> Any:
        return prepare(source.read(start, min(start + block_rows, source.n_rows)))

    with ThreadPoolExecutor(1) as reader:
        coming = [reader.submit(read, start) for start in starts[:1]]
        for start, following in zip(starts, [*starts[1:], None], strict=False):
            block = coming.pop().result()
            if following is not None:
                coming.append(reader.submit(read, following))
            yield start, block
            del block  # or three blocks would be alive


def give_memory_back() -> None:
    """Let glibc return every freed array to the system at once.

    As large arrays are freed it raises the size from which it does so, and then keeps them: a training process
    with blocks of 14 MB peaked at 587 MB instead of 443. For programs of our own; a library must not set this.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # other C libraries do not have it
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
