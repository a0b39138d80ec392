"""Progress bars: a process that is killed with one does not stop its relatives."""

import subprocess
import sys

import pytest

from xmlpreck.data.dataset import Documents
from xmlpreck.files import progress

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


def test_only_the_seconds_of_reading_count(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])

    def chunks():
        for _ in range(3):
            clock[0] += 2
            yield Documents(["a", "b"], [[], []])
        clock[0] += 1

    reading = progress.Reading("texts")
    for n_passes in (1, 2):
        n_rows = 0
        for chunk in reading.over(chunks()):
            clock[0] += 100  # whoever uses it
            n_rows += chunk.n_rows
        assert n_rows == 6
        assert reading.seconds == pytest.approx(7 * n_passes)
