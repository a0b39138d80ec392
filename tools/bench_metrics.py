"""How fast predictions are scored: ours, without and with intervals, against napkinXC's functions on the same rows.

    python tools/bench_metrics.py --data ../shared/data/npm-deps [--pred FILE] [--repeat 3] [--out bench.json]
    python tools/bench_metrics.py --rows 150000 --labels 670000 [--out bench.json]

P, nDCG, R, PSP and PSnDCG at 1 to 5 must agree to 1e-9 before anything is timed. Times are taken in one run,
alternating, the least of --repeat. napkinXC gets Python lists, the fastest input it has, made before the clock starts;
ours computes all its other metrics as well. The second form scores generated rows, block by block: seconds of scoring,
and the peak memory of the whole process.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from bench_train import machine
from scipy.sparse import csr_array

from xmlpreck.data import catalog
from xmlpreck.data.formats import TopK, build_csr, read_predictions
from xmlpreck.evaluation.comparison import BLOCK_ROWS, LabelCounts, count_labels
from xmlpreck.metrics import Meter, inverse_propensities

KS = (1, 2, 3, 4, 5)
TOLERANCE = 1e-9


def make_predictions(labels: csr_array, width: int, rng: np.random.Generator) -> TopK:
    """Lists that hold each row's first true labels at some places and any other labels elsewhere."""
    n_rows, n_labels = labels.shape
    stride = n_labels // width
    # Each place has its own range of ids, so that no label stands twice.
    ids = rng.integers(0, stride, (n_rows, width)) + stride * np.arange(width)
    place = rng.integers(0, width, n_rows)
    rows = np.flatnonzero(np.diff(labels.indptr))
    true = labels.indices[labels.indptr[rows]]
    is_new = ~(ids[rows] == true[:, None]).any(axis=1)
    ids[rows[is_new], place[rows[is_new]]] = true[is_new]
    scores = np.tile(np.linspace(1, 0.1, width, dtype=np.float32), (n_rows, 1))
    return TopK(ids.astype(np.int32), scores)


def score(blocks: list[tuple[TopK, csr_array]], weights: np.ndarray, n_resamples: int, n_threads: int) -> Meter:
    meter = Meter(
        len(weights), KS, "napkinxc", inverse_propensity=weights, n_resamples=n_resamples, n_threads=n_threads
    )
    for top, labels in blocks:
        meter.add(top, labels)
    return meter


def score_by_napkinxc(truths: list[list[int]], rankings: list[list[int]], weights: np.ndarray) -> dict[str, np.ndarray]:
    from napkinxc import metrics

    return {
        "P": metrics.precision_at_k(truths, rankings, k=KS[-1]),
        "nDCG": metrics.ndcg_at_k(truths, rankings, k=KS[-1]),
        "R": metrics.recall_at_k(truths, rankings, k=KS[-1]),
        "PSP": metrics.psprecision_at_k(truths, rankings, weights, k=KS[-1]),
        "PSnDCG": metrics.psndcg_at_k(truths, rankings, weights, k=KS[-1]),
    }


def compare_on_data(args: argparse.Namespace) -> dict[str, object]:
    rows = catalog.load(args.data, "test")
    training: LabelCounts = count_labels(catalog.load(args.data, "train"))
    weights = inverse_propensities(training.counts, training.n_rows, 0.55, 1.5)
    labels = rows.read(0, rows.n_rows).labels
    if args.pred:
        top = read_predictions(args.pred, *labels.shape)
    else:
        top = make_predictions(labels, KS[-1], np.random.default_rng(0))
    truths = [labels.indices[a:b].tolist() for a, b in zip(labels.indptr[:-1], labels.indptr[1:], strict=True)]
    rankings = [[label for label in row if label >= 0] for row in top.labels.tolist()]

    ours = score([(top, labels)], weights, 0, 1).result().values
    theirs = score_by_napkinxc(truths, rankings, weights)
    worst = max(abs(ours[f"{name}@{k}"].value - 100 * values[k - 1]) for name, values in theirs.items() for k in KS)
    if not worst <= TOLERANCE:
        sys.exit(f"the values differ by up to {worst:g}: nothing is timed")
    print(f"checked: {len(theirs) * len(KS)} values agree to {worst:.1g}", flush=True)

    ways = {"napkinxc": lambda: score_by_napkinxc(truths, rankings, weights)}
    for n_resamples in (0, 1000):
        for n_threads in args.threads:
            name = f"xmlpreck, {n_resamples} resamples, {n_threads} thread{'s' * (n_threads > 1)}"
            ways[name] = lambda r=n_resamples, t=n_threads: score([(top, labels)], weights, r, t).result()
    seconds = dict.fromkeys(ways, np.inf)
    for _ in range(args.repeat):
        for name, run in ways.items():
            started = time.perf_counter()
            run()
            seconds[name] = min(seconds[name], time.perf_counter() - started)
    for name, value in seconds.items():
        ratio = seconds["napkinxc"] / value
        print(f"{name}: {value:.3f} s, {len(truths) / value:,.0f} rows/s, {ratio:.1f} times as fast as napkinXC")
    return {"data": Path(args.data).name, "n_rows": len(truths), "n_labels": len(weights), "seconds": seconds}


def generated_blocks(n_rows: int, n_labels: int) -> Iterator[tuple[TopK, csr_array]]:
    """Rows of 5 labels and lists of 5."""
    rng = np.random.default_rng(0)
    for start in range(0, n_rows, BLOCK_ROWS):
        size = min(BLOCK_ROWS, n_rows - start)
        ids = rng.integers(0, n_labels // 5, (size, 5)) + n_labels // 5 * np.arange(5)
        labels = build_csr(np.ones(ids.size, np.float32), ids.ravel(), np.arange(0, ids.size + 1, 5), (size, n_labels))
        yield make_predictions(labels, KS[-1], rng), labels


def score_generated(args: argparse.Namespace) -> dict[str, object]:
    n_threads = max(args.threads)
    weights = np.full(args.labels, 2.0)
    seconds = {"0 resamples": np.inf, "1000 resamples": np.inf}
    for _ in range(args.repeat):
        for name in seconds:
            meter = score([], weights, int(name.split()[0]), n_threads)
            spent = 0.0
            for top, labels in generated_blocks(args.rows, args.labels):
                started = time.perf_counter()
                meter.add(top, labels)
                spent += time.perf_counter() - started
            started = time.perf_counter()
            meter.result()
            seconds[name] = min(seconds[name], spent + time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for name, value in seconds.items():
        print(f"{args.rows:,} rows x {args.labels:,} labels, {name}, {n_threads} threads: {value:.2f} s")
    print(f"peak memory of the process: {peak:,.0f} MB")
    return {"n_rows": args.rows, "n_labels": args.labels, "threads": n_threads, "seconds": seconds, "peak_mb": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a folder with train and test rows, or a catalogue name")
    parser.add_argument("--pred", help="predictions of the test rows (default: made up)")
    parser.add_argument("--rows", type=int, help="score this many generated rows instead")
    parser.add_argument("--labels", type=int, default=670_000, help="of generated rows")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads to compare")
    parser.add_argument("--repeat", type=int, default=3, help="timings of each, of which the least counts")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    if (args.data is None) == (args.rows is None):
        parser.error("say --data or --rows")
    result = compare_on_data(args) if args.data else score_generated(args)
    if args.out:
        args.out.write_text(json.dumps(result | {"machine": machine()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
