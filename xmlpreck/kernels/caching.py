"""The `kernel` decorator: numba's compiler, with a cache on disk that notices every edit of this folder.

Numba's own cache looks at the file of the compiled function only: after an edit of a function that it calls, or of a
named tuple that it takes, it would load the old machine code.
"""

import atexit
import errno
import functools
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import event
from numba.core.caching import FunctionCache, UserProvidedCacheLocator

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FOLDER = Path(__file__).parent
WAITING = "xmlpreck:waiting"  # numba's event for the time in which another process compiles a kernel
MAX_WAIT = 300.0  # seconds for one kernel; then it is compiled here, too


def hash_sources(folder: Path = FOLDER) -> str:
    """Hash all that machine code depends on: the files of a folder, and the versions of what compiles them."""
    digest = hashlib.sha256()
    for part in (sys.version, numba.__version__, llvmlite.__version__, np.__version__):
        digest.update(f"{part}\n".encode())
    for path in sorted(folder.glob("*.py")):
        digest.update(f"{path.name}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


STAMP = hash_sources()


@functools.cache
def make_private_folder() -> str:
    """Make a folder that nobody else can write, since its files are executed; it is removed when the process ends."""
    parents = [None, "/dev/shm"]  # None = as TMPDIR and the system say
    for parent in parents:
        try:
            folder = tempfile.mkdtemp(prefix="xmlpreck-kernels-", dir=parent)
            break
        except OSError:
            if parent == parents[-1]:
                raise
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # and not in a fork
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    print(
        f"xmlpreck: no folder can be written for compiled kernels, so they are compiled for this run only, in "
        f"{folder}: set NUMBA_CACHE_DIR to a folder that lasts",
        file=sys.stderr,
        flush=True,
    )
    return folder


class _PrivateLocator:
    """The last resort, where neither NUMBA_CACHE_DIR nor this folder nor the user's cache folder can be written."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., Any], path: str) -> "_PrivateLocator":
        return cls(function)

    def ensure_cache_path(self) -> None:
        make_private_folder()

    def get_cache_path(self) -> str:
        return make_private_folder()

    def get_source_stamp(self) -> str:
        return STAMP

    def get_disambiguator(self) -> str:
        return str(self.line)


class _GivenLocator(UserProvidedCacheLocator):
    """The folder of NUMBA_CACHE_DIR, which may be read-only if it holds kernels, as in the image of a container."""

    def ensure_cache_path(self) -> None:
        try:
            super().ensure_cache_path()
        except OSError:
            if not any(Path(self.get_cache_path()).glob("*.nbi")):
                raise


def _stamped(locator: type) -> type:
    """Return one of numba's locators with our stamp in place of that of one file."""
    kind = _GivenLocator if locator is UserProvidedCacheLocator else locator
    return type(locator.__name__, (kind,), {"get_source_stamp": lambda self: STAMP})


class _Impl(FunctionCache._impl_class):
    _locator_classes = (*map(_stamped, FunctionCache._impl_class._locator_classes), _PrivateLocator)


def _take_lock(lock: int) -> bool:
    """Lock an open file, unless another process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_lock(path: Path) -> int | None:
    """Lock a file, waiting for the process that has it, MAX_WAIT seconds at most; None where that cannot be."""
    if fcntl is None:
        return None
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # a read-only folder: everybody compiles for himself
        return None
    is_mine, ends = False, time.monotonic() + MAX_WAIT
    try:
        if not (is_mine := _take_lock(lock)):
            with event.trigger_event(WAITING):
                while not is_mine and time.monotonic() < ends:
                    time.sleep(0.02)
                    is_mine = _take_lock(lock)
    except OSError:  # a file system without locks
        pass
    finally:
        if not is_mine:
            os.close(lock)
    return lock if is_mine else None


class _KernelCache(FunctionCache):
    """Processes that start together, such as workers of a server, compile each kernel once: the others wait for it."""

    _impl_class = _Impl

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self.locks: dict[Any, int] = {}  # of what this process is compiling, by signature

    def _lock_path(self, sig: Any) -> Path:
        signature = hashlib.sha256(f"{STAMP} {sig}".encode()).hexdigest()[:16]
        return Path(self.cache_path) / f"{self._impl.filename_base}.{signature}.lock"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load machine code, or return None: then it is to be compiled here."""
        found = super().load_overload(sig, target_context)
        if found is None and sig not in self.locks and (lock := _open_lock(self._lock_path(sig))) is not None:
            found = super().load_overload(sig, target_context)  # who had the lock may have compiled it
            if found is None:
                self.locks[sig] = lock
            else:
                os.close(lock)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code, unless the folder is read-only: then it is compiled for this run only."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        finally:
            if (lock := self.locks.pop(sig, None)) is not None:
                with suppress(OSError):  # gone, or the folder has become read-only
                    self._lock_path(sig).unlink()
                os.close(lock)


@contextmanager
def on_compilation(call: Callable[[], None]) -> Iterator[None]:
    """Call once, when the first kernel is compiled and not loaded from the cache, until the block ends.

    To wait for another process that compiles it counts as well.
    """

    class First(event.Listener):
        is_over = False

        def on_start(self, event: event.Event) -> None:
            if not self.is_over:
                call()
            self.is_over = True

        def on_end(self, event: event.Event) -> None:
            pass

    first = First()
    with event.install_listener("numba:compile", first), event.install_listener(WAITING, first):
        yield


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that runs without the GIL, and keep its machine code on disk.

    One with a leading underscore is for other kernels only: without a way in from Python it is compiled sooner.
    """
    is_inner = function.__name__.startswith("_")
    compiled = numba.njit(nogil=True, no_cfunc_wrapper=True, no_cpython_wrapper=is_inner)(function)
    compiled._cache = _KernelCache(function)
    return compiled
