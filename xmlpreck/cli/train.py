"""xmlpreck train"""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from xmlpreck import config
from xmlpreck.cli.options import (
    Stopped,
    add_command,
    add_engine_options,
    add_label_options,
    asked_to_stop,
    engine_of,
    label_file_of,
    location_of,
    note,
    positive_number,
    show,
)
from xmlpreck.cli.run_options import (
    add_run_options,
    limits_of,
    make_listener,
    progress_stream,
    scores_line,
    values_of,
)
from xmlpreck.machine import give_memory_back

if TYPE_CHECKING:
    from xmlpreck.api.run import Limits
    from xmlpreck.data.location import DataLocation

# What a first Ctrl-C waits for. In the other phases there is nothing to wait for: finished trials are kept already.
STOPPING = {"training": "stopping after a checkpoint", "saving": "the model is being saved, and then it ends"}


def add_train(commands: Any) -> None:
    train = add_command(commands, "train", run, "train a model and, where there are test rows, score it")
    train.set_defaults(split="train")
    add_run_options(train)
    add_engine_options(train)
    add_label_options(
        train, "vocabulary of the labels: TSV, CSV, SKOS, JSON lines (docs/labels.md); the model keeps it"
    )
    train.add_argument(
        "--tune-text",
        action="store_true",
        help="raw text: choose among words, pairs of words, words with runs of characters, stems of --language, and "
        "BM25, by short runs on at most 10,000 texts (default: words, or stems with --language)",
    )
    train.add_argument("--out", metavar="DIR", help="model directory or URI to write (default: runs/NAME OF THE DATA)")
    train.add_argument("--resume", action="store_true", help="go on from the last checkpoint, if there is one")
    train.add_argument(
        "--checkpoint-minutes",
        metavar="N",
        help="minutes between checkpoints within a pass; a pass that took long ends with one, too (default: 10)",
    )
    train.add_argument(
        "--sweep",
        metavar="SETTING=V,V,...",
        help="train a model for each value, e.g. k=1,3,5,10, and print a table of their scores",
    )


def run(args: argparse.Namespace) -> None:
    engine = engine_of(args)
    minutes = positive_number("--checkpoint-minutes", args.checkpoint_minutes) if args.checkpoint_minutes else None
    if args.sweep and engine is not None:
        raise config.InputError("--sweep trains on this machine only: leave out --engine ray")
    from xmlpreck.api import training

    give_memory_back()
    location, values, limits = location_of(args), values_of(args), limits_of(args, args.resume, minutes)
    labels = label_file_of(args)
    if args.sweep:
        if labels is not None:
            raise config.InputError("--sweep compares settings of training: leave out --labels-file")
        if args.tune_text:
            raise config.InputError("--sweep compares settings of training: leave out --tune-text")
        run_sweep(args, location, values, limits)
        return
    settings, source = training.read_settings(location, args.config, values)
    folder = training.choose_folder(args.out, location)
    with stoppable(make_listener(progress_stream(args), source)) as listener:
        made = training.run_training(
            location,
            settings,
            folder,
            args.tune is not False,
            limits,
            engine,
            True,
            listener,
            score_test=True,
            labels=labels,
            tune_text=args.tune_text,
        )
    if made.test is None:
        note("no test rows: nothing to score")
    else:
        print(f"test, {made.n_test_rows:,} rows: {scores_line(made.test)}", file=progress_stream(args))
    if args.json:
        print(json.dumps(made.to_dict()))


def run_sweep(args: argparse.Namespace, location: "DataLocation", values: dict[str, Any], limits: "Limits") -> None:
    """Train one model for each value of a setting, and print their scores side by side."""
    if args.tune:
        raise config.InputError("--sweep compares values of one setting, all others being equal: leave out --tune")
    name, _, words = args.sweep.partition("=")
    from xmlpreck.api.sweep import sweep
    from xmlpreck.evaluation import tables

    with stoppable(make_listener(progress_stream(args))) as listener:
        made = sweep(
            location,
            name,
            [word.strip() for word in words.split(",")],
            args.out,
            config=args.config,
            settings=values,
            limits=limits,
            progress=True,
            listener=listener,
        )
    runs = {word: run.to_dict() | {"scores": made.scores[word]} for word, run in made.runs.items()}
    text = f"{made.rows} rows\n{tables.sweep_text(name, made.scores)}"
    show(args, {"sweep": made.setting, "rows": made.rows, "runs": runs}, text)


@contextmanager
def stoppable(listener: Any) -> Iterator[Any]:
    """Let a first Ctrl-C or SIGTERM ask the run to stop, and a second one end the process at once."""
    from xmlpreck import train

    phases = ["reading"]
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _: object) -> None:
        asked_to_stop.append(number)
        signal.signal(number, before[number])
        if phases[-1] not in STOPPING:
            raise KeyboardInterrupt(number)
        note(f"{STOPPING[phases[-1]]}; once more to stop at once")

    listener.stop = lambda: bool(asked_to_stop)
    listener.phase = phases.append
    try:
        for number in before:
            signal.signal(number, ask)
        yield listener
    except (train.Interrupted, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and not error.args:  # the second one
            raise
        note(stopped_text(phases[-1]))
        raise Stopped(asked_to_stop[0]) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopped_text(phase: str) -> str:
    """Say what is kept of a run that was stopped, and how to go on with it."""
    given = [word for word in sys.argv[1:] if word != "--resume"]
    words = [config.without_secrets(word) for word in given]
    secrets = "" if words == given else ", and the credentials in its addresses"
    kept = "finished trials of tuning are kept; " if phase == "tuning" else ""
    return f"stopped while {phase}; {kept}go on with{secrets}: {shlex.join(['xmlpreck', *words, '--resume'])}"
