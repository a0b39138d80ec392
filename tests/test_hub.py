"""Push and pull against a stand-in for the Hugging Face Hub: what goes up, what comes down, and what is refused."""

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest
from helpers import HOSTILE, as_dataset, draw_rows, model_bits
from hub_server import TOKEN, Hub

import xmlpreck
from xmlpreck.cli import main
from xmlpreck.config import InputError
from xmlpreck.data.formats.repository import write_repository_text
from xmlpreck.evaluation.card import MARK, model_card
from xmlpreck.model import Model

constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra `hub`")


def use_endpoint(monkeypatch, url):
    """Do what $HF_ENDPOINT does when huggingface_hub is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A stand-in Hub, and a folder with rows and a model of them."""
    with Hub() as server:
        use_endpoint(monkeypatch, server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.chdir(tmp_path)
        yield server


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    rows = as_dataset(*draw_rows(1, n_rows=200))
    write_repository_text(folder / "rows.txt", rows)
    model = xmlpreck.fit(str(folder / "rows.txt"), folder / "m", tune=False)
    assert "place" in model.info["data"]
    return folder


def test_what_is_pushed_can_be_pulled(hub, trained, capsys):
    assert main(["push", str(trained / "m"), "jane/tags", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["url"].startswith(f"{hub.url}/jane/tags/commit/")
    files = hub.files("jane/tags")
    assert set(files) == {".gitattributes", "README.md", *(path.name for path in (trained / "m").iterdir())}
    assert told["n_files"] == len(files) - 1
    assert told["n_bytes"] == sum(map(len, files.values()))
    assert main(["pull", "jane/tags", "--json"]) == 0
    pulled = json.loads(capsys.readouterr().out)
    assert pulled["path"] == "runs/tags"
    ours, theirs = Model.load(trained / "m"), Model.load("runs/tags", verify=True)
    assert model_bits(ours) == model_bits(theirs)
    assert theirs.label_names == ours.label_names
    assert theirs.info["config"] == ours.info["config"]
    assert sorted(os.listdir("runs")) == ["tags"]


def test_paths_of_the_one_who_trained_stay_private(hub, trained):
    xmlpreck.push(trained / "m", "jane/tags")
    assert all(str(trained).encode() not in content for content in hub.files("jane/tags").values())
    pulled = Model.load(xmlpreck.pull("jane/tags", "out").path)
    assert "place" not in pulled.info["data"]
    assert pulled.info["data"]["sha256"] == Model.load(trained / "m").info["data"]["sha256"]


def test_one_commit_replaces_a_model_and_leaves_other_files(hub, trained):
    xmlpreck.push(trained / "m", "jane/tags")
    hub.files("jane/tags").update({"LICENSE": b"MIT", "features.txt": b"old\n", "README.md": b"# Jane's own words"})
    notes = []
    n_commits = len(hub.repos["jane/tags"])
    xmlpreck.push(trained / "m", "jane/tags", note=notes.append)
    files = hub.files("jane/tags")
    assert len(hub.repos["jane/tags"]) == n_commits + 1
    assert files["README.md"] == b"# Jane's own words"
    assert any("stays" in text for text in notes)
    assert files["LICENSE"] == b"MIT"
    assert "features.txt" not in files  # of a model that is not there any more
    assert xmlpreck.pull("jane/tags", "out").n_bytes > 0


def test_arrays_that_the_hub_has_are_not_sent_again(hub, trained):
    xmlpreck.push(trained / "m", "jane/tags")
    sent = [line for line in hub.log if line.startswith("PUT")]
    assert len(sent) == 3
    xmlpreck.push(trained / "m", "jane/copy", private=True)
    assert [line for line in hub.log if line.startswith("PUT")] == sent
    assert hub.private == {"jane/copy"}


def test_a_push_that_fails_leaves_the_old_model(hub, trained):
    xmlpreck.push(trained / "m", "jane/tags")
    before = dict(hub.files("jane/tags"))
    for failing in ("POST .*/commit/", "POST .*/batch", "PUT "):
        hub.blobs.clear()
        hub.fails = {failing: 403}
        with pytest.raises(InputError, match="jane/tags: "):
            xmlpreck.push(trained / "m", "jane/tags")
        assert hub.files("jane/tags") == before


def test_the_card_has_figures_with_intervals(hub, trained):
    made = xmlpreck.push(trained / "m", "jane/tags", str(trained / "rows.txt"))
    assert made.n_files == 1 + len(list((trained / "m").iterdir()))
    card = hub.files("jane/tags")["README.md"].decode()
    scores = xmlpreck.evaluate(trained / "m", str(trained / "rows.txt")).scores.values
    found = dict(re.findall(r"^\| ((?:P|nDCG|R)@\d) \| ([\d.]+ \| [\d.]+ to [\d.]+) \|$", card, re.MULTILINE))
    assert found["P@5"] == f"{scores['P@5'].value:.2f} | {scores['P@5'].low:.2f} to {scores['P@5'].high:.2f}"
    assert "was trained on these rows: figures on them say nothing about new rows.**" in card
    head = dict(line.split(": ", 1) for line in card.split("---\n")[1].splitlines())
    metrics = {one["type"]: one["value"] for one in json.loads(head["model-index"])[0]["results"][0]["metrics"]}
    assert metrics["P@5"] == round(scores["P@5"].value, 2)
    assert json.loads(head["library_name"]) == "xmlpreck"


def test_names_in_a_card_are_no_markup(trained):
    model = Model.load(trained / "m")
    info = model.info | {"data": model.info["data"] | {"name": f"{HOSTILE[0]} | [x](y) `z`\n# big"}}
    info["history"] = [model.info["history"][-1] | {"heldout": {"P@1": 61.234}}]
    card = model_card(model.fresh(info=info), "jane/tags")
    assert MARK in card
    assert "<script" not in card
    assert r"\| \[x\](y) \`z\`" in card
    assert not re.search(r"^# big", card, re.MULTILINE)
    assert "| P@1 | 61.23 |" in card


def test_an_interrupted_pull_is_resumed(hub, trained, monkeypatch):
    """Within a pull, a file goes on where it was cut off; after a pull, whole files are kept."""
    monkeypatch.setattr("time.sleep", lambda _: None)  # between tries
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)  # bytes after which a download can go on
    xmlpreck.push(trained / "m", "jane/tags")
    hub.breaks = {"row_labels.npy": 2}
    xmlpreck.pull("jane/tags", "out")
    assert [re.findall(r"bytes=(\d+)-", line) for line in hub.log if "bytes=" in line] == [["200"], ["400"]]
    assert model_bits(Model.load("out")) == model_bits(Model.load(trained / "m"))

    hub.repos["jane/other"] = hub.repos["jane/tags"]
    hub.fails = {"GET .*/row_labels.npy": 503}
    with pytest.raises(InputError, match="jane/other"):
        xmlpreck.pull("jane/other", "new")
    assert not os.path.lexists("new")
    assert [name for name in os.listdir() if "xmlpreck-" in name] == []
    had = {line for line in hub.log if line.startswith("GET /jane/other/resolve/")}
    hub.fails = {}
    hub.log.clear()
    xmlpreck.pull("jane/other", "new")
    again = {line for line in hub.log if line.startswith("GET /jane/other/resolve/")}
    assert {line.rpartition("/")[2] for line in had & again} <= {"row_labels.npy"}
    assert model_bits(Model.load("new")) == model_bits(Model.load("out"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"evil.pkl": b"cos\nsystem"}, r"holds 'evil.pkl', which is not part of a model: nothing was pulled"),
        ({"../../evil.npy": b"x"}, r"holds '../../evil.npy', which is not part of a model"),
        ({"checked.json": b"{}"}, r"holds 'checked.json', which is not part of a model"),
        ({"model.json": None}, r"is not a model of xmlpreck: it has no model.json"),
        ({"model.json": b"{}"}, r"is not written to out, since it cannot be loaded: "),
        ({"row_weights.npy": b"\x93NUMPY"}, r"cannot be loaded: row_weights.npy: has changed"),
        ({"row_weights.npy": None}, r"cannot be loaded: row_weights.npy: cannot be read: No such file"),
    ],
)
def test_a_pulled_model_is_hostile_input(hub, trained, change, told):
    xmlpreck.push(trained / "m", "jane/tags")
    xmlpreck.pull("jane/tags", "out")
    before = model_bits(Model.load("out"))
    for name, content in change.items():
        hub.files("jane/tags").pop(name, None)
        if content is not None:
            hub.files("jane/tags")[name] = content
    hub.repos["jane/tags"].append(hub.files("jane/tags"))  # under a new commit, or the cache would answer
    with pytest.raises(InputError, match=told):
        xmlpreck.pull("jane/tags", "out")
    assert model_bits(Model.load("out")) == before
    assert [name for name in os.listdir() if "xmlpreck-" in name] == []


def test_an_older_commit_can_be_pulled(hub, trained):
    xmlpreck.push(trained / "m", "jane/tags")
    sha, _ = hub.commit_of("jane/tags", "main")
    hub.repos["jane/tags"].append({"README.md": b"gone"})
    assert xmlpreck.pull("jane/tags", "out", revision=sha).commit == sha
    with pytest.raises(InputError, match="jane/tags: has no such revision"):
        xmlpreck.pull("jane/tags", "new", revision="v9")


def told_by(capsys, *words):
    assert main([str(word) for word in words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_errors_are_one_line(hub, trained, capsys, monkeypatch):
    model = trained / "m"
    assert "there is no such model" in told_by(capsys, "pull", "jane/none")
    assert "is not a name on the Hugging Face Hub: give USER/MODEL" in told_by(capsys, "pull", "a/b/c", "--out", "x")
    assert "is not a name on the Hugging Face Hub" in told_by(capsys, "push", model, "--", "..")
    assert "is not a model directory" in told_by(capsys, "push", trained, "jane/tags")
    xmlpreck.push(model, "jane/tags")
    os.mkdir("mine")
    Path("mine/diary").write_text("dear diary")
    assert "mine: exists and is not a model" in told_by(capsys, "pull", "jane/tags", "--out", "mine")
    assert main(["pull", "jane/tags"]) == 0
    capsys.readouterr()
    assert "runs/tags: exists: name a folder by --out" in told_by(capsys, "pull", "jane/tags")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    line = told_by(capsys, "push", model, "jane/tags")
    assert "the token may not do this" in line
    assert "hf_wrong" not in line
    monkeypatch.delenv("HF_TOKEN")
    assert "no token of the Hugging Face Hub: run `hf auth login`, or set HF_TOKEN" in told_by(
        capsys, "push", model, "jane/tags"
    )
    with socket.socket() as nobody:  # bound, and does not listen
        nobody.bind(("127.0.0.1", 0))
        use_endpoint(monkeypatch, f"http://127.0.0.1:{nobody.getsockname()[1]}")
        assert "the Hugging Face Hub cannot be reached" in told_by(capsys, "pull", "jane/tags", "--out", "y")
    assert not os.path.exists("y")


def test_no_room_on_the_disk(hub, trained, monkeypatch):
    xmlpreck.push(trained / "m", "jane/tags")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(InputError, match=r"out: cannot be written: the model has .* but the disk has room for 1,000"):
        xmlpreck.pull("jane/tags", "out")
    assert not [line for line in hub.log if "row_weights" in line and line.startswith("GET")]


def test_without_huggingface_hub_the_extra_is_named(trained, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'xmlpreck[hub]'" in told_by(capsys, "pull", "jane/tags", "--out", "x")
    assert "pip install 'xmlpreck[hub]'" in told_by(capsys, "push", trained / "m", "jane/tags")
