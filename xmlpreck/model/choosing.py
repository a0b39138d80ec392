"""Which rows a model knows already, and what is chosen on rows after training.

These are probabilities, the number of labels of a row, and how much to prune.

Figures flatter a model on the rows that it was trained on, and on those that something of it was chosen on. So choices
are made on training rows that were held out; a choice on other rows is written into the model (`info["chosen_on"]`).
"""

from typing import Any, NamedTuple

from xmlpreck.config import ConfigError, InputError, from_dict
from xmlpreck.data.rows import RowSource, read_blocks, split_heldout
from xmlpreck.data.survey import Survey
from xmlpreck.model import Model
from xmlpreck.model.calibration import DEPTH, Calibration
from xmlpreck.model.label_rule import MAX_LABELS, ChosenRule, Goal, choose_rule
from xmlpreck.model.pruning import Pruned, largest_pruning

BLOCK_ROWS = 1 << 15  # that are read at a time
NUMBER_OF_LABELS = "number of labels"  # as the name of a choice
HELDOUT = "heldout"  # training rows that a model has not been trained on, as the name of a split


class Identity(NamedTuple):
    """Rows by their number and their hash: no file format, sharding or name changes these."""

    n_rows: int
    sha256: str


def identify(rows: RowSource) -> Identity:
    """Hash rows: all of them are read once."""
    survey = Survey()
    for _, block in read_blocks(rows, BLOCK_ROWS):
        survey.add(block)
    return Identity(survey.n_rows, str(survey.to_dict()["sha256"]))


class Seen(NamedTuple):
    """Whether a model was trained on some rows, and what was chosen on them."""

    trained: bool  # it was trained on them, or on all of them but those that it held out
    chosen: list[str]  # what was chosen on them: calibration, number of labels, pruning

    def notes(self) -> list[str]:
        """Give a sentence for each reason to doubt figures on these rows."""
        notes = []
        if self.trained:
            notes.append("was trained on these rows: figures on them say nothing about new rows")
        notes += [f"its {what} was chosen on these rows: figures on them are flattered" for what in self.chosen]
        return notes


def seen_rows(model: Model, rows: RowSource) -> Seen:
    """Find out whether a model was trained on exactly these rows, and what was chosen on them.

    Rows are read and hashed only if their number matches. A subset of the training rows is not recognised.
    """
    trained = [model.info.get("data"), *_list(model.info.get("updates"))]
    records: dict[str, list[object]] = {}
    for record in choice_records(model):
        records.setdefault(record["what"], []).append(record)
    return Seen(
        _are_among(rows, trained) or _heldout(model, rows) is not None,
        [what for what, entries in records.items() if _are_among(rows, entries)],
    )


def choice_records(model: Model) -> list[dict[str, Any]]:
    """List choices on rows that were not held out: what, split, name, n_rows and sha256 of each still in force."""
    records = [record for record in _list(model.info.get("chosen_on")) if isinstance(record, dict)]
    named = [record for record in records if isinstance(record.get("what"), str)]
    gone = set() if model.calibration is not None else {"calibration"}
    gone |= set() if model.info.get("label_rule") else {NUMBER_OF_LABELS}
    return [record for record in named if record["what"] not in gone]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _are_among(rows: RowSource, entries: list[Any]) -> bool:
    """Tell whether one of these entries of a model's info names the rows; malformed entries are skipped."""
    found = [entry for entry in entries if isinstance(entry, dict) and entry.get("n_rows") == rows.n_rows]
    return bool(found) and identify(rows).sha256 in [entry.get("sha256") for entry in found]


def _heldout(model: Model, source: RowSource) -> RowSource | None:
    """Find the rows of a source that a model held out, if it was trained on all the others."""
    sections = model.info.get("config")
    train = sections.get("train") if isinstance(sections, dict) else None
    if not isinstance(train, dict):
        return None
    drawn = {name: train[name] for name in ("heldout", "seed") if name in train}
    try:
        settings = from_dict({"train": drawn}, "model.json").train
        kept, heldout = split_heldout(source, settings.heldout, settings.seed)
    except ConfigError:
        return None
    if not heldout.n_rows or not _are_among(kept, [model.info.get("data")]):
        return None
    return None if _are_among(source, _list(model.info.get("updates"))) else heldout


class ChoiceRows(NamedTuple):
    """Rows to choose on, and where they come from."""

    rows: RowSource
    split: str
    name: str


def rows_to_choose_on(model: Model, source: RowSource, split: str = HELDOUT, name: str = "") -> ChoiceRows:
    """Return the held-out rows of a model's training rows, or all rows of another split.

    Rows that the model was trained on are refused: a model is nearly always right on them.
    """
    if split == HELDOUT:
        heldout = _heldout(model, source)
        if heldout is None:
            raise InputError(
                f"{name or 'the rows'}: the model has held out none of these rows: train it on them with --heldout 0.1,"
                " or choose on rows that it has not seen by --split test, which the model will remember"
            )
        return ChoiceRows(heldout, split, name)
    if seen_rows(model, source).trained:
        raise InputError(
            f"{name or 'the rows'}: the model was trained on these rows: leave out --split to use those that it held "
            "out, or give rows that it has not seen"
        )
    return ChoiceRows(source, split, name)


def _remember(model: Model, what: str, given: ChoiceRows, keep_old: bool) -> dict[str, Any]:
    """Return the model's info with a record of the choice, unless it was made on held-out rows."""
    old = [record for record in choice_records(model) if keep_old or record["what"] != what]
    new = []
    if given.split != HELDOUT:
        new = [{"what": what, "split": given.split, "name": given.name, **identify(given.rows)._asdict()}]
    return model.info | {"chosen_on": old + new}


def calibrate(model: Model, given: ChoiceRows, depth: int = DEPTH, n_threads: int = 1, progress: bool = False) -> Model:
    """Return a copy of the model with probabilities, learned from the first `depth` labels of each row.

    The rows may have labels that the model does not know: it cannot predict these.
    """
    blocks = model.predict_blocks(given.rows, depth, n_threads, progress)
    learned = Calibration.fit(((top, block.labels) for block, top in blocks), model.n_labels, depth)
    about = {"n_rows": given.rows.n_rows, "depth": depth}
    info = _remember(model, "calibration", given, keep_old=False) | {"calibration": about}
    rule = info.get("label_rule")
    if rule and rule["probabilities"]:  # of the calibration before
        info["label_rule"] = None
    return model.fresh(calibration=learned, info=info)


def optimize(
    model: Model,
    given: ChoiceRows,
    goal: Goal,
    max_labels: int = MAX_LABELS,
    n_threads: int = 1,
    progress: bool = False,
) -> tuple[Model, ChosenRule]:
    """Return a copy of the model that knows how many labels a row gets, and how that was chosen.

    The rows may have labels that the model does not know: these count as missed.
    """
    blocks = model.predict_blocks(given.rows, max_labels, n_threads, progress)
    chosen = choose_rule(((top, block.labels) for block, top in blocks), given.rows.n_labels, goal, model.calibration)
    info = _remember(model, NUMBER_OF_LABELS, given, keep_old=False) | {"label_rule": chosen.to_info()}
    return model.fresh(info=info), chosen


def prune_to_loss(
    model: Model, given: ChoiceRows, max_loss: float, n_threads: int = 1
) -> tuple[Model, dict[str, float], list[Pruned]]:
    """Return the smallest model that loses at most `max_loss` of every P@k, P@k before, and the trials, best last."""
    before, tried = largest_pruning(model, given.rows, max_loss, n_threads)
    threshold = tried[-1].threshold
    smaller = model.prune(threshold) if threshold else model
    info = smaller.info | {"chosen_on": _remember(model, "pruning", given, keep_old=True)["chosen_on"]}
    return smaller.fresh(info=info), before, tried
