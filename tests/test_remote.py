"""Shard sets by URI, in an S3 store: the same rows and models as in a folder, no byte too many, errors in one line."""

import json
import re
from pathlib import Path

import pytest
from helpers import assert_same_dataset, fitted_bits, write_set
from remote_store import SECRET, failure, moto_server, open_store

from xmlpreck.cli import main
from xmlpreck.config import InputError, without_secrets
from xmlpreck.data.shards import KINDS, ShardError, ShardSet, find_shards, has_split, is_one_set, open_split, remote
from xmlpreck.data.shards.remote import is_remote, locate
from xmlpreck.data.synthetic import make_dataset


@pytest.fixture(scope="module")
def port():
    with moto_server() as port:
        yield port


@pytest.fixture
def store(port, tmp_path):
    with open_store(port, tmp_path) as store:
        yield store


@pytest.fixture(scope="module")
def data():
    plain = make_dataset(230, 40, 90, features_per_row=8, seed=3)
    return plain._replace(label_names=[f"label é{i}" for i in range(90)])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_by_file_uri(tmp_path, data, kind):
    write_set(tmp_path / "a set", data, kind)
    assert_same_dataset(ShardSet((tmp_path / "a set").as_uri()).read(0, 230), data)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_an_object_store(store, data, kind):
    write_set(store.uri("a%20set"), data, kind)
    shards = ShardSet(store.uri("a%20set"))
    for start, stop in ((0, 230), (0, 1), (32, 34), (10, 150), (5, 5)):
        assert_same_dataset(shards.read(start, stop), data.read(start, stop))
    assert_same_dataset(ShardSet(shards.path, verify=True).read(0, 230), data)


@pytest.mark.parametrize("kind", KINDS)
def test_training_gives_the_same_bits(store, data, kind):
    local = write_set(store.root / "set", data, kind)
    store.copy(store.root / "set", "set")
    assert fitted_bits(ShardSet(store.uri("set")), 2) == fitted_bits(local, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_only_needed_bytes_come(store, kind):
    many = make_dataset(30_000, 1000, 50, features_per_row=20, seed=1)
    write_set(store.root / "set", many, kind, rows_per_shard=15_000, chunk_rows=15_000)
    store.copy(store.root / "set", "set")
    sizes = store.files()
    shards = ShardSet(store.uri("set"))
    assert sorted(store.served) == sorted(size for name, size in sizes.items() if "shard" not in name)
    store.served.clear()
    assert_same_dataset(shards.read(9000, 9100), many.read(9000, 9100))
    assert 0 < sum(store.served) < sum(sizes.values()) / 4
    assert len(store.served) < 12


def test_splits(store, data):
    write_set(store.uri("both/train"), data)
    write_set(store.uri("one"), data)
    both, one = store.uri("both"), store.uri("one")
    assert has_split(both, "train")
    assert not has_split(both, "test")
    assert has_split(one, "test")
    assert (is_one_set(both), is_one_set(one)) == (False, True)
    assert find_shards(both, "train").uri == store.uri("both/train")
    assert_same_dataset(open_split(both, "train").read(0, 230), data)
    with pytest.raises(ShardError, match=r"^s3://bucket-\d+/both\?.*: has no manifest\.json, nor has its folder test"):
        open_split(both, "test")


def test_a_path_that_travels(tmp_path, data, monkeypatch):
    write_set(tmp_path / "set", data)
    monkeypatch.chdir(tmp_path)
    here = ShardSet("set")
    monkeypatch.chdir("/")
    assert_same_dataset(ShardSet(here.path).read(0, 230), data)


def one_line(caught):
    text = str(caught.value)
    assert re.match(r"s3://bucket-\d+/set", text)
    assert "\n" not in text
    assert not any(form in text for form in (SECRET, SECRET.replace("/", "%2F"), "key:"))
    return text


def test_no_such_bucket(store):
    with pytest.raises(ShardError, match=r"s3://nowhere/x.*: has no manifest\.json.*check bucket and folder"):
        open_split(store.uri("x", "nowhere"), "train")
    with pytest.raises(ShardError, match=r"^s3://nowhere/x/manifest.json\?.*: cannot be read: .*does not exist"):
        ShardSet(store.uri("x", "nowhere"))


def test_no_permission(store, data):
    write_set(store.uri("set"), data)
    shards = ShardSet(store.uri("set"))
    store.ask_for_rights()
    for call in (lambda: shards.read(0, 5), lambda: ShardSet(shards.path), lambda: has_split(shards.path, "train")):
        with pytest.raises(InputError, match=r"ACCESS_(DENIED|KEY).*: check the credentials") as caught:
            call()
        one_line(caught)


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_that_breaks(store, data, kind):
    write_set(store.uri("set"), data, kind)
    shards = ShardSet(store.uri("set"))
    store.broken = "GET"
    with pytest.raises(ShardError, match=r"shard-00000\..*: rows 0 to 4 cannot be read.*: check the network") as caught:
        shards.read(0, 5)
    one_line(caught)


def test_no_server(store, data):
    store.close()
    with pytest.raises(InputError, match=r"cannot be read: .*: check the network and the endpoint") as caught:
        has_split(store.uri("set"), "train")
    one_line(caught)


@pytest.mark.parametrize(
    "uri",
    [
        "gs://anonymous@bucket/set?scheme=http&endpoint_override=localhost:9",
        "abfs://box:c2VjcmV0@account.x/set?enable_tls=false&blob_storage_authority=localhost:9",
    ],
)
def test_other_stores_give_up_too(uri, monkeypatch):
    """Google's client would try again for many minutes; Azure's errors are no OSErrors."""
    monkeypatch.setattr(remote, "GOOGLE_SECONDS", 1)
    with pytest.raises(InputError, match=r"^\w+://\w+@[\w.]+/set/manifest\.json\?.*: cannot be read: .*: check the"):
        has_split(uri, "train")


def test_files_are_held_to_the_manifest(store, data):
    write_set(store.uri("set"), data)
    whole = store.read("set/shard-00002.parquet")
    store.write("set/shard-00002.parquet", bytes([whole[0] ^ 1]) + whole[1:])
    shards = ShardSet(store.uri("set"))
    with pytest.raises(ShardError, match=r"shard-00002.*: has changed since the manifest was written"):
        ShardSet(shards.path, verify=True)
    store.write("set/shard-00001.parquet", store.read("set/shard-00001.parquet")[:-1])
    with pytest.raises(ShardError, match=r"shard-00001.*: has [\d,]+ bytes, but the manifest says"):
        ShardSet(shards.path)
    # A file that changes while a run goes on is looked at again.
    with pytest.raises(ShardError, match=r"shard-00001.*: has [\d,]+ bytes, but the manifest says"):
        shards.read(40, 41)
    store.client.delete_object(Bucket=store.bucket, Key="set/shard-00001.parquet")
    with pytest.raises(ShardError, match=r"shard-00001.*: cannot be read: No such file or directory"):
        ShardSet(shards.path)


def test_a_bomb_is_named_by_its_uri(store, data, monkeypatch):
    write_set(store.uri("set"), data, "hdf5")
    monkeypatch.setattr("xmlpreck.files.contents.RATIO_COUNTS_FROM", 0)
    monkeypatch.setattr("xmlpreck.files.contents.MAX_RATIO", 0)
    with pytest.raises(InputError, match=r"shard-00000\.h5\?.*: refused: its [\d,]+ bytes unpack to") as caught:
        ShardSet(store.uri("set")).read(0, 5)
    one_line(caught)


def test_names_that_do_not_fit(store, data):
    write_set(store.uri("set"), data)
    about = json.loads(store.read("set/manifest.json"))
    about["n_labels"] += 1
    store.write("set/manifest.json", json.dumps(about))
    with pytest.raises(InputError, match=r"labels\.txt\?.*: has 90 names, but the data have 91"):
        ShardSet(store.uri("set"))


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://bucket/a@b:c", "s3://bucket/a@b:c"),
        ("s3://key:sec%2Fret@bucket/x?region=eu", "s3://bucket/x?region=eu"),
        ("s3://key:sec/ret@bucket/x", "s3://bucket/x"),
        ("hdfs://me:pass@node:8020/x", "hdfs://me@node:8020/x"),
        ("hdfs://node:8020/x@y", "hdfs://node:8020/x@y"),
        ("abfs://c@a.net/x?client_secret=s&tenant_id=t", "abfs://c@a.net/x?tenant_id=t"),
        ("abfs://:ke/y==@account/x", "abfs://@account/x"),
        ("hdfs://me:p@ss@node/x", "hdfs://me@node/x"),
        ("https://h/x.zip?X-Amz-Credential=c&X-Amz-Signature=s&v=2", "https://h/x.zip?v=2"),
        ("https://a.net/x?sv=1&sig=abc%3D", "https://a.net/x?sv=1"),
        # every address in a text, whatever stands around it
        ("--data='s3://k:s@b/x?secret_key=y&region=eu': no", "--data='s3://b/x?region=eu': no"),
        ("s3://k:s@b/x?secret_key=y: not found, nor s3://k:s@b/y", "s3://b/x: not found, nor s3://b/y"),
        ("s3:/k:s/t@b/x", "s3:/b/x"),  # as a Path has it
        ("is it there? a key=b may help", "is it there? a key=b may help"),
    ],
)
def test_secrets_are_not_shown(uri, shown):
    assert without_secrets(uri) == shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize("uri", ["ftp://me:se%2Fcret@x/y", "s3://key:se/cret@bucket/x"])
def test_uris_that_arrow_does_not_open(uri):
    with pytest.raises(InputError, match=r"^\w+://.*: cannot be opened: ") as caught:
        locate(uri)
    assert "cret" not in str(caught.value)


def test_what_is_remote():
    assert is_remote("s3://bucket/x")
    assert is_remote("file:///x")
    for path in ("a/b", "C:/x", "demo", "a:b", Path("s3://bucket/x")):
        assert not is_remote(path)
        assert isinstance(locate(path), Path)


TRAIN = ("--epochs", "2", "--threads", "1", "--no-tune")


def arrays(model):
    return {path.name: path.read_bytes() for path in sorted(model.glob("*.npy"))}


def test_commands_take_uris(store, data, capsys):
    """Model, predictions and scores are those of the folder; no secret is stored."""
    for split in ("train", "test"):
        write_set(store.root / "both" / split, data)
    store.copy(store.root / "both", "both")
    scores = {}
    for name, place in (("here", str(store.root / "both")), ("there", store.uri("both"))):
        out = store.root / name
        assert main(["train", "--data", place, "--out", str(out / "model"), *TRAIN]) == 0
        predictions = str(out / "predictions.npz")
        assert main(["predict", "--data", place, "--model", str(out / "model"), "--out", predictions]) == 0
        capsys.readouterr()
        assert main(["evaluate", "--data", place, "--pred", predictions, "--json"]) == 0
        scores[name] = json.loads(capsys.readouterr().out)
        assert not any(b"cret" in path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert arrays(store.root / "here" / "model") == arrays(store.root / "there" / "model")
    assert (store.root / "here" / "predictions.npz").read_bytes() == (
        store.root / "there" / "predictions.npz"
    ).read_bytes()
    assert scores["here"] == scores["there"]
    place = json.loads((store.root / "there" / "model" / "model.json").read_text())["data"]
    assert (place["name"], place["place"]) == ("both", without_secrets(store.uri("both")))


def test_commands_that_fail_do_so_in_one_line(store, data, capsys):
    write_set(store.uri("set"), data)
    words = ("train", "--data", store.uri("set"), "--out", str(store.root / "model"), *TRAIN)
    assert "raw text is read from local files only" in failure(capsys, *words, "--text-column", "text")
    assert "only local files can be validated" in failure(capsys, "data", "validate", store.uri("set"))
    assert "has no manifest.json" in failure(capsys, "train", "--data", store.uri("none"), *TRAIN)
    assert "cannot be opened" in failure(capsys, "train", "--data", "ftp://me:se%2Fcret@x/y", *TRAIN)
    store.ask_for_rights()
    assert "check the credentials" in failure(capsys, *words)
    store.ask_for_rights(False)
    store.broken = "GET .*shard"
    assert re.search(r"shard-0000\d\.parquet\?.* cannot be read: .*: check the network", failure(capsys, *words))
