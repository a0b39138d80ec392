"""What library calls accept: a model or its folder, rows or where they are."""

from pathlib import Path
from typing import cast

from xmlpreck.data.location import Data, DataLocation, locate
from xmlpreck.data.rows import RowSource, with_more_labels
from xmlpreck.model import Model

AnyModel = Model | str | Path
AUTO = "auto"  # labels: as many per row as `optimize` has chosen


def as_model(model: AnyModel, verify: bool = False) -> Model:
    """Return a model, loaded if its folder is given."""
    return model if isinstance(model, Model) else Model.load(model, verify)


def open_rows(data: Data, model: Model | None = None, progress: bool = False) -> RowSource:
    """Return rows, opened if their location is given; raw text goes through the vectorizer of the model."""
    location = locate(data)
    if location is None:
        return cast(RowSource, data)  # the other kinds of data have a location
    return open_location(location, model, progress)


def open_location(location: DataLocation, model: Model | None = None, progress: bool = False) -> RowSource:
    """Open the rows of a location; raw text goes through the vectorizer of the model."""
    if model is None:
        return location.open()
    rows = location.of_model(model.info).open(model.vectorizer, model.label_names, model.rows.n_dense, progress)
    if model.vocabulary is None:
        return rows
    # A vocabulary may have labels behind those of the data.
    return with_more_labels(rows, model.n_labels, model.label_names)
