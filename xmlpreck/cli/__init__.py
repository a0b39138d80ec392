"""The command line: a file for each command, which parses, calls one function of xmlpreck.api, and prints.

Heavy imports wait until they are needed.

Results go to stdout, progress and notes to stderr. The exit codes are in EXIT_CODES below and in docs/commands.md.
"""

import argparse
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from xmlpreck import __version__, config
from xmlpreck.cli.calibrate import add_calibrate
from xmlpreck.cli.compare import add_compare
from xmlpreck.cli.data import add_data
from xmlpreck.cli.evaluate import add_evaluate
from xmlpreck.cli.explain import add_explain
from xmlpreck.cli.optimize import add_optimize
from xmlpreck.cli.options import CheckFailed, Parser, Stopped, asked_to_stop, check_source, note
from xmlpreck.cli.plan import add_plan
from xmlpreck.cli.predict import add_predict
from xmlpreck.cli.prune import add_prune
from xmlpreck.cli.pull import add_pull
from xmlpreck.cli.push import add_push
from xmlpreck.cli.report import add_report
from xmlpreck.cli.serve import add_serve
from xmlpreck.cli.streams import guarded_streams
from xmlpreck.cli.train import add_train
from xmlpreck.cli.update import add_update

# In the order of --help.
COMMANDS = (
    add_plan, add_train, add_predict, add_prune, add_update, add_calibrate, add_optimize, add_evaluate, add_compare,
    add_report, add_explain, add_serve, add_push, add_pull, add_data,
)  # fmt: skip

EXIT_CODES = """exit codes:
  0    done
  1    a check has found something: data validate, or lines of predict --data - that have no labels but an error
  2    bad input, no memory, or output that could not be written: one line on stderr says which
  130  interrupted by Ctrl-C
  141  nobody reads the output any more, as in | head, and the command has no other result
  143  terminated by SIGTERM

Results go to stdout, with --json as one JSON value; progress and notes go to stderr.
"""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="xmlpreck",
        description="Extreme multi-label classification for the k labels at the top.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"xmlpreck {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    with guarded_streams() as output:
        only_prints = True  # --help and --version do
        code = 0
        try:
            with termination_raises():
                args = build_parser().parse_args(words)
                only_prints = args.only_prints(args)
                check_source(args)
                with output.needed() if only_prints else nullcontext():
                    args.run(args)
        except SystemExit as end:  # argparse, after --help
            code = end.code if isinstance(end.code, int) else 0
        except config.InputError as error:
            note(f"xmlpreck: {error}")
            code = 2
        except MemoryError as error:
            reason = str(error) or "an allocation failed"
            advice = "use a machine with more, or train with --memory SIZE --fit-memory"
            note(f"xmlpreck: out of memory ({reason}): {advice}")
            code = 2
        except OSError as error:  # what no reader or writer has put into words, such as a name that is too long
            name = f"{config.without_secrets(str(error.filename))[:100]}: " if error.filename else ""
            note(f"xmlpreck: {name}{error.strerror or error}")
            code = 2
        except CheckFailed:
            code = 1
        except Stopped as error:
            code = 128 + int(error.args[0])
        except KeyboardInterrupt:
            note("xmlpreck: interrupted")
            code = 130
        return output.finish(code, only_prints)


@contextmanager
def termination_raises() -> Iterator[None]:
    """Let SIGTERM raise `Stopped`, so that temporary files are removed; a second one ends the process at once."""
    asked_to_stop.clear()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        asked_to_stop.append(number)
        raise Stopped(number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
