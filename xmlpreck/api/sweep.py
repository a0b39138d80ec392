"""Train a model for each value of one setting."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xmlpreck import metrics
from xmlpreck.api.inputs import open_location
from xmlpreck.api.run import DEFAULT_LIMITS, Limits, Listener, Trained, kept_safe
from xmlpreck.api.training import finish, fit_here, named_values, open_training, read_settings
from xmlpreck.config import ConfigError, InputError, RunConfig, parse_words
from xmlpreck.data.dense_transform import learn_transform, transformed
from xmlpreck.data.location import DataLocation
from xmlpreck.data.rows import split_heldout
from xmlpreck.model import check_target


@dataclass(frozen=True)
class Sweep:
    """A model for each value of one setting, and their P@k on the same rows."""

    setting: str
    rows: str  # test or held-out
    runs: dict[str, Trained]
    scores: dict[str, dict[str, float]]


def sweep(
    data: DataLocation,
    setting: str,
    values: Sequence[str],
    out: str | Path | None = None,
    *,
    config: str | Path | RunConfig | None = None,
    settings: Mapping[str, Any] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    progress: bool = False,
    listener: Listener | None = None,
) -> Sweep:
    """Train a model for each value of a setting, and score each on the test rows, else on its held-out rows.

    Models go to folders in `out` (None: runs/NAME OF THE DATA-sweep, unless it has a model of other data).
    """
    listener = listener or Listener()
    name = setting if "." in setting else f"train.{setting}"
    if not setting or not all(values) or len(set(values)) < len(values):
        raise ConfigError(f"a sweep needs a setting and each of its values once, not {setting!r} and {list(values)!r}")
    if name.startswith("text."):
        raise ConfigError(f"{setting}: the text is read once for all runs: train them one by one")
    given = named_values({}, settings)
    configs = {word: read_settings(data, config, given | parse_words([f"{name}={word}"]))[0] for word in values}
    has_test = data.has_split("test")
    if not has_test and not all(run.train.heldout for run in configs.values()):
        raise InputError(f"{data.path}: has no test rows: hold some out for the comparison, e.g. --heldout 0.1")
    base = Path(out) if out else Path("runs") / f"{data.name}-sweep"
    folders = {word: base / f"{setting}={word}" for word in values}
    for folder in folders.values():
        check_target(folder, None if out else data.saved_path)
    # Where k is swept, every trained k is also a k to score.
    ks = sorted({*metrics.REPORTED_KS, *(run.train.k for run in configs.values() if name == "train.k")})
    rows, vectorizer, opened = open_training(data, configs[values[0]], listener)
    n_dense = opened.rows.n_dense
    configs = {value: replace(made, rows=replace(made.rows, n_dense=n_dense)) for value, made in configs.items()}
    listener.opened(data, rows)
    runs, scores = {}, {}
    for word, chosen in configs.items():
        with kept_safe(folders[word], limits, listener) as safety:
            started = time.perf_counter()
            transform = learn_transform(rows, chosen.rows)
            model = fit_here(transformed(rows, transform), chosen, False, safety, progress, listener)
            model = replace(model, dense_transform=transform)
            runs[word] = finish(model, vectorizer, data, folders[word], time.perf_counter() - started)
            listener.saved(runs[word])
        model = runs[word].model
        judged = (
            open_location(data.at("test"), model)
            if has_test
            else split_heldout(rows, chosen.train.heldout, chosen.train.seed)[1]
        )
        scores[word] = model.score(judged, chosen.train.n_threads, progress, ks)
    return Sweep(name, "test" if has_test else "held-out", runs, scores)
