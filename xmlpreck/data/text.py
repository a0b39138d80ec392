"""Turn raw text into tf-idf features and label names into columns, in streams; stored without pickle.

Terms are those of `xmlpreck.data.words`, or what a regular expression matches (`text.token_pattern`).
"""

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import ConfigError, InputError, TextConfig
from xmlpreck.data import words
from xmlpreck.data.dataset import build_csr
from xmlpreck.files import read_errors, write_errors
from xmlpreck.files.atomic import atomic_path
from xmlpreck.files.contents import check_format, load_array, open_regular, read_json

FORMAT_VERSION = 2
OLD_VERSION = 1  # had regular expressions only, and a setting for one in every file
_KIND = "xmlpreck text"
FILES = ("text.json", "idf.npy", "vocabulary.txt")
_NOT_A_LINE = re.compile("[\n\r\ud800-\udfff]")

_log = logging.getLogger(__name__)


def analyzer_settings(config: TextConfig) -> dict[str, Any]:
    """Return the settings that make scikit-learn's vectorizers split a text by the same regular expression."""
    return {
        "lowercase": config.lowercase,
        "token_pattern": config.token_pattern,
        "ngram_range": (1, config.ngrams),
    }


def term_analyzer(config: TextConfig) -> Callable[[str], list[str]]:
    """Return a function that splits a text by a regular expression."""
    from sklearn.feature_extraction.text import CountVectorizer  # a second of imports, which rows of numbers spare

    return CountVectorizer(**analyzer_settings(config)).build_analyzer()


@dataclass(frozen=True)
class TextVectorizer:
    """tf-idf with unit rows: the features of a text are its terms, or columns that its terms are hashed to."""

    config: TextConfig
    n_documents: int
    idf: np.ndarray  # (n_features,) float64
    feature_names: list[str] | None  # None: hashed
    grown: tuple[int, ...] = ()  # numbers of features before each growth: terms behind each are sorted by themselves

    @property
    def n_features(self) -> int:
        return len(self.idf)

    @cached_property
    def _column_of(self) -> dict[str, int]:
        return {term: column for column, term in enumerate(self.feature_names or ())}

    @cached_property
    def _columns(self) -> words.Columns:
        return words.Columns(self.feature_names, self.config.hashed_features)

    def transform(self, texts: list[str], threads: int = 0) -> csr_array:
        """Turn texts into rows of length 1 (empty without a known term); equal to TfidfVectorizer's.

        The bits do not depend on the number of threads; 0 = one per core.
        """
        if not self.config.token_pattern:
            counts = _as_matrix(words.count(texts, self._columns, self.config, threads), self.n_features)
        else:
            counts = _hashed_counts(texts, self.config) if self.feature_names is None else self._counts(texts)
        return self.weigh(counts, threads)

    @cached_property
    def documents(self) -> np.ndarray:
        """Count the documents of each feature: they follow from its idf, exactly."""
        return np.rint((1 + self.n_documents) / np.exp(self.idf - 1) - 1).astype(np.int64)

    @cached_property
    def _mean_terms(self) -> float:
        return float(max(self.documents.sum(), 1) / self.n_documents)

    def weigh(self, counts: csr_array, threads: int = 0) -> csr_array:
        """Turn counts into rows."""
        return words.weigh(counts, self.idf, self.config, self._mean_terms, threads)

    def _counts(self, texts: list[str]) -> csr_array:
        """Count each known term in each text; faster than CountVectorizer, which looks up every word."""
        analyze = term_analyzer(self.config)
        ids, values, counts = [np.empty(0, np.int32)], [np.empty(0)], [0]
        for text in texts:
            terms = Counter(analyze(text))
            columns = np.fromiter(map(self._column_of.get, terms, repeat(-1)), np.int32, len(terms))
            known = columns >= 0
            ids.append(columns[known])
            values.append(np.fromiter(terms.values(), np.float64, len(terms))[known])
            counts.append(len(ids[-1]))
        offsets, shape = np.cumsum(counts, dtype=np.int64), (len(texts), self.n_features)
        rows = build_csr(np.concatenate(values), np.concatenate(ids), offsets, shape)
        rows.sort_indices()
        return rows

    def save(self, folder: str | Path) -> None:
        """Write text.json, idf.npy and, unless hashed, vocabulary.txt."""
        folder = Path(folder)
        with write_errors(folder, InputError):
            folder.mkdir(parents=True, exist_ok=True)
        about = {
            "format": _KIND,
            "format_version": FORMAT_VERSION,
            "n_documents": self.n_documents,
            "n_features": self.n_features,
            "grown": self.grown,
            "settings": asdict(self.config),
        }
        with atomic_path(folder / "idf.npy") as path:
            np.save(path, self.idf, allow_pickle=False)
        if self.feature_names is not None:
            with atomic_path(folder / "vocabulary.txt") as path:
                path.write_bytes("".join(f"{term}\n" for term in self.feature_names).encode())
        # Last, so that a folder with text.json has the rest too.
        with atomic_path(folder / "text.json") as path:
            path.write_bytes(f"{json.dumps(about, indent=1)}\n".encode())

    @classmethod
    def load(cls, folder: str | Path) -> "TextVectorizer":
        """Read what `save` wrote; what does not fit together is refused by the name of its file."""
        folder = Path(folder)
        config, n_documents, n_features, grown = _read_about(folder / "text.json")
        path = folder / "idf.npy"
        with read_errors(path, InputError):
            idf = load_array(path)
        if idf.shape != (n_features,) or idf.dtype != np.float64:
            raise InputError(
                f"{path}: holds {idf.dtype} of shape {idf.shape}, but text.json says {n_features} features"
            )
        # idf = ln((1 + n) / (1 + df)) + 1 with df from 0 to n
        if not (np.isfinite(idf).all() and (idf >= 1).all() and (idf <= math.log1p(n_documents) + 1.001).all()):
            raise InputError(f"{path}: an idf is not a number from 1 to ln(1 + {n_documents}) + 1: the file is damaged")
        terms = None if config.hashed_features else _read_terms(folder / "vocabulary.txt", n_features, grown)
        if config.hashed_features not in (0, n_features):
            raise InputError(f"{folder / 'text.json'}: {config.hashed_features} hashed features, but {n_features} idf")
        return cls(config, n_documents, np.array(idf), terms, grown)


def _read_about(path: Path) -> tuple[TextConfig, int, int, tuple[int, ...]]:
    """Read (settings, n_documents, n_features, where the vocabulary grew) from a text.json."""
    with read_errors(path, InputError):
        try:
            about = read_json(path)
        except FileNotFoundError:
            raise InputError(f"{path.parent}: has no text.json: it was not made from raw text") from None
    is_old = isinstance(about, dict) and about.get("format_version") == OLD_VERSION
    about = check_format(about, path, _KIND, OLD_VERSION if is_old else FORMAT_VERSION, InputError)
    for name in ("n_documents", "n_features"):
        if type(about.get(name)) is not int or not 1 <= about[name] < 2**63:
            raise InputError(f"{path}: {name} must be a count from 1, but is {about.get(name)!r:.40}")
    grown = about.get("grown", [])
    if not isinstance(grown, list) or not all(type(size) is int and 0 < size < about["n_features"] for size in grown):
        raise InputError(f"{path}: grown must be numbers of features, but is {grown!r:.40}")
    try:
        return TextConfig(**about["settings"]), about["n_documents"], about["n_features"], tuple(grown)
    except (KeyError, TypeError, ConfigError) as error:
        raise InputError(f"{path}: settings: {error!s:.400}") from None


def _read_terms(path: Path, n_terms: int, grown: tuple[int, ...]) -> list[str]:
    with read_errors(path, InputError), open_regular(path) as stream:
        terms = stream.read().decode().split("\n")
    if terms.pop() or len(terms) != n_terms:
        raise InputError(f"{path}: has {len(terms)} whole lines, but text.json says {n_terms} features")
    for line, (before, term) in enumerate(pairwise(terms), 2):
        if term <= before and line - 1 not in grown:
            what = "is there twice" if term == before else f"follows {before!r}"
            raise InputError(f"{path}:{line}: term {term!r} {what}: terms must be sorted")
    if grown and len(set(terms)) < n_terms:
        raise InputError(f"{path}: a term is there twice: the file is damaged")
    return terms


def fit_text(chunks: Iterable[list[str]], threads: int = 0, **settings: Any) -> TextVectorizer:
    """Learn vocabulary and idf = ln((1 + n) / (1 + df)) + 1 in one pass; `settings` are those of TextConfig.

    Memory holds one chunk and the terms that were seen. With `hashed_features`, one number a column instead.
    The result does not depend on the number of threads; 0 = one per core.
    """
    return fit_rows(chunks, 0, threads, **settings)[0]


def fit_rows(
    chunks: Iterable[list[str]], max_bytes: int, threads: int = 0, **settings: Any
) -> tuple[TextVectorizer, Iterator[csr_array] | None]:
    """Do what `fit_text` does; returns also the rows of each chunk, to be read once.

    What is counted is kept in memory for that, 8 bytes for each different term of a text. Where it would take more
    than max_bytes, or the terms are those of a regular expression, there are no rows: `transform` splits the texts
    again, with the same result.
    """
    config = TextConfig(**settings)
    counted = _count_documents(chunks, config, threads, max_bytes)
    if counted.n_documents == 0:
        raise InputError("no documents: there is nothing to learn a vocabulary from")
    if not counted.df.any():
        pattern = "text.token_pattern, " if config.token_pattern else "text."
        raise InputError(f"no term left in {counted.n_documents} documents: check {pattern}min_df and max_df")
    idf = _idf(counted.n_documents, counted.df)
    vectorizer = TextVectorizer(config, counted.n_documents, idf, counted.terms)
    if counted.rows is None:
        return vectorizer, None
    matrices = (_as_matrix(counts, len(idf)) for counts in counted.rows)
    return vectorizer, (vectorizer.weigh(matrix, threads) for matrix in matrices)


def grow_text(vectorizer: TextVectorizer, chunks: Iterable[list[str]], threads: int = 0) -> TextVectorizer:
    """Add the terms of new documents behind those that are known; idf is that of all documents together.

    The numbers of documents of known terms follow from their idf, so they are exact. A new term counts from the new
    documents on: in the old ones it was too rare, or too frequent, to be kept.
    """
    config, known = vectorizer.config, vectorizer.feature_names
    old_df = vectorizer.documents.copy()
    all_terms = replace(config, min_df=1, max_df=1.0)
    n_new, terms, new_df, _ = _count_documents(chunks, all_terms, threads)
    n_documents = vectorizer.n_documents + n_new
    if known is None or terms is None:
        return replace(vectorizer, n_documents=n_documents, idf=_idf(n_documents, old_df + new_df))
    column_of = {term: column for column, term in enumerate(known)}
    columns = np.fromiter((column_of.get(term, -1) for term in terms), np.int64, len(terms))
    old_df[columns[columns >= 0]] += new_df[columns >= 0]
    added = np.flatnonzero((columns < 0) & (new_df >= config.min_df) & (new_df <= config.max_df * n_new))
    grown = (*vectorizer.grown, len(known)) if len(added) else vectorizer.grown
    names = [*known, *(terms[place] for place in added)]
    idf = _idf(n_documents, np.concatenate([old_df, new_df[added]]))
    return TextVectorizer(config, n_documents, idf, names, grown)


def _idf(n_documents: int, df: np.ndarray) -> np.ndarray:
    return np.log((1 + n_documents) / (1 + df)) + 1


class _Counted(NamedTuple):
    n_documents: int
    terms: list[str] | None  # sorted; None: hashed
    df: np.ndarray  # documents of each term or column
    rows: Iterator[words.Counts] | None = None  # of each chunk, if they are kept


def _count_documents(chunks: Iterable[list[str]], config: TextConfig, threads: int, max_bytes: int = 0) -> _Counted:
    """Count documents per term within min_df and max_df, or per hashed column."""
    if config.hashed_features:
        return _count_columns(chunks, config, threads)
    if config.token_pattern:
        return _count_terms(chunks, config)
    counter = words.TermCounter(config, threads, max_bytes)
    for texts in chunks:
        counter.add(texts)
    terms, df = counter.terms(config.min_df, config.max_df * counter.n_documents)
    return _Counted(counter.n_documents, terms, df, counter.rows())


def _count_terms(chunks: Iterable[list[str]], config: TextConfig) -> _Counted:
    """Count documents per term of a regular expression."""
    analyze = term_analyzer(config)
    df: Counter[str] = Counter()
    n_documents = 0
    for texts in chunks:
        n_documents += len(texts)
        for text in texts:
            df.update(set(analyze(text)))
    max_count = config.max_df * n_documents
    terms = sorted(term for term, count in df.items() if config.min_df <= count <= max_count)
    check_lines(terms, "term", "text.token_pattern must not match it")
    return _Counted(n_documents, terms, np.array([df[term] for term in terms], np.int64))


def _count_columns(chunks: Iterable[list[str]], config: TextConfig, threads: int) -> _Counted:
    """Count documents per hashed column: there are no terms, and min_df and max_df do not apply."""
    n_documents, df = 0, np.zeros(config.hashed_features, np.int64)
    columns = words.Columns(None, config.hashed_features)
    for texts in chunks:
        n_documents += len(texts)
        if config.token_pattern:
            found = _hashed_counts(texts, config).indices
        else:
            found, _, _ = words.count(texts, columns, config, threads)
        df += np.bincount(found, minlength=len(df))
    return _Counted(n_documents, None, df)


def _as_matrix(counts: words.Counts, n_columns: int) -> csr_array:
    columns, values, offsets = counts
    return build_csr(values.astype(np.float64), columns, offsets, (len(offsets) - 1, n_columns))


def _hashed_counts(texts: list[str], config: TextConfig) -> csr_array:
    if not texts:  # scikit-learn refuses to hash nothing
        return csr_array((0, config.hashed_features), dtype=np.float64)
    from sklearn.feature_extraction.text import HashingVectorizer

    hasher = HashingVectorizer(
        n_features=config.hashed_features, alternate_sign=False, norm=None, **analyzer_settings(config)
    )
    try:
        rows = csr_array(hasher.transform(texts))
    except UnicodeEncodeError as error:
        raise InputError(f"text {error.object[:40]!r} has a half of a surrogate pair: it is not Unicode") from None
    rows.sort_indices()
    return rows


def check_lines(names: Iterable[str], noun: str, advice: str) -> None:
    """Refuse names that a file with one UTF-8 name per line could not hold."""
    for name in names:
        if _NOT_A_LINE.search(name):
            raise InputError(f"{noun} {name!r} has a line break or is not Unicode: {advice}")


def fit_labels(chunks: Iterable[list[list[str]]], known: Sequence[str] = ()) -> list[str]:
    """List the names in `known`, then all others in order.

    For a test split, pass the names of training as `known`: columns keep their numbers, and a label that training
    never saw gets one of the last columns. No prediction can hit it, so every metric counts it as missed.
    """
    seen = {name for lists in chunks for names in lists for name in names}
    added = sorted(seen.difference(known))
    check_lines(added, "label", "rename it")
    return [*known, *added]


def label_matrix(lists: list[list[str]], column_of: dict[str, int], unknown: str = "error") -> csr_array:
    """Turn lists of names into CSR of ones; a name that a row has twice counts once.

    A name without a column is an error, or with `unknown="drop"` left out, and the log says how many were.
    """
    if unknown not in ("error", "drop"):
        raise InputError(f"unknown must be 'error' or 'drop', but is {unknown!r}")
    rows = [sorted({column_of.get(name, -1) for name in names}) for names in lists]
    if any(columns and columns[0] < 0 for columns in rows):
        missing = [name for names in lists for name in names if name not in column_of]
        if unknown == "error":
            raise InputError(f"label {missing[0]!r} was not seen in training")
        _log.warning("%d labels such as %r were not seen in training and are left out", len(missing), missing[0])
        rows = [columns[1:] if columns and columns[0] < 0 else columns for columns in rows]
    offsets = np.concatenate([[0], np.cumsum([len(columns) for columns in rows], dtype=np.int64)])
    ids = np.fromiter((column for columns in rows for column in columns), np.int32, offsets[-1])
    return build_csr(np.ones(len(ids), np.float32), ids, offsets, (len(lists), len(column_of)))
