"""xmlpreck optimize"""

import argparse
from typing import Any

from xmlpreck.cli.options import add_command, add_threads, any_number, location_of, note, show, whole_number
from xmlpreck.cli.prune import add_heldout_split


def add_optimize(commands: Any) -> None:
    optimize = add_command(commands, "optimize", run, "choose how many labels a row gets, on held-out rows")
    optimize.add_argument("--model", required=True, metavar="DIR", help="a model directory")
    optimize.add_argument("--out", metavar="DIR", help="model directory to write (default: the model's own)")
    optimize.add_argument(
        "--for",
        dest="goal",
        default="f1",
        metavar="GOAL",
        help="f1 = the largest F1; precision or recall = --at-least of it, and the most of the other one; "
        "count = as many labels as rows have (default: f1)",
    )
    optimize.add_argument(
        "--average",
        default="micro",
        help="micro = over all pairs of row and label, macro = mean over labels (default: micro)",
    )
    optimize.add_argument("--at-least", metavar="PERCENT", help="of precision or recall, with --for precision|recall")
    optimize.add_argument("--max-labels", metavar="INT", help="maximum number of labels per row (default: 20)")
    optimize.add_argument(
        "--weigh-labels",
        metavar="INT",
        help="with --average macro: give every row this many of its --max-labels best labels, chosen by probabilities "
        "that are weighted by label; for calibrated models where rare labels count (default: one rule for all labels)",
    )
    add_heldout_split(optimize)
    add_threads(optimize)


def run(args: argparse.Namespace) -> None:
    n_threads = whole_number("--threads", args.threads, 0)
    at_least = None if args.at_least is None else any_number("--at-least", args.at_least)
    max_labels = None if args.max_labels is None else whole_number("--max-labels", args.max_labels, 1)
    weighed = None if args.weigh_labels is None else whole_number("--weigh-labels", args.weigh_labels, 1)
    from xmlpreck.api import choices
    from xmlpreck.model.label_rule import MAX_LABELS

    out = args.out or args.model
    made = choices.optimize(
        args.model, location_of(args, "train"), out,
        goal=args.goal, average=args.average, at_least=at_least, max_labels=max_labels or MAX_LABELS,
        weigh_labels=weighed, split=args.split, n_threads=n_threads, note=note, progress=True,
    )  # fmt: skip
    assert made.chosen is not None
    found, rule = made.chosen.found, made.chosen.rule
    scores = f"precision {found.precision:.2f}, recall {found.recall:.2f}, F1 {found.f1:.2f}"
    counts = f"{found.count:.2f} labels per row, true {made.chosen.true_count:.2f}"
    text = f"{out}: {rule.to_text()}; on {made.n_rows:,} rows {args.average} {scores}; {counts}"
    show(args, {"out": str(out), "bytes": made.n_bytes, **made.to_dict()}, text)
