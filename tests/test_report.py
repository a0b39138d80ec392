"""The report: its figures are those of the meter, its names are text, its bytes repeat, and it looks as it should."""

import copy
import datetime
import html
import importlib
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, find_chromium
from helpers import HOSTILE, Reader
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from scipy.sparse import csr_array

from xmlpreck import config, metrics, train
from xmlpreck.cli import main
from xmlpreck.config import InputError
from xmlpreck.data import catalog
from xmlpreck.data.formats import Dataset, open_predictions
from xmlpreck.evaluation.report import Run, ScoredRows, write_report
from xmlpreck.evaluation.report import page as report_page
from xmlpreck.evaluation.report.facts import KEPT_SHARES, RunFacts, gather, label_f1
from xmlpreck.evaluation.report.page import page_of
from xmlpreck.evaluation.report.pictures import answered
from xmlpreck.evaluation.report.sections import clear_best, summary, to_toml
from xmlpreck.evaluation.report.tuning import DARKEST
from xmlpreck.evaluation.tables import tuning_text
from xmlpreck.model import Model

DAY = datetime.date(2026, 11, 16)
SUMMARY_NAMES = ("P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")


def trial(eta, tau, p1, p3, p5, kept=False):
    scores = {"P@1": p1, "P@3": p3, "P@5": p5}
    return {"settings": {"eta": eta, "tau": tau}, "scores": scores, "value": (p1 + p3 + p5) / 3, "kept": kept}


# As tuning writes it: two rungs, k given by the user, and an enemy's setting.
TUNING = {
    "heldout_rows": 2000,
    "budget": 2.0,
    "spent": 1.84,
    "fixed": {"k": 5, "algo": HOSTILE[0]},
    "rungs": [
        {
            "rows": 5000,
            "passes": 5,
            "trials": [
                trial(0.25, 0.0, 58.15, 37.95, 28.11),
                trial(0.25, 0.1, 59.85, 39.05, 29.07),
                trial(0.5, 0.0, 59.4, 38.65, 28.72),
                trial(0.5, 0.1, 61.2, 40.1, 30.01, kept=True),
                trial(1.0, 0.0, 57.05, 36.4, 26.93),
                trial(1.0, 0.1, 60.95, 40.02, 29.87, kept=True),
            ],
        },
        {
            "rows": 20_000,
            "passes": 5,
            "trials": [trial(0.5, 0.1, 66.3, 43.97, 32.4), trial(1.0, 0.1, 66.85, 44.08, 32.49, kept=True)],
        },
    ],
    "history": [
        {"passes": 1, "scores": {"P@1": 62.1, "P@3": 40.75, "P@5": 30.05}, "value": 44.3},
        {"passes": 2, "scores": {"P@1": 66.85, "P@3": 44.08, "P@5": 32.49}, "value": 47.806666},
        {"passes": 3, "scores": {"P@1": 66.5, "P@3": 43.98, "P@5": 32.45}, "value": 47.643333},
    ],
    "chosen": {"eta": 1.0, "tau": 0.1, "k": 5, "epochs": 2},
}


@pytest.fixture(scope="module")
def data():
    """The demo's test rows, with labels named by an enemy."""
    rows = catalog.load("demo", "train").read(0, 2000)
    test = catalog.load("demo", "test")
    names = [f"{HOSTILE[label % len(HOSTILE)]} {label}" for label in range(test.n_labels)]
    counts = np.bincount(rows.labels.indices, minlength=test.n_labels)
    propensities = metrics.inverse_propensities(counts, rows.n_rows, 0.55, 1.5)
    return ScoredRows("<i>demo</i>", "test", test._replace(label_names=names), counts, propensities)


@pytest.fixture(scope="module")
def runs():
    rows = catalog.load("demo", "train").read(0, 2000)
    made = []
    for name, algo in (("<b>first</b>", "sgd-avg"), ("second & \u202elast", "perceptron-max")):
        settings = config.load(
            None, config.parse_words([f"train.algo={algo}", "train.epochs=3", "train.heldout=0.1", "train.threads=1"])
        )
        scorer = train.fit(rows, settings)
        for facts in scorer.info["history"]:
            facts["seconds"] = 0.37 * facts["number"]  # so that the pictures are the same on any machine
        made.append(Run(name, scorer))
    made[0].scorer.info["tuning"] = TUNING
    return made


@pytest.fixture(scope="module")
def facts(runs, data):
    return gather(data, runs)


@pytest.fixture(scope="module")
def report(runs, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, runs, data, DAY)
    return path


def test_same_input_same_bytes(runs, data, report, tmp_path):
    write_report(tmp_path / "again.html", runs, data, DAY, n_threads=2)
    assert (tmp_path / "again.html").read_bytes() == report.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["again.html"]
    write_report(tmp_path / "again.html", runs, data, datetime.date(2026, 12, 24))
    assert "24 December 2026" in (tmp_path / "again.html").read_text()


def test_names_are_text_and_nothing_else(report):
    page = report.read_text()
    read = Reader(page)
    assert not {"script", "img", "iframe", "object"} & set(read.tags)
    assert (read.tags["h1"], read.tags["title"]) == (1, 1 + page.count('role="img" xmlns'))
    assert not [name for attributes in read.attributes for name in attributes if name.startswith("on")]
    text = "".join(read.texts)
    for name in (*HOSTILE, "<i>demo</i>", "<b>first</b>"):
        assert name in text


def test_the_page_stands_alone(report):
    page = report.read_text()
    links = [value for a in Reader(page).attributes for key, value in a.items() if key in ("href", "src", "xlink:href")]
    assert links
    assert all(value.startswith(("#", "data:")) for value in links)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert len(page) < 400_000


def test_ids_are_unique_and_every_reference_has_its_target(report):
    page = report.read_text()
    ids = [a["id"] for a in Reader(page).attributes if "id" in a]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"(?:href=\"|url\()#([^\")]+)", page)) <= set(ids)


def test_pictures_have_words_and_the_colours_of_the_page(report):
    pictures = re.findall(r'<svg viewBox="0 0 \d{3} .*?</svg>', report.read_text(), re.DOTALL)
    assert len(pictures) == 2 + 4 + 3 + 6 + 1  # neither run is calibrated
    for picture in pictures:
        assert re.search(r'role="img".*?><title>[^<]{20,}</title>', picture)
        assert "<text" in picture
        assert not re.search(r"#[0-9a-f]{6}\b", picture)
        assert "DejaVu" not in picture
    assert all(f"var(--run-{place})" in "".join(pictures) for place in range(2))


def test_figures_are_those_of_the_meter(runs, data, facts, report):
    text = " ".join(Reader(report.read_text()).texts)
    for run, of_run in zip(runs, facts.runs, strict=True):
        for name, value in run.scorer.score(data.source).items():
            assert of_run.scores.values[name].value == pytest.approx(value, abs=1e-9)
            assert f"{value:.2f}" in text
        assert of_run.best_hits.mean() * 100 == pytest.approx(of_run.scores.values["P@1"].value)
        assert f"{of_run.scores.values['PSP@5'].value:.2f}" in text
    assert facts.survey["sha256"] in text
    assert runs[0].scorer.info["data"]["sha256"] in text


def test_pruned_models_are_measured_as_they_would_be_saved(runs, facts, tmp_path):
    for run, of_run in zip(runs, facts.runs, strict=True):
        run.scorer.save(tmp_path / "model")
        arrays = [np.load(tmp_path / "model" / f"row_{name}.npy") for name in ("offsets", "labels", "weights")]
        sizes = [pruned.n_bytes for pruned in of_run.pruned]
        assert sizes[0] == sum(array.nbytes for array in arrays)
        per_weight = arrays[1].itemsize + arrays[2].itemsize
        kept = [(size - arrays[0].nbytes) / per_weight / len(arrays[2]) for size in sizes]
        # A perceptron's weights have few values, and equal ones stay or go together.
        assert all(0 < share <= wanted + 1e-3 for share, wanted in zip(kept, KEPT_SHARES, strict=True))
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] < sizes[0]
        assert of_run.pruned[0].precision["P@5"] == pytest.approx(of_run.scores.values["P@5"].value, abs=1e-9)


def test_samples_are_rows_of_each_outcome(runs, facts, data):
    found = []
    for sample in facts.samples:
        true = set(data.source.labels[[sample.row_id]].indices.tolist())
        top = runs[0].scorer.predict_topk(data.source.rows[[sample.row_id]], 5).labels[0]
        assert top.tolist() == sample.tops[0].labels[0].tolist()
        found.append(len(true & set(top.tolist())) / min(5, len(true)))
    assert len(found) == 10
    assert found[:4] == [1.0] * 4
    assert all(0 < share < 1 for share in found[4:7])
    assert found[7:] == [0.0] * 3


def run_of(scores, hit):
    """Facts of a run that are only these: each row's best score and whether it is a hit."""
    return RunFacts("run", {}, None, np.array(scores, np.float32), np.array(hit, bool), None)


def test_answered_rows_with_one_score_come_together():
    shares, values = answered(run_of([0.5, 0.9, 0.5, -np.inf], [True, True, False, False]))
    assert shares.tolist() == [25, 75, 100]
    assert values == pytest.approx([100, 200 / 3, 50])


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0, 3.0, 4.5]), st.booleans()), min_size=1, max_size=30))
def test_answered_is_precision_above_each_threshold(rows):
    scores, hit = (np.array(column) for column in zip(*rows, strict=True))
    shares, values = answered(run_of(scores, hit))
    thresholds = sorted(set(scores.tolist()), reverse=True)
    assert shares == pytest.approx([100 * np.mean(scores >= t) for t in thresholds])
    assert values == pytest.approx([100 * np.mean(hit[scores >= t]) for t in thresholds])


def test_label_f1(facts):
    scores = facts.runs[0].scores
    f1 = label_f1(scores)
    assert f1.mean() == pytest.approx(scores.values["macroF1@5"].value)
    assert f1.max() <= 100


def test_settings_can_be_used_again(runs, tmp_path):
    info = runs[1].scorer.info
    (tmp_path / "settings.toml").write_text(to_toml(info["config"]), encoding="utf-8")
    again = config.load(tmp_path / "settings.toml")
    assert again.to_dict() == info["config"]
    assert again.train.algo == "perceptron-max"


def small_data():
    """Three labels without names, one never seen in training, and a row without labels."""
    rows = csr_array(np.eye(4, dtype=np.float32))
    labels = csr_array(np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]], np.float32))
    return Dataset(rows, labels)


def test_what_is_not_known_is_left_out():
    source = small_data()
    scorer = train.fit(source, config.load(None, config.parse_words(["train.threads=1", "train.k=1"])))
    bare = Model(scorer.weights, scorer.rows)
    page = page_of(gather(ScoredRows("small", "test", source), [Run("bare", bare)]), DAY)
    text = " ".join(Reader(page).texts)
    assert "Rows without labels score 0; there are 1 of them." in text
    assert "label 0" in text
    assert "PSP" not in text.replace("PSP@k", "")
    assert "P@3" in text
    assert "P@5" not in text
    assert "training rows, which were not given" in text
    assert "have no history of their training" in text
    assert "No run was tuned" in text
    assert "Probabilities" not in text


def headings(page):
    return re.findall(r'<h2 id="[a-z]+">([^<]*)</h2>', page)


def test_results_come_first_and_learning_curves_are_folded(report):
    page = report.read_text()
    found = headings(page)
    assert found[:2] == ["Precision", "Frequent and rare labels"]
    assert found[-3:] == ["Learning", "How the settings were chosen", "Settings"]
    assert page.index('class="summary"') < page.index("<h2")
    section = re.search(r'<section aria-labelledby="learning">.*?</section>', page, re.DOTALL)[0]
    assert re.fullmatch(
        r'.*<div class="stack"><details><summary>Learning curves</summary>.*</details></div></section>',
        section, re.DOTALL,
    )  # fmt: skip
    assert section.index("<details>") < section.index("<figure>")


@pytest.mark.parametrize(
    ("intervals", "best"),
    [
        ([(50, 48, 52), (60, 58, 62), (55, 52, 57.9)], 1),
        ([(50, 48, 52), (60, 58, 62), (55, 52, 58)], None),  # they touch
        ([(50, 48, 58.5), (60, 58, 62)], None),
        ([(50, None, None), (60, None, None)], None),
        ([(60, 58, 62)], None),
        ([(60, 58, 62), (60, 58, 62)], None),
    ],
)
def test_bold_needs_an_interval_above_all_others(intervals, best):
    assert clear_best([metrics.Estimate(*values) for values in intervals]) == best


def test_the_summary_is_bold_only_where_intervals_do_not_overlap(runs, data, facts):
    assert "<strong>" in summary(facts)
    first, second = (run.scores.values for run in facts.runs)
    wins = sum(first[name].low > second[name].high or second[name].low > first[name].high for name in SUMMARY_NAMES)
    assert summary(facts).count("<strong>") == wins
    twins = gather(data, [runs[0], Run("twin", runs[0].scorer)])
    assert "<strong>" not in summary(twins)


def test_prediction_files_are_runs_too(runs, data, facts, tmp_path):
    """A file of omikuji's kind, scored as the model that made it; alone, it has no settings and no reasons."""
    top = runs[0].scorer.predict_topk(data.source.rows, 9)
    pairs = (zip(*row, strict=True) for row in zip(*top, strict=True))
    lines = ("\t".join(f"{label} {score:.6g}" for label, score in row) + "\n" for row in pairs)
    (tmp_path / "omikuji.txt").write_text("".join(lines))
    file = open_predictions(tmp_path / "omikuji.txt", data.source.n_rows, data.source.n_labels)
    both = gather(data, [Run("file", file), runs[0]])
    as_file, as_model = both.runs
    assert as_file.scores.values == as_model.scores.values == facts.runs[0].scores.values
    assert [[top.labels.tolist() for top in sample.tops] for sample in both.samples] == [
        [sample.tops[0].labels.tolist()] * 2 for sample in facts.samples
    ]
    page = page_of(both, DAY)
    assert "By the weights of <bdi>&lt;b&gt;first&lt;/b&gt;</bdi>" in page
    assert headings(page_of(gather(data, [Run("file", file)]), DAY)) == [
        "Precision", "Frequent and rare labels", "Best and worst labels", "Sample rows", "Confidence",
    ]  # fmt: skip


def test_lists_of_different_lengths_are_scored_by_their_first_labels(tmp_path):
    source = small_data()
    (tmp_path / "p.txt").write_text("0:2 1:1\n\n2:1\n0:1\n")
    found = gather(ScoredRows("small", "test", source), [Run("f", open_predictions(tmp_path / "p.txt", 4, 3))])
    assert found.runs[0].scores.values["P@1"].value == 25
    assert found.runs[0].outcomes.tolist() == [0, 2, 2, 3]
    assert "label 0" in page_of(found, DAY)


def test_texts_are_shown_as_texts(tmp_path, capsys):
    rows = [f"{HOSTILE[0]} apples  and pears {n}\tfruit" for n in range(20)]
    rows += [f"oak {'tree ' * 200}{n}\twood" for n in range(20)]
    (tmp_path / "t.tsv").write_text("text\tlabels\n" + "".join(f"{row}\n" for row in rows))
    assert main(["train", "--data", str(tmp_path / "t.tsv"), "--out", str(tmp_path / "m"), "--no-tune"]) == 0
    words = ["report", str(tmp_path / "m"), "--data", str(tmp_path / "t.tsv"), "-o", str(tmp_path / "r.html")]
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().err.count("read as") <= 1  # what was recognised is said once
    page = (tmp_path / "r.html").read_text()
    shown = [html.unescape(text) for text in re.findall(r'<p class="text" dir="auto">(.*?)</p>', page)]
    assert len(shown) == 4
    for text in shown:
        starts, length = ("oak tree tree", 401) if text[:3] == "oak" else (f"{HOSTILE[0]} apples and pears", len(text))
        assert text.startswith(starts)
        assert len(text) == length
        assert text.endswith("\N{HORIZONTAL ELLIPSIS}") == (length == 401)
    assert {text[:3] for text in shown} == {"oak", HOSTILE[0][:3]}
    assert '<p class="words">' not in page


def test_files_alone_need_data_and_files_of_texts_a_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("0:1\n")
    assert main(["report", "p.txt"]) == 2
    assert "name these by --data" in capsys.readouterr().err
    Path("t.tsv").write_text("text\tlabels\na b c d\tx\n")
    assert main(["report", "p.txt", "--data", "t.tsv"]) == 2
    assert "name the model whose labels were predicted among the runs" in capsys.readouterr().err


def test_a_file_of_rows_alone_takes_frequencies_from_the_rows_that_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("0:1 1:0.5\n1:1 0:0.5\n")
    Path("test.txt").write_text("2 2 2\n0 0:1\n1 1:1\n")
    Path("train.txt").write_text("3 2 2\n0 0:1\n0 1:1\n1 1:1\n")
    assert main(["report", "p.txt", "--data", "test.txt"]) == 0
    assert "name them by --train" in capsys.readouterr().err
    assert "PSP@1" not in Path("report.html").read_text()
    assert main(["report", "p.txt", "--data", "test.txt", "--train", "train.txt"]) == 0
    assert "PSP@1" in Path("report.html").read_text()


def test_passes_without_held_out_rows_are_left_out_of_their_picture():
    """An update goes on without any."""
    source = small_data()
    scorer = train.fit(
        source, config.load(None, config.parse_words(["train.threads=1", "train.k=1", "train.heldout=0.4"]))
    )
    history = [*scorer.info["history"], scorer.info["history"][-1] | {"number": 4, "heldout": None}]
    updated = scorer.fresh(info=scorer.info | {"history": history})
    page = page_of(gather(ScoredRows("small", "test", source), [Run("run", updated)]), DAY)
    assert "Held-out precision" in page


def test_labels_that_training_did_not_see_have_their_place():
    source = small_data()
    scorer = train.fit(source, config.load(None, config.parse_words(["train.threads=1", "train.k=1"])))
    rows = ScoredRows("small", "test", source, np.array([2, 2, 0]))
    page = page_of(gather(rows, [Run("run", scorer)]), DAY)
    assert "2 tail, 1 unseen" in page
    assert "--heldout" in page


def tuning_section(page):
    """The part of a page that tells how the settings were chosen."""
    return re.search(r'<section aria-labelledby="how">.*?</section>', page, re.DOTALL)[0]


def rows_of(section):
    """(text, whether it has a cell with a star) of each row below a table's head."""
    rows = re.findall(r'<tr><th scope="row".*?</tr>', section)
    texts = (" ".join(re.sub("<.*?>", " ", row).split()) for row in rows)
    return [(text.replace("*", ""), "*" in text) for text in texts]


def grid_of(section):
    """Words of the section's picture, and whether each of its cells has a frame, in the order of painting."""
    picture = re.search(r'<svg viewBox="0 0 \d{3} .*?</svg>', section, re.DOTALL)
    if picture is None:
        return None
    cells = re.findall(r'style="(fill: var\(--run-[^"]*)"', picture[0])
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture[0]), ["stroke: var(--ink)" in cell for cell in cells]


def tell(tuning):
    """The section on a run of its own with that evidence."""
    source = small_data()
    scorer = train.fit(source, config.load(None, config.parse_words(["train.threads=1", "train.k=1"])))
    scorer.info["tuning"] = tuning
    return tuning_section(page_of(gather(ScoredRows("small", "test", source), [Run("run", scorer)]), DAY))


def test_every_trial_and_pass_is_shown_and_the_best_have_a_star(report):
    section = tuning_section(report.read_text())
    rows = rows_of(section)
    assert [place for place, (_, has_star) in enumerate(rows) if has_star] == [1, 6, 10]
    assert len(rows) == 3 + 6 + 2
    assert rows[1][0] == "2 66.85 44.08 32.49 47.81"
    assert rows[6][0] == "5,000 rows, 5 passes 0.5 0.1 61.20 40.10 30.01 43.77 kept"
    assert rows[9][0] == "20,000 rows, 5 passes 0.5 0.1 66.30 43.97 32.40 47.56 dropped"


def test_choice_and_cost_are_told(report):
    text = "".join(Reader(tuning_section(report.read_text())).texts)
    assert "<b>first</b>: 8 trials, scored on 2,000 held-out rows, cost 1.8 of at most 2 passes over" in text
    assert f"Chosen: k 5 (fixed), algo {HOSTILE[0]} (fixed), eta 1, tau 0.1, epochs 2." in text
    assert "Not tuned: second & \u202elast." in text


def test_first_rung_is_a_grid_of_tau_and_eta(report):
    section = tuning_section(report.read_text())
    words, is_framed = grid_of(section)
    assert "share a cell" not in section
    assert sorted(words) == sorted(
        ["0", "0.1", "tau", "0.25", "0.5", "1", "eta", "41.4", "42.7", "42.3", "43.8", "40.1", "43.6"]
    )
    assert is_framed == [False, False, False, True, False, False]


def test_a_cell_of_the_grid_has_the_best_of_its_trials():
    tuning = copy.deepcopy(TUNING)
    first = tuning["rungs"][0]["trials"]
    for one in first:
        one["settings"]["k"] = 5
    for p1 in (90.0, 10.0):  # one better than all, one worse than the trial with k = 5
        first.append(trial(0.25, 0.0, p1, p1, p1))
        first[-1]["settings"]["k"] = p1
    section = tell(tuning)
    words, is_framed = grid_of(section)
    assert "share a cell" in section
    assert "90.0" in words
    assert not {"10.0", "41.4"} & set(words)
    assert is_framed == [True, False, False, False, False, False]


def test_a_fixed_setting_is_a_line_of_the_grid():
    tuning = copy.deepcopy(TUNING)
    tuning["fixed"] = {"eta": 1.0}
    for one in (one for rung in tuning["rungs"] for one in rung["trials"]):
        del one["settings"]["eta"]
    tuning["rungs"][0]["trials"] = tuning["rungs"][0]["trials"][:2]
    assert sorted(grid_of(tell(tuning))[0]) == ["0", "0.1", "1", "41.4", "42.7", "eta", "tau"]


def test_trials_that_share_tau_and_eta_need_no_grid():
    tuning = copy.deepcopy(TUNING)
    tuning["rungs"][0]["trials"] = tuning["rungs"][0]["trials"][:1]
    assert grid_of(tell(tuning)) is None
    del tuning["chosen"]["eta"]  # a perceptron has none
    tuning["rungs"] = [{"rows": 9, "passes": 1, "trials": [trial(0.0, tau, 3, 2, 1) for tau in (0.0, 0.1)]}]
    for one in tuning["rungs"][0]["trials"]:
        del one["settings"]["eta"]
    section = tell(tuning)
    assert grid_of(section) is None
    assert ("9 rows, 1 pass 0.1 3.00 2.00 1.00 2.00 dropped", True) in rows_of(section)


def test_nothing_to_try_is_told_without_tables():
    section = tell(TUNING | {"rungs": [], "history": [], "spent": 0.0})
    assert "0 trials" in section
    assert rows_of(section) == []
    assert "<details" not in section
    Reader(section)


def test_numbers_of_the_grid_are_readable_on_every_colour():
    """WCAG's contrast of ink on the strongest cell, by day and by night."""
    css = (Path(report_page.__file__).parent / "page.css").read_text()
    for scheme in css.split("@media")[:2]:
        colours = {
            name: np.array(list(bytes.fromhex(code * (6 // len(code))))) / 255
            for name, code in re.findall(r"--([a-z0-9-]+): #([0-9a-f]+);", scheme)
        }
        for place in range(6):
            cell = DARKEST * colours[f"run-{place}"] + (1 - DARKEST) * colours["paper"]
            dark, light = sorted(luminance(colour) for colour in (cell, colours["ink"]))
            assert (light + 0.05) / (dark + 0.05) >= 4.5


def luminance(colour):
    linear = np.where(colour <= 0.03928, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_tuning_as_text():
    lines = tuning_text(TUNING | {"fixed": {"k": 5, "algo": "\x1b[2Jx"}}).splitlines()
    assert lines[0].split() == ["trained", "on", "eta", "tau", "P@1", "P@3", "P@5", "mean"]
    assert len(lines) == 1 + 6 + 2 + 3
    assert lines[1] == "5,000 rows, 5 passes   0.25    0  58.15  37.95  28.11  41.40"
    assert lines[4] == "5,000 rows, 5 passes    0.5  0.1  61.20  40.10  30.01  43.77*  kept"
    assert [line.count("*") for line in lines[1:9]] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert lines[-3] == "the winner, mean after each pass: 44.30, 47.81*, 47.64"
    assert lines[-2].startswith("scored on 2,000 held-out rows; cost 1.8 of at most 2 passes over the training rows")
    assert lines[-1] == "chosen: k 5 (fixed), algo \N{REPLACEMENT CHARACTER}[2Jx (fixed), eta 1, tau 0.1, epochs 2"


def test_tuning_without_trials_as_text():
    lines = tuning_text(TUNING | {"rungs": [], "history": [], "spent": 0.0, "fixed": {}}).splitlines()
    assert len(lines) == 2
    assert lines[-1] == "chosen: eta 1, tau 0.1, k 5, epochs 2"


def test_bad_input_is_told_in_one_line(runs, data, tmp_path):
    path = tmp_path / "report.html"
    with pytest.raises(InputError, match="1 to 6 runs, but 7 were given"):
        write_report(path, runs[:1] * 7, data, DAY)
    with pytest.raises(InputError, match="1 to 6 runs, but 0 were given"):
        write_report(path, [], data, DAY)
    with pytest.raises(InputError, match=r"4000 features and 1000 labels, but small has 4 and 3.*--data"):
        write_report(path, runs, ScoredRows("small", "test", small_data()), DAY)
    with pytest.raises(InputError, match="small, split test: has no rows"):
        write_report(path, runs, ScoredRows("small", "test", small_data().read(0, 0)), DAY)
    with pytest.raises(InputError, match="cannot be written"):
        write_report(tmp_path / "missing" / "report.html", runs, data, DAY)
    assert not path.exists()


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("xmlpreck.evaluation.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'xmlpreck\[report\]'"):
        importlib.import_module("xmlpreck.evaluation.report")


# What the browser shows. Boxes are measured with all details open.

BEYOND_THE_EDGE = """
[...document.querySelectorAll("body *")].filter(e => !e.parentElement.closest(".scroll")
  && e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 200))
"""
WIDER_THAN_ITS_BOX = """
[...document.querySelectorAll("body *")].filter(e => !e.closest("svg") && !e.matches(".scroll, pre")
  && e.clientWidth && e.scrollWidth > e.clientWidth + 1).map(e => e.outerHTML.slice(0, 200))
"""
TEXTS_THAT_COLLIDE = """
[...document.querySelectorAll("figure svg")].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
  const outside = boxes.filter(([_, b]) => b.left < frame.left - 4 || b.right > frame.right + 4
    || b.top < frame.top - 4 || b.bottom > frame.bottom + 4).map(([t, _]) => "outside: " + t);
  const pairs = boxes.flatMap(([t, a], i) => boxes.slice(i + 1).filter(([_, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4).map(([u, _]) => t + " meets " + u));
  return [...outside, ...pairs].map(text => svg.querySelector("title").textContent.slice(0, 40) + ": " + text);
})
"""
LOWEST_CONTRAST = """
(() => {
  const parts = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = colour => { const [r, g, b] = parts(colour).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (parts(c)[3] !== 0) return c; } return "rgb(255, 255, 255)"; };
  const ratios = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || e.tagName === "title") continue;
    const style = getComputedStyle(e);
    const pair = [light(e.closest("svg") ? style.fill : style.color), light(ground(e))].sort((a, b) => b - a);
    ratios.push((pair[0] + 0.05) / (pair[1] + 0.05));
  }
  return [ratios.length, Math.min(...ratios)];
})()
"""


@pytest.fixture(scope="module")
def browser():
    if find_chromium() is None:
        pytest.skip("needs Chromium, to look at pages")
    with Browser() as started:
        yield started


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_looks_right(browser, report, width, tmp_path):
    grounds = {}
    for scheme in ("light", "dark"):
        browser.open(report, width, 900, scheme)
        picture = tmp_path / f"report-{width}-{scheme}.png"
        browser.screenshot(picture)
        assert picture.stat().st_size > 50_000
        if wanted := os.environ.get("XMLPRECK_SCREENSHOTS"):
            Path(wanted).mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, wanted)
        browser.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert browser.evaluate("innerWidth") == width
        for bad in (BEYOND_THE_EDGE, WIDER_THAN_ITS_BOX, TEXTS_THAT_COLLIDE):
            assert browser.evaluate(bad) == []
        n_texts, contrast = browser.evaluate(LOWEST_CONTRAST)
        assert n_texts > 500
        assert contrast >= 4.5
        grounds[scheme] = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert grounds["light"] == "rgb(255, 255, 255)"
    assert grounds["dark"] == "rgb(18, 20, 23)"


def test_wide_tables_show_that_they_scroll(browser, report, tmp_path):
    """On a phone, the edge of the summary is shaded where more of it is hidden; on a wide screen nothing is."""
    for width, scheme, hidden in ((390, "light", True), (390, "dark", True), (1280, "light", False)):
        browser.open(report, width, 900, scheme)
        box = browser.evaluate("""(() => {
            const box = document.querySelector(".summary").parentElement, r = box.getBoundingClientRect();
            return [r.left, r.right, r.top + r.height / 2, box.scrollWidth > box.clientWidth];
        })()""")
        assert box[3] == hidden

        def edge(x, box=box):
            browser.screenshot(tmp_path / "page.png")
            return imread(tmp_path / "page.png")[int(box[2]), int(x), :3].mean()

        paper = edge(4)  # left of the box
        assert (abs(edge(box[1] - 2) - paper) > 0.15) == hidden
        assert abs(edge(box[0] + 1) - paper) < 0.02  # nothing is hidden on the left yet
        browser.evaluate("document.querySelector('.summary').parentElement.scrollLeft = 1e6")
        assert abs(edge(box[1] - 2) - paper) < 0.02
        assert (abs(edge(box[0] + 1) - paper) > 0.15) == hidden


def test_the_page_is_quiet_and_shows_names_as_they_are(browser, report):
    browser.open(report, 1280, 900, "light")
    shown = browser.evaluate("document.body.textContent")
    assert all(name in shown for name in HOSTILE)
    assert browser.evaluate("[document.scripts.length, document.images.length, document.title]") == [
        0, 0, "<i>demo</i>: xmlpreck report",
    ]  # fmt: skip
    asked = [event["request"]["url"] for event in browser.told("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:")] == [report.resolve().as_uri()]
    errors = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    assert [told for name in errors for told in browser.told(name)] == []


def test_the_page_would_run_no_script(browser, report, tmp_path):
    """Even if a name got through: the page's own policy forbids it. (And the checks above do notice a script.)"""
    broken = tmp_path / "broken.html"
    broken.write_text(report.read_text().replace("<main>", "<main><script>document.title = 'caught'</script>"))
    browser.open(broken, 1280, 900, "light")
    assert browser.evaluate("[document.scripts.length, document.title]") == [1, "<i>demo</i>: xmlpreck report"]
    assert any("Content Security Policy" in told["entry"]["text"] for told in browser.told("Log.entryAdded"))
