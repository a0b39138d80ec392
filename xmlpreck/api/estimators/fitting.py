"""What the estimators do with rows and labels once they are read: tune, train, calibrate."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from xmlpreck.api.engine import log
from xmlpreck.api.estimators.probabilities import learn_calibration, learn_scale, score_heldout
from xmlpreck.api.estimators.targets import CLASSES, Target
from xmlpreck.api.training import fit
from xmlpreck.config import InputError, RunConfig, from_dict
from xmlpreck.data.dataset import Dataset
from xmlpreck.data.dense_transform import transformed
from xmlpreck.model import Model
from xmlpreck.model.calibration import DEPTH

Weights: TypeAlias = Sequence[float] | np.ndarray | None  # one for each row


class Trained(NamedTuple):
    """A model, the settings that were used, and what they were chosen by."""

    model: Model
    settings: RunConfig
    tuning: dict[str, Any] | None
    scale: float | None  # of scores, in the softmax of one class a row; None: not calibrated


class Copies(NamedTuple):
    """How often each row is taken, and how relevant its labels are in each copy."""

    row_ids: np.ndarray
    relevance: np.ndarray  # float32


def copies_of(sample_weight: Weights, rows: Any) -> Copies | None:
    """Return the copies of rows that weights stand for; None where every weight is 1.

    A weight of 2 is the row twice, one of 0 the row left out, one of 1.5 the row twice, with labels of relevance 0.75.
    """
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, rows, dtype=np.float64)
    if (weights < 0).any():
        raise InputError(f"sample weights must be 0 or more, but one is {weights.min():g}")
    if (weights == 1).all():
        return None
    counts = np.ceil(weights).astype(np.int64)
    row_ids = np.repeat(np.arange(len(counts)), counts)
    return Copies(row_ids, (weights[row_ids] / counts[row_ids]).astype(np.float32))


def copy_labels(target: Target, copies: Copies | None, keep_classes: bool = False) -> Target:
    """Return the labels of the copies; classes that no copy has are left out, unless they are to be kept."""
    if copies is None:
        return target
    target = target.take(copies.row_ids, keep_classes)
    target.labels.data *= np.repeat(copies.relevance, np.diff(target.labels.indptr))
    return target


def train_model(data: Dataset, settings: RunConfig, tune: bool, calibrate: bool, kind: str) -> Trained:
    """Train on all rows with the settings that were given, and choose the others first if asked to."""
    model = fit(data, tune=tune, config=settings)
    settings, tuning = from_dict(model.info["config"], "model"), model.info.get("tuning")
    if not calibrate:
        return Trained(model, settings, tuning, None)
    model, scale = calibrate_model(model, data, settings, kind)
    return Trained(model, settings, tuning, scale)


def calibrate_model(model: Model, data: Dataset, settings: RunConfig, kind: str) -> tuple[Model, float | None]:
    """Return the model with probabilities, and for one class a row the scale of its softmax."""
    started = time.perf_counter()
    seen = cast(Dataset, transformed(data, model.dense_transform))  # models of parts learn no transform of their own
    parts = score_heldout(model.fresh(dense_transform=None), seen, settings, kind == CLASSES)
    calibration = learn_calibration(parts, model.n_labels)
    if calibration is None:
        log.info("no probabilities: too few rows with labels to hold some out")
        return model, None
    scale = learn_scale(parts) if kind == CLASSES else None
    n_rows = sum(part.labels.shape[0] for part in parts)
    seconds = time.perf_counter() - started
    log.info("calibrated on %d held-out rows in %.1f s; calibrate=False spares it", n_rows, seconds)
    about = {"n_rows": n_rows, "depth": DEPTH}
    return model.fresh(calibration=calibration, info=model.info | {"calibration": about}), scale
