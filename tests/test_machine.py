"""Cores and memory that a process may use: made-up control groups of both versions, and a real one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

from xmlpreck import config
from xmlpreck.cli import main
from xmlpreck.machine import Cores, _control_groups, cores, free_bytes

QUOTA = "the CPU quota of the control group"
SECOND = "31 23 0:28 {top} /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw"
FIRST = "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"


@pytest.fixture
def many_cores(monkeypatch):
    """A machine of 64 cores, all of which the process may run on."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))


def make_root(folder, groups, mounts, files):
    """A root folder with what the kernel would say."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in groups))
    noise = "23 1 0:5 / / rw - ext4 /dev/sda rw\n24 23 0:6 / /tmp rw - tmpfs  rw\n"  # a source that is empty
    (folder / "proc/self/mountinfo").write_text(noise + "".join(f"{line}\n" for line in mounts))
    for name, text in files.items():
        path = folder / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return folder


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize(
    ("groups", "mounts", "files", "expected"),
    [
        # Version 2: the own group, one above it, the top; rounded up; "max" is none.
        (["0::/a/b"], [SECOND.format(top="/")], {"a/b/cpu.max": "200000 100000"}, Cores(2, QUOTA)),
        (["0::/a/b"], [SECOND.format(top="/")], {"a/b/cpu.max": "max 100000"}, Cores(64, "")),
        (
            ["0::/a/b"],
            [SECOND.format(top="/")],
            {"a/b/cpu.max": "max 1", "a/cpu.max": "15 10"},
            Cores(2, QUOTA),
        ),
        (["0::/a"], [SECOND.format(top="/")], {"a/cpu.max": "800000 100000", "cpu.max": "10 100"}, Cores(1, QUOTA)),
        (["0::/a"], [SECOND.format(top="/")], {"b/cpu.max": "10 100"}, Cores(64, "")),
        # A container: its group is the top of the mount, and its path is that of the host, or of nobody.
        (["0::/docker/1/x"], [SECOND.format(top="/docker/1")], {"x/cpu.max": "300000 100000"}, Cores(3, QUOTA)),
        (["0::/docker/1"], [SECOND.format(top="/docker/2")], {"cpu.max": "300000 100000"}, Cores(3, QUOTA)),
        # Version 1, alone and beside version 2.
        (
            ["4:cpu,cpuacct:/a", "2:memory:/b"],
            [FIRST.format(top="/")],
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "250000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
            Cores(3, QUOTA),
        ),
        (
            ["4:cpu,cpuacct:/a", "0::/"],
            [FIRST.format(top="/"), SECOND.format(top="/").replace("cgroup rw", "cgroup/unified rw")],
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "-1", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
            Cores(64, ""),
        ),
        # What nobody understands bounds nothing.
        (["0::/"], [SECOND.format(top="/")], {"cpu.max": "many"}, Cores(64, "")),
        (["0::/"], [SECOND.format(top="/")], {"cpu.max": "100 0"}, Cores(64, "")),
        ([], [], {}, Cores(64, "")),
    ],
)
def test_quotas_of_control_groups(tmp_path, groups, mounts, files, expected):
    assert cores(make_root(tmp_path, groups, mounts, files), {}) == expected


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"OMP_NUM_THREADS": "4"}, Cores(4, "OMP_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "4,2"}, Cores(4, "OMP_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "4", "NUMBA_NUM_THREADS": "3"}, Cores(3, "NUMBA_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "500"}, Cores(64, "")),
        *(({"OMP_NUM_THREADS": text}, Cores(64, "")) for text in ("", "0", "-2", "all", "1e3", "9" * 5000, "²")),
    ],
)
def test_variables_that_bound_threads(tmp_path, environment, expected):
    assert cores(tmp_path, environment) == expected


def test_affinity_bounds_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert cores(tmp_path, {}) == Cores(2, "the CPU affinity of the process")


def test_memory_of_control_groups(tmp_path):
    """The group above has the least left; copies of files count as free."""
    files = {
        "a/b/memory.max": "max",
        "a/b/memory.current": "1000",
        "a/memory.max": "50000",
        "a/memory.current": "40000",
        "a/memory.stat": "anon 10000\ninactive_file 30000",
    }
    root = make_root(tmp_path, ["0::/a/b"], [SECOND.format(top="/")], files)
    assert free_bytes(root) == 40000
    (tmp_path / "sys/fs/cgroup/a/memory.current").write_text("100000")
    assert free_bytes(root) == 0


def test_a_real_quota(tmp_path):
    """The process that asks is in a control group of version 1 with a quota of half a core."""
    own = next(iter(_control_groups("cpu", Path("/"))), None)
    group = own and own / f"xmlpreck-test-{os.getpid()}"
    try:
        if group is None:
            raise OSError("there are no control groups")
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (group / "cpu.cfs_quota_us").write_text("50000")
        except OSError as error:
            pytest.skip(f"it has no quota: {error}")
        join = f"import pathlib, os; pathlib.Path({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()));"
        ask = join + "from xmlpreck.machine import cores; print(*cores())"
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
        found = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert found.stdout == f"1 {QUOTA}\n", found.stderr
    finally:
        group.rmdir()


def test_fewer_threads_are_said_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    Path("rows.txt").write_text("2 2 2\n0 0:1\n1 1:1\n")
    if (os.cpu_count() or 1) == 1:
        pytest.skip("a machine of one core has no fewer")
    assert config.n_cores() == 1
    assert main(["train", "--data", "rows.txt", "--out", "m", "--no-tune", "--epochs", "1"]) == 0
    assert capsys.readouterr().out.count(" 1 threads: NUMBA_NUM_THREADS\n") == 1
    assert main(["train", "--data", "rows.txt", "--out", "m", "--no-tune", "--epochs", "1", "--threads", "2"]) == 0
    assert capsys.readouterr().out.count(" 2 threads\n") == 1
