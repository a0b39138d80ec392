"""Put dense rows, such as embeddings, beside sparse ones: as the last features, which every row then has."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError
from xmlpreck.data.dataset import MAX_ID, Dataset, build_csr
from xmlpreck.data.formats.dense_files import checked_shape
from xmlpreck.data.rows import RowSource

NOTED = "n_dense"  # in the provenance of shards


def as_dense(matrix: Any, what: str = "dense") -> np.ndarray:
    """Check the shape and type of dense rows; `what` names them in errors."""
    try:
        return checked_shape(np.asarray(matrix), what)
    except ValueError as error:
        raise error if isinstance(error, InputError) else InputError(f"{what}: is no matrix: {error}") from None


def beside(rows: csr_array, dense: np.ndarray, what: str = "dense", first_row: int = 0) -> csr_array:
    """Append dense features to rows, zeros too; refuse values that float32 cannot hold, by row and column."""
    if len(dense) != rows.shape[0]:
        raise InputError(f"{what}: has {len(dense)} rows, but there are {rows.shape[0]} to put them beside")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(dense, np.float32)
    if not (finite := np.isfinite(values)).all():
        row, column = (int(i) for i in np.unravel_index(int(finite.argmin()), values.shape))
        hint = ": it may have overflowed float16: save float32" if dense.dtype == np.float16 else ""
        value = f"row {row + first_row} has the value {dense[row, column]} in column {column}"
        raise InputError(f"{what}: {value}, which is not a finite float32 number{hint}")
    (n_rows, n_sparse), n_dense = rows.shape, values.shape[1]
    if n_sparse + n_dense > MAX_ID:
        raise InputError(f"{what}: {n_sparse} and {n_dense} features are more than {MAX_ID}")
    offsets = rows.indptr.astype(np.int64) + n_dense * np.arange(n_rows + 1)
    is_dense = np.zeros(int(offsets[-1]), bool)
    is_dense[(offsets[1:, None] - n_dense + np.arange(n_dense)).reshape(-1)] = True
    features, together = np.empty(len(is_dense), np.int32), np.empty(len(is_dense), np.float32)
    features[is_dense] = np.tile(np.arange(n_sparse, n_sparse + n_dense, dtype=np.int32), n_rows)
    together[is_dense] = values.reshape(-1)
    features[~is_dense], together[~is_dense] = rows.indices, rows.data
    return build_csr(together, features, offsets, (n_rows, n_sparse + n_dense))


def dense_names(n_dense: int) -> list[str]:
    """Name the features of a dense block."""
    return [f"dense {i}" for i in range(n_dense)]


class RowsBeside:
    """The rows of a source, each with its dense features; read block by block."""

    def __init__(self, source: RowSource, dense: np.ndarray, what: str = "dense") -> None:
        if len(dense) != source.n_rows:
            raise InputError(f"{what}: has {len(dense)} rows, but there are {source.n_rows} to put them beside")
        self.source, self.dense, self.what = source, dense, what
        self.n_rows, self.n_labels = source.n_rows, source.n_labels
        self.n_features = source.n_features + dense.shape[1]
        names = source.feature_names
        self.label_names = source.label_names
        self.feature_names = None if names is None else [*names, *dense_names(dense.shape[1])]

    def read(self, start: int, stop: int) -> Dataset:
        block = self.source.read(start, stop)
        rows = beside(block.rows, self.dense[start:stop], self.what, start)
        return block._replace(rows=rows, feature_names=self.feature_names)


def stored_dense(source: object) -> int:
    """Count the dense features among those of a source: `data convert` notes it in the manifest of shards."""
    noted = getattr(source, "provenance", {}).get(NOTED)
    return noted if type(noted) is int and 0 < noted <= getattr(source, "n_features", 0) else 0


def chunks_beside(chunks: Iterable[Dataset], dense: np.ndarray, what: str) -> Iterator[Dataset]:
    """Yield the rows of consecutive chunks, each with its dense features."""
    n = 0
    for chunk in chunks:
        rows = beside(chunk.rows, dense[n : n + chunk.n_rows], what, n)
        names = chunk.feature_names
        names = None if names is None else [*names, *dense_names(dense.shape[1])]
        n += chunk.n_rows
        yield chunk._replace(rows=rows, feature_names=names)
    if n < len(dense):
        raise InputError(f"{what}: has {len(dense)} rows, but there are {n} to put them beside")


def put_beside(source: RowSource, dense: np.ndarray, what: str = "dense") -> RowSource:
    """Append dense features to the rows of a source: in memory if it is, else block by block."""
    joined = RowsBeside(source, dense, what)
    return joined.read(0, joined.n_rows) if isinstance(source, Dataset) else joined
