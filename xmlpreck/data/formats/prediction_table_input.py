"""Read predictions that were written as CSV or TSV, in either layout, by us or by Excel."""

import csv
import re
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from xmlpreck.config import parse_whole
from xmlpreck.data.formats.delimited import csv_reader
from xmlpreck.files import FormatError
from xmlpreck.files.contents import open_text

_PAIR = re.compile(r"label [1-9]\d*")


class Line(NamedTuple):
    """Labels and scores of a row, and the line of the file."""

    number: int
    row: int
    labels: list[int]
    scores: list[float]


class PredictionTable:
    """A table of predictions; labels are found by `label_names`, or are ids where there are none."""

    def __init__(self, path: Path, label_names: list[str] | None) -> None:
        self.path = path
        self.column_of = None if label_names is None else {name: label for label, name in enumerate(label_names)}
        header = next(self._raw(), (1, []))[1]
        self.is_long = "rank" in header
        pairs = [place for place, name in enumerate(header) if _PAIR.fullmatch(name)]
        if header[:1] != ["row"] or (self.is_long and not {"label", "score"} <= set(header)):
            raise FormatError(
                f"{path}:1: is no table of predictions: its columns are row, rank, label and score, or row, label 1, "
                f"score 1, label 2, ..., but here {str(header)[:60]}"
            )
        if self.is_long:
            pairs = [header.index("label")]
            self.score_step = header.index("score") - pairs[0]
        else:
            self.score_step = 1
        self.pairs, self.n_columns = pairs, len(header)

    @cached_property
    def delimiter(self) -> str:
        """What is between columns: what follows the first name of the header."""
        with open_text(self.path, "utf-8-sig") as stream:
            try:
                first = stream.readline(1000)
            except UnicodeDecodeError:
                raise FormatError(f"{self.path}:1: is not UTF-8") from None
        found = re.match('"?row"?([,;\t])', first)
        return found[1] if found else ","

    def _raw(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, fields) of all rows that are not blank."""
        with open_text(self.path, "utf-8-sig") as stream:
            reader = csv_reader(stream, self.delimiter, quotes=True)
            while True:
                line = reader.line_num + 1
                try:
                    fields = next(reader, None)
                except (csv.Error, UnicodeDecodeError) as error:
                    raise FormatError(f"{self.path}:{line}: {error}: is no table of predictions") from None
                if fields is None:
                    return
                if fields:
                    yield line, fields

    def lines(self) -> Iterator[Line]:
        """Yield the labels of each row that has a line, in the order of the rows."""
        parsed = self._parsed()
        if not self.is_long:
            yield from parsed
            return
        for row, group in groupby(parsed, key=attrgetter("row")):
            lines = list(group)
            labels = [label for line in lines for label in line.labels]
            yield Line(lines[0].number, row, labels, [score for line in lines for score in line.scores])

    def _parsed(self) -> Iterator[Line]:
        rows = self._raw()
        next(rows, None)
        last = -1
        for number, fields in rows:
            if len(fields) != self.n_columns:
                raise self._error(number, f"has {len(fields)} fields, but the first line has {self.n_columns}")
            row = parse_whole(fields[0])
            wanted = row is not None and (last <= row if self.is_long else row == last + 1)
            if row is None or not wanted:
                raise self._error(
                    number, f"row {fields[0]!r:.40} does not follow row {last}: rows must be in their order"
                )
            last = row
            filled = [place for place in self.pairs if fields[place]]
            labels = [self._label(number, fields[place]) for place in filled]
            yield Line(number, row, labels, [self._score(number, fields[place + self.score_step]) for place in filled])

    def _label(self, number: int, text: str) -> int:
        """Find a label by its name, which may follow an apostrophe that keeps Excel from running it, or by its id."""
        if self.column_of is not None and not self.is_long:
            label = self.column_of.get(text, self.column_of.get(text[1:]) if text.startswith("'") else None)
            if label is None:
                raise self._error(number, f"label {text!r:.60} is none of the data: use the data that were predicted")
            return label
        label = parse_whole(text)
        if label is None:
            what = "is a name, but the data have no names of labels: name the model by --model, or write .parquet"
            raise self._error(number, f"label {text!r:.60} {what}")
        return label

    def _score(self, number: int, text: str) -> float:
        try:
            return float(text.replace(",", ".") if self.delimiter == ";" else text)
        except ValueError:
            raise self._error(number, f"score {text!r:.40} is not a number") from None

    def _error(self, number: int, what: str) -> FormatError:
        return FormatError(f"{self.path}:{number}: {what}")
