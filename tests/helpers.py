"""What several test files use: paths, forks that are safe, made-up rows and models, comparisons of bits."""

import json
import os
import re
from collections import Counter
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from xmlpreck.config import RowsConfig, RunConfig, TrainConfig
from xmlpreck.data import formats
from xmlpreck.data.formats import Dataset, FormatError
from xmlpreck.data.rows import read_blocks
from xmlpreck.data.shards import write_shards
from xmlpreck.kernels.arrays import sparse_weights
from xmlpreck.model import Model, all_sparse, lay_out
from xmlpreck.train import Interrupted, Safety, fit

ROOT = Path(__file__).resolve().parent.parent

# For processes that fork: numpy's OpenBLAS starts threads when it is imported.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
_FORK_SAFE = "jemalloc_bg_thd"  # of pyarrow; it has handlers for forks


def check_one_thread() -> None:
    """Refuse to fork beside threads: a lock that one of them holds would be held in the fork for ever."""
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    others = [name for name in threads if name != _FORK_SAFE]
    assert len(others) <= 1, f"process {os.getpid()} has the threads {others}, and may not fork"


# --- made-up rows ----------------------------------------------------------------------------------------------------


def draw_rows(seed, n_rows=70, n_features=40, n_labels=90, density=0.2, most_labels=9):
    """Dense (X, Y) with rows without labels, rows without features, a label of all rows and labels of none."""
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((n_rows, n_features)) < density, rng.normal(size=(n_rows, n_features)), 0)
    X = X.astype(np.float32).astype(np.float64)  # values as the kernels have them
    Y = np.zeros((n_rows, n_labels), bool)
    for i in range(n_rows):
        popular = rng.integers(0, n_labels, 2 * most_labels) % rng.integers(1, n_labels - 5)
        Y[i, popular[: rng.integers(0, most_labels + 1)]] = True
    Y[:, 0] = True
    Y[3] = False
    X[5] = 0
    return X, Y


def as_dataset(X, Y):
    return Dataset(csr_array(X.astype(np.float32)), csr_array(Y.astype(np.float32)))


def draws(seed, count, max_items=7):
    """`count` rankings (s, y, k); every second one has small integer scores, so many ties."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        n = int(rng.integers(1, max_items + 1))
        n_plus = int(rng.integers(1, n + 1))
        y = np.zeros(n, dtype=bool)
        y[rng.permutation(n)[:n_plus]] = True
        s = rng.integers(-2, 3, n).astype(float) if i % 2 else rng.normal(0, 1.5, n)
        yield s, y, int(rng.integers(1, n_plus + 1))


SIX_X = np.array([-1.0, -1.0, -2.0, -3.0, -3.0, -3.0])

SIX_Y = np.array([1, 1, 1, 0, 0, 0])


def orders(config, n_rows):
    return [np.random.default_rng([config.seed, e]).permutation(n_rows) for e in range(1, config.epochs + 1)]


# --- models ----------------------------------------------------------------------------------------------------------


def sparse_from(matrix):
    features, labels = np.nonzero(matrix)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(features, minlength=len(matrix)))])
    return sparse_weights(offsets, labels.astype(np.int32), matrix[features, labels], matrix.shape[1])


def draw_scorer(rng, n_features=30, n_labels=300, density=0.05, dtype=np.float64):
    """Sparse random weights with a few features that nearly all labels use; values on a grid, so that scores tie."""
    matrix = np.where(rng.random((n_features, n_labels)) < density, rng.integers(-4, 5, (n_features, n_labels)) / 4, 0)
    matrix[:2] = rng.integers(-4, 5, (2, n_labels)) / 4
    return Model(lay_out(sparse_from(matrix.astype(dtype))), RowsConfig(unit_norm=False, bias=0)), matrix


def draw_model(seed, bias=0.5):
    rng = np.random.default_rng(seed)
    scorer, _ = draw_scorer(rng, dtype=np.float32)
    scorer = Model(scorer.weights, RowsConfig(True, bias))
    rows = random_array((40, scorer.n_features), density=0.3, rng=rng).tocsr().astype(np.float32)
    return scorer, csr_array(rows)


def dense(weights, mask=None):
    sparse = all_sparse(weights, mask)
    shape = (len(sparse.dense_of), sparse.dense_rows.shape[1])
    return csr_array((sparse.values, sparse.labels, sparse.offsets), shape=shape).toarray()


def model_bits(scorer):
    return [array.tobytes() for array in scorer.weights]


def trainer_bits(trainer):
    learner = trainer.learner
    arrays = (*learner.weights, learner.dense_sums, learner.sums, learner.clock, learner.norms, *trainer.weights())
    return [array.tobytes() for array in arrays]


def fitted_bits(source, threads):
    config = RunConfig(RowsConfig(), TrainConfig(epochs=2, tau=0.2, block_rows=64, heldout=0.1, threads=threads))
    scorer = fit(source, config)
    info = scorer.info["data"]["sha256"], [entry["heldout"] for entry in scorer.info["history"]]
    return [array.tobytes() for array in scorer.weights], info


def reseal(folder):
    """Make the sha256 of a changed model true again, as a stranger can."""
    path = folder / "model.json"
    about = json.loads(path.read_text())
    files = [file for file in sorted(folder.iterdir()) if file.name not in ("model.json", "checked.json")]
    about["sha256"] = {file.name: sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}
    about["sha256"]["model.json"] = sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(about))


# --- runs that stop --------------------------------------------------------------------------------------------------


def timeless(history):
    return [
        {name: value for name, value in facts.items() if name not in ("seconds", "rows_per_second")}
        for facts in history
    ]


def stop_after(n_pauses):
    """A `Safety.stop` that says yes at the n-th pause."""
    asked = []
    return lambda: asked.append(1) or len(asked) >= n_pauses


def interrupt(data, config, checkpoints, n_pauses=1, **safety):
    with pytest.raises(Interrupted):
        fit(data, config, safety=Safety(checkpoints, resume=True, stop=stop_after(n_pauses), **safety))


# --- files -----------------------------------------------------------------------------------------------------------

# tmp_path is shared by the examples of one test, which is fine: each of them overwrites its file.
PROPERTY = settings(
    deadline=None,
    max_examples=40,
    database=None,  # it would stand in the working directory
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def sparse(entries, shape):
    """CSR from {row: {id: value}}."""
    rows = [sorted(entries.get(row, {}).items()) for row in range(shape[0])]
    values = np.array([value for row in rows for _, value in row], np.float32)
    ids = np.array([column for row in rows for column, _ in row], np.int32)
    return formats.build_csr(values, ids, np.cumsum([0] + [len(row) for row in rows]), shape)


@st.composite
def datasets(draw):
    n_rows, n_features, n_labels = (draw(st.integers(low, 6)) for low in (0, 1, 1))
    rows = {r: draw(st.dictionaries(st.integers(0, n_features - 1), FLOATS)) for r in range(n_rows)}
    labels = {r: dict.fromkeys(draw(st.sets(st.integers(0, n_labels - 1))), 1.0) for r in range(n_rows)}
    return Dataset(sparse(rows, (n_rows, n_features)), sparse(labels, (n_rows, n_labels)))


def assert_same_matrix(actual, expected):
    assert actual.shape == expected.shape
    assert actual.dtype == np.float32
    assert actual.indices.dtype == np.int32
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(actual, part), getattr(expected, part))


def assert_same_dataset(actual, expected):
    assert_same_matrix(actual.rows, expected.rows)
    assert_same_matrix(actual.labels, expected.labels)
    assert (actual.label_names, actual.feature_names) == (expected.label_names, expected.feature_names)


def write(path, text):
    path.write_bytes(text.encode())
    return path


def write_set(folder, data, kind="parquet", rows_per_shard=33, chunk_rows=50, **more):
    chunks = (block for _, block in read_blocks(data, chunk_rows))
    return write_shards(folder, chunks, kind, rows_per_shard, {"made_from": "a test"}, **more)


def refuses(message):
    """The error is one line that holds `message` literally."""
    return pytest.raises(FormatError, match=f"^[^\n]*{re.escape(message)}[^\n]*$")


# --- pages -----------------------------------------------------------------------------------------------------------

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</title></style></svg><h1>&lt;b&gt;",
    "\u202etxt.exe",
    "$\\frac{1}{0}$ {x} %s",
    "long" * 40,
)

VOID = {"meta", "link", "path", "use", "circle", "rect", "line"}


class Reader(HTMLParser):
    """Tags, attributes and text of a page; an end tag must end the last open one."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.open, self.texts = Counter(), [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes.append(dict(attributes))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes.append(dict(attributes))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, text):
        self.texts.append(text)
