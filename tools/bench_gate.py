"""What the gate costs: predicting rows that are checked, against the same rows prepared without a check.

    python tools/bench_gate.py --model DIR --data D [--split test] [--repeat 20] [--out bench_gate.json]

Checks first that both ways prepare the same rows. The times of both ways alternate in one run, and the least counts.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_train import machine
from numba import njit
from scipy.sparse import csr_array

from xmlpreck.data import catalog
from xmlpreck.kernels.patterns import fill_prepared
from xmlpreck.model import Model
from xmlpreck.model.layout import is_plain_csr

K = 5


@njit(cache=True, nogil=True)
def fill_unchecked(offsets, features, values, unit_norm, bias, n_features, new_features, new_values):
    """fill_prepared as it was without a check."""
    n = 0
    for row in range(len(offsets) - 1):
        norm = 1.0
        if unit_norm:
            square = 0.0
            for p in range(offsets[row], offsets[row + 1]):
                square += np.float64(values[p]) * np.float64(values[p])
            norm = np.sqrt(square) if square > 0 else 1.0
        for p in range(offsets[row], offsets[row + 1]):
            new_features[n] = features[p]
            new_values[n] = values[p] / norm
            n += 1
        if bias != 0:
            new_features[n] = n_features
            new_values[n] = bias
            n += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--out")
    args = parser.parse_args()
    scorer = Model.load(args.model)
    data = catalog.load(args.data, args.split)
    rows: csr_array = data.read(0, data.n_rows).rows
    n_rows, n_features = rows.shape
    has_bias = scorer.rows.bias > 0
    n_entries = rows.nnz + has_bias * n_rows
    given = (rows.indptr.astype(np.int64), rows.indices, rows.data)
    settings = (scorer.rows.unit_norm, np.float32(scorer.rows.bias), n_features)
    filled = [(np.empty(n_entries, np.int32), np.empty(n_entries, np.float32)) for _ in range(2)]
    ways: dict[str, Callable[[], Any]] = {
        "unchecked": lambda: fill_unchecked(*given, *settings, *filled[0]),
        "checked": lambda: is_plain_csr(rows) and fill_prepared(*given, *settings, *filled[1]),
        "predict": lambda: scorer.predict_topk(rows, K),
    }
    assert all(way() is not False for way in ways.values()), "the rows are not sound"
    for unchecked, checked in zip(*filled, strict=True):
        assert (unchecked == checked).all(), "the check changes the rows"
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(args.repeat):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - begun)
    share = (best["checked"] - best["unchecked"]) / best["predict"]
    result = {"data": args.data, "n_rows": n_rows, "seconds": best, "share": share, "machine": machine()}
    print(
        f"{args.data}: {n_rows:,} rows, prediction {best['predict'] * 1e3:.1f} ms, the check {100 * share:.2f}% of it"
    )
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
