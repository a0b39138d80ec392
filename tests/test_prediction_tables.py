"""Predictions as CSV and TSV: layouts, ids, what Excel reads and what it must not run."""

import csv

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import refuses

from xmlpreck.config import ConfigError
from xmlpreck.data import formats
from xmlpreck.data.formats import TopK
from xmlpreck.data.formats.prediction_output import write_found
from xmlpreck.data.formats.prediction_tables import TableStyle

TOP = TopK(
    np.array([[2, 0], [1, -1], [-1, -1]], np.int32), np.array([[0.5, -0.25], [1, -np.inf], [-np.inf] * 2], np.float32)
)
NAMES = ["=1+1", "a;b", 'say "x"']
IDS = ["-7", "@x", "ü"]


def found():
    """Three rows in two blocks, with ids of their own."""
    yield IDS[:1], TopK(TOP.labels[:1], TOP.scores[:1])
    yield IDS[1:], TopK(TOP.labels[1:], TOP.scores[1:])


def read_back(path, delimiter=",", encoding="utf-8"):
    with open(path, newline="", encoding=encoding) as file:
        return list(csv.reader(file, delimiter=delimiter))


@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_a_line_for_each_row_or_for_each_label(tmp_path, suffix, delimiter):
    path = tmp_path / f"p.{suffix}"
    write_found(path, found(), 3, NAMES)
    assert read_back(path, delimiter) == [
        ["row", "id", "label 1", "score 1", "label 2", "score 2"],
        ["0", "-7", 'say "x"', "0.5", "=1+1", "-0.25"],
        ["1", "@x", "a;b", "1", "", ""],
        ["2", "ü", "", "", "", ""],
    ]
    write_found(path, found(), 3, NAMES, TableStyle("long"))
    assert read_back(path, delimiter) == [
        ["row", "id", "rank", "label", "name", "score"],
        ["0", "-7", "1", "2", 'say "x"', "0.5"],
        ["0", "-7", "2", "0", "=1+1", "-0.25"],
        ["1", "@x", "1", "1", "a;b", "1"],
    ]


def test_rows_without_ids_and_labels_without_names(tmp_path):
    formats.write_predictions(tmp_path / "p.csv", TOP, 3)
    assert read_back(tmp_path / "p.csv")[:2] == [
        ["row", "label 1", "score 1", "label 2", "score 2"],
        ["0", "2", "0.5", "0", "-0.25"],
    ]
    write_found(tmp_path / "p.csv", [(range(3), TOP)], 3, None, TableStyle("long"))
    assert read_back(tmp_path / "p.csv")[:2] == [["row", "rank", "label", "score"], ["0", "1", "2", "0.5"]]
    write_found(tmp_path / "p.csv", [], 3, NAMES, k=1)
    assert read_back(tmp_path / "p.csv") == [["row", "label 1", "score 1"]]


def test_excel_opens_it_and_runs_no_name(tmp_path):
    path = tmp_path / "p.csv"
    write_found(path, found(), 3, NAMES, TableStyle(excel="semicolon"))
    assert path.read_bytes().startswith(b"\xef\xbb\xbfrow;id;")
    assert read_back(path, ";", "utf-8-sig")[1:3] == [
        ["0", "'-7", 'say "x"', "0,5", "'=1+1", "-0,25"],
        ["1", "'@x", "a;b", "1", "", ""],
    ]
    write_found(path, found(), 3, NAMES, TableStyle("long", "comma"))
    assert read_back(path, ",", "utf-8-sig")[2] == ["0", "'-7", "2", "0", "'=1+1", "-0.25"]
    with pytest.raises(ConfigError, match="--excel must be comma or semicolon"):
        TableStyle(excel="tab")


def test_ids_in_parquet_and_json_lines(tmp_path):
    write_found(tmp_path / "p.parquet", found(), 3, NAMES)
    assert pq.read_table(tmp_path / "p.parquet")["id"].to_pylist() == IDS
    assert formats.read_predictions(tmp_path / "p.parquet", 3, 3).labels.tolist() == TOP.labels.tolist()
    write_found(tmp_path / "p.jsonl", found(), 3, NAMES)
    assert '"row": "@x"' in (tmp_path / "p.jsonl").read_text()


@pytest.mark.parametrize(("suffix", "excel"), [("csv", None), ("tsv", None), ("csv", "comma"), ("csv", "semicolon")])
@pytest.mark.parametrize("layout", ["wide", "long"])
@pytest.mark.parametrize("names", [NAMES, None])
def test_tables_are_read_again(tmp_path, suffix, layout, excel, names):
    path = tmp_path / f"p.{suffix}"
    write_found(path, found(), 3, names, TableStyle(layout, excel))
    opened = formats.open_predictions(path, 3, 3, label_names=names)
    top = next(opened.blocks(5))
    np.testing.assert_array_equal(top.labels, TOP.labels)
    np.testing.assert_array_equal(top.scores, TOP.scores)
    assert opened.n_rows == 3


def test_scores_keep_every_bit_and_blocks_do_not_matter(tmp_path, monkeypatch):
    monkeypatch.setattr("xmlpreck.data.formats.predictions._ROWS_AT_ONCE", 4)
    draw = np.random.default_rng(0)
    labels = np.argsort(draw.random((30, 9)), axis=1)[:, :3].astype(np.int32)
    scores = -np.sort(-draw.normal(size=(30, 3)).astype(np.float32), axis=1)
    labels[[3, 4, 29]], scores[[3, 4, 29]] = -1, -np.inf
    for style in (TableStyle(), TableStyle("long")):
        write_found(tmp_path / "p.csv", [(range(30), TopK(labels, scores))], 9, None, style)
        blocks = list(formats.open_predictions(tmp_path / "p.csv", 30, 9).blocks(7))
        assert [len(block.labels) for block in blocks] == [7, 7, 7, 7, 2]
        for start, block in zip(range(0, 30, 7), blocks, strict=True):
            width = block.labels.shape[1]
            np.testing.assert_array_equal(block.labels, labels[start : start + 7, :width])
            np.testing.assert_array_equal(block.scores, scores[start : start + 7, :width])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "text,labels\na,b\n",
            "p.csv:1: is no table of predictions: its columns are row, rank, label and score, or row",
        ),
        ("", "p.csv:1: is no table of predictions"),
        ("row,label 1,score 1\n0,x,1\n", "p.csv:2: label 'x' is a name, but the data have no names of labels"),
        ("row,label 1,score 1\n0,1,high\n", "p.csv:2: score 'high' is not a number"),
        ("row,label 1,score 1\n1,1,1\n", "p.csv:2: row '1' does not follow row -1: rows must be in their order"),
        ("row,rank,label,score\n1,1,1,1\n0,1,1,1\n", "p.csv:3: row '0' does not follow row 1"),
        ("row,label 1,score 1\n0,1\n", "p.csv:2: has 2 fields, but the first line has 3"),
        ("row,label 1,score 1\n0,1,2\n", "p.csv: predicts for 1 rows, but the data have 3 rows"),
        ("row,rank,label,score\n0,1,7,1\n", "p.csv: row 0: label 7 is out of range: there are 3 labels"),
        ("row,rank,label,score\n99999999,1,1,1\n", "p.csv: has labels for 1 rows, but the last is row 99999999"),
        ('row,label 1,score 1\n0,"1,2\n', "p.csv:2: unexpected end of data: is no table of predictions"),
    ],
)
def test_tables_that_are_no_predictions(tmp_path, text, message):
    (tmp_path / "p.csv").write_text(text, encoding="utf-8")
    with refuses(message):
        list(formats.open_predictions(tmp_path / "p.csv", 3, 3).blocks(5))


def test_labels_that_the_data_do_not_name(tmp_path):
    write_found(tmp_path / "p.csv", found(), 3, NAMES)
    with refuses("p.csv:2: label 'say \"x\"' is none of the data: use the data that were predicted"):
        formats.open_predictions(tmp_path / "p.csv", 3, 3, label_names=["a", "b", "c"])
