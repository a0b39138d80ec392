"""Model directories and checkpoints for the fuzzer; in most cases their hashes are true, so that what is behind counts.

A model that is taken must predict, transform texts, give probabilities and say of its run what others print. A
checkpoint that is taken must be gone on from to the end of the run.
"""

import hashlib
import json
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from fuzz_rules import Files, Target, check_csr, files_of, outcome
from scipy.sparse import csr_array

from xmlpreck import config
from xmlpreck.data.formats import Dataset, build_csr
from xmlpreck.data.text import fit_text
from xmlpreck.evaluation import tables
from xmlpreck.kernels.arrays import sparse_weights
from xmlpreck.model import Model, seal
from xmlpreck.model.calibration import Calibration
from xmlpreck.train import Checkpoints, Interrupted, Safety, fit, trainer

MODELS = ("plain", "text", "calibrated")
N_SEEDS = 12
# Offsets of rows that pass a check of differences, which wrap round.
WRAPPING = (5 * 2**32 + 3 * 10**6, 2**63 - 1, -(2**63), -1)


# --- models


def model_files(kind: str, rng: np.random.Generator) -> Files:
    """A model directory with weights at random; most have names."""
    n_labels, bias = int(rng.integers(2, 9)), float(rng.integers(0, 2))
    texts = [" ".join(rng.choice(["alpha", "beta", "gamma", "delta"], 3)) for _ in range(6)]
    hashed = 8 if rng.random() < 0.3 else 0
    vectorizer = fit_text([texts], min_df=1, max_df=1.0, hashed_features=hashed) if kind == "text" else None
    n_features = 6 if vectorizer is None else vectorizer.n_features
    dense = (rng.random((n_features + (bias > 0), n_labels)) < 0.5) * rng.normal(size=(1, n_labels))
    sparse = csr_array(dense.astype(np.float32))
    weights = sparse_weights(sparse.indptr.astype(np.int64), sparse.indices, sparse.data, n_labels)
    calibration = None
    if kind == "calibrated":
        knots = np.stack([np.sort(rng.normal(size=4)), np.sort(rng.uniform(0.1, 0.9, 4))])
        calibration = Calibration(np.asarray(rng.uniform(-1, 1), np.float32), knots, np.zeros(n_labels, np.float32))
    labels = [f"label {i}" for i in range(n_labels)] if rng.random() < 0.7 else None
    features = [f"f{i}" for i in range(n_features)] if vectorizer is None and rng.random() < 0.5 else None
    model = Model(weights, config.RowsConfig(bias=bias), labels, features, run_info(), vectorizer, calibration)
    files = files_of(model.save)
    return files | ({"checked.json": b"{}"} if rng.random() < 0.3 else {})


def run_info() -> dict[str, Any]:
    """What a model says of its run, as train, update and calibrate write it."""
    one = {
        "surrogate": 1.5,
        "mistakes": 1.0,
        "updated": 4,
        "n_rows": 6,
        "seconds": 0.5,
        "gap": 0.5,
        "rows_per_second": 12.0,
    }
    scores = {"P@1": 50.0, "P@3": 30.0}
    trial = {"settings": {"tau": 0.0, "k": 5}, "scores": scores, "value": 40.0, "kept": True}
    tuning = {
        "heldout_rows": 20,
        "budget": 1.5,
        "spent": 1.25,
        "fixed": {"k": 5},
        "rungs": [{"rows": 9, "passes": 2, "trials": [trial, trial | {"kept": False}]}],
        "history": [{"passes": 1, "scores": scores, "value": 40.0}],
        "pruned": [{"prune": 0.02, "value": 39.0}],
        "chosen": {"tau": 0.0, "eta": 0.5},
    }
    return {
        "config": config.RunConfig().to_dict(),
        "data": {
            "n_rows": 6,
            "n_rows_without_labels": 0,
            "sha256": "0" * 64,
            "name": "x",
            "place": "/x",
            "format": None,
        },
        "history": [one | {"number": 1, "heldout": scores}, one | {"number": 2, "heldout": None}],
        "tuning": tuning,
        "pruned_at": 0.02,
        "calibration": {"n_rows": 6, "depth": 10},
        "updates": [{"n_rows": 6, "frozen": False}],
    }


def read_model(folder: Path, rng: Random) -> object:
    def read() -> object:
        seal.HASHED_BYTES = rng.choice((0, 1 << 25))
        model = Model.load(folder, verify=rng.random() < 0.3)
        assert model.n_labels < 10**8, "so many labels are not in these files"
        ids = np.arange(model.n_features, dtype=np.int32)
        rows = build_csr(np.ones(len(ids), np.float32), ids, np.array([0, len(ids), len(ids)]), (2, model.n_features))
        top = model.predict_topk(rows, 3)
        assert ((top.labels >= -1) & (top.labels < model.n_labels)).all()
        if model.vectorizer is not None:
            check_csr(model.vectorizer.transform(["alpha b alpha", ""]), False)
        if model.calibration is not None and np.isfinite(top.scores[top.labels >= 0]).all():
            scores = model.calibration.probabilities(top).scores
            assert ((scores > 0) & (scores < 1) | (top.labels < 0)).all()
        for names, count in ((model.label_names, model.n_labels), (model.feature_names, model.n_features)):
            assert names is None or len(names) == count
        tell(model.info)
        if rng.random() < 0.3 and model.n_labels > 1 and (parts := cluster_parts()):
            for part in parts.part_labels(folder, model.n_labels, 2):
                assert parts.load_part(folder, part).n_labels == part.last - part.first
        return model

    return outcome(read)


@cache
def cluster_parts() -> Any:
    """What reads some labels of a model, if Ray is there."""
    try:
        from xmlpreck.cluster import parts
    except ImportError:
        return None
    return parts


def tell(info: dict[str, Any]) -> None:
    """What report, update and others print or calculate of a run."""
    if info.get("tuning") is not None:
        assert tables.tuning_text(info["tuning"])
    history = info.get("history") or []
    assert f"{sum(one['seconds'] for one in history):,.1f}"
    assert all(f"{one['surrogate'] - one['mistakes']:.2f}{one['number']:,}" for one in history)
    if info.get("data") is not None:
        assert f"{info['data']['n_rows']:,}{Path(info['data'].get('place') or '')}"
    if info.get("config") is not None:
        assert json.dumps([value for section in info["config"].values() for value in section.values()])
        outcome(lambda: config.override(info["config"], {"train.epochs": 2}, "model"))
    if info.get("pruned_at") is not None:
        assert f"{info['pruned_at']:.4g}"


def reseal_model(files: Files) -> Files:
    """The sha256 of all files made true again: a stranger can compute them too."""
    try:
        about = json.loads(files["model.json"])
        names = [name for name in sorted(files) if name not in ("model.json", "checked.json")]
        about["sha256"] = {name: hashlib.sha256(files[name]).hexdigest() for name in names}
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        about["sha256"]["model.json"] = digest
        return {**files, "model.json": json.dumps(about).encode()}
    except (ValueError, KeyError, TypeError, RecursionError):
        return files


def shows_damage(base: Files, files: Files) -> bool:
    """Whether the hashes of a model that were not made true again must show a change."""
    was = json.loads(base["model.json"])
    listed = [name for name in was["sha256"] if name != "model.json"]
    try:
        now = json.loads(files["model.json"])
        if now != was:
            return "model.json" in now["sha256"]  # without, it is a model of version 0.1.0
    except (ValueError, KeyError, TypeError, RecursionError):
        return True
    return any(files.get(name) != base[name] for name in listed)


def with_wrapping_offsets(files: Files) -> Files:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "row_offsets.npy"
        path.write_bytes(files[path.name])
        offsets = np.load(path)
        offsets[1:5] = WRAPPING
        np.save(path, offsets)
        return reseal_model({**files, path.name: path.read_bytes()})


def model_target(kind: str, rng: np.random.Generator) -> Target:
    seeds = [model_files(kind, rng) for _ in range(N_SEEDS)]
    odd = [with_wrapping_offsets(files) for files in seeds[:4]]
    return Target(seeds, read_model, odd=odd, finish=reseal_model, must_fail=shows_damage)


# --- checkpoints

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"heldout": 0.1},
    "wide": {"widen": True, "average_from": 1},
}


def training_rows() -> Dataset:
    """A few rows, always the same."""
    rng = np.random.default_rng(5)
    rows, labels = (csr_array((rng.random((30, width)) < 0.3).astype(np.float32)) for width in (12, 8))
    rows.data[:] = rng.uniform(0.1, 1, rows.nnz)
    return Dataset(*(build_csr(m.data, m.indices, m.indptr, m.shape) for m in (rows, labels)))


def run_settings(kind: str) -> config.RunConfig:
    few = {"epochs": 3, "k": 2, "batch_rows": 4, "block_rows": 20, "threads": 1, "tau": 0.1}
    return config.RunConfig(train=config.TrainConfig(**few | SETTINGS[kind]))


def checkpoint_files(kind: str, n_pauses: int) -> Files:
    """The last checkpoint of a run that is stopped at some pause."""
    asked: list[int] = []
    with tempfile.TemporaryDirectory() as name:
        checkpoints = Checkpoints(Path(name) / "m")

        def stop() -> bool:
            asked.append(1)
            return len(asked) >= n_pauses

        safety = Safety(checkpoints, stop=stop)
        with suppress(Interrupted):
            fit(training_rows(), run_settings(kind), safety=safety, tuning=run_info()["tuning"])
        saved = checkpoints.last()
        assert saved is not None
        return {path.name: path.read_bytes() for path in sorted(saved.folder.iterdir())}


def reseal_checkpoint(files: Files) -> Files:
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != "sha256.json"}
    return {**files, "sha256.json": json.dumps(hashes).encode()}


def checkpoint_target(kind: str) -> Target:
    # Few rows between two pauses, so that there are many of them.
    trainer.ROWS_A_CALL = 4
    data, settings = training_rows(), run_settings(kind)
    rows = build_csr(np.ones(12, np.float32), np.arange(12, dtype=np.int32), np.array([0, 12]), (1, 12))

    def read(folder: Path, rng: Random) -> object:
        place = folder.parent / "m.partial"
        place.mkdir(exist_ok=True)
        if not (place / "checkpoint-000001").exists():
            (place / "checkpoint-000001").symlink_to(folder)

        def go_on() -> object:
            model = fit(data, settings, safety=Safety(Checkpoints(folder.parent / "m"), resume=True))
            labels = model.predict_topk(rows, 3).labels
            assert ((labels >= -1) & (labels < 8)).all()
            tell(model.info)
            return model

        return outcome(go_on)

    def must_fail(base: Files, files: Files) -> bool:
        return files.get("sha256.json") == base["sha256.json"] and files != base

    seeds = [checkpoint_files(kind, n_pauses) for n_pauses in range(1, 20, 2)]
    return Target(seeds, read, finish=reseal_checkpoint, must_fail=must_fail)
