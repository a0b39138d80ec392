"""Generate synthetic data: power laws over labels and words, learnable but not trivial.

A row draws labels; some of its words come from its labels' prototypes, the rest from a common background.
"""

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import InputError
from xmlpreck.data.dataset import Dataset, build_csr

DEMO_SEED = 2024

_ADJECTIVES = (  # noqa: SIM905 - a list of literals would fill a screen
    "amber ancient autumn blue brave bright broad calm clear cold copper coral crimson deep distant early "
    "eastern electric emerald faint fertile gentle gilded golden grand green hidden hollow inland ivory "
    "late level little lofty lone lunar marble mellow misty narrow noble northern open pale patient plain "
    "polar quiet rapid red remote rising round sandy scarlet secret silent silver slow solar southern "
    "stony swift tidal velvet violet warm western white wide wild winter young"
).split()
_NOUNS = (  # noqa: SIM905 - a list of literals would fill a screen
    "anchor arch atlas bay beacon bell bridge brook canal candle canyon castle cedar chart cliff clock "
    "comet copper creek delta desert dune engine falcon ferry field fjord forest fountain garden gate "
    "glacier grove harbour heron hill island juniper kettle lagoon lantern ledger library lighthouse loom "
    "maple market meadow mill mirror moor mountain oak ocean orchard otter paper pebble pine planet "
    "plateau quarry quartz reef ridge river sail signal spring station stone summit swan thicket tower "
    "tunnel valley village violin wharf willow window"
).split()

# Chosen by the scores of linear classifiers on the demo (tests/test_synthetic.py): steeper laws and a larger
# share of prototype words make the set easier.
_LABEL_EXPONENT = 0.8
_WORD_EXPONENT = 0.9
_PROTOTYPE_EXPONENT = 0.4
_PROTOTYPE_SIZE = 12
_PROTOTYPE_SHARE = 0.38
_FAMILY_SIZE = 10
_MAX_LABELS = 2.0  # per row, as a multiple of the mean


def make_dataset(
    n_rows: int,
    n_features: int,
    n_labels: int,
    *,
    features_per_row: float = 40.0,
    labels_per_row: float = 4.0,
    seed: int,
) -> Dataset:
    """Draw a data set; the same arguments give the same bytes. The means per row are approximate."""
    sizes = {"n_rows": n_rows, "n_features": n_features, "n_labels": n_labels}
    means = {"features_per_row": features_per_row, "labels_per_row": labels_per_row}
    for name, size in (sizes | means).items():
        if size < 1:
            raise InputError(f"{name} {size} is too small: a synthetic data set needs at least 1")
    rng = np.random.default_rng(seed)
    labels = _draw_labels(rng, n_rows, n_labels, labels_per_row)
    counts = _draw_words(rng, labels, n_features, features_per_row)
    idf = 1 + np.log((1 + n_rows) / (1 + np.bincount(counts.indices, minlength=n_features)))
    return Dataset(
        weigh(counts, idf),
        labels,
        [_label_name(label) for label in range(n_labels)],
        [f"word-{feature:05d}-{_NOUNS[feature % len(_NOUNS)]}" for feature in range(n_features)],
    )


def make_demo() -> tuple[Dataset, Dataset]:
    """Draw the catalogue's `demo`: 8,000 training rows and 2,000 test rows."""
    whole = make_dataset(10_000, 4_000, 1_000, seed=DEMO_SEED)
    train, test = slice(None, 8_000), slice(8_000, None)
    return (
        whole._replace(rows=whole.rows[train], labels=whole.labels[train]),
        whole._replace(rows=whole.rows[test], labels=whole.labels[test]),
    )


def _label_name(label: int) -> str:
    """Combine an adjective and a noun; when all pairs are used up, add a number."""
    number, pair = divmod(label, len(_ADJECTIVES) * len(_NOUNS))
    # The adjective advances with the noun, so that neighbouring labels share no word.
    noun = pair % len(_NOUNS)
    adjective = (pair // len(_NOUNS) + noun) % len(_ADJECTIVES)
    return f"synthetic/{_ADJECTIVES[adjective]}-{_NOUNS[noun]}" + (f"-{number + 1}" if number else "")


def power_law(rng: np.random.Generator, size: int, exponent: float) -> np.ndarray:
    """Return cumulative probabilities of `size` ids, in random order of frequency."""
    weights = rng.permutation(np.arange(1.0, size + 1) ** -exponent)
    return np.cumsum(weights) / weights.sum()


def draw(rng: np.random.Generator, law: np.ndarray, shape: int | tuple[int, int]) -> np.ndarray:
    # The last cumulative probability may fall short of 1 by rounding.
    return np.minimum(np.searchsorted(law, rng.random(shape), side="right"), law.size - 1)


def count_pairs(row: np.ndarray, column: np.ndarray, shape: tuple[int, int]) -> csr_array:
    """Count how often each (row, column) was drawn, as float32 CSR with ascending int32 ids."""
    drawn, count = np.unique(row.astype(np.int64) * shape[1] + column, return_counts=True)
    offsets = np.searchsorted(drawn, np.arange(shape[0] + 1, dtype=np.int64) * shape[1])
    return build_csr(count.astype(np.float32), (drawn % shape[1]).astype(np.int32), offsets, shape)


def _draw_labels(rng: np.random.Generator, n_rows: int, n_labels: int, labels_per_row: float) -> csr_array:
    """Draw 1 to `_MAX_LABELS` times the mean distinct labels per row; labels never drawn go to random rows."""
    max_labels = min(n_labels, max(1, round(_MAX_LABELS * labels_per_row)))
    wanted = np.clip(1 + rng.poisson(labels_per_row - 1, n_rows), 1, max_labels)
    # Twice as many candidates as needed, because repeated ones are dropped.
    candidates = draw(rng, power_law(rng, n_labels, _LABEL_EXPONENT), (n_rows, 2 * max_labels))
    order = np.argsort(candidates, axis=1, kind="stable")
    ascending = np.take_along_axis(candidates, order, axis=1)
    is_new = np.ones(candidates.shape, bool)
    np.put_along_axis(is_new, order[:, 1:], ascending[:, 1:] != ascending[:, :-1], axis=1)
    kept = is_new & (np.cumsum(is_new, axis=1) <= wanted[:, None])
    row, column = np.nonzero(kept)
    label = candidates[row, column]
    missing = np.setdiff1d(np.arange(n_labels), label)
    host = rng.permutation(n_rows)[np.arange(missing.size) % n_rows]
    labels = count_pairs(np.concatenate([row, host]), np.concatenate([label, missing]), (n_rows, n_labels))
    labels.data[:] = 1.0
    return labels


def _draw_words(rng: np.random.Generator, labels: csr_array, n_features: int, features_per_row: float) -> csr_array:
    """Draw the word counts of every row: prototype words of its labels, and background words."""
    n_rows, n_labels = labels.shape
    law = power_law(rng, n_features, _PROTOTYPE_EXPONENT)
    prototypes = draw(rng, law, (n_labels, _PROTOTYPE_SIZE))
    # Every other word is shared by a family of labels, which makes them hard to tell apart.
    family = rng.integers(0, -(-n_labels // _FAMILY_SIZE), n_labels)
    prototypes[:, ::2] = prototypes[family, ::2]
    # A fifth more words than features, as that many repeat at the demo's sizes.
    n_words = 1 + rng.poisson(1.2 * features_per_row - 1, n_rows)
    row = np.repeat(np.arange(n_rows), n_words)
    word = draw(rng, power_law(rng, n_features, _WORD_EXPONENT), row.size)
    n_own = np.diff(labels.indptr)[row]
    own = labels.indices[labels.indptr[row] + (rng.random(row.size) * n_own).astype(np.int64)]
    # The square favours the first words of a prototype.
    rank = (rng.random(row.size) ** 2 * prototypes.shape[1]).astype(np.int64)
    from_prototype = rng.random(row.size) < _PROTOTYPE_SHARE
    word[from_prototype] = prototypes[own, rank][from_prototype]
    return count_pairs(row, word, (n_rows, n_features))


def weigh(counts: csr_array, idf: np.ndarray) -> csr_array:
    """Weigh counts by sublinear tf times idf, with rows of length 1."""
    n_rows = counts.shape[0]
    weights = (1 + np.log(counts.data)) * idf[counts.indices]
    row = np.repeat(np.arange(n_rows), np.diff(counts.indptr))
    length = np.sqrt(np.bincount(row, weights**2, minlength=n_rows))
    return build_csr((weights / length[row]).astype(np.float32), counts.indices, counts.indptr, counts.shape)
