"""Data on the command line: shards, raw text, the catalogue, validation."""

import json
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from xmlpreck.cli import main
from xmlpreck.model import Model

TOPICS = {"fish": "cod herring trawler net", "milk": "cow dairy butter cream", "law": "court judge appeal statute"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def draw_documents(n, seed):
    rng = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(n):
        chosen = sorted(rng.choice(list(TOPICS), rng.integers(1, 3), replace=False).tolist())
        words = [word for topic in chosen for word in rng.choice(TOPICS[topic].split(), 3)]
        texts.append(" ".join([*words, "the", str(rng.choice(["annex", "whereas"]))]))
        labels.append(chosen)
    return texts, labels


def write_corpus(folder):
    folder.mkdir()
    for split, n, seed in (("train", 200, 0), ("test", 40, 1)):
        texts, labels = draw_documents(n, seed)
        if split == "test":
            labels[0] = ["never seen in training"]
        pq.write_table(pa.table({"body": texts, "topics": labels}), folder / f"{split}.parquet")


def weights_of(folder):
    return [(folder / f"{name}.npy").read_bytes() for name in ("row_offsets", "row_labels", "row_weights")]


def test_shards_train_to_the_same_bits(here, capsys):
    """The demo in memory, as Parquet and as HDF5 shards: the same files of weights, the same scores."""
    assert main(["train", "--data", "demo", "--out", "plain", "--epochs", "2", "--no-tune"]) == 0
    scores = capsys.readouterr().out.splitlines()[-1]
    for kind, rows in (("parquet", "1200"), ("hdf5", "3000")):
        assert main(["data", "convert", "demo", kind, "--format", kind, "--rows-per-shard", rows]) == 0
        assert f"{kind}/train: 8,000 rows in" in capsys.readouterr().out
        assert main(["train", "--data", kind, "--out", f"from-{kind}", "--epochs", "2", "--no-tune"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == scores
        assert weights_of(here / f"from-{kind}") == weights_of(here / "plain")
    assert main(["predict", "--model", "plain", "--data", "parquet", "--out", "P.parquet"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "--pred", "P.parquet", "--data", "hdf5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert scores.endswith("  ".join(f"P@{k} {found[f'P@{k}']:.2f}" for k in (1, 3, 5)))
    names = pq.read_table("P.parquet")["names"][0].as_py()
    assert all(name.startswith("synthetic/") for name in names)


def test_shuffled_shards_have_the_rows_in_another_order(here, capsys):
    for out, more in (("a", []), ("b", ["--shuffle"]), ("c", ["--shuffle", "--seed", "1"])):
        assert main(["data", "convert", "demo", out, *more]) == 0
    manifests = [json.loads((here / out / "train" / "manifest.json").read_text()) for out in "abc"]
    assert len({entry["shards"][0]["sha256"] for entry in manifests}) == 3
    assert manifests[2]["provenance"] == manifests[2]["provenance"] | {"split": "train", "shuffled_with_seed": 1}


def test_raw_text_from_training_to_names(here, capsys):
    write_corpus(here / "docs")
    columns = ["--text-column", "body", "--labels-column", "topics"]
    words = ["train", "--data", "docs", *columns, "--out", "m", "--set", "rows.bias=0.1", "--set", "text.min_df=1"]
    assert main(words) == 0
    out = capsys.readouterr().out
    found = re.search(r"test, 40 rows: P@1 ([\d.]+)  P@3", out)
    assert float(found[1]) == 100 * 39 / 40  # all but the row whose only label was never seen
    scorer = Model.load("m")
    assert scorer.label_names == ["fish", "law", "milk"]
    assert "herring" in scorer.feature_names
    assert sorted(path.name for path in (here / "m").glob("*.txt")) == ["labels.txt", "vocabulary.txt"]
    assert (
        main(
            [
                "predict",
                "--model",
                "m",
                "--data",
                "docs/test.parquet",
                *columns[:2],
                "--out",
                "P.parquet",
                "--topk",
                "1",
            ]
        )
        == 0
    )
    capsys.readouterr()
    for predictions in ("P.parquet", "m"):
        words = ["evaluate", "--pred", predictions, "--model", "m", "--data", "docs", *columns, "--ks", "1", "--json"]
        assert main(words) == 0
        scores = json.loads(capsys.readouterr().out)
        assert scores["P@1"] == 100 * 39 / 40
        assert scores["bins"][-1]["name"] == "unseen"
    assert main(["evaluate", "--pred", "P.parquet", "--data", "docs", *columns]) == 2
    assert (
        "is raw text, which needs the vocabulary of a model trained on text: name that model by --model"
        in capsys.readouterr().err
    )
    names = [row[0] for row in pq.read_table("P.parquet")["names"].to_pylist()]
    _, labels = draw_documents(40, 1)
    assert all(name in row for name, row in zip(names, labels, strict=True))


def test_json_lines_and_fasttext_need_no_columns(here, capsys):
    texts, labels = draw_documents(200, 0)
    (here / "j").mkdir()
    lines = [json.dumps({"text": text, "labels": names}) for text, names in zip(texts, labels, strict=True)]
    (here / "j" / "train.json").write_text("\n".join(lines) + "\n")
    marked = [" ".join([*(f"__label__{n}" for n in names), text]) for text, names in zip(texts, labels, strict=True)]
    (here / "f.txt").write_text("\n".join(marked) + "\n")
    for data, out in (("j/train.json", "mj"), ("f.txt", "mf")):
        assert main(["train", "--data", data, "--out", out, "--set", "text.min_df=1"]) == 0, capsys.readouterr().err
    assert weights_of(here / "mj") == weights_of(here / "mf")


def test_numbers_and_text_are_not_mixed(here, capsys):
    write_corpus(here / "docs")
    main(["train", "--data", "demo", "--epochs", "1", "--out", "m", "--no-tune"])
    capsys.readouterr()
    words = ["predict", "--model", "m", "--data", "docs", "--text-column", "body", "--out", "P.npz"]
    assert main(words) == 2
    assert "docs: is raw text, but the model was trained on numbers" in capsys.readouterr().err
    assert main(["train", "--data", "docs", "--text-column", "title", "--out", "n"]) == 2
    assert "has no column 'title': there are 'body', 'topics'" in capsys.readouterr().err


def test_catalogue_commands(here, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    assert main(["data", "list"]) == 0
    listed = capsys.readouterr().out
    for name in ("bibtex", "eurlex-4k", "amazon-670k", "demo"):
        assert re.search(rf"^{name} ", listed, re.MULTILINE)
    assert main(["data", "info", "EURLEX"]) == 0
    assert "15,539 train, 3,809 test" in capsys.readouterr().out
    assert main(["data", "info", "eurlx"]) == 2
    assert "eurlex" in capsys.readouterr().err
    assert main(["data", "fetch", "eurlex"]) == 2
    error = capsys.readouterr().err
    assert "put train.txt and test.txt into" in error
    assert "XMLPRECK_OFFLINE is set" in error


def test_validate_tells_fixes_and_exits_1(here, capsys):
    (here / "bad.txt").write_text("2 3 3\n0,0 1:1 1:2\n2 5:1\n")
    assert main(["data", "validate", "bad.txt"]) == 1
    told = capsys.readouterr().out
    assert "duplicate labels" in told
    assert "features out of range" in told
    assert main(["data", "validate", "bad.txt", "--fix", "good.txt"]) == 0
    assert (here / "good.txt").read_text() == "2 3 3\n0 1:1\n2 \n"
    capsys.readouterr()
    assert main(["data", "validate", "good.txt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_clean"] is True
    assert main(["data", "convert", "good.txt", "shards"]) == 0
    capsys.readouterr()
    assert main(["data", "validate", "shards"]) == 0
    assert "shards (shards): 2 rows, 3 features, 3 labels" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data", "convert", "demo", "out", "--format", "csv"], "'csv' is not a kind of shard"),
        (["data", "convert", "demo", "out", "--rows-per-shard", "0"], "--rows-per-shard must be a whole number"),
        (["data", "convert", "nowhere", "out"], "'nowhere' is neither a file or folder"),
        (["data", "validate", "nowhere"], "nowhere: no such file or folder"),
        (["data"], "the following arguments are required: COMMAND"),
    ],
)
def test_bad_words(here, capsys, words, message):
    assert main(words) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not list(here.iterdir())


def test_a_damaged_shard_stops_training_before_it_starts(here, capsys):
    main(["data", "convert", "demo", "s", "--rows-per-shard", "3000"])
    path = here / "s" / "train" / "shard-00001.parquet"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    capsys.readouterr()
    assert main(["train", "--data", "s"]) == 2
    captured = capsys.readouterr()
    assert "shard-00001.parquet: has changed since the manifest was written" in captured.err
    assert "pass 1" not in captured.out


def test_output_may_be_cut_short(here):
    """`xmlpreck data list | head -1` is no error."""
    command = f"{sys.executable} -m xmlpreck data list | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
