"""Hooks of mkdocs (.mkdocs.yml): pages made from the README and `--help`; links into the repository."""

import argparse
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from xmlpreck import cli

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    made = {"index.md": readme.replace("](docs/", "]("), "cli.md": help_page()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Turn links to files of the repository, which are no part of the site, into their names."""
    return _LINK.sub(r"`\1`", markdown)


def help_page() -> str:
    """Write the help of every command, as the command prints it."""
    parts = ["# Commands and flags\n\nMade from `xmlpreck COMMAND --help`.\n"]
    for name, parser in commands(cli.build_parser()):
        parts.append(f"## {name}\n\n```text\n{parser.format_help().strip()}\n```\n")
    return "\n".join(parts)


def commands(parser: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    """List all commands below a parser by name."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                found += [(child.prog, child), *commands(child)]
    return found
