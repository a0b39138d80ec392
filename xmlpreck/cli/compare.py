"""xmlpreck compare"""

import argparse
from typing import Any

from xmlpreck.cli.evaluate import add_evaluation_options, evaluation_options
from xmlpreck.cli.options import add_command, always, location_of, note, show


def add_compare(commands: Any) -> None:
    compare = add_command(commands, "compare", run, "compare predictions on the same rows, each with the first", always)
    compare.add_argument("files", nargs="+", metavar="FILE", help="two or more prediction files or model directories")
    add_evaluation_options(compare)


def run(args: argparse.Namespace) -> None:
    options = evaluation_options(args)
    from xmlpreck.api import evaluation

    found = evaluation.compare(args.files, location_of(args), options, model=args.model, note=note, progress=True)
    show(args, found.to_dict(), found.to_table(args.table))
