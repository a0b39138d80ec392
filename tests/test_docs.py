"""The examples of the docs do what they say; links between the pages lead somewhere; what they name exists.

The commands and the Python blocks of the pages are run by test_docs_commands.py.
"""

import doctest
import re

import pytest
from doc_pages import PAGES, spans_of
from helpers import ROOT

import xmlpreck

of_every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
SESSIONS = [page for page in PAGES if "\n>>> " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_examples_of_sessions(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = doctest.DocTestParser().get_doctest(page.read_text("utf-8"), {}, page.name, page.name, 0)
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(examples, out=failures.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(failures)


def test_sessions_are_found():
    assert "prediction.md" in [page.name for page in SESSIONS]


def anchors_of(text):
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@of_every_page
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            place = page.parent / target if target else page
            assert place.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors_of(place.read_text("utf-8")), (
                f"{page.name} links to {target}#{anchor}"
            )


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: xmlpreck\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(name for name in xmlpreck.__all__ if name != "__version__")


@of_every_page
def test_named_tests_exist(page):
    """A promise whose test was renamed would be held by nothing."""
    sources = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*.py")}
    text = page.read_text(encoding="utf-8")
    for file in re.findall(r"\b(test_[a-z0-9_]+\.py)\b", text):
        assert file in sources, f"{page.name} names {file}"
    for file, name in re.findall(r"\b(test_[a-z0-9_]+\.py)::(test_[a-z0-9_]+)", text):
        assert f"def {name}(" in sources[file], f"{page.name} names {file}::{name}"
    for name in re.findall(r"\b(test_[a-z0-9_]+)\b(?!\.py)", text):
        assert any(f"def {name}(" in source for source in sources.values()), f"{page.name} names {name}"


@of_every_page
def test_named_files_exist(page):
    """Files of the repository that are named and not linked."""
    for _, span in spans_of(page.read_text(encoding="utf-8")):
        for name in re.findall(r"(?<!\S)(?:tools|tests|configs|datasets|xmlpreck)/[\w./]*", span):
            assert (ROOT / name).exists(), f"{page.name} names {name}"
