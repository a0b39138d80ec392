"""Read files with clear errors, write them atomically, and show progress on the terminal."""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from xmlpreck.config import InputError

AnyPath = str | os.PathLike[str]


class FormatError(InputError):
    """A file that cannot be read or written as asked."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    return str(error).partition("\n")[0] or type(error).__name__


@contextmanager
def read_errors(path: object, error: type[InputError] = FormatError) -> Iterator[None]:
    """Report an error of reading as `PATH: cannot be read: REASON`."""
    try:
        yield
    except InputError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as failure:
        raise error(f"{path}: cannot be read: {getattr(failure, 'strerror', None) or failure}") from failure


@contextmanager
def write_errors(path: object, error: type[InputError] = FormatError) -> Iterator[None]:
    """Report an OSError as `PATH: cannot be written: REASON`."""
    try:
        yield
    except OSError as failure:
        raise error(f"{path}: cannot be written: {failure.strerror or failure}") from failure
