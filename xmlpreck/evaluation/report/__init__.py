"""Write one self-contained HTML page about one or several models: figures, labels, sample rows, settings."""

from xmlpreck.config import InputError

try:
    import matplotlib  # noqa: F401
except ImportError:
    raise InputError("a report needs matplotlib, which is not installed: pip install 'xmlpreck[report]'") from None

from xmlpreck.evaluation.report.facts import Run, ScoredRows
from xmlpreck.evaluation.report.page import write_report

__all__ = ["Run", "ScoredRows", "write_report"]
