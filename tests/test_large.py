"""Large label spaces: shortlists against exact prediction, and the generated set with Amazon-670K's laws."""

import json
import subprocess
import sys

import numpy as np
import pytest
from helpers import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from xmlpreck.cli import main
from xmlpreck.config import InputError, RowsConfig
from xmlpreck.data.formats import build_csr, read_predictions
from xmlpreck.data.shards import ShardSet
from xmlpreck.kernels.arrays import sparse_weights
from xmlpreck.kernels.bfloat import widen
from xmlpreck.model import Model, Shortlist, lay_out
from xmlpreck.model.seal import ModelError

N_FEATURES, N_LABELS = 60, 700


def draw_scorer(rng, n_features=N_FEATURES, n_labels=N_LABELS, bias=0.0, tied=False):
    """Every tenth feature knows most labels (a dense row), the others a few; weights of one size, if tied."""
    n_columns = n_features + (bias > 0)
    shares = np.where(np.arange(n_columns) % 10 == 0, 0.5, 0.03)
    pattern = csr_array(rng.random((n_columns, n_labels)) < shares[:, None])
    values = rng.integers(-2, 3, pattern.nnz) if tied else rng.standard_normal(pattern.nnz)
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


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 12),
    bias=st.sampled_from([0.0, 1.0]),
    tied=st.booleans(),
    density=st.sampled_from([0.01, 0.1, 0.5]),
)
def test_with_all_labels_it_is_exact_prediction(seed, k, bias, tied, density):
    """Empty rows, rows without k labels above 0 and equal scores are among these."""
    rng = np.random.default_rng(seed)
    scorer, rows = draw_scorer(rng, bias=bias, tied=tied), draw_rows(rng, 20, density=density)
    whole = Shortlist.of(scorer.weights, N_LABELS)
    assert same_bits(scorer.predict_topk(rows, k, shortlist=whole), scorer.predict_topk(rows, k))


def test_scores_are_exact_and_recall_rises():
    rng = np.random.default_rng(1)
    scorer, rows = draw_scorer(rng, n_labels=3000), draw_rows(rng, 200)
    exact, scores = scorer.predict_topk(rows, 5), scorer.decision_function(rows)
    recalls = []
    for per_feature in (1, 4, 16, 64, 256):
        top = scorer.predict_topk(rows, 5, shortlist=Shortlist.of(scorer.weights, per_feature))
        assert np.array_equal(top.scores, np.take_along_axis(scores, top.labels, axis=1))
        found = (top.labels[:, :, None] == exact.labels[:, None, :]).any(axis=1)
        recalls.append(found.mean())
    assert recalls == sorted(recalls)
    assert recalls[0] < 0.5
    assert recalls[-1] > 0.99


def test_champions_are_the_largest_weights():
    rng = np.random.default_rng(2)
    scorer = draw_scorer(rng, tied=True)
    dense = np.zeros((N_FEATURES, N_LABELS), np.float32)
    weights = scorer.weights
    for f in range(N_FEATURES):
        d, span = weights.dense_of[f], slice(weights.offsets[f], weights.offsets[f + 1])
        if d >= 0:
            dense[f] = widen(weights.dense_rows[d])
        else:
            dense[f] = -np.inf
            dense[f, weights.labels[span]] = weights.values[span]
    champions = Shortlist.of(weights, 7).champions
    for f in range(N_FEATURES):
        span = slice(champions.offsets[f], champions.offsets[f + 1])
        n_known = np.count_nonzero(dense[f] > -np.inf)
        best = np.sort(np.lexsort((np.arange(N_LABELS), -dense[f]))[: min(7, n_known)])
        assert champions.labels[span].tolist() == best.tolist()
        assert champions.values[span].tolist() == dense[f, best].tolist()


@pytest.mark.parametrize("n_threads", [2, 3, 7])
def test_threads_change_no_bit(n_threads):
    rng = np.random.default_rng(3)
    scorer, rows = draw_scorer(rng, tied=True), draw_rows(rng, 101)
    shortlist = Shortlist.of(scorer.weights, 5)
    one = scorer.predict_topk(rows, 5, shortlist=shortlist)
    assert same_bits(one, scorer.predict_topk(rows, 5, n_threads, shortlist=shortlist))


def test_hostile_sizes():
    rng = np.random.default_rng(4)
    scorer = draw_scorer(rng, n_features=3, n_labels=2)
    smallest = Shortlist.of(scorer.weights, 1)
    assert scorer.predict_topk(csr_array((0, 3), dtype=np.float32), 5, shortlist=smallest).labels.shape == (0, 2)
    nothing = csr_array((2, 3), dtype=np.float32)
    assert same_bits(scorer.predict_topk(nothing, 5, shortlist=smallest), scorer.predict_topk(nothing, 5))
    unlearned = Model(lay_out(scorer.weights._replace(
        dense_of=np.full(3, -1, np.int32), dense_rows=np.zeros((0, 2), np.float32), offsets=np.zeros(4, np.int64),
        labels=np.zeros(0, np.int32), values=np.zeros(0, np.float32),
    )), scorer.rows)  # fmt: skip
    rows, empty = draw_rows(rng, 4, 3, density=0.5), Shortlist.of(unlearned.weights, 9)
    assert same_bits(unlearned.predict_topk(rows, 2, shortlist=empty), unlearned.predict_topk(rows, 2))
    with pytest.raises(InputError, match="1 or more labels a feature, but not 0"):
        Shortlist.of(scorer.weights, 0)
    with pytest.raises(ModelError, match="bonus"):
        scorer.predict_topk(rows, 1, bonus=np.zeros(2, np.float32), shortlist=smallest)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small set by the tool, and a model of it by the command line."""
    folder = tmp_path_factory.mktemp("made")
    sizes = ["--rows", "3000", "--test-rows", "200", "--features", "2500", "--labels", "4000", "--nnz", "30"]
    command = [sys.executable, str(ROOT / "tools" / "make_synthetic.py"), *sizes, "--out", str(folder / "set")]
    subprocess.run(command, check=True, capture_output=True)
    assert main(["train", "--data", str(folder / "set"), "--epochs", "2", "--out", str(folder / "model")]) == 0
    return folder


def test_shortlist_by_the_command_line(made, capsys):
    tops = {}
    for name, words in {"exact": [], "all": ["--shortlist", "4000"], "few": ["--shortlist", "3"]}.items():
        out = made / f"{name}.parquet"
        words = ["--model", str(made / "model"), "--data", str(made / "set"), "--out", str(out), *words]
        assert main(["predict", *words]) == 0
        tops[name] = read_predictions(out, 200, 4000)
    assert same_bits(tops["exact"], tops["all"])
    assert not np.array_equal(tops["exact"].labels, tops["few"].labels)
    barred = made / "barred.txt"
    barred.write_text("7\n")
    assert main(["predict", *words, "--exclude-labels", str(barred)]) == 2
    assert "--shortlist has its own list" in capsys.readouterr().err


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
