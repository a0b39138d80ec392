"""The numeric text formats by Python's own split, int and float: what the compiled readers must agree with."""

import gzip
import re

import numpy as np

MAX_ID = 2**31 - 1
BLANKS = b" \t\r"
VALUE = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")

Files = dict[str, bytes]


class Refused(Exception):
    """The plain parser's answer to a file that is wrong."""


def whole(digits: bytes | str) -> int:
    """The number; of one with more than 20 digits only that it is beyond all limits."""
    return int(digits.lstrip(b"0" if isinstance(digits, bytes) else "0")[:20] or 0)


def plain_header(text: bytes, count: int) -> tuple[list[int], list[bytes]]:
    first, newline, rest = text.partition(b"\n")
    words = [word for word in re.split(rb"[ \t\r]+", first) if word]
    if len(words) != count or len(first) >= 100 or not all(re.fullmatch(rb"\d+", word) for word in words):
        raise Refused
    numbers = list(map(int, words))
    if max(numbers) > MAX_ID:
        raise Refused
    lines = rest.split(b"\n") if newline else []
    if lines and lines[-1] == b"":
        lines.pop()
    return numbers, lines


def plain_row(line: bytes, n_features: int, n_labels: int, first_id: int = 0) -> tuple[dict[int, float], list[int]]:
    labels: list[int] = []
    tokens = [token for token in re.split(rb"[ \t\r]+", line) if token]
    if line[:1] and line[:1] not in BLANKS and not re.match(rb"\d+:", tokens[0]):
        first = tokens.pop(0)
        if not re.fullmatch(rb"\d+(,\d+)*", first):
            raise Refused
        labels = [whole(label) for label in first.split(b",")]
    features: dict[int, float] = {}
    for token in tokens:
        name, colon, value = token.partition(b":")
        if not colon or not re.fullmatch(rb"\d+", name) or not VALUE.fullmatch(value):
            raise Refused
        number = np.float32(float(value))
        feature = whole(name) - first_id
        if feature in features or not 0 <= feature < n_features or not np.isfinite(number):
            raise Refused
        features[feature] = number
    if len(set(labels)) < len(labels) or any(label >= n_labels for label in labels):
        raise Refused
    return features, labels


def plain_text(text: bytes, count: int) -> tuple[list, tuple[int, int]]:
    """Rows of a text with a header of three numbers, or of two (one matrix)."""
    (n_rows, n_features, *labels), lines = plain_header(text, count)
    if len(lines) < n_rows or any(line.strip(BLANKS) for line in lines[n_rows:]):
        raise Refused
    n_labels = labels[0] if labels else 0
    return [plain_row(line, n_features, n_labels) for line in lines[:n_rows]], (n_features, n_labels)


def plain_repository(files: Files) -> object:
    return plain_text(unpacked(files, "train.txt"), 3)


def plain_pair(files: Files) -> object:
    rows, (n_features, _) = plain_text(unpacked(files, "trn_X_Xf.txt"), 2)
    labels, (n_labels, _) = plain_text(unpacked(files, "trn_X_Y.txt"), 2)
    if len(rows) != len(labels):
        raise Refused
    relevant = [sorted(label for label, value in row.items() if value != 0) for row, _ in labels]
    return [(row, own) for (row, _), own in zip(rows, relevant, strict=True)], (n_features, n_labels)


def plain_libsvm(files: Files) -> object:
    text = unpacked(files, "train.svm").rstrip(b"\r\n")
    rows = [plain_row(line, MAX_ID, MAX_ID, 1) for line in text.split(b"\n")] if text else []
    width = [max([-1] + [i for row in rows for i in row[part]]) + 1 for part in (0, 1)]
    return rows, tuple(width)


def plain_split(files: Files) -> object:
    rows, widths = plain_text(unpacked(files, "x_data.txt"), 3)
    try:
        lines = unpacked(files, "x_trSplit.txt").decode().split("\n")
    except UnicodeDecodeError:
        raise Refused from None
    words = [line.split() for line in lines if line.split()]
    if len({len(line) for line in words}) > 1 or not all(re.fullmatch("[0-9]+", line[0]) for line in words):
        raise Refused
    chosen = [whole(line[0]) for line in words]
    if len(set(chosen)) < len(chosen) or not all(1 <= row <= len(rows) for row in chosen):
        raise Refused
    return [rows[row - 1] for row in sorted(chosen)], widths


def unpacked(files: Files, name: str) -> bytes:
    """The file, or the packed one; what is packed is told by its first bytes, or by its name."""
    packed = f"{name}.gz"
    data = files.get(name, files.get(packed))
    if data is None:
        raise Refused
    if name in files and data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except Exception as error:
        raise Refused from error
