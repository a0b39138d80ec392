"""What the README and the docs pages ask a reader to run, in the order of the page."""

import re
from typing import NamedTuple

from helpers import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_SHELLS = ("sh", "bash", "shell")
# A span is a command if it begins with a program and has one more word; so has what another block says to run.
_COMMAND = re.compile(r"(?:xmlpreck|python|pip|ray|aws|kubectl|pytest|tools/\S+)\s+\S.*", re.DOTALL)
_ELSEWHERE = re.compile(r"\b(?:xmlpreck [a-z]+|python tools/\S+) .*")


class Step(NamedTuple):
    """Something that a page says to run (`sh`, `python`), or what it says will be printed (`output`)."""

    kind: str
    text: str
    line: int
    in_prose: bool = False

    def commands(self) -> list[str]:
        """The commands of a shell step as written, without their comments."""
        bare = [re.sub(r"(^|\s)#.*", "", line) for line in self.text.replace("\\\n", " ").splitlines()]
        return [" ".join(part.split()) for line in bare for part in line.split(" && ") if part.strip()]


def spans_of(text: str) -> list[tuple[int, str]]:
    """(place, content) of all code within prose."""
    prose = _FENCE.sub(lambda fence: re.sub(r"[^\n]", " ", fence[0]), text)
    return [(span.start(), " ".join(span[1].split())) for span in _SPAN.finditer(prose)]


def steps_of(text: str) -> list[Step]:
    """All steps of a page in its order."""
    found: list[tuple[int, Step]] = []

    def add(place: int, kind: str, content: str, in_prose: bool = False) -> None:
        found.append((place, Step(kind, content, text.count("\n", 0, place) + 1, in_prose)))

    for fence in _FENCE.finditer(text):
        kind, content = fence[1], fence[2]
        if kind in _SHELLS:
            add(fence.start(), "sh", content)
        elif kind == "console":  # commands have a prompt, the rest is what they print
            add(fence.start(), "sh", "\n".join(re.findall(r"^\$ (.*)$", content, re.MULTILINE)))
        elif kind in ("python", "output"):
            add(fence.start(), kind, content)
        elif kind != "pycon":  # those are doctests
            for command in _ELSEWHERE.finditer(content):
                add(fence.start(), "sh", command[0])
    for place, content in spans_of(text):
        if _COMMAND.fullmatch(content):
            add(place, "sh", content, in_prose=True)
    return [step for _, step in sorted(found, key=lambda item: item[0])]
