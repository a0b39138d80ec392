"""Prediction by bounds against scoring all labels: milliseconds a row, rows told, P@k; and what training needs.

    xmlpreck train --data D --out M
    python tools/bench_large.py --data D --model M [--rows 2000] [--out bench.json]

Times are of one thread, the minimum of --repeat, in seconds of the processor, so that other programs count little.
Both must give the same bits. With --plan the support of the training rows is found and a
part of a pass is timed, as `xmlpreck plan` does (minutes, on the largest sets).
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
from bench_train import machine

from xmlpreck import config, train
from xmlpreck.data import catalog
from xmlpreck.data.formats import Dataset, TopK
from xmlpreck.kernels.arrays import Rows
from xmlpreck.kernels.bounds import Bounds, find_bounds, new_trial, no_bounds, predict_bounded
from xmlpreck.metrics import Meter
from xmlpreck.model import Model

K = 5


def min_time(repeat: int, predict: Callable[[], TopK]) -> tuple[float, TopK]:
    seconds = []
    for _ in range(repeat):
        start = time.process_time()
        top = predict()
        seconds.append(time.process_time() - start)
    return min(seconds), top


def precision(top: TopK, rows: Dataset) -> dict[str, float]:
    meter = Meter(rows.n_labels, [1, 3, K], n_resamples=0)
    meter.add(top, rows.labels)
    return meter.precision()


def scoring_all(scorer: Model) -> Model:
    """Return a copy that scores all labels of every row."""
    copy = scorer.fresh()
    copy.__dict__["_bounds"] = no_bounds()
    return copy


def count_told(scorer: Model, bounds: Bounds, rows: Rows) -> int:
    """Count the rows whose best labels the bounds tell; all labels of the others are scored."""
    no_bonus = np.zeros(0, np.float32)
    trial = new_trial(bounds, no_bonus, scorer.weights.values.dtype)
    top = (np.zeros(K, np.int32), np.zeros(K, scorer.weights.values.dtype))
    spans = [slice(*span) for span in pairwise(rows.offsets)]
    return sum(
        predict_bounded(rows.features[span], rows.values[span], scorer.weights, bounds, no_bonus, trial, *top)
        for span in spans
    )


def compare(scorer: Model, rows: Dataset, repeat: int) -> list[dict[str, object]]:
    start = time.process_time()
    bounds = find_bounds(scorer.weights)
    finding = time.process_time() - start
    scorer.__dict__["_bounds"] = bounds
    whole = scoring_all(scorer)
    for model in (scorer, whole):
        model.predict_topk(rows.rows[:2], K)  # compiles
    all_seconds, exact = min_time(repeat, lambda: whole.predict_topk(rows.rows, K))
    seconds, top = min_time(repeat, lambda: scorer.predict_topk(rows.rows, K))
    if not (np.array_equal(top.labels, exact.labels) and np.array_equal(top.scores, exact.scores)):
        sys.exit("bounds change the predictions: no time is worth anything")
    return [
        {"labels": "all", "ms_a_row": 1e3 * all_seconds / rows.n_rows, **precision(exact, rows)},
        {
            "labels": "by bounds",
            "ms_a_row": 1e3 * seconds / rows.n_rows,
            "times_faster": all_seconds / seconds,
            "rows_told": 100 * count_told(scorer, bounds, scorer._prepare(rows.rows)) / rows.n_rows,
            "finding_s": finding,
            "mb": sum(array.nbytes for array in bounds) / 2**20,
        },
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    scorer = Model.load(args.model)
    test = catalog.load(args.data, "test")
    rows = test.read(0, min(args.rows, test.n_rows))
    results = compare(scorer, rows, args.repeat)
    about = {
        "data": Path(args.data).name,
        "n_labels": scorer.n_labels,
        "n_features": scorer.n_features,
        "n_weights": scorer.n_weights,
        "n_dense": len(scorer.weights.dense_rows),
        "model_mb": sum(path.stat().st_size for path in Path(args.model).iterdir()) / 2**20,
        "n_rows": rows.n_rows,
    }
    if args.plan:
        plan = train.plan(catalog.load(args.data, "train"), config.RunConfig(train=config.TrainConfig(threads=1)))
        about["plan"] = plan.to_dict()
    print(json.dumps(about))
    for result in results:
        shown = (
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in result.items()
        )
        print("  ".join(shown))
    if args.out:
        text = json.dumps(about | {"results": results, "machine": machine()}, indent=1)
        Path(args.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
