"""Write predictions: Parquet, JSON lines and CSV with names, CSR `.npz`, and the sparse text that evaluators read."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_array

from xmlpreck.data.dataset import TopK, build_csr, check_matrix, stack_rows
from xmlpreck.data.formats.json_rows import BadLine
from xmlpreck.data.formats.npz import save_csr
from xmlpreck.data.formats.prediction_tables import WIDE, TableStyle, write_table
from xmlpreck.data.formats.repository import format_rows
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.atomic import atomic_path
from xmlpreck.files.contents import Spool, write_lines

# Ids of rows: a range of their numbers if they have none of their own, and their labels.
Found = tuple[Sequence[Any], TopK]
Parts = Iterator[tuple[Sequence[Any], TopK, csr_array]]


def prediction_kind(path: AnyPath) -> str:
    """Return the suffix of a path; refuse one that cannot be written."""
    suffix = Path(path).suffix
    if suffix not in (*_WRITERS, *TABLES):
        known = f"predictions are {', '.join((*_WRITERS, *TABLES))}; .npy and .txt.gz are for reading only"
        raise FormatError(f"{path}: unknown kind {suffix!r}: {known}")
    return suffix


def write_predictions(path: AnyPath, topk: TopK, n_labels: int, label_names: list[str] | None = None) -> None:
    """Write predictions in the format of the suffix: `.npz`, `.txt`, or with names `.parquet`, `.jsonl`, `.csv`."""
    write_prediction_blocks(path, [topk], n_labels, label_names)


def write_prediction_blocks(
    path: AnyPath, blocks: Iterable[TopK], n_labels: int, label_names: list[str] | None = None
) -> int:
    """Write predictions block by block and return the number of rows; only `.npz` holds all blocks in memory."""
    n_rows = 0

    def found() -> Iterator[Found]:
        nonlocal n_rows
        for block in blocks:
            yield range(n_rows, n_rows + len(block.labels)), block
            n_rows += len(block.labels)

    write_found(path, found(), n_labels, label_names)
    return n_rows


def write_found(
    path: AnyPath,
    found: Iterable[Found],
    n_labels: int,
    label_names: list[str] | None = None,
    style: TableStyle = WIDE,
    k: int | None = None,
    label_ids: list[str] | None = None,
) -> None:
    """Write predictions with the ids of their rows, where the format of the suffix has a column for them.

    A wide table has columns for `k` labels (None: as many as the first block has). `label_ids` are the stable ids of a
    vocabulary, written beside the names.
    """
    kind = prediction_kind(path)
    parts = ((ids, block, _as_matrix(path, block, n_labels)) for ids, block in found)
    if kind not in TABLES:
        _WRITERS[kind](path, parts, n_labels, label_names, label_ids)
        return
    first = next(parts, None)
    blocks = [] if first is None else chain([first], parts)
    width = k if k is not None else 0 if first is None else first[1].labels.shape[1]
    write_table(path, ((ids, block) for ids, block, _ in blocks), label_names, style, width, label_ids)


def _as_matrix(path: AnyPath, topk: TopK, n_labels: int) -> csr_array:
    """Convert scores of labels to checked CSR."""
    chosen = topk.labels >= 0
    if (outside := topk.labels >= n_labels).any():
        row, rank = np.argwhere(outside)[0]
        label = topk.labels[row, rank]
        raise FormatError(f"{path}: row {row}: label {label} is out of range: there are {n_labels} labels")
    offsets = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))])
    matrix = build_csr(topk.scores[chosen], topk.labels[chosen], offsets, (len(chosen), n_labels))
    return check_matrix(matrix, path, "label")


def _write_npz(path: AnyPath, parts: Parts, n_labels: int, *_: list[str] | None) -> None:
    save_csr(path, stack_rows([matrix for _, _, matrix in parts] or [csr_array((0, n_labels), dtype=np.float32)]))


def _write_text(path: AnyPath, parts: Parts, n_labels: int, *_: list[str] | None) -> None:
    with Spool(path) as spool:
        for matrix in (matrix for _, _, matrix in parts):
            # Scores must be positive: the repository's Matlab evaluator marks a chosen label by 0, and sparse files
            # drop zeros. Scores that differ by less than nine digits around 1 become ties.
            score = matrix.data.astype(np.float64)
            matrix.data = np.where(score >= 0, 1 + score, 1 / (1 + np.abs(score)))
            spool.add_lines(format_rows(matrix))
        spool.write_under(f"{spool.n_items} {n_labels}")


def json_lines(
    topk: TopK, label_names: list[str] | None, ids: Iterable[Any], label_ids: list[str] | None = None
) -> Iterator[str]:
    """Format each row as an object: its id, its labels by descending score, their ids and names; or a line's error."""
    for row, labels, scores in zip(ids, topk.labels.tolist(), topk.scores.astype(float).tolist(), strict=True):
        if isinstance(row, BadLine):
            yield json.dumps(row.to_dict(), ensure_ascii=False)
            continue
        chosen = [label for label in labels if label >= 0]
        texts = {"label_ids": label_ids, "names": label_names}
        names = {what: [of[label] for label in chosen] for what, of in texts.items() if of is not None}
        # The shortest digits that restore the float32.
        shown = [float(f"{score:.9g}") for score, label in zip(scores, labels, strict=True) if label >= 0]
        yield json.dumps({"row": row, "labels": chosen, **names, "scores": shown}, ensure_ascii=False)


def _write_json(
    path: AnyPath, parts: Parts, _: int, label_names: list[str] | None, label_ids: list[str] | None
) -> None:
    write_lines(path, (line for ids, topk, _ in parts for line in json_lines(topk, label_names, ids, label_ids)))


def _write_parquet(
    path: AnyPath, parts: Parts, n_labels: int, label_names: list[str] | None, label_ids: list[str] | None
) -> None:
    kinds = {"row": pa.int64(), "labels": pa.list_(pa.int32()), "scores": pa.list_(pa.float32())}
    texts = {"names": label_names, "label_ids": label_ids}
    known = {what: pa.array(of, pa.string()) for what, of in texts.items() if of is not None}
    kinds |= dict.fromkeys(known, pa.list_(pa.string()))
    first = next(parts, None)
    has_ids = first is not None and not isinstance(first[0], range)
    if has_ids:
        kinds["id"] = pa.string()
    schema = pa.schema(kinds, {"n_labels": str(n_labels)})
    start = 0
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        for ids, topk, matrix in [] if first is None else chain([first], parts):
            chosen = topk.labels >= 0
            labels = pa.array(topk.labels[chosen], pa.int32())
            flat = [labels, pa.array(topk.scores[chosen], pa.float32())]
            flat += [of.take(labels) for of in known.values()]
            offsets = pa.array(matrix.indptr, pa.int32())
            rows = pa.array(np.arange(start, start + matrix.shape[0], dtype=np.int64))
            lists = [pa.ListArray.from_arrays(offsets, column) for column in flat]
            own = [pa.array(map(str, ids), pa.string())] if has_ids else []
            writer.write_table(pa.table([rows, *lists, *own], schema=schema))
            start += matrix.shape[0]


_WRITERS: dict[str, Callable[[AnyPath, Parts, int, list[str] | None, list[str] | None], None]] = {
    ".parquet": _write_parquet,
    ".npz": _write_npz,
    ".txt": _write_text,
    ".jsonl": _write_json,
}
TABLES = (".csv", ".tsv")
