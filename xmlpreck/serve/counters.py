"""Counters that all workers share, as Prometheus reads them.

A worker has a row of its own in shared memory, which outlives it: its successor counts on. Any worker shows the sums.
"""

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

ENDPOINTS = ("predict", "explain", "labels", "models", "annif", "other")
STATUSES = (200, 400, 401, 404, 405, 408, 413, 415, 429, 500, 503)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_OWN = ("rows", "batches", "scoring_seconds", "queue", "requests_in_progress", "reloads", "refused_reloads", "restarts")
_GAUGES = ("queue", "requests_in_progress")
_HELP = {
    "rows": "Documents that were scored.",
    "batches": "Batches that documents were scored in.",
    "scoring_seconds": "Seconds that scoring took.",
    "queue": "Documents that wait to be scored.",
    "requests_in_progress": "Requests that are not answered yet.",
    "reloads": "New versions of models that were taken.",
    "refused_reloads": "New versions of models that could not be loaded.",
    "restarts": "Workers that ended and were replaced.",
}
_N_STATUSES, _N_SECONDS = len(STATUSES), len(SECONDS)
# For each endpoint: answers of each status, answers within each bucket of seconds (the last: longer), and their sum.
_WIDTH = _N_STATUSES + _N_SECONDS + 2


class Counters:
    """Counts of one process (row 0 is the supervisor's) and the sums of all."""

    def __init__(self, n_rows: int) -> None:
        size = len(_OWN) + len(ENDPOINTS) * _WIDTH
        self._all = np.frombuffer(mmap.mmap(-1, 8 * n_rows * size), np.float64).reshape(n_rows, size)
        self._row = self._all[0]

    def take_row(self, row: int) -> None:
        """Count in this row from now on; what a worker before was busy with is over."""
        self._row = self._all[row]
        for name in _GAUGES:
            self._row[_OWN.index(name)] = 0

    def add(self, name: str, amount: float = 1) -> None:
        self._row[_OWN.index(name)] += amount

    @contextmanager
    def during(self, name: str, amount: float = 1) -> Iterator[None]:
        self.add(name, amount)
        try:
            yield
        finally:
            self.add(name, -amount)

    def answered(self, endpoint: str, status: int, started: float) -> None:
        """Count an answer, and the seconds since `started` (of time.perf_counter)."""
        seconds = time.perf_counter() - started
        first = len(_OWN) + _WIDTH * (ENDPOINTS.index(endpoint) if endpoint in ENDPOINTS else len(ENDPOINTS) - 1)
        known = status if status in STATUSES else 200 if status < 400 else 400 if status < 500 else 500
        self._row[first + STATUSES.index(known)] += 1
        bucket = int(np.searchsorted(SECONDS, seconds))
        self._row[first + _N_STATUSES + bucket] += 1
        self._row[first + _WIDTH - 1] += seconds

    def text(self) -> str:
        """Return the sums over all processes in Prometheus's text format."""
        sums = self._all.sum(axis=0)
        lines = []
        for place, name in enumerate(_OWN):
            kind, full = ("gauge", name) if name in _GAUGES else ("counter", f"{name}_total")
            lines += [f"# HELP xmlpreck_{full} {_HELP[name]}", f"# TYPE xmlpreck_{full} {kind}"]
            lines.append(f"xmlpreck_{full} {sums[place]:.12g}")
        blocks = sums[len(_OWN) :].reshape(len(ENDPOINTS), _WIDTH)
        lines += [
            "# HELP xmlpreck_requests_total Requests that were answered.",
            "# TYPE xmlpreck_requests_total counter",
        ]
        for endpoint, block in zip(ENDPOINTS, blocks, strict=True):
            for status, count in zip(STATUSES, block, strict=False):
                if count:
                    lines.append(f'xmlpreck_requests_total{{endpoint="{endpoint}",status="{status}"}} {count:.0f}')
        name = "xmlpreck_request_seconds"
        lines += [f"# HELP {name} Seconds from a request's headers to its answer.", f"# TYPE {name} histogram"]
        for endpoint, block in zip(ENDPOINTS, blocks, strict=True):
            within = np.cumsum(block[_N_STATUSES : _N_STATUSES + _N_SECONDS + 1])
            if not within[-1]:
                continue
            for bound, count in zip([*map(str, SECONDS), "+Inf"], within, strict=True):
                lines.append(f'{name}_bucket{{endpoint="{endpoint}",le="{bound}"}} {count:.0f}')
            lines.append(f'{name}_sum{{endpoint="{endpoint}"}} {block[-1]:.9g}')
            lines.append(f'{name}_count{{endpoint="{endpoint}"}} {within[-1]:.0f}')
        return "\n".join(lines) + "\n"
