"""A model on disk: model.json and plain arrays, written in one step, checked when read."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from platform import python_version
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

import xmlpreck
from xmlpreck.config import InputError, RowsConfig, from_dict, without_retired
from xmlpreck.data.dataset import build_csr, check_count, check_offsets
from xmlpreck.data.dense import dense_names
from xmlpreck.data.dense_transform import FILES as TRANSFORM_FILES
from xmlpreck.data.dense_transform import DenseTransform
from xmlpreck.data.text import FILES as TEXT_FILES
from xmlpreck.data.text import TextVectorizer
from xmlpreck.data.vocabulary import Vocabulary, from_lines, to_lines
from xmlpreck.files import read_errors, write_errors
from xmlpreck.files.atomic import Kind, atomic_folder, refuse_strangers
from xmlpreck.files.contents import check_format, load_array, open_regular, read_json
from xmlpreck.kernels import bfloat
from xmlpreck.kernels.arrays import Weights, sparse_weights
from xmlpreck.kernels.patterns import rows_rise
from xmlpreck.model.calibration import DTYPES as CALIBRATION
from xmlpreck.model.calibration import Calibration
from xmlpreck.model.info import check_info
from xmlpreck.model.layout import ANY_SIZE, all_sparse, with_dense_rows
from xmlpreck.model.seal import ABOUT, MEMO, ModelError, check_seal, sealed

FORMAT_VERSION = 1
ARRAYS = ("row_offsets", "row_labels", "row_weights")
VOCABULARY = "labels.jsonl"
WORDS = ("word_offsets", "word_features", "word_weights")  # what the words of labels added, label by label
CALIBRATION_FILES = tuple(f"calibration_{name}.npy" for name in CALIBRATION)
# All names that a model's files may have, the one that makes it a model first.
FILES = (
    ABOUT,
    MEMO,
    *(f"{name}.npy" for name in ARRAYS),
    *("labels.txt", VOCABULARY, "features.txt"),
    *TEXT_FILES,
    *CALIBRATION_FILES,
    *(f"{name}.npy" for name in WORDS),
    *TRANSFORM_FILES,
)
MODEL = Kind("a model", ABOUT, lambda folder: FILES, ModelError)
# A model may have at most this many labels for each weight.
LABELS_A_WEIGHT = 1000
# Weights that are checked at a time, so that no second copy of all is ever in memory.
CHECKED_WEIGHTS = 1 << 20
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:[/\\]")  # of a URI, as a Path has it
_OWN_KEYS = ("format", "format_version", "n_features", "n_labels", "rows", "arrays", "sha256", "made_with")


class Contents(NamedTuple):
    """All that a model directory holds."""

    weights: Weights
    rows: RowsConfig
    label_names: list[str] | None
    feature_names: list[str] | None
    info: dict[str, Any]
    vectorizer: TextVectorizer | None
    calibration: Calibration | None = None
    vocabulary: Vocabulary | None = None
    label_words: csr_array | None = None
    dense_transform: DenseTransform | None = None


def label_type(n_labels: int) -> np.dtype:
    """Choose the type of stored label ids: 16 bits where that is enough."""
    return np.dtype(np.uint16 if n_labels <= 1 << 16 else np.int32)


def bytes_a_weight(weights: Weights) -> int:
    """Count the bytes on disk of a weight and its label's id."""
    n_bytes = 2 if bfloat.can_hold(weights.values) else weights.values.itemsize
    return n_bytes + label_type(int(weights.dense_rows.shape[1])).itemsize


def write_model(folder: Path, model: Contents) -> int:
    """Write the directory in one step (temporary name, fsync, rename); returns its size in bytes.

    What was written is read again first: a model that could not be loaded never takes the place of one that can.
    """
    check_target(folder)
    with write_errors(folder, ModelError), atomic_folder(folder, MODEL) as ready:
        _write_files(ready, model)
        n_bytes = sum(file.stat().st_size for file in ready.iterdir())
        try:
            open_files(ready)
        except InputError as error:
            what = str(error).replace(f"{ready}/", "").replace(str(ready), "it")
            raise ModelError(f"{folder}: is not saved, since it could not be loaded again: {what}") from None
        return n_bytes


def _write_files(folder: Path, model: Contents) -> None:
    if taken := model.info.keys() & set(_OWN_KEYS):
        raise ModelError(f"info must not have {sorted(taken)[0]!r}: model.json needs the name for the model itself")
    n_features = len(model.weights.dense_of) - (model.rows.bias > 0)
    sparse = all_sparse(model.weights, min_size=ANY_SIZE)
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
    if model.dense_transform is not None:
        model.dense_transform.save(folder)
    feature_names = None if model.vectorizer else model.feature_names
    for name, names in (("labels", model.label_names), ("features", feature_names)):
        if names is not None:
            _write_names(folder / f"{name}.txt", names)
    if model.vocabulary is not None:
        _write_names(folder / VOCABULARY, list(to_lines(model.vocabulary)))
    if model.label_words is not None:
        words = model.label_words
        kinds = (words.indptr.astype(np.int64), words.indices.astype(np.int32), words.data.astype(np.float32))
        for name, array in zip(WORDS, kinds, strict=True):
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
    about = {
        "format": "xmlpreck model",
        "format_version": FORMAT_VERSION,
        "n_features": n_features,
        "n_labels": n_labels,
        "rows": asdict(model.rows),
        "arrays": {name: {"shape": array.shape, "dtype": array.dtype.str} for name, array in arrays.items()},
        "made_with": {
            "xmlpreck": xmlpreck.__version__,
            "numpy": np.__version__,
            "python": python_version(),
        },
        **model.info,
    }
    try:
        content = json.dumps(sealed(about, folder), indent=1) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"info cannot be stored as JSON: {error}") from None
    (folder / ABOUT).write_text(content, encoding="utf-8")


def _write_names(path: Path, names: list[str]) -> None:
    if broken := [text for text in names if "\n" in text]:
        raise ModelError(f"{path.name}: a name must not have a line break, but {broken[0]!r} has one")
    try:
        path.write_bytes("".join(f"{line}\n" for line in names).encode())
    except UnicodeEncodeError as error:
        shown = error.object[error.start - 20 : error.end + 20]
        raise ModelError(f"{path.name}: {shown!r} has a half of a surrogate pair: it is not Unicode") from None


class Files(NamedTuple):
    """A model directory whose files are whole and fit together; arrays are mapped as they are stored."""

    arrays: dict[str, np.ndarray]
    rows: RowsConfig
    n_features: int  # without the bias
    n_labels: int
    label_names: list[str] | None
    feature_names: list[str] | None
    info: dict[str, Any]
    vectorizer: TextVectorizer | None
    calibration: Calibration | None
    vocabulary: Vocabulary | None
    label_words: csr_array | None
    dense_transform: DenseTransform | None


def read_model(folder: Path, verify: bool = False) -> Contents:
    """Read a directory. What does not fit together is refused by name."""
    found = open_files(folder, verify)
    offsets, labels, values = (found.arrays[name] for name in ARRAYS)
    weights = lay_out_arrays(offsets, labels, values, found.n_labels)
    names = (found.label_names, found.feature_names)
    return Contents(
        weights, found.rows, *names, found.info, found.vectorizer,
        calibration=found.calibration, vocabulary=found.vocabulary, label_words=found.label_words,
        dense_transform=found.dense_transform,
    )  # fmt: skip


def open_files(folder: Path, verify: bool = False) -> Files:
    """Open and check everything in a directory, in little memory: weights are only mapped, and checked in chunks."""
    about, rows, n_features, n_labels, names = open_head(folder, verify)
    try:
        said_of = {name: dict(about["arrays"][name]) for name in ARRAYS}
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / ABOUT}: {error!r:.200}") from None
    arrays = {name: map_array(folder, name) for name in ARRAYS}
    for name, said in said_of.items():
        found = {"shape": list(arrays[name].shape), "dtype": arrays[name].dtype.str}
        if said != found:
            raise ModelError(f"{folder / name}.npy: holds {found}, but model.json says {said!r:.99}")
    check_arrays(folder, arrays, n_features + (rows.bias > 0), n_labels)
    label_names, feature_names = (
        read_names(folder / f"{name}.txt", n) if f"{name}.txt" in names else None
        for name, n in (("labels", n_labels), ("features", n_features))
    )
    vectorizer = TextVectorizer.load(folder) if "text.json" in names else None
    n_dense = rows.n_dense
    if vectorizer is not None and vectorizer.n_features != n_features - n_dense:
        what = f"but the model {n_features}" + (f", {n_dense} of them dense" if n_dense else "")
        raise ModelError(f"{folder}: its text has {vectorizer.n_features} features, {what}")
    if vectorizer is not None:
        words = vectorizer.feature_names
        feature_names = words and [*words, *dense_names(n_dense)]
    info = {name: value for name, value in about.items() if name not in _OWN_KEYS}
    return Files(
        arrays, rows, n_features, n_labels, label_names, feature_names, info, vectorizer,
        read_calibration(folder, names, n_labels), read_model_vocabulary(folder, names, n_labels),
        read_label_words(folder, names, n_labels, n_features), read_transform(folder, names, rows),
    )  # fmt: skip


class Head(NamedTuple):
    """What model.json says."""

    about: dict[str, Any]
    rows: RowsConfig
    n_features: int  # without the bias
    n_labels: int
    files: frozenset[str]


def open_head(folder: Path, verify: bool = False) -> Head:
    """Read model.json and check that all files are as they were saved."""
    about = read_about(folder)
    names = check_seal(folder, about, frozenset(FILES), verify)
    try:
        rows = from_dict({"rows": about["rows"]}, "rows").rows
        n_features, n_labels = (check_count(about[name]) for name in ("n_features", "n_labels"))
        if rows.n_dense > n_features:
            raise ValueError(f"{rows.n_dense} of {n_features} features cannot be dense")
        check_info({name: value for name, value in about.items() if name not in _OWN_KEYS})
        if about.get("config") is not None:
            about["config"] = without_retired(about["config"])
    except InputError as error:
        raise ModelError(f"{folder / ABOUT}: {error}") from None
    except KeyError as error:
        raise ModelError(f"{folder / ABOUT}: misses {error}") from None
    except (TypeError, ValueError) as error:
        raise ModelError(f"{folder / ABOUT}: {error!s:.200}") from None
    if missing := [name for name in ARRAYS if f"{name}.npy" not in names]:
        raise ModelError(f"{folder / ABOUT}: has no sha256 of {missing[0]}.npy")
    return Head(about, rows, n_features, n_labels, names)


def map_array(folder: Path, name: str) -> np.ndarray:
    path = folder / f"{name}.npy"
    with read_errors(path, ModelError):
        return load_array(path, "c")  # private pages: kernels see the same types as in training, and compile once


def read_calibration(folder: Path, names: frozenset[str], n_labels: int) -> Calibration | None:
    """Load the calibration of a model, if its files are among `names`."""
    return Calibration.load(folder, n_labels) if names & set(CALIBRATION_FILES) else None


def read_transform(folder: Path, names: frozenset[str], rows: RowsConfig) -> DenseTransform | None:
    """Load the transform of dense features that the settings of the rows name; `names` are the model's files."""
    if rows.dense_transform == "none":
        return None
    if missing := [name for name in TRANSFORM_FILES if name not in names]:
        raise ModelError(f"{folder / missing[0]}: is missing, but rows.dense_transform is {rows.dense_transform}")
    return DenseTransform.load(folder, rows)


def read_model_vocabulary(folder: Path, names: frozenset[str], n_labels: int) -> Vocabulary | None:
    """Read what a model knows of its labels, if its file is among `names`."""
    if VOCABULARY not in names:
        return None
    path = folder / VOCABULARY
    lines = read_names(path, n_labels)
    try:
        return from_lines(lines)
    except ValueError as error:
        raise ModelError(f"{path}: {error}: the file is damaged") from None


def read_label_words(folder: Path, names: frozenset[str], n_labels: int, n_features: int) -> csr_array | None:
    """Read what the words of labels added to the weights, if its files are among `names`."""
    if f"{WORDS[0]}.npy" not in names:
        return None
    if missing := [name for name in WORDS if f"{name}.npy" not in names]:
        raise ModelError(f"{folder / ABOUT}: has no sha256 of {missing[0]}.npy")
    offsets, features, values = (map_array(folder, name) for name in WORDS)
    for array, kind, name in zip((offsets, features, values), ("<i8", "<i4", "<f4"), WORDS, strict=True):
        if array.ndim != 1 or array.dtype.str != kind:
            raise ModelError(f"{folder / name}.npy: is {array.dtype} of shape {array.shape}")
    try:
        check_offsets(offsets, len(features))
    except ValueError as error:
        raise ModelError(f"{folder / WORDS[0]}.npy: {error}") from None
    if len(offsets) != n_labels + 1 or len(features) != len(values):
        raise ModelError(f"{folder / WORDS[0]}.npy: does not fit {n_labels} labels and {len(values)} weights")
    if not rows_rise(offsets, features, n_features):
        raise ModelError(f"{folder / WORDS[1]}.npy: the features of a label do not rise within 0 to {n_features - 1}")
    if not np.isfinite(values).all():
        raise ModelError(f"{folder / WORDS[2]}.npy: a weight is not a finite number")
    return build_csr(values, features, offsets, (n_labels, n_features))


def check_arrays(folder: Path, arrays: dict[str, np.ndarray], n_features: int, n_labels: int) -> None:
    """Check the arrays of a model, some features at a time; a ModelError names the file that does not fit."""
    offsets, labels, values = (arrays[name] for name in ARRAYS)

    def demand(holds: Any, name: str, what: str) -> None:
        if not holds:
            raise ModelError(f"{folder / name}.npy: {what}")

    for name, kinds in zip(ARRAYS, (("<i8",), ("<u2", "<i4"), ("<u2", "<f4", "<f8")), strict=True):
        array = arrays[name]
        demand(array.ndim == 1 and array.dtype.str in kinds, name, f"is {array.dtype} of shape {array.shape}")
    demand(offsets.shape == (n_features + 1,), "row_offsets", f"{len(offsets)} offsets for {n_features} features")
    try:
        check_offsets(offsets, len(labels))
    except ValueError as error:
        demand(False, "row_offsets", str(error))
    demand(len(labels) == len(values), "row_weights", f"{len(values)} weights for {len(labels)} labels")
    # Prediction keeps a score for every label: a model of nothing must not reserve memory for them.
    few = n_labels <= LABELS_A_WEIGHT * (len(labels) + 1000)
    demand(few, "row_labels", f"{len(labels)} weights are not a model of {n_labels} labels")
    first = 0
    while first < n_features:
        start = offsets[first]
        last = max(int(np.searchsorted(offsets, start + CHECKED_WEIGHTS, side="right")) - 1, first + 1)
        stop = offsets[last]
        some = labels[start:stop].astype(np.int32)
        rises = rows_rise(offsets[first : last + 1] - start, some, n_labels)
        demand(rises, "row_labels", f"the labels of a feature do not rise within 0 to {n_labels - 1}")
        demand(np.isfinite(bfloat.widen(values[start:stop])).all(), "row_weights", "a weight is not a finite number")
        first = last


def lay_out_arrays(offsets: np.ndarray, labels: np.ndarray, values: np.ndarray, n_labels: int) -> Weights:
    """Turn checked arrays into Weights."""
    wide = labels.astype(np.int32, copy=False), bfloat.widen(values)  # 16 bits are a size on disk
    return with_dense_rows(sparse_weights(offsets, *wide, n_labels))


def check_target(folder: Path, data: str | None = None) -> None:
    """Refuse to write a model over anything but a model or an empty folder.

    Where nobody chose the folder, `data` is the path of the data, and a model of other data is refused, too.
    """
    if not folder.name:
        raise ModelError(f"{folder}: is no name for a model: choose a folder of its own by --out")
    if _SCHEME.match(str(folder)):
        raise ModelError(f"{folder}: is an address, where this command cannot write: choose a local folder")
    with write_errors(folder, ModelError):
        refuse_strangers(folder, MODEL)
    if data is not None and (folder / ABOUT).exists():
        about = read_about(folder).get("data")
        other = about.get("place") if isinstance(about, dict) else None
        if other != data:
            whose = f"{other!r:.200}" if other else "data that it does not name"
            raise ModelError(f"{folder}: holds a model of {whose}, not of {data!r:.200}: choose a folder by --out")


def read_about(folder: Path) -> dict[str, Any]:
    """Read model.json; refuse what is not ours or of another version."""
    path = folder / ABOUT
    with read_errors(path, ModelError):
        try:
            about = read_json(path)
        except FileNotFoundError:
            raise ModelError(f"{folder}: is not a model directory: it has no model.json") from None
    return check_format(about, path, "xmlpreck model", FORMAT_VERSION, ModelError)


def read_names(path: Path, n_names: int) -> list[str]:
    with read_errors(path, ModelError), open_regular(path) as stream:
        names = stream.read().decode("utf-8").split("\n")[:-1]
    if len(names) != n_names:
        raise ModelError(f"{path}: has {len(names)} names, but the model has {n_names}")
    return names
