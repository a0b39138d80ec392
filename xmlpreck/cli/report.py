"""xmlpreck report"""

import argparse
from typing import Any

from xmlpreck.cli.options import (
    add_command,
    add_split_and_threads,
    add_training_rows,
    location_of,
    note,
    show,
    whole_number,
)


def add_report(commands: Any) -> None:
    text = "write one HTML page on runs: scores, labels, samples, curves"
    report = add_command(commands, "report", run, text, needs_data=False)
    report.add_argument("runs", nargs="+", metavar="RUN", help="model directories, and prediction files of any tool")
    report.add_argument(
        "-o", "--out", default="report.html", metavar="FILE", help="page to write (default: report.html)"
    )
    report.add_argument("--fix", action="store_true", help="repair bad predictions of files, and say how many")
    add_training_rows(report)
    add_split_and_threads(report, "test")


def run(args: argparse.Namespace) -> None:
    n_threads = whole_number("--threads", args.threads, 0)
    from xmlpreck.api import evaluation

    n_rows = evaluation.report(
        args.runs, args.out, location_of(args), train=args.train, fix=args.fix, n_threads=n_threads, note=note,
        progress=True,
    )  # fmt: skip
    show(args, {"out": args.out, "n_rows": n_rows}, f"{args.out}: {len(args.runs)} runs on {n_rows:,} rows")
