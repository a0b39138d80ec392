"""python -m xmlpreck, and the command xmlpreck"""

import gc
import signal
import sys


def run() -> int:
    """Run the command line; Ctrl-C ends it without a traceback even while modules are being imported."""
    try:
        from xmlpreck.cli import main

        return main()
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # all that is left is Python's own way out
        gc.freeze()  # else Python looks for cycles among all that numba has loaded, to free them: 0.4 s of CPU


if __name__ == "__main__":
    sys.exit(run())
