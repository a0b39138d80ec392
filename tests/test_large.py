"""Large label spaces: prediction by bounds against all scores, and the generated set with Amazon-670K's laws."""

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import reference
from helpers import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from xmlpreck.cli import main
from xmlpreck.config import RowsConfig
from xmlpreck.data.formats import build_csr
from xmlpreck.data.shards import ShardSet
from xmlpreck.kernels.arrays import sparse_weights
from xmlpreck.kernels.bfloat import widen
from xmlpreck.kernels.bounds import find_bounds, new_trial, predict_bounded
from xmlpreck.model import Model, lay_out

N_FEATURES, N_LABELS = 60, 2500


def draw_scorer(rng, n_features=N_FEATURES, n_labels=N_LABELS, bias=0.0, tied=False, common_size=1.0):
    """Every tenth feature knows most labels (a dense row), the others a few; weights of one size, if tied."""
    n_columns = n_features + (bias > 0)
    shares = np.where(np.arange(n_columns) % 10 == 0, 0.5, 0.02)
    pattern = csr_array(rng.random((n_columns, n_labels)) < shares[:, None])
    values = rng.integers(-2, 3, pattern.nnz) if tied else rng.standard_normal(pattern.nnz)
    values = values * np.repeat(np.where(shares == 0.5, common_size, 1), np.diff(pattern.indptr))
    sparse = sparse_weights(
        pattern.indptr.astype(np.int64), pattern.indices.astype(np.int32), values.astype(np.float32), n_labels
    )
    return Model(lay_out(sparse), RowsConfig(bias=bias))


def draw_rows(rng, n_rows, n_features=N_FEATURES, density=0.15):
    rows = csr_array(random_array((n_rows, n_features), density=density, rng=rng, dtype=np.float32))
    rows.sort_indices()
    return build_csr(rows.data, rows.indices, rows.indptr, rows.shape)


def same_bits(a, b):
    return np.array_equal(a.labels, b.labels) and np.array_equal(a.scores.view(np.int32), b.scores.view(np.int32))


def with_bounds(scorer):
    """Return a copy that predicts by bounds, whatever its size."""
    copy = scorer.fresh()
    copy.__dict__["_bounds"] = find_bounds(scorer.weights)
    return copy


def count_told(scorer, rows, k):
    """Count the rows whose best labels the bounds tell."""
    prepared, bounds, no_bonus = scorer._prepare(rows), find_bounds(scorer.weights), np.zeros(0, np.float32)
    trial = new_trial(bounds, no_bonus, np.float32)
    labels, scores = np.zeros(k, np.int32), np.zeros(k, np.float32)
    spans = [slice(*span) for span in pairwise(prepared.offsets)]
    found = [(prepared.features[span], prepared.values[span]) for span in spans]
    return sum(predict_bounded(*row, scorer.weights, bounds, no_bonus, trial, labels, scores) for row in found)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 12),
    bias=st.sampled_from([0.0, 1.0]),
    tied=st.booleans(),
    density=st.sampled_from([0.01, 0.1, 0.5]),
    bonus=st.sampled_from([None, "numbers", "few labels"]),
    signs=st.booleans(),
)
def test_bounds_change_no_bit(seed, k, bias, tied, density, bonus, signs):
    """Empty rows, equal scores, negative values, and lists of fewer labels than k are among these."""
    rng = np.random.default_rng(seed)
    scorer, rows = draw_scorer(rng, bias=bias, tied=tied), draw_rows(rng, 20, density=density)
    if signs:
        rows.data *= rng.choice([-1, 1], rows.nnz)
    extra = None if bonus is None else rng.standard_normal(N_LABELS).astype(np.float32)
    if bonus == "few labels":
        extra[rng.random(N_LABELS) < 0.99] = -np.inf
    for empty in (False, True):
        exact = scorer.predict_topk(rows, k, bonus=extra, guess_empty=empty)
        assert same_bits(with_bounds(scorer).predict_topk(rows, k, bonus=extra, guess_empty=empty), exact)
    one = with_bounds(scorer).predict_one(rows[3:4], k, extra, guess_empty=True)
    assert np.array_equal(one.labels, exact.labels[3])
    assert np.array_equal(one.scores, exact.scores[3])


@pytest.mark.parametrize(("common_size", "n_told"), [(0.01, 190), (30.0, 0)])
def test_bounds_tell_the_best_labels_where_rare_features_decide(common_size, n_told):
    """Else all labels are scored. A call soon gives up bounds that tell little, and its bits are the same."""
    rng = np.random.default_rng(3)
    scorer = draw_scorer(rng, n_features=400, n_labels=4000, common_size=common_size)
    rows = draw_rows(rng, 200, 400, density=0.1)
    told = count_told(scorer, rows, 5)
    assert told >= n_told if n_told else told < 20
    assert same_bits(with_bounds(scorer).predict_topk(rows, 5), scorer.predict_topk(rows, 5))


def test_bounds_against_the_reference():
    rng = np.random.default_rng(2)
    scorer, rows = draw_scorer(rng, tied=True), draw_rows(rng, 30)
    weights = scorer.weights
    dense = np.zeros((N_FEATURES, N_LABELS))
    for f in range(N_FEATURES):
        d, span = weights.dense_of[f], slice(weights.offsets[f], weights.offsets[f + 1])
        dense[f, weights.labels[span]] = weights.values[span]
        if d >= 0:
            dense[f] = widen(weights.dense_rows[d])
    bounds = find_bounds(weights)
    is_common = bounds.row_of >= 0
    assert is_common.tolist() == [f % 10 == 0 for f in range(N_FEATURES)]
    assert bounds.sizes.tolist() == np.abs(dense).max(axis=1).tolist()
    trial = new_trial(bounds, np.zeros(0, np.float32), np.float32)
    prepared, n_groups = scorer._prepare(rows), bounds.highest.shape[1]
    n_compared = 0
    for first, last in pairwise(prepared.offsets):
        features, values = prepared.features[first:last], prepared.values[first:last]
        no_bonus, top = np.zeros(0, np.float32), (np.zeros(3, np.int32), np.zeros(3, np.float32))
        if is_common[features].any():
            predict_bounded(features, values, weights, bounds, no_bonus, trial, *top)
            x = np.zeros(N_FEATURES)
            x[features] = values
            expected = reference.group_bounds(dense, x, is_common, n_groups)
            np.testing.assert_allclose(trial.bounds, expected, atol=1e-5)
            n_compared += 1
    assert n_compared > 10


@pytest.mark.parametrize("n_threads", [2, 7])
def test_threads_change_no_bit(n_threads):
    rng = np.random.default_rng(3)
    scorer, rows = with_bounds(draw_scorer(rng, bias=1.0, tied=True)), draw_rows(rng, 101)
    assert same_bits(scorer.predict_topk(rows, 5), scorer.predict_topk(rows, 5, n_threads))


def test_what_bounds_cannot_tell_is_scored():
    """Too many labels asked for, too many of one score, no label at all, and rows that know no common feature."""
    rng = np.random.default_rng(4)
    scorer, rows = draw_scorer(rng, bias=1.0), draw_rows(rng, 5)
    assert same_bits(with_bounds(scorer).predict_topk(rows, N_LABELS), scorer.predict_topk(rows, N_LABELS))
    alike = np.ones((3, N_LABELS), np.float32)
    sparse = csr_array(alike)
    same = Model(
        lay_out(sparse_weights(sparse.indptr.astype(np.int64), sparse.indices.astype(np.int32), sparse.data, N_LABELS)),
        RowsConfig(bias=1.0),
    )
    assert count_told(same, draw_rows(rng, 5, 2, density=1.0), 5) == 0
    assert with_bounds(same).predict_topk(draw_rows(rng, 5, 2, density=1.0), 3).labels.tolist() == [[0, 1, 2]] * 5
    small = draw_scorer(rng, n_features=3, n_labels=2)
    nothing = csr_array((2, 3), dtype=np.float32)
    for few in (nothing, nothing[:0]):
        assert same_bits(with_bounds(small).predict_topk(few, 5), small.predict_topk(few, 5))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small set by the tool, and a model of it by the command line."""
    folder = tmp_path_factory.mktemp("made")
    sizes = ["--rows", "3000", "--test-rows", "200", "--features", "2500", "--labels", "4000", "--nnz", "30"]
    command = [sys.executable, str(ROOT / "tools" / "make_synthetic.py"), *sizes, "--out", str(folder / "set")]
    subprocess.run(command, check=True, capture_output=True)
    assert main(["train", "--data", str(folder / "set"), "--epochs", "2", "--out", str(folder / "model")]) == 0
    return folder


def test_made_set_has_its_sizes_and_laws(made):
    train, test = ShardSet(made / "set" / "train"), ShardSet(made / "set" / "test")
    assert (train.n_rows, train.n_features, train.n_labels, test.n_rows) == (3000, 2500, 4000, 200)
    rows = train.read(0, train.n_rows)
    assert 24 < rows.rows.nnz / train.n_rows < 36
    assert 4.5 < rows.labels.nnz / train.n_rows < 5.5
    counts = np.sort(np.bincount(rows.labels.indices, minlength=4000))[::-1]
    assert 2 <= np.median(counts) <= 4
    assert counts[0] > 20 * np.median(counts)
    assert np.mean(counts == 0) < 0.02
    words = np.sort(np.bincount(rows.rows.indices, minlength=2500))[::-1]
    assert words[0] > 20 * np.median(words)


def test_made_set_does_not_depend_on_shards(made, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import make_synthetic

    from xmlpreck.data.shards import write_shards

    world = make_synthetic.make_world(3200, 2500, 4000, 30, 5.5, 0)
    again = write_shards(tmp_path / "again", make_synthetic.draw_rows(world, 30, 0, 0, 3000), "parquet", 700, {})
    first = ShardSet(made / "set" / "train").read(0, 3000)
    second = again.read(0, 3000)
    for a, b in ((first.rows, second.rows), (first.labels, second.labels)):
        assert np.array_equal(a.indptr, b.indptr)
        assert np.array_equal(a.indices, b.indices)
        assert np.array_equal(a.data, b.data)
    assert json.loads((made / "set" / "train" / "manifest.json").read_text())["provenance"]["made_by"]["seed"] == 0
