"""Write predictions as CSV or TSV, for people and spreadsheets."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmlpreck.config import ConfigError
from xmlpreck.data.dataset import TopK
from xmlpreck.files import AnyPath
from xmlpreck.files.atomic import atomic_path

LAYOUTS = ("wide", "long")
# How Excel reads a file: in countries with decimal commas it wants semicolons between columns.
EXCEL = {"comma": (",", "."), "semicolon": (";", ",")}
# A cell that begins so may be run as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class TableStyle:
    """How predictions are written as a table."""

    layout: str = "wide"  # wide: a line for each row; long: a line for each label
    excel: str | None = None  # comma or semicolon: as Excel reads it, with a byte order mark and no formulas

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ConfigError(f"--layout must be wide or long, but is {self.layout!r:.40}")
        if self.excel not in (None, *EXCEL):
            raise ConfigError(f"--excel must be comma or semicolon, but is {self.excel!r:.40}")


WIDE = TableStyle()


def write_table(
    path: AnyPath,
    blocks: Iterable[tuple[Sequence[Any], TopK]],
    label_names: list[str] | None,
    style: TableStyle,
    n_columns: int,
    label_ids: list[str] | None = None,
) -> None:
    """Write (ids, labels) of rows. A range of ids is row numbers; others are a column of their own.

    Where labels have stable ids, these are written as the labels, with a column of names beside them.
    """
    delimiter, decimal = EXCEL.get(style.excel or "", ("\t" if Path(path).suffix == ".tsv" else ",", "."))
    encoding, end = ("utf-8", "\n") if style.excel is None else ("utf-8-sig", "\r\n")

    def text(value: Any) -> Any:
        """Keep a spreadsheet from running a name or an id."""
        is_formula = style.excel is not None and isinstance(value, str) and value.startswith(_FORMULA)
        return f"'{value}" if is_formula else value

    def number(score: float) -> str:
        return f"{score:.9g}".replace(".", decimal)

    of_label = [texts for texts in (label_ids, label_names) if texts is not None]

    def names(label: int) -> list[Any]:
        return [text(texts[label]) for texts in of_label]

    heading = ["label_id", "name"][2 - len(of_label) :] if of_label else []

    n_cells = n_columns * (1 + max(len(of_label), 1))  # of a wide line
    make = _wide_lines if style.layout == "wide" else _long_lines
    with atomic_path(path) as temporary, open(temporary, "w", newline="", encoding=encoding) as stream:
        writer = csv.writer(stream, delimiter=delimiter, lineterminator=end)
        start = 0
        for ids, top in blocks:
            has_ids = not isinstance(ids, range)
            if start == 0:
                writer.writerow(_header(style, has_ids, heading, n_columns))
            rows = _lists(top)
            heads = [[start + i, *([text(ids[i])] if has_ids else [])] for i in range(len(rows))]
            writer.writerows(make(heads, rows, names, number, n_cells))
            start += len(rows)
        if start == 0:
            writer.writerow(_header(style, False, heading, n_columns))


def _header(style: TableStyle, has_ids: bool, heading: list[str], n_columns: int) -> list[str]:
    head = ["row", *(["id"] if has_ids else [])]
    if style.layout == "long":
        return [*head, "rank", "label", *heading, "score"]
    of_rank = ["label", *heading[1:], "score"]
    return [*head, *(f"{what} {rank}" for rank in range(1, n_columns + 1) for what in of_rank)]


def _lists(top: TopK) -> list[list[tuple[int, float]]]:
    """Return the labels and scores of each row, best first."""
    return [
        [(label, score) for label, score in zip(labels, scores, strict=True) if label >= 0]
        for labels, scores in zip(top.labels.tolist(), top.scores.astype(float).tolist(), strict=True)
    ]


def _wide_lines(heads: Any, rows: Any, names: Any, number: Any, n_cells: int) -> Iterator[list[Any]]:
    for head, labels in zip(heads, rows, strict=True):
        cells = [cell for label, score in labels for cell in (*(names(label) or [label]), number(score))]
        yield head + cells + [""] * (n_cells - len(cells))


def _long_lines(heads: Any, rows: Any, names: Any, number: Any, _: int) -> Iterator[list[Any]]:
    for head, labels in zip(heads, rows, strict=True):
        for rank, (label, score) in enumerate(labels, start=1):
            yield [*head, rank, label, *names(label), number(score)]
