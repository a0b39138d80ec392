"""Dense rows beside others or alone: files, errors of one line, the weight of the blocks, the model on disk."""

import datetime
import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_array, hstack, load_npz, save_npz

import xmlpreck
from xmlpreck import PrecAtKClassifier
from xmlpreck.cli import main
from xmlpreck.config import InputError, RowsConfig, RunConfig, TrainConfig, from_dict
from xmlpreck.data.dense import beside
from xmlpreck.data.dense_transform import RIDGE, DenseTransform, learn_transform
from xmlpreck.data.formats import Dataset
from xmlpreck.data.formats.dense_files import read_dense
from xmlpreck.data.rows import Subset
from xmlpreck.evaluation.report import Run, ScoredRows, write_report
from xmlpreck.kernels.dense import TILE_ROWS
from xmlpreck.model import Model, ModelError, prepare_rows
from xmlpreck.train import choose_dense_weight, fit, plan, tune

N_DENSE = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """300 + 60 rows whose labels follow from the embedding alone; words are noise."""
    folder = tmp_path_factory.mktemp("dense")
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(8, N_DENSE))
    for split, n_rows in (("train", 300), ("test", 60)):
        label = rng.integers(8, size=n_rows)
        dense = centres[label] + 0.3 * rng.normal(size=(n_rows, N_DENSE))
        np.save(folder / f"E_{split}.npy", dense.astype(np.float16))
        save_npz(folder / f"X_{split}.npz", csr_array((rng.random((n_rows, 30)) < 0.1).astype(np.float32)))
        save_npz(folder / f"Y_{split}.npz", csr_array(np.eye(8, dtype=np.float32)[label]))
    return folder


def run(capsys, *words):
    """Run a command; return its exit code and what it printed to stdout and stderr."""
    code = main([str(word) for word in words])
    return code, *capsys.readouterr()


def test_commands_find_the_dense_rows_of_a_folder(folder, tmp_path, capsys):
    words = ("--data", folder, "--threads", 1, "--epochs", 2, "--out", tmp_path / "m")
    code, printed, said = run(capsys, "train", *words)
    assert code == 0
    assert f"{30 + N_DENSE} features" in printed
    assert "dense features: weight" in said
    model = Model.load(tmp_path / "m")
    assert model.rows.n_dense == N_DENSE
    assert model.rows.dense_weight > 0
    assert next(one["dense_weight"] for one in model.info["dense"]["scores"]) == 0
    code, printed, _ = run(capsys, "evaluate", "--pred", tmp_path / "m", "--data", folder, "--json")
    assert code == 0
    assert json.loads(printed)["P@1"] > 90
    code, _, _ = run(capsys, "predict", "--model", tmp_path / "m", "--data", folder, "--out", tmp_path / "p.npz")
    assert code == 0
    given = ("--dense", folder / "E_test.npy", "--out", tmp_path / "q.npz")
    assert run(capsys, "predict", "--model", tmp_path / "m", "--data", folder, *given)[0] == 0
    assert (load_npz(tmp_path / "p.npz") != load_npz(tmp_path / "q.npz")).nnz == 0


def test_python_gives_the_bits_of_the_command(folder, tmp_path, capsys):
    words = ("--data", folder, "--threads", 1, "--no-tune", "--epochs", 2)
    assert run(capsys, "train", *words, "--out", tmp_path / "m")[0] == 0
    found = xmlpreck.fit(folder, dense=np.load(folder / "E_train.npy"), tune=False, threads=1, epochs=2)
    saved = Model.load(tmp_path / "m")
    rows, dense = load_npz(folder / "X_test.npz"), np.load(folder / "E_test.npy")
    top, same = (model.predict_topk(beside(csr_array(rows), dense), 3) for model in (found, saved))
    assert np.array_equal(top.scores, same.scores)
    assert np.array_equal(top.labels, same.labels)


def test_embedding_alone(folder, tmp_path):
    for split in ("train", "test"):
        np.save(tmp_path / f"E_{split}.npy", np.load(folder / f"E_{split}.npy"))
        save_npz(tmp_path / f"Y_{split}.npz", load_npz(folder / f"Y_{split}.npz"))
    model = xmlpreck.fit(tmp_path, tune=False, threads=1, epochs=2)
    assert model.n_features == model.rows.n_dense == N_DENSE
    assert xmlpreck.fit(tmp_path / "E_train.npy", tune=False, threads=1, epochs=2).n_features == N_DENSE
    dense = np.load(folder / "E_test.npy").astype(np.float32)
    label = load_npz(folder / "Y_test.npz").toarray().argmax(axis=1)
    assert (model.predict_topk(dense, 1).labels[:, 0] == label).mean() > 0.9


@pytest.mark.parametrize("kind", ["npy", "npz", "h5", "parquet"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_files_hold_the_same_rows(tmp_path, kind, dtype):
    dense = np.random.default_rng(0).normal(size=(7, 3)).astype(dtype)
    path = tmp_path / f"E.{kind}"
    if kind == "npy":
        np.save(path, dense)
    elif kind == "npz":
        np.savez(path, dense=dense, other=np.zeros((2, 2)))
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file["vectors"] = dense
    else:
        lists = pa.FixedSizeListArray.from_arrays(pa.array(dense.reshape(-1)), 3)
        pq.write_table(pa.table({"text": ["a"] * 7, "embedding": lists}), path)
    assert np.array_equal(read_dense(path), dense)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda E: E[:-1], "has 299 rows, but there are 300"),
        (lambda E: np.where(np.arange(N_DENSE) == 2, np.nan, E), "row 0 has the value nan in column 2"),
        (lambda E: (1e6 * E.astype(np.float32)).astype(np.float16), "it may have overflowed float16: save float32"),
        (lambda E: np.full(E.shape, 1e300), "row 0 has the value 1e\\+300 in column 0, which is not a finite float32"),
        (lambda E: np.where(np.arange(N_DENSE) == 3, np.float32(-np.inf), E), "row 0 has the value -inf in column 3"),
        (lambda E: E[0], "must be a matrix of float16 or float32, not float16 of \\(20,\\)"),
        (lambda E: E.astype(np.int32), "not int32"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_dense_rows_are_refused_in_one_line(folder, tmp_path, change, message):
    path = tmp_path / "E.npy"
    np.save(path, change(np.load(folder / "E_train.npy")))
    with pytest.raises(InputError, match=message) as error:
        xmlpreck.fit(folder, dense=path, tune=False, threads=1)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_other_widths_and_hostile_files_are_refused(folder, tmp_path, capsys):
    xmlpreck.fit(folder, tmp_path / "m", tune=False, threads=1, epochs=1)
    np.save(tmp_path / "narrow.npy", np.ones((60, 3), np.float32))
    (tmp_path / "bad.npy").write_bytes(
        b"\x93NUMPY\x01\x00\x76\x00{'descr': '|O', 'fortran_order': False, 'shape': (9**9,)}"
    )
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    (tmp_path / "words.txt").write_text("1 2 3")
    for name, message in (
        ("narrow.npy", "has 3 columns, but the model was trained on 20"),
        ("bad.npy", "cannot be read"),
        ("bad.parquet", "cannot be read as dense rows"),
        ("words.txt", "dense rows are read from .npy"),
        ("absent.npy", "absent.npy"),
    ):
        words = ("--data", folder, "--dense", tmp_path / name, "--out", tmp_path / "p.npz")
        code, _, said = run(capsys, "predict", "--model", tmp_path / "m", *words)
        assert (code, said.count("\n")) == (2, 1), said
        assert message in said
    assert not (tmp_path / "p.npz").exists()
    about = json.loads((tmp_path / "m" / "model.json").read_text())
    assert about["rows"]["n_dense"] == N_DENSE


def test_each_block_has_its_own_length():
    rng = np.random.default_rng(1)
    words = csr_array(np.array([[3.0, 4.0, 0], [0, 0, 0], [0, 0, 9.0]], np.float32))
    rows = beside(words, rng.normal(size=(3, 4)).astype(np.float32))
    for weight in (0.0, 0.25, 1.0):
        prepared = prepare_rows(rows, RowsConfig(bias=0, n_dense=4, dense_weight=weight)).toarray()
        squares = np.stack([(prepared[:, :3] ** 2).sum(axis=1), (prepared[:, 3:] ** 2).sum(axis=1)], axis=1)
        np.testing.assert_allclose(squares, [[1 - weight, weight], [0, weight], [1 - weight, weight]], atol=1e-6)
    raw = prepare_rows(rows, RowsConfig(unit_norm=False, bias=0, n_dense=4)).toarray()
    np.testing.assert_allclose(raw, rows.toarray() * np.sqrt(0.5), rtol=1e-6)
    with pytest.raises(InputError, match=r"rows\.n_dense is 9, but rows have 7 features"):
        prepare_rows(rows, RowsConfig(n_dense=9))


def test_missing_dense_values_are_zeros():
    """A row of JSON or scipy that stores no zeros is the row that stores them."""
    dense = np.array([[0.0, 1.0, 0.0, 2.0]], np.float32)
    settings = RowsConfig(n_dense=4)
    full = prepare_rows(beside(csr_array(np.ones((1, 2), np.float32)), dense), settings)
    short = prepare_rows(csr_array(np.hstack([np.ones((1, 2), np.float32), dense])), settings)
    assert full.nnz == short.nnz == 7
    assert (full != short).nnz == 0


def mixed(folder, split="train"):
    labels = csr_array(load_npz(folder / f"Y_{split}.npz"))
    return Dataset(beside(csr_array(load_npz(folder / f"X_{split}.npz")), np.load(folder / f"E_{split}.npy")), labels)


def test_weight_0_is_the_model_of_words(folder):
    rows, train = mixed(folder), TrainConfig(epochs=2, threads=1)
    with_dense = fit(rows, RunConfig(RowsConfig(n_dense=N_DENSE, dense_weight=0.0), train))
    words = fit(rows._replace(rows=rows.rows[:, :30]), RunConfig(train=train))
    test = mixed(folder, "test").rows
    top, same = with_dense.predict_topk(test, 3), words.predict_topk(test[:, :30], 3)
    assert np.array_equal(top.scores, same.scores)
    assert np.array_equal(top.labels, same.labels)


def test_weight_is_chosen_by_held_out_rows(folder):
    """0 where the dense features are noise, more where the labels follow from them; what is given stays."""
    rows = mixed(folder)
    config = RunConfig(RowsConfig(n_dense=N_DENSE), TrainConfig(threads=1))
    chosen = choose_dense_weight(rows, config)
    assert chosen is not None
    assert chosen.settings.rows.dense_weight > 0
    labels = rows.labels.toarray().argmax(axis=1)
    words = csr_array(np.eye(8, dtype=np.float32)[labels])
    noise = np.random.default_rng(3).normal(size=(rows.n_rows, N_DENSE)).astype(np.float32)
    chosen = choose_dense_weight(Dataset(beside(words, noise), rows.labels), config)
    assert chosen is not None
    assert chosen.settings.rows.dense_weight == 0
    given = RunConfig(RowsConfig(n_dense=N_DENSE), TrainConfig(threads=1), fixed=frozenset({"dense_weight"}))
    assert choose_dense_weight(rows, given) is None


def test_models_of_dense_rows_are_saved_and_refused(folder, tmp_path):
    model = fit(mixed(folder), RunConfig(RowsConfig(n_dense=N_DENSE), TrainConfig(epochs=1, threads=1)))
    model.save(tmp_path / "m")
    again = Model.load(tmp_path / "m")
    test = mixed(folder, "test").rows
    assert again.rows == model.rows
    assert np.array_equal(again.predict_topk(test, 3).scores, model.predict_topk(test, 3).scores)
    one = model.predict_one(test[4:5], 3)
    assert np.array_equal(one.scores, model.predict_topk(test, 3).scores[4])
    with pytest.raises(ModelError, match="have 30 features, but the model was trained on 50"):
        model.predict_topk(test[:, :30], 3)


def test_plans_count_the_scores_of_a_tile(folder):
    rows = mixed(folder)
    config = RunConfig(RowsConfig(n_dense=N_DENSE), TrainConfig(threads=2))
    buffers = [plan(data, config).parts["buffers"] for data in (rows, rows._replace(rows=rows.rows[:, :30]))]
    assert buffers[0] - buffers[1] == 2 * TILE_ROWS * rows.n_labels * 4


def test_estimator_takes_the_last_columns_as_dense(folder):
    rows = mixed(folder)
    labels = rows.labels.toarray().argmax(axis=1)
    X = hstack([rows.rows[:, :30], csr_array(rows.rows[:, 30:])]).tocsr()
    classifier = PrecAtKClassifier(n_dense=N_DENSE, dense_weight=0.8, tune=False, calibrate=False, epochs=2).fit(
        X, labels
    )
    assert classifier.model_.rows.n_dense == N_DENSE
    assert classifier.score(X, labels) > 0.9


def test_columns_of_tables(folder):
    pandas = pytest.importorskip("pandas")
    dense = np.load(folder / "E_train.npy").astype(np.float32)
    names = [[f"label {i}"] for i in load_npz(folder / "Y_train.npz").toarray().argmax(axis=1)]
    table = pandas.DataFrame(
        {"text": [f"the words of {i % 9}" for i in range(len(dense))], "labels": names, "vector": list(dense)}
    )
    data = xmlpreck.load_data(table, text="text", labels="labels")
    model = xmlpreck.fit(data, dense="vector", tune=False, threads=1, epochs=2)
    assert model.rows.n_dense == N_DENSE
    with pytest.raises(InputError, match="column 'nothing' must hold lists of floats"):
        xmlpreck.fit(data, dense="nothing", tune=False, threads=1)
    with pytest.raises(ModelError, match="20 dense features beside its words: give those of the texts by --dense"):
        model.predict_one("words of 3", 1)


def test_explanations_sum_the_blocks(folder):
    rows = mixed(folder)
    for weight in (0.0, 0.4):
        settings = RowsConfig(n_dense=N_DENSE, dense_weight=weight)
        model = fit(rows, RunConfig(settings, TrainConfig(epochs=1, threads=1)))
        best = xmlpreck.explain(model, rows, 3).to_dict()["labels"][0]
        assert sum(best["blocks"].values()) == pytest.approx(best["score"], abs=1e-5)
        assert (best["blocks"]["dense"] == 0) == (weight == 0)
        assert all(feature["feature"] < 30 for feature in best["removal"] or [])


def test_reports_sum_the_blocks(folder, tmp_path):
    model = fit(mixed(folder), RunConfig(RowsConfig(n_dense=N_DENSE), TrainConfig(epochs=1, threads=1)))
    rows = ScoredRows("dense", "test", mixed(folder, "test"))
    write_report(tmp_path / "report.html", [Run("mixed", model)], rows, datetime.date(2026, 11, 18))
    assert "Together: sparse " in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("effort", ["quick", "normal", "best"])
def test_rows_of_dense_features_alone_take_smaller_steps(folder, effort):
    rows = mixed(folder)
    alone = rows._replace(rows=rows.rows[:, 30:])
    words = RunConfig(RowsConfig(), TrainConfig(algo="hinge", effort=effort, threads=1), fixed=frozenset({"algo"}))
    settings = RunConfig(RowsConfig(n_dense=N_DENSE), words.train, fixed=words.fixed)
    usual, beside_words, suited = (
        tune(*given)[0].train for given in ((alone, words), (rows, settings), (alone, settings))
    )
    assert (beside_words.eta, beside_words.epochs) == (usual.eta, usual.epochs)
    is_quick = effort == "quick"
    assert suited.eta == usual.eta * (1 if is_quick else 0.5)
    assert suited.epochs == usual.epochs + (not is_quick)
    few = Dataset(alone.rows[:100], alone.labels[:100])
    assert tune(few, settings)[0].train.eta == usual.eta
    given = RunConfig(settings.rows, settings.train, fixed=frozenset({"algo", "eta", "epochs"}))
    assert (tune(alone, given) or [given])[0].train.eta == settings.train.eta


def reference_transform(train, rows, whiten):
    """Centre, then divide by the root of the covariance: in float64 and by other means than ours."""
    train, rows = train.astype(np.float64), rows.astype(np.float64)
    mean = train.mean(axis=0)
    if not whiten:
        return rows - mean
    covariance = np.cov(train.T, bias=True)
    covariance += RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    return np.linalg.solve(np.linalg.cholesky(covariance), (rows - mean).T).T


@pytest.mark.parametrize("kind", ["center", "whiten"])
def test_dense_features_are_transformed(folder, tmp_path, kind):
    """As the reference does, block by block or at once; the model on disk predicts, explains and updates by it."""
    rows, test = mixed(folder), mixed(folder, "test")
    config = RowsConfig(n_dense=N_DENSE, dense_transform=kind)
    transform = learn_transform(rows, config)
    found = transform.apply(test.rows)
    dense = [part.rows[:, 30:].toarray() for part in (rows, test)]
    np.testing.assert_allclose(found[:, 30:].toarray(), reference_transform(*dense, kind == "whiten"), 1e-4, 1e-5)
    assert np.array_equal(found[:, :30].toarray(), test.rows[:, :30].toarray())
    assert np.array_equal(transform.apply(test.rows[5:6]).toarray(), found[5:6].toarray())
    streamed = learn_transform(Subset(rows, np.arange(rows.n_rows)), config)
    assert all(np.array_equal(one, other) for one, other in zip(streamed, transform, strict=True))

    settings = {"rows.n_dense": N_DENSE, "rows.dense_transform": kind, "rows.dense_weight": 0.8}
    model = xmlpreck.fit(rows, tmp_path / "m", tune=False, threads=2, epochs=2, settings=settings)
    bare = fit(rows._replace(rows=transform.apply(rows.rows)), from_dict(model.info["config"], "test"))
    top = model.predict_topk(test.rows, 3)
    assert np.array_equal(top.scores, bare.predict_topk(found, 3).scores)
    loaded = Model.load(tmp_path / "m")
    assert np.array_equal(loaded.predict_topk(test.rows, 3).scores, top.scores)
    assert np.array_equal(loaded.predict_one(test.rows[:1], 3).scores, top.scores[0])
    best = xmlpreck.explain(loaded, test, 0).to_dict()["labels"][0]
    assert sum(best["blocks"].values()) == pytest.approx(best["score"], abs=1e-5)
    newer = xmlpreck.update(loaded, rows, tmp_path / "n", threads=1).model
    assert Model.load(tmp_path / "n").score(test)["P@1"] == newer.score(test)["P@1"] > 90


def test_transforms_that_do_not_fit_are_refused(folder, tmp_path):
    rows = mixed(folder)
    settings = {"rows.n_dense": N_DENSE, "rows.dense_transform": "whiten"}
    xmlpreck.fit(rows, tmp_path / "m", tune=False, threads=1, epochs=1, settings=settings)
    with pytest.raises(InputError, match="dense_matrix"):
        DenseTransform.load(tmp_path / "m", RowsConfig(n_dense=N_DENSE, dense_transform="center"))
    np.save(tmp_path / "m" / "dense_mean.npy", np.full(N_DENSE, np.nan))
    with pytest.raises(InputError, match="must hold"):
        DenseTransform.load(tmp_path / "m", RowsConfig(n_dense=N_DENSE, dense_transform="whiten"))
    with pytest.raises(InputError, match="there are no dense features"):
        xmlpreck.fit(rows, tune=False, threads=1, settings={"rows.dense_transform": "center"})
    with pytest.raises(InputError, match="one of none, center, whiten"):
        RowsConfig(dense_transform="scale")


def test_estimators_transform_dense_features(folder):
    rows = mixed(folder)
    labels = rows.labels.toarray().argmax(axis=1)
    settings = {"n_dense": N_DENSE, "dense_weight": 0.8, "dense_transform": "whiten", "tune": False, "epochs": 2}
    classifier = PrecAtKClassifier(**settings).fit(rows.rows, labels)
    assert classifier.model_.dense_transform is not None
    assert classifier.predict_proba(rows.rows).max(axis=1).mean() > 0.5
    scores = classifier.decision_function_sparse(rows.rows[:9]).toarray()
    np.testing.assert_allclose(scores, classifier.decision_function(rows.rows[:9]), atol=1e-5)
    with pytest.raises(InputError, match="needs all rows: use fit"):
        classifier.partial_fit(rows.rows, labels)


@pytest.mark.parametrize("kind", ["parquet", "hdf5"])
def test_shards_keep_dense_rows(folder, tmp_path, kind):
    """Shards of a folder with E_train.npy give its model, to the bit; shards of shards, too."""
    settings = {"rows.dense_weight": 0.6}
    direct = xmlpreck.fit(folder, tune=False, threads=1, epochs=1, settings=settings)
    xmlpreck.convert(str(folder), tmp_path / "shards", format=kind, rows_per_shard=77)
    xmlpreck.convert(str(tmp_path / "shards"), tmp_path / "again")
    for made in ("shards", "again"):
        model = xmlpreck.fit(tmp_path / made, tune=False, threads=1, epochs=1, settings=settings)
        assert model.rows == direct.rows
        assert np.array_equal(model.weights.values, direct.weights.values)
    assert model.score(xmlpreck.load_data(tmp_path / "shards", "test")) == direct.score(mixed(folder, "test"))
    np.save(tmp_path / "E_train.npy", np.zeros((7, 3), np.float32))
    for name in ("X_train.npz", "Y_train.npz"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(InputError, match="has 7 rows"):
        xmlpreck.convert(str(tmp_path), tmp_path / "bad")


@pytest.mark.parametrize("library", ["pyarrow", "polars"])
def test_columns_of_other_tables(folder, library):
    """The column of a data frame gives what the matrix gives."""
    dense = np.load(folder / "E_train.npy").astype(np.float32)
    names = [[f"label {i}"] for i in load_npz(folder / "Y_train.npz").toarray().argmax(axis=1)]
    columns = {"text": [f"the words of {i % 9}" for i in range(len(dense))], "labels": names}
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(dense.reshape(-1)), N_DENSE)
    table = pa.table(columns | {"embedding": embedding})
    frame = table if library == "pyarrow" else pytest.importorskip("polars").from_arrow(table)
    given = xmlpreck.load_data(frame, text="text", labels="labels")
    ours, other = (xmlpreck.fit(given, dense=of, tune=False, threads=1, epochs=1) for of in ("embedding", dense))
    assert ours.rows.n_dense == N_DENSE
    assert np.array_equal(ours.weights.values, other.weights.values)


def test_nearest_training_rows(folder, tmp_path, capsys):
    words = ("--data", folder, "--threads", 1, "--epochs", 1, "--no-tune", "--out", tmp_path / "m")
    assert run(capsys, "train", *words)[0] == 0
    command = ("explain", "--model", tmp_path / "m", "--data", folder, "--row", 4, "--neighbours", 3)
    code, printed, _ = run(capsys, *command)
    assert code == 0
    assert "nearest training rows" in printed
    near = json.loads(run(capsys, *command, "--json")[1])["neighbours"]
    train, test = (np.load(folder / f"E_{split}.npy").astype(np.float64) for split in ("train", "test"))
    cosines = train @ test[4] / np.linalg.norm(train, axis=1) / np.linalg.norm(test[4])
    assert [one["row"] for one in near] == np.argsort(-cosines)[:3].tolist()
    assert near[0]["cosine"] == pytest.approx(cosines.max())
    with pytest.raises(InputError, match="are not here"):
        xmlpreck.explain(fit(mixed(folder), RunConfig(RowsConfig(n_dense=N_DENSE))), mixed(folder), 0, neighbours=1)
