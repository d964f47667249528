"""The worker of this machine: what is left of one that another has replaced."""

import asyncio
import gc
import multiprocessing
import threading
import time
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tffcl
from tests import own_data
from tffcl import runtime
from tffcl.errors import UserError
from tffcl.runtime.executor import WorkerExecutor


@tff.tensorflow.computation(tf.int32)
def successor(number):
    return number + 1


@pytest.mark.slow
def test_a_context_whose_results_are_awaited_is_refused_before_a_run_writes_anything(tff_worker, tmp_path):
    native, stack = tff.backends.native, tff.framework.get_context_stack()
    awaited, at_once = (
        native.create_async_local_cpp_execution_context(),
        native.create_sync_local_cpp_execution_context(),
    )
    method = tffcl.algorithms.build_fedavg(own_data.perceptron(), tffcl.LocalTraining())
    population = tffcl.Population.from_arrays(*own_data.clinics())

    def run(name):
        return tffcl.train(method, population, rounds=1, clients_per_round=2, out=tmp_path / name, show_progress=False)

    for context in (awaited, tff.program.NativeFederatedContext(awaited)):
        with stack.install(context), pytest.raises(UserError, match=f"context of {type(context).__name__}, whose res"):
            run("refused")
    assert not (tmp_path / "refused").exists()
    with stack.install(at_once):
        assert run("trained").summary["rounds"] == 1


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


def kept_by_a_worker(stub):
    """A number that a worker keeps until this process clears it away: it is in a cycle."""
    executor = WorkerExecutor(stub, dispose_batch_size=1)
    executor.set_cardinalities({tff.CLIENTS: 0})
    cycle = [executor, asyncio.run(executor.create_value(np.int32(5), tff.TensorType(np.int32)))]
    cycle.append(cycle)
    return cycle


def clears_away(pipe):
    pipe.send(gc.collect())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["of this machine", "remote"])
def test_a_forked_process_leaves_to_its_parent_what_a_worker_keeps(kind, tff_worker, processes):
    """It would wait for ever for an answer, or the worker would clear away what the parent still needs."""
    if kind == "remote":
        processes.use(processes.start(1))
        stub = tff.framework.get_context_stack().current.workers[0]._stub
    else:
        stub = tff_worker.connect()
    gc.disable()
    try:
        kept = kept_by_a_worker(stub)
        executor, value = kept[:2]
        number = weakref.ref(value)
        del kept, value
        here, there = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=clears_away, args=(there,))
        child.start()
        assert here.poll(60) and here.recv() > 0
        child.join(60)
        assert child.exitcode == 0 and asyncio.run(number().compute()) == 5
    finally:
        child.kill()
        gc.enable()
        gc.collect()  # while the worker is there


def in_child(model, population, pipe):
    for call in (
        runtime.use_local_worker,
        own_data.new_perceptron,
        lambda: tffcl.train(
            tffcl.algorithms.build_fedavg(model, tffcl.LocalTraining()),
            population,
            rounds=1,
            clients_per_round=2,
            out="nowhere",
        ),
    ):
        try:
            call()
        except UserError as error:
            pipe.send(str(error))
    runtime.stop_local_worker()  # as at the end of a process: the parent's is not its own


def test_a_forked_process_says_that_it_cannot_compute(tff_worker):
    """It would wait for ever for threads that it has not got."""
    model, population = own_data.regression(), tffcl.Population.from_arrays(*own_data.clinics())
    assert successor(1) == 2
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(model, population, there))
    child.start()
    try:
        for _ in range(3):
            assert here.poll(60) and 'multiprocessing.get_context("spawn")' in here.recv()
        child.join(60)
    finally:
        child.kill()
    assert child.exitcode == 0 and tff_worker.alive() and successor(2) == 3


def test_a_worker_computes_by_as_many_cores_as_the_process_may_use(monkeypatch):
    """Also where a container's share of the machine is smaller than the cores that it sees, as joblib knows."""
    monkeypatch.setattr("joblib.externals.loky.backend.context._cpu_count_cgroup", lambda cores: 1)
    assert runtime.WorkerSettings().cores == 1
