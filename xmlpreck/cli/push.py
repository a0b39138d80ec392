"""xmlpreck push"""

import argparse
from typing import Any

from xmlpreck.cli.options import add_command, add_split_and_threads, location_of, note, show, whole_number


def add_push(commands: Any) -> None:
    push = add_command(commands, "push", run, "upload a model to the Hugging Face Hub, with a card", needs_data=False)
    push.add_argument("model", metavar="MODEL", help="a model directory")
    push.add_argument("name", metavar="NAME", help="repository to write to: USER/MODEL; made if there is none")
    push.add_argument("--private", action="store_true", help="make a repository that others cannot see")
    add_split_and_threads(push, "test")


def run(args: argparse.Namespace) -> None:
    n_threads = whole_number("--threads", args.threads, 0)
    from xmlpreck.api import hub

    made = hub.push(
        args.model, args.name, location_of(args),
        private=args.private, n_threads=n_threads, note=note, progress=True,
    )  # fmt: skip
    show(args, made._asdict(), f"{made.url}: {made.n_files} files, {made.n_bytes:,} bytes")
