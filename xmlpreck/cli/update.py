"""xmlpreck update"""

import argparse
from typing import Any

from xmlpreck.cli.options import (
    DATA_FLAGS,
    add_command,
    add_label_options,
    add_split_and_threads,
    label_file_of,
    location_of,
    positive_number,
    refuse_flags,
    show,
    whole_number,
)
from xmlpreck.cli.run_options import make_listener, progress_stream


def add_update(commands: Any) -> None:
    update = add_command(
        commands, "update", run, "train a model further on new rows, labels or features", needs_data=False
    )
    update.add_argument("--model", required=True, metavar="DIR", help="model directory to start from")
    update.add_argument("--out", required=True, metavar="DIR", help="model directory to write")
    update.add_argument("--epochs", default="1", metavar="INT", help="passes over the new rows (default: 1)")
    update.add_argument("--eta", metavar="NUMBER", help="step size (default: as the model was trained)")
    update.add_argument("--freeze", action="store_true", help="keep the weights of known labels: only new labels learn")
    update.add_argument(
        "--grow-vocabulary",
        action="store_true",
        help="raw text: make features of new words, too (docs/text.md; default: they are left out)",
    )
    add_label_options(update, "vocabulary whose new labels are added by their words; without --data nothing is trained")
    add_split_and_threads(update, "train")


def run(args: argparse.Namespace) -> None:
    epochs = whole_number("--epochs", args.epochs, 1)
    eta = None if args.eta is None else positive_number("--eta", args.eta)
    threads = whole_number("--threads", args.threads, 0)
    labels = label_file_of(args)
    if args.data is None:
        refuse_flags(args, [*DATA_FLAGS, "split", "epochs", "eta", "freeze", "grow_vocabulary"], "without --data")
    from xmlpreck.api import training

    made = training.update(
        args.model, None if args.data is None else location_of(args), args.out,
        epochs=epochs, eta=eta, freeze=args.freeze, grow_vocabulary=args.grow_vocabulary, labels=labels,
        threads=threads,
        progress=True, listener=make_listener(progress_stream(args)),
    )  # fmt: skip
    result = {
        "out": args.out,
        "n_labels": made.model.n_labels,
        "new_labels": made.n_new_labels,
        "new_features": made.n_new_features,
        "bytes": made.n_bytes,
    }
    show(args, result, f"{args.out}: {result['new_labels']:,} new labels, {made.n_bytes / 2**20:.1f} MB")
