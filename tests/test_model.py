"""The model directory: what goes in comes out, and what was damaged is refused by name."""

import json
import shutil
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers import draw_scorer, reseal
from scipy.sparse import csr_array, random_array

from xmlpreck.config import InputError, RowsConfig
from xmlpreck.kernels.arrays import sparse_weights
from xmlpreck.model import Model, all_sparse, check_target, prepare_rows, seal
from xmlpreck.model.calibration import Calibration
from xmlpreck.model.directory import open_files
from xmlpreck.model.seal import ModelError


@pytest.fixture
def saved(tmp_path):
    scorer, _ = draw_scorer(np.random.default_rng(0), dtype=np.float32)
    names = [f"label {i} é" for i in range(300)]
    scorer = Model(scorer.weights, RowsConfig(True, 0.5), names, [f"f{i}" for i in range(29)], {"k": 5})
    scorer.save(tmp_path / "model")
    return scorer, tmp_path / "model"


def some_rows(n_features):
    return random_array((40, n_features), density=0.3, rng=np.random.default_rng(1)).tocsr().astype(np.float32)


def test_round_trip(saved):
    scorer, folder = saved
    loaded = Model.load(folder)
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
    pruned = Model.load(folder).prune(0.6)
    size = pruned.save(tmp_path / "small")
    again = Model.load(tmp_path / "small")
    assert size < sum(file.stat().st_size for file in folder.iterdir())
    assert again.info["pruned_at"] == 0.6
    sparse = all_sparse(again.weights)
    expected = all_sparse(scorer.weights).values
    np.testing.assert_array_equal(sparse.values, expected[np.abs(expected) >= 0.6])


def test_saving_replaces_a_model_but_nothing_else(saved, tmp_path):
    scorer, folder = saved
    scorer.prune(0.6).save(folder)
    assert Model.load(folder).n_weights < scorer.n_weights
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    with pytest.raises(ModelError, match="exists and is not a model"):
        scorer.save(precious)
    assert [file.name for file in precious.iterdir()] == ["thesis.tex"]


def test_other_files_in_a_model_are_never_deleted(saved):
    """The first of them is named, by check_target before the work and by save after it."""
    scorer, folder = saved
    (folder / "src").mkdir()
    (folder / "thesis.tex").write_text("years of work")
    for refuse in (check_target, scorer.prune(0.6).save):
        with pytest.raises(ModelError, match="model: holds 'src', which is not part of a model: nothing was replaced"):
            refuse(folder)
    assert (folder / "thesis.tex").read_text() == "years of work"
    assert Model.load(folder).n_weights == scorer.n_weights
    (folder / "src").rmdir()
    with pytest.raises(ModelError, match=r"holds 'thesis\.tex'"):
        scorer.save(folder)


def test_what_cannot_be_loaded_again_is_not_saved(saved):
    scorer, folder = saved
    odd = {
        "labels.txt: has 299 names": scorer.fresh(label_names=scorer.label_names[1:]),
        "surrogate pair": scorer.fresh(label_names=["\ud800", *scorer.label_names[1:]]),
        "data.n_rows must be a whole number": scorer.fresh(info={"data": {"n_rows": "5", "sha256": ""}}),
        "cannot be stored as JSON": scorer.fresh(info={"k": {1, 2}}),
        "info must not have 'rows'": scorer.fresh(info={"rows": 5}),
        "a weight is not a finite number": scorer.fresh(
            weights=scorer.weights._replace(values=np.full_like(scorer.weights.values, np.inf))
        ),
        "calibration_shifts.npy: has shape": scorer.fresh(
            calibration=Calibration(np.float32(0), np.array([[0.0], [0.5]]), np.zeros(301, np.float32))
        ),
    }
    for message, model in odd.items():
        with pytest.raises(ModelError, match=message) as error:
            model.save(folder)
        assert "xmlpreck-" not in str(error.value)  # the scratch folder is nobody's business
        assert Model.load(folder).n_weights == scorer.n_weights
    assert sorted(file.name for file in folder.parent.iterdir()) == ["model"]


def test_reading_a_model_again_takes_little_memory(tmp_path):
    """The check of what was written maps the weights: no second copy, no dense rows."""
    n_labels, n_features = 20_000, 300
    labels = np.tile(np.arange(n_labels, dtype=np.int32), n_features)
    offsets = np.arange(n_features + 1) * n_labels
    values = np.ones(len(labels), np.float32)
    Model(sparse_weights(offsets, labels, values, n_labels), RowsConfig(bias=0)).save(tmp_path / "m")
    open_files(tmp_path / "m")  # kernels are compiled
    tracemalloc.start()
    open_files(tmp_path / "m")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < labels.nbytes


def test_a_failed_save_leaves_the_old_model(saved, monkeypatch):
    scorer, folder = saved

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(ModelError, match="model: cannot be written: No space left on device"):
        scorer.prune(0.6).save(folder)
    assert Model.load(folder).n_weights == scorer.n_weights
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
        (lambda f: edit_array(f, "row_offsets", lambda a: flip(a, 3, 10**6)), "row_offsets.npy: .* do not rise"),
        (lambda f: edit_file(f, "labels.txt", b"one\n"), "labels.txt: has 1 names, but the model has 300"),
        (lambda f: edit_file(f, "labels.txt", b"\xff\n" * 300), "labels.txt: cannot be read"),
        (lambda f: (f / "labels.txt").unlink(), "labels.txt: cannot be read"),
        (lambda f: (f / "labels.txt").write_text("one\n" * 300), "labels.txt: has changed since the model was saved"),
        (lambda f: edit_json(f, n_labels=True), "model.json: True is not a number of rows, features or labels"),
    ],
)
def test_damage_is_refused_by_name(saved, damage, message):
    _, folder = saved
    damage(folder)
    with pytest.raises(ModelError, match=message):
        Model.load(folder)


def test_object_arrays_are_never_unpickled(saved):
    _, folder = saved
    np.save(folder / "row_weights.npy", np.array([{"a": 1}]), allow_pickle=True)
    reseal(folder)
    with pytest.raises(ModelError, match=r"row_weights\.npy: cannot be read"):
        Model.load(folder)


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
        Model(scorer.weights, scorer.rows, names).save(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    names[0] = "carriage\rreturn\r"
    Model(scorer.weights, scorer.rows, names).save(tmp_path / "other")
    assert Model.load(tmp_path / "other").label_names == names


def test_verify_finds_what_sizes_do_not(saved):
    scorer, folder = saved
    assert Model.load(folder, verify=True).n_weights == scorer.n_weights
    path = folder / "row_weights.npy"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1  # another weight, still a finite one
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"row_weights\.npy: has changed since the model was saved"):
        Model.load(folder, verify=True)
    path.unlink()
    with pytest.raises(ModelError, match=r"row_weights\.npy: cannot be read"):
        Model.load(folder, verify=True)


def files_of(folder):
    return sorted(path.name for path in folder.iterdir())


def flip_byte(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_flipped_byte_in_any_file_is_refused(saved):
    """Without --verify; of model.json too, wherever it changes what is said."""
    _, folder = saved
    for name in files_of(folder):
        whole = (folder / name).read_bytes()
        for place in np.linspace(0, len(whole) - 1, 40).astype(int):
            flip_byte(folder / name, place)
            damaged = (folder / name).read_bytes()
            is_same = False
            with suppress(ValueError):
                is_same = name == "model.json" and json.loads(damaged) == json.loads(whole)
            if not is_same:
                with pytest.raises(InputError):
                    Model.load(folder)
        (folder / name).write_bytes(whole)
    Model.load(folder)


@pytest.fixture
def hashed(monkeypatch):
    """Names of the files that were hashed, where every model is a large one."""
    names = []
    digest = seal.file_sha256
    monkeypatch.setattr(seal, "HASHED_BYTES", 0)
    monkeypatch.setattr(seal, "file_sha256", lambda path: names.append(path.name) or digest(path))
    return names


def test_a_large_model_is_hashed_when_it_has_changed(saved, hashed, tmp_path):
    scorer, folder = saved
    n_files = len(files_of(folder)) - 1
    Model.load(folder)
    assert len(hashed) == n_files
    hashed.clear()
    Model.load(folder)
    assert hashed == []
    Model.load(folder, verify=True)
    assert len(hashed) == n_files
    hashed.clear()
    (folder / "labels.txt").touch()
    Model.load(folder)
    assert hashed == ["labels.txt"]
    shutil.copytree(folder, tmp_path / "copy")  # with its times and its memo
    hashed.clear()
    Model.load(tmp_path / "copy")
    assert len(hashed) == n_files
    flip_byte(folder / "row_weights.npy", -2)
    for _ in range(2):
        with pytest.raises(ModelError, match=r"row_weights\.npy: has changed since the model was saved"):
            Model.load(folder)
    scorer.save(folder)  # the memo is one of ours
    hashed.clear()
    Model.load(folder)
    assert hashed == []


@pytest.mark.parametrize("memo", [b"", b"[]", b'{"labels.txt": 5}', b"[" * 10**6, None])
def test_without_a_memo_a_large_model_is_hashed(saved, hashed, memo):
    _, folder = saved
    path = folder / "checked.json"
    path.write_bytes(memo) if memo is not None else path.mkdir()  # which cannot be written over
    n_files = len(files_of(folder)) - 2
    Model.load(folder)
    assert len(hashed) == n_files
    flip_byte(folder / "row_weights.npy", -2)
    with pytest.raises(ModelError, match=r"row_weights\.npy: has changed since the model was saved"):
        Model.load(folder)


PASS = {"number": 1, "surrogate": 1.0, "mistakes": 1.0, "gap": 0.0, "seconds": 1.0, "heldout": {"P@1": 1.0}}
TRIAL = {"settings": {"k": 5}, "scores": {"P@1": 1.0}, "value": 1.0, "kept": True}
TUNING = {
    "heldout_rows": 9, "budget": 1.5, "spent": 1, "fixed": {}, "chosen": {"k": 5},
    "rungs": [{"rows": 9, "passes": 1, "trials": [TRIAL]}], "history": [],
}  # fmt: skip


def test_what_a_model_says_of_its_run_is_kept(saved):
    _, folder = saved
    info = {"history": [PASS, PASS | {"heldout": None}], "tuning": TUNING, "pruned_at": 0.1, "anything": [None]}
    edit_json(folder, **info)
    assert Model.load(folder).info == {"k": 5} | info


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"data": {"n_rows": "5", "sha256": ""}}, "data.n_rows must be a whole number from 0, but is '5'"),
        ({"data": {"n_rows": 5}}, "data.sha256 must be text, but is None"),
        ({"data": {"n_rows": 5, "sha256": "", "place": 5}}, "data.place must be text, but is 5"),
        ({"data": {"n_rows": 5, "sha256": "", "place": "a\0b"}}, "data.place must be text"),
        ({"data": []}, r"data must be an object, but is \[\]"),
        ({"tuning": {}}, "tuning.heldout_rows must be a whole number"),
        ({"tuning": 1}, "tuning must be an object, but is 1"),
        ({"tuning": TUNING | {"spent": float("nan")}}, "tuning.spent must be a finite number, but is nan"),
        ({"tuning": TUNING | {"spent": 10**400}}, "tuning.spent must be a finite number"),
        ({"tuning": TUNING | {"rungs": [{"rows": 9, "passes": 1, "trials": []}]}}, "trials must not be empty"),
        (
            {"tuning": TUNING | {"rungs": [{"rows": 9, "passes": 1, "trials": [TRIAL, TRIAL | {"scores": {}}]}]}},
            "all scores must have the same names",
        ),
        ({"tuning": TUNING | {"chosen": {"k": [5]}}}, r"tuning.chosen.k must be text, a number"),
        ({"history": [5]}, r"history\[0\] must be an object, but is 5"),
        ({"history": [PASS | {"seconds": "1"}]}, r"history\[0\].seconds must be a finite number, but is '1'"),
        ({"history": [PASS, PASS | {"heldout": {"P@3": 1}}]}, "history: all heldout must have the same names"),
        ({"config": {"train": {"k": None}}}, "config.train.k must be text, a number, true or false, but is None"),
        ({"config": 5}, "config must be an object"),
        ({"updates": {}}, "updates must be a list"),
        ({"pruned_at": True}, "pruned_at must be a finite number"),
        ({"calibration": [1]}, "calibration must be an object"),
    ],
)
def test_what_a_model_says_of_its_run_has_the_right_type(saved, info, message):
    _, folder = saved
    edit_json(folder, **info)
    with pytest.raises(ModelError, match=f"model.json: .*{message}"):
        Model.load(folder)


@pytest.mark.parametrize("hashes", [None, {}, []])
def test_verify_needs_hashes(saved, hashes):
    path = saved[1] / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sha256": hashes}))
    with pytest.raises(ModelError, match="no sha256 of its files"):
        Model.load(saved[1], verify=True)


FIXTURES = Path(__file__).parent / "fixtures"


def test_models_of_format_1_are_read():
    """Written by xmlpreck 0.1.0 (tools/make_fixtures.py): every later version must read them and predict the same."""
    expected = json.loads((FIXTURES / "expected.json").read_text())
    numbers = Model.load(FIXTURES / "model-1", verify=True)
    top = numbers.predict_topk(csr_array(np.array(expected["rows"], np.float32)), 3)
    assert top.labels.tolist() == expected["labels"]
    assert top.scores == pytest.approx(np.array(expected["scores"]), rel=1e-6)
    texts = Model.load(FIXTURES / "text-model-1", verify=True)
    top = texts.predict_topk(texts.vectorizer.transform(expected["texts"]), 1)
    assert [texts.label_names[label] for label in top.labels[:, 0]] == expected["names"]
