"""Read rows as JSON lines from a pipe: texts, or features by id or name with their values."""

import math
import os
import queue
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import parse_whole
from xmlpreck.data.dataset import build_csr, check_matrix
from xmlpreck.data.formats.documents import parse_object
from xmlpreck.files import FormatError

MAX_LINES = 1024  # per batch
MAX_LINE_BYTES = 100_000_000
_CHUNK_BYTES, _CHUNKS_AHEAD, _BATCH_BYTES = 1 << 20, 8, 1 << 23
_BOM = b"\xef\xbb\xbf"


class LongLine(NamedTuple):
    """Stands for a line that was too long to keep."""

    max_bytes: int


Line = bytes | LongLine


class JsonRow(NamedTuple):
    """A valid line: its `id` (else its number from 0), and its text or features."""

    id: Any
    text: str | None
    features: csr_array | None


class BadLine(NamedTuple):
    """A line without a prediction: its number from 1, the reason, and its `id` if one could be read."""

    line: int
    error: str
    id: Any = None

    def to_dict(self) -> dict[str, Any]:
        about = {"error": self.error, "line": self.line}
        return about if self.id is None else about | {"id": self.id}


class _Splitter:
    """Splits bytes into lines; a line that grows too long becomes a LongLine."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.rest = bytearray()  # the line so far
        self.is_long = False

    def split(self, chunk: bytes) -> Iterator[Line]:
        """Yield the lines that end in a chunk."""
        for number, piece in enumerate(chunk.split(b"\n")):
            if number:
                yield LongLine(self.max_bytes) if self.is_long else bytes(self.rest)
                self.rest, self.is_long = bytearray(), False
            self.is_long = self.is_long or len(self.rest) + len(piece) > self.max_bytes
            if self.is_long:
                self.rest.clear()
            else:
                self.rest += piece


def arriving_lines(
    descriptor: int, max_line_bytes: int = MAX_LINE_BYTES, max_lines: int = MAX_LINES
) -> Iterator[list[Line]]:
    """Yield the lines of a file descriptor as soon as they arrive: line by line from a pipe, in batches from a file.

    A thread reads ahead with os.read: one that waits in a buffered stream can abort Python at its exit.
    """
    chunks: queue.Queue[bytes | OSError] = queue.Queue(_CHUNKS_AHEAD)

    def read() -> None:
        try:
            while chunk := os.read(descriptor, _CHUNK_BYTES):
                chunks.put(chunk)
            chunks.put(b"")
        except OSError as error:
            chunks.put(error)

    threading.Thread(target=read, daemon=True).start()
    splitter = _Splitter(max_line_bytes)
    has_ended = False
    while not has_ended:
        lines: list[Line] = []
        n_bytes = 0
        chunk = chunks.get()
        while isinstance(chunk, bytes) and chunk:
            lines += splitter.split(chunk)
            n_bytes += len(chunk)
            if len(lines) >= max_lines or n_bytes >= _BATCH_BYTES or chunks.empty():
                break
            chunk = chunks.get()
        has_ended = isinstance(chunk, OSError) or not chunk
        if has_ended and (splitter.rest or splitter.is_long):
            lines += splitter.split(b"\n")
        for start in range(0, len(lines), max_lines):
            yield lines[start : start + max_lines]
    if isinstance(chunk, OSError):
        raise FormatError(f"stdin: cannot be read: {chunk.strerror}")


class RowParser:
    """Parse JSON lines for one model: features by id or name, and texts if it takes them."""

    def __init__(self, n_features: int, feature_names: list[str] | None, takes_text: bool) -> None:
        self.n_features = n_features
        self.column_of = {name: column for column, name in enumerate(feature_names or [])}
        self.takes_text = takes_text

    def parse(self, line: Line, number: int) -> JsonRow | BadLine:
        """Parse `{"text": ...}`, `{"features": {"id or name": value}}` or `{"features": [...], "values": [...]}`."""
        given_id = None
        try:
            fields = parse_object(_decode(line, number))
            given_id = _id_of(fields)
            return self.parse_fields(fields, number - 1)
        except (ValueError, RecursionError) as error:
            return BadLine(number, str(error), given_id)

    def parse_fields(self, fields: dict[str, Any], number: int) -> JsonRow:
        """Return the row of a parsed object; its id, else `number`. Raise ValueError if it has none."""
        given_id = _id_of(fields)
        row_id = number if given_id is None else given_id
        if isinstance(fields.get("text"), str):
            if not self.takes_text:
                raise ValueError("the model was trained on numbers, not on texts: give it rows of numbers")
            return JsonRow(row_id, fields["text"], None)
        return JsonRow(row_id, None, self._features(fields))

    def _features(self, fields: dict[str, Any]) -> csr_array:
        """Return the features as one row; names that the model does not know are left out, like unknown words."""
        given, values = fields.get("features"), fields.get("values")
        features = given
        if isinstance(given, dict):
            features, values = list(given), list(given.values())
        elif isinstance(features, list) and values is None:
            values = [1.0] * len(features)
        if not isinstance(features, list) or not isinstance(values, list) or len(features) != len(values):
            raise ValueError("needs a text, or as many values as features: see docs/prediction.md")
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            raise ValueError("values must be numbers")
        columns = [self._column(feature) for feature in features]
        known = [(column, value) for column, value in zip(columns, values, strict=True) if column is not None]
        ids = np.array([column for column, _ in known], np.int32)
        with np.errstate(over="ignore"):  # too large for float32: becomes inf and is refused
            data = np.array([_as_float(value) for _, value in known], np.float64).astype(np.float32)
        try:
            return check_matrix(build_csr(data, ids, np.array([0, len(ids)]), (1, self.n_features)), "row", "feature")
        except FormatError as error:
            raise ValueError(str(error).removeprefix("row: row 0: ")) from None

    def _column(self, feature: Any) -> int | None:
        """Return the column of a feature by name or id; None for an unknown name."""
        column = feature
        if isinstance(feature, str):
            if feature in self.column_of:
                return self.column_of[feature]
            if not feature.isdecimal() and self.column_of:
                return None
            column = parse_whole(feature)
        if not isinstance(column, int) or isinstance(column, bool) or not 0 <= column < self.n_features:
            raise ValueError(f"feature {feature!r:.40} is out of range: there are {self.n_features} features")
        return column


def _decode(line: Line, number: int) -> str:
    if isinstance(line, LongLine):
        raise ValueError(f"is longer than {line.max_bytes:,} bytes: send fewer values per line, or use a file")
    line = (line.removeprefix(_BOM) if number == 1 else line).rstrip()
    if not line:
        raise ValueError("is empty: each line must be a JSON object in braces")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} of the line is not UTF-8: send UTF-8") from None


def _id_of(fields: dict[str, Any]) -> str | float | None:
    """Return the row's `id`, if it has one; it is returned as JSON, so NaN is refused."""
    found = fields.get("id")
    is_number = isinstance(found, int) or (isinstance(found, float) and math.isfinite(found))
    if found is not None and not isinstance(found, str) and not is_number:
        raise ValueError("id must be a string or a number")
    return found


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return float("inf")
