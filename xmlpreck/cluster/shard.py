"""One shard of the labels, on a node: its weights, and what it does with each batch of rows, which it reads itself."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xmlpreck.cluster.parts import among_all
from xmlpreck.cluster.rows import Place
from xmlpreck.cluster.session import this_node
from xmlpreck.config import InputError, RunConfig
from xmlpreck.data.formats import Dataset, TopK
from xmlpreck.data.rows import RowSource, read_blocks
from xmlpreck.data.survey import Survey
from xmlpreck.files.contents import file_sha256
from xmlpreck.kernels import label_shards
from xmlpreck.kernels.arrays import AVERAGED, BLOCK, ELAPSED, SCALE, STEPS, Proposals, Rows, new_proposals, new_work
from xmlpreck.kernels.threads import run_team
from xmlpreck.machine import give_memory_back
from xmlpreck.model import Model, all_sparse
from xmlpreck.model.layout import ANY_SIZE
from xmlpreck.train.checkpoint import CheckpointError, read_arrays, write_arrays
from xmlpreck.train.passes import Cursor, shuffled_blocks
from xmlpreck.train.plan import Plan, default_limit, plan_run
from xmlpreck.train.run import open_training_rows
from xmlpreck.train.support import find_support
from xmlpreck.train.trainer import Trainer, pass_settings


class Pairs(NamedTuple):
    """The steps of a batch for one shard: row i has those from offsets[i] on, labels by their ids in the shard."""

    offsets: np.ndarray  # (n_rows + 1) int32
    labels: np.ndarray  # int32
    steps: np.ndarray
    hardest: np.ndarray  # (n_rows) int32: the best irrelevant label of each row; -1 = it has none here

    @property
    def n_bytes(self) -> int:
        return sum(array.nbytes for array in self)


class Census(NamedTuple):
    """How many rows have each label and each feature."""

    label_counts: np.ndarray
    feature_counts: np.ndarray


class Answer(NamedTuple):
    """What a shard says to a part of a batch, and the seconds that it took for that."""

    proposals: Proposals
    seconds: float


class LabelShard:
    """An actor with the weights of some labels. Calls come in order; what they did can be done again by another."""

    def __init__(self, number: int, place: Place, config: RunConfig, n_threads: int) -> None:
        give_memory_back()
        self.number, self.n_threads = number, n_threads
        self.config = replace(config, train=replace(config.train, threads=n_threads))
        self.place = place

    @cached_property
    def source(self) -> RowSource:
        """Opened by the first call: what an actor raises as it is made cannot be told from its loss."""
        return self.place.open()

    def count(self, blocks: Sequence[int]) -> Census:
        """A census of some blocks of the training rows."""
        rows, _ = open_training_rows(self.source, self.config)
        labels, features = np.zeros(rows.n_labels, np.int64), np.zeros(rows.n_features, np.int64)
        for _, block in read_blocks(rows.source, rows.block_rows, blocks):
            refuse_relevance(block)
            labels += np.bincount(block.labels.indices, minlength=len(labels))
            features[: block.rows.shape[1]] += np.bincount(block.rows.indices, minlength=block.rows.shape[1])
        return Census(labels, features)

    def find_support(self, labels: range, with_survey: bool) -> tuple[np.ndarray, dict[str, object] | None]:
        """Which features these labels may use; returns how many labels each feature has here, and a survey of all
        rows if wanted."""
        self.labels = labels
        self.rows, self.heldout = open_training_rows(self.source, self.config, labels)
        survey = Survey()
        every_block = range(self.rows.n_blocks)
        blocks = self.rows.blocks(every_block, survey.add) if with_survey else self.rows.blocks(every_block)
        sizes = (self.rows.n_features, self.rows.n_labels, self.n_threads)
        self.support = find_support((block for _, block in blocks), *sizes)
        if with_survey:
            survey.check_labels()
        return np.diff(self.support.offsets), survey.to_dict() if with_survey else None

    def prepare(self, is_dense: np.ndarray, feature_counts: np.ndarray) -> tuple[str, Plan]:
        """Weights of 0, dense for the features that have many labels among all shards; returns what will be needed.
        Counts are of the rows that have each feature."""
        limit, has_heldout = default_limit(), self.heldout.n_rows > 0
        plan = plan_run(self.support, self.rows, self.config.train, has_heldout, limit, feature_counts, is_dense)
        self.trainer = Trainer(self.support, self.config.train, is_dense=is_dense)
        del self.support
        return this_node(), plan

    def start(self, label_counts: np.ndarray) -> None:
        """The state before the first pass; counts are of this shard's labels."""
        self.trainer.start_at_centroids(self.rows, label_counts)

    def begin_pass(self, cursor: Cursor, batch: int) -> None:
        """Begin a pass, or go on in the midst of it; the next batch has this number."""
        train = self.config.train
        self.trainer.cursor = cursor
        self.trainer.prepare_pass(self.rows)
        no_weights = np.zeros(0, np.float32)  # who chooses the steps knows them
        first_block = self.labels.start // BLOCK
        settings = pass_settings(train, cursor.number, self.source.n_labels, no_weights)
        self.settings = settings._replace(first_block=first_block)
        self.batches = self._batches(replace(cursor))
        self.batch = batch - 1

    def _batches(self, cursor: Cursor) -> Iterator[tuple[int, Rows, np.ndarray]]:
        """(first row, rows from there on, those of the batch in order) of each batch that the pass has before it."""
        n_done = cursor.n_rows
        for start, block, order in shuffled_blocks(self.rows, self.config.train.seed, cursor):
            for first in range(n_done, len(order), self.config.train.batch_rows):
                yield start, block, order[first : first + self.config.train.batch_rows]
            n_done = 0

    def propose(self, batch: int, part: int, n_parts: int, pairs: Pairs | None) -> Answer:
        """Apply the steps of the batch before, if they come along; then score a part of the batch."""
        began = time.perf_counter()
        if pairs is not None:
            self.apply(pairs)
        if batch != self.batch:
            self._next_batch()
        start, rows, order = self.current
        size = -(-len(order) // n_parts)
        mine = order[part * size : (part + 1) * size]
        proposals = new_proposals(rows.label_offsets[mine + 1] - rows.label_offsets[mine], self.settings.k)
        settings = self.settings._replace(noise_key=self.settings.noise_key + np.uint64(start))
        learner, noise = self.trainer.learner, self.trainer.noise
        claimed, most_labels = np.zeros(1, np.int64), int(np.diff(proposals.pos_offsets).max(initial=0))

        def work(me: int) -> None:
            buffers = new_work(len(self.labels), settings.k, most_labels)
            label_shards.propose_rows(rows, mine, learner, settings, noise, buffers, claimed, proposals)

        run_team(self.n_threads, work)
        return Answer(proposals, time.perf_counter() - began)

    def _next_batch(self) -> None:
        self.current = next(self.batches)
        self.batch += 1

    def apply(self, pairs: Pairs) -> None:
        """The steps of the batch that was proposed last."""
        start, rows, order = self.current
        learner, n_threads = self.trainer.learner, self.n_threads
        # Ray's arrays are read-only: other types, for which numba would compile.
        steps = [np.array(each) for each in pairs[:3]]
        run_team(n_threads, lambda me: label_shards.apply_rows(me, n_threads, rows, order, learner, *steps))
        remembered = self.trainer.hardest_of(start, len(rows.offsets) - 1)
        if len(remembered):
            remembered[order] = pairs.hardest
        clock = learner.clock
        if self.settings.averaging:
            clock[ELAPSED] += clock[SCALE]
            clock[AVERAGED] += 1
        clock[STEPS] += 1

    def replay(self, batches: Sequence[Pairs]) -> None:
        """Batches whose steps are known already: nothing has to be scored."""
        for pairs in batches:
            self._next_batch()
            self.apply(pairs)

    def check_finite(self) -> None:
        self.trainer.check_finite()

    def write(self, folder: Path) -> dict[str, str]:
        """This shard's part of a checkpoint; returns the sha256 of its files."""
        return _written(folder, self.trainer.state(), self.number)

    def restore(self, folder: Path, cursor: Cursor) -> None:
        """Take over this shard's part of a checkpoint, written when the cursor stood there."""
        prefix = part_prefix(self.number)
        try:
            arrays = read_arrays(folder, prefix)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"node {this_node()}: {folder}: cannot be read: {error}") from None
        if not arrays:
            raise CheckpointError(
                f"node {this_node()}: {folder}: has no {prefix}*: --out must be on a filesystem that all nodes share"
            )
        self.trainer.restore(cursor, arrays, self.rows)

    def predict_heldout(self, start: int, stop: int, k: int) -> TopK:
        """The best labels of this shard for some held-out rows, by the mean of the weights so far."""
        rows = self.heldout.read(start, stop).rows
        top = Model(self.trainer.weights(), self.config.rows).predict_topk(
            rows, min(k, len(self.labels)), self.n_threads
        )
        return among_all(top, self.labels.start)

    def finish(self, folder: Path) -> dict[str, str]:
        """Write the weights that came out, pruned if asked for, feature by feature."""
        sparse = all_sparse(self.trainer.finish(), least=max(self.config.train.prune, ANY_SIZE))
        arrays = {"offsets": sparse.offsets, "labels": sparse.labels, "values": sparse.values}
        return _written(folder, arrays, self.number)


def refuse_relevance(block: Dataset) -> None:
    """Refuse labels of a relevance other than 1: the driver, which chooses the steps, does not have them."""
    if (block.labels.data != 1).any():
        raise InputError("relevance weights of labels work on one machine only: leave out --engine ray")


def part_prefix(number: int) -> str:
    return f"part-{number:05d}."


def _written(folder: Path, arrays: dict[str, Any], number: int) -> dict[str, str]:
    """Write arrays of a shard; they are on the disk, not only on their way, when this returns."""
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
    """The arrays of a part that another node wrote; they must be as they were there."""
    for name, digest in hashes.items():
        if file_sha256(folder / name) != digest:
            raise CheckpointError(f"{folder / name}: has changed on its way: is --out on a filesystem that all share?")
    return read_arrays(folder, part_prefix(number))
