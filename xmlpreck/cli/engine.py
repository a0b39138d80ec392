"""Where a command computes: on this machine, or on a Ray cluster."""

import argparse
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from xmlpreck import config
from xmlpreck.cli.options import columns_of, note, whole_number

if TYPE_CHECKING:
    from xmlpreck.cluster.rows import Place
    from xmlpreck.cluster.session import Session
    from xmlpreck.data.rows import RowSource

ENGINES = ("local", "ray")


class RayEngine(NamedTuple):
    """`--engine ray`, and what else was said about it."""

    address: str | None
    label_shards: int | None

    def connect(self) -> "AbstractContextManager[Session]":
        from xmlpreck.cluster.session import connect

        return connect(self.address, note)


def add_engine_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--engine", default="local", help="local, or ray = on a Ray cluster (default: local)")
    command.add_argument(
        "--address",
        help="ray: join this cluster: auto, host:port or ray://host:port (default: $RAY_ADDRESS, else start Ray here)",
    )
    command.add_argument(
        "--label-shards", metavar="INT", help="ray: divide the labels among so many workers (default: as memory needs)"
    )


def engine_of(args: argparse.Namespace) -> RayEngine | None:
    """None = this machine."""
    if args.engine not in ENGINES:
        raise config.ConfigError(f"--engine must be local or ray, but is {args.engine!r}")
    if args.engine == "local":
        for flag, value in (("--address", args.address), ("--label-shards", args.label_shards)):
            if value is not None:
                raise config.InputError(f"{flag} is for a Ray cluster: say --engine ray, too")
        return None
    shards = None if args.label_shards is None else whole_number("--label-shards", args.label_shards, least=1)
    return RayEngine(args.address, shards)


def place_of(args: argparse.Namespace, rows: "RowSource") -> "Place":
    """Where every node finds the rows that were opened by --data and --split."""
    from xmlpreck.cluster.rows import find_place

    return find_place(rows, args.data, args.split, args.data_dir, args.format)


def refuse_text(args: argparse.Namespace) -> None:
    """Nodes read rows of numbers, by path."""
    from xmlpreck.data.corpus import find_corpus

    if args.data == "-":
        raise config.InputError("--data - is read on this machine only: leave out --engine ray, or name a file")
    if find_corpus(args.data, args.split, columns_of(args)) is not None:
        raise config.InputError(f"{args.data}: is raw text, which is read on this machine only: leave out --engine ray")
