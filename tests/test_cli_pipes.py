"""Real processes with real pipes: readers that leave, streams closed or full, signals, and lines from stdin."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from xmlpreck.config import InputError
from xmlpreck.data.formats.json_rows import BadLine, arriving_lines
from xmlpreck.model import Model
from xmlpreck.model.prediction import Choice, Counts, answer_lines, json_batches, predict_batches, write_answers

FIXTURES = Path(__file__).parent / "fixtures"
NUMBERS, TEXTS = FIXTURES / "model-1", FIXTURES / "text-model-1"
COMMAND = [sys.executable, "-m", "xmlpreck"]
RUN = f"{sys.executable} -m xmlpreck"
TRAIN = f"{RUN} train --data tiny --no-tune --epochs 1 --threads 1 --out m"
PIPE = ["predict", "--data", "-", "--out", "-", "--model"]
ROWS = "0,2 0:1 3:0.5\n1 1:1\n 2:1 3:1\n2 0:0.5 2:2\n"
HANG = 900  # seconds, after which a process is taken to hang: the first may have to compile all kernels


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny").mkdir()
    for split in ("train", "test"):
        (tmp_path / "tiny" / f"{split}.txt").write_text("4 4 6\n" + ROWS)
    return tmp_path


def shell(folder, command):
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=HANG, stdin=subprocess.DEVNULL
    )


def start(*words, **streams):
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.Popen([*COMMAND, *map(str, words)], **streams)


def stop(process):
    """End a process that a failed test has left."""
    process.kill()
    process.wait()


# --- readers that leave, streams that are closed or full


@pytest.mark.parametrize(
    "streams",
    ["| head -1; exit ${PIPESTATUS[0]}", "| true; exit ${PIPESTATUS[0]}", "2> >(true)", ">&-", "2>&-", ">&- 2>&- <&-"],
)
def test_training_needs_no_reader(folder, streams):
    done = shell(folder, f"{TRAIN} {streams}")
    assert done.returncode == 0, done.stderr
    assert Model.load(folder / "m", verify=True).n_labels == 6
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_full_disk_at_stdout_loses_the_output_but_not_the_model(folder):
    done = shell(folder, f"{TRAIN} > /dev/full")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "xmlpreck: stdout cannot be written: No space left on device: what was printed is lost"
    )
    assert Model.load(folder / "m", verify=True).n_labels == 6
    assert shell(folder, f"{TRAIN} 2> /dev/full").returncode == 0


@pytest.mark.parametrize("streams", ["| true; exit ${PIPESTATUS[0]}", ">&-", "2>&-", "> /dev/full"])
def test_a_failure_stays_one_without_a_reader(folder, streams):
    assert shell(folder, f"{RUN} train --data nowhere {streams}").returncode == 2


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        ("--help", "> /dev/full", 2),
        ("data list", "> /dev/full", 2),
        ("data list", ">&-", 2),
        ("data validate bad.txt", "| true; exit ${PIPESTATUS[0]}", 1),  # the code is a result
        ("data validate tiny/test.txt", "| true; exit ${PIPESTATUS[0]}", 0),
    ],
)
def test_output_that_is_the_result(folder, words, streams, code):
    (folder / "bad.txt").write_text("2 4 6\n0 1:1\n0 1:nan\n")
    done = shell(folder, f"{RUN} {words} {streams}")
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == (1 if code == 2 else 0)


@pytest.mark.parametrize("words", ["data list", "plan --data tiny", "data info demo --json", "--help"])
def test_a_reader_who_has_left_before_the_first_line(folder, words):
    read, write = os.pipe()
    os.close(read)
    process = start(*words.split(), stdout=write, cwd=folder)
    os.close(write)
    assert b"Traceback" not in process.communicate(timeout=HANG)[1]
    assert process.returncode == 141


def test_work_for_nobody_ends(folder):
    """The reader leaves while the command waits for its next line: nothing is written that could tell it so."""
    process = start(*PIPE, NUMBERS)
    try:
        process.stdin.write(b'{"features": [1]}\n')
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["row"] == 0
        process.stdout.close()
        assert process.wait(HANG) == 141
        assert process.stderr.read() == b""
    finally:
        stop(process)


def test_a_pipe_that_does_not_block_is_waited_for(tmp_path):
    read, write = os.pipe()
    os.set_blocking(write, False)
    process = start(*PIPE, NUMBERS, stdout=write)
    try:
        os.close(write)
        n_lines = 2000  # their answers are more than a pipe holds

        def send():
            process.stdin.write(b'{"features": [1, 2, 3]}\n' * n_lines)
            process.stdin.close()

        threading.Thread(target=send).start()
        with open(read, "rb") as stream:
            assert sum(1 for _ in stream) == n_lines
        assert process.wait(HANG) == 0
    finally:
        stop(process)


# --- signals


@pytest.mark.parametrize("module", ["argparse", "tomllib", "numpy"])
def test_ctrl_c_while_modules_are_imported(tmp_path, module):
    """A module that interrupts its own import: of the command line itself, and of what a command needs."""
    (tmp_path / f"{module}.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", str(Path(__file__).parent.parent))])
    done = subprocess.run(
        [*COMMAND, "plan", "--data", "demo"], env=os.environ | {"PYTHONPATH": path}, capture_output=True, timeout=HANG
    )
    assert done.returncode == 130
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("out", ["-", "P.parquet"])
def test_signals_while_waiting_for_input(tmp_path, number, code, out):
    process = start("predict", "--data", "-", "--out", out, "--model", NUMBERS, cwd=tmp_path)
    try:
        process.stdin.write(b'{"features": [1]}\n')
        process.stdin.flush()
        if out == "-":
            process.stdout.readline()
        else:
            while not any(path.suffix == ".parquet" and path.is_file() for path in tmp_path.rglob("*")):
                assert process.poll() is None  # it is on its way to the file under a temporary name
                time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(HANG) == code
        assert b"Fatal" not in process.stderr.read()
        assert list(tmp_path.iterdir()) == []
    finally:
        stop(process)


# --- lines from stdin

LONG = "9" * 5000
BAD_LINES = {
    b"": "is empty",
    b"  ": "is empty",
    b"{": "is not JSON",
    b"[]": "holds '[]': each line must be a JSON object",
    b"{}": "needs a text, or as many values as features",
    b'{"features": [1], "values": [1, 2]}': "as many values",
    b'{"features": [1], "values": [true]}': "values must be numbers",
    b'{"features": [99], "id": "x"}': "feature 99 is out of range: there are 8 features",
    b'{"features": [-1]}': "feature -1 is out of range",
    b'{"features": [1, 1]}': "feature 1 appears twice",
    b'{"features": [1], "values": [1e99]}': "feature 1 has the value inf",
    b'{"features": [1], "values": [NaN]}': "feature 1 has the value nan",
    b'{"features": [1], "id": NaN}': "id must be a string or a number",
    b'{"features": [1], "id": ' + b"[" * 900 + b"]" * 900 + b"}": "id must be a string",
    b"[" * 100_000: "is not JSON",
    b'{"text": "cod"}': "the model was trained on numbers, not on texts",
    b'{"features": ["caf\xe9"]}': "byte 19 of the line is not UTF-8",
    b"\xff\xfe{\x00}\x00": "byte 1 of the line is not UTF-8",
    b'{"text": "\\ud800"}': "half of a surrogate pair",
    f'{{"features": ["{LONG}"]}}'.encode(): "feature '99999999999999",
    f'{{"features": [{LONG}]}}'.encode(): "holds a whole number of thousands of digits",
    f'{{"features": [{"9" * 400}]}}'.encode(): "is out of range",
    f'{{"features": [1], "values": [{"9" * 400}]}}'.encode(): "feature 1 has the value inf",
}


def test_every_line_has_an_answer_in_its_place(tmp_path):
    good = b'{"id": "good", "features": {"1": 0.5, "feature 2": 1}}'
    lines = [b"\xef\xbb\xbf" + good]  # with a byte order mark
    for line in BAD_LINES:
        lines += [line, good]
    (tmp_path / "in").write_bytes(b"\r\n".join(lines))  # without an end after the last
    with open(tmp_path / "in", "rb") as stream:
        done = subprocess.run([*COMMAND, *PIPE, str(NUMBERS)], stdin=stream, capture_output=True, timeout=HANG)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(lines)
    assert answers[0]["row"] == "good"
    assert all(answer == answers[0] for answer in answers[::2])
    messages = list(BAD_LINES.values())
    for i, (answer, message) in enumerate(zip(answers[1::2], messages, strict=True)):
        assert message in answer["error"]
        assert answer["line"] == 2 * i + 2
    by_message = dict(zip(messages, answers[1::2], strict=True))
    assert by_message["feature 99 is out of range: there are 8 features"]["id"] == "x"
    assert done.returncode == 1
    assert done.stderr.decode() == f"{len(BAD_LINES)} of {len(lines)} lines have an error for an answer\n"


def test_strict_answers_all_lines_before_the_bad_one(tmp_path):
    given = b'{"features": [1]}\n{"features": [2]}\n{"features": [99]}\n{"features": [3]}\n'
    done = subprocess.run([*COMMAND, *PIPE, str(NUMBERS), "--strict"], input=given, capture_output=True, timeout=HANG)
    assert [json.loads(line)["row"] for line in done.stdout.splitlines()] == [0, 1]
    assert done.returncode == 2
    assert done.stderr.decode() == "xmlpreck: line 3: feature 99 is out of range: there are 8 features\n"


def test_a_line_of_100_mb_is_answered_and_a_longer_one_is_not_kept():
    head, tail = b'{"text": "cod', b'herring"}'
    fits = head + b" " * (100_000_000 - len(head + tail)) + tail
    too_long = fits.replace(b"cod", b"cods")
    other = b'{"text": "cod herring"}'
    given = b"\n".join([other, too_long, other, fits, other])
    done = subprocess.run([*COMMAND, *PIPE, str(TEXTS)], input=given, capture_output=True, timeout=HANG)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[1] == {
        "error": "is longer than 100,000,000 bytes: send fewer values per line, or use a file",
        "line": 2,
    }
    assert [answer.get("row") for answer in answers] == [0, None, 2, 3, 4]
    assert answers[3]["scores"] == answers[4]["scores"]
    assert done.returncode == 1


def test_stdin_that_cannot_be_read(tmp_path):
    closed = shell(tmp_path, f"{RUN} {' '.join(PIPE)} {NUMBERS} <&-")
    assert (closed.returncode, closed.stderr) == (2, "xmlpreck: --data -: stdin is closed: send JSON lines to it\n")
    for_writing = shell(tmp_path, f"{RUN} {' '.join(PIPE)} {NUMBERS} 0> x")
    assert (for_writing.returncode, for_writing.stderr) == (
        2,
        "xmlpreck: stdin: cannot be read: Bad file descriptor\n",
    )


# --- the same in Python


def lines_of(content, **limits):
    read, write = os.pipe()

    def send():
        with open(write, "wb") as stream:
            stream.write(content)

    threading.Thread(target=send).start()
    try:
        return [line for batch in arriving_lines(read, **limits) for line in batch]
    finally:
        os.close(read)


@pytest.mark.parametrize("n_around", range(-3, 4))
def test_lines_around_the_limit(n_around):
    """Also where a line ends just after a chunk of bytes that was read."""
    limit = (1 << 20) + n_around
    lines = [b"a" * (limit - 1), b"", b"b" * limit, b"c" * (limit + 1), b"d" * 3 * limit, b"e"]
    found = lines_of(b"\n".join(lines), max_line_bytes=limit)
    assert found[:3] + found[5:] == lines[:3] + lines[5:]
    assert [line.max_bytes for line in found[3:5]] == [limit, limit]


def test_an_empty_line_at_the_end_is_a_line_and_the_end_of_a_line_is_none():
    assert lines_of(b"") == []
    assert lines_of(b"a") == lines_of(b"a\n") == [b"a"]
    assert lines_of(b"\n\n") == [b"", b""]


def test_lines_in_python(tmp_path):
    scorer = Model.load(NUMBERS)
    lines = [b'{"features": [1], "id": 5}', b"nothing", b'{"features": [2, 3]}']

    def found(strict=False):
        return predict_batches(scorer, json_batches([lines[:1], lines[1:]], scorer, strict), Choice(k=2))

    ids = [id for batch, _ in found() for id in batch]
    assert (ids[0], ids[2]) == (5, 2)
    assert isinstance(ids[1], BadLine)
    counts = Counts()
    answers = [json.loads(line) for batch in answer_lines(found(), scorer, counts) for line in batch]
    assert answers[1] == {"error": ids[1].error, "line": 2}
    assert counts == Counts(n_rows=2, n_predicted=4, n_rows_without_labels=0, n_bad_lines=1)
    assert write_answers(tmp_path / "P.jsonl", found(), scorer) == counts
    assert [json.loads(line) for line in (tmp_path / "P.jsonl").read_text().splitlines()] == answers
    for words in ({"strict": True}, {}):
        with pytest.raises(InputError, match=r"^line 2: is not JSON"):
            write_answers(tmp_path / "P.npz", found(**words), scorer)
    assert not (tmp_path / "P.npz").exists()


def test_texts_and_numbers_may_take_turns():
    scorer = Model.load(TEXTS)
    lines = [b'{"text": "cod sea"}', b'{"features": {"cow": 1}}', b"", b'{"text": "cow milk"}']
    batches = list(json_batches([lines], scorer))
    rows = np.vstack([rows.toarray() for _, rows in batches])
    assert rows.shape == (4, scorer.n_features)
    assert (rows[0] == scorer.vectorizer.transform(["cod sea"]).toarray()).all()
    assert (rows[1] > 0).sum() == 1
    assert not rows[2].any()
    assert (rows[3] == scorer.vectorizer.transform(["cow milk"]).toarray()).all()
