"""Words on the command line -> settings -> one call. Nothing computes here; heavy imports wait until they are needed.

Results go to stdout, progress and notes to stderr. Exit 0: fine; 1: a check failed; 2: bad input, told in one line;
130: interrupted.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from xmlpreck import __version__, config

if TYPE_CHECKING:
    from xmlpreck.corpus import Columns
    from xmlpreck.model import LinearScorer
    from xmlpreck.train import PassFacts

# Settings of training that have a flag of their own; the others are reached by --set.
NAMED_SETTINGS = ("algo", "k", "epochs", "eta", "tau", "heldout", "threads", "seed")


class CheckFailed(Exception):
    """A check has found something, and has told it: exit 1."""


class Parser(argparse.ArgumentParser):
    """argparse, with its errors in one line."""

    def error(self, message: str) -> NoReturn:
        raise config.InputError(f"{message}; see {self.prog} --help")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="xmlpreck", description="Extreme multi-label classification for the k labels at the top.")
    parser.add_argument("--version", action="version", version=f"xmlpreck {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")

    train = add_command(commands, "train", train_command, "train a model and, where there are test rows, score it")
    train.add_argument("--out", metavar="DIR", help="model directory to write (default: runs/NAME OF THE DATA)")
    train.add_argument(
        "--config", metavar="FILE", help="TOML file or name of one in configs/ (default: the data's own)"
    )
    for name in NAMED_SETTINGS:
        default, text = config.describe(config.TrainConfig)[name]
        train.add_argument(f"--{name}", metavar=type(default).__name__.upper(), help=f"{text} (default: {default})")
    train.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any setting, e.g. rows.bias=0.1"
    )

    predict = add_command(commands, "predict", predict_command, "write the best labels of every row to a file")
    predict.add_argument("--model", required=True, metavar="DIR", help="a model directory")
    predict.add_argument("--out", required=True, metavar="FILE", help="file to write: .npz, .parquet or .txt")
    predict.add_argument("--topk", default="5", metavar="INT", help="labels a row (default: 5)")
    predict.add_argument("--threads", default="0", metavar="INT", help="threads; 0 = one for each core (default: 0)")

    evaluate = add_command(commands, "evaluate", evaluate_command, "score a prediction file against the true labels")
    evaluate.add_argument("--pred", required=True, metavar="FILE", help="a file that predict wrote")
    for command in (train, predict):
        command.add_argument("--text-column", metavar="NAME", help="raw text: this column of a Parquet file")
        command.add_argument("--labels-column", metavar="NAME", help="the column with its label names")
    for command in (predict, evaluate):
        command.add_argument("--split", default="test", help="train or test, of a folder or name (default: test)")
    add_data_commands(commands)
    return parser


def add_data_commands(commands: Any) -> None:
    """xmlpreck data list | info | fetch | convert | validate"""
    data = commands.add_parser("data", help="list, fetch, convert and check data sets", description="Data sets.")
    verbs = data.add_subparsers(title="commands", dest="verb", required=True, metavar="COMMAND")

    def add(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        verb: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text.capitalize() + ".")
        verb.set_defaults(run=run)
        return verb

    add("list", list_command, "the data sets of the catalogue")
    info = add("info", info_command, "all that is known of a data set")
    fetch = add("fetch", fetch_command, "download a data set, check it and unpack it")
    for verb in (info, fetch):
        verb.add_argument("name", help="a catalogue name")
        verb.add_argument("--data-dir", metavar="DIR", help="where catalogue data is, or goes")
    convert = add("convert", convert_command, "write the splits of a data set as shards")
    convert.add_argument("data", metavar="IN", help="a file, a folder or a catalogue name")
    convert.add_argument("out", metavar="OUT", help="folder to write: OUT/train and OUT/test, or OUT for one file")
    convert.add_argument("--format", default="parquet", help="parquet or hdf5 (default: parquet)")
    convert.add_argument("--from", dest="source_format", metavar="FORMAT", help="force the format of IN")
    convert.add_argument("--rows-per-shard", default="65536", metavar="INT", help="rows a file (default: 65536)")
    convert.add_argument("--shuffle", action="store_true", help="put the training rows in random order")
    convert.add_argument("--seed", default="0", metavar="INT", help="of --shuffle (default: 0)")
    convert.add_argument("--data-dir", metavar="DIR", help="where catalogue data is")
    check = add("validate", validate_command, "look through a file for anything that is wrong or odd")
    check.add_argument("data", metavar="PATH", help="a file or folder")
    check.add_argument("--split", default="train", help="train or test, of a folder (default: train)")
    check.add_argument("--format", help="force a file format instead of recognising it")
    check.add_argument("--fix", metavar="OUT", help="write a clean copy, as repository text")
    check.add_argument("--json", action="store_true", help="one JSON object on stdout instead of text")


def add_command(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    """A command with what all have: where the data is, and JSON for programs."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    command.set_defaults(run=run)
    command.add_argument("--data", required=True, help="a catalogue name (demo, bibtex, ...), a file, or a folder")
    command.add_argument("--data-dir", metavar="DIR", help="where catalogue data is (else $XMLPRECK_DATA, the cache)")
    command.add_argument("--format", help="force a file format instead of recognising it")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout instead of text")
    return command


def train_command(args: argparse.Namespace) -> None:
    settings, source = read_settings(args)
    from xmlpreck import catalog, corpus, model, shards, train

    shards.give_memory_back()
    name = catalog.describe(args.data)
    folder = Path(args.out or Path("runs") / name)
    model.check_target(folder)
    vectorizer = None
    documents = corpus.find_corpus(args.data, "train", columns_of(args))
    if documents is None:
        data = catalog.load(args.data, "train", args.data_dir, args.format)
    else:
        note("reading text")
        vectorizer, label_names = corpus.learn(documents, settings.text)
        data = corpus.vectorize(documents, vectorizer, label_names)
    note("loading kernels (compiled once, in about 20 s)")
    train.load_kernels()
    progress = sys.stderr if args.json else sys.stdout
    print(f"{describe_data(name, data)}; settings: {source}", file=progress)
    print(f"{describe_settings(settings)}", file=progress, flush=True)
    scorer = train.fit(data, settings, lambda facts: print(pass_line(facts), file=progress, flush=True), progress=True)
    scorer = dataclasses.replace(scorer, vectorizer=vectorizer)
    scorer.info["data"]["name"] = name
    n_bytes = scorer.save(folder)
    print(f"{folder}: {scorer.n_weights:,} weights, {n_bytes / 2**20:.1f} MB", file=progress)
    result = {"model": str(folder), "bytes": n_bytes, "n_weights": scorer.n_weights, "history": scorer.info["history"]}
    if has_test(args):
        test = open_rows(args, "test", scorer)
        result["test"] = train.score(scorer, test, settings.train, progress=True)
        print(f"test, {test.n_rows:,} rows: {format_scores(result['test'])}", file=progress)
    else:
        note("no test rows: nothing to score")
    if args.json:
        print(json.dumps(result))


def predict_command(args: argparse.Namespace) -> None:
    topk = whole_number("--topk", args.topk, least=1)
    n_threads = whole_number("--threads", args.threads, least=0) or config.n_cores()
    from xmlpreck import formats, shards
    from xmlpreck.model import LinearScorer

    shards.give_memory_back()
    formats.prediction_kind(args.out)  # before any work
    scorer = LinearScorer.load(args.model)
    rows = open_rows(args, args.split, scorer)
    blocks = (top for _, top in scorer.predict_blocks(rows, topk, n_threads, progress=True))
    formats.write_prediction_blocks(args.out, blocks, rows.n_rows, scorer.n_labels, scorer.label_names)
    result = {"out": args.out, "n_rows": rows.n_rows, "topk": min(topk, scorer.n_labels)}
    show(args, result, f"{args.out}: {result['topk']} labels for each of {result['n_rows']:,} rows")


def evaluate_command(args: argparse.Namespace) -> None:
    from xmlpreck import catalog, formats, metrics, shards

    data = catalog.load(args.data, args.split, args.data_dir, args.format)
    top = formats.read_predictions(args.pred, data.n_rows, data.n_labels)
    counted = metrics.PrecisionAtK([k for k in metrics.REPORTED_KS if k <= top.labels.shape[1]])
    for start, block in shards.read_blocks(data, config.TrainConfig().block_rows):
        part = slice(start, start + block.n_rows)
        counted.add(formats.TopK(top.labels[part], top.scores[part]), block.labels)
    scores = counted.result()
    show(args, {"n_rows": data.n_rows, **scores}, f"{data.n_rows:,} rows: {format_scores(scores)}")


def list_command(args: argparse.Namespace) -> None:
    from xmlpreck import catalog

    for card in catalog.list_cards():
        labels = "?" if card.n_labels is None else f"{card.n_labels:,}"
        rows = "?" if card.n_train is None else f"{card.n_train:,}"
        print(f"{card.name:28} {labels:>9} labels {rows:>10} rows  {card.title}")


def info_command(args: argparse.Namespace) -> None:
    from xmlpreck import catalog

    print(catalog.card_text(catalog.need_card(args.name), args.data_dir))


def fetch_command(args: argparse.Namespace) -> None:
    from xmlpreck import catalog

    print(catalog.fetch_data(args.name, args.data_dir))


def convert_command(args: argparse.Namespace) -> None:
    rows_per_shard = whole_number("--rows-per-shard", args.rows_per_shard, least=1)
    seed = whole_number("--seed", args.seed, least=0)
    from xmlpreck import catalog, shards

    provenance = {"source": catalog.describe(args.data), "xmlpreck": __version__}
    for split, folder in catalog.splits_of(args.data, args.out, args.data_dir):
        chunks = catalog.read_chunks(args.data, split, args.data_dir, args.source_format)
        shuffle_seed = seed if args.shuffle and split == "train" else None
        made = shards.write_shards(
            folder, chunks, args.format, rows_per_shard, provenance | {"split": split}, shuffle_seed
        )
        n_bytes = sum(shard.n_bytes for shard in made.shards)
        print(f"{folder}: {made.n_rows:,} rows in {len(made.shards)} {made.kind} shards, {n_bytes / 2**20:.1f} MB")


def validate_command(args: argparse.Namespace) -> None:
    from xmlpreck import validate

    if args.fix:
        report = validate.fix(args.data, args.split, args.fix, args.format)
    else:
        report = validate.validate(args.data, args.split, args.format)
    show(args, report.to_dict(), report.to_text())
    if not report.is_clean and not args.fix:
        raise CheckFailed


def columns_of(args: argparse.Namespace) -> "Columns":
    from xmlpreck.corpus import Columns

    return Columns(args.text_column, args.labels_column, args.format)


def has_test(args: argparse.Namespace) -> bool:
    """A file is its own train split; a folder or name may have a test split beside it."""
    from xmlpreck import catalog, corpus

    if Path(args.data).is_file():
        return False
    if args.text_column is not None:
        return corpus.find_corpus(args.data, "test", columns_of(args)) is not None
    return catalog.has_split(args.data, "test", args.data_dir)


def open_rows(args: argparse.Namespace, split: str, scorer: "LinearScorer") -> Any:
    """Rows for a trained model; raw text goes through the model's own vectorizer."""
    from xmlpreck import catalog, corpus

    documents = corpus.find_corpus(args.data, split, columns_of(args))
    if documents is None:
        return catalog.load(args.data, split, args.data_dir, args.format)
    if scorer.vectorizer is None or scorer.label_names is None:
        raise config.InputError(f"{args.data}: is raw text, but the model was trained on numbers: give it such rows")
    return corpus.vectorize(documents, scorer.vectorizer, scorer.label_names)


def read_settings(args: argparse.Namespace) -> tuple[config.RunConfig, str]:
    """The run's settings and where they come from."""
    from xmlpreck.catalog import find_config

    path = find_config(args.config, args.data)
    flags = [f"train.{name}={getattr(args, name)}" for name in NAMED_SETTINGS if getattr(args, name) is not None]
    return config.load(path, [*args.set, *flags]), str(path.name if path else "defaults")


def whole_number(flag: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise config.ConfigError(f"{flag} must be a whole number, {least} or more, but is {text!r}")
    return int(text)


def describe_data(name: str, data: Any) -> str:
    called = f"{name} (synthetic)" if name == "demo" else name
    return f"{called}: {data.n_rows:,} rows, {data.n_features:,} features, {data.n_labels:,} labels"


def describe_settings(settings: config.RunConfig) -> str:
    train = settings.train
    step = f", eta {train.eta:g} {train.decay}" if train.algo.startswith("sgd") else ""
    return f"{train.algo}, k {train.k}{step}, tau {train.tau:g}, {train.epochs} passes, {train.n_threads} threads"


def pass_line(facts: "PassFacts") -> str:
    heldout = f"  held out {format_scores(facts.heldout)}" if facts.heldout else ""
    return (
        f"pass {facts.number}: surrogate {facts.surrogate:.4f}  mistakes {facts.mistakes:.4f}  gap {facts.gap:.4f}  "
        f"updated {facts.updated:,}{heldout}  {facts.rows_per_second:,.0f} rows/s"
    )


def format_scores(scores: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.2f}" for name, value in scores.items())


def show(args: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    print(json.dumps(result) if args.json else text)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> int:
    try:
        args = build_parser().parse_args(words)
        args.run(args)
    except config.InputError as error:
        note(f"xmlpreck: {error}")
        return 2
    except CheckFailed:
        return 1
    except BrokenPipeError:  # the reader of our output has had enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        note("xmlpreck: interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
