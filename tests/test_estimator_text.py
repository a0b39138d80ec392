"""The estimator of texts: the same bits as the command on the same documents, names in and out, one save."""

import json

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.utils.estimator_checks import parametrize_with_checks

from xmlpreck import Model, XMLTextClassifier
from xmlpreck.api.estimators.classifier import PrecAtKClassifier
from xmlpreck.api.estimators.scoring import precision_at_k_scorer
from xmlpreck.cli import main
from xmlpreck.config import RunConfig, TextConfig, describe
from xmlpreck.data.synthetic import make_dataset
from xmlpreck.model import ModelError, all_sparse


@parametrize_with_checks([XMLTextClassifier()])
def test_contract_of_scikit_learn(estimator, check):
    check(estimator)


def documents(n_rows):
    data = make_dataset(n_rows, 60, 12, features_per_row=8, labels_per_row=2, seed=4)
    texts = [
        " ".join(data.feature_names[i] for i in row) for row in np.split(data.rows.indices, data.rows.indptr[1:-1])
    ]
    labels = [[f"topic {i}" for i in row] for row in np.split(data.labels.indices, data.labels.indptr[1:-1])]
    return texts, labels


@pytest.fixture(scope="module")
def many():
    return documents(1_100)


@pytest.fixture(scope="module")
def tuned(many):
    return XMLTextClassifier().fit(*many)


def assert_same_weights(first, second):
    for one, other in zip(all_sparse(first.weights), all_sparse(second.weights), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("form", ["jsonl", "fasttext"])
def test_same_bits_as_the_command(form, many, tuned, tmp_path):
    texts, labels = many
    path = tmp_path / ("train.jsonl" if form == "jsonl" else "train.txt")
    if form == "jsonl":
        lines = [json.dumps({"text": text, "labels": names}) for text, names in zip(texts, labels, strict=True)]
    else:
        labels = [[name.replace(" ", "-") for name in names] for names in labels]
        marks = [" ".join(f"__label__{name}" for name in names) for names in labels]
        lines = [f"{mark} {text}" for mark, text in zip(marks, texts, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    assert main(["train", "--data", str(path), "--out", str(tmp_path / "model")]) == 0
    model = Model.load(tmp_path / "model")
    assert_same_weights(tuned.model_, model)
    assert model.label_names == [name.replace(" ", "-" if form == "fasttext" else " ") for name in tuned.classes_]
    assert tuned.model_.vectorizer.feature_names == model.vectorizer.feature_names
    np.testing.assert_array_equal(tuned.model_.vectorizer.idf, model.vectorizer.idf)
    assert tuned.tuning_ == model.info["tuning"]


def test_parameters_are_the_settings():
    sections = RunConfig().to_dict()
    names = {name for section in sections.values() for name in section} - {"seed", "threads"}
    own = {"random_state", "n_jobs", "tune", "tune_text", "calibrate"}
    assert XMLTextClassifier().get_params().keys() == names | own
    for name, (default, text) in describe(TextConfig).items():
        assert f"\n{name} : {type(default).__name__}, default {default!r}\n    " in XMLTextClassifier.__doc__
        assert text[1:] in XMLTextClassifier.__doc__
    assert clone(XMLTextClassifier(ngrams=2)).get_params()["ngrams"] == 2


def test_names_come_out_with_scores_and_probabilities(many, tuned):
    texts, labels = many
    assert tuned.score(texts, labels) > 0.2
    predicted = tuned.predict(texts[:3])
    top, scores = tuned.predict_topk(texts[:3], 5)
    assert predicted == top.tolist()
    assert set(predicted[0]) < {name for names in labels for name in names}
    best, chances = tuned.predict_proba_topk(texts[:3], 2)
    np.testing.assert_array_equal(best, top[:, :2])
    assert ((chances > 0) & (chances < 1)).all()
    assert (np.diff(scores) <= 0).all()
    assert tuned.predict_proba(texts).shape == (1_100, len(tuned.classes_))


def test_save_and_load(many, tuned, tmp_path):
    texts, _ = many
    tuned.save(tmp_path / "model")
    loaded = XMLTextClassifier.load(tmp_path / "model")
    assert loaded.predict(texts) == tuned.predict(texts)
    assert (loaded.predict_proba(texts) != tuned.predict_proba(texts)).nnz == 0
    assert loaded.settings_ == tuned.settings_
    assert loaded.get_params() == tuned.get_params()
    with pytest.raises(ModelError, match="is a model of XMLTextClassifier: load it by"):
        PrecAtKClassifier.load(tmp_path / "model")
    one = tuned.model_.predict_one(texts[0], 3)
    assert [tuned.classes_[i] for i in one.labels] == loaded.predict_topk(texts[:1], 3)[0][0].tolist()


def test_explanation_adds_up(many, tuned):
    text = many[0][0]
    found = tuned.explain(text, k=2).to_dict()["labels"]
    labels, scores = tuned.predict_topk([text], 2)
    assert [one["name"] for one in found] == labels[0].tolist()
    assert [np.float32(one["score"]) for one in found] == scores[0].tolist()
    assert sum(part["adds"] for part in found[0]["contributions"]) == pytest.approx(found[0]["score"], abs=1e-5)
    last = tuned.predict_topk([text], 100)[0][0, -1]
    asked = tuned.explain(text, [last], k=1)
    assert [one.rank for one in asked.labels] == [1, len(tuned.classes_)]
    with pytest.raises(ValueError, match="'nothing'"):
        tuned.explain(text, ["nothing"])


def test_settings_of_texts_are_used():
    texts, labels = documents(60)
    pairs = XMLTextClassifier(ngrams=2, min_df=1, lowercase=False).fit(texts, labels)
    assert any(" " in term for term in pairs.model_.vectorizer.feature_names)
    assert pairs.settings_["ngrams"] == 2
    assert pairs.model_.info["config"]["text"]["min_df"] == 1
    hashed = XMLTextClassifier(hashed_features=64).fit(texts, labels)
    assert hashed.model_.n_features == 64
    with pytest.raises(ValueError, match=r"XMLTextClassifier: text.max_df must be a share"):
        XMLTextClassifier(max_df=2.0).fit(texts, labels)


def test_weight_of_two_is_the_text_twice():
    texts, labels = documents(60)
    weights = np.arange(60) % 3
    ids = np.repeat(np.arange(60), weights)
    weighted = XMLTextClassifier().fit(texts, labels, sample_weight=weights)
    expected = XMLTextClassifier().fit([texts[i] for i in ids], [labels[i] for i in ids])
    assert_same_weights(weighted.model_, expected.model_)
    np.testing.assert_array_equal(weighted.model_.vectorizer.idf, expected.model_.vectorizer.idf)


def test_search_over_texts():
    texts, labels = documents(120)
    grid = {"min_df": [1, 3], "k": [1]}
    search = GridSearchCV(XMLTextClassifier(), grid, cv=KFold(2), scoring=precision_at_k_scorer(1), error_score="raise")
    search.fit(texts, labels)
    assert search.best_score_ > 0.3
    assert len(search.predict(texts)[0]) == 1


def test_one_class_a_text():
    texts, labels = documents(120)
    classifier = XMLTextClassifier(min_df=1).fit(texts, [names[0] for names in labels])
    assert classifier.predict(np.array(texts)).shape == (120,)
    np.testing.assert_allclose(classifier.predict_proba(texts).sum(axis=1), 1)


def test_errors():
    classifier = XMLTextClassifier()
    with pytest.raises(NotFittedError):
        classifier.predict(["a text"])
    for X, message in (("one text", "put it into"), (["a", 3], "text 1 is 3, not a str"), ([None], "text 0 is None")):
        with pytest.raises(ValueError, match=message):
            classifier.fit(X, [["a"]] * len(X))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        classifier.fit(["a", "b"], [["a"]])
