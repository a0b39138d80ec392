"""Recognise the format of a file or folder by its content, never by its name alone."""

import re
from pathlib import Path
from typing import NamedTuple

from xmlpreck.data.formats import columns
from xmlpreck.data.formats.column_choice import ID_NAMES, LABEL_NAMES, TEXT_NAMES
from xmlpreck.data.formats.delimited import DelimitedTable
from xmlpreck.data.formats.fulltext import is_fulltext
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.contents import HEAD_BYTES, read_head

NUMERIC_FORMATS = ("repository", "pair", "libsvm", "npz", "split")
READ_NUMBERS = (*NUMERIC_FORMATS, "npy")  # dense rows alone, which are not written
WRITTEN_DOCUMENTS = ("jsonl", "fasttext")
DELIMITED = ("csv", "tsv")
TABLES = (*DELIMITED, "parquet")
DOCUMENT_FORMATS = (*WRITTEN_DOCUMENTS, *TABLES, "fulltext")
FORMATS = READ_NUMBERS + DOCUMENT_FORMATS

SPLITS = ("train", "test")
SHORT_NAMES = {"train": "trn", "test": "tst"}
# Names of files that may hold a split, preferred first; all but the .npz may end in .gz too.
_TEXT_NAMES = (
    "{long}.txt",
    "{short}_X_Xf.txt",
    "{long}.svm",
    "{long}.libsvm",
    "{short}.json",
    "{long}.json",
    "{long}.jsonl",
    "{long}.ft",
    "{long}.fasttext",
    "{long}.csv",
    "{long}.tsv",
)
_NPZ_NAMES = ("X_{long}.npz", "X.{short}.npz")
_DENSE_NAME = "E_{long}.npy"

_INTEGERS = re.compile(rb"[ \t]*\d+(?:[ \t]+\d+)*[ \t\r]*")
_PAIRS = rb"(?:[ \t]+\d+:[-+.\deE]+)*[ \t\r]*"
_LIBSVM_LINE = re.compile(rb"(?:\d+(?:,\d+)*)?" + _PAIRS + rb"|\d+:[-+.\deE]+" + _PAIRS)
_FOREIGN = {b"\x89HDF": "HDF5", b"%PDF": "PDF", b"\x1f\x8b": "gzip within gzip"}


class Source(NamedTuple):
    """A split on disk: its format, its file, and the folder or file that was asked for."""

    format: str
    path: Path
    asked: Path


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise FormatError(f"split {split!r} is not known: choose train or test")


def check_format(format: str) -> None:
    if format not in FORMATS:
        raise FormatError(f"format {format!r} is not known: choose one of {', '.join(FORMATS)}")


def is_dense_file(path: Path) -> bool:
    """Tell whether a file of rows is of dense ones, whose labels are in another: `Y_train.npz` of `E_train.npy`."""
    return path.suffix == ".npy" and path.is_file()


def partner(path: Path) -> Path:
    """Return the file of labels of a file of rows: `Y_train.npz` of `X_train.npz`, `trn_X_Y.txt` of `trn_X_Xf.txt`."""
    if is_dense_file(path) and path.name.startswith("E"):
        return path.with_name(f"Y{path.stem[1:]}.npz")
    if path.suffix == ".npz" and path.name.startswith("X"):
        return path.with_name("Y" + path.name[1:])
    if "X_Xf" in path.name:
        beside = path.with_name(path.name.replace("X_Xf", "X_Y"))
        packed = beside.with_name(beside.name.removesuffix(".gz") if beside.suffix == ".gz" else f"{beside.name}.gz")
        return packed if packed.is_file() and not beside.is_file() else beside
    names = ("X....npz", "Y....npz") if path.suffix == ".npz" else ("..._X_Xf.txt", "..._X_Y.txt")
    raise FormatError(f"{path}: name the file of rows {names[0]} and that of labels {names[1]}")


def _names(split: str) -> tuple[str, ...]:
    names = [*(f"{name}{end}" for name in _TEXT_NAMES for end in ("", ".gz")), *_NPZ_NAMES, "{long}.parquet"]
    if split == "test":  # held-back rows of texts are often called so
        names += ["dev.csv", "dev.tsv", "dev.jsonl", "dev.parquet"]
    return tuple(name.format(long=split, short=SHORT_NAMES[split]) for name in names)


def _format_of_lines(lines: list[bytes]) -> str | None:
    filled = [line for line in lines if line.strip()]
    if not filled:
        return None
    if any(line.lstrip().startswith(b"__label__") for line in filled):
        return "fasttext"
    if _INTEGERS.fullmatch(lines[0]) and len(lines[0].split()) in (2, 3):
        return "repository" if len(lines[0].split()) == 3 else "pair"
    has_features = any(b":" in line for line in lines)
    return "libsvm" if has_features and all(_LIBSVM_LINE.fullmatch(line) for line in lines) else None


def recognise_file(path: Path) -> str:
    """Recognise one file by its first bytes and, for rows with row numbers, by the files beside it."""
    head = read_head(path)
    lines = head.removesuffix(b"\n").split(b"\n")
    if len(head) == HEAD_BYTES:  # the last line, or a word of the only one, may be cut
        lines = lines[:-1] or [head.rpartition(b" ")[0]]
    shown = repr(lines[0][:60].decode("utf-8", "replace"))
    if head.startswith(b"PK\x03\x04"):
        return "npz"
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    foreign = next((name for magic, name in _FOREIGN.items() if head.startswith(magic)), None)
    if not head or foreign:
        shown = foreign or "nothing: the file is empty"
    elif head.startswith(b"PAR1"):
        return "parquet"
    elif head.lstrip()[:1] == b"{":
        return "jsonl"
    elif found := _format_of_lines(lines[:100]):
        if found == "repository" and any(columns.find_columns(path, split) for split in SPLITS):
            # Row numbers beside rows that are split already belong to another file.
            return "split" if "data" in path.name.lower() else found
        return found
    elif is_delimited(path):
        return "csv"
    raise FormatError(f"{path}: unknown format: it begins with {shown}: format= can force one of {', '.join(FORMATS)}")


def is_delimited(path: Path) -> bool:
    """Tell whether a text is a table: by its suffix, or by columns of which names or URIs tell texts and labels."""
    if {".csv", ".tsv"} & set(path.suffixes):
        return True
    try:
        table = DelimitedTable(path)
        if not table.dialect.header:
            return True
        names = {name.casefold() for name in table.names}
        return len(names) > 1 and bool(names & {*TEXT_NAMES}) and bool(names & {*LABEL_NAMES, *ID_NAMES})
    except FormatError:
        return False


def list_files(folder: Path, split: str) -> list[Path]:
    """List the files of a folder that may hold the split, by their names."""
    if exact := [folder / name for name in _names(split) if (folder / name).is_file()]:
        return exact
    if (alone := folder / _DENSE_NAME.format(long=split)).is_file():  # beside other rows it is not a split of its own
        return [alone]
    # The repository's archives have eurlex_train.txt; filter_labels_train.txt holds no data.
    named = sorted(file for name in _names(split)[:2] for file in folder.glob(f"*_{name}") if file.is_file())
    return [file for file in named if not file.name.startswith("filter_labels")]


def is_fulltext_folder(folder: Path) -> bool:
    """Tell whether a folder has texts with subjects beside them, and no files that are named as a split."""
    named = any(list_files(folder, split) or columns.find_data(folder, split) for split in SPLITS)
    return not named and is_fulltext(folder)


def _find_in_folder(folder: Path, split: str, format: str | None, kinds: tuple[str, ...]) -> Source | None:
    files = list_files(folder, split)
    data = columns.find_data(folder, split) if format in (None, "split") else None
    if format is not None:
        files = [data] if data else files
        return _choose_file(folder, files, format)
    found = [Source(recognise_file(file), file, folder) for file in files]
    found += [Source("split", data, folder)] if data else []
    fitting = [source for source in found if source.format in kinds] or found
    # Tables may stand beside the rows that were made of them; who wants texts asks for these kinds.
    fitting = [source for source in fitting if source.format not in TABLES] or fitting
    if len({source.format for source in fitting}) > 1:
        shown = ", ".join(f"{source.path.name} ({source.format})" for source in fitting)
        raise FormatError(f"{folder}: the {split} data may be any of {shown}: format= can force one")
    return fitting[0] if fitting else None


def _choose_file(folder: Path, files: list[Path], format: str) -> Source | None:
    """Choose the only file, or the first whose content has the forced format."""
    if format == "npz":
        files = [file for file in files if file.suffix == ".npz"]
    elif format == "pair":
        files = [file for file in files if "X_Xf" in file.name]
    elif format in DELIMITED:  # one format by its content
        files = [file for file in files if f".{format}" in file.suffixes] or files
    sources = [Source(format, file, folder) for file in files]
    if len(sources) < 2:
        return sources[0] if sources else None
    return next((source for source in sources if _seems(source)), None)


def _seems(source: Source) -> bool:
    try:
        found = recognise_file(source.path)
        return found == source.format or {found, source.format} <= {*DELIMITED}
    except FormatError:
        return False


def find_source(
    path: AnyPath, split: str, format: str | None = None, kinds: tuple[str, ...] = FORMATS
) -> Source | None:
    """Find one split of a folder, or a file as it is; None if there is none.

    `kinds` chooses between features and texts if a folder has both.
    """
    check_split(split)
    if format is not None:
        check_format(format)
    found = Path(path)
    if found.is_dir() and format in (None, "fulltext") and not list_files(found, split):
        is_ours = format is not None or is_fulltext_folder(found)
        return Source("fulltext", found, found) if is_ours else _find_in_folder(found, split, format, kinds)
    if found.is_dir():
        return _find_in_folder(found, split, format, kinds)
    return Source(format or recognise_file(found), found, found) if found.is_file() else None


def require_source(path: AnyPath, split: str, format: str | None, kinds: tuple[str, ...]) -> Source:
    """Find one split like `find_source`; refuse data that is missing or of the other kind."""
    source = find_source(path, split, format, kinds)
    if source is None:
        looked_for = (
            f"no {split} data here: looked for {', '.join(_names(split))}, E_{split}.npy, *data.txt with *Split.txt"
        )
        forced = f" as {format}" if format else ""
        raise FormatError(f"{path}: {looked_for + forced if Path(path).is_dir() else 'no such file or folder'}")
    if source.format not in kinds:
        is_text = source.format in DOCUMENT_FORMATS
        holds, wanted = ("texts", "features") if is_text else ("features", "texts")
        instead = "read_documents or document_chunks" if is_text else "read_split or read_chunks"
        raise FormatError(f"{source.path}: holds {holds} ({source.format}), not {wanted}: use {instead}")
    return source


def recognise(path: AnyPath) -> str:
    """Recognise a file or the splits of a folder; refuse an unknown or ambiguous format."""
    source = find_source(path, "train") or find_source(path, "test")
    return (source or require_source(path, "train", None, FORMATS)).format
