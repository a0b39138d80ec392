"""Split UTF-8 texts into terms.

A text is folded into *clean* bytes first: units (words with inner hyphens) with one blank between them, and runs of a
script without blanks behind a mark that says which kind. Terms are slices of clean bytes, so n-grams of words are too.
docs/text.md says what a term is; `terms_of` in tests/reference.py does the same in plain Python.
"""

from typing import NamedTuple

import numpy as np

from xmlpreck.kernels.caching import kernel

# Kinds of characters. IDEOGRAPH and SYLLABIC are letters of scripts that put no blanks between words.
OTHER, WORD, IDEOGRAPH, SYLLABIC, HYPHEN, SIGN = range(6)
# Shortest and longest runs of characters that are terms, for ideographs and for syllabic letters (docs/text.md).
IDEOGRAPH_RUNS = (1, 2)
SYLLABIC_RUNS = (2, 4)

_BLANK, _HYPHEN, _PLUS, _NUMBER_SIGN = b" -+#"
_MAX_SIGNS = 2
# What starts a run of IDEOGRAPH or SYLLABIC letters in clean bytes is its kind, and a word behind one follows this.
_BREAK = 1
_ASCII_END = 0x80


class Folding(NamedTuple):
    """What each character becomes: pieces, which are single characters of one kind."""

    ascii: np.ndarray  # (128,) uint8: the folded byte
    ascii_kinds: np.ndarray  # (128,) uint8
    entries: np.ndarray  # (0x110000,) int32: entry of a code point, -1 = not looked up yet
    first_piece: np.ndarray  # (n_entries + 1,) int32
    kinds: np.ndarray  # (n_pieces,) uint8
    bounds: np.ndarray  # (n_pieces + 1,) int32: the bytes of a piece in `pool`
    pool: np.ndarray  # uint8
    composes: np.ndarray  # (n_entries,) bool: may merge with the character before it


class Texts(NamedTuple):
    """UTF-8 bytes of many texts, and where each one starts."""

    data: np.ndarray  # uint8
    bounds: np.ndarray  # (n_texts + 1,) int64


class Runs(NamedTuple):
    """Which runs are terms: of 1 to `words` words, and of `shortest` to `longest` characters of a word (0 = none)."""

    words: int = 1
    shortest: int = 0
    longest: int = 0


@kernel
def _decode(data, at):
    """Return (code point, its number of bytes) of the UTF-8 character at a byte that is not ASCII."""
    first = np.int64(data[at])
    if first < 0xE0:
        return (first & 0x1F) << 6 | np.int64(data[at + 1]) & 0x3F, 2
    point = np.int64(data[at + 1] & 0x3F) << 6 | np.int64(data[at + 2]) & 0x3F
    if first < 0xF0:
        return (first & 0x0F) << 12 | point, 3
    return (first & 0x07) << 18 | point << 6 | np.int64(data[at + 3]) & 0x3F, 4


@kernel
def unknown_points(data, entries):
    """List the code points that are not looked up yet, each once."""
    found = [np.int64(0) for _ in range(0)]
    at = 0
    while at < data.size:
        if data[at] < _ASCII_END:
            at += 1
            continue
        point, size = _decode(data, at)
        if entries[point] == -1:
            entries[point] = -2
            found.append(point)
        at += size
    for point in found:
        entries[point] = -1
    return found


@kernel
def composing(texts, folding):
    """Tell of each text whether it has a character that may merge with the one before it."""
    flags = np.zeros(texts.bounds.size - 1, np.bool_)
    for text in range(flags.size):
        at = texts.bounds[text]
        while at < texts.bounds[text + 1]:
            if texts.data[at] < _ASCII_END:
                at += 1
                continue
            point, size = _decode(texts.data, at)
            if folding.composes[folding.entries[point]]:
                flags[text] = True
                break
            at += size
    return flags


@kernel
def _separate(clean, at, last, kind):
    """Make clean bytes, whose last character is of kind `last`, ready for one of `kind`.

    Returns (their end, the kind as what it is written: OTHER = not at all).
    """
    if kind == WORD:
        if last == SIGN:  # a+b is two words
            while _is_sign(clean[at - 1]):
                at -= 1
            clean[at] = _BLANK
            at += 1
        elif last in (IDEOGRAPH, SYLLABIC):
            clean[at] = _BREAK
            at += 1
        return at, kind
    if kind == HYPHEN and last == WORD:
        return at, kind
    if kind == SIGN and (last == WORD or (last == SIGN and not _is_sign(clean[at - _MAX_SIGNS]))):
        return at, kind
    is_unspaced = kind in (IDEOGRAPH, SYLLABIC)
    if is_unspaced and kind == last:
        return at, kind
    if last == HYPHEN:
        clean[at - 1] = _BLANK
    elif last != OTHER:
        clean[at] = _BLANK
        at += 1
    if is_unspaced:
        clean[at] = kind
        return at + 1, kind
    return at, OTHER


@kernel
def _is_sign(byte):
    return byte in (_PLUS, _NUMBER_SIGN)


@kernel
def fold(texts, text, folding, clean):
    """Write a text's clean bytes; returns (them, their number). They start and end with a blank."""
    # An array that is assigned to within a loop has its references counted there, five times the work: so it is
    # made larger here, and the loop starts again.
    size = 2 * (texts.bounds[text + 1] - texts.bounds[text]) + 64
    while True:
        if clean.size < size:
            clean = np.empty(size, np.uint8)
        end = _fold_into(texts, text, folding, clean)
        if end > 0:
            return clean, end
        size = 2 * clean.size


@kernel
def _fold_into(texts, text, folding, clean):
    """Write a text's clean bytes; returns their number, or 0 if there is no room."""
    data, start, end = texts.data, texts.bounds[text], texts.bounds[text + 1]
    ascii_bytes, ascii_kinds, entries = folding.ascii, folding.ascii_kinds, folding.entries
    first_piece, kinds, bounds, pool = folding.first_piece, folding.kinds, folding.bounds, folding.pool
    clean[0] = _BLANK
    at, last = 1, OTHER
    while start < end:
        byte = data[start]
        if byte < _ASCII_END:
            start += 1
            kind = np.int64(ascii_kinds[byte])
            if kind == OTHER and last <= WORD:  # a blank, if a word is before it
                clean[at] = _BLANK
                at += last
                last = OTHER
                continue
            if kind == WORD and last <= WORD:
                last = WORD
            else:
                at, last = _separate(clean, at, last, kind)
            clean[at] = ascii_bytes[byte]
            at += last != OTHER
            continue
        point, size = _decode(data, start)
        start += size
        first, stop = first_piece[entries[point]], first_piece[entries[point] + 1]
        if at + 2 * (end - start) + 2 * (bounds[stop] - bounds[first]) + 8 > clean.size:
            return 0
        for piece in range(first, stop):
            at, last = _separate(clean, at, last, np.int64(kinds[piece]))
            if last != OTHER:
                for place in range(bounds[piece], bounds[piece + 1]):
                    clean[at] = pool[place]
                    at += 1
    at, last = _separate(clean, at, last, OTHER)
    return at


@kernel
def split(clean, end, runs, slices):
    """Write where each term of clean bytes starts and ends; returns (slices, number of terms)."""
    size = end // 4 + 64
    while True:
        if slices.shape[0] < size:
            slices = np.empty((size, 2), np.int64)
        n_terms = _split_into(clean, end, runs, slices)
        if n_terms >= 0:
            return slices, n_terms
        size = 2 * slices.shape[0]


@kernel
def _split_into(clean, end, runs, slices):
    """Write where each term starts and ends; returns their number, or -1 if there is no room."""
    ngrams, shortest, longest = runs
    history = np.zeros(ngrams, np.int64)  # where the last units start
    n_units = n_terms = at = 0
    while at < end:
        byte = clean[at]
        if byte in (_BLANK, _BREAK):
            n_units = 0 if byte == _BREAK else n_units
            clean[at] = _BLANK  # before every word, as its runs of characters need it
            at += 1
            continue
        at += byte < _BLANK  # behind the mark of a script without blanks
        start = at
        is_plain = True
        while clean[at] > _BLANK:
            is_plain &= clean[at] > _HYPHEN  # signs and the hyphen are below all letters and digits
            at += 1
        if n_terms + (4 + longest) * (at - start + 2) + ngrams > slices.shape[0]:
            return -1
        if byte < _BLANK:
            least, most = IDEOGRAPH_RUNS if byte == IDEOGRAPH else SYLLABIC_RUNS
            n_terms = _split_run(clean, start, at, least, most, slices, n_terms)
            n_units = 0
            continue
        if is_plain:
            slices[n_terms, 0], slices[n_terms, 1] = start, at
            n_terms += 1
        else:
            n_terms = _split_unit(clean, start, at, slices, n_terms)
        if longest:  # with the blanks around the word, so that its beginning and its end differ from what is within
            n_terms = _split_run(clean, start - 1, at + 1, shortest, longest, slices, n_terms)
        if ngrams > 1:
            history[n_units % ngrams] = start
            n_units += 1
            for length in range(2, min(n_units, ngrams) + 1):
                slices[n_terms, 0], slices[n_terms, 1] = history[(n_units - length) % ngrams], at
                n_terms += 1
    return n_terms


@kernel
def _split_unit(clean, start, end, slices, n_terms):
    """Write the parts of a unit between its hyphens, and the whole unit if it has hyphens or ends with a sign."""
    part = start
    for at in range(start, end):
        if clean[at] == _HYPHEN or (_is_sign(clean[at]) and at > part):
            slices[n_terms, 0], slices[n_terms, 1] = part, at
            n_terms += 1
            part = at + 1
        elif _is_sign(clean[at]):
            part = at + 1
    if part < end:
        slices[n_terms, 0], slices[n_terms, 1] = part, end
        n_terms += 1
    if part > start:
        slices[n_terms, 0], slices[n_terms, 1] = start, end
        n_terms += 1
    return n_terms


@kernel
def _split_run(clean, start, end, shortest, longest, slices, n_terms):
    """Write all runs of `shortest` to `longest` characters; a shorter text is one term."""
    n_written = n_terms
    at = start
    while at < end:
        stop, length = at, 0
        while stop < end and length < longest:
            stop += 1
            while stop < end and clean[stop] & 0xC0 == 0x80:
                stop += 1
            length += 1
            if length == 1:
                following = stop
            if length >= shortest:
                slices[n_terms, 0], slices[n_terms, 1] = at, stop
                n_terms += 1
        at = following
    if n_terms == n_written:
        slices[n_terms, 0], slices[n_terms, 1] = start, end
        n_terms += 1
    return n_terms
