"""What our probabilities are worth beside those of other ways to calibrate.

    python tools/bench_calibration.py --data-dir DIR [--top 5] [--update docs/calibration.md] [bibtex FOLDER ...]

Trains with the data's shipped config on 90 % of the training rows, learns every calibration from the first 10 labels of
the other 10 %, and measures on the first --top labels of the test rows: Brier score, log loss, and the expected
calibration error (ECE) over 15 bins of equal size. Lower is better in all three. Other ways' 0 and 1 count as 1e-6 from
there, since one mistake would make their log loss infinite.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from marked_block import print_lines, replace_block
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from xmlpreck import catalog, config
from xmlpreck.calibration import DEPTH, Calibration, reliability, uncalibrated
from xmlpreck.formats import Dataset, TopK
from xmlpreck.metrics import hits
from xmlpreck.train import fit, split_heldout

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
    yield "ours", ours.probabilities(top).scores


def measure(name: str, width: int, data_dir: str | None) -> Iterator[str]:
    """Lines of the table."""
    settings = config.load(catalog.find_config(None, name), [f"train.heldout={HELDOUT}"])
    train, test = (catalog.load(name, split, data_dir) for split in ("train", "test"))
    scorer = fit(train, settings)
    rows, asked = (source.read(0, source.n_rows) for source in (split_heldout(train, settings.train)[1], test))
    known, top = (scorer.predict_topk(of.rows, k) for of, k in ((rows, DEPTH), (asked, width)))
    right = hits(top, asked.labels).ravel()
    for method, probabilities in methods(known, rows, top):
        found = reliability(np.clip(probabilities.ravel(), MARGIN, 1 - MARGIN), right)
        cells = (
            catalog.describe(name),
            method,
            f"{found.brier:.4f}",
            f"{found.log_loss:.4f}",
            f"{100 * found.ece:.2f}",
        )
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", default=["bibtex", "delicious", "eurlex57k"], help="catalogue names or folders"
    )
    parser.add_argument("--data-dir", help="where catalogue data is")
    parser.add_argument("--top", type=int, default=5, help="labels a row that are measured")
    parser.add_argument("--update", type=Path, help="Markdown file whose table is replaced")
    args = parser.parse_args()

    head = ["| data | probabilities by | Brier | log loss | ECE (%) |", "|---|---|---:|---:|---:|"]
    rows = (row for name in args.names for row in measure(name, args.top, args.data_dir))
    table = print_lines(head, rows)
    if args.update:
        replace_block(args.update, BEGIN, END, table)


if __name__ == "__main__":
    main()
