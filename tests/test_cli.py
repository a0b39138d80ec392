"""The commands end to end, in this process and as a user starts them; and bad input, always one line and exit 2."""

import json
import re
import subprocess
import sys

import pytest

from xmlpreck.cli import main
from xmlpreck.model import Model

ROWS = "0,2 0:1 3:0.5\n1 1:1\n 2:1 3:1\n2 0:0.5 2:2\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "train.txt").write_text("4 4 6\n" + ROWS)
    (tmp_path / "tiny" / "test.txt").write_text("4 4 6\n" + ROWS)
    (tmp_path / "tiny" / "labels.txt").write_text("".join(f"name {i}\n" for i in range(6)))
    return tmp_path


def test_demo_from_train_to_scores(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--data", "demo", "--epochs", "2", "--heldout", "0.1", "--no-tune"]) == 0
    out = capsys.readouterr().out
    assert "demo (synthetic): 8,000 rows, 4,000 features, 1,000 labels" in out
    for number in (1, 2):
        line = next(line for line in out.splitlines() if line.startswith(f"pass {number}:"))
        for word in ("surrogate", "mistakes", "gap", "updated", "held out P@1", "rows/s"):
            assert word in line
    test_line = out.splitlines()[-1]
    assert test_line.startswith("test, 2,000 rows: P@1 ")
    for suffix in ("npz", "parquet", "txt"):
        out_file = f"P.{suffix}"
        assert main(["predict", "--model", "runs/demo", "--data", "demo", "--out", out_file, "--topk", "5"]) == 0
        capsys.readouterr()
        assert main(["evaluate", "--pred", out_file, "--data", "demo", "--json"]) == 0
        # the same three figures whichever way they were written
        found = json.loads(capsys.readouterr().out)
        assert test_line.endswith("  ".join(f"P@{k} {found[f'P@{k}']:.2f}" for k in (1, 3, 5)))


def test_json_is_one_object_on_stdout(folder, capsys):
    assert main(["train", "--data", "tiny", "--json", "--k", "2", "--out", "m"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["model"] == "m"
    assert set(result["test"]) == {"P@1", "P@3", "P@5"}
    assert len(result["history"]) == 3
    assert result["seconds"] > 0
    assert main(["predict", "--model", "m", "--data", "tiny", "--out", "P.npz", "--topk", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "out": "P.npz",
        "topk": 2,
        "n_rows": 4,
        "n_predicted": 8,
        "n_rows_without_labels": 0,
        "n_bad_lines": 0,
    }
    assert main(["evaluate", "--pred", "P.npz", "--data", "tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_rows"] == 4


def test_settings_reach_the_model(folder, capsys):
    (folder / "run.toml").write_text("[train]\neta = 0.25\nepochs = 2\n")
    words = ["--config", "run.toml", "--set", "rows.bias=0.5", "--algo", "sgd-max", "--seed", "7", "--threads", "1"]
    assert main(["train", "--data", "tiny", "--out", "m", *words]) == 0
    info = Model.load("m").info
    train = info["config"]["train"]
    assert (train["eta"], train["epochs"], train["algo"], train["seed"]) == (0.25, 2, "sgd-max", 7)
    assert info["config"]["rows"]["bias"] == 0.5
    assert info["data"]["name"] == "tiny"
    assert info["data"]["n_rows_without_labels"] == 1
    assert Model.load("m").label_names == [f"name {i}" for i in range(6)]
    assert "settings: run.toml" in capsys.readouterr().out


def test_a_file_trains_without_test_rows(folder, capsys):
    assert main(["train", "--data", "tiny/train.txt", "--out", "m"]) == 0
    captured = capsys.readouterr()
    assert "no test rows" in captured.err
    assert "test," not in captured.out


def damaged(text):
    def write(folder):
        (folder / "tiny" / "train.txt").write_text(text)

    return write


BAD_TRAINING = {
    "k 0": (["--k", "0"], None, "train.k must be 1 or more, but is 0"),
    "k text": (["--k", "five"], None, "train.k must be a whole number, but is 'five'"),
    "algorithm": (["--algo", "adam"], None, "train.algo must be one of hinge, .* but is 'adam'"),
    "setting": (["--set", "train.etta=1"], None, "no setting train.etta; did you mean 'eta'"),
    "flag": (["--epoch-count", "3"], None, "unrecognized arguments: --epoch-count 3"),
    "config": (["--config", "nowhere.toml"], None, "nowhere.toml: no such file, nor one of the shipped configs"),
    "label id": ([], damaged("1 4 6\n6 0:1\n"), "train.txt:2: label id 6 is out of range"),
    "feature id": ([], damaged("1 4 6\n0 4:1\n"), "train.txt:2: feature id 4 is out of range"),
    "nan": ([], damaged("2 4 6\n0 1:1\n0 1:nan\n"), "train.txt:3: .*nan"),
    "too few rows": ([], damaged("5 4 6\n" + ROWS), "train.txt:.*5"),
    "too many rows": ([], damaged("3 4 6\n" + ROWS), "train.txt:.*3"),
    "header": ([], damaged("four 4 6\n"), "train.txt: unknown format: it begins with 'four 4 6'"),
    "empty file": ([], damaged(""), "train.txt"),
    "no labels": ([], damaged("1 4 6\n 0:1\n"), "none of the 1 rows has a label"),
    "missing data": (["--data", "nowhere"], None, "'nowhere' is neither a file or folder nor a known data set"),
    "not installed": (["--data", "eurlex"], None, "eurlex-4k: is not on this machine and could not be fetched"),
    "target": (["--out", "tiny"], None, "tiny: exists and is not a model"),
}


@pytest.mark.parametrize("case", BAD_TRAINING)
def test_bad_input_is_one_line_exit_2_and_nothing_written(case, folder, capsys, monkeypatch):
    words, prepare, message = BAD_TRAINING[case]
    monkeypatch.setenv("XMLPRECK_DATA", str(folder / "no-data"))
    monkeypatch.setenv("HOME", str(folder / "no-home"))
    if prepare:
        prepare(folder)
    before = sorted(folder.rglob("*"))
    assert main(["train", "--data", "tiny", *words]) == 2
    captured = capsys.readouterr()
    error = captured.err.splitlines()
    assert len(error) == (3 if case == "not installed" else 1)  # what happened, and two ways out
    assert error[0].startswith("xmlpreck: ")
    assert re.search(message, error[0])
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "--model", "nowhere", "--data", "tiny", "--out", "P.npz"], "nowhere: is not a model directory"),
        (["predict", "--model", "m", "--data", "tiny", "--out", "P.xls"], "P.xls: unknown kind '.xls'"),
        (
            ["predict", "--model", "m", "--data", "tiny", "--out", "P.npz", "--topk", "0"],
            "--topk must be a whole number",
        ),
        (["predict", "--model", "m", "--data", "wide", "--out", "P.npz"], "rows have 9 features, but the model"),
        (["predict", "--model", "m", "--data", "tiny", "--out", "no/P.npz"], "no/P.npz: cannot be written"),
        (["evaluate", "--pred", "P.npz", "--data", "tiny"], "P.npz"),
        (["evaluate", "--pred", "short.txt", "--data", "tiny"], "short.txt: predicts for 1 rows, but the data have 4"),
        (["evaluate"], "the following arguments are required: --data, --pred"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_bad_prediction_input(words, message, folder, capsys):
    main(["train", "--data", "tiny", "--out", "m"])
    (folder / "wide").mkdir()
    (folder / "wide" / "test.txt").write_text("1 9 6\n0 8:1\n")
    (folder / "short.txt").write_text("1 6\n0:1\n")
    before = sorted(folder.rglob("*"))
    capsys.readouterr()
    assert main(words) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert sorted(folder.rglob("*")) == before


def test_as_a_user_starts_it(folder):
    """A real process: exit code, no traceback, and a --help that imports nothing heavy."""
    command = [sys.executable, "-m", "xmlpreck"]
    bad = subprocess.run([*command, "train", "--data", "tiny", "--k", "0"], capture_output=True, text=True)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "xmlpreck: command line: train.k must be 1 or more, but is 0\n"
    command[1:1] = ["-X", "importtime"]  # tells every import on stderr
    helped = subprocess.run([*command, "train", "--help"], capture_output=True, text=True)
    assert helped.returncode == 0
    for words in ("--data", "--algo", "--tau", "--set", "(default: normal)"):
        assert words in " ".join(helped.stdout.split())
    assert not {"numba", "numpy", "scipy", "sklearn", "pyarrow"} & set(helped.stderr.replace("|", " ").split())


def test_interrupt_is_told(folder, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("xmlpreck.data.catalog.load", interrupted)
    assert main(["train", "--data", "tiny"]) == 130
    assert capsys.readouterr().err.endswith("xmlpreck: interrupted\n")
