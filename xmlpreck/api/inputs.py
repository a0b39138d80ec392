"""What library calls accept: a model or its folder, rows or where they are."""

from pathlib import Path
from typing import cast

from xmlpreck.data.location import Data, DataLocation, locate
from xmlpreck.data.rows import RowSource
from xmlpreck.model import Model

AnyModel = Model | str | Path


def as_model(model: AnyModel, verify: bool = False) -> Model:
    """Return a model, loaded if its folder is given."""
    return model if isinstance(model, Model) else Model.load(model, verify)


def open_rows(data: Data, model: Model | None = None) -> RowSource:
    """Return rows, opened if their location is given; raw text goes through the vectorizer of the model."""
    location = locate(data)
    if location is None:
        return cast(RowSource, data)  # the other kinds of data have a location
    return open_location(location, model)


def open_location(location: DataLocation, model: Model | None = None) -> RowSource:
    """Open the rows of a location; raw text goes through the vectorizer of the model."""
    if model is None:
        return location.open()
    return location.of_model(model.info).open(model.vectorizer, model.label_names)
