"""Give a model what a vocabulary knows of its labels: ids, names, words that score, and labels without rows."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck import config as settings_of
from xmlpreck.api.engine import Note, log
from xmlpreck.config import InputError
from xmlpreck.data.dataset import build_csr
from xmlpreck.data.formats.vocabularies import read_vocabulary
from xmlpreck.data.rows import RowSource
from xmlpreck.data.text import TextVectorizer
from xmlpreck.data.vocabulary import Aligned, Label, Vocabulary, align
from xmlpreck.metrics.hierarchy import with_ancestors
from xmlpreck.model import Model
from xmlpreck.model.label_text import Strengths, add_words, read_words
from xmlpreck.train.label_text import count_labels, tune_words, word_trust


class LabelFile(NamedTuple):
    """A vocabulary of labels, and how much their words count."""

    path: str | Path
    language: str | None = None  # of the names; None: the one that most labels have a name in
    words: Strengths | None = None  # None: tuned; all 0: names only decorate

    def read(self) -> Vocabulary:
        """Read and check the file."""
        return read_vocabulary(self.path, self.language)


def read_ancestors(path: str | Path, rows: RowSource) -> csr_array:
    """Read the labels above each label of the rows, for Meter; other labels of the vocabulary come behind them."""
    vocabulary = read_vocabulary(path)
    labels = align(vocabulary, path, rows.label_names, rows.n_labels).vocabulary.labels
    if not any(label.broader for label in labels):
        raise InputError(f"{path}: no label has a broader one: --hierarchy needs a vocabulary with a hierarchy")
    known = {label.id for label in labels}
    return with_ancestors([*labels, *(label for label in vocabulary.labels if label.id not in known)])


def add_vocabulary(
    model: Model,
    rows: RowSource,
    vectorizer: TextVectorizer | None,
    vocabulary: Vocabulary,
    labels: LabelFile,
    note: Note = log.info,
) -> Model:
    """Return a trained model with a vocabulary, with what the words of labels add, and with the labels without rows.

    Without words, labels without rows are left out: there is nothing to score them by.
    """
    aligned = align(vocabulary, labels.path, rows.label_names, rows.n_labels)
    settings = settings_of.from_dict(model.info["config"], "the model")
    counts = count_labels(rows, settings.train.block_rows)
    strengths = labels.words
    if strengths is None:
        strengths = tune_words(rows, settings, aligned.vocabulary, vectorizer, counts)
    chosen = ", ".join(f"{name} {value:g}" for name, value in strengths._asdict().items())
    note(f"{labels.path}: {len(vocabulary.labels):,} labels; strength of their words: {chosen}")
    with_text = model.fresh(vectorizer=vectorizer)
    trust_of = partial(word_trust, rows, settings.rows, settings.train.block_rows) if strengths.trusted else None
    return with_label_words(with_text, aligned, counts, strengths, trust_of)


def with_label_words(
    model: Model,
    aligned: Aligned,
    counts: np.ndarray,
    strengths: Strengths,
    trust_of: Callable[[csr_array], np.ndarray] | None,
) -> Model:
    """Add words of labels to the weights of a model, whose labels are the first of the vocabulary."""
    vocabulary, keys = aligned
    info = model.info | {"label_text": strengths._asdict()}
    if not any(strengths):
        known = vocabulary.labels[: model.n_labels]
        names = keys[: model.n_labels] if model.label_names is not None else None
        return model.fresh(vocabulary=Vocabulary(known), label_names=names, info=info)
    every = np.zeros(len(vocabulary.labels), np.int64)
    every[: len(counts)] = counts
    added = read_words(model, vocabulary, every, trust_of, strengths.shared > 0).weighed(strengths, every)
    return model.fresh(
        weights=add_words(model.weights, added),
        vocabulary=Vocabulary(vocabulary.labels),
        label_names=keys if model.label_names is not None or len(keys) > model.n_labels else None,
        label_words=added,
        info=info,
        calibration=None,  # it was made for other scores
    )


def add_labels(model: Model, labels: LabelFile, name: str = "the model") -> Model:
    """Add the labels of a vocabulary that a model does not know, by their words alone; known ones take the new names.

    The weights of known labels stay as they are.
    """
    if model.vocabulary is None:
        raise InputError(f"{name}: was trained without --labels-file: train it with one first")
    given = labels.read()
    if given.features is not None:
        raise InputError(f"{labels.path}: has features of labels, not their words: labels are added by their words")
    known = {label.id: place for place, label in enumerate(model.vocabulary.labels)}
    newer: Mapping[str, Label] = {label.id: label for label in given.labels}
    kept = [newer.get(label.id, label) for label in model.vocabulary.labels]
    behind = sorted((one for one in given.labels if one.id not in known and not one.deprecated), key=lambda one: one.id)
    vocabulary = Vocabulary((*kept, *behind))
    stored: Any = model.info.get("label_text") or {}
    strengths = labels.words or Strengths(*(stored.get(name, 0.0) for name in Strengths._fields))
    if behind and not any(strengths):
        raise InputError(
            f"{name}: does not read the words of labels, so new ones would have no score: say --label-words 0,0,0.75"
        )
    keys = list(model.label_names or model.vocabulary.ids)
    by_name = keys[0] == model.vocabulary.labels[0].name != model.vocabulary.labels[0].id
    taken = set(keys)
    keys += [one.name if by_name and one.name not in taken else one.id for one in behind]
    counts = np.full(len(vocabulary.labels), np.iinfo(np.int32).max, np.int64)
    counts[model.n_labels :] = 0
    added = read_words(model, vocabulary, counts, share=False).weighed(strengths, counts)
    words = added
    if model.label_words is not None:
        words = csr_array(_wider(model.label_words, *added.shape) + added)
        words.sort_indices()
    return model.fresh(
        weights=add_words(model.weights, added),
        vocabulary=vocabulary,
        label_names=keys,
        label_words=words,
        calibration=None if behind else model.calibration,
    )


def name_all_labels(model: Model) -> Model:
    """Return a model whose vocabulary has all of its labels: those that came with new rows are their own names."""
    if model.vocabulary is None:
        return model
    known = len(model.vocabulary.labels)
    new = tuple(Label(key, key) for key in (model.label_names or [])[known:])
    words = model.label_words
    return model.fresh(
        vocabulary=Vocabulary((*model.vocabulary.labels, *new)),
        label_words=None if words is None else _wider(words, model.n_labels, model.n_features),
    )


def _wider(words: csr_array, n_labels: int, n_features: int) -> csr_array:
    """Return words of labels with empty rows and columns behind their own."""
    offsets = np.concatenate([words.indptr, np.full(n_labels - words.shape[0], words.indptr[-1], words.indptr.dtype)])
    return build_csr(words.data, words.indices, offsets, (n_labels, n_features))
