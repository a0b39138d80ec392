"""A pass beside busy processes: its time against that on a quiet machine, and what the threads of a team cost.

    python tools/bench_busy.py --data DIR [--threads 1 2 4 8] [--loops 2] [--repeat 5] [--peers pecos] [--out busy.json]

First, every number of threads must give the same bits. Then passes are timed by turns, quiet and beside --loops
processes that only count. A ratio is of two medians of one run. A time counts only if other processes than these had
less than --others cores meanwhile; else it is taken again, for at most --patience seconds, and then the quietest count.
A fair share beside as many loops as cores is 2: half of each core. With --peers, whole trainings in processes of
their own follow, of xmlpreck without tuning and of these peers (see bench_peers.py for their environments).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from bench_peers import HOME, PEERS, RUNNER, prepare_environment, run, write_features
from bench_train import machine

from xmlpreck import config
from xmlpreck.data import catalog
from xmlpreck.kernels.arrays import no_weights
from xmlpreck.train import PreparedRows, Trainer

CHECKED_THREADS = (1, 2, 3, 8)
# It ends when its parent has, however that was killed.
LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
TICKS = os.sysconf("SC_CLK_TCK")


class Sample(NamedTuple):
    """One timing: seconds, of the CPU too, voluntary and forced switches of threads, cores that others had."""

    seconds: float
    cpu: float
    sleeps: int
    preemptions: int
    others: float


@contextmanager
def busy_loops(n_loops: int) -> Iterator[list[int]]:
    """Processes that only count, as long as the block lasts; their ids."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(n_loops)]
    try:
        time.sleep(0.3 if loops else 0)  # until they have started
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def cpu_of_machine() -> float:
    """Seconds that all cores have worked, for anybody; time that the host took from them counts too."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS


def cpu_of_loops(pids: list[int]) -> float:
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / TICKS


def measure(job: Callable[[], float], loops: list[int]) -> Sample:
    """Run a job, which returns its own time, and look at the machine before and after."""

    def now() -> np.ndarray:
        mine, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = sum(each.ru_utime + each.ru_stime for each in (mine, ended))
        others = cpu_of_machine() - cpu - cpu_of_loops(loops)
        return np.array([time.perf_counter(), cpu, mine.ru_nvcsw, mine.ru_nivcsw, others])

    before = now()
    seconds = job()
    wall, cpu, sleeps, preemptions, others = now() - before
    return Sample(seconds, float(cpu), int(sleeps), int(preemptions), float(others / wall))


def sample_all(jobs: dict[str, Callable[[], float]], args: argparse.Namespace) -> dict[str, dict[str, list[Sample]]]:
    """At least --repeat timings of each job, quiet and busy, by turns; more while others disturb them."""
    found: dict[str, dict[str, list[Sample]]] = {name: {"quiet": [], "busy": []} for name in jobs}
    deadline = time.monotonic() + args.patience

    def chosen(samples: list[Sample]) -> list[Sample]:
        return sorted(samples, key=lambda sample: sample.others)[: args.repeat]

    def is_done(samples: list[Sample]) -> bool:
        return len(samples) >= args.repeat and (
            chosen(samples)[-1].others <= args.others or time.monotonic() > deadline
        )

    while not all(is_done(samples) for states in found.values() for samples in states.values()):
        for state, n_loops in (("quiet", 0), ("busy", args.loops)):
            with busy_loops(n_loops) as loops:
                for name, job in jobs.items():
                    if not is_done(found[name][state]):
                        found[name][state].append(measure(job, loops))
    return {name: {state: chosen(samples) for state, samples in states.items()} for name, states in found.items()}


def prepare_trainers(rows: PreparedRows, train: config.TrainConfig, threads: list[int]) -> dict[int, Trainer]:
    """A trainer for each number of threads, after a first pass, which must have given all of them the same bits."""
    trainers, expected = {}, None
    train = replace(train, average_from=1, widen=False)  # then all passes do the same
    for n_threads in dict.fromkeys([*CHECKED_THREADS, *threads]):
        trainer = Trainer(no_weights(rows.n_features, rows.n_labels), replace(train, threads=n_threads))
        trainer.grow(rows)
        trainer.run_pass(rows)
        state = {name: array.copy() for name, array in trainer.state().items()}
        expected = expected or state
        if not all(np.array_equal(state[name], array) for name, array in expected.items()):
            sys.exit(f"{n_threads} threads give other bits than {CHECKED_THREADS[0]}: nothing is timed")
        if n_threads in threads:
            trainers[n_threads] = trainer
    return {n_threads: trainers[n_threads] for n_threads in threads}


def peer_jobs(args: argparse.Namespace, folder: Path) -> dict[str, Callable[[], float]]:
    """Whole trainings with two threads, each in a process of its own."""
    write_features(args.data, folder)
    pythons = {"xmlpreck-quick": sys.executable}
    pythons |= {peer: prepare_environment(PEERS[peer], args.envs) for peer in args.peers}

    def job(system: str) -> float:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            words = [pythons[system], str(RUNNER), "train", system, str(folder), f"{place}/model", "2"]
            return json.loads(run(words, folder / f"{system}.log", 2)[1])["seconds"]

    return {f"{system}, training": lambda system=system: job(system) for system in pythons}


def summarise(name: str, states: dict[str, list[Sample]]) -> dict[str, object]:
    """Medians of one job, and a line that says them."""
    seconds = {state: median(sample.seconds for sample in samples) for state, samples in states.items()}
    others = {state: max(sample.others for sample in samples) for state, samples in states.items()}
    ratio = seconds["busy"] / seconds["quiet"]
    print(
        f"{name}: quiet {seconds['quiet']:.3f} s, busy {seconds['busy']:.3f} s, ratio {ratio:.2f} "
        f"(cores that others had: at most {others['quiet']:.2f} and {others['busy']:.2f})",
        flush=True,
    )
    return {"seconds": seconds, "ratio": ratio, "samples": {s: [t._asdict() for t in ts] for s, ts in states.items()}}


def print_costs(found: dict[str, dict[str, list[Sample]]], n_batches: int) -> None:
    """What a batch costs with each number of threads, on the quiet machine."""
    print("a batch, quiet: threads, time, CPU time (us), sleeps, preemptions")
    for n_threads, states in found.items():
        means = [float(median(values)) / n_batches for values in zip(*states["quiet"], strict=True)]
        print(f"{n_threads} {1e6 * means[0]:.0f} {1e6 * means[1]:.0f} {means[2]:.2f} {means[3]:.3f}")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="demo", help="a catalogue name, a file, or a folder")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads to measure")
    parser.add_argument("--loops", type=int, default=2, help="busy processes beside the pass (default: 2)")
    parser.add_argument("--repeat", type=int, default=5, help="timings of which the median counts (default: 5)")
    parser.add_argument("--others", type=float, default=0.1, help="cores that other processes may have (default: 0.1)")
    parser.add_argument("--patience", type=float, default=300, help="seconds to wait for such times (default: 300)")
    parser.add_argument("--peers", nargs="*", default=[], choices=list(PEERS), help="peers to measure too")
    parser.add_argument("--envs", type=Path, default=HOME / "xmlpreck-peers", help="folder of their environments")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(words)

    settings = config.load(catalog.find_config(None, args.data))
    rows = PreparedRows(catalog.load(args.data, "train"), settings.rows, settings.train.block_rows)
    trainers = prepare_trainers(rows, settings.train, args.threads)
    print(f"checked: {', '.join(map(str, CHECKED_THREADS))} threads give the same bits", flush=True)
    jobs = {f"{n}": lambda trainer=trainer: trainer.run_pass(rows).seconds for n, trainer in trainers.items()}
    found = sample_all(jobs, args)
    results = {f"{name} threads, pass": summarise(f"{name} threads, pass", found[name]) for name in jobs}
    print_costs(found, -(-rows.n_rows // settings.train.batch_rows))
    if args.peers:
        with tempfile.TemporaryDirectory() as folder:
            trainings = sample_all(peer_jobs(args, Path(folder)), args)
            results |= {name: summarise(name, states) for name, states in trainings.items()}
    if args.out:
        about = {"data": catalog.describe(args.data), "loops": args.loops, "results": results, "machine": machine()}
        args.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
