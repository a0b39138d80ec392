"""The settings of training as parameters of an estimator, with the help that the command line shows."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from sklearn.utils import check_random_state

from xmlpreck.config import InputError, RowsConfig, RunConfig, TextConfig, TrainConfig, describe, from_dict
from xmlpreck.machine import n_cores
from xmlpreck.train.tuning import TUNED

if TYPE_CHECKING:  # scikit-learn has no types: these are the methods that it gives to an estimator

    class BaseEstimator:
        def get_params(self, deep: bool = True) -> dict[str, Any]: ...
        def set_params(self, **params: object) -> Self: ...
        @classmethod
        def _get_param_names(cls) -> list[str]: ...

    class ClassifierMixin:
        def __sklearn_tags__(self) -> Any: ...

else:
    from sklearn.base import BaseEstimator, ClassifierMixin

__all__ = ["ClassifierMixin", "TextParameters", "TrainingParameters", "documented", "used_settings"]

Estimator = TypeVar("Estimator", bound=type)
SECTIONS: dict[str, type] = {"train": TrainConfig, "rows": RowsConfig, "text": TextConfig}
OWN_WORDS = {"heldout": "Share of the rows to hold out of training, to score after every pass and to calibrate on"}
_SETTINGS_ENTRY = re.compile(r"^\*\*settings\n(?: .*\n)+", re.MULTILINE)
RENAMED = {"seed": "random_state", "threads": "n_jobs"}  # as scikit-learn calls them


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingParameters(BaseEstimator):
    """Parameters of every estimator here. None = not given: tuned, or the default of the settings."""

    k: int | None = None
    algo: str | None = None
    effort: str | None = None
    favour: str | None = None
    epochs: int | None = None
    members: int | None = None
    eta: float | None = None
    decay: str | None = None
    tau: float | None = None
    radius: float | None = None
    spread: bool | None = None
    negatives: int | None = None
    remember: int | None = None
    widen: bool | None = None
    idf: float | None = None
    centroid: float | None = None
    average_from: int | None = None
    batch_rows: int | None = None
    block_rows: int | None = None
    heldout: float | None = None
    prune: float | None = None
    unit_norm: bool | None = None
    bias: float | None = None
    n_dense: int | None = None
    dense_weight: float | None = None
    dense_transform: str | None = None
    tune: bool = True
    calibrate: bool = True
    random_state: int | np.random.RandomState | None = TrainConfig().seed
    n_jobs: int | None = None

    def read_settings(self) -> RunConfig:
        """Return the given parameters as settings, checked as those of the command line are."""
        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        given = {name: _plain(value) for name, value in self.get_params(deep=False).items() if value is not None}
        sections = {
            section: {name: given[name] for name in describe(kind) if name in given}
            for section, kind in SECTIONS.items()
        }
        sections["train"] |= {"seed": int(seed), "threads": self.n_threads()}
        return from_dict(sections, type(self).__name__)

    def n_threads(self) -> int:
        """Count threads as joblib does: None is 1, -1 all cores, -2 all but one."""
        n_jobs = 1 if self.n_jobs is None else self.n_jobs
        if n_jobs == 0:
            raise InputError("n_jobs must not be 0: give a number of threads, or -1 for all cores")
        return n_jobs if n_jobs > 0 else max(n_cores() + 1 + n_jobs, 1)


@dataclass(kw_only=True, eq=False, repr=False)
class TextParameters(TrainingParameters):
    """Parameters of an estimator of texts."""

    ngrams: int | None = None
    min_df: int | None = None
    max_df: float | None = None
    weighting: str | None = None
    sublinear_tf: bool | None = None
    lowercase: bool | None = None
    token_pattern: str | None = None
    language: str | None = None
    char_ngrams: str | None = None
    hashed_features: int | None = None
    tune_text: bool = False


def _plain(value: object) -> object:
    """Return a number of numpy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def used_settings(settings: RunConfig, names: list[str]) -> dict[str, Any]:
    """Return the settings of a run by the names of an estimator's parameters: with these it trains the same model."""
    sections = settings.to_dict()
    values = {RENAMED.get(name, name): value for section in SECTIONS for name, value in sections[section].items()}
    return {name: value for name, value in values.items() if name in names and name != "n_jobs"}


def documented(*sections: str) -> Callable[[Estimator], Estimator]:
    """Replace the entry `**settings` in the docstring of a class by all settings, with their help and defaults.

    Tools that only read the source show the entry as it is.
    """

    def fill(estimator: Estimator) -> Estimator:
        if estimator.__doc__:  # python -OO has none
            lines = [line for section in sections for line in _describe_section(section)]
            described = "".join(f"{line}\n" for line in lines)
            estimator.__doc__ = _SETTINGS_ENTRY.sub(lambda _: described, inspect.cleandoc(estimator.__doc__))
        return estimator

    return fill


def _describe_section(section: str) -> Iterator[str]:
    for name, (default, text) in describe(SECTIONS[section]).items():
        if name in RENAMED or name == "k":  # the class describes them in its own words
            continue
        text = OWN_WORDS.get(name, text)
        is_word = text.split()[1] != "="  # not the value of a setting
        yield f"{name} : {type(default).__name__}, default {default!r}{' if not tuned' if name in TUNED else ''}"
        yield f"    {text[0].upper() if is_word else text[0]}{text[1:]}."
