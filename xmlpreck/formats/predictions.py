"""Predictions on disk: CSR `.npz`, Parquet, and the sparse text that evaluators of the field read."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_array

from xmlpreck.formats.dataset import AnyPath, FormatError, TopK, build_csr, check_matrix, stack_rows
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
    write_prediction_blocks(path, [topk], len(topk.labels), n_labels, label_names)


def write_prediction_blocks(
    path: AnyPath, blocks: Iterable[TopK], n_rows: int, n_labels: int, label_names: list[str] | None = None
) -> None:
    """The same for rows that come block by block; memory holds one, but for `.npz`, which is one compressed matrix."""
    write = {".npz": _write_npz, ".parquet": _write_parquet, ".txt": _write_text}[prediction_kind(path)]
    write(path, ((block, _as_matrix(path, block, n_labels)) for block in blocks), (n_rows, n_labels), label_names)


Parts = Iterable[tuple[TopK, csr_array]]


def _as_matrix(path: AnyPath, topk: TopK, n_labels: int) -> csr_array:
    chosen = topk.labels >= 0
    return _scored(path, topk.labels[chosen], topk.scores[chosen], chosen.sum(axis=1), n_labels)


def _write_npz(path: AnyPath, parts: Parts, shape: tuple[int, int], _: list[str] | None) -> None:
    save_csr(path, stack_rows([matrix for _, matrix in parts] or [csr_array((0, shape[1]), dtype=np.float32)]))


def _write_text(path: AnyPath, parts: Parts, shape: tuple[int, int], _: list[str] | None) -> None:
    def lines() -> Iterator[str]:
        yield f"{shape[0]} {shape[1]}"
        for _, matrix in parts:
            # The repository's Matlab evaluator marks a chosen label by the score 0, and sparse files drop zeros:
            # scores must be positive. Scores that differ by less than nine digits around 1 become ties.
            score = matrix.data.astype(np.float64)
            matrix.data = np.where(score >= 0, 1 + score, 1 / (1 + np.abs(score)))
            yield from format_rows(matrix)

    write_lines(path, lines())


def _write_parquet(path: AnyPath, parts: Parts, shape: tuple[int, int], label_names: list[str] | None) -> None:
    kinds = {"row": pa.int64(), "labels": pa.list_(pa.int32()), "scores": pa.list_(pa.float32())}
    if label_names is not None:
        kinds["names"] = pa.list_(pa.string())
    schema = pa.schema(kinds, {"n_labels": str(shape[1])})
    names = pa.array(label_names or [], pa.string())
    start = 0
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for topk, matrix in parts:
            chosen = topk.labels >= 0
            labels = pa.array(topk.labels[chosen], pa.int32())
            flat = [labels, pa.array(topk.scores[chosen], pa.float32())]
            if label_names is not None:
                flat.append(names.take(labels))
            offsets = pa.array(matrix.indptr, pa.int32())
            rows = pa.array(np.arange(start, start + matrix.shape[0], dtype=np.int64))
            lists = [pa.ListArray.from_arrays(offsets, column) for column in flat]
            writer.write_table(pa.table([rows, *lists], schema=schema))
            start += matrix.shape[0]


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
