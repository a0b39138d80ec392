"""Tables of bench_peers.py, from the entries of its JSON: a page on all data sets, and a small table for the README."""

import json
from pathlib import Path
from typing import NamedTuple

from xmlpreck.metrics import REPORTED_KS

BEGIN, END = "<!-- peers: made by tools/bench_peers.py -->", "<!-- end of peers -->"

INTRODUCTION = """# Side by side with other tools

Made by `python tools/bench_peers.py`; do not edit. All systems get the same rows (scaled to length 1) and the same
number of threads, run one after the other, each in a process of its own, and are scored by `xmlpreck evaluate`.
Each peer has its default or recommended settings (below); xmlpreck has its defaults and no config for known data.

- P, PSP and nDCG are per cent. **Bold** is the best of a column, of a score only where the 95% interval of the paired
  difference between ours and the best peer excludes 0 (bootstrap over the test rows, as `xmlpreck compare` has it).
- Ours against the best peer of each column: points of a score with that interval, ratio of a cost (under 1 = less).
- Train s: from rows in memory to a model in memory; of xmlpreck with tuning and planning. Command s: the whole process
  with its start, reading, saving, and of xmlpreck scoring the test rows. Our kernels are compiled before.
- Predict: all test rows at once, five labels a row, after loading the model; the least of five.
- Peak MB: the largest resident memory of the training process. Model MB: on disk.
- omikuji cannot be given a seed: its scores change by some tenths from run to run.
"""


class Column(NamedTuple):
    key: str
    title: str
    decimals: int
    is_score: bool = False  # per cent, the more the better; the others are costs


SCORES = [Column(f"{name}@{k}", f"{name}@{k}", 2, True) for name in ("P", "PSP", "nDCG") for k in REPORTED_KS]
TRAIN, COMMAND = Column("train_s", "train s", 1), Column("command_s", "command s", 1)
PREDICT = Column("predict_ms", "predict ms/row", 3)
PEAK, MODEL = Column("peak_mb", "peak MB", 0), Column("model_mb", "model MB", 1)
COLUMNS = [*SCORES, TRAIN, COMMAND, PREDICT, PEAK, MODEL]
COMPACT = [*(column for column in SCORES if column.key in ("P@1", "P@3", "P@5", "PSP@5")), TRAIN, PREDICT, MODEL]


def is_ours(system: str) -> bool:
    return system.startswith("xmlpreck")


def entry_text(entry: dict) -> str:
    """One result for the terminal."""
    identity, values = entry["identity"], entry.get("values")
    name = f"{identity['data']['name']} {identity['system']}"
    if values is None:
        return f"{name}: {entry['skipped']}"
    return f"{name}: " + ", ".join(f"{column.title} {values[column.key]:.{column.decimals}f}" for column in COLUMNS)


def best(entries: list[dict], column: Column) -> float:
    return (max if column.is_score else min)(entry["values"][column.key] for entry in entries)


def is_sure(entry: dict, entries: list[dict], column: Column) -> bool:
    """Tell whether the best of a column is better beyond chance: ours than every peer, or a peer than all of ours."""
    if not column.is_score:
        return True
    ours = [each for each in entries if is_ours(each["identity"]["system"])]
    if entry in ours:
        return "against" in entry and entry["against"][column.key]["low"] > 0
    return all("against" in each and each["against"][column.key]["high"] < 0 for each in ours)


def cells(entry: dict, entries: list[dict], columns: list[Column]) -> list[str]:
    """The values of one system, the best of all systems bold if that is sure."""
    shown = []
    for column in columns:
        text, top = (f"{value:.{column.decimals}f}" for value in (entry["values"][column.key], best(entries, column)))
        shown.append(f"**{text}**" if text == top and is_sure(entry, entries, column) else text)
    return shown


def against(entry: dict, peers: list[dict], columns: list[Column]) -> list[str]:
    """Ours against the best peer of each column: points of a score and their interval, ratios of a cost."""
    shown = []
    for column in columns:
        mine, theirs = entry["values"][column.key], best(peers, column)
        interval = entry.get("against", {}).get(column.key)
        if not column.is_score:
            shown.append(f"{mine / theirs:.2f} x")
        elif interval is None:
            shown.append(f"{mine - theirs:+.2f}")
        else:
            shown.append(f"{interval['difference']:+.2f} ({interval['low']:+.2f} to {interval['high']:+.2f})")
    return shown


def line(words: list[str]) -> str:
    return f"| {' | '.join(words)} |"


def head(names: list[str], columns: list[Column]) -> list[str]:
    return [line([*names, *(column.title for column in columns)]), "|" + "---|" * len(names) + "---:|" * len(columns)]


def by_data(results: list[dict]) -> dict[str, list[dict]]:
    groups: dict[str, list[dict]] = {}
    for entry in results:
        groups.setdefault(entry["identity"]["data"]["name"], []).append(entry)
    return groups


def section(name: str, entries: list[dict]) -> list[str]:
    """One data set: its sizes, a row for each system, ours against the best peer, and who is missing."""
    facts = entries[0]["identity"]["data"]
    sizes = f"{facts['n_train']:,} training rows, {facts['n_test']:,} test rows, {facts['n_features']:,} features"
    lines = [f"## {name}", "", f"{sizes}, {facts['n_labels']:,} labels.", ""]
    done = {entry["identity"]["system"]: entry for entry in entries if "values" in entry}
    lines += head(["system"], COLUMNS)
    lines += [line([system, *cells(entry, [*done.values()], COLUMNS)]) for system, entry in done.items()]
    if peers := [entry for system, entry in done.items() if not is_ours(system)]:
        ours = [system for system in done if is_ours(system)]
        lines += [line([f"{system} against the best peer", *against(done[system], peers, COLUMNS)]) for system in ours]
    missing = (entry for entry in entries if "skipped" in entry)
    return [*lines, "", *(f"- {entry['identity']['system']}: {entry['skipped']}" for entry in missing), ""]


def about_text(content: dict) -> str:
    """Say on which machine, and by which commit, each data set was measured."""
    runs: dict[str, list[str]] = {}
    for name, entries in by_data(content["results"]).items():
        for entry in (each for each in entries if "values" in each):
            about, threads = entry["machine"], entry["identity"]["threads"]
            where = f"{about['cores']} cores ({about['cpu']}), {threads} threads, Python {about['python']}"
            names = runs.setdefault(f"{where}, commit {about['commit']}", [])
            if name not in names:
                names.append(name)
    return "\n".join(f"- {', '.join(names)}: {where}." for where, names in runs.items())


def draw_curves(content: dict, path: Path) -> None:
    """Draw P@5 against the seconds of training, a panel for each data set; ours with all efforts is a line."""
    from matplotlib.figure import Figure

    groups = by_data(content["results"])
    n_across = min(3, len(groups))
    n_down = -(-len(groups) // n_across)
    figure = Figure(figsize=(4 * n_across, 3 * n_down), layout="constrained")
    for index, (name, entries) in enumerate(groups.items()):
        panel = figure.add_subplot(n_down, n_across, index + 1, xscale="log", title=name)
        done = [entry for entry in entries if "values" in entry]
        mine = [entry for entry in done if is_ours(entry["identity"]["system"])]
        mine.sort(key=lambda entry: entry["values"]["train_s"])
        panel.plot(*([entry["values"][key] for entry in mine] for key in ("train_s", "P@5")), "o-", label="xmlpreck")
        for entry in done:
            if entry not in mine:
                panel.plot(entry["values"]["train_s"], entry["values"]["P@5"], "s", label=entry["identity"]["system"])
        panel.set(xlabel="seconds of training", ylabel="P@5")
        panel.legend(fontsize="small")
    figure.savefig(path, format="svg", metadata={"Date": None})


def page(content: dict) -> str:
    """docs/peers.md, all of it."""
    used = {entry["identity"]["system"]: entry["identity"] for entry in content["results"]}
    settings = [f"- {name} {each['version']}: `{json.dumps(each['settings'])}`" for name, each in used.items()]
    sections = ["\n".join(section(name, entries)) for name, entries in by_data(content["results"]).items()]
    picture = "![P@5 against the seconds of training, a panel for each data set](peers.svg)"
    return "\n".join([INTRODUCTION, about_text(content), "", picture, "", *sections, "## Settings", "", *settings, ""])


def compact(content: dict) -> str:
    """The README's table."""
    lines = head(["data", "system"], COMPACT)
    for name, entries in by_data(content["results"]).items():
        done = [entry for entry in entries if "values" in entry]
        lines += [line([name, entry["identity"]["system"], *cells(entry, done, COMPACT)]) for entry in done]
    return "\n".join([*lines, "", about_text(content)])
