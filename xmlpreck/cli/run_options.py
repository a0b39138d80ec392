"""What plan, train and update share: flags of settings and limits, and what is printed of a run."""

import argparse
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

from xmlpreck import config
from xmlpreck.cli.options import note
from xmlpreck.machine import cores

if TYPE_CHECKING:
    from xmlpreck.api.run import Limits
    from xmlpreck.train import PassFacts, Plan


def add_run_options(command: argparse.ArgumentParser) -> None:
    """Add the flags of settings, of memory and of tuning."""
    command.add_argument(
        "--config", metavar="FILE", help="TOML file, or name of one in configs/ (default: the one named like the data)"
    )
    for name in config.NAMED_SETTINGS:
        default, text = config.describe(config.TrainConfig)[name]
        kind = type(default).__name__.upper()
        command.add_argument(f"--{name}", metavar=kind, help=f"{text} (default: {default})")
    add_text_settings(command, "any setting by its name, e.g. rows.bias=0.1 (docs/settings.md lists all)")
    command.add_argument(
        "--embed",
        metavar="MODEL",
        help="raw text: put an embedding beside the words, made by this sentence-transformers model (its name or "
        "folder; extra `embed`) and kept in ~/.cache/xmlpreck; prediction makes it, too (default: words alone)",
    )
    command.add_argument(
        "--memory", metavar="SIZE", help="most memory to use, e.g. 4GB (default: 80%% of what is free)"
    )
    command.add_argument(
        "--fit-memory",
        action="store_true",
        help="keep each label's strongest features where all weights would not fit into memory (default: refuse)",
    )
    command.add_argument(
        "--tune",
        action=argparse.BooleanOptionalAction,
        help="choose the settings that are not given by facts of the rows, or for a rule of the paper (--algo) by "
        "trials on held-out rows (default: --tune; --no-tune takes the defaults)",
    )


def add_text_settings(
    command: argparse.ArgumentParser, settings: str = "raw text: a setting by its name, e.g. text.ngrams=2"
) -> None:
    """Add --language and --set."""
    _, text = config.describe(config.TextConfig)["language"]
    command.add_argument("--language", metavar="NAME", help=f"raw text: {text}")
    command.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help=f"{settings}; may be given again"
    )


def text_settings_of(args: argparse.Namespace, words: Iterable[str] = ()) -> dict[str, Any]:
    """Read --language, --set and further words, by `section.key`."""
    language = [] if args.language is None else [f"text.language={args.language}"]
    return config.parse_words([*args.set, *words, *language])


def values_of(args: argparse.Namespace) -> dict[str, Any]:
    """Read the settings that were given, by `section.key`."""
    words = [f"train.{name}={getattr(args, name)}" for name in config.NAMED_SETTINGS if getattr(args, name) is not None]
    return text_settings_of(args, words)


def limits_of(args: argparse.Namespace, resume: bool = False, minutes: float | None = None) -> "Limits":
    """Read what a run may use."""
    from xmlpreck.api.run import Limits
    from xmlpreck.train import parse_bytes

    memory = parse_bytes(args.memory) if args.memory else None
    return Limits(memory, args.fit_memory, resume, minutes)


def progress_stream(args: argparse.Namespace) -> TextIO:
    """Choose where progress lines go: stdout is for the result if that is JSON."""
    return sys.stderr if args.json else sys.stdout


def make_listener(stream: TextIO, source: str = "") -> Any:
    """Make a listener that prints what a run does; `source` says where its settings come from."""
    from xmlpreck.api.run import Listener, Trained
    from xmlpreck.data.location import DataLocation
    from xmlpreck.data.rows import RowSource
    from xmlpreck.evaluation import tables

    class Printer(Listener):
        started = 0.0

        def note(self, text: str) -> None:
            note(text)

        def opened(self, location: DataLocation | None, rows: RowSource) -> None:
            name = "data" if location is None else location.name
            name = f"{name} (synthetic)" if name == "demo" else name
            sizes = f"{rows.n_rows:,} rows, {rows.n_features:,} features, {rows.n_labels:,} labels"
            self.print(f"{name}: {sizes}{f'; settings: {source}' if source else ''}")
            self.started = time.perf_counter()

        def planned(self, plan: "Plan") -> None:
            self.print(plan_text(plan))

        def tuned(self, settings: config.RunConfig, evidence: dict[str, Any] | None) -> None:
            if evidence is not None:
                seconds = f"\ntuned in {time.perf_counter() - self.started:.1f} s" if evidence["rungs"] else ""
                self.print(tables.tuning_text(evidence) + seconds)
            self.print(settings_text(settings))

        def passed(self, facts: "PassFacts") -> None:
            self.print(pass_line(facts))

        def saved(self, run: Trained) -> None:
            size = f"{run.model.n_weights:,} weights, {run.n_bytes / 2**20:.1f} MB"
            self.print(f"{run.folder}: {size}; trained in {run.seconds:.1f} s")

        def print(self, text: str) -> None:
            print(text, file=stream, flush=True)

    return Printer()


def settings_text(settings: config.RunConfig) -> str:
    """Describe the settings of a run in one line."""
    train = settings.train
    step = f", eta {train.eta:g} {train.decay}" if train.has_eta else ""
    why = "" if train.threads else cores().why  # fewer threads than the machine has cores
    threads = f"{train.n_threads} threads{f': {why}' if why else ''}"
    rule = train.algo if train.algo == "hinge" else f"{train.algo}, k {train.k}, tau {train.tau:g}"
    return f"{rule}{step}, {train.n_passes} passes, {threads}"


def plan_text(plan: "Plan") -> str:
    """Describe weights, memory, disk and time, a line each."""
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
    if plan.tuning is not None and plan.tuning["trials"]:
        lines.append(
            f"tuning {plan.tuning['trials']} trials on at most {plan.tuning['rows']:,} rows, which cost at most "
            f"{plan.tuning['passes']:.1f} passes; weights and memory are those of the largest settings it may choose"
        )
    if plan.pass_seconds is not None:
        lines.append(f"time about {plan.pass_seconds:.1f} s a pass")
    return "\n".join(lines)


def pass_line(facts: "PassFacts") -> str:
    """Describe a pass in one line."""
    heldout = f"  held out {scores_line(facts.heldout)}" if facts.heldout else ""
    waiting = "" if facts.communication is None else f"  communication {100 * facts.communication:.0f}%"
    return (
        f"pass {facts.number}: surrogate {facts.surrogate:.4f}  mistakes {facts.mistakes:.4f}  gap {facts.gap:.4f}  "
        f"updated {facts.updated:,}{heldout}  {facts.rows_per_second:,.0f} rows/s{waiting}"
    )


def scores_line(scores: dict[str, float]) -> str:
    """Describe scores in one line."""
    return "  ".join(f"{name} {value:.2f}" for name, value in scores.items())
