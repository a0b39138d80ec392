"""Read a folder of documents as Annif keeps them: NAME.txt, with subjects in NAME.tsv (URIs) or NAME.key (names)."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from xmlpreck.data.dataset import Documents
from xmlpreck.data.formats.column_choice import split_labels
from xmlpreck.data.formats.delimited import find_encoding, undecodable
from xmlpreck.files import FormatError
from xmlpreck.files.contents import read_bytes

SUBJECTS = (".tsv", ".key")  # the first that is there


def list_documents(folder: Path) -> list[Path]:
    """List the texts of a folder in the order of their names."""
    return sorted(path for path in folder.glob("*.txt") if path.is_file())


def is_fulltext(folder: Path) -> bool:
    """Tell whether a folder has texts with subjects beside them."""
    return any(path.with_suffix(suffix).is_file() for path in list_documents(folder) for suffix in SUBJECTS)


def read_fulltext(folder: Path, rows_per_chunk: int, encoding: str | None = None) -> Iterator[Documents]:
    """Read all documents; ids are the names of the files without `.txt`."""
    paths = iter(list_documents(folder))
    n_chunks = 0
    while chunk := list(islice(paths, rows_per_chunk)):
        texts = [_read(path, encoding) for path in chunk]
        yield Documents(texts, [_subjects(path, encoding) for path in chunk], [path.stem for path in chunk])
        n_chunks += 1
    if not n_chunks:
        raise FormatError(f"{folder}: has no documents: they are called NAME.txt")


def _read(path: Path, encoding: str | None) -> str:
    content = read_bytes(path).tobytes()
    found = find_encoding(path, content[:4096], encoding)
    try:
        return content.decode(found)
    except UnicodeDecodeError:
        raise undecodable(path, found) from None


def _subjects(document: Path, encoding: str | None) -> list[str]:
    path = next((found for suffix in SUBJECTS if (found := document.with_suffix(suffix)).is_file()), None)
    if path is None:
        return []
    lines = _read(path, encoding).splitlines()
    if path.suffix == ".key":
        return split_labels((line.strip() for line in lines), None)
    uris = (line.partition("\t")[0].strip() for line in lines)  # a tab and the name may follow
    return split_labels((uri.removeprefix("<").removesuffix(">") for uri in uris), None)
