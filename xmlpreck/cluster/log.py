"""What the driver keeps to bring a lost label shard back: how labels are divided, a checkpoint, and the steps since."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xmlpreck.cluster.shard import Census, Pairs
from xmlpreck.train.passes import Cursor

LOG_BYTES = 1 << 30  # of steps since the last checkpoint; with more, one is written
REPLAYED = 64  # batches in a message


class Begin(NamedTuple):
    """An entry of the log: a pass goes on from here, with a batch of this number."""

    cursor: Cursor
    batch: int


class Log:
    """The calls that bring a new shard to where the others are."""

    def __init__(self) -> None:
        self.census = Census(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self.ranges: list[range] = []  # the labels of each shard, once they are divided
        self.is_dense: np.ndarray | None = None
        self.is_started = False
        self.base: tuple[Path, Cursor] | None = None  # the last checkpoint, and how far it had come
        self.entries: list[Begin | list[Pairs]] = []  # since then, for every shard
        self.n_bytes, self.limit = 0, LOG_BYTES

    @property
    def n_batches(self) -> int:
        return sum(not isinstance(entry, Begin) for entry in self.entries)

    def begin_pass(self, cursor: Cursor, batch: int) -> Begin:
        begin = Begin(replace(cursor), batch)
        self.entries.append(begin)
        return begin

    def add(self, pairs: list[Pairs]) -> None:
        self.entries.append(pairs)
        self.n_bytes += sum(each.n_bytes for each in pairs)

    def restore(self, folder: Path, cursor: Cursor) -> tuple[Path, Cursor]:
        """Begin with a checkpoint; what was logged before it is not needed any more."""
        self.is_started, self.base = True, (folder.absolute(), replace(cursor))  # a node has another working directory
        self.entries, self.n_bytes, self.limit = [], 0, LOG_BYTES
        return self.base

    def put_off_checkpoint(self) -> None:
        """If a checkpoint cannot be written, do not try again after every batch."""
        self.limit = self.n_bytes + LOG_BYTES

    def label_counts(self, shard: int) -> np.ndarray:
        labels = self.ranges[shard]
        return self.census.label_counts[labels.start : labels.stop]

    def calls_for(self, shard: int) -> Iterator[tuple[Any, ...]]:
        """Yield the calls (method, arguments) that bring a new actor to where the others are."""
        if self.ranges:
            yield "find_support", self.ranges[shard], False
        if self.is_dense is not None:
            yield "prepare", self.is_dense, self.census.feature_counts
        if self.base is not None:
            yield "restore", *self.base
        elif self.is_started:
            yield "start", self.label_counts(shard)
        steps: list[Pairs] = []
        for entry in [*self.entries, None]:
            if not isinstance(entry, list) or len(steps) == REPLAYED:
                yield "replay", steps
                steps = []
            if isinstance(entry, Begin):
                yield "begin_pass", *entry
            elif entry is not None:
                steps.append(entry[shard])
