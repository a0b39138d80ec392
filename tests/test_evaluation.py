"""Prediction files against true labels: streaming, filters, paired comparisons, and the commands that do it."""

import csv
import json

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import binomtest

from xmlpreck.cli import main
from xmlpreck.config import InputError
from xmlpreck.data.formats import Dataset, TopK, write_predictions
from xmlpreck.evaluation import comparison as evaluation
from xmlpreck.evaluation.comparison import Rankings, compare, count_labels, measure
from xmlpreck.metrics import Meter

N_ROWS, N_LABELS = 90, 12


@pytest.fixture
def truth():
    rng = np.random.default_rng(5)
    labels = csr_array((rng.random((N_ROWS, N_LABELS)) < 0.25).astype(np.float32))
    rows = csr_array(np.ones((N_ROWS, 2), np.float32))
    return Dataset(rows, labels, [f"name {i}" for i in range(N_LABELS)])


def ranked(scores, k=5):
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return TopK(order.astype(np.int32), np.take_along_axis(scores, order, axis=1).astype(np.float32))


@pytest.fixture
def guesses(truth):
    """A poor ranking and a better one of the same rows."""
    rng = np.random.default_rng(6)
    relevant, noise = truth.labels.toarray(), rng.random((N_ROWS, N_LABELS))
    return ranked(0.2 * relevant + noise), ranked(0.7 * relevant + noise)


def in_blocks(top):
    step = evaluation.BLOCK_ROWS
    return (TopK(*(part[at : at + step] for part in top)) for at in range(0, len(top.labels), step))


def new_meter():
    return Meter(N_LABELS, n_resamples=200, label_counts=np.arange(N_LABELS) * 10)


def test_blocks_of_any_size_give_the_same_bits(truth, guesses, monkeypatch):
    whole = measure(truth, in_blocks(guesses[0]), new_meter())
    both = compare(truth, [in_blocks(top) for top in guesses], new_meter)
    monkeypatch.setattr(evaluation, "BLOCK_ROWS", 7)
    assert measure(truth, in_blocks(guesses[0]), new_meter()).values == whole.values
    results, versus = compare(truth, [in_blocks(top) for top in guesses], new_meter)
    assert [scores.values for scores in results] == [scores.values for scores in both[0]]
    assert versus == both[1]


def test_equal_files_do_not_differ(truth, guesses):
    _, (versus,) = compare(truth, [in_blocks(guesses[0]), in_blocks(guesses[0])], new_meter)
    assert set(versus.differences.values()) == {(0.0, 0.0, 0.0, 1.0)}
    assert set(versus.signs.values()) == {(0, 0, 1.0)}
    assert versus.changed == []


def test_a_comparison_is_paired(truth, guesses):
    results, (versus,) = compare(truth, [in_blocks(top) for top in guesses], new_meter)
    for name, found in versus.differences.items():
        drawn = results[1].draws[name] - results[0].draws[name]
        assert found.value == results[1].values[name].value - results[0].values[name].value
        assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]))
    p5 = versus.differences["P@5"]
    assert p5.value > 5
    assert p5.p_value == pytest.approx(2 / 201)  # none of 200 resamples is on the other side
    # Both see the same rows in a resample, so the difference is surer than if each had drawn its own.
    spread = [np.var(scores.draws["P@5"]) for scores in results]
    assert np.var(results[1].draws["P@5"] - results[0].draws["P@5"]) < 0.8 * sum(spread)


def test_sign_test_and_changed_rows_are_those_of_a_plain_loop(truth, guesses):
    _, (versus,) = compare(truth, [in_blocks(top) for top in guesses], new_meter)
    relevant = truth.labels.toarray() > 0
    found = [np.take_along_axis(relevant, top.labels.astype(int), axis=1) for top in guesses]
    counts = [hits[:, :3].sum(axis=1) for hits in found]
    won, lost = int((counts[1] > counts[0]).sum()), int((counts[1] < counts[0]).sum())
    assert versus.signs["P@3"][:2] == (won, lost)
    assert versus.signs["P@3"].p_value == pytest.approx(binomtest(won, won + lost).pvalue)
    discounts = 1 / np.log2(np.arange(2, 7))
    ideal = np.array([max(discounts[: int(n)].sum(), 1e-9) for n in relevant.sum(axis=1)])
    gains = [100 * (hits * discounts).sum(axis=1) / ideal for hits in found]
    changes = np.abs(gains[1] - gains[0])
    expected = sorted(range(N_ROWS), key=lambda row: (-round(changes[row], 9), row))[: evaluation.CHANGED_ROWS]
    assert [row.row for row in versus.changed] == expected
    first = versus.changed[0]
    assert first.truth == np.flatnonzero(relevant[first.row]).tolist()
    assert first.tops == tuple(top.labels[first.row].tolist() for top in guesses)
    assert first.scores == pytest.approx((gains[0][first.row], gains[1][first.row]))


def test_p_values_are_fair_where_nothing_differs():
    """Two rankings of the same quality: about one comparison in twenty is significant at 5%."""
    rng = np.random.default_rng(7)
    n_significant = 0
    for _ in range(200):
        relevant = rng.random((80, N_LABELS)) < 0.3
        truth = Dataset(csr_array((80, 1), dtype=np.float32), csr_array(relevant.astype(np.float32)))
        tops = [ranked(relevant + rng.normal(0, 1, relevant.shape)) for _ in range(2)]
        _, (versus,) = compare(truth, [in_blocks(top) for top in tops], lambda: Meter(N_LABELS, n_resamples=200))
        n_significant += versus.differences["P@5"].p_value < 0.05
    assert 1 <= n_significant <= 22  # 10 expected; the chance of more is 2 in 10,000


def test_filtered_pairs_leave_truth_and_predictions(truth, guesses):
    pairs = csr_array((np.random.default_rng(8).random((N_ROWS, N_LABELS)) < 0.3).astype(np.uint8))
    scores = measure(truth, in_blocks(guesses[0]), new_meter(), pairs)
    left_out, relevant = pairs.toarray() > 0, truth.labels.toarray() > 0
    n_hits = n_true = 0
    for row in range(N_ROWS):
        kept = [label for label in guesses[0].labels[row] if not left_out[row, label]]
        n_hits += sum(relevant[row, kept[:3]])
        n_true += (relevant[row] & ~left_out[row]).sum()
    assert scores.values["P@3"].value == pytest.approx(100 * n_hits / (3 * N_ROWS))
    assert scores.label_truth.sum() == n_true


def test_counts_of_labels(truth, monkeypatch):
    monkeypatch.setattr(evaluation, "BLOCK_ROWS", 8)
    counted = count_labels(truth)
    assert counted.n_rows == N_ROWS
    assert (counted.counts == truth.labels.toarray().sum(axis=0)).all()


def test_a_comparison_needs_resamples(truth, guesses):
    with pytest.raises(InputError, match="needs resamples"):
        compare(truth, [in_blocks(top) for top in guesses], lambda: Meter(N_LABELS, n_resamples=0))


def test_rows_without_any_label_are_refused(truth, guesses):
    """Every figure would be 0, as if the predictions were bad."""
    bare = truth._replace(labels=csr_array(truth.labels.shape, dtype=np.float32))
    with pytest.raises(InputError, match=f"none of the {truth.n_rows:,} rows has a label to score predictions against"):
        measure(bare, [guesses[0]], Meter(truth.n_labels))


def test_notes_tell_what_is_short(tmp_path, truth, guesses):
    path = str(tmp_path / "P.parquet")
    write_predictions(path, TopK(*(part[:, :2] for part in guesses[0])), N_LABELS)
    rankings = Rankings(path, truth, 5, N_LABELS)
    list(rankings.blocks())
    assert rankings.notes([1, 2]) == []
    (note,) = rankings.notes([1, 3, 5])
    assert "no row has more than 2 predictions: at k = 3, 5" in note


# The commands

ROWS = "0,2 0:1 3:0.5\n1 1:1\n 2:1 3:1\n2,3 0:0.5 2:2\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder and two prediction files of its test rows: by a tool without a header, and a sparse matrix."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    for split in ("train", "test"):
        (tmp_path / "tiny" / f"{split}.txt").write_text("4 4 5\n" + ROWS)
    (tmp_path / "tiny" / "labels.txt").write_text("".join(f"name {i}\n" for i in range(5)))
    (tmp_path / "lists.txt").write_text("0:0.9 2:0.8 1:0.1\n1:0.5\n\n3:0.7 1:0.7 2:0.1\n")
    (tmp_path / "matrix.txt").write_text("4 5\n2:0.8 4:0.9\n1:0.5\n\n1:0.7 2:0.1 3:0.7\n")
    return tmp_path


def evaluate(capsys, *words):
    assert main(["evaluate", "--data", "tiny", "--json", *words]) == 0
    said = capsys.readouterr()
    return json.loads(said.out), said.err


def test_evaluate_by_hand(folder, capsys):
    found, notes = evaluate(capsys, "--pred", "lists.txt", "--ks", "1,3")
    assert found["n_rows"] == 4
    assert found["n_rows_without_labels"] == 1
    assert found["P@1"] == 100 * (1 + 1 + 0 + 1) / 4
    assert found["P@3"] == pytest.approx(100 * (2 + 1 + 0 + 2) / 12)
    assert found["R@3"] == pytest.approx(100 * (1 + 1 + 0 + 1) / 4)
    assert found["MRR"] == 75.0
    assert found["intervals"]["P@1"][0] <= 75 <= found["intervals"]["P@1"][1]
    assert [part["name"] for part in found["bins"]] == ["tail", "unseen"]
    assert not notes
    dropped, _ = evaluate(capsys, "--pred", "lists.txt", "--ks", "1,3", "--drop-empty")
    assert dropped["P@1"] == 100.0
    rp, _ = evaluate(capsys, "--pred", "lists.txt", "--ks", "3", "--convention", "rp")
    assert rp["RP@3"] == 75.0
    assert "P@3" not in rp


def test_equal_scores_are_ranked_by_id_in_a_matrix_and_by_place_in_a_list(folder, capsys):
    in_list, _ = evaluate(capsys, "--pred", "lists.txt", "--ks", "1")
    in_matrix, _ = evaluate(capsys, "--pred", "matrix.txt", "--ks", "1")
    assert in_list["P@1"] == 75.0  # the last row's first label is 3
    assert in_matrix["P@1"] == 25.0  # 1 comes before 3, and 4 before 2


def test_evaluate_takes_a_model_directory(folder, capsys):
    assert main(["train", "--data", "tiny", "--out", "m", "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)["test"]
    found, _ = evaluate(capsys, "--pred", "m")
    assert {name: found[name] for name in trained} == trained


def test_propensities_come_from_card_flag_or_file(folder, capsys):
    standard, _ = evaluate(capsys, "--pred", "matrix.txt")
    named, _ = evaluate(capsys, "--pred", "matrix.txt", "--propensity", "0.55,1.5")
    other, _ = evaluate(capsys, "--pred", "matrix.txt", "--propensity", "0.6,2.6")
    assert standard == named
    assert standard["PSP@3"] != other["PSP@3"]
    (folder / "inv.txt").write_text("1\n1\n1\n1\n1\n")
    given, _ = evaluate(capsys, "--pred", "lists.txt", "--inverse-propensities", "inv.txt")
    assert given["PSP@1"] == pytest.approx(100 * 3 / 3)  # every row with labels has its first place right


def test_a_file_alone_has_no_frequencies_but_takes_them(folder, capsys):
    words = ["--pred", "lists.txt", "--data", "tiny/test.txt"]
    found, notes = evaluate(capsys, *words)
    assert "PSP@1" not in found
    assert found["bins"] == []
    assert "no training rows" in notes
    told, _ = evaluate(capsys, *words, "--train", "tiny/train.txt", "--bins", "2")
    assert told["PSP@1"] > 0
    assert [part["name"] for part in told["bins"]] == ["2+", "1-1", "unseen"]


def test_the_filter_file_of_the_folder_is_applied(folder, capsys):
    plain, _ = evaluate(capsys, "--pred", "lists.txt", "--ks", "1")
    (folder / "tiny" / "filter_labels_test.txt").write_text("0 0\n3 3\n")
    found, notes = evaluate(capsys, "--pred", "lists.txt", "--ks", "1")
    assert "filter_labels_test.txt: 2 pairs of row and label are left out" in notes
    assert found["P@1"] == 50.0  # row 0 goes on with label 2, row 3 with 1
    without, _ = evaluate(capsys, "--pred", "lists.txt", "--ks", "1", "--no-filter")
    assert without == plain


def test_fix_mends_and_counts(folder, capsys):
    (folder / "bad.txt").write_text("0:0.9 2:nan 9:0.1\n1:0.5 1:0.4\n\n2:0.1 3:0.7\n")
    assert main(["evaluate", "--data", "tiny", "--pred", "bad.txt"]) == 2
    assert "bad.txt" in capsys.readouterr().err
    found, notes = evaluate(capsys, "--pred", "bad.txt", "--ks", "1", "--fix")
    assert found["P@1"] == 75.0
    assert notes.count("repaired") == 4


def test_label_counts_as_csv(folder, capsys):
    evaluate(capsys, "--pred", "lists.txt", "--ks", "1,3", "--per-label", "labels.csv")
    with open("labels.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["name"] for row in rows] == [f"name {i}" for i in range(5)]
    assert rows[2] == {
        "label": "2",
        "name": "name 2",
        "training_rows": "2",
        "true": "2",
        "predicted@1": "0",
        "hits@1": "0",
        "predicted@3": "2",
        "hits@3": "2",
    }


def test_the_table_for_people(folder, capsys):
    assert main(["evaluate", "--data", "tiny", "--pred", "lists.txt", "--ks", "1,3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lists.txt: 4 rows, 1 of them without labels; convention repository")
    assert lines[1].split() == ["%", "@1", "@3"]
    assert lines[2].startswith("P ")
    assert "75.00 [" in lines[2]
    assert any(line.startswith("tail") for line in lines)


def test_tables_for_papers(folder, capsys):
    """The same figures as Markdown, LaTeX and CSV; names cannot break the table."""
    words = ["--data", "tiny", "--ks", "1,3"]
    assert main(["evaluate", "--pred", "matrix.txt", *words, "--table", "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert main(["evaluate", "--pred", "matrix.txt", *words, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert {row["metric"]: float(row["value"]) for row in rows if "@" in row["metric"]}["P@3"] == scores["P@3"]
    (folder / "a_b|c.txt").write_bytes((folder / "matrix.txt").read_bytes())
    files = ["compare", "matrix.txt", "a_b|c.txt", *words, "--table"]
    assert main([*files, "csv"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["difference"] for row in rows if row["metric"] == "P@1"] == ["", "0.0"]
    assert main([*files, "markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("| % | matrix.txt | a_b\\|c.txt |\n|---|---:|---:|\n| P@1 | ")
    assert "rows that changed" not in out
    assert main([*files, "latex"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("\\begin{tabular}{lrr}\n\\hline\n\\% & matrix.txt & a\\_b|c.txt \\\\\n\\hline\nP@1 & ")
    assert out.count(r"\begin{tabular}") == out.count(r"\end{tabular}") > 1


def test_compare_for_people_and_programs(folder, capsys):
    words = ["compare", "matrix.txt", "lists.txt", "matrix.txt", "--data", "tiny", "--ks", "1,3"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "lists.txt minus matrix.txt" in out
    assert "row 0: " in out
    assert "name 0*" in out
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["against"] == "matrix.txt"
    assert found["comparisons"]["lists.txt"]["differences"]["P@1"]["value"] == 50.0
    assert found["comparisons"]["lists.txt"]["sign_tests"]["P@1"] == {"n_won": 2, "n_lost": 0, "p_value": 0.5}
    assert found["comparisons"]["matrix.txt"]["differences"]["P@1"]["p_value"] == 1.0


def test_sweep_trains_each_and_shows_the_cross_table(folder, capsys):
    assert main(["train", "--data", "tiny", "--sweep", "k=1,2", "--epochs", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].split() == ["trained", "k", "P@1", "P@2", "P@3", "P@5"]
    assert [line.split()[0] for line in lines[-2:]] == ["1", "2"]
    assert (folder / "runs" / "tiny-sweep" / "k=2" / "model.json").is_file()
    words = ["train", "--data", "tiny/train.txt", "--sweep", "eta=0.1,1", "--heldout", "0.5", "--json", "--out", "s"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == "held-out"
    assert set(found["runs"]) == {"0.1", "1"}
    assert set(found["runs"]["1"]["scores"]) == {"P@1", "P@3", "P@5"}


def test_report_finds_the_rows_of_its_runs(folder, capsys):
    pytest.importorskip("matplotlib", reason="needs the extra `report`")
    for name, algo in (("a", "sgd-avg"), ("b", "sgd-max")):
        assert main(["train", "--data", "tiny", "--algo", algo, "--out", name]) == 0
    assert main(["report", "a", "b", "-o", "page.html"]) == 0
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "tiny" in page
    assert "sgd-max" in page
    assert main(["report", "a", "-o", "page.html", "--data", "demo"]) == 2
    assert "give the data that the model was made for" in capsys.readouterr().err
    assert (folder / "page.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "--data", "tiny", "--pred", "none.txt"], "none.txt"),
        (["evaluate", "--data", "tiny", "--pred", "lists.txt", "--ks", "0"], "--ks must be a whole number, 1 or more"),
        (["evaluate", "--data", "tiny", "--pred", "lists.txt", "--ks", "1,1"], "different numbers"),
        (["evaluate", "--data", "tiny", "--pred", "lists.txt", "--convention", "mine"], "no convention 'mine'"),
        (["evaluate", "--data", "tiny", "--pred", "lists.txt", "--propensity", "1"], "two numbers A,B"),
        (["evaluate", "--data", "tiny", "--pred", "lists.txt", "--bins", "9,3"], "ascending"),
        (["evaluate", "--data", "tiny", "--pred", "lists.txt", "--per-label", "x.txt"], ".csv"),
        (["evaluate", "--data", "tiny", "--pred", "tiny"], "tiny"),
        (["compare", "lists.txt", "--data", "tiny"], "two or more"),
        (["compare", "lists.txt", "matrix.txt", "--data", "tiny", "--resamples", "0"], "needs resamples"),
        (["train", "--data", "tiny", "--sweep", "k"], "a sweep needs a setting"),
        (["train", "--data", "tiny", "--sweep", "k=1,1"], "each of its values once"),
        (["train", "--data", "tiny", "--sweep", "nothing=1"], "nothing"),
        (["train", "--data", "tiny/train.txt", "--sweep", "k=1,3"], "has no test rows"),
    ],
)
def test_bad_words_are_one_line_and_exit_2(folder, capsys, words, message):
    assert main(words) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert message in said[-1]
    assert said[-1].startswith("xmlpreck: ")
