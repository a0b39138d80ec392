"""Choose how much the words of labels count, by a short trial on some of the training rows."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.sparse import csr_array

from xmlpreck import metrics
from xmlpreck.config import RowsConfig, RunConfig
from xmlpreck.data.dataset import TopK
from xmlpreck.data.rows import RowSource, Subset, read_blocks
from xmlpreck.data.text import TextVectorizer
from xmlpreck.data.vocabulary import Vocabulary
from xmlpreck.model import Model
from xmlpreck.model.label_text import LabelWords, Strengths, from_csr, of_features, read_words
from xmlpreck.model.layout import prepare_rows
from xmlpreck.model.prediction import listed
from xmlpreck.train.trainer import Trainer
from xmlpreck.train.trials import Sample

TRIAL_PASSES = 1
# First a label's own words; where none of these pays, such as of names in another language, what labels share.
TRIED_OWN = tuple(Strengths(own, trusted=trusted) for own in (0.0, 0.5, 1.0) for trusted in (0.0, 1.0, 2.0))
# A model of few rows overstates what labels share: on wordnet-rel the trial would choose 2, and 0.25 is right.
TRIED_SHARED = tuple(Strengths(0.0, shared) for shared in (0.0, 0.125, 0.25))
TRUST_PRIOR = 1.0  # sum of values of a word at which half of its trust is its own, the other half that of all words
CANDIDATES = 20  # labels of a row by the weights and by each part of the words
MAX_TRAINED, MAX_HELDOUT = 16_384, 2048
KS = (1, 3, 5)


def count_labels(source: RowSource, block_rows: int) -> np.ndarray:
    """Count the rows of each label."""
    counts = np.zeros(source.n_labels, np.int64)
    for _, block in read_blocks(source, block_rows):
        counts += np.bincount(block.labels.indices, minlength=source.n_labels)
    return counts


def word_trust(source: RowSource, rows: RowsConfig, block_rows: int, own: csr_array) -> np.ndarray:
    """Return how far each feature can be trusted as a word of labels, (n_features,) from 0 to 1.

    It is the share of the feature's values that are in rows with a label whose names have it.
    """
    n_features = own.shape[1]
    has_word = csr_array((np.ones(own.nnz), own.indices, own.indptr), own.shape)[: source.n_labels]
    found, total = np.zeros(n_features), np.zeros(n_features)
    for _, block in read_blocks(source, block_rows):
        values = prepare_rows(block.rows, rows)[:, :n_features]
        labels = csr_array((np.ones(block.labels.nnz), block.labels.indices, block.labels.indptr), block.labels.shape)
        found += values.multiply((labels @ has_word) > 0).sum(axis=0)
        total += values.sum(axis=0)
    is_word = np.bincount(own.indices, minlength=n_features) > 0
    mean = found[is_word].sum() / max(total[is_word].sum(), 1e-30)
    return (TRUST_PRIOR * mean + found) / (TRUST_PRIOR + total)


def trial_rows(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the rows of the trial and those it is scored on, by default_rng([seed, 20])."""
    order = np.random.default_rng([seed, 20]).permutation(n_rows)
    n_heldout = min(n_rows // 4, MAX_HELDOUT)
    n_trained = min(n_rows // 2, max(MAX_TRAINED, n_rows // 8))
    return np.sort(order[n_heldout : n_heldout + n_trained]), np.sort(order[:n_heldout])


def tune_words(
    source: RowSource,
    config: RunConfig,
    vocabulary: Vocabulary,
    vectorizer: TextVectorizer | None,
    label_counts: np.ndarray,
) -> Strengths:
    """Return the strengths with the best mean PSP@k of held-out rows among those whose P@k are no lower than without.

    A model of some rows and few passes is tried on rows that it has not seen. Only labels that it has rows of count.
    """
    trained, heldout = trial_rows(source.n_rows, config.train.seed)
    if not len(heldout):
        return Strengths()
    train = replace(config.train.of_member(-1), epochs=TRIAL_PASSES, widen=False, average_from=1, prune=0.0)
    sample = Sample(Subset(source, trained), replace(config, train=train))
    made: list[Trainer] = []
    sample.train(replace(config, train=train), made.append, lambda: None)
    model = Model(made[-1].finish(), config.rows, None, source.feature_names, vectorizer=vectorizer)
    known = replace(vocabulary, labels=vocabulary.labels[: model.n_labels])
    held = Subset(source, heldout).read(0, len(heldout))
    is_known = (sample.label_counts > 0).astype(np.float32)
    truth = csr_array(held.labels.multiply(is_known))
    truth.eliminate_zeros()
    inverse = metrics.inverse_propensities(label_counts, source.n_rows, 0.55, 1.5)
    trust_of = partial(word_trust, Subset(source, trained), config.rows, train.block_rows)
    chosen = Strengths()
    for tried in (TRIED_OWN, TRIED_SHARED):
        words = read_words(model, known, sample.label_counts, trust_of, share=tried is TRIED_SHARED)
        scores = candidate_scores(model, words, sample.label_counts, held.rows, train.n_threads)
        chosen = choose(*scores, truth, inverse, tried)
        if chosen != Strengths():
            break
    return chosen


def candidate_scores(
    model: Model, words: LabelWords, counts: np.ndarray, rows: csr_array, n_threads: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return candidates of each row (n_rows, n), -1 = none, and their scores by weights, own, shared, trusted words."""
    n_rows = len(model.weights.dense_of)
    single = (Strengths(own=1.0), Strengths(shared=1.0), Strengths(trusted=1.0))
    parts = [words.weighed(one, counts) for one in single]
    scorers = [model, *(Model(from_csr(of_features(part, n_rows)), model.rows) for part in parts)]
    barred = np.where(counts > 0, 0, -np.inf).astype(np.float32)
    k = min(CANDIDATES, model.n_labels)
    tops = [scorer.predict_topk(rows, k, n_threads, barred) for scorer in scorers if scorer.n_weights]
    labels = np.sort(np.concatenate([top.labels for top in tops], axis=1), axis=1)
    labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = -1
    union = listed(TopK(labels, np.zeros_like(labels, np.float32)), model.n_labels)
    n = int(np.diff(union.indptr).max(initial=0))
    scores = []
    for scorer in scorers:
        ranked = scorer.rank_candidates(rows, union, max(n, 1))
        order = np.argsort(np.where(ranked.labels < 0, model.n_labels, ranked.labels), axis=1, kind="stable")
        candidates = np.take_along_axis(ranked.labels, order, axis=1)
        scores.append(np.take_along_axis(ranked.scores, order, axis=1))
    return candidates, scores


def choose(
    candidates: np.ndarray,
    scores: list[np.ndarray],
    truth: csr_array,
    inverse: np.ndarray,
    tried: Sequence[Strengths],
) -> Strengths:
    """Return the strengths of the best mean PSP@k among those that lower no P@k; of equal ones the first.

    The first of those to try must have no words. With a tolerance of 1.5 standard errors instead, P@1 of man-seealso
    fell by 0.3 on test rows.
    """
    weights, own, shared, trusted = (np.where(candidates < 0, 0.0, part) for part in scores)
    ks = [k for k in KS if k <= candidates.shape[1]]
    best, best_value = Strengths(), -np.inf
    without: dict[str, float] = {}
    for one in tried:
        total = weights + one.own * own + one.shared * shared + one.trusted * trusted
        total[candidates < 0] = -np.inf
        order = np.argsort(-total, axis=1, kind="stable")[:, : max(ks)]
        top = TopK(np.take_along_axis(candidates, order, 1), np.take_along_axis(total, order, 1).astype(np.float32))
        meter = metrics.Meter(truth.shape[1], ks, inverse_propensity=inverse, n_resamples=0)
        meter.add(top, truth)
        found = {name: score.value for name, score in meter.result().values.items()}
        without = without or found
        value = float(np.mean([found[f"PSP@{k}"] for k in ks]))
        if value > best_value and all(found[f"P@{k}"] >= without[f"P@{k}"] for k in ks):
            best, best_value = one, value
    return best
