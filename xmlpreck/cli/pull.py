"""xmlpreck pull"""

import argparse
from typing import Any

from xmlpreck.cli.options import add_verb, show


def add_pull(commands: Any) -> None:
    pull = add_verb(commands, "pull", run, "download a model from the Hugging Face Hub, and check it")
    pull.add_argument("name", metavar="NAME", help="repository to read: USER/MODEL")
    pull.add_argument(
        "-o", "--out", metavar="DIR", help="model directory to write (default: runs/MODEL, if that is not there)"
    )
    pull.add_argument("--revision", metavar="NAME", help="branch, tag or commit (default: main)")


def run(args: argparse.Namespace) -> None:
    from xmlpreck.api import hub

    made = hub.pull(args.name, args.out, revision=args.revision, progress=True)
    show(args, made._asdict(), f"{made.path}: {made.n_bytes:,} bytes of commit {made.commit}")
