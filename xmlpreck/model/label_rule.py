"""How many labels a row gets: a number for all, or those from a score on, chosen on held-out rows.

Every rule is tried on the best `max_labels` labels of each row, and measured as `xmlpreck.metrics` does: micro counts
all pairs of row and label together, macro takes the mean over labels.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import ConfigError, InputError
from xmlpreck.data.dataset import TopK
from xmlpreck.metrics import hits
from xmlpreck.model.calibration import Calibration
from xmlpreck.model.macro import LabelWeights, best_k, frank_wolfe

GOALS = ("f1", "precision", "recall", "count")
AVERAGES = ("micro", "macro")
MAX_LABELS = 20
N_BOUNDS = 200  # scores that are tried: the best 20 labels of a row are cut in steps of 0.1 labels


@dataclass(frozen=True)
class LabelRule:
    """At most k labels: those with a score of `min_score` or more, and the first `min_labels` in any case.

    With weights, of the first k labels those `min_labels` whose weighted probabilities are the largest.
    """

    k: int
    min_score: float | None = None  # None: all k
    min_labels: int = 0
    probabilities: bool = False  # `min_score` is one, not a margin
    weights: LabelWeights | None = field(default=None, compare=False)

    def keep(self, top: TopK, calibration: Calibration | None, shown: TopK | None = None) -> TopK:
        """Keep of labels with margins those that a row gets, in their order; `shown` has other scores of them."""
        scores = top.scores
        if self.probabilities:
            if calibration is None:
                raise InputError(
                    "the number of labels was chosen by probabilities, which the model has not: optimize it"
                )
            scores = calibration.probabilities(top).scores
        kept = self.kept(top.labels, scores)
        shown = top if shown is None else shown
        labels, scores = np.where(kept, top.labels, -1), np.where(kept, shown.scores, np.float32(-np.inf))
        if self.weights is not None:  # others leave no gaps
            order = np.argsort(~kept, axis=1, kind="stable")
            labels, scores = np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)
        return TopK(labels, scores)

    def kept(self, labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Tell which labels a row gets, by scores that are margins or, with `probabilities`, probabilities."""
        place = np.arange(labels.shape[1])
        if self.weights is not None:
            return best_k(self.weights.gains(np.where(place < self.k, labels, -1), scores), self.min_labels)
        from_score = scores >= (-math.inf if self.min_score is None else self.min_score)
        return (labels >= 0) & (place < self.k) & (from_score | (place < self.min_labels))

    def to_text(self) -> str:
        """Describe the rule in a few words."""
        if self.weights is not None:
            return f"{self.min_labels} of the first {self.k} labels, by weighted probabilities"
        if self.min_score is None:
            return f"the first {self.k} labels"
        kind = "probability" if self.probabilities else "score"
        least = f", but at least {self.min_labels}" if self.min_labels else ""
        return f"labels with a {kind} of {self.min_score:.4g} or more, at most {self.k}{least}"


@dataclass(frozen=True)
class Measured:
    """Precision, recall and F1 in percent, and labels per row."""

    precision: float
    recall: float
    f1: float
    count: float


@dataclass(frozen=True)
class Goal:
    """What a rule is chosen for.

    f1 is made as large as possible; precision and recall are kept at `at_least` (percent), and the other one is made as
    large as possible; count comes as near as possible to the number of labels that rows have.
    """

    name: str = "f1"
    average: str = "micro"
    at_least: float | None = None
    n_weighted: int | None = None  # labels that every row gets, by weights of the labels

    def __post_init__(self) -> None:
        for flag, value, known in (("--for", self.name, GOALS), ("--average", self.average, AVERAGES)):
            if value not in known:
                raise ConfigError(f"{flag} must be {', '.join(known[:-1])} or {known[-1]}, but is {value!r:.40}")
        if self.n_weighted is not None:
            if self.average != "macro" or self.name == "count" or self.at_least is not None:
                raise ConfigError(
                    "--weigh-labels makes macro F1, precision or recall as large as possible: give --average macro, "
                    "--for f1, precision or recall, and no --at-least"
                )
        elif self.name in ("precision", "recall"):
            if self.at_least is None:
                raise ConfigError(f"--for {self.name} needs the least {self.name}, in percent: give it by --at-least")
            if not 0 < self.at_least <= 100:
                raise ConfigError(f"--at-least must be above 0 and at most 100 percent, but is {self.at_least!r:.40}")
        elif self.at_least is not None:
            raise ConfigError(f"--at-least has no effect with --for {self.name}: leave it out")

    def worth(self, found: Measured, true_count: float) -> tuple[float, ...]:
        """Return what is larger for better rules; the first number is negative where `at_least` is not reached."""
        if self.name == "f1":
            return (found.f1,)
        if self.name == "count":
            return 0.0, -abs(found.count - true_count), found.f1
        reached, other = found.precision, found.recall
        if self.name == "recall":
            reached, other = other, reached
        missing = min(reached - (self.at_least or 0), 0)
        return missing, other


class _Places:
    """The best labels of all rows, and which of them are right."""

    def __init__(self, blocks: Iterable[tuple[TopK, csr_array]], n_labels: int) -> None:
        labels, scores, right = [], [], []
        self.n_labels, self.truth = n_labels, np.zeros(n_labels, np.int64)
        for top, true in blocks:
            labels.append(top.labels)
            scores.append(top.scores)
            right.append(hits(top, true))
            self.truth += np.bincount(true.indices, minlength=n_labels)
        if not self.truth.any():
            raise InputError("no row has a label to choose the number of labels by: give rows with known labels")
        self.top = TopK(np.concatenate(labels), np.concatenate(scores))
        self.hit = np.concatenate(right)

    @property
    def true_count(self) -> float:
        return float(self.truth.sum() / len(self.hit))

    def measure(self, kept: np.ndarray, average: str) -> Measured:
        n_hits, n_kept = np.count_nonzero(self.hit & kept), np.count_nonzero(kept)
        count = float(n_kept / len(kept))
        if average == "micro":
            ratios = _ratios(np.array([n_hits]), np.array([n_kept]), np.array([self.truth.sum()]))
        else:
            hit_by, kept_by = (
                np.bincount(self.top.labels[mask], minlength=self.n_labels) for mask in (self.hit & kept, kept)
            )
            ratios = _ratios(hit_by, kept_by, self.truth)
        precision, recall, f1 = (float(ratio.mean()) for ratio in ratios)
        return Measured(precision, recall, f1, count)


def _ratios(n_hits: np.ndarray, n_kept: np.ndarray, n_true: np.ndarray) -> list[np.ndarray]:
    """Return precision, recall and F1 in percent, with x/0 = 0."""
    pairs = ((n_hits, n_kept), (n_hits, n_true), (2 * n_hits, n_kept + n_true))
    return [100.0 * above / np.maximum(below, 1) for above, below in pairs]


def _rules(top: TopK, scores: np.ndarray, probabilities: bool) -> Iterator[LabelRule]:
    """Yield what is tried, the simplest first."""
    k = top.labels.shape[1]
    if not probabilities:
        yield from (LabelRule(number) for number in range(1, k + 1))
    known = scores[top.labels >= 0]
    if len(known):
        bounds = np.unique(np.quantile(known, np.arange(N_BOUNDS) / N_BOUNDS, method="nearest"))
        for min_labels in (0, 1):
            yield from (LabelRule(k, float(bound), min_labels, probabilities) for bound in bounds)


class ChosenRule(NamedTuple):
    """A rule, what it was chosen for and what it gives on the rows that it was chosen on."""

    rule: LabelRule
    goal: Goal
    found: Measured
    true_count: float  # labels that a row has
    n_rows: int

    def to_info(self) -> dict[str, Any]:
        """Return what a model keeps."""
        about = asdict(replace(self.rule, weights=None)) | {"for": self.goal.name, "average": self.goal.average}
        about |= {"at_least": self.goal.at_least, "n_rows": self.n_rows, "true_count": self.true_count}
        if self.rule.weights is not None:
            about["weights"] = {name: array.tolist() for name, array in self.rule.weights._asdict().items()}
        return about | {"found": asdict(self.found)}


def choose_rule(
    blocks: Iterable[tuple[TopK, csr_array]], n_labels: int, goal: Goal, calibration: Calibration | None
) -> ChosenRule:
    """Choose the best rule for a goal by rows with their best labels (margins) and their true ones."""
    places = _Places(blocks, n_labels)
    if goal.n_weighted is not None:
        return _weigh_labels(places, goal, goal.n_weighted, calibration)
    best: tuple[tuple[float, ...], LabelRule, Measured] | None = None
    top = places.top
    kinds = [(False, top.scores)]
    if calibration is not None:
        kinds.append((True, calibration.probabilities(top).scores))
    for probabilities, scores in kinds:
        for rule in _rules(top, scores, probabilities):
            found = places.measure(rule.kept(top.labels, scores), goal.average)
            worth = goal.worth(found, places.true_count)
            if best is None or worth > best[0]:
                best = worth, rule, found
    assert best is not None
    worth, rule, found = best
    if worth[0] < 0:
        reached = found.precision if goal.name == "precision" else found.recall
        raise InputError(
            f"no number of labels has {goal.average} {goal.name} of {goal.at_least:g}%: the highest is {reached:.2f}%: "
            "give a smaller --at-least" + (", or a larger --max-labels" if goal.name == "recall" else "")
        )
    return ChosenRule(rule, goal, found, places.true_count, len(places.hit))


def _weigh_labels(places: _Places, goal: Goal, k: int, calibration: Calibration | None) -> ChosenRule:
    """Find the weights of labels for k labels a row."""
    if calibration is None:
        raise InputError("--weigh-labels needs probabilities, which the model has not: calibrate it first")
    top = places.top
    if k > top.labels.shape[1]:
        raise InputError(f"--weigh-labels {k} is more than the {top.labels.shape[1]} labels that it may choose from")
    scores = calibration.probabilities(top).scores
    weights, _ = frank_wolfe(top.labels, scores, places.hit, places.truth, k, goal.name)
    rule = LabelRule(top.labels.shape[1], None, k, True, weights)
    found = places.measure(rule.kept(top.labels, scores), goal.average)
    return ChosenRule(rule, goal, found, places.true_count, len(places.hit))


def rule_of(info: dict[str, Any]) -> LabelRule:
    """Read the rule that a model keeps in its info."""
    about = info.get("label_rule")
    if about is None:
        raise InputError("the model has no number of labels of its own: choose one with xmlpreck optimize")
    weights = about.get("weights")
    if weights is not None:
        labels, slopes, shifts = (np.array(weights[name]) for name in LabelWeights._fields)
        if not len(labels) + 1 == len(slopes) == len(shifts) or (np.diff(labels) <= 0).any():
            raise InputError("label_rule.weights of model.json do not fit together: optimize the model again")
        weights = LabelWeights(labels.astype(np.int64), slopes.astype(float), shifts.astype(float))
    return LabelRule(about["k"], about.get("min_score"), about["min_labels"], about["probabilities"], weights)
