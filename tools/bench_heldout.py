"""Compare settings on held-out training rows, over several seeds; test rows are never read.

    python tools/bench_heldout.py --data DIR [DIR ...] --try "" --try "train.algo=hinge train.epochs=3" [--seeds 3]
        [--binary]

Each --try is one candidate: settings as for --set, separated by blanks, or no-tune; "" is the default. A fifth of the
training rows (--most at most, the same for all candidates and seeds) is held out; every candidate is tuned and trained
on the others, once for each seed. Prints the mean of P@1/3/5 and PSP@5 over the seeds, their standard deviation, and
the seconds of training (wall and CPU; minimum over the seeds). With --binary every value is 1, as where rows are sets
of words.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from bench_train import machine

import xmlpreck
from xmlpreck import metrics
from xmlpreck.config import parse_words
from xmlpreck.data import catalog
from xmlpreck.data.formats import Dataset
from xmlpreck.data.rows import Subset
from xmlpreck.train import load_kernels

SHARE = 0.2
PROPENSITY = (0.55, 1.5)
NO_TUNE = "no-tune"
MEASURES = ("P@1", "P@3", "P@5", "PSP@5")


def split(data: Dataset, most: int) -> tuple[Dataset, Dataset]:
    """Return the rows to train on and the held-out ones."""
    order = np.random.default_rng(20261118).permutation(data.n_rows)
    n_heldout = min(int(SHARE * data.n_rows), most)
    return take(data, order[n_heldout:]), take(data, order[:n_heldout])


def take(data: Dataset, ids: np.ndarray) -> Dataset:
    return Subset(data, np.sort(ids)).read(0, len(ids))


def run(trained: Dataset, heldout: Dataset, words: str, seed: int, threads: int) -> dict[str, float]:
    """Train one candidate with one seed and score it."""
    settings = parse_words(word for word in words.split() if word != NO_TUNE)
    wall, cpu = time.perf_counter(), time.process_time()
    model = xmlpreck.fit(trained, seed=seed, threads=threads, settings=settings, tune=NO_TUNE not in words.split())
    seconds = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    top = model.predict_topk(heldout.rows, 5, threads)
    counts = np.bincount(trained.labels.indices, minlength=trained.n_labels)
    inverse = metrics.inverse_propensities(counts, trained.n_rows, *PROPENSITY)
    meter = metrics.Meter(trained.n_labels, (1, 3, 5), inverse_propensity=inverse, n_resamples=0)
    meter.add(top, heldout.labels)
    found = meter.result()
    return {name: found.values[name].value for name in MEASURES} | seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True, help="folders or catalogue names")
    parser.add_argument("--try", dest="tried", action="append", required=True, help="settings of one candidate")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default: 1)")
    parser.add_argument("--most", type=int, default=4000, help="held-out rows at most (default: 4000)")
    parser.add_argument("--rows", type=int, default=0, help="take only this many training rows (default: all)")
    parser.add_argument("--binary", action="store_true", help="set every value of the rows to 1")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()

    load_kernels()
    results = []
    for data in args.data:
        source = catalog.load(data, "train")
        rows = source.read(0, source.n_rows)
        if args.rows:
            rows = take(rows, np.random.default_rng(1).permutation(rows.n_rows)[: args.rows])
        if args.binary:
            rows.rows.data[:] = 1
        trained, heldout = split(rows, args.most)
        print(f"{catalog.describe(data)}: {trained.n_rows:,} rows, {heldout.n_rows:,} held out", flush=True)
        for words in args.tried:
            runs = [run(trained, heldout, words, seed, args.threads) for seed in range(args.seeds)]
            means = [np.mean([each[name] for each in runs]) for name in MEASURES]
            spread = [np.std([each[name] for each in runs], ddof=1) if len(runs) > 1 else 0.0 for name in MEASURES]
            fastest = [min(each[name] for each in runs) for name in ("seconds", "cpu")]
            print(
                "  " + "/".join(f"{mean:.2f}" for mean in means[:3]) + f", {means[3]:.2f}  (sd "
                + "/".join(f"{sd:.2f}" for sd in spread) + f")  {fastest[0]:.1f} s, {fastest[1]:.1f} s of CPU  "
                f"{words or 'defaults'}", flush=True,
            )  # fmt: skip
            results.append({"data": catalog.describe(data), "settings": words, "runs": runs})
    if args.out:
        args.out.write_text(json.dumps({"results": results, "machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
