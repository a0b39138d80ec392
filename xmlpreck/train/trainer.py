"""Weights in the making: passes that change them, and the state between any two calls of the kernels."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from xmlpreck import metrics
from xmlpreck.config import STEP_DECAYS, InputError, TrainConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.files.progress import progress_bar
from xmlpreck.kernels import bfloat, training
from xmlpreck.kernels.arrays import (
    FEATURE_GROUPS,
    SCALE,
    Batch,
    Learner,
    Rows,
    Settings,
    Weights,
    new_batch,
    new_work,
    no_weights,
    noise_table,
)
from xmlpreck.kernels.patterns import add_squares, fill_mask
from xmlpreck.kernels.rules import RULES
from xmlpreck.kernels.threads import STOPPED, run_team
from xmlpreck.model import all_sparse, lay_out, rounded
from xmlpreck.train.checkpoint import write_arrays
from xmlpreck.train.passes import Cursor, PassFacts, PreparedRows, shuffled_blocks
from xmlpreck.train.support import find_support, support_of_hardest, union_of

# A label counts as its inverse propensity to this power, where training favours the tail (docs/tail.md).
TAIL_POWER = 0.5

NEW_CLOCK = (0.0, 1.0, 0.0, 0.0)  # steps, scale, elapsed, averaged

# Room for the hardest irrelevant labels is made before this pass, and the one before it tells which they are: by the
# scores that rows start with, they are others, and nothing is gained (docs/tuning.md).
WIDENED_PASS = 3

# Rows between two looks of Python: the progress bar moves, Ctrl-C is heard.
ROWS_A_CALL = 4096

# Weights of a checkpoint that are looked at together.
LOOKED_AT = 1 << 22

# Rows that tell how long a pass will take.
TIMED_ROWS = 1024


class TrainingError(InputError):
    """Training cannot go on; says why and what to change."""


class Trainer:
    """Weights in the making: `grow` makes room for the support of rows, `run_pass` trains on rows once."""

    def __init__(
        self, start: Weights, config: TrainConfig, n_passes: int = 0, is_dense: np.ndarray | None = None
    ) -> None:
        """Begin with sparse rows (a support of zeros for a new model) that have seen `n_passes` passes."""
        self.config = config
        self.n_passes = n_passes
        self.label_weights = np.zeros(0, start.values.dtype)  # all labels count the same
        self.n_frozen = 0  # labels, the first so many, that do not learn
        self.cursor = Cursor(n_passes)
        self.since = 0.0  # when the pass went on last
        self.n_labels = int(start.dense_rows.shape[1])
        self.noise = noise_table(config.seed, config.tau, start.values.dtype)
        self.learner = new_learner(start, is_dense)
        # With `widen`: the best irrelevant label of each row (-1 = none) in the pass before WIDENED_PASS.
        self.hardest = np.zeros(0, np.int32)
        self.is_wide = False  # may these labels use the features of these rows?
        self.is_torn = False  # was a call of the kernels interrupted, so that some weights have steps that others lack?

    def grow(self, rows: PreparedRows, look: Callable[[Dataset], None] = lambda _: None) -> None:
        """Let every label use the features of its rows too. New weights start at 0, learned ones stay."""
        old = self.learner
        blocks = (block for _, block in rows.blocks(range(rows.n_blocks), look))
        wanted = find_support(blocks, rows.n_features, rows.n_labels, self.config.n_threads, old.sums.dtype)
        known = all_sparse(old.weights, old.dense_mask)
        if not len(known.labels):
            self.learner = new_learner(wanted)._replace(clock=old.clock)
            return
        sums = all_sparse(old.weights._replace(dense_rows=old.dense_sums, values=old.sums), old.dense_mask)
        grown, places = union_of(known, wanted)
        values = np.zeros((2, len(grown.labels)), old.sums.dtype)
        values[:, places] = known.values, sums.values
        grown_sums = lay_out(grown._replace(values=values[1]), narrow=False)
        self.learner = new_learner(grown._replace(values=values[0]))._replace(
            dense_sums=grown_sums.dense_rows, sums=grown_sums.values, clock=old.clock, norms=old.norms
        )

    def prepare_pass(self, rows: PreparedRows) -> None:
        """Remember the hardest labels in this pass, or make room for them before it, where that is wanted."""
        if not self.config.widen or self.is_wide:
            return
        if self.cursor.number == WIDENED_PASS - 1 and not len(self.hardest):
            self.hardest = np.full(rows.n_rows, -1, np.int32)
        elif self.cursor.number >= WIDENED_PASS and len(self.hardest):
            self._widen(rows)

    def _widen(self, rows: PreparedRows) -> None:
        """Let the hardest label of each row use the row's features: what speaks against a label may stand in rows that
        it does not have. New weights start at 0; which features have dense rows stays."""
        self.is_wide = True
        learner = self.learner
        weights = learner.weights
        wanted = no_weights(rows.n_features, rows.n_labels)
        for start, block in rows.blocks(range(rows.n_blocks)):
            hardest = self.hardest[start : start + len(block.offsets) - 1]
            found = support_of_hardest(block, hardest, weights.dense_of, learner.dense_mask)
            wanted, _ = union_of(wanted, found, with_places=False)
        grown, places = union_of(weights, wanted)

        def moved(old: np.ndarray) -> np.ndarray:
            new = np.zeros(len(grown.labels), old.dtype)
            new[places] = old
            return new

        wide = grown._replace(values=moved(weights.values))
        self.learner = learner._replace(
            weights=wide,
            scored=wide if learner.scored is weights else wide._replace(dense_rows=learner.scored.dense_rows),
            sums=moved(learner.sums),
        )

    def hardest_of(self, start: int, n_rows: int) -> np.ndarray:
        """Where these rows remember their hardest label, if they are to: not once there is room for it."""
        return self.hardest[:0] if self.is_wide else self.hardest[start : start + n_rows]

    def favour_tail(self, label_counts: np.ndarray, n_rows: int) -> None:
        """Where that is wanted, let labels count by their tail_weights in every pair."""
        if self.config.favour != "tail":
            return
        self.label_weights = tail_weights(label_counts, n_rows).astype(self.label_weights.dtype)

    def start_at_centroids(self, rows: PreparedRows, relevance_sums: np.ndarray) -> None:
        """w_l = centroid * sum of r x / (sum of r + 1) over the label's rows x, of relevance r (1 unless data say so).

        `relevance_sums` are the sums of r. A rare label thus need not wait for its turn.
        A perceptron starts at 0: its steps are of length 1, whatever the length of the rows.
        """
        if not self.config.centroid or not self.config.algo.startswith("sgd"):
            return
        shares = (self.config.centroid / (relevance_sums + 1)).astype(self.learner.sums.dtype)
        n_threads = self.config.n_threads
        for _, block in rows.blocks(range(rows.n_blocks)):

            def work(me: int, block: Rows = block) -> None:
                training.add_centroids(me, n_threads, block, self.learner, shares)

            run_team(n_threads, work)

    def run_pass(
        self, rows: PreparedRows, progress: bool = False, pause: Callable[[], None] = lambda: None
    ) -> PassFacts:
        """Train once on all rows, or go on with a pass that was begun.

        `pause` is called between calls of the kernels, when `state` is whole.
        """
        if self.is_torn:
            raise TrainingError("training was interrupted within a pass, and its weights are of no use: start again")
        if self.cursor.number == self.n_passes:
            self.cursor = Cursor(self.n_passes + 1)
        cursor = self.cursor
        settings = self.pass_settings()
        self.since = time.perf_counter()
        self.prepare_pass(rows)
        with progress_bar(rows.n_rows, f"pass {cursor.number}", progress) as bar:
            bar.update(min(cursor.rows_seen, rows.n_rows))
            for start, block, order in shuffled_blocks(rows, self.config.seed, cursor):
                # A row's noise depends on its place among all rows, not on the block that it came in.
                here = settings._replace(noise_key=settings.noise_key + np.uint64(start))
                self._train_block(block, order, here, self.hardest_of(start, len(order)), bar.update, pause)
                cursor.n_blocks, cursor.n_rows = cursor.n_blocks + 1, 0
        self.check_finite()
        self.n_passes = cursor.number
        return cursor.facts(rows.n_rows)

    def _train_block(
        self,
        rows: Rows,
        order: np.ndarray,
        settings: Settings,
        hardest: np.ndarray,
        done: Callable[[int], Any],
        pause: Callable[[], None],
    ) -> None:
        n_threads, batch_rows, cursor = self.config.n_threads, self.config.batch_rows, self.cursor
        n_labels_of = np.diff(rows.label_offsets)
        most_labels = int(n_labels_of.max(initial=0))
        dtype = self.learner.sums.dtype
        works = [new_work(self.n_labels, settings.k, most_labels, dtype) for _ in range(n_threads)]
        rows_a_call = max(ROWS_A_CALL // batch_rows, 1) * batch_rows
        for start in range(cursor.n_rows, len(order), rows_a_call):
            part = order[start : start + rows_a_call]
            batch = new_batch(len(part), batch_rows, settings.k + most_labels, dtype)

            def work(me: int, part: np.ndarray = part, batch: Batch = batch) -> None:
                training.train_rows(
                    me, n_threads, rows, part, self.learner, settings, self.noise, works[me], batch, hardest
                )

            def stop(batch: Batch = batch) -> None:
                batch.arrived.fill(STOPPED)

            self.is_torn = True
            run_team(n_threads, work, stop)
            self.is_torn = False
            cursor.add(batch, n_labels_of[part])
            cursor.seconds += time.perf_counter() - self.since
            done(len(part))
            pause()
            self.since = time.perf_counter()  # what a pause takes is not the pass's

    def time_rows(self, rows: PreparedRows) -> float:
        """Seconds that a pass will take, by the time of some rows; a new model is as it was before."""
        _, block = next(rows.blocks([0]))
        some = np.arange(min(len(block.offsets) - 1, TIMED_ROWS))
        self.cursor = Cursor(self.n_passes + 1)
        self.since = time.perf_counter()
        self._train_block(block, some, self.pass_settings(), self.hardest, lambda _: None, lambda: None)
        seconds = self.cursor.seconds * rows.n_rows / max(len(some), 1)
        for array in self.state().values():
            array[...] = 0
        self.learner.clock[:] = NEW_CLOCK
        self._cut_dense_rows()
        self.cursor = Cursor(self.n_passes)
        return seconds

    def state(self) -> dict[str, np.ndarray]:
        """What training changes; with the cursor and n_passes `restore` goes on from there with the same bits."""
        learner = self.learner
        arrays = {
            "dense_rows": learner.weights.dense_rows,
            "values": learner.weights.values,
            "dense_sums": learner.dense_sums,
            "sums": learner.sums,
            "clock": learner.clock,
            "norms": learner.norms,
        }
        return arrays | ({"hardest": self.hardest} if len(self.hardest) else {})

    def write_arrays(self, folder: Path) -> dict[str, str]:
        return write_arrays(folder, self.state())

    def restore(self, cursor: Cursor, arrays: dict[str, np.ndarray], rows: PreparedRows) -> None:
        """Go on from the `state` of a trainer of the same rows and settings, whose cursor stood there."""
        self.cursor = cursor
        if "hardest" in arrays:
            self.hardest = np.full(rows.n_rows, -1, np.int32)
            self._take_over("hardest", arrays)
            self.prepare_pass(rows)
        for name in arrays.keys() | self.state().keys():
            self._take_over(name, arrays)
        self._cut_dense_rows()

    def _take_over(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        mine, saved = self.state().get(name), arrays.get(name)
        if mine is None or saved is None or (saved.shape, saved.dtype) != (mine.shape, mine.dtype):
            raise TrainingError(f"the checkpoint's {name} is not of this model: other data or settings made it")
        if not _are_legal(name, saved.reshape(-1), self.n_labels):
            raise TrainingError(f"the checkpoint's {name} has a value that no run has: delete it to start over")
        mine[...] = saved

    def _cut_dense_rows(self) -> None:
        """What rows are scored with, anew from the weights."""
        weights, scored = self.learner.weights, self.learner.scored
        if scored is not weights:
            scored.dense_rows[...] = bfloat.cut(weights.dense_rows)

    def pass_settings(self) -> Settings:
        number = self.cursor.number
        return pass_settings(self.config, number, self.n_labels, self.label_weights)._replace(n_frozen=self.n_frozen)

    def weights(self) -> Weights:
        """The mean of the weights after every batch since averaging began, rounded; the last ones if it has not."""
        learner = self.learner
        _, scale, elapsed, n_averaged = (float(value) for value in learner.clock)
        weights = learner.weights
        if not n_averaged:
            return rounded(weights._replace(dense_rows=weights.dense_rows * scale, values=weights.values * scale))
        mean = weights._replace(
            dense_rows=weights.dense_rows * (elapsed / n_averaged) - learner.dense_sums / n_averaged,
            values=weights.values * (elapsed / n_averaged) - learner.sums / n_averaged,
        )
        return rounded(mean)

    def finish(self) -> Weights:
        """What `weights` returns, made in place: this trainer is done, and its averages are given back."""
        learner = self.learner
        _, scale, elapsed, n_averaged = (float(value) for value in learner.clock)
        weights = learner.weights
        for array, sums in ((weights.dense_rows, learner.dense_sums), (weights.values, learner.sums)):
            array *= elapsed / n_averaged if n_averaged else scale
            if n_averaged:
                sums /= n_averaged
                array -= sums
        self.learner = new_learner(no_weights(len(weights.dense_of), self.n_labels, weights.values.dtype))
        del learner, sums  # which hold the averages
        return rounded(weights)

    def check_finite(self) -> None:
        weights = self.learner.weights
        with np.errstate(invalid="ignore"):  # inf - inf is what is looked for
            arrays = (weights.dense_rows, weights.values, self.learner.dense_sums, self.learner.sums)
            total = sum(float(array.sum(dtype=np.float64)) for array in arrays)
        if not np.isfinite(total):
            raise TrainingError(
                f"weights are no longer finite in pass {self.cursor.number}: eta {self.config.eta:g} is too large for "
                "these rows; try a tenth of it, or rows.unit_norm = true"
            )


def _are_legal(name: str, saved: np.ndarray, n_labels: int) -> bool:
    """Whether an array of a checkpoint has only values that the kernels can take: labels are places in memory."""
    if name == "hardest":
        return not len(saved) or bool(saved.min() >= -1 and saved.max() < n_labels)
    parts = range(0, len(saved), LOOKED_AT)
    is_finite = all(np.isfinite(saved[start : start + LOOKED_AT]).all() for start in parts)
    return is_finite and (name != "clock" or bool((saved >= 0).all() and saved[SCALE] > 0))


def tail_weights(label_counts: np.ndarray, n_rows: int) -> np.ndarray:
    """a_l = c q_l^TAIL_POWER, q_l the inverse propensity of a label.

    c makes the mean over all relevant labels of all rows 1, so that eta keeps its meaning.
    """
    weights = metrics.inverse_propensities(label_counts, n_rows, *metrics.PROPENSITY) ** TAIL_POWER
    return weights / np.average(weights, weights=label_counts)


def pass_share(decay: str, number: int, n_passes: int) -> float:
    """What a step of pass `number` has of eta; passes beyond the last are like it."""
    return (n_passes + 1 - min(number, n_passes)) / n_passes if decay == "linear" else 1.0


def pass_settings(config: TrainConfig, number: int, n_labels: int, label_weights: np.ndarray) -> Settings:
    """What the kernels are told for pass `number` of a model with so many labels."""
    is_sgd = config.algo.startswith("sgd")
    k = min(config.k, n_labels)  # no row has more, and buffers are as large
    return Settings(
        rule=RULES[config.algo],
        k=k,
        n_lowered=k if config.spread and is_sgd else 0,
        eta=config.eta * pass_share(config.decay, number, config.epochs) if is_sgd else 1.0,
        decay=STEP_DECAYS.get(config.decay, 0.0) if is_sgd else 0.0,
        radius=config.radius,
        perturbed=config.tau > 0,
        averaging=config.average_from > 0 and number >= min(config.average_from, config.epochs),
        noise_key=np.random.default_rng([config.seed, number, 1]).integers(2**63, dtype=np.uint64),
        label_weights=label_weights,
    )


def new_learner(start: Weights, is_dense: np.ndarray | None = None) -> Learner:
    """A learner that starts from sparse rows; their pattern, zeros too, is its support. See lay_out for `is_dense`."""
    weights = lay_out(start, is_dense, narrow=False)
    mask = np.zeros((len(weights.dense_rows), -(-weights.dense_rows.shape[1] // 8)), np.uint8)
    fill_mask(start.offsets, start.labels, weights.dense_of, mask)
    norms = np.zeros(FEATURE_GROUPS)
    add_squares(start.offsets, start.values, norms)
    is_single = weights.values.dtype == np.float32
    return Learner(
        weights=weights,
        scored=weights._replace(dense_rows=bfloat.cut(weights.dense_rows)) if is_single else weights,
        dense_mask=mask,
        dense_sums=np.zeros_like(weights.dense_rows),
        sums=np.zeros_like(weights.values),
        clock=np.array(NEW_CLOCK),
        norms=norms,
    )
