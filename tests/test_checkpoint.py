"""A run that stops anywhere goes on to the same bits; damaged and foreign checkpoints; what a plan allows and cuts."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from helpers import as_dataset, draw_rows, interrupt, model_bits, stop_after, timeless

import xmlpreck
from xmlpreck.cli import main
from xmlpreck.config import ALGORITHMS, BOTH, ConfigError, InputError, RowsConfig, RunConfig, TrainConfig
from xmlpreck.train import (
    CheckpointError,
    Checkpoints,
    Interrupted,
    OverBudget,
    Plan,
    PreparedRows,
    Safety,
    fit,
    parse_bytes,
    plan,
    room,
    trainer,
)
from xmlpreck.train.support import Cut, find_strongest

PLAN_MODULE = sys.modules[Plan.__module__]  # `train.plan` is the function
MB = 1 << 20


@pytest.fixture(autouse=True)
def _small_calls(monkeypatch):
    """Many calls of the kernels, at each of which a run can stop, in few rows; a checkpoint after the shortest pass."""
    monkeypatch.setattr("xmlpreck.train.keeper.SPARED_SECONDS", -1.0)
    monkeypatch.setattr(trainer, "ROWS_A_CALL", 16)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # two thirds of the time, and no power fails here


def settings(bias=0.0, **train):
    few = {"epochs": 3, "k": 3, "batch_rows": 8, "block_rows": 40, "threads": 1}
    return RunConfig(RowsConfig(bias=bias), TrainConfig(**few | train))


def dataset(seed=3, **sizes):
    return as_dataset(*draw_rows(seed, **sizes))


# --- the same bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize(
    "train",
    [
        {"radius": 1.5, "decay": "sqrt", "average_from": 1},
        {"tau": 0.4, "average_from": 2},
        {"heldout": 0.2, "prune": 0.05, "average_from": 3},
        {"radius": 0.6, "batch_rows": 1, "average_from": 0},
        {"widen": True, "average_from": 1, "idf": 1.0},
        {"remember": 6, "average_from": 1, "epochs": 4},
    ],
    ids=lambda train: "-".join(train),
)
def test_stopped_at_every_pause(tmp_path, monkeypatch, algo, train):
    """A run of two blocks that gets no further than one call of the kernels at a time, with 1, 2 and 3 threads."""
    if algo == "hinge":
        train = train | {"tau": 0.0}
    if algo == BOTH:
        train = train | {"average_from": max(train["average_from"], 1)}
    data, config = dataset(), settings(algo=algo, **train)
    told = []
    whole = fit(data, config, told.append)
    checkpoints, told_in_parts, n_stops = Checkpoints(tmp_path / "m"), [], 0
    while True:
        now = settings(algo=algo, **train, threads=1 + n_stops % 3)
        try:
            safety = Safety(checkpoints, resume=True, stop=stop_after(1))
            parts = fit(data, now, told_in_parts.append, safety=safety)
            break
        except Interrupted:
            n_stops += 1
    assert n_stops == config.train.n_passes * (4 if "heldout" in train else 5)  # 40 + 16 rows, or 40 + 30, by 16
    assert model_bits(parts) == model_bits(whole)
    assert timeless(parts.info["history"]) == timeless(whole.info["history"])
    assert timeless(f.to_dict() for f in told_in_parts) == timeless(f.to_dict() for f in told)
    assert parts.info["data"] == whole.info["data"]


@pytest.mark.parametrize("share", [0, 10**6], ids=["all sparse", "all dense"])
def test_checkpoint_of_one_layout_only(tmp_path, monkeypatch, share):
    """Arrays without an entry are saved and read too."""
    monkeypatch.setattr("xmlpreck.model.layout.DENSE_SHARE", share)
    data, config, checkpoints = dataset(), settings(), Checkpoints(tmp_path / "m")
    interrupt(data, config, checkpoints, 7)
    assert min(array.size for array in checkpoints.last()[1].values()) == 0
    assert model_bits(fit(data, config, safety=Safety(checkpoints, resume=True))) == model_bits(fit(data, config))


def test_minutes_between_checkpoints_change_no_bit(tmp_path):
    """A checkpoint at every pause of a run that goes on is only a look."""
    data, checkpoints = dataset(), Checkpoints(tmp_path / "m")
    saved = fit(data, settings(), safety=Safety(checkpoints, minutes=1e-9))
    assert checkpoints.numbers() == [18, 17]  # 5 pauses and the end of each of 3 passes
    assert model_bits(saved) == model_bits(fit(data, settings()))


def test_one_checkpoint_a_pass_and_the_last_two_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path / "m")
    fit(dataset(), settings(epochs=4), safety=Safety(checkpoints))
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["checkpoint-000003", "checkpoint-000004"]
    assert checkpoints.last()[0]["trainer"]["n_passes"] == 4


def test_a_finished_run_is_not_trained_again(tmp_path):
    """As after a model that could not be saved: all passes are in the checkpoint."""
    data, checkpoints = dataset(), Checkpoints(tmp_path / "m")
    first = fit(data, settings(), safety=Safety(checkpoints))
    told = []
    again = fit(data, settings(), told.append, safety=Safety(checkpoints, resume=True, stop=lambda: True))
    assert told == []
    assert model_bits(again) == model_bits(first)
    assert again.info == first.info


@pytest.mark.parametrize("train", [{}, {"tau": 0.4, "algo": "sgd-max"}, {"radius": 0.6, "decay": "sqrt"}])
def test_measuring_the_speed_leaves_no_trace(train):
    plans = []
    data, config = dataset(), settings(**train)
    measured = fit(data, config, on_plan=plans.append)
    assert plans[0].pass_seconds > 0
    assert model_bits(measured) == model_bits(fit(data, config))


# --- damage ----------------------------------------------------------------------------------------------------


def flip_a_byte(folder):
    path = folder / "sums.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 16
    path.write_bytes(content)


def truncate(folder):
    os.truncate(folder / "dense_rows.npy", 200)


def edit_cursor(folder):
    """As one flipped bit does: the JSON is whole, one number is another."""
    path = folder / "checkpoint.json"
    text = path.read_text()
    assert '"n_rows": 32' in text
    path.write_text(text.replace('"n_rows": 32', '"n_rows": 16'))


def edit_name(folder):
    path = folder / "checkpoint.json"
    path.write_text(path.read_text().replace('"mistakes"', '"mistaker"'))


def rewrite_json(text):
    return lambda folder: (folder / "checkpoint.json").write_text(text)


DAMAGES = [
    pytest.param(flip_a_byte, id="flipped byte"),
    pytest.param(truncate, id="truncated array"),
    pytest.param(lambda folder: (folder / "clock.npy").unlink(), id="missing array"),
    pytest.param(lambda folder: (folder / "checkpoint.json").unlink(), id="missing json"),
    pytest.param(rewrite_json("{"), id="broken json"),
    pytest.param(rewrite_json("[1]"), id="other json"),
    pytest.param(rewrite_json('{"sha256": {"clock": 5}}'), id="json of other facts"),
    pytest.param(rewrite_json('{"sha256": {}}'), id="json without arrays"),
    pytest.param(edit_cursor, id="other number in json"),
    pytest.param(edit_name, id="other name in json"),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, damage):
    data, config, checkpoints = dataset(), settings(), Checkpoints(tmp_path / "m")
    interrupt(data, config, checkpoints)
    before = checkpoints.last()[0]
    interrupt(data, config, checkpoints)
    assert before["trainer"]["n_rows"] == 16
    damage(checkpoints.folder / "checkpoint-000002")
    assert checkpoints.last()[0] == before
    assert model_bits(fit(data, config, safety=Safety(checkpoints, resume=True))) == model_bits(fit(data, config))


@pytest.fixture
def stopped_run(tmp_path, monkeypatch):
    """Command that resumes a run of two checkpoints, and their folder."""
    monkeypatch.chdir(tmp_path)
    words = ["train", "--data", "demo", "--out", "m", "--threads", "1"]
    monkeypatch.setattr(trainer, "ROWS_A_CALL", 4096)
    monkeypatch.setattr("xmlpreck.data.catalog.load", lambda *_: dataset())
    monkeypatch.setattr("xmlpreck.data.catalog.has_split", lambda *_: False)
    fit(dataset(), RunConfig(train=TrainConfig(threads=1)), safety=Safety(Checkpoints(tmp_path / "m")))
    return [*words, "--resume"], tmp_path / "m.partial"


def test_command_line_resumes_by_itself(stopped_run, capsys):
    words, partial = stopped_run
    assert main(words) == 0
    assert "resumed in pass 3, after 3 whole passes" in capsys.readouterr().err
    assert not partial.exists()


def test_no_whole_checkpoint_is_told_and_nothing_is_thrown_away(stopped_run, capsys):
    words, partial = stopped_run
    for folder in partial.glob("checkpoint-*"):
        flip_a_byte(folder)
    files = {path: path.read_bytes() for path in partial.rglob("*.npy")}
    assert main(words) == 2
    assert "checkpoint-00000" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in partial.rglob("*.npy")} == files


def test_without_resume_a_checkpoint_is_not_overwritten(stopped_run, capsys):
    words, partial = stopped_run
    files = sorted(partial.glob("checkpoint-*/*"))
    assert main(words[:-1]) == 2
    assert "m.partial: has the checkpoint of a run that did not end: go on with --resume" in capsys.readouterr().err
    assert sorted(partial.glob("checkpoint-*/*")) == files


# --- another run -----------------------------------------------------------------------------------------------


def other_value(data):
    data.rows.data[5] *= 2
    return data


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"config": settings(eta=0.25)}, r"train\.eta was 1\.0, is 0\.25"),
        ({"config": settings(seed=9)}, r"train\.seed was 0, is 9"),
        ({"config": settings(bias=0.5)}, r"rows\.bias was 0\.0, is 0\.5"),
        ({"config": settings(algo="sgd-max", k=2)}, r"train\.algo was 'sgd-avg', is 'sgd-max'; train\.k was 3, is 2"),
        ({"data": other_value(dataset())}, r"data\.sha256 was '[0-9a-f]{64}', is '[0-9a-f]{64}'"),
        ({"data": dataset(n_rows=69)}, r"data\.n_rows was 70, is 69; "),
        ({"data": dataset(seed=4)}, r"data\.sha256 was"),
        ({"version": "9.9.9"}, rf"xmlpreck was '{xmlpreck.__version__}', is '9\.9\.9'"),
    ],
)
def test_checkpoint_of_another_run_is_refused_by_name(tmp_path, monkeypatch, change, named):
    checkpoints = Checkpoints(tmp_path / "m")
    interrupt(dataset(), settings(), checkpoints, 4)
    before = checkpoints.last()
    monkeypatch.setattr(xmlpreck, "__version__", change.get("version", xmlpreck.__version__))
    with pytest.raises(
        CheckpointError, match=f"^the checkpoint is of another run: {named}.*: resume with what it had$"
    ):
        fit(change.get("data") or dataset(), change.get("config", settings()), safety=Safety(checkpoints, resume=True))
    monkeypatch.undo()
    assert checkpoints.numbers() == [1]
    assert checkpoints.last()[0] == before[0]


def test_one_run_at_a_time_in_a_folder(tmp_path):
    """Another process has the lock, until it ends in whatever way."""
    checkpoints = Checkpoints(tmp_path / "m")
    interrupt(dataset(), settings(), checkpoints)
    hold = "import fcntl, os, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
    hold += "f.write(str(os.getpid())); f.flush(); print('locked', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(checkpoints.folder / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        with (
            pytest.raises(CheckpointError, match=f"m.partial: process {other.pid} is training here"),
            checkpoints.locked(),
        ):
            pass
        assert checkpoints.numbers() == [1]
        other.kill()
    with checkpoints.locked():
        assert (checkpoints.folder / "lock").read_text() == str(os.getpid())


def test_lock_leaves_nothing_behind(tmp_path):
    checkpoints = Checkpoints(tmp_path / "a" / "m")
    with checkpoints.locked():
        assert checkpoints.folder.is_dir()
    assert not checkpoints.folder.exists()
    with checkpoints.locked():
        interrupt(dataset(), settings(), checkpoints)
    assert checkpoints.numbers() == [1]


DIE = """
import os, signal, sys
from pathlib import Path
from xmlpreck.train import Checkpoints
Checkpoints(Path(sys.argv[1])).save({}, lambda folder: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_half_a_checkpoint_of_a_killed_run_is_removed(tmp_path):
    checkpoints = Checkpoints(tmp_path / "m")
    interrupt(dataset(), settings(), checkpoints)
    done = subprocess.run([sys.executable, "-c", DIE, str(tmp_path / "m")], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert len(os.listdir(checkpoints.folder)) == 2
    with checkpoints.locked():
        assert sorted(os.listdir(checkpoints.folder)) == ["checkpoint-000001", "lock"]


def test_files_of_others_beside_checkpoints_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path / "m")
    kept = [checkpoints.folder / "thesis.tex", checkpoints.folder / "checkpoint-000001" / "thesis.tex"]
    with checkpoints.locked():
        interrupt(dataset(), settings(), checkpoints)
        for path in kept:
            path.write_text("years")
        assert checkpoints.last() is not None  # it is whole all the same
        for _ in range(3):
            interrupt(dataset(), settings(), checkpoints)
        assert checkpoints.numbers() == [4, 3]
        checkpoints.clear()
    assert checkpoints.numbers() == []
    assert [path.read_text() for path in kept] == ["years", "years"]
    assert sorted(os.listdir(checkpoints.folder)) == ["checkpoint-000001", "thesis.tex"]
    interrupt(dataset(), settings(), checkpoints)
    assert checkpoints.numbers() == [2]


HOLD = """
import sys
from pathlib import Path
from xmlpreck.train import Checkpoints
with Checkpoints(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_two_that_start_as_a_third_ends(tmp_path, monkeypatch):
    """The third ends, and deletes its lock, after the first has opened that and before it locks it; then the second
    starts: both would have a lock, of two files of one name."""
    checkpoints = Checkpoints(tmp_path / "m")
    flock = fcntl.flock
    started = []

    def late(stream, how):
        if not started:
            shutil.rmtree(checkpoints.folder)
            command = [sys.executable, "-c", HOLD, str(tmp_path / "m")]
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert started[0].stdout.readline() == b"locked\n"
        flock(stream, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(CheckpointError, match=r"process \d+ is training here"), checkpoints.locked():
        pass
    with started[0] as other:
        other.communicate()
        assert other.returncode == 0
    with checkpoints.locked():
        pass
    assert not checkpoints.folder.exists()


FULL = """
import resource, signal, sys
from pathlib import Path
from xmlpreck.train import Checkpoints
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
with Checkpoints(Path(sys.argv[1])).locked():
    print("locked", flush=True)
"""


def test_a_disk_without_room_for_the_lock(tmp_path):
    """Not even for the number of the process: it is locked all the same."""
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "m")], capture_output=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"locked\n", b"")
    assert os.listdir(tmp_path) == []


# --- checkpoints of strangers: whole by their hashes, and wrong ---------------------------------------------------


def reseal(folder):
    names = [path.name for path in folder.iterdir() if path.name != "sha256.json"]
    hashes = {name: sha256((folder / name).read_bytes()).hexdigest() for name in names}
    (folder / "sha256.json").write_text(json.dumps(hashes))


def change(folder, *keys, value):
    path = folder / "checkpoint.json"
    about = node = json.loads(path.read_text())
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = value
    path.write_text(json.dumps(about))
    reseal(folder)


def change_array(folder, name, edit):
    np.save(folder / f"{name}.npy", edit(np.load(folder / f"{name}.npy")))
    reseal(folder)


def put(index, value):
    def edit(array):
        array.reshape(-1)[index] = value
        return array

    return edit


WRONG_FIELDS = [
    *((("trainer", "n_rows"), value) for value in (17, -1, 10**9, 10**400, 1.5, "16", None, True)),
    *((("trainer", "n_blocks"), value) for value in (1, 5, -1, 2**63)),
    *((("trainer", "number"), value) for value in (0, 3, -1, 2**40)),
    *((("trainer", "n_passes"), value) for value in (1, 7, -1, None)),
    *((("trainer", "seconds"), value) for value in (float("nan"), float("inf"), -1.0)),
    *((("trainer", name), 5) for name in ("rows_seen", "twist")),
    *((("trainer",), value) for value in ({}, [], None, 5)),
    *((("history",), value) for value in (None, {}, [5], [{}])),
    *((("tuning",), value) for value in (5, {}, [])),
    *((("identity",), value) for value in (None, [], {}, 5)),
    *((("identity", "cut"), value) for value in (5, [5], ["a", 1, 1], [-1, 1, 1], [10, 1, 1])),
    (("identity", "settings", "train", "eta"), "x" * 10**5),
]


@pytest.mark.parametrize(("keys", "value"), WRONG_FIELDS)
def test_a_wrong_field_of_a_checkpoint_is_refused(tmp_path, keys, value):
    data, config, checkpoints = dataset(), settings(), Checkpoints(tmp_path / "m")
    interrupt(data, config, checkpoints)
    change(checkpoints.folder / "checkpoint-000001", *keys, value=value)
    with pytest.raises(InputError) as error:
        fit(data, config, safety=Safety(checkpoints, resume=True))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600


WRONG_ARRAYS = {
    "clock of NaN": ("clock", put(0, np.nan)),
    "clock without a scale": ("clock", put(1, 0.0)),
    "clock of another size": ("clock", lambda array: array[:3]),
    "clock of texts": ("clock", lambda array: array.astype(str)),
    "weights of NaN": ("values", put(0, np.nan)),
    "weights of float64": ("values", lambda array: array.astype(np.float64)),
    "weights in a table": ("values", lambda array: array[None]),
    "no weights": ("values", lambda array: array[:0]),
    "norms without end": ("norms", put(0, np.inf)),
    "hardest of other labels": ("hardest", put(0, 2**30)),
    "hardest below -1": ("hardest", put(0, -(2**31))),
    "hardest of other rows": ("hardest", lambda array: array[:5]),
    "remembered of other labels": ("remembered", put(0, 2**30)),
    "remembered below -1": ("remembered", put(0, -7)),
    "remembered twice": ("remembered", lambda array: np.full_like(array, 4)),
    "remembered of other rows": ("remembered", lambda array: array[:5]),
    "fewer remembered": ("remembered", lambda array: array[:, :2]),
}


@pytest.mark.parametrize("what", WRONG_ARRAYS)
def test_a_wrong_array_of_a_checkpoint_is_refused(tmp_path, monkeypatch, what):
    """Some are indices into memory: the kernels would follow them anywhere."""
    data, checkpoints = dataset(), Checkpoints(tmp_path / "m")
    config = settings(widen=True, remember=6)
    monkeypatch.setattr("xmlpreck.model.layout.DENSE_SHARE", 0)
    interrupt(data, config, checkpoints, 7)
    change_array(checkpoints.last().folder, *WRONG_ARRAYS[what])
    with pytest.raises(InputError, match="the checkpoint's"):
        fit(data, config, safety=Safety(checkpoints, resume=True))


@pytest.mark.parametrize("name", ["clock.npy", "checkpoint.json", "sha256.json"])
def test_a_checkpoint_without_an_end_is_passed_over(tmp_path, name):
    data, config, checkpoints = dataset(), settings(), Checkpoints(tmp_path / "m")
    interrupt(data, config, checkpoints)
    interrupt(data, config, checkpoints)
    path = checkpoints.folder / "checkpoint-000002" / name
    path.unlink()
    os.mkfifo(path)
    assert checkpoints.last().folder.name == "checkpoint-000001"
    path.unlink()
    path.symlink_to("/dev/zero")
    assert checkpoints.last().folder.name == "checkpoint-000001"


def test_working_directory_as_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("xmlpreck.data.catalog.load", lambda *_: dataset())
    monkeypatch.setattr("xmlpreck.data.catalog.has_split", lambda *_: False)
    assert main(["train", "--data", "demo", "--out", "."]) in (0, 2)


def test_checkpoint_that_cannot_be_written_does_not_end_the_run(tmp_path):
    """A file has the name of the folder of checkpoints."""
    (tmp_path / "m.partial").write_text("")
    told = []
    scorer = fit(dataset(), settings(), safety=Safety(Checkpoints(tmp_path / "m"), tell=told.append))
    assert model_bits(scorer) == model_bits(fit(dataset(), settings()))
    assert len(told) == 3
    assert all("checkpoint-000001: cannot be written: " in line and "; training goes on" in line for line in told)


# --- memory ----------------------------------------------------------------------------------------------------


@pytest.fixture
def hundred_mb(monkeypatch):
    """A process that always has 100 MB, so that plans are the same everywhere."""
    for module in (PLAN_MODULE, room):
        monkeypatch.setattr(module, "resident_bytes", lambda: 100 * MB)


def peak_of(data, config):
    return plan(data, config).peak_bytes


@pytest.mark.usefixtures("hundred_mb")
def test_plan_that_does_not_fit_is_refused_with_advice():
    data, config = dataset(), settings()
    peak = peak_of(data, config)
    fit(data, config, safety=Safety(memory=peak))
    n_weights = plan(data, config).n_weights
    with pytest.raises(OverBudget) as caught:
        fit(data, config, safety=Safety(memory=peak - 1))
    assert str(caught.value) == (
        f"{n_weights:,} weights need 100 MB of memory at the peak, but 100 MB may be used: give more by --memory, "
        "let --fit-memory keep each label's strongest features, or drop rare features from the data"
    )
    with pytest.raises(
        OverBudget, match=r"^there are [\d,]+ weights after 40 rows of 70, and .* but 50 MB may be used"
    ):
        fit(data, config, safety=Safety(memory=50 * MB))


def prepared(X, Y, block_rows=1000):
    return PreparedRows(as_dataset(X, Y), RowsConfig(unit_norm=False, bias=0), block_rows)


def strongest(X, Y, most_weights, block_rows=1000):
    """The pattern that is kept, dense, and the cut."""
    rows = prepared(X, Y, block_rows)
    blocks = (block for _, block in rows.blocks(range(rows.n_blocks)))
    support, cut = find_strongest(blocks, rows.n_features, rows.n_labels, 1, most_weights)
    kept = np.zeros((rows.n_features, rows.n_labels), bool)
    kept[np.repeat(np.arange(rows.n_features), np.diff(support.offsets)), support.labels] = True
    return kept, cut


def test_cut_keeps_the_strongest_features_by_hand():
    """Label 0 has strengths 3, 1, 4, 1; label 1 has 0, 5, 2, 2 (0 = none): two features each is all that 5 allows."""
    X = np.array([[3.0, 0, -1, 0], [0, 1, 3, 1], [0, -5, 2, 2]])
    Y = np.array([[1, 0], [1, 0], [0, 1]], bool)
    kept, cut = strongest(X, Y, 5)
    np.testing.assert_array_equal(kept.T, [[1, 0, 1, 0], [0, 1, 1, 0]])  # of the equal 2, 2 the lower feature
    assert cut == Cut(most_weights=5, most_features=2, n_labels=2)
    assert strongest(X, Y, 6)[1] == Cut(6, 3, 1)  # 3 + 3
    kept, cut = strongest(X, Y, 7)
    assert cut is None
    np.testing.assert_array_equal(kept, (np.abs(X).T @ Y) > 0)


@pytest.mark.parametrize("most_weights", [1, 90, 200, 333, 500, 800])
@pytest.mark.parametrize("block_rows", [1000, 17])
def test_cut_by_the_formula(most_weights, block_rows):
    """At most c features a label, c the largest with sum_l min(n_l, c) <= the limit; ties to the lower feature.

    In blocks it is cut as it grows: the limit is the same, the choice may be another.
    """
    X, Y = draw_rows(seed=5)
    X = np.rint(2 * X)  # whole numbers: strengths are exact, and many are equal
    strengths = np.abs(X).T @ Y
    n_features_of = np.count_nonzero(strengths, axis=0)
    kept, cut = strongest(X, Y, most_weights, block_rows)
    assert (strengths[kept] > 0).all()
    if block_rows == 1000:
        limits = [c for c in range(1, 41) if np.minimum(n_features_of, c).sum() <= most_weights]
        limit = max(limits, default=1)
        ranks = np.argsort(np.argsort(-strengths, axis=0, kind="stable"), axis=0)
        np.testing.assert_array_equal(kept, (ranks < limit) & (strengths > 0))
        assert cut == Cut(most_weights, limit, np.count_nonzero(n_features_of > limit))
    assert kept.sum() <= max(most_weights, np.count_nonzero(n_features_of))
    assert kept.any(axis=0).sum() == np.count_nonzero(n_features_of), "a label has lost all"


@pytest.mark.usefixtures("hundred_mb")
@pytest.mark.parametrize("later", [{}, {"memory": 10**12}, {"memory": 10**12, "fit_memory": False}])
def test_cut_run_resumes_to_the_same_bits(tmp_path, later):
    """Whatever memory there is then: the support is the one that the run began with."""
    data, config, checkpoints = dataset(), settings(), Checkpoints(tmp_path / "m")
    full = plan(data, config)
    room = {"memory": full.peak_bytes - 8000, "fit_memory": True}
    plans = []
    whole = fit(data, config, safety=Safety(**room), on_plan=plans.append)
    assert plans[0].n_weights < full.n_weights
    assert plans[0].cut.n_labels > 0
    assert plans[0].peak_bytes <= room["memory"]
    interrupt(data, config, checkpoints, 7, **room)
    resumed = fit(data, config, safety=Safety(checkpoints, resume=True, **room | later), on_plan=plans.append)
    assert plans[1].cut == plans[0].cut
    assert model_bits(resumed) == model_bits(whole)
    assert model_bits(whole) != model_bits(fit(data, config))


@pytest.mark.usefixtures("hundred_mb")
def test_a_wider_support_is_planned_and_nothing_that_was_cut_is_widened(monkeypatch):
    widened = []
    widen = trainer.Trainer._widen
    monkeypatch.setattr(trainer.Trainer, "_widen", lambda self, rows: widened.append(widen(self, rows)))
    data, config = dataset(), settings(widen=True)
    plans = []
    narrow, wide = (fit(data, settings(widen=choice), on_plan=plans.append) for choice in (False, True))
    assert len(widened) == 1
    assert narrow.n_weights < wide.n_weights <= plans[1].n_weights
    n_values = data.rows.nnz
    assert plans[1].n_weights == plans[0].n_weights + n_values
    assert plans[1].peak_bytes > plans[0].peak_bytes
    room = Safety(memory=plans[1].peak_bytes - 8000, fit_memory=True)
    fit(data, config, safety=room, on_plan=plans.append)
    assert plans[2].cut is not None
    assert plans[2].peak_bytes <= room.memory
    assert len(widened) == 1


@pytest.mark.usefixtures("hundred_mb")
def test_weights_within_a_limit():
    """0.95 of the weights that fit, if all that is not fixed grows with them."""
    found = plan(dataset(), settings())
    fixed = sum(found.parts[name] for name in ("libraries and loaded rows", "rows being read", "buffers"))
    half = fixed + (found.peak_bytes - fixed) // 2
    assert found.weights_within(half) == pytest.approx(0.95 * found.n_weights / 2, abs=2)
    assert found.weights_within(0) == 1


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("4GB", 4 << 30), ("4gib", 4 << 30), ("512 MB", 512 * MB), (" 1.5g ", 3 << 29), ("2T", 2 << 40), ("10k", 10240),
        ("12345", 12345), ("7B", 7), ("0.5KB", 512),
    ],
)  # fmt: skip
def test_sizes(text, n_bytes):
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "0GB", "1e9", "4 X", "4GBB", "1,5G", "inf", "4GB 2"])
def test_no_sizes(text):
    with pytest.raises(ConfigError, match="memory must be a size such as 4GB or 512MB, but is"):
        parse_bytes(text)


def test_a_kill_while_a_checkpoint_is_removed_leaves_none_that_is_damaged(tmp_path, monkeypatch):
    """Killed after any file: the next start goes on from the other checkpoint, or begins, and clears the rest away."""
    checkpoints, unlink = Checkpoints(tmp_path / "m"), Path.unlink
    for n_files in range(1, 12):
        fit(dataset(), settings(), safety=Safety(checkpoints))
        assert checkpoints.numbers()
        left = [n_files]

        def killed(path, *args, left=left, **words):
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            unlink(path, *args, **words)

        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(Path, "unlink", killed)
            checkpoints.clear()
        checkpoints.last()
        checkpoints.clear()
        assert not list(checkpoints.folder.glob("checkpoint-*"))
