"""Score dense rows alone beside one linear SVM for each label: words by tf-idf, reduced by truncated SVD.

    python tools/bench_dense_svd.py --data ../shared/data/bibtex [--heldout 3] [--set train.eta=1 train.epochs=5]

P@1/3/5 on the test rows; with --heldout N instead on a fifth of the training rows, N times. xmlpreck has its defaults
but for --set.
"""

import argparse

import numpy as np
from scipy.sparse import csr_array, csr_matrix
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

import xmlpreck
from xmlpreck.config import parse_words
from xmlpreck.data.formats import Dataset
from xmlpreck.data.rows import split_heldout
from xmlpreck.metrics import REPORTED_KS


def by_xmlpreck(train, test, settings):
    return list(xmlpreck.fit(train, settings=settings).score(test, settings["train.threads"], ks=REPORTED_KS).values())


def by_svm(train, test):
    machines = OneVsRestClassifier(LinearSVC(random_state=0)).fit(train.rows.toarray(), train.labels.toarray())
    order = np.argsort(-machines.decision_function(test.rows.toarray()), axis=1, kind="stable")
    hits = np.take_along_axis(test.labels.toarray() > 0, order, axis=1)
    return [100 * hits[:, :k].mean() for k in REPORTED_KS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="data with words, a train and a test split")
    parser.add_argument("--dense", type=int, default=384, help="dimensions")
    parser.add_argument("--threads", type=int, default=2, help="threads")
    parser.add_argument("--heldout", type=int, default=0, help="splits of the training rows; 0 = the test rows")
    parser.add_argument("--set", nargs="+", default=[], help="section.key=value")
    args = parser.parse_args()
    train, test = (xmlpreck.load_data(args.data, split) for split in ("train", "test"))
    weigh = TfidfTransformer().fit(csr_matrix(train.rows))
    reduce = TruncatedSVD(args.dense, random_state=0).fit(weigh.transform(csr_matrix(train.rows)))
    train, test = (
        Dataset(csr_array(reduce.transform(weigh.transform(csr_matrix(part.rows))).astype(np.float32)), part.labels)
        for part in (train, test)
    )
    splits = [split_heldout(train, 0.2, seed) for seed in range(args.heldout)]
    pairs = [[part.read(0, part.n_rows) for part in split] for split in splits] or [(train, test)]
    settings = {"rows.n_dense": args.dense, "train.threads": args.threads} | parse_words(args.set)
    for name, scores in (
        ("xmlpreck", [by_xmlpreck(*pair, settings) for pair in pairs]),
        ("LinearSVC", [by_svm(*pair) for pair in pairs]),
    ):
        print(name, "/".join(f"{value:.2f}" for value in np.mean(scores, axis=0)), flush=True)


if __name__ == "__main__":
    main()
