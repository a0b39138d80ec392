"""xmlpreck calibrate"""

import argparse
from typing import Any

from xmlpreck.cli.options import add_command, add_threads, location_of, note, show, whole_number
from xmlpreck.cli.prune import add_heldout_split


def add_calibrate(commands: Any) -> None:
    calibrate = add_command(commands, "calibrate", run, "learn probabilities from held-out rows")
    calibrate.add_argument("--model", required=True, metavar="DIR", help="a model directory")
    calibrate.add_argument("--out", metavar="DIR", help="model directory to write (default: the model's own)")
    calibrate.add_argument(
        "--depth",
        metavar="INT",
        help="first labels of each row to learn from; as many as will be predicted (default: 10)",
    )
    add_heldout_split(calibrate)
    add_threads(calibrate)


def run(args: argparse.Namespace) -> None:
    n_threads = whole_number("--threads", args.threads, 0)
    depth = None if args.depth is None else whole_number("--depth", args.depth, 1)
    from xmlpreck.api import choices
    from xmlpreck.model.calibration import DEPTH

    out = args.out or args.model
    made = choices.calibrate(
        args.model, location_of(args, "train"), out,
        split=args.split, depth=depth or DEPTH, n_threads=n_threads, note=note, progress=True,
    )  # fmt: skip
    result = {"out": str(out), "bytes": made.n_bytes, "n_rows": made.n_rows, "depth": depth or DEPTH}
    show(args, result, f"{out}: calibrated on {made.n_rows:,} rows")
