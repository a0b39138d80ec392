"""xmlpreck data list | info | fetch | convert | validate"""

import argparse
import dataclasses
from typing import Any

from xmlpreck.cli.options import (
    CheckFailed,
    add_column_options,
    add_verb,
    always,
    columns_of,
    refuse_flags,
    show,
    whole_number,
)
from xmlpreck.cli.run_options import add_text_settings, text_settings_of


def add_data(commands: Any) -> None:
    data = commands.add_parser("data", help="list, fetch, convert and check data sets", description="Data sets.")
    verbs = data.add_subparsers(title="commands", dest="verb", required=True, metavar="COMMAND")

    add_verb(verbs, "list", list_command, "the data sets of the catalogue", always)
    info = add_verb(verbs, "info", info_command, "all that is known of a data set", always)
    fetch = add_verb(verbs, "fetch", fetch_command, "download a data set, check it and unpack it")
    for verb in (info, fetch):
        verb.add_argument("name", help="a catalogue name")
        verb.add_argument("--data-dir", metavar="DIR", help="where catalogue data is, or goes")
    convert = add_verb(verbs, "convert", convert_command, "write the splits of a data set as shards")
    convert.add_argument("data", metavar="IN", help="a file, a folder or a catalogue name")
    convert.add_argument("out", metavar="OUT", help="folder or URI: OUT/train and OUT/test, or OUT for one file")
    convert.add_argument("--format", default="parquet", help="parquet or hdf5 (default: parquet)")
    convert.add_argument("--from", dest="source_format", metavar="FORMAT", help="force the format of IN")
    convert.add_argument("--rows-per-shard", default="65536", metavar="INT", help="rows a file (default: 65536)")
    convert.add_argument("--shuffle", action="store_true", help="put the training rows in random order")
    convert.add_argument("--seed", default="0", metavar="INT", help="of --shuffle (default: 0)")
    convert.add_argument("--data-dir", metavar="DIR", help="where catalogue data is")
    add_text_settings(convert)
    add_column_options(convert)
    # Its exit code is a result, too: it does not stop when nobody reads what it prints.
    check = add_verb(
        verbs, "validate", validate_command, "look through rows or texts for anything that is wrong or odd"
    )
    check.add_argument("data", metavar="PATH", help="a file or folder")
    check.add_argument("--split", default="train", help="train or test, of a folder (default: train)")
    check.add_argument("--format", help="force a file format instead of recognising it")
    check.add_argument("--fix", metavar="OUT", help="write a clean copy of rows of numbers, as repository text")
    add_column_options(check)


def list_command(args: argparse.Namespace) -> None:
    from xmlpreck.data import catalog

    cards = catalog.list_cards()
    lines = []
    for card in cards:
        labels = "?" if card.n_labels is None else f"{card.n_labels:,}"
        rows = "?" if card.n_train is None else f"{card.n_train:,}"
        lines.append(f"{card.name:28} {labels:>9} labels {rows:>10} rows  {card.title}")
    show(args, [dataclasses.asdict(card) for card in cards], "\n".join(lines))


def info_command(args: argparse.Namespace) -> None:
    from xmlpreck.data import catalog

    card = catalog.need_card(args.name)
    folders = {split: str(folder) for split, folder in catalog.local_folders(card, args.data_dir).items()}
    show(args, dataclasses.asdict(card) | {"folders": folders}, catalog.card_text(card, args.data_dir))


def fetch_command(args: argparse.Namespace) -> None:
    from xmlpreck.data import catalog

    folder = str(catalog.fetch_data(args.name, args.data_dir))
    show(args, {"name": catalog.need_card(args.name).name, "folder": folder}, folder)


def convert_command(args: argparse.Namespace) -> None:
    rows_per_shard = whole_number("--rows-per-shard", args.rows_per_shard, 1)
    seed = whole_number("--seed", args.seed, 0)
    if not args.shuffle:
        refuse_flags(args, ["seed"], "without --shuffle")
    from xmlpreck.api.datasets import convert

    made = convert(
        args.data, args.out, format=args.format, source_format=args.source_format, rows_per_shard=rows_per_shard,
        shuffle_seed=seed if args.shuffle else None, data_dir=args.data_dir,
        columns=columns_of(args), settings=text_settings_of(args), progress=True,
    )  # fmt: skip
    sizes = (f"{one.n_rows:,} rows in {one.n_shards} {one.kind} shards, {one.n_bytes / 2**20:.1f} MB" for one in made)
    lines = [f"{one.folder}: {size}" for one, size in zip(made, sizes, strict=True)]
    show(args, [one.to_dict() for one in made], "\n".join(lines))


def validate_command(args: argparse.Namespace) -> None:
    from xmlpreck.api.datasets import check_data

    report = check_data(
        args.data, args.split, fix=args.fix or None, format=args.format, columns=columns_of(args), progress=True
    )
    show(args, report.to_dict(), report.to_text())
    if not report.is_clean and not args.fix:
        raise CheckFailed
