"""Words on the command line -> settings -> one call. Nothing computes here; heavy imports wait until they are needed.

Results go to stdout, progress and notes to stderr. Exit 0: fine; 2: bad input, told in one line; 130: interrupted.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from xmlpreck import __version__, config

if TYPE_CHECKING:
    from xmlpreck.train import PassFacts

# Settings of training that have a flag of their own; the others are reached by --set.
NAMED_SETTINGS = ("algo", "k", "epochs", "eta", "tau", "heldout", "threads", "seed")


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
    for command in (predict, evaluate):
        command.add_argument("--split", default="test", help="train or test, of a folder or name (default: test)")
    return parser


def add_command(commands: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    """A command with what all have: where the data is, and JSON for programs."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    command.set_defaults(run=run)
    command.add_argument("--data", required=True, help="a catalogue name (demo, bibtex, ...), a file, or a folder")
    command.add_argument("--data-dir", metavar="DIR", help="where catalogue data is (else $XMLPRECK_DATA, the cache)")
    command.add_argument("--json", action="store_true", help="one JSON object on stdout instead of text")
    return command


def train_command(args: argparse.Namespace) -> None:
    settings, source = read_settings(args)
    from xmlpreck import catalog, model, train

    name = catalog.describe(args.data)
    folder = Path(args.out or Path("runs") / name)
    model.check_target(folder)
    data = catalog.load(args.data, "train", args.data_dir)
    note("loading kernels (compiled once, in about 20 s)")
    train.load_kernels()
    progress = sys.stderr if args.json else sys.stdout
    print(f"{describe_data(name, data)}; settings: {source}", file=progress)
    print(f"{describe_settings(settings)}", file=progress, flush=True)
    scorer = train.fit(data, settings, lambda facts: print(pass_line(facts), file=progress, flush=True), progress=True)
    scorer.info["data"]["name"] = name
    n_bytes = scorer.save(folder)
    print(f"{folder}: {scorer.n_weights:,} weights, {n_bytes / 2**20:.1f} MB", file=progress)
    result = {"model": str(folder), "bytes": n_bytes, "n_weights": scorer.n_weights, "history": scorer.info["history"]}
    if Path(args.data).is_file() or not catalog.has_split(args.data, "test", args.data_dir):
        note("no test rows: nothing to score")
    else:
        test = catalog.load(args.data, "test", args.data_dir)
        result["test"] = train.score(scorer, test, settings.train, progress=True)
        print(f"test, {test.rows.shape[0]:,} rows: {format_scores(result['test'])}", file=progress)
    if args.json:
        print(json.dumps(result))


def predict_command(args: argparse.Namespace) -> None:
    topk = whole_number("--topk", args.topk, least=1)
    n_threads = whole_number("--threads", args.threads, least=0) or config.n_cores()
    from xmlpreck import catalog, formats
    from xmlpreck.model import LinearScorer

    formats.prediction_kind(args.out)  # before any work
    scorer = LinearScorer.load(args.model)
    data = catalog.load(args.data, args.split, args.data_dir)
    top = scorer.predict_topk(data.rows, topk, n_threads, progress=True)
    formats.write_predictions(args.out, top, scorer.n_labels, scorer.label_names)
    result = {"out": args.out, "n_rows": len(top.labels), "topk": top.labels.shape[1]}
    show(args, result, f"{args.out}: {result['topk']} labels for each of {result['n_rows']:,} rows")


def evaluate_command(args: argparse.Namespace) -> None:
    from xmlpreck import catalog, formats, metrics

    data = catalog.load(args.data, args.split, args.data_dir)
    top = formats.read_predictions(args.pred, *data.labels.shape)
    ks = [k for k in metrics.REPORTED_KS if k <= top.labels.shape[1]]
    scores = metrics.precision_at_k(top, data.labels, ks)
    show(args, {"n_rows": data.labels.shape[0], **scores}, f"{data.labels.shape[0]:,} rows: {format_scores(scores)}")


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
    n_rows, n_features = data.rows.shape
    n_labels, per_row = data.labels.shape[1], data.labels.nnz / max(n_rows, 1)
    called = f"{name} (synthetic)" if name == "demo" else name
    return f"{called}: {n_rows:,} rows, {n_features:,} features, {n_labels:,} labels, {per_row:.1f} labels a row"


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
    except KeyboardInterrupt:
        note("xmlpreck: interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
