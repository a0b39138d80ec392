"""The pictures and numbers of docs/theory.md, computed with xmlpreck's surrogates and its kernels.

    python tools/make_theory.py --out docs [--draws 100]

Writes theory-*.svg into the folder and the tables between the markers of its theory.md. The same numbers on every run:
all draws are seeded. One SVG serves light and dark: no background, and colours that stand out from both.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure
from scipy.optimize import linprog

from xmlpreck.bipartite import surrogates
from xmlpreck.evaluation.report.drawing import MUTED, RULE, STYLE, log_axis
from xmlpreck.files.atomic import atomic_path
from xmlpreck.kernels import arrays, rules

LOSSES: dict[str, surrogates.Surrogate] = {
    "prec@k": surrogates.prec_at_k,
    "ramp": surrogates.ramp_surrogate,
    "avg": surrogates.avg_surrogate,
    "max": surrogates.max_surrogate,
    "struct": surrogates.struct_surrogate,
}
MARGINS = {"ramp": surrogates.weak_margin, "avg": surrogates.k_margin, "max": surrogates.strong_margin}

GREY = "#7a7a7a"  # 4.3 against white and 4.4 against GitHub's night, #0d1117: no grey does better on both
# Of Okabe and Ito's colours those with a contrast of 3 on both.
COLOURS = {"prec@k": GREY, "ramp": "#009e73", "avg": "#0072b2", "max": "#d55e00", "struct": "#cc79a7"}
DASHES = {"struct": (0, (5, 2)), "ramp": (0, (1, 1.2))}
WIDTH, HEIGHT = 480, 350
GAMMA = "\N{GREEK SMALL LETTER GAMMA}"
LOOK = {key: GREY if value in (MUTED, RULE) else value for key, value in STYLE.items()} | {
    "font.size": 15,
    "axes.labelsize": 15,
    "axes.titlesize": 15,
    "grid.alpha": 0.3,
    "lines.linewidth": 2.5,
}

Curves = dict[str, np.ndarray]


# --- the losses along a line ------------------------------------------------------------------------------------------


class Ranking(NamedTuple):
    """Scores at w = 1; irrelevant items stand first, so that ties count as mistakes."""

    scores: np.ndarray
    relevance: np.ndarray
    k: int


# Made so that the weak and the k margin are positive and the strong one is not.
TWELVE = Ranking(np.array([-1.6, -1.2, -0.8, -0.3, 0.1, 0.3, -0.1, 0.9, 1.3, 1.7, 2.0, 2.4]), np.repeat([0, 1], 6), k=3)
# The paper's example (appendix A): one feature, and w = 1 ranks it right.
SIX = Ranking(np.array([-3.0, -3.0, -3.0, -2.0, -1.0, -1.0]), np.repeat([0, 1], 3), k=1)


def along(ranking: Ranking, places: np.ndarray) -> Curves:
    """Every loss of the scores t * s, for each t of `places`."""
    scores, relevance, k = ranking
    return {name: np.array([loss(t * scores, relevance, k) for t in places]) for name, loss in LOSSES.items()}


# --- mistakes of the perceptrons --------------------------------------------------------------------------------------

MARGIN_SIZES = 0.4 * 0.5 ** np.arange(6)
STREAM_K, STREAM_POSITIVES = 3, 8
BOUNDS = 4 * STREAM_K / MARGIN_SIZES**2  # 4 k R^2 / gamma^2 with R = 1
# What the relevant points' scores under w* differ from gamma / 2 by, in gammas. "k": the 6 = n+ - k + 1 lowest have the
# mean 0, and three of them stand below every irrelevant point.
SPREADS = {"k": np.repeat([-2.0, 2.0], [3, 5]), "strong": np.zeros(STREAM_POSITIVES)}


# By the surrogate of its bound: a perceptron's rule, and the margin that the bound asks for.
PERCEPTRONS = {"avg": (rules.PERCEPTRON_AVG, "k"), "max": (rules.PERCEPTRON_MAX, "strong")}


def separable_batches(margin: str, gamma: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(20 batches, 24 points, 30 features) of norm 1 and a batch's relevance: w* = e_1 realises the margin gamma.

    Irrelevant points have the score -gamma/2, relevant ones gamma/2 + gamma * SPREADS; all else of a point is noise.
    """
    relevance = np.repeat([0, 1], [24 - STREAM_POSITIVES, STREAM_POSITIVES])
    scores = np.full(24, -gamma / 2)
    scores[relevance == 1] = gamma * (0.5 + SPREADS[margin])
    noise = np.random.default_rng(seed).normal(size=(20, 24, 29))
    noise *= (np.sqrt(1 - scores**2) / np.linalg.norm(noise, axis=2))[:, :, np.newaxis]
    return np.dstack([np.broadcast_to(scores, noise.shape[:2]), noise]), relevance


def mistakes_until_none(batches: np.ndarray, relevance: np.ndarray, rule: int) -> int:
    """The sum of mistakes of a perceptron that starts at w = 0 and passes over the batches until it makes none."""
    relevant = np.flatnonzero(relevance).astype(np.int32)
    work = arrays.new_work(len(relevance), STREAM_K, len(relevant), np.float64)
    items, steps = np.zeros(len(relevance), np.int32), np.zeros(len(relevance))
    w = np.zeros(batches.shape[2])
    total, before = 0, -1
    while total > before:
        before = total
        for points in batches:
            n_steps, _, mistakes = rules.choose_step(points @ w, relevant, STREAM_K, rule, work, items, steps)
            w += steps[:n_steps] @ points[items[:n_steps]]
            total += mistakes
    return total


def count_mistakes(n_draws: int) -> Curves:
    """Surrogate -> (margin sizes, draws): sums of its perceptron's mistakes on data with the margin of its bound."""
    found = {name: np.zeros((len(MARGIN_SIZES), n_draws), np.int64) for name in PERCEPTRONS}
    for name, (rule, margin) in PERCEPTRONS.items():
        for place, seed in np.ndindex(found[name].shape):
            batches, relevance = separable_batches(margin, MARGIN_SIZES[place], seed)
            found[name][place, seed] = mistakes_until_none(batches, relevance, rule)
    return found


# --- uniform convergence ----------------------------------------------------------------------------------------------

BATCH_LENGTHS = 2 ** np.arange(6, 13)
KAPPA = 0.25
POPULATION = 20_000


def population() -> tuple[np.ndarray, np.ndarray]:
    """Scores under nine w of norm 4, (points, 9), and relevance, of points in the unit ball; a fifth is relevant."""
    rng = np.random.default_rng(0)
    relevance = rng.random(POPULATION) < 0.2
    points = rng.normal(size=(POPULATION, 10))
    points[:, 0] += 1.5 * relevance
    points /= np.linalg.norm(points, axis=1).max()
    directions = np.vstack([np.eye(1, 10), rng.normal(size=(8, 10))])
    return points @ (4 * directions / np.linalg.norm(directions, axis=1, keepdims=True)).T, relevance


def deviations(n_draws: int) -> Curves:
    """Loss -> (batch lengths, draws): max_w |loss(w; batch) - loss(w; population)|, each loss divided by its k."""
    scores, relevance = population()

    def at_kappa(rows: np.ndarray | slice) -> np.ndarray:
        """(losses, w): all losses of the points `rows`."""
        return np.array(
            [
                [surrogates.surrogate_at_kappa(loss, s, relevance[rows], KAPPA) for s in scores[rows].T]
                for loss in LOSSES.values()
            ]
        )

    on_all = at_kappa(slice(None))
    found = np.zeros((len(LOSSES), len(BATCH_LENGTHS), n_draws))
    for place, length in enumerate(BATCH_LENGTHS):
        rng = np.random.default_rng(length)
        for draw in range(n_draws):
            rows = rng.integers(POPULATION, size=length)  # with replacement: i.i.d., as in the theorem
            found[:, place, draw] = np.abs(at_kappa(rows) - on_all).max(axis=1)
    return dict(zip(LOSSES, found, strict=True))


def slope(x: np.ndarray, values: np.ndarray) -> float:
    """The exponent e of the power law x^e that fits best, by least squares of the logarithms."""
    return float(np.polyfit(np.log(x), np.log(values), 1)[0])


# --- labels by chance -------------------------------------------------------------------------------------------------

# All rows are alike; each draws its labels, of A, B and C, with these probabilities.
OUTCOMES = {"AB": 0.4, "AC": 0.25, "C": 0.35}
LABELS = "ABC"


def marginals() -> np.ndarray:
    """Return the probability of each label. The minimiser of the squared hinge of each label is the same."""
    return np.array([sum(p for outcome, p in OUTCOMES.items() if label in outcome) for label in LABELS])


def least_avg() -> tuple[np.ndarray, float]:
    """Find the scores, A's 0, with the lowest expected avg at k = 1, and its value, by a linear program.

    At k = 1 avg is max(0, 1 + s_j - (mean of the relevant scores)) over the irrelevant labels j.
    """
    n_labels, n_outcomes = len(LABELS), len(OUTCOMES)
    bounds = []
    for place, outcome in enumerate(OUTCOMES):
        relevant = np.array([label in outcome for label in LABELS])
        for other in np.flatnonzero(~relevant):
            scores = np.eye(n_labels)[other] - relevant / relevant.sum()
            bounds.append([*scores, *-np.eye(n_outcomes)[place]])
    cost = [*np.zeros(n_labels), *OUTCOMES.values()]
    free = [(0, 0), *[(None, None)] * (n_labels - 1), *[(0, None)] * n_outcomes]
    found = linprog(cost, bounds, -np.ones(len(bounds)), bounds=free)
    return found.x[:n_labels], float(found.fun)


# --- pictures ---------------------------------------------------------------------------------------------------------


def save(path: Path, paint: Callable[..., None], n_rows: int = 1) -> None:
    """A figure that `paint` fills; with two rows, the upper is a strip for the items themselves."""
    with style.context(["default", LOOK | {"svg.hashsalt": path.name}]):  # whatever the user's matplotlibrc says
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72, layout="constrained")
        paint(*figure.subplots(n_rows, 1, squeeze=False, height_ratios=[1, 5][-n_rows:])[:, 0])
        with atomic_path(path) as part:
            figure.savefig(part, format="svg", transparent=True, metadata={"Date": None})


def name_line(axes: Any, name: str, x: float, y: float, text: str | None = None) -> None:
    """The name of a line beside it, in its colour: a legend would be too small on a phone."""
    axes.text(x, y, text or name, color=COLOURS[name], weight="bold")


def paint_items(axes: Any, ranking: Ranking, title: str) -> None:
    """Relevant items as full dots and irrelevant ones as rings; equal ones stand on each other."""
    for relevant, fill in ((0, "none"), (1, GREY)):
        scores = ranking.scores[ranking.relevance == relevant]
        earlier = np.array([np.count_nonzero(scores[:place] == score) for place, score in enumerate(scores)])
        axes.scatter(scores, earlier, s=55, facecolors=fill, edgecolors=GREY, linewidths=1.8)
    whole = np.arange(np.ceil(ranking.scores.min()), np.floor(ranking.scores.max()) + 1)
    axes.set(xticks=whole, yticks=[], ylim=(-0.8, 2.8), title=title)
    axes.grid(False)
    axes.tick_params(axis="x", length=0, pad=2)


def paint_curves(axes: Any, places: np.ndarray, curves: Curves, names: tuple[str, ...]) -> None:
    for name in names:
        thick = {"linewidth": 5, "drawstyle": "steps-post"} if name == "prec@k" else {}
        axes.plot(places, curves[name], color=COLOURS[name], linestyle=DASHES.get(name, "-"), **thick)


def paint_hierarchy(items: Any, axes: Any) -> None:
    places = np.linspace(-0.5, 2, 1001)
    curves = along(TWELVE, places)
    paint_items(items, TWELVE, "scores at t = 1: ● relevant  ○ irrelevant")
    paint_curves(axes, places, curves, tuple(LOSSES))
    for name in ("ramp", "avg"):
        axes.plot(1 / MARGINS[name](*TWELVE), 0, "o", color=COLOURS[name], markersize=9)
    axes.set(xlabel="t   (w = t · w0)", ylabel="loss, k = 3", ylim=(-4.3, 9), xlim=(-0.5, 2))
    name_line(axes, "max", 1.3, 1.9)
    name_line(axes, "avg", 0.95, 0.6)
    name_line(axes, "ramp", 0.03, 0.35)
    name_line(axes, "struct", 0.72, -3.5)
    name_line(axes, "prec@k", -0.47, 2.0, "prec@3")


def paint_six_points(items: Any, axes: Any) -> None:
    places = np.linspace(-2, 2, 801)
    curves = along(SIX, places)
    paint_items(items, SIX, "x of the six points: ● relevant  ○ irrelevant")
    paint_curves(axes, places, curves, ("prec@k", "avg", "struct"))
    for name in ("avg", "struct"):
        least = int(np.argmin(curves[name]))
        axes.plot(places[least], curves[name][least], "o", color=COLOURS[name], markersize=9, clip_on=False)
    axes.set(xlabel="w", ylabel="loss, k = 1", xlim=(-2, 2), ylim=(-1.3, 5))
    name_line(axes, "avg", -1.3, 3.6)
    name_line(axes, "struct", 1.2, 2.5)
    name_line(axes, "prec@k", -1.9, 1.25, "prec@1")


def mark(axes: Any, places: np.ndarray) -> None:
    """Ticks on a logarithmic axis at these places and nowhere else."""
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xticks([], minor=True)


def paint_mistakes(found: Curves, axes: Any) -> None:
    axes.plot(MARGIN_SIZES, BOUNDS, color=GREY)
    axes.text(0.055, 6_000, f"bound 4kR²/{GAMMA}²", weight="bold")
    for name, counts in found.items():
        low, middle, high = np.quantile(counts, (0, 0.5, 1), axis=1)
        axes.plot(MARGIN_SIZES, middle, "o-", color=COLOURS[name])
        axes.fill_between(MARGIN_SIZES, low, high, color=COLOURS[name], alpha=0.25, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel=f"margin {GAMMA}", ylabel="mistakes of Perceptron@k")
    mark(axes, MARGIN_SIZES)
    log_axis(axes.yaxis, np.array([1, BOUNDS.max()]))
    name_line(axes, "max", 0.1, 140, "@k-max")
    name_line(axes, "avg", 0.02, 70, "@k-avg")


def paint_convergence(found: Curves, axes: Any) -> None:
    for name, lift in (("avg", 0.8), ("max", 1.0), ("struct", 1.0)):  # the names of avg and max would meet
        mean = found[name].mean(axis=1)
        low, high = np.quantile(found[name], (0.05, 0.95), axis=1)
        axes.plot(BATCH_LENGTHS, mean, color=COLOURS[name], linestyle=DASHES.get(name, "-"))
        axes.fill_between(BATCH_LENGTHS, low, high, color=COLOURS[name], alpha=0.18, linewidth=0)
        name_line(axes, name, BATCH_LENGTHS[-1] * 1.06, lift * mean[-1])
    axes.plot(BATCH_LENGTHS, 1.6 / np.sqrt(BATCH_LENGTHS), color=GREY)
    axes.text(70, 0.06, "slope of 1/√b", weight="bold")
    axes.set(xscale="log", yscale="log", xlabel="points in a batch, b", ylabel="largest deviation")
    mark(axes, BATCH_LENGTHS[::2])
    log_axis(axes.yaxis, np.array([0.02, 2]))


def paint_noise(axes: Any) -> None:
    wrong, _ = least_avg()
    at = np.arange(len(LABELS))
    axes.bar(at, marginals(), 0.5, color=GREY, alpha=0.35)
    axes.plot(at, marginals(), "o", color=COLOURS["ramp"], markersize=11)
    axes.plot(at, wrong, "s", color=COLOURS["avg"], markersize=11)
    axes.axhline(0, color=GREY, linewidth=1)
    axes.set(xticks=at, xticklabels=LABELS, xlabel="label", ylabel="score", ylim=(-0.7, 1.25))
    axes.text(0.1, 0.93, "bars: how often", color=GREY, weight="bold")
    name_line(axes, "ramp", 0.15, 0.62, "hinge")
    name_line(axes, "avg", 1.15, -0.55)


# --- tables -----------------------------------------------------------------------------------------------------------


def table(*rows: list[str]) -> str:
    """Markdown: the first row is the head, the first column stands left."""
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|---|" + "---:|" * (len(rows[0]) - 1), *body])


def hierarchy_table() -> str:
    shown, places = np.array([-0.5, -0.25, 0, 0.25, 0.5, 1, 1.5, 2]), np.linspace(0.001, 2, 2000)
    rows = [
        [f"{t:g}", *(f"{value:.2f}" for value in values)]
        for t, *values in zip(shown, *along(TWELVE, shown).values(), strict=True)
    ]
    curves = along(TWELVE, places)
    below = places[np.argmax(curves["struct"] < curves["prec@k"])]
    weak, middle, strong = (margin(*TWELVE) for margin in MARGINS.values())
    return f"""{table(["t", "prec@3", *list(LOSSES)[1:]], *rows)}

- ramp is 0 from t = {1 / weak:.2f} on: the weak margin is {weak:.2f} · t.
- avg is 0 from t = {1 / middle:.2f} on: the (k,{GAMMA})-margin is {middle:.2f} · t.
- max is never 0: the strong margin is {strong:.2f} · t.
- struct is above max for t < 0, below ramp for t > 0, and below prec@3 itself from t = {below:.2f} on."""


def six_points_table() -> str:
    places = np.linspace(-2, 2, 801)
    curves = along(SIX, places)
    rows = []
    for name in list(LOSSES)[1:]:
        least = int(np.argmin(curves[name]))
        rows.append([name, f"{curves[name][least]:.2f}", f"{places[least]:.2f}", f"{curves['prec@k'][least]:.0f}"])
    return table(["surrogate", "least value on [-2, 2]", "first at w =", "mistakes there, prec@1"], *rows)


def mistakes_table(found: Curves) -> str:
    rows = []
    for gamma, bound, *counts in zip(MARGIN_SIZES, BOUNDS, *found.values(), strict=True):
        rows.append([f"{gamma:g}", f"{bound:,.0f}", *(f"{np.median(c):,.0f} ({c.max():,})" for c in counts)])
    slopes = [f"{slope(MARGIN_SIZES, np.median(counts, axis=1)):.2f}" for counts in found.values()]
    head = [f"margin {GAMMA}", "bound", *(f"Perceptron@k-{name}" for name in found)]
    return table(head, *rows, [f"exponent of {GAMMA}", "-2.00", *slopes])


def convergence_table(found: Curves) -> str:
    means = {name: values.mean(axis=1) for name, values in found.items()}
    rows = [[f"{b:,}", *(f"{mean[i]:.3f}" for mean in means.values())] for i, b in enumerate(BATCH_LENGTHS)]
    slopes = [f"{slope(BATCH_LENGTHS, mean):.2f}" for mean in means.values()]
    return table(["b", "prec@κ", *list(LOSSES)[1:]], *rows, ["exponent of b", *slopes])


def noise_table() -> str:
    wrong, value = least_avg()
    right = marginals()
    rows = [
        ["probability", *(f"{p:.2f}" for p in right), ""],
        ["squared hinge", *(f"{score:.2f}" for score in right), f"{right[np.argmax(right)]:.2f}"],
        [f"avg (expected value {value:.1f})", *(f"{score:.2f}" for score in wrong), f"{right[np.argmax(wrong)]:.2f}"],
    ]
    return table(["scores with the lowest expected loss", *LABELS, "P@1"], *rows)


def fill(text: str, name: str, content: str) -> str:
    """The page with `content` between the markers of that name."""
    begin, end = f"<!-- {name}: made by tools/make_theory.py -->", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that has theory.md")
    parser.add_argument("--draws", type=int, default=100, help="streams for each margin, batches of each length")
    args = parser.parse_args()

    mistakes, deviation = count_mistakes(args.draws), deviations(args.draws)
    save(args.out / "theory-hierarchy.svg", paint_hierarchy, n_rows=2)
    save(args.out / "theory-six-points.svg", paint_six_points, n_rows=2)
    save(args.out / "theory-mistakes.svg", lambda axes: paint_mistakes(mistakes, axes))
    save(args.out / "theory-convergence.svg", lambda axes: paint_convergence(deviation, axes))
    save(args.out / "theory-noise.svg", paint_noise)
    page = (args.out / "theory.md").read_text(encoding="utf-8")
    page = fill(page, "hierarchy", hierarchy_table())
    page = fill(page, "six points", six_points_table())
    page = fill(page, "mistakes", mistakes_table(mistakes))
    page = fill(page, "convergence", convergence_table(deviation))
    page = fill(page, "noise", noise_table())
    with atomic_path(args.out / "theory.md") as part:
        part.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
