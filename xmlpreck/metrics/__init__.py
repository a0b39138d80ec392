"""Compute evaluation metrics under a named convention, with intervals and paired tests (docs/evaluation.md).

Every metric of rows is a ratio of two sums over rows. So one streaming pass adds up some columns, and a bootstrap adds
up the same columns with each row weighted by how often a resample has drawn it. All values are per cent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.special import bdtr

from xmlpreck.config import InputError
from xmlpreck.data.dataset import TopK
from xmlpreck.data.matrix import as_label_rows
from xmlpreck.kernels import ranking
from xmlpreck.kernels.threads import run_team
from xmlpreck.metrics.bins import BIN_EDGES as BIN_EDGES
from xmlpreck.metrics.bins import SHOTS as SHOTS
from xmlpreck.metrics.bins import divide_labels
from xmlpreck.metrics.hierarchy import shared_ancestors

REPORTED_KS = (1, 3, 5)
N_RESAMPLES = 1000
CONFIDENCE = 0.95
PROPENSITY = (0.55, 1.5)  # A and B of most data sets


@dataclass(frozen=True)
class Convention:
    """Choices of a tool where definitions differ; in all of them rows without labels count and score 0."""

    name: str
    text: str
    precision: str = "P"  # which precision it reports: P is hits / k, RP is hits / min(k, labels)
    full_ideal: bool = False  # PSnDCG divides by the discounts of k ranks, not of min(k, labels)
    macro_to_largest: bool = False  # macro means over the ids up to the largest seen, not over all labels
    served: bool = False  # its abandonment is the share of rows with a hit, not without


CONVENTIONS = {
    convention.name: convention
    for convention in (
        Convention("repository", "the XML repository's Matlab script", full_ideal=True),
        Convention("pyxclib", "pyxclib's xc_metrics"),
        Convention("napkinxc", "napkinXC's metrics module", macro_to_largest=True, served=True),
        Convention("rp", "LibMultiLabel and EURLEX57K papers: RP@k in place of P@k", precision="RP", full_ideal=True),
    )
}


class Estimate(NamedTuple):
    """A value and its 95% interval, if one was computed."""

    value: float
    low: float | None = None
    high: float | None = None


class Difference(NamedTuple):
    """Second minus first, on the same rows: its 95% interval and the two-sided p-value of no difference."""

    value: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class BinScores:
    """Labels with min_rows to max_rows training rows: their part of P@k (parts add up to P@k) and their recall R@k."""

    name: str
    min_rows: int
    max_rows: int | None
    n_labels: int
    n_true: int
    values: dict[str, Estimate]
    draws: dict[str, np.ndarray] = field(repr=False)

    def rows_text(self, dash: str) -> str:
        """Format the range of training rows: 10-99, 0 or 100+."""
        if self.max_rows is None:
            return f"{self.min_rows}+"
        return f"{self.min_rows}{dash}{self.max_rows}" if self.max_rows > self.min_rows else f"{self.min_rows}"


@dataclass(frozen=True)
class Scores:
    """All metrics of some predictions; `draws` are the values under the resamples."""

    convention: str
    ks: tuple[int, ...]
    n_rows: int
    n_rows_without_labels: int
    values: dict[str, Estimate]
    bins: list[BinScores]
    label_truth: np.ndarray = field(repr=False)  # (n_labels) rows with the label
    label_hits: np.ndarray = field(repr=False)  # (n_ks, n_labels) rows with a correct prediction in the top k
    label_predicted: np.ndarray = field(repr=False)  # (n_ks, n_labels) rows with a prediction in the top k
    draws: dict[str, np.ndarray] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return values, intervals and bins for JSON."""
        return {
            "convention": self.convention,
            "n_rows": self.n_rows,
            "n_rows_without_labels": self.n_rows_without_labels,
            **_values(self.values),
            "bins": [
                {
                    "name": part.name,
                    "training_rows": [part.min_rows, part.max_rows],
                    "n_labels": part.n_labels,
                    "n_true": part.n_true,
                    **_values(part.values),
                }
                for part in self.bins
            ],
        }


def _values(estimates: dict[str, Estimate]) -> dict[str, Any]:
    intervals = {name: [e.low, e.high] for name, e in estimates.items() if e.low is not None}
    return {name: estimate.value for name, estimate in estimates.items()} | {"intervals": intervals}


def inverse_propensities(label_counts: np.ndarray, n_rows: int, a: float, b: float) -> np.ndarray:
    """Return 1 + C (N_l + b)^-a, C = (ln N - 1)(b + 1)^a, for N training rows, N_l with the label (Jain 2016)."""
    if n_rows < 3:
        raise InputError(f"propensities need 3 training rows or more, but there are {n_rows}")
    c = (math.log(n_rows) - 1) * (b + 1) ** a
    return np.asarray(1 + c * (np.asarray(label_counts, np.float64) + b) ** -a)


def check_ks(ks: Sequence[int]) -> tuple[int, ...]:
    """Sort the ks; refuse duplicates and values below 1."""
    if not ks or min(ks) < 1 or len(set(ks)) < len(ks):
        raise InputError(f"ks must be different numbers from 1, but are {list(ks)}")
    return tuple(sorted(ks))


def find_convention(name: str) -> Convention:
    """Look up a convention by name."""
    if name not in CONVENTIONS:
        raise InputError(f"no convention {name!r}: choose one of {', '.join(CONVENTIONS)}")
    return CONVENTIONS[name]


def _check_fit(top: TopK, labels: Any) -> csr_array:
    """Return the true labels as CSR that the kernels may trust; refuse predictions that do not match them."""
    labels = as_label_rows(labels)
    n_rows, n_labels = labels.shape
    if top.labels.ndim != 2 or top.labels.dtype.kind != "i":
        raise InputError(f"predicted labels must be a matrix of ids, not {top.labels.shape} of {top.labels.dtype}")
    if len(top.labels) != n_rows:
        raise InputError(f"predictions have {len(top.labels)} rows, but the data has {n_rows}: not the same rows")
    if top.labels.size and not -1 <= top.labels.min() <= top.labels.max() < n_labels:
        wrong = top.labels.min() if top.labels.min() < -1 else top.labels.max()
        raise InputError(f"predicted label {wrong} is out of range: the data has {n_labels} labels")
    return labels


def hits(top: TopK, labels: csr_array) -> np.ndarray:
    """Mark the predicted labels that are relevant: boolean (n_rows, k)."""
    labels = _check_fit(top, labels)
    out = np.zeros(top.labels.shape, bool)
    ranking.mark_hits(top.labels, labels.indptr, labels.indices, out)
    return out


def precision_at_k(top: TopK, labels: csr_array, ks: Sequence[int] = REPORTED_KS) -> dict[str, float]:
    """Compute P@k = 1/n sum_i |relevant labels in the top k of row i| / k, for each k."""
    meter = Meter(labels.shape[1], ks, n_resamples=0)
    if max(ks) > (width := top.labels.shape[1]):
        raise InputError(f"P@{max(ks)} needs {max(ks)} predicted labels per row, but there are {width}")
    meter.add(top, labels)
    return meter.precision()


class Meter:
    """Accumulates metrics block by block; the same bits for any blocks and any number of threads.

    PSP and PSnDCG need inverse propensities; bins need label counts (training rows per label); hP, hR and hF1 need the
    ancestors of labels, as `hierarchy.with_ancestors` gives them. `drop_empty` leaves out rows without labels.
    """

    def __init__(
        self,
        n_labels: int,
        ks: Sequence[int] = REPORTED_KS,
        convention: str = "repository",
        *,
        inverse_propensity: np.ndarray | None = None,
        label_counts: np.ndarray | None = None,
        edges: Sequence[int] = BIN_EDGES,
        ancestors: csr_array | None = None,
        drop_empty: bool = False,
        n_resamples: int = N_RESAMPLES,
        seed: int = 0,
        n_threads: int = 1,
    ) -> None:
        self.n_labels, self.ks, self.convention = n_labels, check_ks(ks), find_convention(convention)
        self.drop_empty, self.seed, self.n_resamples = drop_empty, np.uint64(seed), n_resamples
        self.has_propensities = inverse_propensity is not None
        self.weights = np.ones(n_labels) if inverse_propensity is None else np.asarray(inverse_propensity, np.float64)
        if len(self.weights) != n_labels:
            raise InputError(f"there are {len(self.weights)} inverse propensities, but {n_labels} labels")
        self.label_counts = label_counts
        self.bins, self.bin_of = divide_labels(n_labels, label_counts, edges)
        n_ks, n_bins = len(self.ks), len(self.bins)
        self.first_of_bins = ranking.PER_ROW + n_ks * ranking.PER_K
        self.first_above = self.first_of_bins + n_bins * (1 + n_ks)
        self.ancestors = ancestors
        n_columns = self.first_above + (0 if ancestors is None else 1 + 2 * n_ks)
        self.n_rows = self.n_rows_without_labels = 0
        self.totals = np.zeros(n_columns)
        self.by_label = np.zeros((2, n_ks, n_labels), np.int64)
        self.label_truth = np.zeros(n_labels, np.int64)
        # The resamples are divided among threads, in whole words of draws.
        words = np.array_split(np.arange(-(-n_resamples // ranking.DRAWS_A_WORD)), n_threads)
        self.parts = [(int(w[0]), np.zeros((n_columns, w.size * ranking.DRAWS_A_WORD))) for w in words if w.size]

    def add(self, top: TopK, labels: csr_array) -> np.ndarray:
        """Add the next rows and return their statistics (n_rows, columns of kernels.ranking)."""
        labels = _check_fit(top, labels)
        if labels.shape[1] != self.n_labels:
            raise InputError(f"the rows have {labels.shape[1]} labels, but {self.n_labels} were expected")
        stats = np.empty((len(top.labels), self.totals.size))
        truth, bins = (labels.indptr, labels.indices), (self.bin_of, len(self.bins))
        choices = (np.array(self.ks), self.drop_empty, self.convention.full_ideal)
        ranking.judge_rows(top.labels, *truth, self.weights, *bins, *choices, stats, self.totals, self.by_label)
        if self.ancestors is not None:
            counts = shared_ancestors(self.ancestors, top, labels, self.ks)
            stats[:, self.first_above :] = counts * stats[:, [ranking.COUNTED]]
            self.totals[self.first_above :] += stats[:, self.first_above :].sum(axis=0)

        def resample(thread: int) -> None:
            first_word, sums = self.parts[thread]
            ranking.add_resampled(stats, self.n_rows, self.seed, _POISSON, first_word, sums)

        if self.parts:
            run_team(len(self.parts), resample)
        self.n_rows += len(stats)
        self.n_rows_without_labels += int(np.count_nonzero(np.diff(labels.indptr) == 0))
        self.label_truth += np.bincount(labels.indices, minlength=self.n_labels)
        return stats

    def row_scores(self, stats: np.ndarray) -> dict[str, np.ndarray]:
        """Return P@k (or RP@k) and nDCG@k of each row, from the statistics that `add` returned."""
        wanted = (self.convention.precision, "nDCG")
        return {name: row for name, row in self._by_row(stats.T).items() if name.partition("@")[0] in wanted}

    def precision(self) -> dict[str, float]:
        """Return P@k."""
        return {name: float(value[0]) for name, value in self._by_row(self.totals[:, None]).items() if name[:2] == "P@"}

    def result(self) -> Scores:
        """Return all metrics of the rows so far."""
        # Column 0 is the observed sum, the others are the resamples.
        sums = np.concatenate([self.totals[:, None], *(part for _, part in self.parts)], axis=1)[
            :, : 1 + self.n_resamples
        ]
        rows = self._by_row(sums)
        label_hits, label_predicted = np.cumsum(self.by_label, axis=1)
        return Scores(
            convention=self.convention.name,
            ks=self.ks,
            n_rows=self.n_rows,
            n_rows_without_labels=self.n_rows_without_labels,
            values=_estimates(rows) | self._by_label(label_hits, label_predicted),
            bins=self._by_bin(sums),
            label_truth=self.label_truth,
            label_hits=label_hits,
            label_predicted=label_predicted,
            draws={name: value[1:] for name, value in rows.items()},
        )

    def _by_row(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        """Compute the metrics that are ratios of sums over rows, for each column of `sums`."""
        n_ks = len(self.ks)
        counted, true, reciprocal = sums[: ranking.PER_ROW]
        for_k = sums[ranking.PER_ROW : self.first_of_bins].reshape(n_ks, ranking.PER_K, -1)
        values: dict[str, np.ndarray] = {}

        def put(name: str, above: Any, below: Any) -> None:
            for i, k in enumerate(self.ks):
                values[f"{name}@{k}"] = _per_cent(above[i], below[i])

        def column(index: int) -> np.ndarray:
            return for_k[:, index]

        everyone = [counted] * n_ks
        found, predicted = column(ranking.HITS), column(ranking.PREDICTED)
        if self.convention.precision == "P":
            put("P", found, [k * counted for k in self.ks])
        put("nDCG", column(ranking.NDCG), everyone)
        if self.has_propensities:
            put("PSP", column(ranking.PS_GAIN), column(ranking.PS_BEST))
            put("PSnDCG", column(ranking.PSN_GAIN), column(ranking.PSN_BEST))
        put("R", column(ranking.RECALL), everyone)
        put("RP", column(ranking.R_PRECISION), everyone)
        put("microP", found, predicted)
        put("microR", found, [true] * n_ks)
        put("microF1", 2 * found, predicted + true)
        served = column(ranking.SERVED)
        put("abandonment", served if self.convention.served else counted - served, everyone)
        values["MRR"] = _per_cent(reciprocal, counted)
        if self.ancestors is not None:
            above, shared = sums[self.first_above], sums[self.first_above + 1 :: 2]
            chosen = sums[self.first_above + 2 :: 2]
            put("hP", shared, chosen)
            put("hR", shared, [above] * n_ks)
            put("hF1", 2 * shared, chosen + above)
        return values

    def _by_label(self, label_hits: np.ndarray, label_predicted: np.ndarray) -> dict[str, Estimate]:
        """Compute the metrics that are means over labels; resamples lose labels and are biased, so no interval."""
        true = self.label_truth
        ratios = {
            "macroP": _per_cent(label_hits, label_predicted),
            "macroR": _per_cent(label_hits, np.broadcast_to(true, label_hits.shape)),
            "macroF1": _per_cent(2 * label_hits, label_predicted + true),
        }
        n_labels = np.full(len(self.ks), self.n_labels)
        if self.convention.macro_to_largest:
            seen = (label_predicted > 0) | (true > 0)
            n_labels = np.maximum((seen * np.arange(1, self.n_labels + 1)).max(axis=1), 1)
        means = {name: ratio.sum(axis=1) / n_labels for name, ratio in ratios.items()}
        means["coverage"] = _per_cent(np.count_nonzero(label_hits, axis=1), np.count_nonzero(true))
        return {f"{name}@{k}": Estimate(float(mean[i])) for name, mean in means.items() for i, k in enumerate(self.ks)}

    def _by_bin(self, sums: np.ndarray) -> list[BinScores]:
        if self.label_counts is None:
            return []
        n_ks, n_bins = len(self.ks), len(self.bins)
        of_bins = sums[self.first_of_bins : self.first_above].reshape(1 + n_ks, n_bins, -1)
        scores = []
        for index, (name, min_rows, max_rows) in enumerate(self.bins):
            true, found = of_bins[0, index], of_bins[1:, index]
            draws = {f"P@{k}": _per_cent(found[i], k * sums[ranking.COUNTED]) for i, k in enumerate(self.ks)}
            draws |= {f"R@{k}": _per_cent(found[i], true) for i, k in enumerate(self.ks)}
            if n_labels := int(np.count_nonzero(self.bin_of == index)):
                resampled = {name: value[1:] for name, value in draws.items()}
                values = _estimates(draws)
                scores.append(BinScores(name, min_rows, max_rows, n_labels, int(true[0]), values, resampled))
        return scores


def _per_cent(above: Any, below: Any) -> np.ndarray:
    """Return 100 above / below, with x/0 = 0."""
    above = 100.0 * np.asarray(above)
    return np.divide(above, below, out=np.zeros_like(above), where=np.asarray(below) > 0)


def _interval(draws: np.ndarray) -> tuple[float, float]:
    """Return the middle 95% of resampled values."""
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, [outside, 1 - outside])
    return float(low), float(high)


def _estimates(draws: dict[str, np.ndarray]) -> dict[str, Estimate]:
    """Return each observed value (the first) with the interval of the resampled ones."""
    return {
        name: Estimate(float(values[0]), *(_interval(values[1:]) if len(values) > 1 else ()))
        for name, values in draws.items()
    }


def difference(first: float, second: float, first_draws: np.ndarray, second_draws: np.ndarray) -> Difference:
    """Compare two values by a paired bootstrap: both have the same resamples of the same rows.

    p = 2 min(#{d <= 0}, #{d >= 0}) / n over the n resampled differences d, with the observed one counted in each.
    """
    drawn = second_draws - first_draws
    rarer = min(np.count_nonzero(drawn <= 0), np.count_nonzero(drawn >= 0))
    p_value = min(1.0, 2 * (rarer + 1) / (len(drawn) + 1))
    return Difference(second - first, *_interval(drawn), p_value)


def sign_test(n_won: int, n_lost: int) -> float:
    """Return the two-sided p-value of the sign test (exact binomial; ties are left out)."""
    return min(1.0, 2 * float(bdtr(min(n_won, n_lost), n_won + n_lost, 0.5)))


def _poisson_table() -> np.ndarray:
    """Tabulate Poisson(1) by 16 random bits u: the number of steps of its distribution function up to u / 2^16."""
    steps = accumulate(math.exp(-1) / math.factorial(n) for n in range(12))
    return np.searchsorted(np.round(np.fromiter(steps, float) * 2**16), np.arange(2**16), side="right").astype(float)


_POISSON = _poisson_table()
