"""The server as an ASGI application: JSON over HTTP (docs/serving.md)."""

import hmac
import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from xmlpreck.data.formats import TopK
from xmlpreck.data.formats.json_rows import JsonRow
from xmlpreck.model.explanation import Names, explain
from xmlpreck.serve import annif, reading
from xmlpreck.serve.openapi import document
from xmlpreck.serve.page import load_page
from xmlpreck.serve.problems import JSON, Problem
from xmlpreck.serve.served import Served
from xmlpreck.serve.state import State
from xmlpreck.serve.words import find_terms

OPEN_PATHS = ("/", "/healthz", "/readyz", "/openapi.json")  # need no token
SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]


async def predict(request: Request) -> Response:
    state: State = request.app.state.serve
    fields = await reading.read_object(request, state.limits, ("model", *reading.DOCUMENTS, *reading.WANTED))
    served = state.find(reading.string(fields, "model"))
    wanted = reading.read_wanted(fields, served, state.limits)
    documents = reading.read_documents(fields, served, state.limits)
    top = await state.batcher.predict(served, documents, wanted)
    return JSON(
        {
            "model": served.name,
            "version": served.version,
            "scores": "probability" if wanted.probabilities else "margin",
            "results": [
                {"id": one.id, "labels": labels}
                for one, labels in zip(documents, label_lists(served, top), strict=True)
            ],
        }
    )


def label_lists(served: Served, top: TopK) -> list[list[dict[str, Any]]]:
    """Return the labels of each document with their names and scores."""
    return [
        [
            {"label": label, "name": served.label_name(label), "score": score}
            for label, score in zip(labels, scores, strict=True)
            if label >= 0
        ]
        for labels, scores in zip(top.labels.tolist(), top.scores.tolist(), strict=True)
    ]


async def explain_labels(request: Request) -> Response:
    state: State = request.app.state.serve
    known = ("model", "text", "features", "values", "k", "labels")
    fields = await reading.read_object(request, state.limits, known)
    served = state.find(reading.string(fields, "model"))
    k = reading.whole(fields, "k", 5, 1, reading.MAX_EXPLAINED)
    asked = reading.read_labels(fields, "labels", served) or ()
    if len(asked) > reading.MAX_EXPLAINED:
        raise Problem(413, f"labels must have at most {reading.MAX_EXPLAINED} entries, but has {len(asked)}")
    given = {name: fields[name] for name in reading.DOCUMENT if fields.get(name) is not None}
    row = reading.read_document(given, 0, served, "")
    return JSON(await state.batcher.aside(explanation, served, row, k, asked))


def explanation(served: Served, row: JsonRow, k: int, asked: tuple[int, ...]) -> dict[str, Any]:
    """Say what each feature adds to the first k labels of a document, and to those that are asked for."""
    model = served.model
    names = Names.of(model)
    words = None
    features = row.features
    if row.text is not None:
        assert model.vectorizer is not None  # or the parser would have refused the text
        features = model.rows_of([row.text], threads=1)
        words = [{"start": a, "end": b, "features": own} for a, b, own in find_terms(row.text, model.vectorizer)]
    explained = explain(model, features, k, asked)
    return {
        "model": served.name,
        "version": served.version,
        "k": k,
        "labels": [
            {name: value for name, value in each.to_dict(names).items() if name != "true"} for each in explained
        ],
        "words": words,
    }


async def find_labels(request: Request) -> Response:
    state: State = request.app.state.serve
    query = reading.only_known(dict(request.query_params), ("model", "search", "limit"))
    served = state.find(query.get("model"))
    limit = reading.written_whole(query, "limit", 20, 1, state.limits.max_labels)
    found = await state.batcher.aside(served.search, query.get("search", "")[:1000], limit)
    return JSON(
        {
            "model": served.name,
            "version": served.version,
            "labels": [{"label": label, "name": served.label_name(label)} for label in found],
        }
    )


async def list_models(request: Request) -> Response:
    state: State = request.app.state.serve
    return JSON({"models": [served.facts() for served in state.models.values()]})


async def show_model(request: Request) -> Response:
    state: State = request.app.state.serve
    return JSON(state.find(request.path_params["model"]).facts())


async def healthz(request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def readyz(request: Request) -> Response:
    if request.app.state.serve.is_stopping:
        raise Problem(503, "the server is stopping")
    return PlainTextResponse("ready\n")


async def metrics(request: Request) -> Response:
    return Response(request.app.state.serve.counters.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def openapi(request: Request) -> Response:
    return JSON(document(request.app.state.serve.limits))


async def page(request: Request) -> Response:
    found = load_page()
    return HTMLResponse(found.html, headers={"Content-Security-Policy": found.policy})


def create_app(state: State) -> ASGIApp:
    """Return the application of a worker."""
    routes = [
        Route("/", page),
        Route("/predict", predict, methods=["POST"]),
        Route("/explain", explain_labels, methods=["POST"]),
        Route("/labels", find_labels),
        Route("/models", list_models),
        Route("/models/{model}", show_model),
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Route("/openapi.json", openapi),
        *annif.ROUTES,
    ]
    app = Starlette(routes=routes, exception_handlers={Problem: _problem, HTTPException: _http, Exception: _crash})
    app.router.redirect_slashes = False
    app.state.serve = state
    return Gate(app, state)


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    details = {404: "there is nothing at this address: see /openapi.json", 405: "this address takes another method"}
    headers = dict(error.headers or {})
    return Problem(
        error.status_code, details.get(error.status_code, "the request cannot be answered"), headers
    ).response()


async def _crash(_: Request, error: Exception) -> Response:
    return Problem(500, "the server has failed: its log says why").response()


class Gate:
    """Before and behind the application: the token, counters, safe headers, and an answer to whatever fails."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def send_counted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]}  # the page has a policy that lets its script run
                message["headers"].extend(header for header in SAFE_HEADERS if header[0] not in own)
                if self.state.is_stopping:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        with self.state.counters.during("requests_in_progress"):
            try:
                answer: ASGIApp = self.app if self._may_enter(scope) else self._refuse
                await answer(scope, receive, send_counted)
            finally:
                self.state.counters.answered(endpoint_of(scope["path"]), status, started)

    def _may_enter(self, scope: Scope) -> bool:
        token = self.state.token
        if token is None or scope["path"] in OPEN_PATHS:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, value = (given[0] if len(given) == 1 else b"").partition(b" ")
        return hmac.compare_digest(value.strip(), token) and kind.lower() == b"bearer"

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
        await Problem(401, "send the token of the server: Authorization: Bearer TOKEN", headers).response()(
            scope, receive, send
        )


def endpoint_of(path: str) -> str:
    """Name what a path asks for, for the counters."""
    first = path.split("/", 2)[1] if path.startswith("/") else ""
    return {"v1": "annif"}.get(first, first)
