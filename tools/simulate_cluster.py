"""How training on a Ray cluster scales, from constants that tools/bench_cluster.py has measured: a model of one batch.

    python tools/simulate_cluster.py --validate                    # against the measured runs
    python tools/simulate_cluster.py --nodes 1 8 64 --cores 16 --preset 3m

A batch of B rows on n nodes, one label shard each. The driver sends P calls to each shard; a shard applies the steps of
the batch before, and scores P parts one after the other; the driver takes the n answers to a part and merges them while
the shards score the next. With c(n) the slowest shard's seconds of one core for a row,

    c(n) = row + share * (dense cells * d + sparse weights * s + steps * t),    share = imbalance(n) / n
    wall seconds of B rows = B max(c(n) / (cores * efficiency), share * bytes touched / memory bandwidth)

An answer is on its way for latency + n * bytes / bandwidth (all pass the driver's network card). Rows are read by every
shard in the background, and a pass cannot be faster than that.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from xmlpreck.cli.options import Parser
from xmlpreck.config import InputError
from xmlpreck.data.formats import atomic_path
from xmlpreck.kernels.linear import BLOCK, DENSE_SHARE

BITS = {"Mbit": 1e6, "Gbit": 1e9, "MB": 8e6, "GB": 8e9}  # Gb may be either, and is refused
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
BLOCK_ROWS = 65_536  # with more rows than that a pass reads them anew
VALUE_BYTES = 8  # of a row: an id and a float32
CELL_BYTES, WEIGHT_BYTES = 4, 8  # that scoring reads: a cell of a dense row, a weight and its label of a sparse row
GRID = 400  # ranks for which the support is worked out

DEFAULTS = Path(__file__).resolve().parent.parent / "docs" / "bench_cluster.json"


@dataclass(frozen=True)
class Sizes:
    """Data: its rows, and the support of its labels."""

    n_rows: float
    n_features: float
    n_labels: float
    nnz: float  # features a row
    labels_a_row: float
    weights_a_label: float
    sparse_weights_a_label: float  # of these, in sparse rows
    dense_features: float
    dense_a_row: float  # features of a row that are dense
    sparse_a_row: float  # weights that a row touches in sparse rows
    pairs_a_row: float  # labels that a row changes


# Rows like those of the made-up a670k of docs/large.md, more of them.
PRESETS = {"3m": {"n_rows": 1e8, "n_features": 1e6, "n_labels": 3e6, "nnz": 75.0, "labels_a_row": 5.5}}


@dataclass(frozen=True)
class Cluster:
    """n_shards shards, one on each node; or all of them and the driver on one, if `together`."""

    n_shards: int
    cores: int
    bandwidth: float  # bits a second, of every node's network card
    latency: float
    memory_bandwidth: float  # bits a second
    batch_rows: int
    together: bool = False


@dataclass(frozen=True)
class Prediction:
    """Seconds of a pass, and where they go."""

    nodes: int
    seconds: float
    communication: float  # share of the time in which the slowest shard does not compute
    driver: float  # share in which the driver works
    network: float  # share in which its network card does
    node_bytes: float
    limit: str


def zipf_sizes(n_rows: float, n_features: float, n_labels: float, nnz: float, labels_a_row: float) -> dict[str, float]:
    """The support, if the r-th feature and label have frequencies ~ 1/r and meet by chance.

    A label of c rows uses a feature of chance p with 1 - (1 - p)^c. docs/cluster.md says how far off that is.
    """
    features, n_like_it = rank_grid(n_features)
    labels, weight_of = rank_grid(n_labels)
    low, high = 0.0, n_features * nnz
    for _ in range(200):  # bisection: chances are at most 1, and come to nnz
        middle = (low + high) / 2
        low, high = (middle, high) if (np.minimum(1, middle / features) * n_like_it).sum() < nnz else (low, middle)
    chances = np.minimum(1 - 1e-12, high / features)
    counts = np.minimum(n_rows, n_rows * labels_a_row / labels / (weight_of / labels).sum())
    used = -np.expm1(np.outer(np.log1p(-chances), counts)) @ weight_of / n_labels  # share of the labels
    is_dense = used * DENSE_SHARE > 1
    return {
        "weights_a_label": float((used * n_like_it).sum()),
        "sparse_weights_a_label": float((used * n_like_it)[~is_dense].sum()),
        "dense_features": float(n_like_it[is_dense].sum()),
        "dense_a_row": float((chances * n_like_it)[is_dense].sum()),
        "sparse_a_row": float((chances * n_like_it * used)[~is_dense].sum() * n_labels),
    }


def rank_grid(n: float) -> tuple[np.ndarray, np.ndarray]:
    """Ranks 1 to n in a few groups: one that stands for each group, and how many it has."""
    edges = np.unique(np.geomspace(1, n + 1, GRID).round())
    return np.sqrt(edges[:-1] * (edges[1:] - 1)), np.diff(edges)


class Model:
    """Predictions from what was measured."""

    def __init__(self, measured: dict[str, Any]) -> None:
        self.measured, self.of = measured, measured["constants"]
        self.sizes = Sizes(**measured["sizes"])

    def imbalance(self, n_shards: int, sizes: Sizes) -> float:
        """The slowest shard against the mean: as measured with as many labels a shard, and no less than with 2."""
        known = sorted((int(n), value) for n, value in self.measured["imbalance"].items())
        alike = max(n_shards * self.sizes.n_labels / sizes.n_labels, min(n_shards, 2))
        return float(np.interp(np.log(alike), [np.log(n) for n, _ in known], [value for _, value in known]))

    def core_seconds(self, n_shards: int, sizes: Sizes) -> tuple[float, float]:
        """A row on the slowest shard: seconds of one core to score it, and to apply its steps."""
        of, share = self.of, self.imbalance(n_shards, sizes) / n_shards
        cells = sizes.dense_a_row * sizes.n_labels
        score = cells * of["dense_cell_seconds"] + sizes.sparse_a_row * of["sparse_weight_seconds"]
        step = sizes.dense_a_row * of["dense_step_seconds"]
        step += (sizes.nnz - sizes.dense_a_row) * of["sparse_step_seconds"]
        return of["score_row_seconds"] + share * score, of["apply_row_seconds"] + share * sizes.pairs_a_row * step

    def wall_seconds(self, cluster: Cluster, sizes: Sizes) -> tuple[float, float, bool]:
        """What core_seconds become with all threads of a node, and whether its memory is what they wait for."""
        n_here = cluster.n_shards if cluster.together else 1
        threads = max(1, cluster.cores // n_here)
        efficiency = self.of["thread_efficiency"] if min(n_here * threads, cluster.cores) > 1 else 1.0
        speed = threads * efficiency / max(1.0, n_here * threads / cluster.cores)
        score, apply = (seconds / speed for seconds in self.core_seconds(cluster.n_shards, sizes))
        touched = CELL_BYTES * sizes.dense_a_row * sizes.n_labels + WEIGHT_BYTES * sizes.sparse_a_row
        share = self.imbalance(cluster.n_shards, sizes) / cluster.n_shards
        memory = share * n_here * 8 * touched / cluster.memory_bandwidth
        return max(score, memory), apply, memory > score

    def predict(self, cluster: Cluster, sizes: Sizes) -> Prediction:
        of, n, parts, rows = self.of, cluster.n_shards, self.measured["parts_a_batch"], cluster.batch_rows
        score, apply, waits_for_memory = self.wall_seconds(cluster, sizes)
        send = n * parts * of["send_seconds"]
        take = n * of["take_seconds"] + rows / parts * (of["merge_row_seconds"] + n * of["merge_shard_seconds"])
        way = (of["round_trip_seconds"] - of["send_seconds"]) / 2  # of a message, through the processes of Ray
        if cluster.together:  # these, and what the driver does while shards score, take cores from them
            way *= max(1.0, n / cluster.cores)
            apply += (parts - 1) * take / cluster.cores / rows
        way += cluster.latency
        sent, received = (
            8 * rows * (of[f"{what}_row_bytes"] + n * of[f"{what}_shard_bytes"]) / cluster.bandwidth
            for what in ("sent", "received")
        )
        now, free = send + sent + way + rows * apply, 0.0
        for _ in range(parts):
            now += rows * score / parts
            free = max(free, now + way + received / parts) + take
        read = rows * sizes.nnz * max(of["read_value_seconds"], 8 * VALUE_BYTES / cluster.bandwidth)
        works = {
            "driver": send + parts * take,
            "network": sent + received,
            "reading": read if sizes.n_rows > BLOCK_ROWS else 0.0,
        }
        batch, compute = max(free, works["reading"]), rows * (score + apply)
        most = max(works, key=works.__getitem__)
        return Prediction(
            nodes=n,
            seconds=sizes.n_rows / rows * batch,
            communication=1 - compute / batch,
            driver=works["driver"] / batch,
            network=works["network"] / batch,
            node_bytes=self.node_bytes(cluster, sizes),
            limit=most if works[most] > compute else "memory" if waits_for_memory else "cores",
        )

    def node_bytes(self, cluster: Cluster, sizes: Sizes) -> float:
        """Of the largest shard at its peak (see train.plan): weights, averages, and the copy that is written out."""
        of, share = self.of, self.imbalance(cluster.n_shards, sizes) / cluster.n_shards
        sparse, cells = sizes.sparse_weights_a_label * sizes.n_labels, sizes.dense_features * sizes.n_labels
        copies = max(8 * sizes.weights_a_label * sizes.n_labels - 4 * (sparse + cells), 0)
        weights = sparse * of["sparse_weight_bytes"] + cells * of["dense_cell_bytes"] + copies
        buffers = cluster.cores * of["label_thread_bytes"] * sizes.n_labels
        return share * (weights + buffers) + of["feature_bytes"] * sizes.n_features

    def validate(self) -> list[dict[str, float]]:
        """Every measured run on the cluster against its prediction: all shards share this machine's cores."""
        found = []
        for name, run in self.measured["runs"].items():
            if name.isdigit():
                cluster = Cluster(
                    int(name), self.measured["cores"], np.inf, 0.0, np.inf, self.measured["batch_rows"], together=True
                )
                said = self.predict(cluster, self.sizes)
                error = said.seconds / run["seconds"] - 1
                found.append(
                    {"label_shards": int(name), "measured": run["seconds"], "predicted": said.seconds, "error": error}
                )
        return found


def parse_quantity(name: str, text: str, units: dict[str, float], example: str) -> float:
    """A positive number with its unit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)(?:/s)?", text.strip())
    if found is None or found[2] not in units or float(found[1]) <= 0:
        raise InputError(f"{name} must be like {example}, with a unit of {', '.join(units)}, but is {text!r}")
    return float(found[1]) * units[found[2]]


def parse_count(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not 1 <= value < 1e15:
        raise InputError(f"{name} must be a number of 1 or more, but is {text!r}")
    return value


def read_constants(path: Path) -> Model:
    try:
        return Model(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): make it with tools/bench_cluster.py") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is not of tools/bench_cluster.py ({error!r:.80}): make it anew") from None


SIZE_OPTIONS = {
    "--rows": "n_rows",
    "--labels": "n_labels",
    "--features": "n_features",
    "--nnz": "nnz",
    "--labels-a-row": "labels_a_row",
}


def read_sizes(model: Model, options: dict[str, Any]) -> Sizes:
    """Of the measured data; or of a preset and options, with the support that zipf_sizes expects."""
    given: dict[str, float] = dict(PRESETS[options["preset"]]) if options["preset"] else {}
    for flag, field in SIZE_OPTIONS.items():
        if (text := options[flag[2:].replace("-", "_")]) is not None:
            given[field] = parse_count(flag, text)
    sizes = model.sizes
    if given:
        sizes = replace(sizes, **given)
        sizes = replace(sizes, **zipf_sizes(*(asdict(sizes)[field] for field in PRESETS["3m"])))
    if options["weights_a_label"] is not None:
        factor = parse_count("--weights-a-label", options["weights_a_label"]) / sizes.weights_a_label
        scaled = ("weights_a_label", "sparse_weights_a_label", "sparse_a_row")
        sizes = replace(sizes, **{field: factor * getattr(sizes, field) for field in scaled})
    return sizes


def build_parser() -> Parser:
    parser = Parser(prog="simulate_cluster.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--constants", type=Path, default=DEFAULTS, help="JSON file of tools/bench_cluster.py")
    parser.add_argument("--validate", action="store_true", help="only compare with the measured runs")
    parser.add_argument("--nodes", nargs="+", default=["1", "2", "4", "8", "16", "32", "64"])
    parser.add_argument("--cores", default="2", help="of a node")
    parser.add_argument("--bandwidth", default="10Gbit", help="of a node's network card")
    parser.add_argument("--latency", default="100us", help="one way")
    parser.add_argument("--memory-bandwidth", default="50GB", help="of a node: its cores share it")
    parser.add_argument("--batch-rows", help="(default: as measured)")
    parser.add_argument("--preset", choices=PRESETS, help="sizes of data: 3m = 3 million labels, 100 million rows")
    for flag in (*SIZE_OPTIONS, "--weights-a-label"):
        parser.add_argument(flag, help="(default: of the measured data, or of the preset)")
    parser.add_argument("--json", type=Path, help="file to write")
    return parser


def show_validation(found: Sequence[dict[str, float]], cores: int) -> None:
    print(f"all label shards and the driver share {cores} cores")
    print("label shards  measured s  predicted s   error")
    for run in found:
        print("{label_shards:12d}  {measured:10.3f}  {predicted:11.3f}  {error:+6.1%}".format(**run))


def show(predictions: Sequence[Prediction]) -> None:
    first = predictions[0]
    print("nodes    s a pass  speed-up  efficiency  communication  driver  network  GB a node  limit")
    for said in predictions:
        speed_up = first.seconds / said.seconds
        print(
            f"{said.nodes:5d}  {said.seconds:10.4g}  {speed_up:8.2f}  {speed_up * first.nodes / said.nodes:10.0%}  "
            f"{said.communication:13.1%}  {said.driver:6.1%}  {said.network:7.1%}  {said.node_bytes / 1e9:9.2f}  "
            f"{said.limit}"
        )
    slow = [said.nodes for said in predictions if said.limit in ("driver", "network")]
    print(f"the driver is the limit from {slow[0]} nodes on" if slow else "the driver is nowhere the limit")


def run(words: Sequence[str] | None) -> None:
    args = build_parser().parse_args(words)
    model = read_constants(args.constants)
    result: dict[str, Any] = {"validation": model.validate()}
    if args.validate:
        show_validation(result["validation"], model.measured["cores"])
    else:
        sizes = read_sizes(model, vars(args))
        batch_rows = parse_count("--batch-rows", args.batch_rows or str(model.measured["batch_rows"]))
        cluster = Cluster(
            1,
            int(parse_count("--cores", args.cores)),
            parse_quantity("--bandwidth", args.bandwidth, BITS, "10Gbit"),
            parse_quantity("--latency", args.latency, SECONDS, "100us"),
            parse_quantity("--memory-bandwidth", args.memory_bandwidth, BITS, "50GB"),
            int(batch_rows),
        )
        nodes = [int(parse_count("--nodes", text)) for text in args.nodes]
        if max(nodes) > -(-sizes.n_labels // BLOCK):
            raise InputError(
                f"--nodes {max(nodes)}: a shard has {BLOCK} labels or more, and there are {sizes.n_labels:g}"
            )
        predictions = [model.predict(replace(cluster, n_shards=n), sizes) for n in nodes]
        show(predictions)
        result |= {"sizes": asdict(sizes), "cluster": asdict(cluster), "predictions": list(map(asdict, predictions))}
    if args.json:
        with atomic_path(args.json) as temporary:
            temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    try:
        run(words)
    except InputError as error:
        print(f"simulate_cluster.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
