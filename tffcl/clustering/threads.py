"""One thread for scikit-learn's compiled loops.

They share their work among as many threads as there are cores, and these wait for each other in busy loops: where the
cores have other work (a TFF worker, another run), 40 clients are laid out 25 times slower than in one thread, and
10,000 are grouped 10 times slower. What threads sum up also differs in its last bits with their number, and so a run
would with the machine's cores.
"""

import contextlib

import threadpoolctl


def single_thread() -> contextlib.AbstractContextManager:
    """Returns a context in which OpenMP's loops run in one thread."""
    # Looked for each time, which takes milliseconds: a package that is imported later brings loops of its own.
    return threadpoolctl.threadpool_limits(limits=1, user_api="openmp")
