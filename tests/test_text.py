"""Raw text: equal to scikit-learn's vectorizers whatever the chunks, whole on disk, damage and gaps told by name."""

import gc
import json
import random
import re
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from reference import saturated, terms_of
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer

import xmlpreck
from xmlpreck.cli import main
from xmlpreck.config import ConfigError, InputError, TextConfig
from xmlpreck.data import formats
from xmlpreck.data.corpus import Corpus, count_labels, learn, vectorize
from xmlpreck.data.dataset import stack_rows
from xmlpreck.data.location import DataLocation
from xmlpreck.data.shards import ShardSet
from xmlpreck.data.text import (
    TextVectorizer,
    analyzer_settings,
    fit_labels,
    fit_rows,
    fit_text,
    grow_text,
    label_matrix,
)
from xmlpreck.model import Model

WORDS = r"(?u)\w\w+"


def made_up_texts(n, seed=0, n_words=60):
    """Texts whose words have the frequencies of 1/rank, with capitals, accents, digits and empty texts among them."""
    draw = random.Random(seed)
    words = [f"{draw.choice(['Wort', 'été', 'слово', 'x-ray', 'naïve', 'b2b'])}{i}" for i in range(n_words)]
    shares = [1 / (rank + 1) for rank in range(n_words)]
    return [" ".join(draw.choices(words, shares, k=draw.choice([0, 1, 5, 40]))) for _ in range(n)]


def chunked(items, size):
    return [items[start : start + size] for start in range(0, len(items), size)]


def split_alike(config):
    """Settings that make scikit-learn split texts into the same terms."""
    if config.token_pattern:
        return analyzer_settings(config)
    return {"analyzer": partial(terms_of, ngrams=config.ngrams, lowercase=config.lowercase)}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ngrams": 3, "min_df": 1, "max_df": 1.0},
        {"lowercase": False, "sublinear_tf": False, "max_df": 0.3},
        {"min_df": 1, "max_df": 1.0, "token_pattern": WORDS},
        {"ngrams": 3, "min_df": 2, "token_pattern": WORDS},
        {"lowercase": False, "sublinear_tf": False, "max_df": 0.3, "token_pattern": WORDS},
        {"token_pattern": r"[a-z](\w+)"},  # a group is the term
    ],
)
def test_equals_tfidf_vectorizer(settings):
    texts, new_texts = made_up_texts(300), made_up_texts(50, seed=1, n_words=90)
    ours = fit_text(chunked(texts, 64), **settings)
    config = TextConfig(**settings)
    theirs = TfidfVectorizer(
        min_df=config.min_df, max_df=config.max_df, sublinear_tf=config.sublinear_tf, **split_alike(config)
    )
    theirs.fit(texts)
    assert ours.feature_names == theirs.get_feature_names_out().tolist()
    assert ours.n_documents == 300
    for part in (texts, new_texts):
        rows = ours.transform(part)
        assert rows.dtype == np.float32
        assert rows.indices.dtype == np.int32
        assert rows.has_canonical_format
        np.testing.assert_allclose(rows.toarray(), theirs.transform(part).toarray(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"hashed_features": 50}, {"token_pattern": WORDS}])
def test_bm25_is_the_references(settings, tmp_path):
    texts, new_texts = made_up_texts(300), made_up_texts(50, seed=1, n_words=90)
    ours, kept = fit_rows(chunked(texts, 64), 1 << 20, weighting="bm25", **settings)
    ours.save(tmp_path)
    again = TextVectorizer.load(tmp_path)
    alike = split_alike(ours.config)
    if ours.feature_names is None:
        counter = HashingVectorizer(n_features=50, alternate_sign=False, norm=None, **alike)
    else:
        counter = CountVectorizer(vocabulary=ours.feature_names, **alike)
    mean_terms = counter.transform(texts).nnz / len(texts)
    for part in (texts, new_texts):
        expected = np.zeros((len(part), ours.n_features))
        counts = [dict(zip(row.indices, row.data, strict=True)) for row in map(csr_array, counter.transform(part))]
        for row, values in enumerate(saturated(counts, ours.idf, mean_terms)):
            expected[row, list(values)] = list(values.values())
        rows = ours.transform(part)
        np.testing.assert_allclose(rows.toarray(), expected, rtol=0, atol=1e-6)
        np.testing.assert_array_equal(again.transform(part).data, rows.data)
    if kept is not None:
        np.testing.assert_array_equal(stack_rows(list(kept)).data, ours.transform(texts).data)


def test_models_from_before_a_setting_keep_their_bits(tmp_path):
    texts = made_up_texts(100)
    vectorizer = fit_text([texts])
    vectorizer.save(tmp_path)
    about = json.loads((tmp_path / "text.json").read_text(encoding="utf-8"))
    del about["settings"]["weighting"], about["settings"]["char_ngrams"]
    (tmp_path / "text.json").write_text(json.dumps(about), encoding="utf-8")
    np.testing.assert_array_equal(TextVectorizer.load(tmp_path).transform(texts).data, vectorizer.transform(texts).data)


@pytest.mark.parametrize("settings", [{}, {"ngrams": 2, "sublinear_tf": False, "token_pattern": WORDS}])
def test_hashed_equals_hashing_vectorizer_and_tfidf_transformer(settings):
    texts, new_texts = made_up_texts(300), made_up_texts(50, seed=1, n_words=90)
    ours = fit_text(chunked(texts, 64), hashed_features=50, **settings)  # few columns: terms collide
    config = TextConfig(**settings)
    hasher = HashingVectorizer(n_features=50, alternate_sign=False, norm=None, **split_alike(config))
    tfidf = TfidfTransformer(sublinear_tf=config.sublinear_tf).fit(hasher.transform(texts))
    assert ours.feature_names is None
    assert ours.n_features == 50
    rows = ours.transform(new_texts)
    assert rows.dtype == np.float32
    assert rows.has_canonical_format
    np.testing.assert_allclose(
        rows.toarray(), tfidf.transform(hasher.transform(new_texts)).toarray(), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("hashed_features", [0, 64])
def test_chunks_do_not_matter(hashed_features):
    texts = made_up_texts(100)
    whole = fit_text([texts], hashed_features=hashed_features, token_pattern=WORDS)
    expected = whole.transform(texts)
    for size in (1, 7):
        parts = fit_text([[], *chunked(texts, size)], hashed_features=hashed_features, token_pattern=WORDS)
        assert parts.feature_names == whole.feature_names
        np.testing.assert_array_equal(parts.idf, whole.idf)
        rows = [parts.transform(chunk).toarray() for chunk in chunked(texts, size)]
        np.testing.assert_array_equal(np.vstack(rows), expected.toarray())


@pytest.mark.parametrize("hashed_features", [0, 64])
def test_empty_documents_are_empty_rows(hashed_features):
    vectorizer = fit_text([["one two", "one three", ""]], min_df=1, max_df=1.0, hashed_features=hashed_features)
    rows = vectorizer.transform(["", "one", "..."])
    assert np.diff(rows.indptr).tolist() == [0, 1, 0]
    assert rows.data.tolist() == [1.0]
    assert vectorizer.transform([]).shape == (0, vectorizer.n_features)


def test_hand_computed_idf():
    vectorizer = fit_text([["aa bb", "aa"], ["aa cc cc"]], min_df=1, max_df=1.0)
    assert vectorizer.feature_names == ["aa", "bb", "cc"]
    np.testing.assert_allclose(vectorizer.idf, np.log([4 / 4, 4 / 2, 4 / 2]) + 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_df": 0}, "text.min_df must be 1 or more, but is 0"),
        ({"max_df": 1.5}, "text.max_df must be a share"),
        ({"max_df": 0.0}, "text.max_df must be a share"),
        ({"max_df": float("nan")}, "text.max_df must be a share"),
        ({"max_df": "1"}, "text.max_df must be of type float, but is '1'"),
        ({"ngrams": 0}, "text.ngrams must be 1 or more, but is 0"),
        ({"ngrams": 10**9}, "text.ngrams must be at most 10, but is 1000000000"),
        ({"ngrams": True}, "text.ngrams must be of type int"),
        ({"hashed_features": -1}, "text.hashed_features must be 0 or more"),
        ({"token_pattern": "[a-"}, "text.token_pattern must be a regular expression, but is '[a-'"),
        ({"token_pattern": "(a)(b)"}, "at most one (group)"),
        ({"weighting": "bm"}, "text.weighting must be one of tfidf, bm25, but is 'bm'"),
        ({"char_ngrams": "5-3"}, "text.char_ngrams must be lengths such as 3-5, from 1 to 10, but is '5-3'"),
        ({"char_ngrams": "3"}, "text.char_ngrams must be lengths"),
        ({"char_ngrams": "3-99"}, "text.char_ngrams must be lengths"),
        ({"char_ngrams": "3-5", "token_pattern": "a"}, "text.char_ngrams must be empty beside text.token_pattern"),
    ],
)
def test_bad_settings_are_one_line(settings, message):
    with pytest.raises(ConfigError) as caught:
        fit_text([["some text"]], **settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        ([], {}, "no documents"),
        (["", "12"], {}, "no term left in 2 documents: check text.min_df and max_df"),
        (["", "12"], {"token_pattern": "[a-z]+"}, "no term left in 2 documents: check text.token_pattern, min_df and"),
        (["", "..."], {"hashed_features": 8}, "no term left in 2 documents"),
        (["one", "two"], {}, "no term left in 2 documents"),
        (["a\nb"], {"token_pattern": r"[^ ]+", "min_df": 1, "max_df": 1.0}, r"term 'a\nb' has a line break"),
        (["a\ud800"], {"token_pattern": r"\S+", "min_df": 1, "max_df": 1.0}, r"term 'a\ud800' has"),
        (["a\ud800"], {"token_pattern": r"\S+", "hashed_features": 8}, "it is not Unicode"),
    ],
)
def test_texts_that_teach_nothing(texts, settings, message):
    with pytest.raises(InputError) as caught:
        fit_text([texts], **settings)
    assert message in str(caught.value)


@pytest.fixture(scope="module", params=[0, 32], ids=["vocabulary", "hashed"])
def saved(request, tmp_path_factory):
    vectorizer = fit_text([made_up_texts(80)], hashed_features=request.param, token_pattern=WORDS, ngrams=2)
    folder = tmp_path_factory.mktemp("saved") / "text"
    vectorizer.save(folder)
    return vectorizer, folder


def test_save_and_load_bring_back_everything(saved):
    vectorizer, folder = saved
    again = TextVectorizer.load(folder)
    names = {"text.json", "idf.npy"} | (set() if vectorizer.config.hashed_features else {"vocabulary.txt"})
    assert {path.name for path in folder.iterdir()} == names
    assert again.config == vectorizer.config
    assert again.feature_names == vectorizer.feature_names
    assert again.n_documents == 80
    texts = made_up_texts(20, seed=3)
    expected, rows = vectorizer.transform(texts), again.transform(texts)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(rows, name), getattr(expected, name))


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_settings(path, **changes):
    about = json.loads(path.read_text())
    edit_json(path, settings=about["settings"] | changes)


def edit_lines(path, change):
    path.write_bytes(change(path.read_bytes().split(b"\n")))


def edit_idf(path, change):
    np.save(path, change(np.load(path)))


DAMAGE = {
    "not json": ("text.json", lambda p: p.write_text("{")),
    "another json": ("text.json", lambda p: p.write_text("[]")),
    "newer version": ("text.json", lambda p: edit_json(p, format_version=99)),
    "no documents": ("text.json", lambda p: edit_json(p, n_documents=0)),
    "size as text": ("text.json", lambda p: edit_json(p, n_features="9")),
    "no settings": ("text.json", lambda p: edit_json(p, settings=None)),
    "unknown setting": ("text.json", lambda p: edit_settings(p, stemmer="porter")),
    "bad setting": ("text.json", lambda p: edit_settings(p, min_df=0)),
    "grown beyond its size": ("text.json", lambda p: edit_json(p, grown=[10**6])),
    "grown by words": ("text.json", lambda p: edit_json(p, grown="12")),
    "bad hash size": ("text.json", lambda p: edit_settings(p, hashed_features=7)),
    "short idf": ("idf.npy", lambda p: edit_idf(p, lambda idf: idf[1:])),
    "float32 idf": ("idf.npy", lambda p: edit_idf(p, np.float32)),
    "nan idf": ("idf.npy", lambda p: edit_idf(p, lambda idf: np.where(idf == idf[0], np.nan, idf))),
    "large idf": ("idf.npy", lambda p: edit_idf(p, lambda idf: idf + 100)),
    "cut idf": ("idf.npy", lambda p: p.write_bytes(p.read_bytes()[:-3])),
    "no idf": ("idf.npy", lambda p: p.unlink()),
    "pickled idf": ("idf.npy", lambda p: np.save(p, np.array([{}], object), allow_pickle=True)),
    "term twice": ("vocabulary.txt", lambda p: edit_lines(p, lambda t: b"\n".join([t[0], t[0], *t[2:]]))),
    "terms swapped": ("vocabulary.txt", lambda p: edit_lines(p, lambda t: b"\n".join([t[1], t[0], *t[2:]]))),
    "term missing": ("vocabulary.txt", lambda p: edit_lines(p, lambda t: b"\n".join(t[1:]))),
    "cut terms": ("vocabulary.txt", lambda p: p.write_bytes(p.read_bytes()[:-1])),
    "not utf-8": ("vocabulary.txt", lambda p: edit_lines(p, lambda t: b"\n".join([b"\xff", *t[1:]]))),
    "no terms": ("vocabulary.txt", lambda p: p.unlink()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_by_name(saved, tmp_path, damage):
    name, change = DAMAGE[damage]
    vectorizer, original = saved
    if name == "vocabulary.txt" and vectorizer.config.hashed_features:
        pytest.skip("a hashed vectorizer has no vocabulary")
    folder = shutil.copytree(original, tmp_path / "text")
    change(folder / name)
    with pytest.raises(InputError) as caught:
        TextVectorizer.load(folder)
    # A vectorizer that claims to be hashed is caught by its number of idf values.
    assert str(folder / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_vectorizer_there(tmp_path):
    with pytest.raises(InputError, match=r"has no text\.json"):
        TextVectorizer.load(tmp_path)


def test_any_flipped_byte_of_idf_is_an_error_or_a_plausible_number(saved, tmp_path):
    _, original = saved
    folder = shutil.copytree(original, tmp_path / "text")
    data = (folder / "idf.npy").read_bytes()
    draw = random.Random(0)
    for position in range(160):  # the header and the first values
        changed = bytearray(data)
        changed[position] ^= 1 << draw.randrange(8)
        (folder / "idf.npy").write_bytes(changed)
        try:
            idf = TextVectorizer.load(folder).idf
        except InputError:
            continue
        assert np.isfinite(idf).all()


def test_names_of_labels():
    train = [[["b", "a"], []], [["ü", "b"]]]
    names = fit_labels(train)
    assert names == ["a", "b", "ü"]
    matrix = label_matrix([["ü", "a", "ü"], [], ["b"]], {name: i for i, name in enumerate(names)})
    assert matrix.toarray().tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert matrix.dtype == np.float32
    assert matrix.indices.dtype == np.int32
    assert matrix.has_canonical_format


def test_unseen_labels_do_not_vanish_in_silence(caplog):
    column_of = {"a": 0, "b": 1}
    test = [["z", "b"], ["y"], ["a"]]
    with pytest.raises(InputError, match="label 'z' was not seen in training"):
        label_matrix(test, column_of)
    dropped = label_matrix(test, column_of, unknown="drop")
    assert dropped.toarray().tolist() == [[0, 1], [0, 0], [1, 0]]
    assert "2 labels such as 'z' were not seen in training" in caplog.text
    # What evaluation does: columns behind those of training.
    names = fit_labels([test], known=["a", "b"])
    assert names == ["a", "b", "y", "z"]
    extended = label_matrix(test, {name: i for i, name in enumerate(names)})
    assert extended.toarray().tolist() == [[0, 1, 0, 1], [0, 0, 1, 0], [1, 0, 0, 0]]


def test_bad_label_names():
    with pytest.raises(InputError, match="rename it"):
        fit_labels([[["two\nlines"]]])
    with pytest.raises(InputError, match="unknown must be 'error' or 'drop', but is 'keep'"):
        label_matrix([], {}, unknown="keep")


def test_real_texts_against_scikit_learn(shared_data):
    path = shared_data / "eurlex57k" / "dev.parquet"
    if not path.exists():
        pytest.skip("needs ../shared/data/eurlex57k (not shipped)")
    documents = next(formats.document_chunks(path, "test", rows_per_chunk=1000))
    ours = fit_text([documents.texts], ngrams=2)
    theirs = TfidfVectorizer(sublinear_tf=True, min_df=3, max_df=0.5, **split_alike(TextConfig(ngrams=2)))
    expected = theirs.fit_transform(documents.texts)
    assert ours.feature_names == theirs.get_feature_names_out().tolist()
    assert abs(ours.transform(documents.texts) - expected).max() < 1e-6
    names = fit_labels([documents.labels])
    matrix = label_matrix(documents.labels, {name: column for column, name in enumerate(names)})
    assert matrix.nnz == sum(map(len, documents.labels))


# A vocabulary that grows.


@pytest.mark.parametrize("settings", [{}, {"token_pattern": WORDS, "ngrams": 2}, {"hashed_features": 64}])
def test_a_grown_vocabulary_has_the_idf_of_all_texts(tmp_path, settings):
    old_texts, new_texts = made_up_texts(200), made_up_texts(150, seed=1, n_words=90)
    old = fit_text([old_texts], min_df=1, max_df=1.0, **settings)
    grown = grow_text(old, chunked(new_texts, 64))
    whole = fit_text([old_texts + new_texts], min_df=1, max_df=1.0, **settings)
    assert grown.n_documents == 350
    if old.feature_names is None:
        np.testing.assert_array_equal(grown.idf, whole.idf)
        return
    assert grown.feature_names[: old.n_features] == old.feature_names
    assert sorted(grown.feature_names) == whole.feature_names
    np.testing.assert_array_equal(grown.idf[np.argsort(np.array(grown.feature_names, object))], whole.idf)
    again = grow_text(grown, [["Wort1 quite-new words"]])
    again.save(tmp_path)
    read = TextVectorizer.load(tmp_path)
    assert read.feature_names == again.feature_names
    assert read.grown == (old.n_features, grown.n_features)
    assert abs(read.transform(new_texts) - again.transform(new_texts)).max() == 0


def test_new_terms_must_be_in_enough_new_texts():
    old = fit_text([["aa bb"] * 3 + ["cc"] * 4])
    assert old.feature_names == ["aa", "bb"]
    grown = grow_text(old, [["dd cc aa"] * 3 + ["ee"] * 2 + ["ff"] * 9])
    assert grown.feature_names == ["aa", "bb", "cc", "dd"]
    np.testing.assert_allclose(grown.idf, np.log(22 / (1 + np.array([6, 3, 3, 3]))) + 1)
    assert grow_text(grown, [["aa"]]).grown == (2,)


def test_update_makes_features_of_new_words(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    animals, plants = ["cat", "dog", "cow"], ["oak", "elm"]
    for name, words in (("old.jsonl", animals), ("new.jsonl", plants)):
        lines_file(tmp_path / name, *({"text": f"the {word}", "labels": [word]} for word in words * 20))
    assert main(["train", "--data", "old.jsonl", "--no-tune", "--threads", "1", "--out", "m"]) == 0
    words = ["update", "--model", "m", "--data", "new.jsonl", "--threads", "1", "--epochs", "3", "--out"]
    assert main([*words, "as-it-was"]) == 0
    assert Model.load("as-it-was").feature_names == Model.load("m").feature_names == ["cat", "cow", "dog"]
    assert main([*words, "grown", "--grow-vocabulary"]) == 0
    grown = Model.load("grown")
    assert grown.feature_names == ["cat", "cow", "dog", "elm", "oak"]
    for word in animals + plants:
        assert grown.label_names[grown.predict_one(f"the {word}", 1).labels[0]] == word
    capsys.readouterr()
    (tmp_path / "rows.txt").write_text("1 3 3\n0 0:1\n")
    assert main(["update", "--model", "m", "--data", "rows.txt", "--out", "x", "--grow-vocabulary"]) == 2
    assert "--grow-vocabulary needs new texts" in capsys.readouterr().err


def lines_file(path, *objects):
    path.write_text("".join(f"{json.dumps(fields)}\n" for fields in objects), encoding="utf-8")


def test_training_on_text_says_how_its_seconds_were_spent(tmp_path):
    lines_file(tmp_path / "d.jsonl", *({"text": text, "labels": ["x"]} for text in ("a cat", "the dog", "a dog")))
    notes = []
    rows, vectorizer = DataLocation(str(tmp_path / "d.jsonl")).learn(TextConfig(min_df=1, max_df=1.0), notes.append)
    assert rows.n_rows == 3
    assert vectorizer.feature_names == ["a", "cat", "dog", "the"]
    assert notes[0] == "reading text"
    assert re.fullmatch(r"3 texts read in \d+\.\d s, made into rows of 4 features in \d+\.\d s", notes[1])


def test_texts_are_read_once_and_again_where_their_counts_do_not_fit(tmp_path):
    lines_file(tmp_path / "d.jsonl", *({"id": n, "text": f"a{n % 9} b{n % 4}", "labels": ["x"]} for n in range(50)))
    corpus, config = Corpus(tmp_path / "d.jsonl", "train"), TextConfig(min_df=1, max_df=1.0)
    _, expected = learn(corpus, config)
    assert expected.row_ids == list(range(50))
    vectorizer, stored = learn(corpus, config, max_bytes=1)
    assert isinstance(stored, ShardSet)
    pattern = replace(config, token_pattern=r"\w\w+")  # what it matches is not kept
    again = learn(corpus, pattern)[1]
    assert again.row_ids == expected.row_ids
    for made in (stored.read(0, 50), vectorize(corpus, vectorizer, ["x"]), again):
        assert made.label_names == ["x"]
        for name in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(made.rows, name), getattr(expected.rows, name))
            np.testing.assert_array_equal(getattr(made.labels, name), getattr(expected.labels, name))
    folder = stored.folder
    assert folder.is_dir()
    del stored
    gc.collect()
    assert not folder.exists()


def test_labels_twice_in_a_row_count_once(tmp_path):
    (tmp_path / "d.csv").write_text("text,labels\na,y;x;y\nb a,x;z\n", encoding="utf-8")
    _, rows = learn(Corpus(tmp_path / "d.csv", "train"), TextConfig(min_df=1, max_df=1.0))
    np.testing.assert_array_equal(rows.labels.toarray(), [[1, 1, 0], [1, 0, 1]])


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """A folder with texts to train on and to test, in which labels depend on words."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for split, n_rows in (("train", 300), ("test", 60)):
        words = draw.integers(0, 30, (n_rows, 6))
        extra = [["new"] if split == "test" and row == 0 else [] for row in range(n_rows)]
        (tmp_path / "texts").mkdir(exist_ok=True)
        lines_file(
            tmp_path / "texts" / f"{split}.jsonl",
            *(
                {"text": " ".join(f"w{n}" for n in row), "labels": sorted({f"l{n % 7}" for n in row[:2]}) + more}
                for row, more in zip(words.tolist(), extra, strict=True)
            ),
        )
    return tmp_path


def test_training_on_texts_whose_rows_stay_on_disk(notes, monkeypatch):
    expected = xmlpreck.fit("texts", tune=False, epochs=2)
    monkeypatch.setattr("xmlpreck.data.corpus.KEPT_SHARE", 1e-15)

    said = []

    class Noting(xmlpreck.Listener):
        def note(self, text):
            said.append(text)

    model = xmlpreck.fit("texts", tune=False, epochs=2, listener=Noting())
    assert any(re.match(r"rows on disk while the run lasts: [\d.]+ MB in ", text) for text in said)
    assert model.feature_names == expected.feature_names
    np.testing.assert_array_equal(model.decision_function(rows_of(model)), expected.decision_function(rows_of(model)))


def rows_of(model):
    return model.vectorizer.transform([f"w{n} w{n + 1}" for n in range(20)])


def test_converted_texts_train_as_the_texts_do(notes, capsys):
    assert main(["data", "convert", "texts", "shards", "--set", "text.ngrams=2", "--rows-per-shard", "100"]) == 0
    out = capsys.readouterr().out
    assert "shards/train: 300 rows in 3 parquet shards" in out
    assert "shards/test: 60 rows in 1 parquet shards" in out
    expected, vectorizer = DataLocation("texts").learn(TextConfig(ngrams=2))
    rows = xmlpreck.load_data("shards").read(0, 300)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(rows.rows, name), getattr(expected.rows, name))
    np.testing.assert_array_equal(rows.labels.toarray()[:, :-1], expected.labels.toarray())  # the last is of the test
    assert rows.label_names == [*expected.label_names, "new"]
    model = xmlpreck.fit("shards", "m", tune=False, epochs=2)
    np.testing.assert_array_equal(model.vectorizer.idf, vectorizer.idf)
    assert main(["predict", "--model", "m", "--data", "texts", "--out", "texts.npz"]) == 0
    assert main(["predict", "--model", "m", "--data", "shards", "--out", "shards.npz"]) == 0
    for name in ("data", "indices"):
        np.testing.assert_array_equal(np.load("texts.npz")[name], np.load("shards.npz")[name])
    assert main(["data", "convert", "texts", "shards"]) == 0  # again, with other words
    assert main(["data", "convert", "texts/train.jsonl", "one"]) == 0
    assert xmlpreck.fit("one", tune=False, epochs=1).vectorizer.n_features == 30
    assert xmlpreck.fit("one/train", tune=False, epochs=1).vectorizer.n_features == 30


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("texts out --shuffle", "--shuffle is for rows of numbers: convert the texts first"),
        ("demo out --set text.ngrams=2", "text.ngrams has no effect with rows of numbers: leave it out"),
        ("demo out --text-columns text", "demo: is not raw text: leave out --text-columns"),
    ],
)
def test_flags_of_convert_that_do_not_fit(notes, capsys, words, message):
    assert main(["data", "convert", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_labels_are_counted_by_their_names(tmp_path):
    lines_file(tmp_path / "d.jsonl", *({"text": "a", "labels": names} for names in (["x", "z"], ["y", "x"], [])))
    counts, n_documents = count_labels(Corpus(tmp_path / "d.jsonl", "train"), ["new", "x", "y"])
    assert counts.tolist() == [0, 2, 1]
    assert n_documents == 3
