"""--tune-text: which analyzer is chosen, on what, by whom; the same from the command line and the estimator."""

import json
import logging

import numpy as np
import pytest
from scipy.sparse import csr_array

import xmlpreck
from xmlpreck import XMLTextClassifier
from xmlpreck.cli import main
from xmlpreck.config import InputError, RunConfig, TextConfig, TrainConfig
from xmlpreck.data.formats import Documents
from xmlpreck.data.location import DataLocation
from xmlpreck.train import analyzers, choose_analyzer, draw_rows, draw_texts

N_TEXTS = 80
SYLLABLES = ["kala", "rumo", "tesi", "vundo"]


@pytest.fixture
def documents(tmp_path):
    """Texts of words that begin with what tells their label, and that hardly come again."""
    draw = np.random.default_rng(0)
    texts, labels = [], []
    for _ in range(N_TEXTS):
        number = int(draw.integers(len(SYLLABLES)))
        endings = ["".join(draw.choice(list("bcdfg"), 2)) for _ in range(4)]
        texts.append(" ".join(SYLLABLES[number] + ending for ending in endings))
        labels.append([f"l{number}", "all"])
    path = tmp_path / "notes.jsonl"
    lines = [json.dumps({"text": text, "labels": names}) for text, names in zip(texts, labels, strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return texts, labels, path


def test_command_and_estimator_choose_the_same(documents, tmp_path, capsys):
    texts, labels, path = documents
    words = ["train", "--data", path, "--out", tmp_path / "M", "--tune-text", "--threads", "1"]
    assert main([str(word) for word in words]) == 0
    model = xmlpreck.load_model(tmp_path / "M")
    evidence = model.info["analyzers"]
    assert evidence["chosen"] == "characters"
    assert "analyzers of texts: characters (mean P@k of 80 held-out texts: words" in capsys.readouterr().err
    assert [tried["name"] for tried in evidence["tried"]] == [
        "words", "pairs of words", "characters", "characters, bm25",
    ]  # fmt: skip
    assert model.vectorizer.config == TextConfig(char_ngrams="3-5")
    assert model.info["config"]["text"]["char_ngrams"] == "3-5"
    classifier = XMLTextClassifier(tune_text=True, calibrate=False).fit(texts, labels)
    assert classifier.model_.info["analyzers"] == evidence
    assert classifier.settings_["char_ngrams"] == "3-5"
    rows = model.rows_of(texts)
    np.testing.assert_array_equal(classifier.model_.decision_function(rows), model.decision_function(rows))


def test_what_is_tried():
    def names(**settings):
        return list(analyzers.analyzers(TextConfig(**settings)))

    assert names(language="de") == ["words", "stems", "pairs of words", "characters"]
    assert names(ngrams=3, char_ngrams="2-4") == ["words"]
    assert names(token_pattern="a+") == ["words", "pairs of words"]
    assert analyzers.analyzers(TextConfig(language="de", max_df=0.2))["words"] == TextConfig(max_df=0.2)


def test_a_gain_by_chance_changes_nothing():
    draw = np.random.default_rng(0)
    first = draw.normal(60, 20, 200)
    noise = draw.normal(0, 20, 200)
    noise -= noise.mean()
    assert analyzers._best({"first": first, "near": first + noise + 0.5}) == "first"
    assert analyzers._best({"first": first, "better": first + noise + 5}) == "better"


@pytest.mark.parametrize(("most", "heldout"), [(1000, 0.0), (30, 0.0), (30, 0.25)])
def test_texts_are_drawn_as_rows(most, heldout, monkeypatch):
    monkeypatch.setattr(analyzers, "MAX_TEXTS", most)
    config = TrainConfig(heldout=heldout, seed=3)
    texts, lists = [f"t{i}" for i in range(100)], [[f"l{i % 7}"] for i in range(100)]
    chunks = [Documents(texts[a:b], lists[a:b]) for a, b in ((0, 13), (13, 14), (14, 100))]
    drawn = draw_rows(100, config)
    found, labels = draw_texts(chunks, config)
    assert found == [texts[row] for row in drawn]
    assert labels.indices.tolist() == [row % 7 for row in drawn]
    if heldout:
        assert not set(drawn) & set(np.random.default_rng([3, 0]).permutation(100)[:25])
    else:
        assert len(drawn) == min(most, 100)


def test_few_texts_and_numbers(documents, caplog):
    texts, _, path = documents
    labels = csr_array(np.ones((20, 1), np.float32))
    notes = []
    settings = RunConfig()
    assert choose_analyzer(texts[:20], labels, settings, notes.append) == (settings, None)
    assert notes == ["analyzers of texts: 20 texts are too few to choose by, 50 are needed"]
    with caplog.at_level(logging.INFO), pytest.raises(InputError, match="but the data are numbers"):
        xmlpreck.fit("demo", tune_text=True)
    assert DataLocation(str(path)).documents() is not None
