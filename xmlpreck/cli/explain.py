"""xmlpreck explain"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xmlpreck.cli.options import (
    DATA_FLAGS,
    add_command,
    add_split,
    always,
    location_of,
    refuse_flags,
    show,
    whole_number,
)

if TYPE_CHECKING:
    from xmlpreck.model.explanation import Explanation, Names

GREEN, RED, BOLD = "32", "31", "1"
BAR_LENGTH = 24
EIGHTHS = "▏▎▍▌▋▊▉█"
MAX_NAME = 60
MAX_TRUE = 12  # labels in the first line


def add_explain(commands: Any) -> None:
    text = "say why labels of one row are predicted, and what would change that"
    explain = add_command(commands, "explain", run, text, always, needs_data=False)
    explain.add_argument("--model", required=True, metavar="DIR", help="a model directory")
    explain.add_argument("--row", metavar="ID", help="the row's id or, where rows have none, its number from 0")
    explain.add_argument("--text", metavar="TEXT", help="explain this text instead of a row of --data")
    explain.add_argument("--topk", default="5", metavar="INT", help="number of predicted labels (default: 5)")
    explain.add_argument("--features", default="8", metavar="INT", help="strongest features to show (default: 8)")
    explain.add_argument(
        "--label", action="append", default=[], metavar="NAME|ID", help="explain this label too; may be given again"
    )
    explain.add_argument(
        "--neighbours", default="0", metavar="INT",
        help="show the training rows with the nearest dense features, this many (default: 0); for models of embeddings",
    )  # fmt: skip
    add_split(explain, "test")


def run(args: argparse.Namespace) -> None:
    k, n_shown = (whole_number(f"--{name}", getattr(args, name), 1) for name in ("topk", "features"))
    row = args.row
    if args.text is not None:
        refuse_flags(args, [*DATA_FLAGS, "split"], "with --text")
    if args.json:
        refuse_flags(args, ["features"], "with --json, which has all features")
    from xmlpreck.api.explaining import explain

    location = None if args.data is None else location_of(args)
    n_near = whole_number("--neighbours", args.neighbours, 0)
    found = explain(args.model, location, row, text=args.text, k=k, labels=args.label, neighbours=n_near)
    subject = "the text" if row is None else f"row {row}"
    about = f"{subject}: {counted(found.row.nnz, 'feature')}; {true_text(found.true_labels, found.names)}"
    texts = explanation_texts(found.labels, found.names, k, n_shown, wants_colour())
    near = [
        f"   {cosine:.3f}  row {row}: {', '.join(shown(found.names.label(label)) for label in labels) or 'no label'}"
        for row, cosine, labels in found.neighbours or []
    ]
    if near:
        texts.append("\n".join(["nearest training rows, by the cosine of their dense features:", *near]))
    show(args, found.to_dict(), "\n\n".join([about, *texts]))


def wants_colour() -> bool:
    """On a terminal that can, unless NO_COLOR says no (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def shown(name: str) -> str:
    """A name as one short line; other people's names must not steer a terminal."""
    from xmlpreck.evaluation.tables import printable

    name = printable(name)
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 3]}..."


def counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def true_text(truth: list[int] | None, names: "Names") -> str:
    if truth is None:
        return "its true labels are not known"
    more = f", and {len(truth) - MAX_TRUE} more" if len(truth) > MAX_TRUE else ""
    return "true: " + ", ".join(shown(names.label(label)) for label in truth[:MAX_TRUE]) + more


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
        if each.blocks is not None:
            sums = ", ".join(f"{name} {adds:+.{n_decimals}f}" for name, adds in each.blocks.items())
            boundary = f"together: {sums}\n   {boundary}"
        lines = [line(adds, name, width) for adds, name in of_label]
        if each.parts.from_words:
            lines.append(f"   {each.parts.from_words:+{width}.{n_decimals}f}  of these came from the label's words")
        texts.append("\n".join([head, *lines, f"   {boundary}"]))
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
