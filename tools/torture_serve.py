"""Torture the server: mutated requests, new versions, killed workers, slow clients and huge bodies, all under load.

    python tools/torture_serve.py [--mutations 100000] [--replacements 100] [--kills 20] [--slow 500] [--huge 2]
        [--clients 4] [--seed 1]

Two small models are drawn. While something bad is done to the server, clients ask for the labels of a text over kept
connections; an answer must be that of the version that it names. A request fails if its connection is closed or its
answer is not 200. Only kills may do that, to the requests that the killed worker has in hand; these are asked again.
"""

import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from serving import Server, make_model, serving

TEXT = "eel and slate, oak"
_EVERY = {"k": 3, "threshold": 0.1, "at_least": 1, "probabilities": True, "guess_empty": True, "model": "news"}
SEEDS = [
    ("/predict", {"text": "oak and eel", **_EVERY}),
    ("/predict", {"texts": ["cod", "elm chalk", ""], "only": ["fish", 2], "exclude": [1]}),
    ("/predict", {"documents": [{"id": "a", "text": "oak"}, {"features": {"oak": 1.5, "3": 1}}]}),
    ("/predict", {"documents": [{"features": [1], "values": [2]}], "k": 4}),
    ("/explain", {"text": "slate and COVID-19", "k": 2, "labels": ["stone"]}),
    ("/explain", {"features": {"oak": 1}, "k": 1}),
    ("/v1/projects/news/suggest-batch?limit=3", {"documents": [{"text": "oak", "document_id": "d"}, {"text": ""}]}),
]
VALUES = (
    *("null", "0", "1", "2", '"oak"', "false", "true", "-1", "1e308", "1e999", "NaN", '""', "[]", "{}", "9" * 50),
    *('"\\ud800"', "[[[[", '"\\u0000"'),
)


def mutated(rng: random.Random) -> tuple[str, bytes]:
    """Draw a path and a JSON body that is wrong, or that looks odd."""
    path, seed = rng.choice(SEEDS)
    body = json.dumps(seed).encode()
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind, place = rng.randrange(12), rng.randrange(len(body) + 1)
        if kind == 0:
            body = body[:place] + bytes([rng.randrange(256)]) + body[place + 1 :]
        elif kind == 1:
            body = body[:place] + body[place + rng.randint(1, 9) :]
        elif kind == 2:
            body = body[:place] + body[place : place + 20] * rng.randint(1, 9) + body[place:]
        elif kind == 3:
            body = body[:place]
        elif found := list(re.finditer(rb'[\w.]+|"[^"]*"', body)):
            word = rng.choice(found)
            body = body[: word.start()] + rng.choice(VALUES).encode() + body[word.end() :]
    return path, body


def mutated_http(rng: random.Random) -> bytes:
    """Draw the bytes of a request whose head is wrong, or whose length is."""
    path, body = mutated(rng)
    length = rng.choice((len(body), len(body), len(body) - 1, -1, 10**30, "x"))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    raw = bytearray(head.encode() + body)
    for _ in range(rng.randint(1, 3)):
        raw[rng.randrange(len(head))] = rng.randrange(256)
    return bytes(raw)


def send_mutated(server: Server, rng: random.Random, n: int) -> Counter:
    """Send requests; return how many were answered by each status (0: the connection was closed)."""
    statuses: Counter = Counter()
    client = server.client()
    for number in range(n):
        if number % 20 == 19:
            with socket.create_connection((client.connection.host, client.connection.port), timeout=60) as raw:
                raw.sendall(mutated_http(rng))
                raw.shutdown(socket.SHUT_WR)
                try:
                    answer = raw.recv(100)
                except ConnectionResetError:
                    answer = b""
                statuses[int(answer[9:12]) if answer else 0] += 1
            continue
        path, body = mutated(rng)
        try:
            status, headers, content = client.ask(path, body)
        except (OSError, http.client.HTTPException):
            client = server.client()
            statuses[0] += 1
            continue
        statuses[status] += 1
        kind = "application/json" if status == 200 else "application/problem+json"
        assert headers["content-type"] == kind, (path, body, status)
        json.loads(content)
        assert b"Traceback" not in content
        assert b"xmlpreck/" not in content, content
    return statuses


class Load:
    """Clients that ask without a pause, and what became of it."""

    def __init__(self, server: Server, models: dict[str, object], n_clients: int) -> None:
        self.server, self.models = server, models
        self.n_right, self.wrong, self.failed = 0, 0, 0
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.ask) for _ in range(n_clients)]

    def ask(self) -> None:
        client = self.server.client()
        while not self.stopping.is_set():
            try:
                status, _, content = client.ask("/predict", {"text": TEXT, "k": 4})
            except (OSError, http.client.HTTPException):
                self.failed += 1
                client = self.server.client()
                continue
            if status != 200:
                self.failed += 1
                continue
            found = json.loads(content)
            pairs = [(one["name"], one["score"]) for one in found["results"][0]["labels"]]
            if pairs == self.models.setdefault(found["version"], pairs):
                self.n_right += 1
            else:
                self.wrong += 1

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def report(self, what: str, **facts: object) -> None:
        words = "".join(f", {name} {value}" for name, value in facts.items())
        print(f"{what}: {self.n_right:,} right, {self.wrong} wrong, {self.failed} failed{words}", flush=True)
        assert self.wrong == 0


def replace(folder: Path, target: str) -> None:
    scratch = folder / "next"
    scratch.symlink_to(target)
    scratch.replace(folder / "live")


def counter(server: Server, name: str) -> float:
    text = server.client().ask("/metrics")[2].decode()
    return float(re.search(rf"^xmlpreck_{name} (\S+)$", text, re.MULTILINE)[1])


def resident_mb(server: Server) -> float:
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in server.workers()]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


def send_huge(server: Server, chunked: bool) -> int:
    """Send a gigabyte, whatever is said; return the status of the answer, 0 for none."""
    place = server.client().connection
    with socket.create_connection((place.host, place.port), timeout=60) as raw:
        said = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {1 << 30}"
        raw.sendall(f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{said}\r\n\r\n".encode())
        block = b" " * (1 << 20)
        try:
            for _ in range(1024):
                raw.sendall(b"100000\r\n" + block + b"\r\n" if chunked else block)
        except OSError:
            pass
        try:
            return int(raw.recv(100)[9:12] or 0)
        except OSError:
            return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--replacements", type=int, default=100)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--slow", type=int, default=500)
    parser.add_argument("--huge", type=int, default=2)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for number in (0, 1):
            make_model(number).save(folder / f"v{number}")
        (folder / "live").symlink_to("v0")
        answers: dict[str, object] = {}
        words = ("--model", f"news={folder / 'live'}", "--workers", 2, "--reload", 0.02, "--read-seconds", 3)
        with serving(*words) as server:
            with Load(server, answers, args.clients) as load:
                for number in range(args.replacements):
                    n_before = counter(server, "reloads_total")
                    replace(folder, f"v{(number + 1) % 2}")
                    while counter(server, "reloads_total") == n_before:
                        time.sleep(0.005)
            load.report(f"{args.replacements} replacements", versions=len(answers))
            assert load.failed == 0
            with Load(server, answers, args.clients) as load:
                for _ in range(args.kills):
                    n_before = counter(server, "restarts_total")
                    os.kill(random.Random(args.seed).choice(server.workers()), signal.SIGKILL)
                    while counter(server, "restarts_total") == n_before:
                        time.sleep(0.005)
            load.report(f"{args.kills} kills", in_hand_at_most=args.kills * args.clients)
            assert load.failed <= args.kills * (args.clients + 1)
            with Load(server, answers, args.clients) as load:
                place = server.client().connection
                slow = [socket.create_connection((place.host, place.port)) for _ in range(args.slow)]
                started, left = time.perf_counter(), list(slow)
                while left and time.perf_counter() - started < 30:
                    for one in list(left):
                        try:
                            one.sendall(b"X" if time.perf_counter() - started > 0.5 else b"GET / HTTP/1.1\r\nA: ")
                        except OSError:
                            left.remove(one)
                    time.sleep(0.3)
                seconds = time.perf_counter() - started
                for one in slow:
                    one.close()
            load.report(f"{args.slow} slow clients", still_open=len(left), seconds=round(seconds, 1))
            assert load.failed == 0
            assert not left
            before = resident_mb(server)
            with Load(server, answers, args.clients) as load:
                statuses = Counter(send_huge(server, bool(number % 2)) for number in range(args.huge))
            load.report(
                f"{args.huge} bodies of 1 GB", answers=dict(statuses), mb=f"{before:.0f} -> {resident_mb(server):.0f}"
            )
            assert load.failed == 0
            started = time.perf_counter()
            with Load(server, answers, 1) as load:
                statuses = send_mutated(server, random.Random(args.seed), args.mutations)
            seconds = round(time.perf_counter() - started)
            load.report(f"{args.mutations:,} mutated requests", answers=dict(sorted(statuses.items())), seconds=seconds)
            assert load.failed == 0
            assert not any(status >= 500 for status in statuses), server.notes
            print(f"memory of the workers: {resident_mb(server):.0f} MB; stopped with {server.stop()}", flush=True)


if __name__ == "__main__":
    main()
