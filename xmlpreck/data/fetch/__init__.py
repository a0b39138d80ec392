"""Download data sets, check and unpack them atomically."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from xmlpreck.config import InputError
from xmlpreck.data.fetch.archives import unpack
from xmlpreck.data.fetch.transfer import FetchError, Unreachable, download, say
from xmlpreck.files.atomic import scratch_folder, sync, take_lock
from xmlpreck.files.contents import file_sha256

__all__ = ["UNVERIFIED", "Archive", "FetchError", "Mirror", "Unreachable", "download_path", "fetch_mirror", "say"]

DRIVE_ADDRESS = "https://drive.google.com/uc?export=download&id={drive}"
UNVERIFIED = "unverified"


@dataclass(frozen=True)
class Archive:
    """One file on a server (zip, tar, tar.gz, gz or plain) and what to take out of it.

    `files` maps our names to patterns of the names inside, matched from the right, ignoring case; `optional` does
    the same for files that may be missing.
    """

    files: dict[str, str]
    sha256: str
    optional: dict[str, str] = field(default_factory=dict)
    url: str = ""
    drive: str = ""
    resourcekey: str = ""

    def __post_init__(self) -> None:
        named = {**self.files, **self.optional}
        for text in (self.url, self.drive, self.resourcekey, self.sha256, *named, *named.values()):
            if type(text) is not str:
                raise ValueError(f"{text!r:.40} must be a text in quotes")
        if bool(self.url) == bool(self.drive):
            raise ValueError("give either url or drive (a Google Drive id)")
        if self.sha256 != UNVERIFIED and (len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef")):
            raise ValueError(f"sha256 must be 64 digits 0-9a-f or {UNVERIFIED!r}, but is {self.sha256!r}")
        if not self.files or any(PurePosixPath(name).name != name or name in ("", "..") for name in named):
            raise ValueError("files must be OUR NAME = 'NAME IN THE ARCHIVE', our names without folders")

    @property
    def address(self) -> str:
        if self.url:
            return self.url
        key = f"&resourcekey={self.resourcekey}" if self.resourcekey else ""
        return DRIVE_ADDRESS.format(drive=self.drive) + key


@dataclass(frozen=True)
class Mirror:
    """All files of a data set, from one server."""

    note: str
    archives: tuple[Archive, ...]


def fetch_mirror(mirror: Mirror, target: Path, check: Callable[[Path], None] | None = None) -> None:
    """Put the mirror's files into the folder `target`; `check` may refuse them before they get there.

    If killed, it leaves partial downloads beside `target`, which the next call resumes, and nothing partial in it.
    """
    wanted = [target / name for archive in mirror.archives for name in archive.files]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(f".{target.name}.lock")
        with take_lock(lock, lambda: say(f"{target}: waiting: another process is fetching it")):
            if all(path.is_file() for path in wanted):  # another process fetched them meanwhile
                return
            downloads = [_obtain(archive, download_path(archive, target)) for archive in mirror.archives]
            with scratch_folder(target) as work:
                try:
                    ready = work / "ready"
                    ready.mkdir()
                    for archive, path in zip(mirror.archives, downloads, strict=True):
                        unpack(path, work / path.name)
                        _take(archive, work / path.name, ready)
                    if check is not None:
                        check(ready)
                    _install(ready, target)
                except InputError as error:
                    raise FetchError(f"{error}; {_set_aside(downloads)}") from error
            for path in downloads:
                path.unlink()
    except OSError as error:
        raise FetchError(f"{error.filename or target}: cannot be written: {error.strerror or error}") from error


def download_path(archive: Archive, target: Path) -> Path:
    """Return the path of the archive until it is unpacked; one that a user puts there is used as it is."""
    return target.with_name(f"{target.name}-{hashlib.sha256(archive.address.encode()).hexdigest()[:8]}.download")


def _set_aside(downloads: list[Path]) -> str:
    for path in downloads:
        path.replace(path.with_suffix(".bad"))
    return "the download is kept as " + ", ".join(str(path.with_suffix(".bad")) for path in downloads)


def _obtain(archive: Archive, path: Path) -> Path:
    """Download the archive if needed, and check its checksum."""
    if not path.exists():
        download(archive.address, path)
    found = file_sha256(path)
    if archive.sha256 == UNVERIFIED:
        say(f"{archive.address}: unverified: no checksum is known; the download has sha256 {found}: add it to the card")
    elif found != archive.sha256:
        what = f"sha256 is {found}, but must be {archive.sha256}: changed or damaged"
        raise FetchError(f"{archive.address}: {what}; {_set_aside([path])}")
    return path


def _take(archive: Archive, unpacked: Path, ready: Path) -> None:
    """Move the files that the card names to `ready`, under our names."""
    inside = sorted(path for path in unpacked.rglob("*") if path.is_file())
    folded = [PurePosixPath(path.relative_to(unpacked).as_posix().casefold()) for path in inside]
    for name, pattern in {**archive.files, **archive.optional}.items():
        found = [path for path, name_in in zip(inside, folded, strict=True) if name_in.match(pattern.casefold())]
        if len(archive.files) == len(inside) == 1:
            found = inside  # a file outside an archive has no name of its own
        if not found and name in archive.optional:
            continue
        if len(found) != 1:
            held = ", ".join(str(path.relative_to(unpacked)) for path in inside[:8])
            raise FetchError(f"{archive.address}: {len(found)} files match {pattern!r}, not one: it holds {held}")
        os.replace(found[0], ready / name)


def _install(ready: Path, target: Path) -> None:
    for path in [*ready.iterdir(), ready]:
        sync(path)
    if not target.exists():
        ready.rename(target)
        sync(target.parent)
        return
    for path in ready.iterdir():
        os.replace(path, target / path.name)
    sync(target)
