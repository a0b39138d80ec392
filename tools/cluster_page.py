"""The numbers of docs/cluster.md's section "Sizing", from docs/bench_cluster.json and the model of simulate_cluster.py.

python tools/cluster_page.py [--page docs/cluster.md]
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from marked_block import replace_block
from simulate_cluster import (
    BITS,
    CELL_BYTES,
    DEFAULTS,
    PRESETS,
    VALUE_BYTES,
    WEIGHT_BYTES,
    Cluster,
    Model,
    Sizes,
    read_constants,
    zipf_sizes,
)

BEGIN, END = "<!-- sizing: made by tools/cluster_page.py -->", "<!-- end of sizing -->"
NODES = (1, 2, 4, 8, 16, 32, 64)
SMALL = Cluster(1, 2, 10 * BITS["Gbit"], 100e-6, 50 * BITS["GB"], 512)
LARGE = replace(SMALL, cores=16, memory_bandwidth=100 * BITS["GB"], batch_rows=4096)
# What was counted, docs/large.md: weights a label, dense features, dense rows and sparse weights that a row adds.
COUNTED = {
    "npm-deps": ((193_154, 87_408, 73_278, 16.0, 4.03), (84, 42, 2.9, 11_400)),
    "wordnet-rel": ((99_135, 49_809, 60_258, 11.9, 2.83), (37, 33, 3.4, 4_400)),
    "a670k": ((490_449, 135_909, 670_091, 75.0, 5.5), (230, 142, 9.2, 203_000)),
}
PAGE = """### Measured

{data}, {sizes.n_rows:,} rows, {sizes.n_labels:,} labels, batches of {measured[batch_rows]} rows, the last of
{measured[epochs]} passes; {machine[cpu]}, {machine[cores]} cores, load {machine[load]:.1f} at the start, commit
{machine[commit]}. The driver and all label shards share these cores.

{runs}

{constants}

Slowest shard against the mean (label shards): {imbalance}.

### {data} on more nodes

Nodes of 2 cores, 50 GB/s of memory, 10 Gbit/s, 100 µs: extrapolated. Batches of 512 rows:

{small}

Batches of 4,096 rows (which give another model):

{small_4096}

### 3 million labels, 100 million rows

All of this is extrapolated. A row has 75 of 1 million features, and 5.5 labels. How many weights that makes is worked
out as if frequencies fell like 1/rank and features met labels by chance. Where it can be counted, that gives

{support}

On {n} nodes of 16 cores, 100 GB/s of memory and 10 Gbit/s, with batches of 4,096 rows:

{steps}

{large}"""
STEPS = """\
1. **Support**: {large.weights_a_label:,.0f} weights a label, {n_weights:,.0f} million in all;
   {large.dense_features:,.0f} features have dense rows. A row adds {large.dense_a_row:.0f} dense rows and
   {large.sparse_a_row:,.0f} sparse weights.
2. **Bytes a label**: {of[sparse_weight_bytes]:.0f} for each of {large.sparse_weights_a_label:,.0f} sparse weights,
   {of[dense_cell_bytes]:.3f} for each of {large.dense_features:,.0f} dense cells: {label_bytes}, and {all_bytes} for
   all labels. The largest shard, with buffers and copies, peaks at {node_bytes}; Python, libraries and blocks of rows
   come on top.
3. **Rows a second and core**: a row takes {whole_seconds} of one core with all labels ({whole_rows:,.3g} rows/s), and
   {shard_seconds} on the slowest shard ({shard_rows:,.0f} rows/s). It reads {touched} of weights in all: the memory
   of {n} nodes allows {memory_rows:,.0f} rows/s.
4. **Network a row**, at the driver: {received} come in, {sent} go out. A pass moves {moved}: {wire_seconds} at
   10 Gbit/s.
5. **Reading**: every node reads all rows, {read} a pass before compression; {n} nodes read {all_read} from the store.
6. **Checkpoints**: {saved} each, {node_saved} a node. The log of steps is full, and one is written, {logged:,.0f} times
   a pass; their time is not in the table.
7. **The model** is put together by the driver, with 8 B for each weight that is not 0: at most {model_bytes} of its
   memory and of its disk.
8. **A pass** takes {pass_seconds}."""
MEANINGS = {
    "score_row_seconds": "scoring, each row and shard",
    "dense_cell_seconds": "scoring, each cell of a dense row (of n labels: n cells)",
    "sparse_weight_seconds": "scoring, each weight of a sparse row",
    "apply_row_seconds": "steps, each row and shard",
    "dense_step_seconds": "steps, each weight of a dense row that changes",
    "sparse_step_seconds": "steps, each weight of a sparse row that changes",
    "thread_efficiency": "speed of all cores together against their number times that of one",
    "read_value_seconds": "reading, each value of a row, on each shard, where rows are more than one block",
    "sparse_weight_bytes": "memory, each weight of a sparse row (label, value, average)",
    "dense_cell_bytes": "memory, each cell of a dense row (value, average, bit of the mask)",
    "feature_bytes": "memory, each feature and shard",
    "label_thread_bytes": "memory, each label and thread",
    "received_row_bytes": "network, to the driver, each row",
    "received_shard_bytes": "network, to the driver, each row and shard",
    "sent_row_bytes": "network, from the driver, each row",
    "sent_shard_bytes": "network, from the driver, each row and shard",
    "merge_row_seconds": "driver, each row",
    "merge_shard_seconds": "driver, each row and shard",
    "send_seconds": "driver, each call that it sends (two a batch and shard)",
    "take_seconds": "driver, each answer that it takes",
    "round_trip_seconds": "Ray, a call and its answer on one machine",
}
UNITS = {
    "seconds": ((1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (3600.0, "h")),
    "bytes": ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")),
}


def text_of(value: float, kind: str) -> str:
    """With the largest unit that leaves 1 or more."""
    size, unit = max((u for u in UNITS[kind] if u[0] <= value), default=UNITS[kind][0])
    return f"{value / size:.3g} {unit}"


def count_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def constants_table(model: Model) -> str:
    rows = []
    for name, meaning in MEANINGS.items():
        kind, value = name.rsplit("_", 1)[1], model.of[name]
        rows.append((meaning, text_of(value, kind) if kind in UNITS else f"{value:.2f}", f"`{name}`"))
    return table(("constant", "measured", "name"), rows)


def runs_table(model: Model) -> str:
    said = {str(each["label_shards"]): each for each in model.validate()}
    rows = []
    for name, run in model.measured["runs"].items():
        cells = [name, f"{run['seconds']:.2f}", f"{run['ratio']:.2f}", f"{run['rows_per_second_and_core']:,.0f}"]
        if name in said:
            batch = run["batch"]
            cells += [
                f"{run['communication']:.1%}",
                f"{1e3 * batch['answer_seconds']:.1f}, {1e3 * batch['merge_seconds']:.2f}",
            ]
            cells += [f"{said[name]['predicted']:.2f}", f"{said[name]['error']:+.0%}"]
        rows.append(cells + [""] * (8 - len(cells)))
    header = (
        "label shards",
        "s a pass",
        "of one process",
        "rows/s a core",
        "communication",
        "ms a batch: to the last answer, merge",
    )
    return table((*header, "predicted s", "error"), rows)


def scaling_table(model: Model, cluster: Cluster, sizes: Sizes) -> str:
    predictions = [model.predict(replace(cluster, n_shards=n), sizes) for n in NODES]
    rows = [
        (said.nodes, text_of(said.seconds, "seconds"), f"{predictions[0].seconds / said.seconds:.1f}",
         f"{predictions[0].seconds / said.seconds / said.nodes:.0%}", f"{said.communication:.0%}",
         f"{said.driver:.0%}, {said.network:.0%}", text_of(said.node_bytes, "bytes"), said.limit)
        for said in predictions
    ]  # fmt: skip
    return table(
        ("nodes", "a pass", "speed-up", "efficiency", "communication", "driver, its network", "memory a node", "limit"),
        rows,
    )


def support_table(model: Model) -> str:
    sizes = model.sizes
    own = (sizes.n_rows, sizes.n_features, sizes.n_labels, sizes.nnz, sizes.labels_a_row)
    counted = (sizes.weights_a_label, sizes.dense_features, sizes.dense_a_row, sizes.sparse_a_row)
    rows = []
    for name, (given, found) in {model.measured["data"]: (own, counted), **COUNTED}.items():
        said = zipf_sizes(*given)
        del said["sparse_weights_a_label"]
        rows.append((name, *(f"{count_text(a)} / {count_text(b)}" for a, b in zip(said.values(), found, strict=True))))
    header = ("expected / counted", "weights a label", "dense features", "dense rows a row", "sparse weights a row")
    return table(header, rows)


def large_steps(model: Model, sizes: Sizes, n: int) -> str:
    """3 million labels and 100 million rows on n nodes, step by step."""
    of, cluster = model.of, replace(LARGE, n_shards=n)
    n_weights, cells = sizes.weights_a_label * sizes.n_labels, sizes.dense_features * sizes.n_labels
    a_label = of["sparse_weight_bytes"] * sizes.sparse_weights_a_label + of["dense_cell_bytes"] * sizes.dense_features
    touched = CELL_BYTES * sizes.dense_a_row * sizes.n_labels + WEIGHT_BYTES * sizes.sparse_a_row
    received, sent = (of[f"{way}_row_bytes"] + n * of[f"{way}_shard_bytes"] for way in ("received", "sent"))
    moved, read = sizes.n_rows * (received + sent), VALUE_BYTES * sizes.nnz * sizes.n_rows
    saved = 8 * (sizes.sparse_weights_a_label * sizes.n_labels + cells)
    whole, mine = (sum(model.core_seconds(n_shards, sizes)) for n_shards in (1, n))
    said = model.predict(cluster, sizes)
    n_bytes = {
        "label_bytes": a_label, "all_bytes": a_label * sizes.n_labels, "node_bytes": said.node_bytes,
        "touched": touched, "received": received, "sent": sent, "moved": moved, "read": read, "all_read": n * read,
        "saved": saved, "node_saved": saved / n, "model_bytes": 8 * n_weights,
    }  # fmt: skip
    seconds = {
        "whole_seconds": whole, "shard_seconds": mine, "wire_seconds": 8 * moved / cluster.bandwidth,
        "pass_seconds": said.seconds,
    }  # fmt: skip
    return STEPS.format(
        of=of, large=sizes, n=n, n_weights=n_weights / 1e6, whole_rows=1 / whole, shard_rows=1 / mine,
        memory_rows=n * cluster.memory_bandwidth / 8 / touched,
        logged=sizes.n_rows * sent / model.measured["log_bytes"],
        **{name: text_of(value, "bytes") for name, value in n_bytes.items()},
        **{name: text_of(value, "seconds") for name, value in seconds.items()},
    )  # fmt: skip


def block(model: Model) -> str:
    measured, n = model.measured, NODES[-1]
    large = replace(model.sizes, **PRESETS["3m"], **zipf_sizes(*PRESETS["3m"].values()))
    return PAGE.format(
        data=measured["data"],
        sizes=model.sizes,
        measured=measured,
        machine=measured["machine"],
        runs=runs_table(model),
        constants=constants_table(model),
        imbalance=", ".join(f"{value:.2f} ({shards})" for shards, value in measured["imbalance"].items()),
        small=scaling_table(model, SMALL, model.sizes),
        small_4096=scaling_table(model, replace(SMALL, batch_rows=4096), model.sizes),
        support=support_table(model),
        n=n,
        steps=large_steps(model, large, n),
        large=scaling_table(model, LARGE, large),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--constants", type=Path, default=DEFAULTS)
    parser.add_argument("--page", type=Path, default=DEFAULTS.parent / "cluster.md")
    args = parser.parse_args()
    replace_block(args.page, BEGIN, END, block(read_constants(args.constants)))


if __name__ == "__main__":
    main()
