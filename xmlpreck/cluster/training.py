"""Training on a Ray cluster: the labels are divided among shards, and the driver chooses the steps of every batch.

A shard scores its labels and sends the relevant labels' scores and its k best others. The driver merges them, chooses
as one machine would, and sends (label, coefficient) pairs back. No score depends on the labels of another shard, and
the order of sums is that of one machine: so are the bits.

Who is lost is replaced: a new shard takes over the part of the last checkpoint and applies the steps chosen since, of
which the driver keeps a log, while the others wait.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray

from xmlpreck import metrics
from xmlpreck.cluster.merging import choose, join_labels, split_pairs
from xmlpreck.cluster.parts import cut_evenly, merge
from xmlpreck.cluster.rows import Place
from xmlpreck.cluster.session import Session, hire, in_short, on_node, result_of
from xmlpreck.cluster.shard import Census, LabelShard, Pairs, check_part, part_prefix, refuse_relevance
from xmlpreck.config import InputError, RunConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.data.rows import RowSource
from xmlpreck.files.atomic import scratch_folder
from xmlpreck.files.progress import progress_bar
from xmlpreck.kernels.arrays import BLOCK, STEPS, Proposals, Settings, Weights
from xmlpreck.model import Model
from xmlpreck.model.layout import have_dense_rows, with_dense_rows
from xmlpreck.model.model import BLOCK_ROWS
from xmlpreck.train import PassFacts, Plan, PreparedRows, Safety, TrainingError, format_bytes
from xmlpreck.train.checkpoint import Saved, read_arrays
from xmlpreck.train.passes import Cursor
from xmlpreck.train.run import Keeper, identity_of, open_training_rows, run_info
from xmlpreck.train.trainer import pass_settings, tail_weights

# A batch is proposed in so many parts: while the driver merges one, the shards score the next.
PARTS_A_BATCH = 2
LOG_BYTES = 1 << 30  # of steps since the last checkpoint; with more, one is written
REPLAYED = 64  # batches in a message
MOST_TRIES = 4  # to bring one shard back, without a batch in between
COUNT_STEPS = 64  # counts for which the expected support is worked out; between them it is interpolated


def fit(
    session: Session,
    place: Place,
    source: RowSource,
    config: RunConfig,
    label_shards: int | None,
    safety: Safety,
    on_pass: Callable[[PassFacts], None] = lambda facts: None,
    progress: bool = False,
    tuning: dict[str, Any] | None = None,
) -> Model:
    """What train.fit does, on a cluster; `source` is what the driver has opened of `place`."""
    if safety.checkpoints is None:
        raise TrainingError("training on a cluster needs checkpoints: lost shards are restored from them")
    refuse_settings(config, safety)
    if isinstance(source, Dataset):  # the nodes open files, whose labels all count 1
        refuse_relevance(source)
    rows, heldout = open_training_rows(source, config)
    saved = safety.checkpoints.last() if safety.resume else None
    edges = edges_of(saved, label_shards, rows.n_labels) if saved is not None else None
    n_shards = len(edges) - 1 if edges else label_shards or min(len(session.nodes()), n_blocks_of(rows.n_labels))
    check_shards(rows.n_labels, n_shards)
    trainer = ClusterTrainer(session, place, rows, config, n_shards)
    try:
        survey = trainer.divide(edges)
        identity = identity_of(config, survey) | {"edges": trainer.edges, "cut": None}
        keeper = Keeper(trainer, identity, safety, tuning)
        keeper.on_saved = trainer.saved_in
        if saved is not None:
            keeper.check(saved.about)
            trainer.restore(saved.about["trainer"], saved.folder)
            del saved  # its files are mapped
        else:
            trainer.start()
        while trainer.n_passes < config.train.epochs:
            facts = trainer.run_pass(progress, keeper.pause, keeper.save)
            if heldout.n_rows:
                facts = replace(facts, heldout=trainer.score_heldout(heldout))
            on_pass(facts)
            keeper.end_pass(facts)
        weights = trainer.finish(safety.checkpoints.folder)
    finally:
        trainer.close()
    return Model(weights, config.rows, source.label_names, source.feature_names, run_info(config, survey, keeper))


def edges_of(saved: Saved, label_shards: int | None, n_labels: int) -> list[int]:
    """Where the labels were cut in a run that goes on."""
    edges = saved.about["identity"].get("edges")
    if edges is None:
        raise InputError(f"{saved.folder}: is of a run on one machine: resume it without --engine ray")
    if label_shards not in (None, len(edges) - 1):
        raise InputError(
            f"{saved.folder}: has {len(edges) - 1} label shards: resume it with as many, not {label_shards}"
        )
    rises = all(first < last and first % BLOCK == 0 for first, last in pairwise(edges))
    if not rises or edges[0] != 0 or edges[-1] != n_labels:
        raise InputError(f"{saved.folder}: its label shards are not of {n_labels} labels: delete it to start over")
    return edges


def n_blocks_of(n_labels: int) -> int:
    return -(-n_labels // BLOCK)


def check_shards(n_labels: int, n_shards: int) -> None:
    n_blocks = n_blocks_of(n_labels)
    if n_shards > n_blocks:
        what = f"{n_labels} labels are {n_blocks} blocks of {BLOCK}, and a shard has one or more"
        raise InputError(f"--label-shards {n_shards}: {what}: ask for at most {n_blocks}")


def refuse_settings(config: RunConfig, safety: Safety) -> None:
    """What needs all weights in one place."""
    if config.train.radius:
        raise InputError("radius needs the length of all weights after every batch: leave it 0 with --engine ray")
    if safety.memory:
        raise InputError("--memory is of this machine: what nodes may use, Ray is told (ray start --memory)")
    if safety.fit_memory:
        raise InputError("--fit-memory compares the weights of all labels: with --engine ray use more --label-shards")


def expected_support(census: Census, n_rows: int) -> np.ndarray:
    """How many features each label would have, if features fell to rows by chance: sum_f 1 - (1 - p_f)^count."""
    most = max(int(census.label_counts.max(initial=0)), 1)
    counts = np.unique(np.geomspace(1, most, COUNT_STEPS).round())
    rare = np.log1p(-np.minimum(census.feature_counts[census.feature_counts > 0] / n_rows, 1 - 1e-9))
    sizes = [float(-np.expm1(count * rare).sum()) for count in counts]
    return np.interp(census.label_counts, [0, *counts], [0, *sizes])


def cut_labels(costs: np.ndarray, n_shards: int) -> list[int]:
    """Edges of contiguous shards of about the same cost; each begins at a whole block of the kernels."""
    block_costs = np.add.reduceat(costs, np.arange(0, len(costs), BLOCK))
    return [min(edge * BLOCK, len(costs)) for edge in cut_evenly(block_costs, n_shards)]


class Begin(NamedTuple):
    """An entry of the log: a pass goes on from here, with a batch of this number."""

    cursor: Cursor
    batch: int


class ClusterTrainer:
    """The driver's side of training: shards on nodes, the choice of steps, and the log of those since a checkpoint."""

    def __init__(self, session: Session, place: Place, rows: PreparedRows, config: RunConfig, n_shards: int) -> None:
        self.session, self.place, self.rows, self.config, self.n_shards = session, place, rows, config, n_shards
        self.nodes = session.nodes()
        self.actors: list[Any] = []
        self.n_hired = 0
        self.tries: Counter[int] = Counter()  # to bring each shard back, since the last batch
        # What a new shard is told, as far as the others have come.
        self.ranges: list[range] = []
        self.is_dense: np.ndarray | None = None
        self.started = False
        self.base: tuple[Path, Cursor] | None = None  # the checkpoint that it begins with, and how far that had come
        self.log: list[Begin | list[Pairs]] = []  # and the steps since, for every shard
        self.log_bytes, self.log_limit = 0, LOG_BYTES
        self.pending: list[Pairs] | None = None  # the last of these, if they are not yet on their way

        self.label_counts, self.feature_counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.label_weights = np.zeros(0, np.float32)
        self.n_passes, self.cursor = 0, Cursor()
        self.n_batches = 0  # of all passes

    def divide(self, edges: list[int] | None) -> dict[str, object]:
        """Give every shard its labels, of about equal support or as in a run before; returns a survey of the rows."""
        self.actors = [self._hire(shard) for shard in range(self.n_shards)]
        dealt = [(range(shard, self.rows.n_blocks, self.n_shards),) for shard in range(self.n_shards)]
        counted = self._ask_all("count", each=dealt)
        census = Census(*(np.sum(counts, axis=0) for counts in zip(*counted, strict=True)))
        self.label_counts, self.feature_counts = census
        self.edges = edges or cut_labels(1 + expected_support(census, self.rows.n_rows), self.n_shards)
        ranges = [range(first, last) for first, last in pairwise(self.edges)]
        told = [(labels, shard == 0) for shard, labels in enumerate(ranges)]
        lengths, surveys = zip(*self._ask_all("find_support", each=told), strict=True)
        self.ranges = ranges
        is_dense = have_dense_rows(np.sum(lengths, axis=0), self.rows.n_labels)
        self._tell_plan(self._ask_all("prepare", is_dense, self.feature_counts))
        self.is_dense = is_dense
        if self.config.train.favour == "tail":
            self.label_weights = tail_weights(self.label_counts, self.rows.n_rows).astype(np.float32)
        return surveys[0]

    def _tell_plan(self, plans: list[tuple[str, Plan]]) -> None:
        """What every node will need; more than it has is refused."""
        n_weights = sum(plan.n_weights for _, plan in plans)
        most = max(plan.n_weights for _, plan in plans) * len(plans) / max(n_weights, 1)
        self.session.tell(f"{n_weights:,} weights in {len(plans)} label shards; the largest has {most:.2f} of the mean")
        memory_of = {node.name: node.memory for node in self.nodes}
        for name in dict.fromkeys(name for name, _ in plans):
            here = [shard for shard, (node, _) in enumerate(plans) if node == name]
            need = sum(plans[shard][1].peak_bytes for shard in here)
            text = f"node {name}: label shards {', '.join(map(str, here))} need {format_bytes(need)} at the peak"
            has = memory_of.get(name, need)
            if need > has:
                raise InputError(f"{text}, but Ray has {format_bytes(has)} there: use more nodes and --label-shards")
            self.session.tell(f"{text}, of {format_bytes(has)}")

    def start(self) -> None:
        """A new run."""
        self.started = True
        counts = [(self.label_counts[labels.start : labels.stop],) for labels in self.ranges]
        self._ask_all("start", each=counts, again=False)

    def restore(self, facts: dict[str, Any], folder: Path) -> None:
        """Go on from a checkpoint."""
        self.cursor = Cursor.of(facts, self.rows, self.config.train.seed)
        self.n_passes = facts["n_passes"]
        self.started, self.base = True, self._base(folder)
        self._ask_all("restore", *self.base, again=False)
        self.n_batches = int(read_arrays(folder, part_prefix(0))["clock"][STEPS])

    def _base(self, folder: Path) -> tuple[Path, Cursor]:
        return folder.absolute(), replace(self.cursor)  # a node works in a folder of its own

    # --- a pass ------------------------------------------------------------------------------------------------------

    def run_pass(self, progress: bool, pause: Callable[[], None], save: Callable[[], None]) -> PassFacts:
        """Train once on all rows, or go on with a pass that was begun; see Trainer.run_pass.

        `save` is called when the log has grown too long.
        """
        if self.cursor.number == self.n_passes:
            self.cursor = Cursor(self.n_passes + 1)
        cursor = self.cursor
        settings = pass_settings(self.config.train, cursor.number, self.rows.n_labels, self.label_weights)
        self._begin()
        busy = spent = 0.0
        with progress_bar(self.rows.n_rows, f"pass {cursor.number}", progress) as bar:
            bar.update(min(cursor.rows_seen, self.rows.n_rows))
            for batch, ends_block in enumerate(self._batches()):
                since = time.perf_counter()
                busy += self._train_batch(batch, settings)
                if ends_block:
                    cursor.n_blocks, cursor.n_rows = cursor.n_blocks + 1, 0
                seconds = time.perf_counter() - since
                cursor.seconds += seconds
                spent += seconds
                bar.update(cursor.rows_seen - bar.n)
                self.next_batch = batch + 1
                if self.log_bytes > self.log_limit:
                    self.log_limit = self.log_bytes + LOG_BYTES  # if there is no room for it, not after every batch
                    save()
                pause()
        self.check_finite()
        self.n_passes = cursor.number
        return replace(cursor.facts(self.rows.n_rows), communication=1 - busy / max(spent, 1e-9))

    def _begin(self) -> None:
        """All shards go to where the cursor is."""
        self.next_batch = 0
        begin = Begin(replace(self.cursor), self.next_batch)
        self.log.append(begin)
        self._ask_all("begin_pass", *begin)

    def _batches(self) -> Iterator[bool]:
        """Of each batch that the pass has before it, whether its block ends with it."""
        cursor, batch_rows = self.cursor, self.config.train.batch_rows
        order = np.random.default_rng([self.config.train.seed, cursor.number]).permutation(self.rows.n_blocks)
        n_done = cursor.n_rows
        for block in order[cursor.n_blocks :]:
            n_rows = self.rows.block_length(block)
            for first in range(n_done, n_rows, batch_rows):
                yield first + batch_rows >= n_rows
            n_done = 0

    def _train_batch(self, number: int, settings: Settings) -> float:
        """Ask all shards, choose the steps; returns the seconds for which the slowest of them computed."""
        pending, self.pending = self.pending, None

        def propose(shard: int, part: int, pairs: Pairs | None = None) -> Any:
            return self.actors[shard].propose.remote(number, part, PARTS_A_BATCH, pairs)

        calls = [[propose(shard, 0, pending[shard] if pending else None) for shard in range(self.n_shards)]]
        for part in range(1, PARTS_A_BATCH):
            calls.append([propose(shard, part) for shard in range(self.n_shards)])
        seconds = np.zeros(self.n_shards)
        chosen = []
        for part in range(PARTS_A_BATCH):

            def ask_again(shard: int, part: int = part) -> Any:
                """This part and those after it; the log has what went with the first."""
                for later in range(part, PARTS_A_BATCH):
                    calls[later][shard] = propose(shard, later)
                return calls[part][shard]

            answers = self._answers(calls[part], ask_again)
            seconds += [answer.seconds for answer in answers]
            proposals = [Proposals(*map(np.array, answer.proposals)) for answer in answers]  # Ray's are read-only
            chosen.append(choose(proposals, settings, self.n_batches))
            self.cursor.add(chosen[-1].batch, chosen[-1].n_labels_of)
        self.pending = split_pairs(chosen, self.ranges)
        self.log.append(self.pending)
        self.log_bytes += sum(pairs.n_bytes for pairs in self.pending)
        self.n_batches += 1
        self.tries.clear()
        return float(seconds.max())

    def _flush(self) -> None:
        """Steps that are chosen are applied."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            self._ask_all("apply", each=[(pairs,) for pairs in pending], again=False)

    def check_finite(self) -> None:
        self._flush()
        self._ask_all("check_finite")

    def score_heldout(self, heldout: RowSource) -> dict[str, float]:
        """P@k of the mean of the weights so far."""
        meter = metrics.Meter(
            heldout.n_labels, [k for k in metrics.REPORTED_KS if k <= heldout.n_labels], n_resamples=0
        )
        for start in range(0, heldout.n_rows, BLOCK_ROWS):
            stop, k = min(start + BLOCK_ROWS, heldout.n_rows), max(meter.ks)
            meter.add(merge(self._ask_all("predict_heldout", start, stop, k), k), heldout.read(start, stop).labels)
        return meter.precision()

    def write_arrays(self, folder: Path) -> dict[str, str]:
        """A checkpoint: every shard writes its part."""
        self._flush()
        return {name: digest for part in self._ask_all("write", folder.absolute()) for name, digest in part.items()}

    def saved_in(self, folder: Path) -> None:
        """A checkpoint is complete: the log begins anew."""
        self.base, self.log, self.log_bytes, self.log_limit = self._base(folder), [], 0, LOG_BYTES
        if self.cursor.number > self.n_passes:
            self.log.append(Begin(replace(self.cursor), self.next_batch))

    def finish(self, scratch: Path) -> Weights:
        """The weights of all labels; every shard writes its own into a folder in `scratch`."""
        with scratch_folder(scratch.absolute() / "finished") as folder:
            parts = [check_part(folder, shard, hashes) for shard, hashes in enumerate(self._ask_all("finish", folder))]
            return with_dense_rows(join_labels(parts, self.ranges))

    # --- shards ------------------------------------------------------------------------------------------------------

    def _hire(self, shard: int) -> Any:
        """An actor for a shard, on a node of its own as far as there are so many; elsewhere if that node is gone."""
        node = self.nodes[shard % len(self.nodes)]
        n_here = len(range(shard % len(self.nodes), self.n_shards, len(self.nodes)))
        n_threads = self.config.train.threads or max(1, node.n_cpus // n_here)
        # An actor that asks for nothing at all goes to any node, whatever it is told: so a byte.
        wanted = on_node(node, soft=True) | {"num_cpus": 0, "memory": 1}

        def create() -> Any:
            self.n_hired += 1
            name = f"xmlpreck-labels-{shard}-{self.n_hired}-{self.session.job}"
            return ray.remote(LabelShard).options(name=name, **wanted).remote(shard, self.place, self.config, n_threads)

        return hire(create)

    def close(self) -> None:
        if ray.is_initialized():  # else they went with the session
            for actor in self.actors:
                ray.kill(actor)

    def _ask_all(
        self, method: str, *args: Any, each: Sequence[tuple[Any, ...]] | None = None, again: bool = True
    ) -> list[Any]:
        """Every shard's answer to a call. Who is lost is brought back, and asked again unless that was part of it."""
        args_of = [(*args, *(each[shard] if each else ())) for shard in range(self.n_shards)]

        def ask(shard: int) -> Any:
            return getattr(self.actors[shard], method).remote(*args_of[shard])

        def ask_again(shard: int) -> Any:
            return ask(shard) if again else ray.put(None)

        return self._answers([ask(shard) for shard in range(self.n_shards)], ask_again)

    def _answers(self, calls: Sequence[Any], ask_again: Callable[[int], Any]) -> list[Any]:
        """Return what every shard has answered; those that are lost are brought back first, all at once."""
        try:
            return ray.get(list(calls))
        except ray.exceptions.RayError:  # whose?
            answers: list[Any] = [None] * len(calls)
            waiting = dict(enumerate(calls))
            while waiting:
                lost = self._take(waiting, answers)
                self._bring_back(lost)
                waiting = {shard: ask_again(shard) for shard in lost}
            return answers

    def _take(self, asked: dict[int, Any], answers: list[Any]) -> dict[int, Exception]:
        """Wait for the answers of some shards; returns those that are lost, and what Ray said."""
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
        """Make new actors in the state that the lost ones would have after all calls.

        A process takes seconds to start, so all of them start before the first is waited for.
        """
        while lost:
            for shard, error in lost.items():
                self.tries[shard] += 1
                if self.tries[shard] > MOST_TRIES:
                    what = f"label shard {shard} was lost {MOST_TRIES} times at the same place"
                    raise InputError(f"{what} ({in_short(error)})") from None
            n_batches = sum(not isinstance(entry, Begin) for entry in self.log)
            for shard in lost:
                restored = f"it is restored, and {n_batches} batches are applied again"
                self.session.tell(f"label shard {shard} is lost: {restored}")
                ray.kill(self.actors[shard])
            alive = {node.id for node in self.session.nodes()}
            self.nodes = [node for node in self.nodes if node.id in alive] or self.session.nodes()
            for shard in lost:
                self.actors[shard] = self._hire(shard)
            lost = self._rebuild([*lost])

    def _rebuild(self, shards: Sequence[int]) -> dict[int, Exception]:
        """Tell new actors what the lost ones knew, side by side; returns those that are lost meanwhile."""
        lost: dict[int, Exception] = {}
        steps = {shard: self._steps_of(shard) for shard in shards}
        while steps:
            asked = {}
            for shard in [*steps]:
                if (step := next(steps[shard], None)) is None:
                    del steps[shard]
                else:
                    asked[shard] = getattr(self.actors[shard], step[0]).remote(*step[1:])
            lost_now = self._take(asked, [None] * self.n_shards)
            lost |= lost_now
            for shard in lost_now:
                del steps[shard]
        return lost

    def _steps_of(self, shard: int) -> Iterator[tuple[Any, ...]]:
        """Yield the calls (method, arguments) that bring a new actor to where the others are."""
        if self.ranges:
            yield "find_support", self.ranges[shard], False
        if self.is_dense is not None:
            yield "prepare", self.is_dense, self.feature_counts
        if self.started and self.base is None:
            labels = self.ranges[shard]
            yield "start", self.label_counts[labels.start : labels.stop]
        elif self.base is not None:
            yield "restore", *self.base
        steps: list[Pairs] = []
        for entry in [*self.log, None]:
            if not isinstance(entry, list) or len(steps) == REPLAYED:
                yield "replay", steps
                steps = []
            if isinstance(entry, Begin):
                yield "begin_pass", *entry
            elif entry is not None:
                steps.append(entry[shard])
