"""Threads that share arrays: a team, atomic counters, and a barrier that kernels wait at."""

import os
import threading
from collections.abc import Callable

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from xmlpreck.kernels.caching import kernel

# A counter that threads share is set to this to make them return: no count gets this far.
STOPPED = 1 << 62

_yield_core = types.ExternalFunction("sched_yield" if os.name == "posix" else "SwitchToThread", types.int32())


@intrinsic
def fetch_add(typing_context, counters, index, amount):
    """Atomic: old = counters[index]; counters[index] += amount; return old."""

    def generate(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        position = context.cast(builder, args[1], signature.args[1], types.intp)
        pointer = cgutils.get_item_pointer(context, builder, signature.args[0], array, [position])
        return builder.atomic_rmw("add", pointer, args[2], "seq_cst")

    return types.int64(counters, index, types.int64), generate


@kernel
def wait_for_all(arrived, n_threads):
    """Barrier: True once all threads have arrived as often as this one, False once the team is stopped."""
    count = fetch_add(arrived, 0, 1)
    goal = (count // n_threads + 1) * n_threads
    spins = 0
    while True:
        count = fetch_add(arrived, 0, 0)
        if count >= STOPPED:
            return False
        if count >= goal:
            return True
        spins += 1
        if spins > 500:  # tens of microseconds: the others have lost their core, let them have this one
            _yield_core()


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
