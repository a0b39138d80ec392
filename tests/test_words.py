"""Words of every script: compiled code beside the plain one in reference.py, on drawn texts and on odd ones."""

import sys
import unicodedata
from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import kind_of_character, terms_of
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.utils import murmurhash3_32

from xmlpreck.config import InputError, TextConfig
from xmlpreck.data import words
from xmlpreck.data.dataset import stack_rows
from xmlpreck.data.text import fit_rows, fit_text
from xmlpreck.kernels.terms import murmur3
from xmlpreck.kernels.words import HYPHEN, IDEOGRAPH, OTHER, SIGN, SYLLABIC, WORD

KINDS = {"w": WORD, "i": IDEOGRAPH, "s": SYLLABIC, "h": HYPHEN, "+": SIGN, " ": OTHER}


@pytest.fixture
def small_shares(monkeypatch):
    """Let threads share a few bytes."""
    monkeypatch.setattr(words, "_MIN_BYTES", 1)
    monkeypatch.setattr(words, "_MIN_VALUES", 1)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Übergröße STRASSE Straße", "übergrösse strasse strasse"),
        ("COVID-19, 3D and H2O", "covid 19 covid-19 3d and h2o"),
        ("e-mail e\u2010mail e\u2011mail e\xadmail", "e mail e-mail e mail e-mail e mail e-mail email"),
        ("C++, C#; a+b, C++11 +x x- -y c+++", "c c++ c c# a b c 11 x x y c c++"),
        ("\N{LATIN SMALL LIGATURE FI}ne m\xb2 ½ \uff21\uff22", "fine m2 1 2 ab"),
        ("e\u0301te\u0301 \u1112\u1161\u11ab", "été 한"),
        ("हिन्दी में", "हिन्दी में"),
        ("слово_два don't", "слово два don t"),
        ("3D打印机 x", "3d 打 打印 印 印机 机 x"),
        ("ดี กา", "ดี กา"),
        ("ภาษา", "ภา ภาษ ภาษา าษ าษา ษา"),
        ("カタ\uff76\uff9e", "カ カタ タ タガ ガ"),
        ("\ud800a\ud800 \0b", "a b"),
        ("", ""),
    ],
)
def test_terms_of_odd_texts(text, terms):
    assert sorted(terms_of(text)) == sorted(terms.split())
    vectorizer = fit_text([[text, "end"]], min_df=1, max_df=1.0, sublinear_tf=False)
    assert vectorizer.feature_names == sorted({*terms.split(), "end"})


def counts_of(texts, config, threads):
    """Count terms by compiled code: (documents of each term, a Counter of each text)."""
    counter = words.TermCounter(config, threads, max_bytes=1 << 20)
    counter.add(texts[:1])
    counter.add(texts[1:])
    terms, documents = counter.terms(1, len(texts))
    ids, counts, offsets = words.count(texts, words.Columns(terms), config, threads)
    kept = list(counter.rows())
    np.testing.assert_array_equal(np.concatenate([chunk[0] for chunk in kept]), ids)
    np.testing.assert_array_equal(np.concatenate([chunk[1] for chunk in kept]), counts)
    sizes = [np.diff(chunk[2]) for chunk in kept]
    np.testing.assert_array_equal(np.concatenate(sizes), np.diff(offsets))
    found = [Counter({terms[ids[at]]: int(counts[at]) for at in range(start, end)}) for start, end in pairwise(offsets)]
    return dict(zip(terms, documents.tolist(), strict=True)), found


letters = st.characters(exclude_categories=["Cs"]) | st.sampled_from("aB-+# \u0301ß打タก\u3099\u1161가\xad½_1\u0e49")


@pytest.mark.usefixtures("small_shares")
@settings(deadline=None)
@given(
    st.lists(st.text(letters, max_size=40), min_size=1, max_size=4),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["", "", "1-1", "2-4", "4-10"]),
)
@example(["\ufdfa" * 50, "a" * 5000, "-".join("ab" * 50)], 2, True, "1-10")
@example(["打a 3D打印ab"], 2, True, "2-3")
def test_compiled_terms_are_the_references(texts, ngrams, lowercase, chars):
    config = TextConfig(ngrams=ngrams, lowercase=lowercase, char_ngrams=chars)
    shortest, longest = config.char_lengths
    lengths = range(shortest, longest + 1) if chars else ()
    expected = [Counter(terms_of(text, ngrams, lowercase, lengths)) for text in texts]
    documents = Counter(term for counts in expected for term in counts)
    for threads in (1, 3):
        assert counts_of(texts, config, threads) == (documents, expected)


def test_runs_of_characters_are_scikit_learns():
    texts = ["a été naïve-x c++", "слово a bc", ""]
    ours = fit_text([texts], min_df=1, max_df=1.0, char_ngrams="3-5", sublinear_tf=False)
    theirs = CountVectorizer(analyzer="char_wb", ngram_range=(3, 5), min_df=1).fit(texts)
    terms = {term for text in texts for term in terms_of(text)}
    assert ours.feature_names == sorted({*theirs.get_feature_names_out(), *terms})
    is_theirs = [place for place, term in enumerate(ours.feature_names) if term not in terms]
    rows = ours.transform(texts).toarray() / ours.idf
    found = theirs.transform(texts).toarray()[:, [theirs.vocabulary_[ours.feature_names[place]] for place in is_theirs]]
    for row, counts in zip(rows[:2, is_theirs], found[:2], strict=True):
        np.testing.assert_allclose(row / row.sum(), counts / counts.sum(), rtol=1e-5)


def zipf_texts():
    draw = np.random.default_rng(0)
    return [" ".join(f"w{n}-x{n % 7}" for n in draw.zipf(1.3, size=50) % 5000) for _ in range(300)]


@pytest.mark.usefixtures("small_shares")
def test_threads_do_not_matter():
    texts = zipf_texts()
    one = fit_text([texts[:100], texts[100:]], threads=1)
    expected = one.transform(texts, threads=1)
    for threads in (1, 2, 5):
        other, kept = fit_rows([texts[:100], texts[100:]], 1 << 20, threads)
        assert other.feature_names == one.feature_names
        np.testing.assert_array_equal(other.idf, one.idf)
        for rows in (other.transform(texts, threads=threads), stack_rows(list(kept))):
            for name in ("data", "indices", "indptr"):
                np.testing.assert_array_equal(getattr(rows, name), getattr(expected, name))


def test_counts_beyond_the_bound_are_not_kept():
    counter = words.TermCounter(TextConfig(), max_bytes=10_000)
    texts = zipf_texts()
    counter.add(texts[:10])
    assert 8 * 10 * 20 < counter.n_bytes <= 10_000  # a text has at least 20 different terms
    counter.add(texts[10:])
    assert counter.rows() is None
    assert fit_rows([texts], 0)[1] is None


def test_kinds_of_all_characters():
    for point in range(0x110000):
        character = chr(point)
        if unicodedata.category(character)[0] in "LMN":
            assert words.kind_of(character) == KINDS[kind_of_character(character)], hex(point)


def test_murmur3_is_scikit_learns():
    draw = np.random.default_rng(0)
    for size in (*range(9), 100):
        data = draw.integers(0, 256, size, np.uint8)
        for seed in (0, 7, 2**32 - 1):
            assert murmur3(data, 0, size, np.uint32(seed)) == murmurhash3_32(data.tobytes(), seed, positive=True)


def test_terms_of_one_hash_stay_apart(monkeypatch):
    monkeypatch.setattr(words, "_SEED", np.uint32(0))
    terms_of_hash = defaultdict(list)
    for number in range(200_000):  # 2^31 hashes: some 9 pairs
        terms_of_hash[murmurhash3_32(f"w{number}", 0, positive=True) >> 1].append(f"w{number}")
    texts = [" ".join(terms) for terms in terms_of_hash.values() if len(terms) > 1]
    assert len(texts) > 1
    documents, found = counts_of(texts, TextConfig(), 1)
    assert found == [Counter(text.split()) for text in texts]
    assert set(documents.values()) == {1}


def test_stems_of_a_language():
    pytest.importorskip("Stemmer")
    texts = ["Das Haus, die HÄUSER: Übergrößen-Haus", "Häuser"]
    by_name, by_code = (fit_text([texts], min_df=1, max_df=1.0, language=name) for name in ("german", "de"))
    assert by_name.feature_names == by_code.feature_names
    assert "haus" in by_name.feature_names
    assert not {"häuser", "hauser"} & set(by_name.feature_names)
    rows = by_name.transform(["Häusern", "Haus"])
    assert rows[[0]].indices.tolist() == rows[[1]].indices.tolist() == [by_name.feature_names.index("haus")]
    with pytest.raises(InputError, match=r"text.language 'klingon': there are no stems for it, only for arabic"):
        fit_text([["a"]], language="klingon")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"language": "../de"}, "text.language must be a language such as de or german, but is '../de'"),
        ({"language": "de", "token_pattern": "a+"}, "text.language must be empty beside text.token_pattern"),
    ],
)
def test_languages_that_are_none(settings, message):
    with pytest.raises(InputError, match=message):
        TextConfig(**settings)


def test_without_the_stemmer_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    words.stemmer.cache_clear()
    with pytest.raises(InputError, match=r"stems need the package PyStemmer: pip install 'xmlpreck\[language\]'"):
        fit_text([["a"]], language="de")
