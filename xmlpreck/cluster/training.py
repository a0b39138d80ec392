"""Training on a Ray cluster: the labels are divided among shards, and the driver chooses the steps of every batch.

A shard scores its labels and sends the relevant labels' scores and its k best others. The driver merges them, chooses
as one machine would, and sends (label, coefficient) pairs back. No score depends on the labels of another shard, and
the order of sums is that of one machine: so are the bits.

A lost shard is replaced: a new one takes over the part of the last checkpoint and applies the steps chosen since, which
the driver keeps in a log, while the others wait.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from xmlpreck import metrics
from xmlpreck.cluster.log import Log
from xmlpreck.cluster.merging import Chosen, choose, join_labels, split_pairs
from xmlpreck.cluster.parts import cut_evenly, merge
from xmlpreck.cluster.rows import SharedRows
from xmlpreck.cluster.session import Session
from xmlpreck.cluster.shard import Census, Pairs, check_part, part_prefix, refuse_relevance
from xmlpreck.cluster.shards import Shards
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
from xmlpreck.train.emphasis import tail_weights
from xmlpreck.train.keeper import Keeper, identity_of
from xmlpreck.train.passes import Cursor
from xmlpreck.train.room import open_training_rows
from xmlpreck.train.run import OnPass, run_info, run_passes
from xmlpreck.train.trainer import pass_settings

# Parts in which a batch is proposed: while the driver merges one, the shards score the next.
PARTS_A_BATCH = 2
COUNT_STEPS = 64  # counts for which the expected support is worked out; between them it is interpolated


def fit(
    session: Session,
    shared: SharedRows,
    source: RowSource,
    config: RunConfig,
    label_shards: int | None,
    safety: Safety,
    on_pass: OnPass = lambda facts: None,
    progress: bool = False,
    tuning: dict[str, Any] | None = None,
) -> Model:
    """Do what train.fit does, on a cluster; `source` is what the driver has opened of `shared`."""
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
    log = Log()
    shards = Shards(session, shared, config, n_shards, log)
    trainer = ClusterTrainer(rows, config, shards, log)
    try:
        survey = trainer.divide(edges)
        identity = identity_of(config, survey) | {"edges": trainer.edges, "cut": None}
        keeper = Keeper(trainer, identity, safety, tuning)
        if saved is not None:
            keeper.check(saved.about)
            trainer.restore(saved.about["trainer"], saved.folder)
            del saved  # its files are mapped
        else:
            trainer.start()

        def run_pass() -> PassFacts:
            return trainer.run_pass(progress, keeper.pause)

        def score_heldout() -> dict[str, float]:
            return trainer.score_heldout(heldout)

        run_passes(keeper, config.train.n_passes, run_pass, score_heldout if heldout.n_rows else None, on_pass)
        weights = trainer.finish(safety.checkpoints.folder)
    finally:
        shards.close()
    return Model(weights, config.rows, source.label_names, source.feature_names, run_info(config, survey, keeper))


def edges_of(saved: Saved, label_shards: int | None, n_labels: int) -> list[int]:
    """Return the edges of the label shards of a run that is resumed."""
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
    """Refuse settings that need all weights on one machine."""
    if config.train.radius:
        raise InputError("radius needs the length of all weights after every batch: leave it 0 with --engine ray")
    if safety.memory:
        raise InputError("--memory is of this machine: set the memory of nodes with ray start --memory")
    if safety.fit_memory:
        raise InputError("--fit-memory compares the weights of all labels: with --engine ray use more --label-shards")


def expected_support(census: Census, n_rows: int) -> np.ndarray:
    """Estimate the features of each label, as if spread over rows at random: sum_f 1 - (1 - p_f)^count."""
    max_count = max(int(census.label_counts.max(initial=0)), 1)
    counts = np.unique(np.geomspace(1, max_count, COUNT_STEPS).round())
    rare = np.log1p(-np.minimum(census.feature_counts[census.feature_counts > 0] / n_rows, 1 - 1e-9))
    sizes = [float(-np.expm1(count * rare).sum()) for count in counts]
    return np.interp(census.label_counts, [0, *counts], [0, *sizes])


def cut_labels(costs: np.ndarray, n_shards: int) -> list[int]:
    """Edges of contiguous shards of about the same cost; each begins at a whole block of the kernels."""
    block_costs = np.add.reduceat(costs, np.arange(0, len(costs), BLOCK))
    return [min(edge * BLOCK, len(costs)) for edge in cut_evenly(block_costs, n_shards)]


class ClusterTrainer:
    """The driver's side of training: divides the labels among shards, and chooses the steps of every batch."""

    def __init__(self, rows: PreparedRows, config: RunConfig, shards: Shards, log: Log) -> None:
        self.rows, self.config, self.shards, self.log = rows, config, shards, log
        self.edges: list[int] = []  # labels at which the shards begin, and the end of the last
        self.label_weights = np.zeros(0, np.float32)
        self.n_passes, self.cursor = 0, Cursor()
        self.n_batches = 0  # of all passes
        self.next_batch = 0  # of this pass
        self.pending: list[Pairs] | None = None  # steps that are chosen, but not yet sent to the shards

    def divide(self, edges: list[int] | None) -> dict[str, object]:
        """Give every shard its labels, of about equal support or as in a run before; return a survey of the rows."""
        shards, log, n_shards = self.shards, self.log, self.shards.n_shards
        shards.hire_all()
        dealt = [(range(shard, self.rows.n_blocks, n_shards),) for shard in range(n_shards)]
        counted = shards.ask_all("count", each=dealt)
        log.census = Census(*(np.sum(counts, axis=0) for counts in zip(*counted, strict=True)))
        self.edges = edges or cut_labels(1 + expected_support(log.census, self.rows.n_rows), n_shards)
        ranges = [range(first, last) for first, last in pairwise(self.edges)]
        told = [(labels, shard == 0) for shard, labels in enumerate(ranges)]
        lengths, surveys = zip(*shards.ask_all("find_support", each=told), strict=True)
        log.ranges = ranges
        is_dense = have_dense_rows(np.sum(lengths, axis=0), self.rows.n_labels)
        self._tell_plan(shards.ask_all("prepare", is_dense, log.census.feature_counts))
        log.is_dense = is_dense
        if self.config.train.favour == "tail":
            self.label_weights = tail_weights(log.census.label_counts, self.rows.n_rows).astype(np.float32)
        return surveys[0]

    def _tell_plan(self, plans: list[tuple[str, Plan]]) -> None:
        """Say what every node will need; refuse the run if a node has less memory."""
        session, n_weights = self.shards.session, sum(plan.n_weights for _, plan in plans)
        largest = max(plan.n_weights for _, plan in plans) * len(plans) / max(n_weights, 1)
        session.tell(f"{n_weights:,} weights in {len(plans)} label shards; the largest has {largest:.2f} of the mean")
        memory_of = {node.name: node.memory for node in self.shards.nodes}
        for name in dict.fromkeys(name for name, _ in plans):
            here = [shard for shard, (node, _) in enumerate(plans) if node == name]
            need = sum(plans[shard][1].peak_bytes for shard in here)
            text = f"node {name}: label shards {', '.join(map(str, here))} need {format_bytes(need)} at the peak"
            has = memory_of.get(name, need)
            if need > has:
                raise InputError(f"{text}, but Ray has {format_bytes(has)} there: use more nodes and --label-shards")
            session.tell(f"{text}, of {format_bytes(has)}")

    def start(self) -> None:
        """Begin a new run."""
        self.log.is_started = True
        counts = [(self.log.label_counts(shard),) for shard in range(self.shards.n_shards)]
        self.shards.ask_all("start", each=counts, again=False)

    def restore(self, facts: dict[str, Any], folder: Path) -> None:
        """Go on from a checkpoint."""
        self.cursor = Cursor.of(facts, self.rows, self.config.train.seed)
        self.n_passes = facts["n_passes"]
        self.shards.ask_all("restore", *self.log.restore(folder, self.cursor), again=False)
        self.n_batches = int(read_arrays(folder, part_prefix(0))["clock"][STEPS])

    def run_pass(self, progress: bool, pause: Callable[[], None]) -> PassFacts:
        """Train once on all rows, or go on with a pass that was begun; see Trainer.run_pass."""
        if self.cursor.number == self.n_passes:
            self.cursor = Cursor(self.n_passes + 1)
        cursor = self.cursor
        settings = pass_settings(self.config.train, cursor.number, self.rows.n_labels, self.label_weights)
        self.next_batch = 0
        self.shards.ask_all("begin_pass", *self.log.begin_pass(cursor, self.next_batch))
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
                pause()
        self.check_finite()
        self.n_passes = cursor.number
        return replace(cursor.facts(self.rows.n_rows), communication=1 - busy / max(spent, 1e-9))

    def _batches(self) -> Iterator[bool]:
        """Yield, for each batch that is left of the pass, whether its block ends with it."""
        cursor, batch_rows = self.cursor, self.config.train.batch_rows
        order = np.random.default_rng([self.config.train.seed, cursor.number]).permutation(self.rows.n_blocks)
        n_done = cursor.n_rows
        for block in order[cursor.n_blocks :]:
            n_rows = self.rows.block_length(block)
            for first in range(n_done, n_rows, batch_rows):
                yield first + batch_rows >= n_rows
            n_done = 0

    def _train_batch(self, number: int, settings: Settings) -> float:
        """Ask all shards, choose the steps; return the seconds for which the slowest of them computed."""
        pending, self.pending = self.pending, None
        shards, n_shards = self.shards, self.shards.n_shards

        def propose(shard: int, part: int, pairs: Pairs | None = None) -> Any:
            return shards.call(shard, "propose", number, part, PARTS_A_BATCH, pairs)

        calls = [[propose(shard, 0, pending[shard] if pending else None) for shard in range(n_shards)]]
        for part in range(1, PARTS_A_BATCH):
            calls.append([propose(shard, part) for shard in range(n_shards)])
        seconds = np.zeros(n_shards)
        chosen: list[Chosen] = []
        for part in range(PARTS_A_BATCH):

            def ask_again(shard: int, part: int = part) -> Any:
                """Ask for this part and those after it; the log has the steps that went with the first."""
                for later in range(part, PARTS_A_BATCH):
                    calls[later][shard] = propose(shard, later)
                return calls[part][shard]

            answers = shards.answers(calls[part], ask_again)
            seconds += [answer.seconds for answer in answers]
            proposals = [Proposals(*map(np.array, answer.proposals)) for answer in answers]  # Ray's are read-only
            chosen.append(choose(proposals, settings, self.n_batches))
            self.cursor.add(chosen[-1].batch, chosen[-1].n_labels_of)
        self.pending = split_pairs(chosen, self.log.ranges)
        self.log.add(self.pending)
        self.n_batches += 1
        shards.tries.clear()
        return float(seconds.max())

    def _flush(self) -> None:
        """Apply the steps that are chosen."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            self.shards.ask_all("apply", each=[(pairs,) for pairs in pending], again=False)

    def check_finite(self) -> None:
        self._flush()
        self.shards.ask_all("check_finite")

    def score_heldout(self, heldout: RowSource) -> dict[str, float]:
        """P@k of the mean of the weights so far."""
        meter = metrics.Meter(
            heldout.n_labels, [k for k in metrics.REPORTED_KS if k <= heldout.n_labels], n_resamples=0
        )
        for start in range(0, heldout.n_rows, BLOCK_ROWS):
            stop, k = min(start + BLOCK_ROWS, heldout.n_rows), max(meter.ks)
            top = merge(self.shards.ask_all("predict_heldout", start, stop, k), k)
            meter.add(top, heldout.read(start, stop).labels)
        return meter.precision()

    @property
    def needs_checkpoint(self) -> bool:
        """Whether the log has grown too long."""
        return self.log.n_bytes > self.log.limit

    def write_arrays(self, folder: Path) -> dict[str, str]:
        """Let every shard write its part of a checkpoint."""
        self.log.put_off_checkpoint()
        self._flush()
        parts = self.shards.ask_all("write", folder.absolute())
        return {name: digest for part in parts for name, digest in part.items()}

    def saved_in(self, folder: Path) -> None:
        """Start the log again from a checkpoint that is complete."""
        self.log.restore(folder, self.cursor)
        if self.cursor.number > self.n_passes:
            self.log.begin_pass(self.cursor, self.next_batch)

    def finish(self, scratch: Path) -> Weights:
        """Return the weights of all labels; every shard writes its own into a folder in `scratch`."""
        with scratch_folder(scratch.absolute() / "finished") as folder:
            written = self.shards.ask_all("finish", folder)
            parts = [check_part(folder, shard, hashes) for shard, hashes in enumerate(written)]
            return with_dense_rows(join_labels(parts, self.log.ranges))
