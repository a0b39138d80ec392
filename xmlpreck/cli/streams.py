"""stdout and stderr that may be closed, broken or full at any time without ending the work."""

import errno
import io
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xmlpreck import config
from xmlpreck.cli.options import Stopped, note

SIGPIPE = 13  # also where the signal module has none: 128 + 13 is what shells know
NOBODY_LISTENS = (errno.EPIPE, errno.EBADF)


class Outlet(io.RawIOBase):
    """A file descriptor that remembers its first error and swallows everything that is written after it."""

    def __init__(self, descriptor: int, error: OSError | None = None) -> None:
        self.descriptor = descriptor
        self.error = error

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.descriptor)

    def write(self, data: Any) -> int:
        while self.error is None:
            try:
                return os.write(self.descriptor, data)
            except BlockingIOError:  # some other process has set O_NONBLOCK on the pipe that we share
                select.select([], [self.descriptor], [])
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes


class Output:
    """The outlet of stdout, if it is a real stream of the process, and what became of it."""

    def __init__(self, stdout: Outlet | None) -> None:
        self.stdout = stdout

    def finish(self, code: int, only_prints: bool) -> int:
        """Write what is buffered; return the exit code: that of the work, unless its only result was lost."""
        sys.stdout.flush()
        sys.stderr.flush()
        error = None if self.stdout is None else self.stdout.error
        if code or error is None or (error.errno in NOBODY_LISTENS and not only_prints):
            return code
        if error.errno == errno.EPIPE:
            return 128 + SIGPIPE
        note(f"xmlpreck: stdout cannot be written: {error.strerror}: what was printed is lost")
        return 2

    @contextmanager
    def needed(self) -> Iterator[None]:
        """Stop the work by `Stopped` once nobody can read its output any more."""
        if self.stdout is None:
            yield
            return
        if self.stdout.error is not None:
            raise config.InputError("stdout is closed, so the result has nowhere to go: send it to a file or a pipe")
        descriptor = self.stdout.descriptor
        mode = os.fstat(descriptor).st_mode
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main or not hasattr(select, "poll") or not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            yield
            return

        def stop(number: int, _: object) -> None:
            if _reader_is_gone(descriptor, 0):  # the pipe or socket that broke may be another one
                raise Stopped(number)

        def watch() -> None:
            if _reader_is_gone(descriptor, None):
                signal.pthread_kill(main_thread, signal.SIGPIPE)

        main_thread = threading.get_ident()
        before = signal.signal(signal.SIGPIPE, stop)
        try:
            threading.Thread(target=watch, daemon=True).start()
            yield
        finally:
            signal.signal(signal.SIGPIPE, before)


def _reader_is_gone(descriptor: int, milliseconds: int | None) -> bool:
    """Wait until the other end of a pipe is closed, for ever with None."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(milliseconds))


@contextmanager
def guarded_streams() -> Iterator[Output]:
    """Give the process a stdout and a stderr that cannot fail, until the block ends; others' streams stay."""
    before = sys.stdout, sys.stderr
    _occupy_standard_descriptors()
    outlets = []
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        outlet = None
        if stream is None or _descriptor_of(stream) == descriptor:
            closed = OSError(errno.EBADF, os.strerror(errno.EBADF)) if stream is None else None
            outlet = Outlet(descriptor, closed)
            setattr(sys, name, _text_stream(outlet, stream))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        outlets.append(outlet)
    try:
        yield Output(outlets[0])
    finally:
        sys.stdout, sys.stderr = before


def _descriptor_of(stream: Any) -> int | None:
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):  # a stream in memory, as tests have
        return None


def _text_stream(outlet: Outlet, like: Any) -> io.TextIOWrapper:
    if like is not None:
        like.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(outlet),
        encoding=getattr(like, "encoding", "utf-8"),
        errors="replace",  # not every terminal can write every name
        line_buffering=getattr(like, "line_buffering", True),
        write_through=getattr(like, "write_through", False),
    )


def _occupy_standard_descriptors() -> None:
    """Open the null device on closed ones: the next file would get their numbers, and others' prints."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
