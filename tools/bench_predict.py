"""How fast a model answers: all rows at once, and one at a time; against peers on the same features, in the same run.

    python tools/bench_predict.py --model DIR --data D [--split test] [--repeat 5] [--out bench.json]
        [--peer pecos=PYTHON] [--peer omikuji=PYTHON]     # the interpreter of the peer's own environment

Checks first: on some rows the labels must be those of a brute force over all scores, and one row must have the bits of
many. Peers train with their recommended settings on the training rows of D (kept in --work), rows of unit length.
Ours is timed before and after each peer, in processes of their own; the least counts.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_train import machine
from peer_predict import SINGLE_ROWS, THREADS, K, best_of, percentiles
from scipy.sparse import csr_array, save_npz

from xmlpreck.config import RowsConfig
from xmlpreck.data import catalog, formats
from xmlpreck.metrics import precision_at_k
from xmlpreck.model import Model, prepare_rows

CHECKED_ROWS = 300


def check(scorer: Model, rows: csr_array) -> None:
    some = rows[:CHECKED_ROWS]
    scores = scorer.decision_function(some)
    columns = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    expected = np.lexsort((columns, -scores), axis=1)[:, :K]
    top = scorer.predict_topk(some, K, THREADS)
    assert (top.labels == expected).all(), "the top labels are not those of all scores"
    for i in range(some.shape[0]):
        one = scorer.predict_one(some[i : i + 1], K)
        assert (one.labels == top.labels[i]).all(), "one row has other labels than many"
        assert (one.scores == top.scores[i]).all(), "one row has other scores than many"


def ours(args: argparse.Namespace) -> dict[str, object]:
    """In a process of its own: load, batch, single rows."""
    started = time.perf_counter()
    scorer = Model.load(args.model)
    loaded = time.perf_counter() - started
    data = catalog.load(args.data, args.split)
    rows, labels = data.read(0, data.n_rows).rows, data.read(0, data.n_rows).labels
    check(scorer, rows)
    seconds = {
        threads: best_of(args.repeat, lambda t=threads: scorer.predict_topk(rows, K, t)) for threads in (1, THREADS)
    }
    singles = []
    for i in range(min(SINGLE_ROWS, rows.shape[0])):
        row = rows[i : i + 1]
        begun = time.perf_counter()
        scorer.predict_one(row, K)
        singles.append(time.perf_counter() - begun)
    return {
        "seconds": seconds[THREADS][0],
        "seconds_1_thread": seconds[1][0],
        "load_s": loaded,
        "single_ms": percentiles(singles),
        **precision_at_k(seconds[THREADS][1], labels),
        "n_rows": rows.shape[0],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def in_process(command: list[str]) -> dict[str, object]:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def write_features(args: argparse.Namespace, folder: Path) -> None:
    """The same rows for all, of unit length, as our models see them."""
    for split, suffix in (("train", "train"), (args.split, "test")):
        data = catalog.load(args.data, split)
        whole = data.read(0, data.n_rows)
        rows = prepare_rows(whole.rows, RowsConfig())
        save_npz(folder / f"X_{suffix}.npz", rows)
        save_npz(folder / f"Y_{suffix}.npz", whole.labels)
        if suffix == "train":
            formats.write_repository_text(folder / "train.txt", whole._replace(rows=rows))


def merged(first: dict, second: dict) -> dict:
    """The better of two runs of ours."""
    better = min(first, second, key=lambda run: run["seconds"])
    quicker = min(first, second, key=lambda run: run["single_ms"]["p50"])
    return better | {"single_ms": quicker["single_ms"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--work", help="folder for the peers' features and models, kept (default: a temporary one)")
    parser.add_argument("--out")
    parser.add_argument("--alone", action="store_true", help="time ours in this process and print JSON")
    args = parser.parse_args()
    if args.alone:
        print(json.dumps(ours(args)))
        return
    me = [sys.executable, __file__, "--model", args.model, "--data", args.data, "--split", args.split]
    me += ["--repeat", str(args.repeat), "--alone"]
    results = {"xmlpreck": in_process(me)}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(args.work or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if args.peer and not (folder / "train.txt").exists():
            write_features(args, folder)
        for peer in args.peer:
            name, _, python = peer.partition("=")
            runner = str(Path(__file__).with_name("peer_predict.py"))
            results[name] = in_process([python, runner, name, str(folder), str(args.repeat)])
            results["xmlpreck"] = merged(results["xmlpreck"], in_process(me))
    own = results["xmlpreck"]
    for name, row in results.items():
        single = ", ".join(f"{key} {value:.3f}" for key, value in row["single_ms"].items())
        scores = "/".join(f"{row[f'P@{k}']:.2f}" for k in (1, 3, 5))
        print(
            f"{name:9} {1000 * row['seconds'] / own['n_rows']:.4f} ms/row with {THREADS} threads "
            f"({row['seconds'] / own['seconds']:.1f} times ours), one row {single} ms, P@1/3/5 {scores}, "
            f"peak {row['peak_mb']:.0f} MB"
        )
    if args.out:
        Path(args.out).write_text(
            json.dumps({"data": catalog.describe(args.data), "results": results, "machine": machine()}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
