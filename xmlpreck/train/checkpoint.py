"""The state of a run on disk: atomic, the last two kept, checked when read; one run at a time."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from xmlpreck.config import InputError
from xmlpreck.formats.files import atomic_folder
from xmlpreck.shards.sets import file_sha256

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

KEPT = 2
ABOUT, HASHES = "checkpoint.json", "sha256.json"


class CheckpointError(InputError):
    """A checkpoint that cannot be written, read or gone on from."""


class Saved(NamedTuple):
    """A checkpoint that is whole."""

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]  # memory-mapped
    folder: Path


class Checkpoints:
    """Checkpoints of one run, in the folder `<model directory>.partial`, which lives until the model is saved."""

    def __init__(self, model_folder: Path) -> None:
        self.folder = model_folder.with_name(f"{model_folder.name}.partial")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out. The lock ends with the process, however that ends."""
        made = [parent for parent in self.folder.parents if not parent.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            stream = open(self.folder / "lock", "a+")  # noqa: SIM115 (the lock lives as long as it)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be written: {error.strerror or error}") from None
        with stream:
            if fcntl is not None:
                self._lock(stream)
            for half in self.folder.glob(".checkpoint-*"):  # of a run that was killed as it wrote
                shutil.rmtree(half, ignore_errors=True)
            try:
                yield
            finally:
                if not self.numbers():
                    shutil.rmtree(self.folder, ignore_errors=True)
                    with suppress(OSError):  # what holds something by now
                        for parent in made:
                            parent.rmdir()

    def _lock(self, stream: TextIO) -> None:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            owner = stream.read().strip() or "another"
            message = f"{self.folder}: process {owner} is training here: wait for it, or choose another --out"
            raise CheckpointError(message) from None
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()

    def numbers(self) -> list[int]:
        """Of the checkpoints that there are, the last one first."""
        names = [path.name for path in self.folder.glob("checkpoint-*")]
        return sorted((int(name[11:]) for name in names if re.fullmatch(r"checkpoint-\d{6}", name)), reverse=True)

    def save(self, about: dict[str, Any], write: Callable[[Path], dict[str, str]]) -> Path:
        """Write the next checkpoint and remove all but the last two; returns its folder.

        `write` puts the arrays into a folder and returns the sha256 of each file.
        """
        number = (self.numbers() or [0])[0] + 1
        try:
            with atomic_folder(self._path(number)) as folder:
                hashes = write(folder)
                (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")
                hashes[ABOUT] = file_sha256(folder / ABOUT)
                (folder / HASHES).write_text(json.dumps(hashes), encoding="utf-8")
        except OSError as error:
            raise CheckpointError(f"{self._path(number)}: cannot be written: {error.strerror or error}") from None
        for old in self.numbers()[KEPT:]:
            shutil.rmtree(self._path(old), ignore_errors=True)
        return self._path(number)

    def last(self) -> Saved | None:
        """The last checkpoint that is whole."""
        for number in self.numbers():
            folder = self._path(number)
            try:
                if json.loads((folder / HASHES).read_text(encoding="utf-8")) == hashes_of(folder):
                    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
                    return Saved(about, read_arrays(folder), folder)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError):
                continue  # damaged: the one before it may do
        if self.numbers():
            names = ", ".join(self._path(number).name for number in self.numbers())
            raise CheckpointError(
                f"{self.folder}: {names}: damaged: bring one back, or delete the folder to start anew"
            )
        return None

    def clear(self) -> None:
        """The run is done."""
        for number in self.numbers():
            shutil.rmtree(self._path(number), ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"checkpoint-{number:06d}"


def write_arrays(folder: Path, arrays: dict[str, np.ndarray], prefix: str = "") -> dict[str, str]:
    """One file for each; returns their sha256."""
    hashes = {}
    for name, array in arrays.items():
        path = folder / f"{prefix}{name}.npy"
        np.save(path, array, allow_pickle=False)
        hashes[path.name] = file_sha256(path)
    return hashes


def read_arrays(folder: Path, prefix: str = "") -> dict[str, np.ndarray]:
    """What write_arrays wrote, memory-mapped."""
    return {
        path.stem.removeprefix(prefix): np.load(path, mmap_mode="r", allow_pickle=False)
        for path in folder.glob(f"{prefix}*.npy")
    }


def hashes_of(folder: Path) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in folder.iterdir() if path.name != HASHES}
