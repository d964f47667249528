"""What is compiled for TFF's runtime, and for how long it is kept."""

import gc
import weakref
from unittest import mock

import numpy as np
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.runtime import local_worker


def compiled_by_tff():
    native = tff.backends.native
    return mock.patch.object(
        native, "desugar_and_transform_to_native", mock.Mock(wraps=native.desugar_and_transform_to_native)
    )


def multiplying(factor):
    @tff.tensorflow.computation(np.int32)
    def multiply(number):
        return factor * number

    return multiply


def test_a_computation_is_compiled_once_for_all_contexts(tff_worker):
    """Each context that a run begins with, and each of several workers, has a cache of its own."""
    double = multiplying(2)
    with compiled_by_tff() as compiled:
        assert double(3) == 6
        worker = runtime.Worker().start()
        try:
            other = tff.framework.SyncExecutionContext(**runtime.context_options(runtime.connect(worker.target)))
            assert other.invoke(double, 5) == 10
        finally:
            worker.stop()
        assert compiled.call_count == 1
        assert multiplying(3)(4) == 12
        assert compiled.call_count == 2


def test_what_was_compiled_goes_with_its_computation():
    double = multiplying(2)
    kept = weakref.ref(local_worker.compile_once(double))
    assert local_worker.compile_once(double) is kept()
    del double
    gc.collect()
    assert kept() is None
