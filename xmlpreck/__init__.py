"""xmlpreck: extreme multi-label classification trained for the k labels at the top."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Imported at first use: numba and scikit-learn take a second, and `xmlpreck --help` needs neither.
_HOMES = {"Model": "xmlpreck.model", "PrecAtKClassifier": "xmlpreck.api.classifier"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
