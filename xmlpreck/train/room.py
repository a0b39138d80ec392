"""The rows of a run and their support, found before its first pass within the memory that it may use."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from xmlpreck.config import ConfigError, RunConfig, TrainConfig
from xmlpreck.data.rows import RowSource, split_heldout
from xmlpreck.data.survey import Survey
from xmlpreck.kernels.arrays import Rows, Weights
from xmlpreck.machine import resident_bytes
from xmlpreck.train.passes import PreparedRows
from xmlpreck.train.plan import Plan, default_limit, over_budget, plan_run
from xmlpreck.train.safety import Safety
from xmlpreck.train.support import Cut, TooManyWeights, find_strongest, find_support
from xmlpreck.train.trainer import WIDENED_PASS, TrainingError

GATHERING_BYTES = 8  # a weight, while two supports are united
TRIES = 8  # at a support that fits into memory


@dataclass
class Room:
    """The rows of a run, and what is known about them before its first pass."""

    rows: PreparedRows
    heldout: RowSource
    support: Weights | None
    plan: Plan
    survey: Survey

    def take_support(self) -> Weights:
        """Hand over the support, which is large, without keeping it."""
        support, self.support = self.support, None
        if support is None:
            raise ValueError("the support was handed over before")
        return support


def open_training_rows(
    source: RowSource, config: RunConfig, label_range: range | None = None
) -> tuple[PreparedRows, RowSource]:
    """Return the rows to train on, as the kernels take them, with all labels or some, and the held-out ones."""
    if not source.n_rows or not source.n_features or not source.n_labels:
        sizes = f"{source.n_rows} rows, {source.n_features} features, {source.n_labels} labels"
        raise TrainingError(f"no data: {sizes}")
    train = config.train
    if train.widen and train.n_passes < WIDENED_PASS:
        raise ConfigError(
            f"train.widen makes the support wider before pass {WIDENED_PASS}, but there are {train.n_passes}: give "
            f"--epochs {WIDENED_PASS} or more, or leave train.widen false"
        )
    kept, heldout = split_heldout(source, train.heldout, train.seed)
    return PreparedRows(kept, config.rows, config.train.block_rows, label_range), heldout


def within(train: TrainConfig, cut: Cut | None) -> TrainConfig:
    """The settings of training, without widening if the support was truncated to fit memory."""
    return train if cut is None else replace(train, widen=False)


class RoomMaker:
    """Finds the support of the rows of a run: all of it, or as much as memory holds."""

    def __init__(
        self, source: RowSource, config: RunConfig, safety: Safety, needed: Callable[[Survey], TrainConfig] | None
    ) -> None:
        self.rows, self.heldout = open_training_rows(source, config)
        self.limit = safety.memory or default_limit()
        self.sizes = (self.rows.n_features, self.rows.n_labels, config.train.n_threads)
        self.needed = needed or (lambda survey: config.train)

    def blocks(self, survey: Survey) -> Iterator[Rows]:
        return (block for _, block in self.rows.blocks(range(self.rows.n_blocks), survey.add))

    def room(self, support: Weights, survey: Survey, cut: Cut | None = None) -> Room:
        survey.check_labels()
        train, has_heldout = within(self.needed(survey), cut), self.heldout.n_rows > 0
        plan = plan_run(support, self.rows, train, has_heldout, self.limit, survey.feature_counts)
        return Room(self.rows, self.heldout, support, replace(plan, cut=cut), survey)

    def find_all(self) -> tuple[Room | None, str, int]:
        """The room with the whole support; or None, what it would need, and about how many weights would fit."""
        survey, max_weights = Survey(), max((self.limit - resident_bytes()) // GATHERING_BYTES, 1)
        try:
            room = self.room(find_support(self.blocks(survey), *self.sizes, max_weights=max_weights), survey)
        except TooManyWeights as error:
            need = f"there are {error} of {self.rows.n_rows:,}, and to find the others takes more memory than is left"
            return None, need, max_weights // 2
        plan = room.plan
        return (room if plan.peak_bytes <= self.limit else None), plan.need, plan.weights_within(self.limit)

    def find_strongest(self, max_weights: int) -> Room:
        """The room with the strongest features of each label."""
        self.rows.only_block = None  # so that the survey sees the rows again
        survey = Survey()
        support, cut = find_strongest(self.blocks(survey), *self.sizes, max_weights=max_weights)
        survey.check_labels()
        if cut is None and self.needed(survey).widen:  # it fits as it is, but no wider
            cut = Cut(max_weights, self.rows.n_features, 0)
        return self.room(support, survey, cut)


def make_room(
    source: RowSource,
    config: RunConfig,
    safety: Safety,
    cut: list[int] | None = None,
    needed: Callable[[Survey], TrainConfig] | None = None,
) -> Room:
    """Find the support of the rows and what it will need, and survey the rows; all in one pass, if the weights fit.

    Where they do not, and only with safety.fit_memory, a second pass keeps each label's strongest features. `cut` is
    what was cut when the run began: resumed it must get the same support. `needed` returns the settings that need the
    most memory, where some are still to be chosen.
    """
    maker = RoomMaker(source, config, safety, needed)
    if cut:
        return maker.find_strongest(cut[0])
    room, need, max_weights = maker.find_all()
    if room is not None:
        return room
    if not safety.fit_memory:
        raise over_budget(need, maker.limit)
    for _ in range(TRIES):
        room = maker.find_strongest(max_weights)
        if room.plan.peak_bytes <= maker.limit:
            return room
        need, max_weights = room.plan.need, room.plan.weights_within(maker.limit)
        room = None  # or two supports would be in memory
    raise over_budget(need, maker.limit)
