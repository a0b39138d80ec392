"""What a run was said to need against what it took: peak memory, checkpoint and model on disk, seconds a pass.

    python tools/bench_plan.py DATA [DATA ...] [--epochs 2] [--words '--eta 0.1'] [--out docs/bench_plan.json]

Every run is a process of its own, `xmlpreck train`, and its peak is what the system has counted for it (wait4).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from bench_train import machine

TOLERANCE = 0.15


COLUMNS = (
    *("weights", "planned_mb", "measured_mb", "ratio", "checkpoint_planned_mb", "checkpoint_mb"),
    *("model_at_most_mb", "model_mb", "pass_planned_s", "pass_s"),
)


def show(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(show, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def folder_bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir())
    except OSError:  # it has just been replaced
        return 0


def watch_checkpoints(partial: Path, done: threading.Event, largest: list[int]) -> None:
    while not done.wait(0.05):
        for folder in partial.glob("checkpoint-*"):
            largest[0] = max(largest[0], folder_bytes(folder))


def measure(data: str, epochs: int, words: list[str]) -> dict[str, object]:
    common = ["--data", data, "--epochs", str(epochs), "--json", *words]
    said = subprocess.run([sys.executable, "-m", "xmlpreck", "plan", *common], capture_output=True, check=True)
    plan = json.loads(said.stdout)
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        largest, done = [0], threading.Event()
        watcher = threading.Thread(target=watch_checkpoints, args=(model.with_name("model.partial"), done, largest))
        watcher.start()
        with open(Path(scratch) / "out.json", "wb") as out:
            run = subprocess.Popen(
                [sys.executable, "-m", "xmlpreck", "train", *common, "--out", str(model)],
                stdout=out,
                stderr=subprocess.DEVNULL,
            )
            _, status, usage = os.wait4(run.pid, 0)
            run.returncode = os.waitstatus_to_exitcode(status)
        done.set()
        watcher.join()
        if run.returncode:
            raise SystemExit(f"{data}: train has ended with {run.returncode}")
        result = json.loads((Path(scratch) / "out.json").read_text())
    return {
        "data": Path(data).name,
        "weights": plan["n_weights"],
        "planned_mb": plan["peak_bytes"] / 2**20,
        "measured_mb": usage.ru_maxrss / 1024,
        "ratio": usage.ru_maxrss * 1024 / plan["peak_bytes"],
        "checkpoint_planned_mb": plan["checkpoint_bytes"] / 2**20,
        "checkpoint_mb": largest[0] / 2**20,
        "model_at_most_mb": plan["model_bytes"] / 2**20,
        "model_mb": result["bytes"] / 2**20,
        "pass_planned_s": plan["pass_seconds"],
        "pass_s": [facts["seconds"] for facts in result["history"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--words", default="", help="more words for plan and train, e.g. '--eta 0.1'")
    parser.add_argument("--out")
    args = parser.parse_args()
    rows = []
    print(" | ".join(("data", *COLUMNS)))
    for data in args.data:
        rows.append(measure(data, args.epochs, args.words.split()))
        print(" | ".join((rows[-1]["data"], *(show(rows[-1][column]) for column in COLUMNS))), flush=True)
    if args.out:
        Path(args.out).write_text(json.dumps({"runs": rows, "machine": machine()}, indent=1) + "\n")
    if bad := [row["data"] for row in rows if abs(row["ratio"] - 1) > TOLERANCE]:
        raise SystemExit(f"more than {TOLERANCE:.0%} off: {', '.join(bad)}")


if __name__ == "__main__":
    main()
