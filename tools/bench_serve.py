"""Measure the server under load: requests a second and their times, by wrk on this machine.

    python tools/bench_serve.py --model DIR --texts dev.parquet [--connections 1 16 256] [--seconds 60] [--workers 1]
        [--annif PYTHON --annif-data FOLDER --annif-project ID] [--rounds 1] [--minutes 30 --rate 50]
        [--out bench_serve.json]

Every request is one document, another one each time, of 500 of the texts. Answers of the first documents are checked
against the library's first, and Model.predict is timed without a server. With --annif, Annif's own server (`annif run`)
answers the same documents for the same seconds, in turns with ours. Memory is the Pss of the server's processes, before
and after. With --minutes, one client asks at most --rate times a second instead, and memory is measured each minute.
"""

import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

import pyarrow.parquet as pq
from bench_train import machine

import xmlpreck

N_TEXTS = 500
N_CHECKED = 50

# wrk asks by a script in Lua: each request is the next body.
SCRIPT = """
local bodies = {{}}
for line in io.lines("{bodies}") do bodies[#bodies + 1] = line end
local place = math.random(#bodies)
request = function()
  place = place % #bodies + 1
  return wrk.format("POST", "{path}", {{["Content-Type"] = "{kind}"}}, bodies[place])
end
local threads = {{}}
setup = function(thread) table.insert(threads, thread) end
init = function(args) math.randomseed(os.time()) end
response = function(status) if status ~= 200 then bad = (bad or 0) + 1 end end
done = function(summary, latency, requests)
  local n_bad = 0
  for _, thread in ipairs(threads) do n_bad = n_bad + (thread:get("bad") or 0) end
  local e = summary.errors
  io.write(string.format(
    '\\nRESULT {{"requests": %d, "seconds": %f, "p50": %f, "p95": %f, "p99": %f, ' ..
    '"max": %f, "errors": %d, "bad": %d}}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(95) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3, e.connect + e.read + e.write + e.timeout, n_bad))
end
"""


def load(address: str, path: str, kind: str, bodies: list[str], connections: int, seconds: int) -> dict[str, float]:
    """Ask for some seconds; times are in milliseconds."""
    with tempfile.TemporaryDirectory() as scratch:
        file, script = Path(scratch) / "bodies", Path(scratch) / "ask.lua"
        file.write_text("\n".join(bodies) + "\n", "utf-8")
        script.write_text(SCRIPT.format(bodies=file, path=path, kind=kind))
        command = ["wrk", "-t", "1", "-c", str(connections), "-d", f"{seconds}s", "--timeout", "60s"]
        out = subprocess.run([*command, "-s", str(script), address], check=True, capture_output=True, text=True).stdout
    found = json.loads(re.search(r"^RESULT (.*)$", out, re.MULTILINE)[1])
    return found | {"requests_per_s": found["requests"] / found["seconds"]}


def memory_mb(pid: int) -> float:
    """Return the memory of a process and all its children."""
    total, left = 0, [pid]
    while left:
        one = left.pop()
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
            total += int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1])
            left += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except OSError:
            continue
    return total / 1024


def start_ours(args: argparse.Namespace) -> tuple[subprocess.Popen, str]:
    command = [sys.executable, "-m", "xmlpreck", "serve", "--json", "--port", "0", "--model", f"m={args.model}"]
    command += ["--workers", str(args.workers), *args.flags.split()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    return process, json.loads(process.stdout.readline())["address"]


def start_annif(args: argparse.Namespace) -> tuple[subprocess.Popen, str]:
    port = 18181
    command = [Path(args.annif).with_name("annif"), "run", "--port", port]
    environment = os.environ | {"ANNIF_CONFIG": "annif.default_config.ProductionConfig"}
    process = subprocess.Popen(
        [*map(str, command)],
        cwd=args.annif_data,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for _ in range(600):
        time.sleep(0.5)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/v1/projects")
            if connection.getresponse().status == 200:
                return process, f"http://127.0.0.1:{port}"
        except OSError:
            continue
    raise SystemExit("Annif's server does not start")


def stop(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(60)


def check(address: str, model: str, texts: list[str]) -> None:
    """Compare answers with the library's."""
    place = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname, place.port)
    ours = xmlpreck.load_model(model)
    for text in texts[:N_CHECKED]:
        connection.request("POST", "/predict", json.dumps({"text": text}), {"Content-Type": "application/json"})
        found = json.loads(connection.getresponse().read())["results"][0]["labels"]
        assert [(one["name"], one["score"]) for one in found] == ours.predict(text), "an answer is wrong"


def time_library(model: str, texts: list[str]) -> dict[str, object]:
    """Time Model.predict from text, without a server; milliseconds of CPU and by the clock."""
    ours = xmlpreck.load_model(model)
    ours.predict(texts[0])
    times: dict[str, list[float]] = {"cpu": [], "clock": []}
    for text in texts * 2:
        started = time.thread_time(), time.perf_counter()
        ours.predict(text)
        times["cpu"].append(1000 * (time.thread_time() - started[0]))
        times["clock"].append(1000 * (time.perf_counter() - started[1]))
    found = {
        f"{kind}_p{share}": sorted(own)[len(own) * share // 100] for kind, own in times.items() for share in (50, 99)
    }
    print("Model.predict, ms: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()), flush=True)
    return {"system": "Model.predict", **found}


def measure(name: str, process: subprocess.Popen, *asked: object, connections: int, seconds: int) -> dict[str, object]:
    before = memory_mb(process.pid)
    found = load(*asked, connections, seconds)  # type: ignore[arg-type]
    after = memory_mb(process.pid)
    print(
        f"{name:14} {connections:4} connections: {found['requests_per_s']:8.1f} requests/s, p50 {found['p50']:.1f}, "
        f"p95 {found['p95']:.1f}, p99 {found['p99']:.1f} ms, {found['errors']:.0f} errors, "
        f"{found['bad']:.0f} not answered by 200, memory {before:.0f} -> {after:.0f} MB",
        flush=True,
    )
    return {"system": name, "connections": connections, "memory_mb": [before, after], **found}


def soak(process: subprocess.Popen, address: str, bodies: list[str], minutes: int, rate: int) -> list[dict[str, float]]:
    """Ask at most `rate` times a second for some minutes; return memory and times of each minute."""
    place = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    results, started, number = [], time.monotonic(), 0
    for minute in range(1, minutes + 1):
        times, n_bad = [], 0
        while time.monotonic() < started + 60 * minute:
            asked, number = time.perf_counter(), number + 1
            connection.request("POST", "/predict", bodies[number % len(bodies)], {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            took = time.perf_counter() - asked
            times.append(1000 * took)
            n_bad += answer.status != 200
            time.sleep(max(0.0, 1 / rate - took))
        times.sort()
        found = {"memory_mb": memory_mb(process.pid), "requests": len(times), "bad": n_bad}
        found |= {f"p{share}": times[len(times) * share // 100] for share in (50, 99)}
        print(f"minute {minute}: " + ", ".join(f"{name} {value:.1f}" for name, value in found.items()), flush=True)
        results.append(found)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", required=True, help="Parquet file with a column text")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--flags", default="", help="more flags of xmlpreck serve, in one word")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--minutes", type=int, help="ask at a rate for some minutes instead")
    parser.add_argument("--rate", type=int, default=50, help="requests a second, at most")
    parser.add_argument("--annif", help="the Python of Annif's environment")
    parser.add_argument("--annif-data", help="folder with Annif's projects.cfg and data")
    parser.add_argument("--annif-project")
    parser.add_argument("--out")
    args = parser.parse_args()
    texts = pq.read_table(args.texts, columns=["text"])["text"].to_pylist()[:N_TEXTS]
    as_json = [json.dumps({"text": text}) for text in texts]
    as_form = [urllib.parse.urlencode({"text": text, "limit": 10}) for text in texts]
    form = "application/x-www-form-urlencoded"
    runs = {"xmlpreck": (start_ours(args), "/predict", "application/json", as_json)}
    check(runs["xmlpreck"][0][1], args.model, texts)
    if args.annif:
        server = runs["xmlpreck"][0]
        runs["xmlpreck /v1"] = (server, "/v1/projects/m/suggest", form, as_form)
        runs["annif"] = (start_annif(args), f"/v1/projects/{args.annif_project}/suggest", form, as_form)
    results = [time_library(args.model, texts)]
    try:
        if args.minutes:
            (process, address), *_ = runs["xmlpreck"]
            results += soak(process, address, as_json, args.minutes, args.rate)
            args.connections = []
        for connections in args.connections:
            for _ in range(args.rounds):
                for name, ((process, address), *asked) in runs.items():
                    if name == "annif":
                        load(address, *asked, 2, 5)  # its models load at the first request
                    results.append(
                        measure(name, process, address, *asked, connections=connections, seconds=args.seconds)
                    )
    finally:
        for process, _ in {id(run[0][0]): run[0] for run in runs.values()}.values():
            stop(process)
    if args.out:
        about = {"workers": args.workers, "flags": args.flags, "mean_bytes": sum(map(len, texts)) / len(texts)}
        Path(args.out).write_text(json.dumps({**about, "machine": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
