"""A whole run: plan, passes, held-out check, checkpoints, and the model that comes out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from xmlpreck.config import RunConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.data.rows import RowSource, checked
from xmlpreck.model import Model, all_sparse, lay_out
from xmlpreck.train.keeper import Keeper, identity_of
from xmlpreck.train.passes import Cursor, PassFacts
from xmlpreck.train.plan import Plan
from xmlpreck.train.room import Room, make_room, within
from xmlpreck.train.safety import Safety
from xmlpreck.train.trainer import Trainer, time_pass

OnPass = Callable[[PassFacts], None]


def run_passes(
    keeper: Keeper,
    n_passes: int,
    run_pass: Callable[[], PassFacts],
    score_heldout: Callable[[], dict[str, float]] | None,
    on_pass: OnPass,
) -> None:
    """Train until there were `n_passes`; after each pass score held-out rows, if there are any, and keep the facts."""
    while keeper.trainer.n_passes < n_passes:
        facts = run_pass()
        if score_heldout is not None:
            facts = replace(facts, heldout=score_heldout())
        on_pass(facts)
        keeper.end_pass(facts)


def fit(
    source: RowSource,
    config: RunConfig,
    on_pass: OnPass = lambda facts: None,
    progress: bool = False,
    safety: Safety | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    tuning: dict[str, Any] | None = None,
    room: Room | None = None,
) -> Model:
    """Train on all rows of `source`, or on all but the held-out ones, and return the model, pruned if asked for.

    `on_plan` gets the plan before the first pass, `on_pass` the facts of every pass; `progress` shows a bar on a
    terminal. `tuning` is the evidence for the settings, if they were tuned: the model keeps it. `room` is what was made
    for these rows before, if it was (it is used up).
    """
    safety = safety or Safety()
    source = checked(source) if room is None else source  # the rows of a room are
    saved = safety.checkpoints.last() if safety.checkpoints is not None and safety.resume else None
    if room is None:
        room = make_room(source, config, safety, saved.about["identity"].get("cut") if saved else None)
    safety.phase("training")
    rows, heldout, plan, survey = room.rows, room.heldout, room.plan, room.survey
    train = within(config.train, plan.cut)
    if on_plan is not None:
        on_plan(plan if saved else timed(room, config))
    trainer = Trainer(room.take_support(), train)
    trainer.favour_tail(survey.label_counts, survey.n_rows)
    trainer.scale_features(survey.feature_counts, survey.n_rows)
    cut = None if plan.cut is None else list(plan.cut)
    keeper = Keeper(trainer, identity_of(config, survey.to_dict()) | {"cut": cut}, safety, tuning)
    if saved is not None:
        keeper.check(saved.about)
        cursor = Cursor.of(saved.about["trainer"], rows, train.seed)
        trainer.n_passes = saved.about["trainer"]["n_passes"]
        trainer.restore(cursor, saved.arrays, rows)
        del saved  # its files are mapped, and would stay on the disk
    else:
        trainer.start_at_centroids(rows, survey.relevance_sums)

    def run_pass() -> PassFacts:
        return trainer.run_pass(rows, progress, keeper.pause)

    def score_heldout() -> dict[str, float]:
        return Model(trainer.weights(), config.rows).score(heldout, train.n_threads)

    run_passes(keeper, train.n_passes, run_pass, score_heldout if heldout.n_rows else None, on_pass)
    safety.phase("saving")
    weights = trainer.finish()
    if train.prune:  # as Model.prune, but the trained weights are freed before the new ones are laid out
        sparse = all_sparse(weights, min_size=train.prune)
        del weights
        weights = lay_out(sparse)
    info = run_info(config, survey.to_dict(), keeper)
    return Model(weights, config.rows, source.label_names, source.feature_names, info)


def timed(room: Room, config: RunConfig) -> Plan:
    """Return the plan with the seconds that a pass will take."""
    if room.support is None:
        return room.plan
    seconds = time_pass(room.support, room.rows, within(config.train, room.plan.cut))
    return replace(room.plan, pass_seconds=seconds)


def run_info(config: RunConfig, data: dict[str, object], keeper: Keeper) -> dict[str, Any]:
    """Return what a model says of the run that made it."""
    info: dict[str, Any] = {"config": config.to_dict(), "data": data, "history": keeper.history}
    if keeper.tuning is not None:
        info["tuning"] = keeper.tuning
    if config.train.prune:
        info["pruned_at"] = config.train.prune
    return info


def load_kernels() -> None:
    """Compile the kernels, or load them from the cache, with one made-up row, so that no pass is timed with that."""
    one = csr_array(np.ones((1, 1), np.float32))
    fit(Dataset(one, one), RunConfig()).predict_topk(one, 1)
