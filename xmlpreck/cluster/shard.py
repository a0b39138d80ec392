"""One shard of the labels, on a node: its weights, and the scores and steps of each batch of rows, which it reads."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xmlpreck.cluster.parts import among_all
from xmlpreck.cluster.rows import SharedRows
from xmlpreck.cluster.session import this_node
from xmlpreck.config import InputError, RunConfig
from xmlpreck.data.formats import Dataset, TopK
from xmlpreck.data.rows import RowSource, read_blocks
from xmlpreck.data.survey import Survey
from xmlpreck.files.contents import file_sha256
from xmlpreck.kernels import label_shards
from xmlpreck.kernels.arrays import BLOCK, Proposals, Rows, Settings, n_negatives, new_proposals, new_work, no_weights
from xmlpreck.kernels.threads import run_team
from xmlpreck.kernels.training import step_clock
from xmlpreck.machine import give_memory_back
from xmlpreck.model import Model, all_sparse
from xmlpreck.model.layout import ANY_SIZE, NO_ROWS
from xmlpreck.train.checkpoint import CheckpointError, read_arrays, write_arrays
from xmlpreck.train.passes import Cursor, PreparedRows, shuffled_blocks
from xmlpreck.train.plan import Plan, default_limit, plan_run
from xmlpreck.train.room import open_training_rows
from xmlpreck.train.support import find_support
from xmlpreck.train.trainer import Trainer, pass_settings


class Pairs(NamedTuple):
    """The steps of a batch for one shard: row i has those from offsets[i] on, labels by their ids in the shard."""

    offsets: np.ndarray  # (n_rows + 1) int32
    labels: np.ndarray  # int32
    steps: np.ndarray
    hardest: np.ndarray  # (n_rows) int32: the best irrelevant label of each row; -1 = it has none here
    remembered: np.ndarray  # (n_rows, most of a row) int32: what the pass remembers, ascending, -1 behind

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for array in self)


class Census(NamedTuple):
    """How many rows have each label and each feature."""

    label_counts: np.ndarray
    feature_counts: np.ndarray


class BatchRows(NamedTuple):
    """The rows of a batch: block[order], where the block begins at row `start`."""

    start: int
    block: Rows
    order: np.ndarray


class Answer(NamedTuple):
    """A shard's proposals for a part of a batch, and the seconds that they took."""

    proposals: Proposals
    seconds: float


class PassPosition:
    """Where a shard is within a pass: settings of the pass, and its batches in order."""

    def __init__(self, settings: Settings, batches: Iterator[BatchRows], next_batch: int) -> None:
        self.settings, self.batches, self.number = settings, batches, next_batch - 1
        self.current = BatchRows(0, NO_ROWS, NO_ROWS.features)

    def advance(self) -> None:
        self.current = next(self.batches)
        self.number += 1


class LabelShard:
    """An actor with the weights of some labels. Calls come in order; another actor can repeat them."""

    def __init__(self, number: int, shared: SharedRows, config: RunConfig, n_threads: int) -> None:
        give_memory_back()
        self.number, self.shared, self.n_threads = number, shared, n_threads
        self.config = replace(config, train=replace(config.train, threads=n_threads))
        self.labels = range(0)  # until find_support
        self.support = no_weights(0, 0)
        self.trainer = Trainer(self.support, self.config.train)  # until prepare
        self.position = PassPosition(self.trainer.pass_settings(), iter(()), 0)  # until begin_pass

    @cached_property
    def source(self) -> RowSource:
        """Opened by the first call: an error in the constructor looks like a lost actor."""
        return self.shared.open()

    @cached_property
    def opened(self) -> tuple[PreparedRows, RowSource]:
        """The rows to train on, with the labels of this shard, and the held-out ones."""
        return open_training_rows(self.source, self.config, self.labels)

    def count(self, blocks: Sequence[int]) -> Census:
        """Count labels and features in some blocks of the training rows."""
        rows, _ = open_training_rows(self.source, self.config)
        labels, features = np.zeros(rows.n_labels, np.int64), np.zeros(rows.n_features, np.int64)
        for _, block in read_blocks(rows.source, rows.block_rows, blocks):
            refuse_relevance(block)
            labels += np.bincount(block.labels.indices, minlength=len(labels))
            features[: block.rows.shape[1]] += np.bincount(block.rows.indices, minlength=block.rows.shape[1])
        return Census(labels, features)

    def find_support(self, labels: range, with_survey: bool) -> tuple[np.ndarray, dict[str, object] | None]:
        """Find the features that these labels may use.

        Returns the number of labels of each feature here, and a survey of all rows if asked for.
        """
        self.labels = labels
        rows, survey = self.opened[0], Survey()
        every_block = range(rows.n_blocks)
        blocks = rows.blocks(every_block, survey.add) if with_survey else rows.blocks(every_block)
        self.support = find_support((block for _, block in blocks), rows.n_features, rows.n_labels, self.n_threads)
        if with_survey:
            survey.check_labels()
        return np.diff(self.support.offsets), survey.to_dict() if with_survey else None

    def prepare(self, is_dense: np.ndarray, feature_counts: np.ndarray) -> tuple[str, Plan]:
        """Make weights of 0, dense for features with many labels among all shards; return what will be needed.

        feature_counts: number of rows per feature.
        """
        rows, heldout = self.opened
        train, limit = self.config.train, default_limit()
        plan = plan_run(self.support, rows, train, heldout.n_rows > 0, limit, feature_counts, is_dense)
        self.trainer = Trainer(self.support, train, is_dense=is_dense)
        self.trainer.scale_features(feature_counts[: self.source.n_features], rows.n_rows)
        self.support = no_weights(0, 0)
        return this_node(), plan

    def start(self, label_counts: np.ndarray) -> None:
        """Set the weights before the first pass; label_counts: rows of each label of this shard."""
        self.trainer.start_at_centroids(self.opened[0], label_counts)

    def begin_pass(self, cursor: Cursor, batch: int) -> None:
        """Begin a pass, or go on within it; the next batch has this number."""
        self.trainer.cursor = cursor
        self.trainer.prepare_pass(self.opened[0])
        unweighted = np.zeros(0, np.float32)  # the driver, which chooses the steps, has the labels' weights
        settings = pass_settings(self.config.train, cursor.number, self.source.n_labels, unweighted)
        settings = settings._replace(first_block=self.labels.start // BLOCK)
        self.position = PassPosition(settings, self._batches(replace(cursor)), batch)

    def _batches(self, cursor: Cursor) -> Iterator[BatchRows]:
        """Yield the batches that are left of the pass."""
        batch_rows, n_done = self.config.train.batch_rows, cursor.n_rows
        for start, block, order in shuffled_blocks(self.opened[0], self.config.train.seed, cursor):
            for first in range(n_done, len(order), batch_rows):
                yield BatchRows(start, block, order[first : first + batch_rows])
            n_done = 0

    def propose(self, batch: int, part: int, n_parts: int, pairs: Pairs | None) -> Answer:
        """Apply the steps of the batch before, if they come along; then score a part of the batch."""
        began = time.perf_counter()
        if pairs is not None:
            self.apply(pairs)
        if batch != self.position.number:
            self.position.advance()
        start, rows, order = self.position.current
        size = -(-len(order) // n_parts)
        mine = order[part * size : (part + 1) * size]
        settings = self.position.settings
        proposals = new_proposals(rows.label_offsets[mine + 1] - rows.label_offsets[mine], settings)
        settings = settings._replace(noise_key=settings.noise_key + np.uint64(start))
        learner, noise = self.trainer.learner, self.trainer.noise
        remembered = self.trainer.remembered_of(start, len(rows.offsets) - 1)
        claimed, max_labels = np.zeros(1, np.int64), int(np.diff(proposals.pos_offsets).max(initial=0))

        def work(thread: int) -> None:
            buffers = new_work(len(self.labels), n_negatives(settings), max_labels, n_weak=settings.n_weak)
            label_shards.propose_rows(rows, mine, learner, settings, noise, buffers, claimed, remembered, proposals)

        run_team(self.n_threads, work)
        return Answer(proposals, time.perf_counter() - began)

    def apply(self, pairs: Pairs) -> None:
        """Apply the steps of the batch that was proposed last."""
        start, rows, order = self.position.current
        learner, n_threads = self.trainer.learner, self.n_threads
        # Ray's arrays are read-only: other types, for which numba would compile.
        steps = [np.array(each) for each in pairs[:3]]
        run_team(n_threads, lambda thread: label_shards.apply_rows(thread, n_threads, rows, order, learner, *steps))
        hardest = self.trainer.hardest_of(start, len(rows.offsets) - 1)
        if len(hardest):
            hardest[order] = pairs.hardest
        if self.position.settings.n_remembered:
            remembered = self.trainer.remembered_of(start, len(rows.offsets) - 1)
            remembered[order] = -1
            remembered[order, : pairs.remembered.shape[1]] = pairs.remembered
        step_clock(learner.clock, self.position.settings.averaging)

    def replay(self, batches: Sequence[Pairs]) -> None:
        """Apply batches whose steps are known already, without scoring."""
        for pairs in batches:
            self.position.advance()
            self.apply(pairs)

    def check_finite(self) -> None:
        self.trainer.check_finite()

    def write(self, folder: Path) -> dict[str, str]:
        """Write this shard's part of a checkpoint; return the sha256 of its files."""
        return _written(folder, self.trainer.state(), self.number)

    def restore(self, folder: Path, cursor: Cursor) -> None:
        """Take over this shard's part of a checkpoint, written at this cursor."""
        prefix = part_prefix(self.number)
        try:
            arrays = read_arrays(folder, prefix)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"node {this_node()}: {folder}: cannot be read: {error}") from None
        if not arrays:
            raise CheckpointError(
                f"node {this_node()}: {folder}: has no {prefix}*: --out must be on a filesystem that all nodes share"
            )
        self.trainer.restore(cursor, arrays, self.opened[0])

    def predict_heldout(self, start: int, stop: int, k: int) -> TopK:
        """Predict the best labels of this shard for some held-out rows, by the mean of the weights so far."""
        rows = self.opened[1].read(start, stop).rows
        top = Model(self.trainer.weights(), self.config.rows).predict_topk(
            rows, min(k, len(self.labels)), self.n_threads
        )
        return among_all(top, self.labels.start)

    def finish(self, folder: Path) -> dict[str, str]:
        """Write the final weights, pruned if asked for, feature by feature."""
        sparse = all_sparse(self.trainer.finish(), min_size=max(self.config.train.prune, ANY_SIZE))
        arrays = {"offsets": sparse.offsets, "labels": sparse.labels, "values": sparse.values}
        return _written(folder, arrays, self.number)


def refuse_relevance(block: Dataset) -> None:
    """Refuse labels of a relevance other than 1: the driver, which chooses the steps, does not have them."""
    if (block.labels.data != 1).any():
        raise InputError("relevance weights of labels work on one machine only: leave out --engine ray")


def part_prefix(number: int) -> str:
    return f"part-{number:05d}."


def _written(folder: Path, arrays: dict[str, Any], number: int) -> dict[str, str]:
    """Write arrays of a shard, through to the disk."""
    try:
        hashes = write_arrays(folder, arrays, part_prefix(number))
        for name in hashes:
            with open(folder / name, "rb") as file:
                os.fsync(file.fileno())
    except FileNotFoundError:
        raise CheckpointError(
            f"node {this_node()}: {folder.parent}: is not there: --out must be on a filesystem that all nodes share"
        ) from None
    except OSError as error:
        raise CheckpointError(f"node {this_node()}: {folder}: cannot be written: {error.strerror or error}") from None
    return hashes


def check_part(folder: Path, number: int, hashes: dict[str, str]) -> dict[str, np.ndarray]:
    """Read the arrays of a part that another node wrote; they must be as they were there."""
    for name, digest in hashes.items():
        if file_sha256(folder / name) != digest:
            raise CheckpointError(f"{folder / name}: has changed on its way: is --out on a filesystem that all share?")
    return read_arrays(folder, part_prefix(number))
