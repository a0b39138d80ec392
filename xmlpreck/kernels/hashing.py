"""Pseudo-random bits that depend on a key alone: the same for any order of rows and any number of threads."""

import numpy as np

from xmlpreck.kernels.caching import kernel


@kernel
def mix(key):
    """splitmix64's finaliser: 64 well-mixed bits of a key."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))
