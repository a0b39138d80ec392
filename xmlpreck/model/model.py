"""Model: one sparse linear scorer a label; prediction and pruning."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, overload

import numpy as np
from scipy.sparse import csr_array

from xmlpreck import metrics
from xmlpreck.config import RowsConfig
from xmlpreck.data.dense import beside
from xmlpreck.data.dense_transform import DenseTransform
from xmlpreck.data.embedding import open_embedder
from xmlpreck.data.formats import Dataset, TopK
from xmlpreck.data.matrix import as_rows
from xmlpreck.data.rows import RowSource, read_blocks
from xmlpreck.data.shards import ShardPath
from xmlpreck.data.text import TextVectorizer
from xmlpreck.data.vocabulary import Vocabulary
from xmlpreck.files.progress import progress_bar
from xmlpreck.kernels import prediction as kernels
from xmlpreck.kernels.arrays import Rows, Weights, new_work
from xmlpreck.kernels.bounds import Bounds, find_bounds, new_trial, no_bounds, size_of
from xmlpreck.kernels.threads import STOPPED, run_team
from xmlpreck.model import store
from xmlpreck.model.calibration import Calibration
from xmlpreck.model.directory import Contents
from xmlpreck.model.label_rule import LabelRule, rule_of
from xmlpreck.model.layout import (
    ANY_SIZE,
    all_sparse,
    count_weights,
    find_empty,
    is_plain_csr,
    kernel_rows,
    lay_out,
    prepare_rows,
)
from xmlpreck.model.seal import ModelError

# Rows that are read and predicted at a time.
BLOCK_ROWS = 1 << 15
# Labels from which on bounds are used; 60,258 are the fewest that were measured (docs/large.md).
MIN_BOUNDED = 50_000
NO_BONUS = np.zeros(0, np.float32)
# Up to here rows are predicted on the caller's thread if one is enough: to start another takes as long as some rows.
FEW_ROWS = 256


class Buffers(threading.local):
    """What a thread needs to predict one row, made at its first call; a copied model starts without."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Buffers, ()


@dataclass(frozen=True)
class Model:
    """score of a label = <its weights, the prepared row>; every label has a weight for the features of its support."""

    weights: Weights
    rows: RowsConfig
    label_names: list[str] | None = None
    feature_names: list[str] | None = None
    info: dict[str, Any] = field(default_factory=dict)  # settings, data, history and versions of the run that made it
    vectorizer: TextVectorizer | None = None  # how raw text becomes rows, for a model of documents
    calibration: Calibration | None = None  # how scores become probabilities
    vocabulary: Vocabulary | None = (
        None  # ids, names and descriptions of the labels; label_names are what data call them
    )
    label_words: csr_array | None = None  # the part of the weights that came from the words of labels, by label
    dense_transform: DenseTransform | None = None  # of the dense features of rows as they are given
    _buffers: Buffers = field(default_factory=Buffers, repr=False, compare=False)

    @property
    def n_labels(self) -> int:
        return int(self.weights.dense_rows.shape[1])

    @property
    def n_features(self) -> int:
        """Features of a row as it is given, without the bias."""
        return len(self.weights.dense_of) - (self.rows.bias > 0)

    @property
    def shown_names(self) -> list[str] | None:
        """Names of the labels for people: those of the vocabulary, else those of the data."""
        return self.label_names if self.vocabulary is None else self.vocabulary.names

    @property
    def label_ids(self) -> list[str] | None:
        """Stable ids of the labels; None without a vocabulary."""
        return None if self.vocabulary is None else self.vocabulary.ids

    @property
    def n_weights(self) -> int:
        """Weights that are not 0."""
        return count_weights(self.weights)

    @property
    def label_rule(self) -> LabelRule:
        """How many labels a row gets, as `xmlpreck optimize` has chosen; an error where it has not."""
        return rule_of(self.info)

    @cached_property
    def _bounds(self) -> Bounds:
        """Bounds of the weights, which make exact prediction faster where labels are many."""
        return find_bounds(self.weights) if self.n_labels >= MIN_BOUNDED else no_bounds()

    def rows_of(self, texts: list[str], dense: np.ndarray | None = None, threads: int = 0) -> csr_array:
        """Return texts as rows of the model; `dense` are their dense features (None: as the model embeds texts)."""
        if self.vectorizer is None:
            raise ModelError("the model was trained on numbers, not on texts: give it rows of numbers")
        rows = self.vectorizer.transform(texts, threads)
        if not self.rows.n_dense:
            return rows
        name = self.info.get("embed")
        if dense is None and name is None:
            what = f"{self.rows.n_dense} dense features beside its words"
            raise ModelError(f"the model was trained on {what}: give those of the texts by --dense")
        return beside(rows, open_embedder(name).embed(texts) if dense is None else dense)

    def predict_topk(
        self,
        rows: Any,
        k: int,
        n_threads: int = 1,
        bonus: np.ndarray | None = None,
        guess_empty: bool = False,
    ) -> TopK:
        """Return the k best labels of every row: higher score first, then the lower label.

        `bonus` is added to the scores of the labels; one of -inf bars a label. A row without any
        feature gets no label, unless `guess_empty` lets the bias alone choose: the most frequent labels, whatever the
        row is about.
        """
        k = self._check_k(k)
        extra = self._check_bonus(bonus)
        prepared = self._prepare(rows)
        n_rows = len(prepared.offsets) - 1
        labels = np.full((n_rows, k), -1, np.int32)
        scores = np.full((n_rows, k), -np.inf, self.weights.values.dtype)
        claimed, bounds = np.zeros(1, np.int64), self._bounds

        def work(_: int) -> None:
            buffers, trial = new_work(self.n_labels, dtype=scores.dtype), new_trial(bounds, extra, scores.dtype)
            kernels.predict_rows(
                n_threads, prepared, self.weights, bounds, trial, extra, buffers, claimed, labels, scores
            )

        run_team(n_threads, work, None if n_rows <= FEW_ROWS else lambda: claimed.fill(STOPPED))
        if not guess_empty:
            empty = find_empty(prepared, self.rows.bias > 0)
            labels[empty], scores[empty] = -1, -np.inf
        return TopK(labels, scores.astype(np.float32, copy=False))

    def predict_one(self, row: Any, k: int, bonus: np.ndarray | None = None, guess_empty: bool = False) -> TopK:
        """Return the k best labels of one row, or of one text if the model has learned from texts; (k) arrays.

        For a server: many threads may call it, each has buffers of its own, and only the result is new memory. See
        predict_topk for the other parameters.
        """
        if isinstance(row, str):
            row = self.rows_of([row])
        row = row if is_plain_csr(row) else as_rows(row)
        if row.shape != (1, self.n_features):
            raise ModelError(f"a row has the shape (1, {self.n_features}), but this one {row.shape}")
        if self.rows.n_dense:  # two blocks, each with its own length
            top = self.predict_topk(row, k, bonus=bonus, guess_empty=guess_empty)
            return TopK(top.labels[0], top.scores[0])
        k = self._check_k(k)
        extra = self._check_bonus(bonus)
        own = self._buffers
        if not hasattr(own, "work"):
            own.work = new_work(self.n_labels, dtype=self.weights.values.dtype)
            own.trial = new_trial(self._bounds, NO_BONUS, self.weights.values.dtype)
            own.features, own.values = np.zeros(0, np.int32), np.zeros(0, np.float32)
        n_given = len(row.indices)
        n = n_given + (self.rows.bias > 0)
        if n > len(own.features):
            own.features, own.values = np.zeros(2 * n, np.int32), np.zeros(2 * n, np.float32)
        own.features[:n_given], own.values[:n_given] = row.indices, row.data
        own.features[n_given:n], own.values[n_given:n] = self.n_features, self.rows.bias
        labels = np.full(k, -1, np.int32)
        scores = np.full(k, -np.inf, self.weights.values.dtype)
        if not guess_empty and not own.values[:n_given].any():
            return TopK(labels, scores)
        found = kernels.predict_one(
            own.features[:n],
            own.values[:n],
            n_given,
            self.rows.unit_norm,
            self.weights,
            self._bounds,
            own.trial._replace(bonus_size=size_of(extra)),
            extra,
            own.work,
            labels,
            scores,
        )
        if found < 0:  # ids out of order or range, or values that are not finite: mended, or refused by name
            return self.predict_one(as_rows(row), k, bonus, guess_empty)
        return TopK(labels, scores)

    @overload
    def predict(self, given: str, k: int = 5, probabilities: bool = False) -> list[tuple[str, float]]: ...

    @overload
    def predict(self, given: list[str], k: int = 5, probabilities: bool = False) -> list[list[tuple[str, float]]]: ...

    def predict(self, given: Any, k: int = 5, probabilities: bool = False) -> Any:
        """Return the names and scores of the k best labels of a text, best first; of a list of texts, a list of these.

        A label without a name goes by its number. With `probabilities`, scores are those of a calibrated model. Any
        number of threads may call it at the same time.
        """
        if isinstance(given, str):
            one = self.predict_one(given, k)
            top = TopK(one.labels[None], one.scores[None])
        else:
            top = self.predict_topk(self.rows_of(list(given)), k)
        if probabilities:
            if self.calibration is None:
                raise ModelError("the model has no calibration: make one with xmlpreck calibrate, or ask for scores")
            top = self.calibration.probabilities(top)
        names = self.label_names
        found = [
            [(str(label) if names is None else names[label], score) for label, score in pairs if label >= 0]
            for pairs in (zip(*row, strict=True) for row in zip(top.labels.tolist(), top.scores.tolist(), strict=True))
        ]
        return found[0] if isinstance(given, str) else found

    def rank_candidates(self, rows: Any, candidates: Any, k: int, bonus: np.ndarray | None = None) -> TopK:
        """Return the k best of each row's own candidates (the pattern of a matrix of n_labels columns)."""
        prepared = self._prepare(rows)
        k = self._check_k(k)
        bonus = None if bonus is None else self._check_bonus(bonus)
        candidates = as_rows(candidates, noun="candidate")
        wanted = (len(prepared.offsets) - 1, self.n_labels)
        if candidates.shape != wanted:
            raise ModelError(f"candidates must have the shape {wanted}, but have {candidates.shape}")
        offsets, labels = candidates.indptr.astype(np.int64), candidates.indices
        scores = np.zeros(len(labels), self.weights.values.dtype)
        buffers = new_work(self.n_labels, dtype=scores.dtype)
        kernels.score_candidates(prepared, self.weights, buffers, offsets, labels, scores)
        if bonus is not None:
            scores += bonus[labels]
        counts = np.diff(offsets)
        row_of = np.repeat(np.arange(len(counts)), counts)
        order = np.lexsort((labels, -scores, row_of))
        place = np.arange(len(labels)) - np.repeat(offsets[:-1], counts)
        best = (place < k) & (scores[order] > -np.inf)
        top = TopK(np.full((len(counts), k), -1, np.int32), np.full((len(counts), k), -np.inf, np.float32))
        top.labels[row_of[best], place[best]] = labels[order][best]
        top.scores[row_of[best], place[best]] = scores[order][best]
        return top

    def _check_k(self, k: int) -> int:
        if not isinstance(k, Integral) or k < 1:
            raise ModelError(f"topk must be 1 or more, but is {k!r}")
        return min(int(k), self.n_labels)

    def _check_bonus(self, bonus: Any) -> np.ndarray:
        """Return a bonus of the labels as the kernels take it: a number or -inf for every label."""
        if bonus is None:
            return NO_BONUS
        extra = np.ascontiguousarray(bonus, np.float32)
        if extra.shape != (self.n_labels,):
            raise ModelError(f"a bonus has a number for each of {self.n_labels} labels, but this one has {extra.shape}")
        if not (extra < np.inf).all():  # NaN is not below infinity
            raise ModelError(f"the bonus of label {int(np.argmin(extra < np.inf))} is neither a number nor -inf")
        return extra

    def predict_blocks(
        self, source: RowSource, k: int, n_threads: int = 1, progress: bool = False
    ) -> Iterator[tuple[Dataset, TopK]]:
        """Rows and their k best labels, block by block: two blocks are in memory at a time."""
        with progress_bar(source.n_rows, "predict", progress) as bar:
            for _, block in read_blocks(source, BLOCK_ROWS):
                yield block, self.predict_topk(block.rows, k, n_threads)
                bar.update(block.n_rows)

    def score(
        self,
        source: RowSource,
        n_threads: int = 1,
        progress: bool = False,
        ks: Sequence[int] = metrics.REPORTED_KS,
    ) -> dict[str, float]:
        """Measure P@k, in percent, on rows with known labels, for each k that the number of labels allows."""
        meter = metrics.Meter(source.n_labels, [k for k in ks if k <= self.n_labels], n_resamples=0)
        for block, top in self.predict_blocks(source, max(meter.ks), n_threads, progress):
            meter.add(top, block.labels)
        return meter.precision()

    def decision_function(self, rows: Any) -> np.ndarray:
        """Return all scores, dense (n_rows, n_labels)."""
        prepared = self._prepare(rows)
        scores = np.zeros((len(prepared.offsets) - 1, self.n_labels), self.weights.values.dtype)
        kernels.score_rows(prepared, self.weights, new_work(self.n_labels, dtype=scores.dtype), scores)
        return scores

    def _prepare(self, rows: Any) -> Rows:
        rows = rows if is_plain_csr(rows) else as_rows(rows)
        if rows.shape[1] != self.n_features:
            raise ModelError(f"rows have {rows.shape[1]} features, but the model was trained on {self.n_features}")
        return kernel_rows(self.prepare(rows))

    def prepare(self, rows: Any) -> csr_array:
        """Return rows as they are scored: see prepare_rows, and before it the dense features transformed."""
        if self.dense_transform is not None:
            rows = self.dense_transform.apply(as_rows(rows))
        return prepare_rows(rows, self.rows)

    def prune(self, threshold: float) -> "Model":
        """A model without the weights smaller than `threshold` in size, laid out anew; its scores are others."""
        weights = lay_out(all_sparse(self.weights, min_size=max(threshold, ANY_SIZE)))
        return self.fresh(
            weights=weights, info=self.info | {"pruned_at": threshold, "label_rule": None}, calibration=None
        )

    def fresh(self, **changes: Any) -> "Model":
        """A copy with these changes and with buffers of its own, which fit other sizes."""
        return replace(self, **changes, _buffers=Buffers())

    def save(self, folder: str | ShardPath) -> int:
        """Write the model directory in one step, or to an object store by its URI; returns its size in bytes."""
        names = (self.label_names, self.feature_names)
        contents = Contents(
            self.weights, self.rows, *names, self.info, self.vectorizer,
            calibration=self.calibration, vocabulary=self.vocabulary, label_words=self.label_words,
            dense_transform=self.dense_transform,
        )  # fmt: skip
        return store.save(folder, contents)

    @classmethod
    def load(cls, folder: str | Path, verify: bool = False) -> "Model":
        """Read a model directory; arrays are memory-mapped. What does not fit together is refused by name.

        Sizes are always checked, the sha256 of every file (which reads all of it) if asked to `verify`. A model in an
        object store (by URI) is copied to this machine first, and verified.
        """
        return cls(*store.load(folder, verify))
