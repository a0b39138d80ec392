"""Exact prediction against shortlists: milliseconds a row, recall of the exact labels, P@k; and what training needs.

    xmlpreck train --data D --out M
    python tools/bench_large.py --data D --model M [--rows 2000] [--per-feature 16 64 256] [--out bench.json]

Times are of one thread, the minimum of --repeat, in seconds of the processor, so that other programs count little.
Every score by a shortlist is held to the exact one first. With --plan the support of the training rows is found and a
part of a pass is timed, as `xmlpreck plan` does (minutes, on the largest sets).
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench_train import machine

from xmlpreck import config, train
from xmlpreck.data import catalog
from xmlpreck.data.formats import Dataset, TopK
from xmlpreck.metrics import Meter
from xmlpreck.model import Model, Shortlist

K = 5


def min_time(repeat: int, predict: Callable[[], TopK]) -> tuple[float, TopK]:
    seconds = []
    for _ in range(repeat):
        start = time.thread_time()
        top = predict()
        seconds.append(time.thread_time() - start)
    return min(seconds), top


def precision(top: TopK, rows: Dataset) -> dict[str, float]:
    meter = Meter(rows.n_labels, [1, 3, K], n_resamples=0)
    meter.add(top, rows.labels)
    return meter.precision()


def check_scores(scorer: Model, rows: Dataset, top: TopK) -> None:
    for row in range(min(20, rows.n_rows)):
        scores = scorer.decision_function(rows.rows[row : row + 1])[0]
        if not np.array_equal(scores[top.labels[row]], top.scores[row]):
            sys.exit(f"row {row}: the shortlist's scores are not the exact ones: nothing is timed")


def compare(scorer: Model, rows: Dataset, per_features: list[int], repeat: int) -> list[dict[str, object]]:
    scorer.predict_topk(rows.rows[:2], K, shortlist=Shortlist.of(scorer.weights, 1))  # compiles
    scorer.predict_topk(rows.rows[:2], K)
    exact_seconds, exact = min_time(repeat, lambda: scorer.predict_topk(rows.rows, K))
    results = [{"per_feature": None, "ms_a_row": 1e3 * exact_seconds / rows.n_rows, **precision(exact, rows)}]
    for per_feature in per_features:
        start = time.thread_time()
        shortlist = Shortlist.of(scorer.weights, per_feature)
        making = time.thread_time() - start
        check_scores(scorer, rows, scorer.predict_topk(rows.rows[:20], K, shortlist=shortlist))
        seconds, top = min_time(repeat, lambda made=shortlist: scorer.predict_topk(rows.rows, K, shortlist=made))
        found = (top.labels[:, :, None] == exact.labels[:, None, :]).any(axis=1)
        results.append(
            {
                "per_feature": per_feature,
                "ms_a_row": 1e3 * seconds / rows.n_rows,
                "times_faster": exact_seconds / seconds,
                "recall": 100 * float(found.mean()),
                **precision(top, rows),
                "making_s": making,
                "mb": sum(array.nbytes for array in shortlist.champions) / 2**20,
            }
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--per-feature", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    scorer = Model.load(args.model)
    test = catalog.load(args.data, "test")
    rows = test.read(0, min(args.rows, test.n_rows))
    results = compare(scorer, rows, args.per_feature, args.repeat)
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
        print("  ".join(f"{name} {value:.4g}" for name, value in result.items() if value is not None))
    if args.out:
        text = json.dumps(about | {"results": results, "machine": machine()}, indent=1)
        Path(args.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
