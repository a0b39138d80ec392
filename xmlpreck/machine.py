"""What this process may use of the machine: cores and memory, within affinity, control groups and the environment."""

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
# mallopt's number for "from this size on, memory is mapped and not kept".
M_MMAP_THRESHOLD = -3


class Cores(NamedTuple):
    """A number of cores, and why the process may not use all that the machine has; "" = it may."""

    number: int
    why: str


def n_cores() -> int:
    """Return how many cores this process may use."""
    return cores().number


def cores(root: Path = ROOT, environment: Mapping[str, str] | None = None) -> Cores:
    """Find how many cores this process may use; the smallest bound holds, and is named.

    `root` and `environment` stand in for the machine's own in tests.
    """
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
        first = environment.get(name, "").partition(",")[0].strip()  # OpenMP has a list: one number a level
        if re.fullmatch(r"[0-9]{1,9}", first) and int(first) > 0:
            yield int(first), name


def _cpu_quota(folder: Path) -> int | None:
    """Return the cores that a control group's quota amounts to, rounded up; None = it has no quota."""
    with suppress(OSError, ValueError):
        quota, period = map(int, (folder / "cpu.max").read_text().split())  # "max" is not a number
        return -(-quota // period) if quota > 0 and period > 0 else None
    with suppress(OSError, ValueError):
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return -(-quota // period) if quota > 0 and period > 0 else None  # -1 = none
    return None


def _control_groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups that this process is in, and of all above them, of both versions."""
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
        # ID PARENT DEVICE TOP PLACE OPTIONS [MORE...] - KIND SOURCE CONTROLLERS: the source may be empty.
        before, _, after = (part.split(" ") for part in mount.partition(" - "))
        is_second = after[0] == "cgroup2"
        name = "" if is_second else controller
        if name not in own or not (is_second or (after[0] == "cgroup" and controller in after[-1].split(","))):
            continue
        # A container sees its own group as the top of the mount, but may be told the path on the host.
        top, place = before[3:5]
        inner = own[name].relative_to(top).parts if own[name].is_relative_to(top) else ()
        for depth in range(len(inner), -1, -1):
            yield root.joinpath(place.lstrip("/"), *inner[:depth])


def resident_bytes() -> int:
    """Return the memory of this process now."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def free_bytes(root: Path = ROOT) -> int:
    """Return the memory that this process can still have: of the machine, or of a control group if that has less."""
    free = sys.maxsize  # where nobody tells, nothing is refused
    with suppress(AttributeError, OSError, ValueError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError, AttributeError):
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
        free = int(found[1]) * 1024  # type: ignore[index]
    for folder in _control_groups("memory", root):
        for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with suppress(OSError, ValueError):  # the other version, or "max"
                left = int((folder / most).read_text()) - int((folder / used).read_text())
                free = min(free, left + _cached_bytes(folder))
    return max(free, 0)


def _cached_bytes(folder: Path) -> int:
    """Return the part of a control group's memory that is copies of files, which the system gives up when asked."""
    with suppress(OSError, ValueError):
        found = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(found.get("total_inactive_file", found.get("inactive_file", 0)))
    return 0


def give_memory_back() -> None:
    """Let glibc return every freed array to the system at once.

    As large arrays are freed it raises the size from which it does so, and then keeps them: a training process
    with blocks of 14 MB peaked at 587 MB instead of 443. For programs of our own; a library must not set this.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # other C libraries do not have it
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)
