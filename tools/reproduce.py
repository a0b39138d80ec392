"""The experiments of the paper's section 6: prec@0.25 against training time, kappa and length of a batch.

    python tools/reproduce.py --data FOLDER [--sets letter a9a ...] [--splits 5] [--passes 25] [--out docs]

FOLDER holds gzipped LIBSVM files (a9a.gz, a9a.t.gz, ...); `rare` is generated. OUT gets reproduction.json, written
after each set (--resume keeps the sets in it), and from it three pictures and the tables of reproduction.md.
Scores are the same on every machine, unless --time-limit ends a fit; seconds are of this one.
"""

import argparse
import io
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from bench_train import machine
from marked_block import replace_block
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from sklearn.datasets import load_svmlight_files
from sklearn.preprocessing import StandardScaler

from xmlpreck.bipartite import CuttingPlaneRanker, PrecAtKRanker, StructRanker, linear_baselines, prec_at_kappa
from xmlpreck.config import InputError
from xmlpreck.evaluation.report import drawing
from xmlpreck.files.atomic import atomic_path

KAPPA = 0.25
KAPPAS = (0.05, 0.1, 0.25, 0.5, 1.0)
KAPPA_SETS = ("a9a", "rare")
BATCHES = (100, 300, 1000, 3000)
SWEEP_POINTS = 30_000  # kappa and batch length are varied on so many points of a larger set
TUNING_PASSES = 5
WITHIN = 0.01  # a curve has settled when it stays this near (relative) to its last value
BEGIN, END = "<!-- reproduction: made by tools/reproduce.py -->", "<!-- end of reproduction -->"

# One grey for text and axes: its contrast is 4 to 1 on white paper and 5 to 1 on a dark page.
GREY = "#808080"
STYLE = {key: GREY if value in drawing.VARIABLES else value for key, value in drawing.STYLE.items()} | {
    "font.family": "sans-serif",
    "grid.alpha": 0.3,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
}


class Points(NamedTuple):
    rows: Any  # dense, or CSR where less than a quarter of the values is not zero
    positive: np.ndarray  # bool

    def take(self, places: np.ndarray) -> "Points":
        return Points(self.rows[places], self.positive[places])

    def draw(self, n_points: int, seed: int) -> "Points":
        """So many of the points, at random; all if there are fewer."""
        return self.take(np.random.default_rng(seed).permutation(len(self.positive))[:n_points])


class Source(NamedTuple):
    files: tuple[str, ...]
    note: str
    positive_class: float | None = None  # None: the rarer of two
    standardise: bool = False


SOURCES = {
    "letter": Source(("letter.scale.gz", "letter.scale.t.gz"), "H, with Z the rarest letter, against all others", 8),
    "a9a": Source(("a9a.gz", "a9a.t.gz"), "Adult, the paper's"),
    "rare": Source((), "generated; stands in for PPI and KDD08, which were not at hand"),
    "ijcnn1": Source(("ijcnn1.gz", "ijcnn1.t.gz"), "the paper's IJCNN"),
    "cod-rna": Source(("cod-rna.gz", "cod-rna.t.gz"), "the paper's, each feature to mean 0 and variance 1", None, True),
    "covtype": Source(("covtype.binary.scale.gz",), "the paper's Covertype, class 2 (the rarer) against the rest"),
}


class Method(NamedTuple):
    build: Callable[[], Any]
    grid: dict[str, tuple[Any, ...]]  # what is chosen on the inner split; the first of equals wins
    colour: str
    marker: str
    family: str  # the surrogate
    centred: bool = False  # train on rows less their mean


# A perceptron starts from 0 and never projects, so the step's length scales w and changes no ranking.
PERCEPTRON = {"average": (True, False)}
# Where k* = 0 in every batch (classes that overlap much) SGD without a ball is blind to eta in the same way: only
# eta / radius counts. So both are in the grid; struct is not bounded below, and always has a ball.
SGD = {"eta": (1e-2, 1e-1, 1.0, 10.0), "radius": (0.0, 1.0, 10.0)}
STRUCT = {"eta": (1e-2, 1e-1, 1.0, 10.0), "radius": (0.1, 1.0, 10.0)}
COST = {"C": (1e-4, 1e-2, 1.0, 100.0)}
CLASSIFIER = {"classifier__C": COST["C"]}
# The coefficients of avg and max add up to 0, so a shift of all rows changes nothing; those of struct add up to k - n+,
# so it follows the origin. It is trained on the features as given and, for its best chance, on centred ones.
METHODS = {
    "Perceptron@k-avg": Method(partial(PrecAtKRanker, algo="perceptron-avg"), PERCEPTRON, "#0072B2", "o", "avg"),
    "SGD@k-avg": Method(partial(PrecAtKRanker, algo="sgd-avg"), SGD, "#56B4E9", "s", "avg"),
    "Perceptron@k-max": Method(partial(PrecAtKRanker, algo="perceptron-max"), PERCEPTRON, "#D55E00", "^", "max"),
    "SGD@k-max": Method(partial(PrecAtKRanker, algo="sgd-max"), SGD, "#E69F00", "v", "max"),
    "Cutting plane": Method(CuttingPlaneRanker, COST, "#009E73", "D", "struct"),
    "1PMB": Method(partial(StructRanker, method="1pmb"), STRUCT, "#CC79A7", "P", "struct"),
    "SGD-struct": Method(partial(StructRanker, method="sgd"), STRUCT, "#999933", "X", "struct"),
    "Cutting plane, centred": Method(CuttingPlaneRanker, COST, "#009E73", "D", "struct", True),
    "1PMB, centred": Method(partial(StructRanker, method="1pmb"), STRUCT, "#CC79A7", "P", "struct", True),
    "SGD-struct, centred": Method(partial(StructRanker, method="sgd"), STRUCT, "#999933", "X", "struct", True),
    "Logistic regression": Method(lambda: linear_baselines()["logistic"], CLASSIFIER, GREY, "<", "point by point"),
    "Linear SVM": Method(lambda: linear_baselines()["svm"], CLASSIFIER, GREY, ">", "point by point"),
}
OURS = tuple(name for name, method in METHODS.items() if method.family in ("avg", "max"))
PAPERS = tuple(name for name, method in METHODS.items() if method.family in ("avg", "max", "struct"))


# ---- data


def load(name: str, folder: Path) -> Points:
    """All points of a set: the paper draws its own splits, so files of training and test points are joined."""
    source = SOURCES[name]
    if not source.files:
        return rare_points()
    paths = [folder / file for file in source.files]
    for path in paths:
        if not path.is_file():
            raise InputError(f"{path}: not found: --data is the folder of LIBSVM files from its data page")
    parts = load_svmlight_files([str(path) for path in paths])
    rows, classes = sp.vstack(parts[::2], format="csr"), np.concatenate(parts[1::2])
    kinds, counts = np.unique(classes, return_counts=True)
    positive = classes == (source.positive_class or kinds[counts.argmin()])
    if source.standardise:
        return Points(StandardScaler().fit_transform(rows.toarray()), positive)
    return Points(sp.csr_array(rows) if rows.nnz < 0.25 * np.prod(rows.shape) else rows.toarray(), positive)


def rare_points(n_points: int = 100_000, n_features: int = 50, share: float = 0.01, distance: float = 3.5) -> Points:
    """Negatives N(0, I); positives in three clouds of unequal size, N(c, I), |c| = distance: no w suits all three."""
    rng = np.random.default_rng(2015)
    centres = rng.normal(size=(3, n_features))
    centres *= distance / np.linalg.norm(centres, axis=1, keepdims=True)
    positive = np.arange(n_points) < round(share * n_points)
    rows = rng.normal(size=(n_points, n_features))
    rows[positive] += centres[rng.choice(3, size=positive.sum(), p=(0.5, 0.3, 0.2))]
    return Points(rows, positive)


def split(points: Points, *key: int) -> tuple[Points, Points]:
    """70% to train on, the rest to test on."""
    order = np.random.default_rng(key).permutation(len(points.positive))
    cut = round(0.7 * len(order))
    return points.take(order[:cut]), points.take(order[cut:])


# ---- experiments


class Run(NamedTuple):
    curve: list[tuple[float, float]]  # (training seconds, prec@kappa on the test points), after each pass or iteration

    @property
    def final(self) -> float:
        return self.curve[-1][1]

    @property
    def settled(self) -> float:
        """Seconds from which on the curve stays within WITHIN of its last value."""
        values = np.array([value for _, value in self.curve])
        away = np.flatnonzero(np.abs(values - self.final) > WITHIN * self.final)
        return self.curve[away[-1] + 1 if len(away) else 0][0]


def train(name: str, settings: dict[str, Any], parts: tuple[Points, Points]) -> Run:
    """Trains on the first part and follows prec@kappa on the second; a method takes of the settings what it has."""
    ranker = METHODS[name].build()
    ranker.set_params(**{key: value for key, value in settings.items() if key in ranker.get_params()})
    learn, test = parts
    # Test rows stay as they are: a shift adds the same to all scores.
    rows = np.asarray(learn.rows - learn.rows.mean(axis=0)) if METHODS[name].centred else learn.rows
    run = Run([])

    def on_step(seconds: float, w: np.ndarray) -> None:
        run.curve.append((seconds, prec_at_kappa(test.rows @ w, test.positive, settings["kappa"])))

    ranker.fit(rows, learn.positive.astype(int), on_step=on_step)
    return run


def tune(name: str, shared: dict[str, Any], parts: tuple[Points, Points]) -> list[tuple[dict[str, Any], float]]:
    """Every cell of the grid with its prec@kappa on the second part, after fewer passes; the best first."""
    grid = METHODS[name].grid
    short = shared | {"passes": min(TUNING_PASSES, shared["passes"])}
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    tried = [(cell, round(train(name, short | cell, parts).final, 5)) for cell in cells]
    return sorted(tried, key=lambda pair: -pair[1])  # stable


def mean_curve(runs: list[Run], n_places: int = 40) -> list[list[float]]:
    """[seconds, mean, std] over the runs, each at its latest value; from when all have one until the last one ends."""
    start, end = max(run.curve[0][0] for run in runs), max(run.curve[-1][0] for run in runs)
    places = np.unique(np.geomspace(start, end, n_places).round(5)) if end > start else np.array([end])
    values = []
    for run in runs:
        seconds, found = np.array(run.curve).T
        values.append(found[np.maximum(np.searchsorted(seconds, places + 1e-5, side="right") - 1, 0)])
    return np.column_stack([places, np.mean(values, axis=0), np.std(values, axis=0)]).round(5).tolist()


def experiment(name: str, points: Points, options: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """All runs of one set, as reproduction.json keeps them."""
    seed, n_given = options["seed"], len(points.positive)
    points = points.draw(options["points"], seed)
    shared = {
        "kappa": KAPPA,
        "batch_points": options["batch"],
        **{key: options[key] for key in ("passes", "seed", "time_limit")},
    }
    splits = [split(points, seed, number) for number in range(options["splits"])]
    inner = split(splits[0][0], seed, 0, 1)
    found: dict[str, Any] = {"methods": {}, "kappa": {}, "batch": {}}
    for method in METHODS:
        tuning = tune(method, shared, inner)
        runs = [train(method, shared | tuning[0][0], parts) for parts in splits]
        found["methods"][method] = {
            "settings": tuning[0][0],
            "tuning": tuning,
            "prec": [round(run.final, 5) for run in runs],
            "seconds": [round(run.curve[-1][0], 4) for run in runs],
            "settled": [round(run.settled, 4) for run in runs],
            "curve": mean_curve(runs),
        }
        tell(f"{name}: {method} {tuning[0]} {mean_std(found['methods'][method]['prec'])}")

    if len(points.positive) > SWEEP_POINTS:
        fewer = points.draw(SWEEP_POINTS, seed)
        splits = [split(fewer, seed, number) for number in range(options["splits"])]
    batches = [batch for batch in BATCHES if batch <= len(splits[0][0].positive)]
    for kept, key, values, methods in (
        ("kappa", "kappa", KAPPAS, METHODS if name in options["kappa_sets"] else ()),
        ("batch", "batch_points", batches, OURS),
    ):
        for method in methods:
            settings = shared | found["methods"][method]["settings"]
            found[kept][method] = {
                str(value): [round(train(method, settings | {key: value}, parts).final, 5) for parts in splits]
                for value in values
            }
            tell(f"{name}: {method}, each {kept}")
    n_points, n_features = points.rows.shape
    about = {
        "n_given": n_given,
        "n_points": n_points,
        "n_features": n_features,
        "positives": round(float(points.positive.mean()), 5),
    }
    return about | found


# ---- the paper's claims


class Verdict(NamedTuple):
    claim: str
    where: str
    verdict: str
    numbers: str


def judge(better: list[float], worse: list[float]) -> str:
    """Is the first better than the second? By the mean of the splits' differences and twice its standard error."""
    difference = np.subtract(better, worse)
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
    if abs(difference.mean()) <= 2 * error:
        return "no clear difference"
    return "holds" if difference.mean() > 0 else "does not hold"


def holds(fact: bool) -> str:
    return "holds" if fact else "does not hold"


def best(found: dict[str, Any], family: str, centred: bool = False) -> str:
    names = [name for name, method in METHODS.items() if (method.family, method.centred) == (family, centred)]
    return max(names, key=lambda name: np.mean(found["methods"][name]["prec"]))


def worst_gaps(sets: dict[str, Any]) -> dict[str, float]:
    """Of each of the paper's methods: the largest distance to the best of them on any set."""
    means = {name: np.array([np.mean(found["methods"][name]["prec"]) for found in sets.values()]) for name in PAPERS}
    ceiling = np.max(list(means.values()), axis=0)
    return {name: float((ceiling - values).max()) for name, values in means.items()}


def mean_stds(sets: dict[str, Any]) -> dict[str, float]:
    """Of each of the paper's methods: the std over splits, mean over sets."""
    return {
        name: float(np.mean([np.std(found["methods"][name]["prec"]) for found in sets.values()])) for name in PAPERS
    }


def variation(by_batch: dict[str, list[float]]) -> float:
    """(largest - least) / largest mean, in the worst tenfold range of batch lengths."""
    means = {int(batch): np.mean(values) for batch, values in by_batch.items()}
    ranges = [[means[b] for b in means if first <= b <= 10 * first] for first in means]
    return max((max(values) - min(values)) / max(values) for values in ranges)


def claims(sets: dict[str, Any]) -> Iterator[Verdict]:
    for what, values in (
        ("smallest worst gap to the best method of a set", worst_gaps(sets)),
        ("smallest std over splits, mean over sets", mean_stds(sets)),
    ):
        order = sorted(values, key=values.__getitem__)
        yield Verdict(
            f"avg-based methods are the most consistent: the {what}",
            "all sets",
            holds({METHODS[name].family for name in order[:2]} == {"avg"}),
            "; ".join(f"{name} {100 * values[name]:.1f}" for name in order),
        )
    for name, found in sets.items():
        methods = found["methods"]
        mean = {method: 100 * np.mean(methods[method]["prec"]) for method in METHODS}
        for kind in ("Perceptron", "SGD"):
            pair = f"{kind}@k-avg", f"{kind}@k-max"
            yield Verdict(
                f"{pair[0]} is better than {pair[1]}",
                name,
                judge(*(methods[method]["prec"] for method in pair)),
                " against ".join(f"{mean[method]:.1f}" for method in pair),
            )
        settled = {method: float(np.mean(methods[method]["settled"])) for method in PAPERS}
        slowest = max((m for m in PAPERS if not m.startswith("Cutting plane")), key=lambda method: settled[method])
        for centred, how in ((False, "features as given"), (True, "centred features")):
            ours, struct = best(found, "avg"), best(found, "struct", centred)
            yield Verdict(
                f"struct-based methods ({how}) end at a worse prec@0.25 than avg-based ones, best against best",
                name,
                judge(methods[ours]["prec"], methods[struct]["prec"]),
                f"{ours} {mean[ours]:.1f}; {struct} {mean[struct]:.1f}",
            )
            plane = "Cutting plane, centred" if centred else "Cutting plane"
            yield Verdict(
                f"the cutting plane ({how}) is the slowest to come within 1% of its last value",
                name,
                holds(settled[plane] > settled[slowest]),
                f"{settled[plane]:.2f} s; the slowest other is {slowest}, {settled[slowest]:.2f} s",
            )
        variations = {method: 100 * variation(found["batch"][method]) for method in OURS}
        yield Verdict(
            "prec@0.25 varies by less than 5% (relative) over a tenfold range of batch length",
            name,
            holds(max(variations.values()) < 5),
            ", ".join(f"{method} {value:.1f}%" for method, value in variations.items()),
        )


# ---- the page and its pictures


def mean_std(values: list[float], scale: float = 100) -> str:
    return f"{scale * np.mean(values):.1f} ± {scale * np.std(values):.1f}"


def at_edge(method: str, settings: dict[str, Any]) -> bool:
    """Does a chosen number lie at an end of its grid? Then a better one may lie beyond."""
    return any(settings[key] in (values[0], values[-1]) for key, values in METHODS[method].grid.items())


def tables(sets: dict[str, Any], about: dict[str, Any], options: dict[str, Any]) -> str:
    """Markdown: the sets, final prec@0.25, seconds, and the paper's claims."""
    lines = ["| set | points | features | positives | what it is |", "|---|---:|---:|---:|---|"]
    for name, found in sets.items():
        size = (
            f"{found['n_points']:,} of {found['n_given']:,} | {found['n_features']} | {100 * found['positives']:.1f}%"
        )
        lines.append(f"| {name} | {size} | {SOURCES[name].note} |")
    head = ["| method | " + " | ".join(sets) + " |", "|---|" + "---:|" * len(sets)]
    lines += [
        "",
        f"prec@{KAPPA} in per cent, mean ± std over {options['splits']} splits; the best mean in bold:",
        "",
        *head,
    ]
    tops = {name: max(np.mean(entry["prec"]) for entry in found["methods"].values()) for name, found in sets.items()}
    for method in METHODS:
        cells = []
        for name, found in sets.items():
            values = found["methods"][method]["prec"]
            cells.append(f"**{mean_std(values)}**" if np.mean(values) == tops[name] else mean_std(values))
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    lines += ["", "Training seconds: until within 1% of the last value / in all (means):", "", *head]
    for method in METHODS:
        entries = [found["methods"][method] for found in sets.values()]
        cells = [f"{np.mean(entry['settled']):.2f} / {np.mean(entry['seconds']):.2f}" for entry in entries]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    lines.append(f"\nOne core of {about['cpu']} ({about['cores']} cores), load {about['load']:.1f} at the start.\n")
    tuned = [
        at_edge(method, found["methods"][method]["settings"])
        for found in sets.values()
        for method in METHODS
        if METHODS[method].grid is not PERCEPTRON
    ]
    lines.append(f"Chosen cells at an edge of their grid: {sum(tuned)} of {len(tuned)}.\n")
    verdicts = list(claims(sets))
    for claim in dict.fromkeys(verdict.claim for verdict in verdicts):
        mine = [verdict for verdict in verdicts if verdict.claim == claim]
        count = sum(verdict.verdict == "holds" for verdict in mine)
        lines += [
            f"**Claim: {claim}.** Holds in {count} of {len(mine)}.",
            "",
            "| where | verdict | numbers |",
            "|---|---|---|",
        ]
        lines += [f"| {verdict.where} | {verdict.verdict} | {verdict.numbers} |" for verdict in mine] + [""]
    return "\n".join(lines)


def panels(
    path: Path, sets: dict[str, Any], names: list[str], paint: Callable[[Any, dict[str, Any]], list[str]]
) -> None:
    """A picture with a panel for each named set and one legend; `paint` draws and says which methods it drew."""
    with style.context(["default", STYLE | {"svg.hashsalt": path.stem}]):
        n_rows = (len(names) + 1) // 2
        figure = Figure(figsize=(7.2, 0.9 + 2.3 * n_rows), layout="constrained")
        grid = figure.subplots(n_rows, 2, squeeze=False).ravel()
        for axes, name in zip(grid, names, strict=False):
            drawn = paint(axes, sets[name])
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, 0), min(high, 100))  # a band may reach beyond what a precision can be
            axes.set_title(name)
        for axes in grid[len(names) :]:
            axes.set_axis_off()
        handles = [Line2D([], [], **look(name)) for name in drawn]
        figure.legend(handles, drawn, loc="outside lower center", ncols=2 if len(drawn) < 5 else 3)
        svg = io.StringIO()
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    with atomic_path(path) as temporary:
        # Two decimals are enough for a place; after ">" stands a text, such as a tick's 0.001.
        short = re.sub(r"(?<![>\d.])\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", svg.getvalue())
        temporary.write_text(short, encoding="utf-8")


def look(name: str) -> dict[str, Any]:
    method = METHODS[name]
    return {"color": method.colour, "marker": method.marker, "linestyle": "--" if method.centred else "-"}


def paint_time(axes: Any, found: dict[str, Any]) -> list[str]:
    for name, method in METHODS.items():
        seconds, mean, std = np.array(found["methods"][name]["curve"]).T
        if len(seconds) == 1:
            axes.errorbar(seconds, 100 * mean, 100 * std, **look(name))
        else:
            axes.plot(seconds, 100 * mean, markevery=8, **look(name))
            axes.fill_between(
                seconds, 100 * (mean - std), 100 * (mean + std), color=method.colour, alpha=0.15, linewidth=0
            )
    axes.set(xscale="log", xlabel="training seconds", ylabel=f"prec@{KAPPA} (%)")
    drawing.log_axis(axes.xaxis, np.array(axes.get_xlim()))
    return list(METHODS)


def paint_varied(axes: Any, varied: dict[str, dict[str, list[float]]], **labels: str) -> list[str]:
    """prec@kappa against kappa or batch length: what `varied` has for each method."""
    for name, by_value in varied.items():
        values = 100 * np.array(list(by_value.values()))
        axes.errorbar([float(value) for value in by_value], values.mean(axis=1), values.std(axis=1), **look(name))
    axes.set(**labels)
    if axes.get_xscale() == "log":
        drawing.log_axis(axes.xaxis, np.array(axes.get_xlim()))
    return list(varied)


def publish(results: dict[str, Any], out: Path) -> None:
    """Pictures and tables from the JSON's content."""
    sets = results["sets"]
    panels(out / "reproduction-time.svg", sets, list(sets), paint_time)
    by_kappa = partial(paint_varied, xlabel="kappa", ylabel="prec@kappa (%)")
    by_batch = partial(paint_varied, xscale="log", xlabel="points in a batch", ylabel=f"prec@{KAPPA} (%)")
    with_kappa = [name for name, found in sets.items() if found["kappa"]]
    if with_kappa:
        panels(out / "reproduction-kappa.svg", sets, with_kappa, lambda axes, found: by_kappa(axes, found["kappa"]))
    panels(out / "reproduction-batch.svg", sets, list(sets), lambda axes, found: by_batch(axes, found["batch"]))
    page = out / "reproduction.md"
    if not page.exists():
        page.write_text(f"{BEGIN}{END}\n", encoding="utf-8")
    replace_block(page, BEGIN, END, tables(sets, results["machine"], results["options"]))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of gzipped LIBSVM files")
    parser.add_argument("--sets", nargs="+", default=list(SOURCES), choices=list(SOURCES))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--passes", type=int, default=25)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--points", type=int, default=150_000, help="take so many points of a larger set, at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=30, help="training seconds of one fit")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument(
        "--resume", action="store_true", help="keep the sets that the JSON has, made with the same options"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    options = {name: getattr(args, name) for name in ("splits", "passes", "batch", "points", "seed", "time_limit")}
    options["kappa_sets"] = list(KAPPA_SETS)
    record, started = args.out / "reproduction.json", time.perf_counter()
    results: dict[str, Any] = {"machine": machine(), "options": options, "sets": {}}
    if args.resume and record.exists():
        results["sets"] = json.loads(record.read_text())["sets"]
        if json.loads(record.read_text())["options"] != options:
            sys.exit(f"{record}: made with other options: run without --resume, or give the same ones")

    def tell(line: str) -> None:
        print(f"{time.perf_counter() - started:6.0f} s  {line}", file=sys.stderr, flush=True)

    for name in SOURCES:  # in the order of size
        if name in args.sets and name not in results["sets"]:
            try:
                points = load(name, args.data)
            except InputError as error:
                sys.exit(str(error))
            results["sets"][name] = experiment(name, points, options, tell)
            with atomic_path(record) as temporary:
                temporary.write_text(json.dumps(results) + "\n")
    publish(results, args.out)


if __name__ == "__main__":
    main()
