"""Kill training at random moments and resume it, over and over: the model must come out with the same bytes.

    python tools/torture.py --data ../shared/data/bibtex --runs 50 [--seed 0] [--rows 2000] [--out FILE.json]

One run is left in peace: the reference. Every other one is killed by SIGKILL, some several times, and resumed until it
ends. A tenth of the kills come at any time of a process, the others within tuning, the passes or the saving of the
model, as often in each (saving is a short part of a run). Exit 1 if a model differs from the reference or a run does
not end well. The seed draws the moments; what a moment hits depends on the machine.
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

# The phases of a run, and what the log has when they begin. Tuning begins with the plan.
PHASES = {"tuning": " a pass\n", "passes": " passes, ", "saving": "\npass {epochs}:", "end": " weights, "}
# Tuning of small data costs up to 200 passes: some, so that a run takes seconds.
PROGRAM = """
import sys
from xmlpreck.cli import main
from xmlpreck.train import tuning
tuning.FREE_WORK = 2e8
sys.exit(main(["train", "--algo", "sgd-avg", *sys.argv[1:]]))  # a rule that is tuned by trials
"""
BLOCKS = 8  # of a pass: with a pause after each there are checkpoints within a pass of few rows too
POLL_SECONDS = 0.005
ANY_TIME, AGAIN = 0.1, 0.5  # shares: kills at any time of a process, killed processes whose successor is killed too


@dataclass(frozen=True)
class Ended:
    """How one process went."""

    code: int
    seconds: float
    began: dict[str, float]  # seconds until each phase began that did
    log: str

    def length(self, phase: str) -> float:
        """Seconds of a phase of a run that ended well."""
        names = list(PHASES)
        return self.began[names[names.index(phase) + 1]] - self.began[phase]


def train(words: list[str], epochs: int, log: Path, kill_after: float | None = None, phase: str = "") -> Ended:
    """Train in a process of its own, killed so many seconds after its start or after a phase began, if asked for."""
    begin = time.monotonic()
    began: dict[str, float] = {}
    with (
        open(log, "wb") as output,
        subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=output, stderr=output) as process,
    ):
        is_alive = True
        while is_alive:
            is_alive = process.poll() is None  # before the log is read: its end is read too
            now = time.monotonic() - begin
            printed = log.read_text(encoding="utf-8")
            for name, sign in PHASES.items():
                if name not in began and sign.format(epochs=epochs) in printed:
                    began[name] = now
            since = began.get(phase) if phase else 0.0
            if is_alive and kill_after is not None and since is not None and now - since >= kill_after:
                process.kill()
                break
            time.sleep(POLL_SECONDS)
    return Ended(process.returncode, time.monotonic() - begin, began, log.read_text(encoding="utf-8"))


def place_of(model: Path, ended: Ended) -> tuple[str, str]:
    """Where a kill has hit, (phase, more exactly), by what it left behind."""
    partial = model.with_name(f"{model.name}.partial")
    checkpoints = sorted(partial.glob("checkpoint-*"))
    if any(model.parent.glob(f".{model.name}.*")):
        return "saving", "while the model was saved"
    if any(partial.glob(".checkpoint-*")):
        return "passes", "while a checkpoint was saved"
    if model.exists():
        return "saving", "after the model was saved"
    if "passes" not in ended.began:
        record = partial / "tuning.json"
        n_trials = record.read_text(encoding="utf-8").count('"n_passes"') if record.exists() else 0
        phase = "tuning" if "tuning" in ended.began else "reading"
        return phase, f"with {n_trials} trials and {len(checkpoints)} checkpoints"
    if not checkpoints:
        return "passes", "before the first checkpoint"
    cursor = json.loads((checkpoints[-1] / "checkpoint.json").read_text(encoding="utf-8"))["trainer"]
    if cursor["n_passes"] == cursor["number"]:
        return "saving" if "saving" in ended.began else "passes", f"after pass {cursor['number']}"
    return "passes", f"in pass {cursor['number']}, after block {cursor['n_blocks']} and {cursor['n_rows']} rows"


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


def torture(words: list[str], epochs: int, model: Path, peace: Ended, rng: Random) -> tuple[list[tuple[str, str]], str]:
    """One run, killed and resumed until it ends; where the kills hit, and what is wrong in the end."""
    places: list[tuple[str, str]] = []
    log = model.with_name("log.txt")
    kills = True
    while True:
        phase = "" if rng.random() < ANY_TIME else rng.choice([name for name in PHASES if name != "end"])
        moment = rng.uniform(0, peace.length(phase) if phase else peace.seconds)
        ended = train([*words, "--out", str(model), "--resume"], epochs, log, moment if kills else None, phase)
        if ended.code >= 0:
            break
        places.append(place_of(model, ended))
        sweep_up(model)
        kills = rng.random() < AGAIN
    if ended.code:
        return places, f"exit {ended.code}: {ended.log.splitlines()[-1:]}"
    left = [path.name for path in model.parent.iterdir() if path.name not in (model.name, log.name)]
    return places, ", ".join(f"{name} left behind" for name in left)


def write_slice(data: str, n_rows: int | None, folder: Path) -> int:
    """The first rows as repository text; returns how many there are."""
    from xmlpreck.data import catalog, formats

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
        peace = train([*words, "--out", str(scratch / "reference")], args.epochs, scratch / "log.txt")
        if peace.code:
            sys.exit(peace.log)
        lengths = ", ".join(f"{phase} {peace.length(phase):.2f}" for phase in list(PHASES)[:-1])
        print(f"seed {args.seed}; {n_rows:,} rows; reference {peace.seconds:.1f} s, of it {lengths}", flush=True)
        for number in range(args.runs):
            folder = scratch / f"run-{number}"
            folder.mkdir()
            places, wrong = torture(words, args.epochs, folder / "model", peace, rng)
            changed = differences(scratch / "reference", folder / "model")
            results.append({"run": number, "kills": places, "wrong": wrong, "differs": changed})
            shown = "; ".join(f"{phase}: {place}" for phase, place in places) or "ended before its kill"
            print(f"run {number}: {shown}: {wrong or 'ended'}, {changed or 'same'}", flush=True)
            shutil.rmtree(folder)
    hits = Counter(phase for run in results for phase, _ in run["kills"])
    n_bad = sum(bool(run["wrong"] or run["differs"]) for run in results)
    fell = ", ".join(f"{n} in {phase}" for phase, n in hits.most_common())
    print(f"{len(results)} runs, {hits.total()} kills ({fell}), {n_bad} runs that went wrong")
    if args.out:
        about = {"data": args.data, "n_rows": n_rows, "seed": args.seed, "reference_seconds": peace.seconds}
        args.out.write_text(json.dumps(about | {"places": hits, "runs": results}, indent=1) + "\n", encoding="utf-8")
    sys.exit(n_bad > 0)


if __name__ == "__main__":
    main()
