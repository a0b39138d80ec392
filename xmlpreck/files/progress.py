"""Show progress on the terminal."""

import threading

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
