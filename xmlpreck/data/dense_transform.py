"""Centre or whiten the dense features of rows: learned from the training rows, kept in the model."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError, RowsConfig
from xmlpreck.data.dataset import Dataset
from xmlpreck.data.dense import beside
from xmlpreck.data.rows import RowSource, checked, read_blocks
from xmlpreck.files import read_errors
from xmlpreck.files.contents import load_array
from xmlpreck.kernels.whitening import add_moments, invert_cholesky, transform_rows

NO_MATRIX = np.zeros((0, 0))
# Share of the mean variance that is added to the variance of every direction, so that those of noise stay small.
RIDGE = 0.1
ROWS_AT_ONCE = 8192
FILES = ("dense_mean.npy", "dense_matrix.npy")


class DenseTransform(NamedTuple):
    """(x - mean) matrix, of the dense features x of a row; where they are all 0, the row has none and stays."""

    mean: np.ndarray  # (n_dense) float64
    matrix: np.ndarray  # (n_dense, n_dense) float64, zeros below the diagonal; (0, 0): rows are only centred

    def apply(self, rows: csr_array) -> csr_array:
        """Return rows whose last features are transformed."""
        n_sparse = rows.shape[1] - len(self.mean)
        dense = rows[:, n_sparse:].toarray().astype(np.float32, copy=False)
        found = np.empty_like(dense)
        with np.errstate(over="ignore"):
            transform_rows(dense, self.mean, self.matrix, found)
        return beside(rows[:, :n_sparse], found, f"rows after rows.dense_transform={self.kind}")

    @property
    def kind(self) -> str:
        return "whiten" if len(self.matrix) else "center"

    def save(self, folder: Path) -> None:
        """Write the arrays of the model directory."""
        for name, array in zip(FILES, self, strict=True):
            np.save(folder / name, array, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, rows: RowsConfig) -> "DenseTransform":
        """Read what `save` wrote; what does not fit the settings of the rows is refused by the name of its file."""
        side = rows.n_dense if rows.dense_transform == "whiten" else 0
        arrays = []
        for name, shape in zip(FILES, ((rows.n_dense,), (side, side)), strict=True):
            with read_errors(folder / name, InputError):
                array = load_array(folder / name, "c")
            if array.shape != shape or array.dtype.str != "<f8" or not np.isfinite(array).all():
                what = f"{shape} finite numbers of float64"
                raise InputError(f"{folder / name}: must hold {what}, but is {array.dtype} of shape {array.shape}")
            arrays.append(np.ascontiguousarray(array))
        return cls(*arrays)


def learn_transform(source: RowSource, config: RowsConfig) -> DenseTransform | None:
    """Learn what rows.dense_transform asks for from all rows of a source, block by block; None where it is "none"."""
    n_dense = config.n_dense
    if config.dense_transform == "none":
        return None
    if not n_dense:
        raise InputError(f"rows.dense_transform={config.dense_transform}: there are no dense features: see --dense")
    sums, products, n_rows = np.zeros(n_dense), np.zeros((n_dense, n_dense)), 0
    for _, block in read_blocks(checked(source), ROWS_AT_ONCE):
        dense = block.rows[:, block.n_features - n_dense :].toarray().astype(np.float32, copy=False)
        n_rows += add_moments(dense, sums, products)
    if n_rows < 2:
        raise InputError(f"rows.dense_transform={config.dense_transform}: needs two rows or more with dense features")
    mean = sums / n_rows
    if config.dense_transform == "center":
        return DenseTransform(mean, NO_MATRIX)
    covariance = products / n_rows - np.outer(mean, mean)
    variance = float(np.trace(covariance)) / n_dense
    if variance <= 0:
        raise InputError("rows.dense_transform=whiten: all rows have the same dense features")
    return DenseTransform(mean, invert_cholesky(covariance + RIDGE * variance * np.eye(n_dense)))


class TransformedRows:
    """Rows of a source whose dense features are transformed as they are read."""

    def __init__(self, source: RowSource, transform: DenseTransform) -> None:
        self.source, self.transform = source, transform
        self.n_rows, self.n_features, self.n_labels = source.n_rows, source.n_features, source.n_labels
        self.label_names, self.feature_names = source.label_names, source.feature_names

    def read(self, start: int, stop: int) -> Dataset:
        """Read rows start to stop - 1."""
        block = self.source.read(start, stop)
        return block._replace(rows=self.transform.apply(block.rows))


def transformed(source: RowSource, transform: DenseTransform | None) -> RowSource:
    """Return rows with transformed dense features: in memory if the source is, else block by block."""
    if transform is None:
        return source
    made = TransformedRows(checked(source), transform)
    return made.read(0, source.n_rows) if isinstance(source, Dataset) else made
