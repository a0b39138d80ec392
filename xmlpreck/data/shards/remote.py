"""Read and write files by URI on the file systems that Arrow opens: s3, gs, abfs, hdfs, file."""

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType

from xmlpreck.config import InputError, without_secrets
from xmlpreck.files import first_line

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_MODES = {FileType.File: stat.S_IFREG, FileType.Directory: stat.S_IFDIR}
# Bytes per request when a file is read from start to end.
STREAM_BYTES = 1 << 23
# Google's client retries for many minutes, during which no signal reaches Python; Amazon's gives up after seconds.
GOOGLE_SECONDS = 60
# Most of Arrow's errors are OSErrors, but not those of Azure.
STORE_ERRORS = (OSError, pa.ArrowException)

# Advice for errors of the store or the network, by pattern of their text; the first match is used.
_ADVICE = {
    r"NETWORK_CONNECTION|curlCode|UNAVAILABLE|timed? ?out|connection failed": "check the network and the endpoint",
    r"ACCESS_DENIED|PERMISSION_DENIED|UNAUTHENTICATED|SIGNATURE|ACCESS_KEY|HTTP status 40[13]|[Cc]redential|Authent": (
        "check the credentials, and that they may list the folder and read (or write) its files"
    ),
    r"NO_SUCH_BUCKET|ContainerNotFound|[Bb]ucket .*not (exist|found)": "check the name of the bucket, or make it",
    r"HTTP status 301|REDIRECT": "if it is in another region, add ?region=NAME to the address",
    r"libjvm|libhdfs": "install Java and Hadoop's client, and set JAVA_HOME and HADOOP_HOME",
}


class FileFacts(NamedTuple):
    """The fields of `Path.stat` that a store knows."""

    st_mode: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int = 0
    st_ino: int = 0


@dataclass(frozen=True)
class RemotePath:
    """A file or folder by URI; `str` leaves out the passwords that `uri` has."""

    uri: str = field(repr=False)
    filesystem: FileSystem
    path: str

    def __str__(self) -> str:
        return without_secrets(self.uri)

    def __truediv__(self, name: str) -> "RemotePath":
        address, mark, options = self.uri.partition("?")
        uri = f"{address.rstrip('/')}/{quote(name)}{mark}{options}"
        return RemotePath(uri, self.filesystem, f"{self.path.rstrip('/')}/{name}")

    def stat(self) -> FileFacts:
        found = self.filesystem.get_file_info(self.path)
        if found.type == FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return FileFacts(_MODES.get(found.type, 0), found.size or 0, found.mtime_ns or 0)

    def is_file(self) -> bool:
        """Tell whether this is a file; a store that does not answer is an error, as the file may exist."""
        try:
            return stat.S_ISREG(self.stat().st_mode)
        except FileNotFoundError:
            return False
        except STORE_ERRORS as error:
            raise InputError(f"{self}: cannot be read: {reason(error)}") from None

    def open(self, mode: str = "rb") -> Any:
        """Open a stream, to be read from start to end."""
        return self.filesystem.open_input_stream(self.path, compression=None, buffer_size=STREAM_BYTES)

    def open_parts(self) -> Any:
        """Open a file for random access."""
        return self.filesystem.open_input_file(self.path)

    def read_bytes(self) -> bytes:
        with self.open() as stream:
            content: bytes = stream.read()
        return content

    def names(self) -> list[str]:
        """List the files in this folder; a bucket that does not exist is an error, a folder is empty then."""
        try:
            found = self.filesystem.get_file_info(FileSelector(self.path))
        except FileNotFoundError:
            return []
        except STORE_ERRORS as error:
            raise InputError(f"{self}: cannot be read: {reason(error)}") from None
        return [file.base_name for file in found if file.type == FileType.File]

    def put(self, source: Path) -> None:
        """Write a copy of a local file here."""
        try:
            if self.filesystem.type_name in ("local", "hdfs"):  # other stores have no folders
                self.filesystem.create_dir(self.path.rpartition("/")[0])
            with open(source, "rb") as file, self.filesystem.open_output_stream(self.path, compression=None) as stream:
                shutil.copyfileobj(file, stream, STREAM_BYTES)
        except STORE_ERRORS as error:
            raise InputError(f"{self}: cannot be written: {reason(error)}") from None

    def get(self, target: Path) -> None:
        """Write a copy of this file to a local one."""
        try:
            with self.open() as stream, open(target, "wb") as file:
                shutil.copyfileobj(stream, file, STREAM_BYTES)
        except STORE_ERRORS as error:
            raise InputError(f"{self}: cannot be read: {reason(error)}") from None


class RemoteKind(NamedTuple):
    """A kind of folder in a store: its name, the file that makes it whole, and whether a file name belongs to it."""

    noun: str
    marker: str
    owns: Callable[[str], bool]

    def refuse_strangers(self, folder: RemotePath) -> list[str]:
        """List the files of this kind in a folder of a store; refuse one that holds any other file."""
        names = folder.names()
        if strangers := sorted(name for name in names if not self.owns(name)):
            what = f"holds {strangers[0]!r}, which is not part of {self.noun}"
            raise InputError(f"{folder}: {what}: nothing was written; choose another folder")
        return names

    def replace(self, folder: RemotePath, source: Path) -> None:
        """Copy a local folder to a store; the marker goes first and comes last: no part passes for the whole."""
        names = self.refuse_strangers(folder)
        try:
            for name in sorted(names, key=lambda name: name != self.marker):
                folder.filesystem.delete_file((folder / name).path)
        except STORE_ERRORS as error:
            raise InputError(f"{folder}: cannot be replaced: {reason(error)}") from None
        for path in sorted(source.iterdir(), key=lambda path: path.name == self.marker):
            (folder / path.name).put(path)


ShardPath = Path | RemotePath


def is_remote(path: object) -> bool:
    """Tell whether a path is a URI."""
    return isinstance(path, RemotePath) or (isinstance(path, str) and _URI.match(path) is not None)


def locate(path: str | ShardPath) -> ShardPath:
    """Convert a URI to a RemotePath, anything else to a Path."""
    if not isinstance(path, str) or not is_remote(path):
        return path if isinstance(path, RemotePath) else Path(path)
    limited = path
    if path.startswith(("gs:", "gcs:")) and "retry_limit_seconds=" not in path:
        limited += f"{'&' if '?' in path else '?'}retry_limit_seconds={GOOGLE_SECONDS}"
    try:
        return RemotePath(path, *FileSystem.from_uri(limited))
    except STORE_ERRORS as error:
        raise InputError(f"{path}: cannot be opened: {reason(error)}") from None


def reason(error: Exception) -> str:
    """Return the first line of an error, with advice if the store or the network is at fault."""
    text = first_line(error)
    advice = next((words for pattern, words in _ADVICE.items() if re.search(pattern, text)), None)
    return text if advice is None else f"{text.rstrip('. ')}: {advice}"
