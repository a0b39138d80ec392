"""Train and evaluate Annif's omikuji backends and ours, by Annif's own commands, on the same documents.

    python tools/bench_annif.py --annif PYTHON --data FOLDER --work DIR [--rows 10000] [--test-rows 1500]
        [--backends parabel bonsai xmlpreck] [--out bench_annif.json]

PYTHON is that of an environment with annif, omikuji and what xmlpreck needs. FOLDER has train.parquet, dev.parquet and
label_names.json (EURLEX57K), or documents.tsv and subjects.tsv (Annif's archaeology corpus in Finnish: texts that come
twice are left out, and each fifth of the others is a test row). Projects and models stay in --work. CPU seconds are
those of the processes; metrics are Annif's.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
from bench_train import machine

ROOT = Path(__file__).resolve().parent.parent
URI = "http://eurovoc.europa.eu/"
PROJECTS = {
    "parabel": "backend=omikuji",
    "bonsai": "backend=omikuji\ncluster_balanced=False\ncluster_k=100\nmax_depth=3",
    "xmlpreck": "backend=xmlpreck",
}
METRICS = ("F1@5", "NDCG", "Precision@1", "Precision@3", "Precision@5")


def write_eurlex(data: Path, work: Path, n_rows: int, n_test: int) -> None:
    """Write vocabulary and documents as Annif reads them."""
    names = json.loads((data / "label_names.json").read_text("utf-8"))
    lines = [f"<{URI}{label}>\t{' '.join(name.split())}\n" for label, name in names.items()]
    (work / "subjects.tsv").write_text("".join(lines), "utf-8")
    for split, file, n in (("train", "train.parquet", n_rows), ("test", "dev.parquet", n_test)):
        table = pq.read_table(data / file, columns=["text", "labels"])[:n].to_pylist()
        lines = [
            f"{' '.join(row['text'].split())}\t{' '.join(f'<{URI}{label}>' for label in row['labels'])}\n"
            for row in table
        ]
        (work / f"{split}.tsv").write_text("".join(lines), "utf-8")


def write_archaeology(data: Path, work: Path) -> None:
    """Copy the vocabulary, and split the documents whose subjects are all in it."""
    shutil.copy(data / "subjects.tsv", work)
    lines = (data / "documents.tsv").read_text("utf-8").splitlines(keepends=True)
    once = list({line.partition("\t")[0].casefold(): line for line in lines if "dummy_subject" not in line}.values())
    for split, own in (("test", once[4::5]), ("train", [line for place, line in enumerate(once) if place % 5 != 4])):
        (work / f"{split}.tsv").write_text("".join(own), "utf-8")
        print(f"{split}: {len(own):,} documents")


def write_projects(work: Path, language: str, analyzer: str) -> None:
    sections = [
        f"[{name}]\nname={name}\nlanguage={language}\nvocab=subjects\nanalyzer=snowball({analyzer})\n{words}\n"
        for name, words in PROJECTS.items()
    ]
    (work / "projects.cfg").write_text("\n".join(sections))


def annif(args: argparse.Namespace, *words: object) -> tuple[float, float]:
    """Run one of Annif's commands with our backend registered; return its seconds and CPU seconds."""
    environment = os.environ | {
        "ANNIF_CONFIG": "annif.default_config.ProductionConfig",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
    }
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [args.annif, "-m", "xmlpreck.integrations.annif", *map(str, words)]
    subprocess.run(command, cwd=args.work, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--annif", required=True, metavar="PYTHON")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--test-rows", type=int, default=1500)
    parser.add_argument("--backends", nargs="+", default=list(PROJECTS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    language = "fi" if (args.data / "subjects.tsv").exists() else "en"
    if language == "fi":
        write_archaeology(args.data, args.work)
    else:
        write_eurlex(args.data, args.work, args.rows, args.test_rows)
    write_projects(args.work, language, "finnish" if language == "fi" else "english")
    annif(args, "load-vocab", "subjects", "subjects.tsv", "--language", language, "--force")
    results = {}
    for name in args.backends:
        seconds, cpu = annif(args, "train", name, "train.tsv", "--jobs", 2)
        took, _ = annif(args, "eval", name, "test.tsv", "--jobs", 1, "--metrics-file", f"{name}.json")
        found = json.loads((args.work / f"{name}.json").read_text())
        files = [path for path in (args.work / "data/projects" / name).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files if "-train" not in path.name) / 1e6
        results[name] = {metric: found[metric] for metric in METRICS}
        results[name] |= {"train_s": seconds, "train_cpu_s": cpu, "eval_s": took, "model_mb": size}
        print(json.dumps({name: results[name]}), flush=True)
    print(
        "| backend | F1@5 | nDCG | P@1 | P@3 | P@5 | train CPU s | train s | eval s | model MB |\n|---|" + "---:|" * 9
    )
    for name, row in results.items():
        scores = " | ".join(f"{100 * row[metric]:.2f}" for metric in METRICS)
        rest = " | ".join(f"{row[key]:.0f}" for key in ("train_cpu_s", "train_s", "eval_s"))
        print(f"| {name} | {scores} | {rest} | {row['model_mb']:.1f} |")
    if args.out:
        about = {"data": args.data.name, "machine": machine()}
        args.out.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
