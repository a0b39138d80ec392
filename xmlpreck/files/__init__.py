"""Files of this machine: read with clear errors, written whole or not at all; and progress on the terminal."""

import os

from xmlpreck.config import InputError

AnyPath = str | os.PathLike[str]


class FormatError(InputError):
    """A file that cannot be read or written as asked."""
