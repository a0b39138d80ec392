"""Time dense rows: prediction and a pass of training beside numpy's matmul and argpartition, and scikit-learn.

    python tools/bench_dense.py [--labels 20000 200000] [--rows 5000] [--dense 384] [--predict-only] [--sklearn]

Times are the minimum of --repeat runs, which alternate; all use --threads threads (BLAS by OPENBLAS_NUM_THREADS).
Seconds of CPU time are given beside: where others use the machine, these can be compared and wall time cannot.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from bench_train import machine
from scipy.sparse import csr_array

from xmlpreck.config import RowsConfig, TrainConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.kernels import bfloat
from xmlpreck.kernels.arrays import Weights, no_weights
from xmlpreck.model import Model
from xmlpreck.train import PreparedRows, Trainer

K = 5
SKLEARN_LABELS = 200  # one-vs-rest is timed on this many labels; its time is proportional to them


def timed(job):
    """Wall and CPU seconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - wall, time.process_time() - cpu


def make_rows(n_rows, n_dense, n_labels, rng):
    """Rows near the centre of one of their labels, five labels each."""
    labels = np.stack([rng.permutation(n_labels)[:K] for _ in range(n_rows)])
    E = rng.normal(size=(n_rows, n_dense)).astype(np.float32)
    offsets = np.arange(0, K * n_rows + 1, K)
    Y = csr_array((np.ones(K * n_rows, np.float32), np.sort(labels).reshape(-1), offsets), shape=(n_rows, n_labels))
    # Every label has a row, so that every one has weights.
    return E, Y


def random_model(W):
    """A model of these weights, without a bias; they are rounded to bfloat16 in place."""
    bfloat.round_all(W)
    n_dense = len(W)
    none = np.zeros(0, np.int32), np.zeros(0, np.float32)
    weights = Weights(np.arange(n_dense, dtype=np.int32), bfloat.cut(W), np.zeros(n_dense + 1, np.int64), *none)
    return Model(weights, RowsConfig(n_dense=n_dense, bias=0))


def bench(n_labels, args):
    rng = np.random.default_rng(0)
    E, Y = make_rows(args.rows, args.dense, n_labels, rng)
    rows_config = RowsConfig(n_dense=args.dense, bias=0.3)
    data = Dataset(csr_array(E), Y)
    W = rng.standard_normal(size=(args.dense, n_labels), dtype=np.float32)
    if args.predict_only:
        model = random_model(W)
    else:
        rows = PreparedRows(data, rows_config, 1 << 16)
        config = TrainConfig(threads=args.threads, epochs=2, average_from=1)
        trainer = Trainer(no_weights(rows.n_features, n_labels), config)
        trainer.grow(rows)
        trainer.run_pass(rows)
        model = Model(trainer.weights(), rows_config)
    chunk = max(1, (1 << 28) // (4 * n_labels))  # 256 MB of scores at a time

    def by_numpy():
        for start in range(0, args.rows, chunk):
            scores = E[start : start + chunk] @ W
            best = np.argpartition(scores, n_labels - K, axis=1)[:, -K:]
            np.take_along_axis(best, np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1), axis=1)

    jobs = {
        "predict": lambda: model.predict_topk(data.rows, K, args.threads),
        "numpy matmul + argpartition": by_numpy,
    }
    if not args.predict_only:
        jobs["train pass"] = lambda: trainer.run_pass(rows)
    model.predict_topk(data.rows[:64], K, args.threads)
    found = {name: [timed(job) for _ in range(1)] for name, job in jobs.items()}
    for _ in range(args.repeat - 1):
        for name, job in jobs.items():
            found[name].append(timed(job))
    result = {
        name: {"wall": min(w for w, _ in times), "cpu": min(c for _, c in times)} for name, times in found.items()
    }
    if args.sklearn:
        from sklearn.linear_model import SGDClassifier

        some = np.flatnonzero(np.diff(Y.tocsc().indptr) > 0)[:SKLEARN_LABELS]
        dense_labels = Y[:, some].toarray()

        def one_vs_rest():
            for column in range(dense_labels.shape[1]):
                SGDClassifier(max_iter=1, tol=None).fit(E, dense_labels[:, column])

        wall, cpu = timed(one_vs_rest)
        scale = n_labels / len(some)
        result["scikit-learn SGD one-vs-rest, a pass (from 200 labels)"] = {"wall": wall * scale, "cpu": cpu * scale}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", default=[20_000, 200_000], help="numbers of labels")
    parser.add_argument("--rows", type=int, default=5000, help="rows")
    parser.add_argument("--dense", type=int, default=384, help="dense features")
    parser.add_argument("--threads", type=int, default=2, help="threads")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, of which the minimum counts")
    parser.add_argument("--predict-only", action="store_true", help="predict with random weights, do not train")
    parser.add_argument("--sklearn", action="store_true", help="time scikit-learn's one-vs-rest, too")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    found = {}
    for n_labels in args.labels:
        found[n_labels] = bench(n_labels, args)
        for name, seconds in found[n_labels].items():
            print(f"{n_labels:,} labels, {name}: {seconds['wall']:.2f} s, CPU {seconds['cpu']:.2f} s", flush=True)
    if args.out:
        settings = {"rows": args.rows, "dense": args.dense, "threads": args.threads}
        blas = os.environ.get("OPENBLAS_NUM_THREADS")
        args.out.write_text(
            json.dumps({"seconds": found, **settings, "blas": blas, "machine": machine()}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
