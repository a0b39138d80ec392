"""xmlpreck: extreme multi-label classification, trained for the k labels at the top of every row."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xmlpreck.api.choices import calibrate as calibrate
    from xmlpreck.api.choices import optimize as optimize
    from xmlpreck.api.choices import prune as prune
    from xmlpreck.api.datasets import convert as convert
    from xmlpreck.api.engine import RayEngine as RayEngine
    from xmlpreck.api.estimators import PrecAtKClassifier as PrecAtKClassifier
    from xmlpreck.api.estimators import XMLTextClassifier as XMLTextClassifier
    from xmlpreck.api.estimators import precision_at_k_scorer as precision_at_k_scorer
    from xmlpreck.api.evaluation import EvaluationOptions as EvaluationOptions
    from xmlpreck.api.evaluation import compare as compare
    from xmlpreck.api.evaluation import evaluate as evaluate
    from xmlpreck.api.evaluation import report as report
    from xmlpreck.api.explaining import explain as explain
    from xmlpreck.api.hub import pull as pull
    from xmlpreck.api.hub import push as push
    from xmlpreck.api.labels import LabelFile as LabelFile
    from xmlpreck.api.prediction import PredictionOptions as PredictionOptions
    from xmlpreck.api.prediction import predict as predict
    from xmlpreck.api.run import Limits as Limits
    from xmlpreck.api.run import Listener as Listener
    from xmlpreck.api.sweep import sweep as sweep
    from xmlpreck.api.training import fit as fit
    from xmlpreck.api.training import load_model as load_model
    from xmlpreck.api.training import plan as plan
    from xmlpreck.api.training import tune as tune
    from xmlpreck.api.training import update as update
    from xmlpreck.config import InputError as InputError
    from xmlpreck.data.dataset import Dataset as Dataset
    from xmlpreck.data.formats.column_choice import Columns as Columns
    from xmlpreck.data.formats.prediction_tables import TableStyle as TableStyle
    from xmlpreck.data.location import DataLocation as DataLocation
    from xmlpreck.data.location import load_data as load_data
    from xmlpreck.model.model import Model as Model

__version__ = "0.1.0"

# Imported at first use: numba and scikit-learn take a second, and `xmlpreck --help` needs neither.
_MODULES = {
    "api.choices": ("calibrate", "optimize", "prune"),
    "api.datasets": ("convert",),
    "api.engine": ("RayEngine",),
    "api.estimators": ("PrecAtKClassifier", "XMLTextClassifier", "precision_at_k_scorer"),
    "api.evaluation": ("EvaluationOptions", "compare", "evaluate", "report"),
    "api.explaining": ("explain",),
    "api.hub": ("pull", "push"),
    "api.labels": ("LabelFile",),
    "api.prediction": ("PredictionOptions", "predict"),
    "api.run": ("Limits", "Listener"),
    "api.sweep": ("sweep",),
    "api.training": ("fit", "load_model", "plan", "tune", "update"),
    "config": ("InputError",),
    "data.dataset": ("Dataset",),
    "data.formats.column_choice": ("Columns",),
    "data.formats.prediction_tables": ("TableStyle",),
    "data.location": ("DataLocation", "load_data"),
    "model.model": ("Model",),
}
_HOMES = {name: f"xmlpreck.{module}" for module, names in _MODULES.items() for name in names}
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
