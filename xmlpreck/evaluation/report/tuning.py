"""How self-tuning chose the settings of each run: a section of the report, and its picture."""

from html import escape
from typing import Any

from xmlpreck.evaluation.report.drawing import INK, RUN_COLOURS, Picture, draw
from xmlpreck.evaluation.report.facts import Facts
from xmlpreck.evaluation.report.sections import details, figure, named, paragraphs, run_name, table
from xmlpreck.evaluation.tables import chosen_text, counted, setting_text, trials_of

# Opacity of the worst and the best cell: one that is seen, and one whose number is read on every run's colour.
PALEST, DARKEST = 0.05, 0.4


def section(facts: Facts) -> tuple[str, str]:
    """(words for the margin, HTML beside them), like the parts in sections.py."""
    tuned = {place: run.info["tuning"] for place, run in enumerate(facts.runs) if "tuning" in run.info}
    if not tuned:
        return paragraphs("No run was tuned: the settings are those that were given, or the defaults."), ""
    words = [
        "Settings were tried on samples of the training rows, and the better ones again on more of them. The judge is "
        "the mean of P@1, P@3 and P@5 of training rows that were held out."
    ]
    words += [f"{named(facts.runs[place].name)}: {_outcome(evidence)}" for place, evidence in tuned.items()]
    if others := [named(run.name) for place, run in enumerate(facts.runs) if place not in tuned]:
        words.append(f"Not tuned: {', '.join(others)}.")
    shown = "".join(part(facts, *run) for run in tuned.items() for part in (_grid, _passes))
    pair = f'<div class="pair">{shown}</div>' if shown else ""
    trials = "".join(_trials(facts, *run) for run in tuned.items() if run[1]["rungs"])
    return paragraphs(*words), pair + (f"<div>{trials}</div>" if trials else "")


def _outcome(evidence: dict[str, Any]) -> str:
    n_trials = sum(len(rung["trials"]) for rung in evidence["rungs"])
    return (
        f"{counted(n_trials, 'trial', 'trials')}, scored on {evidence['heldout_rows']:,} held-out rows, cost "
        f"{evidence['spent']:.1f} of at most {counted(evidence['budget'], 'pass', 'passes')} over the training rows. "
        f"Chosen: {escape(chosen_text(evidence))}."
    )


def _grid(facts: Facts, place: int, evidence: dict[str, Any]) -> str:
    """The first rung's values by tau and eta, unless it tried only one pair of them."""
    first = evidence["rungs"][0] if evidence["rungs"] else {"trials": []}
    values: dict[tuple[float, float], float] = {}
    for trial in first["trials"]:
        settings = evidence["chosen"] | trial["settings"]
        if "tau" in settings and "eta" in settings:
            cell = (settings["tau"], settings["eta"])
            values[cell] = max(trial["value"], values.get(cell, trial["value"]))
    if len(values) < 2:
        return ""
    title = "First trials" + (f": {facts.runs[place].name}" if len(facts.runs) > 1 else "")
    text = (
        f"Mean of P@1, P@3 and P@5 (%) on held-out rows, after {counted(first['passes'], 'pass', 'passes')} over "
        f"{first['rows']:,} rows; the best is framed."
    )
    if len(values) < len(first["trials"]):
        text += " Trials that differ in other settings share a cell, which shows the best of them."
    return figure(_draw_grid(place, title, text, values))


def _draw_grid(place: int, title: str, text: str, values: dict[tuple[float, float], float]) -> Picture:
    """A cell for each tau (across) and eta (up); the higher its value, the more of the run's colour."""
    taus, etas = (sorted(set(of)) for of in zip(*values, strict=True))
    low, high = min(values.values()), max(values.values())

    def paint(axes: Any) -> None:
        for (tau, eta), value in values.items():
            x, y = taus.index(tau), etas.index(eta)
            strength = PALEST + (DARKEST - PALEST) * (value - low) / ((high - low) or 1)
            frame = {"edgecolor": INK, "linewidth": 1.5} if value == high else {}
            axes.bar(x, 0.92, 0.96, y - 0.46, color=(RUN_COLOURS[place], strength), **frame)
            axes.text(x, y, f"{value:.1f}", color=INK, ha="center", va="center")
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        axes.set_xticks(range(len(taus)), map(setting_text, taus))
        axes.set_yticks(range(len(etas)), map(setting_text, etas))
        axes.set_xlabel("tau")
        axes.set_title("eta")

    return draw(f"tuning {place}", title, text, paint)


def _passes(facts: Facts, place: int, evidence: dict[str, Any]) -> str:
    """The last rung's winner, which tells how many passes to make."""
    history = evidence["history"]
    if not history:
        return ""
    best = max(one["value"] for one in history)
    names = list(history[0]["scores"])
    of_run = f": {run_name(facts, place)}" if len(facts.runs) > 1 else ""
    rows = (
        [
            f"{one['passes']:g}",
            *(f"{one['scores'][name]:.2f}" for name in names),
            _value(one["value"], one["value"] == best),
        ]
        for one in history
    )
    content = table("The winner, pass by pass", ["pass", *map(escape, names), "mean"], rows)
    return f"<div><h3>The winner, pass by pass{of_run}</h3>{content}</div>"


def _value(value: float, is_best: bool) -> str:
    return f"<strong>{value:.2f}</strong>" if is_best else f"{value:.2f}"


def _trials(facts: Facts, place: int, evidence: dict[str, Any]) -> str:
    names, trials = trials_of(evidence)
    rows = (
        [
            trial.trained_on,
            *map(escape, trial.cells),
            _value(trial.value, trial.is_best),
            "kept" if trial.is_kept else "dropped",
        ]
        for trial in trials
    )
    content = table("All trials", ["trained on", *map(escape, names), "mean", "outcome"], rows)
    return details(f"{run_name(facts, place)}: all trials, in per cent; the best of each rung is bold", content)
