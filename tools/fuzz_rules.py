"""What the fuzzer's targets have in common: a target, rules that all data obey, and what counts as a refusal."""

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from plain_formats import Files

from xmlpreck.config import InputError


class Target(NamedTuple):
    """A reader under test: valid files, what reads them, and what a plain parser makes of them (or None)."""

    seeds: list[Files]
    read: Callable[[Path, Random], object]
    plain: Callable[[Files], object] | None = None
    odd: list[Files] = []  # noqa: RUF012 (whole in their form, wrong in what they say; a case may start from one)
    finish: Callable[[Files], Files] | None = None  # what is made true again after the damage, in most cases
    must_fail: Callable[[Files, Files], bool] = lambda base, files: False  # in the others: do old checksums show it?


def check_csr(matrix: Any, is_labels: bool) -> None:
    assert matrix.data.dtype == np.float32
    assert matrix.indices.dtype == np.int32
    offsets, ids = matrix.indptr, matrix.indices
    assert len(offsets) == matrix.shape[0] + 1
    assert offsets[0] == 0
    assert offsets[-1] == len(ids) == len(matrix.data)
    assert (np.diff(offsets) >= 0).all()
    assert ((ids >= 0) & (ids < matrix.shape[1])).all()
    assert np.isfinite(matrix.data).all()
    for start, end in pairwise(offsets.tolist()):
        assert (np.diff(ids[start:end]) > 0).all()
    if is_labels:
        assert (matrix.data == 1).all()


def outcome(read: Callable[[], Any]) -> Any:
    """What a reader gives; all its errors are one."""
    try:
        return read()
    except InputError as error:
        is_fine = "\n" not in str(error) and not isinstance(error.__context__, MemoryError)
        if not is_fine:
            raise AssertionError("the message has more than one line, or too much memory was asked for") from error
        return None


def files_of(write: Callable[[Path], object]) -> Files:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "x"
        folder.mkdir()
        write(folder)
        return {
            str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()
        }
