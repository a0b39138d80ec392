"""Binary search in a sorted part of an array."""

from xmlpreck.kernels.caching import kernel


@kernel
def lower_bound(labels, start, stop, label):
    """First index of the ascending labels[start:stop] whose label is not smaller; `stop` if all are."""
    while start < stop:
        middle = (start + stop) // 2
        if labels[middle] < label:
            start = middle + 1
        else:
            stop = middle
    return start


@kernel
def find(labels, start, stop, label):
    """Index of a label in the ascending labels[start:stop], or -1."""
    index = lower_bound(labels, start, stop, label)
    return index if index < stop and labels[index] == label else -1


@kernel
def lower_bound_near(labels, start, stop, label):
    """The same as lower_bound, faster if the answer is close to `start`: by steps that double, then halving."""
    step = 1
    while start + step < stop and labels[start + step] < label:
        start += step
        step *= 2
    return lower_bound(labels, start, min(start + step, stop), label)
