"""Convert a caller's matrix to rows that the kernels may trust; every public call goes through here."""

from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from xmlpreck.config import InputError
from xmlpreck.data.dataset import MAX_ID, Dataset, as_labels, build_csr, offsets_rise, row_of


def as_rows(matrix: Any, noun: str = "feature") -> csr_array:
    """Convert a matrix to float32 CSR with finite values and with ids in range and ascending within every row.

    Takes any scipy matrix, numpy array or nested list; values of repeated ids are summed, as scipy does. The entries
    of a matrix that is valid already are not copied.
    """
    if not issparse(matrix):
        matrix = _dense(matrix, noun)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise InputError(f"rows of {noun}s must be a matrix of numbers, but have {_shown(matrix)}")
    if matrix.shape[1] > MAX_ID:
        raise InputError(f"rows have {matrix.shape[1]} {noun}s: there may be at most {MAX_ID}")
    if matrix.format not in ("csr", "csc"):
        matrix = matrix.tocoo()  # by numpy, which checks its indices
    check_structure(matrix, noun)
    with np.errstate(over="ignore"):  # too large for float32: becomes infinite and is refused below
        rows = csr_array(matrix, dtype=np.float32)
    # A new object: scipy caches whether ids are sorted, even if they were changed since.
    n_entries = int(rows.indptr[-1])
    rows = build_csr(rows.data[:n_entries], rows.indices[:n_entries], rows.indptr, rows.shape)
    if not _ids_rise(rows):
        rows = rows.copy()
        rows.sum_duplicates()
    if not (finite := np.isfinite(rows.data)).all():
        entry = int(finite.argmin())
        what = f"{rows.data[entry]} for {noun} {rows.indices[entry]}"
        raise InputError(f"row {row_of(rows, entry)} has a value that is not a finite number: {what}")
    return rows


def as_relevance_rows(matrix: Any) -> csr_array:
    """Convert a matrix of relevance weights to CSR, positive where a label is relevant; refuse negative weights."""
    labels = as_rows(matrix, "label")
    if (labels.data > 0).all():
        return labels
    labels = labels.copy()
    labels.eliminate_zeros()
    if (negative := labels.data < 0).any():
        entry = int(negative.argmax())
        what = f"row {row_of(labels, entry)} has relevance {labels.data[entry]} for label {labels.indices[entry]}"
        raise InputError(f"{what}: it must be a positive number, or 0 if the label is not relevant")
    return labels


def as_label_rows(matrix: Any) -> csr_array:
    """Convert a matrix of labels to CSR of ones; a label is relevant where its value is not 0."""
    labels = as_rows(matrix, "label")
    return labels if (labels.data == 1).all() else as_labels(labels.copy())


def as_dataset(data: Dataset) -> Dataset:
    """Check a Dataset and convert its matrices."""
    rows, labels = as_rows(data.rows), as_relevance_rows(data.labels)
    if rows.shape[0] != labels.shape[0]:
        raise InputError(f"there are {rows.shape[0]} rows, but labels of {labels.shape[0]}")
    for names, matrix, noun in ((data.label_names, labels, "label"), (data.feature_names, rows, "feature")):
        if names is not None and len(names) != matrix.shape[1]:
            raise InputError(f"there are {len(names)} {noun} names, but {matrix.shape[1]} {noun}s")
    return data._replace(rows=rows, labels=labels)


def check_structure(matrix: Any, noun: str = "feature") -> None:
    """Refuse a CSR, CSC or COO matrix whose arrays are inconsistent: compiled code would read foreign memory."""
    if matrix.format == "coo":
        for ids, size, what in zip(matrix.coords, matrix.shape, ("row", noun), strict=True):
            _check_ids(ids, size, what)
        return
    if matrix.format not in ("csr", "csc"):
        return
    offsets, ids = matrix.indptr, matrix.indices
    n_major, n_minor = matrix.shape if matrix.format == "csr" else matrix.shape[::-1]
    n_entries = min(len(ids), len(matrix.data))
    fits = len(offsets) == n_major + 1 and offsets[-1] <= n_entries
    if not (fits and offsets_rise(offsets, int(offsets[-1]))):
        raise InputError(f"the offsets (indptr) of the rows of {noun}s do not rise from 0 to the number of entries")
    _check_ids(ids, n_minor, noun if matrix.format == "csr" else "row")


def _dense(matrix: Any, noun: str) -> csr_array:
    try:
        array = np.asarray(matrix)
    except ValueError as error:  # lists of unequal lengths
        raise InputError(f"rows of {noun}s must be a matrix of numbers: {error}") from None
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise InputError(f"rows of {noun}s must be a matrix of numbers, but have {_shown(array)}")
    with np.errstate(over="ignore"):
        return csr_array(array.astype(np.float32, copy=False))


def _shown(matrix: Any) -> str:
    return f"shape {tuple(matrix.shape)} and type {matrix.dtype}"


def _check_ids(ids: np.ndarray, size: int, noun: str) -> None:
    if len(ids) and (ids.min() < 0 or ids.max() >= size):
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise InputError(f"{noun} id {wrong} is out of range: there are {size} {noun}s, counted from 0")


def _ids_rise(rows: csr_array) -> bool:
    """Tell whether ids are ascending within every row."""
    falls = rows.indices[1:] <= rows.indices[:-1]
    starts = rows.indptr[1:-1]
    falls[starts[(starts > 0) & (starts < len(rows.indices))] - 1] = False  # from one row to the next
    return not falls.any()
