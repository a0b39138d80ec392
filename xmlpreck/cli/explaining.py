"""xmlpreck explain"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xmlpreck import config
from xmlpreck.cli.options import add_command, always, open_rows, refuse_flags, show, whole_number

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from xmlpreck.model import Model
    from xmlpreck.model.explanation import Explanation, Names

GREEN, RED, BOLD = "32", "31", "1"
BAR_LENGTH = 24
EIGHTHS = "▏▎▍▌▋▊▉█"
LONGEST_NAME = 60
MOST_TRUE = 12  # labels in the first line


def add_explain_command(commands: Any) -> None:
    explain = add_command(
        commands,
        "explain",
        explain_command,
        "say why labels of one row were predicted, and what would change that",
        always,
        needs_data=False,
    )
    explain.add_argument("--model", required=True, metavar="DIR", help="a model directory")
    explain.add_argument("--row", metavar="INT", help="row of --data, from 0")
    explain.add_argument("--text", metavar="TEXT", help="a text in place of --data and --row")
    explain.add_argument("--split", default="test", help="train or test, of a folder or name (default: test)")
    explain.add_argument("--topk", default="5", metavar="INT", help="labels that are predicted (default: 5)")
    explain.add_argument("--features", default="8", metavar="INT", help="strongest features of each (default: 8)")
    explain.add_argument(
        "--label", action="append", default=[], metavar="NAME|ID", help="explain this label too; may be given again"
    )


def explain_command(args: argparse.Namespace) -> None:
    k, n_shown = (whole_number(f"--{name}", getattr(args, name), least=1) for name in ("topk", "features"))
    if (args.text is None) == (args.data is None) or (args.data is None) != (args.row is None):
        raise config.InputError("explain needs --data and --row, or --text of a model of texts")
    if args.text is not None:
        refuse_flags(args, ["data_dir", "format", "text_column", "label_separator", "split"], "with --text")
    if args.json:
        refuse_flags(args, ["features"], "with --json, which has all features")
    from xmlpreck.model import Model
    from xmlpreck.model.explanation import explain

    scorer = Model.load(args.model)
    row, truth, names = read_row(args, scorer)
    asked = [names.find_label(word, scorer.n_labels) for word in args.label]
    explained = explain(scorer, row, k, asked, truth)
    true_labels = [{"label": label, "name": names.label(label)} for label in truth or []]
    result = {
        "model": args.model,
        "data": None if args.data is None else config.without_secrets(args.data),
        "split": args.split if args.text is None else None,
        "row": None if args.row is None else whole_number("--row", args.row, least=0),
        "text": args.text,
        "topk": k,
        "n_features": row.nnz,
        "true_labels": true_labels or None,
        "labels": [each.to_dict(names) for each in explained],
    }
    where = "the text" if args.row is None else f"row {args.row}"
    about = f"{where}: {counted(row.nnz, 'feature')}; {true_text(truth, names)}"
    show(args, result, "\n\n".join([about, *explanation_texts(explained, names, k, n_shown, wants_colour())]))


def read_row(args: argparse.Namespace, scorer: "Model") -> "tuple[csr_array, list[int] | None, Names]":
    """The row, its labels (None where it has none: they are not known then), and the names of all."""
    from xmlpreck.model.explanation import Names

    if args.text is not None:
        if scorer.vectorizer is None:
            raise config.InputError(f"{args.model}: was trained on numbers, not on texts: give it --data and --row")
        names = Names(scorer.label_names, scorer.feature_names, scorer.n_features)
        return scorer.vectorizer.transform([args.text]), None, names
    source = open_rows(args, args.split, scorer)
    row_id = whole_number("--row", args.row, least=0)
    if row_id >= source.n_rows:
        raise config.InputError(f"--row {row_id}: {args.data} has {source.n_rows:,} rows, count them from 0")
    one = source.read(row_id, row_id + 1)
    # Rows may have labels that training did not see, and rows to predict may have none.
    label_names = source.label_names if source.n_labels >= scorer.n_labels else None
    names = Names(label_names or scorer.label_names, source.feature_names or scorer.feature_names, scorer.n_features)
    return one.rows, one.labels.indices.tolist() or None, names


def wants_colour() -> bool:
    """On a terminal that can, unless NO_COLOR says no (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def shown(name: str) -> str:
    """A name as one short line; other people's names must not steer a terminal."""
    from xmlpreck.evaluation.tables import printable

    name = printable(name)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def true_text(truth: list[int] | None, names: "Names") -> str:
    if truth is None:
        return "its true labels are not known"
    more = f", and {len(truth) - MOST_TRUE} more" if len(truth) > MOST_TRUE else ""
    return "true: " + ", ".join(shown(names.label(label)) for label in truth[:MOST_TRUE]) + more


def explanation_texts(
    explained: "Sequence[Explanation]", names: "Names", k: int, n_shown: int, coloured: bool
) -> list[str]:
    """A paragraph for each label. Bars and digits are scaled to the largest of all, so that labels can be compared."""
    rows = [contribution_rows(each, names, n_shown) for each in explained]
    largest = max((abs(adds) for of_label in rows for adds, _ in of_label), default=0.0)
    n_decimals = max(0, 3 - math.floor(math.log10(largest))) if largest else 0

    def paint(code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if coloured else text

    def line(adds: float, name: str, width: int) -> str:
        bar = bar_text(abs(adds) / largest).ljust(BAR_LENGTH) if largest else ""
        return f"   {paint(GREEN if adds > 0 else RED, f'{adds:+{width}.{n_decimals}f}  {bar}')}  {name}"

    width = len(f"{largest:+.{n_decimals}f}")
    texts = []
    for each, of_label in zip(explained, rows, strict=True):
        known = "" if each.is_true is None else ", true" if each.is_true else ", not true"
        head = f"{each.rank:,}. {paint(BOLD, shown(names.label(each.label)))}: {each.score:.{n_decimals}f}{known}"
        boundary = boundary_text(each, names, k, n_decimals)
        texts.append("\n".join([head, *(line(adds, name, width) for adds, name in of_label), f"   {boundary}"]))
    return texts


def contribution_rows(each: "Explanation", names: "Names", n_shown: int) -> list[tuple[float, str]]:
    """(what it adds, its name) of the strongest features, and the sum of the others."""
    parts, contributions = each.parts, each.parts.contributions
    strong, others = parts.strongest(n_shown)
    rows = [(float(contributions[place]), shown(names.feature(int(parts.features[place])))) for place in strong]
    if len(others):
        rows.append((math.fsum(contributions[others].tolist()), counted(len(others), "other feature")))
    return rows


def bar_text(share: float) -> str:
    n_eighths = round(share * BAR_LENGTH * 8)
    whole, part = divmod(n_eighths, 8)
    return EIGHTHS[-1] * whole + (EIGHTHS[part - 1] if part else "")


def boundary_text(each: "Explanation", names: "Names", k: int, n_decimals: int) -> str:
    """By how much it has its place, and what would change that."""
    from xmlpreck.model.explanation import MOST_REMOVED

    if each.rival is None:
        return f"all labels of the model are among the first {k}"
    rival, lead = shown(names.label(each.rival)), f"{abs(each.lead):.{n_decimals}f}"
    if each.is_predicted:
        margin, change = f"keeps out {rival} by {lead}", f"leaves the first {k}"
    else:
        margin, change = f"lacks {lead} to {rival} in place {k}", f"enters the first {k}"
    if each.removal is None:
        return f"{margin}; no set of up to {MOST_REMOVED} features was found without which it {change}"
    features = ", ".join(shown(names.feature(feature)) for feature in each.removal)
    return f"{margin}; {change} without: {features}"
