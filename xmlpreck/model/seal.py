"""The sha256 of a model's files: stored in model.json when it is saved, checked when it is read."""

import hashlib
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from xmlpreck.config import InputError
from xmlpreck.files import read_errors
from xmlpreck.files.atomic import atomic_path
from xmlpreck.files.contents import file_sha256, read_json

ABOUT = "model.json"
# Of a larger model: size, times, inode and sha256 of every file as it was when last hashed.
MEMO = "checked.json"
# Hashed at every load: about a tenth of a second.
HASHED_BYTES = 1 << 25


class ModelError(InputError):
    """A model directory that cannot be trusted, or rows that do not fit the model."""


def sealed(about: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What model.json says, with the sha256 of the files of a folder and of itself."""
    about = json.loads(json.dumps(about))  # as it will be read
    about["sha256"] = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    about["sha256"][ABOUT] = _own_digest(about)
    return about


def resealed(about: dict[str, Any]) -> dict[str, Any]:
    """What model.json says, changed, with the sha256 of itself again; the other files are as they were."""
    return about | {"sha256": about["sha256"] | {ABOUT: _own_digest(about)}}


def _own_digest(about: dict[str, Any]) -> str:
    """The sha256 of what model.json says, whatever its layout, but for the place of this very number."""
    hashes = {name: digest for name, digest in about["sha256"].items() if name != ABOUT}
    return hashlib.sha256(json.dumps(about | {"sha256": hashes}, sort_keys=True).encode()).hexdigest()


def check_seal(folder: Path, about: dict[str, Any], known: frozenset[str], verify: bool = False) -> frozenset[str]:
    """Refuse a model with a file that is not as it was saved; returns the names of its files, which are all `known`.

    Files of a large model are hashed only if they changed since they were last hashed, or to `verify`.
    """
    path, hashes = folder / ABOUT, about.get("sha256")
    if not isinstance(hashes, dict) or not hashes:
        raise ModelError(f"{path}: has no sha256 of its files: get a whole copy of the model")
    if strange := [name for name in hashes if name not in known]:
        raise ModelError(f"{path}: {strange[0]!r:.40} is not a file of a model")
    if ABOUT in hashes and hashes[ABOUT] != _own_digest(about):  # models of xmlpreck 0.1.0 do not have it
        raise ModelError(f"{path}: has changed since the model was saved (sha256): get a whole copy of the model")
    stamps = {name: _stamp(folder / name) for name in hashes if name != ABOUT}
    is_large = sum(stamp[0] for stamp in stamps.values()) > HASHED_BYTES
    memo = _read_memo(folder) if is_large and not verify else {}
    found = {name: [*stamp, hashes[name]] for name, stamp in stamps.items()}
    for name in found:
        if memo.get(name) != found[name] and _digest(folder / name) != hashes[name]:
            what = "has changed since the model was saved (sha256): get a whole copy of the model"
            raise ModelError(f"{folder / name}: {what}")
    if is_large and memo != found:
        with suppress(InputError), atomic_path(folder / MEMO) as temporary:  # who may not write hashes again
            temporary.write_text(json.dumps(found), encoding="utf-8")
    return frozenset(hashes)


def _stamp(path: Path) -> list[int]:
    """What changes when a file does, or is copied; a link to a device or a pipe is refused."""
    with read_errors(path, ModelError):
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is not a file")
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _digest(path: Path) -> str:
    with read_errors(path, ModelError):
        return file_sha256(path)


def _read_memo(folder: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        memo = read_json(folder / MEMO)
        return memo if isinstance(memo, dict) else {}
    return {}
