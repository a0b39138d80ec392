"""Training over time: passes, step schedule, order of rows, held-out check, history."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from xmlpreck import metrics
from xmlpreck.config import STEP_DECAYS, InputError, RunConfig, TrainConfig
from xmlpreck.formats import Dataset
from xmlpreck.kernels import linear
from xmlpreck.kernels.arrays import (
    Batch,
    Learner,
    Rows,
    Settings,
    Weights,
    new_batch,
    new_work,
    no_weights,
    noise_table,
    run_team,
    sparse_weights,
)
from xmlpreck.kernels.support import support_of
from xmlpreck.model import LinearScorer, all_sparse, kernel_rows, lay_out, prepare_rows, progress_bar

RULES = {
    "perceptron-avg": linear.PERCEPTRON_AVG,
    "perceptron-max": linear.PERCEPTRON_MAX,
    "sgd-avg": linear.SGD_AVG,
    "sgd-max": linear.SGD_MAX,
}

# Rows between two looks of Python: the progress bar moves, Ctrl-C is heard.
ROWS_A_CALL = 4096


class TrainingError(InputError):
    """Training cannot go on; says why and what to change."""


@dataclass(frozen=True)
class PassFacts:
    """One pass. Surrogate and mistakes are means over the rows that have labels, on the scores that the rule saw
    (perturbed ones if tau > 0); mistakes <= surrogate, always."""

    number: int
    surrogate: float
    mistakes: float
    updated: int  # rows that changed the weights
    n_rows: int
    seconds: float
    heldout: dict[str, float] | None = None  # P@k of the held-out rows

    @property
    def gap(self) -> float:
        return self.surrogate - self.mistakes

    @property
    def rows_per_second(self) -> float:
        return self.n_rows / max(self.seconds, 1e-9)

    def to_dict(self) -> dict[str, object]:
        return asdict(self) | {"gap": self.gap, "rows_per_second": self.rows_per_second}


def find_support(rows: Rows, n_features: int, n_labels: int, n_threads: int, dtype: Any) -> Weights:
    """Zero weights wherever a label may use a feature: the pattern of X^T Y."""
    n_rows = len(rows.offsets) - 1
    by_feature = csr_array(
        (np.ones(len(rows.features), np.int8), rows.features, rows.offsets), shape=(n_rows, n_features)
    ).tocsc()
    feature_offsets = by_feature.indptr.astype(np.int64)
    feature_rows = by_feature.indices.astype(np.int32)
    offsets = np.zeros(n_features + 1, np.int64)
    labels = np.zeros(0, np.int32)

    def scan(me: int) -> None:
        seen = np.full(n_labels, -1, np.int32)
        support_of(me, n_threads, feature_offsets, feature_rows, rows, seen, offsets, labels)

    run_team(n_threads, scan)
    np.cumsum(offsets, out=offsets)
    labels = np.zeros(offsets[-1], np.int32)
    run_team(n_threads, scan)
    return sparse_weights(offsets, labels, np.zeros(len(labels), dtype), n_labels)


class Trainer:
    """Weights in the making: `grow` makes room for the support of rows, `run_pass` trains on rows once."""

    def __init__(self, start: Weights, config: TrainConfig, n_passes: int = 0) -> None:
        """Begin with sparse rows (`no_weights` for a new model) that have seen `n_passes` passes."""
        self.config = config
        self.n_passes = n_passes
        self.n_labels = int(start.dense_rows.shape[1])
        self.noise = noise_table(config.seed, config.tau, start.values.dtype)
        self.learner = new_learner(start)

    def grow(self, rows: Rows) -> None:
        """Let every label use the features of its rows too. New weights start at 0, learned ones stay."""
        old = self.learner
        n_features, dtype = len(old.weights.dense_of), old.sums.dtype
        wanted = find_support(rows, n_features, self.n_labels, self.config.n_threads, dtype)
        known = all_sparse(old.weights, old.dense_mask)
        if not len(known.labels):
            self.learner = new_learner(wanted)._replace(clock=old.clock)
            return
        sums = all_sparse(old.weights._replace(dense_rows=old.dense_sums, values=old.sums), old.dense_mask)
        known_keys = _keys(known)
        union = np.union1d(known_keys, _keys(wanted))
        features, labels = np.divmod(union, self.n_labels)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(features, minlength=n_features))])
        values = np.zeros((2, len(union)), dtype)
        values[:, np.searchsorted(union, known_keys)] = known.values, sums.values
        grown = sparse_weights(offsets, labels.astype(np.int32), values[0], self.n_labels)
        grown_sums = lay_out(grown._replace(values=values[1]))
        self.learner = new_learner(grown)._replace(
            dense_sums=grown_sums.dense_rows, sums=grown_sums.values, clock=old.clock, norms=old.norms
        )

    def run_pass(self, rows: Rows, progress: bool = False) -> PassFacts:
        """Train once on all rows, in the order of default_rng([seed, pass])."""
        config = self.config
        self.n_passes += 1
        started = time.perf_counter()
        n_rows = len(rows.offsets) - 1
        order = np.random.default_rng([config.seed, self.n_passes]).permutation(n_rows)
        settings = self._pass_settings()
        most_labels = int(np.diff(rows.label_offsets).max(initial=0))
        dtype = self.learner.sums.dtype
        works = [new_work(self.n_labels, config.k, most_labels, dtype) for _ in range(config.n_threads)]
        surrogate, mistakes, updated = 0.0, 0, 0
        rows_a_call = max(ROWS_A_CALL // config.batch_rows, 1) * config.batch_rows
        with progress_bar(n_rows, f"pass {self.n_passes}", progress) as bar:
            for start in range(0, n_rows, rows_a_call):
                part = order[start : start + rows_a_call]
                batch = new_batch(len(part), config.batch_rows, config.k + most_labels, dtype)

                def work(me: int, part: np.ndarray = part, batch: Batch = batch) -> None:
                    linear.train_rows(
                        me, config.n_threads, rows, part, self.learner, settings, self.noise, works[me], batch
                    )

                run_team(config.n_threads, work)
                surrogate += float(batch.surrogates.sum())
                mistakes += int(batch.mistakes.sum())
                updated += int(batch.updated.sum())
                bar.update(len(part))
        self._check_finite()
        seconds = time.perf_counter() - started
        n_labelled = max(int(np.count_nonzero(np.diff(rows.label_offsets))), 1)
        return PassFacts(self.n_passes, surrogate / n_labelled, mistakes / n_labelled, updated, n_rows, seconds)

    def _pass_settings(self) -> Settings:
        config = self.config
        is_sgd = config.algo.startswith("sgd")
        return Settings(
            rule=RULES[config.algo],
            k=config.k,
            eta=config.eta if is_sgd else 1.0,
            decay=STEP_DECAYS[config.decay] if is_sgd else 0.0,
            radius=config.radius,
            perturbed=config.tau > 0,
            averaging=0 < config.average_from <= self.n_passes,
            noise_key=np.random.default_rng([config.seed, self.n_passes, 1]).integers(2**63, dtype=np.uint64),
        )

    def weights(self) -> Weights:
        """The mean of the weights after every batch since pass `average_from`; the last ones if that is 0 or ahead."""
        learner = self.learner
        _, scale, elapsed, n_averaged = (float(value) for value in learner.clock)
        weights = learner.weights
        if not n_averaged:
            return weights._replace(dense_rows=weights.dense_rows * scale, values=weights.values * scale)
        return weights._replace(
            dense_rows=weights.dense_rows * (elapsed / n_averaged) - learner.dense_sums / n_averaged,
            values=weights.values * (elapsed / n_averaged) - learner.sums / n_averaged,
        )

    def _check_finite(self) -> None:
        weights = self.learner.weights
        with np.errstate(invalid="ignore"):  # inf - inf is what is looked for
            total = weights.dense_rows.sum(dtype=np.float64) + weights.values.sum(dtype=np.float64)
        if not np.isfinite(total):
            raise TrainingError(
                f"weights are no longer finite in pass {self.n_passes}: eta {self.config.eta:g} is too large for these "
                "rows; try a tenth of it, or rows.unit_norm = true"
            )


def new_learner(start: Weights) -> Learner:
    """A learner that starts from sparse rows; their pattern, zeros too, is its support."""
    weights = lay_out(start)
    lengths = np.diff(start.offsets)
    in_dense = np.repeat(weights.dense_of >= 0, lengths)
    mask = np.zeros(weights.dense_rows.shape, bool)
    mask[np.repeat(weights.dense_of, lengths)[in_dense], start.labels[in_dense]] = True
    groups = np.repeat(np.arange(len(lengths)) % linear.FEATURE_GROUPS, lengths)
    return Learner(
        weights=weights,
        dense_mask=np.packbits(mask, axis=1, bitorder="little"),
        dense_sums=np.zeros_like(weights.dense_rows),
        sums=np.zeros_like(weights.values),
        clock=np.array([0.0, 1.0, 0.0, 0.0]),  # steps, scale, elapsed, averaged
        norms=np.bincount(groups, start.values.astype(np.float64) ** 2, minlength=linear.FEATURE_GROUPS),
    )


def _keys(sparse: Weights) -> np.ndarray:
    """One number for each (feature, label) of sparse rows, rising."""
    features = np.repeat(np.arange(len(sparse.dense_of), dtype=np.int64), np.diff(sparse.offsets))
    return features * sparse.dense_rows.shape[1] + sparse.labels


def load_kernels() -> None:
    """Compile the kernels, or read them from numba's cache, with one made-up row: no pass is timed with that."""
    one = csr_array(np.ones((1, 1), np.float32))
    fit(Dataset(one, one), RunConfig()).predict_topk(one, 1)


def fit(
    data: Dataset,
    config: RunConfig,
    on_pass: Callable[[PassFacts], None] = lambda facts: None,
    progress: bool = False,
) -> LinearScorer:
    """Train on all rows of `data`, or on all but the held-out ones, and return the scorer, pruned if asked for.

    `on_pass` is told the facts of every pass; `progress` shows a bar on a terminal.
    """
    check_trainable(data)
    kept, heldout = split_heldout(data, config.train)
    prepared = prepare_rows(kept.rows, config.rows)
    rows = kernel_rows(prepared, kept.labels)
    trainer = Trainer(no_weights(prepared.shape[1], kept.labels.shape[1]), config.train)
    trainer.grow(rows)

    history = []
    for _ in range(config.train.epochs):
        facts = trainer.run_pass(rows, progress)
        if heldout.rows.shape[0]:
            facts = replace(facts, heldout=score(LinearScorer(trainer.weights(), config.rows), heldout, config.train))
        history.append(facts.to_dict())
        on_pass(facts)
    scorer = LinearScorer(trainer.weights(), config.rows, data.label_names, data.feature_names)
    scorer.info.update(
        config=config.to_dict(),
        data={
            "n_rows": kept.rows.shape[0],
            "n_rows_without_labels": int(np.count_nonzero(np.diff(kept.labels.indptr) == 0)),
            "sha256": data_hash(kept),
        },
        history=history,
    )
    return scorer.prune(config.train.prune) if config.train.prune else scorer


def score(scorer: LinearScorer, data: Dataset, config: TrainConfig, progress: bool = False) -> dict[str, float]:
    """P@k on rows with known labels, for each reported k that the number of labels allows."""
    ks = [k for k in metrics.REPORTED_KS if k <= scorer.n_labels]
    top = scorer.predict_topk(data.rows, max(ks), config.n_threads, progress)
    return metrics.precision_at_k(top, data.labels, ks)


def check_trainable(data: Dataset) -> None:
    n_rows, n_features = data.rows.shape
    if not n_rows or not n_features or not data.labels.shape[1]:
        raise TrainingError(f"no data: {n_rows} rows, {n_features} features, {data.labels.shape[1]} labels")
    if not data.labels.nnz:
        raise TrainingError(f"none of the {n_rows} rows has a label: there is nothing to learn")
    if not np.isfinite(data.rows.data).all():
        row = int(np.searchsorted(data.rows.indptr, np.flatnonzero(~np.isfinite(data.rows.data))[0], side="right")) - 1
        raise TrainingError(f"row {row} has a value that is not a finite number")


def split_heldout(data: Dataset, config: TrainConfig) -> tuple[Dataset, Dataset]:
    """(rows to train on, rows held out), drawn by default_rng([seed, 0]); both in the order of the data."""
    n_rows = data.rows.shape[0]
    n_heldout = round(n_rows * config.heldout)
    if n_heldout == 0:
        return data, data._replace(rows=data.rows[:0], labels=data.labels[:0])
    shuffled = np.random.default_rng([config.seed, 0]).permutation(n_rows)
    parts = [np.sort(shuffled[n_heldout:]), np.sort(shuffled[:n_heldout])]
    kept, heldout = (data._replace(rows=data.rows[part], labels=data.labels[part]) for part in parts)
    return kept, heldout


def data_hash(data: Dataset) -> str:
    """sha256 over shapes, ids and values, so that a model says which rows made it."""
    digest = hashlib.sha256(repr((data.rows.shape, data.labels.shape)).encode())
    for matrix in (data.rows, data.labels):
        digest.update(matrix.indptr.astype(np.int64).tobytes())
        digest.update(matrix.indices.astype(np.int32, copy=False).tobytes())
    digest.update(data.rows.data.astype(np.float32, copy=False).tobytes())
    return digest.hexdigest()
