"""Shard sets by URI: the same rows and models as from a folder, no byte too many, and errors in one line."""

import email.utils
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from helpers import assert_same_dataset, fitted_bits, write_set

from xmlpreck.cli import main
from xmlpreck.config import InputError, without_secrets
from xmlpreck.data.shards import KINDS, ShardError, ShardSet, find_shards, has_split, is_one_set, open_split, remote
from xmlpreck.data.shards.remote import is_remote, locate
from xmlpreck.data.synthetic import make_dataset

SECRET = "se/cret"


class Answers(BaseHTTPRequestHandler):
    """What S3 answers to readers: HeadObject, GetObject of a range, ListObjectsV2."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet: else each answer waits 40 ms for an acknowledgement

    def log_message(self, *words):
        pass

    def do_GET(self):
        store, where = self.server.store, urlsplit(self.path)
        path = store.root / unquote(where.path).strip("/")
        if store.refusal:
            self.reply(403, error_text(store.refusal))
        elif "list-type" in parse_qs(where.query):
            found = b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
            self.reply(200, found) if path.is_dir() else self.reply(404, error_text("NoSuchBucket"))
        elif not path.is_file():
            self.reply(404, error_text("NoSuchKey"))
        else:
            self.send_file(path)

    do_HEAD = do_GET

    def send_file(self, path):
        content, asked = path.read_bytes(), self.headers["Range"]
        about = {"Last-Modified": email.utils.formatdate(path.stat().st_mtime, usegmt=True), "ETag": '"1"'}
        if asked is None:
            return self.reply(200, content, about)
        first, last = (int(number) for number in asked.removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        self.reply(206, part, about | {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(content)}"})

    def reply(self, status, body, headers=None):
        self.send_response(status)
        for name, value in ((headers or {}) | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.server.store.n_answers -= 1
            if self.server.store.n_answers < 0:
                body, self.close_connection = body[:-1], True
            self.wfile.write(body)
            self.server.store.served.append(len(body))


def error_text(code):
    return f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()


class Store:
    """Folders as buckets of an object store on this machine, whose answers break off after the first `n_answers`."""

    def __init__(self, root):
        self.root, self.refusal, self.n_answers, self.served = root, "", 10**9, []
        self.server = ThreadingHTTPServer(("localhost", 0), Answers)
        self.server.store = self
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def uri(self, path):
        options = f"endpoint_override=localhost:{self.server.server_port}&scheme=http&region=us-east-1"
        return f"s3://key:{SECRET.replace('/', '%2F')}@{path}?{options}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def store(tmp_path):
    (tmp_path / "bucket").mkdir()
    store = Store(tmp_path)
    yield store
    store.close()


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
    write_set(store.root / "bucket" / "a set", data, kind)
    shards = ShardSet(store.uri("bucket/a%20set"))
    for start, stop in ((0, 230), (0, 1), (32, 34), (10, 150), (5, 5)):
        assert_same_dataset(shards.read(start, stop), data.read(start, stop))
    assert_same_dataset(ShardSet(shards.path, verify=True).read(0, 230), data)


@pytest.mark.parametrize("kind", KINDS)
def test_training_gives_the_same_bits(store, data, kind):
    local = write_set(store.root / "bucket" / "set", data, kind)
    assert fitted_bits(ShardSet(store.uri("bucket/set")), 2) == fitted_bits(local, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_only_needed_bytes_come(store, kind):
    many = make_dataset(30_000, 1000, 50, features_per_row=20, seed=1)
    write_set(store.root / "bucket" / "set", many, kind, rows_per_shard=15_000, chunk_rows=15_000)
    sizes = {path.name: path.stat().st_size for path in (store.root / "bucket" / "set").iterdir()}
    shards = ShardSet(store.uri("bucket/set"))
    assert sorted(store.served) == sorted(size for name, size in sizes.items() if not name.startswith("shard"))
    store.served.clear()
    assert_same_dataset(shards.read(9000, 9100), many.read(9000, 9100))
    assert 0 < sum(store.served) < sum(sizes.values()) / 4
    assert len(store.served) < 12


def test_splits(store, data):
    write_set(store.root / "bucket" / "both" / "train", data)
    write_set(store.root / "bucket" / "one", data)
    both, one = store.uri("bucket/both"), store.uri("bucket/one")
    assert has_split(both, "train")
    assert not has_split(both, "test")
    assert has_split(one, "test")
    assert (is_one_set(both), is_one_set(one)) == (False, True)
    assert find_shards(both, "train").uri == store.uri("bucket/both/train")
    assert_same_dataset(open_split(both, "train").read(0, 230), data)
    with pytest.raises(ShardError, match=r"^s3://bucket/both\?.*: has no manifest\.json, nor has its folder test"):
        open_split(both, "test")


def test_a_path_that_travels(tmp_path, data, monkeypatch):
    write_set(tmp_path / "set", data)
    monkeypatch.chdir(tmp_path)
    here = ShardSet("set")
    monkeypatch.chdir("/")
    assert_same_dataset(ShardSet(here.path).read(0, 230), data)


def one_line(caught):
    text = str(caught.value)
    assert text.startswith("s3://bucket/set")
    assert "\n" not in text
    assert not any(form in text for form in (SECRET, SECRET.replace("/", "%2F"), "key:"))
    return text


def test_no_such_bucket(store):
    with pytest.raises(ShardError, match=r"s3://nowhere/x.*: has no manifest\.json.*check bucket and folder"):
        open_split(store.uri("nowhere/x"), "train")
    with pytest.raises(ShardError, match=r"^s3://nowhere/x/manifest.json\?.*: cannot be read: .*does not exist"):
        ShardSet(store.uri("nowhere/x"))


def test_no_permission(store, data):
    write_set(store.root / "bucket" / "set", data)
    shards = ShardSet(store.uri("bucket/set"))
    store.refusal = "AccessDenied"
    for call in (lambda: shards.read(0, 5), lambda: ShardSet(shards.path), lambda: has_split(shards.path, "train")):
        with pytest.raises(InputError, match=r"ACCESS_DENIED.*: check the credentials") as caught:
            call()
        one_line(caught)


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_that_breaks(store, data, kind):
    write_set(store.root / "bucket" / "set", data, kind)
    shards = ShardSet(store.uri("bucket/set"))
    store.n_answers = 0
    with pytest.raises(ShardError, match=r"shard-00000\..*: rows 0 to 4 cannot be read.*: check the network") as caught:
        shards.read(0, 5)
    one_line(caught)


def test_no_server(store, data):
    store.close()
    with pytest.raises(InputError, match=r"cannot be read: .*: check the network and the endpoint") as caught:
        has_split(store.uri("bucket/set"), "train")
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


def damage(path, kind):
    content = path.read_bytes()
    path.write_bytes(content[:-1] if kind == "shorter" else bytes([content[0] ^ 1]) + content[1:])


def test_files_are_held_to_the_manifest(store, data):
    folder = store.root / "bucket" / "set"
    write_set(folder, data)
    damage(folder / "shard-00002.parquet", "changed")
    shards = ShardSet(store.uri("bucket/set"))
    with pytest.raises(ShardError, match=r"shard-00002.*: has changed since the manifest was written"):
        ShardSet(shards.path, verify=True)
    damage(folder / "shard-00001.parquet", "shorter")
    with pytest.raises(ShardError, match=r"shard-00001.*: has [\d,]+ bytes, but the manifest says"):
        ShardSet(shards.path)
    # A file that changes while a run goes on is looked at again.
    with pytest.raises(ShardError, match=r"shard-00001.*: has [\d,]+ bytes, but the manifest says"):
        shards.read(40, 41)
    (folder / "shard-00001.parquet").unlink()
    with pytest.raises(ShardError, match=r"shard-00001.*: cannot be read: No such file or directory"):
        ShardSet(shards.path)


def test_a_bomb_is_named_by_its_uri(store, data, monkeypatch):
    write_set(store.root / "bucket" / "set", data, "hdf5")
    monkeypatch.setattr("xmlpreck.files.contents.RATIO_COUNTS_FROM", 0)
    monkeypatch.setattr("xmlpreck.files.contents.MAX_RATIO", 0)
    with pytest.raises(InputError, match=r"shard-00000\.h5\?.*: refused: its [\d,]+ bytes unpack to") as caught:
        ShardSet(store.uri("bucket/set")).read(0, 5)
    one_line(caught)


def test_names_that_do_not_fit(store, data):
    folder = store.root / "bucket" / "set"
    write_set(folder, data)
    about = json.loads((folder / "manifest.json").read_text())
    about["n_labels"] += 1
    (folder / "manifest.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"labels\.txt\?.*: has 90 names, but the data have 91"):
        ShardSet(store.uri("bucket/set"))


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
        write_set(store.root / "bucket" / "both" / split, data)
    scores = {}
    for name, place in (("here", str(store.root / "bucket" / "both")), ("there", store.uri("bucket/both"))):
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
    assert (place["name"], place["place"]) == ("both", without_secrets(store.uri("bucket/both")))


def failure(capsys, *words):
    assert main(list(words)) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("xmlpreck: ")]
    assert len(lines) == 1
    assert "cret" not in lines[0]
    return lines[0]


def test_commands_that_fail_do_so_in_one_line(store, data, capsys):
    write_set(store.root / "bucket" / "set", data)
    words = ("train", "--data", store.uri("bucket/set"), "--out", str(store.root / "model"), *TRAIN)
    assert "raw text is read from local files only" in failure(capsys, *words, "--text-column", "text")
    assert "only local files can be validated" in failure(capsys, "data", "validate", store.uri("bucket/set"))
    assert "has no manifest.json" in failure(capsys, "train", "--data", store.uri("bucket/none"), *TRAIN)
    assert "cannot be opened" in failure(capsys, "train", "--data", "ftp://me:se%2Fcret@x/y", *TRAIN)
    store.refusal = "AccessDenied"
    assert "check the credentials" in failure(capsys, *words)
    store.refusal, store.n_answers = "", 4  # the manifest, two files of names, one shard
    assert re.search(r"shard-0000\d\.parquet\?.* cannot be read: .*: check the network", failure(capsys, *words))
