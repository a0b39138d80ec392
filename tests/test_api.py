"""Whatever a command does, Python does by the same words: same models to the bit, same numbers, same files."""

import inspect
import json
import subprocess
import sys

import numpy as np
import pytest
from helpers import ROOT

import xmlpreck
from xmlpreck.cli import COMMANDS, main
from xmlpreck.config import NAMED_SETTINGS, InputError, TrainConfig, describe
from xmlpreck.data.formats import write_repository_text
from xmlpreck.data.location import DataLocation
from xmlpreck.data.synthetic import make_dataset
from xmlpreck.train import Interrupted

TRAIN = ["--k", "3", "--heldout", "0.2", "--threads", "1"]
SETTINGS = {"k": 3, "heldout": 0.2, "threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    (folder / "data").mkdir()
    for split, n_rows, seed in (("train", 1200, 1), ("test", 300, 2)):
        write_repository_text(folder / "data" / f"{split}.txt", make_dataset(n_rows, 200, 40, seed=seed))
    words = ["train", "--data", str(folder / "data"), "--no-tune", *TRAIN, "--out", str(folder / "m"), "--json"]
    assert main(words) == 0
    return folder


def said(capsys, *words):
    """Run a command; returns the JSON that it prints."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def arrays(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.npy"))}


def same_weights(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a.weights, b.weights, strict=True))


def test_every_command_has_a_function_of_the_same_name():
    assert sorted(xmlpreck.__all__) == sorted(dir(xmlpreck))
    names = {add.__name__.removeprefix("add_") for add in COMMANDS} - {"train", "data", "serve"}  # serve is above api
    assert names <= {*xmlpreck.__all__}
    assert {"fit", "load_data", "load_model", "tune", "convert", "Model", "Dataset"} <= {*xmlpreck.__all__}
    for name in xmlpreck.__all__:
        assert getattr(xmlpreck, name) is not None
        assert name == "__version__" or inspect.getdoc(getattr(xmlpreck, name))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = xmlpreck.nonsense


def test_fit_has_the_flags_of_train():
    parameters = inspect.signature(xmlpreck.fit).parameters
    assert [name for name in parameters if name in describe(TrainConfig)] == list(NAMED_SETTINGS)
    assert all(parameters[name].default is None for name in NAMED_SETTINGS)
    assert parameters["tune"].default is True


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, xmlpreck; print(sorted({'numba', 'scipy', 'sklearn', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("tune", [True, False])
def test_fit(folder, tmp_path, capsys, tune):
    flag = "--tune" if tune else "--no-tune"
    said(capsys, "train", "--data", folder / "data", flag, *TRAIN, "--out", tmp_path / "command")
    model = xmlpreck.fit(folder / "data", tmp_path / "python", tune=tune, **SETTINGS)
    assert arrays(tmp_path / "command") == arrays(tmp_path / "python")
    infos = [json.loads((tmp_path / name / "model.json").read_text()) for name in ("command", "python")]
    for info in infos:  # the seconds of passes differ
        del info["history"], info["sha256"]
    assert infos[0] == infos[1]
    in_memory = xmlpreck.fit(xmlpreck.load_data(folder / "data"), tune=tune, **SETTINGS)
    assert same_weights(in_memory, model)
    assert same_weights(xmlpreck.load_model(tmp_path / "python"), xmlpreck.load_model(tmp_path / "command"))


def test_settings_by_name_and_by_file(folder, tmp_path):
    (tmp_path / "run.toml").write_text("[train]\nk = 2\nepochs = 1\n[rows]\nbias = 0.1\n")
    by_file = xmlpreck.fit(folder / "data", tune=False, config=tmp_path / "run.toml", threads=1)
    by_name = xmlpreck.fit(folder / "data", tune=False, k=2, threads=1, settings={"epochs": 1, "rows.bias": 0.1})
    assert by_file.info["config"] == by_name.info["config"]
    assert same_weights(by_file, by_name)
    numpy = xmlpreck.fit(
        folder / "data", tune=False, k=np.int64(2), threads=1, settings={"epochs": 1, "rows.bias": 0.1}
    )
    assert same_weights(numpy, by_name)
    with pytest.raises(InputError, match=r"no setting train.epoch; did you mean 'epochs'"):
        xmlpreck.fit(folder / "data", settings={"epoch": 1})
    with pytest.raises(InputError, match=r"train.k must be a whole number, but is 2.5"):
        xmlpreck.fit(folder / "data", k=2.5)


def test_a_listener_hears_the_run_and_can_stop_it(folder, tmp_path):
    heard = []

    class Ear(xmlpreck.Listener):
        def planned(self, plan):
            heard.append(("plan", plan.n_rows))

        def passed(self, facts):
            heard.append(("pass", facts.number))

        def saved(self, run):
            heard.append(("saved", run.folder.name))

        def stop(self):
            return len(heard) > 2

    words = {"tune": False, "threads": 1, "epochs": 4}
    with pytest.raises(Interrupted):
        xmlpreck.fit(folder / "data", tmp_path / "m", listener=Ear(), **words)
    assert heard == [("plan", 1200), ("pass", 1), ("pass", 2)]
    with pytest.raises(InputError, match="has the checkpoint of a run that did not end"):
        xmlpreck.fit(folder / "data", tmp_path / "m", **words)
    resumed = xmlpreck.fit(folder / "data", tmp_path / "m", limits=xmlpreck.Limits(resume=True), **words)
    assert same_weights(resumed, xmlpreck.fit(folder / "data", **words))
    with pytest.raises(InputError, match="name it by `out`"):
        xmlpreck.fit(folder / "data", limits=xmlpreck.Limits(resume=True))


def test_tuning_is_logged(folder, caplog):
    caplog.set_level("INFO", "xmlpreck")
    settings, evidence = xmlpreck.tune(folder / "data", settings={"threads": 1, "algo": "sgd-avg"})
    assert settings.train.k == evidence["chosen"]["k"]
    (line,) = [record.message for record in caplog.records if record.message.startswith("tuned on")]
    assert f"k {settings.train.k}" in line


def test_plan(folder, capsys):
    wanted = said(capsys, "plan", "--data", folder / "data", "--no-tune")
    found = xmlpreck.plan(folder / "data", tune=False).to_dict()
    changing = ("pass_seconds", "limit_bytes", "peak_bytes", "parts")
    assert {name: found[name] for name in found if name not in changing} == {
        name: wanted[name] for name in wanted if name not in changing
    }
    tight = xmlpreck.Limits(memory="1MB")
    with pytest.raises(InputError, match="may be used"):
        xmlpreck.plan(folder / "data", limits=tight)


def test_sweep(folder, tmp_path, capsys):
    words = ["--data", folder / "data", "--sweep", "k=1,3", "--epochs", "1", "--threads", "1"]
    wanted = said(capsys, "train", *words, "--out", tmp_path / "command")
    location = DataLocation(str(folder / "data"))
    found = xmlpreck.sweep(location, "k", ["1", "3"], tmp_path / "python", settings={"epochs": 1, "threads": 1})
    assert {word: run["scores"] for word, run in wanted["runs"].items()} == found.scores
    assert arrays(tmp_path / "command" / "k=3") == arrays(tmp_path / "python" / "k=3")


def test_update(folder, tmp_path, capsys):
    words = ["--model", folder / "m", "--data", folder / "data", "--split", "test", "--out", tmp_path / "command"]
    said(capsys, "update", *words, "--threads", "1")
    rows = DataLocation(str(folder / "data"), "test")
    made = xmlpreck.update(folder / "m", rows, tmp_path / "python", threads=1)
    assert arrays(tmp_path / "command") == arrays(tmp_path / "python")
    assert made.n_bytes == sum(path.stat().st_size for path in (tmp_path / "python").iterdir())


@pytest.mark.parametrize("suffix", [".txt", ".npz", ".jsonl", ".parquet"])
def test_predict(folder, tmp_path, capsys, suffix):
    files = [tmp_path / f"{name}{suffix}" for name in ("command", "python")]
    wanted = said(capsys, "predict", "--model", folder / "m", "--data", folder / "data", "--out", files[0], "--topk", 4)
    found = xmlpreck.predict(folder / "m", folder / "data", files[1], xmlpreck.PredictionOptions(k=4))
    assert files[0].read_bytes() == files[1].read_bytes()
    assert (wanted["topk"], wanted["n_rows"]) == (found.k, found.counts.n_rows) == (4, 300)
    in_memory = xmlpreck.load_model(folder / "m")
    xmlpreck.predict(in_memory, xmlpreck.load_data(folder / "data", "test"), files[1], xmlpreck.PredictionOptions(k=4))
    assert files[0].read_bytes() == files[1].read_bytes()


def test_evaluate_and_compare(folder, tmp_path, capsys):
    out = tmp_path / "p.txt"
    xmlpreck.predict(folder / "m", folder / "data", out)
    wanted = said(capsys, "evaluate", "--pred", out, "--data", folder / "data", "--ks", "1,5", "--resamples", "50")
    options = xmlpreck.EvaluationOptions(ks=(1, 5), n_resamples=50)
    assert xmlpreck.evaluate(out, folder / "data", options).to_dict() == wanted
    wanted = said(capsys, "compare", out, folder / "m", "--data", folder / "data", "--resamples", "50")
    options = xmlpreck.EvaluationOptions(n_resamples=50)
    assert json.loads(json.dumps(xmlpreck.compare([out, folder / "m"], folder / "data", options).to_dict())) == wanted
    with pytest.raises(InputError, match="two or more"):
        xmlpreck.compare([out], folder / "data")


def test_calibrate_and_prune(folder, tmp_path, capsys):
    for name in ("command", "python"):
        (tmp_path / name).mkdir()
    model = xmlpreck.load_model(folder / "m")
    said(capsys, "calibrate", "--model", folder / "m", "--data", folder / "data", "--out", tmp_path / "command" / "c")
    made = xmlpreck.calibrate(model, folder / "data", tmp_path / "python" / "c")
    assert made.n_rows == 240  # a fifth of the training rows was held out
    words = ["--model", folder / "m", "--data", folder / "data", "--max-loss", "1"]
    wanted = said(capsys, "prune", *words, "--out", tmp_path / "command" / "p")
    smaller = xmlpreck.prune(model, tmp_path / "python" / "p", max_loss=1.0, data=folder / "data")
    assert (wanted["threshold"], wanted["before"]) == (smaller.threshold, smaller.before)
    for name in ("c", "p"):
        assert arrays(tmp_path / "command" / name) == arrays(tmp_path / "python" / name)
    assert xmlpreck.prune(model, size="2KB").model.n_weights < model.n_weights
    with pytest.raises(InputError, match="by one of"):
        xmlpreck.prune(model)


def test_explain_and_report(folder, tmp_path, capsys):
    wanted = said(capsys, "explain", "--model", folder / "m", "--data", folder / "data", "--row", "3", "--label", "7")
    found = xmlpreck.explain(folder / "m", folder / "data", 3, labels=[7])
    assert json.loads(json.dumps(found.to_dict())) == wanted
    with pytest.raises(InputError, match="--row 300"):
        xmlpreck.explain(folder / "m", folder / "data", 300)
    pytest.importorskip("matplotlib")
    said(capsys, "report", folder / "m", "-o", tmp_path / "command.html")
    assert xmlpreck.report([folder / "m"], tmp_path / "python.html") == 300
    assert (tmp_path / "command.html").read_text() == (tmp_path / "python.html").read_text()


def test_convert(folder, tmp_path, capsys):
    wanted = said(capsys, "data", "convert", folder / "data", tmp_path / "command", "--rows-per-shard", "500")
    found = xmlpreck.convert(str(folder / "data"), tmp_path / "python", rows_per_shard=500)
    assert [one["n_shards"] for one in wanted] == [one.n_shards for one in found] == [3, 1]
    files = [sorted(path.name for path in (tmp_path / name / "train").iterdir()) for name in ("command", "python")]
    assert files[0] == files[1]
    xmlpreck.fit(tmp_path / "python", tmp_path / "m", tune=False, **SETTINGS)
    assert arrays(tmp_path / "m") == arrays(folder / "m")


def test_data_that_only_a_model_can_read(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "a cat", "labels": ["x"]}\n')
    found = xmlpreck.load_data(tmp_path / "train.jsonl", label_separator=";")
    assert (found.path, found.columns.separator) == (str(tmp_path / "train.jsonl"), ";")
    with pytest.raises(InputError, match="is raw text"):
        found.open()


def test_the_page_of_settings_is_current(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import make_settings

    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == make_settings.make_page()


def test_a_folder_that_may_not_be_replaced_is_refused_before_the_work(folder, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.tex").touch()
    heard = []

    class Ear(xmlpreck.Listener):
        def opened(self, location, rows):
            heard.append(rows)

    with pytest.raises(InputError, match="exists and is not a model"):
        xmlpreck.fit(folder / "data", tmp_path / "m", tune=False, listener=Ear())
    assert heard == []
