"""Convert, validate and fetch data sets."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmlpreck import __version__
from xmlpreck.config import InputError
from xmlpreck.data import catalog, shards, validate
from xmlpreck.data.dataset import Dataset
from xmlpreck.data.location import DataLocation
from xmlpreck.data.validate import Report
from xmlpreck.files.progress import progress_bar

ROWS_PER_SHARD = 65_536


@dataclass(frozen=True)
class Converted:
    """One split that was written as shards."""

    split: str
    folder: Path
    kind: str
    n_rows: int
    n_shards: int
    n_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return all for JSON."""
        about: dict[str, Any] = {"split": self.split, "folder": str(self.folder), "kind": self.kind}
        return about | {"n_rows": self.n_rows, "n_shards": self.n_shards, "bytes": self.n_bytes}


def convert(
    data: str,
    out: str | Path,
    *,
    format: str = "parquet",
    source_format: str | None = None,
    rows_per_shard: int = ROWS_PER_SHARD,
    shuffle_seed: int | None = None,
    data_dir: str | None = None,
    progress: bool = False,
) -> list[Converted]:
    """Write the splits of a data set as shards: OUT/train and OUT/test, or OUT for one file.

    `shuffle_seed` puts the training rows in random order; None keeps their order. Test rows keep theirs.
    """
    splits = catalog.splits_of(data, str(out), data_dir)
    if shuffle_seed is not None and "train" not in dict(splits):
        raise InputError("--shuffle has no effect on test rows, which keep their order: leave it out")
    provenance = {"source": catalog.describe(data), "xmlpreck": __version__}
    made = []
    for split, folder in splits:
        chunks = _with_bar(DataLocation(data, split, source_format, data_dir=data_dir).chunks(), split, progress)
        seed = shuffle_seed if split == "train" else None
        written = shards.write_shards(folder, chunks, format, rows_per_shard, provenance | {"split": split}, seed)
        n_bytes = sum(shard.n_bytes for shard in written.shards)
        made.append(Converted(split, folder, written.kind, written.n_rows, len(written.shards), n_bytes))
    return made


def _with_bar(chunks: Iterator[Dataset], text: str, progress: bool) -> Iterator[Dataset]:
    """Count the rows of chunks by a bar as they go by."""
    with progress_bar(None, text, progress) as bar:
        for chunk in chunks:
            yield chunk
            bar.update(chunk.n_rows)


def check_data(
    path: str | Path, split: str = "train", *, fix: str | Path | None = None, format: str | None = None
) -> Report:
    """Look through a file for anything that is wrong or odd; `fix` writes a clean copy as repository text."""
    if fix is not None:
        return validate.fix(path, split, fix, format)
    return validate.validate(path, split, format)
