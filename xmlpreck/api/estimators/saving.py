"""What an estimator adds to model.json: its parameters, and the kind of y that its predictions have."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xmlpreck.api.estimators.targets import KINDS, LISTS, NAMED_KINDS
from xmlpreck.config import InputError, RunConfig, from_dict
from xmlpreck.model import Model, ModelError

_TYPES = "biufUO"  # of classes and indicators


@dataclass(frozen=True)
class Facts:
    """An estimator without its model."""

    estimator: str
    params: dict[str, Any]
    kind: str
    dtype: np.dtype | None  # of an indicator
    class_dtype: np.dtype | None  # None: the classes are 0, 1, 2, ...
    scale: float | None

    def to_dict(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return what model.json keeps; a random state is replaced by the seed that was drawn from it."""
        params = {name: value.item() if isinstance(value, np.generic) else value for name, value in self.params.items()}
        if params["random_state"] is not None:
            params["random_state"] = settings["random_state"]
        about = asdict(self) | {"params": params}
        return about | {name: None if about[name] is None else about[name].str for name in ("dtype", "class_dtype")}

    def classes(self, model: Model) -> np.ndarray:
        """Return the label of each column, as it was before its name was written."""
        if self.class_dtype is None or model.label_names is None:
            return np.arange(model.n_labels)
        if self.class_dtype.kind in "UO":
            return np.array(model.label_names, object if self.class_dtype.kind == "O" else None)
        if self.class_dtype.kind == "b":
            return np.array([name == "True" for name in model.label_names])
        try:
            return np.array(model.label_names).astype(self.class_dtype)
        except ValueError:
            raise ModelError(f"model.json: the labels are not of type {self.class_dtype}, as it says") from None

    def settings(self, model: Model) -> RunConfig:
        sections = model.info.get("config")
        return from_dict(sections, "model.json") if isinstance(sections, dict) else RunConfig()


def class_type(classes: np.ndarray) -> np.dtype:
    """Return the type of classes; numbers in an array of objects have the type that numpy would give them."""
    plain = np.array(classes.tolist()).dtype
    return plain if classes.dtype == object and plain.kind != "U" else classes.dtype


def read_facts(model: Model, estimator: str, folder: str | Path, known: list[str]) -> Facts:
    """Read what `Facts.to_dict` wrote; a model of `xmlpreck train` has none, and predicts lists of its label names."""
    about = model.info.get("estimator")
    try:
        made_by = (
            about["estimator"] if about else "PrecAtKClassifier" if model.vectorizer is None else "XMLTextClassifier"
        )
        if made_by == estimator and about:
            return _parse(about, known)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder}: what model.json says of the estimator is damaged: {error!s:.200}") from None
    if made_by != estimator:
        raise ModelError(f"{folder}: is a model of {made_by!s:.60}: load it by {made_by!s:.60}.load")
    return Facts(estimator, {}, LISTS, None, None if model.label_names is None else np.dtype("U"), None)


def _parse(about: dict[str, Any], known: list[str]) -> Facts:
    params = about["params"]
    if not set(params) <= set(known) or not all(
        value is None or type(value) in (bool, int, float, str) for value in params.values()
    ):
        raise InputError(f"parameters are not those of {about['estimator']!r:.60}")
    scale = about["scale"]
    if scale is not None and not (type(scale) is float and 0 < scale < np.inf):
        raise InputError(f"scale must be a positive number, but is {scale!r:.40}")
    if about["kind"] not in KINDS:
        raise InputError(f"kind {about['kind']!r:.40} is none of {', '.join(KINDS)}")
    dtype, class_dtype = (None if about[name] is None else np.dtype(about[name]) for name in ("dtype", "class_dtype"))
    for one in (dtype, class_dtype):
        if one is not None and (one.kind not in _TYPES or one.fields is not None):
            raise InputError(f"{one!s:.40} is not a type of labels")
    if (class_dtype is not None) != (about["kind"] in NAMED_KINDS):
        raise InputError(f"kind {about['kind']} does not fit the type of the classes")
    return Facts(about["estimator"], params, about["kind"], dtype, class_dtype, scale)
