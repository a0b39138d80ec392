"""Predictions to files and back, every way such a file can be wrong, and writes that fail."""

import os
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, load_npz
from test_formats import FLOATS, PROPERTY, refuses, write

from xmlpreck import formats
from xmlpreck.formats import TopK


@st.composite
def predictions(draw, scores=FLOATS):
    """(n_labels, TopK) in the order the library promises."""
    n_labels = draw(st.integers(1, 8))
    rows = draw(st.lists(st.dictionaries(st.integers(0, n_labels - 1), scores, max_size=4), max_size=5))
    width = max([1] + [len(row) for row in rows])
    topk = TopK(np.full((len(rows), width), -1, np.int32), np.full((len(rows), width), -np.inf, np.float32))
    for row, chosen in enumerate(rows):
        for rank, (label, score) in enumerate(sorted(chosen.items(), key=lambda pair: (-pair[1], pair[0]))):
            topk.labels[row, rank], topk.scores[row, rank] = label, score
    return n_labels, topk


@PROPERTY
@given(drawn=predictions(), suffix=st.sampled_from([".npz", ".parquet"]))
def test_predictions_round_trip(tmp_path, drawn, suffix):
    n_labels, topk = drawn
    path = tmp_path / f"predictions{suffix}"
    formats.write_predictions(path, topk, n_labels)
    read = formats.read_predictions(path, len(topk.labels), n_labels)
    assert read.labels.dtype == np.int32
    assert read.scores.dtype == np.float32
    np.testing.assert_array_equal(read.labels, topk.labels)
    np.testing.assert_array_equal(read.scores, topk.scores)


# Multiples of 1/64 up to 1000: differences that nine digits around 1 can show.
@PROPERTY
@given(drawn=predictions(st.integers(-64_000, 64_000).map(lambda n: n / 64)))
def test_text_predictions_keep_the_order_and_are_positive(tmp_path, drawn):
    n_labels, topk = drawn
    path = tmp_path / "predictions.txt"
    formats.write_predictions(path, topk, n_labels)
    read = formats.read_predictions(path, len(topk.labels), n_labels)
    np.testing.assert_array_equal(read.labels, topk.labels)
    assert (read.scores[read.labels >= 0] > 0).all()
    score = topk.scores[topk.labels >= 0].astype(np.float64)
    expected = np.where(score >= 0, 1 + score, 1 / (1 + abs(score))).astype(np.float32)
    # Nine digits in the file, then float32.
    np.testing.assert_allclose(read.scores[read.labels >= 0], expected, rtol=2e-7)


ONE = TopK(np.array([[2, 0], [1, -1]], np.int32), np.array([[0.5, -1], [0, -np.inf]], np.float32))


def test_what_stands_in_the_files(tmp_path):
    formats.write_predictions(tmp_path / "p.txt", ONE, 3)
    assert (tmp_path / "p.txt").read_text() == "2 3\n0:0.5 2:1.5\n1:1\n"
    formats.write_predictions(tmp_path / "p.npz", ONE, 3)
    matrix = load_npz(tmp_path / "p.npz")
    assert isinstance(matrix, csr_matrix)
    assert matrix.nnz == 3
    formats.write_predictions(tmp_path / "p.parquet", ONE, 3, ["a", "b", "c"])
    table = pq.read_table(tmp_path / "p.parquet")
    assert table.schema.field("row").type == pa.int64()
    assert table.to_pydict() == {
        "row": [0, 1],
        "labels": [[2, 0], [1]],
        "scores": [[0.5, -1.0], [0.0]],
        "names": [["c", "a"], ["b"]],
    }
    assert table.schema.metadata[b"n_labels"] == b"3"


@pytest.mark.parametrize("suffix", [".txt", ".npz", ".parquet"])
def test_predictions_must_fit_the_data(tmp_path, suffix):
    path = tmp_path / f"p{suffix}"
    formats.write_predictions(path, ONE, 3)
    with refuses(f"{path}: predicts for 2 rows, but the data have 5 rows"):
        formats.read_predictions(path, n_rows=5)
    with refuses(f"{path}: predicts for 3 labels, but the data have 4 labels"):
        formats.read_predictions(path, n_rows=2, n_labels=4)
    with refuses(f"{path}: row 0: label 2 is out of range: there are 2 labels"):
        formats.write_predictions(path, ONE, 2)
    with refuses(f"{path}: row 1: label 1 has the value nan"):
        formats.write_predictions(path, ONE._replace(scores=np.array([[1, 0], [np.nan, 0]], np.float32)), 3)
    with refuses(f"{path}: row 0: label 2 stands twice"):
        formats.write_predictions(path, ONE._replace(labels=np.array([[2, 2], [1, -1]], np.int32)), 3)
    path.unlink()
    with refuses(f"{path}: cannot be read"):
        formats.read_predictions(path)


@pytest.mark.parametrize("name", ["p.csv", "p", "p.txt.gz"])
def test_unknown_kinds_name_the_known(tmp_path, name):
    with refuses("predictions are .npz, .parquet or .txt"):
        formats.write_predictions(tmp_path / name, ONE, 3)
    with refuses("predictions are .npz, .parquet or .txt"):
        formats.read_predictions(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 3 4\n", ":1: header '2 3 4' is wrong: the first line must be 2 numbers, n_rows n_labels"),
        ("1 3\n3:1\n", ":2: label id 3 is out of range: the header says 3 labels (ids 0 to 2)"),
        ("1 3\n1:nan\n", ":2: label 1 has the score 'nan': scores must be finite float32 numbers"),
        ("1 3\n1,2 2:1\n", ":2: '1,2' is not label:score, such as 17:0.25"),
        ("1 3\nx\n", ":2: 'x' is not label:score"),
        ("2 3\n1:2 1:3\n\n", ":2: label 1 stands twice"),
        ("2 3\n1:2\n", ":2: the file ends after 1 rows: the header says 2"),
    ],
)
def test_bad_text_predictions(tmp_path, text, message):
    path = write(tmp_path / "p.txt", text)
    with refuses(f"{path}{message}"):
        formats.read_predictions(path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"row": [0], "labels": [[1]]}, "cannot be read as row, labels and scores: "),
        ({"row": [0], "labels": [["x"]], "scores": [[1.0]]}, "cannot be read as row, labels and scores: "),
        ({"row": [0], "labels": [None], "scores": [[1.0]]}, "scores: an entry is null"),
        ({"row": [0], "labels": [[1]], "scores": [[None]]}, "scores: an entry is null"),
        ({"row": [0, 2], "labels": [[1], [1]], "scores": [[1.0], [1.0]]}, "row 1 is missing"),
        ({"row": [0, 0], "labels": [[1], [1]], "scores": [[1.0], [1.0]]}, "row 1 is missing or another"),
        ({"row": [0, 1], "labels": [[1], [1]], "scores": [[1.0], []]}, "row 1: has not as many scores as"),
        ({"row": [1, 0], "labels": [[-1], [1]], "scores": [[1.0], [2.0]]}, "row 1: label -1 is out of range"),
        ({"row": [0, 1], "labels": [[], [9]], "scores": [[], [2.0]]}, "row 1: label 9 is out of range"),
        ({"row": [0, 1], "labels": [[], [3]], "scores": [[], [np.nan]]}, "row 1: label 3 has the value nan"),
        ({"row": [0], "labels": [[3, 3]], "scores": [[1.0, 2.0]]}, "row 0: label 3 stands twice"),
    ],
)
def test_bad_parquet_predictions(tmp_path, columns, message):
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table(columns), path)
    with refuses(message):
        formats.read_predictions(path, n_labels=5)


def test_parquet_of_others(tmp_path):
    """Rows in another order, wider types, no n_labels."""
    path = tmp_path / "p.parquet"
    table = pa.table({"scores": [[1.0], [2.0, 3.0]], "row": [1, 0], "labels": [[7], [4, 2]]})
    pq.write_table(
        table.cast(
            pa.schema(
                {
                    "scores": pa.large_list(pa.float64()),
                    "row": pa.int32(),
                    "labels": pa.large_list(pa.int64()),
                }
            )
        ),
        path,
    )
    read = formats.read_predictions(path, n_rows=2)
    assert read.labels.tolist() == [[2, 4], [7, -1]]
    assert read.scores.tolist() == [[3, 2], [1, -np.inf]]
    with refuses("cannot be read as row, labels and scores"):
        formats.read_predictions(write(path, "PAR1"))


@pytest.mark.parametrize("suffix", ["npz", "parquet", "txt"])
def test_blocks_are_written_like_one_piece(tmp_path, suffix):
    narrow = TopK(np.array([[1]], np.int32), np.array([[0.5]], np.float32))
    names = ["a", "b", "c"]
    formats.write_prediction_blocks(tmp_path / f"p.{suffix}", iter([ONE, narrow, ONE]), 5, 3, names)
    back = formats.read_predictions(tmp_path / f"p.{suffix}", 5, 3)
    assert back.labels.tolist() == [*ONE.labels.tolist(), [1, -1], *ONE.labels.tolist()]
    formats.write_prediction_blocks(tmp_path / f"none.{suffix}", iter([]), 0, 3, names)
    assert formats.read_predictions(tmp_path / f"none.{suffix}", 0, 3).labels.shape[0] == 0


def test_ties_go_to_the_lower_label(tmp_path):
    path = write(tmp_path / "p.txt", "1 9\n7:2 3:2 5:4 1:2\n")
    assert formats.read_predictions(path).labels.tolist() == [[5, 1, 3, 7]]


# --- atomic writes


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = write(tmp_path / "p.txt", "old")

    def write_half(error):
        with formats.atomic_path(target) as temporary:
            assert temporary.parent == target.parent
            write(temporary, "half")
            raise error

    with pytest.raises(ZeroDivisionError):
        write_half(ZeroDivisionError())
    with refuses(f"{target}: cannot be written: No space left on device"):
        write_half(OSError(28, "No space left on device"))

    def fail(*names):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", fail)
    for name in ("p.txt", "p.npz", "p.parquet"):
        with refuses(f"{name}: cannot be written: Permission denied"):
            formats.write_predictions(tmp_path / name, ONE, 3)
    assert os.listdir(tmp_path) == ["p.txt"]
    assert target.read_text() == "old"


@pytest.mark.parametrize("name", ["p.txt", "p.npz", "p.parquet"])
def test_places_that_cannot_be_written(tmp_path, name):
    with refuses(f"nowhere/{name}: cannot be written: "):
        formats.write_predictions(tmp_path / "nowhere" / name, ONE, 3)
    write(tmp_path / "file", "")
    with refuses(f"file/{name}: cannot be written: "):
        formats.write_predictions(tmp_path / "file" / name, ONE, 3)
    (tmp_path / name).mkdir()
    with refuses(f"{name}: cannot be written: "):
        formats.write_predictions(tmp_path / name, ONE, 3)
    assert sorted(os.listdir(tmp_path)) == ["file", name]


def test_a_good_write_replaces_the_file(tmp_path):
    target = write(tmp_path / "p.npz", "old")
    formats.write_predictions(target, ONE, 3)
    assert zipfile.is_zipfile(target)
    assert os.listdir(tmp_path) == ["p.npz"]
