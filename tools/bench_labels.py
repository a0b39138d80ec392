"""What the words of labels change: P@k, PSP@k, recall of labels without rows, and CPU seconds, with and without them.

    python tools/bench_labels.py --data eurlex57k man-seealso --labels label_names.json labels.txt.gz --json labels.json

Each data folder has train and test rows, and a vocabulary of the same place in --labels. A model is trained once, tuned
as `xmlpreck train` does; what `--labels-file` does after training is then timed by itself, so both have the same bits.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import xmlpreck
from xmlpreck import metrics
from xmlpreck.api.inputs import open_location
from xmlpreck.api.labels import LabelFile, add_vocabulary
from xmlpreck.data.location import DataLocation
from xmlpreck.data.rows import with_more_labels
from xmlpreck.metrics import SHOTS, Meter
from xmlpreck.model import Model
from xmlpreck.train.label_text import count_labels

KS = (1, 3, 5)
BLOCK_ROWS = 4096


def measure(model: Model, train: Any, test: Any, n_threads: int) -> dict[str, Any]:
    """Score test rows with all labels of the model, in bins of labels without rows, with up to 50, with more."""
    n_labels = max(model.n_labels, test.n_labels)  # of texts: test rows may have labels that the model has not
    counts = count_labels(with_more_labels(train, n_labels, None), BLOCK_ROWS)
    inverse = metrics.inverse_propensities(counts, train.n_rows, *metrics.PROPENSITY)
    meter = Meter(n_labels, KS, inverse_propensity=inverse, label_counts=counts, edges=SHOTS, n_resamples=0)
    for block, top in model.predict_blocks(with_more_labels(test, n_labels, None), max(KS), n_threads):
        meter.add(top, block.labels)
    found = meter.result()
    scores = {f"{name}@{k}": round(found.values[f"{name}@{k}"].value, 2) for name in ("P", "PSP") for k in KS}
    bins = {
        part.name: {"n_labels": part.n_labels, "n_true": part.n_true, "R@5": round(part.values["R@5"].value, 2)}
        for part in found.bins
    }
    return scores | {"bins": bins, "n_labels": model.n_labels, "n_weights": model.n_weights}


def bench(data: str, labels: str, n_threads: int) -> dict[str, Any]:
    """Train once, and measure the model without and with the words of its labels."""
    location = DataLocation(data)
    started = time.process_time()
    model = xmlpreck.fit(location, threads=n_threads)
    seconds = time.process_time() - started
    train, test = (open_location(location.at(split), model) for split in ("train", "test"))
    started = time.process_time()
    file = LabelFile(labels)
    named = add_vocabulary(model, train, model.vectorizer, file.read(), file)
    more = time.process_time() - started
    return {
        "data": Path(data).name,
        "train_seconds": round(seconds, 1),
        "words_seconds": round(more, 1),
        "strengths": named.info["label_text"],
        "without": measure(model, train, test, n_threads),
        "with": measure(named, train, open_location(location.at("test"), named), n_threads),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True, help="folders of rows")
    parser.add_argument("--labels", nargs="+", required=True, help="a vocabulary for each of them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    results = []
    for data, labels in zip(args.data, args.labels, strict=True):
        results.append(bench(data, labels, args.threads))
        print(json.dumps(results[-1]), flush=True)
        if args.json is not None:
            args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
