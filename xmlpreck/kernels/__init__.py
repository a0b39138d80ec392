"""Every numba function. No file here calls functions of another: numba's cache would not see edits there."""

import atexit
import os
import shutil
import sys
import tempfile

import numba


def _probe() -> None:
    """Do nothing: numba is asked where it would keep this, and all else of this folder."""


def _make_private_folder() -> str:
    """Make a folder that nobody else can write: what stands in it is run. It goes when this process ends."""
    places = [None, "/dev/shm"]  # None = as TMPDIR and the system say
    for place in places:
        try:
            folder = tempfile.mkdtemp(prefix="xmlpreck-kernels-", dir=place)
            break
        except OSError:
            if place == places[-1]:
                raise
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # and not in a fork
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


try:
    numba.njit(cache=True)(_probe)
except RuntimeError:  # neither NUMBA_CACHE_DIR, nor this folder, nor the user's folder of caches can be written
    os.environ["NUMBA_CACHE_DIR"] = _make_private_folder()
    numba.config.reload_config()
    print(
        f"xmlpreck: there is no folder to keep compiled kernels in, so they are compiled for this run alone, in "
        f"{os.environ['NUMBA_CACHE_DIR']}: name one that lasts by NUMBA_CACHE_DIR",
        file=sys.stderr,
        flush=True,
    )
