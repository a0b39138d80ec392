"""What all commands share: words that are parsed, where the data is, and how results are shown."""

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
    from xmlpreck.data.corpus import Columns, Corpus
    from xmlpreck.model import Model

Run = Callable[[argparse.Namespace], None]
Test = Callable[[argparse.Namespace], bool]
SPLITS = ("train", "test")


class CheckFailed(Exception):
    """A check has found something, and has told it: exit 1."""


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
    """Add a command; `only_prints` tells whether all that it does with these words is to print to stdout."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    command.add_argument("--json", action="store_true", help="one JSON value on stdout instead of text")
    command.set_defaults(run=run, only_prints=only_prints, default_of=command.get_default)
    return command


def add_command(
    commands: Any, name: str, run: Run, text: str, only_prints: Test = never, needs_data: bool = True
) -> argparse.ArgumentParser:
    """Add a command that reads data."""
    command = add_verb(commands, name, run, text, only_prints)
    place = "a catalogue name (demo, bibtex, ...), a file, a folder, or the URI of shards (s3://...)"
    command.add_argument("--data", required=needs_data, help=place)
    command.add_argument("--data-dir", metavar="DIR", help="where catalogue data is (else $XMLPRECK_DATA, the cache)")
    command.add_argument("--format", help="force a file format instead of recognising it")
    command.add_argument("--text-column", metavar="NAME", help="raw text: this column of a Parquet file")
    command.add_argument("--labels-column", metavar="NAME", help="the column with its label names")
    command.add_argument("--label-separator", metavar="TEXT", help="raw text: split each label by this, e.g. ';'")
    return command


def refuse_flags(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Refuse the first of these flags that is given: it would have no effect."""
    for name in names:
        if name in args and getattr(args, name) != args.default_of(name):
            raise config.InputError(f"--{name.replace('_', '-')} has no effect {why}: leave it out")


def check_source(args: argparse.Namespace) -> None:
    """Refuse what is unknown or without effect among the flags that say where rows are."""
    words = vars(args)
    split, data = words.get("split"), words.get("data")
    if "://" in (words.get("out") or ""):
        raise config.InputError(f"{args.out}: is an address, but results are written to this machine: name a path")
    splits = words.get("splits", SPLITS)
    if split is not None and split not in splits:
        raise config.ConfigError(f"--split must be {' or '.join(splits)}, but is {split!r:.60}")
    if words.get("labels_column") is not None and words.get("text_column") is None:
        raise config.InputError(
            "--labels-column is for raw text in a Parquet file: name the text's column, too, by --text-column"
        )
    if words.get("text_column") is not None:
        refuse_flags(args, ["format"], "with --text-column, which is for Parquet files")
    if data == "-":
        refuse_flags(
            args,
            ["data_dir", "format", "text_column", "label_separator", "split"],
            "with --data -, which is JSON lines",
        )
    elif data is not None and words.get("train") is None and ("://" in data or Path(data).exists()):
        refuse_flags(args, ["data_dir"], f"with {data}, which is no name of the catalogue")


def whole_number(flag: str, text: str, least: int) -> int:
    number = config.parse_whole(text)
    if number is None or number < least:
        limit = f"{least} or more" if len(text) <= config.MAX_DIGITS else f"of at most {config.MAX_DIGITS} digits"
        raise config.ConfigError(f"{flag} must be a whole number, {limit}, but is {text!r:.60}")
    return number


def any_number(flag: str, text: str) -> float:
    with suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise config.ConfigError(f"{flag} must be a number, but is {text!r:.60}")


def positive_number(flag: str, text: str) -> float:
    number = any_number(flag, text)
    if number <= 0:
        raise config.ConfigError(f"{flag} must be a number above 0, but is {text!r:.60}")
    return number


def whole_numbers(flag: str, text: str, least: int) -> list[int]:
    """Numbers with commas between them."""
    return [whole_number(flag, word.strip(), least) for word in text.split(",")]


def columns_of(args: argparse.Namespace) -> "Columns":
    from xmlpreck.data.corpus import Columns

    return Columns(args.text_column, args.labels_column, args.format, args.label_separator)


def find_documents(args: argparse.Namespace, split: str) -> "Corpus | None":
    """Find the raw text of a split; None where the data are numbers."""
    from xmlpreck.data import corpus

    documents = corpus.find_corpus(args.data, split, columns_of(args))
    if documents is None and args.text_column is not None:
        raise config.InputError(f"{args.data}: has no {split} documents: leave out --text-column, or name their file")
    return documents


def open_rows(args: argparse.Namespace, split: str, scorer: "Model | None" = None) -> Any:
    """Rows for a trained model; raw text goes through the model's own vectorizer."""
    from xmlpreck.data import catalog, corpus

    documents = find_documents(args, split)
    if documents is None:
        return catalog.load(args.data, split, args.data_dir, args.format)
    if scorer is None:
        raise config.InputError(f"{args.data}: is raw text: name the model whose labels are predicted by --model")
    if scorer.vectorizer is None or scorer.label_names is None:
        raise config.InputError(f"{args.data}: is raw text, but the model was trained on numbers: give it such rows")
    return corpus.vectorize(documents, scorer.vectorizer, scorer.label_names)


def show(args: argparse.Namespace, result: Any, text: str) -> None:
    """Print a result: as JSON for programs, else as text."""
    print(json.dumps(result) if args.json else text)


def note(text: str) -> None:
    """Print to stderr, behind what was printed before: both may go to the same file."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
