"""No flag is ignored in silence, no number is too long, every command has --json, no credentials are shown."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from xmlpreck.cli import EXIT_CODES, build_parser, main
from xmlpreck.config import parse_whole
from xmlpreck.model import Model

ROOT = Path(__file__).parent.parent
NUMBERS, TEXTS = (str(ROOT / "tests" / "fixtures" / name) for name in ("model-1", "text-model-1"))
ROWS = "0,2 0:1 3:0.5\n1 1:1\n 2:1 3:1\n2 0:0.5 7:2\n"
LONG = "9" * 5000


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of rows for the models of tests/fixtures, a copy of a model and its predictions."""
    monkeypatch.chdir(tmp_path)
    Path("tiny").mkdir()
    for split in ("train", "test"):
        Path("tiny", f"{split}.txt").write_text("4 8 6\n" + ROWS)
    Path("tiny", "labels.txt").write_text("".join(f"label {i}\n" for i in range(6)))
    Path("tiny", "features.txt").write_text("".join(f"feature {i}\n" for i in range(8)))
    Path("only-test").mkdir()
    Path("only-test", "test.txt").write_text("4 8 6\n" + ROWS)
    Path("P.txt").write_text("4 6\n0:1 2:0.5\n1:1\n2:1\n0:1\n")
    pq.write_table(pa.table({"body": ["cod sea"], "topics": [["sea"]]}), "docs.parquet")
    return tmp_path


def line_of_failure(capsys, words):
    assert main(words) == 2, words
    captured = capsys.readouterr()
    assert captured.out == ""
    errors = [line for line in captured.err.splitlines() if line.startswith("xmlpreck: ")]
    assert len(errors) == 1
    return errors[0]


# --- flags that would have no effect

ON_TINY = {
    "predict": ["--model", NUMBERS, "--data", "tiny", "--out", "-"],
    "evaluate": ["--data", "tiny", "--pred", "P.txt"],
    "compare": ["P.txt", "P.txt", "--data", "tiny"],
    "prune": ["--model", NUMBERS, "--out", "small"],
    "explain": ["--model", NUMBERS, "--data", "tiny", "--row", "0"],
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("predict --labels-column topics", "tiny: is not raw text: leave out --labels-column"),
        ("evaluate --labels-column topics", "tiny: is not raw text: leave out --labels-column"),
        ("predict --layout long --out P.npz", "P.npz: --layout and --excel are for .csv and .tsv"),
        ("predict --layout broad --out P.csv", "--layout must be wide or long, but is 'broad'"),
        ("predict --excel yes --out P.csv", "--excel must be comma or semicolon, but is 'yes'"),
        ("predict --excel comma --out P.tsv", "P.tsv: --excel is for .csv"),
        ("predict --layout long --out -", "--layout has no effect with --out -"),
        ("evaluate --table word", "--table must be one of text, markdown, latex, csv, but is 'word'"),
        ("evaluate --table csv --json", "--table has no effect with --json"),
        ("predict --split foo", "--split must be train or test, but is 'foo'"),
        ("prune --size 1KB --split foo", "--split must be heldout or train or test, but is 'foo'"),
        ("prune --size 1KB --split train", "--split has no effect without --max-loss"),
        ("prune --threshold 0.1 --data tiny", "--data has no effect without --max-loss"),
        ("prune --threshold 0.1 --threads 2", "--threads has no effect without --max-loss"),
        ("predict --strict", "--strict has no effect without --data -"),
        ("predict --data - --format svm", "--format has no effect with --data -"),
        ("predict --data - --split train", "--split has no effect with --data -"),
        ("train --data docs.parquet --delimiter ,", "docs.parquet: --delimiter has no effect on parquet"),
        ("predict --data demo --text-columns body", "demo: is not raw text: leave out --text-columns"),
        ("predict --data demo --format libsvm", "demo: is computed, not read from a file"),
        ("predict --data shards --format libsvm", "shards: has shards, which have no format 'libsvm'"),
        ("predict --data-dir x", "--data-dir has no effect with tiny, which is no name of the catalogue"),
        ("evaluate --no-filter --filter x", "--filter has no effect with --no-filter"),
        ("compare --inverse-propensities x --propensity 1,2", "--propensity has no effect with --inverse-propensities"),
        ("evaluate --resamples 0 --seed 3", "--seed has no effect with --resamples 0"),
        ("evaluate --data only-test --bins 5,6", "--bins has no effect without training rows"),
        ("compare --data only-test --propensity 1,2", "--propensity has no effect without training rows"),
        ("explain --json --features 3", "--features has no effect with --json"),
        ("data convert tiny out --seed 3", "--seed has no effect without --shuffle"),
        ("data convert only-test out --shuffle", "--shuffle has no effect on test rows"),
        ("data validate tiny --split foo", "--split must be train or test, but is 'foo'"),
        ("predict --data tiny --out s3://key:secret@b/m", "s3://b/m: is an address, but results are written to this"),
    ],
)
def test_a_flag_without_effect_is_refused(here, capsys, words, message):
    if "shards" in words:
        assert main(["data", "convert", "tiny", "shards"]) == 0
        capsys.readouterr()
    before = sorted(here.rglob("*"))
    command, *rest = words.split()
    assert message in line_of_failure(capsys, [command, *ON_TINY.get(command, []), *rest])
    assert sorted(here.rglob("*")) == before


def test_text_of_explain_needs_no_data(here, capsys):
    words = ["explain", "--model", TEXTS, "--text", "cod sea"]
    assert main(words) == 0
    capsys.readouterr()
    assert "--split has no effect with --text" in line_of_failure(capsys, [*words, "--split", "train"])


def test_predict_counts_what_it_has_written(here, capsys):
    words = ["predict", "--model", NUMBERS, "--data", "tiny", "--topk", "3"]
    assert main([*words, "--out", "P.parquet"]) == 0
    assert capsys.readouterr().out == "P.parquet: 12 labels for 4 rows\n"
    for out in ("P.npz", "P.jsonl"):
        assert main([*words, "--out", out, "--threshold", "99"]) == 0
        assert capsys.readouterr().out == f"{out}: 0 labels for 4 rows; 4 rows have none\n"


# --- JSON and exit codes


def subcommands(parser):
    return next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def all_commands():
    commands = dict(subcommands(build_parser()))
    return commands | {f"data {name}": parser for name, parser in subcommands(commands.pop("data")).items()}


JSON_WORDS = {
    "plan": "--data tiny",
    "train": "--data tiny --no-tune --epochs 1 --out m",
    "predict": f"--model {NUMBERS} --data tiny --out P.npz",
    "prune": f"--model {NUMBERS} --threshold 0.01 --out small",
    "update": f"--model {NUMBERS} --data tiny --out longer",
    "calibrate": f"--model {NUMBERS} --data tiny --split test --out calibrated",
    "optimize": f"--model {NUMBERS} --data tiny --split test --out optimized",
    "evaluate": "--data tiny --pred P.txt",
    "compare": "P.txt P.txt --data tiny",
    "report": f"{NUMBERS} --data tiny",
    "explain": f"--model {NUMBERS} --data tiny --row 1",
    "serve": f"--model {NUMBERS}",
    "push": f"{NUMBERS} jane/m",
    "pull": "jane/m",
    "data list": "",
    "data info": "bibtex --data-dir found",
    "data fetch": "bibtex --data-dir found",
    "data convert": "tiny shards",
    "data validate": "tiny/test.txt",
}


ELSEWHERE = ("serve", "push", "pull")  # test_serve.py, test_hub.py


@pytest.mark.parametrize("command", [command for command in all_commands() if command not in ELSEWHERE])
def test_every_command_has_json(here, capsys, command):
    folder = here / "found" / "bibtex"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        (folder / f"{split}.txt").write_text("4 8 6\n" + ROWS)
    assert main([*command.split(), *JSON_WORDS[command].split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = {
        "data fetch": {"name": "bibtex", "folder": "found/bibtex"},
        "data convert": [
            {"split": split, "folder": f"shards/{split}", "kind": "parquet", "n_rows": 4, "n_shards": 1}
            for split in ("train", "test")
        ],
    }.get(command)
    if command == "data convert":
        assert [facts.pop("bytes") > 0 for facts in found] == [True, True]
    assert expected is None or found == expected
    if command == "data info":
        assert found["folders"] == {"train": "found/bibtex", "test": "found/bibtex"}


def test_exit_codes_are_in_the_help_and_in_the_docs(capsys):
    assert main(["--help"]) == 0
    assert EXIT_CODES in capsys.readouterr().out
    page = (ROOT / "docs" / "commands.md").read_text()
    for code in ("0", "1", "2", "130", "141", "143"):
        assert f"\n  {code} " in EXIT_CODES
        assert f"\n| {code} |" in page


def test_a_report_without_matplotlib(here):
    """In a process of its own, where no part of matplotlib has been imported yet."""
    program = "import sys; sys.modules['matplotlib'] = None; from xmlpreck.cli import main; sys.exit(main())"
    words = ["report", NUMBERS, "--data", "tiny"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "xmlpreck: a report needs matplotlib, which is not installed: pip install 'xmlpreck[report]'\n"
    )


# --- long numbers


@pytest.mark.parametrize("digits", [LONG, "9" * 400, "9" * 19])
@pytest.mark.parametrize("command", all_commands())
def test_every_flag_takes_long_numbers(here, capsys, command, digits):
    """Refused in one line, or taken as a name or a large number: never a traceback."""
    for action in all_commands()[command]._actions:
        flag = (action.option_strings or [""])[-1]
        if not flag or action.nargs == 0:
            continue
        assert main([*command.split(), *JSON_WORDS[command].split(), f"{flag}={digits}"]) in (0, 2)
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("xmlpreck: ")]
        assert len(errors) <= 1
        assert action.metavar not in ("INT", "SIZE") or all(len(error) < 300 for error in errors)


def test_whole_numbers():
    assert [parse_whole(text) for text in ("0", "007", "9" * 18, "0" * 5000 + "7")] == [0, 7, 10**18 - 1, 7]
    for text in ("", " 1", "-1", "1.0", "1_000", "٣", "²", "9" * 19, LONG):
        assert parse_whole(text) is None


LONG_IN_FILES = {
    "label": ("train.txt", f"1 8 6\n{LONG} 0:1\n", "data validate train.txt --fix clean.txt", 0),
    "label id": ("train.txt", f"1 8 6\n{LONG} 0:1\n", "train --data train.txt --out m", 2),
    "feature id": ("train.txt", f"1 8 6\n0 {LONG}:1\n", "train --data train.txt --out m", 2),
    "value": ("train.txt", f"1 8 6\n0 1:{LONG}\n", "train --data train.txt --out m", 2),
    "header": ("train.txt", f"1 8 {LONG}\n0 1:1\n", "train --data train.txt --out m", 2),
    "LIBSVM": ("train.svm", f"1,2 1:1 {LONG}:1\n", "train --data train.svm --out m --format libsvm", 2),
    "label of a text": ("t.jsonl", f'{{"text": "a b", "labels": [{LONG}]}}\n', "train --data t.jsonl --out m", 2),
    "target": (
        "t.jsonl",
        f'{{"title": "a", "content": "b", "target_ind": [{"9" * 400}]}}\n',
        "train --data t.jsonl --out m",
        2,
    ),
    "predicted": ("Q.txt", f"4 6\n{LONG}:1\n\n\n\n", "evaluate --data tiny --pred Q.txt", 2),
    "predicted, mended": ("Q.txt", f"4 6\n{LONG}:1\n\n\n\n", "evaluate --data tiny --pred Q.txt --fix", 0),
    "predicted score": ("Q.txt", f"4 6\n0:{LONG}\n\n\n\n", "evaluate --data tiny --pred Q.txt --fix", 0),
    "predicted as JSON": (
        "Q.jsonl",
        f'{{"row": 0, "labels": [{"9" * 400}], "scores": [{"9" * 400}]}}\n' * 4,
        "evaluate --data tiny --pred Q.jsonl",
        2,
    ),
    "filter": ("f.txt", f"{LONG} 1\n", "evaluate --data tiny --pred P.txt --filter f.txt", 2),
    "propensity": ("p.txt", f"{LONG}\n" * 6, "evaluate --data tiny --pred P.txt --inverse-propensities p.txt", 2),
    "label list": ("l.txt", f"{LONG}\n", f"predict --model {NUMBERS} --data tiny --out - --only-labels l.txt", 2),
    "label weights": (
        "w.txt",
        f"{LONG}\n" * 6,
        f"predict --model {NUMBERS} --data tiny --out - --label-weights w.txt",
        2,
    ),
    "settings": ("c.toml", f"[train]\nk = {'9' * 400}\n", "plan --data tiny --config c.toml", 2),
    "settings, longer": ("c.toml", f"[train]\nk = {LONG}\n", "plan --data tiny --config c.toml", 2),
    "manifest": ("manifest.json", f'{{"format": {LONG}}}', "plan --data .", 2),
}


@pytest.mark.parametrize("case", LONG_IN_FILES)
def test_long_numbers_in_files(here, capsys, case):
    name, content, words, code = LONG_IN_FILES[case]
    Path(name).write_text(content)
    assert main(words.split()) == code, capsys.readouterr().err
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("xmlpreck: ")]
    assert len(errors) == (code == 2)


# --- credentials


@pytest.mark.parametrize(
    "words",
    [
        "train --data {}",
        "predict --model m --data tiny --out P.npz --only-labels {}",
        "predict --model m --data tiny --out P.npz --candidates {}",
        "predict --model {} --data tiny --out P.npz",
        "predict --model m --data tiny --out {}",
        "predict --model m --data {} --text-column body --out P.npz",
        "evaluate --data tiny --pred {}",
        "evaluate --data tiny --pred P.txt --train {}",
        "evaluate --data tiny --pred P.txt --filter {}",
        "compare {} {} --data tiny",
        "explain --model m --data {} --row 0",
        "report {}",
        "plan --data tiny --config {}",
        "plan --data tiny --set {}",
        "plan {}",
        "data info {}",
        "data fetch {}",
        "data convert {} out",
        "data convert tiny {}",
        "data validate {}",
        "data validate tiny --fix {}",
    ],
)
def test_credentials_are_never_shown(here, capsys, words):
    Model.load(NUMBERS).save("m")
    for address in ("ftp://me:s3cret@host/x", "s3://AKIA:s3/cret@bucket/x?region=eu", "x://h/x?account_key=s3cret&a=1"):
        main(words.format(address, address).split())
        captured = capsys.readouterr()
        for secret in ("s3cret", "s3/cret", "AKIA"):
            assert secret not in captured.out + captured.err
    assert not any("cret" in str(path) for path in here.rglob("*"))


def test_the_resume_hint_has_no_credentials(here, capsys, monkeypatch):
    from xmlpreck import train

    words = ["train", "--data", "tiny", "--no-tune", "--out", "m"]
    monkeypatch.setattr(sys, "argv", ["xmlpreck", *words, "--set=s3://AKIA:s3/cret@bucket/x?secret_key=y&region=eu"])
    load_kernels = train.load_kernels

    def interrupted():
        load_kernels()
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(train, "load_kernels", interrupted)
    assert main(words) == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        "stopped while reading; go on with, and the credentials in its addresses: "
        "xmlpreck train --data tiny --no-tune --out m '--set=s3://bucket/x?region=eu' --resume"
    )
