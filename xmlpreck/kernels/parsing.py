"""Compiled parser of rows of text, `l1,l2,... f:v f:v ...`: the XML repository's files and LIBSVM's.

Errors come back as (code, row, position of the offending token), and `explain` puts the code into words.
"""

import numpy as np

from xmlpreck.kernels.caching import kernel

OK = 0
BAD_LABEL = 1
LABEL_OUT_OF_RANGE = 2
BAD_FEATURE = 3
FEATURE_OUT_OF_RANGE = 4
BAD_VALUE = 5

_TAB, _NEWLINE, _RETURN, _SPACE, _PLUS, _COMMA, _MINUS, _POINT, _ZERO, _NINE, _COLON = b"\t\n\r +,-.09:"
_EXPONENT_MARKS = (ord("e"), ord("E"))

# Far above any id and far below the end of int64: an absurd id stays out of range instead of wrapping round.
_ID_LIMIT = 10**15
# 18 digits always fit into int64.
_MANTISSA_LIMIT = 10**17
# Beyond this every float32 is 0 or infinite.
_EXPONENT_LIMIT = 10_000
# The powers of ten that float64 holds exactly, so that usual values are rounded once.
_POWERS = np.array([float(10**exponent) for exponent in range(23)])


@kernel
def _is_blank(byte):
    return byte in (_SPACE, _TAB, _RETURN, _NEWLINE)


@kernel
def _ends_token(text, at):
    return at >= text.size or _is_blank(text[at])


@kernel
def _read_digits(text, at, limit):
    """Return (number, end): the digits from `at`; those after the number has reached `limit` are skipped."""
    number = np.int64(0)
    while at < text.size and _ZERO <= text[at] <= _NINE:
        if number < limit:
            number = number * 10 + (np.int64(text[at]) - _ZERO)
        at += 1
    return number, at


@kernel
def _read_mantissa(text, at):
    """Return (mantissa, exponent, n_digits, end) of digits with at most one point among them."""
    mantissa = np.int64(0)
    exponent = 0
    n_digits = 0
    after_point = False
    while at < text.size:
        if _ZERO <= text[at] <= _NINE:
            n_digits += 1
            if mantissa < _MANTISSA_LIMIT:
                mantissa = mantissa * 10 + (np.int64(text[at]) - _ZERO)
                exponent -= after_point
            else:
                exponent += not after_point
        elif text[at] == _POINT and not after_point:
            after_point = True
        else:
            break
        at += 1
    return mantissa, exponent, n_digits, at


@kernel
def _scale(mantissa, exponent):
    """Return mantissa * 10**exponent as float64."""
    number = np.float64(mantissa)
    largest = _POWERS.size - 1
    while exponent > largest and 0.0 < number < np.inf:
        number *= _POWERS[largest]
        exponent -= largest
    while exponent < -largest and number > 0.0:
        number /= _POWERS[largest]
        exponent += largest
    if number == 0.0 or number == np.inf:
        return number
    return number * _POWERS[exponent] if exponent >= 0 else number / _POWERS[-exponent]


@kernel
def _read_value(text, at):
    """Return (value, end) of the number at `at`; NaN when it is not a number that ends its token."""
    negative = at < text.size and text[at] == _MINUS
    if at < text.size and (text[at] == _MINUS or text[at] == _PLUS):
        at += 1
    mantissa, exponent, n_digits, at = _read_mantissa(text, at)
    if n_digits == 0:
        return np.float32(np.nan), at
    if at < text.size and text[at] in _EXPONENT_MARKS:
        at += 1
        small = at < text.size and text[at] == _MINUS
        if at < text.size and (text[at] == _MINUS or text[at] == _PLUS):
            at += 1
        written, end = _read_digits(text, at, _EXPONENT_LIMIT)
        if end == at:
            return np.float32(np.nan), at
        at = end
        exponent += -written if small else written
    if not _ends_token(text, at):
        return np.float32(np.nan), at
    number = _scale(mantissa, exponent)
    return np.float32(-number if negative else number), at


@kernel
def _read_labels(text, at, n_labels, label_ids, filled):
    """Return (code, position, filled) after the labels that open a line; a blank or `f:v` means none."""
    first = True
    if _ends_token(text, at):
        return OK, at, filled
    while True:
        label, end = _read_digits(text, at, _ID_LIMIT)
        if end == at:
            return BAD_LABEL, at, filled
        if first and end < text.size and text[end] == _COLON:
            return OK, at, filled
        follows = end < text.size and text[end] == _COMMA
        if not follows and not _ends_token(text, end):
            return BAD_LABEL, at, filled
        if label >= n_labels:
            return LABEL_OUT_OF_RANGE, at, filled
        label_ids[filled] = label
        filled += 1
        if not follows:
            return OK, end, filled
        at = end + 1
        first = False


@kernel
def _read_features(text, at, first_id, n_features, feature_ids, values, filled):
    """Return (code, position, filled) after the `f:v` tokens and the end of their line; ids start at `first_id`."""
    while True:
        while at < text.size and text[at] != _NEWLINE and _is_blank(text[at]):
            at += 1
        if at >= text.size or text[at] == _NEWLINE:
            return OK, at + 1, filled
        feature, end = _read_digits(text, at, _ID_LIMIT)
        if end == at or end >= text.size or text[end] != _COLON:
            return BAD_FEATURE, at, filled
        feature -= first_id
        if feature < 0 or feature >= n_features:
            return FEATURE_OUT_OF_RANGE, at, filled
        value, end = _read_value(text, end + 1)
        if not np.isfinite(value):
            return BAD_VALUE, at, filled
        feature_ids[filled] = feature
        values[filled] = value
        filled += 1
        at = end


@kernel
def _count_marks(text, start):
    """Return how many lines, colons and commas there are: bounds on rows, features and further labels."""
    n_colons = 0
    n_commas = 0
    n_lines = 0
    for at in range(start, text.size):
        n_colons += text[at] == _COLON
        n_commas += text[at] == _COMMA
        n_lines += text[at] == _NEWLINE
    if start < text.size and text[text.size - 1] != _NEWLINE:
        n_lines += 1
    return n_lines, n_colons, n_commas


@kernel
def skip_blank(text, at):
    """Return (n_lines, position): the first byte from `at` that is not blank, and how many lines end before it."""
    n_lines = 0
    while at < text.size and _is_blank(text[at]):
        n_lines += text[at] == _NEWLINE
        at += 1
    return n_lines, at


@kernel
def parse_rows(text, start, n_rows, n_features, n_labels, first_id):
    """Parse at most `n_rows` lines of `text` (uint8) from byte `start`.

    Returns (label_offsets, label_ids, feature_offsets, feature_ids, values, (code, row, position)); features count
    from `first_id` in the text and from 0 in the arrays, and stand in the order of the file. `row` is the one that
    holds the error, or else the number of rows, and `position` where reading ended. After an error the
    arrays are unfinished.
    """
    n_lines, n_colons, n_commas = _count_marks(text, start)
    # What is allocated follows the bytes that are there, never a header that promises more.
    n_kept = min(n_rows, n_lines)
    label_offsets = np.zeros(n_kept + 1, np.int64)
    feature_offsets = np.zeros(n_kept + 1, np.int64)
    label_ids = np.empty(n_commas + n_kept, np.int32)
    feature_ids = np.empty(n_colons, np.int32)
    values = np.empty(n_colons, np.float32)
    at = start
    used_labels = 0
    used_features = 0
    code = OK
    row = 0
    while row < n_kept:
        code, at, used_labels = _read_labels(text, at, n_labels, label_ids, used_labels)
        if code == OK:
            code, at, used_features = _read_features(text, at, first_id, n_features, feature_ids, values, used_features)
        if code != OK:
            break
        row += 1
        label_offsets[row] = used_labels
        feature_offsets[row] = used_features
    return (
        label_offsets,
        label_ids[:used_labels],
        feature_offsets,
        feature_ids[:used_features],
        values[:used_features],
        (code, row, at),
    )


def explain(code, token, sizes, nouns, first_id=0, said="the header says"):
    """Say what is wrong with a token and what would be right.

    `sizes` are the numbers of features and labels by name, `said` where they come from, `nouns` what stands
    before and after a colon.
    """
    noun, value = nouns
    head, _, tail = token.partition(":")
    label = token.partition(",")[0]
    opens_with_labels = "n_features" in sizes and "n_labels" in sizes
    if code == BAD_LABEL and opens_with_labels:
        return f"label {label!r} is not an id: labels are whole numbers from 0 with commas between them"
    if code == LABEL_OUT_OF_RANGE and opens_with_labels:
        noun, head, first_id = "label", label, 0
    elif code == BAD_VALUE:
        return f"{noun} {head} has the {value} {tail!r}: {value}s must be finite float32 numbers"
    elif code != FEATURE_OUT_OF_RANGE:
        return f"{token!r} is not {noun}:{value}, such as 17:0.25"
    n = sizes[f"n_{noun}s"]
    ids = f" (ids {first_id} to {n - 1 + first_id})" if n else ""
    return f"{noun} id {head} is out of range: {said} {n} {noun}s{ids}"
