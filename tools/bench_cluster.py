"""What training on a Ray cluster costs: measured runs on this machine, and constants for tools/simulate_cluster.py.

    python tools/bench_cluster.py --data eurlex57k --label-shards 1 2 4 --batch-rows 512 --json docs/bench_cluster.json

One process, and the cluster with each number of label shards. Before anything is timed, all must give the same model,
bit for bit; then they take turns, and of each the fastest last pass counts. Constants are of cluster_constants.py.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from bench_train import machine
from cluster_constants import PARTS, measure_constants

from xmlpreck import config, train
from xmlpreck.cluster import training
from xmlpreck.cluster.rows import Place, find_place
from xmlpreck.cluster.session import Session, connect
from xmlpreck.cluster.shard import Answer
from xmlpreck.data import catalog
from xmlpreck.data.formats import Dataset, atomic_path
from xmlpreck.model import Model, all_sparse
from xmlpreck.model.layout import ANY_SIZE


class Times:
    """Seconds of the driver in the batches of the last pass: in all, until the last answer, and in its own work."""

    def __init__(self) -> None:
        self.batches: list[dict[str, float]] = []

    def watched(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            done = work(*args)
            self.batches[-1]["merge_seconds"] += time.perf_counter() - began
            return done

        return timed

    def trainer(self) -> type[training.ClusterTrainer]:
        times = self

        class Watched(training.ClusterTrainer):
            def _train_batch(self, number: int, settings: Any) -> float:
                if number == 0:  # of a new pass
                    times.batches = []
                times.batches.append({"merge_seconds": 0.0})
                self.began = time.perf_counter()
                busy = super()._train_batch(number, settings)
                times.batches[-1] |= {"seconds": time.perf_counter() - self.began, "shard_seconds": busy}
                return busy

            def _answers(self, *args: Any) -> list[Any]:
                answers = super()._answers(*args)
                if isinstance(answers[0], Answer):
                    times.batches[-1]["answer_seconds"] = time.perf_counter() - self.began
                return answers

        return Watched

    @contextmanager
    def watching(self) -> Iterator[None]:
        watched = {name: self.watched(getattr(training, name)) for name in ("choose", "split_pairs")}
        with mock.patch.multiple(training, ClusterTrainer=self.trainer(), **watched):
            yield

    def means(self) -> dict[str, float]:
        return {name: float(np.mean([batch[name] for batch in self.batches])) for name in self.batches[0]}


def run_here(data: Dataset, settings: config.RunConfig) -> tuple[Model, dict[str, Any]]:
    """One process with a thread for each core."""
    scorer = train.fit(data, settings)
    return scorer, {"seconds": scorer.info["history"][-1]["seconds"]}


def run_cluster(
    session: Session, place: Place, data: Dataset, settings: config.RunConfig, n_shards: int
) -> tuple[Model, dict[str, Any]]:
    times = Times()
    with tempfile.TemporaryDirectory() as scratch, times.watching():
        checkpoints = train.Checkpoints(Path(scratch) / "model")
        safety = train.Safety(checkpoints, minutes=np.inf)
        with checkpoints.locked():
            scorer = training.fit(session, place, data, settings, n_shards, safety)
    last = scorer.info["history"][-1]
    return scorer, {"seconds": last["seconds"], "communication": last["communication"], "batch": times.means()}


def check_same(expected: Model, found: Model, name: str) -> None:
    pairs = zip(*(all_sparse(scorer.weights, least=ANY_SIZE)[2:] for scorer in (expected, found)), strict=True)
    if not all(np.array_equal(*pair) for pair in pairs):
        sys.exit(f"{name}: the model differs from that of one process: nothing is timed")


def measure_runs(
    session: Session, place: Place, data: Dataset, settings: config.RunConfig, shards: Sequence[int], repeat: int
) -> dict[str, dict[str, Any]]:
    """The fastest run of each kind, after one of each that is checked and not timed."""
    kinds: dict[str, Callable[[], tuple[Model, dict[str, Any]]]] = {"one process": lambda: run_here(data, settings)}
    for n_shards in shards:
        kinds[str(n_shards)] = lambda n_shards=n_shards: run_cluster(session, place, data, settings, n_shards)
    models = {name: run()[0] for name, run in kinds.items()}
    for name, model in models.items():
        check_same(models["one process"], model, f"{name} label shards")
    print(f"checked: the same model from {', '.join(kinds)} label shards. Timing.", flush=True)
    best: dict[str, dict[str, Any]] = {}
    for _ in range(repeat):
        for name, run in kinds.items():
            _, facts = run()
            if name not in best or facts["seconds"] < best[name]["seconds"]:
                best[name] = facts
    n_cores = config.n_cores()
    for facts in best.values():
        facts["ratio"] = facts["seconds"] / best["one process"]["seconds"]
        facts["rows_per_second_and_core"] = data.n_rows / facts["seconds"] / n_cores
    return best


def report(result: dict[str, Any]) -> None:
    for name, run in result["runs"].items():
        line = f"{name}: {run['seconds']:.2f} s a pass, {run['ratio']:.2f} of one process, "
        line += f"{run['rows_per_second_and_core']:,.0f} rows/s a core"
        if "batch" in run:
            per_batch = ", ".join(f"{what} {1e3 * value:.2f} ms" for what, value in run["batch"].items())
            line += f", communication {run['communication']:.1%}; a batch: {per_batch}".replace("_seconds", "")
        print(line)
    for section in ("sizes", "constants", "imbalance"):
        for name, value in result[section].items():
            print(f"{section}.{name}: {value:.6g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="demo", help="a catalogue name, a file, or a folder")
    parser.add_argument("--data-dir", help="where catalogue data is")
    parser.add_argument("--label-shards", type=int, nargs="+", default=[1, 2, 4], help="numbers of them to run with")
    parser.add_argument("--batch-rows", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=2, help="passes of a run, of which the last is timed")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each kind, of which the fastest counts")
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    settings = config.load(
        catalog.find_config(None, args.data), [f"train.epochs={args.epochs}", f"train.batch_rows={args.batch_rows}"]
    )
    data = catalog.load(args.data, "train", args.data_dir)
    place = find_place(data, args.data, "train", args.data_dir, None)
    result = {
        "data": catalog.describe(args.data), "batch_rows": args.batch_rows, "epochs": args.epochs,
        "parts_a_batch": PARTS, "log_bytes": training.LOG_BYTES, "k": settings.train.k, "cores": config.n_cores(),
        "machine": machine(),
    }  # fmt: skip
    with connect(None, lambda text: None) as session:
        result["runs"] = measure_runs(session, place, data, settings, args.label_shards, args.repeat)
        result |= measure_constants(data, settings)
    report(result)
    if args.json:
        with atomic_path(args.json) as temporary:
            temporary.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
