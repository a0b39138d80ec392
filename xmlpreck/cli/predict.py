"""xmlpreck predict"""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from xmlpreck import config
from xmlpreck.cli.options import (
    CheckFailed,
    add_command,
    add_engine_options,
    add_split_and_threads,
    any_number,
    engine_of,
    location_of,
    note,
    refuse_flags,
    show,
    whole_number,
)
from xmlpreck.machine import give_memory_back

if TYPE_CHECKING:
    from xmlpreck.api.prediction import PredictionOptions
    from xmlpreck.model.prediction import Counts


def add_predict(commands: Any) -> None:
    predict = add_command(commands, "predict", run, "write the best labels of every row", lambda args: args.out == "-")
    predict.add_argument("--model", required=True, metavar="DIR", help="a model directory, or its URI")
    predict.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help="file to write: .parquet, .jsonl, .csv, .tsv, .npz or .txt; - = JSON lines to stdout",
    )
    predict.add_argument(
        "--layout", default="wide", help=".csv, .tsv: a line per row (wide) or per label (long) (default: wide)"
    )
    predict.add_argument(
        "--excel",
        metavar="comma|semicolon",
        help=".csv: as Excel opens it, with comma or, where decimals have commas, semicolon between the columns",
    )
    predict.add_argument("--topk", default="5", metavar="INT", help="maximum number of labels per row (default: 5)")
    predict.add_argument(
        "--labels",
        metavar="auto",
        help="auto = as many labels per row as `xmlpreck optimize` has chosen for the model (default: --topk)",
    )
    predict.add_argument(
        "--at-least",
        default="0",
        metavar="INT",
        help="minimum number of labels per row, even below --threshold (default: 0)",
    )
    predict.add_argument("--threshold", metavar="NUMBER", help="only labels with this score or more (default: all)")
    predict.add_argument("--only-labels", metavar="FILE", help="predict only these labels: one name or id per line")
    predict.add_argument("--exclude-labels", metavar="FILE", help="never predict these labels: one name or id per line")
    predict.add_argument(
        "--label-weights",
        metavar="FILE",
        help="positive numbers, one per line for each label: ln of it is added to the label's score",
    )
    predict.add_argument(
        "--candidates", metavar="FILE", help="rank each row's own labels, from a prediction file of any tool"
    )
    predict.add_argument(
        "--scores", default="margin", help="margin, or probability of a calibrated model (default: margin)"
    )
    predict.add_argument(
        "--strict", action="store_true", help="--data -: stop at a line that cannot be read, instead of answering it"
    )
    predict.add_argument("--verify", action="store_true", help="hash the model's files even if they have not changed")
    predict.add_argument(
        "--guess-empty",
        action="store_true",
        help="give rows without any known feature the labels that the bias ranks first (default: no labels)",
    )
    add_split_and_threads(predict, "test")
    add_engine_options(predict)


def run(args: argparse.Namespace) -> None:
    engine = engine_of(args)
    if args.data != "-":
        refuse_flags(args, ["strict"], "without --data -")
    options, n_threads = options_of(args), whole_number("--threads", args.threads, 0)
    from xmlpreck.api import prediction
    from xmlpreck.data.formats.prediction_tables import TableStyle
    from xmlpreck.model.prediction import Counts

    style = TableStyle(args.layout, args.excel)
    give_memory_back()
    location = location_of(args)
    if args.out == "-":
        refuse_flags(args, ["layout", "excel"], "with --out -, which is JSON lines")
        counts = Counts()
        lines = prediction.predict_lines(
            args.model, location, options, counts, verify=args.verify, n_threads=n_threads, engine=engine, note=note
        )
        for batch in lines:
            print("\n".join(batch), flush=True)
    else:
        written = prediction.predict(
            args.model, location, args.out, options,
            verify=args.verify, n_threads=n_threads, engine=engine, style=style, note=note, progress=True,
        )  # fmt: skip
        counts = written.counts
        result = {"out": args.out, "topk": written.k, **dataclasses.asdict(counts)}
        show(args, result, f"{args.out}: {counts_text(counts)}")
    if counts.n_bad_lines:
        note(f"{counts.n_bad_lines:,} of {counts.n_bad_lines + counts.n_rows:,} lines have an error for an answer")
        raise CheckFailed


def options_of(args: argparse.Namespace) -> "PredictionOptions":
    """Read which labels are wanted."""
    if args.labels is not None:
        refuse_flags(args, ["topk", "at_least", "threshold"], "with --labels, which chooses the number of labels")
    k = whole_number("--topk", args.topk, 1)
    min_labels = whole_number("--at-least", args.at_least, 0)
    threshold = None if args.threshold is None else any_number("--threshold", args.threshold)
    if args.scores not in ("margin", "probability"):
        raise config.ConfigError(f"--scores must be margin or probability, but is {args.scores!r}")
    if min_labels > k:
        raise config.ConfigError(f"--at-least {min_labels} is more than --topk {k}")
    from xmlpreck.api.prediction import PredictionOptions

    return PredictionOptions(
        k=k,
        min_labels=min_labels,
        threshold=threshold,
        only_labels=args.only_labels,
        exclude_labels=args.exclude_labels,
        label_weights=args.label_weights,
        candidates=args.candidates,
        probabilities=args.scores == "probability",
        labels=args.labels,
        guess_empty=args.guess_empty,
        strict=args.strict,
    )


def counts_text(counts: "Counts") -> str:
    without = f"; {counts.n_rows_without_labels:,} rows have none" if counts.n_rows_without_labels else ""
    return f"{counts.n_predicted:,} labels for {counts.n_rows:,} rows{without}"
