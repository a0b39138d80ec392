"""LinearScorer: one sparse linear scorer a label, in memory and on disk; prediction and pruning."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from tqdm import tqdm

import xmlpreck
from xmlpreck.config import InputError, RowsConfig
from xmlpreck.formats import Dataset, TopK
from xmlpreck.formats.files import atomic_folder, holds_other_files
from xmlpreck.kernels import linear
from xmlpreck.kernels.arrays import Rows, Weights, new_work, run_team, sparse_weights
from xmlpreck.kernels.patterns import fill_dense, gather_rows, unit_rows
from xmlpreck.shards import RowSource, read_blocks
from xmlpreck.shards.sets import file_sha256
from xmlpreck.text import TextVectorizer

FORMAT_VERSION = 1
ARRAYS = ("row_offsets", "row_labels", "row_weights")
NO_MASK = np.zeros((0, 0), np.uint8)
ANY_SIZE = 5e-324  # the smallest number above 0: of this size or more is all that is not 0

# Rows that are read and predicted at a time.
BLOCK_ROWS = 1 << 15


class ModelError(InputError):
    """A model directory that cannot be trusted, or rows that do not fit the model."""


def progress_bar(n_rows: int, text: str, wanted: bool) -> tqdm:
    """A bar on stderr, if that is a terminal."""
    return tqdm(total=n_rows, desc=text, unit=" rows", unit_scale=True, leave=False, disable=None if wanted else True)


def prepare_rows(rows: csr_array, config: RowsConfig) -> csr_array:
    """Rows as they are scored: float32, unit length if asked for, and the bias as one more feature behind the last."""
    n_rows, n_features = rows.shape
    values = rows.data.astype(np.float32, copy=False)
    if config.unit_norm:
        scaled = np.empty_like(values)
        unit_rows(rows.indptr.astype(np.int64), values, scaled)
        values = scaled
    if not config.bias:
        return csr_array((values, rows.indices, rows.indptr), shape=rows.shape)
    ends = rows.indptr[1:]
    return csr_array(
        (
            np.insert(values, ends, np.float32(config.bias)),
            np.insert(rows.indices, ends, n_features),
            rows.indptr + np.arange(n_rows + 1, dtype=rows.indptr.dtype),
        ),
        shape=(n_rows, n_features + 1),
    )


def kernel_rows(rows: csr_array, labels: csr_array | None = None) -> Rows:
    """CSR at the kernel's door; without labels every row has none."""
    n_rows = rows.shape[0]
    return Rows(
        rows.indptr.astype(np.int64),
        rows.indices.astype(np.int32, copy=False),
        rows.data.astype(np.float32, copy=False),
        np.zeros(n_rows + 1, np.int64) if labels is None else labels.indptr.astype(np.int64),
        np.zeros(0, np.int32) if labels is None else labels.indices.astype(np.int32, copy=False),
    )


def with_dense_rows(sparse: Weights) -> Weights:
    """A dense row beside the sparse one for each feature with more than 1 / DENSE_SHARE of the labels."""
    n_labels = sparse.dense_rows.shape[1]
    lengths = np.diff(sparse.offsets)
    is_dense = lengths * linear.DENSE_SHARE > n_labels
    dense_of = np.where(is_dense, np.cumsum(is_dense) - 1, -1).astype(np.int32)
    dense_rows = np.zeros((int(is_dense.sum()), n_labels), sparse.values.dtype)
    fill_dense(sparse.offsets, sparse.labels, sparse.values, dense_of, dense_rows)
    return sparse._replace(dense_of=dense_of, dense_rows=dense_rows)


def lay_out(sparse: Weights) -> Weights:
    """Hybrid rows: a feature has either a dense row or a sparse one."""
    weights = with_dense_rows(sparse)
    is_sparse = weights.dense_of < 0
    lengths = np.diff(sparse.offsets)
    in_sparse = np.repeat(is_sparse, lengths)
    offsets = np.concatenate([[0], np.cumsum(np.where(is_sparse, lengths, 0))])
    return weights._replace(offsets=offsets, labels=sparse.labels[in_sparse], values=sparse.values[in_sparse])


def all_sparse(weights: Weights, dense_mask: np.ndarray | None = None, least: float = 0.0) -> Weights:
    """Every feature as a sparse row: of what it stores (a dense row: under the mask, or what is not 0), or of the
    weights whose size is `least` or more."""
    mask = NO_MASK if dense_mask is None else dense_mask
    offsets = np.zeros(len(weights.dense_of) + 1, np.int64)
    labels, values = np.zeros(0, np.int32), np.zeros(0, weights.values.dtype)
    gather_rows(weights, mask, least, offsets, labels, values)
    np.cumsum(offsets, out=offsets)
    labels, values = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], weights.values.dtype)
    if len(labels):
        gather_rows(weights, mask, least, offsets, labels, values)
    return sparse_weights(offsets, labels, values, int(weights.dense_rows.shape[1]))


@dataclass(frozen=True)
class LinearScorer:
    """score of a label = <its weights, the prepared row>; every label has a weight for the features of its support."""

    weights: Weights
    rows: RowsConfig
    label_names: list[str] | None = None
    feature_names: list[str] | None = None
    info: dict[str, Any] = field(default_factory=dict)  # settings, data, history and versions of the run that made it
    vectorizer: TextVectorizer | None = None  # how raw text becomes rows, for a model of documents

    @property
    def n_labels(self) -> int:
        return int(self.weights.dense_rows.shape[1])

    @property
    def n_features(self) -> int:
        """Features of a row as it is given, without the bias."""
        return len(self.weights.dense_of) - (self.rows.bias > 0)

    @property
    def n_weights(self) -> int:
        """Weights that are not 0."""
        lengths, none = np.zeros(len(self.weights.dense_of) + 1, np.int64), self.weights.values[:0]
        gather_rows(self.weights, NO_MASK, ANY_SIZE, lengths, np.zeros(0, np.int32), none)
        return int(lengths.sum())

    def predict_topk(self, rows: csr_array, k: int, n_threads: int = 1) -> TopK:
        """The k best labels of every row: higher score first, then the lower label."""
        prepared = self._prepare(rows)
        if k < 1:
            raise ModelError(f"topk must be 1 or more, but is {k}")
        k = min(k, self.n_labels)
        labels = np.full((rows.shape[0], k), -1, np.int32)
        scores = np.full((rows.shape[0], k), -np.inf, self.weights.values.dtype)
        claimed = np.zeros(1, np.int64)

        def work(_: int) -> None:
            buffers = new_work(self.n_labels, dtype=scores.dtype)
            linear.predict_rows(prepared, self.weights, buffers, claimed, labels, scores)

        run_team(n_threads, work)
        return TopK(labels, scores.astype(np.float32, copy=False))

    def predict_blocks(
        self, source: RowSource, k: int, n_threads: int = 1, progress: bool = False
    ) -> Iterator[tuple[Dataset, TopK]]:
        """Rows and their k best labels, block by block: two blocks are in memory at a time."""
        with progress_bar(source.n_rows, "predict", progress) as bar:
            for _, block in read_blocks(source, BLOCK_ROWS):
                yield block, self.predict_topk(block.rows, k, n_threads)
                bar.update(block.n_rows)

    def decision_function(self, rows: csr_array) -> np.ndarray:
        """All scores, dense (n_rows, n_labels)."""
        prepared = self._prepare(rows)
        scores = np.zeros((rows.shape[0], self.n_labels), self.weights.values.dtype)
        linear.score_rows(prepared, self.weights, new_work(self.n_labels, dtype=scores.dtype), scores)
        return scores

    def _prepare(self, rows: csr_array) -> Rows:
        if rows.shape[1] != self.n_features:
            raise ModelError(f"rows have {rows.shape[1]} features, but the model was trained on {self.n_features}")
        return kernel_rows(prepare_rows(rows, self.rows))

    def prune(self, threshold: float) -> "LinearScorer":
        """A model without the weights smaller than `threshold` in size, laid out anew."""
        weights = lay_out(all_sparse(self.weights, least=max(threshold, ANY_SIZE)))
        return replace(self, weights=weights, info=self.info | {"pruned_at": threshold})

    def save(self, folder: str | Path) -> int:
        """Write the model directory in one step (temporary name, fsync, rename); returns its size in bytes."""
        folder = Path(folder)
        check_target(folder)
        try:
            with atomic_folder(folder) as ready:
                self._write_files(ready)
                return sum(file.stat().st_size for file in ready.iterdir())
        except OSError as error:
            raise ModelError(f"{folder}: cannot be written: {error.strerror or error}") from None

    def _write_files(self, folder: Path) -> None:
        sparse = all_sparse(self.weights, least=ANY_SIZE)
        arrays = dict(zip(ARRAYS, (sparse.offsets, sparse.labels, sparse.values), strict=True))
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
        if self.vectorizer is not None:
            self.vectorizer.save(folder)  # its vocabulary names the features
        feature_names = None if self.vectorizer else self.feature_names
        for name, names in (("labels", self.label_names), ("features", feature_names)):
            if names is not None:
                if broken := [text for text in names if "\n" in text]:
                    raise ModelError(f"{name}.txt: a name must not have a line break, but {broken[0]!r} has one")
                (folder / f"{name}.txt").write_bytes("".join(f"{line}\n" for line in names).encode())
        about = {
            "format": "xmlpreck model",
            "format_version": FORMAT_VERSION,
            "n_features": self.n_features,
            "n_labels": self.n_labels,
            "rows": asdict(self.rows),
            "arrays": {name: {"shape": array.shape, "dtype": array.dtype.str} for name, array in arrays.items()},
            "sha256": {path.name: file_sha256(path) for path in sorted(folder.iterdir())},
            "made_with": {
                "xmlpreck": xmlpreck.__version__,
                "numpy": np.__version__,
                "python": python_version(),
            },
            **self.info,
        }
        (folder / "model.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, verify: bool = False) -> "LinearScorer":
        """Read a model directory; arrays are memory-mapped. What does not fit together is refused by name.

        Sizes are always checked, the sha256 of every file (which reads all of it) if asked to `verify`.
        """
        folder = Path(folder)
        about = read_about(folder)
        if verify:
            check_hashes(folder, about.get("sha256"))
        arrays = {}
        for name in ARRAYS:
            path = folder / f"{name}.npy"
            try:
                # "c": private pages, so that kernels see the same types as in training and compile once
                arrays[name] = np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
            except (OSError, ValueError, EOFError) as error:
                raise ModelError(f"{path}: cannot be read: {error}") from None
            said = about["arrays"].get(name, {})
            found = {"shape": list(arrays[name].shape), "dtype": arrays[name].dtype.str}
            if said != found:
                raise ModelError(f"{path}: holds {found}, but model.json says {said}")
        try:
            rows = RowsConfig(**about.pop("rows"))
            n_features, n_labels = int(about.pop("n_features")), int(about.pop("n_labels"))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{folder / 'model.json'}: {error!r}") from None
        weights = check_arrays(folder, arrays, n_features + (rows.bias > 0), n_labels)
        names = [read_names(folder / f"{name}.txt", n) for name, n in (("labels", n_labels), ("features", n_features))]
        for key in ("format", "format_version", "arrays", "sha256", "made_with"):
            about.pop(key, None)
        vectorizer = TextVectorizer.load(folder) if (folder / "text.json").exists() else None
        if vectorizer is not None and vectorizer.n_features != n_features:
            raise ModelError(f"{folder}: its text has {vectorizer.n_features} features, but the model {n_features}")
        feature_names = vectorizer.feature_names if vectorizer else names[1]
        return cls(weights, rows, names[0], feature_names, about, vectorizer)


def check_hashes(folder: Path, hashes: Any) -> None:
    """Every file of a model must be as it was saved."""
    if not isinstance(hashes, dict) or not hashes:
        raise ModelError(f"{folder / 'model.json'}: has no sha256 of its files to verify")
    for name, digest in hashes.items():
        path = folder / Path(name).name  # a file of this folder, whatever the name says
        try:
            is_same = file_sha256(path) == digest
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror}") from None
        if not is_same:
            raise ModelError(f"{path}: has changed since the model was saved (sha256): get a whole copy of the model")


def check_arrays(folder: Path, arrays: dict[str, np.ndarray], n_features: int, n_labels: int) -> Weights:
    """The arrays of a model directory as Weights, or a ModelError that names the file which does not fit."""
    offsets, labels, values = (arrays[name] for name in ARRAYS)

    def demand(holds: Any, name: str, what: str) -> None:
        if not holds:
            raise ModelError(f"{folder / name}.npy: {what}")

    demand(offsets.shape == (n_features + 1,), "row_offsets", f"{len(offsets)} offsets for {n_features} features")
    rises = offsets[0] == 0 and offsets[-1] == len(labels) and (np.diff(offsets) >= 0).all()
    demand(rises, "row_offsets", "offsets do not rise from 0 to the number of weights")
    demand(len(labels) == len(values), "row_weights", f"{len(values)} weights for {len(labels)} labels")
    in_range = not len(labels) or (labels.min() >= 0 and labels.max() < n_labels)
    demand(in_range, "row_labels", f"an id is not a label (0 to {n_labels - 1})")
    demand(np.isfinite(values.sum(dtype=np.float64)), "row_weights", "a weight is not a finite number")
    return with_dense_rows(sparse_weights(offsets, labels, values, n_labels))


def check_target(folder: Path) -> None:
    """A model may take the place of nothing, an empty folder or a model: other files are never overwritten."""
    if holds_other_files(folder, "model.json"):
        raise ModelError(f"{folder}: exists and is not a model: it is left alone, choose another --out")


def read_about(folder: Path) -> dict[str, Any]:
    """model.json, refused when it is not ours or of a newer version."""
    path = folder / "model.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{folder}: is not a model directory: it has no model.json") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    if not isinstance(about, dict) or about.get("format") != "xmlpreck model":
        raise ModelError(f"{path}: is not an xmlpreck model")
    if about.get("format_version") != FORMAT_VERSION:
        raise ModelError(
            f"{path}: has format version {about.get('format_version')}, this xmlpreck reads {FORMAT_VERSION}: "
            f"it was made with {about.get('made_with')}"
        )
    return about


def read_names(path: Path, n_names: int) -> list[str] | None:
    if not path.exists():
        return None
    names = path.read_bytes().decode("utf-8", errors="replace").split("\n")[:-1]
    if len(names) != n_names:
        raise ModelError(f"{path}: has {len(names)} names, but the model has {n_names}")
    return names
