"""Read y of any kind as rows of labels, and write predicted labels in the kind that was fitted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, csr_matrix, issparse, isspmatrix
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from xmlpreck.config import InputError
from xmlpreck.data.dataset import build_csr
from xmlpreck.data.matrix import as_relevance_rows

Features: TypeAlias = npt.ArrayLike | csr_array  # a numpy array, a scipy matrix, a DataFrame of pandas or polars
Labels: TypeAlias = npt.ArrayLike | csr_array | Sequence[Iterable[Any]]
Predicted: TypeAlias = np.ndarray | csr_array | list[list[Any]]  # or a DataFrame, where y was one

# Kinds of y. `predict` returns the kind that was fitted.
CLASSES = "classes"  # one class a row
LISTS = "lists"  # a list of lists of labels
OBJECTS = "objects"  # a numpy array of lists of labels
DENSE = "dense"
ARRAY, MATRIX = "array", "matrix"  # sparse, of scipy
FRAMES = ("pandas", "polars")
SPARSE_FRAME = "pandas-sparse"
NAMED_KINDS = (CLASSES, LISTS, OBJECTS, *FRAMES, SPARSE_FRAME)
KINDS = (*NAMED_KINDS, DENSE, ARRAY, MATRIX)


@dataclass(frozen=True)
class Target:
    """The labels of y as CSR, and what is needed to return predictions in the same kind."""

    kind: str
    dtype: np.dtype | None  # of an indicator
    classes: np.ndarray  # the label of each column
    labels: csr_array  # float32 relevance, above 0

    @property
    def has_names(self) -> bool:
        """Tell whether the columns are known by their labels, and not by their position alone."""
        return self.kind in NAMED_KINDS

    def take(self, row_ids: np.ndarray, keep_classes: bool = False) -> "Target":
        """Return these rows; classes that only other rows have are left out, unless they are to be kept."""
        labels = self.labels[row_ids]
        if keep_classes or self.kind not in (CLASSES, LISTS, OBJECTS):
            return replace(self, labels=labels)
        used, ids = np.unique(labels.indices, return_inverse=True)
        shape = (labels.shape[0], len(used))
        return replace(self, classes=self.classes[used], labels=build_csr(labels.data, ids, labels.indptr, shape))


def read_target(y: Labels, lists: bool = False) -> Target:
    """Tell the kinds of y apart; `lists`: a list of lists holds labels, even where it looks like an indicator."""
    given: Any = y
    if given is None:
        raise InputError("training requires y to be passed, but the target y is None")
    if issparse(given):
        return _read_sparse(given)
    library = type(given).__module__.partition(".")[0]
    if library in FRAMES and hasattr(given, "columns") and len(given.columns) > 1:
        return _read_frame(given, library)
    is_nested = isinstance(given, list | tuple) and any(map(_is_collection, given))
    if is_nested and (lists or not _looks_like_indicator(given)):
        return _read_lists(given, LISTS)
    array = np.asarray(given)
    if array.dtype == object and array.ndim and array.size == len(array) and any(map(_is_collection, array.ravel())):
        return _read_lists(list(array.ravel()), OBJECTS if isinstance(given, np.ndarray) else LISTS)
    if array.ndim == 2 and array.shape[1] > 1:
        return _read_dense(array, DENSE, np.arange(array.shape[1]))
    array = column_or_1d(array, warn=True)
    assert_all_finite(array, input_name="y")
    check_classification_targets(array)
    classes, ids = np.unique(array, return_inverse=True)
    return Target(CLASSES, array.dtype, classes, _ones(ids, np.arange(len(array) + 1), len(classes)))


def _is_collection(row: object) -> bool:
    return np.iterable(row) and not isinstance(row, str | bytes)


def _looks_like_indicator(rows: Sequence[Any]) -> bool:
    """Equally long, only 0 and 1: as lists of labels, rows of three and more would name a label twice."""
    lengths = {len(row) if isinstance(row, list | tuple | np.ndarray) else 0 for row in rows}
    return len(lengths) == 1 and lengths.pop() > 1 and all(label in (0, 1) for label in chain.from_iterable(rows))


def _read_sparse(y: csr_array) -> Target:
    """Read a sparse matrix: its values say how relevant each label is to its row."""
    labels = as_relevance_rows(y).copy()  # joblib hands out large arrays as read-only maps
    return Target(MATRIX if isspmatrix(y) else ARRAY, y.dtype, np.arange(labels.shape[1]), labels)


def _read_dense(y: np.ndarray, kind: str, classes: np.ndarray) -> Target:
    if y.ndim != 2 or y.dtype.kind not in "biuf":
        raise InputError(f"an indicator y must be a matrix of 0 and 1, but has shape {y.shape} and type {y.dtype}")
    _check_ones(y[y != 0])
    labels = csr_array(y, dtype=np.float32)
    return Target(kind, y.dtype, classes, _ones(labels.indices, labels.indptr, y.shape[1]))


def _check_ones(values: np.ndarray) -> None:
    wrong = values[values != 1]
    if wrong.size:
        raise InputError(
            f"an indicator y must be a matrix of 0 and 1, but holds {wrong[0]:g}: relevances go into a sparse matrix"
        )


def _read_frame(y: Any, library: str) -> Target:
    """Read a DataFrame of 0 and 1; the names of its columns are the labels."""
    names = list(y.columns)
    if len(set(names)) < len(names):
        raise InputError("y has two columns of one name: every column is a label")
    classes = np.array(names)
    if classes.ndim > 1:  # pandas: a name of several levels is a tuple
        raise InputError("the columns of y have names of several levels: give each label one name")
    if getattr(y, "sparse", None) is not None:  # of pandas, where all columns are sparse
        found = replace(_read_sparse(y.sparse.to_coo()), kind=SPARSE_FRAME, classes=classes)
        _check_ones(found.labels.data)
        return found
    values = np.asarray(y)
    if values.dtype == object:  # pandas has integers that may be missing
        try:
            values = values.astype(np.float32)
        except (TypeError, ValueError):
            raise InputError("a DataFrame y must hold 0 and 1, a column for each label") from None
    return _read_dense(values, library, classes)


def _entries(row: Iterable[Any]) -> list[tuple[Any, float]]:
    """Return (label, relevance) pairs of a row: a dict, or a collection of labels or of such pairs."""
    if isinstance(row, dict):
        return list(row.items())
    items = row.tolist() if isinstance(row, np.ndarray) else row
    return [item if type(item) is tuple and len(item) == 2 else (item, 1.0) for item in items]


def _read_lists(y: Sequence[Any], kind: str) -> Target:
    try:
        rows = [_entries(row) for row in y]
        names = sorted({name for row in rows for name, _ in row})
        column_of = {name: column for column, name in enumerate(names)}
        sorted_rows = [sorted((column_of[name], float(relevance)) for name, relevance in row) for row in rows]
    except (TypeError, ValueError) as error:
        raise InputError(f"y must be lists of labels, all of them numbers or all of them text: {error}") from None
    for i, row in enumerate(sorted_rows):
        if len({column for column, _ in row}) < len(row):
            raise InputError(f"row {i} of y names a label twice; give an indicator as a numpy array or sparse matrix")
    flat = list(chain.from_iterable(sorted_rows))
    values = np.array([relevance for _, relevance in flat], np.float32)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in sorted_rows])])
    ids = np.array([column for column, _ in flat], np.int32)
    labels = build_csr(values, ids, offsets, (len(rows), len(names)))
    return Target(kind, None, np.array(names), as_relevance_rows(labels))


def _ones(ids: np.ndarray, offsets: np.ndarray, n_labels: int) -> csr_array:
    return build_csr(np.ones(len(ids), np.float32), ids, offsets, (len(offsets) - 1, n_labels))


def align(target: Target, classes: np.ndarray, kind: str, drop_unknown: bool = False) -> csr_array:
    """Return the labels of y with the columns of a model's classes; unknown ones are an error, or left out.

    `kind` is the one that was fitted: where it had no names, the columns of a DataFrame go by their position.
    """
    is_frame = target.kind in (*FRAMES, SPARSE_FRAME)
    if not target.has_names or (is_frame and kind not in NAMED_KINDS):
        if len(target.classes) != len(classes):
            raise InputError(f"y has {len(target.classes)} columns, but there are {len(classes)} classes")
        return target.labels
    column_of = {name: column for column, name in enumerate(classes.tolist())}
    new_ids = np.array([column_of.get(name, -1) for name in target.classes.tolist()], np.int32)
    unknown = target.classes[new_ids < 0]
    if len(unknown) and not drop_unknown:
        shown = ", ".join(map(repr, unknown[:5].tolist())) + (", ..." if len(unknown) > 5 else "")
        raise InputError(f"y has {len(unknown)} labels that are not among the classes of the first call: {shown}")
    ids = new_ids[target.labels.indices]
    offsets = np.concatenate([[0], np.cumsum(ids >= 0)])[target.labels.indptr]
    shape = (len(offsets) - 1, len(classes))
    labels = build_csr(target.labels.data[ids >= 0], ids[ids >= 0], offsets, shape)
    labels.sort_indices()  # the columns of a DataFrame may be in another order
    return labels


def as_kind(kind: str, dtype: np.dtype | None, classes: np.ndarray, values: csr_array, X: Features) -> Predicted:
    """Return a matrix with a column for each class as the kind of indicator that was fitted."""
    values = values if dtype is None else values.astype(dtype)
    if kind == DENSE:
        return values.toarray()
    if kind in (*FRAMES, SPARSE_FRAME):
        frames = import_module(kind.partition("-")[0])
        if kind == "polars":
            return frames.DataFrame(values.toarray(), schema=classes.tolist())
        index = getattr(X, "index", None) if type(X).__module__.startswith("pandas") else None
        named = {"columns": classes.tolist(), "index": index}
        if kind == SPARSE_FRAME:
            return frames.DataFrame.sparse.from_spmatrix(values, **named)
        return frames.DataFrame(values.toarray(), **named)
    return csr_matrix(values) if kind == MATRIX else values


def as_lists(kind: str, names: np.ndarray) -> Predicted:
    """Return rows of labels as lists, or as a numpy array of lists where y was one."""
    rows: list[list[Any]] = names.tolist()
    if kind == LISTS:
        return rows
    array = np.empty(len(rows), object)
    array[:] = rows
    return array


def indicator_of(columns: np.ndarray, n_labels: int) -> csr_array:
    """Return rows of column ids as CSR of ones."""
    n_rows, k = columns.shape
    return _ones(np.sort(columns, axis=1).ravel(), np.arange(n_rows + 1) * k, n_labels)
