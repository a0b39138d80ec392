"""Format scores, comparisons and the evidence of tuning as text; scores and comparisons also for papers."""

import csv
import io
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xmlpreck.config import ConfigError
from xmlpreck.evaluation.comparison import ChangedRow, Comparison
from xmlpreck.files.atomic import atomic_path
from xmlpreck.metrics import Difference, Estimate, Scores

SIGNIFICANT = 0.05
# Metrics that a comparison shows (larger is better); JSON has all.
COMPARED = ("P", "RP", "nDCG", "PSP", "PSnDCG", "R", "microF1", "MRR", "hF1", "macroF1", "coverage")


STYLES = ("text", "markdown", "latex", "csv")
_LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def check_style(style: str) -> None:
    if style not in STYLES:
        raise ConfigError(f"--table must be one of {', '.join(STYLES)}, but is {style!r:.40}")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], style: str = "text") -> str:
    """Format a table with the first column left-aligned and the others right-aligned."""
    if style == "markdown":
        cells = [[printable(cell).replace("|", r"\|") for cell in row] for row in (header, *rows)]
        filled = [[*row, *[""] * (len(header) - len(row))] for row in cells]
        lines = [f"| {' | '.join(row)} |" for row in filled]
        return "\n".join([lines[0], f"|---|{'---:|' * (len(header) - 1)}", *lines[1:]])
    if style == "latex":
        escaped = [
            ["".join(_LATEX.get(char, char) for char in printable(cell)) for cell in row] for row in (header, *rows)
        ]
        lines = [" & ".join([*row, *[""] * (len(header) - len(row))]) + r" \\" for row in escaped]
        begin = rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}"
        return "\n".join([begin, r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}"])
    widths = [max(map(len, column)) for column in zip_longest(header, *rows, fillvalue="")]

    def line(words: Sequence[str]) -> str:
        numbers = (word.rjust(width) for word, width in zip(words[1:], widths[1:], strict=False))
        return "  ".join([words[0].ljust(widths[0]), *numbers]).rstrip()

    return "\n".join(map(line, [header, *rows]))


def _shown(estimate: Estimate) -> str:
    if estimate.low is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def scores_text(scores: Scores, style: str = "text") -> str:
    """Format metrics by k, and labels by their frequency in training; csv has a line for each metric."""
    check_style(style)
    if style == "csv":
        every = [*scores.values.items()]
        every += [(f"{name} {part.name}", value) for part in scores.bins for name, value in part.values.items()]
        return _csv_text(["metric", "value", "low", "high"], [[name, *_numbers(value)] for name, value in every])
    rows = []
    for family in dict.fromkeys(name.partition("@")[0] for name in scores.values):
        found = [scores.values.get(f"{family}@{k}") for k in scores.ks]
        if family in scores.values:  # has no k
            found = [scores.values[family]]
        rows.append([family, *(_shown(estimate) for estimate in found if estimate is not None)])
    text = table(["%", *(f"@{k}" for k in scores.ks)], rows, style)
    return f"{text}\n\n{_bins_text(scores, style)}" if scores.bins else text


def _csv_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue().removesuffix("\n")


def _numbers(estimate: Estimate | Difference) -> list[str]:
    """Return value and interval with all digits; an interval that was not drawn is empty."""
    return ["" if number is None else repr(float(number)) for number in (estimate.value, estimate.low, estimate.high)]


def _bins_text(scores: Scores, style: str) -> str:
    k = scores.ks[-1]
    rows = [
        [
            part.name,
            part.rows_text("-"),
            f"{part.n_labels:,}",
            f"{part.n_true:,}",
            _shown(part.values[f"P@{k}"]),
            _shown(part.values[f"R@{k}"]),
        ]
        for part in scores.bins
    ]
    header = ["labels", "training rows", "n labels", "n true", f"part of P@{k}", f"micro recall@{k}"]
    return table(header, rows, style)


def comparison_text(
    names: Sequence[str],
    results: Sequence[Scores],
    others: Sequence[Comparison],
    label_names: list[str] | None,
    style: str = "text",
) -> str:
    """Format all scores; for all but the first: differences, rows won and lost, bins, and rows that changed most.

    Only text has the rows that changed; csv has a line for each metric of each file.
    """
    check_style(style)
    if style == "csv":
        return _comparison_csv(names, results, others)
    shown = [name for name in results[0].values if name.partition("@")[0] in COMPARED]
    parts = [
        table(
            ["%", *names],
            [[name, *(f"{scores.values[name].value:.2f}" for scores in results)] for name in shown],
            style,
        )
    ]
    k = results[0].ks[-1]
    for name, other in zip(names[1:], others, strict=True):
        pair = (names[0], name)
        resampled = {metric: value for metric, value in other.differences.items() if metric in shown}
        parts.append(_differences_text(f"{name} minus {names[0]}", resampled, pair, style))
        signs = [
            [metric, f"{test.n_won:,}", f"{test.n_lost:,}", f"{test.p_value:.3g}"]
            for metric, test in other.signs.items()
        ]
        parts.append(table(["rows", "won", "lost", "p of the sign test"], signs, style))
        if other.bins:
            recalls = {part: values[f"R@{k}"] for part, values in other.bins.items()}
            parts.append(_differences_text(f"micro recall@{k} by label frequency", recalls, pair, style))
        if other.changed and style == "text":
            parts.append(_changed_text(other.changed, pair, k, label_names))
    return "\n\n".join(parts)


def _comparison_csv(names: Sequence[str], results: Sequence[Scores], others: Sequence[Comparison]) -> str:
    """Format every metric of every file, and its difference to the first file's."""
    differences: list[dict[str, Difference]] = [{}, *(other.differences for other in others)]
    rows = []
    for name, scores, of_file in zip(names, results, differences, strict=True):
        for metric, value in scores.values.items():
            against = of_file.get(metric)
            cells = [""] * 4 if against is None else [*_numbers(against), repr(float(against.p_value))]
            rows.append([name, metric, *_numbers(value), *cells])
    header = ["file", "metric", "value", "low", "high", "difference", "difference low", "difference high", "p"]
    return _csv_text(header, rows)


def _differences_text(
    title: str, differences: dict[str, Difference], names: tuple[str, str], style: str = "text"
) -> str:
    rows = []
    for metric, value in differences.items():
        better = "-" if value.p_value > SIGNIFICANT else names[value.value > 0]
        interval = f"[{value.low:+.2f}, {value.high:+.2f}]"
        rows.append([metric, f"{value.value:+.2f}", interval, f"{value.p_value:.3g}", better])
    return table([title, "difference", "95% interval", "p", "better"], rows, style)


def _changed_text(changed: Sequence[ChangedRow], names: tuple[str, str], k: int, label_names: list[str] | None) -> str:
    lines = [f"rows that changed most (nDCG@{k}; * = relevant)"]
    for row in changed:
        before, after = row.scores
        name = row.row if row.id is None else printable(str(row.id))
        lines.append(f"row {name}: {before:.1f} -> {after:.1f}; true: {_labels(row.truth, [], label_names)}")
        tops = zip(names, row.tops, strict=True)
        lines += [f"  {name}: {_labels(top, row.truth, label_names)}" for name, top in tops]
    return "\n".join(lines)


def printable(name: str) -> str:
    """Replace control characters: names come from data and must not control the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)


def _labels(labels: Sequence[int], relevant: Sequence[int], label_names: list[str] | None, n_shown: int = 12) -> str:
    named = [
        f"{printable(label_names[label]) if label_names else label}{'*' if label in relevant else ''}"
        for label in labels[:n_shown]
    ]
    more = f", and {len(labels) - n_shown} more" if len(labels) > n_shown else ""
    return (", ".join(named) or "none") + more


def _marked(value: float, is_best: bool) -> str:
    return f"{value:.2f}{'*' if is_best else ' '}"


def sweep_text(setting: str, results: dict[str, dict[str, float]]) -> str:
    """Format the scores of each value that was trained with; mark the best of each column."""
    columns = list(next(iter(results.values())))
    best = {column: max(scores[column] for scores in results.values()) for column in columns}

    def shown(scores: dict[str, Any], column: str) -> str:
        return _marked(scores[column], scores[column] == best[column])

    return table(
        [f"trained {setting}", *(f"{column} " for column in columns)],
        [[value, *(shown(scores, column) for column in columns)] for value, scores in results.items()],
    )


class TrialLine(NamedTuple):
    """One trial of tuning, as a line of a table."""

    trained_on: str
    cells: list[str]  # its settings and its scores
    value: float
    is_best: bool  # of its rung
    is_kept: bool  # for the next rung


def trials_of(evidence: dict[str, Any]) -> tuple[list[str], list[TrialLine]]:
    """Return (names of the cells, all trials of all rungs) from the "tuning" entry of `model.json`."""
    every = [trial for rung in evidence["rungs"] for trial in rung["trials"]]
    settings = list(dict.fromkeys(name for trial in every for name in trial["settings"]))
    scores = list(dict.fromkeys(name for trial in every for name in trial["scores"]))
    trials = []
    for rung in evidence["rungs"]:
        trained_on = f"{rung['rows']:,} rows, {counted(rung['passes'], 'pass', 'passes')}"
        best = max(trial["value"] for trial in rung["trials"])
        for trial in rung["trials"]:
            cells = [setting_text(trial["settings"].get(name, "")) for name in settings]
            cells += [f"{trial['scores'][name]:.2f}" for name in scores]
            trials.append(TrialLine(trained_on, cells, trial["value"], trial["value"] == best, trial["kept"]))
    return [printable(name) for name in settings + scores], trials


def counted(number: float, one: str, many: str) -> str:
    return f"{number:g} {one if number == 1 else many}"


def setting_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else printable(str(value))


def chosen_text(evidence: dict[str, Any]) -> str:
    """Format the settings that tuning chose or was given: k 5 (fixed), eta 0.5."""
    every = evidence["fixed"] | evidence["chosen"]
    return ", ".join(
        f"{printable(name)} {setting_text(value)}{' (fixed)' if name in evidence['fixed'] else ''}"
        for name, value in every.items()
    )


def facts_text(evidence: dict[str, Any]) -> str:
    """Format the facts that settings were chosen by without trials: labels per row 5.1."""
    return ", ".join(f"{printable(name.replace('_', ' '))} {value:.1f}" for name, value in evidence["facts"].items())


def tuning_text(evidence: dict[str, Any]) -> str:
    """Format the trials of each rung, the winner pass by pass, the cost, and the chosen settings."""
    names, trials = trials_of(evidence)
    rows = [
        [trial.trained_on, *trial.cells, _marked(trial.value, trial.is_best), "kept" if trial.is_kept else ""]
        for trial in trials
    ]
    parts = [table(["trained on", *names, "mean "], rows)] if rows else []
    if values := [facts["value"] for facts in evidence["history"]]:
        marked = (_marked(value, value == max(values)).rstrip() for value in values)
        parts.append(f"the winner, mean after each pass: {', '.join(marked)}")
    cost = (
        f"scored on {evidence['heldout_rows']:,} held-out rows; cost {evidence['spent']:.1f} of at most "
        f"{counted(evidence['budget'], 'pass', 'passes')} over the training rows; * = best"
    )
    parts.append(facts_text(evidence) if "facts" in evidence else cost)
    return "\n".join([*parts, f"chosen: {chosen_text(evidence)}"])


def write_label_counts(
    path: str | Path, scores: Scores, names: list[str] | None, training_rows: np.ndarray | None
) -> None:
    """Write a .csv: label, name, rows of training and of truth with it, then predicted and hits for each k."""
    of_k = [f"{what}@{k}" for k in scores.ks for what in ("predicted", "hits")]
    with atomic_path(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["label", "name", "training_rows", "true", *of_k])
        for label, true in enumerate(scores.label_truth.tolist()):
            counts = [
                int(array[i, label])
                for i in range(len(scores.ks))
                for array in (scores.label_predicted, scores.label_hits)
            ]
            frequency = "" if training_rows is None else int(training_rows[label])
            writer.writerow([label, names[label] if names else "", frequency, true, *counts])
