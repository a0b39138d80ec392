"""Count the terms of texts in hash tables.

Terms are compared byte by byte, so two of one hash stay two; nothing depends on the order of a table.
"""

from typing import NamedTuple

import numpy as np

from xmlpreck.kernels.caching import kernel
from xmlpreck.kernels.words import fold, split

_MIN_SLOTS = 1 << 10


class Terms(NamedTuple):
    """A hash table of terms, which are numbered as they come."""

    slots: np.ndarray  # int64, a power of two of them: hash << 32 | number of a term, -1 = empty
    bounds: np.ndarray  # int64: the bytes of each term in `pool`
    pool: np.ndarray  # uint8
    size: np.ndarray  # (1,) int64: number of terms
    documents: np.ndarray  # int64: number of documents that have a term
    latest: np.ndarray  # int64: the last of these


@kernel
def murmur3(data, start, end, seed):
    """Return MurmurHash3 (32 bits, Appleby's) of some bytes: what scikit-learn hashes features by."""
    c1, c2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
    state = np.uint32(seed)
    at = start
    while at + 4 <= end:
        word = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
        word |= np.uint32(data[at + 2]) << np.uint32(16) | np.uint32(data[at + 3]) << np.uint32(24)
        state ^= np.uint32(_rotate(np.uint32(word * c1), 15) * c2)
        state = np.uint32(_rotate(state, 13) * np.uint32(5) + np.uint32(0xE6546B64))
        at += 4
    word = np.uint32(0)
    for byte in range(end - 1, at - 1, -1):
        word = np.uint32(word << np.uint32(8)) | np.uint32(data[byte])
    state ^= np.uint32(_rotate(np.uint32(word * c1), 15) * c2) ^ np.uint32(end - start)
    state = np.uint32((state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    state = np.uint32((state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(state ^ (state >> np.uint32(16)))


@kernel
def _rotate(word, bits):
    return np.uint32(np.uint32(word << np.uint32(bits)) | np.uint32(word >> np.uint32(32 - bits)))


@kernel
def _find(slots, bounds, pool, data, start, end, hashed):
    """Return (number of a term or -1, slot where it is or would be)."""
    mask = slots.size - 1
    size = end - start
    slot = hashed & mask
    while True:
        found = slots[slot]
        if found < 0:
            return np.int64(-1), slot
        if found >> 32 == hashed:
            number = found & 0xFFFFFFFF
            at = bounds[number]
            if bounds[number + 1] - at == size:
                same = 0
                while same < size and pool[at + same] == data[start + same]:
                    same += 1
                if same == size:
                    return number, slot
        slot = (slot + 1) & mask


@kernel
def _hash(data, start, end, seed):
    """Return 31 bits: with a number behind them they are never negative."""
    return np.int64(murmur3(data, start, end, seed) >> np.uint32(1))


@kernel
def _add_all(terms, data, slices, n_slices, seed, number):
    """Add the terms at `slices` of data, and count document `number` once for each; returns the last one's number.

    There must be room.
    """
    found = np.int64(-1)
    slots, bounds, pool, size, documents, latest = terms  # once: reading a field in a loop counts references
    for term in range(n_slices):
        start, end = slices[term, 0], slices[term, 1]
        hashed = _hash(data, start, end, seed)
        found, slot = _find(slots, bounds, pool, data, start, end, hashed)
        if found < 0:
            found = size[0]
            size[0] += 1
            slots[slot] = hashed << 32 | found
            at = bounds[found]
            for place in range(end - start):
                pool[at + place] = data[start + place]
            bounds[found + 1] = at + end - start
            documents[found], latest[found] = 0, -1
        if latest[found] != number:
            latest[found] = number
            documents[found] += 1
    return found


@kernel
def _copied(array, size):
    """Return a copy with room for `size` items."""
    larger = np.empty(size, array.dtype)
    larger[: min(size, array.size)] = array[:size]
    return larger


@kernel
def with_room(terms, n_terms, n_bytes, seed):
    """Return the table with room for this many more terms, and bytes of terms, at most half full."""
    n_terms += terms.size[0]
    n_bytes += terms.bounds[terms.size[0]]
    pool = terms.pool if n_bytes <= terms.pool.size else _copied(terms.pool, 2 * n_bytes)
    if 2 * n_terms <= terms.slots.size:
        return Terms(terms.slots, terms.bounds, pool, terms.size, terms.documents, terms.latest)
    n_slots = max(terms.slots.size, _MIN_SLOTS)
    while n_slots < 4 * n_terms:
        n_slots *= 2
    slots = np.full(n_slots, np.int64(-1))
    capacity = n_slots // 2
    documents, latest = _copied(terms.documents, capacity), _copied(terms.latest, capacity)
    larger = Terms(slots, _copied(terms.bounds, capacity + 1), pool, terms.size, documents, latest)
    for number in range(terms.size[0]):
        hashed = _hash(pool, larger.bounds[number], larger.bounds[number + 1], seed)
        slot = hashed & (n_slots - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (n_slots - 1)
        slots[slot] = hashed << 32 | number
    return larger


@kernel
def learn_terms(texts, first, last, folding, ngrams, terms, seed, number):
    """Count the documents of each term in texts first to last - 1; `number` of the first text tells texts apart."""
    clean, slices = np.empty(0, np.uint8), np.empty((0, 2), np.int64)
    for text in range(first, last):
        clean, n_clean = fold(texts, text, folding, clean)
        slices, n_slices = split(clean, n_clean, ngrams, slices)
        n_bytes = 0
        for term in range(n_slices):
            n_bytes += slices[term, 1] - slices[term, 0]
        terms = with_room(terms, n_slices, n_bytes, seed)
        _add_all(terms, clean, slices, n_slices, seed, number + text)
    return terms


@kernel
def add_terms(terms, pool, bounds, documents, seed):
    """Return the table with other terms, each once and in their order, and their numbers of documents."""
    n_terms = documents.size
    terms = with_room(terms, n_terms, bounds[n_terms], seed)
    place = np.empty((1, 2), np.int64)
    for other in range(n_terms):
        place[0, 0], place[0, 1] = bounds[other], bounds[other + 1]
        found = _add_all(terms, pool, place, 1, seed, other)
        terms.documents[found] += documents[other] - 1
    return terms


@kernel
def count_known(texts, first, last, folding, ngrams, terms, seed, totals):
    """Count terms in texts first to last - 1; returns (columns, counts, number of columns of each text).

    Columns are the numbers of known terms; without any, terms are hashed to as many as `totals` has, as scikit-learn
    does. `totals` has a zero for each column, and is left so.
    """
    clean, slices, columns = np.empty(0, np.uint8), np.empty((0, 2), np.int64), np.empty(0, np.int64)
    ids, counts, sizes = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(last - first, np.int64)
    n_ids = 0
    for text in range(first, last):
        clean, n_clean = fold(texts, text, folding, clean)
        slices, n_slices = split(clean, n_clean, ngrams, slices)
        if columns.size < n_slices:
            columns = np.empty(2 * n_slices, np.int64)
        if terms.size[0]:
            _find_all(terms, clean, slices, n_slices, seed, columns)
        else:
            _hash_all(clean, slices, n_slices, totals.size, columns)
        if ids.size < n_ids + n_slices:
            ids, counts = _copied(ids, 2 * (n_ids + n_slices)), _copied(counts, 2 * (n_ids + n_slices))
        sizes[text - first] = _tally(columns, n_slices, totals, ids[n_ids:], counts[n_ids:])
        n_ids += sizes[text - first]
    return ids[:n_ids], counts[:n_ids], sizes


@kernel
def _find_all(terms, clean, slices, n_slices, seed, columns):
    slots, bounds, pool = terms.slots, terms.bounds, terms.pool
    for term in range(n_slices):
        start, end = slices[term, 0], slices[term, 1]
        columns[term], _ = _find(slots, bounds, pool, clean, start, end, _hash(clean, start, end, seed))


@kernel
def _hash_all(clean, slices, n_slices, n_columns, columns):
    for term in range(n_slices):
        hashed = np.int64(np.int32(murmur3(clean, slices[term, 0], slices[term, 1], np.uint32(0))))
        columns[term] = abs(hashed) % n_columns


@kernel
def _tally(columns, n_columns, totals, ids, counts):
    """Write the distinct columns, ascending, and how often each occurs; -1 is left out. Returns their number."""
    n_ids = 0
    for place in range(n_columns):
        column = columns[place]
        if column >= 0:
            if totals[column] == 0:
                ids[n_ids] = column
                n_ids += 1
            totals[column] += 1
    ids[:n_ids].sort()
    for place in range(n_ids):
        counts[place] = totals[ids[place]]
        totals[ids[place]] = 0
    return n_ids
