"""The cache of compiled kernels: any edit is a miss; and it works where nothing can be written."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from helpers import ROOT

from xmlpreck.kernels import caching

# Root's Python may be out of reach of others: what a compilation imports is imported before.
PROGRAM = """
import os, stat, sys
import numba, numpy as np
numba.njit(lambda values: values[0] + 1)(np.zeros(1))
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
sys.path.insert(0, sys.argv[1])
from xmlpreck.kernels import patterns
print(patterns.rows_rise(np.array([0, 2]), np.array([3, 5], np.int32), 9))
folder = patterns.rows_rise._cache.cache_path
print(folder, oct(stat.S_IMODE(os.stat(folder).st_mode)), len(os.listdir(folder)))
if os.fork() == 0:
    sys.exit()  # a child's end takes nothing away
os.wait()
print(os.path.exists(folder))
"""


@pytest.fixture
def package():
    """A copy of the package that anybody may read and nobody may write; pytest's own folders are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="xmlpreck-package-"))
    shutil.copytree(ROOT / "xmlpreck" / "kernels", folder / "xmlpreck" / "kernels", ignore=lambda *_: ["__pycache__"])
    (folder / "xmlpreck" / "__init__.py").touch()
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


def run(package, program=PROGRAM, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "HOME", "XDG_"))}
    words = [sys.executable, "-c", program, str(package)]
    return subprocess.run(words, cwd="/", env=clean | environment, capture_output=True, text=True)


@pytest.mark.parametrize("environment", [{}, {"HOME": "/nonexistent"}, {"NUMBA_CACHE_DIR": "/proc/none"}])
def test_no_folder_for_compiled_kernels(package, environment):
    if os.getuid() and not environment:
        pytest.skip("this user has a home")
    ended = run(package, **{"HOME": "/nonexistent"} | environment if environment else {})
    assert ended.returncode == 0, ended.stderr
    answer, folder, is_left = ended.stdout.splitlines()
    path, mode, n_files = folder.split()
    assert (answer, mode, is_left) == ("True", "0o700", "True")
    assert int(n_files) > 0
    assert not Path(path).exists()
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("xmlpreck: no folder can be written for compiled kernels")
    assert path in ended.stderr


def test_a_folder_that_can_be_written_is_taken(package):
    cache = Path(tempfile.mkdtemp(prefix="xmlpreck-cache-"))
    cache.chmod(0o777)
    try:
        ended = run(package, HOME="/nonexistent", NUMBA_CACHE_DIR=str(cache))
        assert ended.returncode == 0, ended.stderr
        assert ended.stderr == ""
        assert list(cache.rglob("patterns.rows_rise-*"))
    finally:
        shutil.rmtree(cache)


# mark_hits calls a kernel of another file; mark_hardest takes a named tuple of another file.
CALLS = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from xmlpreck.kernels import arrays, patterns, ranking
out = np.zeros((1, 2), bool)
ranking.mark_hits(np.array([[4, 5]], np.int32), np.array([0, 1]), np.array([5], np.int32), out)
rows = arrays.Rows(
    offsets=np.array([0, 3]), features=np.array([0, 1, 2], np.int32), values=np.ones(3, np.float32),
    label_offsets=np.array([0, 1]), labels=np.zeros(1, np.int32), relevance=np.zeros(0, np.float32),
)
masks = np.full(3, -1, np.int32), np.zeros((0, 1), np.uint8), np.zeros(0, np.int64)
found = patterns.mark_hardest(rows, np.zeros(1, np.int32), *masks)
hits = [sum(one.stats.cache_hits.values()) for one in (ranking.mark_hits, patterns.mark_hardest)]
print(out.tolist(), found, hits)
"""


TOGETHER = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from xmlpreck.kernels import patterns, ranking
from xmlpreck.kernels.caching import on_compilation
said = []
with on_compilation(lambda: said.append(1)):
    print("ready", flush=True)
    sys.stdin.readline()
    patterns.rows_rise(np.array([0, 2]), np.array([3, 5], np.int32), 9)
    ranking.mark_hits(np.array([[4, 5]], np.int32), np.array([0, 1]), np.array([5], np.int32), np.zeros((1, 2), bool))
print(*(sum(one.stats.cache_misses.values()) for one in (patterns.rows_rise, ranking.mark_hits)), len(said))
"""


def test_processes_that_start_together_compile_once(package, tmp_path):
    """One compiles a kernel, and the others wait for it."""
    words = [sys.executable, "-c", TOGETHER, str(package)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(words, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}, **pipes) for _ in range(4)]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [process.communicate()[0] for process in started]
    assert all(process.returncode == 0 for process in started)
    counts = [list(map(int, printed.split())) for printed in ended]
    assert [sum(column) for column in zip(*counts, strict=True)][:2] == [1, 1]
    assert all(n_said == 1 for *misses, n_said in counts if any(misses))
    assert not list(tmp_path.rglob("*.lock"))


def test_a_lock_that_nobody_gives_back_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    """To wait for another process is said, as compiling is."""
    monkeypatch.setattr(caching, "MAX_WAIT", 0.05)
    said = []
    with caching.on_compilation(lambda: said.append(True)):
        held = caching._open_lock(tmp_path / "a.lock")
        assert held is not None
        assert said == []
        assert caching._open_lock(tmp_path / "a.lock") is None
        assert said == [True]
    os.close(held)
    again = caching._open_lock(tmp_path / "a.lock")
    assert again is not None
    os.close(again)
    assert caching._open_lock(tmp_path / "none" / "a.lock") is None


@pytest.fixture
def editable(tmp_path):
    """A copy of the kernels that may be edited; compiled code is kept beside it."""
    shutil.copytree(ROOT / "xmlpreck" / "kernels", tmp_path / "xmlpreck" / "kernels", ignore=lambda *_: ["__pycache__"])
    (tmp_path / "xmlpreck" / "__init__.py").touch()
    return tmp_path


def answer(package):
    ended = run(package, CALLS)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def edit(package, name, old, new):
    path = package / "xmlpreck" / "kernels" / name
    text = path.read_text()
    assert text.count(old) == 1
    before = path.stat()
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_edits_in_other_files_are_misses(editable):
    """Of a function that a kernel calls, and of the order of a tuple's fields, which have the same types."""
    assert answer(editable) == "[[False, True]] 3 [0, 0]"
    assert answer(editable) == "[[False, True]] 3 [1, 1]"
    assert list((editable / "xmlpreck" / "kernels" / "__pycache__").glob("ranking.mark_hits-*.nbi"))
    edit(editable, "search.py", "labels[index] == label else -1", "labels[index] != label else -1")
    assert answer(editable) == "[[True, False]] 3 [0, 0]"
    fields = "    {}: np.ndarray  # (n_rows + 1) int64\n"
    between = "    features: np.ndarray  # int32\n    values: np.ndarray  # float32\n"
    names = ("offsets", "label_offsets")
    old, new = (between.join(fields.format(name) for name in order) for order in (names, names[::-1]))
    edit(editable, "arrays.py", old, new)
    assert answer(editable) == "[[True, False]] 3 [0, 0]"
    assert answer(editable) == "[[True, False]] 3 [1, 1]"


def test_the_stamp_knows_all_files_and_versions(tmp_path, monkeypatch):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(name)
    stamps = [caching.hash_sources(tmp_path)]
    (tmp_path / "b.py").write_text("b")
    stamps.append(caching.hash_sources(tmp_path))
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    stamps.append(caching.hash_sources(tmp_path))
    for module in (caching.numba, caching.llvmlite, caching.np):
        monkeypatch.setattr(module, "__version__", "0.0.1")
        stamps.append(caching.hash_sources(tmp_path))
    monkeypatch.setattr(sys, "version", "2.7")
    stamps.append(caching.hash_sources(tmp_path))
    assert len(set(stamps)) == 7


SHIPPED = """
import os, sys
import numba, numpy as np
numba.njit(lambda values: values[0] + 1)(np.zeros(1))
if os.getuid() == 0 and len(sys.argv) > 2:
    os.setgid(65534)
    os.setuid(65534)
sys.path.insert(0, sys.argv[1])
from xmlpreck.kernels import patterns
print(patterns.rows_rise(np.array([0, 2]), np.array([3, 5], np.int32), 9))
print(sum(patterns.rows_rise.stats.cache_hits.values()), sum(patterns.rows_rise.stats.cache_misses.values()))
print(patterns.rows_rise(np.array([0, 2]), np.array([3, 5], np.int64), 9))  # of types that were not compiled before
"""


def test_a_shipped_cache_that_nobody_may_write(package):
    """As in a container: compiled by root, read by another user, for a family of processors."""
    folder = Path(tempfile.mkdtemp(prefix="xmlpreck-shipped-"))
    try:
        family = {"NUMBA_CPU_NAME": "generic", "NUMBA_CACHE_DIR": str(folder)}
        made = run(package, SHIPPED.replace("int64", "int32"), **family)
        assert made.stdout.split()[:3] == ["True", "0", "1"], made.stderr
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for path in (*folder.rglob("*"), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "HOME", "XDG_"))}
        words = [sys.executable, "-c", SHIPPED, str(package), "as nobody"]
        read = subprocess.run(words, cwd="/", env=clean | family, capture_output=True, text=True)
        assert read.returncode == 0, read.stderr
        assert read.stdout.split() == ["True", "1", "0", "True"]
        assert read.stderr == ""
        assert sorted(path for path in folder.rglob("*") if path.is_file()) == files
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        shutil.rmtree(folder)
