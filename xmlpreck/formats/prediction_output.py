"""Predictions to disk: CSR `.npz`, Parquet with names, and the sparse text that evaluators of the field read."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_array

from xmlpreck.formats.dataset import AnyPath, FormatError, TopK, build_csr, check_matrix, stack_rows
from xmlpreck.formats.files import atomic_path, write_lines
from xmlpreck.formats.npz import save_csr
from xmlpreck.formats.repository import format_rows


def prediction_kind(path: AnyPath) -> str:
    """`.npz`, `.parquet` or `.txt`, the kinds that are written; any other suffix is an error."""
    suffix = Path(path).suffix
    if suffix not in (".npz", ".parquet", ".txt"):
        known = "predictions are .npz, .parquet or .txt; .npy and .txt.gz are for reading only"
        raise FormatError(f"{path}: unknown kind {suffix!r}: {known}")
    return suffix


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
    """Scores of labels as checked CSR."""
    chosen = topk.labels >= 0
    if (outside := topk.labels >= n_labels).any():
        row, place = np.argwhere(outside)[0]
        label = topk.labels[row, place]
        raise FormatError(f"{path}: row {row}: label {label} is out of range: there are {n_labels} labels")
    offsets = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))])
    matrix = build_csr(topk.scores[chosen], topk.labels[chosen], offsets, (len(chosen), n_labels))
    return check_matrix(matrix, path, "label")


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
