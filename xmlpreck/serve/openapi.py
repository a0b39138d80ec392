"""The server's OpenAPI document."""

from typing import Any

from xmlpreck.serve.settings import ServeLimits

_TEXT = {"type": "string"}
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


def _operation(name: str, summary: str, answer: Any, *statuses: str, **more: Any) -> dict[str, Any]:
    problems = {
        status: _answer(_STATUSES[status], _ref("Problem"), "application/problem+json")
        for status in (*statuses, "401", "500", "503")
    }
    return {"operationId": name, "summary": summary, "responses": {"200": answer} | problems, **more}


def _body(schema: Any, kind: str = "application/json") -> dict[str, Any]:
    return {"required": True, "content": {kind: {"schema": schema}}}


def _parameter(name: str, place: str, schema: Any, description: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema, "description": description}


_POSTED = ("400", "404", "408", "413", "415", "429")


def document(limits: ServeLimits) -> dict[str, Any]:
    """Return the document for these limits."""
    k = {"type": "integer", "minimum": 1, "maximum": limits.max_labels, "default": 5}
    labels = _list({"type": ["string", "integer"]}, description="Names or numbers of labels.")
    features = {
        "description": "Features by number or name with their values, or a list of them beside `values`.",
        "oneOf": [
            {"type": "object", "additionalProperties": {"type": "number"}},
            _list({"type": ["string", "integer"]}),
        ],
    }
    values = _list({"type": "number"}, description="A value for each of `features`; without it each is 1.")
    text_or_features = {"oneOf": [{"required": ["text"]}, {"required": ["features"]}]}
    one = _object([], True, id={"type": ["string", "number"]}, text=_TEXT, features=features, values=values)
    one |= text_or_features
    wanted = {
        "model": {"type": "string", "description": "Name of a model; without it, the first."},
        "k": k | {"description": "Labels of a document, at most."},
        "threshold": {"type": ["number", "null"], "description": "Only labels with this score or more."},
        "at_least": {
            "type": "integer",
            "minimum": 0,
            "maximum": limits.max_labels,
            "description": "Labels of a document even below `threshold`; at most k.",
        },
        "labels": {"enum": ["auto"], "description": "As many as `optimize` chose, instead of k and thresholds."},
        "only": labels,
        "exclude": labels,
        "probabilities": {"type": "boolean", "description": "Scores, and `threshold`, are probabilities."},
        "guess_empty": {
            "type": "boolean",
            "description": "Give documents without a known feature the most frequent labels.",
        },
    }
    given = {
        "text": _TEXT,
        "texts": _list(_TEXT, maxItems=limits.max_documents),
        "documents": _list(_ref("Document"), maxItems=limits.max_documents),
    }
    predict = _object([], True, **given, **wanted) | {
        "description": "One of `text`, `texts` and `documents`, and which labels are wanted.",
        "oneOf": [{"required": [name]} for name in given],
    }
    head = {"model": _TEXT, "version": {"type": "string", "description": "Of the model that answered."}}
    label = {"label": _LABEL, "name": _TEXT}
    scored = _object(**label, score={"type": "number"})
    result = _object(id={"type": ["string", "number"]}, labels=_list(scored))
    explained = _object(
        **label,
        rank={"type": "integer", "minimum": 1},
        score={"type": "number"},
        predicted={"type": "boolean"},
        rival={"oneOf": [_object(**label), {"type": "null"}]},
        lead={"type": "number"},
        removal={"type": ["array", "null"], "items": _object(feature=_LABEL, name=_TEXT)},
        contributions=_list(
            _object(
                feature=_LABEL, name=_TEXT, value={"type": "number"}, weight={"type": "number"}, adds={"type": "number"}
            )
        ),
    )
    word = _object(start=_LABEL, end=_LABEL, features=_list(_LABEL))
    facts = _object(
        **head,
        modified=_TEXT,
        n_labels=_LABEL,
        n_features=_LABEL,
        n_weights=_LABEL,
        takes_text={"type": "boolean"},
        language={"type": ["string", "null"]},
        has_label_names={"type": "boolean"},
        calibrated={"type": "boolean"},
        labels_auto={"type": "boolean"},
        trained=_object([]),
    )
    problem = _object(type=_TEXT, title=_TEXT, status={"type": "integer"}, detail=_TEXT)
    suggestion = _object(uri=_TEXT, label=_TEXT, notation={"type": ["string", "null"]}, score={"type": "number"})
    project = _object(
        project_id=_TEXT,
        name=_TEXT,
        language=_TEXT,
        backend=_object(backend_id=_TEXT),
        is_trained={"type": "boolean"},
        modification_time={"type": ["string", "null"]},
    )
    form = _object(
        ["text"],
        text=_TEXT,
        limit={"type": "integer", "minimum": 1, "maximum": limits.max_labels, "default": 10},
        threshold={"type": "number", "minimum": 0, "maximum": 1, "default": 0},
    )
    batch = _object(
        None,
        True,
        documents=_list(_object(["text"], text=_TEXT, document_id=_maybe(_TEXT)), maxItems=32),
    )
    of_project = _parameter("project", "path", _TEXT, "Name of a model.")
    limit = _parameter("limit", "query", k, "Labels, at most.")
    plain = _answer("Yes.", _TEXT, "text/plain")
    paths = {
        "/predict": {
            "post": _operation(
                "predict", "Predict the labels of documents",
                _answer("The labels of each document, in their order.", _object(
                    **head, scores={"enum": ["margin", "probability"]}, results=_list(result)
                )),
                *_POSTED, requestBody=_body(_ref("Predict")),
            )
        },
        "/explain": {
            "post": _operation(
                "explain", "Say why labels of a document are predicted",
                _answer("What each feature adds, and where its words are.", _object(
                    **head, k={"type": "integer"}, labels=_list(explained),
                    words={"type": ["array", "null"], "items": word},
                )),
                *_POSTED,
                requestBody=_body(_object(
                    [], True, model=_TEXT, text=_TEXT, features=features, values=values,
                    k=k | {"maximum": 50}, labels=labels | {"maxItems": 50},
                ) | text_or_features),
            )
        },
        "/labels": {
            "get": _operation(
                "labels", "Search labels by name",
                _answer("Labels whose names hold all words.", _object(**head, labels=_list(_object(**label)))),
                "400", "404", "429",
                parameters=[
                    _parameter("search", "query", _TEXT, "Words; without them, the first labels."),
                    _parameter("model", "query", _TEXT, "Name of a model; without it, the first."),
                    limit,
                ],
            )
        },
        "/models": {
            "get": _operation("models", "List the models", _answer("Facts.", _object(models=_list(_ref("Model")))))
        },
        "/models/{model}": {
            "get": _operation(
                "model", "Describe a model", _answer("Facts.", _ref("Model")), "404",
                parameters=[_parameter("model", "path", _TEXT, "Name of a model.")],
            )
        },
        "/healthz": {"get": _operation("healthz", "Tell whether the server runs", plain)},
        "/readyz": {"get": _operation("readyz", "Tell whether the server takes requests", plain)},
        "/metrics": {"get": _operation("metrics", "Show counters for Prometheus", plain)},
        "/v1/": {"get": _operation("annif", "Name the server (Annif)", _answer("A title.", _object(title=_TEXT)))},
        "/v1/projects": {
            "get": _operation(
                "projects", "List the models (Annif)", _answer("Projects.", _object(projects=_list(_ref("Project"))))
            )
        },
        "/v1/projects/{project}": {
            "get": _operation(
                "project", "Describe a model (Annif)", _answer("A project.", _ref("Project")), "404",
                parameters=[of_project],
            )
        },
        "/v1/projects/{project}/suggest": {
            "post": _operation(
                "suggest", "Suggest labels for a text (Annif)",
                _answer("Suggestions.", _object(results=_list(_ref("Suggestion")))),
                *_POSTED, parameters=[of_project], requestBody=_body(form, "application/x-www-form-urlencoded"),
            )
        },
        "/v1/projects/{project}/suggest-batch": {
            "post": _operation(
                "suggestBatch", "Suggest labels for up to 32 texts (Annif)",
                _answer("Suggestions for each text.", _list(
                    _object(document_id=_maybe(_TEXT), results=_list(_ref("Suggestion")))
                )),
                *_POSTED,
                parameters=[
                    of_project,
                    _parameter("limit", "query", k | {"default": 10}, "Suggestions, at most."),
                    _parameter(
                        "threshold", "query", {"type": "number", "minimum": 0, "maximum": 1}, "The lowest score."
                    ),
                ],
                requestBody=_body(batch),
            )
        },
    }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "xmlpreck", "version": "1", "description": "Labels of documents by models of xmlpreck."},
        "paths": paths,
        "components": {
            "schemas": {
                "Predict": predict,
                "Document": one | {"description": "A text, or features, and an id if you like."},
                "Model": facts,
                "Problem": problem,
                "Project": project,
                "Suggestion": suggestion,
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }
