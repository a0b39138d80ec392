"""xmlpreck prune"""

import argparse
from typing import Any

from xmlpreck.cli.options import (
    DATA_FLAGS,
    SPLITS,
    add_command,
    add_threads,
    location_of,
    note,
    positive_number,
    refuse_flags,
    show,
    whole_number,
)


def add_heldout_split(command: argparse.ArgumentParser) -> None:
    """Add --split for commands that choose something of a model on rows."""
    command.add_argument(
        "--split",
        help="heldout = training rows that the model held out; train or test rows are recorded in the model "
        "(default: heldout)",
    )
    command.set_defaults(splits=("heldout", *SPLITS))


def add_prune(commands: Any) -> None:
    prune = add_command(commands, "prune", run, "write a smaller copy of a model", needs_data=False)
    prune.add_argument("--model", required=True, metavar="DIR", help="a model directory")
    prune.add_argument("--out", required=True, metavar="DIR", help="model directory to write")
    prune.add_argument("--threshold", metavar="NUMBER", help="drop weights smaller than this in absolute value")
    prune.add_argument("--size", metavar="SIZE", help="drop the smallest weights until this size is left, e.g. 10MB")
    prune.add_argument(
        "--max-loss",
        metavar="POINTS",
        help="drop as many weights as cost at most this many points of P@1, P@3 and P@5 on rows of --data",
    )
    add_heldout_split(prune)
    add_threads(prune)


def run(args: argparse.Namespace) -> None:
    if args.max_loss is None:
        refuse_flags(args, ["data", *DATA_FLAGS, "split", "threads"], "without --max-loss, which alone looks at rows")
    threshold, max_loss = (
        None if text is None else positive_number(flag, text)
        for flag, text in (("--threshold", args.threshold), ("--max-loss", args.max_loss))
    )
    n_threads = whole_number("--threads", args.threads, 0)
    from xmlpreck.api import choices

    made = choices.prune(
        args.model,
        args.out,
        threshold=threshold,
        size=args.size,
        max_loss=max_loss,
        data=None if args.data is None else location_of(args, "train"),
        split=args.split,
        n_threads=n_threads,
        note=note,
    )
    result: dict[str, Any] = {"out": args.out, "threshold": made.threshold}
    result |= {"n_weights": made.model.n_weights, "bytes": made.n_bytes}
    losses = []
    if made.before is not None:
        after = made.tried[-1].scores
        result |= {"before": made.before, "after": after, "tried": [one._asdict() for one in made.tried]}
        losses = [f"{name} {made.before[name]:.2f} -> {value:.2f}" for name, value in after.items()]
    about = f"{args.out}: {made.model.n_weights:,} of {made.n_weights_before:,} weights, {made.n_bytes / 2**20:.1f} MB"
    show(args, result, "; ".join([f"{about}, none smaller than {made.threshold:.4g}", *losses]))
