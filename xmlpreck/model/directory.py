"""A model on disk: model.json and plain arrays, written in one step, checked when read."""

import json
from dataclasses import asdict
from pathlib import Path
from platform import python_version
from typing import Any, NamedTuple

import numpy as np

import xmlpreck
from xmlpreck.calibration import Calibration, is_saved
from xmlpreck.config import InputError, RowsConfig, from_dict
from xmlpreck.formats.dataset import MAX_ID
from xmlpreck.formats.files import atomic_folder, holds_other_files
from xmlpreck.kernels import bfloat
from xmlpreck.kernels.arrays import Weights, sparse_weights
from xmlpreck.kernels.patterns import rows_rise
from xmlpreck.model.layout import ANY_SIZE, all_sparse, with_dense_rows
from xmlpreck.shards.sets import file_sha256
from xmlpreck.text import TextVectorizer

FORMAT_VERSION = 1
ARRAYS = ("row_offsets", "row_labels", "row_weights")
# So many labels a weight, and no more, may a model have.
LABELS_A_WEIGHT = 1000


class ModelError(InputError):
    """A model directory that cannot be trusted, or rows that do not fit the model."""


class Contents(NamedTuple):
    """All that a model directory holds."""

    weights: Weights
    rows: RowsConfig
    label_names: list[str] | None
    feature_names: list[str] | None
    info: dict[str, Any]
    vectorizer: TextVectorizer | None
    calibration: Calibration | None = None


def label_type(n_labels: int) -> np.dtype:
    """How a label's id is stored: in 16 bits where that is enough."""
    return np.dtype(np.uint16 if n_labels <= 1 << 16 else np.int32)


def bytes_a_weight(weights: Weights) -> int:
    """On disk: of the weight and of its label's id."""
    n_bytes = 2 if bfloat.can_hold(weights.values) else weights.values.itemsize
    return n_bytes + label_type(int(weights.dense_rows.shape[1])).itemsize


def write_model(folder: Path, model: Contents) -> int:
    """Write the directory in one step (temporary name, fsync, rename); returns its size in bytes."""
    check_target(folder)
    try:
        with atomic_folder(folder) as ready:
            _write_files(ready, model)
            return sum(file.stat().st_size for file in ready.iterdir())
    except OSError as error:
        raise ModelError(f"{folder}: cannot be written: {error.strerror or error}") from None


def _write_files(folder: Path, model: Contents) -> None:
    n_features = len(model.weights.dense_of) - (model.rows.bias > 0)
    sparse = all_sparse(model.weights, least=ANY_SIZE)
    values = bfloat.cut(sparse.values) if bfloat.can_hold(sparse.values) else sparse.values
    n_labels = int(model.weights.dense_rows.shape[1])
    labels = sparse.labels.astype(label_type(n_labels), copy=False)
    arrays = dict(zip(ARRAYS, (sparse.offsets, labels, values), strict=True))
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    if model.vectorizer is not None:
        model.vectorizer.save(folder)  # its vocabulary names the features
    if model.calibration is not None:
        model.calibration.save(folder)
    feature_names = None if model.vectorizer else model.feature_names
    for name, names in (("labels", model.label_names), ("features", feature_names)):
        if names is not None:
            if broken := [text for text in names if "\n" in text]:
                raise ModelError(f"{name}.txt: a name must not have a line break, but {broken[0]!r} has one")
            (folder / f"{name}.txt").write_bytes("".join(f"{line}\n" for line in names).encode())
    about = {
        "format": "xmlpreck model",
        "format_version": FORMAT_VERSION,
        "n_features": n_features,
        "n_labels": n_labels,
        "rows": asdict(model.rows),
        "arrays": {name: {"shape": array.shape, "dtype": array.dtype.str} for name, array in arrays.items()},
        "sha256": {path.name: file_sha256(path) for path in sorted(folder.iterdir())},
        "made_with": {
            "xmlpreck": xmlpreck.__version__,
            "numpy": np.__version__,
            "python": python_version(),
        },
        **model.info,
    }
    (folder / "model.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def read_model(folder: Path, verify: bool = False) -> Contents:
    """Read a directory; arrays are memory-mapped. What does not fit together is refused by name."""
    about = read_about(folder)
    if verify:
        check_hashes(folder, about.get("sha256"))
    try:
        rows = from_dict({"rows": about.pop("rows")}, "rows").rows
        n_features, n_labels = (check_count(about.pop(name)) for name in ("n_features", "n_labels"))
        said_of = {name: dict(about["arrays"][name]) for name in ARRAYS}
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / 'model.json'}: {error!r:.200}") from None
    arrays = {}
    for name, said in said_of.items():
        path = folder / f"{name}.npy"
        try:
            # "c": private pages, so that kernels see the same types as in training and compile once
            arrays[name] = np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
        except Exception as error:  # a damaged header fails anywhere within numpy
            raise ModelError(f"{path}: cannot be read: {str(error).partition(chr(10))[0]}") from None
        found = {"shape": list(arrays[name].shape), "dtype": arrays[name].dtype.str}
        if said != found:
            raise ModelError(f"{path}: holds {found}, but model.json says {said!r:.99}")
    weights = check_arrays(folder, arrays, n_features + (rows.bias > 0), n_labels)
    names = [read_names(folder / f"{name}.txt", n) for name, n in (("labels", n_labels), ("features", n_features))]
    for key in ("format", "format_version", "arrays", "sha256", "made_with"):
        about.pop(key, None)
    vectorizer = TextVectorizer.load(folder) if (folder / "text.json").exists() else None
    if vectorizer is not None and vectorizer.n_features != n_features:
        raise ModelError(f"{folder}: its text has {vectorizer.n_features} features, but the model {n_features}")
    feature_names = vectorizer.feature_names if vectorizer else names[1]
    calibration = Calibration.load(folder, n_labels) if is_saved(folder) else None
    return Contents(weights, rows, names[0], feature_names, about, vectorizer, calibration)


def check_hashes(folder: Path, hashes: Any) -> None:
    """Every file of a model must be as it was saved."""
    if not isinstance(hashes, dict) or not hashes:
        raise ModelError(f"{folder / 'model.json'}: has no sha256 of its files to verify")
    for name, digest in hashes.items():
        path = folder / Path(name).name  # a file of this folder, whatever the name says
        try:
            if not name.isprintable() or (path.exists() and not path.is_file()):  # a device has no end
                raise ModelError(f"{folder / 'model.json'}: {name!r:.40} is not a file of this folder")
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

    for name, kinds in zip(ARRAYS, (("<i8",), ("<u2", "<i4"), ("<u2", "<f4", "<f8")), strict=True):
        array = arrays[name]
        demand(array.ndim == 1 and array.dtype.str in kinds, name, f"is {array.dtype} of shape {array.shape}")
    demand(offsets.shape == (n_features + 1,), "row_offsets", f"{len(offsets)} offsets for {n_features} features")
    rises = offsets[0] == 0 and offsets[-1] == len(labels) and (np.diff(offsets) >= 0).all()
    demand(rises, "row_offsets", "offsets do not rise from 0 to the number of weights")
    demand(len(labels) == len(values), "row_weights", f"{len(values)} weights for {len(labels)} labels")
    labels, values = labels.astype(np.int32, copy=False), bfloat.widen(values)  # 16 bits are a size on disk
    rising = rows_rise(offsets, labels, n_labels)
    demand(rising, "row_labels", f"the labels of a feature do not rise within 0 to {n_labels - 1}")
    # Prediction keeps a score for every label: a model of nothing must not reserve memory for them.
    few = n_labels <= LABELS_A_WEIGHT * (len(labels) + 1000)
    demand(few, "row_labels", f"{len(labels)} weights are not a model of {n_labels} labels")
    demand(np.isfinite(values.sum(dtype=np.float64)), "row_weights", "a weight is not a finite number")
    return with_dense_rows(sparse_weights(offsets, labels, values, n_labels))


def check_target(folder: Path) -> None:
    """A model may take the place of nothing, an empty folder or a model: other files are never overwritten."""
    if not folder.name:
        raise ModelError(f"{folder}: is no name for a model: choose a folder of its own by --out")
    if holds_other_files(folder, "model.json"):
        raise ModelError(f"{folder}: exists and is not a model: it is left alone, choose another --out")


def read_about(folder: Path) -> dict[str, Any]:
    """model.json, refused when it is not ours or of a newer version."""
    path = folder / "model.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{folder}: is not a model directory: it has no model.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    if not isinstance(about, dict) or about.get("format") != "xmlpreck model":
        raise ModelError(f"{path}: is not an xmlpreck model")
    if about.get("format_version") != FORMAT_VERSION:
        raise ModelError(
            f"{path}: has format version {about.get('format_version')!r:.40}, this xmlpreck reads {FORMAT_VERSION}: "
            f"it was made with {about.get('made_with')!r:.99}"
        )
    return about


def check_count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_ID:
        raise ValueError(f"{value!r:.40} is not a number of features or labels")
    return value


def read_names(path: Path, n_names: int) -> list[str] | None:
    if not path.is_file():  # nor a link to a device, which has no end
        return None
    names = path.read_bytes().decode("utf-8", errors="replace").split("\n")[:-1]
    if len(names) != n_names:
        raise ModelError(f"{path}: has {len(names)} names, but the model has {n_names}")
    return names
