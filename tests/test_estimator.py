"""The estimator: scikit-learn's contract, every kind of y, partial_fit against fit, and precision at k as a scorer.

Tuning, probabilities, weights and saving: test_estimator_fitting.py. DataFrames: test_estimator_frames.py. Texts:
test_estimator_text.py.
"""

import doctest
import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array, csr_matrix
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import xmlpreck
from xmlpreck.api.estimators.classifier import PrecAtKClassifier
from xmlpreck.api.estimators.scoring import precision_at_k, precision_at_k_scorer
from xmlpreck.config import RowsConfig, RunConfig, TrainConfig, describe
from xmlpreck.data.synthetic import make_dataset
from xmlpreck.kernels import training
from xmlpreck.model import Model, all_sparse
from xmlpreck.train import fit

# Name of a check of scikit-learn's -> why it cannot hold here.
EXPECTED_FAILED_CHECKS: dict[str, str] = {}


@parametrize_with_checks(
    [PrecAtKClassifier(), PrecAtKClassifier(algo="perceptron-max", k=1, bias=1.0, unit_norm=False)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS,
)
def test_contract_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    return make_dataset(120, 60, 30, features_per_row=8, labels_per_row=3, seed=1)


def lists_of(labels, names):
    return [[names[i] for i in row] for row in np.split(labels.indices, labels.indptr[1:-1])]


def weights_of(classifier):
    sparse = all_sparse(classifier.model_.weights)
    shape = (len(sparse.dense_of), len(classifier.classes_))
    return csr_array((sparse.values, sparse.labels, sparse.offsets), shape).toarray()


def spelled_out(matrix):
    """Every entry is stored, zeros too, by falling id."""
    n_rows, n_columns = matrix.shape
    ids = np.tile(np.arange(n_columns, dtype=np.int32)[::-1], n_rows)
    return csr_matrix((matrix.toarray()[:, ::-1].ravel(), ids, np.arange(n_rows + 1) * n_columns), matrix.shape)


def kinds_of_y(labels):
    names = [f"label-{i:02}" for i in range(labels.shape[1])]
    return {
        "array": labels.astype(np.int8),
        "matrix": spelled_out(labels),
        "dense": labels.toarray().astype(bool),
        "numbers": lists_of(labels, range(labels.shape[1])),
        "text": [tuple(row) for row in lists_of(labels, names)],
        "sets": [set(row) for row in lists_of(labels, names)],
    }


def test_parameters_are_the_settings_and_their_defaults(data):
    defaults = PrecAtKClassifier().get_params()
    settings = RunConfig().to_dict()
    names = settings["rows"].keys() | settings["train"].keys()
    assert defaults.keys() == names - {"seed", "threads"} | {"random_state", "n_jobs", "tune", "calibrate"}
    given = {name: value for name, value in defaults.items() if value is not None}
    assert given == {"random_state": TrainConfig().seed, "tune": True, "calibrate": True}

    classifier = PrecAtKClassifier(tune=False).fit(data.rows, data.labels)
    scorer = fit(data, RunConfig())
    np.testing.assert_array_equal(classifier.model_.weights.values, scorer.weights.values)
    np.testing.assert_array_equal(classifier.model_.weights.dense_rows, scorer.weights.dense_rows)
    assert classifier.n_iter_ == len(classifier.history_) == TrainConfig().epochs


@pytest.mark.parametrize("estimator", [PrecAtKClassifier, xmlpreck.XMLTextClassifier])
def test_examples_of_docstrings(estimator):
    examples = doctest.DocTestParser().get_doctest(estimator.__doc__, {}, estimator.__name__, None, None)
    assert len(examples.examples) >= 4
    assert doctest.DocTestRunner().run(examples).failed == 0


def test_docstring_has_the_help_of_every_setting():
    text = PrecAtKClassifier.__doc__
    for section in (RowsConfig, TrainConfig):
        for name, (default, help_text) in describe(section).items():
            if name not in ("seed", "threads", "k"):
                assert f"\n{name} : {type(default).__name__}, default {default!r}" in text
                assert name == "heldout" or help_text[1:] in text
    assert "\n**settings\n" not in text
    assert max(map(len, text.splitlines())) <= 140


@pytest.mark.parametrize("kind", ["array", "matrix", "dense", "numbers", "text", "sets"])
def test_every_kind_of_labels_gives_the_same_model_and_comes_back(kind, data):
    y = kinds_of_y(data.labels)[kind]
    expected = PrecAtKClassifier(k=3).fit(data.rows, data.labels)
    classifier = PrecAtKClassifier(k=3).fit(data.rows.toarray() if kind == "dense" else data.rows, y)
    np.testing.assert_array_equal(weights_of(classifier), weights_of(expected))
    predicted, top = classifier.predict(data.rows), classifier.predict_topk(data.rows)[0]
    if kind in ("array", "matrix", "dense"):
        assert type(predicted) is type(y)
        assert predicted.dtype == y.dtype
        np.testing.assert_array_equal(classifier.classes_, np.arange(30))
        assert kind == "dense" or predicted.has_canonical_format
        found = predicted if kind == "dense" else predicted.toarray()
        np.testing.assert_array_equal(np.nonzero(found)[1].reshape(-1, 3), np.sort(top, axis=1))
    else:
        assert type(predicted[0][0]) is (int if kind == "numbers" else str)
        assert predicted == top.tolist()
        np.testing.assert_array_equal(classifier.classes_, sorted(set().union(*y)))
    assert precision_at_k(classifier, data.rows, y, 3) == precision_at_k(expected, data.rows, data.labels, 3) > 0.5


def test_classes_of_any_type(data):
    y = data.labels.indices[data.labels.indptr[:-1]] % 3
    names = np.array(["b", "a", "c"], dtype=object)
    by_number = PrecAtKClassifier().fit(data.rows, y)
    by_name = PrecAtKClassifier().fit(data.rows, names[y].tolist())
    assert by_name.classes_.tolist() == ["a", "b", "c"]
    assert by_number.predict(data.rows).dtype == y.dtype
    assert precision_at_k(by_name, data.rows, names[y], k=1) == by_name.score(data.rows, names[y]) > 0.6
    assert by_name.model_.label_names == ["a", "b", "c"]


def test_two_classes_and_one():
    X, y = np.array([[1.0, 0], [0, 1], [1, 0.2], [0, 0]]), np.array([7, 9, 7, 7])
    classifier = PrecAtKClassifier(epochs=1).fit(X, y)
    scores = classifier.model_.decision_function(csr_array(X))
    np.testing.assert_array_equal(classifier.decision_function(X), scores[:, 1] - scores[:, 0])
    np.testing.assert_array_equal(classifier.predict(X), [7, 9, 7, 7])  # the last by the rule for equal scores
    np.testing.assert_array_equal(PrecAtKClassifier().fit(X, [4, 4, 4, 4]).predict(X), [4, 4, 4, 4])
    one_label = PrecAtKClassifier().fit(X, csr_array([[1], [1], [0], [0]]))
    assert one_label.decision_function(X).shape == (4, 1)
    np.testing.assert_array_equal(one_label.predict(X).toarray(), np.ones((4, 1)))


def test_lists_of_zeros_and_ones():
    X = np.eye(3)
    indicator = PrecAtKClassifier(k=1).fit(X, [[1, 0, 0], [0, 1, 1], [0, 1, 0]])
    np.testing.assert_array_equal(indicator.classes_, [0, 1, 2])
    assert PrecAtKClassifier(k=1).fit(X, [[0, 1], [1, 0], [1]]).predict(X)[2] == [1]
    # A list of labels stays one in a batch that alone would look like an indicator.
    lists = PrecAtKClassifier(k=1).partial_fit(X[:1], [[0, 1]], classes=[0, 1, 2]).partial_fit(X[1:2], [[1, 0]])
    assert lists.predict(X[:1]) == [[0]]
    assert precision_at_k(lists, X[:1], [[0, 1]], k=2) == 1


@pytest.mark.parametrize(("kind", "settings"), [("array", {}), ("text", {"prune": 0.05}), ("dense", {"bias": 1.0})])
def test_passes_of_partial_fit_are_one_fit(kind, settings, data):
    y = kinds_of_y(data.labels)[kind]
    classes = sorted(set().union(*y)) if kind == "text" else None
    whole = PrecAtKClassifier(epochs=3, tune=False, random_state=5, **settings).fit(data.rows, y)
    parts = clone(whole)
    for n_passes in (1, 2, 3):
        parts.partial_fit(data.rows, y, classes=classes if n_passes == 1 else None)
        assert parts.n_iter_ == len(parts.history_) == n_passes
        assert parts.predict_topk(data.rows, 2)[0].shape == (120, 2)
    np.testing.assert_array_equal(weights_of(parts), weights_of(whole))
    assert parts.model_.info["config"] == whole.model_.info["config"]
    assert [facts["surrogate"] for facts in parts.history_] == [facts["surrogate"] for facts in whole.history_]


def test_partial_fit_lets_labels_use_new_features(data):
    early, late = data.rows[:60].toarray(), data.rows[60:].toarray()
    early[:, 40:] = 0
    classifier = PrecAtKClassifier(k=3, bias=0).partial_fit(early, data.labels[:60])
    before = weights_of(classifier)
    assert before[:40].any()
    assert not before[40:].any()
    first_guess = precision_at_k(classifier, late, data.labels[60:], 3)
    classifier.partial_fit(late, data.labels[60:])
    after = weights_of(classifier)
    assert after[40:].any()
    assert np.count_nonzero(after[:40]) >= np.count_nonzero(before[:40])
    assert precision_at_k(classifier, late, data.labels[60:], 3) > first_guess


def test_partial_fit_after_fit_goes_on(data):
    fitted = PrecAtKClassifier(k=3, epochs=2).fit(data.rows, data.labels)
    before = weights_of(fitted)
    nothing = csr_array((1, 30), dtype=np.float32)
    fitted.partial_fit(data.rows[:1], nothing)  # a row without labels changes nothing
    np.testing.assert_array_equal(weights_of(fitted), before)
    assert fitted.n_iter_ == len(fitted.history_) == fitted.history_[-1]["number"] == 3
    fitted.partial_fit(data.rows, data.labels)
    assert fitted.history_[-1]["surrogate"] < fitted.history_[0]["surrogate"]
    assert not np.array_equal(weights_of(fitted), before)
    # and a new fit forgets all of it
    np.testing.assert_array_equal(weights_of(fitted.fit(data.rows, data.labels)), before)


def test_scores_and_labels_agree(data):
    classifier = PrecAtKClassifier(k=4, epochs=1, bias=0.1, n_jobs=-1).fit(data.rows, data.labels)
    rows = data.rows.toarray()
    rows[0] = 0
    classifier.set_params(bias=7.0)  # prediction keeps to the settings of the fit
    scores = classifier.decision_function(rows)
    assert scores.shape == (120, 30)
    labels, top_scores = classifier.predict_topk(rows, 30)
    order = np.lexsort((np.broadcast_to(np.arange(30), scores.shape), -scores), axis=1)
    np.testing.assert_array_equal(labels, order)
    np.testing.assert_array_equal(top_scores, np.take_along_axis(scores, order, axis=1))
    np.testing.assert_array_equal(classifier.predict_topk(rows)[0], order[:, :4])
    sparse = classifier.decision_function_sparse(rows)
    assert sparse.has_canonical_format
    assert np.all(sparse.data != 0)
    # the same sums in float32, where a compiler may fuse a product and a sum
    np.testing.assert_allclose(sparse.toarray(), scores, rtol=1e-5, atol=1e-6)


def test_equal_scores_go_to_the_lower_label():
    X, y = np.eye(3), [["z", "m"], ["a"], ["q"]]
    classifier = PrecAtKClassifier(k=3, bias=0).fit(X, y)
    empty = np.zeros((1, 3))
    assert classifier.predict(empty) == [["a", "m", "q"]]
    assert classifier.predict_topk(empty, 4)[1].tolist() == [[0, 0, 0, 0]]
    # Label 0 is first before any update: a weight of 0 stays, and no score is stored.
    one_of_many = csr_array(([1], [0], [0, 1]), (1, 40))
    idle = PrecAtKClassifier(algo="perceptron-avg", k=1).fit([[1.0]], one_of_many)
    assert idle.decision_function_sparse([[1.0]]).nnz == 0
    np.testing.assert_array_equal(idle.predict([[1.0]]).indices, [0])


def test_labels_are_never_dense():
    n_rows, n_labels = 400, 200_000  # densely 80 MB in a byte each, 320 MB as scores
    ids = np.random.default_rng(0).integers(0, n_labels, (n_rows, 3))
    y = coo_array((np.ones(ids.size, bool), (np.repeat(np.arange(n_rows), 3), ids.ravel())), (n_rows, n_labels))
    y = csr_array(y)
    X = csr_array((np.ones(n_rows, np.float32), np.arange(n_rows), np.arange(n_rows + 1)), (n_rows, n_rows))
    tracemalloc.start()
    try:
        classifier = PrecAtKClassifier(k=3, epochs=1, bias=0).fit(X, y)
        predicted = classifier.predict(X)
        assert precision_at_k(classifier, X, y, k=3) > 0.99  # every row has a feature of its own
        assert classifier.partial_fit(X, y).decision_function_sparse(X).nnz == y.nnz
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert predicted.nnz == 3 * n_rows
    assert predicted.dtype == bool
    assert peak < 40e6


@pytest.mark.parametrize("form", ["zeros", "falling ids", "twice", "read-only"])
def test_the_matrix_of_the_caller_stays_as_it_is(form, data):
    rows = data.rows
    expected = PrecAtKClassifier(epochs=1).fit(rows, data.labels)
    n_compiled = len(training.train_rows.signatures)
    if form == "twice":  # two halves of each value
        given = csr_matrix((np.repeat(rows.data / 2, 2), np.repeat(rows.indices, 2), rows.indptr * 2), rows.shape)
    else:
        given = csr_matrix(rows, copy=True) if form == "read-only" else spelled_out(rows)
    if form == "zeros":
        given.sort_indices()
    arrays = given.data, given.indices, given.indptr
    before = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = form != "read-only"
    classifier = PrecAtKClassifier(epochs=1).fit(given, data.labels)
    np.testing.assert_array_equal(weights_of(classifier), weights_of(expected))
    np.testing.assert_array_equal(classifier.decision_function(given), expected.decision_function(rows))
    assert all(np.array_equal(*pair) for pair in zip(arrays, before, strict=True))
    assert len(training.train_rows.signatures) == n_compiled


def test_seeds_threads_and_numpy_numbers(data):
    def fitted(**settings):
        return weights_of(PrecAtKClassifier(epochs=1, tune=False, **settings).fit(data.rows, data.labels))

    expected = fitted(random_state=3)
    np.testing.assert_array_equal(
        fitted(random_state=np.int64(3), n_jobs=-1, k=np.int64(5), eta=np.float64(1.0)), expected
    )
    assert not np.array_equal(fitted(random_state=4), expected)
    same = [fitted(random_state=np.random.RandomState(0)) for _ in range(2)]
    np.testing.assert_array_equal(same[0], same[1])
    assert not np.array_equal(fitted(random_state=None), fitted(random_state=None))


def test_pickle_in_memory_goes_on_where_it_was(data):
    classifier = PrecAtKClassifier().partial_fit(data.rows, data.labels)
    copy = pickle.loads(pickle.dumps(classifier))
    for one in (classifier, copy):
        one.partial_fit(data.rows, data.labels)
    np.testing.assert_array_equal(weights_of(copy), weights_of(classifier))


def test_model_on_disk_has_the_names(data, tmp_path):
    y = kinds_of_y(data.labels)["text"]
    classifier = PrecAtKClassifier(k=3).fit(data.rows, y)
    classifier.model_.save(tmp_path / "model")
    loaded = Model.load(tmp_path / "model")
    assert loaded.label_names == classifier.classes_.tolist()
    assert loaded.info["config"]["train"]["k"] == 3
    np.testing.assert_array_equal(loaded.predict_topk(data.rows, 3).scores, classifier.predict_topk(data.rows)[1])


DOCUMENTS = [
    ("the cat chased the mouse", ["animals", "cats"]),
    ("a cat and a kitten sleep", ["animals", "cats"]),
    ("dogs bark at the cat", ["animals", "cats", "dogs"]),
    ("my dog likes long walks", ["animals", "dogs"]),
    ("the dog and the puppy bark", ["animals", "dogs"]),
    ("fresh bread from the oven", ["food"]),
    ("bread with butter and cheese", ["food"]),
    ("cheese for the mouse", ["animals", "food"]),
]


def test_grid_search_over_documents():
    texts, y = zip(*DOCUMENTS * 3, strict=True)
    pipeline = Pipeline([("words", TfidfVectorizer()), ("labels", PrecAtKClassifier(random_state=0))])
    grid = {"labels__k": [1, 2], "labels__eta": [0.1, 1.0]}
    search = GridSearchCV(pipeline, grid, scoring=precision_at_k_scorer(1), cv=KFold(3), n_jobs=2, error_score="raise")
    search.fit(texts, list(y))
    assert search.best_score_ == search.score(texts, list(y)) == 1  # each document stands in every fold
    assert search.predict(["the puppy"])[0][0] in ("animals", "dogs")
    assert precision_at_k_scorer(1)(search, texts, list(y)) == 1

    indicator = np.array([[name in names for name in ("animals", "cats", "dogs", "food")] for names in y])
    scores = cross_val_score(pipeline, texts, indicator, scoring=precision_at_k_scorer(2), cv=3, error_score="raise")
    assert scores.tolist() == [14 / 16] * 3  # all that can be had: two of eight documents have one label
    search = GridSearchCV(pipeline, {"labels__k": [1, 2]}, cv=3, error_score="raise").fit(texts, csr_array(indicator))
    assert search.best_score_ == 1
    only = make_pipeline(PrecAtKClassifier(k=1)).fit(np.eye(2), ["x", "y"])
    assert precision_at_k(only, np.eye(2), ["x", "y"], k=1) == 1


LABELS = [names for _, names in DOCUMENTS * 3]


def objects_of(rows):
    array = np.empty(len(rows), object)
    array[:] = rows
    return array


@pytest.mark.parametrize(
    ("y", "cv"),
    [
        (LABELS, KFold(3)),
        ([tuple(names) for names in LABELS], KFold(3)),
        (objects_of(LABELS), KFold(3)),
        ([set(names) for names in LABELS], 3),
        (objects_of([set(names) for names in LABELS]), 3),
    ],
    ids=["lists", "tuples", "array", "sets", "array of sets"],
)
def test_lists_of_labels_in_searches(y, cv):
    texts = [text for text, _ in DOCUMENTS * 3]
    pipeline = make_pipeline(TfidfVectorizer(), PrecAtKClassifier(k=1))
    assert cross_val_score(pipeline, texts, y, cv=cv, error_score="raise").tolist() == [1, 1, 1]
    search = GridSearchCV(pipeline, {"precatkclassifier__k": [1, 2]}, cv=cv, error_score="raise").fit(texts, y)
    assert search.best_params_ == {"precatkclassifier__k": 1}
    predicted = search.predict(texts)
    assert type(predicted) is (np.ndarray if isinstance(y, np.ndarray) else list)
    assert all(row[0] in names for row, names in zip(predicted, LABELS, strict=True))
    found = cross_val_predict(pipeline, texts, y, cv=cv)
    assert all(row[0] in names for row, names in zip(found, LABELS, strict=True))


def test_calibrated_classifier_of_scikit_learn():
    X, y = load_digits(n_class=3, return_X_y=True)
    calibrated = CalibratedClassifierCV(PrecAtKClassifier(calibrate=False), cv=3).fit(X, y)
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(axis=1), 1)
    assert calibrated.score(X, y) > 0.9


def test_precision_at_k_counts_every_row_and_divides_by_k():
    X = np.eye(4)
    classifier = PrecAtKClassifier(k=2).fit(X, [["a", "b"], ["b"], ["c"], ["a", "d"]])
    assert classifier.predict_topk(X, 1)[0].ravel().tolist() == ["b", "b", "c", "d"]
    y = [["a", "b"], ["new", "b"], [], ["c"]]
    assert precision_at_k(classifier, X, y, k=1) == 2 / 4
    assert precision_at_k(classifier, X, y, k=2) == classifier.score(X, y) == 3 / 8
    assert classifier.score(X, y, sample_weight=[0, 1, 0, 3]) == 1 / 8


def test_k_above_the_number_of_labels_is_that_number(data):
    X, y = np.eye(4), [["a", "b"], ["b"], ["c"], ["a", "d"]]
    classifier = PrecAtKClassifier(k=100).fit(X, y)
    assert [len(row) for row in classifier.predict(X)] == [4] * 4
    assert {part.shape for part in (*classifier.predict_topk(X), *classifier.predict_topk(X, 7))} == {(4, 4)}
    assert {part.shape for part in classifier.predict_proba_topk(X, 100)} == {(4, 4)}
    assert classifier.predict_proba(X).shape == (4, 4)
    assert precision_at_k(classifier, X, y, k=100) == classifier.score(X, y) == 6 / 16


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array([[0, 1], [2, 0], [0, 1]]), "must be a matrix of 0 and 1, but holds 2"),
        (csr_array([[0, 1], [-1, 0], [0, 1]]), "relevance -1.0 for label 0"),
        ([{"a": -1}, {"b": 1}, {"a": 2}], "relevance -1.0 for label 0"),
        ([[("a", np.nan)], ["b"], ["a"]], "not a finite number"),
        (None, "requires y to be passed"),
        (np.array([["a", "b"]] * 3), "must be a matrix of 0 and 1, but has shape"),
        ([[1, 2], [3, 3], [1]], "row 1 of y names a label twice"),
        ([[1, 2], ["a"], [1]], "all of them numbers or all of them text"),
        ([[1, 2], 3, [1]], "must be lists of labels"),
        ([[], [], []], "no data: 3 rows, 3 features, 0 labels"),
        (np.zeros((3, 2)), "none of the 3 rows has a label"),
        ([0.5, 1.5, 2.5], "Unknown label type"),
        ([[1], [2]], "inconsistent numbers of samples"),
    ],
)
def test_errors_in_y(y, message):
    with pytest.raises(ValueError, match=message):
        PrecAtKClassifier().fit(np.eye(3), y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "PrecAtKClassifier: train.k must be 1 or more, but is 0"),
        ({"k": 2.5}, "train.k must be a whole number, but is 2.5"),
        ({"algo": "svm"}, "train.algo must be one of"),
        ({"bias": -1}, "rows.bias must be 0 or more"),
        ({"random_state": -1}, "train.seed must be 0 or more"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"unit_norm": False, "eta": 1e38}, "weights are no longer finite"),
    ],
)
def test_errors_in_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        PrecAtKClassifier(**settings).fit(np.full((3, 3), 1e3), [0, 1, 2])  # rows alike: no start tells them apart


def test_errors_of_partial_fit():
    X = np.eye(2)
    with pytest.raises(ValueError, match="first call of partial_fit needs classes"):
        PrecAtKClassifier().partial_fit(X, ["a", "b"])
    with pytest.raises(ValueError, match="classes must be those of the first call"):
        PrecAtKClassifier().partial_fit(X, X, classes=["a", "b"])
    classifier = PrecAtKClassifier().partial_fit(X, ["a", "b"], classes=["b", "a", "c"])
    before = weights_of(classifier)
    with pytest.raises(ValueError, match=r"y has 2 labels that are not among the classes .*: 'x', 'y'"):
        classifier.partial_fit(X, ["y", "x"])
    with pytest.raises(ValueError, match="classes must be those of the first call"):
        classifier.partial_fit(X, ["a", "b"], classes=["a", "b"])
    with pytest.raises(ValueError, match="y has 2 columns, but there are 3 classes"):
        classifier.partial_fit(X, csr_array(X))
    np.testing.assert_array_equal(weights_of(classifier), before)


def test_errors_of_prediction_and_scorer():
    X, y = np.eye(3), ["a", "b", "c"]
    classifier = PrecAtKClassifier()
    for method in (classifier.predict, classifier.decision_function_sparse, classifier.predict_topk):
        with pytest.raises(NotFittedError):
            method(X)
    classifier.fit(X, y)
    for k in (0, -1, 1.5):
        message = f"k must be a whole number from 1 on, but is {k}"
        for method in (classifier.predict_topk, classifier.predict_proba_topk):
            with pytest.raises(ValueError, match=message):
                method(X, k)
        with pytest.raises(ValueError, match=message):
            precision_at_k_scorer(k)(classifier, X, y)
    with pytest.raises(ValueError, match="predictions have 3 rows, but the data has 2"):
        precision_at_k(classifier, X, y[:2], k=1)
    with pytest.raises(ValueError, match="precision_at_k needs a PrecAtKClassifier"):
        precision_at_k(LogisticRegression().fit(X, y), X, y, k=1)


def test_names_of_the_package_are_imported_at_first_use():
    assert xmlpreck.PrecAtKClassifier is PrecAtKClassifier
    assert xmlpreck.XMLTextClassifier.__name__ == "XMLTextClassifier"
    assert xmlpreck.Model is Model
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        xmlpreck.Nothing  # noqa: B018
    code = "import sys, xmlpreck; sys.exit(bool({'numba', 'sklearn', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
