"""Shards and models written to an S3 store: the same bits as in a folder, never half of one, errors in one line."""

import re

import pytest
from helpers import assert_same_dataset, write_set
from remote_store import failure, moto_server, open_store

from xmlpreck.api import choices
from xmlpreck.cli import main
from xmlpreck.config import InputError
from xmlpreck.data.formats import read_predictions
from xmlpreck.data.shards import KINDS, ShardError, ShardSet
from xmlpreck.data.synthetic import make_dataset
from xmlpreck.model import Model, ModelError

TRAIN = ("--epochs", "1", "--threads", "1", "--no-tune")


@pytest.fixture(scope="module")
def port():
    with moto_server() as port:
        yield port


@pytest.fixture
def store(port, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where `runs` is
    with open_store(port, tmp_path) as store:
        yield store


@pytest.fixture(scope="module")
def data():
    return make_dataset(120, 40, 90, features_per_row=8, seed=3)


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    write_set(folder / "set", data)
    assert main(["train", "--data", str(folder / "set"), "--out", str(folder / "model"), *TRAIN]) == 0
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stored(store, prefix):
    return {key.removeprefix(f"{prefix}/"): store.read(key) for key in store.files() if key.startswith(f"{prefix}/")}


@pytest.mark.parametrize("kind", KINDS)
def test_convert_writes_the_same_files(store, model, kind, capsys):
    words = ("data", "convert", str(model / "set"))
    more = ("--format", kind, "--rows-per-shard", "50", "--shuffle")
    assert main([*words, "here", *more]) == 0
    assert main([*words, store.uri("there"), *more]) == 0
    here = contents(store.root / "here" / "train")
    assert here.keys() > {"manifest.json", "labels.txt"}
    assert stored(store, "there/train") == here
    assert "cret" not in capsys.readouterr().out


def test_a_smaller_set_replaces_a_larger_one(store, data):
    write_set(store.uri("set"), data, rows_per_shard=30)
    write_set(store.uri("set"), data, rows_per_shard=70)
    assert sorted(name for name in stored(store, "set") if name.startswith("shard")) == [
        "shard-00000.parquet",
        "shard-00001.parquet",
    ]
    assert_same_dataset(ShardSet(store.uri("set"), verify=True).read(0, 120), data)


def test_half_a_set_is_no_set(store, data):
    write_set(store.uri("set"), data, rows_per_shard=30)
    store.broken = "(PUT|POST) .*shard-00001"
    with pytest.raises(InputError, match=r"shard-00001.*: cannot be written: .*: check the network"):
        write_set(store.uri("set"), data.read(0, 70), rows_per_shard=30)
    store.broken = None
    with pytest.raises(ShardError, match=r"manifest\.json.*: cannot be read: .*(not exist|No such file)"):
        ShardSet(store.uri("set"))
    write_set(store.uri("set"), data, rows_per_shard=50)  # what is left of it is in nobody's way
    assert_same_dataset(ShardSet(store.uri("set")).read(0, 120), data)


def test_files_of_others_stay(store, model, data):
    store.write("mine/thesis.txt", b"years")
    refusal = r"^s3://bucket-\d+/mine\?.*: holds 'thesis\.txt', which is not part of a "
    with pytest.raises(InputError, match=refusal + "shard set"):
        write_set(store.uri("mine"), data)
    with pytest.raises(InputError, match=refusal + "model"):
        Model.load(model / "model").save(store.uri("mine"))
    assert stored(store, "mine") == {"thesis.txt": b"years"}


def test_a_model_is_saved_and_loaded(store, model):
    here = Model.load(model / "model")
    assert here.save(store.uri("a%20model")) == sum(len(content) for content in contents(model / "model").values())
    there = Model.load(store.uri("a%20model"))
    assert [array.tobytes() for array in there.weights] == [array.tobytes() for array in here.weights]
    assert (there.label_names, there.info) == (here.label_names, here.info)
    smaller = choices.prune(store.uri("a%20model"), store.uri("smaller"), threshold=0.1).model
    assert Model.load(store.uri("smaller")).n_weights == smaller.n_weights < here.n_weights
    assert not list(store.root.iterdir())  # nothing is left here


def test_commands_train_and_predict_there(store, model, capsys):
    """The model that is trained stays in runs/NAME, beside which checkpoints are."""
    assert main(["train", "--data", str(model / "set"), "--out", store.uri("models/mine"), *TRAIN]) == 0
    said = capsys.readouterr()
    assert "has a copy of runs/mine" in said.out + said.err
    assert "cret" not in said.out + said.err
    there, local = stored(store, "models/mine"), contents(store.root / "runs" / "mine")
    assert there == local
    assert {name for name in there if name.endswith(".npy")} == {path.name for path in (model / "model").glob("*.npy")}
    assert not any(re.search(rb"se(/|%2F)cret", content) for content in there.values())
    for name, place in (("here", model / "model"), ("there", store.uri("models/mine"))):
        assert main(["predict", "--model", str(place), "--data", str(model / "set"), "--out", f"{name}.npz"]) == 0
    words = ("--model", store.uri("models/mine"), "--data", str(model / "set"), "--out", store.uri("models/newer"))
    assert main(["update", *words, "--threads", "1"]) == 0
    assert Model.load(store.uri("models/newer")).n_labels == 90
    here, there = (read_predictions(store.root / f"{name}.npz", 120, 90) for name in ("here", "there"))
    assert here.labels.tobytes() == there.labels.tobytes()
    assert here.scores.tobytes() == there.scores.tobytes()


def test_half_a_model_is_no_model(store, model, capsys):
    store.broken = "(PUT|POST) .*row_weights"
    words = ("train", "--data", str(model / "set"), "--out", store.uri("mine"), *TRAIN)
    assert failure(capsys, *words).endswith(": check the network and the endpoint; the model is in runs/mine")
    store.broken = None
    assert Model.load(store.root / "runs" / "mine").n_labels == 90
    assert "model.json" not in stored(store, "mine")
    with pytest.raises(ModelError, match=r"/mine\?.*: is not a model: it has no model\.json"):
        Model.load(store.uri("mine"))


def test_a_damaged_model_is_refused(store, model):
    store.copy(model / "model", "mine")
    whole = store.read("mine/row_weights.npy")
    store.write("mine/row_weights.npy", whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ModelError, match=r"^s3://bucket-\d+/mine.*row_weights\.npy: has changed since"):
        Model.load(store.uri("mine"))
    store.client.delete_object(Bucket=store.bucket, Key="mine/row_weights.npy")
    with pytest.raises(ModelError, match=r"^s3://bucket-\d+/mine/row_weights\.npy\?.*: cannot be read: "):
        Model.load(store.uri("mine"))


def test_errors_are_one_line_and_come_before_the_work(store, model, capsys):
    train = ("train", "--data", str(model / "set"), *TRAIN, "--out")
    sets = ("data", "convert", str(model / "set"))
    for words in ((*train, store.uri("x", "nowhere")), (*sets, store.uri("x", "nowhere"))):
        assert "the name of the bucket, or make it" in failure(capsys, *words)
    assert "where this command cannot write" in failure(
        capsys, *train, store.uri("x"), "--sweep", "k=1,3", "--heldout", "0.1"
    )
    store.ask_for_rights()
    for words in ((*train, store.uri("x")), (*sets, store.uri("x"))):
        assert "check the credentials" in failure(capsys, *words)
    asked = ("predict", "--model", store.uri("x"), "--data", str(model / "set"), "--out", "p.npz")
    assert "check the credentials" in failure(capsys, *asked)
    assert "give its folder" in failure(capsys, *asked, "--engine", "ray")
    store.close()
    assert "check the network" in failure(capsys, *train, store.uri("x"))
    assert not (store.root / "runs").exists()
