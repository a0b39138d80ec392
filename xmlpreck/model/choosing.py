"""Which rows a model knows already, and what is chosen on rows after training: probabilities, and how much to prune.

Figures flatter a model on the rows that it was trained on, and on those that something of it was chosen on. So choices
are made on training rows that were held out; a choice on other rows is written into the model (`info["chosen_on"]`).
"""

from typing import Any, NamedTuple

from xmlpreck.config import ConfigError, InputError, from_dict
from xmlpreck.data.rows import RowSource, read_blocks, split_heldout
from xmlpreck.data.survey import Survey
from xmlpreck.model import Model
from xmlpreck.model.calibration import DEPTH, Calibration
from xmlpreck.model.pruning import Pruned, largest_pruning

BLOCK_ROWS = 1 << 15  # that are read at a time
HELDOUT = "heldout"  # training rows that a model has not been trained on, as the name of a split


class Identity(NamedTuple):
    """Rows by their number and their hash: no file format, sharding or name changes these."""

    n_rows: int
    sha256: str


def identify(rows: RowSource) -> Identity:
    """Read all rows once."""
    survey = Survey()
    for _, block in read_blocks(rows, BLOCK_ROWS):
        survey.add(block)
    return Identity(survey.n_rows, str(survey.to_dict()["sha256"]))


class Seen(NamedTuple):
    """What a model knows of some rows already."""

    trained: bool  # it was trained on them, or on all of them but those that it held out
    chosen: list[str]  # what was chosen on them: calibration, pruning

    def notes(self) -> list[str]:
        """A sentence for each reason to doubt figures on these rows."""
        notes = []
        if self.trained:
            notes.append("was trained on these rows: figures on them say nothing about new rows")
        notes += [f"its {what} was chosen on these rows: figures on them are flattered" for what in self.chosen]
        return notes


def seen_rows(scorer: Model, rows: RowSource) -> Seen:
    """Whether a model was trained on these rows, all of them, and what was chosen on them.

    The rows are read and hashed only where the model knows as many. Some rows of a larger set are not recognised.
    """
    trained = [scorer.info.get("data"), *_list(scorer.info.get("updates"))]
    records: dict[str, list[object]] = {}
    for record in choice_records(scorer):
        records.setdefault(record["what"], []).append(record)
    return Seen(
        _are_among(rows, trained) or _heldout(scorer, rows) is not None,
        [what for what, entries in records.items() if _are_among(rows, entries)],
    )


def choice_records(scorer: Model) -> list[dict[str, Any]]:
    """Choices on rows that were not held out: what, split, name, n_rows and sha256 of each that still has a say."""
    records = [record for record in _list(scorer.info.get("chosen_on")) if isinstance(record, dict)]
    named = [record for record in records if isinstance(record.get("what"), str)]
    return [record for record in named if record["what"] != "calibration" or scorer.calibration is not None]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _are_among(rows: RowSource, entries: list[Any]) -> bool:
    """Is one of these entries of a model's info about the rows? Anything that is no such entry is passed over."""
    found = [entry for entry in entries if isinstance(entry, dict) and entry.get("n_rows") == rows.n_rows]
    return bool(found) and identify(rows).sha256 in [entry.get("sha256") for entry in found]


def _heldout(scorer: Model, source: RowSource) -> RowSource | None:
    """The rows of a source that a model has held out, if it was trained on all of the others."""
    sections = scorer.info.get("config")
    train = sections.get("train") if isinstance(sections, dict) else None
    if not isinstance(train, dict):
        return None
    drawn = {name: train[name] for name in ("heldout", "seed") if name in train}
    try:
        settings = from_dict({"train": drawn}, "model.json").train
        kept, heldout = split_heldout(source, settings.heldout, settings.seed)
    except ConfigError:
        return None
    if not heldout.n_rows or not _are_among(kept, [scorer.info.get("data")]):
        return None
    return None if _are_among(source, _list(scorer.info.get("updates"))) else heldout


class ChoiceRows(NamedTuple):
    """Rows to choose on, and where they come from."""

    rows: RowSource
    split: str
    name: str


def rows_to_choose_on(scorer: Model, source: RowSource, split: str = HELDOUT, name: str = "") -> ChoiceRows:
    """The held-out rows of a model's training rows; of another split, which has a name, all rows.

    Rows that the model was trained on are refused: nearly every first label of theirs is right.
    """
    if split == HELDOUT:
        heldout = _heldout(scorer, source)
        if heldout is None:
            raise InputError(
                f"{name or 'the rows'}: the model has held out none of these rows: train it on them with --heldout 0.1,"
                " or choose on rows that it has not seen by --split test, which the model will remember"
            )
        return ChoiceRows(heldout, split, name)
    if seen_rows(scorer, source).trained:
        raise InputError(
            f"{name or 'the rows'}: the model was trained on these rows: leave out --split to use those that it held "
            "out, or give rows that it has not seen"
        )
    return ChoiceRows(source, split, name)


def _remember(scorer: Model, what: str, given: ChoiceRows, keep_old: bool) -> dict[str, Any]:
    """The model's info with a record of the choice, unless it was made on held-out rows."""
    old = [record for record in choice_records(scorer) if keep_old or record["what"] != what]
    new = []
    if given.split != HELDOUT:
        new = [{"what": what, "split": given.split, "name": given.name, **identify(given.rows)._asdict()}]
    return scorer.info | {"chosen_on": old + new}


def calibrate(
    scorer: Model, given: ChoiceRows, depth: int = DEPTH, n_threads: int = 1, progress: bool = False
) -> Model:
    """A copy of the model that knows how likely its scores are, learned from the first `depth` labels of rows.

    The rows may have labels that the model does not know: it cannot predict these.
    """
    blocks = scorer.predict_blocks(given.rows, depth, n_threads, progress)
    learned = Calibration.fit(((top, block.labels) for block, top in blocks), scorer.n_labels, depth)
    about = {"n_rows": given.rows.n_rows, "depth": depth}
    info = _remember(scorer, "calibration", given, keep_old=False) | {"calibration": about}
    return scorer.fresh(calibration=learned, info=info)


def prune_to_loss(
    scorer: Model, given: ChoiceRows, max_loss: float, n_threads: int = 1
) -> tuple[Model, dict[str, float], list[Pruned]]:
    """The smallest model that loses at most `max_loss` of every P@k; P@k before; what was tried, the last was taken."""
    before, tried = largest_pruning(scorer, given.rows, max_loss, n_threads)
    threshold = tried[-1].threshold
    smaller = scorer.prune(threshold) if threshold else scorer
    info = smaller.info | {"chosen_on": _remember(scorer, "pruning", given, keep_old=True)["chosen_on"]}
    return smaller.fresh(info=info), before, tried
