"""Measure what training on a Ray cluster costs, on this machine.

    python tools/bench_cluster.py --data eurlex57k --rows 10000 --label-shards 1 2 4 --batch-rows 512 \
        --json docs/bench_cluster.json

One process, and the cluster with each number of label shards. Before anything is timed, all must give the same model,
bit for bit; then they take turns, and of each the fastest last pass counts.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_train import machine

from xmlpreck import config, train
from xmlpreck.cluster import training
from xmlpreck.cluster.rows import SharedRows, share_rows
from xmlpreck.cluster.session import Session, connect
from xmlpreck.data import catalog
from xmlpreck.data.dataset import Dataset
from xmlpreck.data.location import DataLocation
from xmlpreck.data.shards import write_shards
from xmlpreck.files.atomic import atomic_path
from xmlpreck.model import Model, all_sparse
from xmlpreck.model.layout import ANY_SIZE

SHARD_ROWS = 8192  # of a file


def run_here(data: Dataset, settings: config.RunConfig) -> tuple[Model, dict[str, Any]]:
    """One process with a thread for each core."""
    scorer = train.fit(data, settings)
    return scorer, {"seconds": scorer.info["history"][-1]["seconds"]}


def run_cluster(
    session: Session, place: SharedRows, data: Dataset, settings: config.RunConfig, n_shards: int
) -> tuple[Model, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        checkpoints = train.Checkpoints(Path(scratch) / "model")
        safety = train.Safety(checkpoints, minutes=np.inf)
        with checkpoints.locked():
            scorer = training.fit(session, place, data, settings, n_shards, safety)
    last = scorer.info["history"][-1]
    return scorer, {"seconds": last["seconds"], "communication": last["communication"]}


def check_same(expected: Model, found: Model, name: str) -> None:
    pairs = zip(*(all_sparse(scorer.weights, min_size=ANY_SIZE)[2:] for scorer in (expected, found)), strict=True)
    if not all(np.array_equal(*pair) for pair in pairs):
        sys.exit(f"{name}: the model differs from that of one process: nothing is timed")


def measure_runs(
    session: Session, place: SharedRows, data: Dataset, settings: config.RunConfig, shards: Sequence[int], repeat: int
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
        if "communication" in run:
            line += f", communication {run['communication']:.1%}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="demo", help="a catalogue name, a file, or a folder")
    parser.add_argument("--data-dir", help="where catalogue data is")
    parser.add_argument("--rows", type=int, help="take the first of them only (default: all)")
    parser.add_argument("--label-shards", type=int, nargs="+", default=[1, 2, 4], help="numbers of them to run with")
    parser.add_argument("--batch-rows", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=2, help="passes of a run, of which the last is timed")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each kind, of which the fastest counts")
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    settings = config.load(
        catalog.find_config(None, args.data), {"train.epochs": args.epochs, "train.batch_rows": args.batch_rows}
    )
    source = catalog.load(args.data, "train", args.data_dir)
    n_rows = min(args.rows or source.n_rows, source.n_rows)
    result: dict[str, Any] = {
        "data": catalog.describe(args.data), "n_rows": n_rows, "batch_rows": args.batch_rows, "epochs": args.epochs,
        "k": settings.train.k, "cores": config.n_cores(), "machine": machine(),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch, connect(None, lambda text: None) as session:
        data = source.read(0, n_rows)
        place = share_rows(write_shards(scratch + "/rows", [data], "parquet", SHARD_ROWS, {}), DataLocation(scratch))
        result["runs"] = measure_runs(session, place, data, settings, args.label_shards, args.repeat)
    report(result)
    if args.json:
        with atomic_path(args.json) as temporary:
            temporary.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
