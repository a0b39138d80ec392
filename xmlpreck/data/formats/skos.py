"""Read SKOS vocabularies (RDF/XML, Turtle, N-Triples) with rdflib, the extra `skos`."""

import codecs
import logging
import re
from collections.abc import Iterator
from typing import Any

from xmlpreck.config import InputError
from xmlpreck.data.vocabulary import Entry
from xmlpreck.files import AnyPath, FormatError
from xmlpreck.files.contents import read_bytes, reading_as

SKOS_SUFFIXES = {".rdf": "xml", ".xml": "xml", ".owl": "xml", ".ttl": "turtle", ".nt": "nt"}
MAX_ENTITIES = 200
_ENTITY = re.compile(r"""<!ENTITY\s+[^\s%"'<>&]{1,100}\s+(["'])([^"'<>]{0,300})\1\s*>""")
_LAST_PART = re.compile(r"[^/#:]+$")

_log = logging.getLogger(__name__)


def read_skos(path: AnyPath, suffix: str) -> Iterator[Entry]:
    """Yield every skos:Concept; a broader concept that the file does not describe is left out, and that is said.

    RDF has no lines: an error names the first line of the file in which the concept is mentioned.
    """
    try:
        import rdflib
        from rdflib.namespace import OWL, RDF, SKOS
    except ImportError:
        raise InputError(f"{path}: SKOS is read by rdflib: pip install 'xmlpreck[skos]'") from None
    content = read_bytes(path).tobytes().removeprefix(codecs.BOM_UTF8)
    text = _decoded(path, content)
    if SKOS_SUFFIXES[suffix] == "xml":
        _refuse_entities(path, text)
    graph: Any = rdflib.Graph()
    logging.getLogger("rdflib").setLevel(logging.ERROR)  # it warns of dates and numbers that are of no use here
    with reading_as("SKOS", path):
        try:
            graph.parse(data=content, format=SKOS_SUFFIXES[suffix])
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except rdflib.plugins.parsers.notation3.BadSyntax as error:  # its text has several lines
            raise FormatError(f"{path}:{error.lines + 1}: is not Turtle: {error._why}") from None
    lines = _Lines(path, text)
    concepts = {concept for concept in graph.subjects(RDF.type, SKOS.Concept) if isinstance(concept, rdflib.URIRef)}
    if not concepts:
        raise FormatError(f"{path}: has no skos:Concept with a URI: is it a SKOS vocabulary?")
    schemes = sorted({str(scheme) for concept in concepts for scheme in graph.objects(concept, SKOS.inScheme)})
    if len(schemes) > 1:
        _log.warning(
            "%s: labels are of %d concept schemes, %s: all are taken", path, len(schemes), ", ".join(schemes)[:200]
        )
    outside = set()
    for concept in sorted(concepts):
        broader = {*graph.objects(concept, SKOS.broader), *graph.subjects(SKOS.narrower, concept)}
        outside |= broader - concepts
        names: dict[str, str] = {}
        for language, text in _texts(graph, concept, SKOS.prefLabel):
            if names.setdefault(language, text) != text:
                said = f"{names[language]!r:.40} and {text!r:.40}"
                raise FormatError(
                    f"{lines.where(concept)}: {concept} has two names in {language or 'no language'}: {said}"
                )
        alternatives: dict[str, list[str]] = {}
        for language, text in _texts(graph, concept, SKOS.altLabel):
            alternatives.setdefault(language, []).append(text)
        descriptions: dict[str, str] = {}
        for kind in (SKOS.scopeNote, SKOS.definition):  # a definition wins
            descriptions |= dict(_texts(graph, concept, kind))
        deprecated = any(bool(value.toPython()) for value in graph.objects(concept, OWL.deprecated))
        ids = [str(other) for other in broader & concepts]
        yield Entry(lines.where(concept), str(concept), names, alternatives, descriptions, ids, deprecated)
    if outside:
        shown = str(min(outside, key=str))
        _log.warning("%s: %d broader concepts are not in it, such as %s: left out", path, len(outside), shown)


def _decoded(path: AnyPath, content: bytes) -> str:
    if not content.strip():
        raise FormatError(f"{path}: the file is empty")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise FormatError(f"{path}:{line}: byte {error.start} is not UTF-8: save the file as UTF-8") from None


def _refuse_entities(path: AnyPath, text: str) -> None:
    """Refuse what makes XML grow or read other files; short names for namespaces are fine."""
    for place, found in enumerate(re.finditer(r"<!ENTITY", text)):
        value = _ENTITY.match(text, found.start())
        if value is None or "&" in value[2] or "%" in value[2] or place >= MAX_ENTITIES:
            line = text.count("\n", 0, found.start()) + 1
            raise FormatError(f"{path}:{line}: an entity that is no short text is refused: write its text in its place")


def _texts(graph: Any, concept: Any, kind: Any) -> list[tuple[str, str]]:
    """Return (language, text) of a property, sorted."""
    found = graph.objects(concept, kind)
    return sorted((value.language or "", str(value)) for value in found if hasattr(value, "language"))


class _Lines:
    """Finds where a file speaks of a concept: the line that begins with it, else the first that has its last part."""

    def __init__(self, path: AnyPath, text: str) -> None:
        self.path = path
        self.first: dict[str, int] = {}
        self.begins: dict[str, int] = {}
        for number, line in enumerate(text.split("\n"), start=1):
            words = re.findall(r"[^\s<>\"';,]+", line)
            subjects = re.findall(r"about=[\"']([^\"']+)", line) or ([] if line[:1].isspace() else words[:1])
            for known, found in ((self.first, words), (self.begins, subjects)):
                for word in found:
                    if last := _LAST_PART.search(word):
                        known.setdefault(last[0], number)

    def where(self, concept: Any) -> str:
        found = _LAST_PART.search(str(concept))
        last = found[0] if found else str(concept)
        return f"{self.path}:{self.begins.get(last) or self.first.get(last, 1)}"
