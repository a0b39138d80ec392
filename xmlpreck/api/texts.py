"""Texts of a run: which of their terms are features, and new texts for a model that knows others."""

from xmlpreck import train
from xmlpreck.api.inputs import open_rows
from xmlpreck.api.run import Listener
from xmlpreck.config import InputError, RunConfig
from xmlpreck.data import corpus
from xmlpreck.data.location import Data, DataLocation, locate
from xmlpreck.data.rows import RowSource
from xmlpreck.data.text import TextVectorizer, grow_text
from xmlpreck.files.progress import Reading
from xmlpreck.model import Model


def choose_text(
    location: DataLocation | None, settings: RunConfig, listener: Listener, progress: bool = False
) -> train.Analyzed:
    """Choose how texts become features, by short runs on some of them."""
    documents = None if location is None else location.documents()
    if documents is None:
        raise InputError("--tune-text chooses among words of raw text, but the data are numbers: leave it out")
    listener.note("reading text to choose an analyzer")
    texts, labels = train.draw_texts(Reading("texts", progress).over(documents.chunks()), settings.train)
    return train.choose_analyzer(texts, labels, settings, listener.note, progress)


def open_new(
    data: Data, model: Model, grow_vocabulary: bool, threads: int, progress: bool
) -> tuple[RowSource, TextVectorizer | None]:
    """Open rows by a model's vectorizer; a grown one has the terms of the texts behind those of the model."""
    if not grow_vocabulary:
        return open_rows(data, model, progress), model.vectorizer
    location = locate(data)
    documents = None if location is None else location.of_model(model.info).documents()
    if model.rows.n_dense:
        raise InputError(
            "--grow-vocabulary has no place for new words before dense features: train on all rows instead"
        )
    if documents is None or model.vectorizer is None or model.label_names is None:
        raise InputError("--grow-vocabulary needs new texts, and a model that was trained on texts")
    reading = Reading("texts", progress)
    texts = (chunk.texts for chunk in reading.over(documents.chunks()))
    vectorizer = grow_text(model.vectorizer, texts, threads)
    return corpus.vectorize(documents, vectorizer, model.label_names, reading, threads), vectorizer
