"""Vocabularies: what is known of labels beside their rows. Stable ids, names, descriptions and broader labels."""

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scipy.sparse import csr_array

from xmlpreck.config import InputError
from xmlpreck.files import FormatError

_FIELDS = ("id", "name", "alternatives", "description", "broader", "deprecated")

_log = logging.getLogger(__name__)


class Label(NamedTuple):
    """One label: its stable id (a URI, a number, a name) and its words in one language."""

    id: str
    name: str
    alternatives: tuple[str, ...] = ()  # other names, sorted
    description: str = ""
    broader: tuple[str, ...] = ()  # ids, sorted
    deprecated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return what is known, without fields that are empty."""
        return {name: value for name, value in zip(_FIELDS, self, strict=True) if value}


@dataclass(frozen=True)
class Entry:
    """A label as a file has it, in all its languages ("" = none is said)."""

    where: str  # file and line
    id: str
    names: Mapping[str, str]
    alternatives: Mapping[str, Sequence[str]] = field(default_factory=dict)
    descriptions: Mapping[str, str] = field(default_factory=dict)
    broader: Sequence[str] = ()
    deprecated: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """Labels that fit together: ids are unique, every label has a name, `broader` has no cycle.

    `features` are the labels' own rows, in the feature space of the documents, where a file gives them.
    """

    labels: tuple[Label, ...]
    features: csr_array | None = None

    @property
    def names(self) -> list[str]:
        return [label.name for label in self.labels]

    @property
    def ids(self) -> list[str]:
        return [label.id for label in self.labels]


def make_vocabulary(path: object, entries: Iterable[Entry], language: str | None = None) -> Vocabulary:
    """Choose one language and check that labels fit together; errors name the file and the line."""
    entries = list(entries)
    if not entries:
        raise FormatError(f"{path}: has no label")
    chosen = choose_language(path, entries, language)
    labels: dict[str, Label] = {}
    where: dict[str, str] = {}
    for entry in entries:
        if not entry.id:
            raise FormatError(f"{entry.where}: a label has no id: every label needs one")
        if entry.id in labels:
            first = where[entry.id].removeprefix(f"{path}:")
            first = f"line {first}" if first.isdigit() else first
            raise FormatError(f"{entry.where}: the id {entry.id!r:.60} is there twice, first in {first}: remove one")
        labels[entry.id], where[entry.id] = in_language(entry, chosen), entry.where
    check_broader(labels, where)
    return Vocabulary(tuple(labels.values()))


def choose_language(path: object, entries: Sequence[Entry], language: str | None) -> str:
    """Return the language that was asked for, else the one in which most labels have a name; say so if several do."""
    counts = Counter(known for entry in entries for known in entry.names)
    shown = ", ".join(sorted(known for known in counts if known)) or "none"
    if language is not None:
        found = next((known for known in sorted(counts) if known.casefold() == language.casefold()), None)
        if found is None and set(counts) - {""}:
            raise InputError(f"--label-language {language!r:.40}: {path} has no name in it: its languages are {shown}")
        return language if found is None else found
    chosen = min(counts, key=lambda known: (-counts[known], known), default="")
    if len(counts) > 1:
        _log.warning(
            "%s: names in %s; %s is taken: say another by --label-language", path, shown, chosen or "no language"
        )
    return chosen


def in_language(entry: Entry, language: str) -> Label:
    """Return an entry in one language; a label without a name in it takes one without a language, or any other."""
    order = [language, "", *sorted(entry.names)]
    name = next((one_line(entry.names[known]) for known in order if entry.names.get(known, "").strip()), "")
    if not name:
        raise FormatError(f"{entry.where}: the label {entry.id!r:.60} has no name: give it one, or remove it")
    # Sorted: SKOS has no order, and a table of the same vocabulary gives the same labels.
    others = {one_line(text) for known in {language, ""} for text in entry.alternatives.get(known, ())}
    texts = [one_line(entry.descriptions[known]) for known in (language, "") if entry.descriptions.get(known)]
    label = Label(
        entry.id,
        name,
        tuple(sorted(others - {name, ""})),
        texts[0] if texts else "",
        tuple(sorted(set(entry.broader))),
        entry.deprecated,
    )
    try:
        "".join((label.id, label.name, *label.alternatives, label.description, *label.broader)).encode()
    except UnicodeEncodeError:
        raise FormatError(f"{entry.where}: a text of it has a half of a surrogate pair: it is not Unicode") from None
    return label


def one_line(text: str) -> str:
    """Write blanks and line breaks as single blanks."""
    return " ".join(text.split())


def check_broader(labels: Mapping[str, Label], where: Mapping[str, str]) -> None:
    """Refuse a broader label that is not there, and a label that is broader than itself."""
    for label in labels.values():
        for other in label.broader:
            if other not in labels:
                raise FormatError(f"{where[label.id]}: the broader label {other!r:.60} is no id of this vocabulary")
    if cycle := find_cycle({id: label.broader for id, label in labels.items()}):
        shown = " -> ".join(f"{id!r:.60}" for id in [*cycle[:4], cycle[0]])
        raise FormatError(f"{where[cycle[0]]}: a label is broader than itself: {shown}: remove one of these")


def find_cycle(broader: Mapping[str, Sequence[str]]) -> list[str]:
    """Find labels of which each has the next as its broader one, and the last the first; empty if there are none."""
    done: set[str] = set()
    for start in broader:
        path: list[str] = []
        on_path: set[str] = set()
        stack = [(start, False)]
        while stack:  # depth first, without recursion: a chain may be as long as the vocabulary
            id, is_left = stack.pop()
            if is_left:
                done.add(path.pop())
                on_path.discard(id)
            elif id in on_path:
                return path[path.index(id) :]
            elif id not in done:
                path.append(id)
                on_path.add(id)
                stack.append((id, True))
                stack += ((other, False) for other in broader.get(id, ()))
    return []


class Aligned(NamedTuple):
    """A vocabulary in the order of a model's columns, and the keys by which data call these columns."""

    vocabulary: Vocabulary
    keys: list[str]


def align(vocabulary: Vocabulary, path: object, keys: Sequence[str] | None, n_labels: int) -> Aligned:
    """Put labels in the order of the data's columns; those that the data do not have come behind, by their ids.

    `keys` are what the data call their columns: ids of the vocabulary or, where there are no such ids, names. Columns
    without keys are matched by position, and so are features of labels. A key that is not in the vocabulary is its own
    name. A deprecated label that the data do not have is left out.
    """
    labels = vocabulary.labels
    if keys is None or vocabulary.features is not None:
        if len(labels) != n_labels:
            raise FormatError(f"{path}: has {len(labels)} labels, but the data {n_labels}: write one for each column")
        return Aligned(vocabulary, list(keys) if keys is not None else vocabulary.ids)
    by_id = {label.id: place for place, label in enumerate(labels)}
    n_by_id = sum(key in by_id for key in keys)
    place_of = by_id if n_by_id else places_by_name(path, labels, keys)
    found = [place_of.get(key) for key in keys]
    missing = [key for key, place in zip(keys, found, strict=True) if place is None]
    if len(missing) == len(keys):
        shown = f"{keys[0]!r:.60}, but its first id is {labels[0].id!r:.60} and its name {labels[0].name!r:.60}"
        raise FormatError(f"{path}: has none of the data's labels: the first of these is {shown}")
    if missing:
        _log.warning("%s: has not %d of the data's labels, such as %r", path, len(missing), missing[0])
    used = {place for place in found if place is not None}
    behind = sorted((label for place, label in enumerate(labels) if place not in used), key=lambda label: label.id)
    behind = [label for label in behind if not label.deprecated]
    ordered = [Label(key, key) if place is None else labels[place] for key, place in zip(keys, found, strict=True)]
    new_keys = [label.id if n_by_id else label.name for label in behind]
    known = set(keys)
    new_keys = [label.id if key in known else key for key, label in zip(new_keys, behind, strict=True)]
    return Aligned(Vocabulary((*ordered, *behind)), [*keys, *new_keys])


def places_by_name(path: object, labels: Sequence[Label], keys: Sequence[str]) -> dict[str, int]:
    """Return the places of labels by their names; refuse a key that is the name of two."""
    place_of: dict[str, int] = {}
    twice = set()
    for place, label in enumerate(labels):
        if place_of.setdefault(label.name, place) != place:
            twice.add(label.name)
    for key in keys:
        if key in twice:
            raise FormatError(f"{path}: two labels have the name {key!r:.60}: let the data call labels by their ids")
    return place_of


def to_lines(vocabulary: Vocabulary) -> Iterator[str]:
    """Write every label as a JSON object, as a model directory keeps them."""
    return (json.dumps(label.to_dict(), ensure_ascii=False) for label in vocabulary.labels)


def from_lines(lines: Iterable[str]) -> Vocabulary:
    """Read what `to_lines` wrote; raise a ValueError that names the line of what is damaged.

    A broader label may be missing: it was left out, or is deprecated.
    """
    labels = []
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {str(error)[:100]}") from None
        kinds: dict[str, Any] = {
            "id": str,
            "name": str,
            "alternatives": list,
            "description": str,
            "broader": list,
            "deprecated": bool,
        }
        if not isinstance(found, dict) or not found.keys() <= kinds.keys() or not {"id", "name"} <= found.keys():
            raise ValueError(f"line {number}: is not a label")
        for name, value in found.items():
            is_list = kinds[name] is list
            if type(value) is not kinds[name] or (is_list and not all(type(one) is str for one in value)):
                raise ValueError(f"line {number}: {name} is {value!r:.40}")
        texts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
        }
        labels.append(Label(**texts))
    if len({label.id for label in labels}) < len(labels):
        raise ValueError("an id is there twice")
    if find_cycle({label.id: label.broader for label in labels}):
        raise ValueError("a label is broader than itself")
    return Vocabulary(tuple(labels))
