"""What `--favour tail` gains in PSP@k and costs in P@k, on held-out training rows.

    python tools/bench_tail.py [--data-dir DIR] [--seeds 3] [--set train.k=3] [--update docs/tail.md] [bibtex DIR ...]

Holds out 20 % of the training rows, trains twice on the others with the SETTINGS of the data (the defaults where it has
none) and --set on top, and scores both models on the held-out rows; all that for each seed, which draws the held-out
rows too. Propensities are those of the rows trained on. Test rows are not looked at.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from marked_block import print_lines, replace_block

from xmlpreck import config, metrics
from xmlpreck.data import catalog
from xmlpreck.data.rows import split_heldout
from xmlpreck.evaluation.comparison import count_labels
from xmlpreck.train import fit

HELDOUT = 0.2
# Good ones for each set, as found on held-out training rows with steps of one length.
DECAY = ["train.algo=sgd-avg", "train.decay=constant"]
SETTINGS = {
    "bibtex": ["train.eta=0.05", "train.epochs=20", "rows.bias=0.3"],
    "delicious": ["train.eta=0.1", "train.tau=0.3", "train.k=10", "train.epochs=10", "rows.bias=0.3"],
    "eurlex57k": ["train.eta=0.4", "train.epochs=4", "rows.bias=0"],
    "wordnet-rel": ["train.eta=0.5", "train.tau=0.1", "train.epochs=3", "rows.bias=0"],
}
METRICS = [f"{name}@{k}" for name in ("P", "PSP") for k in metrics.REPORTED_KS]
BEGIN, END = "<!-- tail: made by tools/bench_tail.py -->", "<!-- end of tail -->"


def both(name: str, settings: config.RunConfig, data_dir: str | None) -> np.ndarray:
    """(2, metrics): the scores of both models on held-out rows that the seed has drawn."""
    rows, heldout = split_heldout(catalog.load(name, "train", data_dir), HELDOUT, settings.train.seed)
    counted = count_labels(rows)
    weights = metrics.inverse_propensities(counted.counts, counted.n_rows, *metrics.PROPENSITY)
    found = []
    for way in config.FAVOURS:
        meter = metrics.Meter(rows.n_labels, metrics.REPORTED_KS, inverse_propensity=weights, n_resamples=0)
        scorer = fit(rows, replace(settings, train=replace(settings.train, favour=way)))
        for block, top in scorer.predict_blocks(heldout, max(meter.ks), settings.train.n_threads):
            meter.add(top, block.labels)
        values = meter.result().values
        found.append([values[metric].value for metric in METRICS])
    return np.array(found)


def measure(name: str, overrides: list[str], n_seeds: int, data_dir: str | None) -> Iterator[str]:
    """Lines of the table: the mean over seeds of both models, and their difference with its range."""
    settings = config.load(None, config.parse_words([*DECAY, *SETTINGS.get(catalog.describe(name), []), *overrides]))
    seeds = [replace(settings, train=replace(settings.train, seed=seed)) for seed in range(n_seeds)]
    found = np.array([both(name, of_seed, data_dir) for of_seed in seeds])
    for way, scores in zip(config.FAVOURS, found.mean(axis=0), strict=True):
        yield line(catalog.describe(name), way, [f"{score:.2f}" for score in scores])
    train = settings.train
    used = f"eta {train.eta:g}, tau {train.tau:g}, k {train.k}, {train.epochs} passes"
    apart = found[:, 1] - found[:, 0]
    yield line(used, "difference", [f"{mean:+.2f}" for mean in apart.mean(axis=0)])
    ranges = zip(apart.min(axis=0), apart.max(axis=0), strict=True)
    yield line("", "from, to", [f"{low:+.1f}, {high:+.1f}" for low, high in ranges])


def line(first: str, second: str, cells: list[str]) -> str:
    return f"| {' | '.join([first, second, *cells])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SETTINGS), help="catalogue names or folders")
    parser.add_argument("--data-dir", help="where catalogue data is")
    parser.add_argument("--seeds", type=int, default=3, help="repetitions, each with held-out rows of its own")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any setting")
    parser.add_argument("--update", type=Path, help="Markdown file whose table is replaced")
    args = parser.parse_args()

    head = [line("data", "favour", METRICS), line("---", "---", ["---:"] * len(METRICS))]
    rows = (row for name in args.names for row in measure(name, args.set, args.seeds, args.data_dir))
    table = print_lines(head, rows)
    if args.update:
        replace_block(args.update, BEGIN, END, table)


if __name__ == "__main__":
    main()
