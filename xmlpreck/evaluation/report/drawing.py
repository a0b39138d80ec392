"""Draw pictures as inline SVG with text as text and colours as CSS variables, for light and dark pages.

The same facts give the same bytes: ids come from a salt, and no date is written. Names of runs and labels are never
part of a picture.
"""

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from xmlpreck.evaluation.report.facts import MAX_RUNS

# In CSS pixels, of which matplotlib's inch has 72.
WIDTH, HEIGHT = 360, 236

# Colours that stand for variables of page.css while matplotlib draws.
INK, MUTED, RULE = "#0c0001", "#0c0002", "#0c0003"
VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)"}
RUN_COLOURS = [f"#0c001{index}" for index in range(MAX_RUNS)]
VARIABLES |= {colour: f"var(--run-{index})" for index, colour in enumerate(RUN_COLOURS)}

# Runs also differ by marker, and the lines of one run by dashes.
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))

STYLE = {
    "svg.fonttype": "none",
    "font.size": 11,
    "text.color": MUTED,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.labelsize": 11,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 1,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "ytick.left": False,
    "ytick.minor.left": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 10.5,
    "figure.facecolor": "none",
}


class Picture(NamedTuple):
    title: str
    text: str  # caption
    svg: str


def draw(name: str, title: str, text: str, paint: Callable[[Any], None], unit: str, **settings: Any) -> Picture:
    """Make a picture of what `paint` draws on axes with this unit above and these settings; ids depend on `name`."""
    with style.context(["default", STYLE | {"svg.hashsalt": name}]):  # whatever the user's matplotlibrc says
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72, layout="constrained")
        axes = figure.subplots()
        paint(axes)
        axes.set(title=unit, **settings)
        axes.tick_params(axis="y", length=0, pad=5)
        axes.tick_params(axis="x", length=0, pad=8)
        out = io.StringIO()
        figure.savefig(out, format="svg")
    return Picture(title, text, _inline(out.getvalue(), f"{title}. {text}"))


def _inline(svg: str, description: str) -> str:
    """Convert matplotlib's file to an element of a page, without its prologue, fonts, sizes, date and style sheet."""
    body = svg[svg.index("<g id=") : svg.rindex("</svg>")]
    used = set(re.findall(r"#([mp][0-9a-f]{10})", body))
    body = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", body)
    body = re.sub(r" font-family: [^;]*;", "", body)
    body = re.sub(r"#[0-9a-f]{6}\b", lambda found: VARIABLES.get(found[0], found[0]), body)
    body = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", body)
    # Round coordinates to a hundredth, but not the text between tags.
    body = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}", tag[0]), body)
    body = re.sub(r"\s*\n\s*", " ", body)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f"<title>{escape(description)}</title>{body}</svg>"
    )


def _short(value: float) -> str:
    """Format 1500 as 1.5k."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def log_axis(axis: Any, values: np.ndarray) -> None:
    """Put ticks at powers of ten, or at 1, 2, 5 times each if there are few, in plain numbers."""
    low, high = np.floor(np.log10(values.min())), np.ceil(np.log10(values.max()))
    steps = (1, 2, 5) if high - low <= 2 else (1,)
    ticks = [step * 10.0**power for power in np.arange(low, high + 1) for step in steps]
    axis.set_major_locator(FixedLocator([t for t in ticks if values.min() <= t <= values.max()] or ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axis.set_minor_locator(NullLocator())


def look(index: int, line: int = 0) -> dict[str, Any]:
    """Return colour, marker and dashes of a run's line."""
    return {"color": RUN_COLOURS[index], "marker": MARKERS[index], "linestyle": DASHES[line]}


def explain_dashes(axes: Any, names: Sequence[str]) -> None:
    """Add a legend of dashes."""
    handles = [Line2D([], [], color=MUTED, linestyle=dash) for dash in DASHES[: len(names)]]
    legend_above(axes, handles, names)


def legend_above(axes: Any, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Add a legend to the right of the title, where it covers no line."""
    corner = {"loc": "lower right", "bbox_to_anchor": (1.02, 0.975)}
    axes.legend(handles, names, ncols=len(names), handlelength=1.9, handletextpad=0.5, columnspacing=1, **corner)


def swatch(index: int) -> str:
    """Return a run's marker for the legend of the page."""
    shapes = {
        "o": '<circle cx="7" cy="7" r="5"/>',
        "s": '<path d="M2.5 2.5h9v9h-9z"/>',
        "^": '<path d="M7 2l5.5 10h-11z"/>',
        "D": '<path d="M7 1l6 6-6 6-6-6z"/>',
        "v": '<path d="M7 12l5.5-10h-11z"/>',
        "P": '<path d="M5 1h4v4h4v4h-4v4h-4v-4h-4v-4h4z"/>',
    }
    start = f'<svg class="swatch" viewBox="0 0 14 14" aria-hidden="true" style="fill: var(--run-{index})">'
    return f"{start}{shapes[MARKERS[index]]}</svg>"
