"""xmlpreck data list | info | fetch | convert | validate"""

import argparse
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from xmlpreck import __version__
from xmlpreck.cli.options import CheckFailed, add_verb, always, refuse_flags, show, whole_number

if TYPE_CHECKING:
    from xmlpreck.data.formats import Dataset


def add_data_commands(commands: Any) -> None:
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
    convert.add_argument("out", metavar="OUT", help="folder to write: OUT/train and OUT/test, or OUT for one file")
    convert.add_argument("--format", default="parquet", help="parquet or hdf5 (default: parquet)")
    convert.add_argument("--from", dest="source_format", metavar="FORMAT", help="force the format of IN")
    convert.add_argument("--rows-per-shard", default="65536", metavar="INT", help="rows a file (default: 65536)")
    convert.add_argument("--shuffle", action="store_true", help="put the training rows in random order")
    convert.add_argument("--seed", default="0", metavar="INT", help="of --shuffle (default: 0)")
    convert.add_argument("--data-dir", metavar="DIR", help="where catalogue data is")
    # Its exit code is a result, too: it does not stop when nobody reads what it prints.
    check = add_verb(verbs, "validate", validate_command, "look through a file for anything that is wrong or odd")
    check.add_argument("data", metavar="PATH", help="a file or folder")
    check.add_argument("--split", default="train", help="train or test, of a folder (default: train)")
    check.add_argument("--format", help="force a file format instead of recognising it")
    check.add_argument("--fix", metavar="OUT", help="write a clean copy, as repository text")


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
    rows_per_shard = whole_number("--rows-per-shard", args.rows_per_shard, least=1)
    seed = whole_number("--seed", args.seed, least=0)
    if not args.shuffle:
        refuse_flags(args, ["seed"], "without --shuffle")
    from xmlpreck.data import catalog, shards

    splits = catalog.splits_of(args.data, args.out, args.data_dir)
    if "train" not in dict(splits):
        refuse_flags(args, ["shuffle", "seed"], "on test rows, which keep their order")
    provenance = {"source": catalog.describe(args.data), "xmlpreck": __version__}
    results, lines = [], []
    for split, folder in splits:
        chunks = with_bar(catalog.read_chunks(args.data, split, args.data_dir, args.source_format), split)
        shuffle_seed = seed if args.shuffle and split == "train" else None
        made = shards.write_shards(
            folder, chunks, args.format, rows_per_shard, provenance | {"split": split}, shuffle_seed
        )
        n_bytes = sum(shard.n_bytes for shard in made.shards)
        facts = {"split": split, "folder": str(folder), "kind": made.kind, "n_rows": made.n_rows}
        results.append(facts | {"n_shards": len(made.shards), "bytes": n_bytes})
        about = f"{made.n_rows:,} rows in {len(made.shards)} {made.kind} shards, {n_bytes / 2**20:.1f} MB"
        lines.append(f"{folder}: {about}")
    show(args, results, "\n".join(lines))


def with_bar(chunks: "Iterator[Dataset]", text: str) -> "Iterator[Dataset]":
    """The same chunks, and a bar that counts their rows."""
    from xmlpreck.files.progress import progress_bar

    with progress_bar(None, text, wanted=True) as bar:
        for chunk in chunks:
            yield chunk
            bar.update(chunk.n_rows)


def validate_command(args: argparse.Namespace) -> None:
    from xmlpreck.data import validate

    if args.fix:
        report = validate.fix(args.data, args.split, args.fix, args.format)
    else:
        report = validate.validate(args.data, args.split, args.format)
    show(args, report.to_dict(), report.to_text())
    if not report.is_clean and not args.fix:
        raise CheckFailed
