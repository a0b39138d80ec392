"""Words of labels in the scores: against a slow reference, on disk, in predictions, and for labels without rows."""

import json
import re

import numpy as np
import pytest
from helpers import draw_scorer, reseal
from scipy.sparse import csr_array

import xmlpreck
from xmlpreck.api.labels import LabelFile, add_labels
from xmlpreck.cli import main
from xmlpreck.config import InputError, RowsConfig
from xmlpreck.data.dataset import Dataset
from xmlpreck.data.rows import with_more_labels
from xmlpreck.data.vocabulary import Label, Vocabulary
from xmlpreck.model import Model
from xmlpreck.model.label_text import Strengths, add_words, by_label, read_words, shared_words, strongest
from xmlpreck.train.label_text import TRIED_OWN, TRIED_SHARED, choose, trial_rows, word_trust

ANIMALS = ("cat", "dog", "cow", "owl", "bee", "fox")
WORDS = ["river", "night", "house", "green", "small", "tree", "farm", "milk", "honey", "bark", "purr", "wing"]
STRENGTHS = Strengths(1.0, 0.25, 1.0, 2.0)


def documents(n=120):
    rng = np.random.default_rng(0)
    for number in range(n):
        animal = ANIMALS[number % 5]  # no row of the fox, but its word is in texts of others
        words = [animal, *rng.choice(WORDS, 4), *(["fox"] if number % 3 == 0 else [])]
        yield {"text": " ".join(words), "labels": [f"http://x.org/{animal}"]}


def table(between=","):
    lines = [("id", "name", "broader"), ("http://x.org/all", "beasts", "")]
    lines += [(f"http://x.org/{animal}", f"wild {animal}", "http://x.org/all") for animal in ANIMALS]
    return "".join(between.join(line) + "\n" for line in lines)


def turtle():
    head = "@prefix s: <http://www.w3.org/2004/02/skos/core#> .\n"
    head += "<http://x.org/all> a s:Concept ; s:prefLabel 'beasts'@en .\n"
    one = "<http://x.org/{0}> a s:Concept ; s:prefLabel 'wild {0}'@en ; s:broader <http://x.org/all> .\n"
    return head + "".join(one.format(animal) for animal in reversed(ANIMALS))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents()))
    (tmp_path / "v.csv").write_text(table())
    (tmp_path / "v.tsv").write_text(table("\t"))
    (tmp_path / "v.ttl").write_text(turtle())
    return tmp_path


def fit(labels, **others):
    return xmlpreck.fit("d.jsonl", labels=labels, tune=False, settings={"text.min_df": 1}, **others)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_csv_tsv_and_skos_give_the_same_model(here):
    pytest.importorskip("rdflib", reason="needs the extra skos")
    for name in ("v.csv", "v.tsv", "v.ttl"):
        fit(LabelFile(name), out=here / name.replace(".", "-"), threads=1 + (name == "v.tsv"))
    models = [files_of(here / name) for name in ("v-csv", "v-tsv", "v-ttl")]
    for model in models:  # seconds and threads differ from run to run
        about = json.loads(model.pop("model.json"))
        assert about["label_text"].keys() == {"own", "shared", "unseen", "trusted"}
        model["label_text"] = about["label_text"]
    assert models[0] == models[1] == models[2]
    assert {"labels.jsonl", "labels.txt", "word_weights.npy"} <= models[0].keys()


def test_labels_without_rows_are_predicted_and_explained(here, capsys):
    model = fit(LabelFile("v.csv", words=STRENGTHS), out=here / "m")
    assert model.n_labels == 7
    assert model.label_ids == model.label_names
    assert model.label_ids[5:] == ["http://x.org/all", "http://x.org/fox"]  # behind those with rows
    top = model.predict_one("a fox", 2)
    assert model.shown_names[top.labels[0]] == "wild fox"
    assert top.scores[0] > 0
    assert main(["explain", "--model", "m", "--text", "fox", "--label", "http://x.org/fox"]) == 0
    shown = capsys.readouterr().out
    assert "1. wild fox" in shown
    assert "of these came from the label's words" in shown
    assert main(["explain", "--model", "m", "--text", "cat", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["labels"][0]
    assert (found["label_id"], found["name"]) == ("http://x.org/cat", "wild cat")
    assert 0 < found["from_words"] < found["score"]


def test_predictions_show_names_and_write_ids(here):
    fit(LabelFile("v.csv", words=STRENGTHS), out=here / "m")
    for name in ("p.jsonl", "p.parquet", "p.csv", "p.npz"):
        xmlpreck.predict("m", ["a cat at night"], name)
    line = json.loads((here / "p.jsonl").read_text())
    assert line["label_ids"][0] == "http://x.org/cat"
    assert line["names"][0] == "wild cat"
    header, row = (text.split(",") for text in (here / "p.csv").read_text().splitlines())
    assert header[:4] == ["row", "label 1", "name 1", "score 1"]
    assert row[1:3] == ["http://x.org/cat", "wild cat"]
    assert len(row) == len(header)
    xmlpreck.predict("m", ["a cat at night"], "long.csv", style=xmlpreck.api.prediction.TableStyle("long"))
    assert (here / "long.csv").read_text().splitlines()[0] == "row,rank,label,label_id,name,score"
    (here / "only.txt").write_text("wild cow\nhttp://x.org/owl\n")
    options = xmlpreck.PredictionOptions(only_labels="only.txt")
    xmlpreck.predict("m", ["a cat at night"], "only.jsonl", options)
    assert set(json.loads((here / "only.jsonl").read_text())["names"]) == {"wild cow", "wild owl"}


def test_update_adds_labels_by_their_words(here, capsys):
    model = fit(LabelFile("v.csv", words=STRENGTHS), out=here / "m")
    (here / "new.csv").write_text("id,name\nhttp://x.org/cat,house cat\nhttp://x.org/honey,honey\n")
    assert main(["update", "--model", "m", "--labels-file", "new.csv", "--out", "n", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["new_labels"] == 1
    newer = Model.load("n")
    assert newer.shown_names[newer.predict_one("honey", 1).labels[0]] == "honey"
    assert "house cat" in newer.shown_names
    before, after = by_label(model).toarray(), by_label(newer).toarray()
    np.testing.assert_array_equal(after[:7], before)  # known labels keep their weights
    with pytest.raises(InputError, match="update needs new rows, new labels, or both"):
        xmlpreck.update("m")
    with pytest.raises(InputError, match="was trained without --labels-file"):
        add_labels(xmlpreck.fit("d.jsonl", tune=False), LabelFile("new.csv"))


def test_strength_0_leaves_the_weights(here):
    plain = xmlpreck.fit("d.jsonl", tune=False, settings={"text.min_df": 1})
    named = fit(LabelFile("v.csv", words=Strengths(0, 0, 0)))
    np.testing.assert_array_equal(by_label(named).toarray(), by_label(plain).toarray())
    assert (named.n_labels, named.label_words) == (5, None)
    assert named.shown_names[0] == "wild bee"


def test_broken_vocabularies_end_a_run_before_it_begins(here):
    (here / "bad.csv").write_text("id,name\na,x\na,y\n")
    with pytest.raises(InputError, match=re.escape("bad.csv:3: the id 'a' is there twice, first in line 2")):
        fit("bad.csv", out=here / "m")
    assert not (here / "m").exists()


def drawn(n_labels=300):
    model, _ = draw_scorer(np.random.default_rng(0), dtype=np.float32)
    words = np.array(["red", "green", "blue", "old", "new", "one", "two", "six"])
    rng = np.random.default_rng(1)
    names = [" ".join(rng.choice(words, 2, replace=False)) + f" only{number}" for number in range(n_labels)]
    return model, Vocabulary(tuple(Label(str(number), name) for number, name in enumerate(names)))


def test_shared_words_are_means_of_weights():
    model, vocabulary = drawn()
    weights, counts = by_label(model), np.arange(model.n_labels) % 30
    texts = vocabulary.names
    found = shared_words(weights, texts, counts).toarray()
    terms = sorted({word for text in texts for word in text.split() if not word.startswith("only")})
    has = np.array([[word in text.split() for word in terms] for text in texts], float)
    tf_idf = has * (np.log((1 + len(texts)) / (1 + has.sum(axis=0))) + 1)
    tf_idf /= np.linalg.norm(tf_idf, axis=1, keepdims=True)
    by = np.minimum(counts, 20)[:, None] * has
    means = (by.T @ weights.toarray()) / (by.sum(axis=0) + 1)[:, None]
    np.testing.assert_allclose(found, tf_idf @ means, atol=1e-6)  # all features are kept: there are 29


def test_added_words_are_in_the_weights_and_new_labels_behind():
    model, vocabulary = drawn(310)
    counts = np.concatenate([np.arange(300) % 30 + 1, np.zeros(10, np.int64)])
    named = model.fresh(feature_names=["red", "old", *(f"f{i}" for i in range(model.n_features - 2))])
    trust = np.random.default_rng(2).random(model.n_features)
    words = read_words(named, vocabulary, counts, lambda own: trust)
    added = words.weighed(STRENGTHS, counts)
    own = STRENGTHS.own * 10 / (10 + counts)
    own[counts == 0] = STRENGTHS.unseen
    shared = STRENGTHS.shared * 4 / (4 + counts)
    trusted = np.where(counts > 0, STRENGTHS.trusted / (1 + counts), 0)  # 0.06 at least
    expected = (own[:, None] + trusted[:, None] * trust) * words.own.toarray()
    expected += shared[:, None] * words.shared.toarray()
    np.testing.assert_allclose(added.toarray(), expected, rtol=1e-5, atol=1e-7)
    assert (words.own.toarray()[:, 0] > 0).tolist() == ["red" in name.split() for name in vocabulary.names]
    after = model.fresh(weights=add_words(model.weights, added))
    total = added.toarray()
    total[:300] += by_label(model).toarray()
    np.testing.assert_allclose(by_label(after).toarray(), total, rtol=2**-8)  # rounded to bfloat16
    assert after.n_labels == 310


def test_strongest_keeps_the_largest_by_size():
    rows = csr_array(np.array([[1.0, -3, 2, 2], [0, 0, 0, 5]]))
    assert strongest(rows, 2).toarray().tolist() == [[0, -3, 2, 0], [0, 0, 0, 5]]


def test_choose_takes_words_where_they_pay():
    n = 400
    candidates = np.tile([0, 1, 2], (n, 1))
    truth = csr_array(np.tile([0.0, 1, 0], (n, 1)))
    weights, helpful, none = (np.tile(row, (n, 1)) for row in ([0.5, 0.3, 0], [0, 1.0, 0], [0, 0, 0]))
    inverse = np.array([1.0, 5, 5])
    assert choose(candidates, [weights, helpful, none, none], truth, inverse, TRIED_OWN) == Strengths(0.5)
    assert choose(candidates, [weights, none, none, helpful], truth, inverse, TRIED_OWN) == Strengths(trusted=1.0)
    assert choose(candidates, [weights, none, helpful, none], truth, inverse, TRIED_SHARED) == Strengths(0.0, 0.25)
    assert choose(candidates, [weights, none, -helpful, none], truth, inverse, TRIED_SHARED) == Strengths()


def test_choose_lowers_no_precision():
    candidates = np.tile([0, 1], (400, 1))
    truth = csr_array(np.concatenate([np.tile([1.0, 0], (210, 1)), np.tile([0.0, 1], (190, 1))]))
    weights, rare, none = (np.tile(row, (400, 1)) for row in ([0.2, 0.1], [0, 1.0], [0, 0]))
    inverse = np.array([1.0, 9])  # the rare label would gain much PSP@1 at the price of 20 rows of P@1
    assert choose(candidates, [weights, rare, none, none], truth, inverse, TRIED_OWN) == Strengths()


def test_trust_is_the_share_of_a_word_in_rows_that_have_a_label_with_it():
    rows = csr_array(np.array([[1.0, 2, 0], [3, 0, 0], [0, 1, 5]], np.float32))
    labels = csr_array(np.array([[1.0, 0], [0, 1], [0, 7]], np.float32))  # relevance does not count
    own = csr_array(np.array([[0.6, 0.8, 0], [0, 1.0, 0], [1.0, 0, 0]]))  # the third label has no column
    found = word_trust(Dataset(rows, labels), RowsConfig(unit_norm=False, bias=0), 2, own)
    mean = (1 + 3) / (4 + 3)  # of the features that are words
    np.testing.assert_allclose(found, [(mean + 1) / (1 + 4), (mean + 3) / (1 + 3), mean / (1 + 5)])


def test_trial_rows_are_not_held_out():
    trained, heldout = trial_rows(1000, 0)
    assert (len(trained), len(heldout)) == (500, 250)
    assert not np.intersect1d(trained, heldout).size


def test_rows_get_columns_for_labels_behind(here):
    rows = xmlpreck.data.dataset.Dataset(csr_array(np.eye(2, dtype=np.float32)), csr_array(np.eye(2, dtype=np.float32)))
    wider = with_more_labels(rows, 5, list("abcde"))
    assert (wider.n_labels, wider.label_names) == (5, list("abcde"))
    assert wider.labels.toarray()[:, :2].tolist() == [[1, 0], [0, 1]]
    assert with_more_labels(rows, 2, None) is rows


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("labels.jsonl", lambda text: text.replace(b'"name"', b'"nome"', 1), "labels.jsonl: line 1: is not a label"),
        ("labels.jsonl", lambda text: text + b"{}\n", "labels.jsonl: has 8 names, but the model has 7"),
        ("labels.jsonl", lambda text: text.replace(b"/cat", b"/cow"), "labels.jsonl: an id is there twice"),
        ("word_offsets.npy", lambda text: text[:-8] + b"\xff" * 8, "word_offsets.npy"),
        ("word_features.npy", lambda text: text[:-4] + b"\xff" * 4, "word_features.npy: the features of a label"),
        ("word_weights.npy", lambda text: text[:-4] + b"\xff" * 4, "word_weights.npy: a weight is not a finite number"),
    ],
)
def test_damaged_files_are_refused_by_name(here, name, change, message):
    folder = here / "m"
    fit(LabelFile("v.csv", words=STRENGTHS), out=folder)
    path = folder / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match="has changed since the model was saved"):
        Model.load(folder)
    reseal(folder)
    with pytest.raises(InputError, match=re.escape(message)):
        Model.load(folder)
