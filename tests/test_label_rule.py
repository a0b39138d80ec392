"""How many labels a row gets: the choice against scikit-learn's scores and against brute force, and who obeys it."""

import json

import numpy as np
import pytest
from scipy.sparse import csr_array, load_npz
from scipy.special import expit
from sklearn.metrics import f1_score, precision_recall_fscore_support

import xmlpreck
from xmlpreck.cli import main
from xmlpreck.config import InputError
from xmlpreck.data.dataset import TopK
from xmlpreck.model import choosing
from xmlpreck.model import macro as macro_module
from xmlpreck.model.label_rule import Goal, LabelRule, choose_rule

N_ROWS, N_LABELS, K = 25, 9, 6


def drawn(seed):
    """Draw scores, sorted in each row, and labels that are likelier where scores are high."""
    draw = np.random.default_rng(seed)
    scores = draw.normal(size=(N_ROWS, N_LABELS)).astype(np.float32)
    truth = draw.random((N_ROWS, N_LABELS)) < 1 / (1 + np.exp(1.5 - 2 * scores))
    order = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    top = TopK(order.astype(np.int32), np.take_along_axis(scores, order, axis=1))
    top.labels[3, 2:], top.scores[3, 2:] = -1, -np.inf  # a row with two labels only
    return top, truth


def as_matrix(labels, kept):
    matrix = np.zeros((len(labels), N_LABELS), int)
    for row, (ids, are_kept) in enumerate(zip(labels, kept, strict=True)):
        matrix[row, ids[are_kept]] = 1
    return matrix


def score(top, truth, rule, average):
    """Return precision, recall and F1 in percent, and labels per row, by scikit-learn."""
    found = as_matrix(top.labels, rule.kept(top.labels, top.scores))
    *ratios, _ = precision_recall_fscore_support(truth, found, average=average, zero_division=0)
    return [*(100 * float(ratio) for ratio in ratios), found.sum() / len(found)]


def all_rules(top):
    bounds = np.unique(top.scores[top.labels >= 0])
    yield from (LabelRule(k) for k in range(1, K + 1))
    yield from (LabelRule(K, float(bound), least) for bound in bounds for least in (0, 1))


@pytest.mark.parametrize("average", ["micro", "macro"])
@pytest.mark.parametrize("seed", [0, 1])
def test_choices_are_those_of_brute_force(average, seed, monkeypatch):
    monkeypatch.setattr("xmlpreck.model.label_rule.N_BOUNDS", 10_000)  # every score is tried
    top, truth = drawn(seed)
    blocks = [
        (TopK(top.labels[start:stop], top.scores[start:stop]), csr_array(truth[start:stop].astype(np.float32)))
        for start, stop in ((0, 11), (11, N_ROWS))
    ]
    tried = [score(top, truth, rule, average) for rule in all_rules(top)]

    def chosen(*goal):
        found = choose_rule(blocks, N_LABELS, Goal(goal[0], average, *goal[1:]), None)
        measured = found.found
        expected = score(top, truth, found.rule, average)
        np.testing.assert_allclose([measured.precision, measured.recall, measured.f1, measured.count], expected)
        return measured

    assert chosen("f1").f1 == pytest.approx(max(f1 for _, _, f1, _ in tried))
    precise = chosen("precision", 70.0)
    assert precise.precision >= 70
    assert precise.recall == pytest.approx(max(recall for precision, recall, _, _ in tried if precision >= 70))
    complete = chosen("recall", 60.0)
    assert complete.recall >= 60
    assert complete.precision == pytest.approx(max(precision for precision, recall, _, _ in tried if recall >= 60))
    wanted = truth.sum() / N_ROWS
    assert abs(chosen("count").count - wanted) == pytest.approx(min(abs(count - wanted) for *_, count in tried))


def test_a_goal_that_no_rule_reaches_is_one_line():
    top, truth = drawn(0)
    blocks = [(top, csr_array(truth.astype(np.float32)))]
    with pytest.raises(
        InputError, match=r"no number of labels has micro recall of 100%: the highest is \d+\.\d\d%: give"
    ):
        choose_rule(blocks, N_LABELS, Goal("recall", "micro", 100.0), None)
    with pytest.raises(InputError, match="no row has a label to choose the number of labels by"):
        choose_rule([(top, csr_array(truth.shape, dtype=np.float32))], N_LABELS, Goal(), None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the model has held out none of these rows"),
        (("--for", "luck"), "--for must be f1, precision, recall or count, but is 'luck'"),
        (("--average", "samples"), "--average must be micro or macro, but is 'samples'"),
        (("--for", "precision"), "--for precision needs the least precision, in percent: give it by --at-least"),
        (("--for", "recall", "--at-least", "101"), "--at-least must be above 0 and at most 100 percent, but is 101.0"),
        (("--at-least", "50"), "--at-least has no effect with --for f1: leave it out"),
        (
            ("--weigh-labels", "3"),
            "--weigh-labels makes macro F1, precision or recall as large as possible: give --ave",
        ),
        (("--weigh-labels", "0", "--average", "macro"), "--weigh-labels must be a whole number, 1 or more, but is '0'"),
        (("--max-labels", "0"), "--max-labels must be a whole number, 1 or more, but is '0'"),
    ],
)
def test_bad_words_are_one_line(folder, capsys, words, message):
    assert main(["optimize", "--model", "whole", "--data", "demo", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rules")
    for name, heldout in (("held", 0.2), ("whole", 0.0)):
        xmlpreck.fit("demo", folder / name, tune=False, epochs=2, heldout=heldout, threads=1)
    return folder


@pytest.fixture
def folder(made, monkeypatch):
    monkeypatch.chdir(made)
    return made


def test_predict_and_evaluate_obey_the_choice(folder, capsys):
    assert main(["calibrate", "--model", "held", "--data", "demo", "--out", "c"]) == 0
    assert main(["optimize", "--model", "c", "--data", "demo", "--for", "f1", "--max-labels", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["k"] <= 8
    made = xmlpreck.optimize(xmlpreck.calibrate("held", "demo").model, "demo", max_labels=8)
    assert made.to_dict() == {name: found[name] for name in made.to_dict()}
    assert made.model.label_rule == xmlpreck.Model.load("c").label_rule

    assert main(["predict", "--model", "c", "--data", "demo", "--labels", "auto", "--out", "P.npz"]) == 0
    assert main(["evaluate", "--pred", "c", "--data", "demo", "--labels", "auto", "--resamples", "0", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    test = xmlpreck.load_data("demo", "test")
    model = xmlpreck.Model.load("c")
    top = model.predict_topk(test.rows, model.label_rule.k)
    kept = model.label_rule.keep(top, model.calibration).labels
    truth = test.labels.toarray() > 0
    found = np.zeros(truth.shape, bool)
    for row, labels in enumerate(kept):
        found[row, labels[labels >= 0]] = True
    k = model.label_rule.k
    assert scores[f"microF1@{k}"] == pytest.approx(100 * f1_score(truth, found, average="micro"))
    written = np.load("P.npz")
    np.testing.assert_array_equal(np.diff(written["indptr"]), (kept >= 0).sum(axis=1))
    # Probabilities or margins are what comes out, not what is chosen by.
    assert (
        main(
            [
                "predict",
                "--model",
                "c",
                "--data",
                "demo",
                "--labels",
                "auto",
                "--scores",
                "probability",
                "--out",
                "Q.npz",
            ]
        )
        == 0
    )
    np.testing.assert_array_equal(np.load("Q.npz")["indices"], written["indices"])


def test_a_choice_ends_with_the_scores_that_it_was_made_for(folder):
    model = choosing.calibrate(xmlpreck.Model.load("held"), held("held"))
    chosen, _ = choosing.optimize(model, held("held"), Goal())
    by_probability = chosen.fresh(
        info=chosen.info | {"label_rule": chosen.info["label_rule"] | {"probabilities": True}}
    )
    by_margin = chosen.fresh(info=chosen.info | {"label_rule": chosen.info["label_rule"] | {"probabilities": False}})
    assert choosing.calibrate(by_margin, held("held")).label_rule.k == chosen.label_rule.k
    for changed in (chosen.prune(0.01), choosing.calibrate(by_probability, held("held"))):
        with pytest.raises(
            InputError, match="the model has no number of labels of its own: choose one with xmlpreck opt"
        ):
            _ = changed.label_rule


def macro(goal, truth, found):
    """Return macro F1, precision or recall, a share."""
    *ratios, _ = precision_recall_fscore_support(truth, found, average="macro", zero_division=0)
    return float(dict(zip(("precision", "recall", "f1"), ratios, strict=True))[goal])


def likely(seed, n_rows=60, n_labels=12):
    """Draw probabilities, all labels of each row by falling ones, and labels that are true as often as they say."""
    draw = np.random.default_rng(seed)
    chances = expit(draw.normal(size=(n_rows, n_labels)) * 1.5 - np.linspace(0, 3, n_labels))
    truth = draw.random(chances.shape) < chances
    order = np.argsort(-chances, axis=1)
    return chances, truth, order, np.take_along_axis(truth, order, 1)


@pytest.mark.parametrize("goal", ["f1", "precision", "recall"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weights_of_labels_are_those_of_xcolumns(goal, seed):
    """The value of every step, and the weights of the best step unless that is the last, which xCOLUMNs drops."""
    fw = pytest.importorskip("xcolumns.frank_wolfe", reason="needs the package xcolumns")
    chances, truth, order, hit = likely(seed)
    least = 1 / len(chances)
    below = {
        "f1": lambda t, p, n: (2 * t + p + n) / 2,
        "precision": lambda t, p, n: t + p,
        "recall": lambda t, p, n: t + n,
    }
    share = {"f1": least / 2, "precision": least, "recall": least}[goal]

    def metric(tp, fp, fn, _tn):
        return (tp / (below[goal](tp, fp, fn) + share)).mean()

    theirs, meta = fw.find_classifier_using_fw(
        truth.astype(np.float64), chances, metric, 3, max_iters=macro_module.N_STEPS, init_classifier="top",
        alpha_uniform_search_step=0.01, return_meta=True,
    )  # fmt: skip
    ours, values = macro_module.frank_wolfe(order, np.take_along_axis(chances, order, 1), hit, truth.sum(0), 3, goal)
    np.testing.assert_allclose(values[: len(meta["classifiers_utilities"])], meta["classifiers_utilities"], rtol=1e-5)
    best = int(np.argmax(values))
    assert best > 0
    if best >= len(meta["classifiers_utilities"]):
        return
    np.testing.assert_allclose(ours.slopes[:-1], len(truth[0]) * theirs.a[best], rtol=1e-4)
    np.testing.assert_allclose(ours.shifts[:-1], len(truth[0]) * theirs.b[best], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("goal", ["f1", "precision", "recall"])
@pytest.mark.parametrize("seed", [0, 1])
def test_weights_of_labels_raise_the_macro_metric(goal, seed):
    chances, truth, order, hit = likely(seed)
    weights, _ = macro_module.frank_wolfe(order, np.take_along_axis(chances, order, 1), hit, truth.sum(0), 3, goal)
    rule = LabelRule(chances.shape[1], None, 3, True, weights)
    found = np.zeros(truth.shape, bool)
    np.put_along_axis(found, order, rule.kept(order, np.take_along_axis(chances, order, 1)), 1)
    assert (found.sum(axis=1) == 3).all()
    first = np.zeros(truth.shape, bool)
    np.put_along_axis(first, order[:, :3], True, 1)
    assert macro(goal, truth, found) > macro(goal, truth, first)
    # The formulas of the weights, by differences of the metric.
    state = macro_module.Confusion(hit[:, :3].sum() * np.ones(2) / 300, np.array([0.5, 0.2]), np.array([0.4, 0.3]))
    slopes, shifts = macro_module.gradient(goal, state, 0.01)
    for label, tiny in enumerate(1e-6 * np.eye(2)):
        right = state._replace(hits=state.hits + tiny, kept=state.kept + tiny)
        wrong = state._replace(kept=state.kept + tiny)
        now, *changed = (2 * macro_module.value(goal, one, 0.01) for one in (state, right, wrong))
        expected = slopes[label] + shifts[label], shifts[label]
        np.testing.assert_allclose([(one - now) / 1e-6 for one in changed], expected, rtol=1e-4, atol=1e-4)


def test_weighted_labels_are_predicted_and_scored(folder, capsys):
    assert main(["calibrate", "--model", "held", "--data", "demo", "--out", "w"]) == 0
    words = [
        "optimize",
        "--model",
        "w",
        "--data",
        "demo",
        "--average",
        "macro",
        "--max-labels",
        "8",
        "--weigh-labels",
        "3",
    ]
    assert main(words) == 0
    assert "3 of the first 8 labels, by weighted probabilities; on" in capsys.readouterr().out
    model, test = xmlpreck.Model.load("w"), xmlpreck.load_data("demo", "test")
    made = xmlpreck.optimize(
        xmlpreck.calibrate("held", "demo").model, "demo", average="macro", max_labels=8, weigh_labels=3
    )
    assert made.model.info["label_rule"] == model.info["label_rule"]
    for kind in ("margin", "probability"):
        words = ["predict", "--model", "w", "--data", "demo", "--labels", "auto", "--out", "W.npz", "--scores", kind]
        assert main(words) == 0
        found = load_npz("W.npz")
        assert (np.diff(found.indptr) <= 3).all()
        top = model.predict_topk(test.rows, 8)
        chances = model.calibration.probabilities(top)
        gains = model.label_rule.weights.gains(top.labels, chances.scores)
        for row in range(20):
            best = sorted(np.argsort(-gains[row], kind="stable")[:3])
            assert set(found.indices[slice(*found.indptr[row : row + 2])]) == set(top.labels[row, best])
            if kind == "probability":  # those of the whole list, whatever was left out of it
                written = dict(zip(found[[row]].indices, found[[row]].data, strict=True))
                expected = dict(zip(top.labels[row, best], chances.scores[row, best], strict=True))
                assert written == pytest.approx(expected)
    capsys.readouterr()
    assert main(["evaluate", "--pred", "w", "--data", "demo", "--labels", "auto", "--resamples", "0", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    kept = as_predicted(load_npz("W.npz"))
    expected = f1_score(test.labels.toarray() > 0, kept, average="macro", zero_division=0)
    assert scores["macroF1@8"] == pytest.approx(100 * expected)


def as_predicted(found):
    matrix = np.zeros(found.shape, bool)
    matrix[np.repeat(np.arange(found.shape[0]), np.diff(found.indptr)), found.indices] = True
    return matrix


def held(name):
    return choosing.rows_to_choose_on(xmlpreck.Model.load(name), xmlpreck.load_data("demo"))


def test_a_choice_on_test_rows_is_recorded_and_said(folder, capsys):
    assert main(["optimize", "--model", "whole", "--data", "demo", "--split", "test", "--out", "t"]) == 0
    assert "the model will remember that these rows were chosen on" in capsys.readouterr().err
    assert main(["evaluate", "--pred", "t", "--data", "demo", "--resamples", "0"]) == 0
    assert "its number of labels was chosen on these rows: figures on them are flattered" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["predict", "--model", "whole", "--out", "P.npz", "--labels", "auto"],
            "the model has no number of labels of its",
        ),
        (
            ["predict", "--model", "whole", "--out", "P.npz", "--labels", "auto", "--topk", "3"],
            "--topk has no effect with",
        ),
        (
            ["predict", "--model", "whole", "--out", "P.npz", "--labels", "7"],
            "--labels must be auto, but is '7': give a",
        ),
        (["evaluate", "--pred", "whole", "--labels", "auto"], "the model has no number of labels of its own"),
        (["evaluate", "--pred", "P.txt", "--labels", "auto"], "P.txt: --labels auto is for a model directory"),
    ],
)
def test_auto_needs_a_choice(folder, capsys, words, message):
    assert main([*words, "--data", "demo"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"k": 0}, {"min_score": "much"}, {"min_labels": -1}, {"probabilities": None}])
def test_a_damaged_rule_is_refused_by_name(folder, change):
    model, _ = choosing.optimize(xmlpreck.Model.load("held"), held("held"), Goal())
    damaged = model.fresh(info=model.info | {"label_rule": model.info["label_rule"] | change})
    with pytest.raises(InputError, match=f"label_rule.{next(iter(change))} must be"):
        damaged.save("damaged")
