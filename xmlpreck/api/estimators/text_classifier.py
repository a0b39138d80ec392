"""XMLTextClassifier: texts in, names of labels out, in one object."""

from __future__ import annotations  # so that help() shows the names of types

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_array
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from xmlpreck.api.engine import log
from xmlpreck.api.estimators.fitted import LabelPredictor
from xmlpreck.api.estimators.fitting import Weights, copies_of, copy_labels
from xmlpreck.api.estimators.parameters import TextParameters, documented
from xmlpreck.api.estimators.targets import Features, Labels, read_target
from xmlpreck.api.explaining import ExplainedRow, explain
from xmlpreck.config import InputError
from xmlpreck.data.text import fit_text
from xmlpreck.train import choose_analyzer, draw_rows


@documented("text", "train", "rows")
class XMLTextClassifier(LabelPredictor, TextParameters):
    """Classifier of texts: tf-idf of words and a linear model that is trained for the k labels at the top.

    A parameter that is None is not given: `fit` chooses it on held-out rows if it is one of those that are tuned, and
    takes its default otherwise. The model is the one that `xmlpreck train` makes of the same documents, to the bit.

    Parameters
    ----------
    k : int, default 5
        Labels at the top that training looks at and `predict` returns; a text with fewer labels trains with as many.
        If it is not given, tuning may choose 10 for training.
    **settings
        Every other setting by its name; `help()` of this class lists them with their defaults.
    tune_text : bool, default False
        Choose among words, pairs of words, runs of characters and BM25 by short runs on held-out texts first.
    tune, calibrate, random_state, n_jobs
        As in PrecAtKClassifier.

    Attributes
    ----------
    classes_ : ndarray of shape (n_labels,)
        The names of the labels.
    model_ : Model
        The model that was trained; `model_.vectorizer` makes texts to rows.
    settings_, tuning_, history_, n_iter_
        As in PrecAtKClassifier.

    Examples
    --------
    >>> from xmlpreck import XMLTextClassifier
    >>> texts = ["the cat sleeps", "the dog barks", "a cat purrs", "my dog runs"]
    >>> labels = [["cats"], ["dogs"], ["cats"], ["dogs"]]
    >>> classifier = XMLTextClassifier(k=1, min_df=1, max_df=1.0).fit(texts, labels)
    >>> classifier.predict(["one more cat"])
    [['cats']]
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = False, True, True
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Sequence[str], y: Labels, sample_weight: Weights = None) -> Self:
        """Learn the words and the labels of texts, and train.

        Parameters
        ----------
        X : list, array or Series of str
        y : list of lists of label names, or any other kind of labels that PrecAtKClassifier takes
        sample_weight : array of shape (n_texts,), default None
            2 equals the text twice, to the bit; 0 the text left out; 1.5 the text twice with labels of relevance 0.75.
        """
        texts, target = as_texts(X), read_target(y)
        check_consistent_length(texts, target.labels)
        copies = copies_of(sample_weight, np.zeros((len(texts), 1)))
        texts = texts if copies is None else [texts[i] for i in copies.row_ids]
        target, settings = copy_labels(target, copies), self.read_settings()
        evidence = None
        if self.tune_text:
            drawn = draw_rows(len(texts), settings.train)
            settings, evidence = choose_analyzer([texts[i] for i in drawn], target.labels[drawn], settings, log.info)
        vectorizer = fit_text([texts], **vars(settings.text))
        trained = self._fit_rows(vectorizer.transform(texts), target, vectorizer.feature_names, settings)
        info = {"analyzers": evidence} if self.tune_text else {}
        self.model_ = trained.model.fresh(vectorizer=vectorizer, info=trained.model.info | info)
        return self

    def explain(self, text: str, labels: Sequence[str | int] = (), k: int | None = None) -> ExplainedRow:
        """Explain the k best labels of a text, and those of `labels`: what each word adds to the score.

        `explain(text).to_dict()` has all facts by their names.
        """
        check_is_fitted(self, "model_")
        return explain(self.model_, text=text, k=self._check_k(k), labels=labels)

    def _check_rows(self, X: Features, reset: bool = False) -> csr_array:
        check_is_fitted(self, "model_")
        if self.model_.vectorizer is None:
            raise InputError("the model was trained on numbers, not on texts: load it by PrecAtKClassifier.load")
        return self.model_.rows_of(as_texts(X))


def as_texts(X: Features | Sequence[str]) -> list[str]:
    """Return a list, an array or a Series of texts as a list; what is no text is an error that names its row."""
    if isinstance(X, str):
        raise InputError("one text was given where a list of texts is needed: put it into [ ]")
    texts = list(np.atleast_1d(np.asarray(X, object)))
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {row} is {text!r:.40}, not a str: give an empty one where there is none")
    return [str(text) for text in texts]
