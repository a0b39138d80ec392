"""What a fitted estimator does: labels, probabilities, precision at k, and a model directory on disk."""

from __future__ import annotations  # so that help() shows the names of types

from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import numpy as np
from scipy.sparse import csr_array
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from xmlpreck import metrics
from xmlpreck.api.estimators.fitting import Trained, Weights, train_model
from xmlpreck.api.estimators.parameters import ClassifierMixin, TrainingParameters, used_settings
from xmlpreck.api.estimators.probabilities import class_probabilities, matrix_of
from xmlpreck.api.estimators.saving import Facts, class_type, read_facts
from xmlpreck.api.estimators.targets import (
    CLASSES,
    DENSE,
    FRAMES,
    LISTS,
    NAMED_KINDS,
    OBJECTS,
    Features,
    Labels,
    Predicted,
    Target,
    align,
    as_kind,
    as_lists,
    indicator_of,
    read_target,
)
from xmlpreck.config import InputError, RunConfig, TrainConfig
from xmlpreck.data.dataset import Dataset, TopK
from xmlpreck.model import Model
from xmlpreck.model.calibration import DEPTH, Calibration


def _calibrates(estimator: LabelPredictor) -> bool:
    """Tell whether there is a `predict_proba`; scikit-learn gives the error as the reason."""
    if not estimator.calibrate:
        raise AttributeError("predict_proba needs calibrate=True when the estimator is fitted")
    return True


Method = TypeVar("Method", bound=Callable[..., object])


def where_calibrated(method: Method) -> Method:
    """Hide a method from `hasattr` where the estimator has calibrate=False, as scikit-learn wants it."""
    return cast(Method, available_if(_calibrates)(method))


class LabelPredictor(ClassifierMixin, TrainingParameters):
    """A classifier that has rows made from its input by `_check_rows`."""

    classes_: np.ndarray
    model_: Model
    history_: list[dict[str, Any]]
    settings_: dict[str, Any]
    tuning_: dict[str, Any] | None
    n_iter_: int
    _kind: str
    _dtype: np.dtype | None
    _scale: float | None

    def _check_rows(self, X: Features, reset: bool = False) -> csr_array:
        raise NotImplementedError

    def _fit_rows(
        self, rows: csr_array, target: Target, feature_names: list[str] | None, settings: RunConfig
    ) -> Trained:
        data = Dataset(rows, target.labels, label_names(target.kind, target.classes), feature_names)
        trained = train_model(data, settings, self.tune, self.calibrate, target.kind)
        self._set_fitted(trained, target)
        return trained

    def _set_fitted(self, trained: Trained, target: Target) -> None:
        self.classes_, self._kind, self._dtype = target.classes, target.kind, target.dtype
        self.model_, self._scale = trained.model, trained.scale
        self.settings_ = used_settings(trained.settings, self._get_param_names())
        self.tuning_ = trained.tuning
        self.history_ = trained.model.info["history"]
        self.n_iter_ = len(self.history_)

    def decision_function(self, X: Features) -> np.ndarray:
        """Return scores, dense (n_rows, n_labels); for two classes (n_rows,), the second's minus the first's."""
        rows = self._check_rows(X)
        scores = self.model_.decision_function(rows)
        return scores[:, 1] - scores[:, 0] if self._kind == CLASSES and len(self.classes_) == 2 else scores

    def predict(self, X: Features) -> Predicted:
        """Return the class with the highest score, or the k best labels of every row in the kind of y fitted."""
        check_is_fitted(self, "model_")
        if self._kind == CLASSES:
            return self.classes_[self._top(X, 1).labels[:, 0]]
        columns = self._top(X).labels
        if self._kind in (LISTS, OBJECTS):
            return as_lists(self._kind, self.classes_[columns])
        return as_kind(self._kind, self._dtype, self.classes_, indicator_of(columns, len(self.classes_)), X)

    def predict_topk(self, X: Features, k: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best labels of every row and their scores: (n_rows, k) each, best first.

        None is the `k` of the estimator; more than there are labels is all of them.
        """
        top = self._top(X, k)
        return self.classes_[top.labels], top.scores

    @where_calibrated
    def predict_proba(self, X: Features) -> Predicted:
        """Return the probability of each label, calibrated on rows that were held out.

        - One class a row: dense, and each row sums to 1 (softmax of the scores, scaled to fit the held-out rows).
        - A dense indicator or a DataFrame: the same, with a probability for every label; labels are independent.
        - Sparse or lists: CSR with the probabilities of each row's max(k, 10) best labels, the others are 0.
        """
        rows = self._check_rows(X)
        if self._kind == CLASSES:
            return self._class_probabilities(rows)
        n_labels = len(self.classes_)
        is_full = self._kind in (DENSE, *FRAMES)
        found = self._probabilities(rows, n_labels if is_full else max(self._check_k(None), DEPTH))
        values = matrix_of(found, n_labels)
        if self._kind in (LISTS, OBJECTS):
            return values
        return as_kind(self._kind, None, self.classes_, values, X)

    @where_calibrated
    def predict_proba_topk(self, X: Features, k: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best labels of every row and their probabilities: (n_rows, k) each, best first."""
        rows = self._check_rows(X)
        k = self._check_k(k)
        if self._kind != CLASSES:
            top = self._probabilities(rows, k)
            return self.classes_[top.labels], top.scores
        chances = self._class_probabilities(rows)
        best = self.model_.predict_topk(rows, k, self.n_threads(), guess_empty=True).labels
        return self.classes_[best], np.take_along_axis(chances, best, axis=1)

    def score(self, X: Features, y: Labels, sample_weight: Weights = None) -> float:
        """Return precision at k within [0, 1]: the share of the predicted labels that are right.

        k is that of the estimator, at most the number of labels; 1 where y has one class a row, which makes it the
        accuracy. A label that was not seen in training counts as missed.
        """
        check_is_fitted(self, "model_")
        return precision_of(self, X, y, 1 if self._kind == CLASSES else None, sample_weight)

    def save(self, folder: str | Path) -> None:
        """Write the estimator as a model directory, without pickle; `xmlpreck predict --model` reads it too."""
        check_is_fitted(self, "model_")
        facts = Facts(
            type(self).__name__,
            self.get_params(deep=False),
            self._kind,
            self._dtype,
            class_type(self.classes_) if self._kind in NAMED_KINDS else None,
            self._scale,
        )
        self.model_.fresh(info=self.model_.info | {"estimator": facts.to_dict(self.settings_)}).save(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote, or a model of `xmlpreck train`, whose predictions are lists of label names."""
        model = Model.load(folder)
        facts = read_facts(model, cls.__name__, folder, cls._get_param_names())
        estimator = cls(**facts.params)
        estimator._restore(model, facts)
        return estimator

    def _restore(self, model: Model, facts: Facts) -> None:
        info = {name: value for name, value in model.info.items() if name != "estimator"}
        model = model.fresh(info=info)
        settings, classes = facts.settings(model), facts.classes(model)
        target = Target(facts.kind, facts.dtype, classes, csr_array((0, len(classes)), dtype=np.float32))
        scale = facts.scale if model.calibration is not None else None  # a model pruned since then has other scores
        self._set_fitted(Trained(model, settings, info.get("tuning"), scale), target)

    def _probabilities(self, rows: csr_array, k: int) -> TopK:
        top = self.model_.predict_topk(rows, k, self.n_threads(), guess_empty=True)
        return self._calibration().probabilities(top)

    def _class_probabilities(self, rows: csr_array) -> np.ndarray:
        self._calibration()
        return class_probabilities(self.model_.decision_function(rows), self._scale or 1.0)

    def _calibration(self) -> Calibration:
        if self.model_.calibration is None:
            raise InputError(
                "no probabilities are known: there were too few rows to hold some out, or the weights have changed "
                "since, by partial_fit or by pruning"
            )
        return self.model_.calibration

    def _check_k(self, k: int | None) -> int:
        """Return a number of labels: None is that of the estimator; never more than there are labels."""
        k = (TrainConfig().k if self.k is None else self.k) if k is None else k
        if not isinstance(k, Integral) or k < 1:
            raise InputError(f"k must be a whole number from 1 on, but is {k!r}")
        return min(int(k), len(self.classes_))

    def _top(self, X: Features, k: int | None = None) -> TopK:
        """Return columns and scores of the k best labels."""
        rows = self._check_rows(X)
        # A row of zeros is a row like others here: `predict` agrees with `decision_function`.
        return self.model_.predict_topk(rows, self._check_k(k), self.n_threads(), guess_empty=True)


def label_names(kind: str, classes: np.ndarray) -> list[str] | None:
    """Return the names of labels for the model on disk, where there are any."""
    return [str(name) for name in classes.tolist()] if kind in NAMED_KINDS else None


def precision_of(estimator: LabelPredictor, X: Features, y: Labels, k: int | None, sample_weight: Weights) -> float:
    """Return the mean over rows, weighted if asked for, of the share of the k best labels that are right."""
    top = estimator._top(X, k)
    target = read_target(y, lists=estimator._kind in (LISTS, OBJECTS))
    labels = align(target, estimator.classes_, estimator._kind, drop_unknown=True)
    shares = metrics.hits(top, labels).mean(axis=1)
    return float(np.average(shares, weights=None if sample_weight is None else np.asarray(sample_weight)))
