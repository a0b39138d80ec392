"""Probabilities: they recover what was simulated, rise with the score, survive the disk, and refuse what is broken."""

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from xmlpreck.config import InputError
from xmlpreck.data.formats import TopK
from xmlpreck.metrics import hits
from xmlpreck.model.calibration import DTYPES, LEAST, Calibration, _shifts, reliability, uncalibrated

N_LABELS = 40


def simulate(rng, n_rows, chance, width=5):
    """Random scores, best first, and labels that are right with the probability chance(scores, labels)."""
    labels = np.argsort(rng.random((n_rows, N_LABELS)), axis=1)[:, :width].astype(np.int32)
    scores = -np.sort(-rng.normal(0, 2, (n_rows, width)).astype(np.float32), axis=1)
    right = rng.random(labels.shape) < chance(scores, labels)
    truth = np.zeros((n_rows, N_LABELS), np.float32)
    np.put_along_axis(truth, labels, right.astype(np.float32), axis=1)
    return TopK(labels, scores), csr_array(truth)


def steep(scores, labels):
    return 0.05 + 0.9 / (1 + np.exp(-3 * scores + 1))


@pytest.fixture(scope="module")
def calibration():
    """Of scores that mean the same for every label, but labels 0 to 4 are right far less often."""

    def chance(scores, labels):
        return np.where(labels < 5, 0.3, 1) * steep(scores, labels)

    return Calibration.fit([simulate(np.random.default_rng(1), 10_000, chance)], N_LABELS)


def test_recovers_a_known_curve():
    rng = np.random.default_rng(0)
    found = Calibration.fit([simulate(rng, 40_000, steep)], N_LABELS)
    assert abs(found.slope) < 0.1  # the best score of a row says nothing here
    assert np.abs(found.shifts).max() < 0.1  # nor does the label
    top, labels = simulate(rng, 4000, steep)
    # 200,000 places in 128 cells: a cell's share of hits has a standard deviation of 0.013 at most.
    assert np.abs(found.probabilities(top).scores - steep(*top[::-1])).max() < 0.05
    assert reliability(found.probabilities(top).scores.ravel(), hits(top, labels).ravel()).ece < 0.01
    assert reliability(uncalibrated(top).scores.ravel(), hits(top, labels).ravel()).ece > 0.05


def test_finds_that_only_the_gap_to_the_best_score_counts():
    def gap(scores, labels):
        return 1 / (1 + np.exp(scores[:, :1] - scores - 1))

    rng = np.random.default_rng(0)
    found = Calibration.fit([simulate(rng, 20_000, gap)], N_LABELS)
    assert found.slope < -0.9
    top, _ = simulate(rng, 4000, gap)
    assert np.abs(found.probabilities(top).scores - gap(*top[::-1])).mean() < 0.02


def test_rises_with_the_score_within_a_label(calibration):
    scores = np.linspace(-20, 20, 5001, dtype=np.float32)[:, None]
    for label in (0, 7):
        row = TopK(np.full(scores.shape, label, np.int32), scores)
        found = calibration.probabilities(row).scores
        assert (np.diff(found[:, 0]) >= 0).all()
        assert 0 < found.min() < 0.2 < found.max() < 1
        assert found[0] == found[1]  # constant beyond the knots
        assert found[-1] == found[-2]


def test_labels_differ_where_held_out_rows_say_so(calibration):
    assert calibration.shifts[:5].max() < -1
    assert np.abs(calibration.shifts[5:]).max() < 0.6
    top = TopK(np.array([[0, 7]], np.int32), np.array([[1.5, 1.0]], np.float32))
    found = calibration.probabilities(top)
    assert found.labels.tolist() == [[0, 7]]
    # Alone, or before the other, label 7 is likely; behind a label that is not, it may not seem more so than that one.
    alone = calibration.probabilities(TopK(top.labels[:, 1:], top.scores[:, 1:]))
    assert found.scores[0, 0] < 0.5 < alone.scores[0, 0]
    assert found.scores[0, 1] == np.nextafter(found.scores[0, 0], np.float32(0))


def test_probabilities_keep_the_order_of_the_scores(calibration):
    """Sorted by probability every row has its labels in the places that their scores give them, ties included."""
    rng = np.random.default_rng(12)
    top, _ = simulate(rng, 3000, steep, width=20)
    top.scores[::3] = np.round(top.scores[::3])  # equal scores, which stay in the order of their labels
    order = np.lexsort((top.labels, -top.scores))
    top = TopK(*(np.take_along_axis(part, order, axis=1) for part in top))
    strong = replace(calibration, shifts=rng.normal(0, 3, N_LABELS).astype(np.float32))
    far = TopK(top.labels, 100 * top.scores)  # beyond the knots the curve is flat, and probabilities all but 0 or 1
    for model, rows in ((calibration, top), (strong, top), (strong, far)):
        found = model.probabilities(rows)
        assert (found.labels == rows.labels).all()
        assert (found.scores > 0).all()
        assert (found.scores < 1).all()
        again = np.lexsort((found.labels, -found.scores))
        assert (again == np.arange(20)).all()
        falls = np.diff(rows.scores, axis=1) < 0
        assert (np.diff(found.scores, axis=1)[falls] < 0).all()


def test_fewer_labels_have_the_same_probabilities(calibration):
    top, _ = simulate(np.random.default_rng(13), 200, steep)
    whole = calibration.probabilities(top).scores
    for k in range(1, 5):
        fewer = TopK(top.labels[:, :k], top.scores[:, :k])
        assert calibration.probabilities(fewer).scores.tobytes() == np.ascontiguousarray(whole[:, :k]).tobytes()


def test_few_places_do_not_shift_a_label():
    """What one place says of a label is chance, what 600 say is not."""
    rng = np.random.default_rng(2)
    top, labels = simulate(rng, 5000, lambda scores, labels: np.where(labels == 3, 0.02, 0.8))
    rows, places = np.nonzero(top.labels == 4)
    top.labels[rows[1:], places[1:]] = -1
    found = Calibration.fit([(top, labels)], N_LABELS)
    assert found.shifts[3] < -3
    assert abs(found.shifts[4]) < 1


def test_shifts_converge_from_afar():
    """2,000 misses of a label that the curve is sure of: the shift takes all of that back, and leaves the others be."""
    logits, labels = np.repeat([14.0, 0.0], 2000), np.repeat([0, 1], 2000)
    hit = (labels == 1) & (np.arange(4000) % 2 == 0)
    found = _shifts(logits, labels, hit, n_labels=3)
    assert found[0] < -14 - np.log(100)
    assert found[1:].tolist() == [0, 0]


def test_smoothing_does_not_make_the_curve_fall():
    """18 hits and a miss are worth 18.5 / 20, which the 1.5 / 2 of a single hit above them must not fall below."""
    top = TopK(np.zeros((20, 1), np.int32), np.arange(20, dtype=np.float32)[:, None])
    right = np.ones((20, 1), np.float32)
    right[18] = 0
    assert Calibration.fit([(top, csr_array(right))], 1).knots[1].tolist() == [18.5 / 20] * 2


def test_permuted_labels_permute_the_shifts(calibration):
    top, labels = simulate(np.random.default_rng(3), 3000, steep)
    new_id = np.random.default_rng(4).permutation(N_LABELS).astype(np.int32)
    renamed = np.zeros(labels.shape, np.float32)
    renamed[:, new_id] = labels.toarray()
    first = Calibration.fit([(top, labels)], N_LABELS)
    second = Calibration.fit([(TopK(new_id[top.labels], top.scores), csr_array(renamed))], N_LABELS)
    assert second.shifts[new_id].tobytes() == first.shifts.tobytes()
    assert second.knots.tobytes() == first.knots.tobytes()


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 300), max_size=4), seed=st.integers(0, 5))
def test_blocks_do_not_matter(cuts, seed):
    top, labels = simulate(np.random.default_rng(seed), 300, steep)
    edges = [0, *sorted(cuts), 300]
    blocks = [(TopK(top.labels[a:b], top.scores[a:b]), labels[a:b]) for a, b in pairwise(edges)]
    whole, cut = (Calibration.fit(given, N_LABELS) for given in ([(top, labels)], blocks))
    assert all(getattr(whole, name).tobytes() == getattr(cut, name).tobytes() for name in DTYPES)


def test_places_without_labels(calibration):
    """They teach nothing, and have no probability."""
    top, labels = simulate(np.random.default_rng(5), 500, steep)
    around = ((2, 0), (0, 3))  # two empty rows above, three empty places behind
    wider = TopK(*(np.pad(part, around, constant_values=none) for part, none in zip(top, (-1, -np.inf), strict=True)))
    more = csr_array(np.vstack([np.zeros((2, N_LABELS), np.float32), labels.toarray()]))
    first, second = (Calibration.fit([given], N_LABELS) for given in ((top, labels), (wider, more)))
    assert all(getattr(first, name).tobytes() == getattr(second, name).tobytes() for name in DTYPES)
    for found in (calibration.probabilities(wider), uncalibrated(wider)):
        assert np.array_equal(found.labels < 0, wider.labels < 0)
        assert np.array_equal(found.scores == -np.inf, wider.labels < 0)
        assert not np.isnan(found.scores).any()
    assert calibration.probabilities(TopK(wider.labels[:0], wider.scores[:0])).scores.shape == (0, 8)


def test_depth_is_how_many_places_teach():
    top, labels = simulate(np.random.default_rng(6), 500, steep)
    first = Calibration.fit([(top, labels)], N_LABELS, depth=2)
    second = Calibration.fit([(TopK(top.labels[:, :2], top.scores[:, :2]), labels)], N_LABELS)
    assert first.knots.tobytes() == second.knots.tobytes()
    with pytest.raises(InputError, match="depth must be 1 or more, but is 0"):
        Calibration.fit([(top, labels)], N_LABELS, depth=0)


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_never_quite_sure(right):
    """Rows that are all wrong, or all right, do not make a probability 0 or 1, even in float32 and far out."""
    top, labels = simulate(np.random.default_rng(7), 50, lambda scores, labels: right)
    truth = labels.toarray()
    truth[0, np.setdiff1d(np.arange(N_LABELS), top.labels[0])[0]] = 1  # a row has a label, if only one
    labels = csr_array(truth)
    found = Calibration.fit([(top, labels)], N_LABELS)
    assert 0 < found.probabilities(top).scores.min() <= found.probabilities(top).scores.max() < 1
    assert abs(found.probabilities(top).scores - right).max() < 0.05
    far = Calibration(found.slope, found.knots, np.full(N_LABELS, 1000 * (2 * right - 1), np.float32))
    found = far.probabilities(top).scores
    assert set(found[:, 0].tolist()) == {abs(right - LEAST)}
    assert (np.diff(found, axis=1) < 0).all()
    assert abs(found - abs(right - LEAST)).max() < 5 * LEAST


def test_equal_scores_are_one_knot():
    top, labels = simulate(np.random.default_rng(8), 200, steep)
    found = Calibration.fit([(TopK(top.labels, np.full_like(top.scores, 0.5)), labels)], N_LABELS)
    assert found.knots.shape == (2, 1)
    assert found.knots[1, 0] == (labels.nnz + 0.5) / (1000 + 1)


def test_nothing_to_learn_from_is_refused():
    none = TopK(np.full((3, 2), -1, np.int32), np.full((3, 2), -np.inf, np.float32))
    for blocks in ([], [(none, csr_array((3, N_LABELS), dtype=np.float32))]):
        with pytest.raises(InputError, match="hold out more rows"):
            Calibration.fit(blocks, N_LABELS)
    top, labels = simulate(np.random.default_rng(14), 10, steep)
    with pytest.raises(InputError, match="no row has a label to learn probabilities from"):
        Calibration.fit([(top, csr_array(labels.shape, dtype=np.float32))], N_LABELS)


def test_what_does_not_fit_is_refused(calibration):
    top, labels = simulate(np.random.default_rng(9), 10, steep)
    with pytest.raises(InputError, match="predicted label 40 is out of range: the calibration has 40 labels"):
        calibration.probabilities(TopK(np.full((1, 1), 40, np.int32), np.ones((1, 1), np.float32)))
    with pytest.raises(InputError, match=r"predicted label 3\d is out of range: the calibration has 30"):
        Calibration.fit([(top, labels)], 30)
    top.scores[4, 0] = np.inf
    with pytest.raises(InputError, match=f"label {top.labels[4, 0]} has a score that is not a finite number"):
        Calibration.fit([(top, labels)], N_LABELS)


def test_save_and_load_give_the_same_bits(calibration, tmp_path):
    calibration.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"calibration_{name}.npy" for name in DTYPES)
    again = Calibration.load(tmp_path, N_LABELS)
    top, _ = simulate(np.random.default_rng(10), 100, steep)
    assert again.probabilities(top).scores.tobytes() == calibration.probabilities(top).scores.tobytes()
    for name, dtype in DTYPES.items():
        assert getattr(again, name).dtype == dtype
        assert getattr(again, name).tobytes() == getattr(calibration, name).tobytes()


F32, F64 = np.float32, np.float64


@pytest.mark.parametrize(
    ("name", "array", "what"),
    [
        ("slope", F32([0.5]), "not one number"),
        ("slope", F32(1.5), "from -1 to 1"),
        ("slope", F32(np.nan), "from -1 to 1"),
        ("slope", F64(0.5), "holds float64, not float32"),
        ("knots", F64([0, 1]), "two rows of finite numbers"),
        ("knots", np.zeros((2, 0)), "two rows of finite numbers"),
        ("knots", F64([[0, np.inf], [0.1, 0.2]]), "two rows of finite numbers"),
        ("knots", F64([[1, 1], [0.1, 0.2]]), "indices do not rise"),
        ("knots", F64([[0, 1], [0.2, 0.1]]), "probabilities fall"),
        ("knots", F64([[0, 1], [0.0, 0.1]]), "between 0 and 1"),
        ("knots", F64([[0, 1], [0.5, 1.0]]), "between 0 and 1"),
        ("shifts", np.zeros(N_LABELS + 1, F32), "model has 40 labels"),
        ("shifts", np.full(N_LABELS, np.nan, F32), "not a finite number"),
        ("shifts", np.zeros(N_LABELS, np.int32), "holds int32"),
        ("shifts", np.array([None] * N_LABELS), "cannot be read"),
        ("knots", None, "cannot be read"),
    ],
)
def test_broken_files_are_refused_by_name(calibration, tmp_path, name, array, what):
    calibration.save(tmp_path)
    path = tmp_path / f"calibration_{name}.npy"
    if array is None:
        path.unlink()
    else:
        np.save(path, array, allow_pickle=True)
    with pytest.raises(InputError, match=what) as raised:
        Calibration.load(tmp_path, N_LABELS)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(DTYPES)), place=st.integers(0, 400), junk=st.binary(min_size=1, max_size=20))
def test_damaged_files_are_refused_or_harmless(calibration, tmp_path_factory, name, place, junk):
    folder = tmp_path_factory.mktemp("damaged")
    calibration.save(folder)
    path = folder / f"calibration_{name}.npy"
    whole = path.read_bytes()
    cut = place % len(whole)
    path.write_bytes(whole[:cut] + junk + whole[cut + len(junk) :])
    with suppress(InputError):
        found = Calibration.load(folder, N_LABELS).probabilities(simulate(np.random.default_rng(0), 10, steep)[0])
        assert 0 < found.scores.min() <= found.scores.max() < 1
    path.write_bytes(whole[:cut])
    with pytest.raises(InputError, match=path.name):
        Calibration.load(folder, N_LABELS)


def test_a_pipe_does_not_make_the_reader_wait(calibration, tmp_path):
    calibration.save(tmp_path)
    path = tmp_path / "calibration_slope.npy"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="not a file"):
        Calibration.load(tmp_path, N_LABELS)


def test_reliability_by_hand():
    found = reliability(np.array([0.92, 0.12, 0.72, 0.32]), np.array([True, False, False, True]), n_bins=2)
    assert found.predicted.tolist() == pytest.approx([0.22, 0.82])
    assert found.observed.tolist() == [0.5, 0.5]
    assert found.counts.tolist() == [2, 2]
    assert found.ece == pytest.approx((0.28 + 0.32) / 2)
    assert found.brier == pytest.approx((0.08**2 + 0.12**2 + 0.72**2 + 0.68**2) / 4)
    assert found.log_loss == pytest.approx(-np.log([0.92, 0.88, 0.28, 0.32]).mean())
    assert np.flatnonzero(found.spread).tolist() == [2, 6, 14, 18]
    with pytest.raises(InputError, match="no predicted labels"):
        reliability(np.zeros(0), np.zeros(0, bool))


def test_report_section(calibration):
    page = pytest.importorskip("xmlpreck.evaluation.report.sections")
    top, labels = simulate(np.random.default_rng(11), 2000, steep)
    measured = [
        reliability(given.scores.ravel(), hits(top, labels).ravel())
        for given in (calibration.probabilities(top), uncalibrated(top))
    ]
    runs = [
        SimpleNamespace(name=name, scores=SimpleNamespace(ks=(1, 5)), reliability=found)
        for name, found in zip(("<a>", "b", "bare"), [*measured, None], strict=True)
    ]
    words, body = page.probabilities(SimpleNamespace(runs=runs))
    assert f"expected calibration error {100 * measured[0].ece:.1f}%, Brier score {measured[0].brier:.3f}" in words
    assert "Without probabilities: <bdi>bare</bdi>." in words
    assert page.probabilities(SimpleNamespace(runs=runs[2:])) is None
    assert "<a>" not in words + body
    assert (body.count("<svg viewBox"), body.count("<tr>")) == (2, 1 + 2 * 15)
    assert "10,000 predicted labels" in body
    words, _ = page.probabilities(SimpleNamespace(runs=runs[:1]))
    assert "Not calibrated" not in words


def test_the_benchmark_runs(tmp_path):
    """On the made-up data ours is better than the sigmoid, and the table goes where it is told to."""
    table = tmp_path / "table.md"
    table.write_text(
        "a\n<!-- calibration: made by tools/bench_calibration.py -->\nold\n<!-- end of calibration -->\nb\n"
    )
    command = [sys.executable, str(ROOT / "tools" / "bench_calibration.py"), "demo", "--update", str(table)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    lines = table.read_text().splitlines()
    assert (lines[0], lines[-1], "old" in lines) == ("a", "b", False)
    brier = {cells[2].strip(): float(cells[3]) for cells in (line.split("|") for line in lines if "| demo" in line)}
    assert brier["ours"] < brier["sigmoid of the score"]
