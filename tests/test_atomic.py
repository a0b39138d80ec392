"""Writing beside a target: killed writers leave nothing for long, strangers' files stay, names reach the disk."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

from xmlpreck.config import InputError
from xmlpreck.files import atomic
from xmlpreck.files.atomic import Kind, atomic_folder, atomic_path, refuse_strangers, scratch_folder

BOX = Kind("a box", "box.json", lambda folder: ("box.json", "a.txt"), InputError)


def fill(folder, text):
    (folder / "box.json").write_text("{}")
    (folder / "a.txt").write_text(text)


def save(place, text):
    with atomic_folder(place, BOX) as ready:
        fill(ready, text)


def run_python(code, *words):
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )


WRITE_FILE = """
import os, signal, sys
from xmlpreck.files.atomic import *
with atomic_path(sys.argv[1]) as temporary:
    temporary.write_text("half")
    print("writing", flush=True)
    sys.stdin.read()
"""
WRITE_FOLDER = """
import sys
from pathlib import Path
from xmlpreck.files.atomic import *
with atomic_folder(Path(sys.argv[1])) as folder:
    (folder / "a.txt").write_text("half")
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("code", [WRITE_FILE, WRITE_FOLDER], ids=["file", "folder"])
def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path, code):
    with run_python(code, tmp_path / "x") as dead, run_python(code, tmp_path / "x") as alive:
        for process in (dead, alive):
            assert process.stdout.readline() == b"writing\n"
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        assert len(list(tmp_path.iterdir())) == 2
        with run_python(code, tmp_path / "y") as other:  # of another name: not its business
            other.communicate()
        assert len([path for path in tmp_path.iterdir() if path.name != "y"]) == 2
        with run_python(code, tmp_path / "x") as last:
            last.communicate()
            assert last.returncode == 0
        left = [path for path in tmp_path.iterdir() if path.name.startswith(".")]
        assert len(left) == 1  # of the one that lives
        assert any(path.read_text() == "half" for path in left[0].rglob("*") if path.is_file())
        alive.kill()
    with scratch_folder(tmp_path / "x"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_what_only_looks_like_a_scratch_folder_stays(tmp_path):
    names = [".x.xmlpreck-0123abcd", ".x.xmlpreck-0123abce", ".x.tmp", ".x.xmlpreck-0123ABCD"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text("years")
    (tmp_path / names[1] / "lock").mkdir()
    (tmp_path / ".x.xmlpreck-00000000").symlink_to(tmp_path / names[0])
    (tmp_path / ".x.xmlpreck-11111111").write_text("a file")
    with atomic_path(tmp_path / "x") as temporary:
        temporary.write_text("done")
    assert all((tmp_path / name / "thesis.tex").read_text() == "years" for name in names)
    assert (tmp_path / ".x.xmlpreck-00000000").is_symlink()
    assert (tmp_path / ".x.xmlpreck-11111111").read_text() == "a file"


def test_a_replaced_folder_of_a_killed_writer_loses_only_our_files(tmp_path):
    """Killed right after the exchange: what was replaced is in the scratch folder, with what others put there."""
    save(tmp_path / "box", "one")
    kill = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_atomic import BOX, atomic, fill
whole = atomic._exchange
def exchange(new, old):
    (old / "thesis.tex").write_text("years")
    (old / "src").mkdir()
    assert whole(new, old)
    os.kill(os.getpid(), signal.SIGKILL)
atomic._exchange = exchange
with atomic.atomic_folder(Path(sys.argv[1]), BOX) as ready:
    fill(ready, "two")
"""
    with run_python(kill, tmp_path / "box", ROOT / "tests") as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / "box" / "a.txt").read_text() == "two"
    assert not (tmp_path / "box" / "thesis.tex").exists()
    with scratch_folder(tmp_path / "box", BOX):
        pass
    assert (tmp_path / "box" / "thesis.tex").read_text() == "years"
    assert (tmp_path / "box" / "src").is_dir()
    assert os.listdir(tmp_path) == ["box"]


@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_file_that_comes_while_a_folder_is_replaced_moves_along(tmp_path, monkeypatch, has_exchange):
    save(tmp_path / "box", "one")
    whole = atomic._exchange

    def exchange(new, old):
        (old / "thesis.tex").write_text("years")  # after the last look
        return has_exchange and whole(new, old)

    monkeypatch.setattr(atomic, "_exchange", exchange)
    save(tmp_path / "box", "two")
    found = {path.name: path.read_text() for path in (tmp_path / "box").iterdir()}
    assert found == {"box.json": "{}", "a.txt": "two", "thesis.tex": "years"}
    assert os.listdir(tmp_path) == ["box"]


def test_killed_between_two_renames_the_old_one_comes_back(tmp_path):
    save(tmp_path / "box", "one")
    kill = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_atomic import BOX, atomic, fill
atomic._exchange = lambda new, old: False
rename, done = os.rename, []
def last_rename(*names):
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append(rename(*names))
os.rename = last_rename
with atomic.atomic_folder(Path(sys.argv[1]), BOX) as ready:
    fill(ready, "two")
"""
    with run_python(kill, tmp_path / "box", ROOT / "tests") as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "box").exists()
    with scratch_folder(tmp_path / "box", BOX):
        pass
    assert (tmp_path / "box" / "a.txt").read_text() == "one"
    assert os.listdir(tmp_path) == ["box"]


def put_file(box):
    (box / "thesis.tex").write_text("years")


def put_folder(box):
    (box / "thesis.tex").mkdir()


def put_hidden(box):
    (box / "a.txt").unlink()
    (box / "a.txt").mkdir()  # a name of ours, but not a file


@pytest.mark.parametrize("put", [put_file, put_folder, put_hidden])
def test_a_folder_with_other_things_is_refused_by_name(tmp_path, put):
    save(tmp_path / "box", "one")
    put(tmp_path / "box")
    before = sorted((tmp_path / "box").iterdir())
    name = "a.txt" if put is put_hidden else "thesis.tex"
    with pytest.raises(InputError, match=f"box: holds '{name}', which is not part of a box: nothing was replaced"):
        refuse_strangers(tmp_path / "box", BOX)
    with pytest.raises(InputError, match=f"holds '{name}'"):
        save(tmp_path / "box", "two")
    assert sorted((tmp_path / "box").iterdir()) == before
    assert os.listdir(tmp_path) == ["box"]


def test_a_mount_point_is_refused_before_the_work():
    """As is the volume of a container: no rename could replace it."""
    with pytest.raises(InputError, match="/proc: is a mount point, which cannot be replaced: choose a folder in it"):
        refuse_strangers(Path("/proc"), BOX)


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    save(tmp_path / "box", "one")
    (tmp_path / "latest").symlink_to("box")
    save(tmp_path / "latest", "two")
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "box" / "a.txt").read_text() == "two"
    assert sorted(os.listdir(tmp_path)) == ["box", "latest"]


def test_a_pipe_is_not_replaced(tmp_path):
    """Nor is /dev/null, if root asks for it."""
    os.mkfifo(tmp_path / "p")
    with pytest.raises(InputError, match="p: cannot be written: it is not a file"), atomic_path(tmp_path / "p"):
        pass
    assert (tmp_path / "p").is_fifo()


def test_names_reach_the_disk(tmp_path, monkeypatch):
    """The folder that holds the name is synced after the rename, and so is the one that holds a new folder."""
    synced = []
    sync = os.fsync

    def spy(handle):
        synced.append((os.fstat(handle).st_ino, (tmp_path / "x").exists(), (tmp_path / "a" / "box").exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", spy)
    with atomic_path(tmp_path / "x") as temporary:
        temporary.write_text("done")
    here = tmp_path.stat().st_ino
    assert (here, True, False) in synced
    synced.clear()
    save(tmp_path / "a" / "box", "one")
    assert (here, True, False) in synced
    assert ((tmp_path / "a").stat().st_ino, True, True) in synced
