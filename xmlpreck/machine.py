"""Find the cores and the memory that this process may use: affinity, control groups, environment variables."""

import ctypes
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

THREAD_VARIABLES = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
ROOT = Path("/")
# mallopt's parameter: blocks of this size or more are mapped, and unmapped as soon as they are freed.
M_MMAP_THRESHOLD = -3


class Cores(NamedTuple):
    """Number of usable cores, and what limits it ("" = nothing)."""

    number: int
    why: str


def n_cores() -> int:
    """Return how many cores this process may use."""
    return cores().number


def cores(root: Path = ROOT, environment: Mapping[str, str] | None = None) -> Cores:
    """Find the smallest of all limits on cores; tests pass `root` and `environment` in place of the machine's own."""
    found = Cores(os.cpu_count() or 1, "")
    for number, why in _bounds(root, os.environ if environment is None else environment):
        if number < found.number:
            found = Cores(max(number, 1), why)
    return found


def _bounds(root: Path, environment: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    if hasattr(os, "sched_getaffinity"):
        yield len(os.sched_getaffinity(0)), "the CPU affinity of the process"
    for folder in _control_groups("cpu", root):
        quota = _cpu_quota(folder)
        if quota is not None:
            yield quota, "the CPU quota of the control group"
    for name in THREAD_VARIABLES:
        first = environment.get(name, "").partition(",")[0].strip()  # OpenMP allows a list, one number per level
        if re.fullmatch(r"[0-9]{1,9}", first) and int(first) > 0:
            yield int(first), name


def _cpu_quota(folder: Path) -> int | None:
    """Return the cores that a control group's quota amounts to, rounded up; None = no quota ("max" or -1)."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            quota, period = map(int, " ".join((folder / file).read_text() for file in files).split())
            return -(-quota // period) if quota > 0 and period > 0 else None
    return None


def _control_groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups (versions 1 and 2) of this process and of all their parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):  # not Linux
        return
    own: dict[str, PurePosixPath] = {}  # controller -> group; "" is version 2, which has one group for all
    for line in lines:
        _, names, group = line.split(":", 2)
        own |= dict.fromkeys(names.split(","), PurePosixPath(group))
    for mount in mounts:
        # ID PARENT DEVICE TOP PATH OPTIONS [MORE...] - KIND SOURCE CONTROLLERS: the source may be empty.
        before, _, after = (part.split(" ") for part in mount.partition(" - "))
        is_second = after[0] == "cgroup2"
        name = "" if is_second else controller
        if name not in own or not (is_second or (after[0] == "cgroup" and controller in after[-1].split(","))):
            continue
        # A container sees its own group as the top of the mount, but may be given the path on the host.
        top, path = before[3:5]
        inner = own[name].relative_to(top).parts if own[name].is_relative_to(top) else ()
        for depth in range(len(inner), -1, -1):
            yield root.joinpath(path.lstrip("/"), *inner[:depth])


def resident_bytes() -> int:
    """Return the memory that this process uses now."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def free_bytes(root: Path = ROOT) -> int:
    """Return the memory that this process can still get: the smaller of the machine's and its control groups'."""
    free = sys.maxsize  # unknown: no limit
    with suppress(AttributeError, OSError, ValueError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError, AttributeError):
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
        free = int(found[1]) * 1024  # type: ignore[index]
    for folder in _control_groups("memory", root):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with suppress(OSError, ValueError):  # the other version, or "max"
                left = int((folder / limit).read_text()) - int((folder / used).read_text())
                free = min(free, left + _cached_bytes(folder))
    return max(free, 0)


def _cached_bytes(folder: Path) -> int:
    """Return a control group's page cache, which the system frees on demand."""
    with suppress(OSError, ValueError):
        found = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(found.get("total_inactive_file", found.get("inactive_file", 0)))
    return 0


def give_memory_back() -> None:
    """Make glibc return freed arrays to the system at once; for our own programs, as a library must not set this.

    By default it raises its threshold as large arrays are freed and then keeps them: a training process with blocks
    of 14 MB peaked at 587 MB instead of 443.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # other C libraries do not have it
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
