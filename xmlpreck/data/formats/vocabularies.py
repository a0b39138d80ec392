"""Read vocabularies of labels: tables, JSON lines, JSON objects, lines of names, files of LF- sets, SKOS."""

import codecs
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from xmlpreck.data.formats.column_choice import ANY, Columns
from xmlpreck.data.formats.delimited import DelimitedTable
from xmlpreck.data.formats.documents import parse_object
from xmlpreck.data.formats.repository import FEATURES, read_text
from xmlpreck.data.formats.skos import SKOS_SUFFIXES, read_skos
from xmlpreck.data.vocabulary import Entry, Vocabulary, make_vocabulary
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.contents import MAX_JSON_BYTES, numbered_lines, read_bytes, reading_as

LABEL_FEATURES = "lbl_X_Xf.txt"
BETWEEN = "|"  # values of one field
# What a column or a field holds, by its name in any case; name_fi is a name in Finnish.
_KINDS = {
    "id": ("id", "uri", "uid", "identifier", "concept", "concept id"),
    "names": ("name", "label", "preflabel", "preferred label", "preferred name", "title", "term"),
    "alternatives": (
        "alternative names", "alternatives", "altlabel", "altlabels", "alternative labels", "synonyms", "aliases",
    ),
    "descriptions": ("description", "definition", "scopenote", "scope note", "content", "note"),
    "broader": ("broader", "parent", "parents", "broader ids"),
    "deprecated": ("deprecated",),
}  # fmt: skip
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}
_LANGUAGE = re.compile(r"(.+?)[ _@(]+([a-z]{2,3}(?:-[a-z0-9]+)*)\)?")
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0", "")
_JSON_SUFFIXES, _TABLE_SUFFIXES = (".json", ".jsonl", ".ndjson"), (".csv", ".tsv", ".tab")

_log = logging.getLogger(__name__)


def read_vocabulary(path: AnyPath, language: str | None = None) -> Vocabulary:
    """Read the labels of a vocabulary by the suffix of its file, which may be packed (.gz).

    .csv and .tsv are tables, .jsonl and .json objects (one a label, or one of ids and names), .rdf, .xml, .ttl and .nt
    SKOS, lbl_X_Xf.txt the features of the labels of an LF- set, and any other .txt names, one a line.
    """
    name = Path(path).name.removesuffix(".gz")
    suffix = Path(name).suffix.lower()
    if not Path(path).is_file():
        what = "is a folder: give the file in it" if Path(path).is_dir() else "there is no such file"
        raise FormatError(f"{path}: {what}")
    if name == LABEL_FEATURES:
        features, _ = next(read_text(path, FEATURES, None))
        numbers = (Entry(f"{path}:{row + 2}", str(row), {"": str(row)}) for row in range(features.shape[0]))
        return replace(make_vocabulary(path, numbers, language), features=features)
    if suffix in SKOS_SUFFIXES:
        entries = read_skos(path, suffix)
    elif suffix in _TABLE_SUFFIXES:
        entries = _read_table(path, suffix)
    elif suffix in _JSON_SUFFIXES:
        entries = _read_json(path)
    elif suffix == ".txt":
        entries = (Entry(f"{path}:{line}", text, {"": text}) for line, text in _lines(path))
    else:
        known = ", ".join((*_TABLE_SUFFIXES, *_JSON_SUFFIXES, *SKOS_SUFFIXES, ".txt"))
        raise FormatError(f"{path}: a file of labels is one of {known}, or one of these with .gz: rename it")
    vocabulary = make_vocabulary(path, entries, language)
    beside = [file for end in ("", ".gz") if (file := Path(path).with_name(LABEL_FEATURES + end)).is_file()]
    if name == "lbl.json" and beside:
        found = read_vocabulary(beside[0])
        if len(found.labels) != len(vocabulary.labels):
            sizes = f"{len(found.labels)} labels, but {path} {len(vocabulary.labels)}"
            raise FormatError(f"{beside[0]}: has {sizes}: are both of one data set?")
        return replace(vocabulary, features=found.features)
    return vocabulary


def _lines(path: AnyPath) -> Iterator[tuple[int, str]]:
    """Yield numbered lines, without the byte order mark that some editors write."""
    return ((number, line.removeprefix("\ufeff") if number == 1 else line) for number, line in numbered_lines(path))


def _field_of(name: str) -> tuple[str, str] | None:
    """Return what a column or field holds, and in which language; None if its name is not known."""
    folded = name.strip().casefold().replace("_", " ")
    if folded in _KIND_OF:
        return _KIND_OF[folded], ""
    found = _LANGUAGE.fullmatch(name.strip().casefold())
    kind = _KIND_OF.get(found[1].replace("_", " ").strip()) if found else None
    return (kind, found[2]) if found and kind in ("names", "alternatives", "descriptions") else None


def _entry(where: str, values: Iterable[tuple[str, str, list[str]]], id: str = "") -> Entry:
    """Make an entry of (kind, language, texts)."""
    of_kind: dict[str, dict[str, list[str]]] = {kind: {} for kind in _KINDS}
    for kind, language, texts in values:
        of_kind[kind].setdefault(language, []).extend(text.strip() for text in texts if text.strip())
    said = " ".join(of_kind["deprecated"].get("", [])).casefold()
    if said not in (*_YES, *_NO):
        raise FormatError(f"{where}: deprecated is {said!r:.40}: write true or false")
    return Entry(
        where,
        plain_id(" ".join(of_kind["id"].get("", [])) or id),
        {language: texts[0] for language, texts in of_kind["names"].items() if texts},
        of_kind["alternatives"],
        {language: " ".join(texts) for language, texts in of_kind["descriptions"].items()},
        [plain_id(text) for text in of_kind["broader"].get("", [])],
        said in _YES,
    )


def plain_id(text: str) -> str:
    """Return an id without the angle brackets around a URI."""
    return text[1:-1] if text.startswith("<") and text.endswith(">") else text


def _read_table(path: AnyPath, suffix: str) -> Iterator[Entry]:
    """Read a table with a header, or Annif's: URI and name, without one."""
    try:
        yield from _table_entries(path, suffix)
    except FormatError as error:  # the flags that tables of documents have are not for labels
        advice = re.sub(r"say --encoding (\S+)", r"it is \1: save the file as UTF-8", str(error))
        raise FormatError(re.sub(r",? (or )?say [a-z ]+ by --delimiter", " write commas or tabs", advice)) from None


def _table_entries(path: AnyPath, suffix: str) -> Iterator[Entry]:
    table = DelimitedTable(path, ANY if suffix == ".csv" else Columns(delimiter="\t"))
    if table.dialect.header:
        fields = [_field_of(name) for name in table.names]
    else:
        fields = [("id", ""), ("names", ""), *([None] * len(table.names))][: len(table.names)]
    kinds = [field[0] for field in fields if field is not None]
    if "id" not in kinds or "names" not in kinds:
        shown = ", ".join(map(repr, table.names))[:100]
        raise FormatError(f"{path}:1: a table of labels needs a first row with id and name, but it is {shown}")
    if twice := [field for field in fields if field is not None and fields.count(field) > 1]:
        raise FormatError(f"{path}:1: two columns hold the {twice[0][0]} of labels: leave one")
    unread = [name for name, field in zip(table.names, fields, strict=True) if field is None]
    if unread and table.dialect.header:
        _log.warning("%s: columns that are not read: %s", path, ", ".join(unread)[:200])
    for where, row in table.rows():
        cells = zip(fields, row, strict=True)
        yield _entry(
            where,
            (
                (field[0], field[1], cell.split(BETWEEN) if field[0] in ("alternatives", "broader") else [cell])
                for field, cell in cells
                if field is not None
            ),
        )


def _read_json(path: AnyPath) -> Iterator[Entry]:
    """Read one object a line; or one object for all, of ids and names or ids and objects; or a list of objects."""
    lines = _lines(path)
    first_number, first = next(lines, (0, ""))
    if not first_number:
        raise FormatError(f"{path}: the file is empty")
    try:
        is_lines = any(_field_of(name) is not None for name in parse_object(first))
    except ValueError as error:
        if "half of a surrogate" in str(error):
            raise FormatError(f"{path}:{first_number}: {error}") from None
        is_lines = False
    if not is_lines:
        yield from _read_json_object(path)
        return
    for number, line in chain([(first_number, first)], lines):
        where = f"{path}:{number}"
        try:
            fields = parse_object(line)
        except ValueError as error:
            raise FormatError(f"{where}: {error}") from None
        # The labels of an LF- set without a uid are known by their numbers.
        yield _entry(where, _json_values(where, fields), str(number - 1) if "title" in fields else "")


def _read_json_object(path: AnyPath) -> Iterator[Entry]:
    """Read an object of ids, or a list of objects; entries are counted from 1, since JSON forgets the lines."""
    content = read_bytes(path).tobytes().removeprefix(codecs.BOM_UTF8)
    if len(content) > MAX_JSON_BYTES:
        raise FormatError(f"{path}: one object of more than {MAX_JSON_BYTES:,} bytes: write one object a line")
    with reading_as("JSON", path):
        try:
            pairs = json.loads(content, object_pairs_hook=_Pairs)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    if isinstance(pairs, list) and not isinstance(pairs, _Pairs) and all(isinstance(one, _Pairs) for one in pairs):
        pairs = _Pairs(("", one) for one in pairs)
    if not isinstance(pairs, _Pairs):
        raise FormatError(f"{path}: is JSON, but no object of ids and names, and no list of objects with id and name")
    for place, (id, value) in enumerate(pairs, start=1):
        where = f"{path}:entry {place}"
        if isinstance(value, str):
            yield Entry(where, id, {"": value})
        elif isinstance(value, _Pairs):
            yield _entry(where, _json_values(where, dict(value)), id)
        else:
            raise FormatError(f"{where}: {id!r:.60} is neither a name nor an object")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its names as they are: one that is there twice is there twice."""


def _json_values(where: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (kind, language, texts) of a JSON object; a name may be an object of languages."""
    for name, value in fields.items():
        field = _field_of(name)
        if field is None or value is None:
            continue
        value = dict(value) if isinstance(value, _Pairs) else value
        of_language = value if isinstance(value, dict) else {field[1]: value}
        for language, texts in of_language.items():
            listed = texts if isinstance(texts, list) and not isinstance(texts, _Pairs) else [texts]
            if not all(isinstance(text, str | int) for text in listed):  # true and false are ints
                raise FormatError(f"{where}: {name} is {value!r:.40}: write text, or a list of texts")
            yield field[0], language, [str(text) for text in listed]
