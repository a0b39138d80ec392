"""Count and hash rows block by block, for the record that a model keeps of its training rows."""

import hashlib

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError
from xmlpreck.data.dataset import Dataset, row_of
from xmlpreck.data.rows import RowSource, read_blocks


def _plus(counts: np.ndarray, matrix: csr_array, weights: np.ndarray | None = None) -> np.ndarray:
    """Add the number of entries of each column, or the sum of their weights, to the counts."""
    found = np.bincount(matrix.indices, weights, minlength=matrix.shape[1])
    return found + counts if counts.size else found


class Survey:
    """Counts of rows, labels and features, and a hash that does not depend on sharding or file format."""

    def __init__(self) -> None:
        self.n_rows = 0
        self.n_rows_without_labels = 0
        self.label_counts, self.feature_counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.relevance_sums = np.zeros(0)  # equal to label_counts if all relevance weights are 1
        self.has_relevance = False
        self.digests = [hashlib.sha256() for _ in range(6)]

    def check_labels(self) -> None:
        """Refuse rows of which none has a label."""
        if self.n_rows_without_labels == self.n_rows:
            raise InputError(f"none of the {self.n_rows} rows has a label: there is nothing to learn")

    def add(self, block: Dataset) -> None:
        """Add the next rows; refuse a value that is not finite."""
        if not (finite := np.isfinite(block.rows.data)).all():
            row = self.n_rows + row_of(block.rows, int(finite.argmin()))
            raise InputError(f"row {row} has a value that is not a finite number")
        n_features_of, n_labels_of = np.diff(block.rows.indptr), np.diff(block.labels.indptr)
        self.n_rows += block.n_rows
        self.n_rows_without_labels += int(np.count_nonzero(n_labels_of == 0))
        self.label_counts = _plus(self.label_counts, block.labels)
        self.relevance_sums = _plus(self.relevance_sums, block.labels, block.labels.data)
        self.has_relevance = self.has_relevance or bool((block.labels.data != 1).any())
        self.feature_counts = _plus(self.feature_counts, block.rows)
        arrays = (
            n_features_of.astype(np.int64),
            block.rows.indices.astype(np.int32, copy=False),
            block.rows.data.astype(np.float32, copy=False),
            n_labels_of.astype(np.int64),
            block.labels.indices.astype(np.int32, copy=False),
            block.labels.data.astype(np.float32, copy=False),
        )
        for digest, array in zip(self.digests, arrays, strict=True):
            digest.update(array.tobytes())

    def to_dict(self) -> dict[str, object]:
        """Return the numbers of rows and the hash, for model.json."""
        digests = self.digests if self.has_relevance else self.digests[:-1]  # without weights: as in older versions
        together = hashlib.sha256(b"".join(digest.digest() for digest in digests))
        return {
            "n_rows": self.n_rows,
            "n_rows_without_labels": self.n_rows_without_labels,
            "sha256": together.hexdigest(),
        }


def survey_of(source: RowSource, block_rows: int) -> Survey:
    """Survey all rows in one pass."""
    survey = Survey()
    for _, block in read_blocks(source, block_rows):
        survey.add(block)
    survey.check_labels()
    return survey
