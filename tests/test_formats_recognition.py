"""Formats told from content, forced formats, and what is right and wrong in each."""

import gzip
import shutil

import numpy as np
import pytest
from helpers import PROPERTY, assert_same_dataset, datasets, refuses, sparse, write
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import save_npz

from xmlpreck.data import formats
from xmlpreck.data.formats import Dataset, FormatError, splits

ROWS = Dataset(sparse({0: {1: 0.5}, 1: {0: 2}}, (2, 3)), sparse({0: {0: 1}, 1: {1: 1}}, (2, 2)))
CONTENTS = {
    "repository": b"2 3 2\n0 1:0.5\n1 0:2\n",
    "libsvm": b"0 2:0.5\n1 1:2\n",
    "jsonl": b'{"text": "a", "labels": ["x"]}\n{"text": "b", "labels": []}\n',
    "fasttext": b"__label__x a\nb\n",
}

# --- recognition


@pytest.mark.parametrize("name", ["train.txt", "data", "x.json", "x.svm", "x.ft", "x.gz", "packed.txt"])
@pytest.mark.parametrize("format", CONTENTS)
def test_a_file_is_told_by_its_content(tmp_path, format, name):
    packed = name.endswith(".gz") or name.startswith("packed")
    (tmp_path / name).write_bytes(gzip.compress(CONTENTS[format]) if packed else CONTENTS[format])
    assert formats.recognise(tmp_path / name) == format
    if format in formats.DOCUMENT_FORMATS:
        assert formats.read_documents(tmp_path / name, "test")[:2] == (["a", "b"], [["x"], []])
    else:
        assert formats.read_split(tmp_path / name, "test").rows.indices.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("0 4 3", "repository"),
        (" 2 3 2 \r\n0 1:1\r\n \r\n", "repository"),
        ("2 3\n0:1\n\n", "pair"),
        ("1,2 3:1e-5 4:-.5\n\n 7:1\n", "libsvm"),
        ("3:1 4:1\n", "libsvm"),
        ("\n__label__a\n", "fasttext"),
        ("plain\n__label__a b\n", "fasttext"),
        ('\n {"text": ""}\n', "jsonl"),
    ],
)
def test_first_lines(tmp_path, text, format):
    assert formats.recognise(write(tmp_path / "file", text)) == format


def test_a_long_line_is_told_by_its_beginning(tmp_path):
    path = write(tmp_path / "file", "1,2 " + " ".join(f"{i}:0.125" for i in range(1, 20_001)))
    assert formats.sizes(path, "train") == (1, 20_000, 3)


def test_a_long_file_is_told_by_its_beginning(tmp_path):
    path = write(tmp_path / "file", "1,2 3:1 4:1.25\n" * 10_000)
    assert formats.recognise(path) == "libsvm"
    assert formats.sizes(path, "train") == (10_000, 4, 3)


@pytest.mark.parametrize(
    ("content", "seen"),
    [
        (b"", "nothing: the file is empty"),
        (b"hello world\n", "'hello world'"),
        (b"\n\n", "''"),
        (b"1\n2\n3\n", "'1'"),
        (b"1 2 3 4\n", "'1 2 3 4'"),
        (b"+1 2:3\n", "'+1 2:3'"),
        (b"\x89HDF\r\n", "HDF5"),
    ],
)
def test_unknown_content_says_what_was_seen(tmp_path, content, seen):
    (tmp_path / "train.txt").write_bytes(content)
    for place in (tmp_path, tmp_path / "train.txt"):
        for call in (formats.recognise, lambda path: formats.read_split(path, "train")):
            with refuses(f"train.txt: unknown format: it begins with {seen}: format= can force one of repository,"):
                call(place)
    assert formats.has_split(tmp_path, "train")


def test_a_folder_with_features_and_texts(tmp_path):
    (tmp_path / "train.txt").write_bytes(CONTENTS["repository"])
    (tmp_path / "trn.json").write_bytes(CONTENTS["jsonl"])
    assert_same_dataset(formats.read_split(tmp_path, "train"), ROWS)
    assert formats.read_documents(tmp_path, "train").texts == ["a", "b"]
    with refuses("the train data may be any of train.txt (repository), trn.json (jsonl): format= can force one"):
        formats.recognise(tmp_path)
    formats.write_split(tmp_path, "train", [ROWS._replace(rows=ROWS.rows * 2)], "npz")
    with refuses("the train data may be any of train.txt (repository), X_train.npz (npz): format= can force one"):
        formats.read_split(tmp_path, "train")
    assert_same_dataset(formats.read_split(tmp_path, "train", "repository"), ROWS)
    assert formats.read_split(tmp_path, "train", "npz").rows.data.tolist() == [1, 4]
    with refuses("no train data here: looked for train.txt"):
        formats.read_split(tmp_path, "train", "pair")


@pytest.mark.parametrize("name", ["eurlex_train.txt", "eurlex_train.txt.gz"])
def test_names_of_the_repository_s_archives(tmp_path, name):
    formats.write_split(tmp_path / name, "train", [ROWS], "repository")
    assert_same_dataset(formats.read_split(tmp_path, "train"), ROWS)
    assert not formats.has_split(tmp_path, "test")


def test_filters_are_no_data(tmp_path):
    write(tmp_path / "filter_labels_train.txt", "0 3\n1 2\n")
    assert not formats.has_split(tmp_path, "train")
    write(tmp_path / "tiny_train.txt", CONTENTS["repository"].decode())
    assert_same_dataset(formats.read_split(tmp_path, "train"), ROWS)


def test_places_that_cannot_be_written(tmp_path):
    write(tmp_path / "file", "")
    for format in formats.NUMERIC_FORMATS:
        for place in (tmp_path / "file", tmp_path / "file" / "folder"):
            with refuses(f"{place}: cannot be written: "):
                formats.write_split(place, "train", [ROWS], format)
        with refuses("cannot be written: No such file or directory"):
            formats.write_split(tmp_path / "nowhere" / "X_X_Xf.npz", "train", [ROWS], format)
    formats.write_split(tmp_path / "set-4.3k", "train", [ROWS], "libsvm")
    assert (tmp_path / "set-4.3k" / "train.svm").is_file()


def test_unknown_words(tmp_path):
    write(tmp_path / "train.txt", "0 1 1\n")
    with refuses(
        "format 'xls' is not known: choose one of repository, pair, libsvm, npz, split, npy, jsonl, fasttext, csv"
    ):
        formats.read_split(tmp_path, "train", "xls")
    with refuses("format 'xls' is not known"):
        formats.write_split(tmp_path, "train", [ROWS], "xls")
    with refuses("csv is read, not written: write jsonl or fasttext"):
        formats.write_split(tmp_path, "train", [ROWS], "csv")
    for call in (formats.has_split, formats.read_chunks, formats.document_chunks, formats.sizes):
        with refuses("split 'dev' is not known: choose train or test"):
            call(tmp_path, "dev")
    with refuses("split 'dev' is not known"):
        formats.write_split(tmp_path, "dev", [ROWS], "npz")
    with refuses("nowhere: no such file or folder"):
        formats.recognise(tmp_path / "nowhere")


def test_a_forced_format_is_the_one_that_reads(tmp_path):
    path = write(tmp_path / "train.txt", "2 3 2\n0 1:0.5\n1 1:2\n")
    with refuses(f"{path}:1: '3' is not feature:value"):
        formats.read_split(path, "train", "libsvm")
    with refuses(f"{path}: name the file of rows ..._X_Xf.txt and that of labels ..._X_Y.txt"):
        formats.read_split(path, "train", "pair")
    with refuses(f"{path}:1: is not JSON: "):
        formats.read_documents(path, "train", "jsonl")
    with refuses(f"{path}: name the file of rows"):
        formats.read_split(path, "train", "npz")
    assert formats.read_documents(path, "train", "fasttext").texts == ["2 3 2", "0 1:0.5", "1 1:2"]


# --- chunks


def test_errors_in_later_chunks_name_their_line(tmp_path, monkeypatch):
    monkeypatch.setattr(splits, "BLOCK_BYTES", 16)
    lines = ["3 9:1"] * 50
    lines[40] = "3 9:x"
    path = write(tmp_path / "train.txt", "50 10 4\n" + "\n".join(lines) + "\n")
    chunks = formats.read_chunks(path, "train", rows_per_chunk=5)
    good = []
    with refuses(f"{path}:42: feature 9 has the value 'x'"):
        good.extend(chunks)
    assert len(good) >= 7
    lines[40] = "3 9:1 8:1 9:1"
    write(path, "50 10 4\n" + "\n".join(lines))
    with refuses(f"{path}:42: feature 9 appears twice"):
        list(formats.read_chunks(path, "train"))
    for n_rows, message in (
        (49, ":51: '3' is after the last row: the header says 49 rows"),
        (30, ":32: '3' is after the last row: the header says 30 rows"),
        (60, ":51: the file ends after 50 rows: the header says 60"),
    ):
        lines[40] = "3 9:1"
        write(path, f"{n_rows} 10 4\n" + "\n".join(lines) + "\n")
        for call in (formats.read_split, lambda *where: list(formats.read_chunks(*where))):
            with refuses(f"{path}{message}"):
                call(path, "train")


@PROPERTY
@given(
    dataset=datasets(), block=st.integers(1, 40), n_rows=st.sampled_from([1, 2, 7]), blank=st.text("\r\n ", max_size=9)
)
def test_blocks_do_not_matter(tmp_path, dataset, block, n_rows, blank):
    path = tmp_path / "train.txt"
    formats.write_repository_text(path, dataset)
    path.write_bytes(path.read_bytes() + blank.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "BLOCK_BYTES", block)
        chunks = list(formats.read_chunks(path, "train", None, n_rows))
    at = 0
    for chunk in chunks:
        part = slice(at, at + n_rows)
        assert_same_dataset(chunk, Dataset(dataset.rows[part], dataset.labels[part]))
        at += chunk.rows.shape[0]
    assert at == dataset.rows.shape[0]


def test_a_header_that_promises_much_allocates_nothing(tmp_path):
    path = write(tmp_path / "train.txt", "2147483647 2147483647 2147483647\n2147483646 2147483646:1\n")
    for call in (formats.read_split, lambda *where: list(formats.read_chunks(*where))):
        with refuses(":2: the file ends after 1 rows: the header says 2147483647"):
            call(path, "train")


# --- pair


def test_pair(tmp_path):
    write(tmp_path / "trn_X_Xf.txt", "3 4\n0:1 3:0.5\n\n2:-1\n")
    write(tmp_path / "trn_X_Y.txt", "3 2\n1:1.0 0:0\n0:2 1:3\n\n")
    data = formats.read_split(tmp_path, "train")
    assert data.rows.toarray().tolist() == [[1, 0, 0, 0.5], [0, 0, 0, 0], [0, 0, -1, 0]]
    assert data.labels.toarray().tolist() == [[0, 1], [1, 1], [0, 0]]
    assert data.labels.nnz == 3
    assert formats.sizes(tmp_path, "train") == (3, 4, 2)
    assert formats.recognise(tmp_path / "trn_X_Xf.txt") == "pair"


@pytest.mark.parametrize("packed", ["trn_X_Xf.txt", "trn_X_Y.txt"])
def test_one_of_a_pair_may_be_packed(tmp_path, packed):
    formats.write_split(tmp_path, "train", [ROWS], "pair")
    path = tmp_path / packed
    (tmp_path / f"{packed}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert_same_dataset(formats.read_split(tmp_path, "train"), ROWS)


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        ("2 3\n\n\n", "3 2\n\n\n\n", "trn_X_Y.txt: has 3 rows, but {folder}/trn_X_Xf.txt has 2"),
        (
            "1 3\n3:1\n",
            "1 2\n0:1\n",
            "trn_X_Xf.txt:2: feature id 3 is out of range: the header says 3 features",
        ),
        ("1 3\n1\n", "1 2\n0:1\n", "trn_X_Xf.txt:2: '1' is not feature:value"),
        ("1 3\n1,2 0:1\n", "1 2\n0:1\n", "trn_X_Xf.txt:2: '1,2' is not feature:value"),
        (
            "1 3\n0:1\n",
            "1 2\n2:1\n",
            "trn_X_Y.txt:2: label id 2 is out of range: the header says 2 labels",
        ),
        ("1 3\n0:1\n", "1 2\n1:1 1:1\n", "trn_X_Y.txt:2: label 1 appears twice"),
        ("1 3\n0:1\n", "1 2 3\n1:1\n", "trn_X_Y.txt:1: header '1 2 3' is wrong: the first line must be 2 numbers"),
        ("1 3\n0:1\n", "1 2\n1:nan\n", "trn_X_Y.txt:2: label 1 has the value 'nan'"),
    ],
)
def test_bad_pairs(tmp_path, rows, labels, message):
    write(tmp_path / "trn_X_Xf.txt", rows)
    write(tmp_path / "trn_X_Y.txt", labels)
    for call in (formats.read_split, lambda *where: list(formats.read_chunks(*where))):
        with refuses(message.format(folder=tmp_path)):
            call(tmp_path, "train")


def test_a_pair_needs_both(tmp_path):
    write(tmp_path / "trn_X_Xf.txt", "1 3\n0:1\n")
    with refuses("trn_X_Y.txt: cannot be read: No such file"):
        formats.read_split(tmp_path, "train")


# --- LIBSVM


def test_libsvm_counts_features_from_1(tmp_path):
    path = write(tmp_path / "train.svm", "0,2 1:1 4:0.5\n 2:1\n\n3:7\r\n1\n \n\n\r\n")
    data = formats.read_split(path, "train")
    assert data.rows.toarray().tolist() == [[1, 0, 0, 0.5], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 7, 0]] + [[0] * 4] * 2
    assert data.labels.toarray().tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    wide = formats.read_split(path, "train", n_features=9, n_labels=5)
    assert (wide.rows.shape, wide.labels.shape) == ((6, 9), (6, 5))
    assert formats.sizes(path, "train", n_labels=8) == (6, 4, 8)


SMALL = {"n_features": 3, "n_labels": 1}


@pytest.mark.parametrize(
    ("text", "sizes", "message"),
    [
        ("0 1:1\n0 0:1\n", {}, ":2: feature id 0 is out of range: there are 2147483647 features (ids 1 to 2147483647)"),
        ("0 2147483648:1\n", {}, ":1: feature id 2147483648 is out of range"),
        ("2147483647 1:1\n", {}, ":1: label id 2147483647 is out of range"),
        (
            "0 1:1\n0 4:1\n",
            SMALL,
            ":2: feature id 4 is out of range: there are 3 features (ids 1 to 3)",
        ),
        (
            "0 1:1\n1 2:1\n",
            SMALL,
            ":2: label id 1 is out of range: there are 1 labels (ids 0 to 0)",
        ),
        ("0 1:1\n+1 2:1\n", {}, ":2: label '+1' is not an id"),
        ("0 1:1\n1 2:1 2:1\n", {}, ":2: feature 1 appears twice"),
    ],
)
def test_bad_libsvm(tmp_path, text, sizes, message):
    path = write(tmp_path / "train.svm", text)
    for call in (formats.read_split, lambda *where, **sizes: list(formats.read_chunks(*where, **sizes))):
        with refuses(f"{path}{message}"):
            call(path, "train", "libsvm", **sizes)


def test_the_largest_ids_are_possible(tmp_path):
    path = write(tmp_path / "train.svm", "2147483646 2147483647:1\n")
    assert formats.sizes(path, "train") == (1, 2**31 - 1, 2**31 - 1)
    assert formats.read_split(path, "train").rows.indices.tolist() == [2**31 - 2]


# --- rows with row numbers

BIBTEX = {
    "Bibtex_data.txt": "4 3 2\n0 0:1\n1 1:1\n0,1 2:1\n 0:5\n",
    "bibtex_trSplit.txt": "1 4\n3 2 \n",
    "bibtex_tstSplit.txt": "2 1\n4 3\n",
}


@pytest.fixture
def bibtex(tmp_path):
    for name, text in BIBTEX.items():
        write(tmp_path / name, text)
    return tmp_path


def test_split_columns(bibtex):
    assert formats.recognise(bibtex) == formats.recognise(bibtex / "Bibtex_data.txt") == "split"
    for place in (bibtex, bibtex / "Bibtex_data.txt"):
        assert formats.read_split(place, "train").rows.data.tolist() == [1, 1]
        assert formats.read_split(place, "test").rows.indices.tolist() == [1, 0]
        # The order of the file, whatever the order of the column.
        assert formats.read_split(place, "train", split_column=1).rows.data.tolist() == [1, 5]
        assert formats.sizes(place, "test") == (2, 3, 2)
    [first, second] = formats.read_chunks(bibtex, "test", None, 1, split_column=1)
    assert first.rows.indices.tolist() + second.rows.indices.tolist() == [0, 2]
    assert formats.has_split(bibtex, "train")
    # The whole file is still there for who asks for it.
    assert formats.read_split(bibtex / "Bibtex_data.txt", "train", "repository").rows.shape == (4, 3)


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        (2, "1 2\n", "bibtex_trSplit.txt: has 2 columns: split_column must be 0 to 1"),
        (-1, "1 2\n", "bibtex_trSplit.txt: has 2 columns: split_column must be 0 to 1"),
        (0, "1 2\n\n3\n", "bibtex_trSplit.txt:3: has 1 columns, but the first line has 2"),
        (0, "1\n0\n", "bibtex_trSplit.txt:2: '0' is not a row: rows are numbered from 1 to 4"),
        (0, "1\n5\n", "bibtex_trSplit.txt:2: '5' is not a row: rows are numbered from 1 to 4"),
        (0, "1.0\n", "bibtex_trSplit.txt:1: '1.0' is not a row"),
        (0, "\u0661\n", "bibtex_trSplit.txt:1: '\u0661' is not a row"),
        (0, "9" * 5000, "bibtex_trSplit.txt:1: '999"),
        (0, "1\n2\n1\n", "bibtex_trSplit.txt: row 1 appears twice in column 0"),
    ],
)
def test_bad_split_columns(bibtex, column, text, message):
    write(bibtex / "bibtex_trSplit.txt", text)
    with refuses(message):
        formats.read_split(bibtex, "train", split_column=column)


def test_split_files_that_are_missing_or_too_many(bibtex):
    (bibtex / "bibtex_tstSplit.txt").unlink()
    with refuses("Bibtex_data.txt: has no file *tstSplit.txt with the numbers of the test rows beside it"):
        formats.read_split(bibtex / "Bibtex_data.txt", "test")
    assert not formats.has_split(bibtex, "test")
    shutil.copy(bibtex / "bibtex_trSplit.txt", bibtex / "other_trSplit.txt")
    assert formats.read_split(bibtex, "train").rows.shape[0] == 2
    (bibtex / "bibtex_trSplit.txt").rename(bibtex / "more_trSplit.txt")
    with refuses("there is more than one file of train rows: more_trSplit.txt, other_trSplit.txt"):
        formats.read_split(bibtex, "train")
    write(bibtex / "more_trSplit.txt", "1\n").rename(bibtex / "bibtex_trSplit.txt")
    shutil.copy(bibtex / "Bibtex_data.txt", bibtex / "Other_data.txt")
    with refuses("there is more than one file of rows: Bibtex_data.txt, Other_data.txt: keep or name one of them"):
        formats.read_split(bibtex, "train")


def test_writing_a_split_loses_no_other(bibtex):
    data = bibtex / "Bibtex_data.txt"
    with refuses("bibtex_tstSplit.txt: has several columns, which would be lost: write to another folder"):
        formats.write_split(data, "test", [ROWS], "split")
    write(bibtex / "bibtex_trSplit.txt", "4\n1\n")
    write(bibtex / "bibtex_tstSplit.txt", "2\n")
    before = formats.read_split(bibtex, "train")
    narrow = Dataset(sparse({}, (1, 2)), sparse({}, (1, 2)))
    with refuses("all chunks must have the same width, not 3 features, 2 labels and 2 features, 2 labels"):
        formats.write_split(data, "test", [narrow], "split")
    assert data.read_text() == BIBTEX["Bibtex_data.txt"]
    formats.write_split(data, "test", [ROWS], "split")
    assert_same_dataset(formats.read_split(bibtex, "train"), before)
    assert_same_dataset(formats.read_split(bibtex, "test"), ROWS)
    assert len(list(bibtex.iterdir())) == 3


# --- npz in chunks


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
def test_npz_of_every_kind_in_chunks(tmp_path, kind):
    dense = np.array([[0, 2, 0], [3, 0, 4], [0, 0, 0]], np.float32)
    rows = sparse({0: {1: 2}, 1: {0: 3, 2: 4}}, (3, 3))
    for name in ("X", "Y"):
        save_npz(tmp_path / f"{name}.trn.npz", rows.asformat(kind))
    chunks = list(formats.read_chunks(tmp_path, "train", None, 2))
    assert [chunk.rows.toarray().tolist() for chunk in chunks] == [dense[:2].tolist(), dense[2:].tolist()]
    assert formats.sizes(tmp_path, "train") == (3, 3, 3)
    save_npz(tmp_path / "Y.trn.npz", sparse({}, (4, 3)).asformat("csr"))
    with pytest.raises(FormatError, match=r"has 4 rows, but .* has 3"):
        formats.read_chunks(tmp_path, "train")


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr"])
def test_offsets_that_descend_to_nothing(tmp_path, kind):
    """Found by tools/fuzz.py: scipy takes a last offset of 0 for a matrix without entries."""
    matrix = sparse({0: {1: 2}, 1: {0: 3}}, (2, 2)).asformat(kind)
    matrix.indptr = np.array([0, 1, 0], np.int32)
    for name in ("X", "Y"):
        save_npz(tmp_path / f"{name}_train.npz", matrix)
    for call in (formats.read_split, lambda *where: list(formats.read_chunks(*where))):
        with refuses("X_train.npz: cannot be read as a scipy.sparse matrix: the offsets"):
            call(tmp_path, "train")
