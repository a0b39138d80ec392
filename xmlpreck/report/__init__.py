"""One self-contained HTML page about one or several models: figures, labels, sample rows, settings."""

from xmlpreck.report.facts import Run, ScoredRows
from xmlpreck.report.page import write_report

__all__ = ["Run", "ScoredRows", "write_report"]
