"""Partial credit in a hierarchy of labels: against the slow reference, by hand, and by the command."""

import json

import numpy as np
import pytest
import reference_metrics as slow
from scipy.sparse import csr_array

import xmlpreck
from xmlpreck.cli import main
from xmlpreck.config import InputError
from xmlpreck.data.dataset import TopK
from xmlpreck.data.vocabulary import Label
from xmlpreck.metrics import Meter
from xmlpreck.metrics.hierarchy import with_ancestors

KS = (1, 3, 5)


def labels_of(broader, n_labels):
    return [Label(str(i), f"name {i}", broader=tuple(map(str, broader.get(i, ())))) for i in range(n_labels)]


def drawn(rng, n_rows, n_labels):
    """Rankings of up to 6 labels (-1 = none) and true labels, some rows without any."""
    top = np.array([rng.permutation(n_labels)[:6] for _ in range(n_rows)], np.int32)
    top[np.arange(6) >= rng.integers(0, 7, n_rows)[:, None]] = -1
    truth = [set(rng.permutation(n_labels)[: rng.integers(0, 4)].tolist()) for _ in range(n_rows)]
    ids = [sorted(one) for one in truth]
    offsets = np.cumsum([0, *map(len, ids)])
    flat = np.array([label for one in ids for label in one], np.int32)
    return top, truth, csr_array((np.ones(len(flat), np.float32), flat, offsets), (n_rows, n_labels))


@pytest.mark.parametrize("has_root", [False, True])
@pytest.mark.parametrize("drop_empty", [False, True])
def test_equals_the_slow_reference(has_root, drop_empty):
    rng = np.random.default_rng(3)
    n_labels, n_known = 30, 24  # 6 labels of the vocabulary are no columns of the rows
    # A label has up to two broader ones with a higher id, so there is no cycle.
    broader = {i: rng.choice(np.arange(i + 1, n_labels), min(2, n_labels - 1 - i), False).tolist() for i in range(25)}
    if has_root:
        broader = {i: broader.get(i) or [n_labels - 1] for i in range(n_labels - 1)}
    top, truth, matrix = drawn(rng, 80, n_known)
    meter = Meter(
        n_known, KS, ancestors=with_ancestors(labels_of(broader, n_labels)), drop_empty=drop_empty, n_resamples=20
    )
    for start, stop in ((0, 30), (30, 80)):
        scores = np.zeros((stop - start, top.shape[1]), np.float32)
        meter.add(TopK(top[start:stop], scores), matrix[start:stop])
    found = meter.result().values
    rankings = [[label for label in row if label >= 0] for row in top.tolist()]
    kept = [row for row in range(80) if truth[row] or not drop_empty]
    for k in KS:
        picked = ([rankings[row] for row in kept], [truth[row] for row in kept])
        expected = slow.hierarchical(*picked, k, broader, n_labels)
        names = (f"hP@{k}", f"hR@{k}", f"hF1@{k}")
        assert [found[name].value for name in names] == pytest.approx([100 * float(one) for one in expected], abs=1e-9)
        assert all(found[name].low <= found[name].value <= found[name].high for name in names)
    plain = Meter(n_known, KS, drop_empty=drop_empty, n_resamples=20)
    plain.add(TopK(top, np.zeros(top.shape, np.float32)), matrix)
    assert {name: value for name, value in found.items() if name[0] != "h"} == plain.result().values


def test_a_sibling_is_half_right():
    above = with_ancestors(labels_of({0: [2], 1: [2], 3: []}, 4))
    meter = Meter(4, (1,), ancestors=above, n_resamples=0)
    truth = csr_array((np.ones(1, np.float32), np.zeros(1, np.int32), [0, 1]), (1, 4))
    meter.add(TopK(np.array([[1]], np.int32), np.zeros((1, 1), np.float32)), truth)  # {1, 2} instead of {0, 2}
    found = meter.result().values
    assert (found["P@1"].value, found["hP@1"].value, found["hR@1"].value, found["hF1@1"].value) == (0, 50, 50, 50)


def test_command_and_python_give_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.jsonl").write_text(
        "".join(json.dumps({"text": f"{w} tree {w}", "labels": [w]}) + "\n" for w in ("cat", "dog", "elm") * 4)
    )
    (tmp_path / "v.csv").write_text("id,name,broader\ncat,cat,pet\ndog,dog,pet\nelm,elm,\npet,pet,\n")
    xmlpreck.fit("d.jsonl", out="m", tune=False, settings={"text.min_df": 1})
    main(
        ["evaluate", "--pred", "m", "--model", "m", "--data", "d.jsonl", "--hierarchy", "v.csv", "--ks", "1", "--json"]
    )
    told = json.loads(capsys.readouterr().out)
    options = xmlpreck.EvaluationOptions(ks=[1], hierarchy="v.csv")
    found = xmlpreck.evaluate("m", "d.jsonl", options, model="m").scores.values
    assert told["hF1@1"] == found["hF1@1"].value == 100
    (tmp_path / "flat.csv").write_text("id,name\ncat,cat\ndog,dog\nelm,elm\n")
    with pytest.raises(InputError, match=r"flat\.csv: no label has a broader one"):
        xmlpreck.evaluate("m", "d.jsonl", xmlpreck.EvaluationOptions(hierarchy="flat.csv"), model="m")
