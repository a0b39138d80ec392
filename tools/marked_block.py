"""A part of a page that a tool writes: what stands between two marks."""

import sys
from collections.abc import Iterable
from pathlib import Path

from xmlpreck.files.atomic import atomic_path


def replace_block(path: Path, begin: str, end: str, text: str) -> None:
    """Put the text between the two marks of a file."""
    before, found_begin, rest = path.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        sys.exit(f"{path}: has no lines {begin} and {end}: put them where the table shall stand")
    with atomic_path(path) as temporary:
        temporary.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def print_lines(head: list[str], rows: Iterable[str]) -> str:
    """A table as it comes, line by line; returns all of it."""
    lines = list(head)
    print(*lines, sep="\n")
    for row in rows:
        lines.append(row)
        print(row, flush=True)
    return "\n".join(lines)
