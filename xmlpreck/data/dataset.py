"""Define the data that all packages share: rows with labels, documents with label names, top labels per row."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.files import AnyPath, FormatError

MAX_ID = 2**31 - 1


class Dataset(NamedTuple):
    """Rows and their labels: float32 values, ascending int32 ids.

    A stored label is 1, or another positive number: its relevance, by which training multiplies its part of a step.
    """

    rows: csr_array
    labels: csr_array
    label_names: list[str] | None = None
    feature_names: list[str] | None = None
    row_ids: list[Any] | None = None  # of documents that have their own

    @property
    def n_rows(self) -> int:
        return int(self.rows.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.rows.shape[1])

    @property
    def n_labels(self) -> int:
        return int(self.labels.shape[1])

    def read(self, start: int, stop: int) -> "Dataset":
        """Return rows start to stop - 1."""
        if start == 0 and stop >= self.n_rows:
            return self
        row_ids = None if self.row_ids is None else self.row_ids[start:stop]
        return self._replace(rows=self.rows[start:stop], labels=self.labels[start:stop], row_ids=row_ids)


class Documents(NamedTuple):
    """Raw texts and the names of their labels; label ids of a file without names are written as decimal numbers."""

    texts: list[str]
    labels: list[list[str]]
    ids: list[Any] | None = None  # strings or numbers; None = rows are known by their numbers

    @property
    def n_rows(self) -> int:
        return len(self.texts)


class TopK(NamedTuple):
    """Top k labels per row, by descending score, then ascending id; -1 with score -inf = no label."""

    labels: np.ndarray
    scores: np.ndarray


class Sizes(NamedTuple):
    n_rows: int
    n_features: int
    n_labels: int


def check_count(value: object) -> int:
    """Return a number of rows, features or labels from a file; raise ValueError if it is not one."""
    if type(value) is not int or not 0 <= value <= MAX_ID:
        raise ValueError(f"{value!r:.40} is not a number of rows, features or labels")
    return value


def offsets_rise(offsets: np.ndarray, last: int, first: int = 0) -> bool:
    """Tell whether row offsets rise from `first` to `last`: compiled code trusts them.

    Neighbours are compared, not subtracted or converted, as both can overflow.
    """
    if offsets.ndim != 1 or not len(offsets) or offsets.dtype.kind not in "iu":
        return False
    return int(offsets[0]) == first and int(offsets[-1]) == last and not (offsets[1:] < offsets[:-1]).any()


def check_offsets(offsets: np.ndarray, last: int, first: int = 0) -> np.ndarray:
    """Return row offsets as int64; raise ValueError unless they rise from `first` to `last`."""
    if not offsets_rise(offsets, last, first):
        what = f"{offsets.dtype} of shape {offsets.shape}" if offsets.ndim != 1 else str(offsets.dtype)
        raise ValueError(f"the offsets ({what}) do not rise from {first} to {last}")
    return offsets.astype(np.int64, copy=False)


def build_csr(values: np.ndarray, ids: np.ndarray, offsets: np.ndarray, shape: tuple[int, int]) -> csr_array:
    """Build CSR with int32 ids; scipy uses one type for ids and offsets, so offsets are int32 too where they fit."""
    index = np.int32 if offsets[-1] <= MAX_ID else np.int64
    return csr_array((values, ids.astype(index, copy=False), offsets.astype(index, copy=False)), shape)


def row_of(matrix: csr_array, entry: int) -> int:
    """Return the row of a stored entry."""
    return int(np.searchsorted(matrix.indptr, entry, side="right")) - 1


def check_matrix(matrix: csr_array, path: AnyPath, noun: str, first_row: int = 0, is_text: bool = False) -> csr_array:
    """Sort ids within rows; refuse duplicate ids and values that are not finite.

    `first_row` is the number of the first row in errors: a line number if `is_text`, else a row number.
    """

    def error_at(entry: int, what: str) -> FormatError:
        row = row_of(matrix, entry) + first_row
        where = f"{path}:{row}" if is_text else f"{path}: row {row}"
        return FormatError(f"{where}: {noun} {matrix.indices[entry]} {what}")

    if not matrix.has_canonical_format:
        matrix.sort_indices()
        starts_row = np.zeros(matrix.nnz + 1, bool)
        starts_row[matrix.indptr] = True
        twice = np.flatnonzero((np.diff(matrix.indices) == 0) & ~starts_row[1 : matrix.nnz])
        if twice.size:
            raise error_at(int(twice[0]), "appears twice: remove one")
    if not (finite := np.isfinite(matrix.data)).all():
        entry = int(finite.argmin())
        raise error_at(entry, f"has the value {matrix.data[entry]}: values must be finite float32 numbers")
    return matrix


def as_labels(matrix: csr_array) -> csr_array:
    """Keep the labels whose value is not 0, with value 1."""
    matrix.eliminate_zeros()
    matrix.data[:] = 1.0
    return matrix


def take_rows(matrix: csr_array, start: int, end: int) -> csr_array:
    """Return rows start to end - 1 without copying their entries."""
    offsets = matrix.indptr[start : end + 1]
    entries = slice(int(offsets[0]), int(offsets[-1]))
    return build_csr(
        matrix.data[entries], matrix.indices[entries], offsets - offsets[0], (end - start, matrix.shape[1])
    )


def stack_rows(parts: list[csr_array]) -> csr_array:
    """Concatenate the rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    counts = np.concatenate([np.diff(part.indptr) for part in parts])
    offsets = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    values, ids = (np.concatenate([getattr(part, name) for part in parts]) for name in ("data", "indices"))
    return build_csr(values, ids, offsets, (counts.size, parts[0].shape[1]))


def regroup(parts: Iterable[tuple[csr_array, ...]], n_rows: int) -> Iterator[tuple[csr_array, ...]]:
    """Yield the same rows of all matrices in chunks of `n_rows`; without rows, one empty chunk that has the widths."""
    held: list[tuple[csr_array, ...]] = []
    n_held = n_yielded = 0
    for part in parts:
        start, size = 0, part[0].shape[0]
        while n_held + size - start >= n_rows:
            end = start + n_rows - n_held
            held.append(tuple(take_rows(matrix, start, end) for matrix in part))
            yield tuple(stack_rows(list(matrices)) for matrices in zip(*held, strict=True))
            held, n_held, n_yielded, start = [], 0, n_yielded + 1, end
        if start < size or not (held or n_yielded):
            held.append(tuple(take_rows(matrix, start, size) for matrix in part))
            n_held += size - start
    if held:
        yield tuple(stack_rows(list(matrices)) for matrices in zip(*held, strict=True))


def same_widths(path: AnyPath, chunks: Iterable[Dataset]) -> Iterator[Dataset]:
    """Yield the chunks unchanged; refuse one whose number of features or labels differs from the first's."""
    first = None
    for chunk in chunks:
        widths = (chunk.rows.shape[1], chunk.labels.shape[1])
        if first is not None and widths != first:
            shown = " and ".join(f"{n} features, {m} labels" for n, m in (first, widths))
            raise FormatError(f"{path}: all chunks must have the same width, not {shown}")
        first = widths
        yield chunk


def with_equal_labels(chunks: Iterable[Dataset], path: AnyPath) -> Iterator[Dataset]:
    """Pass chunks on to a writer; refuse relevance weights other than 1, which no file format here can hold."""
    for chunk in chunks:
        if (chunk.labels.data != 1).any():
            raise FormatError(f"{path}: cannot hold relevance weights of labels: give every label the value 1")
        yield chunk
