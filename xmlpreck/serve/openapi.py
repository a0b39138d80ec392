"""The server's OpenAPI document."""

from typing import Any

from xmlpreck.serve.annif import LIMIT, MAX_BATCH
from xmlpreck.serve.reading import MAX_EXPLAINED
from xmlpreck.serve.settings import ServeLimits

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_FLAG = {"type": "boolean"}
_ID = {"type": ["string", "number"]}
_LABEL = {"type": "integer", "minimum": 0}


def _object(required: list[str] | None = None, closed: bool = False, /, **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required is None or required:
        found["required"] = list(properties) if required is None else required
    if closed:
        found["additionalProperties"] = False
    return found


def _list(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def _maybe(schema: dict[str, Any]) -> dict[str, Any]:
    return schema | {"type": [schema["type"], "null"]}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(description: str, schema: Any, kind: str = "application/json") -> dict[str, Any]:
    return {"description": description, "content": {kind: {"schema": schema}}}


_STATUSES = {
    "400": "The request is wrong; `detail` says how.",
    "401": "The token is missing or wrong.",
    "404": "There is no such model.",
    "408": "The body came too slowly.",
    "413": "The body or a list is too long.",
    "415": "The body is of another type.",
    "429": "Too many documents wait; try again after `Retry-After` seconds.",
    "500": "The server has failed.",
    "503": "The answer took too long, or the server is stopping.",
}


def _get(name: str, summary: str, answer: Any, *statuses: str, **more: Any) -> dict[str, Any]:
    problems = {
        status: _answer(_STATUSES[status], _ref("Problem"), "application/problem+json")
        for status in (*statuses, "401", "500", "503")
    }
    return {"get": {"operationId": name, "summary": summary, "responses": {"200": answer} | problems, **more}}


def _post(name: str, summary: str, answer: Any, body: Any, **more: Any) -> dict[str, Any]:
    return {"post": _get(name, summary, answer, *_POSTED, requestBody=body, **more)["get"]}


def _body(schema: Any, kind: str = "application/json") -> dict[str, Any]:
    return {"required": True, "content": {kind: {"schema": schema}}}


def _parameter(name: str, place: str, schema: Any, description: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema, "description": description}


_POSTED = ("400", "404", "408", "413", "415", "429")
_HEAD = {"model": _TEXT, "version": {"type": "string", "description": "Of the model that answered."}}
_NAMED = {"label": _LABEL, "name": _TEXT}
_LABELS = _list({"type": ["string", "integer"]}, description="Names or numbers of labels.")
_FEATURES = {
    "features": {
        "description": "Features by number or name with their values, or a list of them beside `values`.",
        "oneOf": [
            {"type": "object", "additionalProperties": _NUMBER},
            _list({"type": ["string", "integer"]}),
        ],
    },
    "values": _list(_NUMBER, description="A value for each of `features`; without it each is 1."),
}
_TEXT_OR_FEATURES = {"oneOf": [{"required": ["text"]}, {"required": ["features"]}]}
_EXPLAINED = _object(
    **_NAMED,
    rank={"type": "integer", "minimum": 1},
    score=_NUMBER,
    predicted=_FLAG,
    rival={"oneOf": [_object(**_NAMED), {"type": "null"}]},
    lead=_NUMBER,
    removal={"type": ["array", "null"], "items": _object(feature=_LABEL, name=_TEXT)},
    contributions=_list(_object(feature=_LABEL, name=_TEXT, value=_NUMBER, weight=_NUMBER, adds=_NUMBER)),
)
_SCHEMAS = {
    "Document": _object([], True, id=_ID, text=_TEXT, **_FEATURES)
    | {"description": "A text, or features, and an id if you like.", **_TEXT_OR_FEATURES},
    "Model": _object(
        **_HEAD,
        modified=_TEXT,
        n_labels=_LABEL,
        n_features=_LABEL,
        n_weights=_LABEL,
        takes_text=_FLAG,
        language=_maybe(_TEXT),
        has_label_names=_FLAG,
        calibrated=_FLAG,
        labels_auto=_FLAG,
        trained=_object([]),
    ),
    "Problem": _object(type=_TEXT, title=_TEXT, status={"type": "integer"}, detail=_TEXT),
    "Project": _object(
        project_id=_TEXT,
        name=_TEXT,
        language=_TEXT,
        backend=_object(backend_id=_TEXT),
        is_trained=_FLAG,
        modification_time=_maybe(_TEXT),
    ),
    "Suggestion": _object(uri=_TEXT, label=_TEXT, notation=_maybe(_TEXT), score=_NUMBER),
}


def _k(limits: ServeLimits, default: int = 5) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": limits.max_labels, "default": default}


def _predict_schema(limits: ServeLimits) -> dict[str, Any]:
    given = {
        "text": _TEXT,
        "texts": _list(_TEXT, maxItems=limits.max_documents),
        "documents": _list(_ref("Document"), maxItems=limits.max_documents),
    }
    at_least = {"type": "integer", "minimum": 0, "maximum": limits.max_labels}
    wanted = {
        "model": _TEXT | {"description": "Name of a model; without it, the first."},
        "k": _k(limits) | {"description": "Labels of a document, at most."},
        "threshold": _maybe(_NUMBER) | {"description": "Only labels with this score or more."},
        "at_least": at_least | {"description": "Labels of a document even below `threshold`; at most k."},
        "labels": {"enum": ["auto"], "description": "As many as `optimize` chose, instead of k and thresholds."},
        "only": _LABELS,
        "exclude": _LABELS,
        "probabilities": _FLAG | {"description": "Scores, and `threshold`, are probabilities."},
        "guess_empty": _FLAG | {"description": "Give documents without a known feature the most frequent labels."},
    }
    return _object([], True, **given, **wanted) | {
        "description": "One of `text`, `texts` and `documents`, and which labels are wanted.",
        "oneOf": [{"required": [name]} for name in given],
    }


def _own_paths(limits: ServeLimits) -> dict[str, Any]:
    """Describe what is asked under the server's own names."""
    result = _object(id=_ID, labels=_list(_object(**_NAMED, score=_NUMBER)))
    predicted = _object(**_HEAD, scores={"enum": ["margin", "probability"]}, results=_list(result))
    word = _object(start=_LABEL, end=_LABEL, features=_list(_LABEL))
    explained = _object(
        **_HEAD, k={"type": "integer"}, labels=_list(_EXPLAINED), words={"type": ["array", "null"], "items": word}
    )
    most = {"k": _k(limits) | {"maximum": MAX_EXPLAINED}, "labels": _LABELS | {"maxItems": MAX_EXPLAINED}}
    to_explain = _object([], True, model=_TEXT, text=_TEXT, **_FEATURES, **most) | _TEXT_OR_FEATURES
    found = _answer("Labels whose names hold all words.", _object(**_HEAD, labels=_list(_object(**_NAMED))))
    asked = [
        _parameter("search", "query", _TEXT, "Words; without them, the first labels."),
        _parameter("model", "query", _TEXT, "Name of a model; without it, the first."),
        _parameter("limit", "query", _k(limits, 20), "Labels, at most."),
    ]
    models = _answer("Facts.", _object(models=_list(_ref("Model"))))
    plain = _answer("Yes.", _TEXT, "text/plain")
    return {
        "/predict": _post(
            "predict", "Predict the labels of documents",
            _answer("The labels of each document, in their order.", predicted), _body(_ref("Predict")),
        ),
        "/explain": _post(
            "explain", "Say why labels of a document are predicted",
            _answer("What each feature adds, and where its words are.", explained), _body(to_explain),
        ),
        "/labels": _get("labels", "Search labels by name", found, "400", "404", "429", parameters=asked),
        "/models": _get("models", "List the models", models),
        "/models/{model}": _get(
            "model", "Describe a model", _answer("Facts.", _ref("Model")), "404",
            parameters=[_parameter("model", "path", _TEXT, "Name of a model.")],
        ),
        "/healthz": _get("healthz", "Tell whether the server runs", plain),
        "/readyz": _get("readyz", "Tell whether the server takes requests", plain),
        "/metrics": _get("metrics", "Show counters for Prometheus", plain),
    }  # fmt: skip


def _annif_paths(limits: ServeLimits) -> dict[str, Any]:
    """Describe Annif's contract."""
    project = _parameter("project", "path", _TEXT, "Name of a model.")
    limit, threshold = _k(limits, LIMIT), _NUMBER | {"minimum": 0, "maximum": 1, "default": 0}
    form = _object(["text"], text=_TEXT, limit=limit, threshold=threshold)
    document = _object(["text"], text=_TEXT, document_id=_maybe(_TEXT))
    batch = _object(None, True, documents=_list(document, maxItems=MAX_BATCH))
    suggestions = _list(_ref("Suggestion"))
    projects = _answer("Projects.", _object(projects=_list(_ref("Project"))))
    choices = [
        _parameter("limit", "query", limit, "Suggestions, at most."),
        _parameter("threshold", "query", threshold, "The lowest score."),
    ]
    return {
        "/v1/": _get("annif", "Name the server (Annif)", _answer("A title.", _object(title=_TEXT))),
        "/v1/projects": _get("projects", "List the models (Annif)", projects),
        "/v1/projects/{project}": _get(
            "project", "Describe a model (Annif)", _answer("A project.", _ref("Project")), "404", parameters=[project]
        ),
        "/v1/projects/{project}/suggest": _post(
            "suggest", "Suggest labels for a text (Annif)",
            _answer("Suggestions.", _object(results=suggestions)),
            _body(form, "application/x-www-form-urlencoded"), parameters=[project],
        ),
        "/v1/projects/{project}/suggest-batch": _post(
            "suggestBatch", f"Suggest labels for up to {MAX_BATCH} texts (Annif)",
            _answer("Suggestions for each text.", _list(_object(document_id=_maybe(_TEXT), results=suggestions))),
            _body(batch), parameters=[project, *choices],
        ),
    }  # fmt: skip


def document(limits: ServeLimits) -> dict[str, Any]:
    """Return the document for these limits."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "xmlpreck", "version": "1", "description": "Labels of documents by models of xmlpreck."},
        "paths": _own_paths(limits) | _annif_paths(limits),
        "components": {
            "schemas": {"Predict": _predict_schema(limits), **_SCHEMAS},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }
