"""Train models: plan, tune, fit, sweep over a setting, update."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from numba.core import event

from xmlpreck import config as settings_of
from xmlpreck import metrics, train
from xmlpreck.api.engine import RayEngine, log, refuse_text, shared_rows
from xmlpreck.config import ConfigError, InputError, RunConfig
from xmlpreck.data import catalog
from xmlpreck.data.location import Data, DataLocation, locate
from xmlpreck.data.rows import RowSource, split_heldout
from xmlpreck.data.text import TextVectorizer
from xmlpreck.model import Model, check_target
from xmlpreck.train import Checkpoints, PassFacts, Plan, Safety

# Settings of training that are named parameters and flags; the others go by `settings` and --set.
NAMED_SETTINGS = ("algo", "favour", "k", "epochs", "eta", "tau", "heldout", "threads", "seed")


class Listener:
    """Hear what a run does while it does it; override what you want to hear. By default it goes to the log."""

    level = logging.INFO

    def note(self, text: str) -> None:
        """Hear a remark."""
        log.log(self.level, "%s", text)

    def opened(self, location: DataLocation | None, rows: RowSource) -> None:
        """Hear that the training rows are open."""

    def planned(self, plan: Plan) -> None:
        """Hear what the run will need."""

    def tuned(self, settings: RunConfig, evidence: dict[str, Any] | None) -> None:
        """Hear the settings of the run; `evidence` is None where they were not tuned now."""
        if evidence is not None:
            chosen = ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                               for name, value in evidence["chosen"].items())  # fmt: skip
            self.note(f"tuned on {evidence['heldout_rows']:,} held-out rows: {chosen}")

    def passed(self, facts: PassFacts) -> None:
        """Hear the facts of a pass."""

    def saved(self, run: "Trained") -> None:
        """Hear that the model is on disk."""

    def phase(self, name: str) -> None:
        """Hear that a phase begins, one of train.PHASES."""

    def stop(self) -> bool:
        """Say whether to stop: asked between calls of the kernels; the run then raises train.Interrupted."""
        return False


@dataclass(frozen=True)
class Trained:
    """A finished run; `seconds` are of tuning and training, without reading."""

    model: Model
    seconds: float
    folder: Path | None = None
    n_bytes: int = 0
    test: dict[str, float] | None = None  # P@k on the test rows
    n_test_rows: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Summarise for JSON."""
        about = {"model": str(self.folder), "bytes": self.n_bytes, "n_weights": self.model.n_weights}
        about |= {"seconds": self.seconds, "history": self.model.info["history"]}
        return about if self.test is None else about | {"test": self.test}


class Limits(NamedTuple):
    """What a run may use, and how it is kept from losing work."""

    memory: int | str | None = None  # bytes, or a size such as "4GB"; None: a share of what is free
    fit_memory: bool = False  # keep each label's strongest features where all would not fit
    resume: bool = False  # go on from the last checkpoint
    checkpoint_minutes: float | None = None  # between checkpoints within a pass

    def safety(self, listener: Listener) -> Safety:
        memory = train.parse_bytes(self.memory) if isinstance(self.memory, str) else self.memory
        minutes = train.CHECKPOINT_MINUTES if self.checkpoint_minutes is None else self.checkpoint_minutes
        return Safety(
            resume=self.resume,
            minutes=minutes,
            memory=memory,
            fit_memory=self.fit_memory,
            stop=listener.stop,
            tell=listener.note,
            phase=listener.phase,
        )


DEFAULT_LIMITS = Limits()


def read_settings(
    data: Data, config: str | Path | RunConfig | None = None, values: Mapping[str, Any] | None = None
) -> tuple[RunConfig, str]:
    """Return the settings of a run and where they come from.

    `config` is a TOML file, the name of one in configs/, or settings (None: the file named like the data, else the
    defaults); `values` are single settings by `section.key`, which win.
    """
    values = dict(values or {})
    if isinstance(config, RunConfig):
        sections = {name: dict(section) for name, section in config.to_dict().items()}
        made = settings_of.override(sections, values, "settings")
        given = {key.removeprefix("train.") for key in values if key.startswith("train.")}
        return replace(made, fixed=config.fixed | given), "given"
    location = locate(data)
    path = None
    if config is not None or location is not None:
        path = catalog.find_config(None if config is None else str(config), "" if location is None else location.path)
    return settings_of.load(path, values), path.name if path else "defaults"


def named_values(given: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Collect settings by `section.key`: named parameters that are not None belong to [train]."""
    named = {f"train.{name}": value for name, value in given.items() if value is not None}
    return {key if "." in key else f"train.{key}": value for key, value in (others or {}).items()} | named


def fit(
    data: Data,
    out: str | Path | None = None,
    *,
    tune: bool = True,
    config: str | Path | RunConfig | None = None,
    algo: str | None = None,
    favour: str | None = None,
    k: int | None = None,
    epochs: int | None = None,
    eta: float | None = None,
    tau: float | None = None,
    heldout: float | None = None,
    threads: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    engine: RayEngine | None = None,
    progress: bool = False,
    listener: Listener | None = None,
) -> Model:
    """Train a model on the training rows of `data`; the same words as `xmlpreck train` give the same bits.

    Parameters
    ----------
    data : path, DataLocation or Dataset
        A catalogue name, a file, a folder or a URI; or rows that are open already.
    out : path, optional
        Model directory to write. Checkpoints are kept beside it while the run lasts.
    tune : bool
        Choose the settings that are not given by short trials on held-out rows. All rows are trained on then.
    config : path, name or RunConfig, optional
        A TOML file, the name of one in configs/, or settings.
    algo, favour, k, epochs, eta, tau, heldout, threads, seed
        Single settings; None = tuned, or the default. `xmlpreck train --help` describes them.
    settings : mapping, optional
        Any other setting by its name, e.g. ``{"rows.bias": 0.1, "text.ngrams": 2}``.
    limits : Limits
        Memory, checkpoints and whether to resume from one.
    engine : RayEngine, optional
        A Ray cluster to train on. It needs `out`.
    progress : bool
        Show progress bars on a terminal.
    listener : Listener, optional
        Hears notes, the plan, the chosen settings and the facts of every pass. By default they are logged.

    Returns
    -------
    Model
    """
    given = {"algo": algo, "favour": favour, "k": k, "epochs": epochs, "eta": eta, "tau": tau}
    given |= {"heldout": heldout, "threads": threads, "seed": seed}
    chosen, _ = read_settings(data, config, named_values(given, settings))
    return run_training(data, chosen, out, tune, limits, engine, progress, listener).model


def run_training(
    data: Data,
    settings: RunConfig,
    out: str | Path | None = None,
    tune: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    engine: RayEngine | None = None,
    progress: bool = False,
    listener: Listener | None = None,
    score_test: bool = False,
) -> Trained:
    """Do what `fit` does with settings that are read; with `score_test` also measure P@k where there are test rows."""
    listener, location = listener or Listener(), locate(data)
    folder = None if out is None else Path(out)
    if engine is not None:
        refuse_text(location)
    connection = engine.connect(listener.note) if engine else nullcontext()
    with kept_safe(folder, limits, listener) as safety, connection as session:
        rows, vectorizer = open_training(data, settings, listener)
        listener.opened(location, rows)
        started = time.perf_counter()
        if engine is None:
            model = _fit_here(rows, settings, tune, safety, progress, listener)
        else:
            model = _fit_on_ray(rows, settings, tune, safety, progress, listener, (engine, session, location))
        run = _finish(model, vectorizer, location, folder, time.perf_counter() - started)
        listener.saved(run)
    if score_test and location is not None and location.has_split("test"):
        test = location.at("test").open(run.model.vectorizer, run.model.label_names)
        scores = run.model.score(test, settings.train.n_threads, progress)
        run = replace(run, test=scores, n_test_rows=test.n_rows)
    return run


def _fit_here(
    rows: RowSource, settings: RunConfig, tune: bool, safety: Safety, progress: bool, listener: Listener
) -> Model:
    if tune:
        return train.fit_tuned(rows, settings, listener.passed, progress, safety, listener.planned, listener.tuned)
    listener.tuned(settings, None)
    return train.fit(rows, settings, listener.passed, progress, safety, listener.planned)


def _fit_on_ray(
    rows: RowSource,
    settings: RunConfig,
    tune: bool,
    safety: Safety,
    progress: bool,
    listener: Listener,
    cluster: tuple[RayEngine, Any, DataLocation | None],
) -> Model:
    from xmlpreck.cluster import training

    engine, session, location = cluster
    evidence = None
    if tune:
        settings, evidence = train.settle(rows, settings, safety, progress, listener.tuned)
    else:
        listener.tuned(settings, None)
    safety.phase("training")
    place = shared_rows(location, rows)
    return training.fit(
        session, place, rows, settings, engine.label_shards, safety, listener.passed, progress, evidence
    )


def _finish(
    model: Model, vectorizer: TextVectorizer | None, location: DataLocation | None, folder: Path | None, seconds: float
) -> Trained:
    model = replace(model, vectorizer=vectorizer)
    if location is not None:  # what `report` needs to find the rows again
        columns = location.columns
        model.info["data"] |= {
            "name": location.name,
            "place": location.saved_path,
            "text_column": columns.text,
            "labels_column": columns.labels,
            "label_separator": columns.separator,
            "format": location.format,
        }
    return Trained(model, seconds, folder, 0 if folder is None else model.save(folder))


@contextmanager
def kept_safe(folder: Path | None, limits: Limits, listener: Listener) -> Iterator[Safety]:
    """Keep checkpoints beside the model directory, locked against other runs; a run without a folder keeps none."""
    safety = limits.safety(listener)
    if folder is None:
        if limits.resume or limits.checkpoint_minutes is not None:
            raise InputError("checkpoints are kept beside the model directory: name it by `out`")
        yield safety
        return
    checkpoints = Checkpoints(folder)
    with checkpoints.locked():
        if checkpoints.numbers() and not limits.resume:
            raise InputError(
                f"{checkpoints.folder}: has the checkpoint of a run that did not end: go on with --resume, delete it, "
                "or choose another --out"
            )
        if limits.resume and not checkpoints.numbers():
            how = "going on with tuning" if checkpoints.record.exists() else "starting from the first row"
            listener.note(f"{checkpoints.folder}: no checkpoint: {how}")
        yield replace(safety, checkpoints=checkpoints)
        checkpoints.clear()


def open_training(data: Data, settings: RunConfig, listener: Listener) -> tuple[RowSource, TextVectorizer | None]:
    """Open training rows, and load the kernels so that nothing is timed with that."""
    location = locate(data)
    rows: Any = data  # the other kinds of data have a location
    vectorizer = None
    if location is not None:
        if location.documents() is not None:
            listener.note("reading text")
        rows, vectorizer = location.learn(settings.text)
    load_kernels(listener.note)
    return rows, vectorizer


def load_kernels(note: Callable[[str], None]) -> None:
    """Load the kernels from numba's cache; say so where they must be compiled, which takes a while."""

    class FirstCompilation(event.Listener):
        is_told = False

        def on_start(self, event: event.Event) -> None:
            if not self.is_told:
                note("compiling kernels (once after an installation, about 20 s)")
            self.is_told = True

        def on_end(self, event: event.Event) -> None:
            pass

    with event.install_listener("numba:compile", FirstCompilation()):
        train.load_kernels()


def default_folder(data: DataLocation, suffix: str = "") -> Path:
    """Name the model directory of a run whose folder nobody chose; a model of other data there is refused."""
    return Path("runs") / f"{data.name}{suffix}"


def plan(
    data: Data,
    *,
    tune: bool = True,
    config: str | Path | RunConfig | None = None,
    settings: Mapping[str, Any] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    listener: Listener | None = None,
) -> Plan:
    """Say what `fit` would need: weights, memory, disk, and the seconds of a pass."""
    listener = listener or Listener()
    chosen, _ = read_settings(data, config, named_values({}, settings))
    rows, _ = open_training(data, chosen, listener)
    listener.opened(locate(data), rows)
    return train.plan(rows, chosen, limits.safety(listener), tuned=tune)


class Tuned(NamedTuple):
    """Chosen settings, and the trials they were chosen by (None: there was nothing to tune)."""

    settings: RunConfig
    evidence: dict[str, Any] | None


def tune(
    data: Data,
    *,
    config: str | Path | RunConfig | None = None,
    settings: Mapping[str, Any] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    progress: bool = False,
    listener: Listener | None = None,
) -> Tuned:
    """Choose the settings that are not given, as `fit` would, without training the model."""
    listener = listener or Listener()
    chosen, _ = read_settings(data, config, named_values({}, settings))
    rows, _ = open_training(data, chosen, listener)
    return Tuned(*train.settle(rows, chosen, limits.safety(listener), progress, listener.tuned))


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
    out: str | Path,
    *,
    config: str | Path | RunConfig | None = None,
    settings: Mapping[str, Any] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    check: Callable[[Path], None] = lambda folder: None,
    progress: bool = False,
    listener: Listener | None = None,
) -> Sweep:
    """Train a model for each value of a setting, and score each on the test rows, else on its held-out rows."""
    listener = listener or Listener()
    name = setting if "." in setting else f"train.{setting}"
    if not setting or not all(values) or len(set(values)) < len(values):
        raise ConfigError(f"a sweep needs a setting and each of its values once, not {setting!r} and {list(values)!r}")
    if name.startswith("text."):
        raise ConfigError(f"{setting}: the text is read once for all runs: train them one by one")
    given = named_values({}, settings)
    configs = {
        word: read_settings(data, config, given | settings_of.parse_words([f"{name}={word}"]))[0] for word in values
    }
    has_test = data.has_split("test")
    if not has_test and not all(run.train.heldout for run in configs.values()):
        raise InputError(f"{data.path}: has no test rows: hold some out for the comparison, e.g. --heldout 0.1")
    folders = {word: Path(out) / f"{setting}={word}" for word in values}
    for folder in folders.values():
        check(folder)
    # Where k is swept, every trained k is also a k to score.
    ks = sorted({*metrics.REPORTED_KS, *(run.train.k for run in configs.values() if name == "train.k")})
    rows, vectorizer = open_training(data, configs[values[0]], listener)
    listener.opened(data, rows)
    runs, scores = {}, {}
    for word, chosen in configs.items():
        with kept_safe(folders[word], limits, listener) as safety:
            started = time.perf_counter()
            model = _fit_here(rows, chosen, False, safety, progress, listener)
            runs[word] = _finish(model, vectorizer, data, folders[word], time.perf_counter() - started)
            listener.saved(runs[word])
        model = runs[word].model
        judged = (
            data.at("test").open(model.vectorizer, model.label_names)
            if has_test
            else split_heldout(rows, chosen.train.heldout, chosen.train.seed)[1]
        )
        scores[word] = model.score(judged, chosen.train.n_threads, progress, ks)
    return Sweep(name, "test" if has_test else "held-out", runs, scores)


def update(
    model: Model | str | Path,
    data: Data,
    out: str | Path | None = None,
    *,
    epochs: int = 1,
    eta: float | None = None,
    freeze: bool = False,
    threads: int = 0,
    progress: bool = False,
    listener: Listener | None = None,
) -> Trained:
    """Train a model further on new rows, which may have new labels and features behind those that it knows.

    With `freeze` the labels that the model knows keep their weights, and only the new ones learn. `eta` is the step
    size (None: that of the model's training).
    """
    name = str(model) if isinstance(model, str | Path) else "the model"
    if out is not None:
        check_target(Path(out))
    model = Model.load(model) if isinstance(model, str | Path) else model
    sections = model.info.get("config")
    if not isinstance(sections, dict):
        raise InputError(f"{name}: does not say how it was trained, so it cannot be trained further")
    values = {"train.epochs": epochs, "train.threads": threads, "train.heldout": 0.0, "train.average_from": 1}
    if eta is not None:
        values["train.eta"] = eta
    settings = settings_of.override(sections, values, name)
    location, listener = locate(data), listener or Listener()
    rows: Any = data if location is None else location.open(model.vectorizer, model.label_names)
    started = time.perf_counter()
    newer = train.update(model, rows, settings, freeze, listener.passed, progress)
    return _finish(newer, newer.vectorizer, None, None if out is None else Path(out), time.perf_counter() - started)


def load_model(folder: str | Path, verify: bool = False) -> Model:
    """Load a model directory; weights are memory-mapped. `verify` hashes its files even if they have not changed."""
    return Model.load(folder, verify)


def check_data_of(folder: Path, data: DataLocation, is_chosen: bool) -> None:
    """Refuse to write a model over strangers' files, or, where nobody chose the folder, over a model of other data."""
    check_target(folder, None if is_chosen else data.saved_path)
