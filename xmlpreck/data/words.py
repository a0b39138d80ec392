"""Split texts into words of every script and count these, with compiled code on many threads.

docs/text.md says what a term is. A text is folded by Unicode's NFKC and case folding. Compiled code does that character
by character with a table that grows as characters come; only texts with characters that may merge with the one
before them (accents that stand alone, Hangul letters) go through Python's own NFKC first.
"""

import functools
import itertools
import re
import secrets
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError, TextConfig
from xmlpreck.data.dataset import build_csr
from xmlpreck.kernels import terms as counting
from xmlpreck.kernels.terms import Terms
from xmlpreck.kernels.threads import run_team
from xmlpreck.kernels.words import (
    HYPHEN,
    IDEOGRAPH,
    OTHER,
    SIGN,
    SYLLABIC,
    WORD,
    Folding,
    Runs,
    Texts,
    composing,
    unknown_points,
)
from xmlpreck.machine import n_cores

# Han, and Hiragana and Katakana
_IDEOGRAPHS = [(0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3021, 0x302D), (0x3031, 0x30FF), (0x31F0, 0x31FF)]
_IDEOGRAPHS += [(0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x1AFF0, 0x1B16F), (0x20000, 0x3FFFF)]
# Thai and Lao, Myanmar, Khmer
_SYLLABIC = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0x1780, 0x17FF))
# Hangul letters, which merge into syllables
_JAMO = ((0x1100, 0x11FF), (0xA960, 0xA97F), (0xD7B0, 0xD7FF))
_HYPHENS = "-\u2010"  # NFKC makes U+2011 U+2010
# Soft hyphen, the joiners of Persian and Indian scripts, variation selectors: how a word looks, not what it is.
_IGNORED = {0xAD, 0x200C, 0x200D, 0x2060, 0xFEFF, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
_MIN_BYTES = 1 << 16  # per thread: fewer are counted before a thread has started
_MIN_VALUES = 1 << 16

# Usual values; others were no better (docs/text.md).
BM25_K, BM25_B = 1.2, 0.75

_LETTERS = re.compile(r"[^\W\d_]{2,}")
_MAX_STEMS = 1 << 20  # kept for words that come again

_SEED = np.uint32(secrets.randbits(32))  # so that nobody can write a text whose terms collide


def _within(point: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(low <= point <= high for low, high in ranges)


def kind_of(character: str) -> int:
    """Return what a character is in a word."""
    point = ord(character)
    category = unicodedata.category(character)
    if category[0] in "LM" or category == "Nl":
        if _within(point, _IDEOGRAPHS):
            return IDEOGRAPH
        return SYLLABIC if _within(point, _SYLLABIC) else WORD
    if category[0] == "N":
        return WORD
    return HYPHEN if character in _HYPHENS else SIGN if character in "+#" else OTHER


def fold_character(character: str, lowercase: bool) -> str:
    """Return what a character becomes by itself."""
    if ord(character) in _IGNORED:
        return ""
    plain = unicodedata.normalize("NFKC", character)
    if lowercase:
        plain = "".join(unicodedata.normalize("NFKC", part.casefold()) for part in plain)
    return plain.replace("\u2010", "-")


def _composes(character: str) -> bool:
    """Tell whether NFKC may merge or swap a character with the one before it."""
    for point in (character, unicodedata.normalize("NFKC", character)[0]):
        if unicodedata.category(point)[0] == "M" or _within(ord(point), _JAMO):
            return True
    return False


class _Folder:
    """The growing table of characters. One for all threads: what a call has looked up never changes."""

    def __init__(self, lowercase: bool) -> None:
        self.lowercase = lowercase
        self.lock = threading.Lock()
        ascii_text = "".join(map(chr, range(128)))
        folded = (ascii_text.lower() if lowercase else ascii_text).encode()
        self.ascii = np.frombuffer(folded, np.uint8)
        self.ascii_kinds = np.array([kind_of(character) for character in ascii_text], np.uint8)
        self.entries = np.full(0x110000, -1, np.int32)
        self.first_piece, self.kinds, self.bounds = [0], list[int](), [0]
        self.pool, self.composes = bytearray(), list[bool]()
        self.folding = self._arrays()

    def _arrays(self) -> Folding:
        numbers = (np.array(values, np.int32) for values in (self.first_piece, self.bounds))
        first_piece, bounds = numbers
        pool = np.frombuffer(bytes(self.pool), np.uint8)
        kinds, composes = np.array(self.kinds, np.uint8), np.array(self.composes, np.bool_)
        return Folding(self.ascii, self.ascii_kinds, self.entries, first_piece, kinds, bounds, pool, composes)

    def learn(self, data: np.ndarray) -> Folding:
        """Look up all characters of UTF-8 data."""
        with self.lock:
            points = unknown_points(data, self.entries)
            for point in points:
                self._add(point)
            if len(points):
                self.folding = self._arrays()
            return self.folding

    def _add(self, point: int) -> None:
        for part in fold_character(chr(point), self.lowercase):
            self.kinds.append(kind_of(part))
            self.pool += part.encode()
            self.bounds.append(len(self.pool))
        self.first_piece.append(len(self.kinds))
        self.composes.append(_composes(chr(point)))
        self.entries[point] = len(self.composes) - 1


_folder = functools.cache(_Folder)


def _encode(texts: list[str]) -> Texts:
    parts = [text.encode(errors="replace") for text in texts]  # half of a surrogate pair is no letter
    bounds = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=bounds[1:])
    return Texts(np.frombuffer(b"".join(parts), np.uint8), bounds)


@functools.cache
def stemmer(language: str) -> Callable[[str], str]:
    """Return a function that replaces the words of a text by their stems (Snowball's)."""
    try:
        import Stemmer
    except ImportError:
        advice = "pip install 'xmlpreck[language]'"
        raise InputError(f"text.language {language!r}: stems need the package PyStemmer: {advice}") from None
    try:
        stem = Stemmer.Stemmer(language, 0).stemWord
    except KeyError:
        known = ", ".join(Stemmer.algorithms())
        raise InputError(f"text.language {language!r}: there are no stems for it, only for {known}") from None
    lock = threading.Lock()  # a stemmer has one buffer

    @functools.lru_cache(_MAX_STEMS)
    def stem_word(word: str) -> str:
        with lock:
            return stem(word)

    return lambda text: _LETTERS.sub(lambda word: stem_word(word[0]), unicodedata.normalize("NFKC", text).casefold())


def prepare(texts: list[str], config: TextConfig) -> tuple[Texts, Folding]:
    """Return the bytes of texts, and what each of their characters becomes."""
    folder = _folder(config.lowercase)
    if config.language:
        texts = list(map(stemmer(config.language), texts))
    encoded = _encode(texts)
    folding = folder.learn(encoded.data)
    if folding.composes.any():
        flags = composing(encoded, folding)
        if flags.any():
            merged = [
                unicodedata.normalize("NFKC", text) if flag else text for text, flag in zip(texts, flags, strict=True)
            ]
            encoded = _encode(merged)
            folding = folder.learn(encoded.data)
    return encoded, folding


def _share(texts: Texts, threads: int) -> list[tuple[int, int]]:
    """Deal texts out to threads (0 = one per core), about as many bytes to each."""
    n_bytes = len(texts.data)
    n_shares = n_bytes // _MIN_BYTES
    n_shares = min(threads or n_cores(), n_shares) if n_shares > 1 else 1  # one text asks for no number of cores
    inner = np.searchsorted(texts.bounds, np.arange(1, n_shares) * (n_bytes / n_shares))
    ends = [0, *inner.tolist(), len(texts.bounds) - 1]
    return list(itertools.pairwise(ends))


def _run(shares: list[tuple[int, int]], task: Callable[[int, int, int], Any]) -> list[Any]:
    """Return task(share, first, last) of all shares, each on a thread of its own."""
    results: list[Any] = [None] * len(shares)

    def run(share: int) -> None:
        results[share] = task(share, *shares[share])

    run_team(len(shares), run)
    return results


def _no_terms() -> Terms:
    numbers = np.zeros(0, np.int64)
    return Terms(numbers, np.zeros(1, np.int64), np.zeros(0, np.uint8), np.zeros(2, np.int64), numbers, numbers)


Counts = tuple[np.ndarray, np.ndarray, np.ndarray]  # columns, how often each occurs, row offsets


class TermCounter:
    """Count the documents of every term, over many chunks of texts.

    With `max_bytes` what was counted in each text is kept, 8 bytes for each of its terms, so that rows can be made
    without splitting the texts again. Where that would take more bytes, nothing is kept.
    """

    def __init__(self, config: TextConfig, threads: int = 0, max_bytes: int = 0) -> None:
        self.config, self.threads, self.max_bytes = config, threads or n_cores(), max_bytes
        self.n_documents = self.n_bytes = 0
        self._tables = [_no_terms() for _ in range(self.threads)]
        self._kept: list[list[Any]] | None = [] if max_bytes else None  # per chunk and share: what learn_terms returns
        self._column_of: list[np.ndarray] = []  # per table: column of each term, -1 = none
        self._n_columns = 0

    def add(self, texts: list[str]) -> None:
        """Count the terms of some texts."""
        encoded, folding = prepare(texts, self.config)
        runs = Runs(self.config.ngrams, *self.config.char_lengths)

        def count(share: int, first: int, last: int) -> Any:
            return counting.learn_terms(encoded, first, last, folding, runs, self._tables[share], _SEED)

        counted = _run(_share(encoded, self.threads), count)
        for share, (table, *_) in enumerate(counted):
            self._tables[share] = table
        self.n_documents += len(texts)
        if self._kept is not None:
            self._kept.append([arrays for _, *arrays in counted])
            self.n_bytes += sum(array.nbytes for arrays in self._kept[-1] for array in arrays)
            if self.n_bytes > self.max_bytes:
                self._kept = None

    def terms(self, min_count: float, max_count: float) -> tuple[list[str], np.ndarray]:
        """Return the terms in min_count to max_count documents, sorted, and their numbers of documents."""
        table, *others = self._tables
        numbers = [np.arange(table.size[0])]
        for other in others:
            n_terms = other.size[0]
            table, found = counting.add_terms(table, other.pool, other.bounds, other.documents[:n_terms], _SEED)
            numbers.append(found)
        self._tables[0] = table
        counts = table.documents[: table.size[0]]
        kept = np.flatnonzero((counts >= min_count) & (counts <= max_count))
        pool = table.pool.tobytes()
        ends = zip(table.bounds[kept].tolist(), table.bounds[kept + 1].tolist(), strict=True)
        terms = [pool[start:end].decode() for start, end in ends]
        order = sorted(range(len(terms)), key=terms.__getitem__)
        columns = np.full(len(counts), -1, np.int32)
        columns[kept[order]] = np.arange(len(order))
        self._column_of, self._n_columns = [columns[found] for found in numbers], len(order)
        return [terms[place] for place in order], counts[kept[order]]

    def rows(self) -> Iterator[Counts] | None:
        """Return what `count` gives for the terms of `terms`, chunk by chunk and once; None if it was not kept."""
        return None if self._kept is None else self._rows(self._kept)

    def _rows(self, kept: list[list[Any]]) -> Iterator[Counts]:
        totals = [np.zeros(self._n_columns, np.int32) for _ in self._tables]
        kept.reverse()
        while kept:
            shares = kept.pop()

            def renumber(share: int, _first: int, _last: int, shares: list[Any] = shares) -> Any:
                return counting.renumber(*shares[share], self._column_of[share], totals[share])

            yield _joined(_run([(0, 0)] * len(shares), renumber))


def _joined(parts: list[Any]) -> Counts:
    columns, counts, sizes = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return columns, counts, offsets


class Columns:
    """Columns of terms: those of a vocabulary in its order, or a fixed number that terms are hashed to."""

    def __init__(self, terms: list[str] | None, n_hashed: int = 0) -> None:
        parts = [term.encode() for term in terms or []]
        bounds = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=bounds[1:])
        pool, counts = np.frombuffer(b"".join(parts), np.uint8), np.ones(len(parts), np.int64)
        self.table, _ = counting.add_terms(_no_terms(), pool, bounds, counts, _SEED)
        self.number = n_hashed if terms is None else len(terms)


def count(texts: list[str], columns: Columns, config: TextConfig, threads: int = 0) -> Counts:
    """Count the terms of each text; columns ascend within a row."""
    encoded, folding = prepare(texts, config)
    runs = Runs(config.ngrams, *config.char_lengths)

    def run(share: int, first: int, last: int) -> Any:
        totals = np.zeros(columns.number, np.int32)
        return counting.count_known(encoded, first, last, folding, runs, columns.table, _SEED, totals)

    return _joined(_run(_share(encoded, threads), run))


def saturate(counts: csr_array, mean_terms: float) -> np.ndarray:
    """Weigh counts as BM25 does: n / (n + c), where c grows with the number of different terms of the text.

    Robertson and Zaragoza (2009), "The Probabilistic Relevance Framework: BM25 and Beyond". The length of a text is
    its number of different terms, whose mean follows from the documents of each term: nothing more is stored.
    """
    n_terms = np.diff(counts.indptr)
    half = BM25_K * (1 - BM25_B + BM25_B * n_terms / mean_terms)
    return counts.data / (counts.data + np.repeat(half, n_terms))


def weigh(counts: csr_array, idf: np.ndarray, config: TextConfig, mean_terms: float, threads: int = 0) -> csr_array:
    """Turn counts (float64) into float32 values, weighted by idf, in rows of length 1."""
    if config.weighting == "bm25":
        weights = saturate(counts, mean_terms)
    else:
        weights = 1.0 + np.log(counts.data) if config.sublinear_tf else counts.data
    values, offsets = np.empty(len(weights), np.float32), counts.indptr
    n_shares = min(threads or n_cores(), len(weights) // _MIN_VALUES) if len(weights) > _MIN_VALUES else 1
    ends = np.searchsorted(offsets, np.linspace(0, len(weights), n_shares + 1)[1:-1]).tolist()

    def run(_share: int, first: int, last: int) -> None:
        counting.weigh(weights, counts.indices, offsets, idf, values, first, last)

    _run(list(itertools.pairwise([0, *ends, len(offsets) - 1])), run)
    return build_csr(values, counts.indices, offsets, counts.shape)
