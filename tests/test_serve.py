"""xmlpreck serve: what it answers, what it refuses, and that it goes on whatever happens to it."""

import json
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading

import numpy as np
import pytest
from helpers import ROOT
from serving import LABELS, make_model, serving

sys.path.insert(0, str(ROOT / "tools"))

from xmlpreck import InputError
from xmlpreck.cli import main
from xmlpreck.model.prediction import Choice
from xmlpreck.serve import ServeSettings


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    make_model(0).save(folder / "news")
    plain = make_model(1, calibrated=False)
    rule = {"k": 2, "min_score": None, "min_labels": 0, "probabilities": False}
    rule |= {"for": "f1", "average": "micro", "found": {}}
    plain.fresh(info=plain.info | {"label_rule": rule}).save(folder / "plain")
    return folder


@pytest.fixture(scope="module")
def server(folders):
    with serving("--model", folders / "news", f"other={folders / 'plain'}", "--workers", "2") as server:
        yield server


@pytest.fixture
def client(server):
    return server.client()


def expected(model, text, k=5, **choice):
    top = Choice(k=k, **choice).predict(model, model.vectorizer.transform([text]))
    pairs = zip(top.labels[0].tolist(), top.scores[0].tolist(), strict=True)
    return [{"label": label, "name": LABELS[label], "score": score} for label, score in pairs if label >= 0]


def test_answers_are_those_of_the_library(client):
    text, model = "An eel; covid-19 and CHALK", make_model(0)
    found = client.json("/predict", {"text": text, "k": 3})
    assert found["model"] == "news"
    assert found["scores"] == "margin"
    assert found["results"] == [{"id": 0, "labels": expected(model, text, 3)}]
    wanted = {"texts": [text, "oak"], "k": 4, "probabilities": True, "threshold": 0.5, "at_least": 1}
    found = client.json("/predict", wanted)
    choice = {"k": 4, "as_probabilities": True, "min_score": 0.5, "min_labels": 1}
    assert found["scores"] == "probability"
    assert [one["labels"] for one in found["results"]] == [expected(model, one, **choice) for one in (text, "oak")]
    found = client.json("/predict", {"text": text, "model": "other", "exclude": ["fish", 2]})
    bonus = np.array([-np.inf, 0, -np.inf, 0], np.float32)
    assert found["results"][0]["labels"] == expected(make_model(1), text, bonus=bonus)
    found = client.json("/predict", {"text": text, "only": ["stone"]})
    assert [one["name"] for one in found["results"][0]["labels"]] == ["stone"]


def test_the_model_chooses_how_many_labels(client, folders):
    both = client.json("/predict", {"text": "eel oak", "labels": "auto", "model": "other"})["results"][0]["labels"]
    assert both == expected(make_model(1), "eel oak", 2)
    assert client.problem("/predict", {"text": "eel", "labels": "auto"})[0] == 400
    assert client.problem("/predict", {"text": "eel", "labels": "auto", "k": 1, "model": "other"})[0] == 400


def test_documents_keep_their_order_and_ids(client):
    documents = [
        {"id": "a", "text": "oak"},
        {"features": {"oak": 1.0}},
        {"id": 7, "features": ["oak", 2], "values": [2, 0]},
        {"text": ""},
    ]
    results = client.json("/predict", {"documents": documents, "k": 2})["results"]
    assert [one["id"] for one in results] == ["a", 1, 7, 3]
    assert results[0]["labels"] == results[1]["labels"] == results[2]["labels"] == expected(make_model(0), "oak", 2)
    assert results[3]["labels"] == []
    guessed = client.json("/predict", {"text": "nothing known", "guess_empty": True, "k": 1})
    assert len(guessed["results"][0]["labels"]) == 1
    assert client.json("/predict", {"texts": []})["results"] == []


def test_explanations_add_up_and_know_their_words(client):
    text = "Über STRASSE: covid-19, eel."
    found = client.json("/explain", {"text": text, "k": 2, "labels": ["stone"]})
    assert found["k"] == 2
    first = found["labels"][0]
    assert np.float32(sum(np.float32(one["adds"]) for one in first["contributions"])) == pytest.approx(first["score"])
    assert {one["name"] for one in found["labels"]} >= {"stone"}
    names = {one["feature"]: one["name"] for one in first["contributions"]}
    words = {text[one["start"] : one["end"]]: {names[feature] for feature in one["features"]} for one in found["words"]}
    assert words == {"STRASSE": {"strasse"}, "covid-19": {"covid", "19", "covid-19"}, "eel": {"eel"}}
    of_features = client.json("/explain", {"features": {"eel": 1}, "k": 1})
    assert of_features["words"] is None
    assert len(of_features["labels"]) == 1


def test_labels_are_found_by_name(client):
    assert [one["name"] for one in client.json("/labels?search=FISH")["labels"]] == ["fish", "Äpfel & fishery"]
    assert client.json("/labels?search=%C3%A4pfel%20fish&limit=5")["labels"] == [{"label": 3, "name": LABELS[3]}]
    assert len(client.json("/labels?limit=2&model=other")["labels"]) == 2


def test_facts_name_no_path(client, folders):
    facts = client.json("/models")
    assert [one["model"] for one in facts["models"]] == ["news", "other"]
    assert client.json("/models/other") == facts["models"][1]
    assert facts["models"][0]["calibrated"]
    assert not facts["models"][1]["calibrated"]
    assert facts["models"][0]["n_labels"] == len(LABELS)
    assert str(folders) not in json.dumps(facts)


def test_health_metrics_and_page(client):
    assert client.ask("/healthz")[0] == client.ask("/readyz")[0] == 200
    client.json("/predict", {"texts": ["oak"] * 3})
    text = client.ask("/metrics")[2].decode()
    values = dict(re.findall(r"^(\S+) (\S+)$", text, re.MULTILINE))
    assert float(values["xmlpreck_rows_total"]) >= 3
    assert float(values["xmlpreck_queue"]) == 0
    assert float(values['xmlpreck_requests_total{endpoint="predict",status="200"}']) >= 1
    count = values['xmlpreck_request_seconds_count{endpoint="predict"}']
    assert values['xmlpreck_request_seconds_bucket{endpoint="predict",le="+Inf"}'] == count
    status, headers, page = client.ask("/")
    assert status == 200
    assert b"<html" in page
    assert "default-src 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize(
    ("path", "body", "status", "detail"),
    [
        ("/predict", b"{", 400, "the body is not JSON"),
        ("/predict", b"[1]", 400, "must be a JSON object"),
        ("/predict", b"\xff", 400, "not UTF-8"),
        ("/predict", b'{"text": "\\ud800"}', 400, "surrogate"),
        ("/predict", b"[" * 100_000, 400, "not JSON"),
        ("/predict", b'{"k": ' + b"9" * 5000 + b"}", 400, "digits"),
        ("/predict", b'{"text": "a", "threshold": NaN}', 400, "threshold must be a number"),
        ("/predict", {}, 400, "give one of text, texts and documents"),
        ("/predict", {"text": "a", "texts": []}, 400, "give one of text, texts and documents"),
        ("/predict", {"text": 1}, 400, "text must be a string"),
        ("/predict", {"texts": ["a", 1]}, 400, "texts[1]: must be a string"),
        ("/predict", {"text": "a", "topk": 3}, 400, "there is no field 'topk'"),
        ("/predict", {"text": "a", "k": 0}, 400, "k must be a whole number from 1 to 1000"),
        ("/predict", {"text": "a", "k": True}, 400, "k must be a whole number"),
        ("/predict", {"text": "a", "at_least": 6}, 400, "at_least must be a whole number from 0 to 5"),
        ("/predict", {"text": "a", "only": ["nil"]}, 400, "only: 'nil' is no label of the model"),
        ("/predict", {"text": "a", "only": []}, 400, "all are excluded"),
        ("/predict", {"text": "a", "probabilities": 1}, 400, "probabilities must be true or false"),
        ("/predict", {"text": "a", "model": "other", "probabilities": True}, 400, "not calibrated"),
        ("/predict", {"text": "a", "model": "nil"}, 404, "there is no model 'nil'"),
        ("/predict", {"documents": [{"features": [99]}]}, 400, "documents[0]: feature 99 is out of range"),
        ("/predict", {"documents": [{"features": {"oak": 1e999}}]}, 400, "documents[0]: "),
        ("/predict", {"documents": [{"text": "a", "features": [1]}]}, 400, "documents[0]: needs a text"),
        ("/predict", {"documents": [[]]}, 400, "documents[0]: must be an object"),
        ("/predict", {"texts": ["a"] * 1001}, 413, "texts must have at most 1,000 entries"),
        ("/explain", {"text": "a", "k": 51}, 400, "k must be a whole number from 1 to 50"),
        ("/explain", {}, 400, "needs a text"),
        ("/labels?limit=x", None, 400, "limit must be a whole number"),
        ("/labels?size=1", None, 400, "there is no field 'size'"),
        ("/models/nil", None, 404, "there is no model 'nil'"),
        ("/nil", None, 404, "there is nothing at this address"),
        ("/predict", None, 405, "this address takes another method"),
    ],
)
def test_requests_that_are_refused(client, path, body, status, detail):
    found, text = client.problem(path, body)
    assert (found, detail in text) == (status, True), text


def test_bodies_of_another_kind_and_too_long_ones(server, client):
    assert client.problem("/predict", b"text=a", kind="text/plain")[0] == 415
    client.connection.putrequest("POST", "/predict")
    for name, value in (("Content-Type", "application/json"), ("Content-Length", str(10**9))):
        client.connection.putheader(name, value)
    client.connection.endheaders()  # a gigabyte is announced, and refused before it is sent
    assert client.connection.getresponse().status == 413
    other = server.client()
    other.connection.request(  # nobody says how long it is
        "POST", "/predict", iter([b"x" * (1 << 20)] * 17), {"Content-Type": "application/json"}, encode_chunked=True
    )
    assert other.connection.getresponse().status == 413


def test_annif_contract(client):
    assert client.json("/v1/") == {"title": "xmlpreck"}
    projects = client.json("/v1/projects")["projects"]
    assert [one["project_id"] for one in projects] == ["news", "other"]
    assert client.json("/v1/projects/news") == projects[0]
    assert projects[0]["is_trained"] is True
    assert projects[0]["backend"] == {"backend_id": "xmlpreck"}
    form = {"body": b"text=oak+and+elm&limit=2&threshold=0.0&language=en&metadata_x=y"}
    found = client.json("/v1/projects/news/suggest", kind="application/x-www-form-urlencoded", **form)
    likely = expected(make_model(0), "oak and elm", 2, as_probabilities=True)
    assert [(one["uri"], one["score"]) for one in found["results"]] == [(one["name"], one["score"]) for one in likely]
    documents = [{"text": "oak and elm", "document_id": "d"}, {"text": ""}]
    both = client.json("/v1/projects/news/suggest-batch?limit=2", {"documents": documents})
    assert both == [{"document_id": "d", "results": found["results"]}, {"document_id": None, "results": []}]
    scores = [
        one["score"]
        for one in client.json("/v1/projects/other/suggest-batch", {"documents": documents[:1]})[0]["results"]
    ]
    assert scores == sorted(scores, reverse=True)
    assert 0 < min(scores) < max(scores) <= 1
    assert client.problem("/v1/projects/nil") == (404, "Project 'nil' not found.")
    assert client.problem("/v1/projects/news/suggest-batch", {"documents": documents * 17})[0] == 413
    assert client.problem("/v1/projects/news/suggest", b"limit=1", kind="application/x-www-form-urlencoded")[0] == 400
    assert client.problem("/v1/projects/news/suggest-batch?threshold=2", {"documents": []})[0] == 400


def test_openapi_document_names_every_path(client):
    found = client.json("/openapi.json")
    assert found["openapi"].startswith("3.1")
    for path, operations in found["paths"].items():
        for method in operations:
            filled = re.sub(r"\{\w+\}", "news", path)
            status = client.ask(filled, b"{}" if method == "post" else None)[0]
            assert status not in (404, 405), path


def test_token_tls_and_who_may_listen(folders, tmp_path, capsys):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, for a certificate")
    token = tmp_path / "token"
    token.write_text("correct-horse-battery\n")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        + ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    words = ("--token-file", token, "--tls-cert", cert, "--tls-key", key)
    with serving("--model", folders / "news", *words) as server:
        assert server.address.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(cert))
        assert server.client(context=context).ask("/healthz")[0] == 200
        for wrong in (None, "", "correct-horse-batterz", "é"):
            client = server.client(context=context)
            if wrong is not None:
                client.headers = {"Authorization": f"Bearer {wrong}"}
            assert client.problem("/models")[0] == 401
        client = server.client(token="correct-horse-battery", context=context)
        assert client.json("/models")["models"]
        assert server.stop(signal.SIGINT) == 0
    news = str(folders / "news")
    for flags, message in (
        (["--host", "0.0.0.0"], "others could reach the server"),
        (["--tls-cert", str(cert)], "belong together"),
        (["--workers", "0"], "--workers must be a whole number, 1 or more"),
        (["--port", "70000"], "--port must be 0 to 65535"),
        (["--token-file", str(tmp_path / "none")], "none: cannot be read"),
        (["--max-body", "0"], "--max-body must be"),
        (["--model", str(tmp_path)], "is not a model directory"),
        (["--model", news, news], "two models are called 'news'"),
    ):
        assert main(["serve", "--model", news, *flags]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(InputError, match="others could reach"):
        ServeSettings(host="::")


def test_a_model_answers_many_threads_by_itself():
    model = make_model(4)
    texts = ["eel oak", "chalk and slate", "Straße", "the cod, the elm", "", "covid-19"] * 5
    one_by_one = [model.predict(text, k=3) for text in texts]
    assert model.predict(texts, k=3) == one_by_one
    assert one_by_one[4] == []
    likely = model.predict(texts[0], k=3, probabilities=True)
    assert [name for name, _ in likely] == [name for name, _ in one_by_one[0]]
    assert all(0 < chance < 1 for _, chance in likely)
    wrong = []

    def ask(offset):
        for place in range(offset, offset + 60):
            text = place % len(texts)
            if model.predict(texts[text], k=3) != one_by_one[text]:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    with pytest.raises(InputError, match="no calibration"):
        make_model(4, calibrated=False).predict("eel", probabilities=True)
    with pytest.raises(InputError, match="trained on numbers"):
        model.fresh(vectorizer=None).predict(["eel"])
