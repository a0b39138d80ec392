"""Faults for real: processes that are killed, asked to stop, out of disk or memory, and shards that change under them.

Commands run in processes forked from one that has loaded the kernels (this file, started as a program): a start costs
milliseconds and not seconds. Signals, limits and files are real.
"""

import faulthandler
import json
import mmap  # noqa: F401 (numpy imports it late, when a forked command may no longer read Python's files)
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers import ONE_THREAD, ROOT, check_one_thread

sys.path.insert(0, str(ROOT / "tools"))
import torture

# All that commands import when they need it: nobody may not read root's Python.
import xmlpreck
from xmlpreck.cli import main
from xmlpreck.config import RunConfig, TrainConfig
from xmlpreck.data import catalog, corpus, validate  # noqa: F401
from xmlpreck.data.formats import write_repository_text
from xmlpreck.data.synthetic import make_dataset
from xmlpreck.evaluation import report  # noqa: F401
from xmlpreck.train import Checkpoints, Safety, fit, tuning

SECONDS = 60  # after which a command counts as hung
NOBODY = 65534
MB = 1 << 20


# --- the process that forks ------------------------------------------------------------------------------------


def serve():
    """Fork a command for every line of JSON on stdin; {"wait": pid} asks how it ended."""
    compile_kernels()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            pid, status = os.waitpid(order["wait"], os.WNOHANG)
            print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
            continue
        check_one_thread()
        pid = os.fork()
        if not pid:
            os._exit(run_forked(order))
        print(json.dumps(pid), flush=True)


def compile_kernels():
    """Do once what commands do: a forked one that had to compile would take as long as one that hangs."""
    tuning.FREE_WORK = 0.0  # the budget of large data: small data may have a hundred times as much
    with tempfile.TemporaryDirectory() as name:
        write_repository_text(Path(name) / "train.txt", make_dataset(1100, 50, 20, features_per_row=5, seed=0))
        xmlpreck.convert(name, Path(name) / "shards")
        model = xmlpreck.fit(name, threads=1)
        model.score(xmlpreck.load_data(name))


def run_forked(order):
    """The command as `python -m xmlpreck` would run it, within its limits; returns the exit code."""
    os.chdir(order["folder"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.dump_traceback_later(SECONDS * 0.9, file=2)  # where it hangs, if it does, is in the log then
    sys.argv = ["xmlpreck", *order["words"]]
    if order["file_bytes"]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does at its start
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_bytes"],) * 2)
    if order["memory_bytes"]:
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + order["memory_bytes"],) * 2)
    if order["uid"]:
        os.setgid(order["uid"])
        os.setuid(order["uid"])
    try:
        code = main(order["words"])
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    return code


class Server:
    """The process that forks, and whether one of its commands has hung: the others would cost a minute each then."""

    def __init__(self, process):
        self.process = process
        self.hung = ""

    def ask(self, order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the process that forks has ended"
        return json.loads(answer)


class Command:
    """A command in a process of its own."""

    def __init__(self, server, folder, words, **limits):
        if server.hung:
            pytest.fail(f"not started, because a command has hung before: {server.hung}")
        self.server, self.folder, self.words = server, folder, words
        self.log = folder / f"log-{time.monotonic_ns()}.txt"
        order = {"folder": str(folder), "log": str(self.log), "words": words}
        self.pid = server.ask(order | {"file_bytes": 0, "memory_bytes": 0, "uid": 0} | limits)

    @property
    def text(self):
        return self.log.read_text()

    def until(self, condition):
        """Wait for something that the command does while it runs."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                self.server.hung = f"xmlpreck {' '.join(self.words)}, in {self.folder.name}"
                pytest.fail(f"hung for {SECONDS} s: {self.server.hung}\n{self.text}")
            time.sleep(0.002)
        return self

    def end(self, *signals):
        """Send signals, wait for the end, and return the exit code (-n: ended by signal n)."""
        for number in signals:
            os.kill(self.pid, number)
        codes = []
        self.until(lambda: codes.append(self.server.ask({"wait": self.pid})) or codes[-1] is not None)
        return codes[-1]


@pytest.fixture(scope="module")
def server():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, __file__], env=os.environ | ONE_THREAD, **pipes) as process:
        yield Server(process)
        process.stdin.close()


@pytest.fixture(scope="module")
def rows():
    return make_dataset(1500, 300, 120, features_per_row=20, seed=1)


@pytest.fixture
def folder(tmp_path, rows):
    (tmp_path / "data").mkdir()
    for split, some in (("train", rows.read(0, 1400)), ("test", rows.read(1400, 1500))):
        write_repository_text(tmp_path / "data" / f"{split}.txt", some)
    return tmp_path


@pytest.fixture
def start(server, folder):
    """Starts a command in `folder`."""
    return lambda *words, **limits: Command(server, folder, list(words), **limits)


# Six blocks a pass and a checkpoint after each: there is time to hit a run, and something to hit.
TRAIN = ("train", "--data", "data", "--out", "m", "--threads", "1", "--checkpoint-minutes", "0.00001")
TRAIN += ("--set", "train.block_rows=256", "--epochs", "5", "--no-tune")


@pytest.fixture(scope="module")
def expected(server, tmp_path_factory, rows):
    """The arrays of the model that nobody disturbed."""
    config = RunConfig(train=TrainConfig(block_rows=256, epochs=5, threads=1))
    place = tmp_path_factory.mktemp("expected") / "m"
    fit(rows.read(0, 1400), config).save(place)
    return arrays(place)


def arrays(model):
    return {path.name: path.read_bytes() for path in sorted(model.glob("*.npy"))}


def has_checkpoints(folder, n):
    """That n checkpoints were written, though only two are kept."""
    return lambda: max(Checkpoints(folder / "m").numbers(), default=0) >= n


def one_line(command):
    """The last line, if it is the only one about an error."""
    lines = command.text.splitlines()
    assert "Traceback" not in command.text, command.text
    assert [line for line in lines if line.startswith("xmlpreck: ")] == lines[-1:], command.text
    return lines[-1]


def leftovers(folder):
    """Temporary files and folders."""
    return [path for path in folder.rglob(".*")]


# --- signals ---------------------------------------------------------------------------------------------------


def test_torture_on_a_few_runs(folder):
    """SIGKILL at random moments of `python -m xmlpreck train`; every run ends with the bytes of an undisturbed one."""
    words = [
        "--data",
        str(folder / "data"),
        "--runs",
        "3",
        "--seed",
        "2",
        "--rows",
        "1100",
        "--out",
        str(folder / "t.json"),
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "torture.py"), *words], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "t.json").read_text())
    assert found["n_rows"] == 1100
    assert [run["differs"] for run in found["runs"]] == [[]] * 3


def test_torture_notices_a_difference(folder, start, expected):
    assert start(*TRAIN).end() == 0
    assert arrays(folder / "m") == expected
    model = folder / "m"
    assert torture.differences(model, model) == []
    copy = folder / "copy"
    subprocess.run(["cp", "-r", model, copy], check=True)
    content = bytearray((copy / "row_weights.npy").read_bytes())
    content[-1] ^= 1
    (copy / "row_weights.npy").write_bytes(content)
    (copy / "row_labels.npy").unlink()
    about = json.loads((copy / "model.json").read_text())
    about["history"][0]["seconds"] += 1
    (copy / "model.json").write_text(json.dumps(about))
    assert torture.differences(model, copy) == ["row_labels.npy", "row_weights.npy"]
    assert torture.differences(model, folder / "nowhere") == ["there is no model"]


def test_killed_again_and_again(folder, start, expected):
    """Each process gets a few checkpoints further."""
    n = 0
    while n < 20:
        command = start(*TRAIN, "--resume").until(has_checkpoints(folder, n + 6))
        assert command.end(signal.SIGKILL) == -signal.SIGKILL
        n = Checkpoints(folder / "m").numbers()[0]
    assert not (folder / "m").exists()
    assert start(*TRAIN, "--resume").end() == 0
    assert arrays(folder / "m") == expected
    assert not (folder / "m.partial").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_asked_to_stop(folder, start, expected, number, code):
    """One line that says how to go on; the command in it does."""
    command = start(*TRAIN).until(has_checkpoints(folder, 3))
    assert command.end(number) == code
    assert "stopping after a checkpoint; once more to stop at once" in command.text
    last = command.text.splitlines()[-1]
    assert last.startswith("stopped while training; go on with: xmlpreck train --data data --out m ")
    assert last.endswith(" --resume")
    assert Checkpoints(folder / "m").last() is not None
    assert leftovers(folder) == []
    words = last.split("xmlpreck ")[1].split()
    resumed = start(*words)
    assert resumed.end() == 0
    assert re.search(r"^resumed in pass \d", resumed.text, re.MULTILINE)
    assert arrays(folder / "m") == expected


def test_asked_twice_loses_nothing(folder, start, expected):
    """The second signal may come while the checkpoint that the first has asked for is written, or after it."""
    command = start(*TRAIN).until(has_checkpoints(folder, 2))
    os.kill(command.pid, signal.SIGINT)
    command.until(lambda: "once more to stop at once" in command.text)
    with suppress(ProcessLookupError):
        os.kill(command.pid, signal.SIGINT)
    assert command.end() in (130, -signal.SIGINT)
    assert "Traceback" not in command.text
    assert Checkpoints(folder / "m").last() is not None
    assert start(*TRAIN, "--resume").end() == 0
    assert arrays(folder / "m") == expected
    assert leftovers(folder) == []


def test_printed_command_works_in_a_shell(folder, start, expected):
    """With a name that a shell would take apart."""
    words = [word if word != "m" else "a model; $x" for word in TRAIN]
    command = start(*words).until(lambda: max(Checkpoints(folder / "a model; $x").numbers(), default=0) > 3)
    assert command.end(signal.SIGINT) == 130
    line = command.text.splitlines()[-1].partition("go on with: ")[2]
    program = f"{sys.executable} -m xmlpreck"
    done = subprocess.run(
        line.replace("xmlpreck", program, 1), shell=True, cwd=folder, capture_output=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert arrays(folder / "a model; $x") == expected


TUNE = (*(word for word in TRAIN if word != "--no-tune"), "--algo", "sgd-avg")


def n_trials(folder, model="m"):
    """Trials of tuning that are kept."""
    with suppress(OSError):
        return (folder / f"{model}.partial" / "tuning.json").read_text().count("n_passes")
    return 0


@pytest.fixture
def tuned(folder, start):
    """The model of a run that tuned in peace."""
    words = [word if word != "m" else "peace" for word in TUNE]
    assert start(*words).end() == 0
    return torture.content(folder / "peace")


def test_killed_while_tuning(folder, start, tuned):
    """With and without --resume: finished trials are taken up, and the choice and the model have the same bits."""
    for n in range(2, 9, 2):
        command = start(*TUNE, *(["--resume"] if n > 4 else [])).until(lambda n=n: n_trials(folder) >= n)
        assert command.end(signal.SIGKILL) == -signal.SIGKILL
        assert "no checkpoint: going on with tuning" in command.text or n <= 4
    last = start(*TUNE, "--resume")
    assert last.end() == 0
    assert torture.content(folder / "m") == tuned
    assert not (folder / "m.partial").exists()
    assert leftovers(folder) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_asked_to_stop_while_tuning(folder, start, tuned, number, code):
    command = start(*TUNE).until(lambda: n_trials(folder) >= 2)
    os.kill(command.pid, signal.SIGSTOP)  # so that it is still tuning when the signal comes
    is_tuning = "tuned in " not in command.text
    os.kill(command.pid, number)
    os.kill(command.pid, signal.SIGCONT)
    assert command.end() == code
    if is_tuning:
        assert "stopped while tuning; finished trials of tuning are kept; go on with: " in command.text
        assert 2 <= n_trials(folder) <= 9
        assert not Checkpoints(folder / "m").numbers()
    words = command.text.splitlines()[-1].split("xmlpreck ")[1].split()
    assert start(*words).end() == 0
    assert torture.content(folder / "m") == tuned
    assert not (folder / "m.partial").exists()


def test_memory_is_refused_before_tuning(folder, start):
    command = start(*TUNE, "--memory", "20MB")
    assert command.end() == 2
    assert "may be used: give more by --memory" in one_line(command)
    assert not (folder / "m.partial").exists()


def test_two_runs_into_one_folder(folder, start, expected):
    first = start(*TRAIN).until(has_checkpoints(folder, 2))
    second = start(*TRAIN, "--resume")
    assert second.end() == 2
    assert one_line(second).endswith(
        f"m.partial: process {first.pid} is training here: wait for it, or choose another --out"
    )
    assert first.end() == 0
    assert arrays(folder / "m") == expected


# --- disk ------------------------------------------------------------------------------------------------------


def test_checkpoints_that_do_not_fit_on_the_disk(folder, start, expected):
    """Training goes on; here the model is smaller than a checkpoint's largest array, and is saved."""
    largest = max(len(content) for content in expected.values())
    command = start(*TRAIN, file_bytes=largest + 4096)
    assert command.end() == 0, command.text
    assert "m.partial/checkpoint-000001: cannot be written: " in command.text
    assert "; training goes on, and the next checkpoint is tried in time" in command.text
    assert arrays(folder / "m") == expected
    assert leftovers(folder) == []
    assert not (folder / "m.partial").exists()


def test_model_that_does_not_fit_on_the_disk(folder, start):
    """The model before it stays, all rows' work is in the checkpoint, and --resume only has to save it."""
    (folder / "data" / "labels.txt").write_text("".join(f"{'x' * 3000}{label}\n" for label in range(120)))
    assert start(*TRAIN).end() == 0
    before, others = arrays(folder / "m"), ("--seed", "1")
    command = start(*TRAIN, *others, file_bytes=200_000)  # a checkpoint's largest array has 144 kB
    assert command.end() == 2
    assert one_line(command) == "xmlpreck: m: cannot be written: File too large"
    assert arrays(folder / "m") == before
    assert leftovers(folder) == []
    resumed = start(*TRAIN, *others, "--resume")
    assert resumed.end() == 0
    assert "resumed in pass 5" in resumed.text
    assert not re.search(r"\npass [1-4]", resumed.text)
    after = arrays(folder / "m")
    assert start(*TRAIN, *others, "--out", "n").end() == 0
    assert after == arrays(folder / "n") != before


@pytest.fixture
def model(folder, rows):
    fit(rows.read(0, 1400), RunConfig(train=TrainConfig(epochs=1, threads=1))).save(folder / "m")


def files(place):
    """What a file, or all files of a folder, hold."""
    return {path: path.read_bytes() for path in (place, *place.rglob("*")) if path.is_file()}


PREDICT = ("predict", "--model", "m", "--data", "data", "--split", "train", "--topk", "50", "--threads", "1", "--out")
OUTPUTS = {
    "model array": (("train", "--data", "data", "--epochs", "1", "--threads", "1", "--out", "out"), "out"),
    "predictions npz": ((*PREDICT, "out.npz"), "out.npz"),
    "predictions parquet": ((*PREDICT, "out.parquet"), "out.parquet"),
    "predictions text": ((*PREDICT, "out.txt"), "out.txt"),
    "shards parquet": (("data", "convert", "data/train.txt", "out"), "out"),
    "shards hdf5": (("data", "convert", "data/train.txt", "out", "--format", "hdf5"), "out"),
    "shards shuffled": (("data", "convert", "data/train.txt", "out", "--shuffle"), "out"),
    "clean copy": (("data", "validate", "data/train.txt", "--fix", "out.txt"), "out.txt"),
    "report": (("report", "m", "--data", "data", "--out", "out.html"), "out.html"),
}


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("words", "place"),
    [pytest.param(*case, id=name) for name, case in OUTPUTS.items()],
)
def test_disk_full_while_writing(folder, start, words, place):
    """Nothing is there then, or what was there before."""
    if words[0] == "report":
        pytest.importorskip("matplotlib")
    assert start(*words).end() == 0
    before = files(folder / place)
    for expected in (before, {}):
        command = start(*words, file_bytes=9000)
        assert command.end() == 2, command.text
        # The reason is the writer's: Python, Arrow and numpy ("23488 requested and 2218 written") have their own words.
        assert one_line(command).startswith(f"xmlpreck: {place}: cannot be written: ")
        assert files(folder / place) == expected
        assert leftovers(folder) == []
        subprocess.run(["rm", "-r", folder / place, *folder.glob("*.partial")], check=False)


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(("words", "place"), OUTPUTS.values(), ids=OUTPUTS)
@pytest.mark.skipif(os.getuid() != 0, reason="must be root to become somebody who may not write")
def test_folder_that_may_not_be_written(folder, start, words, place):
    if words[0] == "report":
        pytest.skip("matplotlib imports as it draws, and nobody may not read root's Python")
    if not all(place.stat().st_mode & 0o001 for place in Path(xmlpreck.__file__).parents):
        pytest.skip("the package is installed where nobody may not read it")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    command = start(*words, uid=NOBODY)
    assert command.end() == 2, command.text
    assert re.fullmatch(rf"xmlpreck: {place}(\.partial)?: cannot be written: .*Permission denied", one_line(command))
    assert not (folder / place).exists()


COMMANDS = {
    "train": TRAIN,
    "update": ("update", "--model", "m", "--data", "data", "--out", "m"),
    "prune": ("prune", "--model", "m", "--threshold", "0.1", "--out", "m"),
    "calibrate": ("calibrate", "--model", "m", "--data", "data"),
}


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize("name", COMMANDS)
def test_files_of_others_in_a_model_are_left_alone(folder, start, name):
    """The command ends before its work begins, and names the first of them."""
    (folder / "m" / "src").mkdir()
    (folder / "m" / "src" / "thesis.tex").write_text("years")
    before = files(folder / "m")
    command = start(*COMMANDS[name])
    assert command.end() == 2
    assert one_line(command).startswith("xmlpreck: m: holds 'src', which is not part of a model: nothing was replaced")
    assert command.text.count("\n") == 1
    assert files(folder / "m") == before
    assert leftovers(folder) == []
    assert not (folder / "m.partial").exists()


def test_a_killed_save_leaves_nothing_for_long(folder, start):
    """Killed as it writes the model, and again: the one that ends has removed what the others left."""
    is_saving = (".m.xmlpreck-*/new/*.npy", "m/model.json")  # the second where the moment was missed
    for _ in range(2):
        command = start(*TRAIN, "--resume").until(lambda: any(list(folder.glob(name)) for name in is_saving))
        assert command.end(signal.SIGKILL) in (-signal.SIGKILL, 0)
    assert start(*TRAIN, "--resume").end() == 0
    assert leftovers(folder) == []


def test_a_checkpoint_that_a_kill_left_half_removed_goes_too(folder, start):
    """Killed between the last file of an old checkpoint and its folder."""
    (folder / "m.partial" / "checkpoint-000001").mkdir(parents=True)
    assert start(*TRAIN).end() == 0
    assert not (folder / "m.partial").exists()


# --- shards ----------------------------------------------------------------------------------------------------


@pytest.fixture
def shards(folder, start):
    """The training rows as seven shards, of which one is hit while a run reads them again and again."""
    assert start("data", "convert", "data", "shards", "--rows-per-shard", "200").end() == 0
    return folder / "shards" / "train"


STREAM = tuple("shards" if word == "data" else word for word in TRAIN)


def cut_short(path):
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path):
    """Other bytes in the middle of a file of the same size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : 2 * len(content) // 3] = bytes(len(content) // 3)
    path.write_bytes(content)


@pytest.mark.parametrize("hit", [Path.unlink, cut_short, overwrite])
def test_shard_that_is_lost_while_training(folder, start, shards, expected, hit):
    """An error names it; with the file as it was the run goes on."""
    victim = shards / "shard-00003.parquet"
    whole = victim.read_bytes()
    command = start(*STREAM).until(has_checkpoints(folder, 3))
    hit(victim)
    assert command.end() == 2, command.text
    assert one_line(command).startswith("xmlpreck: shards/train/shard-00003.parquet: ")
    assert Checkpoints(folder / "m").last() is not None
    refused = start(*STREAM, "--resume")
    assert refused.end() == 2
    assert one_line(refused).startswith("xmlpreck: shards/train/shard-00003.parquet: ")
    victim.write_bytes(whole)
    assert start(*STREAM, "--resume").end() == 0
    assert arrays(folder / "m") == expected


def test_shard_that_is_replaced_while_training(folder, start, shards):
    """One that can be read, but is not what it was when the run began."""
    command = start(*STREAM).until(has_checkpoints(folder, 3))
    (shards / "shard-00003.parquet").write_bytes((shards / "shard-00002.parquet").read_bytes())
    assert command.end() == 2, command.text
    assert one_line(command).startswith("xmlpreck: shards/train/shard-00003.parquet: ")
    assert not (folder / "m").exists()


def test_shard_that_was_replaced_is_refused_on_resuming(folder, start, shards):
    command = start(*STREAM).until(has_checkpoints(folder, 3))
    assert command.end(signal.SIGKILL) == -signal.SIGKILL
    (shards / "shard-00003.parquet").write_bytes((shards / "shard-00002.parquet").read_bytes())
    refused = start(*STREAM, "--resume")
    assert refused.end() == 2
    assert one_line(refused).startswith("xmlpreck: shards/train/shard-00003.parquet: ")
    assert Checkpoints(folder / "m").last() is not None


# --- memory, numbers, clocks -----------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to know what a process has")
def test_out_of_memory(folder, start):
    """A batch that needs some hundred MB of buffers: the run is resumed with less, and then with enough."""
    words = (*TRAIN, "--set", "train.batch_rows=4000000")
    command = start(*words).until(has_checkpoints(folder, 3))
    assert command.end(signal.SIGTERM) == 143
    before = files(folder / "m.partial")
    poor = start(*words, "--resume", memory_bytes=64 * MB)
    assert poor.end() == 2
    assert "out of memory" in one_line(poor)
    after = files(folder / "m.partial")
    assert all(after[path] == content for path, content in before.items() if path.name != "lock")
    assert start(*words, "--resume").end() == 0


CONSTANT = ("--set", "train.decay=constant")
LARGE_STEPS = (*TRAIN, *CONSTANT, "--set", "train.average_from=0", "--set", "rows.bias=0", "--eta")


def test_weights_that_overflow_in_a_later_pass(folder, start):
    """It stops with advice; the last checkpoint is of finite weights."""
    command = start(*LARGE_STEPS, "7e37")
    assert command.end() == 2
    assert re.search(r"no longer finite in pass 2: eta 7e\+37 is too large.*; try a tenth of it", one_line(command))
    assert not (folder / "m").exists()
    about, arrays, _ = Checkpoints(folder / "m").last()
    assert (about["trainer"]["number"], about["trainer"]["n_passes"]) in ((1, 1), (2, 1))
    assert all(np.isfinite(array).all() for array in arrays.values())


def test_averages_that_overflow(folder, start):
    command = start(*TRAIN, *CONSTANT, "--eta", "1e36")
    assert command.end() == 2, command.text
    assert "no longer finite in pass" in one_line(command)
    assert not (folder / "m").exists()


def test_clock_that_jumps(tmp_path, monkeypatch, rows):
    """Days forth and back at every look: checkpoints come when they would."""
    config = RunConfig(train=TrainConfig(block_rows=256, epochs=3, threads=1))
    days = iter(range(10**6))
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 86400 * (-1) ** next(days) * 30)
    saved = []
    monkeypatch.setattr(Checkpoints, "save", lambda *_: saved.append(1))
    monkeypatch.setattr("xmlpreck.train.keeper.SPARED_SECONDS", -1.0)
    jumping = fit(rows, config, safety=Safety(Checkpoints(tmp_path / "m")))
    monkeypatch.undo()
    assert len(saved) == 3
    assert all(0 <= facts["seconds"] < 3600 for facts in jumping.info["history"])
    assert [array.tobytes() for array in jumping.weights] == [array.tobytes() for array in fit(rows, config).weights]


if __name__ == "__main__":
    serve()
