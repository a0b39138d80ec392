"""Mutable training state: runs passes over the rows, and can be saved between any two calls of the kernels."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from xmlpreck.config import STEP_DECAYS, InputError, TrainConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.files.progress import progress_bar
from xmlpreck.kernels import bfloat, training
from xmlpreck.kernels.arrays import (
    ELAPSED,
    EVERY,
    FEATURE_GROUPS,
    SCALE,
    Batch,
    Learner,
    Rows,
    Settings,
    Weights,
    max_pairs,
    n_negatives,
    new_batch,
    new_work,
    no_weights,
    noise_table,
)
from xmlpreck.kernels.patterns import add_squares, fill_mask
from xmlpreck.kernels.rules import HARDEST, MIN_HARDEST, RULES
from xmlpreck.kernels.threads import STOPPED, run_team
from xmlpreck.model import all_sparse, lay_out, rounded
from xmlpreck.train.checkpoint import write_arrays
from xmlpreck.train.emphasis import idf_steps, tail_weights
from xmlpreck.train.passes import Cursor, PassFacts, PreparedRows, shuffled_blocks
from xmlpreck.train.support import find_support, support_of_hardest, union_of

NEW_CLOCK = (0.0, 1.0, 0.0, 0.0)  # steps, scale, elapsed, averaged

# The support is widened before this pass, by the hardest irrelevant labels of the pass before it: those of the first
# pass, by the scores that rows start with, gain nothing (docs/tuning.md).
WIDENED_PASS = 3

# The pass of each member whose hardest negatives are remembered, with `remember`: after one pass only, they are still
# those of the first weights (docs/tuning.md).
REMEMBERED_PASS = 2

# Rows between two returns to Python: the progress bar moves, Ctrl-C is heard.
ROWS_A_CALL = 4096

# Parts of the features for each thread, in which the steps of a batch are applied.
PARTS_A_THREAD = 2

# Weights of a checkpoint that are checked together.
LOOKED_AT = 1 << 22

# Rows whose time is measured to estimate that of a pass.
TIMED_ROWS = 1024

NO_LABELS = np.zeros(0, np.int32)
NOT_REMEMBERED = np.zeros((0, 0), np.int32)


class TrainingError(InputError):
    """Training cannot go on; says why and what to change."""


class Trainer:
    """Mutable training state: `grow` makes room for the support of rows, `run_pass` trains on rows once."""

    def __init__(
        self, start: Weights, config: TrainConfig, n_passes: int = 0, is_dense: np.ndarray | None = None
    ) -> None:
        """Start from sparse rows (a support of zeros for a new model) after `n_passes` passes."""
        self.config = config
        self.n_passes = n_passes
        self.label_weights = np.zeros(0, start.values.dtype)  # all labels count the same
        self.n_frozen = 0  # labels with an id below this are frozen
        self.cursor = Cursor(n_passes)
        self.since = 0.0  # when the clock of the pass was started last
        self.n_labels = int(start.dense_rows.shape[1])
        self.noise = noise_table(config.seed, config.tau, start.values.dtype)
        self.learner = new_learner(start, is_dense)
        # With `widen`: the best irrelevant label of each row (-1 = none) in the pass before WIDENED_PASS.
        self.hardest = np.zeros(0, np.int32)
        self.remembered = NOT_REMEMBERED  # with `remember`: the hardest negatives of each row, see kernels/recall.py
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
        grown, positions = union_of(known, wanted)
        values = np.zeros((2, len(grown.labels)), old.sums.dtype)
        values[:, positions] = known.values, sums.values
        grown_sums = lay_out(grown._replace(values=values[1]), narrow=False)
        self.learner = new_learner(grown._replace(values=values[0]))._replace(
            dense_sums=grown_sums.dense_rows, sums=grown_sums.values, clock=old.clock, norms=old.norms
        )

    def prepare_pass(self, rows: PreparedRows) -> None:
        """Start the next member, make room for what this pass remembers, or for the hardest labels, as is wanted."""
        number, epochs = self.cursor.number, self.config.epochs
        if 1 < number <= self.config.n_passes and (number - 1) % epochs == 0 and not self.cursor.rows_seen:
            self._start_member(rows)
        n_remembered = self.pass_settings().n_remembered
        if n_remembered and self.remembered.shape != (rows.n_rows, n_remembered):
            self.remembered = np.full((rows.n_rows, n_remembered), -1, np.int32)
        if not self.config.widen or self.is_wide:
            return
        if self.cursor.number == WIDENED_PASS - 1 and not len(self.hardest):
            self.hardest = np.full(rows.n_rows, -1, np.int32)
        elif self.cursor.number >= WIDENED_PASS and len(self.hardest):
            self._widen(rows)

    def _start_member(self, rows: PreparedRows) -> None:
        """Put the weights back to the start. What they were stays in the mean, to which the next passes add theirs."""
        self.remembered = NOT_REMEMBERED  # of the member before: neither memory nor checkpoints need it any more
        clock = self.learner.clock
        training.multiply_out(self.learner, 0.0, clock[ELAPSED])
        clock[ELAPSED], clock[SCALE] = 0, 1
        relevance_sums = np.zeros(self.n_labels)
        for _, block in rows.blocks(range(rows.n_blocks)):
            relevance_sums += np.bincount(
                block.labels, block.relevance if len(block.relevance) else None, self.n_labels
            )
        self.start_at_centroids(rows, relevance_sums)

    def _widen(self, rows: PreparedRows) -> None:
        """Let the hardest label of each row use the row's features: evidence against a label may be in rows of others.

        New weights start at 0; which features have dense rows does not change.
        """
        self.is_wide = True
        learner = self.learner
        weights = learner.weights
        wanted = no_weights(rows.n_features, rows.n_labels)
        for start, block in rows.blocks(range(rows.n_blocks)):
            hardest = self.hardest[start : start + len(block.offsets) - 1]
            found = support_of_hardest(block, hardest, weights.dense_of, learner.dense_mask)
            wanted, _ = union_of(wanted, found, with_positions=False)
        grown, positions = union_of(weights, wanted)

        def moved(old: np.ndarray) -> np.ndarray:
            new = np.zeros(len(grown.labels), old.dtype)
            new[positions] = old
            return new

        wide = grown._replace(values=moved(weights.values))
        self.learner = learner._replace(
            weights=wide,
            scored=wide if learner.scored is weights else wide._replace(dense_rows=learner.scored.dense_rows),
            sums=moved(learner.sums),
        )

    def hardest_of(self, start: int, n_rows: int) -> np.ndarray:
        """The part of `hardest` for these rows; empty if it is not recorded, or once there is room for these labels."""
        return self.hardest[:0] if self.is_wide else self.hardest[start : start + n_rows]

    def remembered_of(self, start: int, n_rows: int) -> np.ndarray:
        """The part of `remembered` for these rows."""
        return self.remembered[start : start + n_rows] if len(self.remembered) else NOT_REMEMBERED

    def favour_tail(self, label_counts: np.ndarray, n_rows: int) -> None:
        """With favour = tail, let labels count by their tail_weights in every pair."""
        if self.config.favour != "tail":
            return
        self.label_weights = tail_weights(label_counts, n_rows).astype(self.label_weights.dtype)

    def scale_features(self, feature_counts: np.ndarray, n_rows: int) -> None:
        """With idf > 0, let every feature step by its idf_steps; the bias, behind the counted ones, by 1."""
        if self.config.idf:
            self.learner.feature_steps[: len(feature_counts)] = idf_steps(feature_counts, n_rows, self.config.idf)

    def start_at_centroids(self, rows: PreparedRows, relevance_sums: np.ndarray) -> None:
        """w_l = centroid * sum of r x / (sum of r + 1) over the label's rows x, of relevance r (1 unless data say so).

        A feature counts by its factor of steps, see scale_features. `relevance_sums` are the sums of r. A rare label
        thus does not have to wait for its rows.
        A perceptron starts at 0: its steps are of length 1, whatever the length of the rows.
        """
        if not self.config.centroid or not self.config.has_eta:
            return
        shares = (self.config.centroid / (relevance_sums + 1)).astype(self.learner.sums.dtype)
        n_threads = self.config.n_threads
        for _, block in rows.blocks(range(rows.n_blocks)):

            def work(thread: int, block: Rows = block) -> None:
                training.add_centroids(thread, n_threads, block, self.learner, shares)

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
                # A row's noise depends on its index among all rows, not on the block that it came in.
                here = settings._replace(noise_key=settings.noise_key + np.uint64(start))
                kept = self.hardest_of(start, len(order)), self.remembered_of(start, len(order))
                self.train_block(block, order, here, *kept, bar.update, pause)
                cursor.n_blocks, cursor.n_rows = cursor.n_blocks + 1, 0
        self.check_finite()
        self.n_passes = cursor.number
        return cursor.facts(rows.n_rows)

    def train_block(
        self,
        rows: Rows,
        order: np.ndarray,
        settings: Settings,
        hardest: np.ndarray = NO_LABELS,
        remembered: np.ndarray = NOT_REMEMBERED,
        done: Callable[[int], Any] = lambda n_rows: None,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """Train on rows[order], from where the cursor is; `done` is called with the number of rows of each step."""
        n_threads, batch_rows, cursor = self.config.n_threads, self.config.batch_rows, self.cursor
        n_parts = min(PARTS_A_THREAD * n_threads, FEATURE_GROUPS) if n_threads > 1 else 1
        n_labels_of = np.diff(rows.label_offsets)
        max_labels = int(n_labels_of.max(initial=0))
        dtype = self.learner.sums.dtype
        n_best, n_weak = n_negatives(settings), settings.n_weak
        works = [new_work(self.n_labels, n_best, max_labels, dtype, n_weak) for _ in range(n_threads)]
        rows_a_call = max(ROWS_A_CALL // batch_rows, 1) * batch_rows
        for start in range(cursor.n_rows, len(order), rows_a_call):
            part = order[start : start + rows_a_call]
            batch = new_batch(len(part), batch_rows, max_pairs(settings, max_labels), dtype)

            def work(thread: int, part: np.ndarray = part, batch: Batch = batch) -> None:
                training.train_rows(
                    n_parts, rows, part, self.learner, settings, self.noise, works[thread], batch, hardest,
                    remembered,
                )  # fmt: skip

            def stop(batch: Batch = batch) -> None:
                batch.counters.fill(STOPPED)

            self.is_torn = True
            run_team(n_threads, work, stop)
            self.is_torn = False
            cursor.add(batch, n_labels_of[part])
            cursor.seconds += time.perf_counter() - self.since
            done(len(part))
            pause()
            self.since = time.perf_counter()  # without the time of the pause

    def state(self) -> dict[str, np.ndarray]:
        """The arrays that training changes; with cursor and n_passes, `restore` goes on from them to the same bits."""
        learner = self.learner
        arrays = {
            "dense_rows": learner.weights.dense_rows,
            "values": learner.weights.values,
            "dense_sums": learner.dense_sums,
            "sums": learner.sums,
            "clock": learner.clock,
            "norms": learner.norms,
        }
        kept = {"hardest": self.hardest, "remembered": self.remembered}
        return arrays | {name: array for name, array in kept.items() if len(array)}

    @property
    def needs_checkpoint(self) -> bool:
        return False

    def write_arrays(self, folder: Path) -> dict[str, str]:
        return write_arrays(folder, self.state())

    def saved_in(self, folder: Path) -> None:
        """Called when a checkpoint is complete."""

    def restore(self, cursor: Cursor, arrays: dict[str, np.ndarray], rows: PreparedRows) -> None:
        """Go on from the `state` of a trainer of the same rows and settings, which had come to this cursor."""
        self.cursor = cursor
        if "remembered" in arrays:
            self.remembered = np.full((rows.n_rows, min(self.config.remember, self.n_labels)), -1, np.int32)
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
        if not _are_legal(name, saved, self.n_labels):
            raise TrainingError(f"the checkpoint's {name} has a value that no run has: delete it to start over")
        mine[...] = saved

    def _cut_dense_rows(self) -> None:
        """Make the weights that rows are scored with from the trained ones."""
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
        """Return what `weights` does, made in place: the averages are freed, and the trainer is of no further use."""
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


def time_pass(support: Weights, rows: PreparedRows, config: TrainConfig) -> float:
    """Estimate the seconds of a pass by the time of its first rows, on a trainer that is thrown away."""
    trainer = Trainer(support, config)
    _, block = next(rows.blocks([0]))
    some = np.arange(min(len(block.offsets) - 1, TIMED_ROWS))
    trainer.cursor, trainer.since = Cursor(1), time.perf_counter()
    trainer.train_block(block, some, trainer.pass_settings())
    return trainer.cursor.seconds * rows.n_rows / max(len(some), 1)


def _are_legal(name: str, saved: np.ndarray, n_labels: int) -> bool:
    """Whether an array of a checkpoint has only values that the kernels can take: labels are indices into memory."""
    if name in ("hardest", "remembered") and saved.size and not (saved.min() >= -1 and saved.max() < n_labels):
        return False
    if name == "remembered":  # ascending in each row, -1 at the end
        before, after = saved[:, :-1], saved[:, 1:]
        return bool(((before < after) | (after < 0)).all())
    saved = saved.reshape(-1)
    parts = range(0, len(saved), LOOKED_AT)
    is_finite = all(np.isfinite(saved[start : start + LOOKED_AT]).all() for start in parts)
    return is_finite and (name != "clock" or bool((saved >= 0).all() and saved[SCALE] > 0))


def pass_share(decay: str, number: int, n_passes: int) -> float:
    """The factor of eta in pass `number`; passes beyond the last are like it."""
    return (n_passes + 1 - min(number, n_passes)) / n_passes if decay == "linear" else 1.0


def pass_settings(config: TrainConfig, number: int, n_labels: int, label_weights: np.ndarray) -> Settings:
    """The settings of the kernels for pass `number` of a model with n_labels labels."""
    member = min((number - 1) // config.epochs, len(config.rules) - 1)
    config, of_member = config.of_member(member), number - config.epochs * member
    k = min(config.k, n_labels)  # no row has more, and buffers are as large
    remember = min(config.remember, n_labels)
    n_hard = min(config.negatives, n_labels) if config.algo == "hinge" else 0
    return Settings(
        rule=RULES[config.algo],
        k=k,
        n_lowered=k if config.spread and config.has_eta else 0,
        eta=config.eta * pass_share(config.decay, of_member, config.epochs) if config.has_eta else 1.0,
        decay=STEP_DECAYS.get(config.decay, 0.0) if config.has_eta else 0.0,
        radius=config.radius,
        perturbed=config.tau > 0,
        averaging=config.average_from > 0 and of_member >= min(config.average_from, config.epochs),
        noise_key=np.random.default_rng([config.seed, number, 1]).integers(2**63, dtype=np.uint64),
        label_weights=label_weights,
        n_remembered=remember if of_member == REMEMBERED_PASS < config.epochs else 0,
        recalls=remember > 0 and of_member > REMEMBERED_PASS,
        n_hard=min(n_hard, HARDEST),
        n_weak=n_hard // EVERY if n_hard > MIN_HARDEST else 0,
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
        feature_steps=np.ones(len(weights.dense_of), weights.values.dtype),
        clock=np.array(NEW_CLOCK),
        norms=norms,
    )
