"""The catalogue of data sets: cards in `datasets/*.toml`, found by name, looked up on disk and checked."""

import dataclasses
import difflib
import functools
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmlpreck import formats
from xmlpreck.config import InputError
from xmlpreck.formats import Dataset
from xmlpreck.synthetic import make_demo

_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class DatasetCard:
    """What a data set is called, how large it is, its propensity constants and where it comes from."""

    name: str
    title: str
    n_train: int
    n_test: int
    n_features: int
    n_labels: int
    propensity_a: float
    propensity_b: float
    source: str
    synthetic: bool = False
    aliases: tuple[str, ...] = ()


def resource_folder(name: str) -> Path:
    """The folder `name` that an installed package has inside itself, a source checkout beside itself."""
    beside = _PACKAGE.parent / name
    if (_PACKAGE / name).is_dir():
        return _PACKAGE / name
    # Beside an installed package stand those of others, which may well be called `datasets`.
    if beside.is_dir() and (_PACKAGE.parent / "pyproject.toml").is_file():
        return beside
    raise InputError(f"{_PACKAGE / name}: the folder is missing: install xmlpreck again")


def _read_card(path: Path) -> DatasetCard:
    try:
        entries: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        card = DatasetCard(**{**entries, "aliases": tuple(entries.get("aliases", ()))})
    except (OSError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is not a data set card: {error}") from error
    for field in dataclasses.fields(card):
        kind = type(getattr(card, field.name))
        if field.type in (int, float, str, bool) and kind is not field.type:
            raise InputError(f"{path}: {field.name} must be of type {field.type.__name__}, not {kind.__name__}")
    if card.name != path.stem:
        raise InputError(f"{path}: name {card.name!r} must be the file's own, {path.stem!r}")
    return card


@functools.cache
def load_cards() -> dict[str, DatasetCard]:
    """All cards by name, in the order of their names."""
    return {path.stem: _read_card(path) for path in sorted(resource_folder("datasets").glob("*.toml"))}


def find_card(name: str) -> DatasetCard | None:
    """The card of that name or alias, in capitals or not."""
    wanted = name.casefold()
    cards = load_cards().values()
    return next((c for c in cards if wanted in map(str.casefold, (c.name, *c.aliases))), None)


@functools.lru_cache(maxsize=1)
def _demo() -> dict[str, Dataset]:
    train, test = make_demo()
    return {"train": train, "test": test}


def _search_folders(card: DatasetCard, data_dir: str | None) -> list[Path]:
    """Where a card's files may stand, most wanted first."""
    roots = [data_dir, os.environ.get("XMLPRECK_DATA"), "~/.cache/xmlpreck/data"]
    names = (card.name, *card.aliases)
    return [Path(root).expanduser() / name for root in roots if root for name in names]


def _card_of(data: str) -> DatasetCard | None:
    """None for an existing path, else the card; neither is an error that names the nearest names."""
    if Path(data).exists():
        return None
    card = find_card(data)
    if card is None:
        names = [name for c in load_cards().values() for name in (c.name, *c.aliases)]
        near = difflib.get_close_matches(data.casefold(), names, n=3) or list(load_cards())
        raise InputError(f"{data!r} is neither a file or folder nor a known data set: try {', '.join(near)}")
    return card


def _check_sizes(card: DatasetCard, split: str, dataset: Dataset, folder: Path) -> None:
    n_rows = card.n_train if split == "train" else card.n_test
    found = (*dataset.rows.shape, dataset.labels.shape[1])
    for noun, expected, size in zip(
        (f"{split} rows", "features", "labels"), (n_rows, card.n_features, card.n_labels), found, strict=True
    ):
        if size != expected:
            raise InputError(f"{folder}: has {size} {noun}, but {card.name} has {expected}: other data?")


def load(data: str, split: str, data_dir: str | None = None) -> Dataset:
    """Read one split ("train" or "test") of a file, a folder, or a data set of the catalogue.

    The files of `<card>` are looked for in the folder `<card>` of `data_dir`, `$XMLPRECK_DATA` and
    `~/.cache/xmlpreck/data`; what is found must have the sizes on the card.
    """
    card = _card_of(data)
    if card is None:
        return formats.read_split(data, split)
    if card.synthetic:
        if split not in _demo():
            raise InputError(f"split {split!r} is not known: say train or test")
        return _demo()[split]
    folders = _search_folders(card, data_dir)
    folder = next((place for place in folders if formats.has_split(place, split)), None)
    if folder is None:
        own = " or ".join(str(place) for place in folders if place.name == card.name)
        raise InputError(f"{card.name}: not found: put train.txt and test.txt into {own}; source: {card.source}")
    dataset = formats.read_split(folder, split)
    _check_sizes(card, split, dataset, folder)
    return dataset


def has_split(data: str, split: str, data_dir: str | None = None) -> bool:
    """Whether `load` would find that split."""
    card = _card_of(data)
    if card is None:
        return formats.has_split(data, split)
    if card.synthetic:
        return split in _demo()
    return any(formats.has_split(place, split) for place in _search_folders(card, data_dir))


def find_config(config: str | None, data: str) -> Path | None:
    """The TOML file that `config` names: a path, or one of `configs/`. Without one, the file named like the data."""
    if config is None:
        own = resource_folder("configs") / f"{describe(data)}.toml"
        return own if own.is_file() else None
    shipped = resource_folder("configs") / f"{config}.toml"
    path = Path(config) if Path(config).is_file() else shipped
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in shipped.parent.glob("*.toml")))
        raise InputError(f"{config}: no such file, nor one of the shipped configs: {known}")
    return path


def describe(data: str) -> str:
    """A short name to show: the card's, the folder's or the file's without suffixes."""
    path = Path(data)
    if not path.exists():
        card = find_card(data)
        return data if card is None else card.name
    return path.resolve().name if path.is_dir() else path.name.partition(".")[0]
