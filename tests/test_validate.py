"""Validation: each kind of damage is found with its place, and a fixed copy passes the strict reader unchanged else."""

import gzip
import json
import random

import numpy as np
import pytest
from scipy.sparse import csr_matrix, save_npz

from xmlpreck.config import InputError
from xmlpreck.data.formats import FormatError, read_repository_text, read_split
from xmlpreck.data.validate import FIXES, fix, validate

# file text, kind of finding, how often, first place, and the rows and labels after a fix
DAMAGED = {
    "rows without labels": ("2 3 2\n 0:1\n0,1 1:2 2:3\n", 1, ":2", [[1, 0, 0], [0, 2, 3]], [[], [0, 1]]),
    "rows without features": ("2 3 2\n0\n1 1:2\n", 1, ":2", [[0, 0, 0], [0, 2, 0]], [[0], [1]]),
    "duplicate features": ("1 3 2\n0 1:2 1:5 2:3\n", 1, ":2: feature 1", [[0, 2, 3]], [[0]]),
    "duplicate labels": ("1 3 2\n0,1,0,0 1:2\n", 2, ":2: label 0", [[0, 2, 0]], [[0, 1]]),
    "rows with unsorted features": ("1 3 2\n0 2:1 0:5 1:4\n", 1, ":2: 0 comes after 2", [[5, 4, 1]], [[0]]),
    "rows with unsorted labels": ("1 3 2\n1,0 1:2\n", 1, ":2: 0 comes after 1", [[0, 2, 0]], [[0, 1]]),
    "features out of range": ("1 3 2\n0 0:1 3:5 -1:2 99999999999999999999:1\n", 3, ": feature 3", [[1, 0, 0]], [[0]]),
    "labels out of range": ("1 3 2\n0,2 0:1\n", 1, ":2: label 2: ids are 0 to 1", [[1, 0, 0]], [[0]]),
    "values not finite": ("1 3 2\n0 0:nan 1:-INF 2:3\n", 2, ":2: value of 0", [[0, 0, 3]], [[0]]),
    "unparsable tokens": ("1 3 2\n0,x 0:1 1:1_0 2 :4 2:0x1\n", 5, ":2: label 'x'", [[1, 0, 0]], [[0]]),
    "zero vectors": ("2 3 2\n0 0:0 1:0.0\n1 1:2 2:0\n", 1, ":2", [[0, 0, 0], [0, 2, 0]], [[0], [1]]),
    "zero values": ("2 3 2\n0 0:0 1:0.0\n1 1:2 2:0\n", 3, ":2", [[0, 0, 0], [0, 2, 0]], [[0], [1]]),
    "header mismatch": ("5 3 2\n0 0:1\n", 1, ":1: the header says 5 rows, but there are 1", [[1, 0, 0]], [[0]]),
    "labels never seen": ("1 3 2\n0 0:1\n", 1, "label 1 is the first", [[1, 0, 0]], [[0]]),
    "features never seen": ("1 3 2\n0 0:1\n", 2, "feature 1 is the first", [[1, 0, 0]], [[0]]),
    "ids that seem to start at 1": ("1 3 2\n1,2 1:1\n", 1, "label 0 never occurs, label 2", [[0, 1, 0]], [[1]]),
}  # fmt: skip


def label_lists(dataset):
    return [row.tolist() for row in np.split(dataset.labels.indices, dataset.labels.indptr[1:-1])]


def counts(report):
    return {problem.kind: problem.count for problem in report.problems}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", DAMAGED)
def test_damage_is_found_and_fixed(tmp_path, kind, packed):
    text, count, place, rows, labels = DAMAGED[kind]
    path = tmp_path / ("train.txt.gz" if packed else "train.txt")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    report = validate(path, "train")
    (problem,) = [problem for problem in report.problems if problem.kind == kind]
    assert problem.count == count
    assert place in problem.examples[0]
    assert problem.examples[0].startswith((str(path), "label", "feature"))
    assert problem.fixed_by == FIXES[kind]
    assert report.is_clean <= (not problem.fixed_by)
    if report.is_clean:
        read_repository_text(path)

    out = tmp_path / "clean.txt"
    fixed = fix(path, "train", out)
    assert fixed.problems == report.problems
    assert fixed.written == str(out)
    dataset = read_repository_text(out)
    assert dataset.rows.toarray().tolist() == rows
    assert label_lists(dataset) == labels
    assert validate(out, "train").is_clean


def test_all_kinds_have_a_test():
    assert set(FIXES) == {*DAMAGED, "rows that one of the files lacks"}


def test_first_places_are_few_and_counts_are_whole(tmp_path):
    (tmp_path / "train.txt").write_text("9 1 1\n" + " 0:1\n" * 9)
    report = validate(tmp_path, "train")
    (problem,) = [problem for problem in report.problems if problem.kind == "rows without labels"]
    assert problem.count == 9
    assert problem.examples == [f"{tmp_path / 'train.txt'}:{line}" for line in (2, 3, 4)]


def test_report_in_words_and_numbers(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("3 4 2\n0,1 0:1 3:2\n0 0:1\n 0:1 0:2 1:1 2:nan\n")
    report = validate(path, "train")
    assert (report.n_rows, report.n_features, report.n_labels) == (3, 4, 2)
    assert report.quantiles == {
        "rows of a label": [1, 1, 1, 2, 2],
        "labels of a row": [0, 0, 1, 2, 2],
        "features of a row": [1, 1, 2, 2, 2],
    }
    assert json.loads(json.dumps(report.to_dict()))["is_clean"] is False
    text = report.to_text()
    assert "1  duplicate features (to fix: first value kept)" in text
    assert f"{path}:4: feature 0" in text
    assert "nothing to fix" not in text
    fixed = fix(path, "train", tmp_path / "out.txt")
    assert "1  duplicate features (first value kept)" in fixed.to_text()
    assert f"clean copy: {tmp_path / 'out.txt'}" in fixed.to_text()
    assert "nothing to fix" in validate(tmp_path / "out.txt", "train").to_text()


def test_values_are_kept_to_the_last_digit(tmp_path):
    (tmp_path / "train.txt").write_text("1 4 1\n0 3:1e-3 0:0.1000000015 1:+.5 2:7.\n")
    fix(tmp_path, "train", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "1 4 1\n0 0:0.1000000015 1:+.5 2:7. 3:1e-3\n"


@pytest.mark.parametrize(
    ("text", "n_rows"),
    [
        ("2 1 1\n0 0:1\n\n", 2),  # the header says that the empty line is a row
        ("1 1 1\n0 0:1\n\n \n", 1),  # it is none here
        ("3 1 1\n0 0:1\n\n0 0:1", 3),
        ("1 1 1\r\n0 0:1\r\n", 1),
        ("0 1 1\n", 0),
    ],
)
def test_empty_lines_at_the_end(tmp_path, text, n_rows):
    (tmp_path / "train.txt").write_bytes(text.encode())
    assert read_repository_text(tmp_path / "train.txt").rows.shape[0] == n_rows
    report = validate(tmp_path, "train")
    assert report.n_rows == n_rows
    assert report.is_clean


@pytest.mark.parametrize(("first", "n_rows"), [("0 0:1\n", 2), ("three two one\n", 1)])
def test_a_missing_header_is_made(tmp_path, first, n_rows):
    (tmp_path / "train.txt").write_text(first + "2 4:1\n")
    report = fix(tmp_path / "train.txt", "train", tmp_path / "out.txt", format="repository")
    assert counts(report)["header mismatch"] == 1
    assert read_repository_text(tmp_path / "out.txt").rows.shape == (n_rows, 5)
    assert report.n_labels == 3


def test_libsvm_counts_features_from_1(tmp_path):
    path = tmp_path / "train.svm"
    path.write_text("0,2 1:1 3:0.5\n 2:1\n1 0:4 3:2\n")
    report = fix(path, "train", tmp_path / "out.txt", format="libsvm")
    assert counts(report) == {"features out of range": 1, "rows without labels": 1}
    dataset = read_repository_text(tmp_path / "out.txt")
    assert dataset.rows.toarray().tolist() == [[1, 0, 0.5], [0, 1, 0], [0, 0, 2]]
    assert label_lists(dataset) == [[0, 2], [], [1]]


def write_pair_files(folder, features, labels):
    (folder / "trn_X_Xf.txt").write_text(features)
    (folder / "trn_X_Y.txt").write_text(labels)


def test_pair_of_files(tmp_path):
    write_pair_files(tmp_path, "2 3\n2:1 0:2\n1:1\n", "2 2\n0:1 1:0\n1:1 1:1 7:1\n")
    report = fix(tmp_path, "train", tmp_path / "out.txt")
    assert counts(report) == {
        "labels out of range": 1,
        "duplicate labels": 1,
        "rows with unsorted features": 1,
        "zero values": 1,
    }
    assert report.problems[0].examples[0].startswith(f"{tmp_path / 'trn_X_Y.txt'}:3")
    dataset = read_repository_text(tmp_path / "out.txt")
    assert dataset.rows.toarray().tolist() == [[2, 0, 1], [0, 1, 0]]
    assert label_lists(dataset) == [[0], [1]]


@pytest.mark.parametrize("longer", ["features", "labels"])
def test_pair_of_unequal_length(tmp_path, longer):
    texts = ["2 1\n0:1\n0:1\n", "1 1\n0:1\n"]
    write_pair_files(tmp_path, *(texts if longer == "features" else reversed(texts)))
    report = fix(tmp_path, "train", tmp_path / "out.txt")
    (problem,) = [problem for problem in report.problems if problem.fixed_by]
    shorter = "trn_X_Y.txt" if longer == "features" else "trn_X_Xf.txt"
    assert (problem.kind, problem.count) == ("rows that one of the files lacks", 1)
    assert problem.examples == [f"{tmp_path / shorter}:3"]
    assert read_repository_text(tmp_path / "out.txt").rows.shape[0] == 2


def test_other_formats_come_through_their_reader(tmp_path):
    rows = csr_matrix((np.array([1, 2, 0], np.float32), np.array([1, 2, 0]), np.array([0, 2, 2, 3])), shape=(3, 3))
    save_npz(tmp_path / "X_train.npz", rows)
    save_npz(tmp_path / "Y_train.npz", csr_matrix(np.array([[1, 0], [1, 0], [0, 0]])))
    report = validate(tmp_path, "train")
    assert report.format == "npz"
    assert counts(report) == {
        "rows without labels": 1,
        "rows without features": 1,
        "zero vectors": 1,
        "zero values": 1,
        "labels never seen": 1,
    }
    assert report.problems[0].examples == [f"{tmp_path / 'X_train.npz'}: row 2"]
    assert report.quantiles["features of a row"] == [0, 0, 1, 2, 2]
    assert fix(tmp_path, "train", tmp_path / "out.txt").problems == report.problems
    np.testing.assert_array_equal(read_repository_text(tmp_path / "out.txt").rows.toarray(), rows.toarray())


def test_refusals(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("1 1 1\n0 0:1\n")
    with pytest.raises(InputError, match="is the file to be fixed"):
        fix(tmp_path, "train", path)
    with pytest.raises(InputError, match="no such file"):
        validate(tmp_path / "nothing.txt", "train")
    with pytest.raises(InputError, match="cannot be written"):
        fix(path, "train", tmp_path / "no" / "such" / "folder.txt")
    assert path.read_text() == "1 1 1\n0 0:1\n"


def test_progress_is_told_every_ten_thousand_rows(tmp_path):
    (tmp_path / "train.txt").write_text("25000 1 1\n" + "0 0:1\n" * 25_000)
    told = []
    validate(tmp_path, "train", progress=told.append)
    assert told == [10_000, 20_000]


def test_strict_reader_and_validation_agree_on_mutated_files(tmp_path):
    """But for the order of ids: clean means accepted; a fixed copy is accepted, and equal where nothing was wrong."""
    text = b"4 6 5\n0,2 0:1 2:0.5 5:-1e-2\n 1:3\n4 3:.25 4:2\n1,3 0:7\n"
    draw = random.Random(0)
    path, out = tmp_path / "train.txt", tmp_path / "out.txt"
    n_accepted = 0
    for _ in range(400):
        changed = bytearray(text)
        for _ in range(draw.randrange(1, 4)):
            position = draw.randrange(6, len(changed))
            byte = draw.choice(b"0123456789:,. \t\r\n-+eEnaif\xff\x00_")
            changed[position : position + draw.randrange(2)] = bytes([byte])
        path.write_bytes(changed)
        report = fix(path, "train", out)
        fixed = read_repository_text(out)
        unordered = {problem.kind for problem in report.problems if problem.fixed_by == "sorted"}
        others = {problem.kind for problem in report.problems if problem.fixed_by} - unordered
        try:
            strict = read_repository_text(path)
        except FormatError:
            assert others, bytes(changed)
            continue
        n_accepted += 1
        assert not others, bytes(changed)
        for ours, theirs in ((fixed.rows, strict.rows), (fixed.labels, strict.labels)):
            for name in ("data", "indices", "indptr"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=repr(changed))
    assert n_accepted > 30


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("name", "empty"), [("bibtex", (0, 0)), ("delicious", (10, 4))])
def test_real_data_is_clean(shared_data, tmp_path, name, empty, split):
    if not (shared_data / name).is_dir():
        pytest.skip(f"needs ../shared/data/{name} (not shipped)")
    report = validate(shared_data / name, split)
    assert report.is_clean
    assert counts(report).get("rows without labels", 0) == empty[split == "test"]
    dataset = read_split(shared_data / name, split)
    assert (report.n_rows, report.n_features) == dataset.rows.shape
    fix(shared_data / name, split, tmp_path / "out.txt")
    again = read_repository_text(tmp_path / "out.txt")
    assert (again.rows != dataset.rows).nnz == 0
    assert (again.labels != dataset.labels).nnz == 0
