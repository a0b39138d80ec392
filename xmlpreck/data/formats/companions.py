"""Read the files that evaluation needs beside a data set: pairs to leave out, and inverse propensities."""

import math
import re
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.data.dataset import TopK, build_csr
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.contents import numbered_lines

# Fifteen digits are far above any id and fit into int64.
_PAIR = re.compile(r"\s*([0-9]{1,15})(?:\s*,\s*|\s+)([0-9]{1,15})\s*")


def find_filter(folder: AnyPath, split: str) -> Path | None:
    """Find the file of pairs to leave out that the XML repository puts beside its `LF-` data sets."""
    path = Path(folder) / f"filter_labels_{split}.txt"
    return path if path.is_file() else None


def read_filter(path: AnyPath, n_rows: int, n_labels: int) -> csr_array:
    """Read pairs `row label`, one per line, as a boolean matrix: True = leave this label out."""
    pairs = []
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        found = _PAIR.fullmatch(line)
        if found is None:
            raise FormatError(f"{path}:{number}: {line[:40]!r} is not a pair: write two ids, row and label, from 0")
        pair = (int(found[1]), int(found[2]))
        for noun, id, size in zip(("row", "label"), pair, (n_rows, n_labels), strict=True):
            if id >= size:
                what = f"{noun} {id} is out of range: the data have {size} {noun}s"
                raise FormatError(f"{path}:{number}: {what}: use the filter of this split")
        pairs.append(pair)
    row, labels = np.unique(np.array(pairs, np.int64).reshape(-1, 2), axis=0).T
    offsets = np.searchsorted(row, np.arange(n_rows + 1))
    return build_csr(np.ones(row.size, bool), labels, offsets, (n_rows, n_labels))


def drop_filtered(top: TopK, pairs: csr_array) -> TopK:
    """Remove pairs from predictions; the labels after them move up, and -1 fills the end."""
    if len(top.labels) != pairs.shape[0]:
        raise FormatError(
            f"predictions have {len(top.labels)} rows, but the filter has {pairs.shape[0]}: cut both alike"
        )
    width = pairs.shape[1]
    row = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))
    key = np.arange(len(top.labels))[:, None] * width + top.labels
    # The key of an empty entry (-1) may be another pair's; it stays empty either way.
    kept = ~np.isin(key, row * width + pairs.indices)
    filled = np.arange(kept.shape[1]) < kept.sum(axis=1, keepdims=True)
    left = TopK(np.full_like(top.labels, -1), np.full_like(top.scores, -np.inf))
    left.labels[filled], left.scores[filled] = top.labels[kept], top.scores[kept]
    return left


def read_inverse_propensities(path: AnyPath, n_labels: int) -> np.ndarray:
    """Read 1 / propensity of each label, one number per line, in label order, as float64."""
    values = []
    for number, line in numbered_lines(path):
        try:
            value = float(line)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            what = f"{line[:40]!r} is not an inverse propensity: write one positive number per line"
            raise FormatError(f"{path}:{number}: {what}")
        values.append(value)
    if len(values) != n_labels:
        what = f"has {len(values)} inverse propensities, but the data have {n_labels} labels"
        raise FormatError(f"{path}: {what}: write one per line, in label order")
    return np.array(values, np.float64)
