"""What `data validate` finds in raw text."""

import json
from pathlib import Path

import pytest

from xmlpreck.api.datasets import check_data
from xmlpreck.cli import main
from xmlpreck.data.validate.report import ADVICE

ODD = [
    {"text": "A cat and a dog", "labels": ["Animals", "pets"]},
    {"text": "a cat -- and a DOG!", "labels": ["pets", "Animals"]},
    {"text": "a cat and a dog", "labels": ["animals"]},
    {"text": " ...", "labels": ["pets "]},
    {"text": "Sch\u00c3\u00b6n", "labels": []},
    {"text": "na\ufffdve", "labels": ["x"]},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def counts(report):
    return {problem.kind: problem.count for problem in report.problems}


def test_what_is_odd_is_counted(tmp_path, capsys):
    path = write(tmp_path / "odd.jsonl", ODD)
    report = check_data(path)
    assert counts(report) == {
        "documents of another encoding": 2,
        "labels that differ only in case or blanks": 2,
        "documents without words": 1,
        "duplicate documents": 1,
        "duplicate documents, with other labels": 1,
        "rows without labels": 1,
    }
    assert (report.n_rows, report.n_labels, report.n_features) == (6, 5, None)
    assert report.quantiles["labels of a row"] == [0, 1, 1, 2, 2]
    assert report.quantiles["letters of a text"] == [4, 5, 6, 15, 19]
    examples = {problem.kind: problem.examples[0] for problem in report.problems}
    assert examples["labels that differ only in case or blanks"] == "'Animals' (2), 'animals' (1)"
    assert examples["duplicate documents"] == f"{path}: row 1: document 0 from 0 has this text"
    assert main(["data", "validate", str(path)]) == 1
    text = capsys.readouterr().out
    assert "6 rows, 5 labels" in text
    assert "to fix: give them one name" in text


def test_clean_texts_pass(tmp_path, capsys):
    path = write(
        tmp_path / "clean.jsonl", [{"text": f"number {n} of many", "labels": [f"l{n % 3}"]} for n in range(30)]
    )
    assert main(["data", "validate", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == []
    assert report["is_clean"]


def test_labels_in_the_text_are_found(tmp_path):
    names = ["Olive Oil", "steel", "co", "fish"]
    rows = [
        {"text": f"report {n}: tags {names[n % 4].upper().replace(' ', '-')}", "labels": [names[n % 4]]}
        for n in range(100)
    ]
    report = check_data(write(tmp_path / "leak.jsonl", rows))
    (found,) = [problem for problem in report.problems if problem.kind == "documents that name all their labels"]
    assert found.count == 75  # "co" is too short to tell
    assert found.examples == ["100% of the documents: are labels part of the text?"]
    for row in rows[1::4]:
        row["text"] = "something else"
    found = counts(check_data(write(tmp_path / "leak.jsonl", rows)))
    assert found["labels that their texts name"] == 2  # not steel
    assert "documents that name all their labels" not in found


def test_texts_that_cannot_be_read_are_reported_up_to_there(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"text,labels\na cat,x\n" + b"a dog,y\n" * 9000 + b"gr\xfcn,z\n")
    report = check_data(path)
    (found,) = [problem for problem in report.problems if "cannot be read" in problem.kind]
    assert "is not UTF-8" in found.examples[0]
    assert "--encoding cp1252" in found.examples[0]
    assert 0 < report.n_rows < 9002
    assert not report.is_clean


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--fix", "out.txt"], "is raw text, which only its maker can mend: leave out --fix"),
        (["--labels-column", "tags"], "'tags'"),
    ],
)
def test_flags_that_do_not_fit(tmp_path, capsys, words, message):
    path = write(tmp_path / "odd.jsonl", ODD)
    assert main(["data", "validate", str(path), *words]) == 2
    assert message in capsys.readouterr().err


def test_all_kinds_have_a_test():
    """Each is named in a test above."""
    source = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{kind}"' in source or kind.startswith("documents that cannot be read") for kind in ADVICE)
