"""Training rows whose dense features are nearest to those of a row."""

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.data.rows import RowSource, read_blocks
from xmlpreck.model.model import Model

ROWS_AT_ONCE = 8192


class Neighbour(NamedTuple):
    """A training row: its id, or its number where it has none; the cosine of the dense features; its labels."""

    row: Any
    cosine: float
    labels: list[int]


def find_neighbours(model: Model, row: csr_array, source: RowSource, n: int) -> list[Neighbour]:
    """Return the n rows of a source with the highest cosine of the dense block, as it is scored; then the first."""
    first = model.n_features - model.rows.n_dense

    def directions(rows: csr_array) -> np.ndarray:
        dense = rows if model.dense_transform is None else model.dense_transform.apply(rows)
        block = dense[:, first:].toarray().astype(np.float64)
        lengths = np.sqrt((block * block).sum(axis=1, keepdims=True))
        return block / np.where(lengths > 0, lengths, 1)

    wanted = directions(row)[0]
    found: list[Neighbour] = []
    for start, block in read_blocks(source, ROWS_AT_ONCE):
        cosines = directions(block.rows) @ wanted
        for i in np.argsort(-cosines, kind="stable")[:n].tolist():
            row_id = start + i if block.row_ids is None else block.row_ids[i]
            labels = block.labels.indices[block.labels.indptr[i] : block.labels.indptr[i + 1]].tolist()
            found.append(Neighbour(row_id, float(cosines[i]), labels))
        found = sorted(found, key=lambda one: -one.cosine)[:n]
    return found
