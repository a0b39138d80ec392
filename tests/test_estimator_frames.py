"""The estimator with DataFrames of pandas and polars: names of columns go in, and come out again."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.sparse import csr_array

from xmlpreck import Model
from xmlpreck.api.estimators.classifier import PrecAtKClassifier
from xmlpreck.api.estimators.text_classifier import XMLTextClassifier
from xmlpreck.data.synthetic import make_dataset

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

FEATURES = [f"feature {i:02}" for i in range(20)]
LABELS = [f"label {i}" for i in (3, 1, 4, 0, 5, 2)]  # not in their order


@pytest.fixture(scope="module")
def data():
    return make_dataset(90, 20, 6, features_per_row=6, labels_per_row=2, seed=1)


def frame(library, matrix, columns, dtype=np.float64):
    values = matrix.toarray().astype(dtype)
    return pd.DataFrame(values, columns=columns) if library == "pandas" else pl.DataFrame(values, schema=columns)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_names_of_columns_become_names_of_labels_and_features(library, data, tmp_path):
    X, y = frame(library, data.rows, FEATURES), frame(library, data.labels, LABELS, np.int8)
    classifier = PrecAtKClassifier(k=2).fit(X, y)
    plain = PrecAtKClassifier(k=2).fit(data.rows, data.labels)
    assert classifier.feature_names_in_.tolist() == classifier.model_.feature_names == FEATURES
    assert classifier.classes_.tolist() == classifier.model_.label_names == LABELS
    predicted = classifier.predict(X)
    assert type(predicted) is type(y)
    assert list(predicted.columns) == LABELS
    values = np.asarray(predicted)
    assert values.dtype == np.int8
    np.testing.assert_array_equal(values, plain.predict(data.rows).toarray())
    labels, scores = classifier.predict_topk(X)
    np.testing.assert_array_equal(scores, plain.predict_topk(data.rows)[1])
    np.testing.assert_array_equal(labels, np.array(LABELS)[plain.predict_topk(data.rows)[0]])
    proba = classifier.predict_proba(X)
    assert list(proba.columns) == LABELS
    assert np.asarray(proba).shape == (90, 6)
    assert classifier.score(X, y) == plain.score(data.rows, data.labels)

    classifier.save(tmp_path / "model")
    model, loaded = Model.load(tmp_path / "model"), PrecAtKClassifier.load(tmp_path / "model")
    assert (model.label_names, model.feature_names) == (LABELS, FEATURES)
    assert loaded.predict(X).equals(predicted)
    assert loaded.feature_names_in_.tolist() == FEATURES


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_y_go_by_their_name(library, data):
    X, y = frame(library, data.rows, FEATURES), frame(library, data.labels, LABELS)
    classifier = PrecAtKClassifier(k=2).fit(X, y)
    turned = y[LABELS[::-1]]
    assert classifier.score(X, turned) == classifier.score(X, y) > 0.3
    again = PrecAtKClassifier(k=2, epochs=1).partial_fit(X, y).partial_fit(X, turned)
    straight = PrecAtKClassifier(k=2, epochs=1).partial_fit(X, y).partial_fit(X, y)
    np.testing.assert_array_equal(again.decision_function(X), straight.decision_function(X))
    with pytest.raises(ValueError, match="'other'"):
        again.partial_fit(X, frame(library, data.labels, [*LABELS[:5], "other"]))
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame(library, data.rows, FEATURES[::-1]))


def test_index_of_pandas_stays(data):
    X, y = frame("pandas", data.rows, FEATURES), frame("pandas", data.labels, LABELS, bool)
    X.index = [f"row {i}" for i in range(90)]
    classifier = PrecAtKClassifier(k=1).fit(X, y)
    assert classifier.predict(X).index.tolist() == classifier.predict_proba(X).index.tolist() == X.index.tolist()
    unnamed = PrecAtKClassifier(k=1).fit(X.to_numpy().tolist(), y)
    assert unnamed.predict(X.to_numpy().tolist()).index.tolist() == list(range(90))
    assert classifier.predict(X.reset_index(drop=True)).index.tolist() == list(range(90))


def test_sparse_frames_stay_sparse(data):
    X = pd.DataFrame.sparse.from_spmatrix(data.rows, columns=FEATURES)
    y = pd.DataFrame.sparse.from_spmatrix(data.labels.astype(np.int8), columns=LABELS)
    classifier = PrecAtKClassifier(k=2).fit(X, y)
    plain = PrecAtKClassifier(k=2).fit(data.rows, data.labels)
    np.testing.assert_array_equal(classifier.decision_function(X), plain.decision_function(data.rows))
    predicted, proba = classifier.predict(X), classifier.predict_proba(X)
    assert predicted.sparse.density == 2 / 6
    assert list(predicted.columns) == list(proba.columns) == LABELS
    np.testing.assert_array_equal(proba.sparse.to_coo().toarray(), plain.predict_proba(data.rows).toarray())
    with pytest.raises(ValueError, match="0 and 1, but holds 3"):
        classifier.fit(X, pd.DataFrame.sparse.from_spmatrix(3 * data.labels, columns=LABELS))


@pytest.mark.parametrize("library", [pd, pl], ids=["pandas", "polars"])
def test_series_of_classes_and_of_lists(library, data):
    rows = np.split(data.labels.indices, data.labels.indptr[1:-1])
    lists = [[LABELS[i] for i in row] for row in rows]
    expected = PrecAtKClassifier(k=2).fit(data.rows, lists)
    classifier = PrecAtKClassifier(k=2).fit(data.rows, library.Series(lists))
    assert classifier.predict(data.rows) == expected.predict(data.rows)
    classes = [row[0] for row in lists]
    one = PrecAtKClassifier().fit(data.rows, library.Series(classes))
    np.testing.assert_array_equal(
        one.predict(data.rows), PrecAtKClassifier().fit(data.rows, classes).predict(data.rows)
    )
    weights = library.Series(np.arange(90) % 3)
    weighted = PrecAtKClassifier().fit(data.rows, classes, sample_weight=weights)
    plain = PrecAtKClassifier().fit(data.rows, classes, sample_weight=np.arange(90) % 3)
    np.testing.assert_array_equal(weighted.decision_function(data.rows), plain.decision_function(data.rows))
    texts = library.Series([" ".join(row) for row in lists])
    words = XMLTextClassifier(k=1, token_pattern=r"\d", min_df=1).fit(texts, library.Series(lists))
    assert words.score(texts, lists) == 1


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (pd.DataFrame([[0, 1]] * 90, columns=["a", "a"]), "two columns of one name"),
        (pd.DataFrame([[0, 1]] * 90, columns=[("a", 1), ("a", 2)]), "names of several levels"),
        (pd.DataFrame([["x", "y"]] * 90), "must hold 0 and 1"),
        (pd.DataFrame([[0, 2]] * 90), "0 and 1, but holds 2"),
        (pl.DataFrame({"a": [0.5] * 90, "b": [1.0] * 90}), "0 and 1, but holds 0.5"),
    ],
)
def test_errors_in_frames(y, message, data):
    with pytest.raises(ValueError, match=message):
        PrecAtKClassifier().fit(data.rows, y)


def test_nullable_numbers_and_missing_values(data):
    y = frame("pandas", data.labels, LABELS).astype("Int8")
    classifier = PrecAtKClassifier(k=2).fit(data.rows, y)
    assert classifier.score(data.rows, y) > 0.3
    y.iloc[0, 0] = pd.NA
    with pytest.raises(ValueError, match="0 and 1"):
        classifier.fit(data.rows, y)


def test_frame_against_labels_without_names(data):
    classifier = PrecAtKClassifier(k=2).fit(data.rows, data.labels)
    assert classifier.score(data.rows, frame("polars", data.labels, LABELS)) == classifier.score(data.rows, data.labels)
    with pytest.raises(ValueError, match="y has 5 columns, but there are 6 classes"):
        classifier.score(data.rows, frame("pandas", csr_array(data.labels.toarray()[:, :5]), LABELS[:5]))


def test_neither_library_is_needed():
    code = "import sys; sys.modules |= {'pandas': None, 'polars': None}\n"
    code += "from xmlpreck import PrecAtKClassifier; PrecAtKClassifier().fit([[1.0], [0.5]], [['a'], ['b']])"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
