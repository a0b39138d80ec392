"""Training on a cluster: the bits of one machine, however the labels are cut, whoever is lost, and whenever."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import reference
from helpers import ROOT, as_dataset, draw_rows, stop_after, timeless
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

sys.path.insert(0, str(ROOT / "tools"))
import torture_cluster

from xmlpreck.cli import main
from xmlpreck.config import ALGORITHMS, BOTH, PAPER_RULES, InputError, RowsConfig, RunConfig, TrainConfig
from xmlpreck.data import catalog
from xmlpreck.data.formats import write_repository_text
from xmlpreck.data.shards import open_split, write_shards
from xmlpreck.data.synthetic import make_dataset
from xmlpreck.kernels.arrays import BLOCK, Proposals, sparse_weights
from xmlpreck.model import Model, all_sparse
from xmlpreck.model.layout import ANY_SIZE
from xmlpreck.train import Checkpoints, Interrupted, Safety
from xmlpreck.train import fit as fit_here
from xmlpreck.train.trainer import pass_settings

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'xmlpreck[cluster]'")

from xmlpreck.cluster import log as log_module  # noqa: E402
from xmlpreck.cluster import merging, shards, training  # noqa: E402
from xmlpreck.cluster import shard as shard_module  # noqa: E402
from xmlpreck.cluster.rows import share_rows  # noqa: E402
from xmlpreck.cluster.session import Node, connect  # noqa: E402
from xmlpreck.cluster.shard import Census, LabelShard  # noqa: E402
from xmlpreck.data.location import DataLocation  # noqa: E402

SECONDS = 600  # after which a wait counts as hung


def configure(bias=0.0, **train):
    few = {
        "epochs": 3 if train.get("widen") or train.get("remember") else 2,
        "k": 3,
        "batch_rows": 8,
        "block_rows": 40,
        "threads": 1,
    }
    return RunConfig(RowsConfig(bias=bias), TrainConfig(**few | train))


def bits(scorer):
    """What a model stores: all weights that are not 0, feature by feature."""
    sparse = all_sparse(scorer.weights, min_size=ANY_SIZE)
    return [array.tobytes() for array in (sparse.offsets, sparse.labels, sparse.values)]


# --- cutting -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(1, 2000), st.integers(1, 12), st.sampled_from([0.0, 1.0, 3.0]))
def test_labels_are_cut_at_whole_blocks(seed, n_labels, n_shards, skew):
    costs = np.random.default_rng(seed).random(n_labels) ** -skew
    n_blocks = training.n_blocks_of(n_labels)
    n_shards = min(n_shards, n_blocks)
    edges = training.cut_labels(costs, n_shards)
    assert len(edges) == n_shards + 1
    assert (edges[0], edges[-1]) == (0, n_labels)
    assert all(edge % BLOCK == 0 for edge in edges[:-1])
    assert all(first < last for first, last in pairwise(edges))
    whole = [costs[first : first + BLOCK].sum() for first in range(0, n_labels, BLOCK)]
    mine = [costs[first:last].sum() for first, last in pairwise(edges)]
    assert max(mine) <= sum(whole) / n_shards + 2 * max(whole)


def test_shards_have_about_the_same_cost():
    """A power law: most of the cost is in the first labels."""
    costs = 1000 / np.arange(1, 64 * 200 + 1) ** 0.7
    shares = [costs[first:last].sum() / costs.sum() for first, last in pairwise(training.cut_labels(costs, 5))]
    assert max(shares) < 1.1 / 5


def test_expected_support():
    """Rises with the count, and is exact for one row."""
    rng = np.random.default_rng(3)
    counts = np.array([0, 1, 2, 3, 10, 57, 300, 1000])
    features = rng.integers(0, 1001, 400)
    found = training.expected_support(Census(counts, features), 1000)
    assert found[0] == 0
    assert found[1] == pytest.approx(features.sum() / 1000)
    assert (np.diff(found) > 0).all()
    exact = [(1 - (1 - features / 1000) ** count).sum() for count in counts]
    np.testing.assert_allclose(found, exact, rtol=0.02)
    assert training.expected_support(Census(np.zeros(3, np.int64), features), 1000).tolist() == [0, 0, 0]


def draw_ranges(rng, n_labels):
    inner = rng.choice(np.arange(64, n_labels, 64), rng.integers(0, training.n_blocks_of(n_labels)), replace=False)
    return [range(int(first), int(last)) for first, last in pairwise([0, *np.sort(inner), n_labels])]


@given(st.integers(0, 10**6))
def test_joined_labels_are_those_that_were_cut(seed):
    rng = np.random.default_rng(seed)
    n_features, n_labels = int(rng.integers(1, 9)), int(rng.integers(1, 400))
    values = np.where(rng.random((n_features, n_labels)) < 0.2, rng.normal(size=(n_features, n_labels)), 0)
    values = values.astype(np.float32)
    ranges = draw_ranges(rng, n_labels)
    parts = []
    for labels in ranges:
        mine = values[:, labels.start : labels.stop]
        features, own = np.nonzero(mine)
        offsets = np.searchsorted(features, np.arange(n_features + 1))
        parts.append({"offsets": offsets, "labels": own.astype(np.int32), "values": mine[features, own]})
    joined = merging.join_labels(parts, ranges)
    features, labels = np.nonzero(values)
    assert joined.offsets.tolist() == np.searchsorted(features, np.arange(n_features + 1)).tolist()
    assert joined.labels.tolist() == labels.tolist()
    assert joined.values.tobytes() == values[features, labels].tobytes()
    assert joined.dense_rows.shape == (0, n_labels)


# --- the choice --------------------------------------------------------------------------------------------------


def propose(scores, relevance, k, labels):
    """What a shard says, as plainly as it can be written."""
    pos, neg = [], []
    for s, y in zip(scores, relevance, strict=True):
        best = reference.ranked(s, labels)
        pos.append([label for label in best if y[label]])
        neg.append([label for label in best if not y[label]][:k])
    n_neg = np.array([len(row) for row in neg], np.int32)
    padded = np.array([row + [0] * (k - len(row)) for row in neg], np.int32).reshape(-1, k)
    flat = np.array([label for row in pos for label in row], np.int32)
    rows = np.arange(len(scores))
    return Proposals(
        pos_offsets=np.concatenate([[0], np.cumsum([len(row) for row in pos])]).astype(np.int32),
        pos_labels=flat,
        pos=scores[np.repeat(rows, np.array([len(row) for row in pos], np.int64)), flat],
        n_neg=n_neg,
        neg_labels=padded,
        neg=scores[rows[:, None], padded],
        n_weak=np.zeros(len(scores), np.int32),
        weak_labels=np.zeros((len(scores), 0), np.int32),
        weak=np.zeros((len(scores), 0), np.float32),
    )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6), st.sampled_from(PAPER_RULES), st.integers(1, 6), st.booleans(), st.booleans(), st.booleans()
)
def test_merged_choice_equals_the_reference(seed, algo, k, spread, tail, fading):
    """Steps, surrogates and mistakes of rows from any number of shards; scores tie, within shards and across."""
    rng = np.random.default_rng(seed)
    n_rows, n_labels = 6, int(rng.integers(k, 300))
    scores = rng.normal(size=8).astype(np.float32)[rng.integers(0, 8, (n_rows, n_labels))]
    relevance = rng.random((n_rows, n_labels)) < rng.choice([0.0, 2 / n_labels, 0.1], (n_rows, 1))
    ranges = draw_ranges(rng, n_labels)
    decay = "sqrt" if fading else "constant"
    config = TrainConfig(algo=algo, k=k, eta=0.3, spread=spread, decay=decay, epochs=3, remember=k)
    weights = rng.uniform(0.5, 2, n_labels).astype(np.float32) if tail else np.zeros(0, np.float32)
    n_before = int(rng.integers(0, 50))
    eta = 1.0 if not algo.startswith("sgd") else 0.3 / np.sqrt(n_before + 1) if fading else 0.3

    proposals = [propose(scores, relevance, k, labels) for labels in ranges]
    chosen = merging.choose(proposals, pass_settings(config, 2, n_labels, weights), n_before)
    batch = chosen.batch
    assert chosen.n_labels_of.tolist() == relevance.sum(axis=1).tolist()
    hardest = [reference.hardest_label(*row) for row in zip(scores, relevance, strict=True)]
    assert chosen.hardest.tolist() == [-1 if label is None else label for label in hardest]
    remembered = [
        sorted([label for label in reference.negatives(s, y) if s[label] > 0][: k if y.any() else 0])
        for s, y in zip(scores, relevance, strict=True)
    ]
    found = np.zeros((n_rows, n_labels))
    for labels, pairs in zip(ranges, merging.split_pairs([chosen], ranges), strict=True):
        rows = np.repeat(np.arange(n_rows), np.diff(pairs.offsets))
        assert ((pairs.labels >= 0) & (pairs.labels < len(labels))).all()
        found[rows, labels.start + pairs.labels] += pairs.steps
        here = [label - labels.start if label in labels else -1 for label in chosen.hardest]
        assert pairs.hardest.tolist() == here
        kept = [[labels.start + label for label in row if label >= 0] for row in pairs.remembered]
        assert kept == [[label for label in row if label in labels] for row in remembered]
    for i, (s, y) in enumerate(zip(scores.astype(float), relevance, strict=True)):
        c = reference.RULES[algo](s, y, k)
        if spread and algo.startswith("sgd"):
            c = reference.spread_out(c, s, y, k)
        if tail:
            c = reference.weighted(c, weights)
        np.testing.assert_allclose(found[i], eta * c, rtol=1e-5, atol=1e-7)
        assert batch.updated[i] == c.any()
        if k_row := min(k, int(y.sum())):
            assert batch.mistakes[i] == reference.mistakes(s, y, k_row)
            assert batch.surrogates[i] == pytest.approx(reference.SURROGATE_OF[algo](s, y, k_row)[0], abs=1e-5)


def test_pairs_keep_the_order_of_a_row():
    """A weight takes its steps in row order, and so do the parts of a batch, of which the last may be empty."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(5, 200)).astype(np.float32)
    relevance = rng.random((5, 200)) < 0.03
    settings, ranges = pass_settings(TrainConfig(k=3), 1, 200, np.zeros(0, np.float32)), [range(64), range(64, 200)]
    parts = [slice(0, 3), slice(3, 5), slice(5, 5)]
    chosen = [
        merging.choose([propose(scores[part], relevance[part], 3, labels) for labels in ranges], settings, 0)
        for part in (slice(0, 5), *parts)
    ]
    whole, split = merging.split_pairs(chosen[:1], ranges), merging.split_pairs(chosen[1:], ranges)
    for one, other in zip(whole, split, strict=True):
        assert [array.tolist() for array in one] == [array.tolist() for array in other]
    assert sum(len(pairs.labels) for pairs in whole) == chosen[0].batch.n_pairs.sum()


@pytest.mark.parametrize("k", [1, 3, 64, 70])
def test_labels_of_no_weight_come_before_those_below_0(k):
    """As many shards as blocks: that of the first 64 labels has no score above 0, that of the others no weight."""
    weights = sparse_weights(np.array([0, 64]), np.arange(64, dtype=np.int32), np.full(64, -1, np.float32), 200)
    top = Model(weights, RowsConfig(bias=0.0)).predict_topk(csr_array(np.ones((1, 1), np.float32)), k)
    assert top.labels[0].tolist() == list(range(64, 64 + k))


# --- shards in this process: every call is a function, and any of them may be the last of an actor -------------------


class HereSession:
    """A cluster of three nodes that is this process."""

    job = "here"

    def __init__(self):
        self.told = []
        self.tell = self.told.append

    def nodes(self):
        return [Node(name, name, 1, 10**12, 10**9) for name in "abc"]


class HereShard:
    """A LabelShard as an actor is called. `is_lost` is asked before and after the work of every call."""

    def __init__(self, is_lost, *args):
        self.is_lost, self.gone = is_lost, False
        self.shard = LabelShard(*args)

    def __getattr__(self, method):
        return SimpleNamespace(remote=partial(self.call, method))

    def call(self, method, *args):
        answer = None
        if not self.gone and not self.is_lost(method):
            answer = getattr(self.shard, method)(*args)
            self.gone = self.is_lost(method)
        else:
            self.gone = True
        return ray.exceptions.ActorDiedError() if self.gone else answer

    def end(self):
        """As a process ends: nobody reads rows for it any more."""
        if self.shard.position.number >= 0:
            self.shard.position.batches.close()


def take(answer):
    if isinstance(answer, Exception):
        raise answer
    return answer


def fit_shards(folder, data, config, n_shards, is_lost=lambda method: False, **safety):
    """training.fit without Ray, with shards that `is_lost` takes away; returns the scorer, and what was told."""

    hired = []

    def hire(self, number):
        hired.append(HereShard(is_lost, number, SimpleNamespace(open=lambda: data), config, 1))
        return hired[-1]

    session, checkpoints = HereSession(), Checkpoints(folder / "m")
    checkpoints.folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards.Shards, "_hire", hire)
        patch.setattr(shards, "result_of", take)
        patch.setattr(ray, "get", lambda answers: [take(answer) for answer in answers])
        patch.setattr(ray, "kill", lambda actor: None)
        patch.setattr(ray, "put", lambda value: value)
        patch.setattr(shard_module, "this_node", lambda: "a")
        patch.setattr(os, "fsync", lambda _: None)  # no power fails here
        patch.setattr("xmlpreck.train.keeper.SPARED_SECONDS", -1.0)
        try:
            scorer = training.fit(session, None, data, config, n_shards, Safety(checkpoints, **safety))
        finally:
            for each in hired:
                each.end()
    return scorer, session.told


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.fixed_dictionaries(
        {
            "algo": st.sampled_from(ALGORITHMS),
            "k": st.sampled_from([1, 3, 70]),
            "tau": st.sampled_from([0.0, 0.4]),
            "spread": st.booleans(),
            "favour": st.sampled_from(["top", "tail"]),
            "decay": st.sampled_from(["constant", "sqrt", "linear"]),
            "widen": st.booleans(),
            "remember": st.sampled_from([0, 2, 100]),
            "idf": st.sampled_from([0.0, 1.5]),
            "average_from": st.integers(0, 2),
            "batch_rows": st.sampled_from([1, 8, 1000]),
            "block_rows": st.sampled_from([17, 1000]),
            "centroid": st.sampled_from([0.0, 1.0]),
            "heldout": st.sampled_from([0.0, 0.2]),
            "prune": st.sampled_from([0.0, 0.05]),
        }
    ),
)
def test_shards_have_the_bits_of_one_machine(tmp_path_factory, seed, n_shards, train):
    """Rows without labels, labels without rows, a last block that is not full: see draw_rows."""
    if train["algo"] == "hinge":
        train |= {"tau": 0.0, "spread": False}
    if train["algo"] == BOTH:
        train["average_from"] = max(train["average_from"], 1)
    n_labels = 64 * n_shards + seed % 90
    data = as_dataset(*draw_rows(seed, n_labels=n_labels, density=0.1 + 0.2 * (seed % 2)))
    config = configure(bias=0.2 * (seed % 3), **train)
    whole = fit_here(data, config)
    scorer, _ = fit_shards(tmp_path_factory.mktemp("run"), data, config, n_shards)
    assert bits(scorer) == bits(whole)
    assert scorer.info["data"] == whole.info["data"]
    assert scorer.info["config"] == whole.info["config"]
    for there, facts in zip(scorer.info["history"], whole.info["history"], strict=True):
        assert there["heldout"] == facts["heldout"]
        assert (there["updated"], there["mistakes"]) == (facts["updated"], facts["mistakes"])
        assert there["surrogate"] == pytest.approx(facts["surrogate"], rel=1e-12)
        assert 0 <= there["communication"] <= 1


class Losses:
    """Takes an actor away at given moments: there are two of each call, before its work and after."""

    def __init__(self, *moments):
        self.moments, self.asked = set(moments), []

    def __call__(self, method):
        self.asked.append(method)
        return len(self.asked) - 1 in self.moments


# Two blocks, a checkpoint when some batches were logged, held-out rows: every kind of call, and few of each.
LOSSY = {"batch_rows": 20, "heldout": 0.2, "tau": 0.4, "prune": 0.01, "decay": "sqrt", "widen": True, "remember": 9}


@pytest.fixture
def lossy(monkeypatch):
    monkeypatch.setattr(log_module, "LOG_BYTES", 2000)
    data, config = as_dataset(*draw_rows(seed=3, n_labels=200)), configure(**LOSSY)
    return data, config, bits(fit_here(data, config))


def test_a_shard_may_be_lost_at_every_moment(tmp_path, lossy):
    data, config, expected = lossy
    peace = Losses()
    assert bits(fit_shards(tmp_path, data, config, 2, peace)[0]) == expected
    assert Counter(peace.asked)["write"] > 2 * 2 * 2  # more than at the end of each pass, by two shards
    calls = {name for name in vars(LabelShard) if not name.startswith("_")} - {"source", "opened", "restore", "replay"}
    assert set(peace.asked) == calls
    for moment in range(0, len(peace.asked), 3):  # before a call and after it, by turns
        (folder := tmp_path / str(moment)).mkdir()
        scorer, told = fit_shards(folder, data, config, 2, Losses(moment))
        assert bits(scorer) == expected, (moment, peace.asked[moment])
        assert sum("is lost" in text for text in told) == 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 250), min_size=2, max_size=6, unique=True), st.integers(1, 3))
def test_shards_are_lost_again_and_again(tmp_path_factory, moments, n_shards):
    """While one is brought back, too."""
    data, config = as_dataset(*draw_rows(seed=3, n_labels=200)), configure(**LOSSY)
    losses = Losses(*moments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_module, "LOG_BYTES", 2000)
        patch.setattr(shards, "MAX_TRIES", 6)
        patch.setattr(log_module, "REPLAYED", 2)
        scorer, told = fit_shards(tmp_path_factory.mktemp("run"), data, config, n_shards, losses)
    assert bits(scorer) == bits(fit_here(data, config))
    assert sum("is lost" in text for text in told) == sum(moment < len(losses.asked) for moment in moments)


def test_all_shards_are_lost_at_once(tmp_path, lossy):
    """A node goes that had more of them than one shard may be lost times."""
    data, config, expected = lossy
    data = as_dataset(*draw_rows(seed=3, n_labels=64 * (shards.MAX_TRIES + 2)))
    n_shards = shards.MAX_TRIES + 2
    peace = Losses()
    expected = bits(fit_shards(tmp_path, data, config, n_shards, peace)[0])
    first = [i for i, method in enumerate(peace.asked) if method == "propose"][:: 2 * training.PARTS_A_BATCH]
    (tmp_path / "again").mkdir()
    scorer, told = fit_shards(tmp_path / "again", data, config, n_shards, Losses(*range(first[0], first[0] + n_shards)))
    assert bits(scorer) == expected
    assert sum("is lost" in text for text in told) == n_shards


def test_lost_shards_are_brought_back_together(tmp_path, lossy, monkeypatch):
    """A process takes seconds to start: the nodes are looked at once for all that are lost."""
    data, config, expected = lossy
    nodes, n_looks = HereSession.nodes, Counter()

    def look(session):
        n_looks[id(session)] += 1
        return nodes(session)

    monkeypatch.setattr(HereSession, "nodes", look)
    peace = Losses()
    fit_shards(tmp_path, data, config, 3, peace)
    first = peace.asked.index("propose")
    (tmp_path / "again").mkdir()
    scorer, told = fit_shards(tmp_path / "again", data, config, 3, Losses(first, first + 1, first + 2))
    assert bits(scorer) == expected
    assert sum("is lost" in text for text in told) == 3
    before, after = n_looks.values()
    assert after == before + 1


def test_a_shard_that_is_always_lost_is_given_up(tmp_path, lossy):
    data, config, _ = lossy
    calls = Counter()

    def is_lost(method):
        calls[method] += 1
        return method == "propose" and calls[method] > 20

    with pytest.raises(InputError, match=r"label shard \d was lost 4 times at the same batch"):
        fit_shards(tmp_path, data, config, 2, is_lost)


def test_stopped_at_every_pause(tmp_path, lossy):
    """Checkpoints of all shards, from which other shards go on."""
    data, config, expected = lossy
    whole, _ = fit_shards(tmp_path, data, config, 3)
    Checkpoints(tmp_path / "m").clear()
    n_stops = 0
    while True:
        try:
            n_shards = None if n_stops else 3  # how many there are is known to the checkpoint
            scorer, _ = fit_shards(tmp_path, data, config, n_shards, resume=True, stop=stop_after(1))
            break
        except Interrupted:
            n_stops += 1
    assert n_stops == 3 * 3  # batches of 20 in 40 + 16 rows
    assert bits(scorer) == expected
    kept = [{**facts, "communication": 0} for facts in timeless(scorer.info["history"])]
    assert kept == [{**facts, "communication": 0} for facts in timeless(whole.info["history"])]


def test_a_loss_after_resuming(tmp_path, lossy):
    data, config, expected = lossy
    with pytest.raises(Interrupted):
        fit_shards(tmp_path, data, config, 2, stop=stop_after(2))
    losses = Losses(60)
    scorer, told = fit_shards(tmp_path, data, config, 2, losses, resume=True)
    assert any("is lost" in text for text in told)
    assert bits(scorer) == expected


@pytest.mark.parametrize(
    ("train", "n_shards", "safety", "said"),
    [
        ({}, 5, {}, "200 labels are 4 blocks of 64, and a shard has one or more: ask for at most 4"),
        ({"radius": 1.0}, 2, {}, "radius needs the length of all weights"),
        ({}, 2, {"fit_memory": True}, "--fit-memory compares the weights of all labels"),
        ({}, 2, {"memory": 1 << 30}, "--memory is of this machine"),
        ({"eta": 1e38}, 2, {}, r"no longer finite in pass \d: eta 1e\+38 is too large"),
    ],
)
def test_what_cannot_be_trained(tmp_path, train, n_shards, safety, said):
    data = as_dataset(*draw_rows(seed=3, n_labels=200))
    with pytest.raises(InputError, match=said):
        fit_shards(tmp_path, data, configure(**train), n_shards, **safety)


def test_relevance_weights_are_refused(tmp_path):
    data = as_dataset(*draw_rows(seed=3, n_labels=200))
    data.labels.data[5] = 2.0
    with pytest.raises(InputError, match="relevance weights of labels work on one machine only"):
        fit_shards(tmp_path, data, configure(), 2)


def test_nothing_to_learn(tmp_path):
    X, Y = draw_rows(seed=3)
    with pytest.raises(InputError, match="none of the 70 rows has a label"):
        fit_shards(tmp_path, as_dataset(X, np.zeros_like(Y)), configure(), 2)
    with pytest.raises(InputError, match="no data: 0 rows"):
        fit_shards(tmp_path, as_dataset(X[:0], Y[:0]), configure(), 2)
    X[7, 2] = np.nan
    with pytest.raises(InputError, match="row 7 has a value that is not a finite number"):
        fit_shards(tmp_path, as_dataset(X, Y), configure(), 2)


def test_too_little_memory(tmp_path, monkeypatch):
    data = as_dataset(*draw_rows(seed=3, n_labels=200))
    monkeypatch.setattr(HereSession, "nodes", lambda self: [Node("a", "a", 1, 10**6, 10**9)])
    with pytest.raises(InputError, match=r"node a: label shards 0, 1 need .* but Ray has .* there: use more nodes"):
        fit_shards(tmp_path, data, configure(), 2)


def test_a_run_goes_on_as_it_began(tmp_path, lossy):
    """With other shards, settings or rows, or on one machine: refused."""
    data, config, _ = lossy
    with pytest.raises(Interrupted):
        fit_shards(tmp_path, data, config, 2, stop=stop_after(2))
    again = partial(fit_shards, tmp_path, resume=True)
    with pytest.raises(InputError, match="has 2 label shards: resume it with as many, not 3"):
        again(data, config, 3)
    with pytest.raises(InputError, match=r"is of another run: train\.seed was 0, is 1"):
        again(data, configure(**LOSSY, seed=1), 2)
    for n_labels in (130, 300):
        other = as_dataset(*draw_rows(seed=3, n_labels=n_labels))
        with pytest.raises(InputError, match=f"its label shards are not of {n_labels} labels"):
            again(other, config, 2)
    other = as_dataset(*draw_rows(seed=4, n_labels=200))
    with pytest.raises(InputError, match=r"is of another run: .*sha256 was"):
        again(other, config, 2)
    with pytest.raises(InputError, match="edges was"):
        fit_here(data, config, safety=Safety(Checkpoints(tmp_path / "m"), resume=True))


def test_a_run_on_one_machine_does_not_go_on_on_a_cluster(tmp_path, lossy):
    data, config, _ = lossy
    with pytest.raises(Interrupted):
        fit_here(data, config, safety=Safety(Checkpoints(tmp_path / "m"), stop=stop_after(1)))
    with pytest.raises(InputError, match="is of a run on one machine: resume it without --engine ray"):
        fit_shards(tmp_path, data, config, 2, resume=True)


def test_a_full_disk_ends_no_run(tmp_path, lossy, monkeypatch):
    """Shards that cannot write their part; the log goes on."""
    data, config, expected = lossy
    told = []

    def fails(*args):
        raise OSError(28, "No space left on device")

    write = shard_module.write_arrays
    monkeypatch.setattr(
        shard_module,
        "write_arrays",
        lambda folder, *args: (write if "finished" in str(folder) else fails)(folder, *args),
    )
    scorer, _ = fit_shards(tmp_path, data, config, 2, Losses(150), tell=told.append)
    assert any("No space left on device; training goes on" in text for text in told)
    assert Checkpoints(tmp_path / "m").numbers() == []
    assert bits(scorer) == expected


# --- a real cluster ----------------------------------------------------------------------------------------------

# Three blocks, 23 batches a pass; 330 labels are 6 blocks of the kernels.
REAL = {"batch_rows": 64, "block_rows": 600, "heldout": 0.1, "prune": 0.01, "tau": 0.3, "seed": 5}


@pytest.fixture(scope="module")
def data():
    return make_dataset(1500, 300, 330, features_per_row=20, seed=1)


@pytest.fixture(scope="module")
def places(tmp_path_factory, data):
    """The same rows in three ways."""
    folder = tmp_path_factory.mktemp("rows")
    for kind in ("parquet", "hdf5"):
        write_shards(folder / kind / "train", [data], kind, 400, {})
    (folder / "plain").mkdir()
    write_repository_text(folder / "plain" / "train.txt", data)
    return folder


@pytest.fixture(scope="module")
def expected(data):
    return fit_here(data, configure(**REAL))


@pytest.fixture(scope="module")
def session(ray_cluster):
    """This process on the cluster; commands are processes of their own here."""
    told = []
    with connect(ray_cluster.address, told.append) as session:
        session.told = told
        yield session


def is_true(condition):
    """Wait for it."""
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def actor_names():
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


@pytest.fixture
def fit(session, tmp_path, places):
    """Train on the cluster, from the rows of one kind; nothing may be left behind."""
    session.told.clear()

    def train(kind, n_shards, on_pass=lambda facts: None, train=REAL, **safety):
        rows = open_split(places / kind, "train") if kind != "plain" else catalog.load(str(places / kind), "train")
        place = share_rows(rows, DataLocation(str(places / kind)))
        checkpoints = Checkpoints(tmp_path / "m")
        with checkpoints.locked():
            safety = Safety(checkpoints, **safety)
            scorer = training.fit(session, place, rows, configure(**train), n_shards, safety, on_pass)
            checkpoints.clear()
        assert list(tmp_path.iterdir()) == []
        return scorer

    yield train
    assert is_true(lambda: not actor_names())


@pytest.mark.parametrize(("n_shards", "kind"), [(1, "hdf5"), (3, "plain"), (5, "parquet")])
def test_label_shards_have_the_bits_of_one_machine(fit, session, expected, n_shards, kind):
    names = []
    scorer = fit(kind, n_shards, on_pass=lambda facts: names.append(actor_names()))
    assert bits(scorer) == bits(expected)
    for part in ("data", "config"):
        assert scorer.info[part] == expected.info[part]
    assert [facts["heldout"] for facts in scorer.info["history"]] == [
        facts["heldout"] for facts in expected.info["history"]
    ]
    assert [len(each) for each in names] == [n_shards] * 2
    assert all(name.startswith("xmlpreck-labels-") for name in names[0])
    assert any(f"weights in {n_shards} label shards" in text for text in session.told)
    for shard, node in enumerate(session.nodes()[:n_shards]):  # where each of them ought to be
        assert any(text.startswith(f"node {node.name}: label shards {shard}") for text in session.told)


def process_of(actor):
    return actor.__ray_call__.remote(lambda shard: os.getpid())


class Killer:
    """Ends the processes of shards by SIGKILL while they are busy with a call."""

    def __init__(self, monkeypatch):
        self.pids = {}
        self.todo = []  # (method, shards): each is hit once, in this order
        for owner, name in (
            (shards.Shards, "ask_all"),
            (training.ClusterTrainer, "_train_batch"),
            (shards.Shards, "answers"),
        ):
            monkeypatch.setattr(owner, name, self.wrap(owner, name))

    def wrap(self, owner, name):
        wrapped = getattr(owner, name)

        def look(trainer, *args, **kwargs):
            actors = (trainer if owner is shards.Shards else trainer.shards).actors
            if name == "answers":
                self.strike(actors, signal.SIGKILL)
            else:
                self.method = "propose" if name == "_train_batch" else args[0]
                unknown = [actor for actor in actors if actor not in self.pids]
                with suppress(ray.exceptions.ActorDiedError):  # it may be gone by itself
                    found = ray.get([process_of(actor) for actor in unknown], timeout=SECONDS)
                    self.pids.update(zip(unknown, found, strict=True))
                self.strike(actors, signal.SIGSTOP)  # it hears the call, but has no time to answer
            return wrapped(trainer, *args, **kwargs)

        return look

    def strike(self, actors, how):
        if self.todo and self.todo[0][0] == self.method:
            for shard in self.todo[0][1]:
                os.kill(self.pids[actors[shard]], how)
            if how == signal.SIGKILL:
                self.todo.pop(0)


def test_killed_shards_do_not_show(fit, session, expected, monkeypatch):
    """One before the first batch, both in the midst, one as it writes a checkpoint, one as it writes its weights."""
    killer = Killer(monkeypatch)
    killer.todo = [("begin_pass", [0]), ("propose", [0, 1]), ("write", [1]), ("finish", [0])]
    monkeypatch.setattr(log_module, "LOG_BYTES", 20_000)
    assert bits(fit("parquet", 2)) == bits(expected)
    assert killer.todo == []
    assert sum("is lost" in text for text in session.told) == 5


def test_a_node_that_goes_does_not_show(ray_cluster, fit, session, expected):
    node = ray_cluster.add_node(num_cpus=2, object_store_memory=100_000_000)
    assert is_true(lambda: len(session.nodes()) == 4)

    def lose_node(facts):
        if facts.number == 1:
            shards = [Path("/proc", str(pid)) for pid in torture_cluster.find_shards(os.getpid())]
            ray_cluster.remove_node(node, False)
            assert is_true(lambda: not all(map(Path.exists, shards)))

    scorer = fit("parquet", 4, on_pass=lose_node)
    assert bits(scorer) == bits(expected)
    assert any("is lost" in text for text in session.told)
    assert is_true(lambda: len(session.nodes()) == 3)


def test_shards_that_are_always_killed_are_given_up(fit, monkeypatch):
    Killer(monkeypatch).todo = [("propose", [1])]
    rebuild = shards.Shards._rebuild

    def spoil(self, numbers):
        for shard in numbers:
            with suppress(ray.exceptions.ActorDiedError):  # it may be gone by itself
                os.kill(ray.get(process_of(self.actors[shard]), timeout=SECONDS), signal.SIGKILL)
        return rebuild(self, numbers)

    monkeypatch.setattr(shards.Shards, "_rebuild", spoil)
    monkeypatch.setattr(shards, "MAX_TRIES", 1)
    with pytest.raises(InputError, match=r"^label shard 1 was lost 1 times at the same batch \([^\n]*\)$"):
        fit("parquet", 2)


def test_rows_that_only_the_driver_has(session, tmp_path, places):
    rows = open_split(places / "parquet", "train")
    place = share_rows(rows, DataLocation("parquet"))._replace(location=DataLocation("/proc/self/cwd/parquet"))
    with pytest.raises(InputError, match=r"^node .*: /proc/self/cwd/parquet: is not there: put it on a shared"):
        training.fit(session, place, rows, configure(), 1, Safety(Checkpoints(tmp_path / "m")))


# --- commands ----------------------------------------------------------------------------------------------------

TRAIN = ["--data", "rows", "--no-tune", "--epochs", "2", "--k", "3", "--out", "m", "--set", "rows.bias=0"]
TRAIN += [word for name, value in REAL.items() for word in ("--set", f"train.{name}={value}")]


def start(folder, *words):
    words = [sys.executable, "-m", "xmlpreck", "train", *TRAIN, "--engine", "ray", *words]
    return subprocess.Popen(words, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def end(process):
    """The exit code and all that was printed."""
    try:
        text, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return process.returncode, text


def arrays(model):
    return {path.name: path.read_bytes() for path in model.glob("row_*.npy")}


@pytest.fixture
def folder(tmp_path, monkeypatch, places, expected):
    """Where commands run, but not the nodes; the model that is expected is `e`."""
    monkeypatch.chdir(tmp_path)
    Path("rows").symlink_to(places / "parquet")
    expected.save("e")
    return tmp_path


def test_a_driver_that_is_killed_goes_on(ray_cluster, folder, capsys):
    words = ("--address", ray_cluster.address, "--checkpoint-minutes", "0.0001")
    process, checkpoints = start(folder, *words, "--label-shards", "2"), Checkpoints(folder / "m")
    assert is_true(lambda: max(checkpoints.numbers(), default=0) > 3 or process.poll() is not None)
    process.kill()
    assert end(process)[0] == -signal.SIGKILL
    assert main(["train", *TRAIN, "--resume"]) == 2
    assert "the checkpoint is of another run: edges was" in capsys.readouterr().err.splitlines()[-1]
    code, text = end(start(folder, *words, "--resume"))
    assert code == 0, text
    assert "resumed in pass" in text
    assert arrays(folder / "m") == arrays(folder / "e")
    assert not (folder / "m.partial").exists()


def test_torture_kills_a_shard_of_its_own_run(folder):
    for _ in range(torture_cluster.MOST_ATTEMPTS):  # one may end before its kill
        ended = torture_cluster.train([*TRAIN, "--engine", "ray"], folder / "log.txt", 2, 0.0, Random(0))
        if ended.code or ended.killed_after is not None:
            break
    assert ended.code == 0, (folder / "log.txt").read_text()
    assert ended.lost == [0]  # one shard, for one node
    assert torture_cluster.arrays(folder / "m") == torture_cluster.arrays(folder / "e")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sweep", "k=1,3"], "--sweep trains on this machine only"),
        (["--data", "texts"], "is raw text"),
    ],
)
def test_what_a_command_cannot_do(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    Path("texts/train.jsonl").write_text('{"text": "a b", "labels": ["x"]}\n')
    assert main(["train", "--data", "rows", "--engine", "ray", *words]) == 2
    assert said in capsys.readouterr().err
