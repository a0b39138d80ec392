"""Progress bars: a process that is killed with one does not stop its relatives."""

import subprocess
import sys

# The child dies inside the lock, as one does that is killed while it makes or draws a bar.
RELATIVES = """
import os
import threading

from xmlpreck.files.progress import progress_bar

with progress_bar(10, "rows", wanted=True) as bar:
    if os.fork() == 0:
        with bar.get_lock():
            os._exit(0)
    os.wait()
    bar.update(1)
progress_bar(None, "rows", wanted=False).close()
assert threading.active_count() == 1, threading.enumerate()
"""


def test_a_fork_that_dies_with_the_lock_of_a_bar_stops_no_other_process():
    """tqdm's own lock is a semaphore that forks share, and no bar could be made after a SIGKILL inside it."""
    done = subprocess.run([sys.executable, "-c", RELATIVES], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
