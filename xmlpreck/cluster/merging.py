"""Merge the shards' answers: into the steps of a batch, and into the weights of all labels."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from xmlpreck.cluster.shard import Pairs
from xmlpreck.kernels import label_shards
from xmlpreck.kernels.arrays import (
    Batch,
    Proposals,
    Settings,
    Weights,
    max_pairs,
    new_batch,
    new_merged,
    sparse_weights,
)


class Chosen(NamedTuple):
    """The steps of some rows."""

    batch: Batch
    n_labels_of: np.ndarray  # (n_rows): how many relevant labels each row has
    hardest: np.ndarray  # (n_rows) int32: its best irrelevant label; -1 = none
    remembered: np.ndarray  # (n_rows, settings.n_remembered) int32: its best ones above 0, ascending, -1 in front


def choose(proposals: list[Proposals], settings: Settings, n_batches: int) -> Chosen:
    """Choose the steps of some rows of a batch from the proposals of all shards, after n_batches batches."""
    n_labels_of = np.sum([np.diff(each.pos_offsets) for each in proposals], axis=0)
    n_rows, max_labels = len(n_labels_of), max(int(n_labels_of.max(initial=0)), 1)
    merged = new_merged(n_rows, max_labels, settings)
    for each in proposals:
        label_shards.merge_proposals(each, merged)
    batch = new_batch(n_rows, max(n_rows, 1), max_pairs(settings, max_labels))
    label_shards.choose_rows(merged, settings, float(n_batches), batch)
    has_hardest = (n_labels_of > 0) & (merged.n_neg > 0)
    found = slice(0, settings.n_remembered)
    is_found = (np.arange(settings.n_remembered) < merged.n_neg[:, None]) & (merged.neg[:, found] > 0)
    is_found &= n_labels_of[:, None] > 0
    remembered = np.sort(np.where(is_found, merged.neg_labels[:, found], -1), axis=1)
    return Chosen(batch, n_labels_of, np.where(has_hardest, merged.neg_labels[:, 0], -1), remembered)


def split_pairs(chosen: Sequence[Chosen], ranges: Sequence[range]) -> list[Pairs]:
    """Divide the steps, the hardest and the remembered labels of rows among the shards."""
    batches, hardest = [each.batch for each in chosen], np.concatenate([each.hardest for each in chosen])
    remembered = np.concatenate([each.remembered for each in chosen])
    n_pairs = np.concatenate([batch.n_pairs[: len(batch.updated)] for batch in batches])
    is_pair = [np.arange(batch.pair_labels.shape[1]) < batch.n_pairs[:, None] for batch in batches]
    labels = np.concatenate([batch.pair_labels[mask] for batch, mask in zip(batches, is_pair, strict=True)])
    steps = np.concatenate([batch.pair_steps[mask] for batch, mask in zip(batches, is_pair, strict=True)])
    row_of = np.repeat(np.arange(len(n_pairs)), n_pairs)
    found = []
    for shard in ranges:
        mine = (labels >= shard.start) & (labels < shard.stop)
        counts = np.bincount(row_of[mine], minlength=len(n_pairs))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        hardest_here = np.where((hardest >= shard.start) & (hardest < shard.stop), hardest - shard.start, -1)
        found.append(
            Pairs(
                offsets,
                labels[mine] - np.int32(shard.start),
                steps[mine],
                hardest_here.astype(np.int32),
                _remembered_here(remembered, shard),
            )
        )
    return found


def _remembered_here(remembered: np.ndarray, shard: range) -> np.ndarray:
    """Return the ascending labels of each row that are a shard's, by their ids there, with -1 behind them."""
    is_here = (remembered >= shard.start) & (remembered < shard.stop)
    here = np.full((len(remembered), int(is_here.sum(axis=1).max(initial=0))), -1, np.int32)
    rows, columns = np.nonzero(is_here)
    index = (np.cumsum(is_here, axis=1) - 1)[rows, columns]
    here[rows, index] = remembered[rows, columns] - shard.start
    return here


def join_labels(parts: Sequence[dict[str, np.ndarray]], ranges: Sequence[range]) -> Weights:
    """Join the shards' weights: a feature's row is those of the shards, one after the other."""
    lengths = [np.diff(part["offsets"]) for part in parts]
    offsets = np.concatenate([[0], np.cumsum(np.sum(lengths, axis=0))])
    labels, values = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], parts[0]["values"].dtype)
    starts = offsets[:-1].copy()
    for part, length, shard in zip(parts, lengths, ranges, strict=True):
        positions = np.repeat(starts - part["offsets"][:-1], length) + np.arange(len(part["labels"]))
        labels[positions] = part["labels"] + np.int32(shard.start)
        values[positions] = part["values"]
        starts += length
    return sparse_weights(offsets, labels, values, ranges[-1].stop)
