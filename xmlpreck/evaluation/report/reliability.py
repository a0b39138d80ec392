"""Compare probabilities with observed frequencies: a section of the report, and its pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from xmlpreck.evaluation.report.drawing import MUTED, RUN_COLOURS, Picture, draw, look
from xmlpreck.evaluation.report.facts import Facts, RunFacts
from xmlpreck.evaluation.report.sections import details, figures, legend, named, paragraphs, run_name, table

Z_95 = 1.96  # standard deviations of a 95% interval


def section(facts: Facts) -> tuple[str, str]:
    """Return (words for the margin, HTML beside them), like the parts in sections.py."""
    k = facts.runs[0].scores.ks[-1]
    words = [f"Of the labels with a probability of 70%, are 70 in 100 right? Over the top {k} labels of every row."]
    for run in facts.runs:
        error, brier = 100 * run.reliability.ece, run.reliability.brier
        words.append(f"{named(run.name)}: expected calibration error {error:.1f}%, Brier score {brier:.3f}.")
    if bare := [named(run.name) for run in facts.runs if not run.is_calibrated]:
        words.append(
            f"Not calibrated: {', '.join(bare)}. Shown is the sigmoid of the scores, which is no probability; "
            "<code>xmlpreck calibrate</code> learns probabilities from held-out rows."
        )
    rows = (
        [run_name(facts, index), f"{100 * predicted:.1f}", f"{100 * observed:.1f}", f"{count:,}"]
        for index, run in enumerate(facts.runs)
        for predicted, observed, count in zip(*run.reliability[:3], strict=True)
    )
    heads = ("run", "predicted (%)", "right (%)", "labels")
    numbers = details("The numbers", table("Predicted and observed", heads, rows))
    return paragraphs(*words) + legend(facts), figures([_diagram(facts.runs), _spread(facts.runs)]) + numbers


def _diagram(runs: Sequence[RunFacts]) -> Picture:
    def paint(axes: Any) -> None:
        axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1, linestyle=(0, (1, 1.5)))
        for index, run in enumerate(runs):
            predicted, observed, counts = run.reliability[:3]
            half = Z_95 * np.sqrt(observed * (1 - observed) / counts)
            low, high = np.clip([observed - half, observed + half], 0, 1)
            axes.vlines(100 * predicted, 100 * low, 100 * high, color=RUN_COLOURS[index], linewidth=1.5)
            axes.plot(100 * predicted, 100 * observed, **look(index))

    n_bins, n_labels = len(runs[0].reliability.counts), runs[0].reliability.counts.sum()
    text = (
        f"On the dotted line, probabilities equal frequencies; below it, labels are right less often. Each point is "
        f"1/{n_bins} of {n_labels:,} predicted labels; whiskers: 95% intervals."
    )
    settings = {"xlim": (0, 100), "ylim": (0, 104), "xlabel": "probability (%)"}
    return draw("reliability", "Predicted and observed", text, paint, "labels that are right (%)", **settings)


def _spread(runs: Sequence[RunFacts]) -> Picture:
    def paint(axes: Any) -> None:
        for index, run in enumerate(runs):
            share = 100 * run.reliability.spread / run.reliability.spread.sum()
            edges = np.linspace(0, 100, len(share) + 1)
            if len(runs) == 1:  # several would cover each other
                axes.stairs(share, edges, fill=True, color=RUN_COLOURS[index], alpha=0.12)
            axes.stairs(share, edges, color=RUN_COLOURS[index], linewidth=1.5)

    text = "Distribution of the probabilities: the further from the middle, the more they say."
    settings = {"xlim": (0, 100), "ylim": (0, None), "xlabel": "probability (%)"}
    return draw("spread", "How sure predictions are", text, paint, "predicted labels (%)", **settings)
