"""What a row costs a label shard and the driver of a Ray cluster, measured in this process; see bench_cluster.py.

The shards of 1, 4 and 16 stand here one after the other, on one thread, so that none waits for another's core. They
propose for the same batches of a run's last pass, and the driver's functions merge what they say.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import ray
from scipy.optimize import nnls

from xmlpreck import config, train
from xmlpreck.cluster import merging, training
from xmlpreck.cluster.shard import Answer, LabelShard, Pairs
from xmlpreck.data.formats import Dataset
from xmlpreck.kernels import linear
from xmlpreck.kernels.arrays import Batch, Proposals, new_work
from xmlpreck.train.passes import Cursor
from xmlpreck.train.trainer import pass_settings

CALIBRATED = (1, 4, 16)  # label shards that stand in this process
SAMPLED = 12  # batches of the last pass that they propose for
TRIES = 3  # at each of these; the least counts
ROUND_TRIPS = 300
MOST_NODES = 64
PARTS = training.PARTS_A_BATCH


class Here(NamedTuple):
    """A place whose rows are open already."""

    source: Dataset

    def open(self) -> Dataset:
        return self.source


class Measured(NamedTuple):
    """A shard in this process: what a row touches in it, the seconds of a row, and answers to the sampled batches."""

    dense_cells: float
    sparse_weights: float
    pairs: float  # (label, coefficient), of a row
    dense_steps: float  # weights that these change in dense rows
    sparse_steps: float
    score_seconds: float
    apply_seconds: float
    answers: list[list[Proposals]]


class Calibration:
    """Shards of the labels in this process, on one thread each, in the last pass of a run."""

    def __init__(self, data: Dataset, settings: config.RunConfig) -> None:
        self.data, self.settings = data, replace(settings, train=replace(settings.train, threads=1))
        self.whole = LabelShard(0, Here(data), self.settings, 1)
        self.census = self.whole.count(range(-(-data.n_rows // settings.train.block_rows)))
        lengths, _ = self.whole.find_support(range(data.n_labels), False)
        self.is_dense = lengths * linear.DENSE_SHARE > data.n_labels
        blocks = [block for _, block in self.whole.rows.blocks(range(self.whole.rows.n_blocks))]
        counts = sum(np.bincount(block.features, minlength=len(lengths)) for block in blocks)
        self.chances = counts / data.n_rows  # of a feature in a row
        self.sparse_of = np.bincount(  # weights of each label in sparse rows that a row touches
            self.whole.support.labels,
            weights=np.repeat(np.where(self.is_dense, 0, self.chances), lengths),
            minlength=data.n_labels,
        )
        self.n_weights, self.n_sparse = int(lengths.sum()), int(lengths[~self.is_dense].sum())
        self.recorded: list[list[list[Batch]]] = []  # the steps of every batch, by pass
        self._record()

    def pass_settings(self, number: int) -> Any:
        return pass_settings(self.settings.train, number, self.data.n_labels, np.zeros(0, np.float32))

    def _record(self) -> None:
        """Train with all labels in one shard, up to the sampled batches of the last pass."""
        shard, epochs, n_batches = self.whole, self.settings.train.epochs, 0
        self._start(shard, range(self.data.n_labels), self.is_dense)
        most = -(-self.data.n_rows // self.settings.train.batch_rows)
        for number in range(1, epochs + 1):
            shard.begin_pass(Cursor(number), 0)
            self.recorded.append([])
            for batch in range(most if number < epochs else min(SAMPLED, most)):
                answers = [shard.propose(batch, part, PARTS, None) for part in range(PARTS)]
                chosen = [merging.choose([a.proposals], self.pass_settings(number), n_batches) for a in answers]
                shard.apply(merging.split_pairs(chosen, [shard.labels])[0])
                self.recorded[-1].append(chosen)
                n_batches += 1
        self.n_before = n_batches - len(self.recorded[-1])

    def _start(self, shard: LabelShard, labels: range, is_dense: np.ndarray) -> None:
        shard.prepare(is_dense, self.census.feature_counts)
        shard.start(self.census.label_counts[labels.start : labels.stop])

    def edges(self, n_shards: int) -> list[int]:
        return training.cut_labels(1 + training.expected_support(self.census, self.data.n_rows), n_shards)

    def measure(self, labels: range, is_dense: np.ndarray) -> Measured:
        """A shard of these labels, brought to where the sampled batches begin."""
        shard = LabelShard(0, Here(self.data), self.settings, 1)
        lengths, _ = shard.find_support(labels, False)
        self._start(shard, labels, is_dense)
        pairs_of = [[merging.split_pairs(batch, [labels])[0] for batch in each] for each in self.recorded]
        for number, pairs in enumerate(pairs_of, 1):
            shard.begin_pass(Cursor(number), 0)
            if number < len(pairs_of):
                shard.replay(pairs)
        answers, score_seconds, apply_seconds, n_rows, n_pairs = [], 0.0, [], 0, 0
        for batch, pairs in enumerate(pairs_of[-1]):
            tries = [[shard.propose(batch, part, PARTS, None) for part in range(PARTS)] for _ in range(TRIES)]
            score_seconds += sum(min(a.seconds for a in part) for part in zip(*tries, strict=True))
            answers.append([answer.proposals for answer in tries[0]])
            began = time.perf_counter()
            shard.apply(pairs)
            apply_seconds.append((time.perf_counter() - began) / (len(pairs.offsets) - 1))
            n_rows += len(pairs.offsets) - 1
            n_pairs += len(pairs.labels)
        dense_a_row, sparse_a_row = float(self.chances[is_dense].sum()), float(self.chances[~is_dense].sum())
        pairs_a_row = n_pairs / n_rows
        return Measured(
            dense_cells=dense_a_row * len(labels),
            sparse_weights=float((self.chances * lengths)[~is_dense].sum()),
            pairs=pairs_a_row,
            dense_steps=pairs_a_row * dense_a_row,
            sparse_steps=pairs_a_row * sparse_a_row,
            score_seconds=score_seconds / n_rows,
            apply_seconds=float(np.median(apply_seconds)),  # weights are changed once: there is no second try
            answers=answers,
        )

    def merge_seconds(self, shards: Sequence[Measured], ranges: Sequence[range]) -> float:
        """The driver's seconds a row to merge, choose and divide the steps; they must be the steps of one machine."""
        seconds, n_rows, settings = 0.0, 0, self.pass_settings(len(self.recorded))
        for batch, expected in enumerate(self.recorded[-1]):
            least, chosen = np.inf, []
            for _ in range(TRIES):
                began = time.perf_counter()
                chosen = [
                    merging.choose([shard.answers[batch][part] for shard in shards], settings, self.n_before + batch)
                    for part in range(PARTS)
                ]
                merging.split_pairs(chosen, ranges)
                least = min(least, time.perf_counter() - began)
            seconds += least
            n_rows += sum(len(each.n_labels_of) for each in chosen)
            if not all(
                np.array_equal(a.batch.pair_steps, b.batch.pair_steps) for a, b in zip(chosen, expected, strict=True)
            ):
                sys.exit(f"{len(shards)} label shards choose other steps than one: nothing is timed")
        return seconds / n_rows

    def bytes_a_row(self, shards: Sequence[Measured], ranges: Sequence[range]) -> tuple[float, float]:
        """Serialized bytes of a row that the driver gets and sends, to and from all shards."""
        n_rows = sum(len(part.n_labels_of) for batch in self.recorded[-1] for part in batch)
        received = sum(n_serialized(Answer(part, 0.0)) for shard in shards for batch in shard.answers for part in batch)
        pairs = [each for batch in self.recorded[-1] for each in merging.split_pairs(batch, ranges)]
        return received / n_rows, sum(map(n_serialized, pairs)) / n_rows

    def thread_efficiency(self) -> float:
        """Of all cores against one, in scoring: 1 = as many times faster as there are cores."""
        batch, n_cores, seconds = len(self.recorded[-1]) - 1, config.n_cores(), {}
        for n_threads in (1, n_cores):
            self.whole.n_threads = n_threads
            seconds[n_threads] = min(self.whole.propose(batch, 0, 1, None).seconds for _ in range(3 * TRIES))
        return seconds[1] / (n_cores * seconds[n_cores])

    def imbalance(self, constants: dict[str, float]) -> dict[str, float]:
        """The slowest shard against the mean, for 1, 2, 4, ... shards, by what rows touch and change in each."""
        all_labels = range(self.data.n_labels)
        chosen = [merging.split_pairs(batch, [all_labels])[0] for batch in self.recorded[-1]]
        n_rows = sum(len(pairs.offsets) - 1 for pairs in chosen)
        pairs_of = np.bincount(np.concatenate([pairs.labels for pairs in chosen]), minlength=len(all_labels)) / n_rows
        dense, sparse = self.chances[self.is_dense].sum(), self.chances[~self.is_dense].sum()
        step = constants["dense_step_seconds"] * dense + constants["sparse_step_seconds"] * sparse
        cost_of = constants["sparse_weight_seconds"] * self.sparse_of + step * pairs_of
        cost_of += constants["dense_cell_seconds"] * dense
        found = {}
        for n_shards in (1 << place for place in range(MOST_NODES.bit_length())):
            if n_shards <= training.n_blocks_of(len(cost_of)):
                of_shard = np.add.reduceat(cost_of, self.edges(n_shards)[:-1])
                found[str(n_shards)] = float(of_shard.max() / of_shard.mean())
        return found


def n_serialized(message: Any) -> int:
    return len(ray.cloudpickle.dumps(message, protocol=5))


def fit_costs(observed: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Coefficients >= 0 of the observed counts, with the least squares of relative errors."""
    counts, measured = np.array(observed, float), np.array(seconds, float)
    return [float(value) for value in nnls(counts / measured[:, None], np.ones(len(measured)))[0]]


class Echo:
    """An actor that answers at once."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def propose(self, pairs: Pairs) -> Answer:
        return self.answer


def measure_ray(answer: Answer, pairs: Pairs) -> dict[str, float]:
    """Medians of a call: the driver's seconds to send it and to take the answer, and the whole way there and back."""
    echo = ray.remote(Echo).options(num_cpus=0).remote(answer)
    seconds = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        call = echo.propose.remote(pairs)
        sent = time.perf_counter()
        ray.wait([call])
        came = time.perf_counter()
        Proposals(*map(np.array, ray.get(call).proposals))
        seconds.append((sent - began, time.perf_counter() - came, came - began))
    ray.kill(echo)
    names = ("send_seconds", "take_seconds", "round_trip_seconds")
    return dict(zip(names, (float(value) for value in np.median(seconds, axis=0)), strict=True))


def memory_constants(shard: LabelShard) -> dict[str, float]:
    """Bytes of a shard for a weight in a sparse row, a cell of a dense row, a feature, and a label and thread."""
    learner, n_labels = shard.trainer.learner, len(shard.labels)
    weights = learner.weights
    sparse = weights.labels.nbytes + weights.values.nbytes + learner.sums.nbytes
    dense_arrays = (weights.dense_rows, learner.scored.dense_rows, learner.dense_sums, learner.dense_mask)
    dense = sum(array.nbytes for array in dense_arrays)
    return {
        "sparse_weight_bytes": sparse / max(len(weights.values), 1),
        "dense_cell_bytes": dense / max(weights.dense_rows.size, 1),
        "feature_bytes": (weights.offsets.nbytes + weights.dense_of.nbytes) / len(weights.dense_of),
        "label_thread_bytes": sum(array.nbytes for array in new_work(n_labels)) / n_labels,
    }


def read_seconds(data: Dataset, settings: config.RunConfig) -> float:
    """To prepare all rows, as a shard does for every block in every pass where there are several."""
    rows = train.PreparedRows(data, settings.rows, settings.train.block_rows)
    began = time.perf_counter()
    for _ in rows.blocks(range(rows.n_blocks)):
        pass
    return time.perf_counter() - began


def measure_constants(data: Dataset, settings: config.RunConfig) -> dict[str, Any]:
    """Sizes of the data, and constants of shards in this process; Ray runs."""
    calibration = Calibration(data, settings)
    constants = {"thread_efficiency": calibration.thread_efficiency()} | memory_constants(calibration.whole)
    shards: list[Measured] = []
    driver = []
    for n_shards in (n for n in CALIBRATED if n <= training.n_blocks_of(data.n_labels)):
        ranges = [range(*edges) for edges in pairwise(calibration.edges(n_shards))]
        here = [calibration.measure(labels, calibration.is_dense) for labels in ranges]
        driver.append((n_shards, calibration.merge_seconds(here, ranges), *calibration.bytes_a_row(here, ranges)))
        pairs = merging.split_pairs(calibration.recorded[-1][0], ranges)[0]
        calls = measure_ray(Answer(here[0].answers[0][0], 0.0), pairs)
        shards += [shard._replace(answers=[]) for shard in here]
    whole = shards[0]
    no_dense = np.zeros_like(calibration.is_dense)  # so that dense and sparse rows have each a cost of their own
    shards.append(calibration.measure(range(data.n_labels), no_dense)._replace(answers=[]))
    n_shards_of, *of_driver = zip(*driver, strict=True)
    fits = {
        ("score_row_seconds", "dense_cell_seconds", "sparse_weight_seconds"): fit_costs(
            [(1, shard.dense_cells, shard.sparse_weights) for shard in shards], [s.score_seconds for s in shards]
        ),
        ("apply_row_seconds", "dense_step_seconds", "sparse_step_seconds"): fit_costs(
            [(1, shard.dense_steps, shard.sparse_steps) for shard in shards], [s.apply_seconds for s in shards]
        ),
    }
    for name, measured in zip(("merge_{}_seconds", "received_{}_bytes", "sent_{}_bytes"), of_driver, strict=True):
        fits[name.format("row"), name.format("shard")] = fit_costs([(1, n) for n in n_shards_of], measured)
    for names, values in fits.items():
        constants |= dict(zip(names, values, strict=True))
    constants |= calls | {"read_value_seconds": read_seconds(data, settings) / data.rows.nnz}
    sizes = {
        "n_rows": data.n_rows,
        "n_features": data.n_features,
        "n_labels": data.n_labels,
        "nnz": float(calibration.chances.sum()),
        "labels_a_row": data.labels.nnz / data.n_rows,
        "weights_a_label": calibration.n_weights / data.n_labels,
        "sparse_weights_a_label": calibration.n_sparse / data.n_labels,
        "dense_features": int(calibration.is_dense.sum()),
        "dense_a_row": whole.dense_cells / data.n_labels,
        "sparse_a_row": whole.sparse_weights,
        "pairs_a_row": whole.pairs,
    }
    measured_shards = [
        {name: value for name, value in shard._asdict().items() if name != "answers"} for shard in shards
    ]
    imbalance = calibration.imbalance(constants)
    return {"sizes": sizes, "constants": constants, "imbalance": imbalance, "shards": measured_shards}
