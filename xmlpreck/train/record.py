"""Results of a run before its first checkpoint, kept in one file that is written atomically."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xmlpreck.config import InputError
from xmlpreck.files.atomic import atomic_path
from xmlpreck.files.contents import read_json

KIND, VERSION = "xmlpreck tuning", 1
MAX_BYTES = 1 << 24  # a trial has some hundred bytes


def key_of(facts: dict[str, Any]) -> str:
    """Name a result by all that determines it."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class Record:
    """Results by their keys, kept in a file if there is a path; a later run takes those whose keys it asks for."""

    def __init__(self, path: Path | None, tell: Callable[[str], None] = lambda text: None) -> None:
        """Read the file, if there is one. A damaged one is ignored, with a note."""
        self.path, self.tell = path, tell
        self.entries: dict[str, Any] = {}
        if path is None:
            return
        try:
            self.entries = _read(path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            tell(f"{path}: is damaged: its trials are run again")

    def get(self, facts: dict[str, Any]) -> Any:
        """Return the result for these facts, or None."""
        return self.entries.get(key_of(facts))

    def put(self, facts: dict[str, Any], result: Any) -> None:
        """Keep a result. One that cannot be written does not end the run."""
        self.entries[key_of(facts)] = result
        if self.path is None:
            return
        about = {"format": KIND, "format_version": VERSION, "sha256": key_of(self.entries), "entries": self.entries}
        try:
            with atomic_path(self.path) as path:
                path.write_text(json.dumps(about), encoding="utf-8")
        except InputError as error:
            self.tell(f"{error}; tuning goes on, but would start again if it were stopped")


def _read(path: Path) -> dict[str, Any]:
    about = read_json(path, MAX_BYTES)
    entries = about["entries"]
    if (about["format"], about["format_version"], about["sha256"]) != (KIND, VERSION, key_of(entries)):
        raise ValueError(f"{path} is not what was written")
    return dict(entries)
