"""Compile the kernels of serving into NUMBA_CACHE_DIR, by small models that are trained, served and asked once."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

WORDS = ("duty", "import", "olive", "oil", "wine", "fish", "milk", "sugar", "steel", "coal", "rice", "tea", "salt")
REQUESTS = (
    ("predict", {"text": "duty on olive oil"}),
    ("predict", {"texts": ["olive oil", "wine", ""], "k": 3, "threshold": 0.0, "at_least": 1}),
    ("predict", {"text": "fish", "only": ["fish", "oil"]}),
    ("predict", {"text": "fish", "exclude": ["fish"], "guess_empty": True}),
    ("predict", {"text": "fish", "probabilities": True}),
    ("predict", {"documents": [{"features": {"olive": 1.0}}, {"text": "tea"}]}),
    ("explain", {"text": "duty on olive oil", "labels": ["fish"]}),
)


def run(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "xmlpreck", *words], check=True)


def ask(address: str, path: str, body: dict[str, object]) -> None:
    content = json.dumps(body).encode()
    asked = urllib.request.Request(f"{address}/{path}", content, {"content-type": "application/json"})
    with urllib.request.urlopen(asked) as answer:
        json.load(answer)


def serve(folder: str) -> None:
    # A request that compiles may take longer than the server's limit.
    limits = ["--max-seconds", "3000"]
    words = [sys.executable, "-m", "xmlpreck", "serve", "--model", folder, "--port", "0", "--json", *limits]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = json.loads(server.stdout.readline())["address"]
            for path, body in REQUESTS:
                ask(address, path, body)
        finally:
            server.send_signal(signal.SIGTERM)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        texts = (
            {"text": f"{one} {other} {place}", "labels": [one, other]}
            for place, (one, other) in enumerate((one, other) for one in WORDS for other in WORDS if one != other)
        )
        Path("texts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in texts), encoding="utf-8")
        run("train", "--data", "texts.jsonl", "--heldout", "0.3", "--no-tune", "--out", "model")
        run("calibrate", "--model", "model", "--data", "texts.jsonl")
        run("predict", "--model", "model", "--data", "texts.jsonl", "--out", "P.jsonl")
        serve("model")


if __name__ == "__main__":
    main()
