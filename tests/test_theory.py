"""tools/make_theory.py: what docs/theory.md shows is so in its numbers, and the page is what the tool makes."""

import re
import shutil
import sys

import numpy as np
import pytest
from helpers import ROOT

pytest.importorskip("matplotlib")
sys.path.insert(0, str(ROOT / "tools"))

import make_theory

from xmlpreck.bipartite import surrogates

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
    assert made.count("\n|---|") == 4
    for name in ("hierarchy", "six-points", "mistakes", "convergence"):
        svg = (tmp_path / f"theory-{name}.svg").read_text(encoding="utf-8")
        used = set(re.findall(r"#[0-9a-f]{6}\b", svg))
        assert used <= set(make_theory.COLOURS.values()), f"theory-{name}.svg: a colour for one background only"
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shutil.copy(ROOT / "docs" / "theory.md", tmp_path)
    make_theory.main()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first  # old numbers leave no trace


def test_the_page_is_up_to_date():
    """The two tables without draws: they take no time to make."""
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    assert make_theory.hierarchy_table() in page
    assert make_theory.six_points_table() in page
