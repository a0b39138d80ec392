"""An S3 store on this machine for tests: moto's server, behind a wire that counts bytes and breaks if told to."""

import http.client
import logging
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest

from xmlpreck.cli import main

boto3, moto = (pytest.importorskip(name, reason="moto[server] is not installed") for name in ("boto3", "moto.server"))

SECRET = "se/cret"
NUMBERS = count()


class Wire(BaseHTTPRequestHandler):
    """What is between us and the store: hands on requests and answers, counts their bytes, and breaks if told to."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet: else each answer waits 40 ms for an acknowledgement

    def log_message(self, *words):
        pass

    def handle_expect_100(self):
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def parts(self):
        """Yield what a request sends, in one piece or as chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            yield self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def hand_on(self):
        store = self.server.store
        body = b"".join(self.parts())
        breaks = store.broken and re.search(store.broken, f"{self.command} {self.path}")
        if breaks and self.command != "GET":
            self.close_connection = True
            return
        inner = http.client.HTTPConnection("localhost", store.port)
        dropped = ("expect", "transfer-encoding", "content-length")
        kept = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        inner.request(self.command, self.path, body, kept)
        answer = inner.getresponse()
        content = answer.read()
        inner.close()
        if breaks and content:
            content, self.close_connection = content[:-1], True
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        if self.command == "GET":
            store.served.append(len(content))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = hand_on


class Store:
    """A bucket in moto's store, behind a wire that breaks at requests like `broken`, a pattern of "METHOD path"."""

    def __init__(self, port, root):
        self.port, self.root, self.broken, self.served = port, root, None, []
        self.bucket = f"bucket-{next(NUMBERS)}"
        secrets = {"aws_access_key_id": "key", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        self.client = boto3.client("s3", endpoint_url=f"http://localhost:{port}", **secrets)
        self.client.create_bucket(Bucket=self.bucket)
        self.wire = ThreadingHTTPServer(("localhost", 0), Wire)
        self.wire.store = self
        threading.Thread(target=self.wire.serve_forever, daemon=True).start()

    def uri(self, path, bucket=None):
        options = f"endpoint_override=localhost:{self.wire.server_port}&scheme=http&region=us-east-1"
        return f"s3://key:{SECRET.replace('/', '%2F')}@{bucket or self.bucket}/{path}?{options}"

    def files(self):
        found = self.client.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        return {entry["Key"]: entry["Size"] for entry in found if not entry["Key"].endswith("/")}

    def read(self, key):
        return self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def write(self, key, content):
        self.client.put_object(Bucket=self.bucket, Key=key, Body=content)

    def copy(self, folder, prefix):
        for path in folder.rglob("*"):
            if path.is_file():
                self.write(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def ask_for_rights(self, asked=True):
        """Let moto look at keys from now on: it knows none, so that nobody may do anything."""
        inner = http.client.HTTPConnection("localhost", self.port)
        inner.request("POST", "/moto-api/reset-auth", b"0" if asked else b"inf")
        assert inner.getresponse().status == 200

    def close(self):
        self.wire.shutdown()
        self.wire.server_close()


@contextmanager
def moto_server():
    """Yield the port of a store that ends with the block."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer("localhost", 0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@contextmanager
def open_store(port, root):
    store = Store(port, root)
    yield store
    store.ask_for_rights(False)
    store.close()


def failure(capsys, *words):
    """Run a command that must fail, and return its one line, which shows no secret."""
    assert main(list(words)) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("xmlpreck: ")]
    assert len(lines) == 1
    assert "cret" not in lines[0]
    return lines[0]
