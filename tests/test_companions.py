"""Files beside a data set: filters and inverse propensities, what they do and every way they can be wrong."""

import gzip

import numpy as np
import pytest
from helpers import PROPERTY, refuses, write
from hypothesis import given
from hypothesis import strategies as st

from xmlpreck.data import formats
from xmlpreck.data.formats import TopK


def test_the_filter_of_a_split(tmp_path):
    assert formats.find_filter(tmp_path, "test") is None
    write(tmp_path / "filter_labels_test.txt", "")
    (tmp_path / "filter_labels_train.txt").mkdir()
    assert formats.find_filter(str(tmp_path), "test") == tmp_path / "filter_labels_test.txt"
    assert formats.find_filter(tmp_path, "train") is None


PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=12)


@PROPERTY
@given(pairs=PAIRS, gap=st.sampled_from([" ", "\t", ",", ", ", "  "]), end=st.sampled_from(["\n", "\r\n", " \n\n"]))
def test_filters_are_read(tmp_path, pairs, gap, end):
    path = write(tmp_path / "filter.txt", "".join(f"{row}{gap}{label}{end}" for row, label in pairs))
    pattern = formats.read_filter(path, 5, 7)
    assert pattern.shape == (5, 7)
    assert pattern.dtype == bool
    assert pattern.has_canonical_format
    assert set(zip(*(ids.tolist() for ids in pattern.nonzero()), strict=True)) == set(pairs)


def test_a_packed_filter(tmp_path):
    (tmp_path / "filter.txt").write_bytes(gzip.compress(b"1 2\n"))
    assert formats.read_filter(tmp_path / "filter.txt", 5, 7).toarray().sum() == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n5 1\n", ":2: row 5 is out of range: the data have 5 rows: use the filter of this split"),
        ("0 1\n\n4 7\n", ":3: label 7 is out of range: the data have 7 labels: use the filter of this split"),
        ("0 999999999999999\n", ":1: label 999999999999999 is out of range"),
        ("0 1 2\n", ":1: '0 1 2' is not a pair: write two ids, row and label, from 0"),
        ("0 1\n3\n", ":2: '3' is not a pair"),
        ("0 -1\n", ":1: '0 -1' is not a pair"),
        ("0,,1\n", ":1: '0,,1' is not a pair"),
        ("0 1.0\n", ":1: '0 1.0' is not a pair"),
        ("\u0663 1\n", ":1: '\u0663 1' is not a pair"),
        ("0 " + "9" * 5000 + "\n", ":1: '0 99999999"),
        ("9" * 5000 + " 0\n", ":1: '99999999"),
    ],
)
def test_bad_filters(tmp_path, text, message):
    path = write(tmp_path / "filter.txt", text)
    with refuses(f"{path}{message}"):
        formats.read_filter(path, 5, 7)


@PROPERTY
@given(
    rows=st.lists(st.lists(st.integers(0, 6), max_size=4, unique=True), min_size=5, max_size=5),
    pairs=PAIRS,
)
def test_filtered_labels_make_room(tmp_path, rows, pairs):
    labels, scores = np.full((5, 4), -1, np.int32), np.full((5, 4), -np.inf, np.float32)
    for row, own in enumerate(rows):
        labels[row, : len(own)], scores[row, : len(own)] = own, -np.arange(len(own))
    before = labels.copy()
    path = write(tmp_path / "filter.txt", "".join(f"{row} {label}\n" for row, label in pairs))
    left = formats.drop_filtered(TopK(labels, scores), formats.read_filter(path, 5, 7))
    assert left.labels.dtype == np.int32
    assert left.scores.dtype == np.float32
    np.testing.assert_array_equal(labels, before)
    for row, own in enumerate(rows):
        kept = [(label, -place) for place, label in enumerate(own) if (row, label) not in pairs]
        kept += [(-1, -np.inf)] * (4 - len(kept))
        assert list(zip(left.labels[row].tolist(), left.scores[row].tolist(), strict=True)) == kept


def test_a_filter_is_cut_like_the_predictions(tmp_path):
    """The empty place of a row is not the last label of the row before."""
    pattern = formats.read_filter(write(tmp_path / "filter.txt", "0 6\n2 1\n"), 5, 7)
    top = TopK(np.array([[1, 6], [6, -1]], np.int32), np.array([[2, 1], [1, -np.inf]], np.float32))
    assert formats.drop_filtered(top, pattern[:2]).labels.tolist() == [[1, -1], [6, -1]]
    assert formats.drop_filtered(top, pattern[2:4]).labels.tolist() == [[6, -1], [6, -1]]
    with refuses("predictions have 2 rows, but the filter has 5: cut both alike"):
        formats.drop_filtered(top, pattern)


@PROPERTY
@given(values=st.lists(st.floats(0, exclude_min=True, allow_infinity=False), max_size=6))
def test_inverse_propensities_round_trip(tmp_path, values):
    path = write(tmp_path / "inv_prop.txt", "".join(f"{value!r}\n" for value in values))
    read = formats.read_inverse_propensities(path, len(values))
    assert read.dtype == np.float64
    assert read.tolist() == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n2\n", ": has 2 inverse propensities, but the data have 3 labels: write one per line, in label order"),
        ("1\n2\n3\n4\n", ": has 4 inverse propensities, but the data have 3 labels"),
        ("", ": has 0 inverse propensities"),
        ("1\n0\n3\n", ":2: '0' is not an inverse propensity: write one positive number per line"),
        ("1\n-2\n3\n", ":2: '-2' is not an inverse propensity"),
        ("1\n2\nnan\n", ":3: 'nan' is not an inverse propensity"),
        ("inf\n2\n3\n", ":1: 'inf' is not an inverse propensity"),
        ("1\n\n3\n", ":2: '' is not an inverse propensity"),
        ("1 2\n3\n", ":1: '1 2' is not an inverse propensity"),
    ],
)
def test_bad_inverse_propensities(tmp_path, text, message):
    path = write(tmp_path / "inv_prop.txt", text)
    with refuses(f"{path}{message}"):
        formats.read_inverse_propensities(path, 3)
