"""Joachims' own SVM-perf, where it is installed, on the problem that bipartite.CuttingPlaneRanker solves.

    python tools/run_svm_perf.py TRAIN TEST [--kappa 0.25] [--C 1]

TRAIN and TEST are LIBSVM files (.gz too) of two classes; the one of the larger number is positive. Prints one JSON
object: prec@kappa on TEST, and the seconds of training.
SVM-perf's loss is in per cent and its scores have a scale of their own, so its C is not that of CuttingPlaneRanker.
It was not at hand when this was written: the tests run a stand-in that writes a model file of the same form.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import dump_svmlight_file, load_svmlight_files

from xmlpreck.bipartite import prec_at_kappa
from xmlpreck.config import InputError

PROGRAM = "svm_perf_learn"


def svm_perf_available() -> bool:
    return shutil.which(PROGRAM) is not None


def run_svm_perf(X: Any, positive: np.ndarray, kappa: float, C: float) -> tuple[np.ndarray, float]:
    """(w, seconds of the program, reading included): 1-slack dual (-w 3), loss prec@k (-l 4), k = kappa n+, no bias."""
    if not svm_perf_available():
        raise InputError(f"{PROGRAM}: not on the PATH: get SVM-perf from its author's page and add its folder to PATH")
    with tempfile.TemporaryDirectory() as folder:
        points, model = Path(folder) / "train.dat", Path(folder) / "model.dat"
        dump_svmlight_file(X, np.where(positive, 1, -1), str(points), zero_based=False)
        settings = ["-c", str(C), "-w", "3", "-l", "4", "--p", str(kappa), "--b", "0"]
        since = time.perf_counter()
        done = subprocess.run([PROGRAM, *settings, points, model], capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - since
        if not model.is_file():
            raise InputError(
                f"{PROGRAM}: wrote no model (exit {done.returncode}): {' '.join(done.stdout.split())[-200:]}"
            )
        return read_weights(model, X.shape[1]), seconds


def read_weights(path: Path, n_features: int) -> np.ndarray:
    """w = Σ alpha_j x_j of a linear model: after the line of the threshold, each line is `alpha feature:value ...`."""
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    if not any("threshold b" in line for line in lines):  # reads up to that line
        raise InputError(f"{path}: no line with 'threshold b': not a model file of SVM-perf")
    w = np.zeros(n_features)
    for line in lines:
        alpha, *pairs = line.partition("#")[0].split()
        for feature, _, value in (pair.partition(":") for pair in pairs):
            w[int(feature) - 1] += float(alpha) * float(value)
    return w


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--kappa", type=float, default=0.25)
    parser.add_argument("--C", type=float, default=1.0)
    options = parser.parse_args()
    X, y, X_test, y_test = load_svmlight_files([options.train, options.test])
    w, seconds = run_svm_perf(X, y == y.max(), options.kappa, options.C)
    precision = prec_at_kappa(X_test @ w, y_test == y.max(), options.kappa)
    print(json.dumps({"prec": precision, "seconds": seconds}))


if __name__ == "__main__":
    main()
