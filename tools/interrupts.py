"""Interrupt training and prediction at random moments, by real signals, and measure how soon each run ends.

    python tools/interrupts.py --runs 1000 --commands 100 --seed 20261117 [--data D] [--out interrupts.json]

Most runs are calls of the library within one process, which is sent SIGINT (Ctrl-C) by a thread at a random moment:
the call must raise KeyboardInterrupt, and no thread of it may be left. `--commands` of the runs are processes of
`xmlpreck train` that are sent SIGINT or SIGTERM, some of them twice. A run that takes longer than --limit seconds (1)
from the signal to its end has failed; so has one that ends in another way than it should.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_train import machine

from xmlpreck import train
from xmlpreck.config import RunConfig, TrainConfig
from xmlpreck.data import catalog
from xmlpreck.data.formats import Dataset
from xmlpreck.train import tune

HUNG = 60.0


def python_run(call: Callable[[], Any], delay: float) -> tuple[str, float]:
    """Call the library, and interrupt it after `delay` seconds: how it ended, and seconds since the signal."""
    sent = [0.0]

    def interrupt() -> None:
        sent[0] = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(delay, interrupt)
    n_threads = alive_threads()
    try:
        timer.start()
        call()
        timer.cancel()
        timer.join()
        if not sent[0]:
            return "ended before", 0.0
        time.sleep(0.01)  # the signal is on its way
        return "not heard", 0.0
    except KeyboardInterrupt:
        seconds = time.monotonic() - sent[0]
    timer.join()
    deadline = time.monotonic() + 1.0  # a thread that has ended its work may wait for a core to end itself
    while alive_threads() > n_threads and time.monotonic() < deadline:
        time.sleep(0.001)
    return ("interrupted" if alive_threads() <= n_threads else "threads left"), seconds


def alive_threads() -> int:
    """Count threads that run; one whose start was interrupted stays listed, though there is no such thread."""
    return sum(thread.is_alive() for thread in threading.enumerate())


def command_run(words: list[str], delay: float, number: int, twice: bool) -> tuple[str, float]:
    """Send a signal to a process of the command line: how it ended, and seconds since the signal."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        process.wait(delay)
        return "ended before", 0.0
    except subprocess.TimeoutExpired:
        pass
    sent = time.monotonic()
    process.send_signal(number)
    if twice:
        time.sleep(0.05)
        process.send_signal(number)
    try:
        _, said = process.communicate(timeout=HUNG)
    except subprocess.TimeoutExpired:
        process.kill()
        return "hung", HUNG
    seconds = time.monotonic() - sent
    # A second signal, and SIGTERM before the command has begun, end the process by the system's own hand.
    allowed = (0, 128 + number, -number)
    if process.returncode not in allowed or "Traceback" in said:
        return f"exit {process.returncode}: {said[-300:]}", seconds
    return ("interrupted" if process.returncode else "ended before"), seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="interrupts that must be heard (default: 1000)")
    parser.add_argument("--commands", type=int, default=100, help="of these, processes of the command (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="demo", help="what is trained on (default: demo)")
    parser.add_argument("--limit", type=float, default=1.0, help="seconds from signal to end (default: 1)")
    parser.add_argument("--out", help="JSON file to write")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    data = catalog.load(args.data, "train")
    rows = data.read(0, data.n_rows)
    whole = Dataset(rows.rows, rows.labels)
    results: list[tuple[str, str, float]] = []

    def settings() -> RunConfig:
        algo = rng.choice(("hinge", "sgd-avg"))
        return RunConfig(train=TrainConfig(algo=algo, threads=rng.choice((1, 2, 2, 4)), epochs=50))

    # All kernels are loaded first. (Python itself loses an interrupt that falls into a __del__, of which numba's
    # compiler has many; a second Ctrl-C is heard.)
    scorer = train.fit(whole, RunConfig())
    scorer.score(whole, 2)
    scorer.prune(0.05)
    calls: dict[str, Callable[[], Any]] = {
        "fit": lambda: train.fit(whole, settings()),
        "tune": lambda: tune(whole, RunConfig(fixed=frozenset({"algo"}))),  # by trials
        "predict": lambda: [scorer.predict_topk(whole.rows, 5, rng.choice((1, 2, 4))) for _ in range(200)],
        "score": lambda: [scorer.score(whole, rng.choice((1, 2, 4))) for _ in range(100)],
    }

    def add(what: str, how: str, seconds: float) -> None:
        """Count a run; a signal that came too late is no run."""
        if how == "ended before":
            return
        results.append((what, how, seconds))
        if how != "interrupted" or seconds > args.limit:
            print(f"{what}: {how}, {seconds:.2f} s", flush=True)
        elif len(results) % 100 == 0:
            print(f"{len(results)} interrupts", flush=True)

    with tempfile.TemporaryDirectory() as work:
        while len(results) < args.commands:
            out = Path(work) / str(len(results))
            words = [sys.executable, "-m", "xmlpreck", "train", "--data", args.data, "--out", str(out)]
            words += ["--set", "train.epochs=200"] if rng.random() < 0.7 else []
            number = rng.choice((signal.SIGINT, signal.SIGTERM))
            how, seconds = command_run(words, rng.uniform(0.2, 5.0), number, rng.random() < 0.3)
            add(f"command, signal {int(number)}", how, seconds)
    while len(results) < args.runs:
        what = rng.choice(list(calls))
        add(what, *python_run(calls[what], rng.expovariate(1 / 0.25)))
    failed = [run for run in results if run[1] != "interrupted" or run[2] > args.limit]
    slowest: dict[str, float] = {}
    for what, _, seconds in results:
        slowest[what] = max(slowest.get(what, 0.0), seconds)
    summary = {
        "seed": args.seed,
        "runs": len(results),
        "failed": failed,
        "slowest_seconds": slowest,
        "machine": machine(),
    }
    print(f"{len(results) - len(failed)} of {len(results)} ended within {args.limit:g} s; slowest: {slowest}")
    if args.out:
        Path(args.out).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
