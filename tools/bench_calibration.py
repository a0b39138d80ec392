"""What our probabilities are worth beside those of other ways to calibrate.

    python tools/bench_calibration.py --data-dir DIR [--top 5] [--seeds 1] [--update docs/calibration.md] [bibtex ...]

Tunes and trains on 90 % of the training rows, learns every calibration from the first 10 labels of the other 10 %, and
measures on the first --top labels of the test rows: Brier score, log loss, the expected calibration error (ECE) over 15
bins of equal size, and P@1 and P@3 of the labels in the order of their probabilities. All are means over the seeds.
Other ways' 0 and 1 count as 1e-6 from there, since one mistake would make their log loss infinite.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from marked_block import print_lines, replace_block
from scipy.optimize import isotonic_regression
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from xmlpreck import config
from xmlpreck.data import catalog
from xmlpreck.data.formats import Dataset, TopK
from xmlpreck.data.rows import split_heldout
from xmlpreck.metrics import hits
from xmlpreck.model.calibration import DEPTH, Calibration, reliability, uncalibrated
from xmlpreck.train import fit, tune

HELDOUT = 0.1
LEAST_HITS = 10  # held-out hits, and as many misses, that a label needs for an isotonic curve of its own
MARGIN = 1e-6
BEGIN, END = "<!-- calibration: made by tools/bench_calibration.py -->", "<!-- end of calibration -->"


def isotonic(scores: np.ndarray, hit: np.ndarray) -> IsotonicRegression:
    return IsotonicRegression(out_of_bounds="clip").fit(scores, hit)


def isotonic_by_label(known: TopK, hit: np.ndarray, top: TopK) -> np.ndarray:
    """A curve for each label with enough hits and misses, the pooled one for all others."""
    found = isotonic(known.scores.ravel(), hit.ravel()).predict(top.scores.ravel()).reshape(top.scores.shape)
    n_hits, n_places = np.bincount(known.labels[hit]), np.bincount(known.labels.ravel())
    n_hits = np.pad(n_hits, (0, len(n_places) - len(n_hits)))
    for label in np.flatnonzero(np.minimum(n_hits, n_places - n_hits) >= LEAST_HITS):
        learned, asked = known.labels == label, top.labels == label
        if asked.any():
            found[asked] = isotonic(known.scores[learned], hit[learned]).predict(top.scores[asked])
    return found


def shifted(ours: Calibration, top: TopK) -> np.ndarray:
    """Our probabilities before the order of the labels is kept."""
    index = top.scores + ours.slope * top.scores[:, :1]
    return np.asarray(expit(logit(np.interp(index, *ours.knots)) + ours.shifts[top.labels]))


def falling(probabilities: np.ndarray) -> np.ndarray:
    """The nearest ones, by least squares, that do not rise along a row."""
    return np.stack([isotonic_regression(row, increasing=False).x for row in probabilities])


def methods(known: TopK, rows: Dataset, top: TopK) -> Iterator[tuple[str, np.ndarray]]:
    """Each way's probabilities of the labels in `top`, learned from the held-out rows' first labels."""
    hit = hits(known, rows.labels)
    platt = LogisticRegression(C=1e6).fit(known.scores.reshape(-1, 1), hit.ravel())
    ours = Calibration.fit([(known, rows.labels)], rows.n_labels)
    yield "sigmoid of the score", uncalibrated(top).scores
    yield "Platt (logistic), all labels", platt.predict_proba(top.scores.reshape(-1, 1))[:, 1]
    yield "isotonic, all labels", isotonic(known.scores.ravel(), hit.ravel()).predict(top.scores.ravel())
    yield f"isotonic, label by label from {LEAST_HITS} hits", isotonic_by_label(known, hit, top)
    yield "ours without shifts", replace(ours, shifts=np.zeros_like(ours.shifts)).probabilities(top).scores
    yield "ours, order not kept", shifted(ours, top)
    yield "ours, order kept by isotonic regression", falling(shifted(ours, top))
    yield "ours", ours.probabilities(top).scores


def measure_once(name: str, width: int, data_dir: str | None, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Each way's Brier score, log loss, ECE, and P@1 and P@3 of labels sorted by probability, in per cent."""
    settings = config.load(catalog.find_config(None, name), {"train.heldout": HELDOUT, "train.seed": seed})
    train, test = (catalog.load(name, split, data_dir) for split in ("train", "test"))
    kept, heldout = split_heldout(train, settings.train.heldout, settings.train.seed)
    tuned = tune(kept, settings)
    scorer = fit(train, settings if tuned is None else tuned[0])
    rows, asked = (source.read(0, source.n_rows) for source in (heldout, test))
    known, top = (scorer.predict_topk(of.rows, k) for of, k in ((rows, DEPTH), (asked, width)))
    right = hits(top, asked.labels)
    for method, probabilities in methods(known, rows, top):
        inside = np.clip(probabilities.reshape(right.shape), MARGIN, 1 - MARGIN)
        found = reliability(inside.ravel(), right.ravel())
        sorted_hits = np.take_along_axis(right, np.argsort(-inside, axis=1, kind="stable"), axis=1)
        precision = (100 * sorted_hits[:, :k].mean() for k in (1, 3))
        yield method, np.array([found.brier, found.log_loss, 100 * found.ece, *precision])


def measure(name: str, width: int, data_dir: str | None, n_seeds: int) -> Iterator[str]:
    """Lines of the table."""
    runs = [dict(measure_once(name, width, data_dir, seed)) for seed in range(n_seeds)]
    for method in runs[0]:
        brier, log_loss, ece, p_1, p_3 = np.mean([run[method] for run in runs], axis=0)
        cells = (f"{brier:.4f}", f"{log_loss:.4f}", f"{ece:.2f}", f"{p_1:.2f}", f"{p_3:.2f}")
        yield f"| {' | '.join((catalog.describe(name), method, *cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", default=["bibtex", "delicious", "eurlex57k"], help="catalogue names or folders"
    )
    parser.add_argument("--data-dir", help="where catalogue data is")
    parser.add_argument("--top", type=int, default=5, help="labels a row that are measured")
    parser.add_argument("--seeds", type=int, default=1, help="runs whose mean is shown")
    parser.add_argument("--update", type=Path, help="Markdown file whose table is replaced")
    args = parser.parse_args()

    columns = ("data", "probabilities by", "Brier", "log loss", "ECE (%)", "P@1", "P@3")
    head = [f"| {' | '.join(columns)} |", "|---|---|---:|---:|---:|---:|---:|"]
    rows = (row for name in args.names for row in measure(name, args.top, args.data_dir, args.seeds))
    table = print_lines(head, rows)
    if args.update:
        replace_block(args.update, BEGIN, END, table)


if __name__ == "__main__":
    main()
