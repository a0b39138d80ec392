"""The supervisor: it listens, starts workers, replaces those that end, and gives them new versions of models."""

import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from xmlpreck.config import InputError
from xmlpreck.model.seal import ABOUT
from xmlpreck.serve.counters import Counters
from xmlpreck.serve.served import Served, load_served, name_models, warm_up
from xmlpreck.serve.settings import ServeSettings, read_token
from xmlpreck.serve.sharing import new_file, pack, unpack
from xmlpreck.serve.state import State
from xmlpreck.serve.worker import BACKLOG, run_worker

Note = Callable[[str], None]
_STOPS = (signal.SIGTERM, signal.SIGINT)
# A worker that ends within a second, so often in a row, will do so again.
_MOST_EARLY_ENDS = 10
_EARLY = 1.0
_ERROR_BYTES = 4000


@dataclass
class Worker:
    """A process that answers requests."""

    pid: int
    control: socket.socket
    started: float


@dataclass
class Loading:
    """A process that loads a model into a file that all workers will share."""

    name: str
    pid: int
    descriptor: int
    errors: int  # the end of a pipe


def start_loading(name: str, folder: Path) -> Loading:
    """Load a model in a process of its own: whatever is wrong with it ends that process, and its memory with it."""
    descriptor = new_file()
    errors, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for number in _STOPS:
                signal.signal(number, signal.SIG_DFL)
            pack(load_served(folder, name), descriptor)
            code = 0
        except InputError as error:
            os.write(said, str(error).encode()[:_ERROR_BYTES])
        except BaseException as error:
            os.write(said, f"{folder}: {type(error).__name__}: {error}".encode()[:_ERROR_BYTES])
        finally:
            os._exit(code)
    os.close(said)
    return Loading(name, pid, descriptor, errors)


def end_loading(loading: Loading) -> str | None:
    """Wait for a loading process; return what was wrong, or None."""
    with os.fdopen(loading.errors, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(loading.pid, 0)
    if status == 0:
        return None
    return said or f"{loading.name}: the process that loaded it ended with status {os.waitstatus_to_exitcode(status)}"


def version_of(folder: Path) -> object:
    """Return what changes when a file of a model does; None if there is no model now.

    All files count, not model.json alone: of a folder that is copied file by file, the last one makes it whole.
    """
    try:
        found = {entry.name: entry.stat() for entry in os.scandir(folder)}
    except OSError:
        return None
    files = {name: (one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for name, one in found.items()}
    return files if ABOUT in files else None


class Supervisor:
    """Keeps the workers and their models up to date until a signal stops it."""

    def __init__(self, folders: Sequence[str | Path], settings: ServeSettings, note: Note) -> None:
        self.folders, self.settings, self.note = name_models(folders), settings, note
        self.token = read_token(settings.token_file)
        self.counters = Counters(settings.workers + 1)
        self.versions = {name: version_of(folder) for name, folder in self.folders.items()}
        self.models = {name: self._first_version(name) for name in self.folders}
        self.listener = listen(settings)
        self.workers: dict[int, Worker] = {}  # by the row of their counters
        self.loading: Loading | None = None
        self.n_early = 0
        self.stops: list[int] = []

    @property
    def address(self) -> str:
        host, port = self.listener.getsockname()[:2]
        scheme = "http" if self.settings.tls_cert is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def _first_version(self, name: str) -> Served:
        loading = start_loading(name, self.folders[name])
        error = end_loading(loading)
        if error is not None:
            raise InputError(error)
        served: Served = unpack(loading.descriptor)
        os.close(loading.descriptor)
        warm_up(served)  # workers inherit the kernels
        return served

    def run(self, ready: Callable[[str], None] | None = None) -> None:
        """Serve until SIGTERM or SIGINT; a second one ends all at once."""
        wake, woken = os.pipe()
        for end in (wake, woken):
            os.set_blocking(end, False)
        before = {number: signal.signal(number, lambda n, _: self.stops.append(n)) for number in _STOPS}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        old_wake = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        try:
            gc.collect()
            gc.freeze()  # a search for cycles would write to, and so copy, the pages that workers share
            for row in range(1, self.settings.workers + 1):
                self._start_worker(row)
            for worker in self.workers.values():
                self._await_ready(worker)
            if ready is not None:
                ready(self.address)
            looked = time.monotonic()
            while not self.stops:
                self._replace_ended()
                if self.settings.reload_seconds and time.monotonic() - looked >= self.settings.reload_seconds:
                    looked = time.monotonic()
                    self._look_for_versions()
                self._take_loaded()
                waits = [wake] if self.loading is None else [wake, self.loading.errors]
                select.select(waits, [], [], min(self.settings.reload_seconds or 1.0, 1.0))
                with suppress(BlockingIOError):
                    while os.read(wake, 4096):
                        pass
        finally:
            self._stop_workers()
            self.listener.close()
            signal.set_wakeup_fd(old_wake)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(wake)
            os.close(woken)
            gc.unfreeze()

    def _start_worker(self, row: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.set_wakeup_fd(-1)
                ours.close()
                for other in self.workers.values():
                    other.control.close()
                self.counters.take_row(row)
                state = State(dict(self.models), self.settings.limits, self.counters, self.token)
                run_worker(state, self.settings, self.listener, theirs)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        theirs.close()
        self.workers[row] = Worker(pid, ours, time.monotonic())

    def _await_ready(self, worker: Worker) -> None:
        worker.control.settimeout(60)
        try:
            is_ready = worker.control.recv(16) == b"ready"
        except OSError:
            is_ready = False
        if not is_ready:
            raise InputError("a worker could not start: the lines above say why")
        worker.control.setblocking(False)

    def _replace_ended(self) -> None:
        for row, worker in list(self.workers.items()):
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid == 0 or self.stops:
                continue
            worker.control.close()
            del self.workers[row]
            self.n_early = self.n_early + 1 if time.monotonic() - worker.started < _EARLY else 0
            if self.n_early >= _MOST_EARLY_ENDS:
                raise InputError("workers end as soon as they start: the lines above say why")
            self.note(f"worker {pid} ended with status {os.waitstatus_to_exitcode(status)}: another takes its place")
            self.counters.add("restarts")
            self._start_worker(row)

    def _look_for_versions(self) -> None:
        """Begin to load the first model that has changed; one at a time."""
        for name, folder in self.folders.items():
            found = version_of(folder)
            if self.loading is None and found is not None and found != self.versions[name]:
                self.versions[name] = found
                self.loading = start_loading(name, folder)

    def _take_loaded(self) -> None:
        loading = self.loading
        if loading is None or not select.select([loading.errors], [], [], 0)[0]:
            return
        self.loading = None
        error = end_loading(loading)
        try:
            if error is not None:
                self.counters.add("refused_reloads")
                self.note(f"{error}; the version before goes on")
                return
            served: Served = unpack(loading.descriptor)
            if served.version == self.models[loading.name].version:
                return
            self.models[loading.name] = served
            message = json.dumps({"model": loading.name}).encode()
            for worker in self.workers.values():
                with suppress(OSError):  # it has just ended: its successor gets the new version
                    socket.send_fds(worker.control, [message], [loading.descriptor])
            self.counters.add("reloads")
            self.note(f"{loading.name}: version {served.version} is served")
        finally:
            os.close(loading.descriptor)

    def _stop_workers(self) -> None:
        for worker in self.workers.values():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)
        if self.loading is not None:
            with suppress(ProcessLookupError):
                os.kill(self.loading.pid, signal.SIGKILL)
            end_loading(self.loading)
            os.close(self.loading.descriptor)
        n_stops = len(self.stops)
        ends = time.monotonic() + self.settings.limits.max_seconds + 5
        left = dict(self.workers)
        while left:
            for row, worker in list(left.items()):
                if os.waitpid(worker.pid, os.WNOHANG)[0]:
                    worker.control.close()
                    del left[row]
            if left and (time.monotonic() > ends or len(self.stops) > n_stops):
                for worker in left.values():
                    with suppress(ProcessLookupError):
                        os.kill(worker.pid, signal.SIGKILL)
            time.sleep(0.02)
        self.workers.clear()


def listen(settings: ServeSettings) -> socket.socket:
    """Open the socket that all workers share."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise InputError(f"--host {settings.host} --port {settings.port}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


def supervise(
    models: Sequence[str | Path], settings: ServeSettings, note: Note, ready: Callable[[str], None] | None = None
) -> None:
    """Serve models until SIGTERM or SIGINT."""
    if not hasattr(os, "memfd_create"):
        raise InputError("workers share models in memory files, which only Linux has: use create_app")
    if threading.current_thread() is not threading.main_thread():
        raise InputError("serve from the main thread, or use create_app: signals end the server")
    Supervisor(models, settings, note).run(ready)
