"""One system on one data set, in the system's own environment: train and save, or load and predict.

    PYTHON tools/peer_train.py train|predict SYSTEM FOLDER MODEL THREADS

Called by bench_peers.py. FOLDER/rows holds X_train.npz, Y_train.npz, X_test.npz, Y_test.npz (scipy CSR, rows of unit
length), FOLDER/train.txt the training rows as repository text, which is all that omikuji reads. `train` makes the
folder MODEL; `predict` loads it and writes the best labels of the test rows to MODEL.npz (CSR of scores).
Prints one JSON object: `seconds` of the train call alone, or of predicting all rows after loading (the least of five),
and `peak_mb` of the process.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from peer_predict import K, best_of

REPEAT = 5
BATCH_ROWS = 256  # of a dense block of scores
DENSE_BYTES = 4 << 30  # LIBLINEAR's weights are multiplied dense, which is faster, up to this size


def read(folder, name):
    return sp.csr_matrix(sp.load_npz(folder / "rows" / f"{name}.npz"), dtype=np.float32)


def timed(run):
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def as_matrix(labels, scores, chosen, n_labels):
    """CSR of (n_rows, k) labels and scores, where `chosen`."""
    offsets = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))])
    return sp.csr_matrix((scores[chosen], labels[chosen], offsets), (len(labels), n_labels))


def train_omikuji(folder, place, threads, settings):
    from omikuji import Model, _ThreadPoolHandle, ffi, lib

    pool = _ThreadPoolHandle(threads)
    text = ffi.new("char[]", str(folder / "train.txt").encode())
    data = ffi.gc(lib.load_omikuji_data_set(text, pool.ptr), lib.free_omikuji_data_set)
    wanted = Model.default_hyper_param()
    for name, value in settings["train"].items():
        setattr(wanted, name, value)
    seconds, pointer = timed(lambda: lib.train_omikuji_model(data, wanted, pool.ptr))
    Model(pointer).save(str(place))
    return seconds


def load_omikuji(folder, place, threads, settings):
    """One row a call of its C interface, which its own command line stands on, and rows shared among threads."""
    from omikuji import Model, _ThreadPoolHandle, ffi, lib

    model = Model.load(str(place))
    model.densify_weights(settings["densify"], threads)
    n_labels = read(folder, "Y_train").shape[1]

    def predict(rows):
        labels, scores = np.zeros((rows.shape[0], K), np.uint32), np.zeros((rows.shape[0], K), np.float32)
        counts, features = np.zeros(rows.shape[0], np.int64), rows.indices.astype(np.uint32)

        def part(mine):
            pool = _ThreadPoolHandle(1, initialize=True)
            for i in mine:
                start, end = rows.indptr[i : i + 2]
                counts[i] = lib.omikuji_predict(
                    model._model_ptr,
                    settings["beam_size"],
                    int(end - start),
                    ffi.from_buffer("uint32_t[]", features[start:end]),
                    ffi.from_buffer("float[]", rows.data[start:end]),
                    K,
                    ffi.from_buffer("uint32_t[]", labels[i]),
                    ffi.from_buffer("float[]", scores[i]),
                    pool.ptr,
                )

        with ThreadPoolExecutor(threads) as team:
            list(team.map(part, np.array_split(np.arange(rows.shape[0]), threads)))
        return as_matrix(labels, scores, np.arange(K) < counts[:, None], n_labels)

    return predict


def train_pecos(folder, place, threads, settings):
    """XR-Linear on PIFA label features and a tree of hierarchical 2-means; without an `index`, one-vs-rest."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.base import HierarchicalKMeans
    from pecos.xmc.xlinear.model import XLinearModel

    rows, labels = read(folder, "X_train"), read(folder, "Y_train").tocsc()

    def run():
        tree = None
        if settings["index"] is not None:
            features = LabelEmbeddingFactory.create(labels, rows, method="pifa", threads=threads)
            wanted = HierarchicalKMeans.TrainParams(**settings["index"], threads=threads)
            tree = Indexer.gen(features, train_params=wanted)
        train_params = XLinearModel.TrainParams.from_dict({**settings["train"], "threads": threads}, recursive=True)
        pred_params = XLinearModel.PredParams.from_dict(settings["predict"], recursive=True)
        return XLinearModel.train(
            rows, labels, C=tree, train_params=train_params, pred_params=pred_params, threads=threads
        )

    seconds, model = timed(run)
    model.save(str(place))
    return seconds


def load_pecos(folder, place, threads, settings):
    from pecos.xmc.xlinear.model import XLinearModel

    model = XLinearModel.load(str(place), is_predict_only=True)
    return lambda rows: model.predict(rows, **{**settings["predict"], "only_topk": K}, threads=threads)


def train_napkinxc(folder, place, threads, settings):
    from napkinxc.models import PLT

    rows, labels = read(folder, "X_train"), read(folder, "Y_train")
    lists = [part.tolist() for part in np.split(labels.indices, labels.indptr[1:-1])]
    model = PLT(str(place), threads=threads, **settings)
    return timed(lambda: model.fit(rows, lists))[0]  # writes the model while it trains


def load_napkinxc(folder, place, threads, settings):
    from napkinxc.models import PLT

    model = PLT(str(place), threads=threads, **settings)
    model.load()
    n_labels = read(folder, "Y_train").shape[1]

    def predict(rows):
        found = model.predict_proba(rows, top_k=K)
        offsets = np.cumsum([0, *map(len, found)])
        entries = np.array([entry for row in found for entry in row], np.float64).reshape(-1, 2)
        matrix = (entries[:, 1].astype(np.float32), entries[:, 0].astype(np.int32), offsets)
        return sp.csr_matrix(matrix, (len(found), n_labels))

    return predict


def train_liblinear(folder, place, threads, settings):
    """One problem a label. Threads take labels in turn: the solver does not hold Python's lock."""
    from liblinear.liblinearutil import parameter, problem, train

    rows, labels = read(folder, "X_train").astype(np.float64), read(folder, "Y_train").tocsc()
    n_weights = rows.shape[1] + 1
    untrained = sp.csr_matrix(([-1.0], [n_weights - 1], [0, 1]), (1, n_weights))  # of a label without rows

    def solve(whole, label):
        positive = labels.indices[labels.indptr[label] : labels.indptr[label + 1]]
        if not positive.size:
            return untrained
        mine, signs = whole.copy(), np.full(rows.shape[0], -1.0)
        signs[positive] = 1
        mine.y = np.ctypeslib.as_ctypes(signs)
        model = train(mine, parameter(settings["options"]))
        # The class of the first row is the solver's positive one.
        weights = np.ctypeslib.as_array(model.w, (n_weights,)) * model.get_labels()[0]
        return sp.csr_matrix(weights.astype(np.float32))

    def run():
        whole = problem(np.zeros(rows.shape[0]), rows, bias=1)  # as -B says: train() sets it again on every copy
        with ThreadPoolExecutor(threads) as team:
            return sp.vstack(list(team.map(partial(solve, whole), range(labels.shape[1]))), "csr")

    seconds, weights = timed(run)
    place.mkdir()
    sp.save_npz(place / "weights.npz", weights, compressed=False)
    return seconds


def load_liblinear(folder, place, threads, settings):
    stored = sp.load_npz(place / "weights.npz").tocsc()
    bias = stored[:, -1].toarray().ravel()
    weights = sp.csr_matrix(stored[:, :-1].T)
    if 4 * weights.shape[0] * weights.shape[1] <= DENSE_BYTES:
        weights = weights.toarray()
    k = min(K, len(bias))

    def block(rows):
        product = rows @ weights
        scores = (product.toarray() if sp.issparse(product) else product) + bias
        labels = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        return as_matrix(labels, np.take_along_axis(scores, labels, axis=1), labels >= 0, len(bias))

    def predict(rows):
        starts = range(0, rows.shape[0], BATCH_ROWS)
        with ThreadPoolExecutor(threads) as team:
            blocks = list(team.map(lambda start: block(rows[start : start + BATCH_ROWS]), starts))
        return sp.vstack(blocks, "csr")

    return predict


def train_xmlpreck(folder, place, threads, settings):
    """The command line as a user types it; it tells how long it trained, tuning included."""
    from xmlpreck.cli import main

    words = ["--data", str(folder / "rows"), "--out", str(place), "--threads", str(threads), *settings["words"]]
    with redirect_stdout(StringIO()) as said:
        status = main(["train", *words, "--json"])
    if status:
        sys.exit(status)
    return json.loads(said.getvalue())["seconds"]


def load_xmlpreck(folder, place, threads, settings):
    from xmlpreck.model import Model

    scorer = Model.load(place)

    def predict(rows):
        top = scorer.predict_topk(sp.csr_array(rows), min(K, scorer.n_labels), threads)
        return as_matrix(top.labels, top.scores, top.labels >= 0, scorer.n_labels)

    return predict


class System(NamedTuple):
    train: object  # (folder, place, threads) -> seconds
    load: object  # (folder, place, threads) -> function that gives the best K labels of rows as CSR
    settings: dict


def system(train, load, settings):
    return System(partial(train, settings=settings), partial(load, settings=settings), settings)


# What each tool does by default or recommends; `train` of omikuji: what differs from its own defaults (Parabel).
OMIKUJI = {"train": {}, "beam_size": 10, "densify": 0.1}
PECOS = {
    "index": {"nr_splits": 16, "max_leaf_size": 100, "spherical": True, "seed": 0, "kmeans_max_iter": 20},
    "train": {"neg_mining_chain": "tfn", "threshold": 0.1, "bias": 1.0},
    "predict": {"only_topk": 20, "beam_size": 10, "post_processor": "l3-hinge"},
}
BONSAI = {"cluster_balanced": False, "cluster_k": 100, "max_depth": 3}
SYSTEMS = {
    "xmlpreck": system(train_xmlpreck, load_xmlpreck, {"words": []}),
    "xmlpreck-quick": system(train_xmlpreck, load_xmlpreck, {"words": ["--effort", "quick"]}),
    "xmlpreck-best": system(train_xmlpreck, load_xmlpreck, {"words": ["--effort", "best"]}),
    "omikuji": system(train_omikuji, load_omikuji, OMIKUJI),
    "omikuji-10": system(train_omikuji, load_omikuji, {**OMIKUJI, "train": {"n_trees": 10}}),
    "omikuji-bonsai": system(train_omikuji, load_omikuji, {**OMIKUJI, "train": BONSAI}),
    "pecos": system(train_pecos, load_pecos, PECOS),
    "pecos-ova": system(train_pecos, load_pecos, {**PECOS, "index": None}),
    "napkinxc": system(train_napkinxc, load_napkinxc, {"seed": 1}),
    "liblinear": system(train_liblinear, load_liblinear, {"options": "-s 1 -c 1 -B 1 -q"}),
}


def peak_mb():
    # Not ru_maxrss: that of a new process starts with what its parent had.
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def main():
    verb, name, folder, place, threads = sys.argv[1:]
    folder, place, threads = Path(folder), Path(place), int(threads)
    if verb == "train":
        seconds = SYSTEMS[name].train(folder, place, threads)
    else:
        predict, rows = SYSTEMS[name].load(folder, place, threads), read(folder, "X_test")
        seconds, found = best_of(REPEAT, lambda: predict(rows))
        sp.save_npz(place.with_name(f"{place.name}.npz"), sp.csr_matrix(found))
    print(json.dumps({"seconds": seconds, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()
