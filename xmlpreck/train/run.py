"""A whole run: plan, passes, held-out check, checkpoints, and the scorer that comes out."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_array

import xmlpreck
from xmlpreck.config import ConfigError, RunConfig, TrainConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.data.rows import RowSource, checked, split_heldout
from xmlpreck.data.survey import Survey
from xmlpreck.kernels.arrays import Rows, Weights
from xmlpreck.machine import resident_bytes
from xmlpreck.model import Model, all_sparse, lay_out
from xmlpreck.train.checkpoint import CheckpointError, Checkpoints
from xmlpreck.train.passes import Cursor, PassFacts, PreparedRows
from xmlpreck.train.plan import Plan, default_limit, over_budget, plan_run
from xmlpreck.train.support import Cut, TooManyWeights, find_strongest, find_support
from xmlpreck.train.trainer import WIDENED_PASS, Trainer, TrainingError

CHECKPOINT_MINUTES = 10.0
# A pass that ends sooner after a checkpoint gets none: on EURLEX57K one takes a fifth of the time of a pass.
SPARED_SECONDS = 20.0
GATHERING_BYTES = 8  # a weight, while two supports are united
TRIES = 8  # at a support that fits into memory


PHASES = ("reading", "tuning", "training", "saving")


class Interrupted(Exception):
    """The run was asked to stop, and has."""


@dataclass(frozen=True)
class Safety:
    """How a run is kept from losing work, and from taking more memory than it may."""

    checkpoints: Checkpoints | None = None
    resume: bool = False
    minutes: float = CHECKPOINT_MINUTES  # between two checkpoints within a pass; a long pass ends with one
    memory: int | None = None  # bytes of the process; None = what it has and a share of what is free
    fit_memory: bool = False  # keep each label's strongest features where all would not fit
    stop: Callable[[], bool] = lambda: False  # asked between calls of the kernels
    tell: Callable[[str], None] = lambda text: None
    phase: Callable[[str], None] = lambda name: None  # told one of PHASES as it begins

    def pause(self) -> None:
        """Stop here, before there is a checkpoint to write, if that is asked for."""
        if self.stop():
            raise Interrupted


@dataclass
class Room:
    """The rows of a run, and what was found out about them before its first pass."""

    rows: PreparedRows
    heldout: RowSource
    support: Weights | None
    plan: Plan
    survey: "Survey"

    def take_support(self) -> Weights:
        """Hand over the support, which is large: nobody else keeps it."""
        support, self.support = self.support, None
        if support is None:
            raise ValueError("the support was handed over before")
        return support


def load_kernels() -> None:
    """Compile the kernels, or read them from numba's cache, with one made-up row: no pass is timed with that."""
    one = csr_array(np.ones((1, 1), np.float32))
    fit(Dataset(one, one), RunConfig()).predict_topk(one, 1)


def fit(
    source: RowSource,
    config: RunConfig,
    on_pass: Callable[[PassFacts], None] = lambda facts: None,
    progress: bool = False,
    safety: Safety | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    tuning: dict[str, Any] | None = None,
    room: Room | None = None,
) -> Model:
    """Train on all rows of `source`, or on all but the held-out ones, and return the scorer, pruned if asked for.

    `on_plan` is told the plan before the first pass, `on_pass` the facts of every pass; `progress` shows a bar on a
    terminal. `tuning` is the evidence for the settings, if they were tuned: the model keeps it. `room` is what was made
    for these rows before, if it was (it is used up).
    """
    safety = safety or Safety()
    source = checked(source)
    saved = safety.checkpoints.last() if safety.checkpoints is not None and safety.resume else None
    if room is None:
        room = make_room(source, config, safety, saved.about["identity"].get("cut") if saved else None)
    safety.phase("training")
    rows, heldout, plan, survey = room.rows, room.heldout, room.plan, room.survey
    trainer = Trainer(room.take_support(), within(config.train, plan.cut))
    trainer.favour_tail(survey.label_counts, survey.n_rows)
    if on_plan is not None:
        on_plan(plan if saved else replace(plan, pass_seconds=trainer.time_rows(rows)))
    cut = None if plan.cut is None else list(plan.cut)
    keeper = Keeper(trainer, identity_of(config, survey.to_dict()) | {"cut": cut}, safety, tuning)
    if saved is not None:
        keeper.check(saved.about)
        cursor = Cursor.of(saved.about["trainer"], rows, config.train.seed)
        trainer.n_passes = saved.about["trainer"]["n_passes"]
        trainer.restore(cursor, saved.arrays, rows)
        del saved  # its files are mapped, and stay on the disk as long
    else:
        trainer.start_at_centroids(rows, survey.relevance_sums)
    while trainer.n_passes < config.train.epochs:
        facts = trainer.run_pass(rows, progress, keeper.pause)
        if heldout.n_rows:
            facts = replace(facts, heldout=Model(trainer.weights(), config.rows).score(heldout, config.train.n_threads))
        on_pass(facts)
        keeper.end_pass(facts)
    safety.phase("saving")
    weights = trainer.finish()
    if config.train.prune:  # as Model.prune, but the trained weights are given back before the new ones stand
        sparse = all_sparse(weights, least=config.train.prune)
        del weights
        weights = lay_out(sparse)
    info = run_info(config, survey.to_dict(), keeper)
    return Model(weights, config.rows, source.label_names, source.feature_names, info)


def run_info(config: RunConfig, data: dict[str, object], keeper: "Keeper") -> dict[str, Any]:
    """What a model says of the run that made it."""
    info: dict[str, Any] = {"config": config.to_dict(), "data": data, "history": keeper.history}
    if keeper.tuning is not None:
        info["tuning"] = keeper.tuning
    if config.train.prune:
        info["pruned_at"] = config.train.prune
    return info


def open_training_rows(
    source: RowSource, config: RunConfig, label_range: range | None = None
) -> tuple[PreparedRows, RowSource]:
    """The rows to train on, as the kernels take them, with all labels or some, and the held-out ones."""
    if not source.n_rows or not source.n_features or not source.n_labels:
        sizes = f"{source.n_rows} rows, {source.n_features} features, {source.n_labels} labels"
        raise TrainingError(f"no data: {sizes}")
    train = config.train
    if train.widen and train.epochs < WIDENED_PASS:
        raise ConfigError(
            f"train.widen makes the support wider before pass {WIDENED_PASS}, but there are {train.epochs}: give "
            f"--epochs {WIDENED_PASS} or more, or leave train.widen false"
        )
    kept, heldout = split_heldout(source, train.heldout, train.seed)
    return PreparedRows(kept, config.rows, config.train.block_rows, label_range), heldout


def within(train: TrainConfig, cut: Cut | None) -> TrainConfig:
    """The settings of training: what memory has cut is not made wider."""
    return train if cut is None else replace(train, widen=False)


def make_room(
    source: RowSource,
    config: RunConfig,
    safety: Safety,
    cut: list[int] | None = None,
    needed: Callable[["Survey"], TrainConfig] | None = None,
) -> Room:
    """Find the support of the rows and what it will need, and survey the rows; all in one pass, if the weights fit.

    Where they do not, and only if that is asked for, a second pass keeps each label's strongest features. `cut` is what
    was cut when the run began: resumed it must get the same support. `needed` tells the settings that need the most,
    where some are still to be chosen.
    """
    rows, heldout = open_training_rows(source, config)
    limit = safety.memory or default_limit()
    sizes = (rows.n_features, rows.n_labels, config.train.n_threads)

    def blocks(survey: Survey) -> Iterator[Rows]:
        return (block for _, block in rows.blocks(range(rows.n_blocks), survey.add))

    def plan_of(support: Weights, survey: Survey, cut: Cut | None = None) -> Plan:
        train = within(needed(survey) if needed else config.train, cut)
        return replace(plan_run(support, rows, train, heldout.n_rows > 0, limit, survey.feature_counts), cut=cut)

    most_weights = cut[0] if cut else 0
    if not most_weights:
        survey = Survey()
        try:
            most = max((limit - resident_bytes()) // GATHERING_BYTES, 1)
            support = find_support(blocks(survey), *sizes, most_weights=most)
            survey.check_labels()
            plan = plan_of(support, survey)
            if plan.peak_bytes <= limit:
                return Room(rows, heldout, support, plan, survey)
            need = plan.need
            most_weights = plan.weights_within(limit)
            del support
        except TooManyWeights as error:
            need = f"there are {error} of {rows.n_rows:,}, and to find the others takes more memory than is left"
            most_weights = most // 2
        if not safety.fit_memory:
            raise over_budget(need, limit)
    for _ in range(TRIES):
        rows.only_block = None  # so that the survey sees the rows again
        survey = Survey()
        support, found = find_strongest(blocks(survey), *sizes, most_weights=most_weights)
        survey.check_labels()
        if found is None and (needed(survey) if needed else config.train).widen:  # it fits as it is, but no wider
            found = Cut(most_weights, rows.n_features, 0)
        plan = plan_of(support, survey, found)
        if plan.peak_bytes <= limit or cut:
            return Room(rows, heldout, support, plan, survey)
        most_weights = plan.weights_within(limit)
    raise over_budget(plan.need, limit)


def identity_of(config: RunConfig, data: dict[str, object]) -> dict[str, Any]:
    """What must be the same for a run to go on with the same bits. The number of threads need not be."""
    settings = config.to_dict()
    del settings["train"]["threads"]
    return {"xmlpreck": xmlpreck.__version__, "settings": settings, "data": data}


class Resumable(Protocol):
    """A trainer, of this machine or of a cluster, as its keeper sees it."""

    n_passes: int
    cursor: Cursor

    def check_finite(self) -> None: ...
    def write_arrays(self, folder: Path) -> dict[str, str]: ...


class Keeper:
    """Saves the state of a run when it is time, and takes it up again."""

    def __init__(
        self, trainer: Resumable, identity: dict[str, Any], safety: Safety, tuning: dict[str, Any] | None
    ) -> None:
        self.trainer, self.identity, self.safety, self.tuning = trainer, identity, safety, tuning
        self.history: list[dict[str, Any]] = []
        self.saved_at = time.monotonic()  # a clock that somebody sets cannot move it
        self.on_saved: Callable[[Path], None] = lambda folder: None

    def check(self, about: dict[str, Any]) -> None:
        """Go on with a run: it must be this one."""
        changed = differences(about["identity"], self.identity)
        if changed:
            raise CheckpointError(f"the checkpoint is of another run: {'; '.join(changed)}: resume with what it had")
        self.history = about["history"]
        number, n_passes = (about["trainer"].get(name) for name in ("number", "n_passes"))
        self.safety.tell(f"resumed in pass {number!r:.20}, after {n_passes!r:.20} whole passes")

    def pause(self) -> None:
        """Between two calls of the kernels."""
        if self.safety.stop():
            self.save()
            raise Interrupted
        if time.monotonic() - self.saved_at > 60 * self.safety.minutes:
            self.save()

    def end_pass(self, facts: PassFacts) -> None:
        self.history.append(facts.to_dict())
        if time.monotonic() - self.saved_at > min(60 * self.safety.minutes, SPARED_SECONDS):
            self.save()

    def save(self) -> None:
        """Write a checkpoint. One that cannot be written does not end the run: the one before it is still there."""
        if self.safety.checkpoints is None:
            return
        self.trainer.check_finite()
        facts = asdict(self.trainer.cursor) | {"n_passes": self.trainer.n_passes}
        about = {"identity": self.identity, "trainer": facts, "history": self.history, "tuning": self.tuning}
        try:
            self.on_saved(self.safety.checkpoints.save(about, self.trainer.write_arrays))
        except CheckpointError as error:
            self.safety.tell(f"{error}; training goes on, and the next checkpoint is tried in time")
        self.saved_at = time.monotonic()


def differences(then: Any, now: Any, name: str = "") -> list[str]:
    """What two nested dictionaries say differently, by name."""
    if isinstance(then, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*then, *now])
        return [text for key in keys for text in differences(then.get(key), now.get(key), f"{name}.{key}".lstrip("."))]
    return [] if then == now else [f"{name.removeprefix('settings.')} was {then!r:.99}, is {now!r:.99}"]
