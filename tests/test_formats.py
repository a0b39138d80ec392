"""Files to data and back: round trips, the parser against plain Python, and every way a file can be wrong."""

import gzip
from io import BytesIO

import numpy as np
import pytest
from helpers import PROPERTY, assert_same_dataset, assert_same_matrix, datasets, refuses, sparse, write
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csc_array, csr_array, csr_matrix, save_npz

from xmlpreck.data import formats
from xmlpreck.data.formats import Dataset

# --- repository text


@PROPERTY
@given(dataset=datasets(), suffix=st.sampled_from([".txt", ".txt.gz"]))
def test_repository_text_round_trip(tmp_path, dataset, suffix):
    path = tmp_path / f"train{suffix}"
    formats.write_repository_text(path, dataset)
    assert_same_dataset(formats.read_repository_text(path), dataset)


def test_same_data_same_bytes_in_gz(tmp_path):
    data = Dataset(sparse({0: {1: 0.5}}, (1, 2)), sparse({0: {0: 1}}, (1, 1)))
    for name in ("a.gz", "b.gz"):
        formats.write_repository_text(tmp_path / name, data)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def plain_parse(text):
    """The format by Python's own split and float."""
    header, *lines = text.split("\n")
    n_rows, n_features, n_labels = map(int, header.split())
    rows, labels = {}, {}
    for row, line in enumerate(lines[:n_rows]):
        first, _, rest = line.partition(" ")
        if ":" in first:
            first, rest = "", line
        labels[row] = {int(label): 1.0 for label in first.split(",") if label.strip()}
        rows[row] = {int(f): float(v) for f, v in (token.split(":") for token in rest.split())}
    return Dataset(sparse(rows, (n_rows, n_features)), sparse(labels, (n_rows, n_labels)))


def random_text(rng, n_rows=60, n_features=50, n_labels=30):
    spellings = ("%.9g", "%.3f", "%e", "%+.17g", "%.0f", "%.25f", "%d.")
    lines = []
    for _ in range(n_rows):
        labels = ",".join(map(str, rng.permutation(n_labels)[: rng.integers(0, 5)]))
        values = rng.normal(size=rng.integers(0, 9)) * 10.0 ** rng.integers(-9, 9)
        features = zip(rng.permutation(n_features), rng.choice(spellings, len(values)), values, strict=False)
        tokens = " ".join(f"{feature}:{spelling % value}" for feature, spelling, value in features)
        lines.append(f"{labels}{' ' * rng.integers(1, 3) if labels or rng.random() < 0.5 else ''}{tokens}")
        lines[-1] += " " * rng.integers(0, 2) + "\r" * rng.integers(0, 2)
    return f"{n_rows} {n_features} {n_labels}\n" + "\n".join(lines) + "\n" * int(rng.integers(0, 4))


@pytest.mark.parametrize("seed", range(20))
def test_parser_agrees_with_plain_python(tmp_path, seed):
    text = random_text(np.random.default_rng(seed))
    # A last row with neither labels nor features and no newline would be no line at all.
    text = text if text.endswith("\n") else text + " "
    actual = formats.read_repository_text(write(tmp_path / "data.txt", text))
    assert_same_dataset(actual, plain_parse(text))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1", 1.0),
        ("+.5", 0.5),
        ("5.", 5.0),
        ("-0.25", -0.25),
        ("1E2", 100.0),
        ("1e+02", 100.0),
        ("12345678901234567890123", 12345678901234567890123.0),
        ("0.00000000000000000000000000001234567", 1.234567e-29),
        ("1234567890123456789012e-20", 12.34567890123456789012),
        ("3.40282347e+38", 3.40282347e38),
        ("1.40129846e-45", 1.40129846e-45),
        ("1e-99999999999999999999", 0.0),
        ("0e99999999999999999999", 0.0),
    ],
)
def test_values(tmp_path, written, value):
    data = formats.read_repository_text(write(tmp_path / "v.txt", f"1 1 1\n0 0:{written}"))
    assert data.rows.data[0] == np.float32(value)


def test_rows_with_little_in_them(tmp_path):
    text = "7 4 3\r\n\r\n1\r\n 3:2\r\n0:1 2:5\r\n2,0\t3:1  1:2 \r\n\t \r\n1,2"
    data = formats.read_repository_text(write(tmp_path / "train.txt", text + "\n \n\r\n\n"))
    assert data.labels.toarray().tolist() == [
        [0, 0, 0],
        [0, 1, 0],
        [0, 0, 0],
        [0, 0, 0],
        [1, 0, 1],
        [0, 0, 0],
        [0, 1, 1],
    ]
    assert data.rows.indptr.tolist() == [0, 0, 0, 1, 3, 5, 5, 5]
    assert data.rows.indices.tolist() == [3, 0, 2, 1, 3]
    assert data.rows.data.tolist() == [2, 1, 5, 2, 1]
    assert_same_dataset(formats.read_repository_text(write(tmp_path / "train.txt", text)), data)


def test_a_header_alone(tmp_path):
    assert formats.read_repository_text(write(tmp_path / "t.txt", "0 4 3")).rows.shape == (0, 4)


RANGE = "is out of range: the header says"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: the file is empty: the first line must be 3 numbers, n_rows n_features n_labels"),
        ("2 3\n", ":1: header '2 3' is wrong"),
        ("0 1:1 2:1\n", ":1: header '0 1:1 2:1' is wrong"),
        ("1 -3 3\n", ":1: header '1 -3 3' is wrong"),
        ("1 3 9999999999\n", ":1: header '1 3 9999999999' is wrong"),
        ("1 3 3" + 200 * " " + "\n0 1:1\n", ":1: header '1 3 3' is wrong"),
        ("\n1 3 3\n", ":1: header '' is wrong"),
        ("2 9 4\n0 1:1\n0,4 1:1\n", f":3: label id 4 {RANGE} 4 labels (ids 0 to 3)"),
        ("1 9 0\n0 1:1\n", f":2: label id 0 {RANGE} 0 labels"),
        ("1 9 4\n99999999999999999999999 1:1\n", f":2: label id 99999999999999999999999 {RANGE} 4 labels"),
        ("1 9 4\n0,x,1 1:1\n", ":2: label 'x' is not an id"),
        ("1 9 4\n0,-1 1:1\n", ":2: label '-1' is not an id"),
        ("1 9 4\n1.5 1:1\n", ":2: label '1.5' is not an id"),
        ("1 9 4\n0, 1:1\n", ":2: label '' is not an id"),
        ("1 9 4\n0,", ":2: label '' is not an id"),
        ("1 9 4\n0,1:1\n", ":2: label '1:1' is not an id"),
        ("1 9 4\n0 9:1\n", f":2: feature id 9 {RANGE} 9 features (ids 0 to 8)"),
        ("1 9 4\n9:1\n", f":2: feature id 9 {RANGE} 9 features (ids 0 to 8)"),
        ("1 9 4\n0 7\n", ":2: '7' is not feature:value, such as 17:0.25"),
        ("1 9 4\n0 a:1\n", ":2: 'a:1' is not feature:value"),
        ("1 9 4\n0 \xff\n", r":2: '\\xc3\\xbf' is not feature:value"),
        ("1 9 4\n 0,1 2:1\n", ":2: '0,1' is not feature:value"),
        ("1 9 4\n0 3:nan\n", ":2: feature 3 has the value 'nan': values must be finite float32 numbers"),
        ("1 9 4\n0 3:-inf\n", ":2: feature 3 has the value '-inf'"),
        ("1 9 4\n0 3:1e39\n", ":2: feature 3 has the value '1e39'"),
        ("1 9 4\n0 3:1e999999999999\n", ":2: feature 3 has the value '1e999999999999'"),
        ("1 9 4\n0 3:\n", ":2: feature 3 has the value ''"),
        ("1 9 4\n0 3: 1\n", ":2: feature 3 has the value ''"),
        ("1 9 4\n0 3:.\n", ":2: feature 3 has the value '.'"),
        ("1 9 4\n0 3:1e\n", ":2: feature 3 has the value '1e'"),
        ("1 9 4\n0 3:1.2.3\n", ":2: feature 3 has the value '1.2.3'"),
        ("1 9 4\n0 3:1:2\n", ":2: feature 3 has the value '1:2'"),
        ("1 9 4\n0 3:-", ":2: feature 3 has the value '-'"),
        ("3 9 4\n0 1:1\n", ":2: the file ends after 1 rows: the header says 3"),
        ("2000000000 9 4", ":1: the file ends after 0 rows: the header says 2000000000"),
        ("1 9 4\n0 1:1\n\n2 1:1\n", ":4: '2' is after the last row: the header says 1 rows"),
        ("2 9 4\n0 1:1\n0 7:1 3:1 7:2\n", ":3: feature 7 appears twice"),
        ("2 9 4\n\n0 7:1 7:1\n", ":3: feature 7 appears twice"),
        ("3 9 4\n1,2\n2,3\n3,1,3 7:1\n", ":4: label 3 appears twice"),
    ],
)
def test_bad_text_names_file_line_and_value(tmp_path, text, message):
    path = write(tmp_path / "bad.txt", text)
    with refuses(f"{path}{message}"):
        formats.read_repository_text(path)


def test_text_that_cannot_be_read(tmp_path):
    with refuses("none.txt: cannot be read: No such file or directory"):
        formats.read_repository_text(tmp_path / "none.txt")
    with refuses("plain.gz: cannot be read: Not a gzipped file"):
        formats.read_repository_text(write(tmp_path / "plain.gz", "1 2 3\n"))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"1 2 3\n0 1:1\n" * 50)[:-12])
    with refuses("cut.gz: cannot be read: "):
        formats.read_repository_text(tmp_path / "cut.gz")


# --- npz pairs


def test_npz_of_other_formats_and_types(tmp_path):
    dense = np.array([[0, 2, 0], [3, 0, 4]])
    x, y = tmp_path / "X.npz", tmp_path / "Y.npz"
    save_npz(x, coo_array(dense))
    for labels in (
        csc_array(dense.astype(np.int8)),
        csr_matrix(dense > 0),
        csr_matrix((np.array([2.0, 0, 4, 3]), np.array([1, 0, 2, 0]), np.array([0, 2, 4]))),
    ):
        save_npz(y, labels)
        data = formats.read_split(x, "train", "npz")
        assert_same_matrix(data.rows, csr_array(dense.astype(np.float32)))
        assert_same_matrix(data.labels, csr_array((dense > 0).astype(np.float32)))


UNREADABLE = "cannot be read as a scipy.sparse matrix"


def raw_csr(data, indices, indptr, shape):
    """A matrix as it would never leave scipy's constructor."""
    matrix = csr_matrix(shape, dtype=np.asarray(data).dtype)
    matrix.data, matrix.indices, matrix.indptr = map(np.asarray, (data, indices, indptr))
    return matrix


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (raw_csr([1.0, np.nan], [0, 1], [0, 1, 2], (2, 3)), "row 1: feature 1 has the value nan"),
        (raw_csr([1.0, 1e300], [0, 1], [0, 0, 2], (2, 3)), "row 1: feature 1 has the value inf"),
        (raw_csr([1.0, 2.0], [2, 2], [0, 0, 2], (2, 3)), "row 1: feature 2 appears twice"),
        (raw_csr([1.0, 2.0], [2, 3], [0, 0, 2], (2, 3)), UNREADABLE),
        (raw_csr([1.0, 2.0], [2, 1], [0, 7, 2], (2, 3)), UNREADABLE),
        (
            raw_csr([1j, 2j], [0, 1], [0, 1, 2], (2, 3)),
            f"{UNREADABLE}: shape (2, 3) of complex128 is not a matrix of real numbers",
        ),
        (coo_array(([1.0, 2.0], ([1, 1], [2, 2])), (2, 3)), "a feature appears twice in a row"),
        (coo_array(([1.0], ([1],)), (3,)), f"{UNREADABLE}: shape (3,) of float32 is not a matrix"),
    ],
)
def test_bad_npz_names_file_row_and_value(tmp_path, matrix, message):
    save_npz(tmp_path / "X.npz", matrix)
    save_npz(tmp_path / "Y.npz", csr_array(np.ones((2, 2))))
    with refuses(f"{tmp_path}/X.npz: {message}"):
        formats.read_split(tmp_path / "X.npz", "train", "npz")


def test_npz_files_that_are_none(tmp_path):
    x, y = tmp_path / "X.npz", tmp_path / "Y.npz"
    save_npz(x, csr_array(np.ones((2, 2))))
    save_npz(y, csr_array(np.ones((3, 2))))
    with refuses(f"Y.npz: has 3 rows, but {x} has 2"):
        formats.read_split(x, "train", "npz")
    whole = x.read_bytes()
    dense = BytesIO()
    np.savez(dense, a=np.ones(3))
    objects = BytesIO()
    np.savez(objects, format=np.array([{}], dtype=object))
    for content in (b"", b"nothing", whole[: len(whole) // 2], dense.getvalue(), objects.getvalue()):
        y.write_bytes(content)
        with refuses(f"{y}: cannot be read as a scipy.sparse matrix: "):
            formats.read_split(x, "train", "npz")
    y.unlink()
    with refuses("Y.npz: cannot be read as a scipy.sparse matrix: [Errno 2] No such file"):
        formats.read_split(x, "train", "npz")


# --- splits


@pytest.fixture
def tiny():
    return Dataset(sparse({0: {1: 0.5}, 1: {0: 2}}, (2, 3)), sparse({0: {0: 1}, 1: {1: 1}}, (2, 2)))


@pytest.mark.parametrize(
    ("x", "y", "split"),
    [
        ("X_train.npz", "Y_train.npz", "train"),
        ("X.trn.npz", "Y.trn.npz", "train"),
        ("X_test.npz", "Y_test.npz", "test"),
        ("X.tst.npz", "Y.tst.npz", "test"),
    ],
)
def test_splits_as_npz(tmp_path, tiny, x, y, split):
    save_npz(tmp_path / x, tiny.rows)
    assert formats.has_split(tmp_path, split)
    assert not formats.has_split(tmp_path, {"train": "test", "test": "train"}[split])
    with refuses(f"{y}: cannot be read"):
        formats.read_split(tmp_path, split)
    save_npz(tmp_path / y, tiny.labels)
    assert_same_dataset(formats.read_split(tmp_path, split), tiny)
    assert_same_dataset(formats.read_split(tmp_path / x, "test"), tiny)


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
def test_splits_as_text_with_names(tmp_path, tiny, name):
    formats.write_repository_text(tmp_path / name, tiny)
    assert formats.read_split(tmp_path, "train").label_names is None
    write(tmp_path / "labels.txt", "caf\u00e9\r\n\r\n")
    (tmp_path / "features.txt.gz").write_bytes(gzip.compress("a\nb\u2028\nc".encode()))
    data = formats.read_split(str(tmp_path), "train")
    assert_same_dataset(data, Dataset(tiny.rows, tiny.labels, ["caf\u00e9", ""], ["a", "b\u2028", "c"]))
    assert formats.read_split(tmp_path / name, "test").label_names is None
    write(tmp_path / "labels.txt", "one\n")
    with refuses("labels.txt: has 1 names, but the data have 2"):
        formats.read_split(tmp_path, "train")
    (tmp_path / "labels.txt").write_bytes(b"a\n\xff\n")
    with refuses("labels.txt: byte 2 is not UTF-8"):
        formats.read_split(tmp_path, "train")


def test_missing_splits_say_what_was_looked_for(tmp_path, tiny):
    with refuses(f"{tmp_path}: no test data here: looked for test.txt, test.txt.gz, tst_X_Xf.txt"):
        formats.read_split(tmp_path, "test")
    with refuses("nowhere: no such file or folder"):
        formats.read_split(tmp_path / "nowhere", "train")
    with refuses("split 'dev' is not known: choose train or test"):
        formats.read_split(tmp_path, "dev")
    save_npz(tmp_path / "data.npz", tiny.rows)
    with refuses("data.npz: name the file of rows X"):
        formats.read_split(tmp_path / "data.npz", "train")
    assert not formats.has_split(tmp_path / "nowhere", "train")
