"""The cluster's tools: the simulation against arithmetic and its own rules, and made-up shards in one process."""

import json
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(ROOT / "tools"))
import cluster_page
import simulate_cluster
from simulate_cluster import Cluster, Model

from xmlpreck.data.synthetic import make_dataset

MEASURED = {
    "batch_rows": 100,
    "parts_a_batch": 2,
    "cores": 2,
    "imbalance": {"1": 1.0, "2": 1.1, "4": 1.2, "8": 1.5},
    "sizes": {
        "n_rows": 1000, "n_features": 500, "n_labels": 640, "nnz": 10.0, "labels_a_row": 3.0, "weights_a_label": 50.0,
        "sparse_weights_a_label": 30.0, "dense_features": 20, "dense_a_row": 5.0, "sparse_a_row": 200.0,
        "pairs_a_row": 4.0,
    },
    "constants": {
        "score_row_seconds": 1e-5, "dense_cell_seconds": 1e-7, "sparse_weight_seconds": 1e-6,
        "apply_row_seconds": 1e-6, "dense_step_seconds": 1e-6, "sparse_step_seconds": 2e-6, "thread_efficiency": 0.8,
        "merge_row_seconds": 2e-6, "merge_shard_seconds": 1e-6, "send_seconds": 1e-4, "take_seconds": 5e-5,
        "round_trip_seconds": 5e-4, "received_row_bytes": 40.0, "received_shard_bytes": 60.0, "sent_row_bytes": 30.0,
        "sent_shard_bytes": 10.0, "read_value_seconds": 1e-9, "sparse_weight_bytes": 12.0, "dense_cell_bytes": 8.125,
        "feature_bytes": 12.0, "label_thread_bytes": 4.0,
    },
    "runs": {"one process": {"seconds": 1.0}},
}  # fmt: skip
FREE = Cluster(1, 1, np.inf, 0.0, np.inf, 100)  # a network that costs nothing
NO_COST = {name: 0.0 for name in MEASURED["constants"] if name.split("_")[0] in ("merge", "send", "take", "round")}


def model_with(imbalance=None, **constants):
    changes = {"constants": MEASURED["constants"] | constants, "imbalance": imbalance or MEASURED["imbalance"]}
    return Model(MEASURED | changes)


def run(tmp_path, *words, measured=MEASURED):
    path = tmp_path / "constants.json"
    path.write_text(json.dumps(measured))
    return simulate_cluster.main(["--constants", str(path), *words])


def test_a_pass_is_what_arithmetic_says():
    model = Model(MEASURED)
    said = model.predict(replace(FREE, n_shards=2, latency=1e-3, bandwidth=8e6), model.sizes)
    share = 1.1 / 2
    score = 1e-5 + share * (5 * 640 * 1e-7 + 200 * 1e-6)
    apply = 1e-6 + share * 4 * (5 * 1e-6 + 5 * 2e-6)
    way = 1e-3 + 2e-4
    take = 2 * 5e-5 + 50 * (2e-6 + 2 * 1e-6)
    before = 2 * 2 * 1e-4 + 100 * (30 + 2 * 10) / 1e6 + way
    # The last part's answers come long after the first part is merged.
    batch = before + 100 * (apply + score) + way + 50 * (40 + 2 * 60) / 1e6 + take
    assert said.seconds == pytest.approx(10 * batch)
    assert said.communication == pytest.approx(1 - 100 * (apply + score) / batch)
    assert said.driver == pytest.approx((4e-4 + 2 * take) / batch)


def test_without_communication_and_fixed_costs_the_speed_up_is_ideal():
    model = model_with({"1": 1.0, "64": 1.0}, **NO_COST, score_row_seconds=0.0, apply_row_seconds=0.0)
    seconds = [model.predict(replace(FREE, n_shards=n), model.sizes).seconds for n in (1, 2, 8)]
    assert seconds[0] / np.array(seconds) == pytest.approx([1, 2, 8])
    assert model.predict(replace(FREE, n_shards=8), model.sizes).communication == pytest.approx(0)


def test_what_every_shard_does_for_every_row_bounds_the_speed_up():
    model = model_with({"1": 1.0, "64": 1.0}, **NO_COST, apply_row_seconds=0.0)
    score, apply = model.core_seconds(1, model.sizes)
    seconds = model.predict(replace(FREE, n_shards=64), model.sizes).seconds
    assert 1000 * 1e-5 < seconds < 1000 * (1e-5 + (score + apply) / 32)


@given(
    n_shards=st.integers(1, 10),
    cores=st.integers(1, 64),
    bandwidth=st.floats(1e6, 1e11),
    latency=st.floats(0, 1e-2),
    memory=st.floats(1e6, 1e12),
    factor=st.floats(1, 10),
)
def test_a_better_machine_is_never_slower(n_shards, cores, bandwidth, latency, memory, factor):
    model = Model(MEASURED)
    base = Cluster(n_shards, cores, bandwidth, latency, memory, 100)
    seconds = model.predict(base, model.sizes).seconds
    for better in (
        replace(base, bandwidth=bandwidth * factor),
        replace(base, latency=latency / factor),
        replace(base, memory_bandwidth=memory * factor),
        replace(base, cores=max(2, cores) * 2),
        replace(base, batch_rows=200),  # fewer messages
    ):
        assert model.predict(better, model.sizes).seconds <= seconds * (1 + 1e-9)
    more = replace(model.sizes, n_rows=model.sizes.n_rows * factor)
    assert model.predict(base, more).seconds >= seconds
    assert 0 <= model.predict(base, model.sizes).communication <= 1


def test_the_driver_becomes_the_limit():
    model = model_with(take_seconds=1e-2)
    limits = [model.predict(replace(FREE, n_shards=n), model.sizes).limit for n in (1, 2, 4, 8)]
    assert limits == ["cores", "driver", "driver", "driver"]


def test_slow_memory_and_slow_reading_are_limits():
    model = Model(MEASURED)
    assert model.predict(replace(FREE, memory_bandwidth=8e6), model.sizes).limit == "memory"
    many_rows = replace(model.sizes, n_rows=1e6)
    assert model_with(read_value_seconds=1e-3).predict(FREE, many_rows).limit == "reading"
    assert model_with(read_value_seconds=1e-3).predict(FREE, model.sizes).limit == "cores"  # they stay in memory


def test_memory_of_a_node():
    model = Model(MEASURED)
    sparse, cells = 30 * 640, 20 * 640
    copies = 8 * 50 * 640 - 4 * (sparse + cells)
    whole = 12 * sparse + 8.125 * cells + copies + 3 * 4 * 640
    of_two = model.node_bytes(replace(FREE, n_shards=2, cores=3), model.sizes)
    assert of_two == pytest.approx(1.1 / 2 * whole + 12 * 500)


def test_imbalance_goes_by_the_labels_of_a_shard():
    model = Model(MEASURED)
    assert [model.imbalance(n, model.sizes) for n in (1, 4, 8)] == pytest.approx([1.0, 1.2, 1.5])
    assert 1.2 < model.imbalance(6, model.sizes) < 1.5
    many_labels = replace(model.sizes, n_labels=64_000)
    assert model.imbalance(8, many_labels) == pytest.approx(1.1)
    assert model.imbalance(400, many_labels) == pytest.approx(1.2)
    assert model.imbalance(1, many_labels) == 1.0


def test_shards_on_one_machine_share_its_cores():
    model = model_with({"1": 1.0, "64": 1.0}, **NO_COST, score_row_seconds=0.0, apply_row_seconds=0.0)
    together = Cluster(1, 2, np.inf, 0.0, np.inf, 100, together=True)
    seconds = [model.predict(replace(together, n_shards=n), model.sizes).seconds for n in (1, 2, 4, 8)]
    assert seconds == pytest.approx([seconds[0]] * 4)  # the same work, whoever does it
    alone = model.predict(FREE, model.sizes).seconds
    assert alone / seconds[0] == pytest.approx(2 * 0.8)


def test_validation_reproduces_runs_of_the_model_itself(tmp_path, capsys):
    model = Model(MEASURED)
    together = Cluster(1, 2, np.inf, 0.0, np.inf, 100, together=True)
    seconds = {n: model.predict(replace(together, n_shards=n), model.sizes).seconds for n in (1, 2, 4)}
    runs = {str(n): {"seconds": value * (1.25 if n == 4 else 1)} for n, value in seconds.items()}
    found = Model(MEASURED | {"runs": MEASURED["runs"] | runs}).validate()
    assert [each["label_shards"] for each in found] == [1, 2, 4]
    assert [each["error"] for each in found] == pytest.approx([0, 0, -0.2])
    assert run(tmp_path, "--validate", measured=MEASURED | {"runs": runs}) == 0
    assert "-20.0%" in capsys.readouterr().out


def test_the_measured_runs_of_the_page_are_reproduced():
    model = simulate_cluster.read_constants(simulate_cluster.DEFAULTS)
    found = {each["label_shards"]: each["error"] for each in model.validate()}
    assert found.keys() >= {1, 2, 4}
    assert max(map(abs, found.values())) < 0.3  # what docs/cluster.md says


def test_the_expected_support_of_a_tiny_set_is_what_a_sum_says():
    # Chances of features c, c/2 and c/3 that come to 1.1, and labels of 2 and 1 rows.
    said = simulate_cluster.zipf_sizes(3, 3, 2, 1.1, 1.0)
    chances = 0.6 / np.array([1, 2, 3])
    used = (1 - (1 - chances[:, None]) ** np.array([2, 1])).mean(axis=1)
    assert said["weights_a_label"] == pytest.approx(used.sum())
    assert said["dense_features"] == 3
    assert said["dense_a_row"] == pytest.approx(1.1)
    assert said["sparse_a_row"] == said["sparse_weights_a_label"] == 0


@pytest.mark.parametrize("name", cluster_page.COUNTED)
def test_the_expected_support_is_within_a_factor_of_two(name):
    sizes, (weights_a_label, *_) = cluster_page.COUNTED[name]
    said = simulate_cluster.zipf_sizes(*sizes)
    assert weights_a_label / 2 < said["weights_a_label"] < weights_a_label * 2


def test_the_page_has_every_constant_and_the_model_s_numbers(tmp_path, monkeypatch):
    assert cluster_page.MEANINGS.keys() == MEASURED["constants"].keys()
    page = tmp_path / "page.md"
    page.write_text(f"before\n{cluster_page.BEGIN}\nold\n{cluster_page.END}\nafter\n")
    monkeypatch.setattr(sys, "argv", ["cluster_page.py", "--page", str(page)])
    cluster_page.main()
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    model = simulate_cluster.read_constants(simulate_cluster.DEFAULTS)
    said = model.predict(replace(cluster_page.SMALL, n_shards=8), model.sizes)
    assert f"| 8 | {cluster_page.text_of(said.seconds, 'seconds')} |" in text


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [(1.5e-10, "seconds", "0.15 ns"), (2.5e-5, "seconds", "25 µs"), (7200, "seconds", "2 h"), (1e9, "bytes", "1 GB")],
)
def test_numbers_have_units(value, kind, text):
    assert cluster_page.text_of(value, kind) == text


def test_table_and_json(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert run(tmp_path, "--nodes", "1", "2", "--batch-rows", "50", "--json", str(out)) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["nodes", "1", "2", "the"]
    written = json.loads(out.read_text())
    assert [each["nodes"] for each in written["predictions"]] == [1, 2]
    assert written["cluster"]["batch_rows"] == 50
    assert written["sizes"] == MEASURED["sizes"]


def test_presets_and_sizes(tmp_path):
    out = tmp_path / "out.json"
    words = ("--preset", "3m", "--rows", "2e8", "--weights-a-label", "100", "--json", str(out))
    assert run(tmp_path, *words) == 0
    sizes = json.loads(out.read_text())["sizes"]
    assert (sizes["n_labels"], sizes["n_rows"], sizes["pairs_a_row"]) == (3e6, 2e8, 4.0)
    assert sizes["weights_a_label"] == pytest.approx(100)
    assert sizes["sparse_weights_a_label"] < 100


@pytest.mark.parametrize(
    ("text", "bits"), [("10Gbit", 1e10), ("10 Gbit/s", 1e10), ("1.5Mbit", 1.5e6), ("50GB", 4e11), ("2MB/s", 1.6e7)]
)
def test_units_of_bandwidth(text, bits):
    assert simulate_cluster.parse_quantity("--bandwidth", text, simulate_cluster.BITS, "") == pytest.approx(bits)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bandwidth", "10Gb"], "--bandwidth must be like 10Gbit"),  # bits or bytes?
        (["--bandwidth", "0Gbit"], "but is '0Gbit'"),
        (["--latency", "5"], "--latency must be like 100us"),
        (["--nodes", "2", "0"], "--nodes must be a number of 1 or more, but is '0'"),
        (["--nodes", "100"], "--nodes 100: a shard has 64 labels or more"),
        (["--rows", "many"], "--rows must be a number"),
        (["--labels", "nan"], "--labels must be a number"),
        (["--preset", "4m"], "'4m'"),
        (["--constants", "nowhere.json"], "make it with tools/bench_cluster.py"),
    ],
)
def test_bad_options_are_one_line(tmp_path, capsys, words, said):
    assert run(tmp_path, *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"constants": {}, "sizes": {"rows": 3}}'])
def test_a_file_that_is_no_constants_is_one_line(tmp_path, capsys, text):
    (tmp_path / "bad.json").write_text(text)
    assert simulate_cluster.main(["--constants", str(tmp_path / "bad.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.fixture(scope="module")
def constants():
    pytest.importorskip("ray", reason="ray is not installed")
    import cluster_constants

    return cluster_constants


def test_costs_are_found_again(constants):
    counts = [(1, 100, 7), (1, 50, 30), (1, 25, 80), (1, 10, 3)]
    seconds = [2e-6 + 3e-9 * a + 5e-8 * b for _, a, b in counts]
    assert constants.fit_costs(counts, seconds) == pytest.approx([2e-6, 3e-9, 5e-8])
    assert constants.fit_costs([(1, 1), (1, 2)], [3.0, 1.0])[1] == 0  # no cost below 0


def test_shards_in_one_process_are_those_of_a_cluster(constants, monkeypatch):
    """Their counts add up to the whole; merged, they choose the recorded steps; what is not so, is said."""
    from xmlpreck import config
    from xmlpreck.cluster import shard

    monkeypatch.setattr(shard, "this_node", lambda: "here")
    monkeypatch.setattr(constants, "TRIES", 1)
    settings = config.load(None, ["train.epochs=2", "train.batch_rows=64"])
    calibration = constants.Calibration(make_dataset(300, 2000, 256, seed=3), settings)
    ranges = [range(*edges) for edges in pairwise(calibration.edges(3))]
    whole = calibration.measure(range(256), calibration.is_dense)
    shards = [calibration.measure(labels, calibration.is_dense) for labels in ranges]
    for name in ("dense_cells", "sparse_weights", "pairs", "dense_steps", "sparse_steps"):
        assert sum(getattr(each, name) for each in shards) == pytest.approx(getattr(whole, name))
    assert whole.sparse_weights == pytest.approx(calibration.sparse_of.sum())
    assert calibration.merge_seconds(shards, ranges) > 0
    with pytest.raises(SystemExit, match="2 label shards choose other steps than one"):
        calibration.merge_seconds(shards[:2], ranges)
    received, sent = zip(
        calibration.bytes_a_row([whole], [range(256)]), calibration.bytes_a_row(shards, ranges), strict=True
    )
    # A row's 5 best others and two counts from every shard, and an offset to it.
    assert received[1] - received[0] > 2 * (5 * 8 + 8 + 8)
    assert sent[1] - sent[0] > 2 * 8
    names = ("dense_cell", "sparse_weight", "dense_step", "sparse_step")
    imbalance = calibration.imbalance({f"{name}_seconds": 1.0 for name in names})
    assert list(imbalance) == ["1", "2", "4"]  # of 4 blocks of labels
    assert imbalance["1"] == 1
    assert min(imbalance.values()) >= 1
    memory = constants.memory_constants(calibration.whole)
    assert (memory["sparse_weight_bytes"], memory["dense_cell_bytes"]) == (12, 10.125)
