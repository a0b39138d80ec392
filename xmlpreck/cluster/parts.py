"""Some labels of a model: how many parts, where they are cut, and how the parts' predictions become one."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xmlpreck.cluster.session import Session
from xmlpreck.config import InputError
from xmlpreck.data.dataset import check_offsets
from xmlpreck.data.formats import TopK
from xmlpreck.kernels.arrays import no_weights
from xmlpreck.model import Model
from xmlpreck.model.directory import (
    ARRAYS,
    check_arrays,
    lay_out_arrays,
    map_array,
    open_head,
    read_calibration,
    read_model_vocabulary,
    read_names,
    read_transform,
)
from xmlpreck.model.layout import DENSE_SHARE_PREDICTING
from xmlpreck.model.seal import ModelError

MODEL_SHARE = 1.5  # of a model's bytes must fit a node, which has rows and buffers, too
CHUNK = 1 << 24  # weights that are read together as labels are counted and cut


class Part(NamedTuple):
    """The labels `first` to `last - 1`; a worker that has all labels has no Part."""

    first: int
    last: int
    n_weights: int


def open_without_weights(folder: str | Path, verify: bool = False) -> Model:
    """Open a model without weights and features: enough to write predictions, small for any number of labels."""
    folder = Path(folder)
    about, rows, n_features, n_labels, names = open_head(folder, verify)
    return Model(
        no_weights(n_features + (rows.bias > 0), n_labels),
        rows,
        label_names=read_names(folder / "labels.txt", n_labels) if "labels.txt" in names else None,
        info={name: about[name] for name in ("config", "data", "updates", "chosen_on") if name in about},
        calibration=read_calibration(folder, names, n_labels),
        vocabulary=read_model_vocabulary(folder, names, n_labels),
        dense_transform=read_transform(folder, names, rows),
    )


def choose_parts(session: Session, folder: Path, n_labels: int, n_parts: int | None) -> list[Part | None]:
    """Choose the label shards: as many as asked for, else one, or as few as the smallest node can hold."""
    if n_parts is None:
        n_bytes = MODEL_SHARE * _bytes_in_memory(folder, n_labels)
        smallest = min(session.nodes(), key=lambda node: node.memory)
        n_parts = max(1, min(n_labels, -int(-n_bytes // max(smallest.memory, 1))))
        if n_parts > 1:
            needs = f"{folder} needs {n_bytes / 2**30:.1f} GB, but node {smallest.name} has "
            session.tell(f"{needs}{smallest.memory / 2**30:.1f} GB: its labels are parted into {n_parts} label shards")
    return [None] if n_parts == 1 else [*part_labels(folder, n_labels, n_parts)]


def _map_arrays(folder: Path) -> list[np.ndarray]:
    """Map the arrays of a model from disk, and check what is needed to cut them."""
    arrays = [map_array(folder, name) for name in ARRAYS]
    offsets, labels, values = arrays
    are_lists = all(array.ndim == 1 for array in arrays) and len(offsets) > 0
    if not are_lists or offsets.dtype.str != "<i8" or labels.dtype.str not in ("<u2", "<i4"):
        raise ModelError(f"{folder}: offsets and labels are not lists of whole numbers")
    try:
        check_offsets(offsets, len(labels))
    except ValueError as error:
        raise ModelError(f"{folder / ARRAYS[0]}.npy: {error}") from None
    if len(labels) != len(values):
        raise ModelError(f"{folder}: {len(values)} weights for {len(labels)} labels")
    return arrays


def _bytes_in_memory(folder: Path, n_labels: int) -> int:
    """8 bytes for a weight, and the size of a stored weight for each cell of a dense row."""
    offsets, labels, values = _map_arrays(folder)
    n_dense = int((np.diff(offsets) * DENSE_SHARE_PREDICTING > n_labels).sum())
    return 8 * len(labels) + values.itemsize * n_dense * n_labels


def part_labels(folder: Path, n_labels: int, n_parts: int) -> list[Part]:
    """Divide the labels into contiguous parts with about the same number of weights."""
    if n_parts > n_labels:
        raise InputError(f"{n_labels} labels cannot be parted into {n_parts} label shards")
    _, labels, _ = _map_arrays(folder)
    counts = np.zeros(n_labels, np.int64)
    for start in range(0, len(labels), CHUNK):
        chunk = labels[start : start + CHUNK]
        if chunk.min() < 0 or chunk.max() >= n_labels:
            raise ModelError(f"{folder}: a label is not within 0 to {n_labels - 1}")
        counts += np.bincount(chunk, minlength=n_labels)
    before = np.concatenate([[0], np.cumsum(counts)])
    # A label without weights costs something, too: its score.
    edges = cut_evenly(counts + 1, n_parts)
    return [Part(a, b, int(before[b] - before[a])) for a, b in pairwise(edges)]


def cut_evenly(costs: np.ndarray, n_parts: int) -> list[int]:
    """Return the edges of contiguous parts of about the same cost, with one item or more each."""
    before = np.concatenate([[0], np.cumsum(costs)])
    # The nearest edge to each equal share.
    edges = np.searchsorted((before[1:] + before[:-1]) / 2, before[-1] * np.arange(n_parts + 1) / n_parts)
    edges[0], edges[-1] = 0, len(costs)
    edges = np.maximum.accumulate(edges - np.arange(n_parts + 1))
    return (np.minimum(edges, len(costs) - n_parts) + np.arange(n_parts + 1)).tolist()


def load_part(folder: Path, part: Part) -> Model:
    """Load the weights of some labels; those of others are only read in chunks."""
    bare = open_without_weights(folder)
    offsets, labels, values = _map_arrays(folder)
    kept_labels, kept_values = np.empty(part.n_weights, np.int32), np.empty(part.n_weights, values.dtype)
    kept_offsets = np.zeros(len(offsets), np.int64)
    n_kept = 0
    for start in range(0, len(labels), CHUNK):
        chunk = labels[start : start + CHUNK]
        kept = (chunk >= part.first) & (chunk < part.last)
        before = np.concatenate([[0], np.cumsum(kept)])
        inside = slice(*np.searchsorted(offsets, (start + 1, start + len(chunk) + 1)))
        kept_offsets[inside] = n_kept + before[offsets[inside] - start]
        end = n_kept + int(before[-1])
        kept_labels[n_kept:end], kept_values[n_kept:end] = chunk[kept] - part.first, values[start : start + CHUNK][kept]
        n_kept = end
    arrays: dict[str, np.ndarray] = dict(zip(ARRAYS, (kept_offsets, kept_labels, kept_values), strict=True))
    check_arrays(folder, arrays, len(offsets) - 1, part.last - part.first)
    weights = lay_out_arrays(kept_offsets, kept_labels, kept_values, part.last - part.first)
    return Model(weights, bare.rows, dense_transform=bare.dense_transform)


def among_all(top: TopK, first: int) -> TopK:
    """Return the labels of a part that begins at `first` by their ids among all labels."""
    return top._replace(labels=np.where(top.labels < 0, -1, top.labels + np.int32(first)))


def merge(parts: Sequence[TopK], k: int) -> TopK:
    """Merge the k best of all parts, given by ascending labels: a stable sort leaves the lower of two equals first."""
    if len(parts) == 1:
        return parts[0]
    labels, scores = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return TopK(np.take_along_axis(labels, best, axis=1), np.take_along_axis(scores, best, axis=1))
