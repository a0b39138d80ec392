"""xmlpreck predict | prune | calibrate | update"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmlpreck import config
from xmlpreck.cli.engine import RayEngine, add_engine_options, engine_of, place_of, refuse_text
from xmlpreck.cli.options import (
    SPLITS,
    CheckFailed,
    add_command,
    any_number,
    find_documents,
    note,
    open_rows,
    positive_number,
    refuse_flags,
    show,
    whole_number,
)
from xmlpreck.machine import give_memory_back

if TYPE_CHECKING:
    from xmlpreck.model import Model
    from xmlpreck.model.choosing import ChoiceRows
    from xmlpreck.model.prediction import Batch, Choice, Counts, Found


def add_serving_commands(commands: Any) -> None:
    predict = add_command(
        commands, "predict", predict_command, "write the best labels of every row", lambda args: args.out == "-"
    )
    predict.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help="file to write: .parquet, .npz, .txt or .jsonl; - = JSON lines to stdout",
    )
    predict.add_argument("--topk", default="5", metavar="INT", help="labels a row, at most (default: 5)")
    predict.add_argument(
        "--at-least", default="0", metavar="INT", help="labels a row whatever their score (default: 0)"
    )
    predict.add_argument("--threshold", metavar="NUMBER", help="only labels with this score or more")
    predict.add_argument("--only-labels", metavar="FILE", help="predict these labels only: a name or id a line")
    predict.add_argument("--exclude-labels", metavar="FILE", help="never predict these labels")
    predict.add_argument(
        "--label-weights", metavar="FILE", help="a positive number a line: ln of it is added to the score"
    )
    predict.add_argument(
        "--candidates", metavar="FILE", help="rank each row's own labels: a prediction file of any tool"
    )
    predict.add_argument(
        "--scores", default="margin", help="margin, or probability of a calibrated model (default: margin)"
    )
    predict.add_argument(
        "--shortlist",
        metavar="INT",
        help="for hundreds of thousands of labels: score only those brought up by the INT strongest of each feature",
    )
    predict.add_argument(
        "--strict", action="store_true", help="--data -: stop at a line that cannot be read, instead of answering it"
    )
    predict.add_argument(
        "--verify",
        action="store_true",
        help="hash the model's files even if they have not changed",
    )
    predict.add_argument(
        "--guess-empty",
        action="store_true",
        help="give rows without any known feature the labels that the bias ranks first (default: no labels)",
    )
    add_engine_options(predict)
    prune = add_command(commands, "prune", prune_command, "write a smaller copy of a model", needs_data=False)
    prune.add_argument("--out", required=True, metavar="DIR", help="model directory to write")
    prune.add_argument("--threshold", metavar="NUMBER", help="drop weights smaller than this")
    prune.add_argument("--size", metavar="SIZE", help="drop the smallest weights, so that this is left, e.g. 10MB")
    prune.add_argument(
        "--max-loss",
        metavar="NUMBER",
        help="drop as many as cost at most this much of P@1, P@3 and P@5 on held-out rows of --data",
    )
    update = add_command(commands, "update", update_command, "train a model further on new rows, labels or features")
    update.add_argument("--out", required=True, metavar="DIR", help="model directory to write")
    update.add_argument("--epochs", default="1", metavar="INT", help="passes over the new rows (default: 1)")
    update.add_argument("--eta", metavar="NUMBER", help="length of a step (default: as the model was trained)")
    update.add_argument("--freeze", action="store_true", help="leave the labels that the model knows as they are")
    calibrate = add_command(commands, "calibrate", calibrate_command, "learn probabilities from held-out rows")
    calibrate.add_argument("--out", metavar="DIR", help="model directory to write (default: the model's own)")
    calibrate.add_argument(
        "--depth", metavar="INT", help="labels of each row to learn from: as many as will be predicted (default: 10)"
    )
    for command in (predict, prune, update, calibrate):
        command.add_argument("--model", required=True, metavar="DIR", help="a model directory")
        if command in (prune, calibrate):
            text = "heldout = training rows that the model held out; or train or test (default: heldout)"
            command.add_argument("--split", help=text)
            command.set_defaults(splits=("heldout", *SPLITS))
        else:
            split = "train" if command is update else "test"
            command.add_argument(
                "--split", default=split, help=f"train or test, of a folder or name (default: {split})"
            )
        command.add_argument(
            "--threads", default="0", metavar="INT", help="threads; 0 = one for each core (default: 0)"
        )


def predict_command(args: argparse.Namespace) -> None:
    engine = engine_of(args)
    if args.data != "-":
        refuse_flags(args, ["strict"], "without --data -")
    from xmlpreck.data import formats

    give_memory_back()
    if args.out != "-":
        formats.prediction_kind(args.out)  # refuses an unknown one before any work
    with ExitStack() as until_written:
        if engine is None:
            write_predictions(args, *predict_here(args))
        else:
            write_predictions(args, *predict_on_ray(args, engine, until_written))


def predict_here(args: argparse.Namespace) -> "tuple[Model, int, Iterable[Found]]":
    n_threads = whole_number("--threads", args.threads, least=0) or config.n_cores()
    from xmlpreck.data import formats
    from xmlpreck.model import prediction
    from xmlpreck.model.model import BLOCK_ROWS, Model

    scorer = Model.load(args.model, args.verify)
    choice = read_choice(args, scorer)
    n_rows, batches = row_batches(args, scorer)
    candidates = None
    if args.candidates is not None:
        if n_rows is None:
            raise config.InputError("--candidates needs rows of numbers from a file, not text or stdin")
        opened = formats.open_predictions(args.candidates, n_rows, scorer.n_labels)
        candidates = opened.blocks(BLOCK_ROWS)
    found = prediction.predict_batches(scorer, batches, choice, n_threads, n_rows, candidates, progress=args.out != "-")
    return scorer, choice.k, found


def predict_on_ray(
    args: argparse.Namespace, engine: RayEngine, until_written: ExitStack
) -> "tuple[Model, int, Iterable[Found]]":
    n_threads = whole_number("--threads", args.threads, least=0)
    for flag, value in (("--candidates", args.candidates), ("--shortlist", args.shortlist)):
        if value is not None:
            raise config.InputError(f"{flag} works on one machine only: leave out {flag} or --engine ray")
    refuse_text(args)
    from xmlpreck.cluster.parts import open_without_weights
    from xmlpreck.cluster.prediction import predict_rows
    from xmlpreck.model.model import BLOCK_ROWS

    scorer = open_without_weights(args.model, args.verify)
    choice = read_choice(args, scorer)
    rows = open_rows(args, args.split)
    found = predict_rows(
        until_written.enter_context(engine.connect()),
        args.model,
        place_of(args, rows),
        rows,
        choice,
        BLOCK_ROWS,
        label_shards=engine.label_shards,
        n_threads=n_threads,
        progress=args.out != "-",
    )
    return scorer, choice.k, found


def write_predictions(args: argparse.Namespace, scorer: "Model", k: int, found: "Iterable[Found]") -> None:
    from xmlpreck.model import prediction

    if args.out == "-":
        counts = prediction.Counts()
        for lines in prediction.answer_lines(found, scorer, counts):
            print("\n".join(lines), flush=True)
    else:
        counts = prediction.write_answers(args.out, found, scorer)
        result = {"out": args.out, "topk": min(k, scorer.n_labels)} | dataclasses.asdict(counts)
        show(args, result, f"{args.out}: {counts_text(counts)}")
    if counts.n_bad_lines:
        note(f"{counts.n_bad_lines:,} of {counts.n_bad_lines + counts.n_rows:,} lines have an error for an answer")
        raise CheckFailed


def counts_text(counts: "Counts") -> str:
    without = f"; {counts.n_rows_without_labels:,} rows have none" if counts.n_rows_without_labels else ""
    return f"{counts.n_predicted:,} labels for {counts.n_rows:,} rows{without}"


def row_batches(args: argparse.Namespace, scorer: "Model") -> "tuple[int | None, Iterator[Batch]]":
    """How many rows there are, where that is known, and the rows; `-` is JSON lines from stdin."""
    from xmlpreck.data import catalog
    from xmlpreck.data.formats.json_rows import arriving_lines
    from xmlpreck.model import prediction

    if args.data == "-":
        if sys.stdin is None:
            raise config.InputError("--data -: stdin is closed: send JSON lines to it")
        return None, prediction.json_batches(arriving_lines(sys.stdin.fileno()), scorer, args.strict)
    documents = find_documents(args, args.split)
    if documents is None:
        rows = catalog.load(args.data, args.split, args.data_dir, args.format)
        return rows.n_rows, prediction.source_batches(rows)
    if scorer.vectorizer is None:
        raise config.InputError(f"{args.data}: is raw text, but the model was trained on numbers: give it such rows")
    return None, prediction.text_batches((chunk.texts for chunk in documents.chunks()), scorer)


def read_choice(args: argparse.Namespace, scorer: "Model") -> "Choice":
    k = whole_number("--topk", args.topk, least=1)
    at_least = whole_number("--at-least", args.at_least, least=0)
    least = -math.inf
    if args.threshold is not None:
        least = any_number("--threshold", args.threshold)
    if args.scores not in ("margin", "probability"):
        raise config.ConfigError(f"--scores must be margin or probability, but is {args.scores!r}")
    if at_least > k:
        raise config.ConfigError(f"--at-least {at_least} is more than --topk {k}")
    from xmlpreck.data.formats import read_inverse_propensities
    from xmlpreck.model import Shortlist
    from xmlpreck.model.prediction import Choice, label_bonus, read_labels

    lists = [None if path is None else read_labels(path, scorer) for path in (args.only_labels, args.exclude_labels)]
    weights = None if args.label_weights is None else read_inverse_propensities(args.label_weights, scorer.n_labels)
    bonus = label_bonus(scorer.n_labels, lists[0], lists[1], weights)
    shortlist = None
    if args.shortlist is not None:
        if bonus is not None or args.candidates is not None:
            raise config.InputError("--shortlist has its own list of labels: leave out the other list, or --shortlist")
        shortlist = Shortlist.of(scorer.weights, whole_number("--shortlist", args.shortlist, least=1))
    return Choice(k, least, at_least, bonus, args.scores == "probability", shortlist, args.guess_empty)


def prune_command(args: argparse.Namespace) -> None:
    ways = [way for way in (args.threshold, args.size, args.max_loss) if way is not None]
    if len(ways) != 1:
        raise config.InputError("say how to prune by one of --threshold, --size and --max-loss")
    if args.max_loss is None:
        unused = ["data", "data_dir", "format", "text_column", "labels_column", "label_separator", "split", "threads"]
        refuse_flags(args, unused, "without --max-loss, which alone looks at rows")
    n_threads = whole_number("--threads", args.threads, least=0) or config.n_cores()
    threshold = positive_number("--threshold", args.threshold) if args.threshold is not None else 0.0
    from xmlpreck import model
    from xmlpreck.model import choosing, pruning
    from xmlpreck.train import parse_bytes

    n_bytes = parse_bytes(args.size) if args.size is not None else 0
    model.check_target(Path(args.out))
    scorer = model.Model.load(args.model)
    result: dict[str, Any] = {}
    if args.max_loss is not None:
        max_loss = positive_number("--max-loss", args.max_loss)
        given = choice_rows(args, scorer)
        smaller, before, tried = choosing.prune_to_loss(scorer, given, max_loss, n_threads)
        threshold = tried[-1].threshold
        result |= {"before": before, "after": tried[-1].scores, "tried": [one._asdict() for one in tried]}
    else:
        threshold = pruning.threshold_for_bytes(scorer, n_bytes) if args.size is not None else threshold
        smaller = scorer.prune(threshold) if threshold else scorer
    n_bytes = smaller.save(args.out)
    n_weights = smaller.n_weights
    result |= {"out": args.out, "threshold": threshold, "n_weights": n_weights, "bytes": n_bytes}
    losses = [f"{name} {before[name]:.2f} -> {value:.2f}" for name, value in result.get("after", {}).items()]
    about = f"{args.out}: {n_weights:,} of {scorer.n_weights:,} weights, {n_bytes / 2**20:.1f} MB"
    show(args, result, "; ".join([f"{about}, none smaller than {threshold:.4g}", *losses]))


def update_command(args: argparse.Namespace) -> None:
    from xmlpreck import model, train
    from xmlpreck.cli.training import pass_line

    model.check_target(Path(args.out))
    scorer = model.Model.load(args.model)
    sections = scorer.info.get("config")
    if not isinstance(sections, dict):
        raise config.InputError(f"{args.model}: does not say how it was trained, so it cannot be trained further")
    overrides = [
        f"train.epochs={args.epochs}",
        f"train.threads={args.threads}",
        "train.heldout=0.0",
        "train.average_from=1",
    ]
    if args.eta is not None:
        overrides.append(f"train.eta={args.eta}")
    settings = config.override(sections, overrides, args.model)
    rows = open_rows(args, args.split, scorer)
    progress = sys.stderr if args.json else sys.stdout
    newer = train.update(
        scorer,
        rows,
        settings,
        args.freeze,
        lambda facts: print(pass_line(facts), file=progress, flush=True),
        progress=True,
    )
    n_bytes = newer.save(args.out)
    result = {
        "out": args.out,
        "n_labels": newer.n_labels,
        "new_labels": newer.n_labels - scorer.n_labels,
        "new_features": newer.n_features - scorer.n_features,
        "bytes": n_bytes,
    }
    show(args, result, f"{args.out}: {result['new_labels']:,} new labels, {n_bytes / 2**20:.1f} MB")


def calibrate_command(args: argparse.Namespace) -> None:
    n_threads = whole_number("--threads", args.threads, least=0) or config.n_cores()
    from xmlpreck import model
    from xmlpreck.model import calibration, choosing

    depth = whole_number("--depth", args.depth, least=1) if args.depth is not None else calibration.DEPTH
    out = Path(args.out or args.model)
    model.check_target(out)
    scorer = model.Model.load(args.model)
    given = choice_rows(args, scorer)
    n_bytes = choosing.calibrate(scorer, given, depth, n_threads, progress=True).save(out)
    about = {"n_rows": given.rows.n_rows, "depth": depth}
    show(args, {"out": str(out), "bytes": n_bytes, **about}, f"{out}: calibrated on {given.rows.n_rows:,} rows")


def choice_rows(args: argparse.Namespace, scorer: "Model") -> "ChoiceRows":
    """The rows that prune and calibrate look at: those of the training rows that were held out, or a split by name."""
    from xmlpreck.model import choosing

    if args.data is None:
        raise config.InputError("--max-loss is measured on rows: name them by --data")
    split = args.split or choosing.HELDOUT
    rows = open_rows(args, "train" if split == choosing.HELDOUT else split, scorer)
    given = choosing.rows_to_choose_on(scorer, rows, split, config.without_secrets(args.data))
    if split != choosing.HELDOUT:
        note(f"{given.name}, split {split}: the model will remember that these rows were chosen on")
    return given
