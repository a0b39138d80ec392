"""Settings: frozen dataclasses, TOML files, overrides; and the one kind of error that a user causes."""


class InputError(ValueError):
    """Bad input, told in one line that names the file, the value and what to do. The CLI exits with 2."""
