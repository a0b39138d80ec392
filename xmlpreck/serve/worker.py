"""A worker: uvicorn on the socket that all workers share, and new versions of models as the supervisor sends them."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from typing import Any

import uvicorn

from xmlpreck.serve.app import SAFE_HEADERS, create_app
from xmlpreck.serve.problems import Problem
from xmlpreck.serve.settings import ServeSettings
from xmlpreck.serve.sharing import unpack
from xmlpreck.serve.state import State

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
except ImportError:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol

MAX_HEADERS = 1 << 16  # bytes
BACKLOG = 2048  # connections that wait to be accepted
# Connections that a worker accepts at a time: the others go to workers that have nothing to do.
_ACCEPTED = 2
_FAREWELL = 0.5  # seconds for an idle connection to close

_NOT_HTTP = b"\r\n".join(
    [
        b"HTTP/1.1 400 Bad Request",
        *(name + b": " + value for name, value in SAFE_HEADERS),
        b"content-type: application/problem+json",
        b"connection: close",
        b"",
        Problem(400, "the request is not HTTP/1.1, or its headers are too long").response().body,
    ]
)

_log = logging.getLogger(__name__)


class Guarded(Protocol):
    """HTTP of clients that must send their headers in time, and of a bounded size (uvicorn has no limit for either)."""

    read_seconds = 10.0
    _timer: asyncio.TimerHandle | None = None
    _n_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if before is None or before.response_complete:
            self._n_bytes += len(data)
            if self._timer is None:
                self._expect_headers()
        super().data_received(data)
        if self.cycle is not before:
            self._n_bytes = 0
            self._forget_timer()
        elif self._n_bytes > MAX_HEADERS:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP as any other error, unless an answer is on its way."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_NOT_HTTP)
        self.transport.close()

    def shutdown(self) -> None:
        super().shutdown()
        self._end_soon()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._end_soon()

    def _end_soon(self) -> None:
        """End a connection that is closing, whether or not the client takes its last bytes, or agrees by TLS."""
        if self.transport.is_closing():
            self.loop.call_later(_FAREWELL, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._timer = self.loop.call_later(self.read_seconds, self._give_up)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._forget_timer()
        self._expect_headers()  # the same time for a client that does not take its answer

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_timer()


class Server(uvicorn.Server):
    """uvicorn's server, which listens to the supervisor too."""

    def __init__(self, config: uvicorn.Config, state: State, control: socket.socket) -> None:
        super().__init__(config)
        self.state, self.control = state, control

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or []:
            one.listen(BACKLOG)  # asyncio has set it to _ACCEPTED
        self.control.setblocking(False)
        asyncio.get_running_loop().add_reader(self.control, self._receive)
        self.control.send(b"ready")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.state.is_stopping = True
        asyncio.get_running_loop().remove_reader(self.control)
        await super().shutdown(sockets)

    def _receive(self) -> None:
        """Take a new version of a model: its name, and the descriptor of the file that holds it."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 1)
        except BlockingIOError:
            return
        if not message:  # the supervisor is gone
            self.should_exit = True
            asyncio.get_running_loop().remove_reader(self.control)
            return
        asyncio.get_running_loop().create_task(self._take(json.loads(message)["model"], descriptors[0]))

    async def _take(self, name: str, descriptor: int) -> None:
        try:
            served = await asyncio.to_thread(unpack, descriptor)
        except Exception:
            _log.exception("a new version of %s cannot be taken", name)
            return
        finally:
            os.close(descriptor)
        self.state.models[name] = served


def run_worker(state: State, settings: ServeSettings, listener: socket.socket, control: socket.socket) -> None:
    """Answer requests until SIGTERM or SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # uvicorn raises the signal again when it has stopped
    limits = settings.limits
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="xmlpreck serve: %(message)s")
    protocol = type("Guarded", (Guarded,), {"read_seconds": limits.read_seconds})
    config = uvicorn.Config(
        create_app(state),
        http=protocol,
        ws="none",
        lifespan="off",
        loop="auto",
        log_config=None,
        access_log=False,
        log_level="error",
        proxy_headers=False,
        server_header=False,
        backlog=_ACCEPTED,
        timeout_keep_alive=int(limits.idle_seconds),
        timeout_graceful_shutdown=int(limits.max_seconds + 1),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=None if settings.tls_key is None else str(settings.tls_key),
        workers=1,
    )
    Server(config, state, control).run([listener])
