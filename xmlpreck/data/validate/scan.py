"""Check and clean every row of a split in one pass, line by line if the format has lines.

Memory grows with the number of distinct features and labels, not with the number of rows.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise, zip_longest
from operator import lt
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.data.dataset import Dataset
from xmlpreck.data.formats import read_chunks
from xmlpreck.data.formats.recognition import Source, partner
from xmlpreck.data.rows import read_blocks
from xmlpreck.data.shards import ShardSet
from xmlpreck.data.validate.report import Findings, Report
from xmlpreck.files.contents import line_blocks

_MAX_SIZE = 2**31 - 1
_ROWS_PER_REPORT = 10_000
SHARDS = "shards"

# The numbers that the compiled parser reads; lines with ids of more than 15 digits take the slow path.
_NUMBER = rb"[+-]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+"
_ID = rb"(?:\d+|-0*[1-9]\d*)"  # negative ids are out of range, not unparsable
_CLEAN_PAIRS = re.compile(rb"[ \t\r]*+(?:\d{1,15}+:" + _NUMBER + rb"(?:[ \t\r]++|\Z))*+")
_PAIR = re.compile(rb"(" + _ID + rb"):(?:(" + _NUMBER + rb")|[+-]?(?i:nan|inf|infinity))")
_LABEL = re.compile(_ID)


class Ids:
    """Statistics of the features or of the labels: range, rows per id, ids per row."""

    def __init__(self, noun: str, found: Findings, size: int | None = None, first: int = 0) -> None:
        self.noun, self.found, self.size, self.first = noun, found, size, first
        self.frequency: Counter[int] = Counter()
        self.per_row: Counter[int] = Counter()
        self.n_one_too_large = 0

    @property
    def end(self) -> int:
        return self.first + (_MAX_SIZE if self.size is None else self.size)

    @property
    def n_columns(self) -> int:
        return max(self.frequency, default=self.first - 1) + 1 - self.first if self.size is None else self.size

    def clean(self, ids: list[int], where: str) -> list[int] | None:
        """Return the indices of the ids to keep: in range, unique, sorted by id; None = all, in order."""
        indices = None
        if ids and not (self.first <= ids[0] and ids[-1] < self.end and all(map(lt, ids, ids[1:]))):
            indices = self._repair(ids, where)
            ids = _take(ids, indices)
        if not ids:
            self.found.note(f"rows without {self.noun}s", where)
        self.frequency.update(ids)
        self.per_row[len(ids)] += 1
        return indices

    def _repair(self, ids: list[int], where: str) -> list[int]:
        outside = [number for number in ids if not self.first <= number < self.end]
        if outside:
            example = f"{where}: {self.noun} {outside[0]}: ids are {self.first} to {self.end - 1}"
            self.found.note(f"{self.noun}s out of range", example, len(outside))
            self.n_one_too_large += outside.count(self.end)
        indices = [index for index, number in enumerate(ids) if self.first <= number < self.end]
        kept = _take(ids, indices)
        index_of = dict(zip(reversed(kept), reversed(indices), strict=True))  # the first of equal ids
        if len(index_of) < len(kept):
            twice = next(number for number, count in Counter(kept).items() if count > 1)
            self.found.note(f"duplicate {self.noun}s", f"{where}: {self.noun} {twice}", len(kept) - len(index_of))
        if unsorted := next(((a, b) for a, b in pairwise(kept) if a > b), None):
            self.found.note(f"rows with unsorted {self.noun}s", f"{where}: {unsorted[1]} comes after {unsorted[0]}")
        return [index_of[number] for number in sorted(index_of)]

    def count(self, matrix: csr_array, path: Path, start: int) -> None:
        """Add the rows from `start` of `path`, whose reader has checked the ids."""
        self.size = matrix.shape[1]
        lengths = np.diff(matrix.indptr)
        for row in np.flatnonzero(lengths == 0).tolist():
            self.found.note(f"rows without {self.noun}s", f"{path}: row {start + row}")
        for tally, numbers in ((self.frequency, matrix.indices), (self.per_row, lengths)):
            values, counts = np.unique(numbers, return_counts=True)
            tally.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def finish(self) -> None:
        """Note problems that only show after the last row."""
        if self.size is None:
            return
        if n_missing := self.size - len(self.frequency):
            unseen = next(number for number in range(self.first, self.end) if number not in self.frequency)
            self.found.note(f"{self.noun}s never seen", f"{self.noun} {unseen} is the first", n_missing)
        if self.n_one_too_large == self.found.counts[f"{self.noun}s out of range"] > 0 and not self.frequency[0]:
            example = f"{self.noun} 0 never occurs, {self.noun} {self.end} does: subtract 1 before a fix"
            self.found.note("ids that seem to start at 1", example, self.n_one_too_large)


def _number(digits: bytes) -> int:
    """Parse an id; one of more than 19 digits is cut and stays out of range."""
    sign = -1 if digits.startswith(b"-") else 1
    return sign * int(digits.lstrip(b"-0")[:19] or b"0")


def _shown(word: bytes) -> str:
    return repr(word[:40].decode("ascii", "backslashreplace"))


def _take(items: list[Any], indices: list[int] | None) -> list[Any]:
    return items if indices is None else [items[index] for index in indices]


def _pairs(text: bytes, where: str, found: Findings) -> tuple[list[int], list[bytes], np.ndarray]:
    """Parse words `id:value` with finite values: (ids, values as written, values as numbers)."""
    if _CLEAN_PAIRS.fullmatch(text):
        flat = text.replace(b":", b" ").split()
        ids, tokens = list(map(int, flat[::2])), flat[1::2]
    else:
        ids, tokens = [], []
        for word in filter(None, re.split(rb"[ \t\r]+", text)):
            if match := _PAIR.fullmatch(word):
                ids.append(_number(match[1]))
                tokens.append(match[2] or b"nan")
            else:
                found.note("unparsable tokens", f"{where}: {_shown(word)}")
    with np.errstate(over="ignore"):
        values = np.array(list(map(float, tokens)), np.float32)
    if not (finite := np.isfinite(values)).all():
        indices = np.flatnonzero(finite).tolist()
        found.note("values not finite", f"{where}: value of {ids[int(finite.argmin())]}", len(ids) - len(indices))
        return _take(ids, indices), _take(tokens, indices), values[finite]
    return ids, tokens, values


class Scan:
    """One pass over a split that collects problems and yields clean lines of the repository's format."""

    def __init__(self, source: Source, split: str, progress: Callable[[int], None] | None) -> None:
        self.source, self.split, self.progress = source, split, progress
        self.files = [source.path] + ([partner(source.path)] if source.format in ("pair", "npz") else [])
        self.has_lines = source.format in ("repository", "pair", "libsvm")
        self.found = Findings()
        self.features = Ids("feature", self.found, first=1 if source.format == "libsvm" else 0)
        self.labels = Ids("label", self.found)
        self.n_rows = 0

    def report(self, written: str | None = None) -> Report:
        """Report what was found; to be called once, after the last row."""
        self.features.finish()
        self.labels.finish()
        counted = {
            "rows of a label": Counter(self.labels.frequency.values()),
            "labels of a row": self.labels.per_row,
            "features of a row": self.features.per_row,
        }
        return Report(
            path=str(self.source.path),
            format=self.source.format,
            n_rows=self.n_rows,
            n_features=self.features.n_columns,
            n_labels=self.labels.n_columns,
            problems=self.found.problems(),
            quantiles={name: five_numbers(counts) for name, counts in counted.items() if counts},
            written=written,
        )

    def _count(self, n_more: int) -> None:
        before, self.n_rows = self.n_rows, self.n_rows + n_more
        if self.progress and before // _ROWS_PER_REPORT < self.n_rows // _ROWS_PER_REPORT:
            self.progress(self.n_rows)

    def chunks(self) -> Iterator[Dataset]:
        """Yield the rows of a format without lines, whose reader refuses damaged data."""
        path = self.source.path
        chunks: Iterator[Dataset]
        if self.source.format == SHARDS:
            chunks = (block for _, block in read_blocks(ShardSet(path), _ROWS_PER_REPORT))
        else:
            chunks = read_chunks(self.source.asked, self.split, self.source.format)
        for chunk in chunks:
            rows = chunk.rows
            self.features.count(rows, path, self.n_rows)
            self.labels.count(chunk.labels, path, self.n_rows)
            zeros = np.diff(np.concatenate([[0], np.cumsum(rows.data == 0)])[rows.indptr])
            for row in np.flatnonzero(zeros).tolist():
                n_values = int(rows.indptr[row + 1] - rows.indptr[row])
                self._note_zeros(int(zeros[row]), n_values, f"{path}: row {self.n_rows + row}")
            self._count(rows.shape[0])
            yield chunk

    def lines(self) -> Iterator[str]:
        """Yield a clean line for every row."""
        path = self.source.path
        if self.source.format == "pair":
            sizes, rows = self._open(path, "n_rows n_features")
            label_sizes, label_rows = self._open(self.files[1], "n_rows n_labels")
            self.features.size, self.labels.size = sizes.get("n_features"), label_sizes.get("n_labels")
            for row, label_row in zip_longest(rows, label_rows):
                absent = (self.n_rows + 2, b"")
                if row is None or label_row is None:
                    shorter = path if row is None else self.files[1]
                    self.found.note("rows that one of the files lacks", f"{shorter}:{absent[0]}")
                yield f"{self._label_pairs(*(label_row or absent))} {self._feature_pairs(*(row or absent))}"
                self._count(1)
            return
        if self.source.format == "repository":
            sizes, rows = self._open(path, "n_rows n_features n_labels")
            self.features.size, self.labels.size = sizes.get("n_features"), sizes.get("n_labels")
        else:
            rows = _rows(_numbered(path), 0, b"\r")
        for number, line in rows:
            labels, rest = self._label_list(number, line)
            yield f"{labels} {self._feature_pairs(number, rest)}"
            self._count(1)

    def _open(self, path: Path, names: str) -> tuple[dict[str, int], Iterator[tuple[int, bytes]]]:
        """Return the header's numbers by name, and the rows below; without a header, from the first line."""
        lines = _numbered(path)
        _, first = next(lines, (1, b""))
        words = first.split()
        if len(words) == len(names.split()) and all(w.isdigit() and _number(w) <= _MAX_SIZE for w in words):
            sizes = dict(zip(names.split(), map(_number, words), strict=True))
            return sizes, self._count_rows(path, sizes["n_rows"], _rows(lines, sizes["n_rows"], b" \t\r"))
        self.found.note("header mismatch", f"{path}:1: {_shown(first)} is not {names}")
        return {}, _rows(chain([(1, first)] if b":" in first else [], lines), 0, b" \t\r")

    def _count_rows(self, path: Path, n_said: int, rows: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        n_rows = 0
        for row in rows:
            n_rows += 1
            yield row
        if n_rows != n_said:
            self.found.note("header mismatch", f"{path}:1: the header says {n_said} rows, but there are {n_rows}")

    def _label_list(self, number: int, line: bytes) -> tuple[str, bytes]:
        """Return the labels `l1,l2` at the start of a line, if it has any, and the rest."""
        head = re.split(rb"[ \t\r]", line, maxsplit=1)[0]
        if b":" in head:
            head = b""
        where = f"{self.source.path}:{number}"
        ids = []
        for word in head.split(b",") if head else ():
            if _LABEL.fullmatch(word):
                ids.append(_number(word))
            else:
                self.found.note("unparsable tokens", f"{where}: label {_shown(word)}")
        return ",".join(map(str, _take(ids, self.labels.clean(ids, where)))), line[len(head) :]

    def _label_pairs(self, number: int, line: bytes) -> str:
        """Return the labels of a file of pairs `label:1`; those with value 0 are not relevant."""
        where = f"{self.files[1]}:{number}"
        ids, _, values = _pairs(line, where, self.found)
        if n_zeros := len(values) - int(np.count_nonzero(values)):
            self.found.note("zero values", where, n_zeros)
            ids = _take(ids, np.flatnonzero(values).tolist())
        return ",".join(map(str, _take(ids, self.labels.clean(ids, where))))

    def _feature_pairs(self, number: int, text: bytes) -> str:
        where = f"{self.source.path}:{number}"
        ids, tokens, values = _pairs(text, where, self.found)
        if (indices := self.features.clean(ids, where)) is not None:
            ids, tokens, values = _take(ids, indices), _take(tokens, indices), values[indices]
        self._note_zeros(len(values) - int(np.count_nonzero(values)), len(values), where)
        first = self.features.first
        # Values are copied as written, to the last digit.
        return " ".join([f"{number - first}:{token.decode()}" for number, token in zip(ids, tokens, strict=True)])

    def _note_zeros(self, n_zeros: int, n_values: int, where: str) -> None:
        if n_zeros:
            self.found.note("zero values", where, n_zeros)
            if n_zeros == n_values:
                self.found.note("zero vectors", where)


def five_numbers(counts: Counter[int]) -> list[int]:
    """Return minimum, quartiles and maximum of a histogram."""
    values, weights = np.array(list(counts)), np.array(list(counts.values()))
    quantiles = np.quantile(values, [0, 0.25, 0.5, 0.75, 1], weights=weights, method="inverted_cdf")
    return [int(value) for value in quantiles]


def _numbered(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield every line with its number from 1."""
    lines = (line for block in line_blocks(path) for line in block.tobytes().removesuffix(b"\n").split(b"\n"))
    return enumerate(lines, 1)


def _rows(lines: Iterable[tuple[int, bytes]], n_rows: int, blanks: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are rows; empty lines at the end count only up to the header's number of rows."""
    n_yielded = n_empty = last = 0
    for last, line in lines:
        if not line.strip(blanks):
            n_empty += 1
            continue
        yield from ((last - n_empty + i, b"") for i in range(n_empty))
        yield last, line
        n_yielded, n_empty = n_yielded + n_empty + 1, 0
    n_promised = min(n_empty, max(0, n_rows - n_yielded))
    yield from ((last - n_empty + 1 + i, b"") for i in range(n_promised))
