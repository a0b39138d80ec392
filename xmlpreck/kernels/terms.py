"""Count the terms of texts in hash tables, and weigh them.

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
    size: np.ndarray  # (2,) int64: number of terms, sum of `documents`
    documents: np.ndarray  # int64: number of documents that have a term
    latest: np.ndarray  # int64: the sum of `documents` when the last of these was counted


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
def _insert(slots, bounds, pool, size, documents, latest, data, start, end, hashed, slot):
    """Add the term at data[start:end] in an empty slot; returns its number. There must be room."""
    number = size[0]
    size[0] += 1
    slots[slot] = hashed << 32 | number
    at = bounds[number]
    for place in range(end - start):
        pool[at + place] = data[start + place]
    bounds[number + 1] = at + end - start
    documents[number], latest[number] = 0, -1
    return number


@kernel
def _add_document(terms, data, slices, n_slices, seed, ids, counts):
    """Add the terms at `slices` of data; writes the numbers of the distinct ones and how often each occurs.

    Returns how many are distinct. There must be room.
    """
    slots, bounds, pool, size, documents, latest = terms  # once: reading a field in a loop counts references
    first, n_ids = size[1], 0
    for term in range(n_slices):
        start, end = slices[term, 0], slices[term, 1]
        hashed = _hash(data, start, end, seed)
        found, slot = _find(slots, bounds, pool, data, start, end, hashed)
        if found < 0:
            found = _insert(slots, bounds, pool, size, documents, latest, data, start, end, hashed, slot)
        place = latest[found] - first
        if place < 0:
            latest[found] = first + n_ids
            documents[found] += 1
            ids[n_ids], counts[n_ids] = found, 1
            n_ids += 1
        else:
            counts[place] += 1
    size[1] += n_ids
    return n_ids


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
def learn_terms(texts, first, last, folding, runs, terms, seed):
    """Add the terms of texts first to last - 1, and count the documents of each.

    Returns (the table, numbers of terms, how often each occurs, number of distinct terms of each text).
    """
    clean, slices = np.empty(0, np.uint8), np.empty((0, 2), np.int64)
    ids, counts, sizes = np.empty(0, np.uint32), np.empty(0, np.uint32), np.empty(last - first, np.int64)
    n_ids = 0
    for text in range(first, last):
        clean, n_clean = fold(texts, text, folding, clean)
        slices, n_slices = split(clean, n_clean, runs, slices)
        n_bytes = 0
        for term in range(n_slices):
            n_bytes += slices[term, 1] - slices[term, 0]
        terms = with_room(terms, n_slices, n_bytes, seed)
        if ids.size < n_ids + n_slices:
            ids, counts = _copied(ids, 2 * (n_ids + n_slices)), _copied(counts, 2 * (n_ids + n_slices))
        sizes[text - first] = _add_document(terms, clean, slices, n_slices, seed, ids[n_ids:], counts[n_ids:])
        n_ids += sizes[text - first]
    return terms, _copied(ids, n_ids), _copied(counts, n_ids), sizes


@kernel
def add_terms(terms, pool, bounds, documents, seed):
    """Add other terms, each once and in their order, and their numbers of documents; returns (table, their numbers)."""
    n_terms = documents.size
    terms = with_room(terms, n_terms, bounds[n_terms], seed)
    slots, own_bounds, own_pool, size, own_documents, latest = terms
    numbers = np.empty(n_terms, np.int64)
    for other in range(n_terms):
        start, end = bounds[other], bounds[other + 1]
        hashed = _hash(pool, start, end, seed)
        found, slot = _find(slots, own_bounds, own_pool, pool, start, end, hashed)
        if found < 0:
            found = _insert(slots, own_bounds, own_pool, size, own_documents, latest, pool, start, end, hashed, slot)
        numbers[other] = found
        own_documents[found] += documents[other]
    return terms, numbers


@kernel
def renumber(ids, counts, sizes, column_of, totals):
    """Turn numbers of terms into columns, which ascend within a text; those of column -1 are left out.

    `ids`, `counts` and `sizes` are of `learn_terms`; returns the same of columns. `totals` has a zero for each column,
    and is left so.
    """
    columns, new_counts = np.empty(ids.size, np.int32), np.empty(ids.size, np.int32)
    new_sizes = np.empty(sizes.size, np.int64)
    at = n_columns = 0
    for text in range(sizes.size):
        first = n_columns
        for place in range(at, at + sizes[text]):
            column = column_of[ids[place]]
            if column >= 0:
                columns[n_columns] = column
                totals[column] = counts[place]
                n_columns += 1
        at += sizes[text]
        columns[first:n_columns].sort()
        _take_totals(columns, first, n_columns, totals, new_counts)
        new_sizes[text] = n_columns - first
    return columns[:n_columns], new_counts[:n_columns], new_sizes


@kernel
def _take_totals(columns, first, last, totals, counts):
    """Move totals of columns first to last - 1 to their counts."""
    for place in range(first, last):
        counts[place] = totals[columns[place]]
        totals[columns[place]] = 0


@kernel
def weigh(weights, columns, offsets, idf, values, first, last):
    """Write weights times idf, with length 1 for each of rows first to last - 1, as values."""
    for row in range(first, last):
        total = 0.0
        for place in range(offsets[row], offsets[row + 1]):
            weights[place] *= idf[columns[place]]
            total += weights[place] * weights[place]
        length = np.sqrt(total)
        for place in range(offsets[row], offsets[row + 1]):
            values[place] = weights[place] / length


@kernel
def count_known(texts, first, last, folding, runs, terms, seed, totals):
    """Count terms in texts first to last - 1; returns (columns, counts, number of columns of each text).

    Columns are the numbers of known terms; without any, terms are hashed to as many as `totals` has, as scikit-learn
    does. `totals` has a zero for each column, and is left so.
    """
    clean, slices, columns = np.empty(0, np.uint8), np.empty((0, 2), np.int64), np.empty(0, np.int64)
    ids, counts, sizes = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(last - first, np.int64)
    n_ids = 0
    for text in range(first, last):
        clean, n_clean = fold(texts, text, folding, clean)
        slices, n_slices = split(clean, n_clean, runs, slices)
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
    _take_totals(ids, 0, n_ids, totals, counts)
    return n_ids
