"""tools/make_theory.py: what docs/theory.md shows is so in its numbers, and the page is what the tool makes."""

import re
import shutil
import sys
from functools import partial

import numpy as np
import pytest
from helpers import ROOT
from scipy.sparse import csr_array

pytest.importorskip("matplotlib")
sys.path.insert(0, str(ROOT / "tools"))

import make_theory

from xmlpreck import train
from xmlpreck.bipartite import surrogates
from xmlpreck.config import RowsConfig, RunConfig, TrainConfig
from xmlpreck.data.formats import Dataset

EXACT = 1e-12  # float64 rounding of sums of at most a dozen scores below 10
DRAWS = 10


@pytest.fixture(scope="module")
def mistakes():
    return make_theory.count_mistakes(DRAWS)


@pytest.fixture(scope="module")
def deviations():
    return make_theory.deviations(DRAWS)


@pytest.mark.parametrize("ranking", [make_theory.TWELVE, make_theory.SIX], ids=["twelve", "six"])
def test_order_along_the_line(ranking):
    curves = make_theory.along(ranking, np.linspace(-3, 3, 241))
    chain = np.array([curves[name] for name in ("prec@k", "ramp", "avg", "max")])
    assert (np.diff(chain, axis=0) >= -EXACT).all()
    assert (np.diff(chain, axis=0) > 0.1).any(axis=1).all()  # each step of the order can be seen


def test_struct_is_on_both_sides_of_the_order():
    places = np.linspace(-3, 3, 240)  # 0, where all meet, is not among them
    curves, left = make_theory.along(make_theory.TWELVE, places), places < 0
    assert (curves["struct"][left] > curves["max"][left]).all()
    assert (curves["struct"][~left] < curves["ramp"][~left]).all()
    below = curves["struct"] < curves["prec@k"]
    np.testing.assert_array_equal(below, places > 1 / 2.7)  # 1 + 0.3t - 3t: k' = 2 keeps the two best


@pytest.mark.parametrize("name", ["ramp", "avg"])
def test_a_surrogate_is_zero_from_its_margin_on(name):
    margin = make_theory.MARGINS[name](*make_theory.TWELVE)
    before, at, after = make_theory.along(make_theory.TWELVE, np.array([0.999, 1, 1.5]) / margin)[name]
    assert before > 1e-4
    assert [at, after] == pytest.approx([0, 0], abs=EXACT)


def test_six_points():
    places = np.linspace(-2, 2, 801)
    curves = make_theory.along(make_theory.SIX, places)
    wrong = places < 0
    assert places[np.argmin(curves["struct"])] == -2
    assert (curves["struct"][wrong] < curves["prec@k"][wrong]).all()
    for name in ("ramp", "avg", "max"):
        best = curves[name] == curves[name].min()
        assert (curves["prec@k"][best] == 0).all()


@pytest.mark.parametrize(("kind", "strong"), [("k", -1), ("strong", 1)])
@pytest.mark.parametrize("gamma", make_theory.MARGIN_SIZES)
def test_streams_have_the_margin_that_their_bound_asks_for(kind, strong, gamma):
    batches, relevance = make_theory.separable_batches(kind, gamma, seed=3)
    assert np.linalg.norm(batches, axis=2).max() == pytest.approx(1, abs=EXACT)
    for points in batches:
        scores = points[:, 0]  # w* = e_1
        assert surrogates.k_margin(scores, relevance, make_theory.STREAM_K) == pytest.approx(gamma, abs=EXACT)
        found = surrogates.strong_margin(scores, relevance, make_theory.STREAM_K)
        assert found == pytest.approx(strong * gamma, abs=EXACT)


def test_mistakes_are_under_the_bound_and_follow_its_power(mistakes):
    for name, counts in mistakes.items():
        assert (counts >= make_theory.STREAM_K).all(), name  # all scores are equal at first: k mistakes
        assert (counts <= make_theory.BOUNDS[:, np.newaxis]).all(), name
        # Flatter than the bound's -2, for the first k mistakes do not depend on the margin.
        assert -2 < make_theory.slope(make_theory.MARGIN_SIZES, np.median(counts, axis=1)) < -1.5, name


def test_deviations_fall_like_one_over_root_b(deviations):
    assert set(deviations) == set(make_theory.LOSSES)
    for name, values in deviations.items():
        assert make_theory.slope(make_theory.BATCH_LENGTHS, values.mean(axis=1)) == pytest.approx(-0.5, abs=0.15), name


def test_slope_is_the_exponent():
    x = np.array([1.0, 2.0, 8.0])
    assert make_theory.slope(x, 7 * x**-0.5) == pytest.approx(-0.5)


def luminance(colour):
    """WCAG 2: relative luminance of #rrggbb."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def expected(loss, scores):
    """The mean of a loss over the labels that rows draw."""
    relevances = ([label in outcome for label in make_theory.LABELS] for outcome in make_theory.OUTCOMES)
    return sum(
        p * loss(scores, np.array(y, dtype=int)) for y, p in zip(relevances, make_theory.OUTCOMES.values(), strict=True)
    )


def test_labels_by_chance():
    """The scores of the picture have the lowest expected losses; avg puts C first, and the hinge A."""
    wrong, value = make_theory.least_avg()
    avg = partial(expected, lambda s, y: surrogates.avg_surrogate(s, y, 1))
    hinge = partial(expected, lambda s, y: (y * np.maximum(0, 1 - s) ** 2 + (1 - y) * np.maximum(0, s) ** 2).sum())
    assert avg(wrong) == pytest.approx(value)
    near = np.random.default_rng(0).normal(size=(500, 3)) * np.geomspace(0.01, 3, 500)[:, np.newaxis]
    assert min(avg(wrong + step) for step in near) >= value - EXACT
    assert min(hinge(make_theory.marginals() + step) for step in near) > hinge(make_theory.marginals())
    assert (wrong.argmax(), make_theory.marginals().argmax()) == (2, 0)
    grid = (np.array([0, b, c]) for b in np.linspace(-3, 0, 61) for c in np.linspace(-3, 0, 61))
    assert min(map(avg, grid)) > value + 0.04  # with A first


@pytest.mark.parametrize(("algo", "best"), [("hinge", "A"), ("sgd-avg", "C")])
def test_labels_by_chance_are_learned_so(algo, best):
    outcomes = np.random.default_rng(1).choice([*make_theory.OUTCOMES], 4000, p=[*make_theory.OUTCOMES.values()])
    labels = np.array([[label in outcome for label in make_theory.LABELS] for outcome in outcomes], dtype=np.float32)
    rows = Dataset(csr_array(np.ones((len(labels), 1), np.float32)), csr_array(labels))
    config = TrainConfig(algo=algo, k=1, eta=0.005, epochs=8, centroid=0.0, batch_rows=1)
    model = train.fit(rows, RunConfig(rows=RowsConfig(bias=0), train=config))
    assert make_theory.LABELS[model.predict_topk(rows.rows[:1], 1).labels[0, 0]] == best


@pytest.mark.parametrize("paper", ["#ffffff", "#0d1117"])
def test_colours_stand_out_by_day_and_by_night(paper):
    for colour in make_theory.COLOURS.values():
        lighter, darker = sorted([luminance(colour), luminance(paper)], reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 3, colour


def test_the_tool_fills_the_page(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    emptied = re.sub(r"(made by tools/make_theory.py -->\n).*?(?=<!-- end of)", r"\1", page, flags=re.DOTALL)
    (tmp_path / "theory.md").write_text(emptied, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["make_theory.py", "--out", str(tmp_path), "--draws", "2"])
    make_theory.main()
    made = (tmp_path / "theory.md").read_text(encoding="utf-8")
    assert made.count("\n|---|") == 5
    for name in ("hierarchy", "six-points", "mistakes", "convergence", "noise"):
        svg = (tmp_path / f"theory-{name}.svg").read_text(encoding="utf-8")
        used = set(re.findall(r"#[0-9a-f]{6}\b", svg))
        assert used <= set(make_theory.COLOURS.values()), f"theory-{name}.svg: a colour for one background only"
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shutil.copy(ROOT / "docs" / "theory.md", tmp_path)
    make_theory.main()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first  # old numbers leave no trace


def test_the_page_is_up_to_date():
    """The tables without draws: they take no time to make."""
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    assert make_theory.hierarchy_table() in page
    assert make_theory.six_points_table() in page
    assert make_theory.noise_table() in page
