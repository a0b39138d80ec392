"""A run that chooses its settings first: planned as one before the first trial, then tuned, then trained."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from xmlpreck.config import RunConfig
from xmlpreck.data.rows import RowSource, checked, split_heldout
from xmlpreck.model import Model
from xmlpreck.train.facts import Facts
from xmlpreck.train.keeper import identity_of
from xmlpreck.train.passes import PassFacts
from xmlpreck.train.plan import Plan
from xmlpreck.train.record import Record
from xmlpreck.train.room import Room, make_room
from xmlpreck.train.run import fit, timed
from xmlpreck.train.safety import Safety
from xmlpreck.train.tuning import Tuning, open_record, open_tuning, tune

OnTuned = Callable[[RunConfig, dict[str, Any] | None], None]  # told the settings, and the evidence if it is new


def plan(source: RowSource, config: RunConfig, safety: Safety | None = None, tuned: bool = False) -> Plan:
    """Say what `fit` would need, or `fit_tuned` where `tuned`, with a short calibration of its speed."""
    safety, source = safety or Safety(), checked(source)
    room, _ = prepare(source, config, safety, Record(None)) if tuned else (make_room(source, config, safety), None)
    return timed(room, config)


def fit_tuned(
    source: RowSource,
    config: RunConfig,
    on_pass: Callable[[PassFacts], None] = lambda facts: None,
    progress: bool = False,
    safety: Safety | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_tuned: OnTuned = lambda config, evidence: None,
) -> Model:
    """Choose the settings that nobody gave (`config.fixed`), then do what `fit` does.

    `on_plan` is told a plan of both before the first trial, of the settings that need the most among those that may be
    chosen: what does not fit into memory is refused there. A run that is resumed has the settings that it chose.
    """
    safety, source = safety or Safety(), checked(source)
    known = settings_of_checkpoint(config, safety)
    if known is not None:
        on_tuned(known[0], None)
        return fit(source, known[0], on_pass, progress, safety, on_plan, known[1])
    record = open_record(safety)
    room, tuning = prepare(source, config, safety, record)
    if on_plan is not None:
        on_plan(timed(room, config))
    evidence = None
    if tuning is not None:
        safety.phase("tuning")
        config, evidence = tuning.run(safety, record, progress)
    del tuning  # and its rows
    on_tuned(config, evidence)
    return fit(source, config, on_pass, progress, safety, tuning=evidence, room=room)


def settle(
    source: RowSource,
    config: RunConfig,
    safety: Safety,
    progress: bool = False,
    on_tuned: OnTuned = lambda config, evidence: None,
) -> tuple[RunConfig, dict[str, Any] | None]:
    """Choose the settings only, for a run whose weights are elsewhere; one that is resumed has what it chose."""
    known = settings_of_checkpoint(config, safety)
    if known is not None:
        on_tuned(known[0], None)
        return known
    rows, _ = split_heldout(source, config.train.heldout, config.train.seed)
    found = tune(rows, config, safety, progress) or (config, None)
    on_tuned(*found)
    return found


def settings_of_checkpoint(config: RunConfig, safety: Safety) -> tuple[RunConfig, dict[str, Any] | None] | None:
    """What a run chose when it began, if it is to be resumed and has a checkpoint."""
    saved = safety.checkpoints.last() if safety.checkpoints is not None and safety.resume else None
    if saved is None:
        return None
    evidence = saved.about.get("tuning")
    chosen = evidence["chosen"] if evidence else {}
    chosen = {name: value for name, value in chosen.items() if name not in config.fixed}
    return replace(config, train=replace(config.train, **chosen)), evidence


def prepare(source: RowSource, config: RunConfig, safety: Safety, record: Record) -> tuple[Room, Tuning | Facts | None]:
    """Make room for the run and see that its trials fit in, before the first of them."""
    rows, _ = split_heldout(source, config.train.heldout, config.train.seed)
    tuning = open_tuning(rows, config)
    if isinstance(tuning, str):
        room = make_room(source, config, safety)
        safety.tell(tuning)
        return room, None
    facts = identity_of(config, {"n_rows": rows.n_rows}) | {"fixed": sorted(config.fixed), "about": "cut"}
    known = record.get(facts) if safety.resume else None
    room = make_room(source, config, safety, known["cut"] if known else None, tuning.needed)
    if known and known["data"] != room.survey.to_dict():  # of other rows
        room = make_room(source, config, safety, needed=tuning.needed)
    if room.plan.cut is not None:  # found again it could be another
        record.put(facts, {"cut": list(room.plan.cut), "data": room.survey.to_dict()})
    tuning.meet(room.survey)
    peak_bytes = tuning.fit_samples(safety, record, room.plan.limit_bytes)
    room.plan = room.plan.with_tuning(tuning.outline(), peak_bytes)
    return room, tuning
