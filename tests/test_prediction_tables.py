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
    with refuses("CSV is not read again: write .parquet or .jsonl"):
        formats.open_predictions(path)


def test_ids_in_parquet_and_json_lines(tmp_path):
    write_found(tmp_path / "p.parquet", found(), 3, NAMES)
    assert pq.read_table(tmp_path / "p.parquet")["id"].to_pylist() == IDS
    assert formats.read_predictions(tmp_path / "p.parquet", 3, 3).labels.tolist() == TOP.labels.tolist()
    write_found(tmp_path / "p.jsonl", found(), 3, NAMES)
    assert '"row": "@x"' in (tmp_path / "p.jsonl").read_text()
