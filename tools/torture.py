"""Kill training at random moments and resume it, over and over: the model must come out with the same bytes.

    python tools/torture.py --data ../shared/data/bibtex --runs 50 [--seed 0] [--rows 2000] [--out FILE.json]

One run is left in peace: the reference. Every other one is killed by SIGKILL, some several times, and resumed until it
ends. A fifth of the kills come at any time of a process, the others between loaded rows and a saved model (a short
part of a short run). Exit 1 if a model differs from the reference or a run does not end well. The seed draws the
moments; what a moment hits depends on the machine.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

LOADED, SAVED = " passes, ", " weights, "  # in the lines that are printed before and after training
BLOCKS = 8  # of a pass: with a pause after each there are checkpoints within a pass of few rows too
POLL_SECONDS = 0.005
ANY_TIME, AGAIN = 0.2, 0.5  # shares: kills at any time of a process, killed processes whose successor is killed too


@dataclass(frozen=True)
class Ended:
    """How one process went."""

    code: int
    seconds: float
    loading: float  # seconds until training began
    training: float  # seconds from then until the model was saved


def train(words: list[str], log: Path, kill_after: float | None = None, from_training: bool = False) -> Ended:
    """Train in a process of its own, killed so many seconds after its start or after training began, if asked for."""
    begin = time.monotonic()
    loaded = saved = None
    with (
        open(log, "wb") as output,
        subprocess.Popen([sys.executable, "-m", "xmlpreck", "train", *words], stdout=output, stderr=output) as process,
    ):
        while process.poll() is None:
            now = time.monotonic()
            printed = log.read_text(encoding="utf-8")
            loaded = loaded or (now if LOADED in printed else None)
            saved = saved or (now if SAVED in printed else None)
            since = loaded if from_training else begin
            if kill_after is not None and since is not None and now - since >= kill_after:
                process.kill()
                break
            time.sleep(POLL_SECONDS)
    end = time.monotonic()
    loaded = loaded or end
    return Ended(process.returncode, end - begin, loaded - begin, (saved or end) - loaded)


def place_of(model: Path) -> str:
    """Where a kill has hit, by what it left behind."""
    partial = model.with_name(f"{model.name}.partial")
    checkpoints = sorted(partial.glob("checkpoint-*"))
    if any(model.parent.glob(f".{model.name}.*")):
        return "while the model was saved"
    if any(partial.glob(".checkpoint-*")):
        return "while a checkpoint was saved"
    if model.exists():
        return "after the model was saved"
    if not checkpoints:
        return "before the first checkpoint"
    cursor = json.loads((checkpoints[-1] / "checkpoint.json").read_text(encoding="utf-8"))["trainer"]
    if cursor["n_passes"] == cursor["number"]:
        return f"after pass {cursor['number']}"
    return f"in pass {cursor['number']}, after block {cursor['n_blocks']} and {cursor['n_rows']} rows"


def sweep_up(model: Path) -> None:
    """Remove what a killed save left, so that the next kill's place is not mistaken."""
    for left in (
        *model.parent.glob(f".{model.name}.*"),
        *model.with_name(f"{model.name}.partial").glob(".checkpoint-*"),
    ):
        shutil.rmtree(left)


def content(model: Path) -> dict[str, Any]:
    """All that a model says, but for the time that it took."""
    files: dict[str, Any] = {path.name: path.read_bytes() for path in sorted(model.iterdir())}
    files.pop("checked.json", None)  # times of the files
    about = json.loads(files["model.json"])
    del about["sha256"]["model.json"]
    for facts in about["history"]:
        del facts["seconds"], facts["rows_per_second"]
    return files | {"model.json": about}


def differences(reference: Path, model: Path) -> list[str]:
    """Names of the files that are not the same."""
    if not model.is_dir():
        return ["there is no model"]
    one, other = content(reference), content(model)
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


def torture(words: list[str], model: Path, peace: Ended, rng: Random) -> tuple[list[str], str]:
    """One run, killed and resumed until it ends; where the kills hit, and what is wrong in the end."""
    places: list[str] = []
    log = model.with_name("log.txt")
    kills = True
    while True:
        from_training = rng.random() >= ANY_TIME
        moment = rng.uniform(0, peace.training if from_training else peace.seconds)
        ended = train([*words, "--out", str(model), "--resume"], log, moment if kills else None, from_training)
        if ended.code >= 0:
            break
        places.append(place_of(model))
        sweep_up(model)
        kills = rng.random() < AGAIN
    if ended.code:
        return places, f"exit {ended.code}: {log.read_text(encoding='utf-8').splitlines()[-1:]}"
    left = [path.name for path in model.parent.iterdir() if path.name not in (model.name, log.name)]
    return places, ", ".join(f"{name} left behind" for name in left)


def write_slice(data: str, n_rows: int | None, folder: Path) -> int:
    """The first rows as repository text; returns how many there are."""
    from xmlpreck import catalog, formats

    rows = catalog.load(data, "train")
    n_rows = min(n_rows or rows.n_rows, rows.n_rows)
    folder.mkdir()
    formats.write_repository_text(folder / "train.txt", rows.read(0, n_rows))
    return n_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a folder or catalogue name")
    parser.add_argument("--runs", type=int, default=50, help="runs to kill")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--rows", type=int, help="train on the first rows only")
    parser.add_argument("--epochs", type=int, default=5, help="passes of a run")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    rng = Random(args.seed)
    results = []
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        scratch = Path(name)
        n_rows = write_slice(args.data, args.rows, scratch / "data")
        words = ["--data", str(scratch / "data"), "--epochs", str(args.epochs), "--checkpoint-minutes", "0.002"]
        words += ["--threads", "1", "--set", f"train.block_rows={-(-n_rows // BLOCKS)}"]
        peace = train([*words, "--out", str(scratch / "reference")], scratch / "log.txt")
        if peace.code:
            sys.exit((scratch / "log.txt").read_text(encoding="utf-8"))
        print(
            f"seed {args.seed}; {n_rows:,} rows; reference {peace.seconds:.1f} s, {peace.training:.1f} s of it training"
        )
        for number in range(args.runs):
            folder = scratch / f"run-{number}"
            folder.mkdir()
            places, wrong = torture(words, folder / "model", peace, rng)
            changed = differences(scratch / "reference", folder / "model")
            results.append({"run": number, "kills": places, "wrong": wrong, "differs": changed})
            print(
                f"run {number}: {'; '.join(places) or 'ended before its kill'}: {wrong or 'ended'}, {changed or 'same'}"
            )
            shutil.rmtree(folder)
    hits = Counter(place.split(",")[0] for run in results for place in run["kills"])
    n_bad = sum(bool(run["wrong"] or run["differs"]) for run in results)
    print("\n".join(f"{n:4} kills {place}" for place, n in hits.most_common()))
    print(f"{len(results)} runs, {hits.total()} kills, {n_bad} runs that went wrong")
    if args.out:
        about = {"data": args.data, "n_rows": n_rows, "seed": args.seed, "reference_seconds": peace.seconds}
        args.out.write_text(json.dumps(about | {"places": hits, "runs": results}, indent=1) + "\n", encoding="utf-8")
    sys.exit(n_bad > 0)


if __name__ == "__main__":
    main()
