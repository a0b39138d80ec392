"""Marked labels: which entries of a sparse row are of a few given labels, found by reading the row once.

Reading costs about one cycle for each entry, since no branch is taken that a processor would guess wrong. Indices are
unsigned: a test for a negative one would cost a third of the time.
"""

from typing import NamedTuple

import numpy as np

from xmlpreck.kernels.caching import kernel

# A row with more entries than this for each marked label is searched for the labels instead.
LONG_ROW = 64


class Marks(NamedTuple):
    """One thread's buffers."""

    words: np.ndarray  # (n_labels / 32) uint32: a bit for each label
    first_of: np.ndarray  # like words: index of the first of the marked labels in a word that has a bit
    chosen: np.ndarray  # (n_labels + 1) uint32: indices


@kernel
def new_marks(n_labels):
    n_words = n_labels // 32 + 1
    return Marks(np.zeros(n_words, np.uint32), np.zeros(n_words, np.uint32), np.empty(n_labels + 1, np.uint32))


@kernel
def mark(labels, first, stop, marks):
    """Mark the ascending labels[first:stop]."""
    for j in range(first, stop):
        label = np.uint32(labels[j])
        if marks.words[label >> np.uint32(5)] == 0:
            marks.first_of[label >> np.uint32(5)] = j
        marks.words[label >> np.uint32(5)] |= np.uint32(1) << (label & np.uint32(31))


@kernel
def unmark(labels, first, stop, marks):
    for j in range(first, stop):
        marks.words[np.uint32(labels[j]) >> np.uint32(5)] = 0


@kernel
def find_marked(entries, start, stop, marks):
    """Fill marks.chosen with the indices, from `start` on, of entries[start:stop] that are marked; returns how many."""
    here, n = np.uint64(start), np.uint32(0)
    for i in range(np.uint32(stop - start)):
        label = np.uint32(entries[here + i])
        marks.chosen[n] = i
        n = np.uint32(n + (marks.words[label >> np.uint32(5)] >> (label & np.uint32(31)) & np.uint32(1)))
    return n


@kernel
def index_of(label, labels, marks):
    """Index of a marked label among those that were marked."""
    j = marks.first_of[np.uint32(label) >> np.uint32(5)]
    while labels[j] != label:
        j += np.uint32(1)
    return j
