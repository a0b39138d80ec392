"""EURLEX57K text -> unit-norm tf-idf rows, as a data folder that `xmlpreck train --data FOLDER` reads.

    python tools/prepare_eurlex57k.py --text ../shared/data/eurlex57k --out eurlex57k

Reads train.parquet and dev.parquet (id, text, labels) and label_names.json; dev becomes the test split. The vocabulary
is of the training texts: sublinear tf, terms of at least 3 and at most half of the documents. The labels are those of
either split, in the order of their concept ids.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from scipy.sparse import csr_array
from sklearn.feature_extraction.text import TfidfVectorizer

from xmlpreck.data.formats import Dataset, build_csr, write_split
from xmlpreck.files.contents import write_names


def label_matrix(lists: list[list[str]], column_of: dict[str, int]) -> csr_array:
    ids = np.array([column_of[concept] for concepts in lists for concept in concepts], np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(concepts) for concepts in lists])])
    matrix = build_csr(np.ones(len(ids), np.float32), ids, offsets, (len(lists), len(column_of)))
    matrix.sort_indices()
    return matrix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="folder with train.parquet and dev.parquet")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    args = parser.parse_args()

    tables = {"train": pq.read_table(args.text / "train.parquet"), "test": pq.read_table(args.text / "dev.parquet")}
    lists = {split: table["labels"].to_pylist() for split, table in tables.items()}
    concepts = sorted({concept for split in lists.values() for labels in split for concept in labels})
    column_of = {concept: column for column, concept in enumerate(concepts)}
    vectorizer = TfidfVectorizer(
        sublinear_tf=True, min_df=3, max_df=0.5, token_pattern=r"[a-zA-Z][a-zA-Z0-9-]+", dtype=np.float32
    )
    args.out.mkdir(parents=True, exist_ok=True)
    for split, table in tables.items():
        transform = vectorizer.fit_transform if split == "train" else vectorizer.transform
        rows = csr_array(transform(table["text"].to_pylist()))
        rows.sort_indices()
        write_split(args.out, split, [Dataset(rows, label_matrix(lists[split], column_of))], "npz")
        print(f"{split}: {rows.shape[0]:,} rows, {rows.shape[1]:,} features, {len(concepts):,} labels", flush=True)
    names = json.loads((args.text / "label_names.json").read_text(encoding="utf-8"))
    write_names(args.out / "labels.txt", [names.get(concept, concept) for concept in concepts])
    write_names(args.out / "features.txt", vectorizer.get_feature_names_out().tolist())


if __name__ == "__main__":
    main()
