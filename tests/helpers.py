"""What several test files use: paths, made-up rows, comparisons of bits, and forks that are safe."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# For processes that fork: numpy's OpenBLAS starts threads when it is imported.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
_FORK_SAFE = "jemalloc_bg_thd"  # of pyarrow; it has handlers for forks


def check_one_thread() -> None:
    """Refuse to fork beside threads: a lock that one of them holds would be held in the fork for ever."""
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    others = [name for name in threads if name != _FORK_SAFE]
    assert len(others) <= 1, f"process {os.getpid()} has the threads {others}, and may not fork"
