"""The actors that hold the label shards of a run: hired on nodes, asked all at once, replaced when they are lost."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import ray

from xmlpreck.cluster.log import Log
from xmlpreck.cluster.rows import SharedRows
from xmlpreck.cluster.session import Session, hire, in_short, on_node, result_of
from xmlpreck.cluster.shard import LabelShard
from xmlpreck.config import InputError, RunConfig

MAX_TRIES = 4  # to bring one shard back, without a batch in between


class Shards:
    """One actor for each label shard; a lost one is replaced by another, which repeats the calls of the log."""

    def __init__(self, session: Session, shared: SharedRows, config: RunConfig, n_shards: int, log: Log) -> None:
        self.session, self.shared, self.config, self.n_shards, self.log = session, shared, config, n_shards, log
        self.nodes = session.nodes()
        self.n_hired = 0
        self.tries: Counter[int] = Counter()  # to bring each shard back, since the last batch
        self.actors: list[Any] = []

    def hire_all(self) -> None:
        self.actors = [self._hire(shard) for shard in range(self.n_shards)]

    def _hire(self, shard: int) -> Any:
        """Start the actor of a shard, on a node of its own if there are enough; elsewhere if that node is gone."""
        node = self.nodes[shard % len(self.nodes)]
        n_here = len(range(shard % len(self.nodes), self.n_shards, len(self.nodes)))
        n_threads = self.config.train.threads or max(1, node.n_cpus // n_here)
        # Ray puts an actor that asks for no resource on any node, whatever its options say: so ask for a byte.
        wanted = on_node(node, soft=True) | {"num_cpus": 0, "memory": 1}

        def create() -> Any:
            self.n_hired += 1
            name = f"xmlpreck-labels-{shard}-{self.n_hired}-{self.session.job}"
            return (
                ray.remote(LabelShard).options(name=name, **wanted).remote(shard, self.shared, self.config, n_threads)
            )

        return hire(create)

    def close(self) -> None:
        if ray.is_initialized():  # else they ended with the session
            for actor in self.actors:
                ray.kill(actor)

    def call(self, shard: int, method: str, *args: Any) -> Any:
        """Start a call; its answer is taken by `answers`."""
        return getattr(self.actors[shard], method).remote(*args)

    def ask_all(
        self, method: str, *args: Any, each: Sequence[tuple[Any, ...]] | None = None, again: bool = True
    ) -> list[Any]:
        """Return every shard's answer to a call.

        A lost shard is brought back, and then asked again unless the log contains the call.
        """
        args_of = [(*args, *(each[shard] if each else ())) for shard in range(self.n_shards)]

        def ask_again(shard: int) -> Any:
            return self.call(shard, method, *args_of[shard]) if again else ray.put(None)

        return self.answers([self.call(shard, method, *args_of[shard]) for shard in range(self.n_shards)], ask_again)

    def answers(self, calls: Sequence[Any], ask_again: Callable[[int], Any]) -> list[Any]:
        """Wait for the answers of all shards; those that are lost are brought back first, all at once."""
        try:
            return ray.get(list(calls))
        except ray.exceptions.RayError:  # find out which shards are lost
            answers: list[Any] = [None] * len(calls)
            waiting = dict(enumerate(calls))
            while waiting:
                lost = self._take(waiting, answers)
                self._bring_back(lost)
                waiting = {shard: ask_again(shard) for shard in lost}
            return answers

    def _take(self, asked: dict[int, Any], answers: list[Any]) -> dict[int, Exception]:
        """Wait for the answers of some shards; return the lost shards with Ray's errors."""
        lost: dict[int, Exception] = {}
        for shard, call in asked.items():
            try:
                answers[shard] = result_of(call)
            except ray.exceptions.RayTaskError:  # raised by our own code
                raise
            except ray.exceptions.RayError as error:
                lost[shard] = error
        return lost

    def _bring_back(self, lost: dict[int, Exception]) -> None:
        """Replace lost actors by new ones in the state that they would have after all calls.

        A process takes seconds to start, so all of them start before the first is waited for.
        """
        while lost:
            for shard, error in lost.items():
                self.tries[shard] += 1
                if self.tries[shard] > MAX_TRIES:
                    what = f"label shard {shard} was lost {MAX_TRIES} times at the same batch"
                    raise InputError(f"{what} ({in_short(error)})") from None
            for shard in lost:
                restored = f"it is restored, and {self.log.n_batches} batches are applied again"
                self.session.tell(f"label shard {shard} is lost: {restored}")
                ray.kill(self.actors[shard])
            alive = {node.id for node in self.session.nodes()}
            self.nodes = [node for node in self.nodes if node.id in alive] or self.session.nodes()
            for shard in lost:
                self.actors[shard] = self._hire(shard)
            lost = self._rebuild([*lost])

    def _rebuild(self, shards: Sequence[int]) -> dict[int, Exception]:
        """Repeat the calls of the log to new actors, side by side; return those that are lost meanwhile."""
        lost: dict[int, Exception] = {}
        calls = {shard: self.log.calls_for(shard) for shard in shards}
        while calls:
            asked = {}
            for shard in [*calls]:
                if (call := next(calls[shard], None)) is None:
                    del calls[shard]
                else:
                    asked[shard] = self.call(shard, *call)
            lost_now = self._take(asked, [None] * self.n_shards)
            lost |= lost_now
            for shard in lost_now:
                del calls[shard]
        return lost
