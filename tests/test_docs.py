"""The examples of the docs do what they say; links between the pages lead somewhere."""

import doctest
import re

import pytest
from conftest import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def test_the_examples_of_prediction(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "prediction.md").read_text(encoding="utf-8")
    examples = doctest.DocTestParser().get_doctest(text, {}, "prediction.md", "prediction.md", 0)
    assert len(examples.examples) > 20
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(examples, out=failures.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(failures)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_exist(page):
    """A promise whose test was renamed would be held by nothing."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*.py"))
    for name in re.findall(r"\b(test_[a-z0-9_]+)\b(?!\.py)", page.read_text(encoding="utf-8")):
        assert f"def {name}(" in sources, f"{page.name} names {name}"
