"""Save the state of a run when it is time, and check that a resumed run is the same one."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import xmlpreck
from xmlpreck.config import RunConfig
from xmlpreck.train.checkpoint import CheckpointError
from xmlpreck.train.passes import Cursor, PassFacts
from xmlpreck.train.safety import Interrupted, Safety

# A pass that ends sooner after a checkpoint gets none: on EURLEX57K one takes a fifth of the time of a pass.
SPARED_SECONDS = 20.0


def identity_of(config: RunConfig, data: dict[str, object]) -> dict[str, Any]:
    """What must be equal for a run to go on with the same bits: not the number of threads."""
    settings = config.to_dict()
    del settings["train"]["threads"]
    return {"xmlpreck": xmlpreck.__version__, "settings": settings, "data": data}


class Resumable(Protocol):
    """A trainer, of this machine or of a cluster, as its keeper sees it."""

    n_passes: int
    cursor: Cursor

    @property
    def needs_checkpoint(self) -> bool: ...
    def check_finite(self) -> None: ...
    def write_arrays(self, folder: Path) -> dict[str, str]: ...
    def saved_in(self, folder: Path) -> None: ...


class Keeper:
    """Saves the state of a run when it is time, and keeps its history."""

    def __init__(
        self, trainer: Resumable, identity: dict[str, Any], safety: Safety, tuning: dict[str, Any] | None
    ) -> None:
        self.trainer, self.identity, self.safety, self.tuning = trainer, identity, safety, tuning
        self.history: list[dict[str, Any]] = []
        self.saved_at = time.monotonic()  # a clock that somebody sets cannot move it

    def check(self, about: dict[str, Any]) -> None:
        """Refuse a checkpoint of another run; take over the history of this one."""
        changed = differences(about["identity"], self.identity)
        if changed:
            raise CheckpointError(f"the checkpoint is of another run: {'; '.join(changed)}: resume with what it had")
        self.history = about["history"]
        number, n_passes = (about["trainer"].get(name) for name in ("number", "n_passes"))
        self.safety.tell(f"resumed in pass {number!r:.20}, after {n_passes!r:.20} whole passes")

    def pause(self) -> None:
        """Save and stop if the run is asked to, or save if it is time; called between two calls of the kernels."""
        if self.safety.stop():
            self.save()
            raise Interrupted
        if self.trainer.needs_checkpoint or time.monotonic() - self.saved_at > 60 * self.safety.minutes:
            self.save()

    def end_pass(self, facts: PassFacts) -> None:
        self.history.append(facts.to_dict())
        if time.monotonic() - self.saved_at > min(60 * self.safety.minutes, SPARED_SECONDS):
            self.save()

    def save(self) -> None:
        """Write a checkpoint. One that cannot be written does not end the run: the one before it is still there."""
        if self.safety.checkpoints is None:
            return
        self.trainer.check_finite()
        facts = asdict(self.trainer.cursor) | {"n_passes": self.trainer.n_passes}
        about = {"identity": self.identity, "trainer": facts, "history": self.history, "tuning": self.tuning}
        try:
            self.trainer.saved_in(self.safety.checkpoints.save(about, self.trainer.write_arrays))
        except CheckpointError as error:
            self.safety.tell(f"{error}; training goes on, and the next checkpoint is tried in time")
        self.saved_at = time.monotonic()


def differences(then: Any, now: Any, name: str = "") -> list[str]:
    """List the values that differ between two nested dictionaries, by name."""
    if isinstance(then, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*then, *now])
        return [text for key in keys for text in differences(then.get(key), now.get(key), f"{name}.{key}".lstrip("."))]
    return [] if then == now else [f"{name.removeprefix('settings.')} was {then!r:.99}, is {now!r:.99}"]
