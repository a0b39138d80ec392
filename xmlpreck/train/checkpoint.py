"""The state of a run on disk: atomic, the last two kept, checked when read; one run at a time."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from xmlpreck.config import PAPER_RULES, ConfigError, InputError, from_dict
from xmlpreck.files import write_errors
from xmlpreck.files.atomic import atomic_folder, remove_leftovers, take_lock
from xmlpreck.files.contents import file_sha256, load_array, read_json
from xmlpreck.model.info import check_history, check_tuning

KEPT = 2
TRIES = 100  # at a folder that other runs delete as they end
LOCK, ABOUT, HASHES = "lock", "checkpoint.json", "sha256.json"
# What training changes, of one machine or (part-00000.*) of a shard of the labels on a cluster.
_ARRAYS = "dense_rows values dense_sums sums clock norms hardest remembered"
_OWN_NAME = re.compile(rf"{re.escape(ABOUT)}|{re.escape(HASHES)}|(part-\d{{5,}}\.)?({'|'.join(_ARRAYS.split())})\.npy")


class CheckpointError(InputError):
    """A checkpoint that cannot be written, read or resumed from."""


class Saved(NamedTuple):
    """A complete checkpoint."""

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]  # memory-mapped
    folder: Path


class Checkpoints:
    """Checkpoints of one run, in the folder `<model directory>.partial`, which lives until the model is saved."""

    def __init__(self, model_folder: Path) -> None:
        self.folder = model_folder.with_name(f"{model_folder.name}.partial")
        self.record = self.folder / "tuning.json"  # what tuning has found before the first checkpoint

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out. The lock ends with the process, however that ends."""
        made = [parent for parent in self.folder.parents if not parent.exists()]
        with write_errors(self.folder, CheckpointError):
            stream = self._lock()
        with stream:
            remove_leftovers(self.folder)  # of a run that was killed as it wrote
            try:
                yield
            finally:
                with suppress(OSError):  # what holds something of others by now, stays
                    if not self.numbers():
                        (self.folder / LOCK).unlink()
                        remove_leftovers(self.folder)
                        for folder in (self.folder, *made):
                            folder.rmdir()

    def _lock(self) -> IO[bytes]:
        """Lock the folder; the lock file holds the id of this process for others to read."""
        for _ in range(TRIES):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                stream = take_lock(self.folder / LOCK)
            except FileNotFoundError:  # another run ended just now, and its folder is gone
                continue
            except BlockingIOError:
                message = f"process {self._owner()} is training here: wait for it, or choose another --out"
                raise CheckpointError(f"{self.folder}: {message}") from None
            with suppress(OSError):  # a full disk: it is locked all the same
                stream.truncate(0)
                stream.write(str(os.getpid()).encode())
            return stream
        raise OSError("the folder is deleted again and again")

    def _owner(self) -> str:
        with suppress(OSError, ValueError):
            owner = read_json(self.folder / LOCK, max_bytes=20)
            if type(owner) is int:
                return str(owner)
        return "another"

    def numbers(self) -> list[int]:
        """Return the numbers of the checkpoints, the last one first; without those that a kill left half removed."""
        return [number for number in self._taken() if (self._path(number) / HASHES).exists()]

    def _taken(self) -> list[int]:
        """Return the numbers in use, also by files that are not ours."""
        names = [path.name for path in self.folder.glob("checkpoint-*")]
        return sorted((int(name[11:]) for name in names if re.fullmatch(r"checkpoint-\d{6}", name)), reverse=True)

    def save(self, about: dict[str, Any], write: Callable[[Path], dict[str, str]]) -> Path:
        """Write the next checkpoint and remove all but the last two; returns its folder.

        `write` puts the arrays into a folder and returns the sha256 of each file.
        """
        number = max(self._taken(), default=0) + 1
        path = self._path(number)
        with write_errors(path, CheckpointError), atomic_folder(path) as folder:
            hashes = write(folder)
            (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")
            hashes[ABOUT] = file_sha256(folder / ABOUT)
            (folder / HASHES).write_text(json.dumps(hashes), encoding="utf-8")
        for old in self.numbers()[KEPT:]:
            self._remove(old)
        return path

    def last(self) -> Saved | None:
        """Return the last complete checkpoint, if there is one."""
        numbers = self.numbers()
        for number in numbers:
            with suppress(OSError, ValueError, InputError):  # damaged: the one before it may do
                return _read(self._path(number))
        if numbers:
            names = ", ".join(self._path(number).name for number in numbers)
            raise CheckpointError(
                f"{self.folder}: {names}: damaged: bring one back, or delete the folder to start from the first row"
            )
        return None

    def clear(self) -> None:
        """Remove what a finished run has kept."""
        with suppress(OSError):
            self.record.unlink()
        for number in self._taken():  # also those that a kill left without files
            self._remove(number)

    def _remove(self, number: int) -> None:
        """Delete a checkpoint, but no file that is not ours."""
        folder = self._path(number)
        with suppress(OSError):
            (folder / HASHES).unlink(missing_ok=True)  # first: without it, it is no checkpoint any more
            for path in _own_files(folder):
                path.unlink()
            folder.rmdir()

    def _path(self, number: int) -> Path:
        return self.folder / f"checkpoint-{number:06d}"


def _own_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint that have our names."""
    with suppress(OSError):
        return [path for path in folder.iterdir() if _OWN_NAME.fullmatch(path.name) and not path.is_dir()]
    return []


def _read(folder: Path) -> Saved:
    """Read a checkpoint and check its hashes and types; a ValueError or an OSError says what is wrong."""
    hashes = read_json(folder / HASHES)
    if not isinstance(hashes, dict) or ABOUT not in hashes or HASHES in hashes:
        raise ValueError(f"{HASHES} does not list the files")
    for name, digest in hashes.items():
        if not _OWN_NAME.fullmatch(name) or file_sha256(folder / name) != digest:
            raise ValueError(f"{name!r:.40} has changed")
    about = read_json(folder / ABOUT)
    check_about(about)
    names = [name for name in hashes if name != ABOUT]
    return Saved(about, {name.removesuffix(".npy"): load_array(folder / name) for name in names}, folder)


def check_about(about: Any) -> None:
    """Check the types of what a run resumes from; a ValueError names the first field that is wrong.

    Whether it is of the same run, the run knows: identity and cursor are compared with its rows and settings.
    """

    def demand(holds: bool, name: str, what: str) -> None:
        if not holds:
            raise ValueError(f"{ABOUT}: {name} must be {what}")

    demand(isinstance(about, dict), "it", "an object")
    for name in ("identity", "trainer"):
        demand(isinstance(about.get(name), dict), name, "an object")
    for name in ("cut", "edges"):
        counts = about["identity"].get(name)
        is_list = isinstance(counts, list) and len(counts) > 1 and all(_is_count(count) for count in counts)
        demand(counts is None or is_list, f"identity.{name}", "a list of whole numbers")
    check_history(about.get("history"))
    demand(about.get("history") is not None, "history", "a list")
    check_tuning(about.get("tuning"))
    if about.get("tuning") is not None:
        try:
            # A rule of the paper may have what any rule may: the run's own is in its identity, which the run checks.
            from_dict({"train": {"algo": PAPER_RULES[0]} | about["tuning"]["chosen"]}, ABOUT)
        except ConfigError as error:
            raise ValueError(str(error)) from None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def write_arrays(folder: Path, arrays: dict[str, np.ndarray], prefix: str = "") -> dict[str, str]:
    """Write one file for each array; return their sha256."""
    hashes = {}
    for name, array in arrays.items():
        path = folder / f"{prefix}{name}.npy"
        np.save(path, array, allow_pickle=False)
        hashes[path.name] = file_sha256(path)
    return hashes


def read_arrays(folder: Path, prefix: str = "") -> dict[str, np.ndarray]:
    """Map the arrays that write_arrays wrote."""
    return {path.stem.removeprefix(prefix): load_array(path) for path in folder.glob(f"{prefix}*.npy")}
