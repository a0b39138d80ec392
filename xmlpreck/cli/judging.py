"""xmlpreck evaluate | compare | report"""

import argparse
import csv
import datetime
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmlpreck import config
from xmlpreck.cli.engine import RayEngine, add_engine_options, engine_of, place_of, refuse_text
from xmlpreck.cli.options import add_command, always, note, open_rows, refuse_flags, show, whole_number, whole_numbers

if TYPE_CHECKING:
    import numpy as np
    from scipy.sparse import csr_array

    from xmlpreck.data.rows import RowSource
    from xmlpreck.evaluation.comparison import LabelCounts, Rankings
    from xmlpreck.metrics import Meter, Scores
    from xmlpreck.model import Model


def add_judging_commands(commands: Any) -> None:
    text = "score predictions against the true labels"
    evaluate = add_command(commands, "evaluate", evaluate_command, text, lambda args: args.per_label is None)
    evaluate.add_argument(
        "--pred",
        required=True,
        metavar="FILE",
        help="predictions of any tool (see docs/evaluation.md), or a model directory",
    )
    evaluate.add_argument("--per-label", metavar="FILE", help="also write the counts of every label, as .csv")
    add_engine_options(evaluate)
    compare = add_command(
        commands, "compare", compare_command, "compare predictions on the same rows, each with the first", always
    )
    compare.add_argument("files", nargs="+", metavar="FILE", help="two or more: prediction files or model directories")
    for command in (evaluate, compare):
        command.add_argument("--split", default="test", help="train or test, of a folder or name (default: test)")
        command.add_argument("--model", metavar="DIR", help="raw text: the model whose labels are predicted")
        command.add_argument("--ks", metavar="K,K,...", help="places at the top (default: 1,3,5, as far as predicted)")
        command.add_argument(
            "--convention", default="repository", help="repository, pyxclib, napkinxc or rp (default: repository)"
        )
        command.add_argument("--drop-empty", action="store_true", help="leave out rows without labels")
        command.add_argument(
            "--train", metavar="PATH", help="training rows, for label frequencies (default: of --data)"
        )
        command.add_argument("--propensity", metavar="A,B", help="constants of the propensities (default: of the card)")
        command.add_argument("--inverse-propensities", metavar="FILE", help="a number a line for each label, instead")
        command.add_argument(
            "--bins", metavar="N,N", help="training rows that part tail, torso and head (default: 10,100)"
        )
        command.add_argument(
            "--filter", metavar="FILE", help="(row, label) pairs to leave out (default: of the folder)"
        )
        command.add_argument("--no-filter", action="store_true", help="do not apply the folder's filter file")
        command.add_argument("--fix", action="store_true", help="mend bad predictions, and say how many")
        command.add_argument("--resamples", metavar="INT", help="of the bootstrap; 0 = no intervals (default: 1000)")
        command.add_argument("--seed", default="0", metavar="INT", help="of the bootstrap (default: 0)")
        command.add_argument(
            "--threads", default="0", metavar="INT", help="threads; 0 = one for each core (default: 0)"
        )
    report = add_command(
        commands, "report", report_command, "one HTML page on runs: curves, scores, labels, samples", needs_data=False
    )
    report.set_defaults(train=None, inverse_propensities=None, propensity=None)  # it has no flags for these
    report.add_argument("runs", nargs="+", metavar="RUN", help="model directories")
    report.add_argument(
        "-o", "--out", default="report.html", metavar="FILE", help="page to write (default: report.html)"
    )
    report.add_argument("--split", default="test", help="train or test, of a folder or name (default: test)")
    report.add_argument("--threads", default="0", metavar="INT", help="threads; 0 = one for each core (default: 0)")


@dataclass(frozen=True)
class Trial:
    """True labels, and how predictions of them are to be judged."""

    rows: "RowSource"
    n_labels: int  # that can be predicted: raw text may have more
    training: "LabelCounts | None"
    inverse_propensity: "np.ndarray | None"
    pairs: "csr_array | None"
    ks: tuple[int, ...]
    args: argparse.Namespace
    n_resamples: int
    edges: list[int]
    seed: int
    n_threads: int

    def open_rankings(self, path: str) -> "Rankings":
        from xmlpreck.evaluation.comparison import Rankings

        return Rankings(path, self.rows, max(self.ks), self.n_labels, fix=self.args.fix, n_threads=self.n_threads)

    def new_meter(self) -> "Meter":
        from xmlpreck.metrics import Meter

        return Meter(
            self.rows.n_labels,
            self.ks,
            self.args.convention,
            inverse_propensity=self.inverse_propensity,
            label_counts=None if self.training is None else self.training.counts,
            edges=self.edges,
            drop_empty=self.args.drop_empty,
            n_resamples=self.n_resamples,
            seed=self.seed,
            n_threads=self.n_threads,
        )


def open_trial(args: argparse.Namespace) -> Trial:
    n_threads = whole_number("--threads", args.threads, least=0) or config.n_cores()
    seed = whole_number("--seed", args.seed, least=0)
    ks = whole_numbers("--ks", args.ks, least=1) if args.ks is not None else None
    edges = whole_numbers("--bins", args.bins, least=2) if args.bins is not None else None
    n_resamples = whole_number("--resamples", args.resamples, least=0) if args.resamples is not None else None
    if n_resamples == 0:
        refuse_flags(args, ["seed"], "with --resamples 0")
    if args.no_filter:
        refuse_flags(args, ["filter"], "with --no-filter")
    if args.inverse_propensities is not None:
        refuse_flags(args, ["propensity"], "with --inverse-propensities, which are used as they are")
    from xmlpreck import metrics
    from xmlpreck.data import catalog, formats
    from xmlpreck.model import Model

    metrics.find_convention(args.convention)
    scorer = Model.load(args.model) if args.model else None
    rows = open_rows(args, args.split, scorer)
    training = count_training(args, rows, scorer)
    place = args.filter
    if place is None and not args.no_filter:
        folder = catalog.find_folder(args.data, args.split, args.data_dir)
        place = None if folder is None else formats.find_filter(folder, args.split)
    pairs = None if place is None else formats.read_filter(place, rows.n_rows, rows.n_labels)
    if pairs is not None:
        note(f"{place}: {pairs.nnz:,} pairs of row and label are left out")
    return Trial(
        rows=rows,
        n_labels=rows.n_labels if scorer is None else scorer.n_labels,
        training=training,
        inverse_propensity=inverse_propensity_of(args, rows, training),
        pairs=pairs,
        ks=metrics.check_ks(ks or metrics.REPORTED_KS),
        args=args,
        n_resamples=metrics.N_RESAMPLES if n_resamples is None else n_resamples,
        edges=edges or list(metrics.BIN_EDGES),
        seed=seed,
        n_threads=n_threads,
    )


def count_training(args: argparse.Namespace, rows: "RowSource", scorer: "Model | None") -> "LabelCounts | None":
    """Label frequencies of the training rows, where these are to be had."""
    from xmlpreck.data import catalog
    from xmlpreck.evaluation import comparison as evaluation

    if args.train is not None:
        source = catalog.load(args.train, "train", args.data_dir, args.format)
    elif not Path(args.data).is_file() and (scorer is not None or catalog.has_split(args.data, "train", args.data_dir)):
        source = open_rows(args, "train", scorer)
    else:
        refuse_flags(args, ["propensity", "bins"], "without training rows; name them by --train")
        note("no training rows: no propensities and no frequencies; name them by --train")
        return None
    if scorer is None and source.n_labels != rows.n_labels:
        raise config.InputError(
            f"the training rows have {source.n_labels} labels, but those to be judged have {rows.n_labels}"
        )
    counted = evaluation.count_labels(source, progress=True)
    # Raw text: labels that training has not seen stand behind the others.
    counted.counts.resize(rows.n_labels, refcheck=False)
    return counted


def inverse_propensity_of(
    args: argparse.Namespace, rows: "RowSource", training: "LabelCounts | None"
) -> "np.ndarray | None":
    from xmlpreck import metrics
    from xmlpreck.data import catalog, formats

    if args.inverse_propensities is not None:
        return formats.read_inverse_propensities(args.inverse_propensities, rows.n_labels)
    card = catalog.find_card(catalog.describe(args.data))
    a, b = (card.propensity_a, card.propensity_b) if card is not None else metrics.PROPENSITY
    if args.propensity is not None:
        try:
            a, b = (float(word) for word in args.propensity.split(","))
        except ValueError:
            raise config.ConfigError(f"--propensity must be two numbers A,B, not {args.propensity!r}") from None
    return None if training is None else metrics.inverse_propensities(training.counts, training.n_rows, a, b)


def tell(rankings: "Rankings", trial: Trial) -> None:
    for text in rankings.notes(trial.ks):
        note(text)


def evaluate_command(args: argparse.Namespace) -> None:
    if args.per_label and Path(args.per_label).suffix != ".csv":
        raise config.InputError(f"{args.per_label}: the counts of labels are written as .csv")
    engine = engine_of(args)
    if engine is not None:
        if not Path(args.pred).is_dir():
            raise config.InputError(
                f"{args.pred}: is no model directory, so there is nothing for --engine ray to predict"
            )
        refuse_text(args)
    from xmlpreck import metrics
    from xmlpreck.evaluation import comparison as evaluation
    from xmlpreck.evaluation import tables

    trial = open_trial(args)
    with ExitStack() as until_judged:
        rankings = trial.open_rankings(args.pred) if engine is None else rankings_on_ray(trial, engine, until_judged)
        scores = evaluation.measure(trial.rows, rankings.blocks(), trial.new_meter(), trial.pairs, progress=True)
    tell(rankings, trial)
    if args.per_label:
        write_label_counts(args.per_label, scores, trial)
    about = (
        f"{args.pred}: {scores.n_rows:,} rows, {scores.n_rows_without_labels:,} of them without labels; convention "
        f"{args.convention}: {metrics.CONVENTIONS[args.convention].text}"
    )
    show(args, scores.to_dict() | seen_fields(rankings), f"{about}\n{tables.scores_text(scores)}")


def seen_fields(rankings: "Rankings") -> dict[str, Any]:
    """For JSON: what a model knows of the rows already; null for a prediction file, which does not say."""
    return {"seen": None if rankings.seen is None else rankings.seen._asdict()}


def rankings_on_ray(trial: Trial, engine: RayEngine, until_judged: ExitStack) -> "Rankings":
    """The labels that a model directory gives the rows, predicted on a cluster."""
    from xmlpreck.cluster.prediction import ClusterRankings, predict_rows
    from xmlpreck.evaluation.comparison import BLOCK_ROWS
    from xmlpreck.model.prediction import Choice

    args = trial.args
    found = predict_rows(
        until_judged.enter_context(engine.connect()),
        args.pred,
        place_of(args, trial.rows),
        trial.rows,
        Choice(max(trial.ks)),
        BLOCK_ROWS,
        label_shards=engine.label_shards,
        n_threads=whole_number("--threads", args.threads, least=0),
    )
    return ClusterRankings(args.pred, (top for _, top in found), trial.rows)


def compare_command(args: argparse.Namespace) -> None:
    if len(args.files) < 2:
        raise config.InputError("compare needs two or more prediction files or model directories")
    from xmlpreck.evaluation import comparison as evaluation
    from xmlpreck.evaluation import tables

    trial = open_trial(args)
    rankings = [trial.open_rankings(path) for path in args.files]
    blocks = [each.blocks() for each in rankings]
    results, versus = evaluation.compare(trial.rows, blocks, trial.new_meter, trial.pairs, progress=True)
    for each in rankings:
        tell(each, trial)
    said = {
        "files": {
            each.path: scores.to_dict() | seen_fields(each) for each, scores in zip(rankings, results, strict=True)
        },
        "against": args.files[0],
        "comparisons": {path: other.to_dict() for path, other in zip(args.files[1:], versus, strict=True)},
    }
    show(args, said, tables.comparison_text(args.files, results, versus, trial.rows.label_names))


def write_label_counts(path: str, scores: "Scores", trial: Trial) -> None:
    """label, name, rows of training and of truth with it, then predicted and hit for each k."""
    from xmlpreck.files.atomic import atomic_path

    names, training = trial.rows.label_names, trial.training
    of_k = [f"{what}@{k}" for k in scores.ks for what in ("predicted", "hits")]
    with atomic_path(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["label", "name", "training_rows", "true", *of_k])
        for label, true in enumerate(scores.label_truth.tolist()):
            counts = [
                int(array[i, label])
                for i in range(len(scores.ks))
                for array in (scores.label_predicted, scores.label_hits)
            ]
            frequency = "" if training is None else int(training.counts[label])
            writer.writerow([label, names[label] if names else "", frequency, true, *counts])


def report_command(args: argparse.Namespace) -> None:
    n_threads = whole_number("--threads", args.threads, least=0) or config.n_cores()
    names = [Path(run).resolve().name for run in args.runs]
    if len(set(names)) < len(names):  # all called alike, as in a/model b/model
        names = [str(Path(run)) for run in args.runs]
    from xmlpreck.data import catalog
    from xmlpreck.evaluation import report
    from xmlpreck.model import Model

    runs = [report.Run(name, Model.load(path)) for name, path in zip(names, args.runs, strict=True)]
    if args.data is None:
        use_data_of(args, runs[0].scorer)
    # A model knows the labels of raw text; rows of numbers need none for that.
    scorer = runs[0].scorer if runs[0].scorer.vectorizer is not None else None
    rows = open_rows(args, args.split, runs[0].scorer)
    training = count_training(args, rows, scorer)
    scored = report.ScoredRows(
        catalog.describe(args.data),
        args.split,
        rows,
        None if training is None else training.counts,
        inverse_propensity_of(args, rows, training),
    )
    report.write_report(args.out, runs, scored, datetime.date.today(), n_threads, progress=True)
    show(args, {"out": args.out, "n_rows": rows.n_rows}, f"{args.out}: {len(runs)} runs on {rows.n_rows:,} rows")


def use_data_of(args: argparse.Namespace, scorer: "Model") -> None:
    """The rows beside those that a model was trained on."""
    known = scorer.info.get("data", {})
    if "place" not in known:
        raise config.InputError(f"{args.runs[0]}: does not say what it was trained on: name the rows by --data")
    args.data = known["place"]
    for name in ("text_column", "labels_column", "label_separator", "format"):
        setattr(args, name, getattr(args, name) or known.get(name))
    from xmlpreck.cli.training import has_test

    if args.split == "test" and not has_test(args):
        raise config.InputError(
            f"{args.data}: {args.runs[0]} was trained on it, and it has no test rows: name rows that the model has not "
            "seen by --data, or report on its training rows on purpose by --split train"
        )
