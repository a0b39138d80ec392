"""Rows that a model knows already: they are recognised, choices are kept away from them, and what is chosen is told."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from xmlpreck import train
from xmlpreck.cli import main
from xmlpreck.config import InputError, RunConfig, TrainConfig
from xmlpreck.data import catalog
from xmlpreck.data.formats import Dataset, write_repository_text
from xmlpreck.data.rows import Subset, split_heldout
from xmlpreck.model import Model, choosing
from xmlpreck.model.prediction import Choice

ROWS = 600  # of training
WORDS = ["ape", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "kite", "lark", "mole", "newt"]


def settings(**changes):
    return RunConfig(train=TrainConfig(**({"epochs": 2, "threads": 1, "heldout": 0.2} | changes)))


@pytest.fixture(scope="module")
def rows():
    return catalog.load("demo", "train").read(0, ROWS)


@pytest.fixture(scope="module")
def new_rows():
    return catalog.load("demo", "test").read(0, 400)


@pytest.fixture(scope="module")
def scorer(rows):
    return train.fit(rows, settings())


def test_rows_of_training_are_recognised(scorer, rows, new_rows):
    kept, heldout = split_heldout(rows, settings().train.heldout, settings().train.seed)
    for known in (rows, kept, Subset(rows, np.arange(ROWS))):  # all of it, or all that it was trained on
        assert choosing.seen_rows(scorer, known) == (True, [])
    for unknown in (
        heldout,
        new_rows,
        rows.read(0, ROWS // 2),
        rows.read(0, 1),
        catalog.load("demo", "train").read(1, ROWS + 1),
    ):
        assert choosing.seen_rows(scorer, unknown) == (False, [])
    whole = train.fit(rows, settings(heldout=0.0))
    assert choosing.seen_rows(whole, rows).trained
    assert choosing.seen_rows(train.update(scorer, new_rows, settings(heldout=0.0)), new_rows).trained


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"data": 3, "config": [], "updates": {"n_rows": ROWS}, "chosen_on": 7},
        {"data": {"n_rows": ROWS}, "config": {"train": {"heldout": "much"}}, "chosen_on": [3, {"what": []}]},
        {"data": {"n_rows": 480, "sha256": []}, "config": {"train": {"heldout": 0.2, "seed": -1}}, "updates": [None]},
        {"data": {"n_rows": 480, "sha256": []}, "config": {"train": {"heldout": 0.2}}, "updates": [{"n_rows": ROWS}]},
    ],
)
def test_a_model_that_says_nonsense_knows_nothing(scorer, rows, info):
    assert choosing.seen_rows(scorer.fresh(info=info), rows) == (False, [])


def test_choices_are_made_on_held_out_rows(scorer, rows, new_rows):
    given = choosing.rows_to_choose_on(scorer, rows)
    assert given.rows.n_rows == ROWS * 0.2
    assert not choosing.seen_rows(scorer, given.rows).trained
    calibrated = choosing.calibrate(scorer, given)
    smaller, before, tried = choosing.prune_to_loss(scorer, given, max_loss=2.0)
    assert all(before[name] - tried[-1].scores[name] <= 2 for name in before)
    assert smaller.n_weights < scorer.n_weights
    for model in (calibrated, smaller):
        assert choosing.choice_records(model) == []
        assert choosing.seen_rows(model, new_rows) == (False, [])


def test_rows_that_a_model_has_not_held_out_are_refused(scorer, rows, new_rows):
    whole = train.fit(rows, settings(heldout=0.0))
    updated = train.update(scorer, rows, settings(heldout=0.0))  # on those too that were held out before
    for model, source in ((whole, rows), (scorer, new_rows), (updated, rows)):
        with pytest.raises(InputError, match=r"held out none of these rows: train it on them with --heldout 0\.1, or"):
            choosing.rows_to_choose_on(model, source, name="demo")
    for model in (whole, scorer, updated):
        with pytest.raises(InputError, match="demo: the model was trained on these rows"):
            choosing.rows_to_choose_on(model, rows, "train", "demo")


def test_a_choice_on_other_rows_is_remembered(scorer, rows, new_rows, tmp_path):
    given = choosing.rows_to_choose_on(scorer, new_rows, "test", "demo")
    smaller, _, _ = choosing.prune_to_loss(scorer, given, max_loss=2.0)
    both = choosing.calibrate(smaller, given)
    both.save(tmp_path / "m")
    again = Model.load(tmp_path / "m")
    assert choosing.seen_rows(again, new_rows) == (False, ["pruning", "calibration"])
    assert choosing.seen_rows(again, rows) == (True, [])
    record = again.info["chosen_on"][0]
    assert record == {"what": "pruning", "split": "test", "name": "demo", **choosing.identify(new_rows)._asdict()}
    # Without the probabilities, which pruning and updates take away, only the pruning has a say.
    for later in (again.prune(0.2), train.update(again, rows.read(0, 300), settings(heldout=0.0))):
        assert choosing.seen_rows(later, new_rows).chosen == ["pruning"]
    # Probabilities that are learned again replace the old ones, and what was said of them.
    better = choosing.calibrate(again, choosing.rows_to_choose_on(again, rows))
    assert choosing.seen_rows(better, new_rows).chosen == ["pruning"]


def test_rows_without_labels_choose_nothing(scorer, new_rows):
    bare = new_rows._replace(labels=csr_array(new_rows.labels.shape, dtype=np.float32))
    given = choosing.rows_to_choose_on(scorer, bare, "test")
    with pytest.raises(InputError, match="no row has a label"):
        choosing.calibrate(scorer, given)
    with pytest.raises(InputError, match="no first label of these rows is right"):
        choosing.prune_to_loss(scorer, given, 1.0)


def test_sorting_by_probability_gives_the_same_lists(scorer, rows, new_rows, tmp_path):
    """A client that reads a file of probabilities and sorts it has the labels, and P@k, of the margins."""
    calibrated = choosing.calibrate(scorer, choosing.rows_to_choose_on(scorer, rows))
    shifts = np.random.default_rng(0).normal(0, 2, scorer.n_labels).astype(np.float32)
    object.__setattr__(calibrated.calibration, "shifts", shifts)  # labels that differ more than these few rows can tell
    margins = calibrated.predict_topk(new_rows.rows, 5)
    found = Choice(5, as_probabilities=True).predict(calibrated, new_rows.rows)
    order = np.lexsort((found.labels, -found.scores))
    assert (np.take_along_axis(found.labels, order, axis=1) == margins.labels).all()
    assert ((found.scores > 0) & (found.scores < 1)).all()


# From the command line, with rows of numbers in one file and with raw text.


@pytest.fixture
def one_file(rows, new_rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_repository_text("rows.txt", rows)
    write_repository_text("new.txt", new_rows)
    words = ["train", "--data", "rows.txt", "--epochs", "1", "--no-tune", "--threads", "1", "--out"]
    assert main([*words, "m"]) == 0
    assert main([*words, "held", "--heldout", "0.2"]) == 0


def test_figures_on_training_rows_are_called_that(one_file, capsys):
    assert main(["evaluate", "--pred", "m", "--data", "rows.txt", "--resamples", "0", "--json"]) == 0
    told = capsys.readouterr()
    assert "m: was trained on these rows: figures on them say nothing about new rows" in told.err
    assert json.loads(told.out.splitlines()[-1])["seen"] == {"trained": True, "chosen": []}
    assert main(["compare", "held", "m", "--data", "new.txt", "--resamples", "2", "--json"]) == 0
    told = capsys.readouterr()
    assert "was trained" not in told.err
    assert json.loads(told.out)["files"]["m"]["seen"] == {"trained": False, "chosen": []}
    assert main(["compare", "held", "m", "--data", "rows.txt", "--resamples", "2"]) == 0
    assert capsys.readouterr().err.count("was trained on these rows") == 2
    assert main(["predict", "--model", "m", "--data", "rows.txt", "--out", "P.npz"]) == 0
    assert main(["evaluate", "--pred", "P.npz", "--data", "rows.txt", "--resamples", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["seen"] is None  # a file does not say who made it


def test_a_report_does_not_call_training_rows_test_rows(one_file, capsys):
    pytest.importorskip("matplotlib")
    assert main(["report", "m"]) == 2
    assert re.search(
        r"rows\.txt: m was trained on it, and it has no test rows.*--data.*--split train", capsys.readouterr().err
    )
    for words in (["--split", "train"], ["--data", "rows.txt"]):
        assert main(["report", "m", *words]) == 0
        page = Path("report.html").read_text()
        assert '<span class="warning">Training rows</span>' in page
        assert '<p class="warning" role="note"><bdi>m</bdi> was trained on these rows: figures' in page
        assert "Test rows" not in page
    assert main(["report", "m", "held", "--data", "new.txt"]) == 0
    page = Path("report.html").read_text()
    assert "Test rows" in page
    assert 'class="warning"' not in page


def test_prune_and_calibrate_choose_on_held_out_rows_by_default(one_file, capsys):
    pytest.importorskip("matplotlib")
    for verb in (["prune", "--max-loss", "1", "--out", "out"], ["calibrate"]):
        assert main([*verb, "--model", "m", "--data", "rows.txt"]) == 2
        assert "rows.txt: the model has held out none of these rows" in capsys.readouterr().err
        assert main([*verb, "--model", "m", "--data", "rows.txt", "--split", "train"]) == 2
        assert "the model was trained on these rows" in capsys.readouterr().err
        assert main([*verb, "--model", "held", "--data", "rows.txt"]) == 0
    assert Model.load("out").info["chosen_on"] == Model.load("held").info["chosen_on"] == []
    capsys.readouterr()
    assert (
        main(["prune", "--max-loss", "1", "--model", "held", "--data", "new.txt", "--split", "test", "--out", "p"]) == 0
    )
    assert "new.txt, split test: the model will remember" in capsys.readouterr().err
    assert main(["evaluate", "--pred", "p", "--data", "new.txt", "--resamples", "0"]) == 0
    assert "p: its pruning was chosen on these rows: figures on them are flattered" in capsys.readouterr().err
    assert main(["report", "p", "--data", "new.txt"]) == 0
    assert "its pruning was chosen on these rows" in Path("report.html").read_text()
    assert main(["report", "p", "--data", "rows.txt"]) == 0  # other rows: it is told all the same
    assert "Pruning chosen on the test rows of <bdi>new.txt</bdi>" in Path("report.html").read_text()


def test_rows_are_for_a_loss_only(one_file, capsys):
    for words in (["--split", "test"], ["--data", "new.txt"]):
        assert main(["prune", "--model", "m", "--out", "x", "--size", "1MB", *words]) == 2
        assert f"{words[0]} has no effect without --max-loss" in capsys.readouterr().err


def texts(n_rows, seed, labels):
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(n_rows):
        words = rng.choice(WORDS, 6, replace=False).tolist()
        lines.append(json.dumps({"text": " ".join(words), "labels": [word for word in words if word in labels]}))
    return "\n".join(lines) + "\n"


def test_calibration_on_labels_that_training_never_saw(tmp_path, monkeypatch, capsys):
    """It once wrote a model that nothing could read again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text(texts(300, 1, WORDS[:6]))
    (tmp_path / "new.jsonl").write_text(texts(100, 2, WORDS))
    words = ["--set", "text.min_df=1", "--set", "text.max_df=1.0", "--no-tune", "--threads", "1", "--out", "m"]
    assert main(["train", "--data", "train.jsonl", *words]) == 0
    assert main(["calibrate", "--model", "m", "--data", "new.jsonl", "--split", "test"]) == 0
    assert Model.load("m", verify=True).calibration.shifts.shape == (6,)
    capsys.readouterr()
    assert main(["predict", "--model", "m", "--data", "new.jsonl", "--scores", "probability", "--out", "-"]) == 0
    assert all(min(json.loads(line)["scores"]) > 0 for line in capsys.readouterr().out.splitlines())
    assert main(["calibrate", "--model", "m", "--data", "new.jsonl", "--split", "test"]) == 0


def test_calibration_on_rows_with_more_label_columns(scorer, new_rows, tmp_path):
    """The same for numbers."""
    wider = csr_array((new_rows.labels.data, new_rows.labels.indices, new_rows.labels.indptr), (400, 1010))
    given = choosing.rows_to_choose_on(scorer, Dataset(new_rows.rows, wider), "test")
    choosing.calibrate(scorer, given).save(tmp_path / "m")
    assert len(Model.load(tmp_path / "m").calibration.shifts) == scorer.n_labels
