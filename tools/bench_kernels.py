"""Where a dense row pays: pass and prediction times for several values of model.layout.DENSE_SHARE.

    python tools/bench_kernels.py --data eurlex57k --data-dir DIR [--shares 4 8 16 32 64]

Before anything is timed, every layout must predict the same labels and scores to the last bit.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from bench_train import machine, time_once

from xmlpreck import config
from xmlpreck.data import catalog
from xmlpreck.kernels.arrays import no_weights
from xmlpreck.model import Model, layout
from xmlpreck.train import PreparedRows, Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="demo", help="a catalogue name, a file, or a folder")
    parser.add_argument("--data-dir", help="where catalogue data is")
    parser.add_argument("--shares", type=int, nargs="+", default=[4, 8, 16, 32, 64], help="values to compare")
    parser.add_argument("--repeat", type=int, default=3, help="timings of each, of which the minimum counts")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()

    data = catalog.load(args.data, "train", args.data_dir)
    # Without noise: it reaches the labels of opened blocks, and a dense row opens all.
    settings = config.load(catalog.find_config(None, args.data), {"train.tau": 0})
    rows = PreparedRows(data, settings.rows, settings.train.block_rows)
    trainers, expected = {}, None
    for share in args.shares:
        layout.DENSE_SHARE = share
        trainer = trainers[share] = Trainer(no_weights(rows.n_features, rows.n_labels), settings.train)
        trainer.grow(rows)
        trainer.run_pass(rows)
        top = Model(trainer.weights(), settings.rows).predict_topk(data.rows[:2000], 5, 2)
        expected = expected or top
        if not all(np.array_equal(*pair) for pair in zip(top, expected, strict=True)):
            sys.exit(f"share {share} predicts other bits than {args.shares[0]}: nothing is timed")
    print("checked: all layouts predict the same bits", flush=True)

    best = {share: {"train": np.inf, "predict": np.inf} for share in args.shares}
    for _ in range(args.repeat):
        for share, trainer in trainers.items():
            for job, seconds in time_once(trainer, rows).items():
                best[share][job] = min(best[share][job], seconds)
    for share, seconds in best.items():
        weights = trainers[share].learner.weights
        megabytes = (weights.dense_rows.nbytes + weights.values.nbytes + weights.labels.nbytes) / 2**20
        print(
            f"1/{share}: {len(weights.dense_rows):,} dense rows, {megabytes:.0f} MB, "
            f"pass {seconds['train']:.2f} s, predict {seconds['predict']:.2f} s"
        )
    if args.out:
        result = {"data": catalog.describe(args.data), "seconds": best, "machine": machine()}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
