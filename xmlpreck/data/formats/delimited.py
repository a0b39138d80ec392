"""Read tables of delimited text (CSV, TSV): encoding, delimiter and quotes are recognised from the beginning.

The csv module, because it also reads what pyarrow.csv does not: fields larger than a block; and it refuses letters
behind a closing quote, which pyarrow.csv drops. With lists of Python at the end both take the same time (144 MB: 2.9 s
and 2.7 s).
"""

import codecs
import csv
import io
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from xmlpreck.data.formats.column_choice import ANY, ID_NAMES, LABEL_NAMES, TEXT_NAMES, Columns, is_uris
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.contents import HEAD_BYTES, open_text, read_head

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
MAX_FIELD = 100_000_000  # letters
ONE_COLUMN = "\x1f"  # a delimiter that no table has
_KNOWN = {*TEXT_NAMES, *LABEL_NAMES, *ID_NAMES}
# Longest first: the mark of UTF-32 begins like that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

Rows = list[list[str]]


class Dialect(NamedTuple):
    """How a table is written."""

    encoding: str
    delimiter: str
    quotes: bool
    header: bool

    def __str__(self) -> str:
        parts = [DELIMITERS.get(self.delimiter, repr(self.delimiter)) + " between columns"]
        if self.delimiter == ONE_COLUMN:
            parts = ["one column"]
        if not self.header:
            parts.append("no header")
        if self.encoding != "utf-8-sig":
            parts.append(self.encoding)
        return ", ".join(parts)


class DelimitedTable:
    """A file of delimited text: its dialect, the names of its columns, and its rows with their lines."""

    def __init__(self, path: AnyPath, columns: Columns = ANY) -> None:
        self.path, self.columns = path, columns
        if csv.field_size_limit() < MAX_FIELD:  # of the whole process; only raised
            csv.field_size_limit(MAX_FIELD)

    @cached_property
    def dialect(self) -> Dialect:
        """Recognise what the columns do not say."""
        head = read_head(self.path)
        if not head:
            raise FormatError(f"{self.path}: the file is empty: a table begins with a row of column names")
        encoding = find_encoding(self.path, head, self.columns.encoding)
        is_cut = len(head) == HEAD_BYTES
        try:
            text = codecs.getincrementaldecoder(encoding)().decode(head, final=not is_cut)
        except UnicodeDecodeError:
            raise undecodable(self.path, encoding) from None
        return _guess_dialect(self.path, text, is_cut, encoding, self.columns)

    @cached_property
    def names(self) -> list[str]:
        """The names in the header; a column without one is called by its number, from 1."""
        _, first = next(self._raw_rows(), (1, []))
        if not self.dialect.header:
            return [str(number) for number, _ in enumerate(first, start=1)]
        return [name.strip() or str(number) for number, name in enumerate(first, start=1)]

    def rows(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (file and line, fields) of all rows but the header; all have as many fields."""
        n_columns = len(self.names)
        rows = self._raw_rows()
        if self.dialect.header:
            next(rows, None)
        for line, row in rows:
            while len(row) > n_columns and not row[-1]:  # spreadsheets fill rows up
                row.pop()
            if len(row) != n_columns:
                raise self._ragged(line, row, n_columns)
            yield f"{self.path}:{line}", row

    def _raw_rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, fields) of all rows that are not blank; the line is that of a row's beginning."""
        dialect = self.dialect
        with open_text(self.path, dialect.encoding) as stream:
            reader = csv_reader(stream, dialect.delimiter, dialect.quotes)
            line = 1
            while True:
                try:
                    row = next(reader, None)
                except UnicodeDecodeError:
                    raise undecodable(self.path, dialect.encoding) from None
                except csv.Error as error:
                    raise self._broken(line, error) from None
                if row is None:
                    return
                if row:
                    yield line, row
                line = reader.line_num + 1

    def _broken(self, line: int, error: csv.Error) -> FormatError:
        text = str(error)
        if "unexpected end" in text:
            text = "a quote opens a field here and nothing closes it"
        elif "expected after" in text:
            text = "a field has letters behind its closing quote"
        elif "field larger" in text:
            text = f"a field has more than {MAX_FIELD:,} letters: is a quote never closed?"
        advice = "write quotes within quoted fields twice, or say --no-quotes if quotes are letters here"
        return FormatError(f"{self.path}:{line}: {text}: {advice}")

    def _ragged(self, line: int, row: list[str], n_columns: int) -> FormatError:
        shown = DELIMITERS.get(self.dialect.delimiter, repr(self.dialect.delimiter))
        what = f"has {len(row)} fields with {shown} between them, but the first row has {n_columns}"
        advice = "quote fields that hold the delimiter, or say the right one by --delimiter"
        return FormatError(f"{self.path}:{line}: {what}: {str(row)[:80]}: {advice}")


def csv_reader(stream: Iterator[str] | io.TextIOBase, delimiter: str, quotes: bool):  # type: ignore[no-untyped-def]
    """Make a strict reader; without quotes, they are letters."""
    if quotes:
        return csv.reader(stream, delimiter=delimiter, strict=True)
    return csv.reader(stream, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)


def find_encoding(path: AnyPath, head: bytes, given: str | None) -> str:
    """Return the encoding that was given, or that of the byte order mark, or UTF-8."""
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if given is not None:
        name = codecs.lookup(given).name
        fits = marked is not None and (marked.startswith(name) or name.startswith(marked))  # utf-16 and utf-16-le
        return marked if marked is not None and fits else name
    if marked is None and head.count(0) * 4 > len(head):
        raise FormatError(f"{path}: is not UTF-8: every second byte is 0, as in UTF-16: say --encoding utf-16-le")
    return marked or "utf-8-sig"


def undecodable(path: AnyPath, encoding: str) -> FormatError:
    """Find the first line that is not in an encoding, and say what it would be in that of spreadsheets."""
    shown = "UTF-8" if encoding.startswith("utf-8") else encoding
    if encoding.startswith(("utf-16", "utf-32")):
        return FormatError(f"{path}: is not {shown}: say its own encoding by --encoding")
    with open_text(path, "latin-1") as stream:  # a letter is a byte
        for number, line in enumerate(stream, start=1):
            content = line.encode("latin-1")
            try:
                content.decode(encoding)
            except UnicodeDecodeError as error:
                where = f"{path}:{number}: byte {error.start + 1} of the line (0x{content[error.start]:02x})"
                other = "latin-1" if encoding == "cp1252" else "cp1252"  # latin-1 has a letter for every byte
                around = content[max(0, error.start - 20) : error.start + 20].decode(other, "replace").strip()
                return FormatError(f"{where} is not {shown}: if {around!r} is right, say --encoding {other}")
    return FormatError(f"{path}: is not {shown}: say its own encoding by --encoding")


def _parse(text: str, is_cut: bool, delimiter: str, quotes: bool) -> Rows | None:
    """Parse the beginning of a file; None if it is not written so. The last row may be cut, and is left out then."""
    rows: Rows = []
    reader = csv_reader(io.StringIO(text, newline=""), delimiter, quotes)
    try:
        rows += (row for row in reader if row)
    except csv.Error as error:
        if not (is_cut and "unexpected end" in str(error)):
            return None
        return rows
    return rows[:-1] if is_cut and len(rows) > 1 else rows


def _fits(rows: Rows | None) -> bool:
    """Tell whether rows have as many fields as the first, which has two or more; empty ones at the end do not count."""
    if not rows or len(rows[0]) < 2:
        return False
    return all(len(row) == len(rows[0]) or not any(row[len(rows[0]) :] or ["short"]) for row in rows)


def _guess_dialect(path: AnyPath, text: str, is_cut: bool, encoding: str, given: Columns) -> Dialect:
    delimiters = [given.delimiter] if given.delimiter is not None else list(DELIMITERS)
    found: dict[str, tuple[bool, Rows]] = {}
    for delimiter in delimiters:
        parsed = {
            quotes: _parse(text, is_cut, delimiter, quotes)
            # Tabs need no quotes around them, so quotes may be letters there; elsewhere that must be said.
            for quotes in (
                (True, False) if given.quotes is None and delimiter == "\t" else (given.quotes is not False,)
            )
        }
        fitting = {quotes: rows for quotes, rows in parsed.items() if rows is not None and _fits(rows)}
        if fitting:
            # Where both fit and differ in rows, a quote that opens one row and closes another has joined them.
            quotes = max(fitting, key=lambda quotes: len(fitting[quotes]))
            found[delimiter] = (quotes, fitting[quotes])
    if len(found) > 1:
        found = _best_named(path, found)
    if not found:
        found = _nearest(text, is_cut, delimiters, given)
    ((delimiter, (quotes, rows)),) = found.items()
    header = given.header
    if header is None:
        header = not (rows and any(map(is_uris, rows[0])))
    return Dialect(encoding, delimiter, quotes, header)


def _best_named(path: AnyPath, found: dict[str, tuple[bool, Rows]]) -> dict[str, tuple[bool, Rows]]:
    """Keep the delimiter that gives the first row the most names that we know; ask where that does not decide."""
    counts = {
        delimiter: sum(name.strip().casefold() in _KNOWN for name in rows[0]) for delimiter, (_, rows) in found.items()
    }
    best = [delimiter for delimiter, count in counts.items() if count == max(counts.values())]
    if len(best) > 1:
        of_suffix = "\t" if ".tsv" in Path(path).suffixes else ""
        best = [delimiter for delimiter in best if delimiter == of_suffix] or best
    if len(best) > 1:
        options = " or ".join(DELIMITERS[delimiter] for delimiter in best)
        first = found[best[0]][1][0]
        raise FormatError(
            f"{path}: its columns may have {options} between them: say which by --delimiter; the first row is "
            f"{best[0].join(first)[:100]!r}"
        )
    return {best[0]: found[best[0]]}


def _nearest(text: str, is_cut: bool, delimiters: list[str], given: Columns) -> dict[str, tuple[bool, Rows]]:
    """Choose the delimiter that fits the most rows, so that reading names the first one that it does not fit."""
    quotes = given.quotes is not False
    tried: dict[str, Rows] = {}
    for delimiter in delimiters:
        # Cut at the first error: the rows before it tell the delimiter.
        rows: Rows = []
        with suppress(csv.Error):
            rows += (row for row in csv_reader(io.StringIO(text, newline=""), delimiter, quotes) if row)
        if rows and (len(rows[0]) > 1 or given.delimiter is not None):
            tried[delimiter] = rows
    if not tried:
        return {given.delimiter or ONE_COLUMN: (quotes, [])}
    best = max(tried, key=lambda delimiter: sum(len(row) == len(tried[delimiter][0]) for row in tried[delimiter]))
    return {best: (quotes, tried[best])}
