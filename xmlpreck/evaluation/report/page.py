"""Write the facts as one HTML page without scripts or network; the same facts and day give the same bytes."""

import datetime
from collections.abc import Sequence
from html import escape
from pathlib import Path

import xmlpreck
from xmlpreck.evaluation.report import reasons, sections, tuning
from xmlpreck.evaluation.report.facts import Facts, Run, ScoredRows, gather
from xmlpreck.files import AnyPath
from xmlpreck.files.contents import write_lines

# Results first, then how they came about. A section returns None where the runs have nothing to say on it.
SECTIONS = {
    "Precision": sections.precision,
    "Frequent and rare labels": sections.frequency,
    "Best and worst labels": sections.labels,
    "Sample rows": sections.samples,
    "Why": reasons.reasons,
    "Confidence": sections.confidence,
    "Probabilities": sections.probabilities,
    "Learning": sections.learning,
    "How the settings were chosen": tuning.section,
    "Settings": sections.settings,
}


def write_report(
    path: AnyPath,
    runs: Sequence[Run],
    data: ScoredRows,
    made_on: datetime.date,
    n_threads: int = 1,
    progress: bool = False,
) -> None:
    """Score `runs` on `data` and write the page."""
    write_lines(path, [page_of(gather(data, runs, n_threads, progress), made_on)])


def page_of(facts: Facts, made_on: datetime.date) -> str:
    """Format the whole page."""
    found = {title: make(facts) for title, make in SECTIONS.items()}
    shown = {title: part for title, part in found.items() if part is not None}
    ids = {title: title.split()[0].lower() for title in shown}
    links = "".join(f'<a href="#{ids[title]}">{title}</a>' for title in shown)
    body = "".join(_section(ids[title], title, *part) for title, part in shown.items())
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    # The policy forbids scripts and loading, whatever is in the page; the empty icon stops requests for one.
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="xmlpreck {xmlpreck.__version__}">
<title>{escape(facts.data.name)}: xmlpreck report</title>
<link rel="icon" href="data:,">
<style>
{css}</style>
</head>
<body>
{sections.header(facts, made_on)}
<nav aria-label="Sections">{links}</nav>
<main>
<section aria-label="Summary" class="whole">{sections.summary(facts)}</section>
{body}</main>
<footer>Made with xmlpreck {xmlpreck.__version__}. One file, which loads nothing and runs no script.</footer>
</body>
</html>"""


def _section(name: str, title: str, words: str, body: str) -> str:
    return (
        f'<section aria-labelledby="{name}"><div class="margin"><h2 id="{name}">{title}</h2>{words}</div>'
        f'<div class="stack">{body}</div></section>\n'
    )
