"""What all commands share: words that are parsed, where the data is, and how results are shown."""

import argparse
import json
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from xmlpreck import config

if TYPE_CHECKING:
    from xmlpreck.corpus import Columns
    from xmlpreck.model import LinearScorer

Run = Callable[[argparse.Namespace], None]


class CheckFailed(Exception):
    """A check has found something, and has told it: exit 1."""


class Stopped(Exception):
    """A signal has asked to stop, and all is saved: exit 128 + its number."""


class Parser(argparse.ArgumentParser):
    """argparse, with its errors in one line."""

    def error(self, message: str) -> NoReturn:
        raise config.InputError(f"{message}; see {self.prog} --help")


def add_verb(commands: Any, name: str, run: Run, text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    command.set_defaults(run=run)
    return command


def add_command(commands: Any, name: str, run: Run, text: str, needs_data: bool = True) -> argparse.ArgumentParser:
    """A command with what most have: where the data is, and JSON for programs."""
    command = add_verb(commands, name, run, text)
    place = "a catalogue name (demo, bibtex, ...), a file, a folder, or the URI of shards (s3://...)"
    command.add_argument("--data", required=needs_data, help=place)
    command.add_argument("--data-dir", metavar="DIR", help="where catalogue data is (else $XMLPRECK_DATA, the cache)")
    command.add_argument("--format", help="force a file format instead of recognising it")
    command.add_argument("--text-column", metavar="NAME", help="raw text: this column of a Parquet file")
    command.add_argument("--labels-column", metavar="NAME", help="the column with its label names")
    command.add_argument("--label-separator", metavar="TEXT", help="raw text: split each label by this, e.g. ';'")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout instead of text")
    return command


def whole_number(flag: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise config.ConfigError(f"{flag} must be a whole number, {least} or more, but is {text!r}")
    return int(text)


def any_number(flag: str, text: str) -> float:
    with suppress(ValueError):
        if math.isfinite(float(text)):
            return float(text)
    raise config.ConfigError(f"{flag} must be a number, but is {text!r}")


def positive_number(flag: str, text: str) -> float:
    number = any_number(flag, text)
    if number <= 0:
        raise config.ConfigError(f"{flag} must be a number above 0, but is {text!r}")
    return number


def whole_numbers(flag: str, text: str, least: int) -> list[int]:
    """Numbers with commas between them."""
    return [whole_number(flag, word.strip(), least) for word in text.split(",")]


def columns_of(args: argparse.Namespace) -> "Columns":
    from xmlpreck.corpus import Columns

    return Columns(args.text_column, args.labels_column, args.format, args.label_separator)


def open_rows(args: argparse.Namespace, split: str, scorer: "LinearScorer | None" = None) -> Any:
    """Rows for a trained model; raw text goes through the model's own vectorizer."""
    from xmlpreck import catalog, corpus

    documents = corpus.find_corpus(args.data, split, columns_of(args))
    if documents is None:
        return catalog.load(args.data, split, args.data_dir, args.format)
    if scorer is None:
        raise config.InputError(f"{args.data}: is raw text: name the model whose labels are predicted by --model")
    if scorer.vectorizer is None or scorer.label_names is None:
        raise config.InputError(f"{args.data}: is raw text, but the model was trained on numbers: give it such rows")
    return corpus.vectorize(documents, scorer.vectorizer, scorer.label_names)


def show(args: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    print(json.dumps(result) if args.json else text)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
