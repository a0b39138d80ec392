"""Rows a second of training and prediction on given data: checked against the slow reference first, then timed.

    python tools/bench_train.py --data eurlex57k --data-dir DIR --out bench.json

Ratios are of times taken in one run, alternating, the minimum of --repeat: machines are noisy. A pass is timed warm
(after a first pass); prediction is of the same rows, with the weights of that moment.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from xmlpreck import __version__, config
from xmlpreck.data import catalog
from xmlpreck.data.formats import Dataset
from xmlpreck.kernels.arrays import no_weights
from xmlpreck.model import Model, all_sparse, prepare_rows
from xmlpreck.train import PreparedRows, Trainer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import reference

CHECKED_ROWS = 120


def check_against_reference(data: Dataset, settings: config.RunConfig) -> float:
    """Train on a slice with kernel and reference, both in float64; the largest difference of a weight, or an error."""
    part = data.read(0, CHECKED_ROWS)
    rows = prepare_rows(part.rows, settings.rows)
    rows, labels = rows[:, np.unique(rows.indices)], part.labels[:, np.unique(part.labels.indices)]
    # No noise here (the suite holds the reference to it too), and rows that the reference can hold dense.
    train = replace(settings.train, epochs=2, tau=0.0, average_from=1)
    trainer = Trainer(no_weights(rows.shape[1], labels.shape[1], np.float64), train)
    prepared = PreparedRows(Dataset(rows, labels), config.RowsConfig(unit_norm=False), CHECKED_ROWS)
    trainer.grow(prepared)
    for _ in range(train.epochs):
        trainer.run_pass(prepared)
    orders = [np.random.default_rng([train.seed, number]).permutation(rows.shape[0]) for number in (1, 2)]
    slow = reference.train(
        rows.toarray().astype(np.float64), labels.toarray() > 0, rule=train.algo, k=train.k, orders=orders,
        batch_rows=train.batch_rows, eta=train.eta, decay=train.decay, radius=train.radius,
    )  # fmt: skip
    averaged = all_sparse(trainer.weights(), trainer.learner.dense_mask)
    features = np.repeat(np.arange(rows.shape[1]), np.diff(averaged.offsets))
    worst = float(np.abs(averaged.values - slow.average[features, averaged.labels]).max())
    if worst > 1e-9:
        sys.exit(f"the kernel's weights differ from the reference's by {worst:g}: nothing is timed")
    return worst


def time_once(trainer: Trainer, rows: PreparedRows) -> dict[str, float]:
    seconds = {"train": trainer.run_pass(rows).seconds}
    scorer = Model(trainer.weights(), rows.config)
    started = time.perf_counter()
    scorer.predict_topk(rows.source.rows, 5, trainer.config.n_threads)
    seconds["predict"] = time.perf_counter() - started
    return seconds


def machine() -> dict[str, object]:
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "cpu": model[0].partition(": ")[2] if model else platform.processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "xmlpreck": __version__,
        "commit": commit.stdout.strip(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="demo", help="a catalogue name, a file, or a folder")
    parser.add_argument("--data-dir", help="where catalogue data is")
    parser.add_argument("--config", help="TOML file or name of one in configs/ (default: the data's own)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads to compare")
    parser.add_argument("--repeat", type=int, default=3, help="timings of each, of which the minimum counts")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()

    settings = config.load(catalog.find_config(args.config, args.data))
    data = catalog.load(args.data, "train", args.data_dir)
    worst = check_against_reference(data, settings)
    print(f"checked: weights equal the reference's to {worst:.1g}. Timing {data.rows.shape[0]:,} rows.", flush=True)

    rows = PreparedRows(data, settings.rows, settings.train.block_rows)
    trainers = {}
    for threads in args.threads:
        train = replace(settings.train, threads=threads)
        trainers[threads] = Trainer(no_weights(rows.n_features, rows.n_labels), train)
        trainers[threads].grow(rows)
        trainers[threads].run_pass(rows)
    best = {threads: {"train": np.inf, "predict": np.inf} for threads in args.threads}
    for _ in range(args.repeat):
        for threads, trainer in trainers.items():
            for job, seconds in time_once(trainer, rows).items():
                best[threads][job] = min(best[threads][job], seconds)

    n_rows = data.rows.shape[0]
    ratios = {}
    for threads, seconds in best.items():
        ratios[f"pass / predict, {threads} threads"] = seconds["train"] / seconds["predict"]
        for job, value in seconds.items():
            speed = f"{n_rows / value:,.0f} rows/s, {1e3 * value / n_rows:.4f} ms/row"
            print(f"{threads} threads, {job}: {value:.2f} s, {speed}")
            if threads != args.threads[0]:
                ratios[f"{job}: {threads} threads against {args.threads[0]}"] = best[args.threads[0]][job] / value
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    if args.out:
        result = {
            "data": catalog.describe(args.data), "n_rows": n_rows, "settings": settings.to_dict(),
            "checked_to": worst, "seconds": best, "ratios": ratios, "machine": machine(),
        }  # fmt: skip
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
