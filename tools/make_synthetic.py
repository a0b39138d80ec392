"""Make a data set with the sizes of Amazon-670K or Amazon-3M, or smaller, as Parquet shards in DIR/train and DIR/test.

    python tools/make_synthetic.py --out DIR                       # Amazon-670K's sizes
    python tools/make_synthetic.py --like amazon-3m --test-rows 20000 --out DIR
    python tools/make_synthetic.py --rows 50000 --test-rows 5000 --features 40000 --labels 70000 --out DIR

Labels belong to topics of about 100, and ten neighbouring topics to a field. A topic has words of its own and some of
its field; a label has words of its own and some of its topic. Most rows mix two topics, usually of one field, and have
labels of both. A row's words are those of its labels, those of its topics, and noise by a power law.

Like the real sets: the numbers of rows, features, labels and labels a row; frequencies of labels and words by power
laws; labels that occur together; groups of labels with common words, which trees can find; rare labels that the words
of a few rows tell apart; tf-idf values of rows of length 1. Not like them: words are independent given the row's labels
and topics, no row is nearly a copy of another, topics have equally many labels, a few labels have test rows only, idf
is that of the laws and not counted, and the features a row (--nnz) are about right for Amazon-670K and a guess for
Amazon-3M. So P@k here says nothing about P@k there. Ids are shuffled: they tell nothing about topics.

Labels are dealt out once for all rows (about 60 bytes for each label of a row, at the peak). Words are drawn for
DRAWN_ROWS rows at a time by default_rng([seed, 1, first of them]): memory does not grow with the words, and shards of
any size hold the same rows.
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

SIZES = {
    "amazon-670k": {
        "rows": 490_449,
        "test_rows": 153_025,
        "features": 135_909,
        "labels": 670_091,
        "nnz": 75.0,
        "labels_per_row": 5.5,
    },
    "amazon-3m": {
        "rows": 1_717_899,
        "test_rows": 742_507,
        "features": 337_067,
        "labels": 2_812_281,
        "nnz": 50.0,
        "labels_per_row": 36.0,
    },
}
DRAWN_ROWS = 8192
ROWS_PER_SHARD = 65_536
WORDS_PER_FEATURE = 1.2  # a fifth of the words are repeated ones
TOPIC_EXPONENT, LABEL_EXPONENT = 0.5, 0.6  # of uses: of topics, and of labels within their topic
WORD_EXPONENT = 0.9
TELLING_EXPONENT = 0.4  # of the words that tell labels, topics and fields
TOPIC_LABELS, FIELD_TOPICS = 100, 10
TWO_TOPICS = 0.8  # of the rows
OTHER_FIELD = 0.2  # of the parts of rows: with a part of any topic beside it
STRAY_SHARE = 0.05  # of a label's uses that are in any topic
LABEL_WORDS, TOPIC_WORDS = 12, 60
LABEL_SHARE, TOPIC_SHARE = 0.2, 0.4  # of a row's words; the others are noise


class World(NamedTuple):
    """What all rows are drawn from, and the labels of each with the topics that brought them."""

    label_offsets: np.ndarray  # (n_rows + 1)
    labels: np.ndarray
    topics: np.ndarray  # one for each of `labels`
    label_words: np.ndarray  # (n_labels, LABEL_WORDS)
    topic_words: np.ndarray  # (n_topics, TOPIC_WORDS)
    background: np.ndarray  # (n_features): cumulative probabilities
    idf: np.ndarray  # (n_features)


def gather(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets, and the positions of the runs from `starts` of `lengths`, one after the other."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return offsets, np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])


def count_uses(rng: np.random.Generator, n_labels: int, n_uses: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw the topic of each label, and how often it is used (1 or more, `n_uses` in all, about)."""
    n_topics = max(n_labels // TOPIC_LABELS, 1)
    order = rng.permutation(n_labels)
    topic, rank = np.empty(n_labels, np.int32), np.empty(n_labels)
    topic[order], rank[order] = np.arange(n_labels) % n_topics, np.arange(n_labels) // n_topics + 1
    law = rng.permutation(np.arange(1.0, n_topics + 1) ** -TOPIC_EXPONENT)[topic] * rank**-LABEL_EXPONENT
    return topic, np.maximum(np.rint(law * (n_uses / law.sum())), 1).astype(np.int64)


def deal_labels(
    rng: np.random.Generator, n_rows: int, topic: np.ndarray, n_uses: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(offsets, labels, topics): the uses of a topic are cut into parts, and one or two parts make a row."""
    n_topics = int(topic.max()) + 1
    labels = np.repeat(np.arange(len(n_uses), dtype=np.int32), n_uses)
    place = topic[labels] + rng.random(len(labels))
    stray = rng.random(len(labels)) < STRAY_SHARE
    place[stray] = n_topics * rng.random(np.count_nonzero(stray))
    order = np.argsort(place)
    labels, topics = labels[order], place[order].astype(np.int32)
    del place, order, stray

    n_parts = 1 + (rng.random(n_rows) < min(TWO_TOPICS, len(labels) / n_rows - 1))
    cuts = np.sort(rng.choice(len(labels) - 1, n_parts.sum() - 1, replace=False, shuffle=False)) + 1
    bounds = np.concatenate([[0], cuts, [len(labels)]])
    near = topics[bounds[:-1]] // FIELD_TOPICS + rng.random(n_parts.sum())
    far = rng.random(n_parts.sum()) < OTHER_FIELD
    near[far] = near.max() * rng.random(np.count_nonzero(far))
    rows = rng.permutation(n_rows)
    _, parts = gather((np.cumsum(n_parts) - n_parts)[rows], n_parts[rows])
    parts = np.argsort(near)[parts]
    offsets, source = gather(bounds[:-1][parts], np.diff(bounds)[parts])
    return offsets[np.concatenate([[0], np.cumsum(n_parts[rows])])], labels[source], topics[source]


def make_world(n_rows: int, n_features: int, n_labels: int, nnz: float, labels_per_row: float, seed: int) -> World:
    rng = np.random.default_rng([seed, 0])
    topic, n_uses = count_uses(rng, n_labels, n_rows * labels_per_row)
    offsets, labels, topics = deal_labels(rng, n_rows, topic, n_uses)
    n_topics = int(topic.max()) + 1
    telling = power_law(rng, n_features, TELLING_EXPONENT)
    topic_words = draw(rng, telling, (n_topics, TOPIC_WORDS)).astype(np.int32)
    topic_words[:, ::3] = topic_words[np.arange(n_topics) // FIELD_TOPICS, ::3]  # a third are of the field
    label_words = draw(rng, telling, (n_labels, LABEL_WORDS)).astype(np.int32)
    picked = rng.integers(TOPIC_WORDS, size=(n_labels, len(range(0, LABEL_WORDS, 3))))
    label_words[:, ::3] = topic_words[topic[:, None], picked]  # and a third of a label's are of its topic
    background = power_law(rng, n_features, WORD_EXPONENT)
    # Chance that a row has a word: by the laws, as nothing can be counted before it is drawn.
    draws_of = (1 - LABEL_SHARE - TOPIC_SHARE) * np.diff(background, prepend=0.0)
    draws_of += (LABEL_SHARE + TOPIC_SHARE) * np.diff(telling, prepend=0.0)
    chances = -np.expm1(-WORDS_PER_FEATURE * nnz * draws_of)
    return World(offsets, labels, topics, label_words, topic_words, background, 1 - np.log(chances))


def draw_rows(world: World, nnz: float, seed: int, first: int, last: int) -> Iterator[Dataset]:
    """Draw rows `first` to `last` - 1, DRAWN_ROWS at a time."""
    n_labels, n_features = len(world.label_words), len(world.idf)
    for start in range(first, last, DRAWN_ROWS):
        rng = np.random.default_rng([seed, 1, start])
        size = min(DRAWN_ROWS, last - start)
        offsets = world.label_offsets[start : start + size + 1]
        row = np.repeat(np.arange(size), 1 + rng.poisson(WORDS_PER_FEATURE * nnz - 1, size))
        use = offsets[row] + (rng.random(row.size) * np.diff(offsets)[row]).astype(np.int64)
        place = rng.random(row.size) ** 2  # the square favours the first words of a list
        word = draw(rng, world.background, row.size)
        source = rng.random(row.size)
        of_topic = source < LABEL_SHARE + TOPIC_SHARE
        word[of_topic] = world.topic_words[world.topics[use], (place * TOPIC_WORDS).astype(int)][of_topic]
        of_label = source < LABEL_SHARE
        word[of_label] = world.label_words[world.labels[use], (place * LABEL_WORDS).astype(int)][of_label]
        label_row = np.repeat(np.arange(size), np.diff(offsets))
        labels = count_pairs(label_row, world.labels[offsets[0] : offsets[-1]], (size, n_labels))
        labels.data[:] = 1.0  # some were dealt to a row twice
        yield Dataset(weigh(count_pairs(row, word, (size, n_features)), world.idf), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--like", choices=SIZES, default="amazon-670k", help="sizes to begin with")
    parser.add_argument("--rows", type=int, help="training rows")
    parser.add_argument("--test-rows", type=int)
    parser.add_argument("--features", type=int)
    parser.add_argument("--labels", type=int)
    parser.add_argument("--nnz", type=float, help="features a row, about")
    parser.add_argument("--labels-per-row", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    parser.set_defaults(**SIZES[args.like])
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
