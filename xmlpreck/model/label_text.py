"""Scores that read the words of labels, with part(n) = c / (c + n) for a label of n training rows and a c of each part:

    s_l(x) = <w_l, x> + own part(n_l) <u_l, x> + shared part(n_l) <v_l, x> + trusted part(n_l) <t u_l, x>

u_l is the tf-idf of the label's names in the feature space of the documents. v_l is the mean of the weights of all
labels that have the same words in their names, so that labels of a family share what they have learned, even where
features are not words of the names' language. t is how far each word can be trusted: of the texts that have it, the
share that have a label with it in its name. A label with many rows knows better than its words. All is added to the
weights: the model stays one sparse linear scorer.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, diags_array

from xmlpreck.config import TextConfig
from xmlpreck.data.dataset import build_csr
from xmlpreck.data.text import TextVectorizer, fit_text
from xmlpreck.data.vocabulary import Vocabulary
from xmlpreck.kernels.arrays import Weights, sparse_weights
from xmlpreck.model.layout import all_sparse, lay_out, rounded
from xmlpreck.model.model import Model
from xmlpreck.model.seal import ModelError

OWN_ROWS, SHARED_ROWS, TRUSTED_ROWS = 10.0, 4.0, 1.0  # c: with that many rows a label's words count half
MIN_GAIN = 0.01  # labels whose words would count less keep their weights
MAX_ROWS = 20  # rows of a label that count for the mean weights of a word
WORD_FEATURES = 100  # of the mean weights of a word
LABEL_FEATURES = 30  # of a label's mean over its words


class Strengths(NamedTuple):
    """How much the words of labels count beside their weights; 0 = not at all."""

    own: float = 0.0  # tf-idf of the label's own words
    shared: float = 0.0  # weights of labels that share words
    unseen: float = 0.75  # own words of a label without training rows
    trusted: float = 0.0  # own words, each by how far it can be trusted


class LabelWords(NamedTuple):
    """What the words of labels say, before they are weighed: a row of features for each label."""

    own: csr_array
    shared: csr_array
    trust: np.ndarray  # of each feature

    def weighed(self, strengths: Strengths, label_counts: np.ndarray) -> csr_array:
        """Return what is added to the weights of labels with these training rows, (n_labels, n_features) float32."""
        of_own = strengths.own * gains(label_counts, OWN_ROWS)
        own = diags_array(np.where(label_counts == 0, strengths.unseen, of_own)) @ self.own
        shared = diags_array(strengths.shared * gains(label_counts, SHARED_ROWS)) @ self.shared
        of_trusted = strengths.trusted * gains(label_counts, TRUSTED_ROWS)
        trusted = diags_array(np.where(label_counts == 0, 0.0, of_trusted)) @ self.own @ diags_array(self.trust)
        added = csr_array(own + shared + trusted, dtype=np.float32)
        added.eliminate_zeros()
        added.sort_indices()
        return added


def gains(label_counts: np.ndarray, half: float) -> np.ndarray:
    """Return how much the words of labels with these training rows count: half of it at `half` rows."""
    found = half / (half + label_counts)
    return np.where(found < MIN_GAIN, 0.0, found)


def label_texts(vocabulary: Vocabulary) -> list[str]:
    """Return the names of each label, one to a line."""
    return ["\n".join((label.name, *label.alternatives)) for label in vocabulary.labels]


def by_label(model: Model) -> csr_array:
    """Return the weights as rows of labels, (n_labels, n_features) without the bias."""
    sparse = all_sparse(model.weights)
    shape = (len(sparse.offsets) - 1, model.n_labels)
    columns = csr_array((sparse.values, sparse.labels, sparse.offsets), shape)[: model.n_features]
    return csr_array(columns.T)


def read_words(
    model: Model,
    vocabulary: Vocabulary,
    label_counts: np.ndarray,
    trust_of: Callable[[csr_array], np.ndarray] | None = None,
    share: bool = True,
) -> LabelWords:
    """Make the rows of all labels of a vocabulary, whose first ones are those of the model, in its order.

    `trust_of` measures the words of the labels' names on rows; without it no word is trusted. Without `share` the
    shared weights, which take the most time, are left empty.
    """
    texts = label_texts(vocabulary)
    weights = by_label(model)
    own = own_words(model, vocabulary, texts, weights)
    trust = np.zeros(model.n_features) if trust_of is None else trust_of(own)
    shared = shared_words(weights, texts, label_counts) if share else csr_array(own.shape)
    return LabelWords(own, shared, trust)


def own_words(model: Model, vocabulary: Vocabulary, texts: list[str], weights: csr_array) -> csr_array:
    """Return the tf-idf of the labels' names, or the rows that their file gives, with length 1."""
    shape = (len(texts), model.n_features)
    if vocabulary.features is not None:
        if vocabulary.features.shape[1] != model.n_features:
            n_given = vocabulary.features.shape[1]
            raise ModelError(f"the labels' features are {n_given}, but the rows have {model.n_features}")
        lengths = np.sqrt(vocabulary.features.multiply(vocabulary.features).sum(axis=1))
        return csr_array(diags_array(1 / np.maximum(lengths, 1e-30)) @ vocabulary.features)
    vectorizer = model.vectorizer
    if vectorizer is None:
        if model.feature_names is None:
            return csr_array(shape)
        # Features with names are taken for words; a word that many labels use says little.
        n_labels_of = np.bincount(weights.indices, minlength=model.n_features)
        idf = np.log((1 + model.n_labels) / (1 + n_labels_of)) + 1
        vectorizer = TextVectorizer(TextConfig(), model.n_labels, idf, model.feature_names)
    own = vectorizer.transform(texts)
    # Dense columns, which are no words, may be behind those of the words.
    return csr_array((own.data.astype(np.float64), own.indices, own.indptr), shape)


def shared_words(weights: csr_array, texts: list[str], label_counts: np.ndarray) -> csr_array:
    """Return the mean, over the words of each label, of the weights of the labels that have the word.

    Rare words count more (tf-idf of names among names), and so do labels with more rows, up to MAX_ROWS.
    """
    shape = (len(texts), weights.shape[1])
    try:
        words = fit_text([texts], min_df=2, max_df=1.0).transform(texts)
    except ValueError:  # no word is in two labels
        return csr_array(shape)
    words = csr_array(words, dtype=np.float64)
    counts = np.minimum(label_counts[: weights.shape[0]], MAX_ROWS).astype(np.float64)
    has_word = csr_array((np.ones(words.nnz), words.indices, words.indptr), words.shape)[: weights.shape[0]]
    weighing = csr_array(diags_array(counts) @ has_word)
    totals = np.asarray(weighing.sum(axis=0)).ravel()
    means = csr_array(diags_array(1 / (totals + 1)) @ (weighing.T @ weights.astype(np.float64)))
    return strongest(csr_array(words @ strongest(means, WORD_FEATURES)), LABEL_FEATURES)


def strongest(rows: csr_array, n: int) -> csr_array:
    """Keep the n largest values of each row, by size; of equal ones those of the first features."""
    rows.sort_indices()
    kept = []
    for start, end in zip(rows.indptr[:-1].tolist(), rows.indptr[1:].tolist(), strict=True):
        if end - start <= n:
            kept.append(np.arange(start, end))
        else:
            order = np.argsort(-np.abs(rows.data[start:end]), kind="stable")[:n]
            kept.append(start + np.sort(order))
    entries = np.concatenate(kept) if kept else np.zeros(0, np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in kept], dtype=np.int64)])
    return build_csr(rows.data[entries], rows.indices[entries], offsets, rows.shape)


def add_words(weights: Weights, added: csr_array) -> Weights:
    """Add (n_labels, n_features) to weights; labels behind those that the weights know get these alone."""
    sparse = all_sparse(weights)
    n_rows = len(sparse.offsets) - 1
    known = csr_array((sparse.values, sparse.labels, sparse.offsets), (n_rows, added.shape[0]))
    total = csr_array(known + of_features(added, n_rows), dtype=sparse.values.dtype)
    total.sort_indices()
    return rounded(lay_out(from_csr(total), narrow=False))


def of_features(added: csr_array, n_rows: int) -> csr_array:
    """Turn rows of labels into `n_rows` rows of features; that of the bias, behind the others, is empty."""
    rows = csr_array(added.T)
    rows.sort_indices()
    offsets = np.concatenate([rows.indptr, np.full(n_rows - rows.shape[0], rows.indptr[-1])])
    return csr_array((rows.data, rows.indices, offsets), (n_rows, added.shape[0]))


def from_csr(rows: csr_array) -> Weights:
    """Return rows of features (n_features, n_labels) as weights."""
    offsets, labels = rows.indptr.astype(np.int64), rows.indices.astype(np.int32, copy=False)
    return sparse_weights(offsets, labels, rows.data, rows.shape[1])
