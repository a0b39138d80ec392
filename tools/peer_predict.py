"""A peer's prediction, timed in the peer's own environment; called by bench_predict.py.

    PYTHON tools/peer_predict.py pecos|omikuji FOLDER REPEAT

FOLDER holds X_train.npz, Y_train.npz, X_test.npz, Y_test.npz (scipy CSR, rows of unit length) and train.txt, the same
as text. Models are trained with the tool's recommended settings, kept in FOLDER, and loaded for prediction only.
Prints one JSON object.
"""

import json
import os
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy.sparse as sp

K, THREADS, SINGLE_ROWS = 5, 2, 2000


def percentiles(seconds):
    return {f"p{share}": 1000 * float(np.percentile(seconds, share)) for share in (50, 95, 99)}


def precision(top, truth):
    """P@1, 3, 5 of (n, 5) labels."""
    hits = np.array([[truth[row, label] for label in labels] for row, labels in enumerate(top)]) > 0
    return {f"P@{k}": 100 * hits[:, :k].mean() for k in (1, 3, 5)}


def best_of(repeat, run):
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - started)
    return min(seconds), result


def pecos(folder, repeat):
    """XR-Linear: PIFA, hierarchical 2-means, teacher-forced negatives, beam 10; the model in its realtime form."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.base import HierarchicalKMeans
    from pecos.xmc.xlinear.model import XLinearModel

    rows = sp.csr_matrix(sp.load_npz(folder + "/X_test.npz"), dtype=np.float32)
    truth = sp.csr_matrix(sp.load_npz(folder + "/Y_test.npz"))
    place, started = folder + "/pecos-model", time.perf_counter()
    if not os.path.isdir(place):
        train = sp.csr_matrix(sp.load_npz(folder + "/X_train.npz"), dtype=np.float32)
        labels = sp.csc_matrix(sp.load_npz(folder + "/Y_train.npz"), dtype=np.float32)
        features = LabelEmbeddingFactory.create(labels, train, method="pifa", threads=THREADS)
        settings = HierarchicalKMeans.TrainParams(
            nr_splits=16, max_leaf_size=100, spherical=True, seed=0, kmeans_max_iter=20, threads=THREADS
        )
        chain = Indexer.gen(features, train_params=settings)
        params = XLinearModel.TrainParams.from_dict(
            {"neg_mining_chain": "tfn", "threshold": 0.1, "bias": 1.0, "threads": THREADS}, recursive=True
        )
        pred = XLinearModel.PredParams.from_dict(
            {"only_topk": 20, "beam_size": 10, "post_processor": "l3-hinge"}, recursive=True
        )
        XLinearModel.train(train, labels, C=chain, train_params=params, pred_params=pred, threads=THREADS).save(place)
        # A process that has trained holds more than one that predicts: predict in a new one.
        os.execv(sys.executable, [sys.executable, *sys.argv])
    trained = time.perf_counter() - started
    model = XLinearModel.load(place, is_predict_only=True)
    model.predict(rows[:100], only_topk=K, beam_size=10, threads=THREADS)
    seconds, found = best_of(repeat, lambda: model.predict(rows, only_topk=K, beam_size=10, threads=THREADS))
    singles = []
    for i in range(min(SINGLE_ROWS, rows.shape[0])):
        row = rows[i]
        begun = time.perf_counter()
        model.predict(row, only_topk=K, beam_size=10, threads=1)
        singles.append(time.perf_counter() - begun)
    top = np.full((rows.shape[0], K), 0)
    for i in range(rows.shape[0]):
        start, end = found.indptr[i], found.indptr[i + 1]
        mine = found.indices[start:end][np.argsort(-found.data[start:end], kind="stable")]
        top[i, : len(mine)] = mine
    return {"seconds": seconds, "load_s": trained, "single_ms": percentiles(singles), **precision(top, truth)}


def omikuji(folder, repeat):
    """Parabel preset, 3 trees, beam 10, one row a call of its C interface, rows shared among threads."""
    import omikuji as package
    from omikuji import Model, ffi, lib

    rows = sp.csr_matrix(sp.load_npz(folder + "/X_test.npz"), dtype=np.float32)
    truth = sp.csr_matrix(sp.load_npz(folder + "/Y_test.npz"))
    place = folder + "/omikuji-model"
    if not os.path.isdir(place):
        pool = package._ThreadPoolHandle(THREADS)
        text = ffi.new("char[]", (folder + "/train.txt").encode())
        data = ffi.gc(lib.load_omikuji_data_set(text, pool.ptr), lib.free_omikuji_data_set)
        Model(lib.train_omikuji_model(data, Model.default_hyper_param(), pool.ptr)).save(place)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    model = Model.load(place)
    model.densify_weights(0.1, THREADS)
    n = rows.shape[0]
    scores, top = np.zeros((n, K), np.float32), np.zeros((n, K), np.uint32)
    ids, values, offsets = rows.indices.astype(np.uint32), rows.data, rows.indptr

    def one(i, pool):
        start, end = offsets[i], offsets[i + 1]
        row_ids, row_values = (
            ffi.from_buffer(kind, a[start:end]) for kind, a in (("uint32_t[]", ids), ("float[]", values))
        )
        out = ffi.from_buffer("uint32_t[]", top[i]), ffi.from_buffer("float[]", scores[i])
        lib.omikuji_predict(model._model_ptr, 10, int(end - start), row_ids, row_values, K, *out, pool.ptr)

    def part(mine):
        pool = package._ThreadPoolHandle(1, initialize=True)
        for i in mine:
            one(i, pool)

    def whole():
        with ThreadPoolExecutor(THREADS) as team:
            list(team.map(part, np.array_split(np.arange(n), THREADS)))

    seconds, _ = best_of(repeat, whole)
    pool, singles = package._ThreadPoolHandle(1, initialize=True), []
    for i in range(min(SINGLE_ROWS, n)):
        begun = time.perf_counter()
        one(i, pool)
        singles.append(time.perf_counter() - begun)
    return {"seconds": seconds, "single_ms": percentiles(singles), **precision(top, truth)}


if __name__ == "__main__":
    result = {"pecos": pecos, "omikuji": omikuji}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))
