"""A model as it is served: loaded once, with what requests look up in it."""

import datetime
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError, parse_whole
from xmlpreck.data.formats.json_rows import RowParser
from xmlpreck.files import read_errors
from xmlpreck.files.contents import open_regular
from xmlpreck.model import Model
from xmlpreck.model.explanation import explain
from xmlpreck.model.prediction import label_columns
from xmlpreck.model.seal import ABOUT, ModelError

_ATTEMPTS = 5


@dataclass(frozen=True)
class Served:
    """One version of a model under the name that requests use."""

    name: str
    model: Model
    version: str  # the first digits of the sha256 of model.json, which has those of all other files
    modified: str  # when model.json was written, ISO 8601 with time zone
    n_weights: int

    @cached_property
    def parser(self) -> RowParser:
        return RowParser(self.model.n_features, self.model.feature_names, self.model.vectorizer is not None)

    @cached_property
    def column_of(self) -> dict[str, int]:
        return label_columns(self.model)

    @cached_property
    def folded_names(self) -> list[str]:
        return [self.label_name(label).casefold() for label in range(self.model.n_labels)]

    def label_name(self, label: int) -> str:
        """Return the name of a label, or its number as text."""
        names = self.model.shown_names
        return str(label) if names is None else names[label]

    def label_id(self, label: int) -> str:
        """Return the stable id of a label, or its name where there is no vocabulary."""
        ids = self.model.label_ids
        return self.label_name(label) if ids is None else ids[label]

    def find_label(self, word: str | int) -> int:
        """Find a label by its name, else by its number."""
        if isinstance(word, str) and word in self.column_of:
            return self.column_of[word]
        number = parse_whole(word) if isinstance(word, str) else word
        if number is None or not 0 <= number < self.model.n_labels:
            raise InputError(f"{word!r:.60} is no label of the model: give its name or its number")
        return number

    def search(self, words: str, limit: int) -> list[int]:
        """Find the labels whose names hold all words: those that begin with the text first, then in their order."""
        whole = words.casefold().strip()
        wanted = whole.split()
        found = [label for label, name in enumerate(self.folded_names) if all(word in name for word in wanted)]
        return sorted(found, key=lambda label: not self.folded_names[label].startswith(whole))[:limit]

    @cached_property
    def has_rule(self) -> bool:
        """Tell whether the model says how many labels a row gets."""
        try:
            return self.model.label_rule is not None
        except InputError:
            return False

    def facts(self) -> dict[str, Any]:
        """Return what clients may know of the model; no path is among it."""
        info, text = self.model.info, self.model.vectorizer
        config, data = (info.get(name) or {} for name in ("config", "data"))
        train = config.get("train") or {}
        return {
            "model": self.name,
            "version": self.version,
            "modified": self.modified,
            "n_labels": self.model.n_labels,
            "n_features": self.model.n_features,
            "n_weights": self.n_weights,
            "takes_text": text is not None,
            "language": None if text is None else text.config.language or None,
            "has_label_names": self.model.shown_names is not None,
            "calibrated": self.model.calibration is not None,
            "labels_auto": self.has_rule,
            "trained": {
                "n_rows": data.get("n_rows"),
                "algo": train.get("algo"),
                "k": train.get("k"),
                "epochs": train.get("epochs"),
            },
        }


def load_served(folder: Path, name: str) -> Served:
    """Load a model of which one version is whole, even while another takes its place, and predict with it once."""
    for _ in range(_ATTEMPTS):
        before = _about(folder)
        try:
            model = Model.load(folder)
        except InputError:
            if _about(folder) == before:
                raise
            continue
        if _about(folder) == before:
            break
    else:
        raise ModelError(f"{folder}: changes all the time")
    content, modified = before
    served = Served(name, model, hashlib.sha256(content).hexdigest()[:12], modified, model.n_weights)
    warm_up(served)
    return served


def warm_up(served: Served) -> None:
    """Predict and explain once, so that kernels are loaded, and words and names can be looked up."""
    _ = served.parser, served.column_of
    model = served.model
    rows = csr_array((1, model.n_features), dtype=np.float32) if model.vectorizer is None else model.rows_of(["a text"])
    model.predict_topk(rows, 1, guess_empty=True)
    explain(model, rows, 1)


def _about(folder: Path) -> tuple[bytes, str]:
    path = folder / ABOUT
    with read_errors(path, ModelError):
        try:
            with open_regular(path) as stream:
                content = stream.read()
                seconds = int(path.stat().st_mtime)
        except FileNotFoundError:
            raise ModelError(f"{folder}: is not a model directory: it has no model.json") from None
    return content, datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()


def name_models(folders: Iterable[str | Path]) -> dict[str, Path]:
    """Name models by their folders, or as NAME=FOLDER says."""
    named: dict[str, Path] = {}
    for given in folders:
        name, equals, folder = str(given).partition("=")
        if not equals or "/" in name:
            name, folder = Path(given).name, str(given)
        if not name or not all(letter.isalnum() or letter in "-_." for letter in name):
            raise InputError(
                f"--model {given}: {name!r} is no name for requests: give one as NAME=FOLDER, of letters, digits, -_."
            )
        if name in named:
            raise InputError(f"--model {given}: two models are called {name!r}: name one of them by NAME=FOLDER")
        named[name] = Path(folder)
    if not named:
        raise InputError("no model to serve: give --model FOLDER")
    return named
