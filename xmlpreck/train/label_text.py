"""Choose how much the words of labels count, by a short trial on some of the training rows."""

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from xmlpreck import metrics
from xmlpreck.config import RunConfig
from xmlpreck.data.dataset import TopK
from xmlpreck.data.rows import RowSource, Subset, read_blocks
from xmlpreck.data.text import TextVectorizer
from xmlpreck.data.vocabulary import Vocabulary
from xmlpreck.model import Model
from xmlpreck.model.label_text import LabelWords, Strengths, from_csr, of_features, read_words
from xmlpreck.model.prediction import listed
from xmlpreck.train.trainer import Trainer
from xmlpreck.train.trials import Sample

TRIAL_PASSES = 1
TRIED_OWN = (0.0, 0.25, 0.5, 1.0)
# A model of few rows overstates what labels share: on wordnet-rel the trial would choose 2, and 0.25 is right.
TRIED_SHARED = (0.0, 0.125, 0.25)
CANDIDATES = 20  # labels of a row by each of weights, own words and shared words
MAX_TRAINED, MAX_HELDOUT = 16_384, 2048
KS = (1, 3, 5)
TOLERANCE = 1.5


def count_labels(source: RowSource, block_rows: int) -> np.ndarray:
    """Count the rows of each label."""
    counts = np.zeros(source.n_labels, np.int64)
    for _, block in read_blocks(source, block_rows):
        counts += np.bincount(block.labels.indices, minlength=source.n_labels)
    return counts


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
    words = read_words(model, known, sample.label_counts)
    held = Subset(source, heldout).read(0, len(heldout))
    is_known = (sample.label_counts > 0).astype(np.float32)
    truth = csr_array(held.labels.multiply(is_known))
    truth.eliminate_zeros()
    inverse = metrics.inverse_propensities(label_counts, source.n_rows, 0.55, 1.5)
    scores = candidate_scores(model, words, sample.label_counts, held.rows, train.n_threads)
    return choose(*scores, truth, inverse)


def candidate_scores(
    model: Model, words: LabelWords, counts: np.ndarray, rows: csr_array, n_threads: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return candidates of each row (n_rows, n), -1 = none, and their scores by weights, own and shared words."""
    n_rows = len(model.weights.dense_of)
    parts = [words.weighed(part, counts) for part in (Strengths(1.0, 0.0), Strengths(0.0, 1.0))]
    scorers = [model, *(Model(from_csr(of_features(part, n_rows)), model.rows) for part in parts)]
    barred = np.where(counts > 0, 0, -np.inf).astype(np.float32)
    k = min(CANDIDATES, model.n_labels)
    tops = [scorer.predict_topk(rows, k, n_threads, barred) for scorer in scorers]
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


def choose(candidates: np.ndarray, scores: list[np.ndarray], truth: csr_array, inverse: np.ndarray) -> Strengths:
    """Return the strengths of the best mean PSP@k among those that lower no P@k by more than chance would.

    Chance is TOLERANCE standard errors of the difference to no words, row by row. Of equal ones the weakest is taken.
    """
    weights, own, shared = (np.where(candidates < 0, 0.0, part) for part in scores)
    ks = [k for k in KS if k <= candidates.shape[1]]
    best, best_value = Strengths(), -np.inf
    without: dict[str, np.ndarray] = {}
    for strengths in (Strengths(a, b) for a in TRIED_OWN for b in TRIED_SHARED):
        total = np.where(candidates < 0, -np.inf, weights + strengths.own * own + strengths.shared * shared)
        order = np.argsort(-total, axis=1, kind="stable")[:, : max(ks)]
        top = TopK(np.take_along_axis(candidates, order, 1), np.take_along_axis(total, order, 1).astype(np.float32))
        meter = metrics.Meter(truth.shape[1], ks, inverse_propensity=inverse, n_resamples=0)
        rows = meter.row_scores(meter.add(top, truth))
        without = without or rows  # the first has no words
        changes = [rows[f"P@{k}"] - without[f"P@{k}"] for k in ks]
        is_lower = [one.mean() < -TOLERANCE * one.std() / np.sqrt(len(one)) for one in changes]
        found = meter.result().values
        value = float(np.mean([found[f"PSP@{k}"].value for k in ks]))
        if not any(is_lower) and value > best_value:
            best, best_value = strengths, value
    return best
