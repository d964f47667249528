"""The worker of this machine: what is left of one that another has replaced."""

import threading
import time

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.errors import UserError


@tff.tensorflow.computation(tf.int32)
def successor(number):
    return number + 1


def test_a_worker_is_replaced_once_it_has_grown(tff_worker):
    assert successor(1) == 2
    size = tff_worker.resident_bytes
    runtime.renew_local_worker(above=2 * size)
    assert tff_worker.alive() and size > 10**7
    runtime.renew_local_worker(above=size // 2)
    assert not tff_worker.alive() and tff_worker.resident_bytes == 0 and successor(2) == 3


def test_nothing_is_left_of_a_replaced_worker(tff_worker):
    assert successor(1) == 2
    replaced, context = tff_worker, tff.framework.get_context_stack().current
    there = set(threading.enumerate())
    runtime.renew_local_worker()
    assert not replaced.alive() and successor(2) == 3
    # Its connection had a thread that looks after it, and its process one that waits for its end.
    deadline = time.monotonic() + 30
    while len(there - set(threading.enumerate())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(there - set(threading.enumerate())) >= 2
    with pytest.raises(UserError, match="worker has ended"):  # and not that a connection is closed
        context.invoke(successor, 3)
