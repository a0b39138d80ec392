"""Prediction on a Ray cluster: rows are dealt out to workers, and so are the labels of a model that no node can hold.

Each worker opens model and rows itself, by path. A worker's answer depends on its rows and labels alone, and parts are
merged by score, then lower label: the bits are those of one machine, however the work was dealt and who was lost.
"""

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import ray

from xmlpreck.cluster.parts import Part, among_all, choose_parts, load_part, merge, open_without_weights
from xmlpreck.cluster.rows import Place
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
MOST_TRIES = 4  # of an item whose workers are lost
NO_ROWS = TopK(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32))


@dataclass(frozen=True)
class Order:
    """What every worker is told: where model and rows are and what they must be, and how many labels a row gets."""

    model: str
    model_digest: str  # sha256 of its model.json, which has those of all other files
    rows: Place
    k: int
    bonus: np.ndarray | None = None
    guess_empty: bool = False


class Worker:
    """A process on a node, with all labels of a model or some, that predicts the rows it is asked for."""

    def __init__(self) -> None:
        self.predicting = threading.Lock()
        give_memory_back()

    def open(self, order: Order, part: Part | None, n_threads: int) -> None:
        self.order, self.part, self.n_threads = order, part, n_threads
        need_path(order.model)
        folder = Path(order.model)
        if file_sha256(folder / "model.json") != order.model_digest:
            raise InputError(f"node {this_node()}: {folder}: is not the model that the driver has: copy it anew")
        self.scorer = Model.load(folder) if part is None else load_part(folder, part)
        self.bonus = order.bonus if part is None or order.bonus is None else order.bonus[part.first : part.last]
        self.rows = order.rows.open()

    def predict(self, start: int, stop: int) -> TopK:
        block = self.rows.read(start, stop)
        with self.predicting:
            top = self.scorer.predict_topk(
                block.rows, self.order.k, self.n_threads, self.bonus, guess_empty=self.order.guess_empty
            )
        if self.part is None:
            return top
        return among_all(top, self.part.first)


@dataclass(eq=False)
class Hand:
    """A worker as the driver knows it."""

    actor: Any
    part: int
    node: Node
    n_threads: int
    is_open: bool = False
    n_items: int = 0  # that it is busy with


class Crew:
    """Workers on all nodes, who get items as they are done with others; who is lost is replaced."""

    def __init__(self, session: Session, order: Order, parts: Sequence[Part | None], n_threads: int = 0) -> None:
        """`n_threads` for each worker; 0 = it shares the cores of its node with the other workers there."""
        self.session, self.order, self.parts, self.n_threads = session, order, parts, n_threads
        self.hands: list[Hand] = []
        self.n_hired = 0
        self.asked: dict[Any, tuple[Hand, int | None]] = {}  # answer -> who owes it, and for which item
        self.tries: Counter[tuple[int, int | None]] = Counter()  # of (part, item)

    def predict(self, items: Sequence[tuple[int, int]]) -> Iterator[TopK]:
        """The labels of each item (first row, end), in order; of few items at a time there are answers in memory."""
        try:
            self._hire(len(items))
            todo: list[deque[int]] = [deque() for _ in self.parts]
            answers: dict[int, list[TopK | None]] = {}
            n_dealt = 0
            for item in range(len(items)):
                while item not in answers or None in answers[item]:
                    window = item + (ITEMS_A_WORKER + 1) * max(1, len(self.hands) // len(self.parts))
                    for new in range(n_dealt, min(window, len(items))):
                        answers[new] = [None] * len(self.parts)
                        for queue in todo:
                            queue.append(new)
                        n_dealt = new + 1
                    self._deal(todo, items)
                    self._take_answers(todo, answers)
                yield merge([top for top in answers.pop(item) if top is not None], self.order.k)
        finally:
            if ray.is_initialized():  # else they went with the session
                for hand in self.hands:
                    ray.kill(hand.actor)

    def _hire(self, n_items: int) -> None:
        """Each part as often as there are nodes for all parts, but not more often than there are items."""
        nodes = self.session.nodes()
        n_teams = max(1, min(len(nodes) // len(self.parts), n_items))
        places = [nodes[i % len(nodes)] for i in range(n_teams * len(self.parts))]
        for i, node in enumerate(places):
            n_here = places.count(node)
            share = node.n_cpus // n_here or np.floor(1000 * node.n_cpus / n_here) / 1000
            self._start(i % len(self.parts), node, self.n_threads or max(1, int(share)), share)

    def _start(self, part: int, node: Node, n_threads: int, n_cpus: float) -> None:
        options = on_node(node, soft=True) | {"num_cpus": n_cpus, "max_concurrency": ITEMS_A_WORKER}

        def create() -> Any:
            self.n_hired += 1
            name = f"xmlpreck-predict-{self.n_hired}-{self.session.job}"
            return ray.remote(Worker).options(name=name, **options).remote()

        hand = Hand(hire(create), part, node, n_threads)
        self.asked[hand.actor.open.remote(self.order, self.parts[part], n_threads)] = hand, None
        self.hands.append(hand)

    def _deal(self, todo: list[deque[int]], items: Sequence[tuple[int, int]]) -> None:
        """Items to those who have the fewest, in order."""
        for part, queue in enumerate(todo):
            while queue:
                free = [hand for hand in self.hands if hand.part == part and hand.is_open]
                hand = min(free, key=lambda hand: hand.n_items, default=None)
                if hand is None or hand.n_items == ITEMS_A_WORKER:
                    break
                item = queue.popleft()
                start, stop = items[item]
                call = hand.actor.predict.options(name=f"predict rows {start} to {stop - 1}")
                self.asked[call.remote(start, stop)] = hand, item
                hand.n_items += 1

    def _take_answers(self, todo: list[deque[int]], answers: dict[int, list[TopK | None]]) -> None:
        """Wait for an answer; what a lost worker owed is put back in front."""
        ready, _ = ray.wait(list(self.asked), timeout=PATIENCE_SECONDS)
        if not ready and len({hand.part for hand in self.hands if hand.is_open}) < len(self.parts):
            self.session.tell("still waiting for workers: the nodes' CPUs may be taken (see ray status)")
        for answer in ready:
            hand, item = self.asked.pop(answer)
            try:
                found = result_of(answer)
            except ray.exceptions.RayTaskError:  # raised by our own code
                raise
            except ray.exceptions.RayError as error:
                self._replace(hand, item, error)
                if item is not None:
                    todo[hand.part].appendleft(item)
                continue
            if item is None:
                hand.is_open = True
            else:
                hand.n_items -= 1
                answers[item][hand.part] = found

    def _replace(self, hand: Hand, item: int | None, error: Exception) -> None:
        self.tries[hand.part, item] += 1
        if self.tries[hand.part, item] >= MOST_TRIES:
            raise InputError(
                f"a worker was lost {MOST_TRIES} times over the same work, at last on node {hand.node.name} "
                f"({in_short(error)}): if memory is short, use more --label-shards"
            )
        if hand in self.hands:  # it may owe several answers
            self.session.tell(f"a worker on node {hand.node.name} is lost: its rows are predicted again")
            self.hands.remove(hand)
            ray.kill(hand.actor)
            # It asks for no CPUs: if its node is gone, the other workers hold all that there are.
            self._start(hand.part, hand.node, hand.n_threads, n_cpus=0)


def predict_rows(
    session: Session,
    model: str | Path,
    place: Place,
    rows: RowSource,
    choice: Choice,
    block_rows: int,
    *,
    label_shards: int | None = None,
    n_threads: int = 0,
    progress: bool = False,
) -> Iterator[tuple[range, TopK]]:
    """The numbers and the labels of all rows, in blocks; `rows` are those of `place`, as the driver has opened them."""
    folder = Path(model).absolute()
    scorer = open_without_weights(folder)
    if rows.n_features != scorer.n_features:
        raise ModelError(f"rows have {rows.n_features} features, but the model was trained on {scorer.n_features}")
    choice.finish(NO_ROWS, scorer)  # before any work: an uncalibrated model has no probabilities
    parts = choose_parts(session, folder, scorer.n_labels, label_shards)
    k = min(choice.k, scorer.n_labels)
    order = Order(str(folder), file_sha256(folder / "model.json"), place, k, choice.bonus, choice.guess_empty)
    items = [(start, min(start + ITEM_ROWS, rows.n_rows)) for start in range(0, rows.n_rows, ITEM_ROWS)]
    tops = Crew(session, order, parts, n_threads).predict(items)
    with progress_bar(rows.n_rows, "predict", progress) as bar:
        for start in range(0, rows.n_rows, block_rows):
            top = TopK(*map(np.concatenate, zip(*islice(tops, block_rows // ITEM_ROWS), strict=True)))
            yield range(start, start + len(top.labels)), choice.finish(top, scorer)
            bar.update(len(top.labels))


class ClusterRankings(Rankings):
    """The labels of each row, as they come from a cluster."""

    def __init__(self, path: str, tops: Iterator[TopK], source: RowSource) -> None:
        self.path, self.tops = path, tops
        self.seen = seen_rows(open_without_weights(path), source)
        self.longest, self.model, self.file = 0, None, None

    def _rankings(self) -> Iterator[TopK]:
        return self.tops
