"""One copy of a model in memory for all workers.

A model is written once into a file in memory, pickled with its arrays out of band; processes map it. Nothing is on
disk. Pages are private but only read, so all workers share them. Nobody but our own processes can write there.
"""

import mmap
import os
import pickle
from typing import Any

import numpy as np

_ALIGN = 64


def new_file() -> int:
    """Return the descriptor of an empty file in memory."""
    return os.memfd_create("xmlpreck-model")


def pack(value: Any, descriptor: int) -> None:
    """Write a value and its arrays, each at an aligned place."""
    buffers: list[pickle.PickleBuffer] = []
    parts: list[Any] = [pickle.dumps(value, protocol=5, buffer_callback=buffers.append)]
    parts += [buffer.raw() for buffer in buffers]
    sizes = np.array([len(parts), *(memoryview(part).nbytes for part in parts)], np.int64)
    place = _write(descriptor, 0, sizes.tobytes())
    for part in parts:
        place = _write(descriptor, place, part)
    os.ftruncate(descriptor, place + _ALIGN)  # no map is empty, and no last part ends behind it


def _write(descriptor: int, place: int, part: Any) -> int:
    view = memoryview(part).cast("B")
    done = 0
    while done < view.nbytes:
        done += os.pwrite(descriptor, view[done : done + (1 << 30)], place + done)
    return -(-(place + done) // _ALIGN) * _ALIGN


def unpack(descriptor: int) -> Any:
    """Return what `pack` wrote; its arrays are views of the file."""
    whole = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    n_parts = int(np.frombuffer(whole, np.int64, 1)[0])
    sizes = np.frombuffer(whole, np.int64, 1 + n_parts)[1:].tolist()
    place = -(-8 * (1 + n_parts) // _ALIGN) * _ALIGN
    parts = []
    for size in sizes:
        parts.append(whole[place : place + size])
        place = -(-(place + size) // _ALIGN) * _ALIGN
    return pickle.loads(parts[0], buffers=parts[1:])
