"""Which terms of texts are features, and how they are weighted: chosen on held-out texts, before all other settings."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import RunConfig, TextConfig, TrainConfig
from xmlpreck.data.dataset import Dataset
from xmlpreck.data.formats import Documents
from xmlpreck.data.rows import split_heldout
from xmlpreck.data.text import fit_labels, fit_text, label_matrix
from xmlpreck.files.progress import progress_bar
from xmlpreck.metrics import REPORTED_KS, hits
from xmlpreck.train.tuned import fit_tuned

MAX_TEXTS, MAX_LETTERS = 10_000, 20_000_000  # of all that are tried on
MIN_TEXTS = 50  # below, nothing can be told: the settings stay
MAX_FOLDS, FOLD_TEXTS = 5, 5_000  # fewer texts are split more than once, so that more of them are held out
HELDOUT = 0.2
CERTAIN = 2.0  # standard errors by which another analyzer must be better: most have many more features


class Analyzed(NamedTuple):
    """Settings with the chosen analyzer, and how each one scored; None = there was nothing to choose."""

    settings: RunConfig
    evidence: dict[str, Any] | None


def draw_rows(n_rows: int, config: TrainConfig) -> np.ndarray:
    """Draw at most MAX_TEXTS rows by random keys, without those that training will hold out."""
    nothing = csr_array((n_rows, 0), dtype=np.float32)
    _, heldout = split_heldout(Dataset(nothing, nothing), config.heldout, config.seed)
    drawn = np.argsort(_generator(config).random(n_rows), kind="stable")[:MAX_TEXTS]
    return drawn[~np.isin(drawn, heldout.row_ids)]  # type: ignore[attr-defined]


def draw_texts(chunks: Iterable[Documents], config: TrainConfig) -> tuple[list[str], csr_array]:
    """Read the texts and labels of `draw_rows`; memory holds no more than these and a chunk."""
    rng, n_rows = _generator(config), 0
    kept: list[tuple[float, int, str, list[str]]] = []
    for chunk in chunks:
        numbers = range(n_rows, n_rows + chunk.n_rows)
        kept += zip(rng.random(chunk.n_rows).tolist(), numbers, chunk.texts, chunk.labels, strict=True)
        kept = sorted(kept)[:MAX_TEXTS]
        n_rows += chunk.n_rows
    documents = {row: (text, names) for _, row, text, names in kept}
    drawn = [documents[row] for row in draw_rows(n_rows, config).tolist()]
    lists = [names for _, names in drawn]
    column_of = {name: column for column, name in enumerate(fit_labels([lists]))}
    return [text for text, _ in drawn], label_matrix(lists, column_of)


def _generator(config: TrainConfig) -> np.random.Generator:
    return np.random.default_rng([config.seed, 22])


def analyzers(config: TextConfig) -> dict[str, TextConfig]:
    """List what is tried, by name; the first is the default. What differs from a default was given, and stays."""
    tried = {"words": replace(config, language="")}
    if config.language:
        tried["stems"] = config
    if config.ngrams == 1:
        tried["pairs of words"] = replace(config, ngrams=2)
    if not config.char_ngrams and not config.token_pattern:
        tried["characters"] = replace(config, char_ngrams="3-5")
    return tried


def choose_analyzer(
    texts: list[str],
    labels: csr_array,
    config: RunConfig,
    note: Callable[[str], None] = lambda text: None,
    progress: bool = False,
) -> Analyzed:
    """Choose terms and then their weighting by short runs on texts; returns the settings and the evidence.

    Another analyzer than the first takes its place if its P@1, P@3 and P@5 of held-out texts, on average, are higher by
    two standard errors of the difference.
    """
    n_texts = 1 + int(np.searchsorted(np.cumsum([len(text) for text in texts]), MAX_LETTERS))
    texts, labels = texts[:n_texts], labels[:n_texts]
    labels = labels[:, np.unique(labels.indices)]  # those that none of the texts has say nothing
    if len(texts) < MIN_TEXTS:
        note(f"analyzers of texts: {len(texts)} texts are too few to choose by, {MIN_TEXTS} are needed")
        return Analyzed(config, None)
    folds = list(_folds(len(texts), config.train.seed))
    tried = analyzers(config.text)
    weighs = config.text.weighting == TextConfig.weighting
    found: dict[str, np.ndarray] = {}
    with progress_bar(len(folds) * (len(tried) + weighs), "analyzers of texts", progress) as bar:

        def score(name: str, text: TextConfig) -> None:
            parts = []
            for kept, heldout in folds:
                parts.append(_score(texts, labels, kept, heldout, replace(config, text=text)))
                bar.update()
            found[name] = np.concatenate(parts)

        for name, text in tried.items():
            score(name, text)
        best = _best(found)
        if weighs:
            name = f"{best}, bm25"
            tried[name] = replace(tried[best], weighting="bm25")
            score(name, tried[name])
            best = _best({one: found[one] for one in (best, name)})
    shown = ", ".join(f"{name} {values.mean():.2f}" for name, values in found.items())
    n_heldout = len(found[best])
    note(f"analyzers of texts: {best} (mean P@k of {n_heldout:,} held-out texts: {shown})")
    entries = [
        {"name": name, "settings": asdict(tried[name]), "score": float(values.mean()), "error": _error(values)}
        for name, values in found.items()
    ]
    evidence = {"chosen": best, "n_texts": len(texts), "n_heldout": n_heldout, "tried": entries}
    return Analyzed(replace(config, text=tried[best]), evidence)


def _folds(n_texts: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (texts to train on, texts held out): one split of many texts, up to all parts of few."""
    parts = np.array_split(np.random.default_rng([seed, 23]).permutation(n_texts), round(1 / HELDOUT))
    for number in range(min(max(FOLD_TEXTS // n_texts, 1), MAX_FOLDS)):
        yield np.sort(np.concatenate(parts[:number] + parts[number + 1 :])), np.sort(parts[number])


def _score(texts: list[str], labels: csr_array, kept: np.ndarray, heldout: np.ndarray, config: RunConfig) -> np.ndarray:
    """Train on some texts; returns the mean of P@1, P@3 and P@5 of each held-out text, in percent."""
    threads = config.train.threads
    part = [texts[row] for row in kept]
    vectorizer = fit_text([part], threads, **asdict(config.text))
    short = replace(config, train=replace(config.train, effort="quick", heldout=0.0))
    model = fit_tuned(Dataset(vectorizer.transform(part, threads), labels[kept]), short)
    rows = vectorizer.transform([texts[row] for row in heldout], threads)
    right = hits(model.predict_topk(rows, min(max(REPORTED_KS), model.n_labels)), labels[heldout])
    return 100 * np.mean([right[:, :k].sum(axis=1) / k for k in REPORTED_KS], axis=0)


def _best(found: dict[str, np.ndarray]) -> str:
    """Name the best analyzer, or the first unless the best is better than it by CERTAIN standard errors."""
    first = next(iter(found))
    best = max(found, key=lambda name: found[name].mean())
    gain = found[best] - found[first]
    return best if gain.mean() > CERTAIN * _error(gain) else first


def _error(values: np.ndarray) -> float:
    return float(values.std() / np.sqrt(len(values)))
