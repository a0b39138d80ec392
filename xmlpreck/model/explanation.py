"""Why a label stands where it does: what each feature of the row adds to its score, and what would change its place."""

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError, parse_whole
from xmlpreck.data.dataset import build_csr
from xmlpreck.data.matrix import as_rows
from xmlpreck.kernels import bfloat
from xmlpreck.kernels.arrays import Weights
from xmlpreck.model import Model

# As many features are tried to be removed: a longer list explains nothing.
MOST_REMOVED = 10


class Names(NamedTuple):
    """What labels and features are called; those without a name go by their number."""

    labels: list[str] | None
    features: list[str] | None
    n_features: int  # of a row as it is given; the bias stands behind them
    ids: list[str] | None = None  # of a vocabulary
    keys: list[str] | None = None  # what data call labels, where that is another name

    @classmethod
    def of(cls, model: Model) -> "Names":
        """Return the names that a model has of its own."""
        return cls(model.shown_names, model.feature_names, model.n_features, model.label_ids, model.label_names)

    def label(self, label: int) -> str:
        return self.labels[label] if self.labels and label < len(self.labels) else f"label {label}"

    def feature(self, feature: int) -> str:
        if feature == self.n_features:
            return "bias"
        return self.features[feature] if self.features else f"feature {feature}"

    def find_label(self, word: str, n_labels: int) -> int:
        """The label of that name, else of that number; the model knows the first n_labels."""
        names = self.labels or []
        known = next((texts for texts in (self.ids, self.keys, names) if texts and word in texts), None)
        label = known.index(word) if known else -1 if (number := parse_whole(word)) is None else number
        if 0 <= label < n_labels:
            return label
        if label >= 0 or not names:
            raise InputError(
                f"--label {word!r:.60}: is none of the model's labels, whose numbers are 0 to {n_labels - 1}"
            )
        folded = {name.casefold(): name for name in names}
        near = [folded[name] for name in difflib.get_close_matches(word.casefold(), folded, n=3)]
        advice = f"the nearest are {', '.join(map(repr, near))}" if near else "and none that is like it"
        raise InputError(f"--label {word!r:.60}: the model knows no label of this name, {advice}")


class Parts(NamedTuple):
    """A label's score, feature by feature in the row's order: s_l = sum_f x_f w_fl, with x as it is scored."""

    features: np.ndarray  # ids; the last is the bias, if there is one
    values: np.ndarray  # x_f: scaled to unit length, if the model does so
    weights: np.ndarray  # w_fl; 0 where the label has none
    words: np.ndarray | None = None  # the part of w_fl that came from the words of the label; None: of no model

    @property
    def contributions(self) -> np.ndarray:
        """x_f w_fl; their sum in this order and type is the score to the last bit."""
        return np.asarray(self.values * self.weights)

    @property
    def from_words(self) -> float | None:
        """What the words of the label add to its score; None where the model does not read them."""
        return None if self.words is None else float((self.values * self.words).sum())

    def falling(self) -> np.ndarray:
        """Places of the contributions that are not 0: from the most for the label to the most against it."""
        contributions = self.contributions
        order = np.argsort(-contributions, kind="stable")
        return order[contributions[order] != 0]

    def strongest(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The n that weigh most, for or against, and the others; both as in `falling`."""
        order = self.falling()
        sizes = np.abs(self.contributions[order])
        is_strong = np.zeros(len(order), bool)
        is_strong[np.argsort(-sizes, kind="stable")[:n]] = True
        return order[is_strong], order[~is_strong]


@dataclass(frozen=True)
class Explanation:
    """One label of one row, judged by the k-th best of all other labels: who is better is among the first k."""

    label: int
    rank: int  # from 1
    score: float
    is_true: bool | None  # None: not known
    is_predicted: bool
    parts: Parts
    rival: int | None  # the label it keeps out, or the one that keeps it out; None: there are only k labels
    lead: float  # over the rival; below 0 what it lacks
    removal: list[int] | None  # features without which it changes sides; None: none were found
    blocks: dict[str, float] | None = None  # what sparse features, dense ones and the bias add; None: none are dense

    def to_dict(self, names: Names) -> dict[str, Any]:
        columns = (self.parts.features, self.parts.values, self.parts.weights, self.parts.contributions)
        return {
            "label": self.label,
            **({} if names.ids is None or self.label >= len(names.ids) else {"label_id": names.ids[self.label]}),
            "name": names.label(self.label),
            "rank": self.rank,
            "score": self.score,
            **({} if self.parts.words is None else {"from_words": self.parts.from_words}),
            "true": self.is_true,
            "predicted": self.is_predicted,
            "rival": None if self.rival is None else {"label": self.rival, "name": names.label(self.rival)},
            "lead": self.lead,
            **({} if self.blocks is None else {"blocks": self.blocks}),
            "removal": self.removal and [{"feature": f, "name": names.feature(f)} for f in self.removal],
            "contributions": [
                {"feature": feature, "name": names.feature(feature), "value": value, "weight": weight, "adds": adds}
                for feature, value, weight, adds in zip(*(column.tolist() for column in columns), strict=True)
            ],
        }


def explain(
    model: Model, row: csr_array, k: int, asked: Sequence[int] = (), truth: Collection[int] | None = None
) -> list[Explanation]:
    """The first k labels of a row (1, n_features), then those that were asked for; `truth`: its labels, if known."""
    row = as_rows(row)
    k = min(k, model.n_labels)
    predicted = [label for label in model.predict_topk(row, k).labels[0].tolist() if label >= 0]
    scores = model.decision_function(row)[0]
    explained = []
    for label in dict.fromkeys([*predicted, *asked]):
        score = scores[label]
        _, rival = _judge(model, row, k, label)
        explained.append(
            Explanation(
                label=label,
                rank=1 + int((scores > score).sum() + (scores[:label] == score).sum()),
                score=float(score),
                is_true=None if truth is None else label in truth,
                is_predicted=label in predicted,
                parts=(parts := parts_of(model, row, label)),
                rival=rival,
                lead=0.0 if rival is None else float(score) - float(scores[rival]),
                removal=None if rival is None else find_removal(model, row, k, label),
                blocks=blocks_of(model, parts) if model.rows.n_dense else None,
            )
        )
    return explained


def parts_of(model: Model, row: csr_array, label: int) -> Parts:
    prepared = model.prepare(row)
    words = None
    if model.label_words is not None:
        words = np.zeros(len(prepared.indices), np.float32)
        start, stop = model.label_words.indptr[label : label + 2]
        _, ours, theirs = np.intersect1d(
            prepared.indices, model.label_words.indices[start:stop], assume_unique=True, return_indices=True
        )
        words[ours] = model.label_words.data[start:stop][theirs]
    return Parts(prepared.indices, prepared.data, weights_of(model.weights, prepared.indices, label), words)


def blocks_of(model: Model, parts: Parts) -> dict[str, float]:
    """Sum what the features of each block add."""
    first_dense, bias = model.n_features - model.rows.n_dense, model.n_features
    block_of = np.searchsorted([first_dense, bias], parts.features, side="right")
    sums = np.bincount(block_of, parts.contributions, minlength=3)
    return dict(zip(("words" if model.vectorizer else "sparse", "dense", "bias"), sums.tolist(), strict=True))


def weights_of(weights: Weights, features: np.ndarray, label: int) -> np.ndarray:
    """The label's weight for each of the features: in dense rows, or by a binary search in all sparse rows at once."""
    found = np.zeros(len(features), weights.values.dtype)
    dense_of = weights.dense_of[features]
    is_dense = dense_of >= 0
    found[is_dense] = bfloat.widen(weights.dense_rows[dense_of[is_dense], label])
    sparse = np.flatnonzero(~is_dense)
    low, high = weights.offsets[features[sparse]], weights.offsets[features[sparse] + 1]
    has_any = low < high
    sparse, low, high = sparse[has_any], low[has_any], high[has_any] - 1
    while (is_open := low < high).any():  # the first label that is not below the wanted one is in low..high
        middle = (low + high) // 2
        is_below = weights.labels[middle] < label
        low = np.where(is_open & is_below, middle + 1, low)
        high = np.where(is_open & ~is_below, middle, high)
    is_label = weights.labels[low] == label
    found[sparse[is_label]] = weights.values[low[is_label]]
    return found


def _judge(model: Model, row: csr_array, k: int, label: int) -> tuple[bool, int | None]:
    """Is the label among the first k, and the k-th best of all other labels."""
    top = model.predict_topk(row, k + 1, guess_empty=True).labels[0]
    others = top[top != label]
    return label in top[:k], int(others[k - 1]) if len(others) >= k else None


def find_removal(model: Model, row: csr_array, k: int, label: int) -> list[int] | None:
    """Few features of the row, dense ones not among them, without which the label leaves the first k, or enters them.

    Greedy: the feature that does most for the label (against it) compared with its rival goes first, then the row is
    predicted without it, with what is left scaled anew. At the end those go back that were not needed. So the set is
    proven to do it, but a smaller one may exist. None: MOST_REMOVED were not enough, or none was left that helps.
    """
    was_in, rival = _judge(model, row, k, label)
    removed: list[int] = []
    is_in, rest = was_in, row
    while is_in == was_in:
        if len(removed) == MOST_REMOVED or rival is None:
            return None
        ours, theirs = (parts_of(model, rest, one) for one in (label, rival))
        may_go = ours.features < model.n_features - model.rows.n_dense  # neither the bias nor a dense feature
        gains = (ours.contributions - theirs.contributions)[may_go] * (1 if was_in else -1)
        if not (gains > 0).any():
            return None
        removed.append(int(ours.features[may_go][gains.argmax()]))
        rest = without(row, removed)
        is_in, rival = _judge(model, rest, k, label)
    for feature in removed[:-1]:
        fewer = [other for other in removed if other != feature]
        if _judge(model, without(row, fewer), k, label)[0] != was_in:
            removed = fewer
    return removed


def without(row: csr_array, features: Sequence[int]) -> csr_array:
    """The row, less these features."""
    stays = ~np.isin(row.indices, features)
    return build_csr(row.data[stays], row.indices[stays], np.array([0, stays.sum()]), row.shape)
