"""A training run as library calls see it: who listens, what it may use, and what comes out."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from xmlpreck import train
from xmlpreck.api.engine import log
from xmlpreck.config import InputError, RunConfig
from xmlpreck.data.location import DataLocation
from xmlpreck.data.rows import RowSource
from xmlpreck.data.shards import ShardPath
from xmlpreck.evaluation.tables import setting_text
from xmlpreck.model import Model
from xmlpreck.train import Checkpoints, PassFacts, Plan, Safety


class Listener:
    """Hear what a run does while it does it; override what you want to hear. By default it goes to the log."""

    level = logging.INFO

    def note(self, text: str) -> None:
        """Hear a remark."""
        log.log(self.level, "%s", text)

    def opened(self, location: DataLocation | None, rows: RowSource) -> None:
        """Hear that the training rows are open."""

    def planned(self, plan: Plan) -> None:
        """Hear what the run will need."""

    def tuned(self, settings: RunConfig, evidence: dict[str, Any] | None) -> None:
        """Hear the settings of the run; `evidence` is None where they were not tuned now."""
        if evidence is not None:
            chosen = ", ".join(f"{name} {setting_text(value)}" for name, value in evidence["chosen"].items())
            by = f"on {evidence['heldout_rows']:,} held-out rows" if evidence["rungs"] else "by facts of the rows"
            self.note(f"tuned {by}: {chosen}")

    def passed(self, facts: PassFacts) -> None:
        """Hear the facts of a pass."""

    def saved(self, run: "Trained") -> None:
        """Hear that the model is on disk."""

    def phase(self, name: str) -> None:
        """Hear that a phase begins, one of train.PHASES."""

    def stop(self) -> bool:
        """Say whether to stop: asked between calls of the kernels; the run then raises train.Interrupted."""
        return False


@dataclass(frozen=True)
class Trained:
    """A finished run; `seconds` are of tuning and training, without reading."""

    model: Model
    seconds: float
    folder: ShardPath | None = None
    n_bytes: int = 0
    test: dict[str, float] | None = None  # P@k on the test rows
    n_test_rows: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Summarise for JSON."""
        about = {"model": str(self.folder), "bytes": self.n_bytes, "n_weights": self.model.n_weights}
        about |= {"seconds": self.seconds, "history": self.model.info["history"]}
        return about if self.test is None else about | {"test": self.test}


@dataclass(frozen=True)
class Updated(Trained):
    """A model that was trained further, and what it learned about."""

    n_new_labels: int = 0
    n_new_features: int = 0


class Limits(NamedTuple):
    """What a run may use, and how it is kept from losing work."""

    memory: int | str | None = None  # bytes, or a size such as "4GB"; None: a share of what is free
    fit_memory: bool = False  # keep each label's strongest features where all would not fit
    resume: bool = False  # go on from the last checkpoint
    checkpoint_minutes: float | None = None  # between checkpoints within a pass

    def safety(self, listener: Listener) -> Safety:
        memory = train.parse_bytes(self.memory) if isinstance(self.memory, str) else self.memory
        minutes = train.CHECKPOINT_MINUTES if self.checkpoint_minutes is None else self.checkpoint_minutes
        return Safety(
            resume=self.resume,
            minutes=minutes,
            memory=memory,
            fit_memory=self.fit_memory,
            stop=listener.stop,
            tell=listener.note,
            phase=listener.phase,
        )


DEFAULT_LIMITS = Limits()


@contextmanager
def kept_safe(folder: Path | None, limits: Limits, listener: Listener) -> Iterator[Safety]:
    """Keep checkpoints beside the model directory, locked against other runs; a run without a folder keeps none."""
    safety = limits.safety(listener)
    if folder is None:
        if limits.resume or limits.checkpoint_minutes is not None:
            raise InputError("checkpoints are kept beside the model directory: name it by `out`")
        yield safety
        return
    checkpoints = Checkpoints(folder)
    with checkpoints.locked():
        if checkpoints.numbers() and not limits.resume:
            raise InputError(
                f"{checkpoints.folder}: has the checkpoint of a run that did not end: go on with --resume, delete it, "
                "or choose another --out"
            )
        if limits.resume and not checkpoints.numbers():
            how = "going on with tuning" if checkpoints.record.exists() else "starting from the first row"
            listener.note(f"{checkpoints.folder}: no checkpoint: {how}")
        yield replace(safety, checkpoints=checkpoints)
        checkpoints.clear()
