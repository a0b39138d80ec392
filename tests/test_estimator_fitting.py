"""The estimator: tuning, sample weights and relevances, probabilities, and what it saves."""

import json
import logging

import numpy as np
import pytest
from helpers import reseal
from scipy.sparse import csr_array, csr_matrix
from sklearn import config_context
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, cross_val_score

from xmlpreck import Model
from xmlpreck.api.estimators import probabilities
from xmlpreck.api.estimators.classifier import PrecAtKClassifier
from xmlpreck.api.estimators.probabilities import row_keys
from xmlpreck.cli import main
from xmlpreck.config import RunConfig
from xmlpreck.data import catalog
from xmlpreck.data.dataset import Dataset, TopK
from xmlpreck.data.synthetic import make_dataset
from xmlpreck.metrics import hits
from xmlpreck.model import ModelError, all_sparse
from xmlpreck.model.calibration import reliability
from xmlpreck.train import OverBudget, fit_tuned, tuning


@pytest.fixture(scope="module")
def data():
    return make_dataset(120, 60, 30, features_per_row=8, labels_per_row=3, seed=1)


@pytest.fixture(scope="module")
def many():
    return make_dataset(1_300, 60, 20, features_per_row=8, labels_per_row=2, seed=2)


@pytest.fixture(scope="module")
def tuned(many):
    return PrecAtKClassifier().fit(many.rows, many.labels)


def assert_same_weights(first, second):
    for one, other in zip(all_sparse(first.weights), all_sparse(second.weights), strict=True):
        np.testing.assert_array_equal(one, other)


def names_of(labels):
    return [[f"label {i}" for i in row] for row in np.split(labels.indices, labels.indptr[1:-1])]


def classes_of(labels, n_classes=3):
    return labels.indices[labels.indptr[:-1]] % n_classes


# Tuning.


def write_text(path, data):
    """Write rows in the format of the extreme classification repository."""
    lines = [f"{data.n_rows} {data.n_features} {data.n_labels}"]
    for row in range(data.n_rows):
        rows, labels = data.rows[[row]], data.labels[[row]]
        pairs = " ".join(f"{i}:{float(x)!r}" for i, x in zip(rows.indices, rows.data, strict=True))
        lines.append(f"{','.join(map(str, labels.indices))} {pairs}")
    path.write_text("\n".join(lines) + "\n")


def test_default_is_what_the_command_trains(many, tuned, tmp_path):
    write_text(tmp_path / "rows.txt", many)
    assert main(["train", "--data", str(tmp_path / "rows.txt"), "--out", str(tmp_path / "model")]) == 0
    model = Model.load(tmp_path / "model")
    assert_same_weights(tuned.model_, model)
    assert tuned.tuning_ == model.info["tuning"]


def test_bibtex_has_the_bits_of_the_command(shared_data, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "FREE_WORK", 0.0)  # the budget of large data: the same trials on fewer rows
    path = str(shared_data / "bibtex")
    rows, test = (catalog.load(path, split) for split in ("train", "test"))
    classifier = PrecAtKClassifier(n_jobs=-1).fit(rows.rows, rows.labels)
    assert main(["train", "--data", path, "--out", str(tmp_path / "model")]) == 0
    assert_same_weights(classifier.model_, Model.load(tmp_path / "model"))
    top = TopK(*classifier.predict_proba_topk(test.rows, 5))
    found = reliability(top.scores.ravel(), hits(top, test.labels).ravel())
    assert found.ece < 0.03  # 0.015 when this was written


def test_tuning_chooses_what_was_not_given_and_says_so(many, tuned, caplog):
    expected = fit_tuned(many, RunConfig())
    assert_same_weights(tuned.model_, expected)
    assert tuned.tuning_ == expected.info["tuning"]
    assert tuned.settings_["epochs"] == tuned.tuning_["chosen"]["epochs"]
    # Each member trains by the hinge and by SGD@k-avg.
    assert tuned.n_iter_ == 2 * tuned.settings_["epochs"] * tuned.settings_["members"]

    with caplog.at_level(logging.INFO, "xmlpreck"):
        given = PrecAtKClassifier(eta=0.7, epochs=2, members=1, k=3, calibrate=False).fit(many.rows, many.labels)
    assert given.settings_["eta"] == 0.7
    assert given.settings_["k"] == 3
    assert given.n_iter_ == 2 * 2
    assert not {"eta", "epochs", "members", "k"} - given.tuning_["fixed"].keys()
    told = [record.getMessage() for record in caplog.records if record.name == "xmlpreck"]
    assert len(told) == 1
    assert told[0].startswith("tuned by facts of the rows: ")
    assert f"tau {given.settings_['tau']:g}" in told[0]


def test_settings_that_were_used_train_the_same_model(many, tuned):
    again = PrecAtKClassifier(tune=False, calibrate=False, **tuned.settings_).fit(many.rows, many.labels)
    assert_same_weights(again.model_, tuned.model_)
    assert again.tuning_ is None
    assert again.settings_ == tuned.settings_


def test_few_rows_are_not_tuned(data, caplog):
    with caplog.at_level(logging.INFO, "xmlpreck"):
        classifier = PrecAtKClassifier().fit(data.rows, data.labels)
    assert classifier.tuning_ is None
    assert "not tuned: 120 rows are fewer than 1,000" in caplog.text


# Weights of rows and of labels.


@pytest.mark.parametrize("kind", ["indicator", "lists", "classes"])
def test_weight_of_two_is_the_row_twice_and_of_none_no_row(kind, data):
    weights = np.random.default_rng(0).integers(0, 4, 120)
    y = {"indicator": data.labels, "lists": names_of(data.labels), "classes": classes_of(data.labels)}[kind]
    repeated = np.repeat(np.arange(120), weights)
    y_repeated = [y[i] for i in repeated] if kind == "lists" else y[repeated]
    expected = PrecAtKClassifier(tau=0.1).fit(data.rows[repeated], y_repeated)
    weighted = PrecAtKClassifier(tau=0.1).fit(data.rows, y, sample_weight=weights)
    assert_same_weights(weighted.model_, expected.model_)
    np.testing.assert_array_equal(weighted.classes_, expected.classes_)
    proba, expected_proba = weighted.predict_proba(data.rows), expected.predict_proba(data.rows)
    np.testing.assert_array_equal(
        proba if kind == "classes" else proba.toarray(),
        np.asarray(expected_proba if kind == "classes" else expected_proba.toarray()),
    )
    in_parts = PrecAtKClassifier().partial_fit(data.rows, data.labels, sample_weight=weights)
    plain = PrecAtKClassifier().partial_fit(data.rows[repeated], data.labels[repeated])
    assert_same_weights(in_parts.model_, plain.model_)


def test_other_weights_are_copies_with_relevances(data):
    weights = np.tile([0.5, 1.0, 2.5], 40)
    copies = np.repeat(np.arange(120), [1, 1, 3] * 40)
    labels = data.labels[copies].astype(np.float32)
    labels.data *= np.repeat(np.float32([0.5, 1.0, 2.5 / 3])[copies % 3], np.diff(labels.indptr))
    expected = PrecAtKClassifier(calibrate=False).fit(data.rows[copies], labels)
    weighted = PrecAtKClassifier(calibrate=False).fit(data.rows, data.labels, sample_weight=weights)
    assert_same_weights(weighted.model_, expected.model_)
    equal = PrecAtKClassifier(calibrate=False).fit(data.rows[copies], data.labels[copies])
    assert not np.array_equal(all_sparse(equal.model_.weights).values, all_sparse(weighted.model_.weights).values)


def test_relevances_in_every_kind_of_y(data):
    relevance = np.random.default_rng(1).choice([0.25, 0.5, 1.0], data.labels.nnz).astype(np.float32)
    labels = csr_array((relevance, data.labels.indices, data.labels.indptr), data.labels.shape)
    rows = [
        {f"label {i:02}": float(x) for i, x in zip(labels.indices[a:b], labels.data[a:b], strict=True)}
        for a, b in zip(labels.indptr[:-1], labels.indptr[1:], strict=True)
    ]
    expected = PrecAtKClassifier(k=2).fit(data.rows, labels)
    assert_same_weights(PrecAtKClassifier(k=2).fit(data.rows, csr_matrix(labels)).model_, expected.model_)
    by_dict = PrecAtKClassifier(k=2).fit(data.rows, rows)
    by_pair = PrecAtKClassifier(k=2).fit(data.rows, [list(row.items()) for row in rows])
    assert_same_weights(by_dict.model_, expected.model_)
    assert_same_weights(by_pair.model_, expected.model_)
    assert by_dict.predict(data.rows) == by_pair.predict(data.rows)
    assert by_dict.score(data.rows, rows) == expected.score(data.rows, data.labels)
    plain = PrecAtKClassifier(k=2).fit(data.rows, data.labels)
    assert not np.array_equal(all_sparse(plain.model_.weights).values, all_sparse(expected.model_.weights).values)


def test_label_of_no_relevance_is_not_relevant():
    X = np.eye(2)
    classifier = PrecAtKClassifier(k=1).fit(X, [{"a": 1, "b": 0}, {"b": 2.0}])
    assert classifier.model_.info["data"]["n_rows"] == 2
    assert classifier.score(X[:1], [{"a": 0, "b": 0}]) == 0
    assert classifier.score(X, [["a"], ["b"]]) == 1


def test_errors_in_weights(data):
    for weights, message in (
        [[0.0] * 120, "at least one non-zero|no data"],
        [[-1.0] * 120, "must be 0 or more, but one is -1"],
        [[1.0], "shape"],
    ):
        with pytest.raises(ValueError, match=message):
            PrecAtKClassifier().fit(data.rows, data.labels, sample_weight=weights)


def test_weights_are_routed(data):
    y, weights = data.labels.toarray(), np.repeat([0.0, 1.0], 60)
    with config_context(enable_metadata_routing=True):
        estimator = PrecAtKClassifier(k=1).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        folds, given = KFold(2), {"sample_weight": np.roll(weights, 30)}
        scores = cross_val_score(estimator, data.rows, y, cv=folds, params=given, error_score="raise")
        plain = cross_val_score(PrecAtKClassifier(k=1), data.rows, y, cv=folds, error_score="raise")
    train, test = next(folds.split(data.rows))
    first = clone(estimator).fit(data.rows[train], y[train], sample_weight=given["sample_weight"][train])
    expected = first.score(data.rows[test], y[test], sample_weight=given["sample_weight"][test])
    assert scores[0] == expected
    assert not np.array_equal(scores, plain)


# Probabilities.


def test_probabilities_of_many_labels(many, tuned):
    proba = tuned.predict_proba(many.rows)
    assert isinstance(proba, csr_array)
    assert proba.shape == many.labels.shape
    assert proba.has_canonical_format
    assert np.diff(proba.indptr).tolist() == [10] * many.n_rows
    labels, chances = tuned.predict_proba_topk(many.rows, 4)
    best, _ = tuned.predict_topk(many.rows, 4)
    np.testing.assert_array_equal(labels, best)
    assert (np.diff(chances, axis=1) <= 0).all()
    np.testing.assert_array_equal(proba.toarray()[np.arange(many.n_rows)[:, None], labels], chances)
    assert ((chances > 0) & (chances < 1)).all()


def test_probabilities_are_those_of_rows_not_seen():
    """On the rows of training the first label is right more often than on new ones, which probabilities are of."""
    both = make_dataset(2_400, 300, 20, features_per_row=8, labels_per_row=2, seed=3)
    classifier = PrecAtKClassifier(tune=False, k=1).fit(both.rows[:1_200], both.labels[:1_200])
    seen, new = (classifier.score(both.rows[part], both.labels[part]) for part in (slice(1_200), slice(1_200, None)))
    mean = classifier.predict_proba_topk(both.rows[1_200:])[1].mean()
    assert abs(mean - new) < 0.05 < 0.1 < seen - new  # 1,200 rows: a standard error of 0.014 each


def test_rows_held_out_by_training_calibrate_for_free(many):
    classifier = PrecAtKClassifier(tune=False, heldout=0.2).fit(many.rows, many.labels)
    assert classifier.model_.info["calibration"]["n_rows"] == 260
    assert classifier.history_[-1]["heldout"]


def test_probabilities_of_one_class(data):
    y = np.array(["b", "a", "c"])[classes_of(data.labels)]
    classifier = PrecAtKClassifier().fit(data.rows, y)
    proba = classifier.predict_proba(data.rows)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(classifier.classes_[proba.argmax(axis=1)], classifier.predict(data.rows))
    labels, chances = classifier.predict_proba_topk(data.rows, 2)
    np.testing.assert_array_equal(labels[:, 0], classifier.predict(data.rows))
    np.testing.assert_array_equal(chances, np.sort(proba, axis=1)[:, :0:-1])
    assert log_loss(y, proba) < np.log(3)


def test_dense_indicator_has_dense_probabilities(data):
    dense = PrecAtKClassifier().fit(data.rows, data.labels.toarray()).predict_proba(data.rows)
    sparse = PrecAtKClassifier().fit(data.rows, data.labels).predict_proba(data.rows)
    assert type(dense) is np.ndarray
    assert np.count_nonzero(dense) == dense.size
    np.testing.assert_array_equal(dense[sparse.nonzero()], sparse.data)


def test_no_probabilities_where_none_were_learned(data):
    plain = PrecAtKClassifier(calibrate=False).fit(data.rows, data.labels)
    assert not hasattr(plain, "predict_proba")
    assert not hasattr(plain, "predict_proba_topk")
    classifier = PrecAtKClassifier().fit(data.rows, data.labels).partial_fit(data.rows, data.labels)
    with pytest.raises(ValueError, match="no probabilities are known"):
        classifier.predict_proba(data.rows)
    for y in ([["a"], ["a"]], ["a", "a"]):
        one = PrecAtKClassifier().fit([[1.0], [1.0]], y)  # equal rows are held out together, and none is left
        assert one.predict([[1.0]])[0] in ("a", ["a"])
        with pytest.raises(ValueError, match="no probabilities are known"):
            one.predict_proba([[1.0]])


def test_no_memory_for_a_second_model(data, monkeypatch, caplog):
    def too_large(*_):
        raise OverBudget("a second model does not fit")

    monkeypatch.setattr(probabilities, "fit", too_large)
    with caplog.at_level(logging.INFO, "xmlpreck"):
        classifier = PrecAtKClassifier(k=2).fit(data.rows, data.labels)
    assert "not calibrated: a second model does not fit" in caplog.text
    assert classifier.score(data.rows, data.labels) > 0.5


def test_pruned_model_has_no_probabilities(data, tmp_path):
    y = np.array(["b", "a", "c"])[classes_of(data.labels)]
    PrecAtKClassifier().fit(data.rows, y).save(tmp_path / "model")
    Model.load(tmp_path / "model").prune(0.1).save(tmp_path / "pruned")
    pruned = PrecAtKClassifier.load(tmp_path / "pruned")
    assert set(pruned.predict(data.rows)) == {"a", "b", "c"}
    with pytest.raises(ValueError, match="no probabilities are known"):
        pruned.predict_proba(data.rows)


def test_calibration_leaves_the_weights_alone_and_knows_no_order(data):
    y, shuffled = classes_of(data.labels), np.random.default_rng(0).permutation(120)
    whole = PrecAtKClassifier(batch_rows=200).fit(data.rows, y)
    assert_same_weights(whole.model_, PrecAtKClassifier(batch_rows=200, calibrate=False).fit(data.rows, y).model_)
    other = PrecAtKClassifier(batch_rows=200).fit(data.rows[shuffled], y[shuffled])
    np.testing.assert_allclose(other.predict_proba(data.rows), whole.predict_proba(data.rows), rtol=1e-4)
    keys = row_keys(data.rows)
    np.testing.assert_array_equal(row_keys(data.rows[shuffled]), keys[shuffled])
    assert len(np.unique(keys)) == 120


# On disk.


@pytest.mark.parametrize(
    "kind", ["array", "matrix", "dense", "lists", "objects", "ints", "text", "objects of text", "bools"]
)
def test_what_is_saved_comes_back(kind, data, tmp_path):
    classes = classes_of(data.labels)
    objects = np.empty(120, object)
    objects[:] = names_of(data.labels)
    y = {
        "array": data.labels.astype(np.int8),
        "matrix": csr_matrix(data.labels),
        "dense": data.labels.toarray().astype(bool),
        "lists": names_of(data.labels),
        "objects": objects,
        "ints": classes * 7 - 3,
        "text": np.array(["x", "yy", "z"])[classes],
        "objects of text": np.array(["x", "yy", "z"], object)[classes],
        "bools": classes == 1,
    }[kind]
    classifier = PrecAtKClassifier(k=np.int64(3), epochs=2, random_state=np.random.RandomState(4)).fit(data.rows, y)
    classifier.save(tmp_path / "model")
    loaded = PrecAtKClassifier.load(tmp_path / "model")
    assert loaded.get_params() == classifier.get_params() | {"random_state": classifier.settings_["random_state"]}
    assert_same_weights(loaded.model_, classifier.model_)
    assert loaded.classes_.dtype == classifier.classes_.dtype
    np.testing.assert_array_equal(loaded.classes_, classifier.classes_)
    for name in ("settings_", "tuning_", "history_", "n_iter_", "n_features_in_"):
        assert getattr(loaded, name) == getattr(classifier, name)
    for method in ("predict", "predict_proba"):
        found, expected = (getattr(one, method)(data.rows) for one in (loaded, classifier))
        assert type(found) is type(expected)
        if isinstance(found, list):
            assert found == expected
        else:
            assert found.dtype == expected.dtype
            pair = [one if isinstance(one, np.ndarray) else one.toarray() for one in (found, expected)]
            assert pair[0].tolist() == pair[1].tolist()
    assert_same_weights(loaded.partial_fit(data.rows, y).model_, classifier.partial_fit(data.rows, y).model_)
    assert not list((tmp_path / "model").glob("*.pkl"))


def test_saved_estimator_works_with_the_command(data, tmp_path):
    classifier = PrecAtKClassifier(k=2).fit(data.rows, names_of(data.labels))
    classifier.save(tmp_path / "model")
    write_text(tmp_path / "rows.txt", data)
    model, rows, out = (str(tmp_path / name) for name in ("model", "rows.txt", "predicted.jsonl"))
    assert (
        main(["predict", "--model", model, "--data", rows, "--topk", "2", "--scores", "probability", "--out", out]) == 0
    )
    first = json.loads((tmp_path / "predicted.jsonl").read_text().splitlines()[0])
    labels, chances = classifier.predict_proba_topk(data.rows[[0]])
    assert first["names"] == labels[0].tolist()
    np.testing.assert_allclose(first["scores"], chances[0], rtol=1e-8)  # nine digits are written


def test_model_of_the_command_is_loaded(data, tmp_path):
    model = fit_tuned(Dataset(data.rows, data.labels, [f"label {i}" for i in range(30)]), RunConfig())
    model.save(tmp_path / "model")
    loaded = PrecAtKClassifier.load(tmp_path / "model")
    expected = model.predict_topk(data.rows, 5).labels
    assert loaded.predict(data.rows) == [[f"label {i}" for i in row] for row in expected]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"estimator": "Other"}, "is a model of Other"),
        ({"kind": "pickle"}, "kind 'pickle' is none of"),
        ({"params": {"evil": 1}}, "parameters are not those of"),
        ({"params": {"k": [1]}}, "parameters are not those of"),
        ({"scale": -1.0}, "scale must be a positive number"),
        ({"class_dtype": "V8"}, "is not a type of labels"),
        ({"class_dtype": None}, "does not fit the type of the classes"),
        ({"class_dtype": 7}, "is damaged"),
        ({"class_dtype": "<i8"}, "the labels are not of type int64"),
    ],
)
def test_damaged_facts_are_refused(changes, message, data, tmp_path):
    PrecAtKClassifier(epochs=1, calibrate=False).fit(data.rows, names_of(data.labels)).save(tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    about = json.loads(path.read_text())
    about["estimator"] |= changes
    path.write_text(json.dumps(about))
    reseal(tmp_path / "model")
    with pytest.raises(ModelError, match=message):
        PrecAtKClassifier.load(tmp_path / "model")
