"""Run `xmlpreck …` and `python FILE …` of a shell script as forks of one process that has everything loaded.

A command takes milliseconds to start instead of seconds. It is a process of its own all the same: it has the shell's
folder, environment and files, and ends with a status of its own. `python warm_commands.py SOCKET` is the warm process;
`write_commands` makes the two programs that ask it.
"""

import argparse
import faulthandler
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from helpers import check_one_thread

PARSE_ONLY = "XMLPRECK_TEST_PARSE_ONLY"  # in the environment: a command ends when its words have been understood
HANG_SECONDS = 300  # after which a command says where it is

_COMMAND = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect({address!r})
    request = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)])
    socket.send_fds(server, [request.encode()], [0, 1, 2])
    sys.exit(int(server.recv(10) or 1))
"""


def write_commands(folder: Path, address: str) -> None:
    """Write the programs `xmlpreck` and `python` into a folder that goes into PATH."""
    folder.mkdir()
    for name in ("xmlpreck", "python"):
        program = folder / name
        program.write_text(_COMMAND.format(python=sys.executable, address=address, name=name), encoding="utf-8")
        program.chmod(0o755)


def load_everything() -> None:
    """Import what commands import, and compile or load the kernels that they use."""
    import matplotlib.figure  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import sklearn.feature_extraction.text  # noqa: F401

    import xmlpreck.cli
    import xmlpreck.evaluation.report  # noqa: F401
    from xmlpreck import train
    from xmlpreck.config import RunConfig, TrainConfig
    from xmlpreck.data import synthetic
    from xmlpreck.metrics import Meter
    from xmlpreck.train import tuning

    tuning.FREE_WORK = 0.0  # the budget of large data: tuning is the same, with fewer trials
    train.load_kernels()
    rows = synthetic.make_dataset(200, 100, 20, seed=0)
    scorer = train.fit(rows, RunConfig(train=TrainConfig(epochs=1, threads=1)))
    meter = Meter(rows.n_labels)
    meter.add(scorer.predict_topk(rows.rows, 5, n_threads=1), rows.labels)
    meter.result()


def stop_after_parsing() -> None:
    """Make `parse_args` the last thing that a command does."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_exit(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        parse(self, *args, **kwargs)
        sys.exit(0)

    argparse.ArgumentParser.parse_args = parse_and_exit  # type: ignore[method-assign, assignment]


def run_command(name: str, words: list[str]) -> None:
    """Do what the program of this name does with these words; ends by SystemExit or an error, as a program does."""
    if os.environ.get(PARSE_ONLY):
        stop_after_parsing()
    if name == "python":
        sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")
    else:
        from xmlpreck.__main__ import run

        sys.argv = [name, *words]
        sys.exit(run())


def serve(address: str) -> None:
    """Answer requests, each by a process that starts the command, waits for it and sends its exit status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(8)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that answer
        print("ready", flush=True)
        while True:
            if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
                return  # the tests have ended, or were killed: nobody is left to ask
            connection, _ = listener.accept()
            request, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            check_one_thread()
            if os.fork() == 0:
                break
            connection.close()
            for file in files:
                os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    command = os.fork()
    if command:
        for file in files:
            os.close(file)
        status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        connection.send(str(status if status >= 0 else 128 - status).encode())
        os._exit(0)
    connection.close()
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    # Streams of its own: those of the warm process remember what its files were.
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    name, words, folder, environment = json.loads(request)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    faulthandler.dump_traceback_later(HANG_SECONDS, file=2)
    run_command(name, words)


if __name__ == "__main__":
    load_everything()
    gc.freeze()  # a fork that looks for cycles, at the latest when it ends, would copy all that is loaded
    serve(sys.argv[1])
