"""Bytes in and out: plain or gzip, whole or in blocks of lines; JSON and arrays from regular files only."""

import gzip
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.atomic import atomic_path

BLOCK_BYTES = 1 << 22
HEAD_BYTES = 1 << 16
# Data pack at 3:1 to 10:1. A file that unpacks to more than both of these is made to fill the memory.
MAX_RATIO, RATIO_COUNTS_FROM = 200, 10**8
# Parsed JSON takes some twenty times its bytes.
MAX_JSON_BYTES = 1 << 25
_GZIP_MAGIC = b"\x1f\x8b"


def open_regular(path: AnyPath) -> BufferedReader:
    """Open a file for reading; an OSError where it is a device, which has no end, or a pipe, which makes us wait."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is not a file")
    return os.fdopen(handle, "rb")


def read_json(path: AnyPath, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """What a JSON file says; an OSError or a ValueError where it is none."""
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > max_bytes:
            raise ValueError(f"it has more than {max_bytes:,} bytes")
        content = stream.read()
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def file_sha256(path: AnyPath) -> str:
    """Hash the bytes of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_array(path: AnyPath, mode: Literal["r", "c"] = "r") -> np.ndarray:
    """Map the array of a `.npy` file; an OSError or a ValueError where it is none. Objects are never unpickled.

    A map knows the size of its file: a header that lies cannot ask for more memory than that.
    """
    open_regular(path).close()
    try:
        return np.asarray(np.lib.format.open_memmap(path, mode))
    except OSError:
        raise
    except Exception as error:  # a damaged header fails anywhere within numpy
        raise ValueError(str(error).partition("\n")[0] or type(error).__name__) from None


@contextmanager
def _reading(path: AnyPath) -> Iterator[None]:
    """Turn what reading may raise into one line that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _is_gzip(path: Path) -> bool:
    """By the name or by the first bytes: a download may have lost its suffix."""
    if path.suffix == ".gz":
        return True
    with open(path, "rb") as stream:
        return stream.read(2) == _GZIP_MAGIC


def refuse_bomb(path: AnyPath, n_bytes: int, n_packed: int | None = None) -> None:
    """Refuse a file that unpacks, or is said to, to `n_bytes` out of all proportion to its own `n_packed`."""
    if n_packed is None:
        n_packed = os.stat(path).st_size
    if n_bytes > max(RATIO_COUNTS_FROM, MAX_RATIO * n_packed):
        what = f"its {n_packed:,} bytes unpack to {n_bytes:,} or more"
        raise FormatError(f"{path}: refused: {what}: a bomb? unpack it yourself if you trust it")


class _Gzip(gzip.GzipFile):
    """gzip that refuses a bomb before it fills the memory."""

    def read(self, size: int | None = -1) -> bytes:
        parts = []
        left = sys.maxsize if size is None or size < 0 else size
        while left and (part := super().read(min(left, BLOCK_BYTES))):
            parts.append(part)
            left -= len(part)
            refuse_bomb(self.name, self.tell())
        return b"".join(parts)


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    return _Gzip(path) if _is_gzip(path) else open(path, "rb")


def read_head(path: AnyPath, n_bytes: int = HEAD_BYTES) -> bytes:
    """The first bytes, unpacked."""
    with _reading(path), _open(Path(path)) as stream:
        return stream.read(n_bytes)


def read_bytes(path: AnyPath) -> np.ndarray:
    """All bytes of a file, unpacked."""
    place = Path(path)
    with _reading(path):
        if _is_gzip(place):
            with _open(place) as stream:
                return np.frombuffer(stream.read(), np.uint8)
        # A map, not a read: a file of many GB need not stand in memory beside its matrix.
        return np.asarray(np.memmap(place, np.uint8, "r")) if place.stat().st_size else np.empty(0, np.uint8)


def _end_of_lines(text: bytes) -> int:
    """Where the whole lines of `text` end, without those empty lines that may turn out to end the file."""
    content = len(text.rstrip(b"\r\n"))
    after = text.find(b"\n", content) if content else -1
    end = after + 1 if after >= 0 else text.rfind(b"\n", 0, content) + 1
    return end if text[:1] not in (b"\r", b"\n") or text[:end].strip(b"\r\n") else 0


def line_blocks(path: AnyPath, block_bytes: int | None = BLOCK_BYTES) -> Iterator[np.ndarray]:
    """The bytes in blocks that end where a line ends; with None all of them at once.

    Empty lines at the end of the file are a block of their own, unless all bytes come at once.
    """
    if block_bytes is None:
        whole = read_bytes(path)
        if whole.size:
            yield whole
        return
    text = b""
    with _reading(path), _open(Path(path)) as stream:
        # A line longer than a block doubles it, so that the search for its end stays linear.
        while more := stream.read(max(block_bytes, len(text))):
            text += more
            end = _end_of_lines(text)
            if end:
                yield np.frombuffer(text[:end], np.uint8)
                text = text[end:]
    if text:
        yield np.frombuffer(text, np.uint8)


def numbered_lines(path: AnyPath) -> Iterator[tuple[int, str]]:
    """Each line with its number from 1 and without its end; empty lines at the end of the file are left out."""
    number = n_empty = 0
    for block in line_blocks(path):
        for line in block.tobytes().removesuffix(b"\n").split(b"\n"):
            number += 1
            line = line.removesuffix(b"\r")
            if not line:
                n_empty += 1
                continue
            yield from ((number - n_empty + i, "") for i in range(n_empty))
            n_empty = 0
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                where = f"{path}:{number}: byte {error.start + 1} of the line"
                raise FormatError(f"{where} is not UTF-8: save the file as UTF-8") from error


@contextmanager
def _writing(path: AnyPath) -> Iterator[IO[bytes] | gzip.GzipFile]:
    with atomic_path(path) as temporary, open(temporary, "wb") as raw, ExitStack() as stack:
        out: IO[bytes] | gzip.GzipFile = raw
        if Path(path).suffix == ".gz":
            # No name and no time in the gzip header: the same data give the same bytes.
            out = stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0))
        yield out


def write_lines(path: AnyPath, lines: Iterable[str]) -> None:
    """Write each line with its end, packed when the name ends in `.gz`."""
    with _writing(path) as out:
        out.writelines(f"{line}\n".encode() for line in lines)


class Spool:
    """Lines that wait on disk because the header before them counts them; a crash leaves no file."""

    def __init__(self, path: AnyPath) -> None:
        self.path = path
        self.n_lines = 0
        try:
            self._body = tempfile.TemporaryFile(dir=Path(path).parent)  # noqa: SIM115 (it lives as long as the spool)
        except OSError as error:
            raise FormatError(f"{path}: cannot be written: {error.strerror or error}") from error

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # what did not fit is written again, and the first error is the one to tell
            self._body.close()

    def add(self, lines: Iterable[str]) -> None:
        try:
            for line in lines:
                self._body.write(f"{line}\n".encode())
                self.n_lines += 1
        except OSError as error:
            raise FormatError(f"{self.path}: cannot be written: {error.strerror or error}") from error

    def finish(self, header: str) -> None:
        """Write the header and then the lines."""
        with _writing(self.path) as out:
            out.write(f"{header}\n".encode())
            self._body.seek(0)
            shutil.copyfileobj(self._body, out, BLOCK_BYTES)


def read_names(path: AnyPath) -> list[str]:
    """One name a line; an empty line is an empty name."""
    return parse_names(path, read_bytes(path).tobytes())


def parse_names(path: object, content: bytes) -> list[str]:
    """The names in the bytes of a file; `path` is for the error only."""
    try:
        text = content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error
    return text.removesuffix("\n").split("\n") if text else []


def write_names(path: AnyPath, names: list[str]) -> None:
    """Write what `read_names` reads."""
    for number, name in enumerate(names):
        if "\n" in name or "\r" in name:
            raise FormatError(f"{path}: name {number}, {name[:40]!r}, holds a line break: names are one a line")
    write_lines(path, names)
