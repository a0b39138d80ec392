"""A server in a process of its own on a free port, a client, and small models of texts, for the tests of serving."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
import pytest
from scipy.sparse import csr_array

pytest.importorskip("uvicorn", reason="needs the extra serve: pip install 'xmlpreck[serve]'")
pytest.importorskip("starlette", reason="needs the extra serve: pip install 'xmlpreck[serve]'")

from xmlpreck.config import RowsConfig
from xmlpreck.data.text import fit_text
from xmlpreck.kernels.arrays import sparse_weights
from xmlpreck.model import Model, lay_out
from xmlpreck.model.calibration import Calibration

WORDS = ("cod", "eel", "oak", "elm", "chalk", "slate", "covid-19", "Straße")
LABELS = ("fish", "http://example.org/wood", "stone", "Äpfel & fishery")


def make_model(seed=0, calibrated=True, label_names=LABELS, ngrams=1):
    """A model of texts whose weights are drawn."""
    text = fit_text([[" ".join(WORDS), "the cod"]], min_df=1, max_df=1.0, ngrams=ngrams)
    n_labels = len(label_names)
    drawn = np.random.default_rng(seed).normal(size=(text.n_features + 1, n_labels)).astype(np.float32)
    drawn = csr_array(drawn.astype(np.float16).astype(np.float32))
    weights = lay_out(sparse_weights(drawn.indptr.astype(np.int64), drawn.indices, drawn.data, n_labels))
    calibration = Calibration(np.float32(0), np.array([[-2.0, 2.0], [0.1, 0.9]]), np.zeros(n_labels, np.float32))
    info = {"config": {"train": {"algo": "sgd-avg", "k": 5, "epochs": 2}}}
    return Model(
        weights,
        RowsConfig(bias=0.5),
        list(label_names),
        text.feature_names,
        info,
        text,
        calibration if calibrated else None,
    )


class Client:
    """A connection that is kept open."""

    def __init__(self, address, token=None, context=None):
        place = urlsplit(address)
        self.connection = (
            http.client.HTTPConnection(place.hostname, place.port, timeout=60)
            if context is None
            else http.client.HTTPSConnection(place.hostname, place.port, timeout=60, context=context)
        )
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def ask(self, path, body=None, kind="application/json", method=None, **headers):
        """Return (status, headers, content) of an answer."""
        if body is not None:
            headers["Content-Type"] = kind
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        method = method or ("GET" if body is None else "POST")
        self.connection.request(method, path, body, self.headers | headers)
        answer = self.connection.getresponse()
        return answer.status, answer.headers, answer.read()

    def json(self, path, body=None, **more):
        """Return the value that a request is answered by; its status must be 200."""
        status, headers, content = self.ask(path, body, **more)
        assert status == 200, content
        assert headers["content-type"] == "application/json"
        return json.loads(content)

    def problem(self, path, body=None, **more):
        """Return (status, detail) of a request that is refused."""
        status, headers, content = self.ask(path, body, **more)
        assert headers["content-type"] == "application/problem+json", content
        found = json.loads(content)
        assert found["status"] == status
        assert set(found) == {"type", "title", "status", "detail"}
        return status, found["detail"]


class Server:
    """`xmlpreck serve` as it runs."""

    def __init__(self, process, address):
        self.process, self.address = process, address
        self.notes = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.notes.append(line)

    def client(self, **more):
        return Client(self.address, **more)

    def workers(self):
        """Process ids of the workers."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(path) as file:
            return [int(word) for word in file.read().split()]

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.reader.join(10)
        return code


@contextmanager
def serving(*words):
    """Start a server; it is ready when the block begins, and ends with it."""
    command = [sys.executable, "-m", "xmlpreck", "serve", "--json", "--port", "0", *map(str, words)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Server(process, json.loads(line)["address"])
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            stream.close()
