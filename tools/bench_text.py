"""Time the making of features from texts beside scikit-learn's TfidfVectorizer and, if it is there, PECOS's vectorizer.

    python tools/bench_text.py --data ../shared/data/eurlex57k/train.parquet [--column text] [--rows 45000]
        [--pecos PYTHON] [--threads 0] [--out bench_text.json]

    python tools/bench_text.py --scores ../shared/data/debtags/{de,ru,zh_CN} [--no-tune] [--language de]
        [--set "text.ngrams=2 text.min_df=2" ...]

Checks first, on 500 texts, that our rows are those of TfidfVectorizer with the terms of tests/reference.py. Then each
learns its vocabulary from all texts and turns these into rows; ratios are of one run. Last, single texts of 600 words.
`--pecos` is the Python of an environment that has libpecos. `--scores` trains on each folder
instead (train.jsonl and test.jsonl, or train.parquet and dev.parquet), as `xmlpreck train` does (or untuned, with
`--no-tune`) and with three seeds, and prints the mean P@1, P@3 and P@5: by default, with the regular expression that
was the default before, with the stems of `--language`, if given, and with every `--set`.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from bench_train import machine
from sklearn.feature_extraction.text import TfidfVectorizer

import xmlpreck
from xmlpreck.config import parse_words
from xmlpreck.data.location import Columns, DataLocation
from xmlpreck.data.text import TextVectorizer, fit_rows, fit_text

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from reference import terms_of

OLD_PATTERN = "[a-zA-Z][a-zA-Z0-9-]+"
SAME = {"sublinear_tf": True, "min_df": 3, "max_df": 0.5}
CHUNK = 4096
KEPT_BYTES = 4 << 30
PECOS = """
import sys, time, json
from pecos.utils.featurization.text.vectorizers import Vectorizer
texts, threads = json.load(sys.stdin), int(sys.argv[1])
begun, cpu = time.perf_counter(), time.process_time()
config = {"type": "tfidf", "kwargs": {"max_df_ratio": 0.5, "min_df_cnt": 3, "sublinear_tf": True, "threads": threads}}
vectorizer = Vectorizer.train(texts, config)
made = vectorizer.predict(texts, threads=threads)
seconds = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu}
print(json.dumps(seconds | {"features": made.shape[1], "values": made.nnz}))
"""


def timed(make: Callable[[], Any]) -> tuple[float, Any]:
    """Return (seconds, result)."""
    begun = time.perf_counter()
    made = make()
    return time.perf_counter() - begun, made


def chunked(texts: list[str]) -> list[list[str]]:
    return [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]


def check_equal(texts: list[str]) -> None:
    """Stop unless features and values are scikit-learn's."""
    theirs = TfidfVectorizer(analyzer=terms_of, **SAME)
    expected = theirs.fit_transform(texts)
    ours = fit_text([texts], **SAME)
    if ours.feature_names != theirs.get_feature_names_out().tolist():
        sys.exit("the terms differ from the reference's")
    if abs(ours.transform(texts) - expected).max() > 1e-6:
        sys.exit("the values differ from scikit-learn's")


def make_rows(texts: list[str], threads: int) -> tuple[TextVectorizer, int]:
    vectorizer, rows = fit_rows(chunked(texts), KEPT_BYTES, threads, **SAME)
    if rows is None:
        sys.exit(f"the counts of all texts take more than {KEPT_BYTES:,} bytes: give fewer --rows")
    return vectorizer, sum(chunk.nnz for chunk in rows)


def time_single(vectorizer: TextVectorizer, texts: list[str], n_calls: int = 2000) -> dict[str, float]:
    """Return milliseconds of one text of 600 words: median and 99th percentile."""
    long = [" ".join(text.split()[:600]) for text in texts if len(text.split()) >= 600][:200]
    seconds = []
    for call in range(100 + n_calls):
        begun = time.perf_counter()
        vectorizer.transform(long[call % len(long) :][:1])
        seconds.append(time.perf_counter() - begun)
    median, high = np.quantile(seconds[100:], [0.5, 0.99]) * 1e3
    return {"median_ms": float(median), "p99_ms": float(high)}


def mean_scores(folder: Path, settings: dict[str, Any], n_seeds: int, tune: bool, threads: int) -> list[float]:
    """Train with some seeds; returns the mean P@1, P@3 and P@5 in percent."""
    is_lines = (folder / "train.jsonl").exists()
    columns = Columns() if is_lines else Columns("text", "labels")
    names = ("train.jsonl", "test.jsonl") if is_lines else ("train.parquet", "dev.parquet")
    train, test = (DataLocation(str(folder / name), columns=columns) for name in names)
    scores = []
    for seed in range(n_seeds):
        model = xmlpreck.fit(train, tune=tune, seed=seed, threads=threads, settings=settings)
        found = model.score(test.open(model.vectorizer, model.label_names))
        scores.append([found[f"P@{k}"] for k in (1, 3, 5)])
    return [round(float(score), 2) for score in np.mean(scores, axis=0)]


def print_scores(args: argparse.Namespace) -> None:
    kinds: dict[str, dict[str, Any]] = {"default": {}}
    if not args.set:
        kinds[OLD_PATTERN] = {"text.token_pattern": OLD_PATTERN}
    if args.language:
        kinds[f"stems, {args.language}"] = {"text.language": args.language}
    kinds |= {words: parse_words(words.split()) for words in args.set}
    for folder in map(Path, args.scores):
        for name, settings in kinds.items():
            scores = mean_scores(folder, settings, args.seeds, not args.no_tune, args.threads)
            print(f"{folder.name:8s} {name:24s}", *scores, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--data")
    what.add_argument("--scores", nargs="+", metavar="FOLDER")
    parser.add_argument("--language")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE ...")
    parser.add_argument("--no-tune", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--column", default="text")
    parser.add_argument("--rows", type=int, default=45_000)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--pecos")
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.scores:
        print_scores(args)
        return 0
    texts = pq.read_table(args.data, columns=[args.column])[args.column].to_pylist()[: args.rows]
    check_equal(texts[:500])
    cpu = time.process_time()
    seconds, (vectorizer, n_values) = timed(lambda: make_rows(texts, args.threads))
    cpu = time.process_time() - cpu
    ours = {"seconds": seconds, "cpu_seconds": cpu, "features": vectorizer.n_features, "values": n_values}
    cpu = time.process_time()
    seconds, made = timed(lambda: TfidfVectorizer(**SAME).fit_transform(texts))
    cpu = time.process_time() - cpu
    found = {"xmlpreck": ours, "scikit-learn": {"seconds": seconds, "cpu_seconds": cpu, "features": made.shape[1]}}
    if args.pecos:
        words = [args.pecos, "-c", PECOS, str(args.threads or -1)]
        answer = subprocess.run(words, input=json.dumps(texts), stdout=subprocess.PIPE, text=True, check=True).stdout
        found["pecos"] = json.loads(answer.splitlines()[-1])
    megabytes = sum(map(len, texts)) / 1e6
    print(f"{len(texts):,} texts, {megabytes:.0f} MB")
    for name, about in found.items():
        times = about["seconds"] / ours["seconds"]
        print(f"{name:14s} {about['seconds']:8.2f} s  {times:6.1f} times ours, CPU {about['cpu_seconds']:.2f} s")
    single = time_single(vectorizer, texts)
    print(f"one text of 600 words: {single['median_ms']:.3f} ms, 99th percentile {single['p99_ms']:.3f} ms")
    if args.out:
        result = {"data": args.data, "n_texts": len(texts), "megabytes": megabytes, "made": found, "single": single}
        Path(args.out).write_text(json.dumps(result | {"machine": machine()}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
