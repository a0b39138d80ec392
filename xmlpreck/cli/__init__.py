"""Words on the command line -> settings -> one call. Nothing computes here; heavy imports wait until they are needed.

Results go to stdout, progress and notes to stderr. Exit 0: fine; 1: a check failed; 2: bad input, told in one line;
130: interrupted (143: terminated).
"""

import argparse
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper

from xmlpreck import __version__, config
from xmlpreck.cli.data import add_data_commands
from xmlpreck.cli.explaining import add_explain_command
from xmlpreck.cli.judging import add_judging_commands
from xmlpreck.cli.options import CheckFailed, Parser, Stopped, note
from xmlpreck.cli.serving import add_serving_commands
from xmlpreck.cli.training import add_training_commands


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="xmlpreck", description="Extreme multi-label classification for the k labels at the top.")
    parser.add_argument("--version", action="version", version=f"xmlpreck {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    add_training_commands(commands)
    add_serving_commands(commands)
    add_judging_commands(commands)
    add_explain_command(commands)
    add_data_commands(commands)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # not every terminal can write every name
    try:
        args = build_parser().parse_args(words)
        args.run(args)
    except config.InputError as error:
        note(f"xmlpreck: {error}")
        return 2
    except MemoryError as error:
        reason = str(error) or "an allocation failed"
        note(f"xmlpreck: out of memory ({reason}): use a machine with more, or train with --memory SIZE --fit-memory")
        return 2
    except CheckFailed:
        return 1
    except BrokenPipeError:  # the reader of our output has had enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Stopped as error:
        return 128 + int(error.args[0])
    except KeyboardInterrupt:
        note("xmlpreck: interrupted")
        return 130
    return 0
