"""Annif's HTTP contract, so that Annif and its clients can use a model as a project (https://annif.org)."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from xmlpreck.data.formats import TopK
from xmlpreck.data.formats.json_rows import JsonRow
from xmlpreck.model.calibration import uncalibrated
from xmlpreck.serve import reading
from xmlpreck.serve.batching import Wanted
from xmlpreck.serve.problems import JSON, Problem
from xmlpreck.serve.served import Served
from xmlpreck.serve.state import State

MAX_BATCH = 32  # documents, as Annif has it
LIMIT = 10  # suggestions, as Annif has it
MIN_SCORE = 1e-9  # Annif drops what is 0


async def about(request: Request) -> Response:
    return JSON({"title": "xmlpreck"})


async def list_projects(request: Request) -> Response:
    state: State = request.app.state.serve
    return JSON({"projects": [project(served) for served in state.models.values()]})


async def show_project(request: Request) -> Response:
    return JSON(project(_served(request)))


def project(served: Served) -> dict[str, Any]:
    """Describe a model as Annif does its projects."""
    facts = served.facts()
    return {
        "project_id": served.name,
        "name": served.name,
        "language": facts["language"] or "",
        "backend": {"backend_id": "xmlpreck"},
        "is_trained": True,
        "modification_time": served.modified,
    }


async def suggest(request: Request) -> Response:
    state: State = request.app.state.serve
    served = _served(request)
    form = await reading.read_form(request, state.limits)
    if "text" not in form:
        raise Problem(400, "the form must have a text")
    (results,) = await _suggest(state, served, [form["text"]], _limit(form, state), _threshold(form))
    return JSON({"results": results})


async def suggest_batch(request: Request) -> Response:
    state: State = request.app.state.serve
    served = _served(request)
    query = dict(request.query_params)
    limit, threshold = _limit(query, state), _threshold(query)
    fields = await reading.read_object(request, state.limits, ("documents",))
    documents = reading.listed(fields, "documents", MAX_BATCH)
    if documents is None:
        raise Problem(400, "documents must be a list of objects with a text")
    for place, one in enumerate(documents):
        if not isinstance(one, dict) or not isinstance(one.get("text"), str):
            raise Problem(400, f"documents[{place}]: must be an object with a text")
        if not isinstance(one.get("document_id"), str | None):
            raise Problem(400, f"documents[{place}]: document_id must be a string")
    found = await _suggest(state, served, [one["text"] for one in documents], limit, threshold)
    return JSON(
        [{"document_id": one.get("document_id"), "results": own} for one, own in zip(documents, found, strict=True)]
    )


def _served(request: Request) -> Served:
    state: State = request.app.state.serve
    name = request.path_params["project"]
    if name not in state.models:
        raise Problem(404, f"Project {name!r:.60} not found.")
    return state.models[name]


def _limit(fields: dict[str, str], state: State) -> int:
    return reading.written_whole(fields, "limit", LIMIT, 1, state.limits.max_labels)


def _threshold(fields: dict[str, str]) -> float:
    try:
        value = float(fields.get("threshold") or 0)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise Problem(400, "threshold must be a number from 0 to 1")
    return value


async def _suggest(
    state: State, served: Served, texts: list[str], limit: int, threshold: float
) -> list[list[dict[str, Any]]]:
    """Return suggestions for texts: probabilities if the model is calibrated, else the logistic of its scores."""
    if not served.parser.takes_text:
        raise Problem(400, "the model was trained on numbers, not on texts")
    if not texts:
        return []
    is_calibrated = served.model.calibration is not None
    documents = [JsonRow(place, text, None) for place, text in enumerate(texts)]
    top = await state.batcher.predict(served, documents, Wanted(k=limit, probabilities=is_calibrated))
    return suggestions(served, top if is_calibrated else uncalibrated(top), max(threshold, MIN_SCORE))


def suggestions(served: Served, top: TopK, threshold: float) -> list[list[dict[str, Any]]]:
    """Return labels as Annif's suggestions. An id, or else a name, is a URI of Annif's vocabulary, perhaps in <>."""
    return [
        [
            {
                "uri": served.label_id(label).removeprefix("<").removesuffix(">"),
                "label": served.label_name(label),
                "notation": None,
                "score": score,
            }
            for label, score in zip(labels, scores, strict=True)
            if label >= 0 and score >= threshold
        ]
        for labels, scores in zip(top.labels.tolist(), top.scores.tolist(), strict=True)
    ]


ROUTES = [
    Route("/v1/", about),
    Route("/v1/projects", list_projects),
    Route("/v1/projects/{project}", show_project),
    Route("/v1/projects/{project}/suggest", suggest, methods=["POST"]),
    Route("/v1/projects/{project}/suggest-batch", suggest_batch, methods=["POST"]),
]
