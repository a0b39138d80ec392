"""The catalogue: cards, names and aliases, where data are looked for, and the checks against the card."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from xmlpreck import catalog, formats, synthetic
from xmlpreck.config import InputError

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.delenv("XMLPRECK_DATA", raising=False)
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
    assert all((card.propensity_a, card.propensity_b) == (0.55, 1.5) for card in cards.values())


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
        (("n_train = 4_880\n", ""), "n_train"),
        (("n_train = 4_880", "n_train = '4880'"), "n_train must be of type int, not str"),
        (("propensity_a = 0.55", "propensity_c = 0.55"), "propensity_c"),
        (('name = "bibtex"', 'name = "bib"'), "name 'bib' must be the file's own, 'bibtex'"),
        (("n_train = 4_880", "n_train = = 3"), "line 3"),
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
        with pytest.raises(InputError, match=f"^{place}/test.txt:1: "):
            catalog.load("tiny", "test", str(tmp_path / "given"))
        shutil.rmtree(place)


def test_data_not_found_says_where_to_put_them(tmp_path, tiny_card):
    with pytest.raises(InputError) as error:
        catalog.load("tiny", "train", str(tmp_path))
    message = str(error.value)
    assert "put train.txt and test.txt into" in message
    assert f"{tmp_path}/tiny or {tmp_path}/home/.cache/xmlpreck/data/tiny" in message
    assert tiny_card.source in message
    assert "\n" not in message


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


def test_a_path_goes_before_a_name(monkeypatch, tmp_path):
    _put(tmp_path / "bibtex")
    monkeypatch.chdir(tmp_path)
    assert catalog.load("bibtex", "train").rows.shape == (6, 9)
    assert catalog.load("bibtex/test.txt", "train").rows.shape == (4, 9)
    assert catalog.has_split("bibtex", "test")


def test_unknown_names_get_suggestions():
    with pytest.raises(InputError, match="'bibtx' is neither a file or folder nor a known data set: try bibtex"):
        catalog.load("bibtx", "train")
    with pytest.raises(InputError, match=r"'zzz' is neither .* try bibtex, delicious, demo"):
        catalog.has_split("zzz", "train")


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
