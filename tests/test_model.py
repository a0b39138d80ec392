"""The model directory: what goes in comes out, and what was damaged is refused by name."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import reseal
from scipy.sparse import csr_array, random_array
from test_kernels import draw_scorer

from xmlpreck.config import RowsConfig
from xmlpreck.model import LinearScorer, ModelError, all_sparse, prepare_rows


@pytest.fixture
def saved(tmp_path):
    scorer, _ = draw_scorer(np.random.default_rng(0), dtype=np.float32)
    names = [f"label {i} é" for i in range(300)]
    scorer = LinearScorer(scorer.weights, RowsConfig(True, 0.5), names, [f"f{i}" for i in range(29)], {"k": 5})
    scorer.save(tmp_path / "model")
    return scorer, tmp_path / "model"


def some_rows(n_features):
    return random_array((40, n_features), density=0.3, rng=np.random.default_rng(1)).tocsr().astype(np.float32)


def test_round_trip(saved):
    scorer, folder = saved
    loaded = LinearScorer.load(folder)
    assert (loaded.rows, loaded.label_names, loaded.feature_names) == (
        scorer.rows, scorer.label_names, scorer.feature_names,
    )  # fmt: skip
    assert (loaded.n_features, loaded.n_labels, loaded.n_weights) == (29, 300, scorer.n_weights)
    assert loaded.info == {"k": 5}
    rows = some_rows(29)
    for threads in (1, 2):
        top, again = (model.predict_topk(rows, 7, threads) for model in (scorer, loaded))
        np.testing.assert_array_equal(top.labels, again.labels)
        np.testing.assert_array_equal(top.scores, again.scores)
    assert sorted(file.name for file in folder.parent.iterdir()) == ["model"]  # nothing temporary is left


def test_a_loaded_model_can_be_pruned_and_saved_again(saved, tmp_path):
    scorer, folder = saved
    pruned = LinearScorer.load(folder).prune(0.6)
    size = pruned.save(tmp_path / "small")
    again = LinearScorer.load(tmp_path / "small")
    assert size < sum(file.stat().st_size for file in folder.iterdir())
    assert again.info["pruned_at"] == 0.6
    sparse = all_sparse(again.weights)
    expected = all_sparse(scorer.weights).values
    np.testing.assert_array_equal(sparse.values, expected[np.abs(expected) >= 0.6])


def test_saving_replaces_a_model_but_nothing_else(saved, tmp_path):
    scorer, folder = saved
    scorer.prune(0.6).save(folder)
    assert LinearScorer.load(folder).n_weights < scorer.n_weights
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    with pytest.raises(ModelError, match="exists and is not a model"):
        scorer.save(precious)
    assert [file.name for file in precious.iterdir()] == ["thesis.tex"]


def test_a_failed_save_leaves_the_old_model(saved, monkeypatch):
    scorer, folder = saved

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(ModelError, match="model: cannot be written: No space left on device"):
        scorer.prune(0.6).save(folder)
    assert LinearScorer.load(folder).n_weights == scorer.n_weights
    assert sorted(file.name for file in folder.parent.iterdir()) == ["model"]


def test_a_target_that_cannot_be_made_is_named(saved, tmp_path):
    scorer, _ = saved
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written: "):
        scorer.save(tmp_path / "file" / "model")


def edit_json(folder, **changes):
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    reseal(folder)


def edit_array(folder, name, edit):
    array = np.load(folder / f"{name}.npy")
    np.save(folder / f"{name}.npy", edit(array))
    reseal(folder)


def edit_file(folder, name, content):
    (folder / name).write_bytes(content)
    reseal(folder)


def flip(array, place, value):
    array[place] = value
    return array


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "model.json").unlink(), "model: is not a model directory: it has no model.json"),
        (lambda f: (f / "model.json").write_text("{"), "model.json: cannot be read"),
        (lambda f: (f / "model.json").write_text("[]"), "model.json: is not an xmlpreck model"),
        (lambda f: edit_json(f, format_version=99), "has format version 99, this xmlpreck reads 1"),
        (lambda f: edit_json(f, n_labels=10), "row_labels.npy: the labels of a feature do not rise within"),
        (lambda f: edit_json(f, rows={"bias": 0.5, "twist": 1}), "model.json: .*twist"),
        (lambda f: (f / "row_weights.npy").unlink(), "row_weights.npy: cannot be read"),
        (lambda f: edit_file(f, "row_weights.npy", b"\x93NUMPY"), "row_weights.npy: cannot be read"),
        (lambda f: edit_file(f, "row_weights.npy", b"PK\3\4"), "row_weights.npy: cannot be read"),
        (lambda f: edit_array(f, "row_weights", lambda a: a[:-1]), "row_weights.npy: holds .* but model.json says"),
        (lambda f: edit_array(f, "row_weights", lambda a: a.astype("f8")), "row_weights.npy: holds .*<f8"),
        (lambda f: edit_array(f, "row_weights", lambda a: flip(a, 3, 0x7FC0)), "a weight is not a finite number"),
        (
            lambda f: edit_array(f, "row_labels", lambda a: flip(a, 3, 65535)),
            "row_labels.npy: the labels of a feature do not rise within",
        ),
        (lambda f: edit_array(f, "row_offsets", lambda a: flip(a, 3, 10**6)), "row_offsets.npy: the offsets do not rise"),
        (lambda f: edit_file(f, "labels.txt", b"one\n"), "labels.txt: has 1 names, but the model has 300"),
        (lambda f: edit_file(f, "labels.txt", b"\xff\n" * 300), "labels.txt: cannot be read"),
        (lambda f: (f / "labels.txt").unlink(), "labels.txt: cannot be read"),
        (lambda f: (f / "labels.txt").write_text("one\n" * 300), "labels.txt: has changed since the model was saved"),
        (lambda f: edit_json(f, n_labels=True), "model.json: True is not a number of features or labels"),
    ],
)
def test_damage_is_refused_by_name(saved, damage, message):
    _, folder = saved
    damage(folder)
    with pytest.raises(ModelError, match=message):
        LinearScorer.load(folder)


def test_object_arrays_are_never_unpickled(saved):
    _, folder = saved
    np.save(folder / "row_weights.npy", np.array([{"a": 1}]), allow_pickle=True)
    reseal(folder)
    with pytest.raises(ModelError, match=r"row_weights\.npy: cannot be read"):
        LinearScorer.load(folder)


def test_rows_that_do_not_fit_are_refused(saved):
    scorer, _ = saved
    with pytest.raises(ModelError, match="rows have 28 features, but the model was trained on 29"):
        scorer.predict_topk(some_rows(28), 5)
    with pytest.raises(ModelError, match="topk must be 1 or more, but is 0"):
        scorer.predict_topk(some_rows(29), 0)


def test_prepared_rows_have_unit_length_and_a_bias():
    rows = some_rows(10)
    rows.data[rows.indptr[3] : rows.indptr[4]] = 0
    prepared = prepare_rows(rows, RowsConfig(unit_norm=True, bias=0.25)).toarray()
    lengths = np.linalg.norm(prepared[:, :10], axis=1)
    np.testing.assert_allclose(lengths[lengths > 0], 1, rtol=1e-6)
    assert lengths[3] == 0
    assert (prepared[:, 10] == 0.25).all()
    same = prepare_rows(rows, RowsConfig(unit_norm=False, bias=0))
    np.testing.assert_array_equal(same.toarray(), rows.toarray())


def test_names_with_line_breaks_are_refused(saved, tmp_path):
    scorer, _ = saved
    names = ["two\nlines"] + scorer.label_names[1:]
    with pytest.raises(ModelError, match="a name must not have a line break"):
        LinearScorer(scorer.weights, scorer.rows, names).save(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    names[0] = "carriage\rreturn\r"
    LinearScorer(scorer.weights, scorer.rows, names).save(tmp_path / "other")
    assert LinearScorer.load(tmp_path / "other").label_names == names


def test_verify_finds_what_sizes_do_not(saved):
    scorer, folder = saved
    assert LinearScorer.load(folder, verify=True).n_weights == scorer.n_weights
    path = folder / "row_weights.npy"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1  # another weight, still a finite one
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"row_weights\.npy: has changed since the model was saved"):
        LinearScorer.load(folder, verify=True)
    path.unlink()
    with pytest.raises(ModelError, match=r"row_weights\.npy: cannot be read"):
        LinearScorer.load(folder, verify=True)


@pytest.mark.parametrize("hashes", [None, {}, []])
def test_verify_needs_hashes(saved, hashes):
    path = saved[1] / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sha256": hashes}))
    with pytest.raises(ModelError, match="no sha256 of its files"):
        LinearScorer.load(saved[1], verify=True)


FIXTURES = Path(__file__).parent / "fixtures"


def test_models_of_format_1_are_read():
    """Written by xmlpreck 0.1.0 (tools/make_fixtures.py): every later version must read them and predict the same."""
    expected = json.loads((FIXTURES / "expected.json").read_text())
    numbers = LinearScorer.load(FIXTURES / "model-1", verify=True)
    top = numbers.predict_topk(csr_array(np.array(expected["rows"], np.float32)), 3)
    assert top.labels.tolist() == expected["labels"]
    assert top.scores == pytest.approx(np.array(expected["scores"]), rel=1e-6)
    texts = LinearScorer.load(FIXTURES / "text-model-1", verify=True)
    top = texts.predict_topk(texts.vectorizer.transform(expected["texts"]), 1)
    assert [texts.label_names[label] for label in top.labels[:, 0]] == expected["names"]
