"""xmlpreck and its peers side by side: same features, same threads, one after the other, scored by the same code.

    python tools/bench_peers.py --data DIR [DIR ...] [--peers omikuji pecos ...] [--threads 2] [--work W]
        [--out docs/peers.json] [--markdown docs/peers.md] [--update README.md]

Peers come from the package index into environments of their own (--envs) and train with their default or recommended
settings (peer_train.py); xmlpreck with its defaults, and again with --effort quick and best. Results are kept in
W/results.json: what is there for the same data, settings and versions is not measured again, unless --again names the
system.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bench_train import machine
from marked_block import replace_block
from peer_train import SYSTEMS
from peers_page import BEGIN, END, SCORES, compact, draw_curves, entry_text, is_ours, page

import xmlpreck
from xmlpreck.config import RowsConfig
from xmlpreck.data import catalog, formats
from xmlpreck.files.atomic import atomic_path
from xmlpreck.files.contents import file_sha256
from xmlpreck.model import prepare_rows

RUNNER = Path(__file__).with_name("peer_train.py")
HOME = Path.home() / ".cache"


class Environment(NamedTuple):
    """A virtual environment: the peer's package, and the words of each `pip install` that makes it."""

    package: str
    version: str
    installs: tuple[tuple[str, ...], ...]


def environment(package: str, version: str, *more: str, before: tuple[str, ...] = ()) -> Environment:
    installs = (*([before] if before else []), (*more, f"{package}=={version}"))
    return Environment(package, version, installs)


# libpecos asks for more than XR-Linear needs.
PECOS_NEEDS = ("torch==2.13.0", "numpy<2", "scipy<1.14", "scikit-learn", "transformers", "sentencepiece", "tqdm")
ENVIRONMENTS = {
    "omikuji": environment("omikuji", "0.5.2", "cffi", "numpy", "scipy"),
    "pecos": environment("libpecos", "1.2.8", "--no-deps", before=PECOS_NEEDS),
    "napkinxc": environment("napkinxc", "0.7.2", "numpy", "scipy"),
    "liblinear": environment("liblinear-official", "2.50.0", "numpy", "scipy"),
}
PEERS = {
    "omikuji": "omikuji",
    "omikuji-10": "omikuji",
    "omikuji-bonsai": "omikuji",
    "pecos": "pecos",
    "pecos-ova": "pecos",
    "napkinxc": "napkinxc",
    "liblinear": "liblinear",
}
# A problem for each label over all rows: seconds of a core for each label and non-zero, as measured on EURLEX57K.
ONE_VS_REST, SECONDS_PER_ENTRY, MAX_HOURS = ("pecos-ova", "liblinear"), 3.4e-8, 1.0


class Failed(Exception):
    """A system that came to no result, and why."""


def run(command: list[str], log: Path, threads: int) -> tuple[float, str]:
    """Wall time and the last line on stdout of a process."""
    started = time.perf_counter()
    limits = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    with open(log, "wb") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | limits)
    seconds = time.perf_counter() - started
    if done.returncode:
        said = log.read_text(errors="replace").splitlines() or ["nothing was said"]
        raise Failed(f"ended with {done.returncode}: {said[-1].strip()} ({log})")
    return seconds, (done.stdout.splitlines() or [""])[-1]


def prepare_environment(name: str, root: Path) -> str:
    """The interpreter of a peer's environment, which is made where it is not there."""
    wanted, python = ENVIRONMENTS[name], root / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(root / name)], check=True)
    ask = f"from importlib.metadata import version; print(version({wanted.package!r}))"
    found = subprocess.run([str(python), "-c", ask], capture_output=True, text=True)
    if found.stdout.strip() != wanted.version:
        for words in wanted.installs:
            print(f"{name}: installing {' '.join(words)}", file=sys.stderr, flush=True)
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *words], check=True)
    return str(python)


def own_version() -> str:
    """Version and the hash of all source, so that no edit is measured by an old result."""
    package = Path(xmlpreck.__file__).parent
    text = b"".join(path.read_bytes() for path in sorted(package.rglob("*.py")))
    return f"{xmlpreck.__version__} ({hashlib.sha256(text).hexdigest()[:12]})"


def write_features(data: str, folder: Path) -> dict[str, object]:
    """The same rows for all, of unit length; what is in them.

    They stand in a folder `rows`, a name that has no card and no config: xmlpreck gets no settings for known data.
    """
    rows = folder / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    facts: dict[str, object] = {"name": catalog.describe(data)}
    for split in ("train", "test"):
        source = catalog.load(data, split)
        whole = source.read(0, source.n_rows)
        whole = whole._replace(rows=prepare_rows(whole.rows, RowsConfig(bias=0.0)))
        formats.write_split(rows, split, [whole._replace(label_names=None, feature_names=None)], "npz")
        if split == "train":
            formats.write_repository_text(folder / "train.txt", whole)
            facts |= {"n_features": whole.n_features, "n_labels": whole.n_labels, "n_nonzeros": int(whole.rows.nnz)}
        facts[f"n_{split}"] = whole.n_rows
    digests = "".join(file_sha256(path) for path in sorted(rows.iterdir()))
    return facts | {"sha256": hashlib.sha256(digests.encode()).hexdigest()}


def refuse_hours(system: str, facts: dict, threads: int) -> None:
    """One-vs-rest on many labels takes hours, of which the reader should know first."""
    hours = SECONDS_PER_ENTRY * facts["n_labels"] * facts["n_nonzeros"] / threads / 3600
    if system in ONE_VS_REST and hours > MAX_HOURS:
        raise Failed(f"not run: one-vs-rest would take about {hours:.1f} hours (--all runs it)")


def score(data: str, predictions: Path, log: Path, threads: int) -> dict[str, float]:
    """By our own `evaluate`, whoever made the predictions: the card's propensities, the folder's filter file."""
    words = ["--pred", str(predictions), "--data", data, "--resamples", "0", "--threads", str(threads), "--json"]
    found = json.loads(run([sys.executable, "-m", "xmlpreck", "evaluate", *words], log, threads)[1])
    return {column.key: found[column.key] for column in SCORES}


def measure(system: str, python: str, data: str, folder: Path, facts: dict, threads: int) -> dict[str, object]:
    """Train, predict and score in processes of their own."""
    place, log = folder / system, folder / f"{system}.log"
    shutil.rmtree(place, ignore_errors=True)
    load = os.getloadavg()[0]
    stage = [system, str(folder), str(place), str(threads)]
    wall, said = run([python, str(RUNNER), "train", *stage], log, threads)
    trained = json.loads(said)
    model_bytes = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    predicted = json.loads(run([python, str(RUNNER), "predict", *stage], log, threads)[1])
    shutil.rmtree(place)
    values = score(data, folder / f"{system}.npz", log, threads) | {
        "train_s": trained["seconds"],
        "command_s": wall,
        "predict_ms": 1e3 * predicted["seconds"] / facts["n_test"],
        "peak_mb": trained["peak_mb"],
        "model_mb": model_bytes / 2**20,
    }
    return {"values": values, "load": load, "predict_peak_mb": predicted["peak_mb"], "machine": machine()}


def add_differences(entries: list[dict], data: str, folder: Path, threads: int) -> None:
    """Add to each of ours its paired difference to the best peer of each score, with a 95% interval.

    Predictions are in `folder`, those of earlier runs too. `compare` says how much more the others have than the first.
    """
    done = {entry["identity"]["system"]: entry for entry in entries if "values" in entry}
    peers = [name for name in done if not is_ours(name) and (folder / f"{name}.npz").exists()]
    for name, entry in done.items():
        if not is_ours(name) or not peers or not (folder / f"{name}.npz").exists():
            continue
        files = [str(folder / f"{each}.npz") for each in (name, *peers)]
        found = xmlpreck.compare(files, data, xmlpreck.EvaluationOptions(n_threads=threads)).against_first
        entry["against"] = {}
        for column in SCORES:
            peer, theirs = max(
                zip(peers, (each.differences[column.key] for each in found), strict=True),
                key=lambda pair: pair[1].value,
            )
            interval = {"difference": -theirs.value, "low": -theirs.high, "high": -theirs.low}
            entry["against"][column.key] = {"peer": peer, **interval}


def store(path: Path, content: object) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def own_systems() -> list[str]:
    """Ours, with each effort that is measured."""
    return [name for name in SYSTEMS if is_ours(name)]


@cache
def warm_up(work: Path, threads: int) -> None:
    """Compile the kernels into numba's cache: that is paid once after an install and is not part of a training."""
    words = ["--data", "demo", "--out", str(work / "warm"), "--threads", str(threads)]
    run([sys.executable, "-m", "xmlpreck", "train", *words], work / "warm.log", threads)
    shutil.rmtree(work / "warm")


def bench(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """An entry for each data set and system: from the cache, or measured now and stored there."""
    stored = args.work / "results.json"
    args.work.mkdir(parents=True, exist_ok=True)
    known = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else []
    pythons = dict.fromkeys(own_systems(), sys.executable)
    pythons |= {peer: prepare_environment(PEERS[peer], args.envs) for peer in args.peers}
    for data in args.data:
        folder = args.work / catalog.describe(data)
        facts = write_features(data, folder)
        entries = []
        for system, python in pythons.items():
            identity = {
                "data": facts,
                "system": system,
                "settings": SYSTEMS[system].settings,
                "version": own_version() if is_ours(system) else ENVIRONMENTS[PEERS[system]].version,
                "threads": args.threads,
            }
            old = [entry for entry in known if entry["identity"] == identity]
            if old and system not in args.again:
                entries.append(old[0])
                yield old[0]
                continue
            try:
                if not args.all:
                    refuse_hours(system, facts, args.threads)
                if is_ours(system):
                    warm_up(args.work, args.threads)
                entry = {"identity": identity, **measure(system, python, data, folder, facts, args.threads)}
            except Failed as failure:
                yield {"identity": identity, "skipped": str(failure)}
                continue
            known = [*(each for each in known if each not in old), entry]
            store(stored, known)
            entries.append(entry)
            yield entry
        add_differences(entries, data, folder, args.threads)


def kept_results(path: Path, results: list[dict]) -> list[dict]:
    """Return the results of an earlier run on data sets that this one has not measured."""
    earlier = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []
    measured = {entry["identity"]["data"]["name"] for entry in results}
    return [entry for entry in earlier if entry["identity"]["data"]["name"] not in measured]


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=[], help="folders or catalogue names, with train and test rows")
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--envs", type=Path, default=HOME / "xmlpreck-peers", help="folder of the environments")
    parser.add_argument("--work", type=Path, default=HOME / "xmlpreck-bench", help="folder of features and results")
    parser.add_argument("--again", nargs="+", default=[], metavar="SYSTEM", help="measure these anew")
    parser.add_argument("--all", action="store_true", help="also what is estimated to take hours")
    parser.add_argument("--render-only", action="store_true", help="measure nothing: write the pages from --out")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/peers.json"), help="JSON file of all results; other data sets in it stay"
    )
    parser.add_argument("--markdown", type=Path, default=Path("docs/peers.md"), help="page to write")
    parser.add_argument("--update", type=Path, help="Markdown file whose block of peers is replaced by a small table")
    args = parser.parse_args(words)
    if not (args.data or args.render_only):
        parser.error("name data by --data, or say --render-only")
    return args


def main(words: list[str] | None = None) -> None:
    args = parse(words)
    if not args.render_only:
        results = []
        for entry in bench(args):
            results.append(entry)
            print(entry_text(entry), flush=True)
        store(args.out, {"results": [*results, *kept_results(args.out, results)]})
    content = json.loads(args.out.read_text(encoding="utf-8"))
    with atomic_path(args.markdown) as temporary:
        temporary.write_text(page(content), encoding="utf-8")
    draw_curves(content, args.markdown.with_suffix(".svg"))
    if args.update:
        replace_block(args.update, BEGIN, END, compact(content))


if __name__ == "__main__":
    main()
