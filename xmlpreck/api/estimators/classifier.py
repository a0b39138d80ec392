"""PrecAtKClassifier: training, tuning and prediction as a scikit-learn classifier of rows of numbers."""

from __future__ import annotations  # so that help() shows the names of types

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, issparse
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from xmlpreck.api.estimators.fitted import LabelPredictor, label_names
from xmlpreck.api.estimators.fitting import Trained, Weights, copies_of, copy_labels
from xmlpreck.api.estimators.parameters import documented
from xmlpreck.api.estimators.saving import Facts
from xmlpreck.api.estimators.targets import CLASSES, LISTS, OBJECTS, Features, Labels, Target, align, read_target
from xmlpreck.config import InputError, RunConfig
from xmlpreck.data.dataset import Dataset
from xmlpreck.data.matrix import as_rows, check_structure
from xmlpreck.kernels.arrays import no_weights
from xmlpreck.model import Model, all_sparse
from xmlpreck.train import PreparedRows, Trainer


@documented("train", "rows")
class PrecAtKClassifier(LabelPredictor):
    """Linear classifier trained for precision at k: the k labels at the top of every row.

    A parameter that is None is not given: `fit` chooses it on held-out rows if it is one of those that are tuned, as
    `xmlpreck train` does by the same code, and takes its default otherwise.

    Parameters
    ----------
    k : int, default 5
        Labels at the top that training looks at and `predict` returns; a row with fewer labels trains with as many.
        If it is not given, tuning may choose 10 for training.
    **settings
        Every other setting by its name; `help()` of this class lists them with their defaults.
    tune : bool, default True
        Choose the settings that were not given by short trials on held-out rows, if there are at least 1,000 rows; then
        train on all of them. The trials cost at most two passes, or about ten seconds where that is more. The logger
        "xmlpreck" says at level INFO what was chosen.
    calibrate : bool, default True
        Learn probabilities for `predict_proba`. Without `heldout` this trains once more, on all rows but a fifth (5,000
        at most), to score these; below 10,000 rows up to five times, each on four fifths.
    random_state : int, RandomState or None, default 0
        Seed; the same int and data give the same bits for any `n_jobs`.
    n_jobs : int or None
        Threads; None = 1, -1 = all cores.

    Attributes
    ----------
    classes_ : ndarray of shape (n_labels,)
        The label of each column of scores; 0, 1, 2, ... for an indicator matrix.
    model_ : Model
        The model that was trained.
    settings_ : dict
        The value of every setting that was used: `PrecAtKClassifier(tune=False, **settings_)` trains the same model.
    tuning_ : dict or None
        What was tried and how it scored; None if nothing was tuned.
    history_, n_iter_ : list of dict, int
        Facts about each pass, and the number of passes.
    n_features_in_, feature_names_in_ : int, ndarray of str
        Features of X; their names if X is a DataFrame of pandas or polars.

    Notes
    -----
    y is one of these, and `predict` returns its kind:

    - one class a row, of any type: `predict` gives the class with the highest score;
    - an indicator matrix of 0 and 1, dense or sparse, with a column for each label;
    - a DataFrame of 0 and 1: the names of its columns are the labels;
    - a list, or a numpy array of objects, of lists (tuples, sets) of labels. Rows that are equally long and hold only 0
      and 1 are an indicator, as everywhere in scikit-learn.

    Some labels may be more relevant to a row than others: give the relevances as values of a sparse matrix, as
    {label: relevance} or as (label, relevance) pairs. A label of relevance 0 is not relevant.

    scikit-learn's splitters do not know lists of labels: with lists or tuples give a search `cv=KFold(...)`; with sets
    `cv=5` works too.

    Equal scores: the lower label is first. A label has weights only for the features of its own rows.

    Examples
    --------
    >>> from xmlpreck import PrecAtKClassifier
    >>> X = [[1, 0, 0], [0, 1, 0], [0, 1, 1], [1, 0, 1]]
    >>> y = [["cats"], ["dogs"], ["dogs", "pets"], ["cats", "pets"]]
    >>> PrecAtKClassifier(k=1).fit(X, y).predict([[1, 0, 0]])
    [['cats']]
    """

    _trainer: Trainer | None = None  # of partial_fit; fit keeps none: its sums are as large as the model
    _config: RunConfig  # of the trainer

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Features, y: Labels, sample_weight: Weights = None) -> Self:
        """Train on all rows, from the start.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame of shape (n_rows, n_features)
        y : labels of each row, of any kind that the class names
        sample_weight : array of shape (n_rows,), default None
            2 equals the row twice, to the bit; 0 the row left out; 1.5 the row twice with labels of relevance 0.75.
        """
        rows = self._check_rows(X, reset=True)
        target = read_target(y)
        check_consistent_length(rows, target.labels)
        copies = copies_of(sample_weight, rows)
        rows = rows if copies is None else rows[copies.row_ids]
        trained = self._fit_rows(rows, copy_labels(target, copies), self._feature_names(), self.read_settings())
        self._config, self._trainer = trained.settings, None
        return self

    def partial_fit(
        self, X: Features, y: Labels, classes: npt.ArrayLike | None = None, sample_weight: Weights = None
    ) -> Self:
        """Train one pass on these rows, without tuning; `epochs` calls with the same rows are one `fit`.

        The first call needs all `classes`, unless y has a column for each; its settings hold for the later ones. After
        `fit`, training goes on from the fitted weights with a new running mean. There is no `predict_proba` after it.
        """
        is_first = not hasattr(self, "model_")
        rows = self._check_rows(X, reset=is_first)
        target = read_target(y, classes is not None if is_first else self._kind in (LISTS, OBJECTS))
        check_consistent_length(rows, target.labels)
        if is_first:
            self._start(target, classes)
        if classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise InputError("classes must be those of the first call; for an indicator they are 0, 1, 2, ...")
        config = self._config
        if config.rows.dense_transform != "none":
            raise InputError("partial_fit cannot learn a dense_transform, which needs all rows: use fit")
        labels, copies = align(target, self.classes_, self._kind), copies_of(sample_weight, rows)
        target = Target(self._kind, self._dtype, self.classes_, labels)
        data = Dataset(rows if copies is None else rows[copies.row_ids], copy_labels(target, copies, True).labels)
        batch = PreparedRows(data, config.rows, config.train.block_rows)
        trainer = self._trainer or self._new_trainer()
        trainer.grow(batch)
        if is_first:
            trainer.start_at_centroids(batch, np.bincount(data.labels.indices, data.labels.data, data.n_labels))
        history = ([] if is_first else self.history_) + [trainer.run_pass(batch).to_dict()]
        info = {"config": config.to_dict(), "history": history}
        model = Model(
            trainer.weights(), config.rows, label_names(self._kind, self.classes_), self._feature_names(), info
        )
        model = model.prune(config.train.prune) if config.train.prune else model
        self._set_fitted(Trained(model, config, None, None), target)
        self.n_iter_, self._trainer = trainer.n_passes, trainer
        return self

    def decision_function_sparse(self, X: Features) -> csr_array:
        """Return the scores that are not 0, as CSR (n_rows, n_labels): for label sets too large to hold densely."""
        rows = self._check_rows(X)
        sparse = all_sparse(self.model_.weights)
        weights = csr_array((sparse.values, sparse.labels, sparse.offsets), (len(sparse.dense_of), len(self.classes_)))
        scores = self.model_.prepare(rows) @ weights  # scipy's product stores no 0
        scores.sort_indices()
        return scores

    def _check_rows(self, X: Features, reset: bool = False) -> csr_array:
        """Return X as a Dataset has it: float32 CSR, ascending ids, no stored 0; the caller's matrix is not changed."""
        if not reset:
            check_is_fitted(self, "model_")
        if issparse(X):
            check_structure(X)
        rows = as_rows(validate_data(self, X, accept_sparse="csr", dtype=np.float32, reset=reset))
        # joblib hands out large arrays as read-only maps, for which the kernels would be compiled once more
        is_writeable = rows.data.flags.writeable and rows.indices.flags.writeable
        if not (is_writeable and rows.data.all()):
            rows = rows.copy()
            rows.eliminate_zeros()
        return rows

    def _start(self, target: Target, classes: npt.ArrayLike | None) -> None:
        """Begin with the first rows of partial_fit."""
        if classes is None and target.kind in (CLASSES, LISTS, OBJECTS):
            raise InputError("the first call of partial_fit needs classes: all labels that later calls may have")
        is_given = target.kind in (CLASSES, LISTS, OBJECTS)
        self.classes_ = np.unique(np.asarray(classes)) if is_given else target.classes
        self._kind, self._dtype = target.kind, target.dtype
        self._config, self._trainer = self.read_settings(), None

    def _restore(self, model: Model, facts: Facts) -> None:
        super()._restore(model, facts)
        self._config = facts.settings(model)
        self.n_features_in_ = model.n_features
        if model.feature_names is not None:
            self.feature_names_in_ = np.array(model.feature_names, object)

    def _new_trainer(self) -> Trainer:
        if hasattr(self, "model_"):
            return Trainer(all_sparse(self.model_.weights), self._config.train.of_member(-1), self.n_iter_)
        n_columns = self.n_features_in_ + (self._config.rows.bias > 0)
        return Trainer(no_weights(n_columns, len(self.classes_)), self._config.train.of_member(-1))

    def _feature_names(self) -> list[str] | None:
        return list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None
