"""Torture the server: new versions, killed workers, slow clients, huge bodies and mutated requests, all under load.

    python tools/torture_serve.py [--replacements 100] [--kills 20] [--slow 300] [--huge 2] [--mutations 100000]
        [--clients 4] [--seed 1]

Small models are drawn. While something bad is done to the server, clients ask it over kept connections. Each answer is
compared, to the bit, with what the library says with the version that the answer names. A request fails if its
connection is closed or its answer is not 200. Only kills may do that, to requests that the killed worker has in hand.
"""

import argparse
import hashlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from mutate_serve import SEEDS, essence, expected, send_mutated, send_mutated_http
from serving import Server, make_model, serving

from xmlpreck.model import Model

READ_SECONDS = 3
WAIT = 60.0  # seconds for anything to happen
HTTP_SHARE = 20  # of as many mutated requests, one is wrong in its head


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + WAIT
    while not is_true():
        assert time.monotonic() < ends, f"not within {WAIT:.0f} s: {what}"
        time.sleep(0.005)


class Load:
    """Clients that ask without a pause, and what became of it."""

    def __init__(self, server: Server, models: dict[str, Model], n_clients: int) -> None:
        self.server, self.n_clients = server, n_clients
        self.n_right, self.wrong, self.failed = 0, list[object](), list[object]()
        self.right = {
            version: [expected(model, path, body) for path, body, _ in SEEDS] for version, model in models.items()
        }

    def ask(self) -> None:
        client, number = self.server.client(), 0
        while not self.stopping.is_set():
            number = (number + 1) % len(SEEDS)
            path, body, kind = SEEDS[number]
            try:
                status, _, content = client.ask(path, body, kind)
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(error)
                client = self.server.client()
                continue
            if status != 200:
                self.failed.append(content)
                continue
            answer = json.loads(content)
            # Annif's contract has no version: the answer must be that of any.
            versions = [answer["version"]] if "version" in answer else list(self.right)
            if any(essence(path, answer) == self.right[version][number] for version in versions):
                self.n_right += 1
            else:
                self.wrong.append(answer)

    def __enter__(self) -> "Load":
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.ask) for _ in range(self.n_clients)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def report(self, what: str, may_fail: int = 0, **facts: object) -> None:
        facts["MB"] = f"{resident_mb(self.server):.0f}"
        words = "".join(f", {name} {value}" for name, value in facts.items())
        print(f"{what}: {self.n_right:,} right, {len(self.wrong)} wrong, {len(self.failed)} failed{words}", flush=True)
        assert not self.wrong, self.wrong[:3]
        assert len(self.failed) <= may_fail, self.failed[:3]
        assert not any("Traceback" in note for note in self.server.notes), "".join(self.server.notes)


def counter(server: Server, name: str) -> float:
    text = server.client().ask("/metrics")[2].decode()
    return float(re.search(rf"^xmlpreck_{name} (\S+)$", text, re.MULTILINE)[1])


def resident_mb(server: Server) -> float:
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in server.workers()]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


def n_files(server: Server) -> int:
    """Count the open files of the workers: a connection is one."""
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in server.workers())


def connect(server: Server) -> socket.socket:
    place = urlsplit(server.address)
    return socket.create_connection((place.hostname, place.port), timeout=WAIT)


def break_model(folder: Path, number: int) -> None:
    """Break a model in one of ten ways."""
    about, array = folder / "model.json", folder / "row_weights.npy"
    said, content = about.read_bytes(), array.read_bytes()
    changes: list[Callable[[], object]] = [
        lambda: array.write_bytes(content[:-3]),
        lambda: array.write_bytes(content[:-1] + bytes([content[-1] ^ 1])),
        array.unlink,
        lambda: (array.unlink(), array.mkdir()),
        lambda: (array.unlink(), array.symlink_to("/dev/zero")),
        lambda: about.write_bytes(said[: len(said) // 2]),
        lambda: about.write_bytes(b""),
        lambda: about.write_bytes(b"[" * 100_000),
        lambda: about.write_bytes(re.sub(rb'"n_labels": *\d+', b'"n_labels": 1152921504606846976', said)),
        lambda: (about.unlink(), os.mkfifo(about)),
    ]
    changes[number % len(changes)]()


def replace(server: Server, folder: Path, models: list[Model], n: int) -> None:
    """Replace the model: in turns, a link is renamed, or the folder that it names; each tenth version is broken."""
    for number in range(n):
        is_broken, is_link = number % 10 == 9, number % 10 >= 5
        target = folder / (f"version-{number}" if is_link else "v")
        name = "refused_reloads_total" if is_broken else "reloads_total"
        before = counter(server, name)
        models[(number + 1) % len(models)].save(target)
        if is_broken:
            break_model(target, number // 10)
        if is_link or number % 10 == 0:
            (folder / "next").symlink_to(target)
            (folder / "next").replace(folder / "live")
        wait_until(lambda name=name, before=before: counter(server, name) > before, f"{name}, version {number}")
        shutil.rmtree(folder / f"version-{number - 1}", ignore_errors=True)


def kill(server: Server, n: int, rng: random.Random) -> None:
    """Kill workers, one after another."""

    def restarts() -> float:
        for _ in range(100):
            with suppress(OSError, http.client.HTTPException):  # it may be the killed one that was asked
                return counter(server, "restarts_total")
        raise AssertionError("the server does not answer")

    for _ in range(n):
        before = restarts()
        os.kill(rng.choice(server.workers()), signal.SIGKILL)
        wait_until(lambda before=before: restarts() > before, "a new worker")


def be_slow(server: Server, n: int) -> float:
    """Send heads, send bodies and take answers byte by byte; return the seconds until the server has closed all."""
    big = json.dumps({"documents": [{"id": "x" * 12_000, "text": "oak"}] * 1000}).encode()
    head = "POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
    before = n_files(server)
    readers, writers = [], []
    for number in range(n):
        one = connect(server)
        is_reader = number % 50 == 0
        (readers if is_reader else writers).append(one)
        one.sendall(head.format(len(big) if is_reader else 10**5).encode() + (b"X: " if number % 2 else b"\r\n"))
        if is_reader:
            one.sendall(big)
            one.setblocking(False)
    started = time.perf_counter()
    ends = started + WAIT
    while n_files(server) > before:
        assert time.perf_counter() < ends, f"{n_files(server) - before} slow clients are still connected"
        for one in writers:
            with suppress(OSError):
                one.send(b"X")
        for one in readers:
            with suppress(OSError):
                one.recv(1)
        time.sleep(0.2)
    for one in readers + writers:
        one.close()
    return time.perf_counter() - started


def send_huge(server: Server, chunked: bool) -> int:
    """Send a gigabyte, whatever is said; return the status of the answer, 0 for none."""
    with connect(server) as raw:
        said = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {1 << 30}"
        raw.sendall(f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{said}\r\n\r\n".encode())
        block = b" " * (1 << 20)
        with suppress(OSError):
            for _ in range(1024):
                raw.sendall(b"100000\r\n" + block + b"\r\n" if chunked else block)
        with suppress(OSError):
            return int(raw.recv(100)[9:12] or 0)
    return 0


def torture(args: argparse.Namespace, folder: Path) -> None:
    drawn = [make_model(number) for number in range(3)]
    drawn[0].save(folder / "v")
    (folder / "live").symlink_to(folder / "v")
    models = {}
    for number, model in enumerate(drawn):
        model.save(folder / f"copy-{number}")
        about = (folder / f"copy-{number}" / "model.json").read_bytes()
        models[hashlib.sha256(about).hexdigest()[:12]] = model
    rng = random.Random(args.seed)
    words = ("--model", f"news={folder / 'live'}", "--workers", 2, "--reload", 0.02, "--read-seconds", READ_SECONDS)
    with serving(*words) as server:
        with Load(server, models, args.clients) as load:
            replace(server, folder, drawn, args.replacements)
        load.report(f"{args.replacements} replacements", versions=len(models))
        with Load(server, models, args.clients) as load:
            kill(server, args.kills, rng)
        load.report(f"{args.kills} kills", may_fail=args.kills * args.clients)
        with Load(server, models, args.clients) as load:
            wait_until(lambda: load.n_right > 0, "an answer")
            seconds = be_slow(server, args.slow)
        load.report(f"{args.slow} slow clients", seconds=f"{seconds:.1f}")
        with Load(server, models, args.clients) as load:
            statuses = Counter(send_huge(server, bool(number % 2)) for number in range(args.huge))
        load.report(f"{args.huge} bodies of 1 GB", answers=dict(statuses))
        served = models[server.client().json("/models")["models"][0]["version"]]
        workers = server.workers()
        with Load(server, models, 1) as load:
            statuses = send_mutated(server, served, rng, args.mutations - args.mutations // HTTP_SHARE)
        load.report(f"{sum(statuses.values()):,} mutated bodies", answers=dict(sorted(statuses.items())))
        assert not any(status >= 500 or status == 0 for status in statuses), server.notes
        with Load(server, models, 1) as load:
            statuses = send_mutated_http(server, rng, args.mutations // HTTP_SHARE)
        load.report(f"{sum(statuses.values()):,} mutated heads", answers=dict(sorted(statuses.items())))
        assert not any(status in (-1, 500, 503) for status in statuses), server.notes
        assert server.workers() == workers
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in workers), "workers end")
        print("workers end when the process that started them is killed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replacements", type=int, default=100)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--slow", type=int, default=300)
    parser.add_argument("--huge", type=int, default=2)
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    with tempfile.TemporaryDirectory() as scratch:
        torture(parser.parse_args(), Path(scratch))


if __name__ == "__main__":
    main()
