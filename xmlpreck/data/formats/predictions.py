"""Read predictions: our own files, and those of napkinXC, omikuji and other tools.

Scores are float32; of labels with equal scores, the lower id ranks first. Only the lists of napkinXC and omikuji, whose
scores are rounded, are ranked by their order in the file.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_array, load_npz

from xmlpreck.config import parse_whole
from xmlpreck.data.dataset import MAX_ID, TopK, build_csr, check_offsets, regroup
from xmlpreck.data.formats.npz import read_matrix, read_shape
from xmlpreck.data.formats.prediction_output import TABLES, prediction_kind
from xmlpreck.data.formats.prediction_table_input import PredictionTable
from xmlpreck.data.formats.repository import SCORES, read_header
from xmlpreck.files import AnyPath, FormatError, first_line
from xmlpreck.files.contents import line_blocks, numbered_lines, read_head, reading_as
from xmlpreck.kernels import parsing

DEPTH = 100

_ROWS_AT_ONCE, _DENSE_ENTRIES = 8192, 1 << 20
# All rows of a block are padded to the longest; a block that exceeds both limits is refused.
_MAX_PADDED_ENTRIES, _MAX_PADDING_RATIO = 1 << 26, 50
_MAX_ROWS_PER_LINE = 1000
# The smallest float64 that becomes an infinite float32.
_FLOAT32_END = 2.0**128 - 2.0**103
_DROPS = "; --fix drops such entries"
_TYPES = {"row": pa.int64(), "labels": pa.list_(pa.int64()), "scores": pa.list_(pa.float32())}


class _Entries(NamedTuple):
    """Labels and scores of some rows, unchecked and in the order of the file; `row` is ascending."""

    row: np.ndarray
    labels: np.ndarray
    scores: np.ndarray


_Parts = Iterator[tuple[range, _Entries]]


class _Source(NamedTuple):
    """An open file: its sizes (None = unknown), and how to read some rows at a time."""

    n_rows: int
    n_labels: int | None
    read: Callable[[int, Counter[str] | None], _Parts]
    line_of_row_0: int = 0  # 0 = not a text
    is_ranked: bool = False  # the order in the file is the ranking


class Predictions:
    """Predictions in a file, checked and ranked as they are read.

    `repairs` counts what `fix` has changed, by problem; it is complete after the last block.
    """

    def __init__(self, path: AnyPath, source: _Source, n_labels: int, fix: bool) -> None:
        self.path, self.n_rows, self.n_labels = path, source.n_rows, n_labels
        self.repairs: Counter[str] = Counter()
        self._source, self._fix = source, fix

    def blocks(self, block_rows: int) -> Iterator[TopK]:
        """Yield all rows, `block_rows` at a time; a block is as wide as its longest list."""
        self.repairs.clear()
        parts = self._source.read(self.n_labels, self.repairs if self._fix else None)
        for (matrix,) in regroup(((self._rank(rows, entries),) for rows, entries in parts), block_rows):
            if matrix.shape[0]:
                yield _pad(self.path, matrix)

    def _rank(self, rows: range, entries: _Entries) -> csr_array:
        """Convert the entries to CSR, best first within a row; refuse or repair wrong ones."""
        n_labels = self.n_labels
        what = "has the value {score}: values must be finite float32 numbers" + _DROPS
        entries = self._without(entries, ~np.isfinite(entries.scores), "score not finite", what)
        outside = (entries.labels < 0) | (entries.labels >= n_labels)
        what = f"is out of range: there are {n_labels} labels" + _DROPS
        entries = self._without(entries, outside, "label out of range", what)
        what = "appears twice: remove one; --fix keeps the higher score"
        entries = self._without(entries, _repeats(entries, n_labels), "label twice in a row", what)
        if not self._source.is_ranked:
            entries = _take(entries, np.lexsort((entries.labels, -entries.scores, entries.row)))
        elif (rises := (np.diff(entries.scores) > 0) & (np.diff(entries.row) == 0)).any():
            what = "has a higher score than the label before it: lists must be best first; --fix ranks by score"
            risen = np.concatenate([[False], rises])
            self._refuse_unless_fix(entries, risen, what)
            self.repairs["scores rise"] += np.unique(entries.row[risen]).size
            entries = _take(entries, np.lexsort((-entries.scores, entries.row)))
        offsets = np.searchsorted(entries.row, np.arange(rows.start, rows.stop + 1))
        return build_csr(entries.scores, entries.labels, offsets, (len(rows), n_labels))

    def _without(self, entries: _Entries, wrong: np.ndarray, name: str, what: str) -> _Entries:
        if not wrong.any():
            return entries
        self._refuse_unless_fix(entries, wrong, what)
        self.repairs[name] += int(wrong.sum())
        return _take(entries, ~wrong)

    def _refuse_unless_fix(self, entries: _Entries, wrong: np.ndarray, what: str) -> None:
        if self._fix:
            return
        row, label, score = (column[wrong.argmax()] for column in entries)
        line = self._source.line_of_row_0
        where = f"{self.path}:{row + line}" if line else f"{self.path}: row {row}"
        raise FormatError(f"{where}: label {label} {what.format(score=score)}")


def _take(entries: _Entries, chosen: np.ndarray) -> _Entries:
    return _Entries(*(column[chosen] for column in entries))


def _repeats(entries: _Entries, n_labels: int) -> np.ndarray:
    """Mark entries whose label the row has already, with a score that is not lower."""
    key = entries.row * n_labels + entries.labels
    order = np.lexsort((-entries.scores, key))
    repeats = np.zeros(key.size, bool)
    repeats[order[1:][np.diff(key[order]) == 0]] = True
    return repeats


def _pad(path: AnyPath, matrix: csr_array) -> TopK:
    counts = np.diff(matrix.indptr)
    width = max(1, int(counts.max(initial=0)))
    if width > DEPTH and width * counts.size > max(_MAX_PADDED_ENTRIES, _MAX_PADDING_RATIO * matrix.nnz):
        what = f"one row has {width} labels, {counts.size} rows have {matrix.nnz}"
        raise FormatError(f"{path}: {what}: keep the best {DEPTH} of each")
    filled = np.arange(width) < counts[:, None]
    topk = TopK(np.full(filled.shape, -1, np.int32), np.full(filled.shape, -np.inf, np.float32))
    topk.labels[filled], topk.scores[filled] = matrix.indices, matrix.data
    return topk


def open_predictions(
    path: AnyPath,
    n_rows: int | None = None,
    n_labels: int | None = None,
    fix: bool = False,
    depth: int = DEPTH,
    label_names: list[str] | None = None,
) -> Predictions:
    """Open predictions by suffix; `n_rows` and `n_labels` are the sizes that they must have.

    `.parquet` and `.jsonl` have labels and scores; `.npz` a scipy matrix; `.txt` and `.txt.gz` a matrix under a
    header, or the lists of napkinXC or omikuji; `.npy` scores of all labels, of which the best `depth` are taken;
    `.csv` and `.tsv` what `predict` writes, in which labels may have names.

    Errors are refused. With `fix` they are repaired and counted: labels out of range and scores that are not finite
    are dropped, the higher score of a duplicate label is kept, lists whose scores rise and Parquet rows out of order
    are sorted.
    """
    file = Path(path)
    if file.name.endswith(".txt.gz") or file.suffix == ".txt":
        source = _open_text(file, n_rows)
    elif file.suffix == ".npy":
        source = _open_dense(file, depth)
    elif file.suffix == ".jsonl":
        source = _Source(_count_lines(file)[0], None, partial(_read_json, file), line_of_row_0=1, is_ranked=True)
    elif file.suffix in TABLES:
        source = _open_table(PredictionTable(file, label_names), n_rows)
    elif prediction_kind(file) == ".npz":
        source = _Source(*read_shape(file), partial(_read_npz, file))
    else:
        source = _open_parquet(file, fix)
    width = n_labels if source.n_labels is None else source.n_labels
    if width is None:
        parts = source.read(MAX_ID, Counter() if fix else None)
        width = min(MAX_ID, max((int(entries.labels.max(initial=-1)) + 1 for _, entries in parts), default=0))
    for name, expected, found in (("rows", n_rows, source.n_rows), ("labels", n_labels, width)):
        if expected is not None and expected != found:
            shown = f"predicts for {found} {name}, but the data have {expected} {name}"
            raise FormatError(f"{path}: {shown}: use the data and the split that were predicted")
    return Predictions(path, source, width, fix)


def read_predictions(path: AnyPath, n_rows: int | None = None, n_labels: int | None = None) -> TopK:
    """Read all rows of what `open_predictions` opens."""
    predictions = open_predictions(path, n_rows, n_labels)
    nothing = TopK(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32))
    return next(predictions.blocks(max(1, predictions.n_rows)), nothing)


# --- text

# omikuji's lists: a space between a label and its score, a tab before the next label.
_LABEL_SPACE_SCORE = re.compile(rb"(?<=\d) (?=\S)")
_LABEL_COLON_SCORE = re.compile(rb"(?<!\S)(\d+):(\S+)")


def _open_text(path: Path, n_rows: int | None) -> _Source:
    n_filled, n_lines = _count_lines(path)
    words = read_head(path).partition(b"\n")[0].split()
    if not n_lines or (words and all(word.isdigit() for word in words)):
        sizes = read_header(path, SCORES)
        said = sizes["n_rows"]
        if n_lines - 1 < said:
            raise FormatError(f"{path}:{n_lines}: the file ends after {n_lines - 1} rows: the header says {said}")
        if n_filled - 1 > said:
            raise FormatError(f"{path}:{n_filled}: this line is after the last row: the header says {said} rows")
        return _Source(said, sizes["n_labels"], partial(_read_text, path, True, said), line_of_row_0=2)
    # Empty lines at the end may be rows without predictions; the number of rows of the data decides.
    found = n_rows if n_rows is not None and n_filled <= n_rows <= n_lines else n_lines
    return _Source(found, None, partial(_read_text, path, False, found), line_of_row_0=1, is_ranked=True)


def _count_lines(path: Path) -> tuple[int, int]:
    """Count the lines without and with the blank ones at the end."""
    n_filled = n_lines = 0
    for block in line_blocks(path):
        text = block.tobytes()
        if content := text.rstrip():
            n_filled = n_lines + content.count(b"\n") + 1
        n_lines += text.count(b"\n") + (not text.endswith(b"\n"))
    return n_filled, n_lines


def _read_text(path: Path, has_header: bool, n_rows: int, n_labels: int, repairs: Counter[str] | None) -> _Parts:
    n_read = 0
    for number, block in enumerate(line_blocks(path)):
        text = block.tobytes()
        if has_header and number == 0:
            text = text.partition(b"\n")[2]
        elif not has_header and b":" not in text:
            text = _LABEL_SPACE_SCORE.sub(b":", text)
        if repairs is not None:
            text = _without_bad_tokens(text, n_labels, repairs)
        _, _, offsets, labels, scores, (code, n_parsed, position) = parsing.parse_rows(
            np.frombuffer(text, np.uint8), 0, n_rows - n_read, n_labels, 0, 0
        )
        rows = range(n_read, n_read + n_parsed)
        if code != parsing.OK:
            token = re.split(rb"[ \t\r\n]", text[position : position + 60])[0]
            said = "the header says" if has_header else "there are"
            shown = token.decode("ascii", "backslashreplace")
            problem = parsing.explain(code, shown, {"n_labels": n_labels}, SCORES.nouns, said=said)
            hint = _DROPS if _without_bad_tokens(token, n_labels, Counter()) != token else ""
            raise FormatError(f"{path}:{rows.stop + 1 + has_header}: {problem}{hint}")
        yield rows, _Entries(np.repeat(np.arange(rows.start, rows.stop), np.diff(offsets)), labels, scores)
        n_read = rows.stop


def _without_bad_tokens(text: bytes, n_labels: int, repairs: Counter[str]) -> bytes:
    """Blank out each `label:score` at which the parser, which reads valid numbers only, would stop."""

    def repair(token: re.Match[bytes]) -> bytes:
        label = parse_whole(token[1].decode("ascii", "replace"))
        try:
            score = float(token[2])
        except ValueError:
            return token[0]
        is_finite = abs(score) < _FLOAT32_END
        if is_finite and label is not None and label < n_labels:
            return token[0]
        repairs["label out of range" if is_finite else "score not finite"] += 1
        return b" " * len(token[0])

    return _LABEL_COLON_SCORE.sub(repair, text)


def _read_json(path: Path, n_labels: int, _: Counter[str] | None) -> _Parts:
    """Read objects with labels and as many scores, one per line."""
    lines = numbered_lines(path)
    start = 0
    while batch := list(islice(lines, _ROWS_AT_ONCE)):
        found = [_parse_json(path, number, line) for number, line in batch]
        rows = range(start, start + len(batch))
        labels, scores = (np.concatenate(column) for column in zip(*found, strict=True))
        yield rows, _Entries(np.repeat(rows, [len(mine) for mine, _ in found]), labels, scores)
        start = rows.stop


def _parse_json(path: Path, number: int, line: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        fields = json.loads(line)
        labels, scores = fields["labels"], fields["scores"]
        if len(labels) != len(scores) or any(type(label) is not int for label in labels):
            raise ValueError("labels must be ids, and have as many scores")
        with np.errstate(over="ignore"):  # too large: becomes inf and is refused or dropped later
            return np.array(labels, np.int64), np.array(scores, np.float64).astype(np.float32)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        shown = f"has no {error}" if isinstance(error, KeyError) else first_line(error)
        raise FormatError(f"{path}:{number}: is not a prediction: {shown:.100}") from None


def _open_table(table: PredictionTable, n_rows: int | None) -> _Source:
    """Open a table. Rows at the end without labels have no line in the long layout: the data decides."""
    n_found = n_lines = 0
    for line in table.lines():
        n_found, n_lines = line.row + 1, n_lines + 1
    if n_found > _MAX_ROWS_PER_LINE * (n_lines + 1000):  # a few lines must not ask for all memory
        raise FormatError(f"{table.path}: has labels for {n_lines} rows, but the last is row {n_found - 1}")
    if table.is_long and n_rows is not None:
        n_found = max(n_found, n_rows)
    return _Source(n_found, None, partial(_read_table, table, n_found))


def _read_table(table: PredictionTable, n_rows: int, n_labels: int, _: Counter[str] | None) -> _Parts:
    lines = table.lines()
    start = 0
    while start < n_rows:
        batch = list(islice(lines, _ROWS_AT_ONCE))
        stop = n_rows if len(batch) < _ROWS_AT_ONCE else batch[-1].row + 1
        labels = np.array([label for line in batch for label in line.labels], np.int64)
        with np.errstate(over="ignore"):
            scores = np.array([score for line in batch for score in line.scores], np.float64).astype(np.float32)
        row_of = np.repeat([line.row for line in batch], [len(line.labels) for line in batch]).astype(np.int64)
        yield range(start, stop), _Entries(row_of, labels, scores)
        start = stop


# --- matrices


def _read_npz(path: Path, n_labels: int, _: Counter[str] | None) -> _Parts:
    """Read the whole matrix; CSR is not checked yet, so that it can be repaired."""
    with reading_as("a scipy.sparse matrix", path):
        matrix = load_npz(path)
        if matrix.format != "csr":
            matrix = read_matrix(path, "label")
        matrix.check_format(full_check=True)
        counts = np.diff(check_offsets(matrix.indptr, len(matrix.indices)))
        if matrix.data.dtype.kind not in "biuf":
            raise ValueError(f"values of {matrix.data.dtype} are not scores")
        with np.errstate(over="ignore"):
            scores = matrix.data.astype(np.float32)
    row = np.repeat(np.arange(counts.size), counts)
    yield range(counts.size), _Entries(row, matrix.indices, scores)


def _open_dense(path: Path, depth: int) -> _Source:
    with reading_as("a matrix of scores", path):
        scores = np.load(path, mmap_mode="r", allow_pickle=False)
        if scores.ndim != 2 or not scores.shape[1] or scores.dtype.kind != "f" or scores.dtype.itemsize > 8:
            shown = f"shape {scores.shape} of {scores.dtype}"
            raise ValueError(f"{shown} is not n_rows x n_labels of float16, float32 or float64: save it so")
    return _Source(scores.shape[0], scores.shape[1], partial(_read_dense, path, scores.shape[0], depth))


def _read_dense(path: Path, n_rows: int, depth: int, n_labels: int, _: Counter[str] | None) -> _Parts:
    """Yield the best `depth` labels of each row, and all scores that are not finite, to be refused or dropped."""
    step = max(1, _DENSE_ENTRIES // max(1, n_labels))
    for start in range(0, n_rows, step):
        # Mapped again each time: the pages of a map that stays open count as memory of the process.
        with reading_as("a matrix of scores", path), np.errstate(over="ignore"):
            block = np.array(np.load(path, mmap_mode="r", allow_pickle=False)[start : start + step], np.float32)
        finite = np.isfinite(block)
        chosen = _best(np.where(finite, block, -np.inf), depth) | ~finite
        row, labels = np.nonzero(chosen)
        yield range(start, start + len(block)), _Entries(row + start, labels, block[chosen])


def _best(scores: np.ndarray, depth: int) -> np.ndarray:
    """Mark the `depth` highest scores of each row; of ties at the lowest, the first."""
    n_labels = scores.shape[1]
    if depth >= n_labels:
        return np.ones(scores.shape, bool)
    lowest = np.partition(scores, n_labels - depth, axis=1)[:, n_labels - depth, None]
    above, tied = scores > lowest, scores == lowest
    return above | (tied & (np.cumsum(tied, axis=1) <= depth - above.sum(axis=1, keepdims=True)))


# --- Parquet


def _open_parquet(path: Path, fix: bool) -> _Source:
    with reading_as("row, labels and scores", path):
        file = pq.ParquetFile(path, pre_buffer=False)  # pre-buffered, the whole file would stay in memory
        said = (file.schema_arrow.metadata or {}).get(b"n_labels")
        if said is not None and not (re.fullmatch(rb"[0-9]{1,10}", said) and int(said) <= MAX_ID):
            raise ValueError(f"its n_labels is {said[:20].decode('ascii', 'backslashreplace')}")
        n_labels = None if said is None else int(said)
        n_misplaced = 0 if _is_in_order(file) else _count_misplaced(path, file, fix)
    return _Source(file.metadata.num_rows, n_labels, partial(_read_parquet, path, file, n_misplaced))


def _is_in_order(file: Any) -> bool:
    start = 0
    for batch in file.iter_batches(_ROWS_AT_ONCE, columns=["row"]):
        row = batch.column("row").to_numpy(zero_copy_only=False)
        if not np.array_equal(row, np.arange(start, start + row.size)):
            return False
        start += row.size
    return True


def _count_misplaced(path: Path, file: Any, fix: bool) -> int:
    """Count the rows out of order; refuse them unless `fix` may sort them and each is there once."""
    row = file.read(["row"]).column("row").cast(pa.int64()).to_numpy()
    expected = np.arange(row.size)
    if (wrong := np.sort(row) != expected).any():
        what = "is missing or another row appears twice: every row must appear once, from 0"
        raise FormatError(f"{path}: row {wrong.argmax()} {what}")
    misplaced = row != expected
    if not fix:
        first = int(misplaced.argmax())
        raise FormatError(f"{path}: found row {row[first]} where row {first} should be: sort by row; --fix does it")
    return int(misplaced.sum())


def _read_parquet(path: Path, file: Any, n_misplaced: int, n_labels: int, repairs: Counter[str] | None) -> _Parts:
    """Read batch by batch; a file that is out of order is read whole."""
    start = 0
    if n_misplaced and repairs is not None:
        repairs["rows out of order"] += n_misplaced
    with reading_as("row, labels and scores", path):
        batches = (
            file.read(list(_TYPES)).sort_by("row").to_batches(_ROWS_AT_ONCE)
            if n_misplaced
            else file.iter_batches(_ROWS_AT_ONCE, columns=list(_TYPES))
        )
        for batch in batches:
            table = pa.Table.from_batches([batch]).select(list(_TYPES)).cast(pa.schema(_TYPES))
            labels, scores = (table.column(name).combine_chunks() for name in ("labels", "scores"))
            if any(c.null_count for c in (labels, scores, labels.flatten(), scores.flatten())):
                raise ValueError("an entry is null")
            rows, counts = range(start, start + len(labels)), labels.value_lengths().to_numpy()
            if (uneven := counts != scores.value_lengths().to_numpy()).any():
                raise FormatError(f"{path}: row {rows[uneven.argmax()]}: the numbers of labels and scores differ")
            flat = (column.flatten().to_numpy() for column in (labels, scores))
            yield rows, _Entries(np.repeat(np.arange(rows.start, rows.stop), counts), *flat)
            start = rows.stop
        if start != file.metadata.num_rows:
            raise ValueError(f"its columns end after {start} rows of {file.metadata.num_rows}")
