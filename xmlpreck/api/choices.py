"""Choose something of a model on rows after training: probabilities, the number of labels, and how much to prune."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmlpreck.api.engine import Note, log
from xmlpreck.api.inputs import AnyModel, as_model, open_location
from xmlpreck.config import ConfigError, InputError, without_secrets
from xmlpreck.data.location import Data, locate
from xmlpreck.data.rows import RowSource
from xmlpreck.machine import n_cores
from xmlpreck.model import Model, check_place, choosing, pruning
from xmlpreck.model.calibration import DEPTH
from xmlpreck.model.choosing import HELDOUT, ChoiceRows
from xmlpreck.model.label_rule import MAX_LABELS, ChosenRule, Goal
from xmlpreck.train import parse_bytes


@dataclass(frozen=True)
class Chosen:
    """A model with its new part; what it was chosen on, and its size on disk, if it was saved."""

    model: Model
    rows: ChoiceRows | None = None
    n_bytes: int = 0

    @property
    def n_rows(self) -> int:
        """Rows that the choice was made on."""
        return 0 if self.rows is None else self.rows.rows.n_rows


@dataclass(frozen=True)
class Pruned(Chosen):
    """A smaller model; with rows, P@k before and what was tried, of which the last was taken."""

    threshold: float = 0.0
    n_weights_before: int = 0
    before: dict[str, float] | None = None
    tried: tuple[pruning.Pruned, ...] = ()


def rows_to_choose_on(
    model: Model, data: Data, split: str | None = None, note: Note = log.info, progress: bool = False
) -> ChoiceRows:
    """Open rows to choose on: the training rows that the model held out (split None), or a split by name.

    A choice on a split that was not held out is recorded in the model.
    """
    location = locate(data)
    split = split or HELDOUT
    if location is None:
        rows: RowSource = data  # type: ignore[assignment]
        return choosing.rows_to_choose_on(model, rows, split, "")
    rows = open_location(location.at("train" if split == HELDOUT else split), model, progress)
    given = choosing.rows_to_choose_on(model, rows, split, without_secrets(location.path))
    if split != HELDOUT:
        note(f"{given.name}, split {split}: the model will remember that these rows were chosen on")
    return given


def calibrate(
    model: AnyModel,
    data: Data,
    out: str | Path | None = None,
    *,
    split: str | None = None,
    depth: int = DEPTH,
    n_threads: int = 0,
    note: Note = log.info,
    progress: bool = False,
) -> Chosen:
    """Learn probabilities from the first `depth` labels of rows, as many as will be predicted.

    `split` is None for the training rows that the model held out, or train or test. With `out` the calibrated copy
    is saved there.
    """
    if out is not None:
        check_place(out)
    model = as_model(model)
    rows = rows_to_choose_on(model, data, split, note, progress)
    calibrated = choosing.calibrate(model, rows, depth, n_threads or n_cores(), progress)
    return Chosen(calibrated, rows, 0 if out is None else calibrated.save(out))


@dataclass(frozen=True)
class Optimized(Chosen):
    """A model that knows how many labels a row gets, and how that was chosen."""

    chosen: ChosenRule | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the choice for JSON."""
        return {} if self.chosen is None else self.chosen.to_info()


def optimize(
    model: AnyModel,
    data: Data,
    out: str | Path | None = None,
    *,
    goal: str = "f1",
    average: str = "micro",
    at_least: float | None = None,
    max_labels: int = MAX_LABELS,
    weigh_labels: int | None = None,
    split: str | None = None,
    n_threads: int = 0,
    note: Note = log.info,
    progress: bool = False,
) -> Optimized:
    """Choose how many labels a row gets: a number for all rows, or all from a score (or a probability) on.

    Parameters
    ----------
    model, data, out
        A model, rows, and the model directory to write the copy to that knows the choice; predict with
        ``PredictionOptions(labels="auto")`` obeys it.
    goal : str
        f1 = the largest F1; precision or recall = at least `at_least` percent of it, and the most of the other one;
        count = as many labels as rows have.
    average : str
        micro = over all pairs of row and label; macro = mean over labels.
    max_labels : int
        Labels that a row may get, at most.
    weigh_labels : int, optional
        Give every row this many of its `max_labels` best labels, those whose probabilities, weighted by label, make the
        macro metric of `goal` the largest. The model must be calibrated.
    split : str, optional
        None = the training rows that the model held out; a choice on train or test rows is recorded in the model.
    """
    wanted = Goal(goal, average, at_least, weigh_labels)
    if max_labels < 1:
        raise ConfigError(f"--max-labels must be 1 or more, but is {max_labels}")
    if out is not None:
        check_place(out)
    model = as_model(model)
    rows = rows_to_choose_on(model, data, split, note, progress)
    made, chosen = choosing.optimize(model, rows, wanted, max_labels, n_threads or n_cores(), progress)
    return Optimized(made, rows, 0 if out is None else made.save(out), chosen)


def prune(
    model: AnyModel,
    out: str | Path | None = None,
    *,
    threshold: float | None = None,
    size: int | str | None = None,
    max_loss: float | None = None,
    data: Data | None = None,
    split: str | None = None,
    n_threads: int = 0,
    note: Note = log.info,
) -> Pruned:
    """Drop the smallest weights of a model, in one of three ways.

    `threshold` drops weights smaller than it; `size` (bytes or "10MB") drops the smallest until this is left;
    `max_loss` drops as many as cost at most this much of P@1, P@3 and P@5 on rows of `data` (held-out ones, or those of
    `split`). With `out` the smaller copy is saved there.
    """
    if sum(way is not None for way in (threshold, size, max_loss)) != 1:
        raise InputError("say how to prune by one of --threshold, --size and --max-loss")
    if max_loss is not None and data is None:
        raise InputError("--max-loss is measured on rows: name them by --data")
    n_bytes = parse_bytes(size) if isinstance(size, str) else size
    if out is not None:
        check_place(out)
    model = as_model(model)
    facts: dict[str, Any] = {"n_weights_before": model.n_weights}
    if max_loss is not None and data is not None:
        rows = rows_to_choose_on(model, data, split, note)
        smaller, before, tried = choosing.prune_to_loss(model, rows, max_loss, n_threads or n_cores())
        facts |= {"rows": rows, "before": before, "tried": tuple(tried), "threshold": tried[-1].threshold}
    else:
        if threshold is not None and not threshold > 0:
            raise ConfigError(f"threshold must be a number above 0, but is {threshold!r:.60}")
        least = pruning.threshold_for_bytes(model, n_bytes) if n_bytes is not None else threshold or 0.0
        smaller, facts["threshold"] = model.prune(least) if least else model, least
    return Pruned(smaller, n_bytes=0 if out is None else smaller.save(out), **facts)
