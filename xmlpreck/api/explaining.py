"""Explain why labels of one row are predicted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.sparse import csr_array

from xmlpreck.api.inputs import AnyModel, as_model, open_rows
from xmlpreck.config import InputError, parse_whole, without_secrets
from xmlpreck.data.dataset import Dataset
from xmlpreck.data.location import Data, DataLocation, locate
from xmlpreck.data.rows import RowSource
from xmlpreck.model import Model
from xmlpreck.model.explanation import Explanation, Names
from xmlpreck.model.explanation import explain as explain_row
from xmlpreck.model.neighbours import Neighbour, find_neighbours


@dataclass(frozen=True)
class ExplainedRow:
    """The labels of one row, explained; `true_labels` is None where they are not known."""

    row: csr_array
    true_labels: list[int] | None
    names: Names
    k: int
    labels: list[Explanation]
    about: dict[str, Any]  # model, data, split, row and text, as they were given
    neighbours: list[Neighbour] | None = None  # nearest training rows by their dense features, if they were asked for

    def to_dict(self) -> dict[str, Any]:
        """Return all facts for JSON."""
        true_labels = [{"label": label, "name": self.names.label(label)} for label in self.true_labels or []]
        near = [
            {"row": row, "cosine": cosine, "labels": [self.names.label(label) for label in labels]}
            for row, cosine, labels in self.neighbours or []
        ]
        return (
            self.about
            | ({} if self.neighbours is None else {"neighbours": near})
            | {
                "topk": self.k,
                "n_features": self.row.nnz,
                "true_labels": true_labels or None,
                "labels": [each.to_dict(self.names) for each in self.labels],
            }
        )


def explain(
    model: AnyModel,
    data: Data | None = None,
    row: int | str | None = None,
    *,
    text: str | None = None,
    k: int = 5,
    labels: Sequence[str | int] = (),
    neighbours: int = 0,
) -> ExplainedRow:
    """Explain the k first labels of one row, and those of `labels` (names or ids): what each feature adds.

    The row is row number `row` of `data` (a path means its test split), or, where rows have ids of their own, the one
    with the id `row`; or a `text` for a model of texts. `neighbours` is the number of training rows to find that have
    the nearest dense features; they are read from where the model was trained.
    """
    if (text is None) == (data is None) or (data is None) != (row is None):
        raise InputError("explain needs --data and --row, or --text of a model of texts")
    name = None if isinstance(model, Model) else str(model)
    model = as_model(model)
    location = None if data is None else locate(data, "test")
    if text is not None:
        if model.vectorizer is None:
            raise InputError(f"{name or 'the model'}: was trained on numbers, not on texts: give it --data and --row")
        names = Names.of(model)
        one, truth = model.rows_of([text]), None
    else:
        assert data is not None  # or there would be a text
        rows = open_rows(location or data, model)
        path = "data" if location is None else location.path
        number = find_row(rows, row or 0, path)
        row = row if has_ids(rows) else number
        one, truth, names = _read_row(rows, number, model)
    asked = [names.find_label(str(label), model.n_labels) for label in labels]
    about = {
        "model": name,
        "data": None if location is None else without_secrets(location.path),
        "split": None if location is None else location.split,
        "row": row,
        "text": text,
    }
    near = find_neighbours(model, one, _open_training(model, name), neighbours) if neighbours else None
    return ExplainedRow(one, truth, names, k, explain_row(model, one, k, asked, truth), about, near)


def _open_training(model: Model, name: str | None) -> RowSource:
    """Open the rows that a model with dense features was trained on; refuse where they are not found."""
    name = name or "the model"
    if not model.rows.n_dense:
        raise InputError(f"--neighbours: {name} has no dense features, by which rows are compared")
    place = (model.info.get("data") or {}).get("place")
    if place is None or not Path(place).exists():
        raise InputError(f"--neighbours: the training rows of {name} are not here: it was trained on {place!r:.200}")
    rows = open_rows(DataLocation(place, "train", model.info["data"].get("format")), model)
    if rows.n_features != model.n_features:
        raise InputError(f"--neighbours: {place} has no dense rows beside its others: put them there as E_train.npy")
    return rows


def has_ids(source: RowSource) -> bool:
    """Tell whether rows have ids of their own."""
    return isinstance(source, Dataset) and source.row_ids is not None


def find_row(source: RowSource, row: int | str, path: str) -> int:
    """Return the number of a row that is named by its own id or, where rows have none, by its number from 0."""
    if isinstance(source, Dataset) and (row_ids := source.row_ids) is not None:
        found = [number for number, row_id in enumerate(row_ids) if str(row_id) == str(row)]
        if len(found) != 1:
            first = f"the first is {str(row_ids[0])!r:.60}"
            raise InputError(f"--row {row}: {path}: {len(found) or 'no'} rows have that id; {first}")
        return found[0]
    number = parse_whole(str(row))
    if number is None or number >= source.n_rows:
        raise InputError(f"--row {row}: {path} has {source.n_rows:,} rows, count them from 0")
    return number


def _read_row(source: RowSource, row: int, model: Model) -> tuple[csr_array, list[int] | None, Names]:
    """Return the row, its labels (None where it has none: they are not known then), and the names of all."""
    one = source.read(row, row + 1)
    # Rows may have labels that training did not see, and rows to predict may have none.
    label_names = source.label_names if source.n_labels >= model.n_labels else None
    if model.vocabulary is not None:
        label_names = [*model.vocabulary.names, *(source.label_names or [])[model.n_labels :]]
    names = Names.of(model)
    names = names._replace(labels=label_names or names.labels, features=source.feature_names or names.features)
    return one.rows, one.labels.indices.tolist() or None, names
