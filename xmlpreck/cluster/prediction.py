"""Prediction on a Ray cluster: rows are dealt out to workers, and so are the labels of a model that no node can hold.

Each worker opens model and rows itself, by path. A worker's answer depends on its rows and labels alone, and parts are
merged by score, then lower label: the bits are those of one machine, whatever the nodes and losses.
"""

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import ray

from xmlpreck.cluster.parts import Part, among_all, choose_parts, load_part, merge, open_without_weights
from xmlpreck.cluster.rows import SharedRows
from xmlpreck.cluster.session import (
    PATIENCE_SECONDS,
    Node,
    Session,
    hire,
    in_short,
    need_path,
    on_node,
    result_of,
    this_node,
)
from xmlpreck.config import InputError
from xmlpreck.data.formats import TopK
from xmlpreck.data.rows import RowSource
from xmlpreck.evaluation.comparison import Rankings
from xmlpreck.files.contents import file_sha256
from xmlpreck.files.progress import progress_bar
from xmlpreck.machine import give_memory_back
from xmlpreck.model import Model
from xmlpreck.model.choosing import seen_rows
from xmlpreck.model.prediction import Choice
from xmlpreck.model.seal import ModelError

ITEM_ROWS = 4096  # that a worker is asked for at a time; blocks of a file or a meter are a multiple of it
ITEMS_A_WORKER = 2  # one is read while another is predicted
MAX_TRIES = 4  # of an item whose workers are lost
NO_ROWS = TopK(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32))


@dataclass(frozen=True)
class Job:
    """What every worker gets: where model and rows are and what they must be, and how many labels a row gets."""

    model: str
    model_digest: str  # sha256 of its model.json, which has those of all other files
    rows: SharedRows
    k: int
    bonus: np.ndarray | None = None
    guess_empty: bool = False


class Predictor:
    """An actor on a node, with all labels of a model or some, that predicts the rows it is asked for."""

    def __init__(self, job: Job, part: Part | None, n_threads: int) -> None:
        self.job, self.part, self.n_threads = job, part, n_threads
        self.predicting = threading.Lock()
        give_memory_back()

    def open(self) -> None:
        """Open model and rows: an error in the constructor would look like a lost actor."""
        _ = self.model, self.rows

    @cached_property
    def model(self) -> Model:
        need_path(self.job.model)
        folder = Path(self.job.model)
        if file_sha256(folder / "model.json") != self.job.model_digest:
            raise InputError(f"node {this_node()}: {folder}: is not the model that the driver has: copy it again")
        return Model.load(folder) if self.part is None else load_part(folder, self.part)

    @cached_property
    def rows(self) -> RowSource:
        return self.job.rows.open()

    def predict(self, start: int, stop: int) -> TopK:
        block, bonus, part = self.rows.read(start, stop), self.job.bonus, self.part
        if part is not None and bonus is not None:
            bonus = bonus[part.first : part.last]
        with self.predicting:
            top = self.model.predict_topk(
                block.rows, self.job.k, self.n_threads, bonus, guess_empty=self.job.guess_empty
            )
        return top if part is None else among_all(top, part.first)


@dataclass(eq=False)
class Worker:
    """An actor as the driver knows it."""

    actor: Any
    part: int
    node: Node
    n_threads: int
    is_open: bool = False
    n_items: int = 0  # that it is busy with


class Pool:
    """Workers on all nodes, which get items as they finish others; lost workers are replaced."""

    def __init__(self, session: Session, job: Job, parts: Sequence[Part | None], n_threads: int = 0) -> None:
        """`n_threads` for each worker; 0 = it shares the cores of its node with the other workers there."""
        self.session, self.job, self.parts, self.n_threads = session, job, parts, n_threads
        self.workers: list[Worker] = []
        self.n_hired = 0
        self.asked: dict[Any, tuple[Worker, int | None]] = {}  # answer -> the worker that owes it, and for which item
        self.tries: Counter[tuple[int, int | None]] = Counter()  # of (part, item)

    def predict(self, items: Sequence[tuple[int, int]]) -> Iterator[TopK]:
        """Yield the labels of each item (first row, end), in order; few items are in memory at a time."""
        try:
            self._hire(len(items))
            todo: list[deque[int]] = [deque() for _ in self.parts]
            answers: dict[int, list[TopK | None]] = {}
            n_dealt = 0
            for item in range(len(items)):
                while item not in answers or None in answers[item]:
                    window = item + (ITEMS_A_WORKER + 1) * max(1, len(self.workers) // len(self.parts))
                    for new in range(n_dealt, min(window, len(items))):
                        answers[new] = [None] * len(self.parts)
                        for queue in todo:
                            queue.append(new)
                        n_dealt = new + 1
                    self._deal(todo, items)
                    self._take_answers(todo, answers)
                yield merge([top for top in answers.pop(item) if top is not None], self.job.k)
        finally:
            if ray.is_initialized():  # else they ended with the session
                for worker in self.workers:
                    ray.kill(worker.actor)

    def _hire(self, n_items: int) -> None:
        """Start as many teams, of one worker for each part, as there are nodes for, but not more than items."""
        nodes = self.session.nodes()
        n_teams = max(1, min(len(nodes) // len(self.parts), n_items))
        dealt = [nodes[i % len(nodes)] for i in range(n_teams * len(self.parts))]
        for i, node in enumerate(dealt):
            n_here = dealt.count(node)
            share = node.n_cpus // n_here or np.floor(1000 * node.n_cpus / n_here) / 1000
            self._start(i % len(self.parts), node, self.n_threads or max(1, int(share)), share)

    def _start(self, part: int, node: Node, n_threads: int, n_cpus: float) -> None:
        options = on_node(node, soft=True) | {"num_cpus": n_cpus, "max_concurrency": ITEMS_A_WORKER}

        def create() -> Any:
            self.n_hired += 1
            name = f"xmlpreck-predict-{self.n_hired}-{self.session.job}"
            actor = ray.remote(Predictor).options(name=name, **options)
            return actor.remote(self.job, self.parts[part], n_threads)

        worker = Worker(hire(create), part, node, n_threads)
        self.asked[worker.actor.open.remote()] = worker, None
        self.workers.append(worker)

    def _deal(self, todo: list[deque[int]], items: Sequence[tuple[int, int]]) -> None:
        """Give items, in order, to the workers that have the fewest."""
        for part, queue in enumerate(todo):
            while queue:
                free = [worker for worker in self.workers if worker.part == part and worker.is_open]
                worker = min(free, key=lambda worker: worker.n_items, default=None)
                if worker is None or worker.n_items == ITEMS_A_WORKER:
                    break
                item = queue.popleft()
                start, stop = items[item]
                call = worker.actor.predict.options(name=f"predict rows {start} to {stop - 1}")
                self.asked[call.remote(start, stop)] = worker, item
                worker.n_items += 1

    def _take_answers(self, todo: list[deque[int]], answers: dict[int, list[TopK | None]]) -> None:
        """Wait for an answer; the items of a lost worker are put back in front."""
        ready, _ = ray.wait(list(self.asked), timeout=PATIENCE_SECONDS)
        if not ready and len({worker.part for worker in self.workers if worker.is_open}) < len(self.parts):
            self.session.tell("still waiting for workers: the nodes' CPUs may be taken (see ray status)")
        for answer in ready:
            worker, item = self.asked.pop(answer)
            try:
                found = result_of(answer)
            except ray.exceptions.RayTaskError:  # raised by our own code
                raise
            except ray.exceptions.RayError as error:
                self._replace(worker, item, error)
                if item is not None:
                    todo[worker.part].appendleft(item)
                continue
            if item is None:
                worker.is_open = True
            else:
                worker.n_items -= 1
                answers[item][worker.part] = found

    def _replace(self, worker: Worker, item: int | None, error: Exception) -> None:
        self.tries[worker.part, item] += 1
        if self.tries[worker.part, item] >= MAX_TRIES:
            raise InputError(
                f"a worker was lost {MAX_TRIES} times over the same work, at last on node {worker.node.name} "
                f"({in_short(error)}): if memory is short, use more --label-shards"
            )
        if worker in self.workers:  # it may owe several answers
            self.session.tell(f"a worker on node {worker.node.name} is lost: its rows are predicted again")
            self.workers.remove(worker)
            ray.kill(worker.actor)
            # It asks for no CPUs: if its node is gone, the other workers hold all that there are.
            self._start(worker.part, worker.node, worker.n_threads, n_cpus=0)


def predict_rows(
    session: Session,
    model: str | Path,
    shared: SharedRows,
    rows: RowSource,
    choice: Choice,
    block_rows: int,
    *,
    label_shards: int | None = None,
    n_threads: int = 0,
    progress: bool = False,
) -> Iterator[tuple[range, TopK]]:
    """Yield the numbers and labels of all rows, in blocks; `rows` are those of `shared`, opened by the driver."""
    folder = Path(model).absolute()
    scorer = open_without_weights(folder)
    if rows.n_features != scorer.n_features:
        raise ModelError(f"rows have {rows.n_features} features, but the model was trained on {scorer.n_features}")
    choice.finish(NO_ROWS, scorer)  # before any work: an uncalibrated model has no probabilities
    parts = choose_parts(session, folder, scorer.n_labels, label_shards)
    k = min(choice.k, scorer.n_labels)
    job = Job(str(folder), file_sha256(folder / "model.json"), shared, k, choice.bonus, choice.guess_empty)
    items = [(start, min(start + ITEM_ROWS, rows.n_rows)) for start in range(0, rows.n_rows, ITEM_ROWS)]
    tops = Pool(session, job, parts, n_threads).predict(items)
    with progress_bar(rows.n_rows, "predict", progress) as bar:
        for start in range(0, rows.n_rows, block_rows):
            top = TopK(*map(np.concatenate, zip(*islice(tops, block_rows // ITEM_ROWS), strict=True)))
            yield range(start, start + len(top.labels)), choice.finish(top, scorer)
            bar.update(len(top.labels))


class ClusterRankings(Rankings):
    """The labels of each row, as a cluster predicts them."""

    def __init__(self, path: str, tops: Iterator[TopK], source: RowSource) -> None:
        self.path, self.tops = path, tops
        self.seen = seen_rows(open_without_weights(path), source)
        self.longest, self.model, self.file = 0, None, None

    def _rankings(self) -> Iterator[TopK]:
        return self.tops
