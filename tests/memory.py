"""Memory of the test process, and how it is given back."""

import ctypes
import functools
import gc
import os

MOST_BYTES = 2_000_000_000  # below it a process keeps what it has traced: other files train the same models
GROWTH_BYTES = 500_000_000  # not all can be given back: what is left does not count again before so much is added to it
_left = 0


def resident_bytes(process: int | str = "self") -> int:
    """What a process has in memory."""
    with open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def give_back():
    """Lets go of the rounds that were traced, and of the worker that has them too, if this process has grown large."""
    global _left
    if resident_bytes() < max(MOST_BYTES, _left + GROWTH_BYTES):
        return
    from tffcl import runtime, trace_cache

    runtime.renew_local_worker()
    for kept in gc.get_objects():
        if type(kept) is trace_cache.KeptBuilds:
            kept.forget()
        # TFF keeps the last 128 computations that contexts have compiled, those of contexts that are gone among them.
        if type(kept) is functools._lru_cache_wrapper and str(kept.__module__).startswith("tensorflow_federated."):
            kept.cache_clear()
    gc.collect()
    gc.freeze()  # what is left stays to the end: the next searches, a second each, need not look at it
    ctypes.CDLL(None).malloc_trim(0)  # without it the allocator keeps the pages
    _left = resident_bytes()
