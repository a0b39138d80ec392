"""Unpack untrusted archives: only plain files, all inside the folder, no bombs."""

import errno
import gzip
import lzma
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from xmlpreck.data.fetch.transfer import MAX_BYTES, FetchError

# Limits of one archive beside MAX_BYTES. Text compresses at 3:1 to 10:1; more is harmless in a small archive.
MAX_ENTRIES = 10_000
MAX_RATIO, RATIO_COUNTS_FROM = 200, 10**9

_CHUNK = 2**18
_DAMAGE = (
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    OverflowError,  # a pax header that claims more than the memory
    EOFError,
    NotImplementedError,  # unknown compression of a zip
    RuntimeError,  # a zip with a password
    ValueError,
)


class _Counted:
    """Counts bytes as they are unpacked: headers may be forged, and the names and links of a tar count too."""

    def __init__(self, stream: Any, path: Path, before: int = 0) -> None:
        self._stream, self._path, self.total = stream, path, before
        self._packed = max(path.stat().st_size, 1)

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self.total += len(data)
        bomb = self.total > RATIO_COUNTS_FROM and self.total > MAX_RATIO * self._packed
        if bomb or self.total > MAX_BYTES:
            raise FetchError(
                f"{self._path}: refused: {self._packed:,} bytes unpack to more than {self.total - 1:,} (at most "
                f"{MAX_RATIO} times as much from {RATIO_COUNTS_FROM:,} on, and {MAX_BYTES:,}): a bomb?"
            )
        return data


def unpack(path: Path, folder: Path) -> None:
    """Unpack a zip, tar, tar.gz, gz or plain file into a new folder; after an error it is incomplete."""
    folder.mkdir(parents=True)
    try:
        for number, (name, stream) in enumerate(_entries(path)):
            if number >= MAX_ENTRIES:
                raise FetchError(f"{path}: refused: holds more than {MAX_ENTRIES:,} files: a bomb?")
            target = folder.joinpath(*_safe_parts(path, name))
            if stream is None:
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "xb") as out:
                shutil.copyfileobj(stream, out, _CHUNK)
    except FetchError:
        raise
    except (FileExistsError, NotADirectoryError) as error:
        raise FetchError(f"{path}: refused: two files have the same name: {error.filename}") from error
    except _DAMAGE as error:
        raise FetchError(f"{path}: the archive is damaged: {error or type(error).__name__}") from error
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENAMETOOLONG):  # a negative offset, a name of 300 letters
            raise
        raise FetchError(f"{path}: the archive is damaged: {error.strerror}") from error


def _safe_parts(path: Path, name: str) -> list[str]:
    """Split a name inside an archive, which some tools write with backslashes."""
    inside = PurePosixPath(name.replace("\\", "/"))
    if inside.is_absolute() or ".." in inside.parts or ":" in name:
        raise FetchError(f"{path}: refused: holds the file {name!r}, which is outside its folder")
    if any(letter < " " for letter in name):
        raise FetchError(f"{path}: refused: holds the file {name!r}, whose name has control characters")
    return list(inside.parts)


def _entries(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, stream) of each file; a folder has no stream."""
    with open(path, "rb") as raw:
        magic = raw.read(4)
        raw.seek(0)
        if magic in (b"PK\3\4", b"PK\5\6"):
            yield from _zip_entries(path)
            return
        stream = gzip.GzipFile(fileobj=raw) if magic.startswith(b"\x1f\x8b") else raw
        is_tar = _is_tar_header(stream.read(tarfile.BLOCKSIZE))
        stream.seek(0)
        counted = _Counted(stream, path)
        if is_tar:
            yield from _tar_entries(path, counted)
        else:
            yield "data", counted


def _is_tar_header(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def _zip_entries(path: Path) -> Iterator[tuple[str, Any]]:
    total = 0
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            # The other compressions of zipfile reserve the memory that their header claims.
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise FetchError(f"{path}: refused: {info.filename!r} is neither stored nor deflated: pack it again")
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise FetchError(f"{path}: refused: {info.filename!r} is a link or a device")
            if info.is_dir():
                yield info.filename, None
                continue
            with archive.open(info) as stream:
                counted = _Counted(stream, path, total)
                yield info.filename, counted
                total = counted.total


def _tar_entries(path: Path, stream: Any) -> Iterator[tuple[str, Any]]:
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK) as archive:
        for member in archive:
            if member.size < 0:
                raise FetchError(f"{path}: the archive is damaged: {member.name!r} has {member.size} bytes")
            # The holes of a sparse file are not in the archive, so they would not be counted.
            if not (member.isdir() or member.isreg()) or member.issparse():
                raise FetchError(f"{path}: refused: {member.name!r} is a link, a device or sparse")
            yield member.name, None if member.isdir() else archive.extractfile(member)
