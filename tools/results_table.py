"""The table of docs/algorithms.md: every algorithm on each data set, tuned as on the command line, and scored.

    python tools/results_table.py --data-dir DIR --update docs/algorithms.md --out docs/results.json [bibtex ...]

DIR holds a folder for each data set. What the second column says is given, all else is tuned or the default. Seconds
are of the passes, on this machine as it was: compare within one run.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from bench_train import machine

from xmlpreck import catalog, config, metrics
from xmlpreck.config import ALGORITHMS
from xmlpreck.train import fit, score, tune

BEGIN, END = "<!-- results: made by tools/results_table.py -->", "<!-- end of results -->"

# Beside the four algorithms: what a setting is worth.
EXTRA_RUNS = {
    "bibtex": [["train.centroid=0"]],
    "delicious": [["train.tau=0"], ["train.k=5"], ["train.centroid=0"]],
    "eurlex57k": [["train.prune=0"], ["train.average_from=0"], ["train.centroid=0"]],
}


def run(name: str, overrides: list[str], data_dir: str | None) -> dict[str, object]:
    settings = config.load(catalog.find_config(None, name), overrides)
    train, test = (catalog.load(name, split, data_dir) for split in ("train", "test"))
    tuned = tune(train, settings)
    settings = tuned[0] if tuned else settings
    scorer = fit(train, settings)
    with tempfile.TemporaryDirectory() as folder:
        n_bytes = scorer.save(Path(folder) / "model")
    started = time.perf_counter()
    scores = score(scorer, test, settings.train)
    seconds = time.perf_counter() - started
    return {
        "data": name,
        "overrides": overrides,
        "settings": settings.to_dict(),
        **scores,
        "train_seconds": sum(entry["seconds"] for entry in scorer.info["history"]),
        "predict_ms_per_row": 1e3 * seconds / test.rows.shape[0],
        "model_mb": n_bytes / 2**20,
    }


def table_row(result: dict) -> str:
    train = result["settings"]["train"]
    changed = [word.removeprefix("train.") for word in result["overrides"] if not word.startswith("train.algo")]
    card = catalog.find_card(result["data"])
    name = f"{result['data']} (synthetic)" if card and card.synthetic else result["data"]
    cells = [
        name,
        ", ".join([train["algo"], *(word.replace("=", " ") for word in changed)]),
        *(f"{result[f'P@{k}']:.2f}" for k in metrics.REPORTED_KS),
        f"{result['train_seconds']:.1f}",
        f"{result['predict_ms_per_row']:.3f}",
        f"{result['model_mb']:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def table(results: list[dict], about: dict[str, object]) -> str:
    head = "| data | algorithm | P@1 | P@3 | P@5 | train s | predict ms/row | model MB |"
    rows = [head, "|---|---|" + "---:|" * 6, *map(table_row, results)]
    rows.append(f"\n{about['cores']} cores ({about['cpu']}), xmlpreck {about['xmlpreck']}, Python {about['python']}.")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["bibtex", "delicious", "eurlex57k", "demo"])
    parser.add_argument("--data-dir", help="where catalogue data is")
    parser.add_argument("--update", type=Path, help="Markdown file whose table is replaced")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()

    results = []
    for name in args.names:
        fit(catalog.load(name, "train", args.data_dir), config.load(None, ["train.epochs=1"]))  # compiles, warms up
        for overrides in [*([f"train.algo={algo}"] for algo in ALGORITHMS), *EXTRA_RUNS.get(name, [])]:
            results.append(run(name, overrides, args.data_dir))
            print(table_row(results[-1]), flush=True)
    about = machine()
    if args.update:
        text = args.update.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        args.update.write_text(f"{before}{BEGIN}\n{table(results, about)}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    if args.out:
        args.out.write_text(json.dumps({"machine": about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
