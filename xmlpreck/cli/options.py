"""What all commands share: flags, their values, where the data is, and how results are shown."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from xmlpreck import config

if TYPE_CHECKING:
    from xmlpreck.api.engine import RayEngine
    from xmlpreck.api.labels import LabelFile
    from xmlpreck.data.formats import Columns
    from xmlpreck.data.location import DataLocation

Run = Callable[[argparse.Namespace], None]
Test = Callable[[argparse.Namespace], bool]
SPLITS = ("train", "test")
COLUMN_FLAGS = (
    "text_columns", "labels_column", "label_separator", "id_column", "delimiter", "encoding", "no_quotes", "no_header",
)  # fmt: skip
DATA_FLAGS = ("data_dir", "format", "dense", *COLUMN_FLAGS)


class CheckFailed(Exception):
    """A check has found something, and has said so: exit 1."""


# Signals that asked this command to stop. Python drops an exception that a handler raises while a `__del__` runs, so
# long work looks here, too.
asked_to_stop: list[int] = []


class Stopped(BaseException):
    """A signal has asked to stop, and all is saved: exit 128 + its number. No `except Exception` may swallow it."""


class Parser(argparse.ArgumentParser):
    """argparse, with its errors in one line."""

    def error(self, message: str) -> NoReturn:
        raise config.InputError(f"{message}; see {self.prog} --help")


def always(_: argparse.Namespace) -> bool:
    return True


def never(_: argparse.Namespace) -> bool:
    return False


def add_verb(commands: Any, name: str, run: Run, text: str, only_prints: Test = never) -> argparse.ArgumentParser:
    """Add a command; `only_prints` says whether all that it does with these words is to print to stdout."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    command.add_argument("--json", action="store_true", help="print one JSON value instead of text")
    command.set_defaults(run=run, only_prints=only_prints, default_of=command.get_default)
    return command


def add_command(
    commands: Any, name: str, run: Run, text: str, only_prints: Test = never, needs_data: bool = True
) -> argparse.ArgumentParser:
    """Add a command that reads data."""
    command = add_verb(commands, name, run, text, only_prints)
    command.add_argument(
        "--data",
        required=needs_data,
        help="catalogue name (demo, bibtex, ...), file, folder, or URI of shards (s3://...)",
    )
    command.add_argument(
        "--data-dir", metavar="DIR", help="folder of catalogue data (default: $XMLPRECK_DATA, then ~/.cache/xmlpreck)"
    )
    command.add_argument("--format", help="read files as this format; only needed where it is not recognised")
    command.add_argument(
        "--dense",
        metavar="FILE",
        help="dense rows beside those of --data, such as an embedding of their texts: .npy, .npz, .h5 or .parquet, row "
        "by row (default: E_train.npy or E_test.npy, if the folder has it; none = leave that out)",
    )
    add_column_options(command)
    return command


def add_column_options(command: argparse.ArgumentParser) -> None:
    """Add the flags that say what the columns of a table of texts hold."""
    of_table = command.add_argument_group("tables of texts", "What is not given is recognised, and said.")
    of_table.add_argument(
        "--text-columns", "--text-column", metavar="NAMES",
        help="columns of texts, joined; title*2,abstract counts the title twice",
    )  # fmt: skip
    of_table.add_argument("--labels-column", metavar="NAME", help="column of the label names")
    of_table.add_argument(
        "--label-separator", metavar="TEXT", help="what separates the labels of one field, e.g. ';'; none = one label"
    )
    of_table.add_argument("--id-column", metavar="NAME", help="column of the rows' own ids; none = number the rows")
    of_table.add_argument("--delimiter", metavar="CHAR", help="what separates the columns of CSV, e.g. ';'")
    of_table.add_argument("--encoding", metavar="NAME", help="of CSV, e.g. cp1252 (default: UTF-8)")
    of_table.add_argument("--no-quotes", action="store_true", help="quotes in CSV are letters like all others")
    of_table.add_argument(
        "--no-header", action="store_true", help="the first row of CSV is data, and columns are called 1, 2, ..."
    )


def add_split(command: argparse.ArgumentParser, default: str) -> None:
    command.add_argument("--split", default=default, help=f"train or test rows of the data (default: {default})")


def add_training_rows(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--train", metavar="PATH", help="training rows, for label frequencies (default: those of --data)"
    )


def add_split_and_threads(command: argparse.ArgumentParser, split: str) -> None:
    add_split(command, split)
    add_threads(command)


def add_threads(command: argparse.ArgumentParser) -> None:
    command.add_argument("--threads", default="0", metavar="INT", help="threads; 0 = one per core (default: 0)")


def add_label_options(command: argparse.ArgumentParser, text: str) -> None:
    """Add the flags of a vocabulary of labels."""
    command.add_argument("--labels-file", metavar="FILE", help=text)
    command.add_argument(
        "--label-language",
        metavar="CODE",
        help="language of the labels' names, e.g. fi (default: the one that most labels have a name in)",
    )
    command.add_argument(
        "--label-words",
        metavar="OWN,SHARED,UNSEEN,TRUSTED",
        help="how much words count: a label's own, those it shares with others, own words of labels without rows, own "
        "words by how far the rows trust them; 0,0,0 = not at all (default: chosen by a trial on held-out rows)",
    )


def label_file_of(args: argparse.Namespace) -> "LabelFile | None":
    """Read the flags of a vocabulary of labels; None without one."""
    if args.labels_file is None:
        refuse_flags(args, ["label_language", "label_words"], "without --labels-file")
        return None
    from xmlpreck.api.labels import LabelFile
    from xmlpreck.model.label_text import Strengths

    words = None
    if args.label_words is not None:
        numbers = [any_number("--label-words", text.strip()) for text in args.label_words.split(",")]
        if not 2 <= len(numbers) <= 4 or min(numbers) < 0 or max(numbers) > 1e6:
            raise config.ConfigError(
                f"--label-words must be two to four numbers from 0, but is {args.label_words!r:.60}"
            )
        words = Strengths(*numbers)
    return LabelFile(args.labels_file, args.label_language, words)


def add_engine_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--engine", default="local", help="compute on this machine (local) or on a Ray cluster (ray) (default: local)"
    )
    command.add_argument(
        "--address",
        help="ray: cluster to join: auto, host:port or ray://host:port (default: $RAY_ADDRESS, else start Ray here)",
    )
    command.add_argument(
        "--label-shards", metavar="INT", help="ray: number of workers that share the labels (default: as memory needs)"
    )


def engine_of(args: argparse.Namespace) -> "RayEngine | None":
    """Read --engine and what belongs to it; None = this machine."""
    if args.engine not in ("local", "ray"):
        raise config.ConfigError(f"--engine must be local or ray, but is {args.engine!r}")
    if args.engine == "local":
        for flag, value in (("--address", args.address), ("--label-shards", args.label_shards)):
            if value is not None:
                raise config.InputError(f"{flag} is for a Ray cluster: say --engine ray, too")
        return None
    from xmlpreck.api.engine import RayEngine

    shards = None if args.label_shards is None else whole_number("--label-shards", args.label_shards, 1)
    return RayEngine(args.address, shards)


def location_of(args: argparse.Namespace, split: str | None = None) -> "DataLocation":
    """Read where the data is from the flags of `add_command`."""
    from xmlpreck.data.location import DataLocation

    place = (args.data or "", split or args.split, args.format, columns_of(args), args.data_dir)
    return DataLocation(*place, dense=args.dense, embed=vars(args).get("embed"))


def columns_of(args: argparse.Namespace) -> "Columns":
    """Read what is said of the columns of a table."""
    from xmlpreck.data.formats import Columns

    return Columns(
        args.text_columns, args.labels_column, args.label_separator, args.id_column,
        "\t" if args.delimiter in ("\\t", "tab") else args.delimiter,
        args.encoding, False if args.no_quotes else None, False if args.no_header else None,
    )  # fmt: skip


def refuse_flags(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Refuse the first of these flags that is given: it would have no effect."""
    for name in names:
        if name in args and getattr(args, name) != args.default_of(name):
            raise config.InputError(f"--{name.replace('_', '-')} has no effect {why}: leave it out")


# Commands whose --out may be in an object store, by its URI.
WRITE_TO_STORES = ("train", "update", "calibrate", "optimize", "prune", "data")


def check_source(args: argparse.Namespace) -> None:
    """Refuse what is unknown or without effect among the flags that say where rows are."""
    words = vars(args)
    split, data = words.get("split"), words.get("data")
    scheme, mark, _ = (words.get("out") or "").partition("://")
    if mark and (len(scheme) < 2 or words.get("command") not in WRITE_TO_STORES):
        raise config.InputError(f"{args.out}: is an address, but results are written to this machine: name a path")
    splits = words.get("splits", SPLITS)
    if split is not None and split not in splits:
        raise config.ConfigError(f"--split must be {' or '.join(splits)}, but is {split!r:.60}")
    if data == "-":
        refuse_flags(args, [*DATA_FLAGS, "split"], "with --data -, which is JSON lines")
    elif data is not None and words.get("train") is None and ("://" in data or Path(data).exists()):
        refuse_flags(args, ["data_dir"], f"with {data}, which is no name of the catalogue")


def whole_number(flag: str, text: str, min_value: int) -> int:
    """Parse a whole number that is `min_value` or more."""
    number = config.parse_whole(text)
    if number is None or number < min_value:
        limit = f"{min_value} or more" if len(text) <= config.MAX_DIGITS else f"of at most {config.MAX_DIGITS} digits"
        raise config.ConfigError(f"{flag} must be a whole number, {limit}, but is {text!r:.60}")
    return number


def any_number(flag: str, text: str) -> float:
    """Parse a finite number."""
    with suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise config.ConfigError(f"{flag} must be a number, but is {text!r:.60}")


def positive_number(flag: str, text: str) -> float:
    """Parse a number above 0."""
    number = any_number(flag, text)
    if number <= 0:
        raise config.ConfigError(f"{flag} must be a number above 0, but is {text!r:.60}")
    return number


def whole_numbers(flag: str, text: str, min_value: int) -> list[int]:
    """Parse whole numbers with commas between them."""
    return [whole_number(flag, word.strip(), min_value) for word in text.split(",")]


def show(args: argparse.Namespace, result: Any, text: str) -> None:
    """Print a result: as JSON for programs, else as text."""
    print(json.dumps(result) if args.json else text)


def note(text: str) -> None:
    """Print to stderr, after what was printed before: both may go to the same file."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
