"""Predictions on disk: CSR `.npz`, Parquet, and the sparse text that evaluators of the field read."""

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_array

from xmlpreck.formats.dataset import AnyPath, FormatError, TopK, build_csr, check_matrix
from xmlpreck.formats.files import atomic_path, write_lines
from xmlpreck.formats.npz import read_matrix, save_csr
from xmlpreck.formats.repository import SCORES, format_rows, read_text


def prediction_kind(path: AnyPath) -> str:
    """`.npz`, `.parquet` or `.txt`; any other suffix is an error."""
    suffix = Path(path).suffix
    if suffix not in (".npz", ".parquet", ".txt"):
        raise FormatError(f"{path}: unknown kind {suffix!r}: predictions are .npz, .parquet or .txt")
    return suffix


def _scored(path: AnyPath, ids: np.ndarray, scores: np.ndarray, counts: np.ndarray, n_labels: int) -> csr_array:
    """Scores of labels, listed row by row, as checked CSR."""
    offsets = np.concatenate([[0], np.cumsum(counts)])
    outside = np.flatnonzero((ids < 0) | (ids >= n_labels))
    if outside.size:
        row, label = np.searchsorted(offsets, outside[0], side="right") - 1, ids[outside[0]]
        raise FormatError(f"{path}: row {row}: label {label} is out of range: there are {n_labels} labels")
    # Copies, because the ids get sorted in place.
    matrix = build_csr(np.array(scores), np.array(ids), offsets, (len(counts), n_labels))
    return check_matrix(matrix, path, "label")


def write_predictions(path: AnyPath, topk: TopK, n_labels: int, label_names: list[str] | None = None) -> None:
    """Write predictions as the suffix says: `.npz`, `.parquet` (the only one with names) or `.txt`."""
    suffix = prediction_kind(path)
    chosen = topk.labels >= 0
    matrix = _scored(path, topk.labels[chosen], topk.scores[chosen], chosen.sum(axis=1), n_labels)
    if suffix == ".npz":
        save_csr(path, matrix)
    elif suffix == ".txt":
        # The repository's Matlab evaluator marks a chosen label by the score 0, and sparse files drop zeros:
        # scores must be positive. Scores that differ by less than nine digits around 1 become ties.
        score = matrix.data.astype(np.float64)
        matrix.data = np.where(score >= 0, 1 + score, 1 / (1 + np.abs(score)))
        write_lines(path, chain([f"{matrix.shape[0]} {n_labels}"], format_rows(matrix)))
    else:
        lists = {"labels": pa.array(topk.labels[chosen], pa.int32())}
        lists["scores"] = pa.array(topk.scores[chosen], pa.float32())
        if label_names is not None:
            lists["names"] = pa.array(label_names, pa.string()).take(lists["labels"])
        offsets = pa.array(matrix.indptr, pa.int32())
        columns = {name: pa.ListArray.from_arrays(offsets, flat) for name, flat in lists.items()}
        table = pa.table({"row": np.arange(matrix.shape[0], dtype=np.int64)} | columns)
        with atomic_path(path) as temporary:
            pq.write_table(table.replace_schema_metadata({"n_labels": str(n_labels)}), temporary)


def _read_parquet(path: Path, n_labels: int | None) -> csr_array:
    """Lists of labels and scores as CSR; a file that does not say its n_labels has the caller's."""
    types = {"row": pa.int64(), "labels": pa.list_(pa.int32()), "scores": pa.list_(pa.float32())}
    try:
        table = pq.ParquetFile(path).read()
        width = (table.schema.metadata or {}).get(b"n_labels", n_labels)
        table = table.select(list(types)).cast(pa.schema(types)).sort_by("row")
        row, labels, scores = (column.combine_chunks() for column in table.columns)
        if any(c.null_count for c in (row, labels, scores, labels.flatten(), scores.flatten())):
            raise ValueError("an entry is null")
        ids = labels.flatten().to_numpy()
        n_columns = int(ids.max(initial=-1)) + 1 if width is None else int(width)
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise FormatError(f"{path}: cannot be read as row, labels and scores: {reason}") from error
    counts = labels.value_lengths().to_numpy()
    if (misplaced := row.to_numpy() != np.arange(len(row))).any():
        raise FormatError(f"{path}: row {misplaced.argmax()} is missing or another one stands twice")
    if (uneven := counts != scores.value_lengths().to_numpy()).any():
        raise FormatError(f"{path}: row {uneven.argmax()}: has not as many scores as labels")
    return _scored(path, ids, scores.flatten().to_numpy(), counts, n_columns)


def _ranked(matrix: csr_array) -> TopK:
    counts = np.diff(matrix.indptr)
    row = np.repeat(np.arange(counts.size), counts)
    order = np.lexsort((matrix.indices, -matrix.data, row))
    rank = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], counts)
    shape = (counts.size, max(1, counts.max(initial=0)))
    topk = TopK(np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32))
    topk.labels[row, rank], topk.scores[row, rank] = matrix.indices[order], matrix.data[order]
    return topk


def read_predictions(path: AnyPath, n_rows: int | None = None, n_labels: int | None = None) -> TopK:
    """Read predictions by suffix, ranked anew; `n_rows` and `n_labels` are what the file must have."""
    suffix, place = prediction_kind(path), Path(path)
    if suffix == ".npz":
        matrix = read_matrix(place, "label")
    elif suffix == ".txt":
        matrix = next(read_text(place, SCORES, None))[0]
    else:
        matrix = _read_parquet(place, n_labels)
    for name, expected, found in zip(("rows", "labels"), (n_rows, n_labels), matrix.shape, strict=True):
        if expected is not None and expected != found:
            raise FormatError(f"{path}: predicts for {found} {name}, but the data have {expected} {name}")
    return _ranked(matrix)


def join_topk(blocks: Iterable[TopK]) -> TopK:
    """The rows of all blocks, one below the other, as wide as the widest."""
    parts = list(blocks)
    shape = (sum(len(part.labels) for part in parts), max([1] + [part.labels.shape[1] for part in parts]))
    joined = TopK(np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32))
    row = 0
    for labels, scores in parts:
        into = (slice(row, row + len(labels)), slice(labels.shape[1]))
        joined.labels[into], joined.scores[into] = labels, scores
        row += len(labels)
    return joined
