"""Rows as JSON lines, as they come from a pipe: texts, or features by id or name with their values."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.formats.dataset import FormatError, build_csr, check_matrix, stack_rows
from xmlpreck.formats.documents import parse_object

MOST_LINES = 1024


class JsonRow(NamedTuple):
    """One line: where it stands, what it is called (its `id`, else its number), and a text or features with values."""

    where: str
    id: Any
    text: str | None
    features: list[Any]
    values: list[float]


def line_batches(lines: Iterable[bytes], most: int = MOST_LINES) -> Iterator[list[bytes]]:
    """The lines that have come so far, as soon as there is one: a pipe is answered line by line, a file in batches."""
    waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(4 * most)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except BaseException as error:
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    ended = False
    while not ended:
        batch: list[bytes] = []
        entry = waiting.get()
        while True:
            if isinstance(entry, BaseException):
                raise entry
            if entry is None:
                ended = True
                break
            batch.append(entry)
            if len(batch) == most:
                break
            try:
                entry = waiting.get_nowait()
            except queue.Empty:
                break
        if batch:
            yield batch


def parse_row(line: bytes, where: str, number: int) -> JsonRow:
    """`{"text": ...}`, `{"features": {"id or name": value}}` or `{"features": [...], "values": [...]}`; and an `id`."""
    try:
        fields = parse_object(line.decode("utf-8"))
    except ValueError as error:
        raise FormatError(f"{where}: {error}") from None
    name = fields.get("id", number)
    if isinstance(fields.get("text"), str):
        return JsonRow(where, name, fields["text"], [], [])
    given, values = fields.get("features"), fields.get("values")
    features = given
    if isinstance(given, dict):
        features, values = list(given), list(given.values())
    elif isinstance(features, list) and values is None:
        values = [1.0] * len(features)
    if not isinstance(features, list) or not isinstance(values, list) or len(features) != len(values):
        raise FormatError(f"{where}: needs a text, or features with as many values: see docs/prediction.md")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise FormatError(f"{where}: values must be numbers")
    return JsonRow(where, name, None, features, values)


def as_matrix(rows: list[JsonRow], n_features: int, column_of: dict[str, int]) -> csr_array:
    """Features as CSR; a name that the model does not know is left out, as a word that it has not seen would be."""
    parts = []
    for row in rows:
        columns = [_column(row.where, feature, n_features, column_of) for feature in row.features]
        known = [(column, value) for column, value in zip(columns, row.values, strict=True) if column is not None]
        ids = np.array([column for column, _ in known], np.int32)
        with np.errstate(over="ignore"):  # what is too large for float32 becomes inf, and is refused
            values = np.array([value for _, value in known], np.float64).astype(np.float32)
        matrix = build_csr(values, ids, np.array([0, len(ids)]), (1, n_features))
        parts.append(check_matrix(matrix, row.where, "feature"))
    return stack_rows(parts)


def _column(where: str, feature: Any, n_features: int, column_of: dict[str, int]) -> int | None:
    """The column of a feature by name or id; None for a name that is not known."""
    if isinstance(feature, str):
        if feature in column_of:
            return column_of[feature]
        if not feature.isdecimal() and column_of:
            return None
        feature = int(feature) if feature.isdecimal() else feature
    if not isinstance(feature, int) or isinstance(feature, bool) or not 0 <= feature < n_features:
        raise FormatError(f"{where}: feature {feature!r:.40} is out of range: there are {n_features} features")
    return feature
