"""Show progress on the terminal."""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from tqdm import tqdm


class Bar(tqdm):
    """A bar without the parts of tqdm that do not survive a fork.

    tqdm's default lock is a semaphore that forked processes share: one that is killed inside it stops all others for
    ever at their next bar, even a hidden one. Its monitor is a thread, and a fork beside threads can copy a held lock.
    """

    monitor_interval = 0


Bar.set_lock(threading.RLock())


def progress_bar(n_rows: int | None, text: str, wanted: bool) -> Bar:
    """Make a bar on stderr, shown if that is a terminal."""
    return Bar(total=n_rows, desc=text, unit=" rows", unit_scale=True, leave=False, disable=None if wanted else True)


class Sized(Protocol):
    """Some rows."""

    @property
    def n_rows(self) -> int: ...


Chunk = TypeVar("Chunk", bound=Sized)


class Reading:
    """Show the progress of passes over chunks of rows, and add up the seconds of reading them.

    The seconds of whoever uses the chunks do not count.
    """

    def __init__(self, text: str, progress: bool = False) -> None:
        self.text, self.progress = text, progress
        self.seconds = 0.0
        self._n_rows: int | None = None  # known after the first pass

    def over(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Pass chunks on."""
        chunks, n_rows = iter(chunks), 0
        with progress_bar(self._n_rows, self.text, self.progress) as bar:
            while True:
                started = time.perf_counter()
                chunk = next(chunks, None)
                self.seconds += time.perf_counter() - started
                if chunk is None:
                    break
                yield chunk
                n_rows += chunk.n_rows
                bar.update(chunk.n_rows)
        self._n_rows = n_rows
