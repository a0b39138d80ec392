"""Threads that share arrays: a team, atomic counters, and waiting for them."""

import os
import platform
import sys
import threading
from collections.abc import Callable

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from xmlpreck.kernels.caching import kernel

# A counter that threads share is set to this to make them return: no count gets this far.
STOPPED = 1 << 62

# Indices into a bell: times it rang, threads asleep, the longest sleep (seconds, then nanoseconds), and looks at a
# counter before a thread sleeps.
RINGS, SLEEPERS, SECONDS, NANOSECONDS, SPINS = range(5)

# Linux's number of the system call futex, which is all that a bell needs. Elsewhere threads yield their core instead.
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}.get(platform.machine(), 0)
_WAIT, _WAKE = 128, 129  # of threads of one process


def new_bell(max_seconds: float = 0.01, spins: int = 20_000) -> np.ndarray:
    """What threads sleep at until one of them rings, or for max_seconds: a stop does not ring. See wait_until."""
    return np.array([0, 0, max_seconds, max_seconds % 1 * 1e9, spins]).astype(np.int64)


def _pointer_to(context, builder, array_type, array, index_type, index):
    array = context.make_array(array_type)(context, builder, array)
    position = context.cast(builder, index, index_type, types.intp)
    return cgutils.get_item_pointer(context, builder, array_type, array, [position])


@intrinsic
def fetch_add(typing_context, counters, index, amount):
    """Atomic: old = counters[index]; counters[index] += amount; return old."""

    def generate(context, builder, signature, args):
        pointer = _pointer_to(context, builder, counters, args[0], index, args[1])
        return builder.atomic_rmw("add", pointer, args[2], "seq_cst")

    return types.int64(counters, index, types.int64), generate


@intrinsic
def fetch(typing_context, counters, index):
    """Atomic: return counters[index]."""

    def generate(context, builder, signature, args):
        pointer = _pointer_to(context, builder, counters, args[0], index, args[1])
        return builder.load_atomic(pointer, "seq_cst", 8)

    return types.int64(counters, index), generate


if sys.platform == "linux" and _FUTEX:
    _call = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))

    @kernel
    def _sleep(bell, n_rings):
        """Sleep until the bell rings, or for the longest sleep; not at all if it has rung more often than n_rings."""
        at = np.int64(bell.ctypes.data)  # of the lower 32 bits of RINGS: memory is little-endian wherever numba runs
        _call(_FUTEX, at, _WAIT, n_rings, at + 8 * SECONDS, 0, 0)

    @kernel
    def _wake_all(bell):
        _call(_FUTEX, np.int64(bell.ctypes.data), _WAKE, 1 << 30, 0, 0, 0)

else:
    _yield_core = types.ExternalFunction("sched_yield" if os.name == "posix" else "SwitchToThread", types.int32())

    @kernel
    def _sleep(bell, n_rings):
        _yield_core()

    @kernel
    def _wake_all(bell):
        pass


@kernel
def wait_until(counters, index, goal, bell):
    """Wait until counters[index] >= goal; whoever makes it so must ring the bell, or the wait may take 10 ms longer."""
    for _ in range(bell[SPINS]):
        if fetch(counters, index) >= goal:
            return
    fetch_add(bell, SLEEPERS, 1)
    while True:
        n_rings = fetch(bell, RINGS)  # before the last look: what comes after it rings
        if fetch(counters, index) >= goal:
            break
        _sleep(bell, n_rings)
    fetch_add(bell, SLEEPERS, -1)


@kernel
def ring(bell):
    """Wake all threads that wait at a bell."""
    fetch_add(bell, RINGS, 1)
    if fetch(bell, SLEEPERS) > 0:
        _wake_all(bell)


def run_team(n_threads: int, task: Callable[[int], None], stop: Callable[[], None] | None = None) -> None:
    """Call task(thread) for thread = 0 .. n_threads - 1, all at the same time, each on a thread of its own.

    An interrupt (Ctrl-C) of the caller, or an error in one of the threads, calls `stop`, which must make all tasks
    return soon, those that have not begun too: threads that wait for each other would otherwise wait for ever. It is
    raised when the threads have returned. A single task without `stop` runs on the caller's thread: nothing is
    started, but a long call of a kernel cannot be interrupted.
    """
    if n_threads == 1 and stop is None:
        task(0)
        return
    errors: list[BaseException] = []
    ended = [threading.Event() for _ in range(n_threads)]

    def run(thread: int) -> None:
        try:
            task(thread)
        except BaseException as error:
            errors.append(error)
            if stop is not None:
                stop()
        finally:
            ended[thread].set()

    n_started = 0
    try:
        for thread in range(n_threads):
            threading.Thread(target=run, args=(thread,), daemon=True).start()
            n_started += 1
        for event in ended:
            event.wait()
    except BaseException:  # KeyboardInterrupt may come between any two lines; no thread can be started: RuntimeError
        if stop is not None:
            stop()
        for event in ended[:n_started]:
            event.wait()
        raise
    if errors:
        raise errors[0]
