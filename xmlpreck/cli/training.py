"""xmlpreck plan | train"""

import argparse
import dataclasses
import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from xmlpreck import config
from xmlpreck.cli.engine import add_engine_options, engine_of, place_of, refuse_text
from xmlpreck.cli.options import (
    Stopped,
    add_command,
    always,
    asked_to_stop,
    columns_of,
    note,
    open_rows,
    positive_number,
    show,
)
from xmlpreck.machine import cores, give_memory_back

if TYPE_CHECKING:
    from xmlpreck.cluster.session import Session
    from xmlpreck.data.rows import RowSource
    from xmlpreck.data.text import TextVectorizer
    from xmlpreck.model import Model
    from xmlpreck.train import PassFacts, Plan, Safety

# What a first Ctrl-C waits for. In the other phases there is nothing to wait for: finished trials are kept already.
STOPPING = {"training": "stopping after a checkpoint", "saving": "the model is being saved, and then it ends"}

# Settings of training that have a flag of their own; the others are reached by --set.
NAMED_SETTINGS = ("algo", "favour", "k", "epochs", "eta", "tau", "heldout", "threads", "seed")


def add_training_commands(commands: Any) -> None:
    plan = add_command(
        commands, "plan", plan_command, "say what training will need: weights, memory, disk and time", always
    )
    train = add_command(commands, "train", train_command, "train a model and, where there are test rows, score it")
    for command in (plan, train):
        command.add_argument(
            "--config", metavar="FILE", help="TOML file or name of one in configs/ (default: the data's own)"
        )
        for name in NAMED_SETTINGS:
            default, text = config.describe(config.TrainConfig)[name]
            kind = type(default).__name__.upper()
            command.add_argument(f"--{name}", metavar=kind, help=f"{text} (default: {default})")
        command.add_argument(
            "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any setting, e.g. rows.bias=0.1"
        )
        command.add_argument(
            "--memory", metavar="SIZE", help="memory that may be used, e.g. 4GB (default: 80%% of what is free)"
        )
        command.add_argument(
            "--fit-memory",
            action="store_true",
            help="where the weights do not fit, keep each label's strongest features",
        )
        command.add_argument(
            "--tune",
            action=argparse.BooleanOptionalAction,
            help="choose the settings that are not given on held-out rows first; costs about 2 passes (default: yes)",
        )
    add_engine_options(train)
    train.set_defaults(split="train")
    train.add_argument("--out", metavar="DIR", help="model directory to write (default: runs/NAME OF THE DATA)")
    train.add_argument("--resume", action="store_true", help="go on from the last checkpoint, if there is one")
    train.add_argument(
        "--checkpoint-minutes",
        metavar="N",
        help="minutes between checkpoints within a pass (default: 10); a pass that took long ends with one, too",
    )
    train.add_argument(
        "--sweep",
        metavar="SETTING=V,V,...",
        help="a model for each value, e.g. k=1,3,5,10, and a table of their scores",
    )


def plan_command(args: argparse.Namespace) -> None:
    settings, source = read_settings(args)
    from xmlpreck import train

    safety = read_safety(args)
    data, _ = open_training(args, settings)
    print(f"{describe_data(args, data)}; settings: {source}", file=sys.stderr)
    plan = train.plan(data, settings, safety, tuned=args.tune is not False)
    show(args, plan.to_dict(), plan_text(plan))


def train_command(args: argparse.Namespace) -> None:
    engine = engine_of(args)
    if args.sweep:
        if engine is not None:
            raise config.InputError("--sweep trains on this machine only: leave out --engine ray")
        sweep_command(args)
        return
    settings, source = read_settings(args)
    from xmlpreck import model
    from xmlpreck.data import catalog

    folder = Path(args.out or Path("runs") / catalog.describe(args.data))
    model.check_target(folder, None if args.out else data_place(args))
    progress = sys.stderr if args.json else sys.stdout
    if engine is not None:
        refuse_text(args)
    with kept_safe(args, folder) as safety, engine.connect() if engine else nullcontext() as session:
        data, vectorizer = open_training(args, settings)
        print(f"{describe_data(args, data)}; settings: {source}", file=progress)
        scorer, result = train_one(args, settings, data, vectorizer, folder, progress, safety, session)
    if has_test(args):
        test = open_rows(args, "test", scorer)
        result["test"] = score(scorer, test, settings)
        print(f"test, {test.n_rows:,} rows: {format_scores(result['test'])}", file=progress)
    else:
        note("no test rows: nothing to score")
    if args.json:
        print(json.dumps(result))


def sweep_command(args: argparse.Namespace) -> None:
    """One model for each value of a setting; P@k of each on the test rows, else on the held-out rows."""
    if args.tune:
        raise config.InputError("--sweep compares values of one setting, all others being equal: leave out --tune")
    name, _, values = args.sweep.partition("=")
    words = [word.strip() for word in values.split(",")]
    if not name or not all(words) or len(set(words)) < len(words):
        raise config.ConfigError(f"--sweep must be SETTING=VALUE,VALUE,... with each value once, not {args.sweep!r}")
    setting = name if "." in name else f"train.{name}"
    if setting.startswith("text."):
        raise config.ConfigError(f"--sweep {name}: the text is read once for all runs: train them one by one")
    runs = {word: read_settings(args, [f"{setting}={word}"])[0] for word in words}
    if not has_test(args) and not all(run.train.heldout for run in runs.values()):
        raise config.InputError(f"{args.data}: has no test rows: hold some out for the comparison, e.g. --heldout 0.1")
    from xmlpreck import metrics, model
    from xmlpreck.data import catalog
    from xmlpreck.evaluation import tables

    out = Path(args.out or Path("runs") / f"{catalog.describe(args.data)}-sweep")
    folders = {word: out / f"{name}={word}" for word in words}
    for folder in folders.values():
        model.check_target(folder, None if args.out else data_place(args))
    # Where k is swept, every trained k is also a k to score.
    ks = sorted({*metrics.REPORTED_KS, *(run.train.k for run in runs.values() if setting == "train.k")})
    progress = sys.stderr if args.json else sys.stdout
    data, vectorizer = open_training(args, next(iter(runs.values())))
    print(describe_data(args, data), file=progress)
    results, scores = {}, {}
    for word, settings in runs.items():
        with kept_safe(args, folders[word]) as safety:
            scorer, results[word] = train_one(args, settings, data, vectorizer, folders[word], progress, safety)
        rows = open_rows(args, "test", scorer) if has_test(args) else heldout_rows(data, settings)
        scores[word] = results[word]["scores"] = score(scorer, rows, settings, ks)
    where = "test" if has_test(args) else "held-out"
    show(args, {"sweep": setting, "rows": where, "runs": results}, f"{where} rows\n{tables.sweep_text(name, scores)}")


def read_safety(args: argparse.Namespace) -> "Safety":
    from xmlpreck import train

    return train.Safety(
        memory=train.parse_bytes(args.memory) if args.memory else None, fit_memory=args.fit_memory, tell=note
    )


@contextmanager
def kept_safe(args: argparse.Namespace, folder: Path) -> "Iterator[Safety]":
    """Checkpoints beside the model directory, locked against other runs; the first Ctrl-C asks the run to stop."""
    minutes = positive_number("--checkpoint-minutes", args.checkpoint_minutes) if args.checkpoint_minutes else None
    from xmlpreck import train

    checkpoints = train.Checkpoints(folder)
    phases = ["reading"]

    def ask(number: int, _: object) -> None:
        asked_to_stop.append(number)
        signal.signal(number, before[number])  # a second one ends the process at once
        if phases[-1] not in STOPPING:
            raise KeyboardInterrupt(number)
        note(f"{STOPPING[phases[-1]]}; once more to stop at once")

    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with checkpoints.locked():
        if checkpoints.numbers() and not args.resume:
            raise config.InputError(
                f"{checkpoints.folder}: has the checkpoint of a run that did not end: go on with --resume, delete it, "
                "or choose another --out"
            )
        if args.resume and not checkpoints.numbers():
            how = "going on with tuning" if checkpoints.record.exists() else "starting from the first row"
            note(f"{checkpoints.folder}: no checkpoint: {how}")
        safety = dataclasses.replace(
            read_safety(args),
            checkpoints=checkpoints,
            resume=args.resume,
            stop=lambda: bool(asked_to_stop),
            phase=phases.append,
        )
        if minutes is not None:
            safety = dataclasses.replace(safety, minutes=minutes)
        try:
            for number in before:
                signal.signal(number, ask)
            yield safety
            checkpoints.clear()
        except (train.Interrupted, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and not error.args:  # the second one
                raise
            given = [word for word in sys.argv[1:] if word != "--resume"]
            words = [config.without_secrets(word) for word in given]
            secrets = "" if words == given else ", and the credentials in its addresses"
            kept = "finished trials of tuning are kept; " if phases[-1] == "tuning" else ""
            note(
                f"stopped while {phases[-1]}; {kept}go on with{secrets}: {shlex.join(['xmlpreck', *words, '--resume'])}"
            )
            raise Stopped(asked_to_stop[0]) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def open_training(args: argparse.Namespace, settings: config.RunConfig) -> "tuple[RowSource, TextVectorizer | None]":
    """The training rows; raw text is made into numbers by a vectorizer that learns from it."""
    from xmlpreck import train
    from xmlpreck.data import catalog, corpus

    give_memory_back()
    documents = corpus.find_corpus(args.data, "train", columns_of(args))
    vectorizer = None
    if documents is None:
        data = catalog.load(args.data, "train", args.data_dir, args.format)
    else:
        note("reading text")
        vectorizer, label_names = corpus.learn(documents, settings.text)
        data = corpus.vectorize(documents, vectorizer, label_names)
    note("loading kernels (compiled once, in about 20 s)")
    train.load_kernels()
    return data, vectorizer


def train_one(
    args: argparse.Namespace,
    settings: config.RunConfig,
    data: "RowSource",
    vectorizer: "TextVectorizer | None",
    folder: Path,
    progress: TextIO,
    safety: "Safety",
    session: "Session | None" = None,
) -> "tuple[Model, dict[str, Any]]":
    """Train, on a cluster if there is a session, tell the plan and every pass, save."""
    from xmlpreck import train
    from xmlpreck.data import catalog
    from xmlpreck.evaluation import tables

    def tell(text: str) -> None:
        print(text, file=progress, flush=True)

    def on_pass(facts: "PassFacts") -> None:
        tell(pass_line(facts))

    def on_plan(plan: "Plan") -> None:
        tell(plan_text(plan))

    def on_tuned(settings: config.RunConfig, evidence: dict[str, Any] | None) -> None:
        if evidence is not None:
            tell(f"{tables.tuning_text(evidence)}\ntuned in {time.perf_counter() - started:.1f} s")
        tell(describe_settings(settings))

    started = time.perf_counter()
    engine = engine_of(args)
    is_tuned = args.tune is not False and not args.sweep  # a sweep compares values of one setting
    if engine is not None and session is not None:
        from xmlpreck.cluster import training

        tuning = None
        if is_tuned:
            settings, tuning = train.settle(data, settings, safety, True, on_tuned)
        else:
            on_tuned(settings, None)
        safety.phase("training")
        n_shards, rows = engine.label_shards, place_of(args, data)
        scorer = training.fit(session, rows, data, settings, n_shards, safety, on_pass, progress=True, tuning=tuning)
    elif is_tuned:
        scorer = train.fit_tuned(data, settings, on_pass, True, safety, on_plan, on_tuned)
    else:
        on_tuned(settings, None)
        scorer = train.fit(data, settings, on_pass, True, safety, on_plan)
    seconds = time.perf_counter() - started
    scorer = dataclasses.replace(scorer, vectorizer=vectorizer)
    # What `report` needs to find the rows again.
    columns = {name: getattr(args, name) for name in ("text_column", "labels_column", "label_separator", "format")}
    scorer.info["data"] |= {"name": catalog.describe(args.data), "place": data_place(args), **columns}
    n_bytes = scorer.save(folder)
    n_weights = scorer.n_weights
    tell(f"{folder}: {n_weights:,} weights, {n_bytes / 2**20:.1f} MB; trained in {seconds:.1f} s")
    result = {"model": str(folder), "bytes": n_bytes, "n_weights": n_weights, "seconds": seconds}
    return scorer, result | {"history": scorer.info["history"]}


def data_place(args: argparse.Namespace) -> str:
    """Where the rows are, as a model remembers it."""
    return str(Path(args.data).resolve()) if Path(args.data).exists() else config.without_secrets(args.data)


def score(
    scorer: "Model", rows: "RowSource", settings: config.RunConfig, ks: list[int] | None = None
) -> dict[str, float]:
    from xmlpreck import metrics

    return scorer.score(rows, settings.train.n_threads, progress=True, ks=ks or metrics.REPORTED_KS)


def heldout_rows(data: "RowSource", settings: config.RunConfig) -> "RowSource":
    from xmlpreck.data.rows import split_heldout

    return split_heldout(data, settings.train.heldout, settings.train.seed)[1]


def has_test(args: argparse.Namespace) -> bool:
    """A file or one shard set is its own train split; a folder or name may have a test split beside it."""
    from xmlpreck.data import catalog, corpus, shards

    if Path(args.data).is_file() or shards.is_one_set(args.data):
        return False
    if args.text_column is not None:
        return corpus.find_corpus(args.data, "test", columns_of(args)) is not None
    return catalog.has_split(args.data, "test", args.data_dir)


def read_settings(args: argparse.Namespace, overrides: list[str] | None = None) -> tuple[config.RunConfig, str]:
    """The run's settings and where they come from."""
    from xmlpreck.data.catalog import find_config

    path = find_config(args.config, args.data)
    flags = [f"train.{name}={getattr(args, name)}" for name in NAMED_SETTINGS if getattr(args, name) is not None]
    return config.load(path, [*args.set, *flags, *(overrides or [])]), str(path.name if path else "defaults")


def describe_data(args: argparse.Namespace, data: "RowSource") -> str:
    from xmlpreck.data import catalog

    name = catalog.describe(args.data)
    called = f"{name} (synthetic)" if name == "demo" else name
    return f"{called}: {data.n_rows:,} rows, {data.n_features:,} features, {data.n_labels:,} labels"


def describe_settings(settings: config.RunConfig) -> str:
    train = settings.train
    step = f", eta {train.eta:g} {train.decay}" if train.algo.startswith("sgd") else ""
    why = "" if train.threads else cores().why  # fewer threads than the machine has cores
    threads = f"{train.n_threads} threads{f': {why}' if why else ''}"
    return f"{train.algo}, k {train.k}{step}, tau {train.tau:g}, {train.epochs} passes, {threads}"


def plan_text(plan: "Plan") -> str:
    """Weights, memory, disk and time, a line each."""
    from xmlpreck.train import format_bytes

    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in plan.parts.items() if size >= 2**20)
    lines = [
        f"{plan.n_weights:,} weights; {plan.n_dense:,} of {plan.n_features:,} features have dense rows",
        f"memory {format_bytes(plan.peak_bytes)} of {format_bytes(plan.limit_bytes)} at the peak: {parts}",
        f"disk {format_bytes(plan.checkpoint_bytes)} a checkpoint (two are kept), model at most "
        f"{format_bytes(plan.model_bytes)}",
    ]
    if plan.cut is not None:
        lines.insert(
            1,
            f"cut to fit: at most {plan.cut.most_features:,} features a label, "
            f"{plan.cut.n_labels:,} of {plan.n_labels:,} labels lost some",
        )
    if plan.tuning is not None:
        lines.append(
            f"tuning {plan.tuning['trials']} trials on at most {plan.tuning['rows']:,} rows, which cost at most "
            f"{plan.tuning['passes']:.1f} passes; weights and memory are those of the largest settings it may choose"
        )
    if plan.pass_seconds is not None:
        lines.append(f"time about {plan.pass_seconds:.1f} s a pass")
    return "\n".join(lines)


def pass_line(facts: "PassFacts") -> str:
    heldout = f"  held out {format_scores(facts.heldout)}" if facts.heldout else ""
    waiting = "" if facts.communication is None else f"  communication {100 * facts.communication:.0f}%"
    return (
        f"pass {facts.number}: surrogate {facts.surrogate:.4f}  mistakes {facts.mistakes:.4f}  gap {facts.gap:.4f}  "
        f"updated {facts.updated:,}{heldout}  {facts.rows_per_second:,.0f} rows/s{waiting}"
    )


def format_scores(scores: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.2f}" for name, value in scores.items())
