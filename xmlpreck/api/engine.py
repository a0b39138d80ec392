"""Where a library call computes: on this machine, or on a Ray cluster."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xmlpreck.config import InputError
from xmlpreck.data.location import DataLocation

if TYPE_CHECKING:
    from xmlpreck.cluster.rows import SharedRows
    from xmlpreck.cluster.session import Session
    from xmlpreck.data.rows import RowSource

STDIN = "-"  # as a path: JSON lines from stdin
log = logging.getLogger("xmlpreck")
Note = Callable[[str], None]  # gets remarks for people


@dataclass(frozen=True)
class RayEngine:
    """Compute on a Ray cluster.

    `address` joins a cluster: auto, host:port or ray://host:port (None: $RAY_ADDRESS, else Ray is started here).
    `label_shards` is the number of workers that share the labels (None: as many as memory needs).
    """

    address: str | None = None
    label_shards: int | None = None

    def connect(self, note: Note = log.info) -> "AbstractContextManager[Session]":
        """Join or start the cluster for the length of a `with` block."""
        from xmlpreck.cluster.session import connect

        return connect(self.address, note)


def refuse_text(location: DataLocation | None) -> None:
    """Refuse what the nodes of a cluster cannot read by themselves: rows in memory or from stdin, and raw text."""
    if location is None:
        raise InputError("rows in memory are on this machine only: give the path of shards or files to a Ray engine")
    if location.path == STDIN:
        raise InputError("--data - is read on this machine only: leave out --engine ray, or name a file")
    if location.open_dense() is not None:
        raise InputError(f"{location.path}: has dense rows beside it, which are read on this machine only: make shards")
    if location.documents() is not None:
        raise InputError(f"{location.path}: is raw text, which is read on this machine only: leave out --engine ray")


def shared_rows(location: DataLocation | None, rows: "RowSource") -> "SharedRows":
    """Name rows so that every node of a cluster opens them by itself."""
    from xmlpreck.cluster.rows import share_rows

    refuse_text(location)
    assert location is not None
    return share_rows(rows, location)
