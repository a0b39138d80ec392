"""Settings of the server, and what they must be."""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from xmlpreck.config import InputError, check_settings, setting

LONGEST = 86_400.0  # seconds
MAX_BYTES = 1 << 40
MAX_NUMBER = 1 << 30


@dataclass(frozen=True)
class ServeLimits:
    """What a request, or many of them, may ask of the server."""

    max_body: int = setting(16 << 20, "bytes of a request's body", 1, MAX_BYTES)
    max_documents: int = setting(1000, "documents of a request", 1, MAX_NUMBER)
    max_labels: int = setting(1000, "labels of a document (k)", 1, MAX_NUMBER)
    max_queue: int = setting(
        4096, "documents that wait in a worker; a request beyond it is answered by 429", 1, MAX_NUMBER
    )
    max_seconds: float = setting(30.0, "seconds until a request is answered, else by 503", 0.001, LONGEST)
    read_seconds: float = setting(
        10.0, "seconds in which a client must send its headers, then its body, and take its answer", 0.001, LONGEST
    )
    idle_seconds: float = setting(75.0, "seconds that an idle connection is kept open", 0.001, LONGEST)
    batch_rows: int = setting(256, "documents that are scored together", 1, MAX_NUMBER)
    batch_wait: float = setting(
        0.0, "milliseconds to wait for more documents to score together; those that came meanwhile always are", 0, 1000
    )

    def __post_init__(self) -> None:
        check_settings("serve", self)


@dataclass(frozen=True)
class ServeSettings:
    """Where the server listens, who may ask, and its limits."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any that is free
    workers: int = 1
    token_file: str | Path | None = None  # its first line is the token that requests must have
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None
    allow_anyone: bool = False  # on other addresses than this machine's own, without a token
    reload_seconds: float = 1.0  # between looks for a new version of a model; 0: never
    limits: ServeLimits = field(default_factory=ServeLimits)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InputError(f"--port must be 0 to 65535, but is {self.port}")
        if not 1 <= self.workers <= 1024:
            raise InputError(f"--workers must be 1 to 1024, but is {self.workers}")
        if not 0 <= self.reload_seconds <= LONGEST:
            raise InputError(f"--reload must be 0 to {LONGEST:.0f} seconds, but is {self.reload_seconds}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InputError("--tls-cert and --tls-key belong together: give both")
        if not is_loopback(self.host) and self.token_file is None and not self.allow_anyone:
            raise InputError(
                f"--host {self.host}: others could reach the server: give --token-file, or say --allow-anyone"
            )


def is_loopback(host: str) -> bool:
    """Tell whether only programs on this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: str | Path | None) -> bytes | None:
    """Read the token from the first line of a file."""
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            token = file.readline(10_000).strip()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if len(token) < 16 or not token.isascii() or b" " in token:
        raise InputError(f"{path}: the first line must be a token of 16 ASCII characters or more, without blanks")
    return token
