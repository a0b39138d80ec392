"""A made-up data set with the sizes and power laws of Amazon-670K, or of any other size, as Parquet shards.

    python tools/make_synthetic.py --rows 490449 --features 135909 --labels 670091 --nnz 75 --labels-per-row 5.5 \
        --test-rows 153025 --seed 0 --out DIR                    # DIR/train and DIR/test

Like the real one: the sizes; label frequencies of which the r-th largest is as r^-0.5, which gives a median of 3 (real:
3 or 4) and a largest of 1,410 in the training rows; word frequencies by a power law; labels that occur together,
because rows belong to topics; rare labels that hardly more than the words of a few rows tell apart; tf-idf values.
Not like it: words are independent given the row's labels and topic, there are no near-copies of rows, every label
is of one topic or a run of neighbouring ones, and idf is that of the law and not counted. So P@k here says nothing of
P@k there.

Labels are dealt out once for all rows (a few bytes a label and row). Words are drawn for DRAWN_ROWS rows at a time,
by default_rng([seed, 1, first of them]): memory does not grow with the words, and shards of any
size hold the same rows.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from xmlpreck.data.formats import Dataset
from xmlpreck.data.shards import write_shards
from xmlpreck.data.synthetic import count_pairs, draw, power_law, weigh

DRAWN_ROWS = 8192
ROWS_PER_SHARD = 65_536
WORDS_PER_FEATURE = 1.2  # a fifth of the words are repeated ones
LABEL_EXPONENT = 0.5
WORD_EXPONENT = 0.9
PROTOTYPE_EXPONENT = 0.4  # of the words that tell labels and topics
TOPIC_LABELS = 50
MOST_IN_TOPIC = 12  # uses of a label in one topic: a more frequent label is spread over neighbouring topics
STRAY_SHARE = 0.1  # of a label's uses that are in any topic
LABEL_WORDS, TOPIC_WORDS = 12, 60
LABEL_SHARE, TOPIC_SHARE = 0.25, 0.35  # of a row's words; the others are background


def deal_labels(rng: np.random.Generator, n_rows: int, n_labels: int, labels_per_row: float) -> tuple[np.ndarray, ...]:
    """(offsets, labels, topic of each row): uses of labels stand topic by topic and are dealt to rows in runs."""
    law = np.arange(1.0, n_labels + 1) ** -LABEL_EXPONENT
    n_uses = np.maximum(np.rint(law * (n_rows * labels_per_row / law.sum())), 1).astype(np.int64)
    n_topics = max(n_labels // TOPIC_LABELS, 1)
    used = np.repeat(rng.permutation(n_labels), n_uses)
    width = np.repeat(np.maximum(n_uses / MOST_IN_TOPIC, 1), n_uses)
    home = np.repeat(rng.integers(n_topics, size=n_labels), n_uses)
    place = (home + width * rng.random(len(used))) % n_topics
    stray = rng.random(len(used)) < STRAY_SHARE
    place[stray] = n_topics * rng.random(np.count_nonzero(stray))
    used = used[np.argsort(place, kind="stable")]
    ends = np.sort(rng.choice(np.arange(1, len(used)), size=n_rows - 1, replace=False)) if n_rows > 1 else []
    bounds = np.concatenate([[0], ends, [len(used)]]).astype(np.int64)
    lengths, topics = np.diff(bounds), np.floor(np.sort(place)[bounds[:-1]]).astype(np.int64)
    shuffled = rng.permutation(n_rows)
    offsets = np.concatenate([[0], np.cumsum(lengths[shuffled])])
    source = np.repeat(bounds[:-1][shuffled] - offsets[:-1], lengths[shuffled]) + np.arange(len(used))
    return offsets, used[source], topics[shuffled]


class World(NamedTuple):
    """What all rows are drawn from, and the labels and topic of each."""

    label_offsets: np.ndarray  # (n_rows + 1)
    labels: np.ndarray
    topics: np.ndarray  # (n_rows)
    label_words: np.ndarray  # (n_labels, LABEL_WORDS)
    topic_words: np.ndarray  # (n_topics, TOPIC_WORDS)
    background: np.ndarray  # (n_features): cumulative probabilities
    idf: np.ndarray  # (n_features)


def make_world(n_rows: int, n_features: int, n_labels: int, nnz: float, labels_per_row: float, seed: int) -> World:
    rng = np.random.default_rng([seed, 0])
    offsets, labels, topics = deal_labels(rng, n_rows, n_labels, labels_per_row)
    telling = power_law(rng, n_features, PROTOTYPE_EXPONENT)
    label_words = draw(rng, telling, (n_labels, LABEL_WORDS)).astype(np.int32)
    topic_words = draw(rng, telling, (int(topics.max()) + 1, TOPIC_WORDS)).astype(np.int32)
    background = power_law(rng, n_features, WORD_EXPONENT)
    # Chance that a row has a word: by the laws, as nothing can be counted before it is drawn.
    draws_of = (1 - LABEL_SHARE - TOPIC_SHARE) * np.diff(background, prepend=0.0)
    draws_of += (LABEL_SHARE + TOPIC_SHARE) * np.diff(telling, prepend=0.0)
    chances = -np.expm1(-WORDS_PER_FEATURE * nnz * draws_of)
    return World(offsets, labels, topics, label_words, topic_words, background, 1 - np.log(chances))


def draw_rows(world: World, nnz: float, seed: int, first: int, last: int) -> Iterator[Dataset]:
    """Rows `first` to `last` - 1, DRAWN_ROWS at a time."""
    n_labels, n_features = len(world.label_words), len(world.idf)
    for start in range(first, last, DRAWN_ROWS):
        rng = np.random.default_rng([seed, 1, start])
        size = min(DRAWN_ROWS, last - start)
        offsets = world.label_offsets[start : start + size + 1]
        row = np.repeat(np.arange(size), 1 + rng.poisson(WORDS_PER_FEATURE * nnz - 1, size))
        label = world.labels[offsets[row] + (rng.random(row.size) * np.diff(offsets)[row]).astype(np.int64)]
        place = rng.random(row.size) ** 2  # the square favours the first words of a list
        word = draw(rng, world.background, row.size)
        source = rng.random(row.size)
        of_topic = source < LABEL_SHARE + TOPIC_SHARE
        word[of_topic] = world.topic_words[world.topics[start + row], (place * TOPIC_WORDS).astype(int)][of_topic]
        of_label = source < LABEL_SHARE
        word[of_label] = world.label_words[label, (place * LABEL_WORDS).astype(int)][of_label]
        label_row = np.repeat(np.arange(size), np.diff(offsets))
        labels = count_pairs(label_row, world.labels[offsets[0] : offsets[-1]], (size, n_labels))
        labels.data[:] = 1.0  # some were dealt to a row twice
        yield Dataset(weigh(count_pairs(row, word, (size, n_features)), world.idf), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=490_449)
    parser.add_argument("--test-rows", type=int, default=153_025)
    parser.add_argument("--features", type=int, default=135_909)
    parser.add_argument("--labels", type=int, default=670_091)
    parser.add_argument("--nnz", type=float, default=75.0, help="features a row, about")
    parser.add_argument("--labels-per-row", type=float, default=5.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if min(args.rows, args.test_rows, args.features, args.labels, args.nnz, args.labels_per_row) < 1:
        sys.exit("every size must be 1 or more")
    n_rows = args.rows + args.test_rows
    world = make_world(n_rows, args.features, args.labels, args.nnz, args.labels_per_row, args.seed)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    for split, first, last in (("train", 0, args.rows), ("test", args.rows, n_rows)):
        chunks = draw_rows(world, args.nnz, args.seed, first, last)
        made = write_shards(Path(args.out) / split, chunks, "parquet", ROWS_PER_SHARD, {"made_by": vars(args)})
        print(f"{args.out}/{split}: {made.n_rows:,} rows, {made.n_features:,} features, {made.n_labels:,} labels")


if __name__ == "__main__":
    main()
