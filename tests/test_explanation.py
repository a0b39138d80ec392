"""Explanations: they add up to the score's last bit, their places are those of brute force, and what they promise
about removed features comes true when the row is predicted again."""

import json

import numpy as np
import pytest
from helpers import HOSTILE, Reader, sparse_from
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from xmlpreck.cli import explain as explaining
from xmlpreck.cli import main
from xmlpreck.config import InputError, RowsConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.evaluation.report import Run, ScoredRows
from xmlpreck.evaluation.report.facts import gather
from xmlpreck.evaluation.report.reasons import reasons
from xmlpreck.model import Model, lay_out, prepare_rows
from xmlpreck.model.explanation import MOST_REMOVED, Names, explain, find_removal, parts_of, without

N_FEATURES, N_LABELS = 24, 150


def row_of(values):
    return csr_array(np.array([values], np.float32))


def scorer_of(matrix, bias=0.0, unit_norm=False):
    """Of weights (n_features and the bias, n_labels)."""
    return Model(lay_out(sparse_from(np.array(matrix, np.float32))), RowsConfig(unit_norm, bias))


@st.composite
def cases(draw):
    """A model with dense, sparse and empty rows of weights, with or without bias, and a row for it."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = RowsConfig(draw(st.booleans()), draw(st.sampled_from([0.0, 0.37])))
    density = rng.choice([0, 0.02, 0.05, 0.9], N_FEATURES + (rows.bias > 0))
    matrix = rng.normal(size=(len(density), N_LABELS)) * (rng.random((len(density), N_LABELS)) < density[:, None])
    if draw(st.booleans()):
        matrix = np.round(matrix)  # scores that tie
    weights = lay_out(sparse_from(matrix.astype(np.float32)))
    scorer = Model(weights, rows).prune(draw(st.sampled_from([0.0, 0.5])))
    row = rng.normal(size=N_FEATURES) * (rng.random(N_FEATURES) < draw(st.sampled_from([0, 0.3, 1])))
    return scorer, row_of(row)


@given(cases())
@settings(deadline=None)  # the first example may compile kernels
def test_contributions_add_up_to_the_last_bit(case):
    scorer, row = case
    scores = scorer.decision_function(row)[0]
    for label in range(N_LABELS):
        parts = parts_of(scorer, row, label)
        assert parts.contributions.dtype == np.float32
        total = np.float32(0)
        for adds in parts.contributions:
            total += adds
        assert total.tobytes() == scores[label].tobytes()
    prepared = prepare_rows(row, scorer.rows)
    np.testing.assert_array_equal(parts.features, prepared.indices)
    np.testing.assert_array_equal(parts.values, prepared.data)


def test_a_loaded_model_explains_as_the_one_that_was_saved(tmp_path):
    """Loaded weights have sparse rows beside the dense ones."""
    rng = np.random.default_rng(0)
    scorer = scorer_of(rng.normal(size=(5, 80)) * (np.arange(5)[:, None] > 2), bias=0.5)
    scorer.save(tmp_path / "m")
    row = row_of([1, 2, 3, 4])
    for label in (0, 40, 79):
        parts, again = (parts_of(model, row, label) for model in (scorer, Model.load(tmp_path / "m")))
        np.testing.assert_array_equal(parts.weights, again.weights)
        assert (parts.weights != 0).tolist() == [False, False, False, True, True]


@given(cases(), st.integers(1, 8), st.lists(st.integers(0, N_LABELS - 1), max_size=3))
@settings(deadline=None)
def test_places_are_those_of_brute_force(case, k, asked):
    scorer, row = case
    scores = scorer.decision_function(row)[0]
    order = sorted(range(N_LABELS), key=lambda label: (-scores[label], label))
    explained = explain(scorer, row, k, asked, truth=[order[0]])
    labels = [each.label for each in explained]
    predicted = order[:k] if row.count_nonzero() else []  # a row without features gets no label
    assert labels == list(dict.fromkeys(predicted + asked))
    for each in explained:
        assert order[each.rank - 1] == each.label
        assert each.score == scores[each.label]
        assert each.is_true == (each.rank == 1)
        assert each.is_predicted == (each.label in predicted)
        # The first label outside, or the last one inside.
        assert each.rival == order[k if each.rank <= k else k - 1]
        assert each.lead == float(scores[each.label]) - float(scores[each.rival])


@given(cases(), st.integers(1, 8), st.integers(0, N_LABELS - 1))
@settings(deadline=None)
def test_without_the_removed_features_the_label_changes_sides(case, k, asked):
    scorer, row = case
    for each in explain(scorer, row, k, [asked]):
        if each.removal is None:
            continue
        assert 1 <= len(set(each.removal)) == len(each.removal) <= MOST_REMOVED
        values = row.toarray()[0]
        assert values[each.removal].all()
        values[each.removal] = 0
        scores = scorer.decision_function(row_of(values))[0]
        rank = sorted(range(N_LABELS), key=lambda label: (-scores[label], label)).index(each.label) + 1
        assert (rank <= k) != each.is_predicted


def test_one_feature_decides():
    # feature 1 lifts label 0 above label 1; without feature 2 label 2 would win
    scorer = scorer_of([[1, 2, 0], [3, 0, 0], [0, 0, -9], [0, 0, 5]])
    row = row_of([1, 1, 1, 1])
    first, last = explain(scorer, row, 1, [2])
    assert (first.label, first.rank, first.rival, first.lead, first.removal) == (0, 1, 1, 2, [1])
    assert (last.label, last.rank, last.rival, last.lead, last.removal) == (2, 3, 0, -8, [2])


def test_a_set_that_is_too_large_is_not_told():
    for n_features, is_found in ((MOST_REMOVED, True), (MOST_REMOVED + 1, False)):
        # label 1 has a feature of its own, and all others must go before it wins
        scorer = scorer_of([[1, 0]] * n_features + [[0, 0.5]])
        removal = find_removal(scorer, row_of([1] * (n_features + 1)), 1, 0)
        assert removal == (list(range(n_features)) if is_found else None)


def test_the_strongest_go_first():
    scorer = scorer_of([[5, 0], *[[0, 0.25]] * 12, [4, 0]])
    assert find_removal(scorer, row_of([1] * 14), 1, 0) == [0, 13]


def test_what_was_not_needed_goes_back():
    # Compared with label 1, feature 0 does most for label 0; but without feature 1 alone label 2 overtakes it.
    scorer = scorer_of([[3, 0, 0], [2, 0, -6], [4, 5, 10]])
    row = row_of([1, 1, 1])
    assert scorer.decision_function(row)[0].tolist() == [9, 5, 4]
    assert find_removal(scorer, row, 1, 0) == [1]


def test_the_bias_cannot_be_removed():
    scorer = scorer_of([[0, 1], [9, 0]], bias=1.0)
    first = explain(scorer, row_of([1]), 1)[0]
    assert (first.label, first.removal) == (0, None)
    assert first.parts.features.tolist() == [0, 1]
    assert Names(None, None, scorer.n_features).feature(1) == "bias"


def test_all_labels_are_predicted():
    explained = explain(scorer_of([[1, 2]]), row_of([1]), 5)
    assert [(each.label, each.rank, each.rival, each.removal) for each in explained] == [
        (1, 1, None, None),
        (0, 2, None, None),
    ]


def test_without():
    row = without(row_of([1, 0, 3, 4]), [2, 1])
    assert (row.indices.tolist(), row.data.tolist(), row.shape) == ([0, 3], [1, 4], (1, 4))


def test_the_strongest_and_the_others():
    parts = parts_of(scorer_of([[1], [-3], [0], [2], [-0.5], [0.5]]), row_of([1] * 6), 0)
    assert parts.falling().tolist() == [3, 0, 5, 4, 1]
    strong, others = parts.strongest(3)
    assert (strong.tolist(), others.tolist()) == ([3, 0, 1], [5, 4])
    assert [places.tolist() for places in parts.strongest(9)] == [[3, 0, 5, 4, 1], []]


def test_labels_are_found_by_name_then_by_number():
    names = Names(["zero", "FISHING VESSEL", "0"], None, 4)
    assert names.find_label("FISHING VESSEL", 3) == 1
    assert names.find_label("0", 3) == 2
    assert names.find_label("1", 3) == 1
    for word, message in {
        "fishing vesel": "knows no label of this name, the nearest are 'FISHING VESSEL'",
        "qqq": "knows no label of this name, and none that is like it",
        "3": "is none of the model's labels, whose numbers are 0 to 2",
        "-1": "knows no label of this name",
    }.items():
        with pytest.raises(InputError, match=message):
            names.find_label(word, 3)
    with pytest.raises(InputError, match="numbers are 0 to 1"):  # a label of the rows that training did not see
        names.find_label("0", 2)
    with pytest.raises(InputError, match="numbers are 0 to 8"):
        Names(None, None, 4).find_label("zero", 9)
    assert (names.label(7), Names(None, None, 4).label(1), Names(None, None, 4).feature(2)) == (
        "label 7", "label 1", "feature 2",
    )  # fmt: skip


# --- on the command line ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Rows, a model of them with known weights, and another of texts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "test.txt").write_text("3 4 4\n0,3 0:1 1:1 2:1 3:1\n 0:1\n1 1:2 2:2\n")
    matrix = [[1, 2, 0, 0], [3, 0, 0, 0], [0, -0.25, -9, 0], [0, 0.125, 5, 0]]
    scorer = scorer_of(matrix)
    names = ["gold", "sil\x1b[31mver", "bronze", "last"]
    Model(scorer.weights, scorer.rows, names, ["a", "b", "c", "d"]).save("m")
    scorer.save("nameless")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "train.jsonl").write_text(
        "".join(json.dumps({"text": text, "labels": [label]}) + "\n" for text, label in TEXTS * 3)
    )
    return tmp_path


TEXTS = [("olive oil", "food"), ("crude oil", "energy"), ("fishing vessel", "ships")]


def test_text_for_people(folder, capsys):
    words = ["explain", "--model", "m", "--data", "rows", "--row", "0", "--topk", "1", "--features", "2"]
    assert main([*words, "--label", "bronze", "--label", "1"]) == 0
    assert capsys.readouterr().out == (
        "row 0: 4 features; true: gold, last\n"
        "\n"
        "1. gold: 4.000, true\n"
        "   +3.000  ████████                  b\n"
        "   +1.000  ██▋                       a\n"
        "   keeps out sil�[31mver by 2.125; leaves the first 1 without: b\n"
        "\n"
        "4. bronze: -4.000, not true\n"
        "   +5.000  █████████████▍            d\n"
        "   -9.000  ████████████████████████  c\n"
        "   lacks 8.000 to gold in place 1; enters the first 1 without: c\n"
        "\n"
        "2. sil�[31mver: 1.875, not true\n"
        "   +2.000  █████▍                    a\n"
        "   -0.250  ▋                         c\n"
        "   +0.125  ▍                         1 other feature\n"
        "   lacks 2.125 to gold in place 1; enters the first 1 without: b\n"
    )


def test_what_cannot_be_known_is_not_told(folder, capsys):
    assert main(["explain", "--model", "nameless", "--data", "rows", "--row", "1", "--topk", "9"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("row 1: 1 feature; its true labels are not known\n\n1. label 1: 2.000\n")
    assert "feature 0\n" in out
    assert out.count("all labels of the model are among the first 9") == 4
    assert "3. label 2: 0.000\n   all labels" in out  # no feature has a weight for it
    words = ["explain", "--model", "m", "--data", "rows", "--row", "1", "--topk", "2"]
    assert main(words) == 0
    assert "no set of up to 10 features was found without which it leaves the first 2" in capsys.readouterr().out


def test_json_has_everything(folder, capsys):
    assert main(["explain", "--model", "m", "--data", "rows", "--row", "0", "--topk", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["row"], result["n_features"], result["topk"]) == (0, 4, 2)
    assert [label["name"] for label in result["true_labels"]] == ["gold", "last"]
    first, second = result["labels"]
    assert {name: first[name] for name in ("label", "name", "rank", "score", "true", "predicted", "lead")} == {
        "label": 0, "name": "gold", "rank": 1, "score": 4.0, "true": True, "predicted": True, "lead": 4.0,
    }  # fmt: skip
    assert first["rival"] == {"label": 3, "name": "last"}
    assert first["removal"] == [{"feature": 1, "name": "b"}, {"feature": 2, "name": "c"}]
    assert second["removal"] == [{"feature": 0, "name": "a"}]
    assert [part["adds"] for part in first["contributions"]] == [1, 3, 0, 0]
    assert second["contributions"][2] == {"feature": 2, "name": "c", "value": 1.0, "weight": -0.25, "adds": -0.25}


def test_texts(folder, capsys):
    words = ["train", "--data", "docs", "--out", "t", "--set", "text.min_df=1", "--set", "text.max_df=1.0"]
    assert main([*words, "--k", "1", "--threads", "1"]) == 0
    capsys.readouterr()
    assert main(["explain", "--model", "t", "--text", "an olive, Olive!", "--topk", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["text"], result["row"], result["true_labels"]) == ("an olive, Olive!", None, None)
    (label,) = result["labels"]
    assert (label["name"], label["true"]) == ("food", None)
    assert [part["name"] for part in label["contributions"]] == ["olive", "bias"]
    # the same words as a row of a file, which knows its labels
    assert main(["explain", "--model", "t", "--data", "docs", "--split", "train", "--row", "4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [label["name"] for label in result["true_labels"]] == ["energy"]
    assert result["labels"][0]["name"] == "energy"
    assert {part["name"] for part in result["labels"][0]["contributions"]} == {"crude", "oil", "bias"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "rows", "--row", "3"], "--row 3: rows has 3 rows, count them from 0"),
        (["--data", "rows", "--row", "-1"], "--row -1: rows has 3 rows, count them from 0"),
        (["--data", "rows", "--row", "0", "--label", "Golt"], "no label of this name, the nearest are 'gold'"),
        (["--data", "rows", "--row", "0", "--topk", "0"], "--topk must be a whole number, 1 or more"),
        (["--data", "rows", "--row", "0", "--features", "x"], "--features must be a whole number, 1 or more"),
        (["--data", "rows"], "explain needs --data and --row, or --text"),
        (["--row", "0"], "explain needs --data and --row, or --text"),
        (["--text", "x", "--row", "0"], "explain needs --data and --row, or --text"),
        (["--text", "x", "--data", "rows"], "explain needs --data and --row, or --text"),
        (["--text", "x"], "m: was trained on numbers, not on texts: give it --data and --row"),
        (["--data", "wide", "--row", "0"], "rows have 9 features, but the model was trained on 4"),
    ],
)
def test_bad_input_is_one_line(words, message, folder, capsys):
    (folder / "wide").mkdir()
    (folder / "wide" / "test.txt").write_text("1 9 4\n0 8:1\n")
    assert main(["explain", "--model", "m", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("is_terminal", "environment", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_on_a_terminal_only(is_terminal, environment, expected, folder, capsys, monkeypatch):
    for name, value in ({"NO_COLOR": "", "TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
    assert main(["explain", "--model", "m", "--data", "rows", "--row", "0", "--topk", "1"]) == 0
    out = capsys.readouterr().out
    assert ("\x1b[32m+3.000" in out) == expected
    assert ("\x1b" in out) == expected


@pytest.mark.parametrize("share", [0, 0.001, 1 / 24, 0.5, 0.999, 1])
def test_bars_are_as_long_as_their_share(share):
    bar = explaining.bar_text(share)
    eighths = sum(explaining.EIGHTHS.index(char) + 1 for char in bar)
    assert eighths == round(share * explaining.BAR_LENGTH * 8)
    assert len(bar) <= explaining.BAR_LENGTH


# --- in the report ---------------------------------------------------------------------------------------------------


def test_the_report_tells_three_reasons_for_and_three_against():
    weights = np.zeros((10, 6), np.float32)
    weights[:, 0] = [8, 7, 6, 5, -1, -2, -3, -4, 0, 0.5]  # the last is the bias
    rows = csr_array(np.ones((2, 9), np.float32))
    labels = csr_array(np.array([[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]], np.float32))
    names = [HOSTILE[0], *(f"l{i}" for i in range(1, 6))]
    source = Dataset(rows, labels, names, [f"{HOSTILE[i % 3]}{i}" for i in range(9)])
    run = Run("run", scorer_of(weights, bias=1.0))
    facts = gather(ScoredRows("data", "test", source), [run])
    assert len(facts.samples) == 2
    words, body = reasons(facts)
    page = Reader(words + body)
    assert "script" not in page.tags
    assert "img" not in page.tags
    text = "|".join(page.texts)
    cards = text.split("Row ")[1:]
    assert ["right, score 16.50" in card for card in cards] == [True, False]
    for card in cards:
        assert f"|{HOSTILE[0]}| |" in card  # the label
        numbers = [f"+|{HOSTILE[i % 3]}{i}|+{weights[i, 0]:.3f}" for i in (0, 1, 2)]
        numbers += [f"\N{MINUS SIGN}|{HOSTILE[i % 3]}{i}|\N{MINUS SIGN}{-weights[i, 0]:.3f}" for i in (5, 6, 7)]
        assert "|".join(numbers) in card
        assert "3 other features: +4.500" in card  # 5 - 1 + 0.5
