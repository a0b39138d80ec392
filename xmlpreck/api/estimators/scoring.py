"""Precision at k as `scoring=` of scikit-learn's searches and cross-validations."""

from __future__ import annotations  # so that help() shows the names of types

from collections.abc import Callable
from functools import partial
from typing import Any

from sklearn.pipeline import Pipeline

from xmlpreck.api.estimators.fitted import LabelPredictor, precision_of
from xmlpreck.api.estimators.targets import Features, Labels
from xmlpreck.config import InputError, TrainConfig

Scorer = Callable[[Any, Features, Labels], float]


def precision_at_k(estimator: object, X: Features, y: Labels, k: int = TrainConfig().k) -> float:
    """Return P@k in [0, 1] of an estimator of xmlpreck, or of a Pipeline or a search with one at its end.

    Every row counts, and k divides, or the number of labels if that is smaller. A label of y that is not among the
    estimator's classes counts as missed.
    """
    estimator = getattr(estimator, "best_estimator_", estimator)
    if isinstance(estimator, Pipeline):
        X = estimator[:-1].transform(X) if len(estimator) > 1 else X
        estimator = estimator[-1]
    if not isinstance(estimator, LabelPredictor):
        raise InputError(
            "precision_at_k needs a PrecAtKClassifier or an XMLTextClassifier, alone or at the end of a Pipeline, not "
            f"{estimator!r:.200}"
        )
    return precision_of(estimator, X, y, k, None)


def precision_at_k_scorer(k: int = TrainConfig().k) -> Scorer:
    """Return `precision_at_k` for a fixed k, as `scoring=` of a search or a cross-validation."""
    return partial(precision_at_k, k=k)
