"""Find data sets by name: cards in `datasets/*.toml`, looked up on disk, fetched and checked."""

import dataclasses
import difflib
import functools
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from xmlpreck.config import InputError, without_secrets
from xmlpreck.data import formats, shards
from xmlpreck.data.fetch import UNVERIFIED, Archive, Mirror, download_path, fetch_mirror, say
from xmlpreck.data.formats import Dataset
from xmlpreck.data.rows import RowSource, read_blocks
from xmlpreck.data.synthetic import make_demo

_NAME = re.compile(r"\w[\w.-]{0,99}")
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class DatasetCard:
    """Names, sizes (None = not known), propensity constants and source of a data set."""

    name: str
    title: str
    propensity_a: float
    propensity_b: float
    source: str
    n_train: int | None = None
    n_test: int | None = None
    n_features: int | None = None
    n_labels: int | None = None
    labels_per_row: float | None = None
    synthetic: bool = False
    aliases: tuple[str, ...] = ()
    mirrors: tuple[Mirror, ...] = ()


def resource_folder(name: str) -> Path:
    """Find the folder `name`: inside an installed package, beside the package in a source checkout."""
    beside = _PACKAGE.parent / name
    if (_PACKAGE / name).is_dir():
        return _PACKAGE / name
    # Beside an installed package are those of others, which may well be called `datasets`.
    if beside.is_dir() and (_PACKAGE.parent / "pyproject.toml").is_file():
        return beside
    raise InputError(f"{_PACKAGE / name}: the folder is missing: install xmlpreck again")


def _read_mirror(entries: dict[str, Any]) -> Mirror:
    """Read a mirror: one archive, written flat, or a list of `archives`."""
    entries = dict(entries)
    note = str(entries.pop("note"))
    archives = entries.pop("archives", None) or [entries]
    return Mirror(note, tuple(Archive(**archive) for archive in archives))


def _read_card(path: Path) -> DatasetCard:
    try:
        entries: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        mirrors = tuple(_read_mirror(entry) for entry in entries.pop("mirror", ()))
        card = DatasetCard(**{**entries, "aliases": tuple(entries.get("aliases", ())), "mirrors": mirrors})
    except KeyError as error:
        raise InputError(f"{path}: is not a data set card: a mirror has no {error}") from error
    except (OSError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: is not a data set card: {error}") from error
    for field in dataclasses.fields(card):
        kind, wanted = type(getattr(card, field.name)), (field.type,)
        if isinstance(field.type, types.UnionType):  # `int | None`
            wanted = typing.get_args(field.type)
        if wanted[0] in (int, float, str, bool) and kind not in wanted:
            raise InputError(f"{path}: {field.name} must be of type {wanted[0].__name__}, not {kind.__name__}")
    # They name folders.
    if wrong := [name for name in card.aliases if not (type(name) is str and _NAME.fullmatch(name))]:
        raise InputError(f"{path}: alias {wrong[0]!r:.40} is no name: letters, digits, - and . make one")
    if card.name != path.stem:
        raise InputError(f"{path}: name {card.name!r} must be the file's own, {path.stem!r}")
    return card


@functools.cache
def load_cards() -> dict[str, DatasetCard]:
    """Read all cards; returns them by name, in order."""
    paths = resource_folder("datasets").glob("*.toml")
    return {path.stem: _read_card(path) for path in sorted(paths, key=lambda path: path.stem)}


def list_cards() -> list[DatasetCard]:
    return list(load_cards().values())


def find_card(name: str) -> DatasetCard | None:
    """Find the card of that name or alias, ignoring case."""
    wanted = name.casefold()
    cards = load_cards().values()
    return next((c for c in cards if wanted in map(str.casefold, (c.name, *c.aliases))), None)


@functools.lru_cache(maxsize=1)
def _demo() -> dict[str, Dataset]:
    train, test = make_demo()
    return {"train": train, "test": test}


def _roots(data_dir: str | None) -> list[Path]:
    """List the folders of data sets, in the order of the search."""
    roots = [data_dir, os.environ.get("XMLPRECK_DATA"), "~/.cache/xmlpreck/data"]
    return [Path(root).expanduser() for root in roots if root]


def _search_folders(card: DatasetCard, data_dir: str | None) -> list[Path]:
    """List the folders that may have a card's files, in the order of the search."""
    return [root / name for root in _roots(data_dir) for name in (card.name, *card.aliases)]


def _find_folder(card: DatasetCard, splits: tuple[str, ...], data_dir: str | None) -> Path | None:
    folders = _search_folders(card, data_dir)
    return next((path for path in folders if all(shards.has_split(path, split) for split in splits)), None)


def need_card(name: str) -> DatasetCard:
    """Find the card of that name or alias; an error suggests the nearest names."""
    card = find_card(name)
    if card is None:
        names = [known for c in load_cards().values() for known in (c.name, *c.aliases)]
        near = difflib.get_close_matches(name.casefold(), names, n=3) or list(load_cards())
        raise InputError(f"{name!r} is neither a file or folder nor a known data set: try {', '.join(near)}")
    return card


def _card_of(data: str) -> DatasetCard | None:
    """Return the card that `data` names; None for an existing path and for a URI."""
    return None if shards.is_remote(data) or Path(data).exists() else need_card(data)


def _check(card: DatasetCard, split: str, shape: tuple[int, int, int], path: str | Path) -> None:
    """Refuse a split whose sizes are not those on the card."""
    n_rows = {"train": card.n_train, "test": card.n_test}.get(split)
    for noun, expected, size in zip(
        (f"{split} rows", "features", "labels"), (n_rows, card.n_features, card.n_labels), shape, strict=True
    ):
        if expected is not None and size != expected:
            raise InputError(f"{path}: has {size} {noun}, but {card.name} has {expected}: other data?")


def _check_headers(card: DatasetCard, folder: Path) -> None:
    """Refuse data of another size by the first lines, before they get the name of the data set."""
    for path in sorted(folder.glob("*.txt")):
        with open(path, "rb") as stream:
            words = stream.readline(100).split()
        if len(words) == 3 and all(word.isdigit() for word in words):
            n_rows, n_features, n_labels = map(int, words)
            _check(card, path.stem, (n_rows, n_features, n_labels), path)


def _writable_root(data_dir: str | None) -> Path:
    roots, reasons = _roots(data_dir), []
    for root in roots:
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reasons.append(f"{root}: {error.strerror}")
            continue
        if os.access(root, os.W_OK | os.X_OK):
            return root
        reasons.append(f"{root}: may not be written to")
    raise InputError(f"no folder for data: {'; '.join(reasons)}: say another by --data-dir or XMLPRECK_DATA")


def _has_archives(mirror: Mirror, target: Path) -> bool:
    return all(download_path(archive, target).exists() for archive in mirror.archives)


def _missing(card: DatasetCard, data_dir: str | None, reasons: list[str]) -> InputError:
    """Say what happened, then what to put where: a line for each way out."""
    why = f" and could not be fetched: {'; '.join(dict.fromkeys(reasons))}" if reasons else ""
    lines = [f"{card.name}: is not on this machine{why}; source: {card.source}"]
    folders = " or ".join(str(root / card.name) for root in _roots(data_dir))
    lines.append(f"  either put train.txt and test.txt into {folders}")
    first = card.mirrors[0].archives if card.mirrors else ()
    if len(first) == 1:
        path = download_path(first[0], _roots(data_dir)[0] / card.name)
        lines.append(f"  or save {first[0].address} as {path}")
    return InputError("\n".join(lines))


def fetch_data(name: str, data_dir: str | None = None) -> Path:
    """Return the folder with both splits of a data set; fetch them into the first writable folder if needed."""
    card = need_card(name)
    if card.synthetic:
        raise InputError(f"{card.name}: is {card.source}: nothing to fetch")
    folder = _find_folder(card, ("train", "test"), data_dir)
    if folder is not None:
        return folder
    if not card.mirrors:
        raise _missing(card, data_dir, [])
    reasons: list[str] = []
    for mirror in card.mirrors:
        # An archive that somebody put there by hand needs no network.
        given = (root for root in _roots(data_dir) if _has_archives(mirror, root / card.name))
        root = next(given, None)
        if root is None and os.environ.get("XMLPRECK_OFFLINE"):
            reasons.append("XMLPRECK_OFFLINE is set")
            continue
        target = (root or _writable_root(data_dir)) / card.name
        say(f"{card.name}: fetching {mirror.note} into {target}")
        try:
            fetch_mirror(mirror, target, lambda ready: _check_headers(card, ready))
            return target
        except InputError as error:
            reasons.append(str(error))
            if mirror is not card.mirrors[-1]:
                say(f"{card.name}: {error}; trying another mirror")
    raise _missing(card, data_dir, reasons)


def _find_path(card: DatasetCard | None, data: str, split: str, data_dir: str | None, fetch: bool = True) -> str | Path:
    """Find the file, folder or URI that has the split; fetch it if needed."""
    if card is None:
        return data
    folder = _find_folder(card, (split,), data_dir)
    if folder is None and not fetch:
        raise _missing(card, data_dir, [])
    return folder or fetch_data(card.name, data_dir)


def _made(split: str, format: str | None) -> Dataset:
    if format is not None:
        raise InputError(f"demo: is computed, not read from a file of the format {format!r:.40}: leave out the format")
    if split not in _demo():
        raise InputError(f"split {split!r} is not known: say train or test")
    return _demo()[split]


def load(
    data: str, split: str, data_dir: str | None = None, format: str | None = None, *, fetch: bool = True
) -> RowSource:
    """Open one split ("train" or "test") of a file, a folder, shards by URI, or a data set of the catalogue.

    The files of `<card>` are looked for in the folder `<card>` of `data_dir`, `$XMLPRECK_DATA` and
    `~/.cache/xmlpreck/data`, then fetched; what is found must have the sizes on the card.
    """
    card = _card_of(data)
    if card is not None and card.synthetic:
        return _made(split, format)
    path = _find_path(card, data, split, data_dir, fetch)
    source = shards.open_split(path, split, format)
    if card is not None:
        _check(card, split, (source.n_rows, source.n_features, source.n_labels), path)
    return source


def read_chunks(
    data: str, split: str, data_dir: str | None = None, format: str | None = None, rows_per_chunk: int = 65_536
) -> Iterator[Dataset]:
    """Read what `load` opens some rows at a time, never all into memory."""
    card = _card_of(data)
    if card is not None and card.synthetic:
        yield _made(split, format)
        return
    path = _find_path(card, data, split, data_dir)
    chunks: Iterator[Dataset]
    if shards.find_shards(path, split) is not None:
        chunks = (block for _, block in read_blocks(shards.open_split(path, split, format), rows_per_chunk))
    else:
        chunks = formats.read_chunks(path, split, format, rows_per_chunk)
    n_rows = 0
    for chunk in chunks:
        n_rows += chunk.n_rows
        yield chunk
    if card is not None:
        _check(card, split, (n_rows, chunk.n_features, chunk.n_labels), path)


def splits_of(data: str, out: str, data_dir: str | None = None) -> list[tuple[str, shards.ShardPath]]:
    """List the splits, with a folder in `out` for each; one file is one split, and its folder is `out`."""
    if Path(data).is_file():
        return [("train", shards.locate(out))]
    card = _card_of(data)
    if card is not None and not card.synthetic:
        _find_path(card, data, "train", data_dir)
    found = [split for split in ("train", "test") if has_split(data, split, data_dir)]
    if not found:
        raise InputError(f"{data}: has neither train nor test data")
    return [(split, shards.locate(out) / split) for split in found]


def has_split(data: str, split: str, data_dir: str | None = None) -> bool:
    """Tell whether `load` would find that split without fetching."""
    card = _card_of(data)
    if card is None:
        return shards.has_split(data, split)
    return split in _demo() if card.synthetic else _find_folder(card, (split,), data_dir) is not None


def find_folder(data: str, split: str, data_dir: str | None = None) -> Path | None:
    """Find the local folder of a split's files, where companion files may be; None for a URI."""
    if shards.is_remote(data):
        return None
    card = _card_of(data)
    if card is not None:
        return _find_folder(card, (split,), data_dir)
    return Path(data) if Path(data).is_dir() else Path(data).parent


def local_folders(card: DatasetCard, data_dir: str | None = None) -> dict[str, Path]:
    """Find the folder of each split that is on this machine."""
    found = {split: _find_folder(card, (split,), data_dir) for split in ("train", "test")}
    return {split: folder for split, folder in found.items() if folder is not None}


def card_text(card: DatasetCard, data_dir: str | None = None) -> str:
    """Describe a data set in lines of text."""

    def count(value: int | None) -> str:
        return "not known" if value is None else f"{value:,}"

    lines = [
        ("names", ", ".join((card.name, *card.aliases))),
        ("rows", f"{count(card.n_train)} train, {count(card.n_test)} test"),
        ("features", count(card.n_features)),
        ("labels", count(card.n_labels)),
        ("labels per row", "not known" if card.labels_per_row is None else f"{card.labels_per_row:g}"),
        ("propensity", f"A {card.propensity_a:g}, B {card.propensity_b:g}"),
        ("source", card.source),
    ]
    for mirror in card.mirrors:
        lines.append(("mirror", mirror.note))
        for archive in mirror.archives:
            sure = "unverified: no checksum is known" if archive.sha256 == UNVERIFIED else f"sha256 {archive.sha256}"
            lines.append(("", f"{archive.address} ({sure})"))
    if not card.synthetic:
        looked = f"not here: looked in {', '.join(map(str, _search_folders(card, data_dir)))}"
        folders = local_folders(card, data_dir)
        lines += [(f"{split} files", str(folders.get(split, looked))) for split in ("train", "test")]
    return "\n".join([card.title, *(f"  {key:14} {text}" for key, text in lines)])


def find_config(config: str | None, data: str) -> Path | None:
    """Find the TOML file that `config` names: a path, or one of `configs/`; None: the file named like the data."""
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
    """Name data for people: by the card, the folder (also of a URI) or the file without suffixes."""
    if shards.is_remote(data):
        return unquote(without_secrets(data).partition("?")[0].rstrip("/").rpartition("/")[2])
    path = Path(data)
    if not path.exists():
        card = find_card(data)
        return data if card is None else card.name
    return path.resolve().name if path.is_dir() else path.name.partition(".")[0]
