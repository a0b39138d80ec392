"""Find what is wrong with a data set and write a clean copy, where the readers of `formats` refuse it."""

from collections.abc import Callable
from pathlib import Path

from xmlpreck.config import InputError
from xmlpreck.data.formats import READ_NUMBERS
from xmlpreck.data.formats.recognition import Source, require_source
from xmlpreck.data.formats.repository import write_repository
from xmlpreck.data.shards import RemotePath, find_shards
from xmlpreck.data.validate.report import FIXES, Problem, Report
from xmlpreck.data.validate.scan import SHARDS, Scan
from xmlpreck.files.contents import Spool

__all__ = ["FIXES", "Problem", "Report", "fix", "validate"]


def _find_source(path: str | Path, split: str, format: str | None) -> Source:
    folder = find_shards(path, split)
    if isinstance(folder, RemotePath):
        raise InputError(f"{folder}: only local files can be validated: copy the folder here")
    return require_source(path, split, format, READ_NUMBERS) if folder is None else Source(SHARDS, folder, folder)


def validate(
    path: str | Path, split: str, format: str | None = None, progress: Callable[[int], None] | None = None
) -> Report:
    """Check every row of a split; `progress` is called with the number of rows so far."""
    scan = Scan(_find_source(path, split, format), split, progress)
    for _ in scan.lines() if scan.has_lines else scan.chunks():
        pass
    return scan.report()


def fix(
    path: str | Path,
    split: str,
    out: str | Path,
    format: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Write a clean copy in the repository's text format; entries may be dropped, rows never are."""
    scan = Scan(_find_source(path, split, format), split, progress)
    if Path(out).resolve() in [file.resolve() for file in scan.files]:
        raise InputError(f"{out}: is the file to be fixed: choose another name for the clean copy")
    if scan.has_lines:
        with Spool(out) as spool:
            spool.add_lines(scan.lines())
            spool.write_under(f"{scan.n_rows} {scan.features.n_columns} {scan.labels.n_columns}")
    else:
        write_repository(out, scan.chunks())
    return scan.report(written=str(out))
