"""A progress bar on the terminal."""

from tqdm import tqdm


def progress_bar(n_rows: int | None, text: str, wanted: bool) -> tqdm:
    """A bar on stderr, if that is a terminal."""
    return tqdm(total=n_rows, desc=text, unit=" rows", unit_scale=True, leave=False, disable=None if wanted else True)
