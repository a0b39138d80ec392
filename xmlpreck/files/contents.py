"""Read and write files: plain or gzip, whole or in blocks of lines; JSON and arrays from regular files only."""

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
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from xmlpreck.config import InputError
from xmlpreck.files import AnyPath, FormatError, first_line, read_errors, write_errors
from xmlpreck.files.atomic import atomic_path

BLOCK_BYTES = 1 << 22
HEAD_BYTES = 1 << 16
# Real data compress at 3:1 to 10:1; a file that exceeds both limits is made to fill the memory.
MAX_RATIO, RATIO_COUNTS_FROM = 200, 10**8
# Parsed JSON takes about twenty times its size.
MAX_JSON_BYTES = 1 << 25
_GZIP_MAGIC = b"\x1f\x8b"


def open_regular(path: AnyPath) -> BufferedReader:
    """Open a file for reading; raise OSError for a device (endless) or a pipe (blocks)."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is not a file")
    return os.fdopen(handle, "rb")


def read_json(path: AnyPath, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Parse a JSON file; raise OSError or ValueError if it cannot be read."""
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > max_bytes:
            raise ValueError(f"it has more than {max_bytes:,} bytes")
        content = stream.read()
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_format(about: Any, path: object, format: str, version: int, error: type[InputError]) -> dict[str, Any]:
    """Return what a JSON file holds; refuse a file that is not ours or of another version."""
    if not isinstance(about, dict) or about.get("format") != format:
        raise error(f"{path}: is not an {format} file")
    if (found := about.get("format_version")) != version:
        maker = f" ({about['made_with']!r:.99})" if "made_with" in about else ""
        what = f"has format version {found!r:.40}, this xmlpreck reads {version}"
        raise error(f"{path}: {what}: make it again, or use the xmlpreck that made it{maker}")
    return about


def file_sha256(path: AnyPath) -> str:
    """Return the SHA-256 of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_array(path: AnyPath, mode: Literal["r", "c"] = "r") -> np.ndarray:
    """Map the array of a `.npy` file; raise OSError or ValueError if it cannot be read. Objects are never unpickled.

    A memory map is limited by the size of the file, so a forged header cannot ask for more memory.
    """
    open_regular(path).close()
    try:
        return np.asarray(np.lib.format.open_memmap(path, mode))
    except OSError:
        raise
    except Exception as error:  # a damaged header can fail anywhere in numpy
        raise ValueError(first_line(error)) from None


@contextmanager
def reading_as(kind: str, path: AnyPath) -> Iterator[None]:
    """Report any error as `PATH: cannot be read as KIND`: a damaged file can fail anywhere in numpy or pyarrow."""
    try:
        yield
    except FormatError:
        raise
    except Exception as error:
        raise FormatError(f"{path}: cannot be read as {kind}: {first_line(error)}") from error


def _is_gzip(path: Path) -> bool:
    """Tell by the name or by the first bytes: a download may have lost its suffix."""
    if path.suffix == ".gz":
        return True
    with open(path, "rb") as stream:
        return stream.read(2) == _GZIP_MAGIC


def refuse_bomb(path: AnyPath, n_bytes: int, n_packed: int | None = None) -> None:
    """Refuse a file whose unpacked size `n_bytes` (real or claimed) is far too large for its own size `n_packed`."""
    if n_packed is None:
        n_packed = os.stat(path).st_size
    if n_bytes > max(RATIO_COUNTS_FROM, MAX_RATIO * n_packed):
        what = f"its {n_packed:,} bytes unpack to {n_bytes:,} or more"
        raise FormatError(f"{path}: refused: {what}: a bomb? unpack it yourself if you trust it")


class _Gzip(gzip.GzipFile):
    """Gzip reader that refuses a bomb before it fills the memory."""

    def read(self, size: int | None = -1) -> bytes:
        parts = []
        left = sys.maxsize if size is None or size < 0 else size
        while left and (part := super().read(min(left, BLOCK_BYTES))):
            parts.append(part)
            left -= len(part)
            refuse_bomb(self.name, self.tell())
        return b"".join(parts)

    def read1(self, size: int = -1) -> bytes:
        part = super().read1(size)
        refuse_bomb(self.name, self.tell())
        return part


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    return _Gzip(path) if _is_gzip(path) else open(path, "rb")


def read_head(path: AnyPath, n_bytes: int = HEAD_BYTES) -> bytes:
    """Read the first bytes, unpacked."""
    with read_errors(path), _open(Path(path)) as stream:
        return stream.read(n_bytes)


@contextmanager
def open_text(path: AnyPath, encoding: str) -> Iterator[TextIOWrapper]:
    """Open a file as text, unpacked, with line ends as they are; the block gets UnicodeDecodeError as it is."""
    with ExitStack() as stack:
        try:
            with read_errors(path):
                raw = stack.enter_context(_open(Path(path)))
            yield stack.enter_context(TextIOWrapper(raw, encoding, newline=""))  # type: ignore[arg-type]
        except (OSError, EOFError, zlib.error) as error:
            with read_errors(path):
                raise error


def read_bytes(path: AnyPath) -> np.ndarray:
    """Read all bytes of a file, unpacked."""
    file = Path(path)
    with read_errors(path):
        if _is_gzip(file):
            with _open(file) as stream:
                return np.frombuffer(stream.read(), np.uint8)
        # Mapped, not read: a file of many GB need not be in memory beside its matrix.
        return np.asarray(np.memmap(file, np.uint8, "r")) if file.stat().st_size else np.empty(0, np.uint8)


def _end_of_lines(text: bytes) -> int:
    """Find where the complete lines end, leaving out empty lines that may turn out to end the file."""
    content = len(text.rstrip(b"\r\n"))
    after = text.find(b"\n", content) if content else -1
    end = after + 1 if after >= 0 else text.rfind(b"\n", 0, content) + 1
    return end if text[:1] not in (b"\r", b"\n") or text[:end].strip(b"\r\n") else 0


def line_blocks(path: AnyPath, block_bytes: int | None = BLOCK_BYTES) -> Iterator[np.ndarray]:
    """Yield the bytes in blocks of whole lines; with `block_bytes` None, all at once.

    Empty lines at the end of the file are a separate block, unless all bytes come at once.
    """
    if block_bytes is None:
        whole = read_bytes(path)
        if whole.size:
            yield whole
        return
    text = b""
    with read_errors(path), _open(Path(path)) as stream:
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
    """Yield (line number from 1, line without its end); empty lines at the end of the file are left out."""
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
            # No name and time in the gzip header, so that the same data give the same bytes.
            out = stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0))
        yield out


def write_lines(path: AnyPath, lines: Iterable[str]) -> None:
    """Write lines, packed if the name ends in `.gz`."""
    with _writing(path) as out:
        out.writelines(f"{line}\n".encode() for line in lines)


class Spool:
    """Items kept in a nameless temporary file until the header before them, which counts them, can be written."""

    def __init__(self, path: AnyPath) -> None:
        self.path, self.n_items = path, 0
        with write_errors(path):
            self._body = tempfile.TemporaryFile(dir=Path(path).parent)  # noqa: SIM115 (closed by __exit__)

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # closing writes again what did not fit; the first error is the one to report
            self._body.close()

    def add_lines(self, lines: Iterable[str]) -> None:
        with write_errors(self.path):
            for line in lines:
                self._body.write(f"{line}\n".encode())
                self.n_items += 1

    def add_array(self, items: np.ndarray) -> None:
        with write_errors(self.path):
            self._body.write(items.data)
            self.n_items += items.size

    def copy_to(self, out: IO[bytes] | gzip.GzipFile) -> None:
        self._body.seek(0)
        shutil.copyfileobj(self._body, out, BLOCK_BYTES)

    def write_under(self, header: str) -> None:
        """Write a header line and then the lines to the path."""
        with _writing(self.path) as out:
            out.write(f"{header}\n".encode())
            self.copy_to(out)


def parse_names(path: object, content: bytes, n_names: int) -> list[str]:
    """Parse a file of one name per line, of which there must be `n_names`; an empty line is an empty name."""
    try:
        text = content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error
    names = text.removesuffix("\n").split("\n") if text else []
    if len(names) != n_names:
        raise FormatError(f"{path}: has {len(names)} names, but the data have {n_names}: write one per line")
    return names


def write_names(path: AnyPath, names: list[str]) -> None:
    """Write one name per line."""
    for number, name in enumerate(names):
        if "\n" in name or "\r" in name:
            raise FormatError(f"{path}: name {number}, {name[:40]!r}, holds a line break: names are one per line")
    write_lines(path, names)
