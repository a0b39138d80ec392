"""The report: its figures are those of the meter, its names are text, its bytes repeat, and it looks as it should."""

import datetime
import importlib
import os
import re
import shutil
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, find_chromium
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from xmlpreck import catalog, config, metrics, train
from xmlpreck.config import InputError
from xmlpreck.formats import Dataset
from xmlpreck.model import LinearScorer
from xmlpreck.report import Run, ScoredRows, write_report
from xmlpreck.report.facts import KEPT_SHARES, RunFacts, gather, label_f1
from xmlpreck.report.page import page_of
from xmlpreck.report.pictures import answered
from xmlpreck.report.sections import to_toml

DAY = datetime.date(2026, 11, 16)
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</title></style></svg><h1>&lt;b&gt;",
    "\u202etxt.exe",
    "$\\frac{1}{0}$ {x} %s",
    "long" * 40,
)
VOID = {"meta", "link", "path", "use", "circle", "rect", "line"}


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
        settings = config.load(None, [f"train.algo={algo}", "train.epochs=3", "train.heldout=0.1", "train.threads=1"])
        scorer = train.fit(rows, settings)
        for facts in scorer.info["history"]:
            facts["seconds"] = 0.37 * facts["number"]  # so that the pictures are the same on any machine
        made.append(Run(name, scorer))
    return made


@pytest.fixture(scope="module")
def facts(runs, data):
    return gather(data, runs)


@pytest.fixture(scope="module")
def report(runs, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, runs, data, DAY)
    return path


class Reader(HTMLParser):
    """Tags, attributes and text of a page; an end tag must end the last open one."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.open, self.texts = Counter(), [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes.append(dict(attributes))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes.append(dict(attributes))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, text):
        self.texts.append(text)


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
    assert len(pictures) == 6 + 2 + 3 + 2 + 4
    for picture in pictures:
        assert re.search(r'role="img".*?><title>[^<]{20,}</title>', picture)
        assert "<text" in picture
        assert not re.search(r"#[0-9a-f]{6}\b", picture)
        assert "DejaVu" not in picture
    assert all(f"var(--run-{place})" in "".join(pictures) for place in range(2))


def test_figures_are_those_of_the_meter(runs, data, facts, report):
    text = " ".join(Reader(report.read_text()).texts)
    for run, of_run in zip(runs, facts.runs, strict=True):
        for name, value in train.score(run.scorer, data.source, config.TrainConfig(threads=1)).items():
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
        assert all(share >= wanted - 1e-3 for share, wanted in zip(kept, KEPT_SHARES, strict=True))
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
    return RunFacts("run", {}, None, np.array(scores, np.float32), np.array(hit, bool), None, None, False, [])


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
    scorer = train.fit(source, config.load(None, ["train.threads=1", "train.k=1"]))
    bare = LinearScorer(scorer.weights, scorer.rows)
    page = page_of(gather(ScoredRows("small", "test", source), [Run("bare", bare)]), DAY)
    text = " ".join(Reader(page).texts)
    assert "Rows without labels score 0; there are 1 of them." in text
    assert "label 0" in text
    assert "PSP" not in text.replace("PSP@k", "")
    assert "P@3" in text
    assert "P@5" not in text
    assert "training rows, which were not given" in text
    assert "say nothing of how they were trained" in text


def test_labels_that_training_did_not_see_have_their_place():
    source = small_data()
    scorer = train.fit(source, config.load(None, ["train.threads=1", "train.k=1"]))
    rows = ScoredRows("small", "test", source, np.array([2, 2, 0]))
    page = page_of(gather(rows, [Run("run", scorer)]), DAY)
    assert "2 tail, 1 unseen" in page
    assert "--heldout" in page


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
    for name in [name for name in sys.modules if name.startswith("xmlpreck.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'xmlpreck\[report\]'"):
        importlib.import_module("xmlpreck.report")


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
