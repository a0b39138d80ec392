"""Shortlists: labels worth scoring, from each feature's strongest labels (its champions); scores stay exact."""

from dataclasses import dataclass

import numpy as np

from xmlpreck.config import InputError
from xmlpreck.kernels.arrays import Rows, Weights, sparse_weights
from xmlpreck.kernels.shortlist import predict_shortlisted, take_champions
from xmlpreck.kernels.threads import run_team

# Labels of a row that are scored exactly, or k if that is more (docs/large.md has the recall).
CANDIDATES = 100


def room_for_champions(weights: Weights, per_feature: int) -> Weights:
    """Sparse rows of 0 for the per_feature largest weights of every feature; fill_champions finds these."""
    n_labels = int(weights.dense_rows.shape[1])
    lengths = np.where(weights.dense_of >= 0, n_labels, np.diff(weights.offsets))
    offsets = np.concatenate([[0], np.cumsum(np.minimum(lengths, per_feature))])
    size = int(offsets[-1])
    return sparse_weights(offsets, np.zeros(size, np.int32), np.zeros(size, weights.values.dtype), n_labels)


def fill_champions(champions: Weights, weights: Weights, n_threads: int) -> None:
    def work(thread: int) -> None:
        take_champions(thread, n_threads, weights, champions.offsets, champions.labels, champions.values)

    run_team(n_threads, work)


@dataclass(frozen=True)
class Shortlist:
    """The labels of the `per_feature` largest weights of each feature.

    A row's candidates are the labels with the largest sums over the champions of its features. They are scored
    exactly, and the best of them are predicted: a label may be missed, but a score has the bits of exact prediction.
    """

    champions: Weights

    @classmethod
    def of(cls, weights: Weights, per_feature: int) -> "Shortlist":
        if per_feature < 1:
            raise InputError(f"a shortlist has 1 or more labels a feature, but not {per_feature}")
        champions = room_for_champions(weights, per_feature)
        fill_champions(champions, weights, n_threads=1)
        return cls(champions)

    def predict(
        self, weights: Weights, rows: Rows, labels: np.ndarray, scores: np.ndarray, n_threads: int = 1
    ) -> np.ndarray:
        """Fill (n_rows, k) labels and scores; return the rows whose k scores are not all above 0.

        Labels that are no candidates may rank there with a score of 0, so these rows need exact prediction.
        """
        unsure = np.zeros(len(labels), bool)
        n_candidates = max(CANDIDATES, labels.shape[1])

        def work(thread: int) -> None:
            predict_shortlisted(thread, n_threads, rows, weights, self.champions, n_candidates, labels, scores, unsure)

        run_team(n_threads, work)
        return np.flatnonzero(unsure)
