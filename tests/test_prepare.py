"""Recipes of data sets: a few documents become a folder that training reads."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from helpers import ROOT

import xmlpreck


def test_eurlex57k(tmp_path):
    """Terms of 3 documents and of half of them at most; labels of both splits, by concept id; names where known."""
    texts = [
        "olive oil duty",
        "olive oil import",
        "olive oil wine",
        "steel coal",
        "steel rule",
        "steel tax",
        "rice",
        "tea",
    ]
    labels = [["20", "3"], ["20"], ["20"], ["3"], ["3"], ["3"], [], ["20"]]
    for split, last in (("train", 8), ("dev", 4)):
        table = {"id": [str(i) for i in range(last)], "text": texts[:last], "labels": labels[:last]}
        pq.write_table(pa.table(table), tmp_path / f"{split}.parquet")
    (tmp_path / "label_names.json").write_text(json.dumps({"20": "olives"}))
    words = ["--text", str(tmp_path), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "prepare_eurlex57k.py"), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    train, test = (xmlpreck.load_data(tmp_path / "out", split) for split in ("train", "test"))
    assert (train.n_rows, test.n_rows) == (8, 4)
    assert train.feature_names == ["oil", "olive", "steel"]
    assert train.label_names == ["olives", "3"]
    assert train.labels.toarray().tolist() == [[1, 1], [1, 0], [1, 0], [0, 1], [0, 1], [0, 1], [0, 0], [1, 0]]
    assert test.rows.toarray().round(6).tolist()[3] == [0, 0, 1]
