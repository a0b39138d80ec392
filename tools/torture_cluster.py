"""Kill shards of the labels at random moments of training on Ray: the model must come out with the same bytes.

    python tools/torture_cluster.py --data ../shared/data/eurlex57k --runs 10 [--label-shards 2] [--epochs 1]
        [--set train.batch_rows=512] [--seed 0] [--json FILE]

One run is left in peace: the reference. In every other one a shard's process is ended by SIGKILL while the passes run;
it is brought back by the driver. Each run starts a Ray of its own. Exit 1 if a model differs from the reference, a run
does not end well, or a kill went unnoticed. The seed draws the moments and the shards; what a moment hits depends on
the machine. Needs Linux (/proc).
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

PLANNED, PASS = " of the mean", "\npass "  # printed before the passes, and after each
LOST = re.compile(r"label shard (\d+) is lost")
SHARD_ROWS = 8192  # of a file
POLL_SECONDS = 0.01
LATEST = 0.9  # share of the reference's passes: another run may be faster
MOST_ATTEMPTS = 5  # at a run that does not end before its kill


@dataclass(frozen=True)
class Ended:
    """How one run went."""

    code: int
    seconds: float
    passes: float  # seconds from the first batch, or nearly, to the end of the last pass
    killed_after: float | None  # seconds of these; None = it ended before its kill
    lost: list[int]  # shards that the driver brought back


def train(
    words: list[str], log: Path, n_passes: int, kill_after: float | None = None, rng: Random | None = None
) -> Ended:
    """Train in a process of its own; one of its shards is killed so many seconds after the plan was printed."""
    begin = time.monotonic()
    planned = passed = killed_after = None
    with (
        open(log, "wb") as output,
        subprocess.Popen([sys.executable, "-m", "xmlpreck", "train", *words], stdout=output, stderr=output) as process,
    ):
        while process.poll() is None:
            now = time.monotonic()
            printed = log.read_text(encoding="utf-8", errors="replace")
            planned = planned or (now if PLANNED in printed else None)
            passed = passed or (now if printed.count(PASS) >= n_passes else None)
            is_time = kill_after is not None and planned and not passed and now - planned >= kill_after
            victims = find_shards(process.pid) if is_time and killed_after is None else []
            if rng and planned and victims:
                os.kill(rng.choice(victims), signal.SIGKILL)
                killed_after = now - planned
            time.sleep(POLL_SECONDS)
    end = time.monotonic()
    lost = [int(shard) for shard in LOST.findall(log.read_text(encoding="utf-8", errors="replace"))]
    return Ended(process.returncode, end - begin, (passed or end) - (planned or begin), killed_after, lost)


def find_shards(driver: int) -> list[int]:
    """Process ids of the shards that a driver has hired."""
    parent_of, shards = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent_of[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes().startswith(b"ray::LabelShard"):
                shards.append(int(folder.name))
        except OSError:  # it has ended meanwhile
            continue
    return sorted(shard for shard in shards if parent_of.get(parent_of[shard]) == driver)  # the node is in between


def arrays(model: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(model.glob("*.npy"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a folder or catalogue name")
    parser.add_argument("--runs", type=int, default=10, help="runs to kill a shard in")
    parser.add_argument("--label-shards", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1, help="passes of a run")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any setting")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--json", type=Path, help="file to write")
    args = parser.parse_args()
    rng = Random(args.seed)
    results = []
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        scratch = Path(name)
        n_rows = write_rows(args.data, scratch / "data" / "train")
        words = ["--data", str(scratch / "data"), "--no-tune", "--engine", "ray", "--epochs", str(args.epochs)]
        words += ["--label-shards", str(args.label_shards), *(word for each in args.set for word in ("--set", each))]
        log, model = scratch / "log.txt", scratch / "model"
        peace = train([*words, "--out", str(model)], log, args.epochs)
        if peace.code:
            sys.exit(log.read_text(encoding="utf-8"))
        reference = arrays(model)
        print(f"seed {args.seed}; {n_rows:,} rows; reference {peace.seconds:.1f} s, {peace.passes:.1f} s of it passes")
        for number in range(args.runs):
            for attempt in range(MOST_ATTEMPTS):
                model = scratch / f"{number}-{attempt}" / "model"
                moment = rng.uniform(0, LATEST * peace.passes)
                ended = train([*words, "--out", str(model)], log, args.epochs, moment, rng)
                if ended.code or ended.killed_after is not None:
                    break
            is_same = ended.code == 0 and arrays(model) == reference
            results.append({"run": number, "same": is_same, **asdict(ended)})
            moment_text = "never killed" if ended.killed_after is None else f"killed at {ended.killed_after:.1f} s"
            print(f"run {number}: {moment_text}, lost {ended.lost}, {'same' if is_same else 'DIFFERENT'}", flush=True)
            if ended.code:
                print(log.read_text(encoding="utf-8"))
            shutil.rmtree(model.parent, ignore_errors=True)
    n_same = sum(run["same"] for run in results)
    n_unseen = sum(not run["lost"] for run in results)
    print(f"{n_same} of {args.runs} the same bits")
    if args.json:
        about = {"data": Path(args.data).name, "n_rows": n_rows, "seed": args.seed, "label_shards": args.label_shards}
        about |= {"epochs": args.epochs, "settings": args.set, "n_same": n_same}
        about |= {"reference_seconds": peace.seconds, "reference_passes_seconds": peace.passes}
        args.json.write_text(json.dumps(about | {"runs": results}, indent=1) + "\n", encoding="utf-8")
    sys.exit(n_same < args.runs or n_unseen > 0)


def write_rows(data: str, folder: Path) -> int:
    """The training rows as shards, which every label shard reads itself; returns how many there are."""
    from xmlpreck.data import catalog, shards

    rows = catalog.load(data, "train")
    blocks = (rows.read(start, min(start + SHARD_ROWS, rows.n_rows)) for start in range(0, rows.n_rows, SHARD_ROWS))
    shards.write_shards(folder, blocks, "parquet", SHARD_ROWS, {})
    return rows.n_rows


if __name__ == "__main__":
    main()
