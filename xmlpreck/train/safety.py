"""How a run is kept from losing work, and from taking more memory than it may."""

from collections.abc import Callable
from dataclasses import dataclass

from xmlpreck.train.checkpoint import Checkpoints

CHECKPOINT_MINUTES = 10.0
PHASES = ("reading", "tuning", "training", "saving")


class Interrupted(Exception):
    """The run was asked to stop, and has."""


@dataclass(frozen=True)
class Safety:
    """Checkpoints, limits and callbacks of a run."""

    checkpoints: Checkpoints | None = None
    resume: bool = False
    minutes: float = CHECKPOINT_MINUTES  # between two checkpoints within a pass; a long pass ends with one
    memory: int | None = None  # limit of the process in bytes; None = what it has and a share of what is free
    fit_memory: bool = False  # keep each label's strongest features where all would not fit
    stop: Callable[[], bool] = lambda: False  # asked between calls of the kernels
    tell: Callable[[str], None] = lambda text: None
    phase: Callable[[str], None] = lambda name: None  # called with one of PHASES as it begins

    def pause(self) -> None:
        """Raise Interrupted if the run is asked to stop; for phases that have no checkpoint to write."""
        if self.stop():
            raise Interrupted
