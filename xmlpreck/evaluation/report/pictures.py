"""The pictures of a report, each drawn from the facts of one or several runs."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from xmlpreck.evaluation.report.drawing import (
    INK,
    RUN_COLOURS,
    Picture,
    draw,
    explain_dashes,
    legend_above,
    log_axis,
    look,
)
from xmlpreck.evaluation.report.facts import KEPT_SHARES, RunFacts

COVERAGE_POINTS = 150
HISTOGRAM_BINS = 32
RANK_BINS = 14


def learning(runs: Sequence[RunFacts]) -> list[Picture]:
    """Surrogate and mistakes, gap, held-out P@k: each against passes and against seconds."""
    shown = [_losses, _gap]
    if any(facts["heldout"] for run in runs for facts in _history(run)):
        shown.append(_heldout)
    return [picture(runs, by) for picture in shown for by in ("passes", "seconds")]


def _history(run: RunFacts) -> list[dict[str, Any]]:
    return list(run.info.get("history", []))


def _past(run: RunFacts, name: str) -> list[Any]:
    return [facts[name] for facts in _history(run)]


def _over_time(title: str, text: str, by: str, paint: Callable[[Any], None]) -> Picture:
    def paint_all(axes: Any) -> None:
        paint(axes)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=by == "passes", steps=[1, 2, 5, 10]))
        axes.set_xlabel("pass" if by == "passes" else "training time (seconds)")
        if by == "seconds":
            axes.set_xlim(left=0)
            axes.xaxis.set_major_formatter("{x:g}")

    text = text if by == "passes" else "The same against the time that training took."
    return draw(f"{title} {by}", f"{title}, by {by}", text, paint_all)


def _times(run: RunFacts, by: str) -> np.ndarray:
    return np.array(_past(run, "number")) if by == "passes" else np.cumsum(_past(run, "seconds"))


def _losses(runs: Sequence[RunFacts], by: str) -> Picture:
    def paint(axes: Any) -> None:
        for place, run in enumerate(runs):
            times, surrogate, mistakes = _times(run, by), _past(run, "surrogate"), _past(run, "mistakes")
            if len(runs) == 1:  # several would cover each other
                axes.fill_between(times, mistakes, surrogate, color=RUN_COLOURS[place], alpha=0.12, linewidth=0)
            axes.plot(times, surrogate, **look(place))
            axes.plot(times, mistakes, **look(place, 1))
        axes.set_ylim(bottom=0)
        axes.set_title("labels a row, mean")
        explain_dashes(axes, ["surrogate", "mistakes"])

    text = "Mistakes among the first k labels of a training row, and the surrogate that lies above them."
    return _over_time("Surrogate and mistakes", text, by, paint)


def _gap(runs: Sequence[RunFacts], by: str) -> Picture:
    def paint(axes: Any) -> None:
        for place, run in enumerate(runs):
            axes.plot(_times(run, by), _past(run, "gap"), **look(place))
        axes.set_ylim(bottom=0)
        axes.set_title("surrogate \N{MINUS SIGN} mistakes (labels a row)")

    return _over_time("Gap", "How far the surrogate lies above the mistakes that it bounds.", by, paint)


def _heldout(runs: Sequence[RunFacts], by: str) -> Picture:
    names = list(next(values for run in runs for values in _past(run, "heldout") if values))

    def paint(axes: Any) -> None:
        for place, run in enumerate(runs):
            # Passes of a later `update` have no held-out rows.
            measured = [
                (at, values) for at, values in zip(_times(run, by), _past(run, "heldout"), strict=True) if values
            ]
            for line, name in enumerate(names if measured else []):
                shown = [(at, values[name]) for at, values in measured if name in values]
                axes.plot([at for at, _ in shown], [value for _, value in shown], **look(place, line))
        axes.set_title("held-out P@k (%)")
        explain_dashes(axes, names)

    return _over_time("Held-out precision", "On training rows that were kept aside, after each pass.", by, paint)


def _dodge(place: int, n_runs: int) -> float:
    """Where a run stands beside a tick, so that whiskers do not cover each other."""
    return (place - (n_runs - 1) / 2) * 0.13


def _whiskers(axes: Any, place: int, at: np.ndarray, estimates: Sequence[Any]) -> None:
    """Dots with their 95% intervals."""
    for x, estimate in zip(at, estimates, strict=True):
        if estimate.low is not None:
            axes.plot([x, x], [estimate.low, estimate.high], color=RUN_COLOURS[place], linewidth=1.5)
    axes.plot(at, [estimate.value for estimate in estimates], **look(place) | {"linestyle": "none"})


def precision(runs: Sequence[RunFacts]) -> Picture:
    def paint(axes: Any) -> None:
        for place, run in enumerate(runs):
            ks = np.array(run.scores.ks)
            _whiskers(axes, place, ks + _dodge(place, len(runs)), [run.scores.values[f"P@{k}"] for k in ks])
        axes.set_xticks(runs[0].scores.ks)
        axes.set_xlim(0.5, len(runs[0].scores.ks) + 0.5)
        axes.set_xlabel("k")
        axes.set_title("P@k (%)")

    text = "Share of the first k labels that are right. Whiskers: 95% bootstrap intervals over rows."
    return draw("precision", "Precision at k", text, paint)


def model_size(runs: Sequence[RunFacts]) -> Picture:
    names = [name for name in ("P@1", "P@5") if name in runs[0].pruned[0].precision]

    def paint(axes: Any) -> None:
        sizes = np.array([pruned.n_bytes for run in runs for pruned in run.pruned]) / 1e6
        for place, run in enumerate(runs):
            of_run = [pruned.n_bytes / 1e6 for pruned in run.pruned]
            for line, name in enumerate(names):
                axes.plot(of_run, [pruned.precision[name] for pruned in run.pruned], **look(place, line))
        axes.set_xscale("log")
        log_axis(axes.xaxis, sizes)
        axes.set_xlabel("weights on disk (MB)")
        axes.set_title("P@k (%)")
        explain_dashes(axes, names)

    shares = ", ".join(f"{100 * share:g}%" for share in KEPT_SHARES[1:])
    text = (
        f"From right to left: all weights, then only the largest {shares} of them, "
        f"scored on {runs[0].pruned[0].n_rows:,} rows."
    )
    return draw("size", "Precision of smaller models", text, paint)


def answered(run: RunFacts) -> tuple[np.ndarray, np.ndarray]:
    """(share of rows answered, P@1 of these), both in per cent, for falling thresholds on the best score.

    Rows of equal score are answered together, so only the last of them is a point.
    """
    order = np.argsort(-run.best_scores, kind="stable")
    n_answered = np.arange(1, len(order) + 1)
    scores = run.best_scores[order]
    is_last = np.append(scores[1:] != scores[:-1], True)
    shares, values = 100 * n_answered / len(order), 100 * np.cumsum(run.best_hits[order]) / n_answered
    return shares[is_last], values[is_last]


def coverage(runs: Sequence[RunFacts]) -> Picture:
    def paint(axes: Any) -> None:
        wanted = np.linspace(100 / COVERAGE_POINTS, 100, COVERAGE_POINTS)
        for place, run in enumerate(runs):
            shares, values = answered(run)
            shown = np.unique(np.minimum(np.searchsorted(shares, wanted), len(shares) - 1))
            axes.plot(shares[shown], values[shown], **look(place), markevery=(0.05, 0.25))
        axes.set_xlim(0, 100)
        axes.set_xlabel("rows answered (%)")
        axes.set_title("P@1 of the rows answered (%)")

    text = "A row is answered when its best score is above a threshold. Left: high thresholds; right: all rows."
    return draw("coverage", "Precision and coverage", text, paint)


def histogram(runs: Sequence[RunFacts], place: int) -> Picture:
    run = runs[place]

    def paint(axes: Any) -> None:
        is_scored = np.isfinite(run.best_scores)
        scores, hit = run.best_scores[is_scored], run.best_hits[is_scored]
        edges = np.histogram_bin_edges(scores, HISTOGRAM_BINS)
        rights, wrongs = (np.histogram(scores[of], edges)[0] for of in (hit, ~hit))
        filled = axes.stairs(rights, edges, fill=True, color=RUN_COLOURS[place], alpha=0.55)
        line = axes.stairs(wrongs, edges, color=INK, linewidth=1.5)
        axes.set_xlabel("score of the best label")
        axes.set_title("rows")
        legend_above(axes, [filled, line], ["right", "wrong"])

    text = "Scores of the first label where it is right (filled) and where it is wrong (line)."
    title = "Scores of right and wrong labels" + (f": {run.name}" if len(runs) > 1 else "")
    return draw(f"histogram {place}", title, text, paint)


def by_frequency(runs: Sequence[RunFacts], metric: str, title: str, text: str) -> Picture:
    """A metric of head, torso, tail and unseen labels."""
    bins = runs[0].scores.bins

    def paint(axes: Any) -> None:
        for place, run in enumerate(runs):
            at = np.arange(len(bins)) + _dodge(place, len(runs))
            estimates = [part.values[metric] for part in run.scores.bins]
            axes.bar(at, [estimate.value for estimate in estimates], 0.1, color=RUN_COLOURS[place], alpha=0.3)
            _whiskers(axes, place, at, estimates)
        axes.set_xticks(range(len(bins)), [part.name + "\n" + part.rows_text("\N{EN DASH}") for part in bins])
        axes.set_xlim(-0.5, len(bins) - 0.5)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("training rows of the label")
        axes.set_title(f"{metric} (%)")

    return draw(f"bins {metric}", title, text, paint)


def label_frequency(label_counts: np.ndarray) -> Picture:
    counts = np.sort(label_counts[label_counts > 0])[::-1]

    def paint(axes: Any) -> None:
        ranks = np.arange(1, len(counts) + 1)
        shown = np.unique(np.geomspace(1, len(counts), 120).astype(int)) - 1
        axes.loglog(ranks[shown], counts[shown], color=INK)
        log_axis(axes.xaxis, ranks)
        log_axis(axes.yaxis, counts)
        axes.set_xlabel("label, by rank")
        axes.set_title("training rows")

    text = "From the most frequent label to the rarest; both axes are logarithmic."
    return draw("frequency", "How often labels occur", text, paint)


def ever_right(runs: Sequence[RunFacts], label_counts: np.ndarray) -> Picture:
    """Of the labels of similar rank that scored rows have: the share that is right in some row's first k."""
    rank = np.empty(len(label_counts), np.int64)
    rank[np.argsort(-label_counts, kind="stable")] = np.arange(1, len(label_counts) + 1)
    edges = np.unique(np.geomspace(1, len(label_counts) + 1, RANK_BINS).astype(int))
    middles = np.sqrt(edges[:-1] * (edges[1:] - 1))
    bin_of = np.searchsorted(edges, rank, side="right") - 1

    def paint(axes: Any) -> None:
        for place, run in enumerate(runs):
            is_true = run.scores.label_truth > 0
            is_found = run.scores.label_hits[-1] > 0
            n_true, n_found = (np.bincount(bin_of[of], minlength=len(middles)) for of in (is_true, is_true & is_found))
            has = n_true > 0
            axes.plot(middles[has], 100 * n_found[has] / n_true[has], **look(place))
        axes.set_xscale("log")
        log_axis(axes.xaxis, rank)
        axes.set_ylim(0, 104)
        axes.set_xlabel("label, by rank")
        axes.set_title("labels ever predicted right (%)")

    k = runs[0].scores.ks[-1]
    text = f"Labels of similar rank that the scored rows have: the share that is rightly among some row's first {k}."
    return draw("ever right", "Labels that are found at all", text, paint)
