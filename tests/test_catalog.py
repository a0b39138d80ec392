"""The catalogue: cards, names and aliases, where data are looked for and fetched, the checks against the card."""

import dataclasses
import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest

from xmlpreck.config import InputError
from xmlpreck.data import catalog, formats, shards, synthetic
from xmlpreck.data.rows import concatenate

# Every name that the catalogue must know, with its propensity constants A and B.
UNIVERSAL, WIKI, AMAZON = (0.55, 1.5), (0.5, 0.4), (0.6, 2.6)
NAMES = {
    "Bibtex": UNIVERSAL,
    "Delicious": UNIVERSAL,
    "Mediamill": UNIVERSAL,
    "EURLex-4K": UNIVERSAL,
    "EURLex-4.3K": UNIVERSAL,
    "EURLEX57K": UNIVERSAL,
    "RCV1-2K": UNIVERSAL,
    "Wiki10-31K": UNIVERSAL,
    "AmazonCat-13K": UNIVERSAL,
    "Delicious-200K": UNIVERSAL,
    "WikiLSHTC-325K": WIKI,
    "Wikipedia-500K": WIKI,
    "Amazon-670K": AMAZON,
    "Amazon-3M": AMAZON,
    "LF-AmazonTitles-131K": AMAZON,
    "LF-Amazon-131K": AMAZON,
    "LF-WikiSeeAlsoTitles-320K": WIKI,
    "LF-WikiSeeAlso-320K": WIKI,
    "LF-WikiTitles-500K": WIKI,
    "LF-AmazonTitles-1.3M": AMAZON,
    "npm-deps": UNIVERSAL,
    "wordnet-rel": UNIVERSAL,
    "demo": UNIVERSAL,
}
SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.delenv("XMLPRECK_DATA", raising=False)
    monkeypatch.delenv("XMLPRECK_OFFLINE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def tiny_card(monkeypatch):
    """A card with an alias, of the size that `_put` writes."""
    card = dataclasses.replace(
        catalog.load_cards()["bibtex"],
        name="tiny",
        aliases=("wee",),
        n_train=6,
        n_test=4,
        n_features=9,
        n_labels=5,
        mirrors=(),
    )
    monkeypatch.setattr(catalog, "load_cards", lambda: {"tiny": card})
    return card


def _put(folder, n_train=6, n_test=4, n_features=9, n_labels=5):
    folder.mkdir(parents=True)
    for split, n_rows in (("train", n_train), ("test", n_test)):
        data = synthetic.make_dataset(n_rows, n_features, n_labels, features_per_row=3, labels_per_row=2, seed=n_rows)
        formats.write_repository_text(folder / f"{split}.txt", data)


def test_cards_on_disk():
    cards = catalog.load_cards()
    assert {"bibtex", "delicious", "demo", "eurlex-4k", "eurlex57k"} <= set(cards)
    assert list(cards) == sorted(cards)
    card = cards["eurlex57k"]
    assert (card.n_train, card.n_test, card.n_features, card.n_labels) == (45_000, 6_000, 50_531, 4_197)
    assert "tools/prepare_eurlex57k.py" in card.source
    assert [name for name, card in cards.items() if card.synthetic] == ["demo"]
    assert "synthetic" in cards["demo"].title.casefold()
    assert {name: (card.propensity_a, card.propensity_b) for name, card in cards.items()} == {
        name.casefold(): constants for name, constants in NAMES.items()
    }


def test_names_and_aliases_are_unique():
    names = [name.casefold() for card in catalog.list_cards() for name in (card.name, *card.aliases)]
    assert len(names) == len(set(names))
    assert {"eurlex", "wiki10", "wikilshtc"} <= set(names)


def test_every_card_but_the_made_ones_says_where_it_can_be_had():
    for card in catalog.list_cards():
        archives = [archive for mirror in card.mirrors for archive in mirror.archives]
        assert bool(archives) == (card.name not in ("demo", "eurlex57k", "npm-deps", "wordnet-rel"))
        assert all(archive.address.startswith("https://") for archive in archives)
        assert all(archive.sha256 == "unverified" for archive in archives)  # until somebody knows one
        for mirror in card.mirrors:
            names = {name for archive in mirror.archives for name in archive.files}
            assert names == {"train.txt", "test.txt"} or {name.rpartition("_")[2] for name in names} == {
                "data.txt",
                "trSplit.txt",
                "tstSplit.txt",
            }


@pytest.mark.parametrize("name", ["eurlex-4k", "EURLex-4K", "eurlex", "EURLEX"])
def test_find_card_ignores_case_and_knows_aliases(name):
    card = catalog.find_card(name)
    assert card is not None
    assert card.name == "eurlex-4k"


def test_find_card_of_nothing():
    assert catalog.find_card("nothing") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("propensity_b = 1.5\n", ""), "propensity_b"),
        (("n_train = 4_880", "n_train = '4880'"), "n_train must be of type int, not str"),
        (("propensity_a = 0.55", "propensity_c = 0.55"), "propensity_c"),
        (('name = "bibtex"', 'name = "bib"'), "name 'bib' must be the file's own, 'bibtex'"),
        (("n_train = 4_880", "n_train = = 3"), "line 5"),
        (("note = ", "remark = "), "a mirror has no 'note'"),
        (("resourcekey = ", "key = "), "unexpected keyword argument 'key'"),
        (('sha256 = "unverified"', 'sha256 = "1234"'), "sha256 must be 64 digits"),
        (('sha256 = "unverified"', ""), "sha256"),
        (("drive = ", "url = 'http://x'\ndrive = "), "either url or drive"),
    ],
)
def test_bad_cards_name_file_and_key(tmp_path, change, message):
    path = tmp_path / "bibtex.toml"
    path.write_text((catalog.resource_folder("datasets") / "bibtex.toml").read_text().replace(*change))
    with pytest.raises(InputError, match=f"bibtex.toml: .*{message}"):
        catalog._read_card(path)


def test_resource_folder_inside_an_installed_package(monkeypatch, tmp_path):
    package = tmp_path / "site-packages" / "xmlpreck"
    (package / "configs").mkdir(parents=True)
    (package.parent / "datasets").mkdir()
    monkeypatch.setattr(catalog, "_PACKAGE", package)
    assert catalog.resource_folder("configs") == package / "configs"
    # The folder beside it belongs to the package `datasets` of others.
    with pytest.raises(InputError, match="datasets: the folder is missing"):
        catalog.resource_folder("datasets")


def test_demo_is_generated_once():
    train, test = catalog.load("Demo", "train"), catalog.load("demo", "test")
    card = catalog.load_cards()["demo"]
    assert train.rows.shape == (card.n_train, card.n_features)
    assert test.labels.shape == (card.n_test, card.n_labels)
    assert catalog.load("demo", "train") is train
    assert catalog.has_split("demo", "test")
    assert not catalog.has_split("demo", "dev")
    with pytest.raises(InputError, match="split 'dev' is not known"):
        catalog.load("demo", "dev")


def test_data_are_looked_for_in_this_order(monkeypatch, tmp_path, tiny_card):
    monkeypatch.setenv("XMLPRECK_DATA", str(tmp_path / "environment"))
    places = [
        tmp_path / "given" / "tiny",
        tmp_path / "given" / "wee",
        tmp_path / "environment" / "tiny",
        tmp_path / "home" / ".cache" / "xmlpreck" / "data" / "tiny",
    ]
    assert not catalog.has_split("tiny", "train", str(tmp_path / "given"))
    for place in places:
        _put(place)
    for place in places:
        loaded = catalog.load("TINY", "test", str(tmp_path / "given"))
        assert loaded.rows.shape == (4, 9)
        assert catalog.has_split("wee", "train", str(tmp_path / "given"))
        # A file that cannot be parsed shows which folder is read.
        (place / "test.txt").write_text("x")
        with pytest.raises(InputError, match=f"^{place}/test.txt:"):
            catalog.load("tiny", "test", str(tmp_path / "given"))
        shutil.rmtree(place)


def test_data_not_found_says_where_to_put_them(tmp_path, tiny_card):
    with pytest.raises(InputError) as error:
        catalog.load("tiny", "train", str(tmp_path))
    message = str(error.value)
    assert "put train.txt and test.txt into" in message
    assert f"{tmp_path}/tiny or {tmp_path}/home/.cache/xmlpreck/data/tiny" in message
    assert tiny_card.source in message


def test_data_not_found_and_not_to_be_fetched(tmp_path, tiny_card):
    with pytest.raises(InputError, match=r"tiny: is not on this machine"):
        catalog.load("tiny", "train", str(tmp_path), fetch=False)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_train": 7}, "has 7 train rows, but tiny has 6"),
        ({"n_features": 8}, "has 8 features, but tiny has 9"),
        ({"n_labels": 6}, "has 6 labels, but tiny has 5"),
    ],
)
def test_sizes_must_be_those_of_the_card(tmp_path, tiny_card, sizes, message):
    _put(tmp_path / "tiny", **sizes)
    with pytest.raises(InputError, match=f"{tmp_path}/tiny: {message}"):
        catalog.load("tiny", "train", str(tmp_path))


def test_sizes_that_nobody_knows_are_not_checked(monkeypatch, tmp_path, tiny_card):
    card = dataclasses.replace(tiny_card, n_train=None, n_features=None, n_labels=None)
    monkeypatch.setattr(catalog, "load_cards", lambda: {"tiny": card})
    _put(tmp_path / "tiny", n_train=7, n_features=8, n_labels=6, n_test=3)
    assert catalog.load("tiny", "train", str(tmp_path)).rows.shape == (7, 8)
    with pytest.raises(InputError, match="has 3 test rows, but tiny has 4"):
        catalog.load("tiny", "test", str(tmp_path))


def test_a_path_goes_before_a_name(monkeypatch, tmp_path):
    _put(tmp_path / "bibtex")
    monkeypatch.chdir(tmp_path)
    assert catalog.load("bibtex", "train").rows.shape == (6, 9)
    assert catalog.load("bibtex/test.txt", "train").rows.shape == (4, 9)
    assert catalog.has_split("bibtex", "test")


def test_unknown_names_get_suggestions():
    with pytest.raises(InputError, match="'bibtx' is neither a file or folder nor a known data set: try bibtex"):
        catalog.load("bibtx", "train")
    with pytest.raises(InputError, match=r"'zzz' is neither .* try amazon-3m, .*, bibtex, .*, demo, "):
        catalog.has_split("zzz", "train")


@pytest.fixture
def served(tmp_path):
    """A folder and its address on a server of our own."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def write_card(monkeypatch, tmp_path):
    """Make a catalogue of one card, `tiny`, with mirrors at the given addresses."""
    folder = tmp_path / "cards"
    folder.mkdir()
    monkeypatch.setattr(catalog, "resource_folder", lambda name: folder)

    def write(*addresses):
        text = 'name = "tiny"\ntitle = "Tiny"\nn_train = 6\nn_test = 4\nn_labels = 5\nsource = "made up"\n'
        text += "propensity_a = 0.55\npropensity_b = 1.5\n"
        for address in addresses:
            files = 'files = { "train.txt" = "*_train.txt", "test.txt" = "*_test.txt" }'
            text += f'[[mirror]]\nnote = "a mirror"\nurl = "{address}"\nsha256 = "unverified"\n{files}\n'
        (folder / "tiny.toml").write_text(text)
        catalog.load_cards.cache_clear()

    yield write
    catalog.load_cards.cache_clear()


def _serve(folder, name, **sizes):
    _put(folder / name, **sizes)
    for split in ("train", "test"):
        (folder / name / f"{split}.txt").rename(folder / name / f"Tiny_{split}.txt")
    shutil.make_archive(str(folder / name), "zip", folder / name)
    shutil.rmtree(folder / name)


def test_load_fetches_what_is_not_there(served, write_card, tmp_path, capsys):
    folder, url = served
    _serve(folder, "tiny")
    write_card(f"{url}/tiny.zip")
    assert not catalog.has_split("tiny", "train", str(tmp_path / "given"))
    assert catalog.load("tiny", "train", str(tmp_path / "given")).rows.shape == (6, 9)
    assert "unverified: no checksum is known" in capsys.readouterr().err
    (folder / "tiny.zip").unlink()  # from now on it is there
    assert catalog.load("TINY", "test", str(tmp_path / "given")).rows.shape == (4, 9)
    assert catalog.fetch_data("tiny", str(tmp_path / "given")) == tmp_path / "given" / "tiny"


def test_where_data_are_fetched_to(served, write_card, monkeypatch, tmp_path):
    folder, url = served
    _serve(folder, "tiny")
    write_card(f"{url}/tiny.zip")
    cache = tmp_path / "home" / ".cache" / "xmlpreck" / "data" / "tiny"
    assert catalog.fetch_data("tiny") == cache
    shutil.rmtree(cache)
    monkeypatch.setenv("XMLPRECK_DATA", str(tmp_path / "environment"))
    assert catalog.fetch_data("tiny") == tmp_path / "environment" / "tiny"
    shutil.rmtree(tmp_path / "environment")
    # A folder that cannot be made or written to is passed over.
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XMLPRECK_DATA", str(tmp_path / "file"))
    assert catalog.fetch_data("tiny", str(tmp_path / "file" / "given")) == cache
    shutil.rmtree(cache)
    monkeypatch.setattr(catalog.os, "access", lambda *_: False)
    with pytest.raises(InputError, match=r"no folder for data: .*file/given: .*may not be written to: say another"):
        catalog.fetch_data("tiny", str(tmp_path / "file" / "given"))


def test_mirror_with_other_sizes_or_none_is_passed_over(served, write_card, tmp_path, capsys):
    folder, url = served
    _serve(folder, "other", n_labels=7)
    _serve(folder, "tiny")
    write_card(f"{url}/gone.zip", f"{url}/other.zip", f"{url}/tiny.zip")
    assert catalog.load("tiny", "test", str(tmp_path / "given")).labels.shape == (4, 5)
    words = capsys.readouterr().err
    assert "gone.zip: HTTP 404 File not found" in words
    assert "has 7 labels, but tiny has 5: other data?" in words
    write_card(f"{url}/gone.zip", f"{url}/other.zip")
    with pytest.raises(
        InputError, match=r"could not be fetched: .*gone.zip: HTTP 404 .*; .*has 7 labels, but tiny has 5"
    ):
        catalog.load("tiny", "test", str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere" / "tiny").exists()


@pytest.mark.parametrize("host", ["127.0.0.1:9", "no-such-host.invalid"])
def test_offline_says_what_happened_and_the_two_ways_out(write_card, tmp_path, host):
    write_card(f"http://{host}/tiny.zip", f"http://{host}/again.zip")
    with pytest.raises(InputError) as error:
        catalog.load("tiny", "train", str(tmp_path))
    what, files, archive = str(error.value).split("\n")
    assert what.startswith("tiny: is not on this machine and could not be fetched: ")
    assert what.count(f"{host} cannot be reached: ") == 1
    own = f"{tmp_path}/tiny or {tmp_path}/home/.cache/xmlpreck/data/tiny"
    assert files == f"  either put train.txt and test.txt into {own}"
    assert archive.startswith(f"  or save http://{host}/tiny.zip as ")


def test_archive_put_by_hand_where_the_message_says(served, write_card, monkeypatch, tmp_path):
    folder, _ = served
    _serve(folder, "tiny")
    write_card("http://127.0.0.1:9/tiny.zip")
    monkeypatch.setenv("XMLPRECK_OFFLINE", "1")
    with pytest.raises(InputError, match=r"could not be fetched: XMLPRECK_OFFLINE is set") as error:
        catalog.load("tiny", "train", str(tmp_path / "given"))
    place = str(error.value).partition("tiny.zip as ")[2]
    assert not (tmp_path / "given").exists()
    (tmp_path / "given").mkdir()
    (folder / "tiny.zip").rename(place)
    assert catalog.load("tiny", "train", str(tmp_path / "given")).rows.shape == (6, 9)


def test_nothing_to_fetch(monkeypatch, tmp_path):
    with pytest.raises(InputError, match=r"demo: is generated by .*: nothing to fetch"):
        catalog.fetch_data("demo")
    with pytest.raises(
        InputError, match=r"eurlex57k: is not on this machine; source: made by tools/prepare_eurlex57k.py"
    ):
        catalog.fetch_data("eurlex57k")
    with pytest.raises(InputError, match=f"'{tmp_path}' is neither"):
        catalog.fetch_data(str(tmp_path))
    with pytest.raises(InputError, match=r"'bibtx' is neither .* try bibtex"):
        catalog.fetch_data("bibtx")


def test_card_text(tmp_path):
    text = catalog.card_text(catalog.load_cards()["eurlex-4k"], str(tmp_path))
    for part in (
        "eurlex-4k, eurlex",
        "15,539 train, 3,809 test",
        "A 0.55, B 1.5",
        "id=1xWW1UykQBTD2IorVn7V8XubJatQDScol",
    ):
        assert part in text
    assert "labels per row not known" in text
    assert "(unverified: no checksum is known)" in text
    assert f"train files    not here: looked in {tmp_path}/eurlex-4k, {tmp_path}/eurlex, " in text
    assert "resourcekey=0-SurjZ4z_5Tr38jENzf2Iwg" in text
    text = catalog.card_text(catalog.load_cards()["lf-amazon-131k"])
    assert "not known train, not known test" in text
    _put(tmp_path / "bibtex")
    assert f"test files     {tmp_path}/bibtex" in catalog.card_text(catalog.load_cards()["bibtex"], str(tmp_path))
    assert "looked in" not in catalog.card_text(catalog.load_cards()["demo"])


def test_chunks_and_shards_are_what_load_reads(tmp_path, tiny_card):
    _put(tmp_path / "tiny")
    whole = catalog.load("tiny", "train", str(tmp_path))
    chunks = list(catalog.read_chunks("tiny", "train", str(tmp_path), rows_per_chunk=4))
    assert [chunk.n_rows for chunk in chunks] == [4, 2]
    assert (concatenate(chunks).rows != whole.rows).nnz == 0
    assert catalog.splits_of("tiny", "out", str(tmp_path)) == [("train", Path("out/train")), ("test", Path("out/test"))]
    assert catalog.splits_of(str(tmp_path / "tiny" / "test.txt"), "out") == [("train", Path("out"))]
    with pytest.raises(InputError, match="has neither train nor test data"):
        catalog.splits_of(str(tmp_path), "out")

    for split, folder in catalog.splits_of("tiny", str(tmp_path / "sharded" / "tiny"), str(tmp_path)):
        shards.write_shards(folder, catalog.read_chunks("tiny", split, str(tmp_path)), "parquet", 4, {})
    assert catalog.has_split("tiny", "test", str(tmp_path / "sharded"))
    source = catalog.load("tiny", "train", str(tmp_path / "sharded"))
    assert (source.read(0, 6).rows != whole.rows).nnz == 0
    chunks = list(catalog.read_chunks("tiny", "train", str(tmp_path / "sharded"), rows_per_chunk=5))
    assert [chunk.n_rows for chunk in chunks] == [5, 1]
    _put(tmp_path / "other" / "tiny", n_train=7)
    with pytest.raises(InputError, match="has 7 train rows, but tiny has 6"):
        list(catalog.read_chunks("tiny", "train", str(tmp_path / "other")))


def test_demo_in_chunks():
    (chunk,) = catalog.read_chunks("demo", "test")
    assert chunk is catalog.load("demo", "test")
    assert catalog.splits_of("demo", "out") == [("train", Path("out/train")), ("test", Path("out/test"))]
    with pytest.raises(InputError, match="split 'dev' is not known"):
        next(catalog.read_chunks("demo", "dev"))


def test_describe(tmp_path):
    _put(tmp_path / "mine.v2")
    assert catalog.describe("EURLEX") == "eurlex-4k"
    assert catalog.describe(str(tmp_path / "mine.v2")) == "mine.v2"
    assert catalog.describe(str(tmp_path / "mine.v2" / "train.txt")) == "train"
    assert catalog.describe("nothing") == "nothing"


@pytest.mark.parametrize("name", ["bibtex", "delicious"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_real_data_have_the_sizes_of_their_card(name, split):
    if not (SHARED / name).is_dir():
        pytest.skip(f"{SHARED / name} is not on this machine")
    data = catalog.load(name, split, str(SHARED))
    card = catalog.load_cards()[name]
    assert data.rows.shape == (card.n_train if split == "train" else card.n_test, card.n_features)
    assert data.labels.shape[1] == card.n_labels
    assert data.rows.nnz > data.rows.shape[0]
