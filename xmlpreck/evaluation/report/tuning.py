"""Show how tuning chose the settings of each run: a section of the report, and its picture."""

from html import escape
from typing import Any

from xmlpreck.evaluation.report.drawing import INK, RUN_COLOURS, Picture, draw
from xmlpreck.evaluation.report.facts import Facts
from xmlpreck.evaluation.report.sections import details, figure, named, of_run, paragraphs, run_name, table
from xmlpreck.evaluation.tables import chosen_text, counted, facts_text, setting_text, trials_of

# Opacity of the worst and the best cell: visible, and with a readable number in every run's colour.
PALEST, DARKEST = 0.05, 0.4


def section(facts: Facts) -> tuple[str, str] | None:
    """Return (words for the margin, HTML beside them), like the parts in sections.py."""
    if all(run.info is None for run in facts.runs):
        return None
    tuned = {index: run.info["tuning"] for index, run in enumerate(facts.runs) if run.info and "tuning" in run.info}
    if not tuned:
        return paragraphs("No run was tuned: the settings are those that were given, or the defaults."), ""
    words = []
    if any(evidence["rungs"] for evidence in tuned.values()):
        words.append(
            "Settings were tried on samples of the training rows, and the better ones again on more of them. They were "
            "scored by the mean of P@1, P@3 and P@5 on training rows that were held out."
        )
    words += [f"{named(facts.runs[index].name)}: {_outcome(evidence)}" for index, evidence in tuned.items()]
    if others := [named(run.name) for index, run in enumerate(facts.runs) if index not in tuned]:
        words.append(f"Not tuned: {', '.join(others)}.")
    shown = "".join(part(facts, *run) for run in tuned.items() for part in (_grid, _passes))
    pair = f'<div class="pair">{shown}</div>' if shown else ""
    trials = "".join(_trials(facts, *run) for run in tuned.items() if run[1]["rungs"])
    return paragraphs(*words), pair + (f"<div>{trials}</div>" if trials else "")


def _outcome(evidence: dict[str, Any]) -> str:
    if "facts" in evidence:
        return f"No trials. By the {escape(facts_text(evidence))}, chosen: {escape(chosen_text(evidence))}."
    n_trials = sum(len(rung["trials"]) for rung in evidence["rungs"])
    return (
        f"{counted(n_trials, 'trial', 'trials')}, scored on {evidence['heldout_rows']:,} held-out rows, cost "
        f"{evidence['spent']:.1f} of at most {counted(evidence['budget'], 'pass', 'passes')} over the training rows. "
        f"Chosen: {escape(chosen_text(evidence))}."
    )


def _grid(facts: Facts, index: int, evidence: dict[str, Any]) -> str:
    """Draw the first rung's values by tau and eta, unless it tried only one pair of them."""
    first = evidence["rungs"][0] if evidence["rungs"] else {"trials": []}
    values: dict[tuple[float, float], float] = {}
    for trial in first["trials"]:
        settings = evidence["chosen"] | trial["settings"]
        if "tau" in settings and "eta" in settings:
            cell = (settings["tau"], settings["eta"])
            values[cell] = max(trial["value"], values.get(cell, trial["value"]))
    if len(values) < 2:
        return ""
    title = "First trials" + (f": {facts.runs[index].name}" if len(facts.runs) > 1 else "")
    text = (
        f"Mean of P@1, P@3 and P@5 (%) on held-out rows, after {counted(first['passes'], 'pass', 'passes')} over "
        f"{first['rows']:,} rows; the best is framed."
    )
    if len(values) < len(first["trials"]):
        text += " Trials that differ in other settings share a cell, which shows the best of them."
    return figure(_draw_grid(index, title, text, values))


def _draw_grid(index: int, title: str, text: str, values: dict[tuple[float, float], float]) -> Picture:
    """Draw a cell for each tau (across) and eta (up), shaded by its value."""
    taus, etas = (sorted(set(of)) for of in zip(*values, strict=True))
    low, high = min(values.values()), max(values.values())

    def paint(axes: Any) -> None:
        for (tau, eta), value in values.items():
            x, y = taus.index(tau), etas.index(eta)
            strength = PALEST + (DARKEST - PALEST) * (value - low) / ((high - low) or 1)
            frame = {"edgecolor": INK, "linewidth": 1.5} if value == high else {}
            axes.bar(x, 0.92, 0.96, y - 0.46, color=(RUN_COLOURS[index], strength), **frame)
            axes.text(x, y, f"{value:.1f}", color=INK, ha="center", va="center")
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        axes.set_xticks(range(len(taus)), map(setting_text, taus))
        axes.set_yticks(range(len(etas)), map(setting_text, etas))

    return draw(f"tuning {index}", title, text, paint, "eta", xlabel="tau")


def _passes(facts: Facts, index: int, evidence: dict[str, Any]) -> str:
    """Format the last rung's winner pass by pass, which determines the number of passes."""
    history = evidence["history"]
    if not history:
        return ""
    best = max(one["value"] for one in history)
    names = list(history[0]["scores"])
    rows = (
        [
            f"{one['passes']:g}",
            *(f"{one['scores'][name]:.2f}" for name in names),
            _starred(one["value"], one["value"] == best),
        ]
        for one in history
    )
    content = table("The winner, pass by pass", ["pass", *map(escape, names), "mean"], rows)
    return f"<div><h3>The winner, pass by pass{of_run(facts, index)}</h3>{content}</div>"


def _starred(value: float, is_best: bool) -> str:
    """Format a value, with a star if it is the best: held-out rows are few, so bold would claim too much."""
    return f"{value:.2f}" + ("*" if is_best else "")


def _trials(facts: Facts, index: int, evidence: dict[str, Any]) -> str:
    names, trials = trials_of(evidence)
    rows = (
        [
            trial.trained_on,
            *map(escape, trial.cells),
            _starred(trial.value, trial.is_best),
            "kept" if trial.is_kept else "dropped",
        ]
        for trial in trials
    )
    content = table("All trials", ["trained on", *map(escape, names), "mean", "outcome"], rows)
    return details(f"{run_name(facts, index)}: all trials, in per cent; * marks the best of each rung", content)
