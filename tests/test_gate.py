"""The gate of every public call: a matrix of any kind and any damage gets an answer or one line of advice."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.sparse import bsr_array, coo_array, csc_array, csr_array, dia_array, dok_array, lil_array, random_array

from xmlpreck import metrics, train
from xmlpreck.api.estimators.classifier import PrecAtKClassifier
from xmlpreck.cli import main
from xmlpreck.config import InputError, RunConfig, TrainConfig
from xmlpreck.data.formats import Dataset, TopK
from xmlpreck.data.matrix import as_dataset, as_label_rows, as_rows
from xmlpreck.model.explanation import explain

N_FEATURES, N_LABELS = 12, 9
QUICK = RunConfig(train=TrainConfig(epochs=1, threads=1))


def draw(seed: int = 0, n_rows: int = 40) -> Dataset:
    rng = np.random.default_rng(seed)
    rows = csr_array(random_array((n_rows, N_FEATURES), density=0.4, rng=rng).astype(np.float32))
    labels = csr_array((rng.random((n_rows, N_LABELS)) < 0.3).astype(np.float32))
    return Dataset(rows, labels)


@pytest.fixture(scope="module")
def scorer():
    return train.fit(draw(), QUICK)


def damaged(matrix, how: str):
    """A matrix with one thing wrong; scipy checks what it is given only when it is made."""
    matrix = matrix.copy()
    entry = matrix.nnz // 2
    if how == "far id":
        matrix.indices[entry] = 10**8
    elif how == "negative id":
        matrix.indices[entry] = -7
    elif how == "NaN":
        matrix.data[entry] = np.nan
    elif how == "infinite":
        matrix.data[entry] = np.inf
    elif how == "offsets that fall":
        matrix.indptr[3] = 10**6
    elif how == "offsets that wrap":
        matrix.indptr = matrix.indptr.astype(np.int64)
        matrix.indices = matrix.indices.astype(np.int64)
        matrix.indptr[1:4] = 2**63 - 1, -(2**63), -1
    elif how == "offsets beyond the entries":
        matrix.indptr[-1] += 10**6
    elif how == "too few offsets":
        matrix.indptr = matrix.indptr[:-2].copy()
    return matrix


DAMAGE = (
    "far id",
    "negative id",
    "NaN",
    "infinite",
    "offsets that fall",
    "offsets that wrap",
    "offsets beyond the entries",
    "too few offsets",
)

CALLS = {
    "predict_topk": lambda scorer, rows: scorer.predict_topk(rows, 3, n_threads=2),
    "decision_function": lambda scorer, rows: scorer.decision_function(rows),
    "rank_candidates": lambda scorer, rows: scorer.rank_candidates(rows, np.ones((rows.shape[0], N_LABELS)), 3),
    "fit": lambda scorer, rows: train.fit(Dataset(rows, draw().labels), QUICK),
    "plan": lambda scorer, rows: train.plan(Dataset(rows, draw().labels), QUICK),
    "update": lambda scorer, rows: train.update(scorer, Dataset(rows, draw().labels), QUICK),
    "PrecAtKClassifier.fit": lambda scorer, rows: PrecAtKClassifier(epochs=1).fit(rows, draw().labels),
    "PrecAtKClassifier.predict": lambda scorer, rows: (
        PrecAtKClassifier(epochs=1).fit(draw().rows, draw().labels).predict_topk(rows)
    ),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("call", CALLS)
def test_damaged_rows_are_refused(call, how, scorer):
    with pytest.raises((InputError, ValueError)):
        CALLS[call](scorer, damaged(draw().rows, how))


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("kind", [csr_array, csc_array])
def test_damaged_labels_are_refused(how, kind, scorer):
    labels = damaged(kind(draw().labels), how)
    with pytest.raises(InputError):
        train.fit(Dataset(draw().rows, labels), QUICK)
    top = scorer.predict_topk(draw().rows, 3)
    for call in (metrics.hits, lambda top, labels: metrics.precision_at_k(top, labels, [1, 3])):
        with pytest.raises(InputError):
            call(top, labels)


@pytest.mark.parametrize("how", ["far id", "negative id", "NaN", "infinite", "offsets beyond the entries"])
def test_one_damaged_row_is_refused(how, scorer):
    row = damaged(draw(3, n_rows=1).rows, how)
    with pytest.raises(InputError):
        scorer.predict_one(row, 3)
    with pytest.raises(InputError):
        explain(scorer, row, 2)


@pytest.mark.parametrize("kind", [csc_array, coo_array, bsr_array, dia_array, dok_array, lil_array, "dense", "lists"])
def test_any_kind_of_matrix_has_the_same_labels(kind, scorer):
    rows = draw(1).rows
    other = rows.toarray() if kind == "dense" else rows.toarray().tolist() if kind == "lists" else kind(rows)
    for labels, expected in zip(scorer.predict_topk(other, 4), scorer.predict_topk(rows, 4), strict=True):
        np.testing.assert_array_equal(labels, expected)


def test_repeated_ids_count_once_as_their_sum(scorer):
    """A matrix may name an id twice; its value is the sum, in batches and alone."""
    rows = draw(2).rows
    twice = csr_array(
        (np.repeat(rows.data / 2, 2), np.repeat(rows.indices, 2), 2 * rows.indptr.astype(np.int64)), rows.shape
    )
    for got, expected in zip(scorer.predict_topk(twice, 4), scorer.predict_topk(rows, 4), strict=True):
        np.testing.assert_array_equal(got, expected)
    n_first = int(twice.indptr[1])
    one = csr_array((twice.data[:n_first], twice.indices[:n_first], [0, n_first]), (1, N_FEATURES))
    np.testing.assert_array_equal(scorer.predict_one(one, 4).labels, scorer.predict_topk(rows[:1], 4).labels[0])


def test_order_of_ids_does_not_matter(scorer):
    rows = draw(2).rows
    mixed = rows.copy()
    for row in range(rows.shape[0]):
        here = slice(rows.indptr[row], rows.indptr[row + 1])
        mixed.indices[here], mixed.data[here] = mixed.indices[here][::-1].copy(), mixed.data[here][::-1].copy()
    np.testing.assert_array_equal(scorer.predict_topk(mixed, 4).scores, scorer.predict_topk(rows, 4).scores)
    np.testing.assert_array_equal(as_rows(mixed).indices, rows.indices)


def test_sound_rows_are_not_copied():
    rows = draw().rows
    assert np.shares_memory(as_rows(rows).data, rows.data)
    assert np.shares_memory(as_rows(rows).indices, rows.indices)


def test_stale_flags_of_scipy_are_not_believed():
    """scipy remembers that ids were sorted, even when they were changed since."""
    rows = draw().rows
    assert rows.has_canonical_format
    rows.indices[rows.indptr[0] : rows.indptr[1]] = 3
    assert as_rows(rows)[[0]].nnz == 1


@pytest.mark.parametrize(
    ("bonus", "message"),
    [
        (np.zeros(N_LABELS + 1), "a number for each of 9 labels"),
        (np.zeros(N_LABELS - 1), "a number for each of 9 labels"),
        (np.full(N_LABELS, np.nan), "the bonus of label 0 is neither a number nor -inf"),
        (np.array([0.0] * 8 + [np.inf]), "the bonus of label 8 is neither a number nor -inf"),
    ],
)
def test_bonus_must_fit(bonus, message, scorer):
    rows = draw().rows
    with pytest.raises(InputError, match=message):
        scorer.predict_topk(rows, 3, bonus=bonus)
    with pytest.raises(InputError, match=message):
        scorer.predict_one(rows[:1], 3, bonus=bonus)
    with pytest.raises(InputError, match=message):
        scorer.rank_candidates(rows, np.ones((rows.shape[0], N_LABELS)), 3, bonus)


@pytest.mark.parametrize("k", [0, -1, 2.5, "3", None, np.nan])
def test_k_must_be_a_whole_number(k, scorer):
    with pytest.raises(InputError, match="topk must be 1 or more"):
        scorer.predict_topk(draw().rows, k)


def test_predicted_labels_out_of_range_are_refused():
    labels = draw().labels
    for wrong in (N_LABELS, -2, 10**8):
        top = TopK(np.full((labels.shape[0], 3), wrong, np.int32), np.zeros((labels.shape[0], 3), np.float32))
        with pytest.raises(InputError, match=f"predicted label {wrong} is out of range"):
            metrics.hits(top, labels)


def test_values_that_float32_cannot_hold_are_refused():
    with pytest.raises(InputError, match="row 0 has a value that is not a finite number: inf for feature 1"):
        as_rows(np.array([[0.0, 1e300]]))


@pytest.mark.parametrize("matrix", [[[1, 2], [3]], np.zeros(3), np.zeros((2, 2, 2)), [["a"]], np.array([[1j]]), None])
def test_what_is_no_matrix_is_refused(matrix):
    with pytest.raises(InputError, match="must be a matrix of numbers"):
        as_rows(matrix)


def test_labels_are_ones_wherever_the_value_is_not_0():
    labels = as_label_rows(csr_array(np.array([[0.5, 0, -2], [0, 0, 1]])))
    np.testing.assert_array_equal(labels.toarray(), [[1, 0, 1], [0, 0, 1]])


def test_a_dataset_must_fit_together():
    data = draw()
    with pytest.raises(InputError, match="there are 40 rows, but labels of 39"):
        as_dataset(data._replace(labels=data.labels[:39]))
    with pytest.raises(InputError, match="there are 2 label names, but 9 labels"):
        as_dataset(data._replace(label_names=["a", "b"]))


def test_a_row_without_features_gets_no_label(scorer):
    """The bias alone would give it the most frequent labels, whatever it is about."""
    rows = draw().rows.toarray()
    rows[[0, 5]] = 0
    rows = csr_array(rows)
    rows.data[rows.indptr[7] : rows.indptr[8]] = 0  # stored zeros are no features
    top = scorer.predict_topk(rows, 3, n_threads=2)
    assert np.flatnonzero((top.labels == -1).all(axis=1)).tolist() == [0, 5, 7]
    assert np.isneginf(top.scores[[0, 5, 7]]).all()
    guessed = scorer.predict_topk(rows, 3, guess_empty=True)
    assert (guessed.labels >= 0).all()
    others = [row for row in range(40) if row not in (0, 5, 7)]
    np.testing.assert_array_equal(guessed.labels[others], top.labels[others])
    for row in (0, 5, 7, 8):
        np.testing.assert_array_equal(scorer.predict_one(rows[[row]], 3).labels, top.labels[row])
        one = scorer.predict_one(rows[[row]], 3, guess_empty=True)
        np.testing.assert_array_equal(one.labels, guessed.labels[row])


HUGE = """
import numpy as np
from scipy.sparse import csr_array
from xmlpreck import train
from xmlpreck.config import InputError, RunConfig, TrainConfig
from xmlpreck.data.formats import Dataset
rows = csr_array(np.eye(8, dtype=np.float32))
labels = csr_array(np.eye(8, dtype=np.float32))
far = csr_array(np.ones((1, 8), np.float32))
far.indices[7] = 10**8
scorer = train.fit(Dataset(rows, labels), RunConfig(train=TrainConfig(epochs=1)))
for name, which in (("feature", rows), ("label", labels)):
    bad = which.copy()
    bad.indices[4] = {"feature": 10**8, "label": 10**7}[name]
    pair = Dataset(bad, labels) if name == "feature" else Dataset(rows, bad)
    calls = [lambda: train.fit(pair, RunConfig())]
    if name == "feature":
        calls += [lambda: scorer.predict_topk(bad, 3), lambda: scorer.predict_one(far, 3)]
    for call in calls:
        try:
            call()
        except InputError as error:
            print(error)
"""


def test_ids_far_away_do_not_end_the_process():
    """They once read and wrote foreign memory: a process of its own, so that a crash is seen."""
    done = subprocess.run(
        [sys.executable, "-c", HUGE],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("feature id 100000000 is out of range: there are 8 features") == 3
    assert done.stdout.count("label id 10000000 is out of range: there are 8 labels") == 1


def test_predict_says_how_many_rows_have_no_label(scorer, tmp_path, capsys):
    scorer.save(tmp_path / "m")
    (tmp_path / "rows.txt").write_text(f"3 {N_FEATURES} {N_LABELS}\n0 1:1 2:1\n1 \n2 3:0.5\n")
    words = ["predict", "--model", str(tmp_path / "m"), "--data", str(tmp_path / "rows.txt"), "--topk", "2"]
    assert main([*words, "--out", str(tmp_path / "p.npz")]) == 0
    assert "4 labels for 3 rows; 1 rows have none" in capsys.readouterr().out
    assert main([*words, "--guess-empty", "--out", str(tmp_path / "p.npz")]) == 0
    assert "6 labels for 3 rows\n" in capsys.readouterr().out
