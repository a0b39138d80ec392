"""Write the models that every later version must read (tests/fixtures), once for each version of the format.

python tools/make_fixtures.py tests/fixtures
"""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from xmlpreck import train
from xmlpreck.config import RunConfig, TextConfig, TrainConfig
from xmlpreck.data.formats import Dataset
from xmlpreck.data.text import fit_labels, fit_text, label_matrix
from xmlpreck.model import FORMAT_VERSION

SETTINGS = RunConfig(train=TrainConfig(k=2, epochs=3, threads=1))
TEXTS = ["milk and cheese", "herring and cod", "statute of the court", "cheese of the cow", "cod in the sea"]
NAMES = [["dairy"], ["fish"], ["law"], ["dairy", "farm"], ["fish", "sea"]]


def main() -> None:
    folder = Path(sys.argv[1])
    rng = np.random.default_rng(1)
    rows = (rng.random((30, 8)) * (rng.random((30, 8)) < 0.5)).astype(np.float32)
    labels = csr_array((rng.random((30, 6)) < 0.3).astype(np.float32))
    names = [f"label {i}" for i in range(6)]
    numbers = train.fit(Dataset(csr_array(rows), labels, names, [f"feature {i}" for i in range(8)]), SETTINGS)
    numbers.save(folder / f"model-{FORMAT_VERSION}")
    vectorizer = fit_text([TEXTS], **dataclasses.asdict(TextConfig(min_df=1, max_df=1.0)))
    known = fit_labels([NAMES])
    matrix = label_matrix(NAMES, {name: column for column, name in enumerate(known)})
    data = Dataset(vectorizer.transform(TEXTS), matrix, known, vectorizer.feature_names)
    texts = dataclasses.replace(train.fit(data, SETTINGS), vectorizer=vectorizer)
    texts.save(folder / f"text-model-{FORMAT_VERSION}")
    top = numbers.predict_topk(csr_array(rows[:5]), 3)
    best = texts.predict_topk(vectorizer.transform(TEXTS), 1)
    expected = {
        "rows": rows[:5].tolist(),
        "labels": top.labels.tolist(),
        "scores": top.scores.tolist(),
        "texts": TEXTS,
        "names": [known[label] for label in best.labels[:, 0]],
    }
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
