"""Prediction as it is used: one row or many, some labels or all, in and out of pipes; smaller and longer models."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import draw_model
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from xmlpreck import train
from xmlpreck.cli import main
from xmlpreck.config import InputError, RowsConfig, RunConfig, TrainConfig
from xmlpreck.data import catalog
from xmlpreck.data.formats import Dataset, TopK, open_predictions
from xmlpreck.model import Model, all_sparse, lay_out
from xmlpreck.model.prediction import Choice, keep_from, label_bonus, read_labels
from xmlpreck.model.pruning import largest_pruning, threshold_for_bytes, threshold_for_share
from xmlpreck.model.seal import ModelError


def brute_force(scores, k):
    order = np.lexsort((np.broadcast_to(np.arange(scores.shape[1]), scores.shape), -scores), axis=1)[:, :k]
    return order, np.take_along_axis(scores, order, axis=1)


# --- one row


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5]), st.integers(1, 7))
def test_one_row_has_the_bits_of_many(seed, bias, k):
    scorer, rows = draw_model(seed, bias)
    many = scorer.predict_topk(rows, k)
    for i in range(rows.shape[0]):
        one = scorer.predict_one(rows[i : i + 1], k)
        assert one.labels.tolist() == many.labels[i].tolist()
        assert one.scores.tolist() == many.scores[i].tolist()


def test_one_row_leaves_its_input_alone():
    scorer, rows = draw_model(1)
    row = rows[3:4]
    before = row.data.copy()
    scorer.predict_one(row, 3)
    assert (row.data == before).all()


def test_threads_do_not_disturb_each_other():
    scorer, rows = draw_model(2)
    expected = scorer.predict_topk(rows, 5)
    barrier = threading.Barrier(4)

    def work(me):
        barrier.wait()
        return [scorer.predict_one(rows[i : i + 1], 5).labels.tolist() for i in range(rows.shape[0]) for _ in range(5)]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(work, range(4)):
            assert found == [labels for labels in expected.labels.tolist() for _ in range(5)]


def test_one_row_must_fit():
    scorer, rows = draw_model(3)
    with pytest.raises(ModelError, match=r"a row has the shape \(1, 29\), but this one \(2, 29\)"):
        scorer.predict_one(rows[:2], 3)
    with pytest.raises(ModelError, match="trained on numbers, not on texts"):
        scorer.predict_one("some text", 3)
    with pytest.raises(ModelError, match="topk must be 1 or more"):
        scorer.predict_one(rows[:1], 0)


# --- choices


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8))
def test_a_bonus_and_barred_labels_are_exact(seed, k):
    scorer, rows = draw_model(seed)
    rng = np.random.default_rng(seed)
    weights = rng.random(scorer.n_labels) * 3 + 0.1
    exclude = rng.permutation(scorer.n_labels)[:40].tolist()
    bonus = label_bonus(scorer.n_labels, None, exclude, weights)
    top = Choice(k, bonus=bonus).predict(scorer, rows)
    scores = scorer.decision_function(rows) + np.log(weights).astype(np.float32)
    scores[:, exclude] = -np.inf
    labels, expected = brute_force(scores, k)
    assert (top.labels == labels).all()
    assert (top.scores == expected).all()


def test_only_labels_may_leave_fewer_than_k():
    scorer, rows = draw_model(4)
    top = Choice(5, bonus=label_bonus(scorer.n_labels, only=[7, 2])).predict(scorer, rows)
    assert set(top.labels[:, :2].ravel()) == {2, 7}
    assert (top.labels[:, 2:] == -1).all()
    with pytest.raises(InputError, match="no label may be predicted"):
        label_bonus(3, only=[1], exclude=[1])
    assert label_bonus(3) is None


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_candidates_are_ranked_by_the_model(seed):
    scorer, rows = draw_model(seed)
    rng = np.random.default_rng(seed)
    lists = np.array([rng.permutation(scorer.n_labels)[:9] for _ in range(rows.shape[0])], np.int32)
    lists[rng.random(lists.shape) < 0.3] = -1
    bonus = rng.normal(size=scorer.n_labels).astype(np.float32)
    bonus[::7] = -np.inf
    found = TopK(lists, np.zeros(lists.shape, np.float32))
    top = Choice(4, bonus=bonus).predict(scorer, rows, candidates=found)
    scores = scorer.decision_function(rows) + bonus
    for row, candidates in enumerate(lists):
        allowed = [label for label in candidates if label >= 0 and label % 7]
        mine = sorted(allowed, key=lambda label: (-scores[row, label], label))[:4]
        assert [label for label in top.labels[row] if label >= 0] == mine
        assert top.scores[row, : len(mine)].tolist() == [scores[row, label] for label in mine]


def test_thresholds_keep_at_least_so_many():
    top = TopK(
        np.array([[4, 2, 1], [3, 0, -1]], np.int32), np.array([[0.9, 0.5, 0.1], [0.2, 0.1, -np.inf]], np.float32)
    )
    assert keep_from(top, 0.5).labels.tolist() == [[4, 2, -1], [-1, -1, -1]]
    kept = keep_from(top, 0.5, min_labels=1)
    assert kept.labels.tolist() == [[4, 2, -1], [3, -1, -1]]
    assert np.isneginf(kept.scores[kept.labels < 0]).all()


def test_probabilities_need_a_calibration():
    scorer, rows = draw_model(5)
    with pytest.raises(InputError, match="has no calibration"):
        Choice(3, as_probabilities=True).predict(scorer, rows)


def test_labels_of_a_file_are_names_or_ids(tmp_path):
    scorer, _ = draw_model(6)
    named = scorer.fresh(label_names=[f"label {i}" for i in range(scorer.n_labels)])
    (tmp_path / "l.txt").write_text("label 5\n7\n")
    assert read_labels(tmp_path / "l.txt", named) == [5, 7]
    (tmp_path / "l.txt").write_text("label 5\nnothing\n")
    with pytest.raises(InputError, match=r"l\.txt:2: 'nothing' is no label of the model"):
        read_labels(tmp_path / "l.txt", named)


# --- smaller models


def test_thresholds_by_share_and_by_bytes(tmp_path):
    scorer = train.fit(small_data(1), SETTINGS)
    half = scorer.prune(threshold_for_share(scorer, 0.5))
    assert 0.48 * scorer.n_weights < half.n_weights <= 0.5 * scorer.n_weights + 1
    limit = 8 * (scorer.n_features + 2) + 4 * 100  # offsets: one for each feature, the bias and the end
    small = scorer.prune(threshold_for_bytes(scorer, limit))
    assert 90 < small.n_weights <= 100
    with pytest.raises(InputError, match="the offsets alone take"):
        threshold_for_bytes(scorer, 10)


def test_weights_that_16_bits_can_hold_take_16_bits(tmp_path):
    """Trained weights are such; others are stored as they are. Scores have the same bits before and after."""
    drawn, drawn_rows = draw_model(8)
    sparse = all_sparse(drawn.weights)
    others = drawn.fresh(weights=lay_out(sparse._replace(values=sparse.values * np.float32(1.1))))
    trained = train.fit(small_data(1), SETTINGS)
    for scorer, rows, kind in ((others, drawn_rows, "<f4"), (trained, small_data(2).rows, "<u2")):
        scorer.save(tmp_path / "m")
        assert np.load(tmp_path / "m" / "row_weights.npy").dtype.str == kind
        loaded = Model.load(tmp_path / "m", verify=True)
        assert loaded.weights.values.dtype == np.float32
        assert loaded.weights.dense_rows.dtype == (np.uint16 if kind == "<u2" else np.float32)
        assert len(loaded.weights.dense_rows) > 0
        assert loaded.decision_function(rows).tobytes() == scorer.decision_function(rows).tobytes()


def small_data(seed, n_rows=400, n_features=40, n_labels=12):
    rng = np.random.default_rng(seed)
    rows = random_array((n_rows, n_features), density=0.2, rng=rng).tocsr().astype(np.float32)
    truth = np.random.default_rng(0).normal(size=(n_features, n_labels))
    scores = rows @ truth + rng.normal(0, 0.3, (n_rows, n_labels))
    labels = scores >= np.sort(scores, axis=1)[:, -3:-2]
    return Dataset(csr_array(rows), csr_array(labels.astype(np.float32)))


SETTINGS = RunConfig(train=TrainConfig(k=3, epochs=5, threads=1))


def test_the_largest_pruning_stays_within_its_loss():
    scorer, test = train.fit(small_data(1), SETTINGS), small_data(2)
    before, tried = largest_pruning(scorer, test, 1.0)
    best = tried[-1]
    assert all(before[name] - best.scores[name] <= 1.0 for name in before)
    assert best.kept < 1
    assert scorer.prune(best.threshold).score(test) == best.scores
    # a little less would cost more, or is closer than the search looks
    worse = [one for one in tried if one.kept < best.kept]
    assert all(any(before[name] - one.scores[name] > 1.0 for name in before) for one in worse)


# --- longer models


def test_frozen_labels_keep_every_bit_and_new_ones_learn():
    data = small_data(1, n_labels=12)
    old = train.fit(data._replace(labels=csr_array(data.labels[:, :9])), SETTINGS)
    new = train.update(old, data, SETTINGS, freeze=True)
    assert (old.n_labels, new.n_labels) == (9, 12)
    test = small_data(2)
    assert (new.decision_function(test.rows)[:, :9] == old.decision_function(test.rows)).all()
    found = np.take_along_axis(test.labels.toarray(), new.predict_topk(test.rows, 3).labels.astype(int), axis=1)
    guessed = np.take_along_axis(test.labels.toarray(), np.full((400, 3), [9, 10, 11]), axis=1)
    assert found.mean() > guessed.mean() + 0.1
    assert set(np.unique(new.predict_topk(test.rows, 1).labels)) & {9, 10, 11}
    assert new.info["updates"][0]["frozen"] is True


def test_new_rows_are_learned_and_the_support_grows():
    first, later = small_data(1), small_data(3)
    few = first._replace(rows=csr_array(first.rows[:, :20]))
    old = train.fit(few, SETTINGS)
    new = train.update(old, later, SETTINGS)
    assert (old.n_features, new.n_features) == (20, 40)
    test = small_data(2)
    before = old.score(test._replace(rows=csr_array(test.rows[:, :20])))
    after = new.score(test)
    assert after["P@1"] > before["P@1"]
    again = train.update(old, later, RunConfig(train=TrainConfig(k=3, epochs=5, threads=2)))
    assert (all_sparse(again.weights).values == all_sparse(new.weights).values).all()


def test_the_bias_stays_behind_the_last_feature():
    config = RunConfig(rows=RowsConfig(bias=0.5), train=SETTINGS.train)
    data = small_data(1)
    old = train.fit(data._replace(rows=csr_array(data.rows[:, :20])), config)
    frozen = train.update(old, Dataset(data.rows, with_label(data.labels, 15)), config, freeze=True)
    rows = csr_array(data.rows[:, :20])
    padded = csr_array((rows.data, rows.indices, rows.indptr), shape=(400, 40))
    assert (frozen.decision_function(padded)[:, :12] == old.decision_function(rows)).all()


def with_label(labels, n_labels):
    """The same labels, and the last of the new columns in every row."""
    dense = np.zeros((labels.shape[0], n_labels), np.float32)
    dense[:, : labels.shape[1]] = labels.toarray()
    dense[:, -1] = 1
    return csr_array(dense)


def test_rows_of_another_model_are_refused():
    old = train.fit(small_data(1), SETTINGS)
    with pytest.raises(ModelError, match="must have the model's columns first"):
        train.update(old, small_data(1, n_labels=9), SETTINGS)
    named = old.fresh(label_names=[f"a{i}" for i in range(12)])
    other = small_data(1)._replace(label_names=[f"b{i}" for i in range(12)])
    with pytest.raises(ModelError, match="must be the model's own"):
        train.update(named, other, SETTINGS)


# --- the commands


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    assert main(["train", "--data", "demo", "--epochs", "2", "--no-tune", "--out", str(folder / "m"), "--json"]) == 0
    return folder / "m"


def lines_of(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_json_lines_say_what_parquet_says(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["predict", "--model", str(trained), "--data", "demo", "--topk", "3"]
    for out in ("P.parquet", "P.jsonl"):
        assert main([*words, "--out", out, "--verify"]) == 0
    assert main([*words, "--out", "-"]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert printed == (tmp_path / "P.jsonl").read_text().splitlines()
    blocks = [next(open_predictions(path).blocks(2000)) for path in ("P.parquet", "P.jsonl")]
    for first, second in zip(*blocks, strict=True):
        assert (first == second).all()
    first = json.loads(printed[0])
    assert first["row"] == 0
    assert all(name.startswith("synthetic/") for name in first["names"])


def test_the_flags_choose(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["predict", "--model", str(trained), "--data", "demo", "--out", "-", "--topk", "4"]
    assert main(words) == 0
    plain = lines_of(capsys)
    (tmp_path / "some.txt").write_text(f"{plain[0]['labels'][0]}\n{plain[0]['names'][2]}\n")
    assert main([*words, "--only-labels", "some.txt"]) == 0
    assert sorted(lines_of(capsys)[0]["labels"]) == sorted([plain[0]["labels"][0], plain[0]["labels"][2]])
    assert main([*words, "--exclude-labels", "some.txt"]) == 0
    assert lines_of(capsys)[0]["labels"][:2] == [plain[0]["labels"][1], plain[0]["labels"][3]]
    least = plain[0]["scores"][1]
    assert main([*words, "--threshold", str(least), "--at-least", "1"]) == 0
    found = lines_of(capsys)
    assert found[0]["labels"] == plain[0]["labels"][:2]
    assert all(row["labels"][:1] == full["labels"][:1] for row, full in zip(found, plain, strict=True))
    assert main(["predict", "--model", str(trained), "--data", "demo", "--out", "P.parquet", "--topk", "9"]) == 0
    capsys.readouterr()
    assert main([*words, "--candidates", "P.parquet"]) == 0
    assert lines_of(capsys) == plain


def test_a_pipe_is_answered_line_by_line(trained):
    """The second line is written only after the first has been answered."""
    command = [sys.executable, "-m", "xmlpreck", "predict", "--model", str(trained), "--data", "-", "--out", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for name in ("a", "b"):
            process.stdin.write(json.dumps({"id": name, "features": [3, 1, 40], "values": [1, 0.5, 2]}) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            assert answer["row"] == name
            assert len(answer["labels"]) == 5
        process.stdin.close()
        assert process.wait(60) == 0


def test_prune_and_update_from_the_command_line(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = str(trained)
    words = ["prune", "--model", model, "--max-loss", "0.5", "--data", "demo", "--split", "test", "--out", "small"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(found["before"][name] - found["after"][name] <= 0.5 for name in found["before"])
    assert Model.load("small", verify=True).n_weights == found["n_weights"]
    assert main(["prune", "--model", model, "--size", "300KB", "--out", "tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] < 500_000
    assert main(["update", "--model", "small", "--data", "demo", "--out", "newer", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["new_labels"] == 0
    assert Model.load("newer").info["updates"][0]["n_rows"] == 8000


def test_calibrate_then_probabilities(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", "--model", str(trained), "--data", "demo", "--out", "c"]) == 2
    assert "demo: the model has held out none of these rows: train it" in capsys.readouterr().err
    assert (
        main(["train", "--data", "demo", "--epochs", "2", "--no-tune", "--heldout", "0.2", "--out", "m", "--json"]) == 0
    )
    before = Model.load("m").predict_topk(demo_test().rows, 2)
    words = ["calibrate", "--model", "m", "--data", "demo", "--depth", "2", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["n_rows"] == 1600
    after = Model.load("m", verify=True)
    assert (after.predict_topk(demo_test().rows, 2).scores == before.scores).all()  # margins stay
    words = ["predict", "--model", "m", "--data", "demo", "--out", "-", "--topk", "2", "--scores", "probability"]
    assert main(words) == 0
    found = lines_of(capsys)
    probabilities = np.array([row["scores"] for row in found])
    assert ((probabilities > 0) & (probabilities < 1)).all()
    # about as many are right as was promised
    pairs = zip(found, label_sets(demo_test()), strict=True)
    right = [label in truth for row, truth in pairs for label in row["labels"]]
    assert np.mean(right) == pytest.approx(probabilities.mean(), abs=0.05)
    assert main([*words, "--threshold", "0.9"]) == 0
    sure = [row["scores"] for row in lines_of(capsys)]
    assert all(score >= 0.9 for scores in sure for score in scores)
    assert Model.load("m").prune(0.1).calibration is None


def demo_test():
    return catalog.load("demo", "test")


def label_sets(data):
    return [set(ids) for ids in np.split(data.labels.indices, data.labels.indptr[1:-1])]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "--out", "P.xls"], "unknown kind '.xls'"),
        (["predict", "--out", "-", "--topk", "0"], "--topk must be a whole number, 1 or more"),
        (["predict", "--out", "-", "--topk", "2", "--at-least", "3"], "--at-least 3 is more than --topk 2"),
        (["predict", "--out", "-", "--threshold", "x"], "--threshold must be a number"),
        (["predict", "--out", "-", "--threshold", "nan"], "--threshold must be a number"),
        (["predict", "--out", "-", "--scores", "odds"], "--scores must be margin or probability"),
        (["predict", "--out", "-", "--scores", "probability"], "has no calibration"),
        (["predict", "--out", "-", "--only-labels", "none.txt"], "none.txt: cannot be read"),
        (["prune", "--out", "x"], "say how to prune by one of"),
        (["prune", "--out", "x", "--threshold", "0.1", "--size", "1MB"], "say how to prune by one of"),
        (["prune", "--out", "x", "--threshold", "-1"], "--threshold must be a number above 0"),
        (["prune", "--out", "x", "--size", "much"], "memory must be a size such as 4GB"),
        (["update", "--out", "x", "--epochs", "0"], "--epochs must be a whole number, 1 or more"),
    ],
)
def test_bad_words_write_nothing(trained, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    data = [] if words[0] == "prune" else ["--data", "demo"]
    assert main([words[0], "--model", str(trained), *data, *words[1:]]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
