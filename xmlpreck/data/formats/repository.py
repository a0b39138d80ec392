"""Read and write rows as text: the XML repository's file with a header, its pair of files, multi-label LIBSVM."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.data.dataset import MAX_ID, Dataset, Sizes, build_csr, check_matrix, with_equal_labels
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.contents import BLOCK_BYTES, Spool, line_blocks, read_head, write_lines
from xmlpreck.kernels import parsing


class Layout(NamedTuple):
    """Layout of a text: the numbers of its header, the nouns before and after a colon, the first id."""

    header: str
    nouns: tuple[str, str]
    first_id: int = 0


REPOSITORY = Layout("n_rows n_features n_labels", ("feature", "value"))
FEATURES = Layout("n_rows n_features", ("feature", "value"))
LABELS = Layout("n_rows n_labels", ("label", "value"))
SCORES = Layout("n_rows n_labels", ("label", "score"))
LIBSVM = Layout("", ("feature", "value"), first_id=1)

_ANY_SIZE = Sizes(MAX_ID, MAX_ID, MAX_ID)


def _parse_header(path: AnyPath, layout: Layout, head: bytes) -> tuple[dict[str, int], int]:
    """Parse the numbers of the first line by name; also return its length."""
    first = head[:100].partition(b"\n")[0]
    names, words = layout.header.split(), re.split(r"[ \t\r]+", first.decode("ascii", "replace").strip(" \t\r"))
    is_whole = len(words) == len(names) and len(first) < 100
    if not is_whole or not all(word.isdecimal() and int(word) <= MAX_ID for word in words):
        shown = f"header {' '.join(words)[:60]!r} is wrong" if head else "the file is empty"
        raise FormatError(f"{path}:1: {shown}: the first line must be {len(names)} numbers, {layout.header}")
    return {name: int(word) for name, word in zip(names, words, strict=True)}, len(first)


def read_header(path: AnyPath, layout: Layout = REPOSITORY) -> dict[str, int]:
    """Read the sizes in the first line."""
    return _parse_header(path, layout, read_head(path, 100))[0]


class _Text:
    """Converts the compiled parser's arrays to matrices and its codes to errors."""

    def __init__(self, path: AnyPath, layout: Layout, sizes: dict[str, int], said: str) -> None:
        self.path, self.layout, self.sizes, self.said = path, layout, sizes, said
        # A file of one matrix has no list of labels before its pairs.
        self.has_labels = "n_features" in sizes and "n_labels" in sizes
        self.n_columns = sizes[f"n_{layout.nouns[0]}s"]
        self.n_labels = sizes["n_labels"] if self.has_labels else 0

    def parse(self, text: np.ndarray, start: int, n_rows: int, line: int) -> tuple[csr_array, csr_array, int]:
        """Parse up to `n_rows` lines of `text` from `start`, which is line `line`: (rows, labels, where they end)."""
        first_id = self.layout.first_id
        *arrays, (code, n_read, position) = parsing.parse_rows(
            text, start, n_rows, self.n_columns, self.n_labels, first_id
        )
        if code != parsing.OK:
            token = token_at(text, position)
            problem = parsing.explain(code, token, self.sizes, self.layout.nouns, first_id, self.said)
            raise FormatError(f"{self.path}:{line + n_read}: {problem}")
        label_offsets, label_ids, offsets, ids, values = arrays
        rows = build_csr(values, ids, offsets, (n_read, self.n_columns))
        labels = build_csr(np.ones(label_ids.size, np.float32), label_ids, label_offsets, (n_read, self.n_labels))
        check_matrix(rows, self.path, self.layout.nouns[0], line, is_text=True)
        return rows, check_matrix(labels, self.path, "label", line, is_text=True), position


def token_at(text: np.ndarray, position: int) -> str:
    """Return the word at a position, cut at 60 characters, for a message."""
    shown = text[position : position + 60].tobytes().decode("ascii", "backslashreplace")
    return re.split("[ \t\r\n]", shown)[0]


def _refuse_surplus(path: AnyPath, text: np.ndarray, start: int, line: int, n_rows: int) -> None:
    """Refuse anything but blank lines after the last row."""
    n_lines, position = parsing.skip_blank(text, start)
    if position < text.size:
        what = f"{token_at(text, position)!r} is after the last row: the header says {n_rows} rows"
        raise FormatError(f"{path}:{line + n_lines}: {what}")


def read_text(
    path: AnyPath, layout: Layout = REPOSITORY, block_bytes: int | None = BLOCK_BYTES
) -> Iterator[tuple[csr_array, csr_array]]:
    """Yield (rows, labels) of a text with a header, some lines at a time, or all at once if `block_bytes` is None.

    The one matrix of a `pair` file comes as rows, with labels of no columns.
    """
    blocks = line_blocks(path, block_bytes)
    block = next(blocks, np.empty(0, np.uint8))
    sizes, end = _parse_header(path, layout, block[:100].tobytes())
    text = _Text(path, layout, sizes, "the header says")
    n_rows, n_read, line, start = sizes["n_rows"], 0, 2, min(end + 1, block.size)
    while True:
        rows, labels, start = text.parse(block, start, n_rows - n_read, line)
        n_read, line = n_read + rows.shape[0], line + rows.shape[0]
        if n_read == n_rows:
            _refuse_surplus(path, block, start, line, n_rows)
            line += int(np.count_nonzero(block[start:] == ord("\n")))
        following = next(blocks, None)
        if following is None and n_read < n_rows:
            raise FormatError(f"{path}:{line - 1}: the file ends after {n_read} rows: the header says {n_rows}")
        if rows.shape[0] or n_rows == 0:
            yield rows, labels
        if following is None:
            return
        block, start = following, 0


def read_libsvm(
    path: AnyPath, sizes: Sizes = _ANY_SIZE, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[csr_array, csr_array]]:
    """Yield (rows, labels) of lines `l1,l2 f:v`, with features from 1.

    Empty lines at the end of the file are not rows: an empty row there is a line with a space.
    """
    named = {"n_features": sizes.n_features, "n_labels": sizes.n_labels}
    text = _Text(path, LIBSVM, named, "there are")
    line = 1
    for block in line_blocks(path, block_bytes):
        if not block.tobytes().strip(b"\r\n"):
            break
        rows, labels, _ = text.parse(block, 0, MAX_ID, line)
        line += rows.shape[0]
        yield rows, labels
    if line == 1:
        # Read-only like all other blocks: the parser is compiled for those.
        yield text.parse(np.frombuffer(b"", np.uint8), 0, 0, 1)[:2]


def measure_libsvm(paths: Iterable[AnyPath]) -> Sizes:
    """Count the rows of the first file, and find the largest ids of all files."""
    n_rows = n_features = n_labels = 0
    for number, path in enumerate(paths):
        for rows, labels in read_libsvm(path):
            n_rows += rows.shape[0] if number == 0 else 0
            n_features = max(n_features, int(rows.indices.max(initial=-1)) + 1)
            n_labels = max(n_labels, int(labels.indices.max(initial=-1)) + 1)
    return Sizes(n_rows, n_features, n_labels)


def format_rows(matrix: csr_array, first_id: int = 0) -> Iterator[str]:
    """Format each row as `id:value id:value ...`; nine digits restore every float32 exactly."""
    ids = matrix.indices + first_id if first_id else matrix.indices
    for start, end in pairwise(matrix.indptr.tolist()):
        entries = zip(ids[start:end].tolist(), matrix.data[start:end].tolist(), strict=True)
        yield " ".join(map("%d:%.9g".__mod__, entries))


def _format_lines(dataset: Dataset, first_id: int = 0) -> Iterator[str]:
    """Format labels and features of each row; one without labels starts with a space."""
    labels = dataset.labels
    for (start, end), features in zip(
        pairwise(labels.indptr.tolist()), format_rows(dataset.rows, first_id), strict=True
    ):
        yield f"{','.join(map(str, labels.indices[start:end].tolist()))} {features}"


def read_repository_text(path: AnyPath) -> Dataset:
    """Read `n_rows n_features n_labels`, then lines `l1,l2,... f:v f:v ...`; `.gz` is unpacked."""
    return Dataset(*next(read_text(path, REPOSITORY, None)))


def write_repository_text(path: AnyPath, dataset: Dataset) -> None:
    """Write what `read_repository_text` reads."""
    write_repository(path, [dataset])


def write_repository(path: AnyPath, chunks: Iterable[Dataset]) -> Sizes:
    """Write chunks under one header."""
    sizes = Sizes(0, 0, 0)
    with Spool(path) as spool:
        for chunk in with_equal_labels(chunks, path):
            spool.add_lines(_format_lines(chunk))
            sizes = Sizes(spool.n_items, chunk.n_features, chunk.n_labels)
        spool.write_under(" ".join(map(str, sizes)))
    return sizes


def write_pair(rows_path: AnyPath, labels_path: AnyPath, chunks: Iterable[Dataset]) -> None:
    """Write the features and the labels of chunks to two files, each under its header."""
    widths = (0, 0)
    with Spool(rows_path) as rows, Spool(labels_path) as labels:
        for chunk in chunks:
            rows.add_lines(format_rows(chunk.rows))
            labels.add_lines(format_rows(chunk.labels))
            widths = (chunk.n_features, chunk.n_labels)
        for spool, width in zip((rows, labels), widths, strict=True):
            spool.write_under(f"{spool.n_items} {width}")


def write_libsvm(path: AnyPath, chunks: Iterable[Dataset]) -> None:
    """Write lines `l1,l2 f:v` without a header, with features from 1."""
    write_lines(path, (line for chunk in chunks for line in _format_lines(chunk, first_id=1)))
