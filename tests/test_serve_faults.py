"""xmlpreck serve goes on whatever happens to it: new versions, killed workers, slow clients, requests of an enemy."""

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from urllib.parse import urlsplit

import hypothesis
import pytest
from helpers import ROOT
from serving import make_model, serving

sys.path.insert(0, str(ROOT / "tools"))
import torture_serve

from xmlpreck.serve.sharing import new_file, pack, unpack


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    make_model(0).save(folder / "news")
    return folder / "news"


@pytest.fixture(scope="module")
def server(folder):
    with serving("--model", folder, "--workers", "2") as server:
        yield server


def test_requests_that_arrive_together_get_their_own_answers(server):
    model = make_model(0)
    texts = [f"{one} {two}" for one in ("cod", "eel", "oak", "elm") for two in ("chalk", "slate", "the", "19")]
    wrong = []

    def ask(text):
        client = server.client()
        for k in (1, 2, 3, 4) * 10:
            found = client.json("/predict", {"text": text, "k": k})["results"][0]["labels"]
            if [(one["name"], one["score"]) for one in found] != model.predict(text, k):
                wrong.append((text, k, found))

    threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_under_load_nothing_is_wrong_or_lost(tmp_path):
    """Versions come and go, one is broken, a worker is killed, requests are mutated, and the supervisor is killed."""
    faults = {"replacements": 10, "kills": 1, "slow": 0, "huge": 0, "mutations": 300, "clients": 3, "seed": 7}
    torture_serve.torture(argparse.Namespace(**faults), tmp_path)


def test_a_version_that_is_copied_file_by_file_is_served_when_it_is_whole(tmp_path):
    old, new = make_model(10), make_model(11)
    old.save(tmp_path / "live")
    new.save(tmp_path / "new")
    files = sorted((tmp_path / "new").iterdir(), key=lambda path: path.name != "model.json")
    with serving("--model", tmp_path / "live", "--reload", "0.02") as server:
        client = server.client()

        def labels():
            found = client.json("/predict", {"text": "eel", "k": 4})["results"][0]["labels"]
            return [(one["name"], one["score"]) for one in found]

        shutil.copy(files[0], tmp_path / "live")
        torture_serve.wait_until(lambda: any("goes on" in note for note in server.notes), "half a version is refused")
        assert labels() == old.predict("eel", 4)
        for path in files[1:]:
            shutil.copy(path, tmp_path / "live")
        torture_serve.wait_until(lambda: labels() == new.predict("eel", 4), "the whole version is served")


def test_what_has_begun_is_answered_before_the_server_stops(folder):
    with serving("--model", folder) as server:
        busy = server.client()
        busy.connection.putrequest("POST", "/predict")
        body = json.dumps({"text": "eel"}).encode()
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body)))):
            busy.connection.putheader(name, value)
        busy.connection.endheaders()
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        busy.connection.send(body)
        assert busy.connection.getresponse().status == 200
        assert server.process.wait(60) == 0
        with pytest.raises(OSError, match="refused"):
            server.client().ask("/healthz")


def test_what_is_no_http_gets_an_error_like_any_other(server):
    place = urlsplit(server.address)
    for sent in (b"\x16\x03\x01 a greeting of TLS\r\n\r\n", b"POST /predict HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        with socket.create_connection((place.hostname, place.port), timeout=60) as raw:
            raw.sendall(sent)
            answer = http.client.HTTPResponse(raw)
            answer.begin()
            assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
            assert json.loads(answer.read())["detail"].startswith("the request is not HTTP/1.1")


def test_slow_clients_do_not_hold_up_others(folder):
    words = ("--read-seconds", "0.5", "--max-body", "2000", "--idle-seconds", "1")
    with serving("--model", folder, *words) as server:
        place = server.client().connection
        slow = [socket.create_connection((place.host, place.port)) for _ in range(100)]
        for one in slow[:50]:
            one.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nX-Slow: ")  # headers that never end
        for one in slow[50:]:
            one.sendall(
                b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{"
            )
        client = server.client()
        assert client.json("/predict", {"text": "oak"})["results"][0]["labels"]
        answers = []
        for one in slow:
            one.settimeout(30)
            try:
                answers.append(one.recv(12))
            except ConnectionResetError:
                answers.append(b"")
            one.close()
        assert answers == [b""] * 50 + [b"HTTP/1.1 408"] * 50
        assert client.problem("/predict", {"text": "a" * 3000})[0] == 413
        with pytest.raises((OSError, http.client.HTTPException)):  # closed while it is sent, or before it is answered
            server.client().ask("/healthz", **{"X-Long": "a" * (1 << 20)})
        assert client.ask("/healthz")[0] == 200


def test_models_in_shared_memory_are_the_same():
    model = make_model(3)
    descriptor = new_file()
    pack(model, descriptor)
    again = unpack(descriptor)
    os.close(descriptor)
    for one, other in zip(model.weights, again.weights, strict=True):
        assert other.flags.writeable
        assert other.flags.aligned
        assert one.dtype == other.dtype
        assert (one == other).all()
    rows = model.vectorizer.transform(["eel oak", "chalk"])
    assert (again.vectorizer.transform(["eel oak", "chalk"]) != rows).nnz == 0
    assert (again.predict_topk(rows, 3).labels == model.predict_topk(rows, 3).labels).all()


def test_requests_drawn_from_the_openapi_document(server):
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis, which draws requests")
    # Not that all valid requests are accepted: a schema cannot say which labels and models there are.
    names = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
    checks = [getattr(schemathesis.checks, name) for name in names]
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    found = set()

    def ask(operation):
        @hypothesis.settings(max_examples=10, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(operation.as_strategy())
        def check(case):
            found.add(operation.label)
            case.call_and_validate(checks=checks)

        check()

    for operation in schema.get_all_operations():
        ask(operation.ok())
    assert len(found) == 13
