"""Ctrl-C ends training and prediction from Python and from the command line: no thread is left, none waits for ever."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers import ROOT
from scipy.sparse import csr_array, random_array

from xmlpreck.api.estimators.classifier import PrecAtKClassifier
from xmlpreck.kernels.threads import STOPPED, new_bell, run_team, wait_until
from xmlpreck.train import TrainingError, trainer


def test_interrupts_at_random_moments_end_every_run():
    """Real signals; the limit is a guard against hangs, not a measure (tools/interrupts.py measures)."""
    words = [sys.executable, str(ROOT / "tools" / "interrupts.py"), "--runs", "20", "--commands", "0", "--limit", "60"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 of 20 ended" in done.stdout


@pytest.mark.parametrize("n_threads", [1, 2, 4])
def test_an_interrupt_between_two_starts_leaves_nobody_waiting(n_threads, monkeypatch):
    """The first thread waits for the second, which is never started: this hung four runs of five."""
    counters = np.zeros(1, np.int64)
    went_on = []
    begun = threading.Event()
    start = threading.Thread.start

    def interrupted_start(thread: threading.Thread) -> None:
        if begun.is_set():
            raise KeyboardInterrupt
        start(thread)
        begun.wait(60)

    def task(thread: int) -> None:
        begun.set()
        wait_until(counters, 0, n_threads + 1, new_bell())
        went_on.append(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt):
        run_team(n_threads + 1, task, lambda: counters.fill(STOPPED))
    assert went_on == [0]


def test_an_error_in_one_thread_stops_the_others():
    counters, bell = np.zeros(1, np.int64), new_bell()

    def task(thread: int) -> None:
        if thread == 2:
            raise MemoryError("no room")
        wait_until(counters, 0, 3, bell)

    with pytest.raises(MemoryError, match="no room"):
        run_team(3, task, lambda: counters.fill(STOPPED))


def test_weights_of_an_interrupted_pass_are_not_used(monkeypatch):
    """Some weights have steps that others lack: going on would give other bits than any whole pass."""
    rng = np.random.default_rng(0)
    rows = csr_array(random_array((300, 50), density=0.2, rng=rng).astype(np.float32))
    labels = csr_array((rng.random((300, 40)) < 0.05).astype(np.float32))
    classifier = PrecAtKClassifier(n_jobs=2).partial_fit(rows, labels)

    def interrupted_team(n_threads, task, stop):
        stop()
        run_team(n_threads, task, stop)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "run_team", interrupted_team)
        with pytest.raises(KeyboardInterrupt):
            classifier.partial_fit(rows, labels)
    with pytest.raises(TrainingError, match="interrupted within a pass"):
        classifier.partial_fit(rows, labels)
    classifier.fit(rows, labels).partial_fit(rows, labels)


SWALLOWED = """
import os, signal, sys
from xmlpreck.api import training
from xmlpreck.cli import main

read_settings = training.read_settings

def read_after_a_signal(*args):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:
        pass  # as Python does with what is raised while a __del__ runs
    return read_settings(*args)

training.read_settings = read_after_a_signal
sys.exit(main(["train", "--data", "demo", "--no-tune", "--out", "m"]))
"""


def test_a_signal_that_python_has_dropped_still_stops_training(tmp_path):
    words = [sys.executable, "-c", SWALLOWED]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path)
    assert done.returncode == 143, done.stderr
    assert not (tmp_path / "m").exists()
