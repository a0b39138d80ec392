"""Write files and folders atomically: beside the target, then one rename; files of others are never lost.

A scratch folder `.NAME.xmlpreck-<token>` beside the target NAME is locked while its writer lives. The next writer of
the same target removes the scratch folders of killed writers. It holds `new` (being written), `swap` (complete, about
to be exchanged with the target; afterwards the replaced folder) and, without an atomic exchange, `old` (the replaced
folder).
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
from xmlpreck.files import AnyPath, FormatError, write_errors

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
_SCRATCH = re.compile(r"\.(.+)\.xmlpreck-[0-9a-f]{8}", re.DOTALL)
_TRIES = 100  # to lock a file that other processes keep deleting


class Kind(NamedTuple):
    """A kind of folder written as a whole: its name, the file that marks one, and the file names that belong to it."""

    noun: str
    marker: str
    names: Callable[[Path], Sequence[str]]  # in order of deletion
    error: type[InputError]  # raised instead of replacing anything else


# --- locks


def take_lock(path: Path, on_wait: Callable[[], None] | None = None) -> IO[bytes]:
    """Lock a file until the stream is closed or the process ends; the system frees the lock of one that dies.

    If another process holds it, raise BlockingIOError, or call `on_wait` and wait. File systems without locks let every
    process in.
    """
    for _ in range(_TRIES):
        stream = open(path, "a+b", buffering=0)  # noqa: SIM115 (the lock lives as long as it)
        try:
            _flock(stream, on_wait)
            # The previous holder may have deleted the file; others would then lock a new file of that name.
            if _is_at(stream, path):
                return stream
        except BaseException:
            stream.close()
            raise
        stream.close()
    raise OSError(f"{path.name} is deleted repeatedly")


def _flock(stream: IO[bytes], on_wait: Callable[[], None] | None = None) -> bool:
    """Lock the file; return False if locks are not supported."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if on_wait is None:
            raise
        on_wait()
        fcntl.flock(stream, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def _is_at(stream: IO[bytes], path: Path) -> bool:
    """Tell whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


# --- scratch folders


@contextmanager
def scratch_folder(target: Path, kind: Kind | None = None) -> Iterator[Path]:
    """Yield an empty folder beside `target` and remove it afterwards; after a kill, the next writer removes it.

    `kind` is the kind of the target, if an existing folder may be replaced.
    """
    remove_leftovers(target.parent, target.name, kind)
    scratch, lock = _new_scratch(target)
    with lock:
        try:
            yield scratch / "new"
        finally:
            _discard(scratch, target, kind)


def _new_scratch(target: Path) -> tuple[Path, IO[bytes]]:
    """Create a scratch folder and lock it."""
    for _ in range(_TRIES):
        scratch = target.with_name(f".{target.name}.xmlpreck-{secrets.token_hex(4)}")
        scratch.mkdir(0o700)
        try:
            lock = take_lock(scratch / LOCK)
        except (FileNotFoundError, BlockingIOError):  # not locked yet, so another process removed it as a leftover
            continue
        try:
            (scratch / "new").mkdir()
        except BaseException:
            _discard(scratch, target, None)
            lock.close()
            raise
        return scratch, lock
    raise OSError("its scratch folder is deleted repeatedly")


def remove_leftovers(folder: Path, name: str | None = None, kind: Kind | None = None) -> None:
    """Remove the scratch folders that killed writers of `name` (None = of any name) left in a folder."""
    with suppress(OSError):  # they only take space
        for path in folder.iterdir():
            found = _SCRATCH.fullmatch(path.name)
            if found and name in (None, found[1]) and not path.is_symlink():
                _remove_leftover(path, folder / found[1], kind)


def _remove_leftover(scratch: Path, target: Path, kind: Kind | None) -> None:
    with suppress(OSError):
        scratch.rmdir()  # empty: its writer was killed before it had a lock
        return
    lock = scratch / LOCK
    if lock.is_symlink() or not lock.is_file():
        return  # not made by us
    with suppress(OSError), open(lock, "r+b", buffering=0) as stream:
        if _flock(stream) and _is_at(stream, lock):
            _discard(scratch, target, kind)


def _discard(scratch: Path, target: Path, kind: Kind | None) -> None:
    """Remove a scratch folder whose lock we hold; what cannot be removed is left to the next writer."""
    with suppress(OSError):
        shutil.rmtree(scratch / "new", ignore_errors=True)
        old = scratch / "old"
        if old.exists() and not target.exists():  # killed between two renames
            os.rename(old, target)
        for replaced in (scratch / "swap", old):
            if replaced.exists():
                _remove_replaced(replaced, target, kind)
        (scratch / LOCK).unlink()
        scratch.rmdir()


def _remove_replaced(folder: Path, target: Path, kind: Kind | None) -> None:
    """Remove a replaced folder: our files by name; files that others added meanwhile move to the new folder."""
    if kind is not None:
        names = list(kind.names(folder))
        for path in _strangers(folder, names):
            if not os.path.lexists(target / path.name):
                os.rename(path, target / path.name)
        for name in names:
            (folder / name).unlink(missing_ok=True)
            remove_leftovers(folder, name)
        folder.rmdir()
    else:  # complete, but never moved to the target
        shutil.rmtree(folder)


def _strangers(folder: Path, names: Sequence[str]) -> list[Path]:
    """List what is in a folder besides files of these names and scratch folders of such files."""

    def is_ours(path: Path) -> bool:
        if path.is_symlink() or path.is_file():
            return path.name in names
        found = _SCRATCH.fullmatch(path.name)
        return found is not None and found[1] in names

    return [path for path in sorted(folder.iterdir()) if not is_ours(path)]


def refuse_strangers(folder: Path, kind: Kind) -> None:
    """Refuse to replace a file, a folder of another kind, or a folder that also holds other files."""
    if os.path.ismount(folder):
        raise kind.error(f"{folder}: is a mount point, which cannot be replaced: choose a folder in it")
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / kind.marker).is_file():
        raise kind.error(f"{folder}: exists and is not {kind.noun}: choose another folder")
    if strangers := _strangers(folder, kind.names(folder)):
        what = f"holds {strangers[0].name!r}, which is not part of {kind.noun}"
        raise kind.error(f"{folder}: {what}: nothing was replaced; move it elsewhere, or choose another folder")


# --- atomic writes


@contextmanager
def atomic_path(path: AnyPath) -> Iterator[Path]:
    """Yield a temporary file name; the file replaces `path`, synced, only if the block succeeds."""
    target = Path(path)
    with write_errors(path):
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            raise OSError("it is not a file")  # a device or a pipe would be lost
        with scratch_folder(target) as folder:
            temporary = folder / target.name  # with its suffix: numpy and scipy add one to names without
            yield temporary
            with open(temporary, "r+b") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary, target)
            sync(target.parent)


@contextmanager
def atomic_folder(folder: Path, kind: Kind | None = None) -> Iterator[Path]:
    """Yield an empty folder; it replaces `folder`, synced, only if the block succeeds.

    An existing folder is replaced only if it is of this `kind` and holds nothing else; without a kind, never.
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
            raise FormatError(f"{folder}: exists: choose another folder")
        swap = new.with_name("swap")
        os.rename(new, swap)
        if not folder.exists():
            os.rename(swap, folder)
        elif not _exchange(swap, folder):
            os.rename(folder, new.with_name("old"))
            os.rename(swap, folder)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names atomically, so that both always exist; return False if that is not supported."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2  # Linux
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0)
