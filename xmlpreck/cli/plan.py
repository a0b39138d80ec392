"""xmlpreck plan"""

import argparse
import sys
from typing import Any

from xmlpreck.cli.options import add_command, always, location_of, show
from xmlpreck.cli.run_options import add_run_options, limits_of, make_listener, plan_text, values_of


def add_plan(commands: Any) -> None:
    plan = add_command(commands, "plan", run, "say what training will need: weights, memory, disk and time", always)
    plan.set_defaults(split="train")
    add_run_options(plan)


def run(args: argparse.Namespace) -> None:
    from xmlpreck.api import training

    location = location_of(args)
    settings, source = training.read_settings(location, args.config, values_of(args))
    listener = make_listener(sys.stderr, source)
    plan = training.plan(
        location, tune=args.tune is not False, config=settings, limits=limits_of(args), listener=listener
    )
    show(args, plan.to_dict(), plan_text(plan))
