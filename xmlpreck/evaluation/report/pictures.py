"""Draw the pictures of a report, each from the facts of one or several runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from xmlpreck.evaluation.report import drawing
from xmlpreck.evaluation.report.drawing import INK, MUTED, RUN_COLOURS, Picture, draw, look
from xmlpreck.evaluation.report.facts import KEPT_SHARES, RunFacts
from xmlpreck.model.calibration import Reliability

COVERAGE_POINTS = 150
HISTOGRAM_BINS = 32
RANK_BINS = 14
Z_95 = 1.96  # standard deviations of a 95% interval


def learning(runs: Sequence[RunFacts]) -> list[Picture]:
    """Draw surrogate and mistakes, gap, held-out P@k: each against passes and against seconds."""
    shown = [_losses, _gap]
    if any(any(_past(run, "heldout")) for run in runs):
        shown.append(_heldout)
    return [picture(runs, by) for picture in shown for by in ("passes", "seconds")]


def _past(run: RunFacts, name: str) -> list[Any]:
    return [facts[name] for facts in run.history]


def _over_time(title: str, text: str, by: str, paint: Callable[[Any], None], unit: str, **settings: Any) -> Picture:
    def paint_all(axes: Any) -> None:
        paint(axes)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=by == "passes", steps=[1, 2, 5, 10]))
        if by == "seconds":
            axes.set_xlim(left=0)
            axes.xaxis.set_major_formatter("{x:g}")

    text = text if by == "passes" else "The same against the time that training took."
    xlabel = "pass" if by == "passes" else "training time (seconds)"
    return draw(f"{title} {by}", f"{title}, by {by}", text, paint_all, unit, xlabel=xlabel, **settings)


def _times(run: RunFacts, by: str) -> np.ndarray:
    return np.array(_past(run, "number")) if by == "passes" else np.cumsum(_past(run, "seconds"))


def _losses(runs: Sequence[RunFacts], by: str) -> Picture:
    def paint(axes: Any) -> None:
        for index, run in enumerate(runs):
            times, surrogate, mistakes = _times(run, by), _past(run, "surrogate"), _past(run, "mistakes")
            if len(runs) == 1:  # several would cover each other
                axes.fill_between(times, mistakes, surrogate, color=RUN_COLOURS[index], alpha=0.12, linewidth=0)
            axes.plot(times, surrogate, **look(index))
            axes.plot(times, mistakes, **look(index, 1))
        drawing.explain_dashes(axes, ["surrogate", "mistakes"])

    text = "Mistakes in the top k of a training row, and the surrogate, their upper bound."
    return _over_time("Surrogate and mistakes", text, by, paint, "labels per row, mean", ylim=(0, None))


def _gap(runs: Sequence[RunFacts], by: str) -> Picture:
    def paint(axes: Any) -> None:
        for index, run in enumerate(runs):
            axes.plot(_times(run, by), _past(run, "gap"), **look(index))

    text = "The surrogate minus the mistakes that it bounds."
    return _over_time("Gap", text, by, paint, "surrogate \N{MINUS SIGN} mistakes (labels per row)", ylim=(0, None))


def _heldout(runs: Sequence[RunFacts], by: str) -> Picture:
    names = list(next(values for run in runs for values in _past(run, "heldout") if values))

    def paint(axes: Any) -> None:
        for index, run in enumerate(runs):
            # Passes of a later `update` have no held-out rows.
            history = zip(_times(run, by), _past(run, "heldout"), strict=True)
            measured = [(time, values) for time, values in history if values]
            for line, name in enumerate(names if measured else []):
                shown = [(time, values[name]) for time, values in measured if name in values]
                axes.plot([time for time, _ in shown], [value for _, value in shown], **look(index, line))
        drawing.explain_dashes(axes, names)

    text = "On training rows that were held out, after each pass."
    return _over_time("Held-out precision", text, by, paint, "held-out P@k (%)")


def _dodge(index: int, n_runs: int) -> float:
    """Return a run's distance from a tick, so that whiskers do not cover each other."""
    return (index - (n_runs - 1) / 2) * 0.13


def _whiskers(axes: Any, index: int, xs: np.ndarray, estimates: Sequence[Any]) -> None:
    """Draw dots with their 95% intervals."""
    for x, estimate in zip(xs, estimates, strict=True):
        if estimate.low is not None:
            axes.plot([x, x], [estimate.low, estimate.high], color=RUN_COLOURS[index], linewidth=1.5)
    axes.plot(xs, [estimate.value for estimate in estimates], **look(index) | {"linestyle": "none"})


def precision(runs: Sequence[RunFacts]) -> Picture:
    """Draw P@k with its intervals."""
    ks = runs[0].scores.ks

    def paint(axes: Any) -> None:
        for index, run in enumerate(runs):
            xs = np.array(run.scores.ks) + _dodge(index, len(runs))
            _whiskers(axes, index, xs, [run.scores.values[f"P@{k}"] for k in run.scores.ks])

    text = "Share of correct labels in the top k. Whiskers: 95% bootstrap intervals over rows."
    limits = (0.5, len(ks) + 0.5)
    return draw("precision", "Precision at k", text, paint, "P@k (%)", xticks=ks, xlim=limits, xlabel="k")


def model_size(runs: Sequence[RunFacts]) -> Picture:
    """Draw the precision of pruned models by their size; files of predictions have none."""
    models = {index: run.pruned for index, run in enumerate(runs) if run.pruned}
    first = next(iter(models.values()))[0]
    names = [name for name in ("P@1", "P@5") if name in first.precision]

    def paint(axes: Any) -> None:
        sizes = {index: np.array([one.n_bytes for one in pruned]) / 1e6 for index, pruned in models.items()}
        for index, pruned in models.items():
            for line, name in enumerate(names):
                axes.plot(sizes[index], [one.precision[name] for one in pruned], **look(index, line))
        axes.set_xscale("log")
        drawing.log_axis(axes.xaxis, np.concatenate(list(sizes.values())))
        drawing.explain_dashes(axes, names)

    shares = ", ".join(f"{100 * share:g}%" for share in KEPT_SHARES[1:])
    text = f"From right to left: all weights, then only the largest {shares} of them, scored on {first.n_rows:,} rows."
    return draw("size", "Precision of smaller models", text, paint, "P@k (%)", xlabel="weights on disk (MB)")


def answered(run: RunFacts) -> tuple[np.ndarray, np.ndarray]:
    """Return (share of rows answered, their P@1), in per cent, for descending thresholds on the best score.

    Rows of equal score are answered together, so only the last of them is a point.
    """
    order = np.argsort(-run.best_scores, kind="stable")
    n_answered = np.arange(1, len(order) + 1)
    scores = run.best_scores[order]
    is_last = np.append(scores[1:] != scores[:-1], True)
    shares, values = 100 * n_answered / len(order), 100 * np.cumsum(run.best_hits[order]) / n_answered
    return shares[is_last], values[is_last]


def coverage(runs: Sequence[RunFacts]) -> Picture:
    """Draw P@1 by the share of rows answered."""

    def paint(axes: Any) -> None:
        wanted = np.linspace(100 / COVERAGE_POINTS, 100, COVERAGE_POINTS)
        for index, run in enumerate(runs):
            shares, values = answered(run)
            shown = np.unique(np.minimum(np.searchsorted(shares, wanted), len(shares) - 1))
            axes.plot(shares[shown], values[shown], **look(index), markevery=(0.05, 0.25))

    text = "A row is answered if its best score is above a threshold. Left: high thresholds; right: all rows."
    settings = {"xlim": (0, 100), "xlabel": "rows answered (%)"}
    return draw("coverage", "Precision and coverage", text, paint, "P@1 of the rows answered (%)", **settings)


def histogram(runs: Sequence[RunFacts], index: int) -> Picture:
    """Draw the best scores of one run, for correct and wrong labels."""
    run = runs[index]

    def paint(axes: Any) -> None:
        is_scored = np.isfinite(run.best_scores)
        scores, hit = run.best_scores[is_scored], run.best_hits[is_scored]
        edges = np.histogram_bin_edges(scores, HISTOGRAM_BINS)
        rights, wrongs = (np.histogram(scores[chosen], edges)[0] for chosen in (hit, ~hit))
        filled = axes.stairs(rights, edges, fill=True, color=RUN_COLOURS[index], alpha=0.55)
        line = axes.stairs(wrongs, edges, color=INK, linewidth=1.5)
        drawing.legend_above(axes, [filled, line], ["right", "wrong"])

    text = "Scores of the top label where it is right (filled) and where it is wrong (line)."
    title = "Scores of right and wrong labels" + (f": {run.name}" if len(runs) > 1 else "")
    return draw(f"histogram {index}", title, text, paint, "rows", xlabel="score of the best label")


def reliability(runs: Mapping[int, Reliability]) -> Picture:
    """Draw observed frequencies by predicted probability, for runs by their place."""

    def paint(axes: Any) -> None:
        axes.plot([0, 100], [0, 100], color=MUTED, linewidth=1, linestyle=(0, (1, 1.5)))
        for index, measured in runs.items():
            predicted, observed, counts = measured[:3]
            half = Z_95 * np.sqrt(observed * (1 - observed) / counts)
            low, high = np.clip([observed - half, observed + half], 0, 1)
            axes.vlines(100 * predicted, 100 * low, 100 * high, color=RUN_COLOURS[index], linewidth=1.5)
            axes.plot(100 * predicted, 100 * observed, **look(index))

    counts = next(iter(runs.values())).counts
    n_bins, n_labels = len(counts), counts.sum()
    text = (
        f"On the dotted line, probabilities equal frequencies; below it, labels are right less often. Each point is "
        f"1/{n_bins} of {n_labels:,} predicted labels; whiskers: 95% intervals."
    )
    settings = {"xlim": (0, 100), "ylim": (0, 104), "xlabel": "probability (%)"}
    return draw("reliability", "Predicted and observed", text, paint, "labels that are right (%)", **settings)


def spread(runs: Mapping[int, Reliability]) -> Picture:
    """Draw the distribution of the probabilities, for runs by their place."""

    def paint(axes: Any) -> None:
        for index, measured in runs.items():
            share = 100 * measured.spread / measured.spread.sum()
            edges = np.linspace(0, 100, len(share) + 1)
            if len(runs) == 1:  # several would cover each other
                axes.stairs(share, edges, fill=True, color=RUN_COLOURS[index], alpha=0.12)
            axes.stairs(share, edges, color=RUN_COLOURS[index], linewidth=1.5)

    text = "Distribution of the probabilities: the further from the middle, the more they say."
    settings = {"xlim": (0, 100), "ylim": (0, None), "xlabel": "probability (%)"}
    return draw("spread", "How sure predictions are", text, paint, "predicted labels (%)", **settings)


def by_frequency(runs: Sequence[RunFacts], metric: str, title: str, text: str) -> Picture:
    """Draw a metric of head, torso, tail and unseen labels."""
    bins = runs[0].scores.bins

    def paint(axes: Any) -> None:
        for index, run in enumerate(runs):
            xs = np.arange(len(bins)) + _dodge(index, len(runs))
            estimates = [part.values[metric] for part in run.scores.bins]
            axes.bar(xs, [estimate.value for estimate in estimates], 0.1, color=RUN_COLOURS[index], alpha=0.3)
            _whiskers(axes, index, xs, estimates)
        axes.set_xticks(range(len(bins)), [part.name + "\n" + part.rows_text("\N{EN DASH}") for part in bins])

    limits = {"xlim": (-0.5, len(bins) - 0.5), "ylim": (0, None)}
    return draw(f"bins {metric}", title, text, paint, f"{metric} (%)", xlabel="training rows of the label", **limits)


def label_frequency(label_counts: np.ndarray) -> Picture:
    """Draw the training rows of each label by its rank."""
    counts = np.sort(label_counts[label_counts > 0])[::-1]

    def paint(axes: Any) -> None:
        ranks = np.arange(1, len(counts) + 1)
        shown = np.unique(np.geomspace(1, len(counts), 120).astype(int)) - 1
        axes.loglog(ranks[shown], counts[shown], color=INK)
        drawing.log_axis(axes.xaxis, ranks)
        drawing.log_axis(axes.yaxis, counts)

    text = "From the most frequent label to the rarest; both axes are logarithmic."
    return draw("frequency", "How often labels occur", text, paint, "training rows", xlabel="label, by rank")


def ever_right(runs: Sequence[RunFacts], label_counts: np.ndarray) -> Picture:
    """Draw, by rank of the labels that scored rows have, the share that is right in some row's top k."""
    rank = np.empty(len(label_counts), np.int64)
    rank[np.argsort(-label_counts, kind="stable")] = np.arange(1, len(label_counts) + 1)
    edges = np.unique(np.geomspace(1, len(label_counts) + 1, RANK_BINS).astype(int))
    middles = np.sqrt(edges[:-1] * (edges[1:] - 1))
    bin_of = np.searchsorted(edges, rank, side="right") - 1

    def paint(axes: Any) -> None:
        for index, run in enumerate(runs):
            is_true = run.scores.label_truth > 0
            is_found = is_true & (run.scores.label_hits[-1] > 0)
            n_true, n_found = (np.bincount(bin_of[chosen], minlength=len(middles)) for chosen in (is_true, is_found))
            has = n_true > 0
            axes.plot(middles[has], 100 * n_found[has] / n_true[has], **look(index))
        axes.set_xscale("log")
        drawing.log_axis(axes.xaxis, rank)

    k = runs[0].scores.ks[-1]
    text = f"Of the labels that the scored rows have, by rank: the share that is right in some row's top {k}."
    settings = {"ylim": (0, 104), "xlabel": "label, by rank"}
    return draw(
        "ever right", "Labels that are found at all", text, paint, "labels ever predicted right (%)", **settings
    )
