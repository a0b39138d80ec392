"""Predictions to files and back, files of other tools, every way such a file can be wrong, and writes that fail."""

import gzip
import os
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import FLOATS, PROPERTY, refuses, write
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array, csr_matrix, load_npz, save_npz

from xmlpreck.data import formats
from xmlpreck.data.formats import TopK
from xmlpreck.files import contents
from xmlpreck.files.atomic import atomic_path


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
    with refuses(f"{path}: row 0: label 2 appears twice"):
        formats.write_predictions(path, ONE._replace(labels=np.array([[2, 2], [1, -1]], np.int32)), 3)
    path.unlink()
    with refuses(f"{path}: cannot be read"):
        formats.read_predictions(path)


@pytest.mark.parametrize("name", ["p.xls", "p", "p.txt.gz", "p.npy"])
def test_unknown_kinds_name_the_known(tmp_path, name):
    with refuses("predictions are .parquet, .npz, .txt, .jsonl, .csv, .tsv; .npy and .txt.gz are for reading only"):
        formats.write_predictions(tmp_path / name, ONE, 3)
    with refuses("cannot be read" if name in ("p.txt.gz", "p.npy") else "predictions are .parquet, .npz, .txt"):
        formats.read_predictions(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 3 4\n", ":1: header '2 3 4' is wrong: the first line must be 2 numbers, n_rows n_labels"),
        ("1 3\n3:1\n", ":2: label id 3 is out of range: the header says 3 labels (ids 0 to 2); --fix drops such"),
        ("1 3\n1:nan\n", ":2: label 1 has the score 'nan': scores must be finite float32 numbers; --fix drops such"),
        ("1 3\n1:1e39\n", ":2: label 1 has the score '1e39': scores must be finite float32 numbers; --fix drops such"),
        ("1 3\n1,2 2:1\n", ":2: '1,2' is not label:score, such as 17:0.25"),
        ("1 3\nx\n", ":2: 'x' is not label:score"),
        ("2 3\n1:2 1:3\n\n", ":2: label 1 appears twice: remove one; --fix keeps the higher score"),
        ("2 3\n1:2\n", ":2: the file ends after 1 rows: the header says 2"),
        ("1 3\n1:2\n\n2:1\n", ":4: this line is after the last row: the header says 1 rows"),
        ("1 3\n1:2\n2:1", ":3: this line is after the last row: the header says 1 rows"),
        ("", ":1: the file is empty: the first line must be 2 numbers, n_rows n_labels"),
        ("7\n", ":1: header '7' is wrong"),
        ("hello 1:2\n", ":1: 'hello' is not label:score, such as 17:0.25"),
        ("1:0.5 2\n", ":1: '2' is not label:score, such as 17:0.25"),
        ("1:0.5\n2:x\n", ":2: label 2 has the score 'x': scores must be finite float32 numbers"),
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
        (
            {"row": [0, 1], "labels": [[1], [1]], "scores": [[1.0], []]},
            "row 1: the numbers of labels and scores differ",
        ),
        ({"row": [0, 2, 1], "labels": [[1]] * 3, "scores": [[1.0]] * 3}, "found row 2 where row 1 should be: sort by"),
        ({"row": [0, 1], "labels": [[1], [-1]], "scores": [[1.0], [2.0]]}, "row 1: label -1 is out of range"),
        ({"row": [0, 1], "labels": [[], [9]], "scores": [[], [2.0]]}, "row 1: label 9 is out of range: there are 5"),
        ({"row": [0], "labels": [[2**40]], "scores": [[2.0]]}, "row 0: label 1099511627776 is out of range"),
        ({"row": [0], "labels": [[3]], "scores": [[-1e300]]}, "row 0: label 3 has the value -inf: values must be fin"),
        ({"row": [0, 1], "labels": [[], [3]], "scores": [[], [np.nan]]}, "row 1: label 3 has the value nan"),
        ({"row": [0], "labels": [[3, 3]], "scores": [[1.0, 2.0]]}, "row 0: label 3 appears twice"),
    ],
)
def test_bad_parquet_predictions(tmp_path, columns, message):
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table(columns), path)
    with refuses(message):
        formats.read_predictions(path, n_labels=5)


def write_parquet(path, labels, metadata=None):
    table = pa.table({"row": range(len(labels)), "labels": labels, "scores": [[1.0] * len(row) for row in labels]})
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


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
    with refuses("found row 1 where row 0 should be: sort by row; --fix does it"):
        formats.read_predictions(path, n_rows=2)
    opened = formats.open_predictions(path, n_rows=2, fix=True)
    (read,) = opened.blocks(2)
    assert opened.n_labels == 8
    assert opened.repairs == {"rows out of order": 2}
    assert read.labels.tolist() == [[2, 4], [7, -1]]
    assert read.scores.tolist() == [[3, 2], [1, -np.inf]]
    with refuses("row 0: label 4 is out of range: there are 3 labels"):
        list(formats.open_predictions(write_parquet(path, [[4]]), n_labels=3).blocks(1))
    for said in ("many", "-1", str(2**31)):
        with refuses("cannot be read as row, labels and scores"):
            formats.open_predictions(write_parquet(path, [[1]], {"n_labels": said}))
    with refuses("cannot be read as row, labels and scores"):
        formats.read_predictions(write(path, "PAR1"))


@pytest.mark.parametrize("suffix", ["npz", "parquet", "txt", "jsonl"])
def test_blocks_are_written_like_one_piece(tmp_path, suffix):
    narrow = TopK(np.array([[1]], np.int32), np.array([[0.5]], np.float32))
    names = ["a", "b", "c"]
    formats.write_prediction_blocks(tmp_path / f"p.{suffix}", iter([ONE, narrow, ONE]), 3, names)
    back = formats.read_predictions(tmp_path / f"p.{suffix}", 5, 3)
    assert back.labels.tolist() == [*ONE.labels.tolist(), [1, -1], *ONE.labels.tolist()]
    formats.write_prediction_blocks(tmp_path / f"none.{suffix}", iter([]), 3, names)
    assert formats.read_predictions(tmp_path / f"none.{suffix}", 0, 3).labels.shape[0] == 0


def test_ties_go_to_the_lower_label(tmp_path):
    path = write(tmp_path / "p.txt", "1 9\n7:2 3:2 5:4 1:2\n")
    assert formats.read_predictions(path).labels.tolist() == [[5, 1, 3, 7]]


# --- block by block, and files of other tools


def whole(blocks):
    """(labels, scores) of each row, without the empty places."""
    return [
        (labels[labels >= 0].tolist(), scores[labels >= 0].tolist())
        for block in blocks
        for labels, scores in zip(*block, strict=True)
    ]


def write_list(path, topk, separator=":", gap=" "):
    """As napkinXC (`l:s l:s `) and omikuji (`l s<TAB>l s`) write."""
    rows = whole([topk])
    lines = (gap.join(f"{label}{separator}{score:.9g}" for label, score in zip(*row, strict=True)) for row in rows)
    return write(path, "".join(f"{line}\n" for line in lines))


def write_dense(path, topk, n_labels):
    """Scores of all labels; those that were not predicted are below all others."""
    dense = np.full((len(topk.labels), n_labels), -4e38)
    for row, (labels, scores) in enumerate(whole([topk])):
        dense[row, labels] = scores
    np.save(path, np.maximum(dense, np.finfo(np.float32).min).astype(np.float32))


@PROPERTY
@given(drawn=predictions(st.integers(-64, 64).map(lambda n: n + 0.5)), block_rows=st.integers(1, 6), data=st.data())
def test_blocks_of_every_kind_are_the_whole(tmp_path, drawn, block_rows, data):
    n_labels, topk = drawn
    kind = data.draw(st.sampled_from(["npz", "parquet", "napkinxc", "omikuji", "omikuji with colons", "npy"]))
    path = tmp_path / ("p.txt" if kind[0] in "no" and kind not in ("npz", "npy") else f"p.{kind}")
    depth = 100
    if kind == "npy":
        depth = 1
        write_dense(path, topk, n_labels)
        topk = TopK(topk.labels[:, :1], topk.scores[:, :1])
        row = (topk.labels < 0).any(axis=1)
        topk.labels[row], topk.scores[row] = 0, np.finfo(np.float32).min
    elif kind in ("npz", "parquet"):
        formats.write_predictions(path, topk, n_labels)
    elif len(topk.labels):
        write_list(path, topk, " " if kind == "omikuji" else ":", " " if kind == "napkinxc" else "\t")
    else:
        return  # an empty list is an empty file, which is refused
    opened = formats.open_predictions(path, len(topk.labels), n_labels, depth=depth)
    blocks = list(opened.blocks(block_rows))
    assert (opened.n_rows, opened.n_labels, opened.repairs) == (len(topk.labels), n_labels, {})
    sizes = [len(block.labels) for block in blocks]
    assert sizes == [min(block_rows, len(topk.labels) - start) for start in range(0, len(topk.labels), block_rows)]
    assert whole(blocks) == whole([topk])
    assert whole(opened.blocks(10**6)) == whole([topk])
    assert all(block.labels.dtype == np.int32 and block.scores.dtype == np.float32 for block in blocks)


@pytest.mark.parametrize("kind", ["npz", "parquet", "txt", "list", "npy"])
def test_many_rows_come_in_blocks(tmp_path, monkeypatch, kind):
    """More rows than any reader takes at once."""
    n_rows, n_labels = 20_000, 70
    rng = np.random.default_rng(0)
    labels = rng.permuted(np.tile(np.arange(n_labels, dtype=np.int32), (n_rows, 1)), axis=1)[:, :4]
    scores = np.sort(rng.random((n_rows, 4), dtype=np.float32))[:, ::-1]
    topk = TopK(labels, scores)
    monkeypatch.setattr(formats.predictions, "line_blocks", lambda path: contents.line_blocks(path, 5000))
    if kind == "list":
        path = write_list(tmp_path / "p.txt", topk)
    elif kind == "npy":
        path = tmp_path / "p.npy"
        write_dense(path, topk, n_labels)
    else:
        path = tmp_path / f"p.{kind}"
        formats.write_predictions(path, topk, n_labels)
    blocks = list(formats.open_predictions(path, n_rows, n_labels, depth=4).blocks(7001))
    assert [len(block.labels) for block in blocks] == [7001, 7001, 5998]
    read = np.concatenate([block.labels for block in blocks])
    if kind == "txt":  # nine digits around 1 tie some scores
        assert (read == labels).mean() > 0.999
    else:
        np.testing.assert_array_equal(read, labels)
        np.testing.assert_array_equal(np.concatenate([block.scores for block in blocks]), scores)


@pytest.mark.parametrize("kind", ["txt", "list", "parquet"])
def test_a_late_error_names_its_place(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(formats.predictions, "line_blocks", lambda path: contents.line_blocks(path, 5000))
    header = "9999 3\n" if kind == "txt" else ""
    for wrong, what in (
        ("1:1 1:1", "label 1 appears twice"),
        ("7:1", "is out of range"),
        ("1:1 2:nan", "label 2 has the"),
    ):
        if kind == "parquet":
            path = tmp_path / "p.parquet"
            entries = [tuple(entry.split(":")) for entry in wrong.split()]
            labels, scores = [[]] * 9998, [[]] * 9998
            labels.append([int(label) for label, _ in entries])
            scores.append([float(score) for _, score in entries])
            pq.write_table(pa.table({"row": range(9999), "labels": labels, "scores": scores}), path)
            where = "p.parquet: row 9998: "
        else:
            path = write(tmp_path / "p.txt", header + "1:1 \n" * 9998 + wrong + "\n")
            where = "p.txt:10000: " if header else "p.txt:9999: "
        with refuses(where) as caught:
            formats.read_predictions(path, 9999, 3)
        assert what in str(caught.value)


def test_lists_keep_the_order_of_their_ties_and_matrices_do_not(tmp_path):
    """omikuji rounds to three decimals; the better label still stands first."""
    omikuji = write(tmp_path / "o.txt", "7 0.500\t3 0.500\t5 0.250\n\n4 0.125\r\n")
    assert whole(formats.open_predictions(omikuji, 3, 9).blocks(2)) == [
        ([7, 3, 5], [0.5, 0.5, 0.25]),
        ([], []),
        ([4], [0.125]),
    ]
    matrix = write(tmp_path / "m.txt", "1 9\n7:0.5 3:0.5 8:0.75\n")
    assert formats.read_predictions(matrix).labels.tolist() == [[8, 3, 7]]
    parquet = write_parquet(tmp_path / "p.parquet", [[7, 3]])
    assert formats.read_predictions(parquet).labels.tolist() == [[3, 7]]


def test_a_list_whose_first_line_looks_like_numbers(tmp_path):
    """One label a row, as omikuji writes with k_top 1: a score has a point, a header has none."""
    path = write(tmp_path / "p.txt", "3 1.000\n \n4 0.500 \n")
    opened = formats.open_predictions(path)
    assert (opened.n_rows, opened.n_labels) == (3, 5)
    assert whole(opened.blocks(9)) == [([3], [1]), ([], []), ([4], [0.5])]


def test_text_may_be_packed(tmp_path):
    for text in ("2 3\n0:0.5 2:0.25\n\n", "0:0.5 2:0.25 \n\n"):
        (tmp_path / "p.txt.gz").write_bytes(gzip.compress(text.encode()))
        assert whole(formats.open_predictions(tmp_path / "p.txt.gz", 2, 3).blocks(1)) == [
            ([0, 2], [0.5, 0.25]),
            ([], []),
        ]
    (tmp_path / "p.txt.gz").write_bytes(gzip.compress(b"0:0.5\n" * 999)[:-9])
    with refuses("p.txt.gz: cannot be read"):
        formats.open_predictions(tmp_path / "p.txt.gz")


def test_empty_lines_at_the_end_of_a_list(tmp_path):
    """Rows without predictions, or nothing: what the data say."""
    for end in ("\n \n", "\n\n"):
        path = write(tmp_path / "p.txt", f"\n2:1 \n{end}")
        for n_rows in (2, 3, 4):
            rows = whole(formats.open_predictions(path, n_rows, 3).blocks(2))
            assert rows == [([], []), ([2], [1]), ([], []), ([], [])][:n_rows]
    assert formats.open_predictions(path).n_rows == 4
    for n_rows in (1, 5):
        with refuses(f"predicts for 4 rows, but the data have {n_rows} rows: use the data and the split"):
            formats.open_predictions(path, n_rows)


def test_sizes_of_what_does_not_say_its_labels(tmp_path):
    for path in (write(tmp_path / "p.txt", "2:1 \n5:1 \n"), write_parquet(tmp_path / "p.parquet", [[2], [5]])):
        assert formats.open_predictions(path).n_labels == 6
        assert formats.open_predictions(path, n_labels=9).n_labels == 9
        with refuses("label"):
            list(formats.open_predictions(path, n_labels=5).blocks(1))
        with refuses("predicts for 2 rows, but the data have 3 rows"):
            formats.open_predictions(path, n_rows=3)
    path = write_parquet(tmp_path / "p.parquet", [[2], [2**33]])
    with refuses("row 1: label 8589934592 is out of range: there are 2147483647 labels"):
        list(formats.open_predictions(path).blocks(1))


def test_napkinxc_writes_what_we_read(tmp_path):
    """Its own predictions, in the form of its command line: label:value and a space, six digits."""
    models = pytest.importorskip("napkinxc.models")
    rng = np.random.default_rng(0)
    rows = csr_matrix(rng.random((60, 8)), dtype=np.float32)
    plt = models.PLT(str(tmp_path / "model"), seed=1, threads=1)
    plt.fit(rows, [[int(label)] for label in rng.integers(0, 6, 60)])
    for wanted in ({"top_k": 3}, {"threshold": 0.2}):
        predicted = plt.predict_proba(rows, **wanted)
        text = "".join("".join(f"{label}:{value:g} " for label, value in row) + "\n" for row in predicted)
        opened = formats.open_predictions(write(tmp_path / "p.txt", text), 60, 6)
        assert [labels for labels, _ in whole(opened.blocks(7))] == [[label for label, _ in row] for row in predicted]


# --- dense scores


@PROPERTY
@given(
    scores=st.lists(st.lists(st.integers(-3, 3), min_size=5, max_size=5), min_size=1, max_size=6),
    depth=st.integers(1, 7),
    dtype=st.sampled_from([np.float16, np.float32, np.float64, ">f4"]),
    order=st.sampled_from("CF"),
)
def test_the_best_of_dense_scores(tmp_path, scores, depth, dtype, order):
    path = tmp_path / "p.npy"
    np.save(path, np.array(scores, dtype, order=order))
    expected = [sorted(range(5), key=lambda label, row=row: (-row[label], label))[:depth] for row in scores]
    opened = formats.open_predictions(path, len(scores), 5, depth=depth)
    assert whole(opened.blocks(2)) == [
        (labels, [row[label] for label in labels]) for labels, row in zip(expected, scores, strict=True)
    ]


def test_a_hundred_labels_of_a_dense_matrix(tmp_path):
    np.save(tmp_path / "p.npy", np.arange(300.0).reshape(2, 150))
    assert formats.read_predictions(tmp_path / "p.npy").labels.tolist() == [list(range(149, 49, -1))] * 2
    np.save(tmp_path / "p.npy", np.empty((0, 4), np.float32))
    assert formats.read_predictions(tmp_path / "p.npy", 0, 4).labels.shape[0] == 0


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3), "cannot be read as a matrix of scores: shape (3,) of float64 is not n_rows x n_labels"),
        (np.zeros((2, 3), int), "shape (2, 3) of int64 is not n_rows x n_labels of float16, float32 or float64"),
        (np.zeros((2, 3), np.longdouble), "is not n_rows x n_labels of float16, float32 or float64"),
        (np.array([[None]]), "cannot be read as a matrix of scores"),
        (
            np.array([[1, 2], [3, np.nan]]),
            "row 1: label 1 has the value nan: values must be finite float32 numbers; --",
        ),
        (np.array([[1, -np.inf]]), "row 0: label 1 has the value -inf"),
        (np.array([[1, 1e300]]), "row 0: label 1 has the value inf: values must be finite float32 numbers"),
    ],
)
def test_bad_dense_predictions(tmp_path, array, message):
    np.save(tmp_path / "p.npy", array, allow_pickle=True)
    with refuses(message):
        formats.read_predictions(tmp_path / "p.npy")


def test_every_dense_score_is_looked_at(tmp_path):
    """Also those that are not among the best."""
    np.save(tmp_path / "p.npy", np.array([[1, -np.inf, 2, 2], [np.nan, 5, 3, np.nan]]))
    with refuses("row 0: label 1 has the value -inf"):
        list(formats.open_predictions(tmp_path / "p.npy", depth=1).blocks(1))
    opened = formats.open_predictions(tmp_path / "p.npy", fix=True, depth=1)
    assert whole(opened.blocks(1)) == [([2], [2]), ([1], [5])]
    assert opened.repairs == {"score not finite": 3}


@pytest.mark.parametrize("suffix", ["npy", "npz", "parquet"])
def test_damaged_files_are_named(tmp_path, suffix):
    path = tmp_path / f"p.{suffix}"
    if suffix == "npy":
        np.save(path, np.ones((30, 4)))
    else:
        formats.write_predictions(path, ONE, 3)
    content = path.read_bytes()
    for damaged in (b"", content[:7], content[: len(content) // 2], content[:-3]):
        path.write_bytes(damaged)
        for fix in (False, True):
            with refuses(f"{path}: cannot be read"):
                list(formats.open_predictions(path, fix=fix).blocks(9))


# --- scipy matrices


def save_raw(path, entries, shape=(2, 3)):
    """CSR as it is, which scipy would sum or sort: [[(label, score), ...], ...]."""
    flat = [pair for row in entries for pair in row]
    matrix = csr_array(shape, dtype=np.float64)
    matrix.indices = np.array([label for label, _ in flat], np.int32)
    matrix.data = np.array([score for _, score in flat], np.float64)
    matrix.indptr = np.cumsum([0] + [len(row) for row in entries]).astype(np.int32)
    save_npz(path, matrix)
    return path


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([[(1, 1), (1, 2)], []], "row 0: label 1 appears twice: remove one; --fix keeps the higher score"),
        ([[], [(2, np.nan)]], "row 1: label 2 has the value nan: values must be finite float32 numbers; --fix drops"),
        ([[], [(2, 1e39)]], "row 1: label 2 has the value inf"),
        ([[(3, 1)], []], "cannot be read as a scipy.sparse matrix"),
    ],
)
def test_bad_npz_predictions(tmp_path, entries, message):
    with refuses(message):
        formats.read_predictions(save_raw(tmp_path / "p.npz", entries))


def test_other_npz(tmp_path):
    """As PECOS saves: best first within a row; and a matrix that is not CSR."""
    path = save_raw(tmp_path / "p.npz", [[(2, 0.5), (0, 0.25)], [(1, 1), (0, 1)]])
    assert formats.read_predictions(path, 2, 3).labels.tolist() == [[2, 0], [0, 1]]
    save_npz(path, coo_array(([0.5, 0.25], ([1, 1], [0, 2])), (2, 3)))
    assert formats.read_predictions(path, 2, 3).labels.tolist() == [[-1, -1], [0, 2]]
    save_npz(path, csr_array((2, 3), dtype=np.complex64))
    with refuses("cannot be read as a scipy.sparse matrix: "):
        formats.read_predictions(path)
    empty = {"data": np.empty(0), "indices": np.empty(0, int), "shape": [2, 3], "format": "csr"}
    np.savez(path, indptr=[0, 5, 0], **empty)
    with refuses("cannot be read as a scipy.sparse matrix: "):
        formats.read_predictions(path)


# --- mending

FIXED = [([1, 0], [4.0, 2.0]), ([], []), ([2], [1.0])]


def bad_file(tmp_path, kind):
    """Three rows with every fault that the kind can have; without them they are FIXED."""
    if kind == "npz":
        rows = [[(0, 2), (1, 3), (1, 4), (2, np.nan)], [(0, np.inf)], [(2, 1)]]
        return save_raw(tmp_path / "p.npz", rows, (3, 3))
    if kind == "npy":
        np.save(tmp_path / "p.npy", np.array([[2, 4, np.nan], [np.nan, -np.inf, 1e300], [np.nan, np.nan, 1]]))
        return tmp_path / "p.npy"
    if kind == "parquet":
        labels = [[2], [0, 1, 9, 1, 2], [-1, 2]]
        scores = [[1.0], [2.0, 3.0, 5.0, 4.0, np.nan], [1.0, 1e300]]
        pq.write_table(pa.table({"row": [2, 0, 1], "labels": labels, "scores": scores}), tmp_path / "p.parquet")
        return tmp_path / "p.parquet"
    texts = {
        "matrix": "3 3\n0:2 1:3 9:5 1:4 2:nan\n0:-inf 12345678901:1 2:1e39\n2:1\n",
        "napkinxc": "0:2 1:3 9:5 1:4 2:-nan \n0:inf 12345678901:1 2:1e39 \n2:1 \n",
        "omikuji": "0 2\t1 3\t9 5\t1 4\t2 NaN\n0 inf\t12345678901 1\t2 1e39\n2 1.000\n",
    }
    return write(tmp_path / "p.txt", texts[kind])


@pytest.mark.parametrize(
    ("kind", "repairs"),
    [
        ("npz", {"score not finite": 2, "label twice in a row": 1}),
        ("npy", {"score not finite": 6}),
        (
            "parquet",
            {
                "rows out of order": 3,
                "label out of range": 2,
                "score not finite": 2,
                "label twice in a row": 1,
            },
        ),
        ("matrix", {"label out of range": 2, "score not finite": 3, "label twice in a row": 1}),
        ("napkinxc", {"label out of range": 2, "score not finite": 3, "label twice in a row": 1, "scores rise": 1}),
        ("omikuji", {"label out of range": 2, "score not finite": 3, "label twice in a row": 1, "scores rise": 1}),
    ],
)
def test_fix_repairs_and_counts(tmp_path, kind, repairs):
    path = bad_file(tmp_path, kind)
    with refuses("; --fix"):
        list(formats.open_predictions(path, 3, 3).blocks(2))
    opened = formats.open_predictions(path, 3, 3, fix=True)
    for block_rows in (1, 2, 3):  # again and again: the counts start anew
        assert whole(opened.blocks(block_rows)) == FIXED
        assert opened.repairs == repairs


def test_scores_that_rise(tmp_path):
    path = write(tmp_path / "p.txt", "1:0.5 2:0.5 3:0.25 \n5:0.125 1:0.25 4:0.25 2:0.5 \n")
    with refuses(
        f"{path}:2: label 1 has a higher score than the label before it: lists must be best first; --fix ranks"
    ):
        formats.read_predictions(path)
    opened = formats.open_predictions(path, fix=True)
    assert whole(opened.blocks(9)) == [([1, 2, 3], [0.5, 0.5, 0.25]), ([2, 1, 4, 5], [0.5, 0.25, 0.25, 0.125])]
    assert opened.repairs == {"scores rise": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 3\n1:x\n", ":2: label 1 has the score 'x'"),
        ("1:0.5 -1:0.25\n", ":1: '-1:0.25' is not label:score"),
        ("2 3\n1:1\n", ":2: the file ends after 1 rows"),
    ],
)
def test_what_fix_does_not_mend(tmp_path, text, message):
    path = write(tmp_path / "p.txt", text)
    for fix in (False, True):
        with refuses(f"{path}{message}") as caught:
            list(formats.open_predictions(path, fix=fix).blocks(9))
        assert "--fix" not in str(caught.value)


def test_fix_keeps_duplicated_rows_and_wrong_sizes_refused(tmp_path):
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"row": [1, 0, 1], "labels": [[1]] * 3, "scores": [[1.0]] * 3}), path)
    with refuses("row 2 is missing or another row appears twice: every row must appear once, from 0"):
        formats.open_predictions(path, fix=True)
    formats.write_predictions(path, ONE, 3)
    with refuses("predicts for 3 labels, but the data have 2 labels: use the data and the split that were predicted"):
        formats.open_predictions(path, 2, 2, fix=True)


def test_fix_keeps_the_largest_float32(tmp_path):
    """Written with nine digits it is more than itself, and still rounds to it."""
    path = write(tmp_path / "p.txt", "0:3.40282347e+38 1:1 2:-3.40282347e+38 3:-3.40282357e+38 \n")
    opened = formats.open_predictions(path, fix=True)
    (top,) = opened.blocks(1)
    assert top.labels.tolist() == [[0, 1, 2]]
    assert opened.repairs == {"score not finite": 1}


# --- atomic writes


def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    target = write(tmp_path / "p.txt", "old")

    def write_half(error):
        with atomic_path(target) as temporary:
            assert target.parent in temporary.parents  # on the same file system, so that it can be renamed
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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not a prediction: Expecting"),
        ("[1]", "is not a prediction"),
        ('{"labels": [1]}', "has no 'scores'"),
        ('{"labels": [1], "scores": []}', "as many scores"),
        ('{"labels": ["a"], "scores": [1]}', "labels must be ids"),
        ('{"labels": [1], "scores": ["x"]}', "is not a prediction"),
        ('{"labels": [7], "scores": [1]}', "label 7 is out of range"),
        ('{"labels": [1], "scores": [NaN]}', "label 1 has the value nan"),
        ('{"labels": [1, 2], "scores": [0, 1]}', "has a higher score than the label before it"),
    ],
)
def test_bad_json_predictions(tmp_path, line, message):
    path = tmp_path / "P.jsonl"
    path.write_text('{"labels": [0], "scores": [1.5]}\n' + line + "\n")
    with pytest.raises(formats.FormatError) as refused:
        list(formats.open_predictions(path, 2, 3).blocks(10))
    assert "P.jsonl:2: " in str(refused.value)
    assert message in str(refused.value)
