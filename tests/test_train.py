"""The trainer against the slow reference: weights, averages, facts; and the same bits for any number of threads."""

import json
from dataclasses import replace

import numpy as np
import pytest
import reference
from helpers import as_dataset, dense, draw_rows, orders, reseal, trainer_bits

from xmlpreck import metrics
from xmlpreck.cli import main
from xmlpreck.config import ALGORITHMS, BOTH, InputError, RowsConfig, RunConfig, TrainConfig
from xmlpreck.data import catalog
from xmlpreck.data.formats.repository import write_repository_text
from xmlpreck.data.rows import split_heldout
from xmlpreck.kernels.arrays import AVERAGED, ELAPSED, SCALE, STEPS, no_weights
from xmlpreck.kernels.rules import RULES
from xmlpreck.model import all_sparse, layout
from xmlpreck.train import PreparedRows, Trainer, TrainingError, fit
from xmlpreck.train import trainer as trainer_module


def test_every_algorithm_has_a_rule():
    assert {*RULES, BOTH} == set(ALGORITHMS) == {*reference.RULES, "hinge", BOTH}


def prepared(X, Y, block_rows=10**6):
    return PreparedRows(as_dataset(X, Y), RowsConfig(unit_norm=False, bias=0), block_rows)


def trained(X, Y, config, dtype=np.float64):
    rows = prepared(X, Y, config.block_rows)
    trainer = Trainer(no_weights(X.shape[1], Y.shape[1], dtype), config)
    trainer.grow(rows)
    return trainer, [trainer.run_pass(rows) for _ in range(config.epochs)]


@pytest.mark.parametrize("algo", sorted(RULES))
@pytest.mark.parametrize(
    "settings",
    [
        {"k": 3, "eta": 0.3, "average_from": 1},
        {"k": 1, "eta": 1.0, "batch_rows": 1, "average_from": 2},
        {"k": 5, "eta": 0.7, "decay": "sqrt", "batch_rows": 7, "average_from": 1},
        {"k": 5, "eta": 0.2, "decay": "constant", "batch_rows": 16, "average_from": 1},
        {"k": 4, "eta": 0.5, "radius": 1.5, "batch_rows": 4, "average_from": 1},
        {"k": 2, "eta": 1.0, "radius": 0.6, "batch_rows": 2, "average_from": 1},
    ],
)
def test_weights_equal_the_reference(algo, settings):
    config = TrainConfig(algo=algo, epochs=2, seed=3, threads=2, **settings)
    X, Y = draw_rows(seed=len(algo))
    trainer, facts = trained(X, Y, config)
    slow = reference.train(
        X, Y, rule=algo, k=config.k, orders=orders(config, len(X)), batch_rows=config.batch_rows, eta=config.eta,
        decay=config.decay, radius=config.radius, average_from=config.average_from, spread=config.spread,
        seed=config.seed,
    )  # fmt: skip
    # float64 throughout: what is left is the order of sums
    scale = trainer.learner.clock[SCALE]
    np.testing.assert_allclose(dense(trainer.learner.weights) * scale, slow.last, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dense(trainer.weights()), slow.average, rtol=1e-9, atol=1e-12)
    n_labelled = np.count_nonzero(Y.any(axis=1))
    np.testing.assert_allclose([f.surrogate * n_labelled for f in facts], slow.surrogate, rtol=1e-9)
    assert [f.mistakes * n_labelled for f in facts] == pytest.approx(slow.mistakes)
    assert [f.updated for f in facts] == slow.updated


@pytest.mark.parametrize("algo", sorted(RULES))
@pytest.mark.parametrize("share", [0, 3, 10**6], ids=["all sparse", "both", "all dense"])
def test_wider_support_equals_the_reference(monkeypatch, algo, share):
    """From the third pass on a label has weights for features of rows that it does not have, and no others."""
    monkeypatch.setattr(layout, "DENSE_SHARE", share)
    config = TrainConfig(algo=algo, epochs=4, k=3, eta=0.3, batch_rows=8, threads=2, widen=True)
    X, Y = draw_rows(seed=21, n_labels=60, density=0.05)
    trainer, facts = trained(X, Y, config)
    slow, narrow = (
        reference.train(
            X, Y, rule=algo, k=3, orders=orders(config, len(X)), batch_rows=8, eta=0.3, average_from=2, widened=widened
        )
        for widened in (3, None)
    )
    np.testing.assert_allclose(dense(trainer.learner.weights), slow.last, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dense(trainer.weights()), slow.average, rtol=1e-9, atol=1e-12)
    assert [f.updated for f in facts] == slow.updated
    assert np.count_nonzero(slow.last[~reference.support(X, Y)]) > 10
    assert narrow.updated[:2] == slow.updated[:2]
    assert not narrow.last[~reference.support(X, Y)].any()


@pytest.mark.parametrize("algo", sorted(RULES))
def test_float32_stays_close_to_the_reference(algo):
    config = TrainConfig(algo=algo, epochs=2, k=3, eta=0.3, threads=1, batch_rows=8, average_from=1)
    X, Y = draw_rows(seed=11)
    trainer, _ = trained(X, Y, config, np.float32)
    slow = reference.train(X, Y, rule=algo, k=3, orders=orders(config, len(X)), batch_rows=8, eta=0.3, cut=True)
    # 18 batches of steps around 1: some 1e-6 of rounding, if every choice was the same
    np.testing.assert_allclose(dense(trainer.learner.weights), slow.last, atol=2e-5)
    # the mean is rounded to 8 bits
    np.testing.assert_allclose(dense(trainer.weights()), slow.average, rtol=2**-8, atol=2e-5)


def test_scores_are_of_the_cut_weights():
    """Values and steps are powers of 2, so that float32 has no other rounding than the cut; without it, others rise."""
    rng = np.random.default_rng(5)
    Y = rng.random((300, 20)) < 0.2
    X = np.where(rng.random((300, 15)) < 0.4, 2.0 ** rng.integers(-6, 3, (300, 15)), 0)
    config = TrainConfig(algo="sgd-max", epochs=3, k=3, eta=0.5, decay="constant", threads=2, batch_rows=8)
    trainer, facts = trained(X, Y, config, np.float32)
    cut, whole = (
        reference.train(
            X, Y, rule="sgd-max", k=3, orders=orders(config, 300), batch_rows=8, eta=0.5, decay="constant", cut=cut
        )
        for cut in (True, False)
    )
    np.testing.assert_array_equal(dense(trainer.learner.weights), cut.last)
    assert [f.updated for f in facts] == cut.updated
    assert (cut.last != whole.last).any()


def test_finished_weights_are_the_nearest_in_16_bits():
    X, Y = draw_rows(seed=13)
    config = TrainConfig(epochs=1, average_from=0)
    trainer, _ = trained(X, Y, config, np.float32)
    last = dense(trainer.learner.weights)
    finished = trainer.finish()
    assert finished.dense_rows.dtype == np.uint16
    found = dense(finished)
    below, above = np.nextafter(found, -np.inf, dtype=np.float32), np.nextafter(found, np.inf, dtype=np.float32)
    assert (reference.cut_to_bfloat16(found) == found).all()
    step = np.abs(found) * 2.0**-8 + np.abs(above - below)  # of a number with 8 bits, to the next one or the half of it
    assert (np.abs(found - last) <= step).all()
    assert np.abs(found - last).max() > 0


@pytest.mark.parametrize("algo", ["sgd-avg", "perceptron-max"])
def test_perturbed_weights_equal_the_reference(algo):
    """tau > 0: the reference draws its own noise, by the documented formula, and must choose the same steps."""
    config = TrainConfig(algo=algo, epochs=2, k=3, eta=0.3, tau=0.5, seed=5, average_from=1)
    X, Y = draw_rows(seed=2, n_labels=60)  # one block: perturbed whole for every row
    trainer, facts = trained(X, Y, config)

    def noise(number, row):
        return reference.gumbel_noise(config.seed, config.tau, number, int(row), Y.shape[1])

    slow = reference.train(
        X, Y, rule=algo, k=3, orders=orders(config, len(X)), batch_rows=config.batch_rows, eta=0.3, noise=noise
    )
    np.testing.assert_allclose(dense(trainer.weights()), slow.average, rtol=1e-9, atol=1e-12)
    assert [f.updated for f in facts] == slow.updated


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algo": "sgd-max", "tau": 0.4},
        {"radius": 2.0, "batch_rows": 5},
        {"algo": "perceptron-avg"},
        {"widen": True, "block_rows": 64},
    ],
)
def test_same_bits_for_any_number_of_threads(settings):
    X, Y = draw_rows(seed=4, n_rows=200, n_labels=150)
    configs = [TrainConfig(epochs=3, threads=threads, **settings) for threads in (1, 2, 3, 8)]
    bits = [trainer_bits(trained(X, Y, config, np.float32)[0]) for config in configs]
    assert bits[1:] == bits[:1] * 3


@pytest.mark.parametrize("settings", [{}, {"radius": 0.3, "batch_rows": 1, "eta": 1.0}])
def test_threads_without_a_core_are_not_waited_for(settings, monkeypatch):
    """Each thread of a team begins when the one before it has returned: the first does it all."""
    X, Y = draw_rows(seed=4, n_rows=200, n_labels=150)
    config = TrainConfig(epochs=3, threads=3, **settings)
    expected = trainer_bits(trained(X, Y, config, np.float32)[0])

    def one_by_one(n_threads, task, stop=None):
        for thread in range(n_threads):
            task(thread)

    monkeypatch.setattr(trainer_module, "run_team", one_by_one)
    assert trainer_bits(trained(X, Y, config, np.float32)[0]) == expected


def test_blocks_bound_memory_and_shards_do_not_matter():
    """Blocks are part of the order: the same for a Dataset and any other source with these rows."""
    X, Y = draw_rows(seed=4, n_rows=200)
    config = TrainConfig(algo="sgd-avg", epochs=2, tau=0.3, block_rows=64, batch_rows=10)
    whole, _ = trained(X, Y, config, np.float32)

    class Elsewhere:
        """Rows that are read again each time."""

        def __init__(self, data):
            self.data, self.reads = data, []
            self.n_rows, self.n_features, self.n_labels = data.n_rows, data.n_features, data.n_labels

        def read(self, start, stop):
            self.reads.append((start, stop))
            return self.data.read(start, stop)

    source = Elsewhere(as_dataset(X, Y))
    rows = PreparedRows(source, RowsConfig(unit_norm=False, bias=0), 64)
    trainer = Trainer(no_weights(X.shape[1], Y.shape[1]), config)
    trainer.grow(rows)
    for _ in range(2):
        trainer.run_pass(rows)
    assert trainer_bits(trainer) == trainer_bits(whole)
    assert max(stop - start for start, stop in source.reads) == 64
    assert len(source.reads) == 3 * 4  # support, two passes
    other, _ = trained(X, Y, replace(config, block_rows=1000), np.float32)
    assert trainer_bits(other) != trainer_bits(whole)


def test_another_seed_gives_other_bits():
    X, Y = draw_rows(seed=4)
    assert trainer_bits(trained(X, Y, TrainConfig(seed=0))[0]) != trainer_bits(trained(X, Y, TrainConfig(seed=1))[0])


def test_layout_does_not_change_training(monkeypatch):
    """All features dense or all sparse: the support is the same and so are the weights, to the last bit."""
    X, Y = draw_rows(seed=6)
    results = []
    for share in (0, 16, 10**6):
        monkeypatch.setattr(layout, "DENSE_SHARE", share)
        results.append(dense(trained(X, Y, TrainConfig(epochs=2), np.float32)[0].weights()))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    assert not results[0][~reference.support(X, Y)].any()


def test_small_radius_is_multiplied_out():
    """The scale of the weights would fall below any bound; the kernel multiplies it out, and the norm is kept."""
    X, Y = draw_rows(seed=8)
    config = TrainConfig(epochs=3, k=2, eta=1.0, radius=0.3, batch_rows=1, average_from=1)
    trainer, _ = trained(X, Y, config)
    clock = trainer.learner.clock
    assert clock[AVERAGED] == 210
    assert clock[ELAPSED] < 100, "elapsed was never set back"
    last = dense(trainer.learner.weights) * clock[SCALE]
    assert np.linalg.norm(last) == pytest.approx(0.3)
    assert np.sqrt(trainer.learner.norms.sum()) * clock[SCALE] == pytest.approx(0.3)


def separable(margin_kind, k=2, n_rows=120, n_labels=12, seed=0):
    """Rows x with x_l = score of label l under W* = I: relevant labels above, irrelevant at 0, and noise features."""
    rng = np.random.default_rng(seed)
    X, Y = np.zeros((n_rows, n_labels + 6)), np.zeros((n_rows, n_labels), bool)
    X[:, n_labels:] = rng.normal(size=(n_rows, 6)) * 0.3
    for i in range(n_rows):
        relevant = rng.permutation(n_labels)[:4]
        Y[i, relevant] = True
        # k-margin only: the 3 = n+ - k + 1 lowest relevant scores are 1 on average, the lowest of all is 0
        X[i, relevant] = 1.0 if margin_kind == "strong" else (1.6, 1.5, 1.5, 0.0)
    X = X.astype(np.float32).astype(np.float64)
    gamma = 1.0 / np.sqrt(n_labels)  # W* = I has norm sqrt(n_labels)
    return X, Y, gamma, k


@pytest.mark.parametrize(("algo", "margin_kind"), [("perceptron-avg", "k"), ("perceptron-max", "strong")])
def test_mistake_bound_on_separable_rows(algo, margin_kind):
    """Sum of mistakes <= 4 k R^2 / gamma^2, and the perceptron comes to rest."""
    X, Y, gamma, k = separable(margin_kind)
    config = TrainConfig(algo=algo, k=k, epochs=60, batch_rows=1)
    _, facts = trained(X, Y, config)
    mistakes = sum(f.mistakes * len(X) for f in facts)
    radius = np.linalg.norm(X, axis=1).max()
    assert 0 < mistakes <= 4 * k * radius**2 / gamma**2
    assert facts[-1].mistakes == 0
    assert facts[-1].updated == 0


@pytest.mark.parametrize("algo", ["perceptron-avg", "perceptron-max"])
def test_mistake_bound_on_any_rows(algo):
    """Sum of mistakes <= (|w| R sqrt(4k) + sqrt(sum of surrogates of w))^2 for every w (Theorems 7 and 9)."""
    X, Y = draw_rows(seed=9)
    config = TrainConfig(algo=algo, k=3, epochs=1, batch_rows=1)
    trainer, facts = trained(X, Y, config)
    mistakes = facts[0].mistakes * np.count_nonzero(Y.any(axis=1))
    radius = np.linalg.norm(X, axis=1).max()
    surrogate = reference.SURROGATE_OF[algo]
    for scale in (0.0, 0.01, 0.03, 0.1, 0.3, 1.0):
        W = scale * dense(trainer.weights())
        total = sum(
            surrogate(x @ W, y, min(3, y.sum()))[0] for x, y in zip(X, Y, strict=True) if y.any()
        )  # fmt: skip
        assert mistakes <= (np.linalg.norm(W) * radius * np.sqrt(12) + np.sqrt(total)) ** 2


def test_fit_holds_rows_out_and_keeps_history():
    X, Y = draw_rows(seed=1, n_rows=200)
    seen = []
    scorer = fit(as_dataset(X, Y), RunConfig(train=TrainConfig(heldout=0.25, epochs=3)), seen.append)
    assert [f.n_rows for f in seen] == [150] * 3
    assert all(set(f.heldout) == {"P@1", "P@3", "P@5"} for f in seen)
    assert all(f.gap >= 0 for f in seen)
    assert [entry["number"] for entry in scorer.info["history"]] == [1, 2, 3]
    assert scorer.info["data"]["n_rows"] == 150
    kept, heldout = split_heldout(as_dataset(X, Y), 0.25, 0)
    together = np.vstack([part.read(0, part.n_rows).rows.toarray() for part in (kept, heldout)])
    np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(X.astype(np.float32), axis=0))


def test_fit_prunes_and_adds_bias():
    X, Y = draw_rows(seed=1)
    config = TrainConfig(epochs=2)
    full = fit(as_dataset(X, Y), RunConfig(RowsConfig(bias=0.5), config))
    pruned = fit(as_dataset(X, Y), RunConfig(RowsConfig(bias=0.5), TrainConfig(epochs=2, prune=0.1)))
    assert full.n_features == 40
    assert len(full.weights.dense_of) == 41
    expected = dense(full.weights)
    expected[np.abs(expected) < 0.1] = 0
    np.testing.assert_array_equal(dense(pruned.weights), expected)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda X, Y: Y.fill(False), "none of the 70 rows has a label"),
        (lambda X, Y: X.__setitem__((4, 2), np.nan), "row 4 has a value that is not a finite number"),
    ],
)
def test_fit_refuses_bad_rows(spoil, message):
    X, Y = draw_rows(seed=1)
    spoil(X, Y)
    with pytest.raises(InputError, match=message):
        fit(as_dataset(X, Y), RunConfig())


def test_fit_refuses_no_rows():
    with pytest.raises(TrainingError, match="no data: 0 rows"):
        fit(as_dataset(np.zeros((0, 3)), np.zeros((0, 2))), RunConfig())


def test_weights_that_overflow_stop_with_advice():
    X, Y = draw_rows(seed=1)
    config = RunConfig(RowsConfig(unit_norm=False), TrainConfig(eta=1e38, epochs=3))
    with pytest.raises(TrainingError, match=r"no longer finite in pass \d: eta 1e\+38 is too large"):
        fit(as_dataset(X * 1e3, Y), config)


@pytest.mark.parametrize(
    ("name", "settings", "floors"),
    [
        ("bibtex", {"algo": "sgd-avg", "epochs": 5, "eta": 0.4, "decay": "constant"}, (64.3, 39.1, 28.3)),
        # labels are noisy: without tau it has 62.5 / 55.3 / 49.2
        (
            "delicious",
            {"algo": "sgd-avg", "k": 10, "eta": 0.1, "decay": "constant", "tau": 0.3, "epochs": 20, "centroid": 0.0}
            | {"average_from": 1},
            (67.0, 60.8, 56.1),
        ),
    ],
)
def test_real_data_reaches_its_figures(shared_data, name, settings, floors):
    """From the mean rows, and from the paper's start at nothing with noise, each on its own train and test split."""
    train, test = (catalog.load(str(shared_data / name), split) for split in ("train", "test"))
    scorer = fit(train, RunConfig(train=TrainConfig(**settings)))
    scores = metrics.precision_at_k(scorer.predict_topk(test.rows, 5, 2), test.labels)
    assert all(score >= floor for score, floor in zip(scores.values(), floors, strict=True)), scores


def test_growing_keeps_what_was_learned():
    """Rows of two halves: after growing, old weights, their mean and their norm are as they were."""
    X, Y = draw_rows(seed=12)
    halves = [prepared(X[part], Y[part]) for part in (slice(35), slice(35, 70))]
    config = TrainConfig(epochs=2, radius=5.0, average_from=1)
    trainer = Trainer(no_weights(X.shape[1], Y.shape[1]), config)
    trainer.grow(halves[0])
    trainer.run_pass(halves[0])
    before = trainer.learner
    mean = dense(trainer.weights())
    trainer.grow(halves[1])
    after = trainer.learner
    np.testing.assert_array_equal(dense(after.weights), dense(before.weights))
    np.testing.assert_array_equal(dense(trainer.weights()), mean)
    np.testing.assert_array_equal(after.clock, before.clock)
    both = reference.support(X[:35], Y[:35]) | reference.support(X[35:], Y[35:])
    ones = after.weights._replace(
        dense_rows=np.ones_like(after.weights.dense_rows), values=np.ones_like(after.weights.values)
    )
    np.testing.assert_array_equal(dense(ones, after.dense_mask) > 0, both)
    trainer.run_pass(halves[1])
    norms = np.linalg.norm(dense(trainer.learner.weights)) ** 2
    assert trainer.learner.norms.sum() == pytest.approx(norms, rel=1e-5)


def test_growing_an_empty_support_keeps_the_clock():
    """Batches without labels count as time too."""
    X, Y = draw_rows(seed=12)
    trainer = Trainer(no_weights(X.shape[1], Y.shape[1]), TrainConfig(epochs=2))
    for labels in (np.zeros_like(Y), Y):
        rows = prepared(X, labels)
        trainer.grow(rows)
        trainer.run_pass(rows)
    assert trainer.learner.clock[STEPS] == 6


def test_a_model_with_a_retired_setting_is_updated(tmp_path):
    """xmlpreck 0.1 wrote train.shortlist into every model."""
    model = fit(as_dataset(*draw_rows(seed=1)), RunConfig())
    model.save(tmp_path / "old")
    path = tmp_path / "old" / "model.json"
    about = json.loads(path.read_text())
    about["config"]["train"]["shortlist"] = 0
    path.write_text(json.dumps(about))
    reseal(tmp_path / "old")
    write_repository_text(tmp_path / "more.txt", as_dataset(*draw_rows(seed=2)))
    words = ["update", "--model", str(tmp_path / "old"), "--data", str(tmp_path / "more.txt"), "--split", "train"]
    assert main([*words, "--out", str(tmp_path / "new")]) == 0
    assert "shortlist" not in json.loads((tmp_path / "new" / "model.json").read_text())["config"]["train"]


def test_a_timed_pass_counts_its_own_seconds_only(monkeypatch):
    """It counted all seconds since the clock began: a plan of 1,200 rows said nine hours a pass."""
    X, Y = draw_rows(seed=1)
    rows = prepared(X, Y)
    trainer = Trainer(no_weights(X.shape[1], Y.shape[1]), TrainConfig())
    trainer.grow(rows)
    ticks = iter(range(10**6, 10**7))
    monkeypatch.setattr(trainer_module.time, "perf_counter", lambda: next(ticks))
    assert trainer_module.time_pass(all_sparse(trainer.learner.weights), rows, TrainConfig(threads=1)) == 1
