"""Compiles computations for TFF's native runtime, each of them once."""

import threading
import weakref

_compiled = {}  # by the computation's id: (a weak reference to it, what was compiled)
_lock = threading.Lock()


def compile_once(computation):
    """Compiles a computation as TFF's native runtime does, and keeps the result for as long as the computation lives.

    A TFF context keeps what it has compiled for itself: a worker that takes another's place, and each of several workers,
    would compile the same rounds again, for seconds each.

    Args:
      computation: A `tff.framework.ConcreteComputation`.

    Returns:
      What `tff.backends.native.desugar_and_transform_to_native` makes of it.
    """
    import tensorflow_federated as tff

    key = id(computation)  # TFF's hash of a computation serializes all of it
    with _lock:
        if key in _compiled:
            return _compiled[key][1]
        made = tff.backends.native.desugar_and_transform_to_native(computation)
        if made is not computation:  # TFF returns what it cannot compile; kept, it would live for ever
            # The callback must not take the lock: it may run while this thread holds it.
            _compiled[key] = weakref.ref(computation, lambda _: _compiled.pop(key, None)), made
        return made
