"""Writing beside a target, then one rename: what is there is whole, and nothing of others is lost.

What is being written is in a scratch folder `.NAME.xmlpreck-<token>` beside the target NAME, whose lock file is locked
for as long as its writer lives. Who writes the same target next removes the scratch folders of killed writers.
A scratch folder has `new` (what is being written), `swap` (complete, about to change places with the folder that it
replaces; afterwards the replaced one) and, where names cannot be exchanged in one step, `old` (the replaced one).
"""

import ctypes
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from xmlpreck.config import InputError
from xmlpreck.files import AnyPath, FormatError

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
_SCRATCH = re.compile(r"\.(.+)\.xmlpreck-[0-9a-f]{8}", re.DOTALL)
_TRIES = 100  # at a file that others delete as often as we make it


class Kind(NamedTuple):
    """A folder that we write as a whole: what it is, the file that every one has, and which names in one are ours."""

    noun: str
    marker: str
    names: Callable[[Path], Sequence[str]]  # in the order in which they are deleted
    error: type[InputError]  # that refuses to replace something else


# --- locks


def take_lock(path: Path) -> IO[bytes]:
    """Open and lock a file until the stream is closed or the process ends; BlockingIOError where another has it.

    Where the file system has no locks, nobody is kept out.
    """
    for _ in range(_TRIES):
        stream = open(path, "a+b", buffering=0)  # noqa: SIM115 (the lock lives as long as it)
        try:
            _flock(stream)
            # Who held the lock before may have deleted the file: others would lock the next file of that name.
            if _is_at(stream, path):
                return stream
        except BaseException:
            stream.close()
            raise
        stream.close()
    raise OSError(f"{path.name} is deleted again and again")


def _flock(stream: IO[bytes]) -> bool:
    """Lock the file now, or raise BlockingIOError; False where there are no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _is_at(stream: IO[bytes], path: Path) -> bool:
    """Is this open file still the one of that name?"""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


# --- scratch folders


@contextmanager
def scratch_folder(target: Path, kind: Kind | None = None) -> Iterator[Path]:
    """Yield an empty folder beside `target`, which is gone afterwards; after a kill, the next writer removes it.

    `kind` is what the target is, if a folder that is there may be replaced.
    """
    remove_leftovers(target.parent, target.name, kind)
    place, lock = _new_scratch(target)
    with lock:
        try:
            yield place / "new"
        finally:
            _discard(place, target, kind)


def _new_scratch(target: Path) -> tuple[Path, IO[bytes]]:
    """A scratch folder and its lock."""
    for _ in range(_TRIES):
        place = target.with_name(f".{target.name}.xmlpreck-{secrets.token_hex(4)}")
        place.mkdir(0o700)
        try:
            lock = take_lock(place / LOCK)
        except (FileNotFoundError, BlockingIOError):  # another process took it for one of the dead, as it had no lock
            continue
        try:
            (place / "new").mkdir()
        except BaseException:
            _discard(place, target, None)
            lock.close()
            raise
        return place, lock
    raise OSError("its scratch folder is deleted again and again")


def remove_leftovers(folder: Path, name: str | None = None, kind: Kind | None = None) -> None:
    """Remove the scratch folders of killed writers of `name`, or of everything, in a folder."""
    with suppress(OSError):  # they cost only room
        for place in folder.iterdir():
            found = _SCRATCH.fullmatch(place.name)
            if found and name in (None, found[1]) and not place.is_symlink():
                _remove_leftover(place, folder / found[1], kind)


def _remove_leftover(place: Path, target: Path, kind: Kind | None) -> None:
    with suppress(OSError):
        place.rmdir()  # of a writer killed before it had a lock: empty
        return
    lock = place / LOCK
    if lock.is_symlink() or not lock.is_file():
        return  # we did not make it
    with suppress(OSError), open(lock, "r+b", buffering=0) as stream:
        if _flock(stream) and _is_at(stream, lock):
            _discard(place, target, kind)


def _discard(place: Path, target: Path, kind: Kind | None) -> None:
    """Remove a scratch folder whose lock we have; what cannot be removed stays for the next writer."""
    with suppress(OSError):
        shutil.rmtree(place / "new", ignore_errors=True)
        old = place / "old"
        if old.exists() and not target.exists():  # killed between two renames
            os.rename(old, target)
        for replaced in (place / "swap", old):
            if replaced.exists():
                _remove_replaced(replaced, target, kind)
        (place / LOCK).unlink()
        place.rmdir()


def _remove_replaced(folder: Path, target: Path, kind: Kind | None) -> None:
    """Remove a folder that was replaced: our files by name. What others put there meanwhile moves to the new one."""
    if kind is not None:
        names = list(kind.names(folder))
        for path in _strangers(folder, names):
            if not os.path.lexists(target / path.name):
                os.rename(path, target / path.name)
        for name in names:
            (folder / name).unlink(missing_ok=True)
            remove_leftovers(folder, name)
        folder.rmdir()
    else:  # complete, and never put in its place
        shutil.rmtree(folder)


def _strangers(folder: Path, names: Sequence[str]) -> list[Path]:
    """What is in a folder and not ours: neither a file nor the scratch folder of a file of one of these names."""

    def is_ours(path: Path) -> bool:
        if path.is_symlink() or path.is_file():
            return path.name in names
        found = _SCRATCH.fullmatch(path.name)
        return found is not None and found[1] in names

    return [path for path in sorted(folder.iterdir()) if not is_ours(path)]


def refuse_strangers(folder: Path, kind: Kind) -> None:
    """Refuse to replace what is not there to be replaced: a file, a folder that is no `kind`, one with other files."""
    if os.path.ismount(folder):
        raise kind.error(f"{folder}: is a mount point, which cannot be replaced: choose a folder in it")
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / kind.marker).is_file():
        raise kind.error(f"{folder}: exists and is not {kind.noun}: it is left alone, choose another folder")
    if strangers := _strangers(folder, kind.names(folder)):
        what = f"holds {strangers[0].name!r}, which is not of {kind.noun}"
        raise kind.error(f"{folder}: {what}: nothing is replaced; move it elsewhere, or choose another folder")


# --- one step


@contextmanager
def atomic_path(path: AnyPath) -> Iterator[Path]:
    """Yield a temporary file name; the file takes the place of `path`, synced, only when the block ends well."""
    target = Path(path)
    try:
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            raise OSError("it is not a file")  # a device or a pipe would be gone
        with scratch_folder(target) as folder:
            temporary = folder / target.name  # its suffix too: numpy and scipy add their own to a name without it
            yield temporary
            with open(temporary, "r+b") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary, target)
            sync(target.parent)
    except OSError as error:
        raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def atomic_folder(folder: Path, kind: Kind | None = None) -> Iterator[Path]:
    """Yield an empty folder; it takes the place of `folder`, synced, only when the block ends well.

    A folder that is there is replaced only if it is of this `kind` and holds nothing else; without a kind, never.
    """
    if folder.is_symlink():
        folder = Path(os.path.realpath(folder))  # the link stays
    for parent in [parent for parent in reversed(folder.parents) if not parent.exists()]:
        parent.mkdir(exist_ok=True)
        sync(parent.parent)
    with scratch_folder(folder, kind) as new:
        yield new
        for path in [*new.iterdir(), new]:
            sync(path)
        if kind is not None:
            refuse_strangers(folder, kind)
        elif os.path.lexists(folder):
            raise FormatError(f"{folder}: exists: it is left alone")
        swap = new.with_name("swap")
        os.rename(new, swap)
        if not folder.exists():
            os.rename(swap, folder)
        elif not _exchange(swap, folder):
            os.rename(folder, new.with_name("old"))
            os.rename(swap, folder)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Get a file or the names of a folder onto the disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step, so that a kill leaves no moment without either; False where that is not to be had."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2  # Linux
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0)
