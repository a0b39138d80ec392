"""Read files with clear errors, write them atomically, and show progress on the terminal."""

import os

from xmlpreck.config import InputError

AnyPath = str | os.PathLike[str]


class FormatError(InputError):
    """A file that cannot be read or written as asked."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its type if it has none."""
    return str(error).partition("\n")[0] or type(error).__name__
