"""Read and write one file of rows with files beside it that list the training rows and the test rows."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.data.dataset import Dataset, same_widths
from xmlpreck.data.formats.repository import REPOSITORY, read_header, read_text, write_repository
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.contents import BLOCK_BYTES, numbered_lines, write_lines

_ENDINGS = {"train": "trsplit.txt", "test": "tstsplit.txt"}
# With leading zeros; more digits are no row of any file, and too many for Python's int.
_ROW_NUMBER = re.compile(r"0*([0-9]{1,15})")
_WRITTEN = {"train": "trSplit.txt", "test": "tstSplit.txt"}


def _files_ending(folder: Path, ending: str) -> list[Path]:
    """List files by ending, ignoring case: the repository has Bibtex_data.txt beside bibtex_trSplit.txt."""
    endings = (ending, f"{ending}.gz")
    return sorted(file for file in folder.iterdir() if file.name.lower().endswith(endings) and file.is_file())


def find_columns(data: Path, split: str) -> Path | None:
    """Find the file of row numbers beside the file of rows; of several, the one with the same prefix."""
    found = _files_ending(data.parent, _ENDINGS[split]) if data.parent.is_dir() else []
    prefix = data.name.lower().partition("data.txt")[0]
    alike = [file for file in found if file.name.lower().startswith(prefix + _ENDINGS[split][:2])]
    return _only(alike or found, f"{data}: there is more than one file of {split} rows")


def find_data(folder: Path, split: str) -> Path | None:
    """Find the `*data.txt` of a folder that has row numbers beside it."""
    found = [file for file in _files_ending(folder, "data.txt") if find_columns(file, split)]
    return _only(found, f"{folder}: there is more than one file of rows")


def _only(files: list[Path], error: str) -> Path | None:
    if len(files) > 1:
        raise FormatError(f"{error}: {', '.join(file.name for file in files)}: keep or name one of them")
    return files[0] if files else None


def read_column(path: AnyPath, column: int, n_rows: int) -> np.ndarray:
    """Read the row ids (from 0, ascending) of one split from a column of row numbers (from 1)."""
    chosen = []
    n_columns = None
    for number, line in numbered_lines(path):
        words = line.split()
        if not words:
            continue
        if n_columns is None:
            n_columns = len(words)
            if not 0 <= column < n_columns:
                raise FormatError(f"{path}: has {n_columns} columns: split_column must be 0 to {n_columns - 1}")
        if len(words) != n_columns:
            raise FormatError(f"{path}:{number}: has {len(words)} columns, but the first line has {n_columns}")
        word = words[column]
        digits = _ROW_NUMBER.fullmatch(word)
        if digits is None or not 1 <= int(digits[1]) <= n_rows:
            raise FormatError(f"{path}:{number}: {word[:40]!r} is not a row: rows are numbered from 1 to {n_rows}")
        chosen.append(int(digits[1]) - 1)
    rows = np.sort(np.array(chosen, np.int64))
    if (twice := np.flatnonzero(np.diff(rows) == 0)).size:
        raise FormatError(f"{path}: row {rows[twice[0]] + 1} appears twice in column {column}: remove one")
    return rows


def row_ids(data: Path, split: str, column: int) -> np.ndarray:
    """Read the row ids of one split from the file beside the file of rows."""
    path = find_columns(data, split)
    if path is None:
        raise FormatError(f"{data}: has no file *{_WRITTEN[split]} with the numbers of the {split} rows beside it")
    return read_column(path, column, read_header(data)["n_rows"])


def read_columns(
    data: Path, split: str, column: int = 0, block_bytes: int | None = BLOCK_BYTES
) -> Iterator[tuple[csr_array, csr_array]]:
    """Yield (rows, labels) of one split, in the order of the file, so that it is read only once."""
    chosen = row_ids(data, split, column)
    first = 0
    for rows, labels in read_text(data, REPOSITORY, block_bytes):
        start, end = np.searchsorted(chosen, (first, first + rows.shape[0]))
        picked = chosen[start:end] - first
        yield rows[picked], labels[picked]
        first += rows.shape[0]


def _own_columns(data: Path, split: str) -> Path:
    """Return the existing file of row numbers, or the path of a new one."""
    prefix = data.name.removesuffix(".gz").removesuffix("data.txt")
    return find_columns(data, split) or data.with_name(prefix + _WRITTEN[split])


def write_columns(data: Path, split: str, chunks: Iterable[Dataset]) -> None:
    """Write one split after the rows of the other split, which are kept.

    Three files are replaced one after the other: after a kill in between, write both splits again.
    """
    other_split = "test" if split == "train" else "train"
    own, others = _own_columns(data, split), _own_columns(data, other_split)
    has_other = data.is_file() and others.is_file()
    for path in (own, others) if data.is_file() else ():
        if path.is_file() and any(len(line.split()) > 1 for _, line in numbered_lines(path)):
            raise FormatError(f"{path}: has several columns, which would be lost: write to another folder")
    n_kept = 0

    def kept() -> Iterator[Dataset]:
        nonlocal n_kept
        for rows, labels in read_columns(data, other_split):
            n_kept += rows.shape[0]
            yield Dataset(rows, labels)

    n_rows = write_repository(data, same_widths(data, chain(kept() if has_other else (), chunks))).n_rows
    if has_other:
        write_lines(others, map(str, range(1, n_kept + 1)))
    write_lines(own, map(str, range(n_kept + 1, n_rows + 1)))
