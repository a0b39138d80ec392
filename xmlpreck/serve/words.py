"""Find where in a text the terms are that a model knows."""

import functools
import itertools
import unicodedata

from xmlpreck.data.text import TextVectorizer

MAX_WORDS = 20_000


@functools.lru_cache(1 << 16)
def _is_of_word(character: str) -> bool:
    """Tell whether a character may be within a word, by the rules of docs/text.md: all others separate words."""
    return character.isalnum() or character in "-+#" or unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")


def _runs(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of the words of a text, hyphens included."""
    ends = [0, *itertools.accumulate(len(list(run)) for _, run in itertools.groupby(text, _is_of_word))]
    return [(start, end) for start, end in itertools.pairwise(ends) if _is_of_word(text[start])][:MAX_WORDS]


def find_terms(text: str, vectorizer: TextVectorizer) -> list[tuple[int, int, list[int]]]:
    """Return (start, end, features) of the words of a text that have features, in their order; places are characters.

    The vectorizer is asked for each word by itself, so stems, folded letters and hashed terms are found too. With
    n-grams, neighbours have the features that they have only together.
    """
    runs = _runs(text)
    lengths = range(1, vectorizer.config.ngrams + 1)
    # (first word, number of words): single words, then pairs, and so on.
    spans = [(first, n) for n in lengths for first in range(len(runs) - n + 1)]

    def piece(first: int, n: int) -> str:
        return text[runs[first][0] : runs[first + n - 1][1]]

    pieces = list(dict.fromkeys(piece(*span) for span in spans))
    if not pieces:
        return []
    rows = vectorizer.transform(pieces, threads=1)
    ends = zip(rows.indptr, rows.indptr[1:], strict=False)
    features_of = {one: rows.indices[a:b].tolist() for one, (a, b) in zip(pieces, ends, strict=True)}
    found = []
    for first, n in spans:
        shorter = [] if n == 1 else [*features_of[piece(first, n - 1)], *features_of[piece(first + 1, n - 1)]]
        if own := [feature for feature in features_of[piece(first, n)] if feature not in shorter]:
            found.append((runs[first][0], runs[first + n - 1][1], own))
    return sorted(found)
