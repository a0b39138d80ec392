"""The synthetic data: the same every time, every label used, learnable but not trivially."""

import sys

import numpy as np
import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import make_synthetic

from xmlpreck.config import InputError
from xmlpreck.data.shards import ShardSet
from xmlpreck.data.synthetic import make_dataset, make_demo


@pytest.fixture(scope="module")
def demo():
    return make_demo()


def _arrays(dataset):
    return [
        getattr(matrix, part) for matrix in (dataset.rows, dataset.labels) for part in ("data", "indices", "indptr")
    ]


def test_same_seed_same_bytes():
    first, second, other = (make_dataset(50, 40, 20, seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(_arrays(first), _arrays(second), strict=True))
    assert first.label_names == second.label_names
    assert not np.array_equal(first.rows.indices, other.rows.indices)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 40), (200, 30, 7), (60, 1000, 90)])
def test_shapes_types_and_ranges(sizes):
    n_rows, n_features, n_labels = sizes
    data = make_dataset(n_rows, n_features, n_labels, features_per_row=6, labels_per_row=2, seed=0)
    assert data.rows.shape == (n_rows, n_features)
    assert data.labels.shape == (n_rows, n_labels)
    for matrix in (data.rows, data.labels):
        assert matrix.dtype == np.float32
        assert matrix.indices.dtype == np.int32
        assert matrix.has_canonical_format
        assert (np.diff(matrix.indptr) >= 1).all()
    assert (data.rows.data > 0).all()
    assert (data.labels.data == 1).all()
    # Rows are scaled in float64 and rounded once to float32.
    np.testing.assert_allclose(data.rows.power(2).sum(axis=1), 1, rtol=1e-5)
    assert len(np.unique(data.labels.indices)) == n_labels


def test_names_are_unique_readable_and_say_what_they_are():
    data = make_dataset(2, 200, 20_000, seed=0)
    assert len(set(data.label_names)) == 20_000
    assert len(set(data.feature_names)) == 200
    assert data.label_names[0] == "synthetic/amber-anchor"
    assert all(name.startswith("synthetic/") for name in data.label_names)
    assert data.feature_names[17] == "word-00017-copper"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("n_rows", {"n_rows": 0, "n_features": 3, "n_labels": 3}),
        ("n_labels", {"n_rows": 3, "n_features": 3, "n_labels": -1}),
        ("labels_per_row", {"n_rows": 3, "n_features": 3, "n_labels": 3, "labels_per_row": 0.5}),
    ],
)
def test_sizes_below_one_are_refused(name, arguments):
    with pytest.raises(InputError, match=f"^{name} {arguments[name]} is too small"):
        make_dataset(**arguments, seed=0)


def test_demo_has_the_promised_sizes(demo):
    train, test = demo
    assert train.rows.shape == (8_000, 4_000)
    assert test.rows.shape == (2_000, 4_000)
    assert train.labels.shape == (8_000, 1_000)
    assert test.labels.shape == (2_000, 1_000)
    assert train.rows.indices.dtype == train.labels.indices.dtype == np.int32
    assert 38 <= train.rows.nnz / 8_000 <= 42
    assert 3.8 <= train.labels.nnz / 8_000 <= 4.2
    assert test.label_names == train.label_names


def test_demo_labels_follow_a_power_law(demo):
    frequency = np.sort(np.bincount(demo[0].labels.indices, minlength=1_000))[::-1]
    assert frequency[-1] >= 1
    assert frequency[0] > 10 * frequency[100] > 20 * frequency[-1]


def test_demo_is_learnable_but_not_trivial(demo):
    """Nearest centroid: measured 84.4 / 54.9 / 40.4 (ridge one-vs-rest: 90.8 / 66.1 / 47.8)."""
    train, test = demo
    centroids = (train.labels.T @ train.rows).toarray()
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    best = np.argsort(-(test.rows @ centroids.T), axis=1, kind="stable")[:, :5]
    hit = np.take_along_axis(test.labels.toarray() > 0, best, axis=1)
    # Two points either side allow for another numpy's stream of random numbers.
    assert 0.82 <= hit[:, 0].mean() <= 0.87
    assert 0.38 <= hit.mean() <= 0.43


@pytest.fixture(scope="module")
def world():
    """Twenty topics of a hundred labels, in two fields."""
    return make_synthetic.make_world(3000, 4000, 2000, nnz=40, labels_per_row=5.5, seed=1)


def test_made_rows_mix_topics_of_a_field(world):
    first = world.label_offsets[:-1]
    assert np.diff(world.label_offsets).min() >= 1
    n_topics = np.array([len(set(world.topics[a:b])) for a, b in zip(first, world.label_offsets[1:], strict=True)])
    assert 0.5 < np.mean(n_topics >= 2) < 0.95
    fields = world.topics // make_synthetic.FIELD_TOPICS
    n_fields = np.array([len(set(fields[a:b])) for a, b in zip(first, world.label_offsets[1:], strict=True)])
    assert np.mean(n_fields == 1) > 0.6
    assert set(world.labels) == set(range(2000))


def test_alike_labels_of_a_made_set_are_of_one_topic(world):
    """What a tree needs: the label whose mean row is nearest is mostly of the same topic, which ids do not tell."""
    (data,) = make_synthetic.draw_rows(world, 40, 1, 0, 3000)
    topic = np.zeros((2000, world.topics.max() + 1))
    np.add.at(topic, (world.labels, world.topics), 1)
    often = np.flatnonzero(topic.sum(axis=1) >= 4)
    home = topic.argmax(axis=1)[often]
    means = (data.labels.T @ data.rows).toarray()[often]
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    alike = means @ means.T
    np.fill_diagonal(alike, 0)
    assert np.mean(home[alike.argmax(axis=1)] == home) > 0.7
    assert np.mean(home[1:] == home[:-1]) < 0.2


def test_made_sets_take_the_sizes_of_known_ones(tmp_path, monkeypatch, capsys):
    sizes = ("--rows", "40", "--test-rows", "10", "--features", "50", "--labels", "30", "--nnz", "5")
    monkeypatch.setattr(sys, "argv", ["make", "--like", "amazon-3m", *sizes, "--out", str(tmp_path / "set")])
    make_synthetic.main()
    assert "train: 40 rows, 50 features, 30 labels" in capsys.readouterr().out
    made_by = ShardSet(tmp_path / "set" / "test").provenance["made_by"]
    assert (made_by["labels_per_row"], made_by["labels"]) == (36.0, 30)
