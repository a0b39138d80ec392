"""PrecAtKClassifier: the trainer and the scorer as a scikit-learn classifier, and precision at k as a scorer for it."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from numbers import Integral
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.sparse import csr_array, csr_matrix, issparse, isspmatrix
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.pipeline import Pipeline
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from xmlpreck import metrics
from xmlpreck.config import InputError, RowsConfig, RunConfig, TrainConfig, from_dict, n_cores
from xmlpreck.data.formats import Dataset, TopK, build_csr
from xmlpreck.data.matrix import as_rows, check_structure
from xmlpreck.kernels.arrays import no_weights
from xmlpreck.model import Model, all_sparse, prepare_rows
from xmlpreck.train import PreparedRows, Trainer, fit

ROWS, TRAIN = RowsConfig(), TrainConfig()


class Target(NamedTuple):
    """A y as CSR, and the kind that `predict` returns: classes, lists, dense, or a sparse array or matrix."""

    kind: str
    dtype: Any  # of an indicator
    classes: np.ndarray  # sorted; the label of each column
    labels: csr_array

    @property
    def is_indicator(self) -> bool:
        return self.kind not in ("classes", "lists")


def read_target(y: Any, lists: bool = False) -> Target:
    """Tell the kinds of y apart; `lists`: a list of lists holds labels, even where it looks like an indicator."""
    if issparse(y):
        return _read_indicator(y, "matrix" if isspmatrix(y) else "array")
    is_nested = isinstance(y, list | tuple) and any(np.iterable(row) and not isinstance(row, str | bytes) for row in y)
    if is_nested and (lists or not _looks_like_indicator(y)):
        return _read_lists(y)
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] > 1:
        return _read_indicator(y, "dense")
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    classes, ids = np.unique(y, return_inverse=True)
    return Target("classes", y.dtype, classes, _ones(ids, np.arange(len(y) + 1), len(classes)))


def _looks_like_indicator(rows: Sequence[Any]) -> bool:
    """Equally long, only 0 and 1: as lists of labels, rows of three and more would name a label twice."""
    lengths = {len(row) if isinstance(row, list | tuple | np.ndarray) else 0 for row in rows}
    return len(lengths) == 1 and lengths.pop() > 1 and all(label in (0, 1) for label in chain.from_iterable(rows))


def _read_indicator(y: Any, kind: str) -> Target:
    if y.ndim != 2 or y.dtype.kind not in "biuf":
        raise InputError(f"an indicator y must be a matrix of 0 and 1, but has shape {y.shape} and type {y.dtype}")
    if issparse(y):
        check_structure(y, "label")
    labels = csr_array(y, dtype=np.float32, copy=True)
    labels.sum_duplicates()
    labels.eliminate_zeros()
    wrong = labels.data[labels.data != 1]
    if wrong.size:
        raise InputError(f"an indicator y must be a matrix of 0 and 1, but holds {wrong[0]:g}")
    n_labels = labels.shape[1]
    return Target(kind, y.dtype, np.arange(n_labels), _ones(labels.indices, labels.indptr, n_labels))


def _read_lists(y: Sequence[Any]) -> Target:
    try:
        names = sorted(set(chain.from_iterable(y)))
        place = {name: i for i, name in enumerate(names)}
        rows = [sorted(place[name] for name in row) for row in y]
    except TypeError as error:
        raise InputError(f"y must be lists of labels, all of them numbers or all of them text: {error}") from None
    for i, row in enumerate(rows):
        if len(set(row)) < len(row):
            raise InputError(f"row {i} of y names a label twice; give an indicator as a numpy array or sparse matrix")
    ids = np.fromiter(chain.from_iterable(rows), np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return Target("lists", None, np.array(names), _ones(ids, offsets, len(names)))


def _ones(ids: np.ndarray, offsets: np.ndarray, n_labels: int) -> csr_array:
    return build_csr(np.ones(len(ids), np.float32), ids, offsets, (len(offsets) - 1, n_labels))


def align(target: Target, classes: np.ndarray, drop_unknown: bool = False) -> csr_array:
    """The labels of y with the columns of a model's classes; unknown ones are an error, or count for nothing."""
    if target.is_indicator:
        if len(target.classes) != len(classes):
            raise InputError(f"y has {len(target.classes)} columns, but there are {len(classes)} classes")
        return target.labels
    place = {name: i for i, name in enumerate(classes.tolist())}
    new_ids = np.array([place.get(name, -1) for name in target.classes.tolist()], np.int32)
    unknown = target.classes[new_ids < 0]
    if len(unknown) and not drop_unknown:
        shown = ", ".join(map(repr, unknown[:5].tolist())) + (", ..." if len(unknown) > 5 else "")
        raise InputError(f"y has {len(unknown)} labels that are not among the classes of the first call: {shown}")
    ids = new_ids[target.labels.indices]  # still sorted within rows, because both lists of classes are
    offsets = np.concatenate([[0], np.cumsum(ids >= 0)])[target.labels.indptr]
    return _ones(ids[ids >= 0], offsets, len(classes))


class PrecAtKClassifier(ClassifierMixin, BaseEstimator):
    """Linear classifier trained for precision at k: the k labels at the top of every row.

    Parameters
    ----------
    algo : {"sgd-avg", "sgd-max", "perceptron-avg", "perceptron-max"}
        Rule of the update.
    k : int
        Labels at the top that training looks at and `predict` returns; a row with fewer labels trains with as many.
    epochs : int
        Passes of `fit` over the rows.
    eta : float
        Length of a step (sgd only).
    tau : float
        Strength of the Gumbel noise on training scores; helps where labels are noisy.
    unit_norm : bool
        Scale every row to length 1, in training and in prediction.
    bias : float
        Value of an additional feature that every row has; 0 = none. Few dense features may need one, text does not.
    prune : float
        Drop weights smaller than this from the trained model.
    random_state : int, RandomState or None
        Seed; the same int and data give the same bits for any `n_jobs`.
    n_jobs : int or None
        Threads; None = 1, -1 = all cores.

    Attributes
    ----------
    classes_ : ndarray of shape (n_labels,)
        The label of each column of scores; 0, 1, 2, ... for an indicator matrix.
    scorer_ : Model
        The model; `scorer_.save(folder)` writes it for the command line.
    history_, n_iter_ : list of dict, int
        Facts about each pass, and how many there were.

    Notes
    -----
    y is one of these, and `predict` returns its kind:

    - one class a row, of any type: `predict` gives the class with the highest score;
    - an indicator matrix of 0 and 1, dense or sparse, with a column for each label;
    - a list of lists (tuples, sets) of labels. Rows that are equally long and hold only 0 and 1 are an indicator, as
      everywhere in scikit-learn. Its splitters know no lists of labels: give a search `cv=KFold(...)`.

    Equal scores: the lower label is first. A label has weights only for the features of its own rows.
    """

    history_: list[dict[str, Any]]
    _trainer: Trainer | None

    def __init__(
        self,
        *,
        algo: str = TRAIN.algo,
        k: int = TRAIN.k,
        epochs: int = TRAIN.epochs,
        eta: float = TRAIN.eta,
        tau: float = TRAIN.tau,
        unit_norm: bool = ROWS.unit_norm,
        bias: float = ROWS.bias,
        prune: float = TRAIN.prune,
        random_state: int | np.random.RandomState | None = TRAIN.seed,
        n_jobs: int | None = None,
    ) -> None:
        self.algo = algo
        self.k = k
        self.epochs = epochs
        self.eta = eta
        self.tau = tau
        self.unit_norm = unit_norm
        self.bias = bias
        self.prune = prune
        self.random_state = random_state
        self.n_jobs = n_jobs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Train anew, `epochs` passes over the rows."""
        settings = self._read_settings()
        rows = self._check_rows(X, reset=True)
        target = read_target(y)
        check_consistent_length(rows, target.labels)
        scorer = fit(Dataset(rows, target.labels, *self._names(target.kind, target.classes)), settings)
        self._start(target, target.classes, settings)
        self.scorer_, self.history_ = scorer, scorer.info["history"]
        self.n_iter_ = len(self.history_)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Train one pass on these rows; `epochs` calls with the same rows are one `fit`.

        The first call needs all `classes`, unless y is an indicator matrix; its settings hold for the later ones.
        After `fit`, training goes on from the fitted weights with a new running mean.
        """
        is_first = not hasattr(self, "scorer_")
        rows = self._check_rows(X, reset=is_first)
        lists = classes is not None if is_first else self._kind == "lists"
        target = read_target(y, lists)
        check_consistent_length(rows, target.labels)
        if is_first:
            if classes is None and not target.is_indicator:
                raise InputError("the first call of partial_fit needs classes: all labels that later calls may have")
            self._start(target, target.classes if target.is_indicator else np.unique(classes), self._read_settings())
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InputError("classes must be those of the first call; for an indicator they are 0, 1, 2, ...")
        settings = self._settings
        data = Dataset(rows, align(target, self.classes_))
        batch = PreparedRows(data, settings.rows, settings.train.block_rows)
        trainer = self._trainer or self._new_trainer()
        trainer.grow(batch)
        if is_first:
            trainer.start_at_centroids(batch, np.bincount(data.labels.indices, minlength=data.n_labels))
        self.history_ = self.history_ + [trainer.run_pass(batch).to_dict()]
        self.n_iter_, self._trainer = trainer.n_passes, trainer
        info = {"config": settings.to_dict(), "history": self.history_}
        scorer = Model(trainer.weights(), settings.rows, *self._names(self._kind, self.classes_), info)
        self.scorer_ = scorer.prune(settings.train.prune) if settings.train.prune else scorer
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores, dense (n_rows, n_labels); for two classes (n_rows,): that of the second minus that of the first."""
        rows = self._check_rows(X)
        scores = self.scorer_.decision_function(rows)
        return scores[:, 1] - scores[:, 0] if self._kind == "classes" and len(self.classes_) == 2 else scores

    def decision_function_sparse(self, X: Any) -> csr_array:
        """The scores that are not 0, as CSR (n_rows, n_labels): for label sets that do not fit in memory densely."""
        rows = self._check_rows(X)
        sparse = all_sparse(self.scorer_.weights)
        weights = csr_array((sparse.values, sparse.labels, sparse.offsets), (len(sparse.dense_of), len(self.classes_)))
        scores = prepare_rows(rows, self.scorer_.rows) @ weights  # scipy's product stores no 0
        scores.sort_indices()
        return scores

    def predict(self, X: Any) -> Any:
        """The class with the highest score, or the k best labels of every row in the kind of y that was fitted."""
        check_is_fitted(self, "scorer_")
        if self._kind == "classes":
            return self.classes_[self._top(X, 1).labels[:, 0]]
        labels = self._top(X).labels
        if self._kind == "lists":
            return self.classes_[labels].tolist()
        ids, offsets = np.sort(labels, axis=1).ravel(), np.arange(len(labels) + 1) * labels.shape[1]
        indicator = _ones(ids, offsets, len(self.classes_)).astype(self._dtype)
        return {"dense": csr_array.toarray, "matrix": csr_matrix, "array": csr_array}[self._kind](indicator)

    def predict_topk(self, X: Any, k: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The k best labels of every row (None = the k of training) and their scores: (n_rows, k) each, best first."""
        top = self._top(X, k)
        return self.classes_[top.labels], top.scores

    def _top(self, X: Any, k: int | None = None) -> TopK:
        """Columns and scores of the k best labels."""
        rows = self._check_rows(X)
        n_labels = len(self.classes_)
        k = min(self.k, n_labels) if k is None else k
        if not isinstance(k, Integral) or not 1 <= k <= n_labels:
            raise InputError(f"k must be a whole number from 1 to {n_labels}, the number of labels, but is {k!r}")
        # A row of zeros is a row like others here: `predict` agrees with `decision_function`.
        return self.scorer_.predict_topk(rows, int(k), self._n_threads(), guess_empty=True)

    def _check_rows(self, X: Any, reset: bool = False) -> csr_array:
        """X as a Dataset has it: float32 CSR, ascending ids, no stored 0; the caller's matrix stays as it is."""
        if not reset:
            check_is_fitted(self, "scorer_")
        if issparse(X):
            check_structure(X)
        rows = as_rows(validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=reset))
        # joblib hands out large arrays as read-only maps, for which the kernels would be compiled once more
        is_writeable = rows.data.flags.writeable and rows.indices.flags.writeable
        if not (is_writeable and rows.data.all()):
            rows = rows.copy()
            rows.eliminate_zeros()
        return rows

    def _read_settings(self) -> RunConfig:
        """The constructor's arguments as settings, checked as those of the command line are."""

        def plain(*names: str) -> dict[str, Any]:
            values = {name: getattr(self, name) for name in names}
            return {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}

        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        train = plain("algo", "k", "epochs", "eta", "tau", "prune")
        train |= {"seed": int(seed), "threads": self._n_threads()}
        return from_dict({"rows": plain("unit_norm", "bias"), "train": train}, type(self).__name__)

    def _n_threads(self) -> int:
        """As joblib counts: None is 1, -1 all cores, -2 all but one."""
        n_jobs = 1 if self.n_jobs is None else self.n_jobs
        if n_jobs == 0:
            raise InputError("n_jobs must not be 0: give a number of threads, or -1 for all cores")
        return n_jobs if n_jobs > 0 else max(n_cores() + 1 + n_jobs, 1)

    def _start(self, target: Target, classes: np.ndarray, settings: RunConfig) -> None:
        self.classes_, self._kind, self._dtype = classes, target.kind, target.dtype
        self._settings = settings
        self._trainer = None  # fit keeps none: its sums are as large as the model
        self.history_ = []

    def _new_trainer(self) -> Trainer:
        if hasattr(self, "scorer_"):
            return Trainer(all_sparse(self.scorer_.weights), self._settings.train, self.n_iter_)
        n_columns = self.n_features_in_ + (self._settings.rows.bias > 0)
        return Trainer(no_weights(n_columns, len(self.classes_)), self._settings.train)

    def _names(self, kind: str, classes: np.ndarray) -> tuple[list[str] | None, list[str] | None]:
        """Names of labels and of features for the model on disk, where there are any."""
        label_names = [str(name) for name in classes.tolist()] if kind in ("classes", "lists") else None
        return label_names, list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None


def precision_at_k(estimator: Any, X: Any, y: Any, k: int = TRAIN.k) -> float:
    """P@k in [0, 1] of a PrecAtKClassifier or a Pipeline with one at its end; every row counts, and k divides.

    A label of y that is not among the classifier's classes is one that it never hits.
    """
    estimator = getattr(estimator, "best_estimator_", estimator)
    if isinstance(estimator, Pipeline):
        X = estimator[:-1].transform(X) if len(estimator) > 1 else X
        estimator = estimator[-1]
    if not isinstance(estimator, PrecAtKClassifier):
        raise InputError(
            f"precision_at_k needs a PrecAtKClassifier or a Pipeline with one at its end, not {estimator!r}"
        )
    top = estimator._top(X, k)
    labels = align(read_target(y, lists=estimator._kind == "lists"), estimator.classes_, drop_unknown=True)
    return metrics.precision_at_k(top, labels, [k])[f"P@{k}"] / 100


def precision_at_k_scorer(k: int = TRAIN.k) -> Callable[[Any, Any, Any], float]:
    """`precision_at_k` for a fixed k, as `scoring=` of a search or a cross-validation."""
    return partial(precision_at_k, k=k)
