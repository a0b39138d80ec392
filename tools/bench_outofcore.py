"""Training from shards that are larger than the memory they may take: peak memory, measured in fresh processes.

    python tools/bench_outofcore.py [--rows 50000] [--times 1 4 16] [--budget-mb 512] [--out bench.json]

Makes a synthetic data set, writes it 1, 4 and 16 times over as Parquet shards, and trains one pass from each in a
process of its own. What counts is the peak resident memory beside weights and their sums, libraries included (some
270 MB of it). It must stay within the budget and not grow with the rows.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench_train import machine

N_FEATURES, N_LABELS, FEATURES_PER_ROW = 20_000, 100, 300.0
PIECE_ROWS = 10_000
BLOCK_ROWS = 16_384


def write_copies(folder: Path, n_rows: int, times: int) -> float:
    """The same pieces `times` over as one shard set, so that the support is always the same; MB of the CSR arrays."""
    from xmlpreck.data.shards import write_shards
    from xmlpreck.data.synthetic import make_dataset

    pieces = [
        make_dataset(PIECE_ROWS, N_FEATURES, N_LABELS, features_per_row=FEATURES_PER_ROW, seed=seed)
        for seed in range(n_rows // PIECE_ROWS)
    ]
    write_shards(folder, (piece for _ in range(times) for piece in pieces), "parquet", PIECE_ROWS, {"synthetic": True})
    return times * sum(8 * (piece.rows.nnz + piece.labels.nnz + 2 * piece.n_rows) for piece in pieces) / 2**20


def train(folder: str) -> None:
    """In a process of its own: one pass over all rows; prints its peak memory."""
    from xmlpreck.config import RunConfig, TrainConfig
    from xmlpreck.data.shards import ShardSet
    from xmlpreck.kernels.arrays import no_weights
    from xmlpreck.machine import give_memory_back
    from xmlpreck.train import PreparedRows, Trainer

    give_memory_back()
    source = ShardSet(folder)
    config = RunConfig(train=TrainConfig(block_rows=BLOCK_ROWS))
    rows = PreparedRows(source, config.rows, BLOCK_ROWS)
    trainer = Trainer(no_weights(rows.n_features, rows.n_labels), config.train)
    trainer.grow(rows)
    facts = trainer.run_pass(rows)
    learner = trainer.learner
    arrays = (*learner.weights, learner.dense_sums, learner.sums, learner.dense_mask)
    # Not ru_maxrss: that of a new process starts with what its parent had.
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) / 1024
    weights = sum(array.nbytes for array in arrays) / 2**20
    print(json.dumps({"peak_mb": peak, "weights_mb": weights, "rows_per_second": facts.rows_per_second}))


def run(folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--train", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000, help="rows of the smallest set")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 16], help="how often they are written")
    parser.add_argument("--budget-mb", type=float, default=512, help="memory allowed beside weights and libraries")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train)
        return

    results = []
    with tempfile.TemporaryDirectory() as scratch:
        for times in args.times:
            folder = Path(scratch) / f"times-{times}"
            data_mb = write_copies(folder, args.rows, times)
            streamed = run(folder)
            if not results:  # the first one compiled the kernels, which takes memory too
                streamed = run(folder)
            beside = streamed["peak_mb"] - streamed["weights_mb"]
            results.append({"rows": times * args.rows, "data_mb": data_mb, "beside_weights_mb": beside, **streamed})
            took = f"peak {streamed['peak_mb']:,.0f} MB, weights {streamed['weights_mb']:,.0f}, beside {beside:,.0f} MB"
            speed = f"{streamed['rows_per_second']:,.0f} rows/s"
            print(f"{times * args.rows:>9,} rows, {data_mb:8,.0f} MB as CSR: {took}, {speed}", flush=True)
            shutil.rmtree(folder)
    if args.out:
        about = {"budget_mb": args.budget_mb, "block_rows": BLOCK_ROWS, "results": results, "machine": machine()}
        args.out.write_text(json.dumps(about, indent=1) + "\n")
    if any(result["beside_weights_mb"] > args.budget_mb for result in results):
        sys.exit(f"more than the budget of {args.budget_mb:,.0f} MB")


if __name__ == "__main__":
    main()
