"""xmlpreck evaluate"""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from xmlpreck.cli.options import (
    add_command,
    add_engine_options,
    add_split_and_threads,
    add_training_rows,
    engine_of,
    location_of,
    note,
    refuse_flags,
    show,
    whole_number,
    whole_numbers,
)

if TYPE_CHECKING:
    from xmlpreck.api.evaluation import EvaluationOptions


def add_evaluation_options(command: argparse.ArgumentParser) -> None:
    """Add the flags that evaluate and compare share."""
    command.add_argument("--model", metavar="DIR", help="raw text: the model whose labels were predicted")
    command.add_argument("--ks", metavar="K,K,...", help="numbers of first labels to score (default: 1,3,5)")
    command.add_argument(
        "--convention",
        default="repository",
        help="definitions of repository, pyxclib, napkinxc or rp, where tools differ (default: repository)",
    )
    command.add_argument("--drop-empty", action="store_true", help="leave out rows without labels")
    add_training_rows(command)
    command.add_argument(
        "--propensity", metavar="A,B", help="constants of the propensities (default: of the data's card, else 0.55,1.5)"
    )
    command.add_argument(
        "--inverse-propensities", metavar="FILE", help="inverse propensities, one per line; overrides --propensity"
    )
    command.add_argument(
        "--bins", metavar="N,N", help="training rows that divide tail, torso and head labels (default: 10,100)"
    )
    command.add_argument(
        "--hierarchy", metavar="FILE", help="vocabulary whose broader labels give partial credit: hP, hR and hF1"
    )
    command.add_argument(
        "--filter", metavar="FILE", help="(row, label) pairs to leave out (default: the filter file of the folder)"
    )
    command.add_argument("--no-filter", action="store_true", help="do not apply the folder's filter file")
    command.add_argument("--fix", action="store_true", help="repair bad predictions, and say how many")
    command.add_argument(
        "--resamples", metavar="INT", help="resamples of the bootstrap; 0 = no intervals (default: 1000)"
    )
    command.add_argument("--seed", default="0", metavar="INT", help="seed of the bootstrap (default: 0)")
    command.add_argument("--table", default="text", help="print tables as text, markdown, latex or csv (default: text)")
    add_split_and_threads(command, "test")


def evaluation_options(args: argparse.Namespace) -> "EvaluationOptions":
    """Read how predictions are to be scored."""
    if args.json:
        refuse_flags(args, ["table"], "with --json")
    n_threads = whole_number("--threads", args.threads, 0)
    seed = whole_number("--seed", args.seed, 0)
    given: dict[str, Any] = {}
    if args.ks is not None:
        given["ks"] = whole_numbers("--ks", args.ks, 1)
    if args.bins is not None:
        given["bins"] = whole_numbers("--bins", args.bins, 2)
    if args.resamples is not None:
        given["n_resamples"] = whole_number("--resamples", args.resamples, 0)
    if given.get("n_resamples") == 0:
        refuse_flags(args, ["seed"], "with --resamples 0")
    if args.no_filter:
        refuse_flags(args, ["filter"], "with --no-filter")
    if args.inverse_propensities is not None:
        refuse_flags(args, ["propensity"], "with --inverse-propensities, which are used as they are")
    from xmlpreck.api.evaluation import EvaluationOptions, parse_propensity
    from xmlpreck.evaluation.tables import check_style

    check_style(args.table)
    return EvaluationOptions(
        convention=args.convention,
        drop_empty=args.drop_empty,
        train=args.train,
        propensity=None if args.propensity is None else parse_propensity(args.propensity),
        inverse_propensities=args.inverse_propensities,
        hierarchy=args.hierarchy,
        filter=args.filter,
        use_filter=not args.no_filter,
        fix=args.fix,
        seed=seed,
        n_threads=n_threads,
        **given,
    )


def add_evaluate(commands: Any) -> None:
    text = "score predictions against the true labels"
    evaluate = add_command(commands, "evaluate", run, text, lambda args: args.per_label is None)
    evaluate.add_argument(
        "--pred",
        required=True,
        metavar="FILE",
        help="predictions of any tool (docs/evaluation.md lists the formats), or a model directory",
    )
    evaluate.add_argument(
        "--labels",
        metavar="auto",
        help="auto = a model predicts as many labels per row as `xmlpreck optimize` has chosen; their limit joins --ks",
    )
    evaluate.add_argument("--per-label", metavar="FILE", help="also write the counts of every label, as .csv")
    add_evaluation_options(evaluate)
    add_engine_options(evaluate)


def run(args: argparse.Namespace) -> None:
    engine, options = engine_of(args), evaluation_options(args)
    from xmlpreck import metrics
    from xmlpreck.api import evaluation

    options = dataclasses.replace(options, labels=args.labels)
    found = evaluation.evaluate(
        args.pred, location_of(args), options,
        model=args.model, per_label=args.per_label, engine=engine, note=note, progress=True,
    )  # fmt: skip
    scores, text = found.scores, found.to_table(args.table)
    about = (
        f"{args.pred}: {scores.n_rows:,} rows, {scores.n_rows_without_labels:,} of them without labels; convention "
        f"{args.convention}: {metrics.CONVENTIONS[args.convention].text}"
    )
    show(args, found.to_dict(), f"{about}\n{text}" if args.table == "text" else text)
