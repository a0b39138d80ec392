"""Train models: plan, tune, fit, sweep over a setting, update."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from xmlpreck import config as settings_of
from xmlpreck import train
from xmlpreck.api.engine import RayEngine, refuse_text, shared_rows
from xmlpreck.api.inputs import AnyModel, as_model, open_location
from xmlpreck.api.labels import LabelFile, add_labels, add_vocabulary, name_all_labels
from xmlpreck.api.run import DEFAULT_LIMITS, Limits, Listener, Trained, Updated, kept_safe
from xmlpreck.api.texts import choose_text, open_new
from xmlpreck.config import InputError, RunConfig, TrainConfig
from xmlpreck.data import catalog, shards
from xmlpreck.data.dense import put_beside, stored_dense
from xmlpreck.data.dense_transform import learn_transform, transformed
from xmlpreck.data.location import REMEMBERED, Data, DataLocation, locate
from xmlpreck.data.rows import RowSource
from xmlpreck.data.shards import ShardPath
from xmlpreck.data.text import TextVectorizer
from xmlpreck.kernels.caching import on_compilation
from xmlpreck.model import Model, check_place, check_target, upload
from xmlpreck.train import Plan, Safety


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
        given |= {"dense_weight"} if "rows.dense_weight" in values else set()
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
    tune_text: bool = False,
    config: str | Path | RunConfig | None = None,
    algo: str | None = None,
    effort: str | None = None,
    favour: str | None = None,
    k: int | None = None,
    epochs: int | None = None,
    members: int | None = None,
    eta: float | None = None,
    tau: float | None = None,
    heldout: float | None = None,
    threads: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    labels: str | Path | LabelFile | None = None,
    limits: Limits = DEFAULT_LIMITS,
    engine: RayEngine | None = None,
    progress: bool = False,
    listener: Listener | None = None,
    dense: Any = None,
    embed: str | None = None,
) -> Model:
    """Train a model on the training rows of `data`; the same words as `xmlpreck train` give the same bits.

    Parameters
    ----------
    data : path, DataLocation, table or Dataset
        A catalogue name, a file, a folder or a URI; what `load_data` returns; a data frame of texts; or rows that are
        open already.
    out : path, optional
        Model directory to write. Checkpoints are kept beside it while the run lasts.
    tune : bool
        Choose the settings that are not given: by the labels of a row where these are five or more, else by short
        trials on held-out rows. All rows are trained on then.
    tune_text : bool
        Raw text: choose among words, pairs of words, runs of characters and BM25 by short runs first (docs/text.md).
    config : path, name or RunConfig, optional
        A TOML file, the name of one in configs/, or settings.
    algo, effort, favour, k, epochs, members, eta, tau, heldout, threads, seed
        Single settings; None = tuned, or the default. `xmlpreck train --help` describes them.
    settings : mapping, optional
        Any other setting by its name, e.g. ``{"rows.bias": 0.1, "text.ngrams": 2}``.
    labels : path or LabelFile, optional
        Vocabulary of the labels: ids, names and words that score (docs/labels.md).
    limits : Limits
        Memory, checkpoints and whether to resume from one.
    engine : RayEngine, optional
        A Ray cluster to train on. It needs `out`.
    progress : bool
        Show progress bars on a terminal.
    listener : Listener, optional
        Hears notes, the plan, the chosen settings and the facts of every pass. By default they are logged.
    dense : path, matrix or column, optional
        Dense rows beside those of `data`, such as an embedding of their texts: a file (.npy, .npz, .h5, .parquet), a
        matrix (n_rows, n_dense), or a column of a table. None: E_train.npy, if `data` is a folder that has it.
    embed : str, optional
        Make the dense rows of raw text by a sentence-transformers model: its name or its folder (extra `embed`).

    Returns
    -------
    Model
    """
    given: dict[str, Any] = {"algo": algo, "effort": effort, "favour": favour, "k": k, "epochs": epochs}
    given |= {"members": members, "eta": eta, "tau": tau, "heldout": heldout, "threads": threads, "seed": seed}
    chosen, _ = read_settings(data, config, named_values(given, settings))
    data = with_dense(data, dense, embed)
    file = LabelFile(labels) if isinstance(labels, str | Path) else labels
    return run_training(
        data, chosen, out, tune, limits, engine, progress, listener, labels=file, tune_text=tune_text
    ).model


def with_dense(data: Data, dense: Any = None, embed: str | None = None) -> Data:
    """Return where data is, with the dense rows to put beside it or the model that makes them of its texts."""
    if dense is None and embed is None:
        return data
    location = locate(data)
    if location is None:
        raise InputError("dense= is for data by its path or a table: append the columns to rows, and set rows.n_dense")
    return replace(location, dense=dense, embed=embed)


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
    labels: LabelFile | None = None,
    tune_text: bool = False,
) -> Trained:
    """Do what `fit` does with settings that are read; with `score_test` also measure P@k where there are test rows."""
    vocabulary = None if labels is None else labels.read()
    listener, location = listener or Listener(), locate(data)
    folder = None if out is None else local_folder(out)
    if out is not None and folder is not None:
        check_target(folder)  # before the work, not after it
        check_place(out)
    if engine is not None:
        refuse_text(location)
        if settings.rows.dense_transform != "none":
            raise InputError("rows.dense_transform is learned on one machine only: leave out --engine ray")
    connection = engine.connect(listener.note) if engine else nullcontext()
    with kept_safe(folder, limits, listener) as safety, connection as session:
        analyzed = choose_text(location, settings, listener, progress) if tune_text else None
        settings = settings if analyzed is None else analyzed.settings
        rows, vectorizer, settings = open_training(data, settings, listener, progress, safety.memory)
        listener.opened(location, rows)
        started = time.perf_counter()
        transform = learn_transform(rows, settings.rows)
        rows = transformed(rows, transform)
        weighed = train.choose_dense_weight(rows, settings, listener.note) if tune else None
        settings = settings if weighed is None else weighed.settings
        if engine is None:
            model = fit_here(rows, settings, tune, safety, progress, listener)
        else:
            model = _fit_on_ray(rows, settings, tune, safety, progress, listener, (engine, session, location))
        if analyzed is not None:
            model.info["analyzers"] = analyzed.evidence
        if weighed is not None:
            model.info["dense"] = weighed.evidence
        if labels is not None and vocabulary is not None:
            model = add_vocabulary(model, rows, vectorizer, vocabulary, labels, listener.note)
        model = replace(model, dense_transform=transform)
        run = finish(model, vectorizer, location, folder, time.perf_counter() - started)
        listener.saved(run)
    if out is not None and folder is not None and shards.is_remote(out):
        upload(folder, str(out))
        listener.note(f"{shards.locate(out)}: has a copy of {folder}")
    if score_test and location is not None and _has_test(location, run.model):
        test = open_location(location.at("test"), run.model, progress)
        scores = run.model.score(test, settings.train.n_threads, progress)
        run = replace(run, test=scores, n_test_rows=test.n_rows)
    return run


def _has_test(location: DataLocation, model: Model) -> bool:
    """Tell whether there are test rows, with dense features if the model has them."""
    if not location.has_split("test") or not model.rows.n_dense or location.embed is not None:
        return location.has_split("test")
    return location.at("test").open_dense() is not None


def tell_untuned(settings: RunConfig, listener: Listener) -> None:
    """Tell the settings of a run that is not tuned; refuse an effort, which only tuning looks at."""
    if settings.train.effort != TrainConfig.effort:
        raise InputError(f"train.effort {settings.train.effort} is for runs that are tuned: leave out --no-tune")
    listener.tuned(settings, None)


def fit_here(
    rows: RowSource, settings: RunConfig, tune: bool, safety: Safety, progress: bool, listener: Listener
) -> Model:
    if tune:
        return train.fit_tuned(rows, settings, listener.passed, progress, safety, listener.planned, listener.tuned)
    tell_untuned(settings, listener)
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
        tell_untuned(settings, listener)
    safety.phase("training")
    place = shared_rows(location, rows)
    return training.fit(
        session, place, rows, settings, engine.label_shards, safety, listener.passed, progress, evidence
    )


def finish(
    model: Model,
    vectorizer: TextVectorizer | None,
    location: DataLocation | None,
    folder: ShardPath | None,
    seconds: float,
) -> Trained:
    model = replace(model, vectorizer=vectorizer)
    if location is not None and location.embed is not None:
        model.info["embed"] = location.embed
    if location is not None:  # what `report` needs to find the rows again
        documents = None if vectorizer is None else location.documents()
        columns = location.columns if documents is None else documents.resolved
        known = {key: getattr(columns, name) for name, key in REMEMBERED.items()}
        about = {"name": location.name, "place": location.saved_path, **known, "format": location.format}
        model.info["data"] |= about
    return Trained(model, seconds, folder, 0 if folder is None else model.save(folder))


def open_training(
    data: Data, settings: RunConfig, listener: Listener, progress: bool = False, memory: int | None = None
) -> tuple[RowSource, TextVectorizer | None, RunConfig]:
    """Open training rows, and load the kernels so that nothing is timed with that; the settings know dense features."""
    location = locate(data)
    rows: Any = data  # the other kinds of data have a location
    vectorizer = None
    with on_compilation(lambda: listener.note("compiling kernels (once after an installation, about a minute)")):
        if location is not None:
            rows, vectorizer = location.learn(settings.text, listener.note, progress, settings.train.threads, memory)
            if (found := location.open_dense(progress)) is not None:
                rows = put_beside(rows, *found)
                settings = replace(settings, rows=replace(settings.rows, n_dense=found[0].shape[1]))
        if not settings.rows.n_dense and (n_dense := stored_dense(rows)):
            settings = replace(settings, rows=replace(settings.rows, n_dense=n_dense))
        train.load_kernels()
    return rows, vectorizer, settings


def local_folder(out: str | Path) -> Path:
    """Return the model directory of a run, beside which checkpoints are: `out`, or runs/NAME for one in a store."""
    return Path("runs") / catalog.describe(str(out)) if shards.is_remote(out) else Path(out)


def choose_folder(out: str | Path | None, data: DataLocation) -> str | Path:
    """Return where the model of a run goes: `out`, or runs/NAME OF THE DATA unless that has a model of other data."""
    if out:
        return out
    folder = Path("runs") / data.name
    check_target(folder, data.saved_path)
    return folder


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
    safety = limits.safety(listener)
    rows, _, chosen = open_training(data, chosen, listener, memory=safety.memory)
    listener.opened(locate(data), rows)
    return train.plan(rows, chosen, safety, tuned=tune)


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
    rows, _, chosen = open_training(data, chosen, listener)
    rows = transformed(rows, learn_transform(rows, chosen.rows))
    if (weighed := train.choose_dense_weight(rows, chosen, listener.note)) is not None:
        chosen = weighed.settings
    return Tuned(*train.settle(rows, chosen, limits.safety(listener), progress, listener.tuned))


def update(
    model: AnyModel,
    data: Data | None = None,
    out: str | Path | None = None,
    *,
    epochs: int = 1,
    eta: float | None = None,
    freeze: bool = False,
    grow_vocabulary: bool = False,
    labels: str | Path | LabelFile | None = None,
    threads: int = 0,
    progress: bool = False,
    listener: Listener | None = None,
) -> Updated:
    """Train a model further on new rows, which may have new labels and features behind those that it knows.

    With `freeze` the labels that the model knows keep their weights, and only the new ones learn. `eta` is the step
    size (None: that of the model's training). With `grow_vocabulary` the words of new texts become features, too.
    `labels` is a vocabulary whose new labels are added by their words, before the new rows are learned from, if there
    are any.
    """
    name = "the model" if isinstance(model, Model) else str(model)
    if out is not None:
        check_place(out)
    model = as_model(model)
    n_known = model.n_labels
    if labels is not None:
        model = add_labels(model, LabelFile(labels) if isinstance(labels, str | Path) else labels, name)
    if data is None:
        if labels is None:
            raise InputError("update needs new rows, new labels, or both: give --data, --labels-file")
        folder = None if out is None else shards.locate(out)
        n_bytes = 0 if folder is None else model.save(folder)
        return Updated(model, 0.0, folder, n_bytes, n_new_labels=model.n_labels - n_known)
    sections = model.info.get("config")
    if not isinstance(sections, dict):
        raise InputError(f"{name}: does not say how it was trained, so it cannot be trained further")
    values = {"train.epochs": epochs, "train.threads": threads, "train.heldout": 0.0, "train.average_from": 1}
    if eta is not None:
        values["train.eta"] = eta
    settings = settings_of.override(sections, values, name)
    listener = listener or Listener()
    rows, vectorizer = open_new(data, model, grow_vocabulary, threads, progress)
    started = time.perf_counter()
    newer = name_all_labels(train.update(model, rows, settings, freeze, listener.passed, progress))
    place = None if out is None else shards.locate(out)
    run = finish(newer, vectorizer, None, place, time.perf_counter() - started)
    added = newer.n_labels - n_known, newer.n_features - model.n_features
    return Updated(run.model, run.seconds, run.folder, run.n_bytes, n_new_labels=added[0], n_new_features=added[1])


def load_model(folder: str | Path, verify: bool = False) -> Model:
    """Load a model by path or URI; weights are memory-mapped. `verify` hashes files even if they have not changed."""
    return Model.load(folder, verify)
