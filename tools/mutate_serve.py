"""Draw requests that are wrong, or that look odd, and say what the library answers to those that are right."""

import http.client
import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from scipy.sparse import csr_array
from serving import Server

from xmlpreck.data.formats import TopK
from xmlpreck.data.formats.json_rows import RowParser
from xmlpreck.model import Model
from xmlpreck.model.explanation import explain

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
SUGGEST, SUGGEST_BATCH = "/v1/projects/news/suggest", "/v1/projects/news/suggest-batch"
_EVERY = {"k": 3, "threshold": 0.1, "at_least": 1, "probabilities": True, "guess_empty": True, "model": "news"}
Asked = tuple[str, bytes, str]  # path, body, its media type
SEEDS: list[Asked] = [
    *(
        (path, json.dumps(fields).encode(), JSON)
        for path, fields in (
            ("/predict", {"text": "oak and eel", **_EVERY}),
            ("/predict", {"texts": ["cod", "elm chalk", ""], "only": ["fish", 2], "exclude": [1]}),
            ("/predict", {"documents": [{"id": "a", "text": "oak"}, {"features": {"oak": 1.5, "3": 1}}]}),
            ("/predict", {"documents": [{"features": [1], "values": [2]}], "k": 4}),
            ("/explain", {"text": "slate and COVID-19", "k": 2, "labels": ["stone"]}),
            ("/explain", {"features": {"oak": 1}, "k": 1}),
            (f"{SUGGEST_BATCH}?limit=3", {"documents": [{"text": "oak", "document_id": "d"}, {"text": ""}]}),
        )
    ),
    (SUGGEST, b"text=oak+and+elm&limit=2&threshold=0.2&language=en&metadata_title=x&project=news", FORM),
    (SUGGEST, b"text=Stra%C3%9Fe%2C+slate&limit=3&threshold=0.0", FORM),
]
VALUES = (
    *("null", "0", "1", "2", '"oak"', "false", "true", "-1", "1e308", "1e999", "NaN", '""', "[]", "{}", "9" * 50),
    *('"\\ud800"', "[[[[", '"\\u0000"'),
)
FORM_VALUES = ("", "0", "-1", "1.0", "nan", "inf", "1e-3", "%", "%ff", "%00", "&" * 200, "text=eel", "9" * 50, "٣")
HEADS = (
    *("Content-Length: 3", "Transfer-Encoding: chunked", "Transfer-Encoding: x", "Expect: 100-continue", "Host: y"),
    *("Connection: close", "Connection: upgrade\r\nUpgrade: websocket", "Content-Encoding: gzip", "Range: bytes=0-1"),
    *("Content-Type: text/plain", "Content-Type: \xff", "X: a\r\n b", ": x", "X Y: z", "Authorization: Bearer", "X"),
    *("X: " + "a" * 70_000, "\r\n".join(f"X{place}: y" for place in range(300)), "Cookie: \0"),
)
TARGETS = (
    "*",
    "//",
    "/%00",
    "/../predict",
    "http://y/predict",
    "/predict?",
    "/labels?limit=%zz",
    "/é",
    "/" + "a" * 9000,
)
METHODS = ("GET", "HEAD", "OPTIONS", "PUT", "TRACE", "post", "PRI", "")
SECONDS = 20.0  # for an answer


def mutated(rng: random.Random) -> Asked:
    """Draw a request whose body is wrong, or looks odd."""
    path, body, kind = rng.choice(SEEDS)
    pattern, values = (rb'[\w.]+|"[^"]*"', VALUES) if kind == JSON else (rb"[^&=]*", FORM_VALUES)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        change, place = rng.randrange(12), rng.randrange(len(body) + 1)
        if change == 0:
            body = body[:place] + bytes([rng.randrange(256)]) + body[place + 1 :]
        elif change == 1:
            body = body[:place] + body[place + rng.randint(1, 9) :]
        elif change == 2:
            body = body[:place] + body[place : place + 20] * rng.randint(1, 9) + body[place:]
        elif change == 3:
            body = body[:place]
        elif found := list(re.finditer(pattern, body)):
            word = rng.choice(found)
            body = body[: word.start()] + rng.choice(values).encode() + body[word.end() :]
    return path, body, kind


def mutated_http(rng: random.Random) -> bytes:
    """Draw the bytes of a request whose head is wrong, or whose length is."""
    path, body, kind = rng.choice(SEEDS) if rng.random() < 0.5 else mutated(rng)

    def draw(usual: object, *others: object) -> object:
        return usual if rng.random() < 0.8 else rng.choice(others)

    first = f"{draw('POST', *METHODS)} {draw(path, *TARGETS)} HTTP/{draw('1.1', '1.0', '2.0', '')}"
    length = draw(len(body), len(body) - 1, len(body) + 1, -1, 10**30, "x", "+1", "0x1")
    lines = [f"Content-Type: {kind}", f"Content-Length: {length}", *rng.sample(HEADS, rng.choice((0, 0, 1, 2)))]
    rng.shuffle(lines)
    head = "\r\n".join([first, "Host: x", *lines])
    raw = bytearray(f"{head}\r\n\r\n".encode("latin-1") + body)
    for _ in range(rng.choice((0, 0, 1, 3))):
        raw[rng.randrange(len(head))] = rng.randrange(256)
    return bytes(raw)


def send_mutated(server: Server, model: Model, rng: random.Random, n: int) -> Counter[int]:
    """Send requests; return how many were answered by each status (0: the connection was closed)."""
    statuses: Counter[int] = Counter()
    client = server.client()
    for _ in range(n):
        path, body, kind = mutated(rng)
        try:
            status, headers, content = client.ask(path, body, kind)
        except (OSError, http.client.HTTPException):
            client = server.client()
            statuses[0] += 1
            continue
        statuses[status] += 1
        assert headers["content-type"] == (JSON if status == 200 else "application/problem+json"), (path, body, status)
        answer = json.loads(content)
        if status == 200:
            found, right = essence(path, answer), expected(model, path, body)
            assert found == right, (path, body, found, right)
        else:
            _leaks_nothing(content)
    return statuses


def send_mutated_http(server: Server, rng: random.Random, n: int, at_once: int = 100) -> Counter[int]:
    """Send raw requests, many at once; return how many were answered by each status (0: closed, -1: left open)."""
    place = urlsplit(server.address)
    statuses: Counter[int] = Counter()
    for start in range(0, n, at_once):
        opened = []
        for _ in range(min(at_once, n - start)):
            one = socket.create_connection((place.hostname, place.port), timeout=SECONDS)
            with suppress(OSError):  # it may be closed while it is sent
                one.sendall(mutated_http(rng))
            opened.append(one)
        ends = time.monotonic() + SECONDS
        for one in opened:
            one.settimeout(max(ends - time.monotonic(), 0.01))
            statuses[_status(one)] += 1
            one.close()
    return statuses


def _status(opened: socket.socket) -> int:
    try:
        answer = opened.recv(1 << 16)
        while answer.startswith(b"HTTP/1.1 100"):
            answer = answer.partition(b"\r\n\r\n")[2] or opened.recv(1 << 16)
    except TimeoutError:
        return -1
    except OSError:
        return 0
    status = int(answer[9:12]) if answer else 0
    if status >= 400:
        assert b"\r\ncontent-type: application/problem+json\r\n" in answer, answer
        _leaks_nothing(answer)
    return status


def _leaks_nothing(content: bytes) -> None:
    for word in (b"Traceback", b"xmlpreck/", b"uvicorn", b"site-packages", b"/tmp", b'.py"'):
        assert word not in content, content


Pairs = list[tuple[Any, float]]


def essence(path: str, answer: Any) -> list[Pairs]:
    """Return the labels and scores of an answer."""
    if path.startswith(SUGGEST):
        lists = [one["results"] for one in (answer if path.startswith(SUGGEST_BATCH) else [answer])]
        return [[(one["uri"], one["score"]) for one in each] for each in lists]
    lists = [answer["labels"]] if path == "/explain" else [one["labels"] for one in answer["results"]]
    return [[(one["label"], one["score"]) for one in each] for each in lists]


def expected(model: Model, path: str, body: bytes) -> list[Pairs]:
    """Return the labels and scores that the library gives to what a request asks, one document at a time."""
    fields = dict(parse_qsl(body.decode(), True)[::-1]) if path == SUGGEST else json.loads(body)
    fields = {name: value for name, value in fields.items() if value is not None}
    query = dict(parse_qsl(urlsplit(path).query)) if path.startswith(SUGGEST_BATCH) else fields
    if path.startswith(SUGGEST):
        wanted = {"k": int(query.get("limit") or 10), "threshold": max(float(query.get("threshold") or 0), 1e-9)}
        texts = [one["text"] for one in fields["documents"]] if path.startswith(SUGGEST_BATCH) else [fields["text"]]
        found = [_labels(model, model.rows_of([text]), probabilities=True, **wanted) for text in texts]
        return [[(model.label_names[label], score) for label, score in each] for each in found]
    parser = RowParser(model.n_features, model.feature_names, True)

    def row(document: dict[str, Any]) -> csr_array:
        parsed = parser.parse_fields(document, 0)
        return parsed.features if parsed.text is None else model.rows_of([parsed.text])

    number_of = {name: label for label, name in enumerate(model.label_names)}

    def labels(name: str) -> list[int]:
        return [number_of[one] if one in number_of else int(one) for one in fields[name]]

    if path == "/explain":
        asked = labels("labels") if "labels" in fields else []
        return [[(one.label, one.score) for one in explain(model, row(fields), int(fields.get("k", 5)), asked)]]
    names = ("threshold", "probabilities", "guess_empty")
    wanted = {name: fields[name] for name in names if name in fields}
    wanted |= {name: int(fields[name]) for name in ("k", "at_least") if name in fields}
    wanted |= {name: labels(name) for name in ("only", "exclude") if name in fields}
    documents = fields.get("documents") or [{"text": text} for text in fields.get("texts") or ()]
    if "text" in fields:
        documents = [{"text": fields["text"]}]
    return [_labels(model, row(document), **wanted) for document in documents]


def _labels(
    model: Model,
    row: csr_array,
    k: int = 5,
    threshold: float = -np.inf,
    at_least: int = 0,
    only: Sequence[int] | None = None,
    exclude: Sequence[int] = (),
    probabilities: bool = False,
    guess_empty: bool = False,
) -> Pairs:
    """Rank all labels of a row, then choose among them."""
    top = model.predict_topk(row, model.n_labels, guess_empty=guess_empty)
    allowed = [
        place
        for place, label in enumerate(top.labels[0].tolist())
        if label >= 0 and label not in exclude and (only is None or label in only)
    ][:k]
    top = TopK(top.labels[:, allowed], top.scores[:, allowed])
    if probabilities and allowed:
        top = model.calibration.probabilities(top)
    with np.errstate(over="ignore"):
        least = np.float32(threshold)  # as the scores are
    ranked = list(zip(top.labels[0].tolist(), top.scores[0].tolist(), strict=True))
    return [pair for place, pair in enumerate(ranked) if place < at_least or pair[1] >= least]
