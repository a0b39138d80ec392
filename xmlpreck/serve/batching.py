"""Score documents of requests that arrive together in one batch, on a thread beside the event loop."""

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from xmlpreck.data.dataset import stack_rows
from xmlpreck.data.formats import TopK
from xmlpreck.data.formats.json_rows import JsonRow
from xmlpreck.model import Model
from xmlpreck.model.prediction import Choice, label_bonus
from xmlpreck.serve.counters import Counters
from xmlpreck.serve.problems import Problem
from xmlpreck.serve.served import Served
from xmlpreck.serve.settings import ServeLimits

Result = TypeVar("Result")
MAX_SIDE_JOBS = 64  # explanations and searches that wait


@dataclass(frozen=True)
class Wanted:
    """Which labels a request wants; requests that want the same are scored together."""

    k: int = 5
    threshold: float | None = None
    at_least: int = 0
    only: tuple[int, ...] | None = None
    exclude: tuple[int, ...] | None = None
    probabilities: bool = False
    guess_empty: bool = False
    auto: bool = False  # as many as the model's own rule says, instead of k, threshold and at_least

    def choice(self, model: Model) -> Choice:
        """Return what the library takes."""
        rule = model.label_rule if self.auto else None
        return Choice(
            k=self.k if rule is None else rule.k,
            min_score=-np.inf if self.threshold is None else self.threshold,
            min_labels=self.at_least,
            bonus=label_bonus(model.n_labels, self.only, self.exclude),
            as_probabilities=self.probabilities,
            guess_empty=self.guess_empty,
            rule=rule,
        )


@dataclass
class Job:
    """Documents of one request, and its answer."""

    served: Served
    documents: Sequence[JsonRow]
    wanted: Wanted
    answer: "asyncio.Future[TopK]"


class Batcher:
    """The queue of a worker. A batch is whatever has come while the one before was scored, up to `batch_rows`."""

    def __init__(self, limits: ServeLimits, counters: Counters) -> None:
        self.limits, self.counters = limits, counters
        self._queue: deque[Job] = deque()
        self._n_waiting = 0
        self._task: asyncio.Task[None] | None = None
        self._scoring = ThreadPoolExecutor(1, "score")
        self._side = ThreadPoolExecutor(1, "side")
        self._n_side = 0

    async def predict(self, served: Served, documents: Sequence[JsonRow], wanted: Wanted) -> TopK:
        """Return the labels of documents, when their turn has come."""
        if not documents:
            return TopK(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32))
        if self._n_waiting and self._n_waiting + len(documents) > self.limits.max_queue:
            raise Problem(429, "too many documents wait: try again later", {"Retry-After": "1"})
        loop = asyncio.get_running_loop()
        job = Job(served, documents, wanted, loop.create_future())
        self._queue.append(job)
        self._count(len(documents))
        if self._task is None:
            self._task = loop.create_task(self._run())
        try:
            async with asyncio.timeout(self.limits.max_seconds):
                return await job.answer
        except TimeoutError:
            raise Problem(503, "the answer took too long: send fewer documents, or try again later") from None

    async def aside(self, call: Callable[..., Result], *args: Any) -> Result:
        """Run something slow, such as an explanation, beside the batches."""
        if self._n_side >= MAX_SIDE_JOBS:
            raise Problem(429, "too many requests wait: try again later", {"Retry-After": "1"})
        self._n_side += 1
        running = asyncio.get_running_loop().run_in_executor(self._side, functools.partial(call, *args))
        running.add_done_callback(self._end_side)
        try:
            async with asyncio.timeout(self.limits.max_seconds):
                return await asyncio.shield(running)
        except TimeoutError:
            raise Problem(503, "the answer took too long: ask for less, or try again later") from None

    def _end_side(self, done: "asyncio.Future[Any]") -> None:
        self._n_side -= 1
        if not done.cancelled():
            done.exception()  # whoever waited may have gone

    def _count(self, amount: int) -> None:
        self._n_waiting += amount
        self.counters.add("queue", amount)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            if self.limits.batch_wait and self._n_waiting < self.limits.batch_rows:
                await asyncio.sleep(self.limits.batch_wait / 1000)
            batch = self._take()
            started = time.perf_counter()
            answers = await loop.run_in_executor(self._scoring, score, batch)
            self.counters.add("scoring_seconds", time.perf_counter() - started)
            for job, answer in zip(batch, answers, strict=True):
                if job.answer.done():
                    continue
                if isinstance(answer, BaseException):
                    job.answer.set_exception(answer)
                else:
                    job.answer.set_result(answer)
        self._task = None

    def _take(self) -> list[Job]:
        """Take jobs from the queue, one at least; nobody waits for those that are over."""
        batch: list[Job] = []
        n_rows = 0
        while self._queue and (not batch or n_rows + len(self._queue[0].documents) <= self.limits.batch_rows):
            job = self._queue.popleft()
            self._count(-len(job.documents))
            if not job.answer.done():
                batch.append(job)
                n_rows += len(job.documents)
        if batch:
            self.counters.add("batches")
            self.counters.add("rows", n_rows)
        return batch


def score(jobs: Sequence[Job]) -> list[TopK | BaseException]:
    """Score jobs: all that want the same of the same model together. An error is the answer of those that caused it."""
    groups: dict[tuple[str, str, Wanted], list[int]] = {}
    for place, job in enumerate(jobs):
        groups.setdefault((job.served.name, job.served.version, job.wanted), []).append(place)
    answers: list[TopK | BaseException] = [RuntimeError()] * len(jobs)
    for places in groups.values():
        together = [jobs[place] for place in places]
        try:
            found: Sequence[TopK | BaseException] = _score_together(together)
        except Exception as error:
            # Such as no memory for all at once.
            found = [error] if len(together) == 1 else [score([job])[0] for job in together]
        for place, answer in zip(places, found, strict=True):
            answers[place] = answer
    return answers


def _score_together(jobs: Sequence[Job]) -> list[TopK]:
    model = jobs[0].served.model
    choice = jobs[0].wanted.choice(model)
    documents = [document for job in jobs for document in job.documents]
    texts = [place for place, document in enumerate(documents) if document.text is not None]
    blocks, order = [], list[int]()
    if texts:
        assert model.vectorizer is not None  # or the parser would have refused them
        blocks.append(model.rows_of([documents[place].text or "" for place in texts], threads=1))
        order += texts
    if len(texts) < len(documents):
        others = [place for place, document in enumerate(documents) if document.text is None]
        blocks += [documents[place].features for place in others]
        order += others
    top = choice.predict(model, blocks[0] if len(blocks) == 1 else stack_rows(blocks))
    back = np.argsort(np.array(order, np.int64))
    if len(blocks) > 1:
        top = TopK(top.labels[back], top.scores[back])
    ends = np.cumsum([len(job.documents) for job in jobs]).tolist()
    return [TopK(top.labels[a:b], top.scores[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
