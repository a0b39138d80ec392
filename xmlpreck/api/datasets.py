"""Convert, validate and fetch data sets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmlpreck import __version__
from xmlpreck.config import InputError, override
from xmlpreck.data import catalog, corpus, shards, validate
from xmlpreck.data.corpus import Corpus
from xmlpreck.data.dataset import Dataset
from xmlpreck.data.dense import NOTED, chunks_beside, stored_dense
from xmlpreck.data.formats.column_choice import ANY, Columns
from xmlpreck.data.location import DataLocation
from xmlpreck.data.shards import ShardPath, is_one_set, is_remote
from xmlpreck.data.validate import Report
from xmlpreck.data.validate.texts import TextScan
from xmlpreck.files.progress import Reading, progress_bar

ROWS_PER_SHARD = 65_536


@dataclass(frozen=True)
class Converted:
    """One split that was written as shards."""

    split: str
    folder: ShardPath
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
    columns: Columns = ANY,
    settings: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> list[Converted]:
    """Write the splits of a data set as shards: OUT/train and OUT/test, or OUT for one file; OUT may be a URI.

    `shuffle_seed` puts the training rows in random order; None keeps their order. Test rows keep theirs. Raw text
    becomes tf-idf rows by the words of its training texts, which OUT keeps: a model that is trained on OUT takes raw
    text, too. Dense rows beside the others (E_train.npy) become their last features, which OUT remembers as dense. One
    file of texts is written to OUT/train. `columns` and `settings` (``{"text.ngrams": 2}``) are for
    raw text.
    """
    location = DataLocation(data, "train", source_format, columns, data_dir)
    if not is_one_set(data) and (texts := location.documents()) is not None:
        if shuffle_seed is not None:
            raise InputError("--shuffle is for rows of numbers: convert the texts first, and then what is made of them")
        if is_remote(out):
            raise InputError(f"{out}: texts are converted to a local folder, with their words: copy what is made there")
        return _convert_texts(location, texts, Path(out), format, rows_per_shard, settings, progress)
    if settings:
        raise InputError(f"{next(iter(settings))} has no effect with rows of numbers: leave it out")
    splits = catalog.splits_of(data, str(out), data_dir)
    if shuffle_seed is not None and "train" not in dict(splits):
        raise InputError("--shuffle has no effect on test rows, which keep their order: leave it out")
    provenance = {"source": catalog.describe(data), "xmlpreck": __version__}
    made = []
    for split, folder in splits:
        place = DataLocation(data, split, source_format, data_dir=data_dir)
        chunks = _with_bar(place.chunks(), split, progress)
        seed = shuffle_seed if split == "train" else None
        made.append(_write(folder, place, chunks, format, rows_per_shard, provenance, seed))
    return made


def _convert_texts(
    location: DataLocation,
    texts: Corpus,
    out: Path,
    kind: str,
    rows_per_shard: int,
    settings: Mapping[str, Any] | None,
    progress: bool,
) -> list[Converted]:
    chosen = override({}, dict(settings or {}), "settings")
    corpora = {"train": texts}
    if location.has_split("test") and (test := location.at("test").documents()) is not None:
        corpora["test"] = test
    reading = Reading("texts", progress)
    vectorizer, names = corpus.learn_names(list(corpora.values()), chosen.text, reading, chosen.train.threads)
    provenance = {"source": catalog.describe(location.path), "xmlpreck": __version__}
    made = []
    for split, documents in corpora.items():
        chunks = corpus.row_chunks(documents, vectorizer, names, Reading(split, progress), chosen.train.threads)
        made.append(_write(out / split, location.at(split), chunks, kind, rows_per_shard, provenance))
    vectorizer.save(out)
    return made


def _write(
    folder: ShardPath,
    source: DataLocation,
    chunks: Iterator[Dataset],
    kind: str,
    rows_per_shard: int,
    provenance: dict[str, Any],
    seed: int | None = None,
) -> Converted:
    """Write chunks of rows as shards, with the dense rows beside their source as the last features."""
    split = source.split
    if (found := source.open_dense()) is not None:
        chunks, provenance = chunks_beside(chunks, *found), provenance | {NOTED: found[0].shape[1]}
    elif (before := shards.find_shards(source.path, split)) is not None:
        n_dense = stored_dense(shards.ShardSet(before, verify=False))
        provenance = provenance | ({NOTED: n_dense} if n_dense else {})
    written = shards.write_shards(folder, chunks, kind, rows_per_shard, provenance | {"split": split}, seed)
    n_bytes = sum(shard.n_bytes for shard in written.shards)
    return Converted(split, folder, written.kind, written.n_rows, len(written.shards), n_bytes)


def _with_bar(chunks: Iterator[Dataset], text: str, progress: bool) -> Iterator[Dataset]:
    """Count the rows of chunks by a bar as they go by."""
    with progress_bar(None, text, progress) as bar:
        for chunk in chunks:
            yield chunk
            bar.update(chunk.n_rows)


def check_data(
    path: str | Path,
    split: str = "train",
    *,
    fix: str | Path | None = None,
    format: str | None = None,
    columns: Columns = ANY,
    progress: bool = False,
) -> Report:
    """Look through rows or texts for anything that is wrong or odd; `fix` writes clean rows as repository text."""
    texts = None if is_one_set(str(path)) else DataLocation(str(path), split, format, columns).documents()
    if texts is not None:
        if fix is not None:
            raise InputError(f"{path}: is raw text, which only its maker can mend: leave out --fix")
        return TextScan(texts).run(progress)
    if fix is not None:
        return validate.fix(path, split, fix, format)
    return validate.validate(path, split, format)
