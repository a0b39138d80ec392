"""Whole tables of texts for the fuzzer to damage: CSV of many dialects, Parquet, and Annif's corpora."""

import csv
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from plain_formats import Files

# The format that reads each kind, and its file; a folder of full texts is a file for each document.
TABLES = {
    "csv": ("csv", "train.csv"),
    "tsv": ("tsv", "train.tsv"),
    "annif": ("csv", "train.tsv"),
    "fulltext": ("fulltext", ""),
    "parquet": ("parquet", "train.parquet"),
}
TEXTS = ("alpha beta", "", 'say "so", twice', "one; two|three", "line\nbreak", "\u00e9t\u00e9 \U0001f600", "x" * 300)
LABELS = (["a"], ["a", "b"], [], ["b", "c d"])
URIS = ["http://x.org/1", "http://x.org/2"]


def draw_rows(rng: np.random.Generator) -> list[tuple[str, str, list[str]]]:
    """Draw (id, text, labels) of some documents."""
    return [
        (f"n{i}", str(rng.choice(TEXTS)), LABELS[rng.integers(len(LABELS))]) for i in range(int(rng.integers(1, 6)))
    ]


def table_files(kind: str, rng: np.random.Generator) -> Files:
    """Make a whole table of one kind."""
    rows = draw_rows(rng)
    if kind == "parquet":
        columns = {"id": [row[0] for row in rows], "text": [row[1] for row in rows], "labels": [row[2] for row in rows]}
        if rng.random() < 0.3:
            columns["labels"] = [";".join(row[2]) for row in rows]
        out = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), out)
        return {"train.parquet": out.getvalue().to_pybytes()}
    if kind == "fulltext":
        files = {}
        for name, text, labels in rows:
            uris = "".join(f"<{uri}>\t{label}\n" for uri, label in zip(URIS, labels, strict=False))
            files[f"{name}.txt"] = text.encode()
            files[f"{name}.tsv" if rng.random() < 0.5 else f"{name}.key"] = uris.encode()
        return files
    if kind == "annif":
        lines = [
            f"{' '.join(text.split())}\t{' '.join(f'<{uri}>' for uri in URIS[: 1 + i % 2])}\n"
            for i, (_, text, _) in enumerate(rows)
        ]
        return {"train.tsv": "".join(lines).encode()}
    return {f"train.{kind}": write_csv(kind, rows, rng)}


def write_csv(kind: str, rows: list[tuple[str, str, list[str]]], rng: np.random.Generator) -> bytes:
    """Write a table in a dialect that is drawn."""
    between = str(rng.choice([";", "|", ", "]))
    as_list = rng.random() < 0.2
    out = io.StringIO(newline="")
    writer = csv.writer(
        out,
        delimiter="\t" if kind == "tsv" else str(rng.choice([",", ";", "|"])),
        quoting=csv.QUOTE_ALL if rng.random() < 0.4 else csv.QUOTE_MINIMAL,
        lineterminator=str(rng.choice(["\n", "\r\n"])),
    )
    writer.writerow(["id", "title", "text", "labels"])
    for name, text, labels in rows:
        writer.writerow([name, "T", text, str(labels) if as_list else between.join(labels)])
    return out.getvalue().encode(str(rng.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"])))
