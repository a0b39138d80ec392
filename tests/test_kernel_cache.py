"""Numba's cache where nothing can be written: a real user without rights, a package that is not theirs."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import ROOT

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
folder = numba.config.CACHE_DIR
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


def run(package, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "HOME", "XDG_"))}
    words = [sys.executable, "-c", PROGRAM, str(package)]
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
    assert ended.stderr.startswith("xmlpreck: there is no folder to keep compiled kernels in")
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
