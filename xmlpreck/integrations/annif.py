"""A backend for Annif (https://annif.org): `backend=xmlpreck` in a project's configuration (docs/serving.md).

    import xmlpreck.integrations.annif  # registers the backend
    from annif.cli import cli; cli()

is Annif's command with this backend; so is `python -m xmlpreck.integrations.annif`. The project's analyzer makes words
of texts, the model is a plain xmlpreck model, whose labels are the subjects' URIs, and scores are probabilities.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import annif.backend
import numpy as np
import pyarrow as pa
from annif.backend.backend import AnnifLearningBackend
from annif.exception import NotInitializedException, NotSupportedException
from annif.suggestion import SubjectSuggestion, SuggestionBatch

import xmlpreck
from xmlpreck.data.formats import TopK
from xmlpreck.files.contents import write_lines
from xmlpreck.model.calibration import uncalibrated

_OF_ANNIF = {"language"}  # of the project, whose analyzer makes stems: they are not stemmed again
_RENAMED = {"ngram": "ngrams"}  # as other backends of Annif call it


class XmlpreckBackend(AnnifLearningBackend):
    """Extreme multi-label classification with xmlpreck. Parameters are those of XMLTextClassifier, and `ngram`."""

    name = "xmlpreck"
    TRAIN_FILE = "xmlpreck-train.jsonl"
    MODEL_DIR = "xmlpreck-model"
    DEFAULT_PARAMETERS = {"min_df": 1, "max_df": 1.0, "ngram": 1}  # noqa: RUF012 - Annif's name and kind

    _model: xmlpreck.Model | None = None

    @property
    def _model_path(self) -> Path:
        return Path(self.datadir) / self.MODEL_DIR

    def initialize(self, parallel: bool = False) -> None:
        """Load the model, if it is not loaded yet."""
        if self._model is None:
            if not (self._model_path / "model.json").exists():
                raise NotInitializedException(f"model {self._model_path} not found", backend_id=self.backend_id)
            self._model = xmlpreck.load_model(self._model_path)

    def _train(self, corpus: Any, params: dict[str, Any], jobs: int = 0) -> None:
        train_file = Path(self.datadir) / self.TRAIN_FILE
        if corpus != "cached":
            if corpus.is_empty():
                raise NotSupportedException(f"training backend {self.backend_id} with no documents")
            write_lines(train_file, (json.dumps(row) for row in self._rows(corpus)))
        else:
            self.info("Reusing cached training data from previous run.")
        with train_file.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        if not rows:
            raise NotSupportedException(f"training backend {self.backend_id} with no document that has subjects")
        classifier = xmlpreck.XMLTextClassifier(**self._settings(params) | {"n_jobs": jobs or -1})
        classifier.fit([row["text"] for row in rows], [row["labels"] for row in rows])
        self._keep(classifier.model_)

    def _learn(self, corpus: Any, params: dict[str, Any]) -> None:
        self.initialize()
        assert self._model is not None
        rows = list(self._rows(corpus))
        if not rows:
            raise NotSupportedException(f"learning with no document that has subjects: {self.backend_id}")
        newer = xmlpreck.update(self._model, pa.Table.from_pylist(rows), grow_vocabulary=True).model
        calibration = self._model.calibration
        if calibration is not None:  # a little training changes scores little; new labels have no shift
            n_new = newer.n_labels - self._model.n_labels
            shifts = np.append(calibration.shifts, np.zeros(n_new, np.float32))
            newer = newer.fresh(calibration=replace(calibration, shifts=shifts))
        self._keep(newer)

    def _suggest_batch(self, documents: Any, params: dict[str, Any]) -> SuggestionBatch:
        model, subjects = self._model, self.project.subjects
        assert model is not None
        rows = model.rows_of([self._words(document.text) for document in documents])
        top = model.predict_topk(rows, int(params["limit"]))
        top = uncalibrated(top) if model.calibration is None else model.calibration.probabilities(top)
        return SuggestionBatch.from_sequence(list(self._suggestions(top, model, subjects)), subjects)

    def _suggestions(self, top: TopK, model: xmlpreck.Model, subjects: Any) -> Iterator[list[SubjectSuggestion]]:
        names = model.label_names or []
        for labels, scores in zip(top.labels.tolist(), top.scores.tolist(), strict=True):
            found = [
                (subjects.by_uri(names[label], warnings=False), score)
                for label, score in zip(labels, scores, strict=True)
                if label >= 0
            ]
            # A subject that has left the vocabulary has no number.
            yield [SubjectSuggestion(subject_id=number, score=score) for number, score in found if number is not None]

    def _words(self, text: str) -> str:
        return " ".join(self.project.analyzer.tokenize_words(text))

    def _rows(self, corpus: Any) -> Iterator[dict[str, Any]]:
        """Yield the words and the subjects' URIs of documents that have both."""
        for document in corpus.documents:
            words = self._words(document.text)
            uris = [self.project.subjects[number].uri for number in document.subject_set]
            if words and uris:
                yield {"text": words, "labels": uris}

    def _settings(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters that XMLTextClassifier has; those of a file are texts, and read as JSON."""
        known = set(xmlpreck.XMLTextClassifier().get_params()) - _OF_ANNIF
        given = {_RENAMED.get(name, name): value for name, value in params.items()}
        return {name: _value(value) for name, value in given.items() if name in known}

    def _keep(self, model: xmlpreck.Model) -> None:
        if self._model_path.is_dir() and not any(self._model_path.iterdir()):
            self._model_path.rmdir()
        model.save(self._model_path)
        self._model = model


def _value(given: Any) -> Any:
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given


annif.backend._backend_fns["xmlpreck"] = lambda: XmlpreckBackend

if __name__ == "__main__":
    from annif.cli import cli

    cli()
