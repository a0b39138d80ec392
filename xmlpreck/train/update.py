"""Going on from a finished model: new rows, new labels, new features."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from xmlpreck.config import RunConfig
from xmlpreck.data.dense_transform import transformed
from xmlpreck.data.rows import RowSource, checked
from xmlpreck.data.survey import Survey
from xmlpreck.kernels.arrays import Weights, sparse_weights
from xmlpreck.model import Model, all_sparse
from xmlpreck.model.seal import ModelError
from xmlpreck.train.passes import PassFacts, PreparedRows
from xmlpreck.train.trainer import Trainer


def update(
    scorer: Model,
    source: RowSource,
    config: RunConfig,
    freeze: bool = False,
    on_pass: Callable[[PassFacts], None] = lambda facts: None,
    progress: bool = False,
) -> Model:
    """Train a model further on new rows, which may have labels and features behind those that it knows.

    A label may use the features of its new rows too. With `freeze` the labels that the model knows keep their weights
    bit for bit, and only the new ones learn, against all others. The result is the mean over the new passes.
    """
    source = checked(source)
    if source.n_features < scorer.n_features or source.n_labels < scorer.n_labels:
        known, given = (f"{x.n_features} features and {x.n_labels} labels" for x in (scorer, source))
        raise ModelError(f"new rows must have the model's columns first ({known}), but have {given}")
    if scorer.rows.n_dense and source.n_features > scorer.n_features:
        raise ModelError("new features have no place before dense ones: give rows of the model's own features")
    source = transformed(source, scorer.dense_transform)
    rows = PreparedRows(source, scorer.rows, config.train.block_rows)
    start = widen(
        all_sparse(scorer.weights), scorer.n_features, source.n_features, source.n_labels, scorer.rows.bias > 0
    )
    alone = replace(config.train.of_member(-1), remember=0)  # nothing is remembered of new rows
    trainer = Trainer(start, alone)
    trainer.n_frozen = scorer.n_labels if freeze else 0
    survey = Survey()
    trainer.grow(rows, survey.add)
    survey.check_labels()
    trainer.favour_tail(survey.label_counts, survey.n_rows)
    trainer.scale_features(survey.feature_counts, survey.n_rows)
    history = list(scorer.info.get("history", []))
    for _ in range(config.train.epochs):
        facts = trainer.run_pass(rows, progress)
        history.append(facts.to_dict())
        on_pass(facts)
    updates = [*scorer.info.get("updates", []), {**survey.to_dict(), "frozen": freeze, "config": config.to_dict()}]
    return scorer.fresh(
        weights=trainer.finish(),
        label_names=_longer(scorer.label_names, source.label_names),
        feature_names=_longer(scorer.feature_names, source.feature_names),
        info=scorer.info | {"history": history, "updates": updates, "label_rule": None},
        calibration=None,  # like the rule of how many labels, it was made for other scores
    )


def widen(sparse: Weights, n_known: int, n_features: int, n_labels: int, has_bias: bool) -> Weights:
    """Sparse rows for more features and labels; the bias stays behind the last feature."""
    lengths = np.diff(sparse.offsets)
    added = np.zeros(n_features - n_known, lengths.dtype)
    lengths = np.concatenate([lengths[:n_known], added, lengths[n_known:]] if has_bias else [lengths, added])
    return sparse_weights(np.concatenate([[0], np.cumsum(lengths)]), sparse.labels, sparse.values, n_labels)


def _longer(known: list[str] | None, given: list[str] | None) -> list[str] | None:
    """The names of the new columns too; names that the model has stay."""
    if known is None:
        return None
    if given is None or given[: len(known)] != known:
        raise ModelError("the first names of the new rows must be the model's own, in their order")
    return given
