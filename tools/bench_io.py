"""How fast repository text is read: ours against a plain Python split loop and, where installed, napkinXC's loader.

    python tools/bench_io.py FILE [--peers-root DIR] [--repeat 3] [--out bench.json]

All readers must find the same rows, ids and values before anything is timed. napkinXC is looked for in its own
environment (DIR/napkinxc, as ../shared/peers/install.sh makes it); where it is missing, that is said. omikuji's Python
package reads a file only inside training and does not say how long that took, so it cannot be timed here.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from bench_train import machine

from xmlpreck.data.formats import read_repository_text

PEER_CODE = {
    "napkinxc": """
import sys, time
from napkinxc.datasets import load_libsvm_file
best = 1e9
for _ in range(int(sys.argv[2])):
    t = time.perf_counter(); X, Y = load_libsvm_file(sys.argv[1]); best = min(best, time.perf_counter() - t)
print(best, X.shape[0], X.nnz, sum(len(y) for y in Y), float(abs(X).sum()))
""",
}


def split_loop(path: Path) -> tuple[list[list[int]], list[list[int]], list[list[float]]]:
    """The reader that everybody writes first."""
    labels, features, values = [], [], []
    with open(path) as file:
        next(file)
        for line in file:
            head, _, tail = line.rstrip("\n").partition(" ")
            labels.append([int(label) for label in head.split(",")] if head else [])
            pairs = [pair.split(":") for pair in tail.split()]
            features.append([int(feature) for feature, _ in pairs])
            values.append([float(value) for _, value in pairs])
    return labels, features, values


def least_seconds(read, repeat: int) -> float:
    best = np.inf
    for _ in range(repeat):
        started = time.perf_counter()
        read()
        best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="repository text")
    parser.add_argument("--peers-root", type=Path, default=Path.home() / ".cache" / "xmlpreck-peers")
    parser.add_argument("--repeat", type=int, default=3, help="timings of each, of which the least counts")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()

    ours = read_repository_text(args.file)
    labels, features, values = split_loop(args.file)
    same = (
        np.array_equal(np.concatenate([np.sort(row) for row in labels]), ours.labels.indices)
        and np.array_equal(np.concatenate([np.sort(row) for row in features]), ours.rows.indices)
        and np.isclose(sum(map(sum, values)), ours.rows.data.sum(dtype=np.float64), rtol=1e-6)
    )
    if not same:
        sys.exit("the readers do not agree: nothing is timed")
    del labels, features, values
    print("checked: both readers find the same rows", flush=True)

    seconds = {
        "xmlpreck": least_seconds(lambda: read_repository_text(args.file), args.repeat),
        "python split loop": least_seconds(lambda: split_loop(args.file), 1),
    }
    for peer, code in PEER_CODE.items():
        python = args.peers_root / peer / "bin" / "python"
        if not python.exists():
            print(f"{peer}: not installed under {args.peers_root}, left out")
            continue
        command = [python, "-c", code, os.fspath(args.file), str(args.repeat)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode or not done.stdout.split():
            print(f"{peer}: failed: {done.stderr.strip().splitlines()[-1:]}")
            continue
        words = done.stdout.split()
        if len(words) > 1 and [int(words[1]), int(words[2])] != [ours.n_rows, ours.rows.nnz]:
            sys.exit(f"{peer} finds other rows: {words}")
        seconds[peer] = float(words[0])
    megabytes = args.file.stat().st_size / 2**20
    for name, value in seconds.items():
        ratio = value / seconds["xmlpreck"]
        print(f"{name}: {value:.3f} s, {megabytes / value:,.0f} MB/s, {ratio:.1f} times the time of xmlpreck")
    if args.out:
        result = {"file": args.file.name, "megabytes": megabytes, "seconds": seconds, "machine": machine()}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
