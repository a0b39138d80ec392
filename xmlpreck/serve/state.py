"""What the endpoints of a worker share."""

from dataclasses import dataclass, field

from xmlpreck.serve.batching import Batcher
from xmlpreck.serve.counters import Counters
from xmlpreck.serve.problems import Problem
from xmlpreck.serve.served import Served
from xmlpreck.serve.settings import ServeLimits


@dataclass
class State:
    """Models by name, the first one first; a new version takes the place of the old one between two requests."""

    models: dict[str, Served]
    limits: ServeLimits
    counters: Counters
    token: bytes | None = None
    is_stopping: bool = False
    batcher: Batcher = field(init=False)

    def __post_init__(self) -> None:
        self.batcher = Batcher(self.limits, self.counters)

    def find(self, name: str | None) -> Served:
        """Return the model of a name; without one, the first."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise Problem(404, f"there is no model {name!r:.60}: see /models")
        return self.models[name]
