"""Memory of the test process, and how it is given back."""

import ctypes
import gc
import os

MOST_BYTES = 2_200_000_000  # below it a process keeps what it has traced: other files train the same models


def resident_bytes() -> int:
    """What this process has in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def give_back():
    """Lets go of the rounds that were traced, and of the worker that has them too, if this process has grown large."""
    if resident_bytes() < MOST_BYTES:
        return
    from tffcl import kept_builds, runtime

    kept_builds.forget_all()
    runtime.renew_local_worker()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # without it the allocator keeps the pages
