"""Rounds on several TFF workers: real processes of this machine, spoken to as if they were others."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.runs.stopped_runs import rounds_written
from tests.runtime.processes import pair_of_workers
from tffcl import runtime
from tffcl.algorithms.clustered_training import build_clustered_round
from tffcl.algorithms.each_round_parameters import FLISDCParameters
from tffcl.algorithms.flis_dc import build_flis_dc
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.cohort import Cohort
from tffcl.errors import UserError
from tffcl.lab.cli.main import main
from tffcl.models.classifiers import build_mlp
from tffcl.rounds.simulation import run_round
from tffcl.runtime.worker_process import _free_port

TRAINING = LocalTraining(epochs=2, batch_size=10, learning_rate=0.1, momentum=0.5)


@pytest.fixture(scope="module")
def pair():
    with pair_of_workers() as processes:
        yield processes


@pytest.fixture(scope="module")
def model():
    return build_mlp((8, 8, 1), 10, hidden=16, normalization=(0.3, 0.4), seed=3)


@pytest.fixture
def population(digit_clients):
    return digit_clients([31, 40, 25, 50, 12, 33, 8], turns=[0, 1, 0, 1, 0, 1, 0])


@pytest.mark.slow  # the conformance suite holds two workers against one for every kind of method
def test_two_workers_sum_more_clusters_than_one_tensor_holds(tff_worker, pair, worker, model, digit_clients):
    population = digit_clients(list(range(10, 50, 2)))
    composed = build_clustered_round(model, LocalTraining())
    cohort = Cohort(population, population.client_ids, (7, 1), np.ones(20, bool))
    keys = np.arange(20, dtype=np.int32)
    keys[7] = 16  # two clients in a row beyond the first of its slot, a cluster that is empty

    def train_once():
        values = {"models": np.repeat(model.initial[np.newaxis], 20, 0)}
        return run_round(composed, cohort, values, composed.initial_aggregators, key=keys).values["models"]

    alone = train_once()
    pair.use(pair.started)
    together = train_once()
    worker.use_local_worker()
    np.testing.assert_allclose(together, alone, rtol=0, atol=3e-6)
    moved = np.abs(alone - model.initial).max(1) > 0
    assert moved.tolist() == [key in keys for key in range(20)]


def train(method, population, backwards=False):
    """Clusters, and every client's model, after three rounds; in the last there are fewer clients than workers."""
    state = method.initialize(population)
    for number, clients in enumerate([(0, 1, 2, 3, 4, 5, 6), (1, 3, 4), (2,)], 1):
        ids = np.array(clients[::-1] if backwards else clients)
        state, _ = method.next(state, Cohort(population, ids, (7, number), np.ones(len(ids), bool)))
    models, rows = method.models_for(state, population.client_ids)
    return method.views(state).clusters, models[rows]


@pytest.mark.slow  # the conformance suite holds two workers against one for every kind of method
def test_the_order_of_clients_does_not_matter(tff_worker, pair, worker, model, population, digits):
    method = build_flis_dc(model, TRAINING, FLISDCParameters(threshold=0.6), server_images=digits[0][-60:])
    pair.use(pair.started)
    forwards, backwards = train(method, population), train(method, population, backwards=True)
    worker.use_local_worker()
    np.testing.assert_array_equal(forwards[0], backwards[0])
    np.testing.assert_allclose(forwards[1], backwards[1], rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    "clients, hands, expected", [(5, 2, [0, 2, 4, 1, 3]), (3, 3, [0, 1, 2]), (1, 2, [0]), (4, 1, [0, 1, 2, 3])]
)
def test_clients_are_dealt(clients, hands, expected):
    import tensorflow_federated as tff

    from tffcl.runtime.remote_workers import deal

    numbers = tff.FederatedType(np.int32, tff.CLIENTS)
    kind = tff.to_type([tff.FederatedType(np.int32, tff.SERVER), numbers])
    server, dealt = deal(tff.structure.Struct.unnamed(7, list(range(clients))), kind, hands)
    assert server == 7 and dealt == expected


def summing(steps=1):
    """A round of a sum, slow where it has many steps: `({int32*}@CLIENTS -> float32@SERVER)`."""
    import tensorflow as tf
    import tensorflow_federated as tff

    @tff.tensorflow.computation(tff.SequenceType(np.int32))
    def work(numbers):
        def step(number, matrix):
            return number + 1, tf.matmul(matrix, matrix) * 0.002

        _, matrix = tf.while_loop(lambda number, _: number < steps, step, (0, tf.ones([500, 500])))
        return tf.cast(numbers.reduce(0, lambda a, b: a + b), tf.float32) + 0 * matrix[0, 0]

    @tff.federated_computation(tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS))
    def total(numbers):
        return tff.federated_sum(tff.federated_map(work, numbers))

    return total


def during(seconds, action):
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


# With the short silence a busy machine can take the dead worker for a silent one.
@pytest.mark.parametrize(
    "fault, silence, said",
    [
        (signal.SIGKILL, 60, "the connection broke"),
        pytest.param(signal.SIGSTOP, 3, "it has not answered for 3 s", marks=pytest.mark.slow),
    ],
    ids=["killed", "stopped"],
)
def test_a_lost_workers_share_is_repeated_on_another(processes, capfd, fault, silence, said):
    first, second = processes.start(2)
    context = processes.use([first, second], silence)
    total = summing(20)
    assert total([[1], [2]]) == 3  # both have the computation
    assert not any(each.lost for each in context.workers)
    during(0.1, lambda: os.kill(first.pid, fault))
    assert total([[number] for number in range(12)]) == 66
    assert context.workers[0].lost and not context.workers[1].lost
    error = capfd.readouterr().err
    assert f"the worker at {first.target} is lost: {said}" in error and f"goes to {second.target}" in error
    assert total([[4], [5], [6]]) == 15  # and so are the next rounds


def test_a_worker_that_takes_connections_for_a_last_moment_counts_as_gone():
    """As a killed process does until the system has closed its sockets: it is not waited for as long as for a
    silent one.
    """
    from tffcl.runtime.remote_workers import RemoteWorker

    silence = 240.0
    with socket.create_server(("127.0.0.1", 0)) as dying:
        worker = RemoteWorker(runtime.Address("127.0.0.1", dying.getsockname()[1]), silence)
        closing = during(0.2, dying.close)
        start = time.monotonic()
        assert not worker.answers()
        assert time.monotonic() - start < silence / 2
        closing.join()
    worker.lose("the test is over")


@pytest.mark.slow
def test_a_lost_worker_that_is_back_takes_part_again(processes, capfd):
    first, second = processes.start(2)
    context = processes.use([first, second], silence=1)
    total = summing()
    assert total([[1], [2]]) == 3
    first.stop()
    assert total([[1], [2]]) == 3 and context.workers[0].lost
    again = runtime.Worker(runtime.WorkerSettings(cores=1), first.port).start()
    processes.started.append(again)
    runtime.connect(again.target, alive=again.alive)
    time.sleep(1)
    assert total([[3], [4]]) == 7
    assert not context.workers[0].lost and context.workers[0].received_bytes > 0
    assert f"the worker at {first.target} is back" in capfd.readouterr().err


@pytest.mark.slow
def test_a_worker_that_was_started_anew_goes_on(processes):
    (first,) = processes.start(1)
    context = processes.use([first], silence=20)
    total = summing()
    assert total([[1], [2]]) == 3
    first.stop()
    again = runtime.Worker(runtime.WorkerSettings(cores=1), first.port).start()
    processes.started.append(again)
    runtime.connect(again.target, alive=again.alive)
    assert total([[1], [2]]) == 3
    assert not context.workers[0].lost


def test_one_line_when_no_worker_is_left(processes, capfd):
    first, second = processes.start(2)
    context = processes.use([first, second], silence=20)
    total = summing()
    total([[1], [2]])
    first.stop()
    # The next run of the same process goes on with the other one.
    assert processes.use([first, second], silence=10) is context and context.workers[1].silence == 10
    assert f"tffcl: the worker at {first.target} does not answer any more" in capfd.readouterr().err
    assert total([[1], [2]]) == 3
    second.stop()
    with pytest.raises(UserError, match=f"no worker is left .*{second.target}: .* broke.*resume=True") as caught:
        total([[1], [2]])
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=f"no TFF worker answers at {first.target}"):
        processes.use([first, second], silence=10)


def run_command(out, workers, *more):
    return [
        sys.executable,
        *"-m tffcl run demo_digits --algorithm pacfl --rounds 15 --out".split(),
        str(out),
        "--set",
        "checkpoint.every=2",
        "--workers",
        workers,
        "--worker-timeout",
        "5",
        *more,
    ]


@pytest.mark.slow
def test_a_run_whose_workers_die_is_resumed(processes, tmp_path):
    """One dies: the run goes on; the other too: it stops with everything saved; `--resume` ends as one machine does."""
    first, second = processes.start(2)
    out = tmp_path / "out"
    command = run_command(out, f"{first.target},{second.target}")
    run = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    for victim, after in ((first, 2), (second, 5)):
        while rounds_written(out) < after and run.poll() is None:
            time.sleep(0.02)
        victim.stop()
    _, error = run.communicate(timeout=120)
    last = error.strip().splitlines()[-1]
    assert run.returncode == 2
    assert last.startswith("tffcl: no worker is left") and "are saved" in last
    assert "Traceback" not in error
    done = rounds_written(out)
    assert 5 <= done < 15
    third, fourth = processes.start(2)
    again = subprocess.run(
        run_command(out, f"{third.target},{fourth.target}", "--resume"), capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    alone = tmp_path / "alone"
    assert main(["run", "demo_digits", "--algorithm", "pacfl", "--rounds", "15", "--out", str(alone)]) == 0
    summaries = [json.loads((each / "summary.json").read_text()) for each in (out, alone)]
    assert rounds_written(out) == 15
    assert summaries[0]["clusters"] == summaries[1]["clusters"]
    assert summaries[0]["accuracy"]["cluster"]["mean"] == pytest.approx(
        summaries[1]["accuracy"]["cluster"]["mean"], abs=0.01
    )


def fails(capsys, out, workers, timeout="2"):
    arguments = ["run", "demo_digits", "--algorithm", "fedavg", "--out", str(out), "--workers", workers]
    assert main([*arguments, "--worker-timeout", timeout]) == 2
    *about, line = capsys.readouterr().err.strip().splitlines()
    assert all(each.startswith("1 run: about") for each in about)  # known from an earlier run
    assert not out.exists()  # before anything is written, and before data are loaded
    return line


def test_a_worker_that_is_not_there(capsys, processes, tmp_path):
    (there,) = processes.start(1)
    port = _free_port()
    line = fails(capsys, tmp_path / "out", f"{there.target},localhost:{port}")
    assert f"no TFF worker answers at localhost:{port}" in line and f"tffcl worker --port {port}" in line


@pytest.mark.slow
def test_a_worker_that_hangs_before_the_first_round(capsys, processes, tmp_path):
    (there,) = processes.start(1)
    os.kill(there.pid, signal.SIGSTOP)
    start = time.monotonic()
    assert f"no TFF worker answers at {there.target}" in fails(capsys, tmp_path / "out", there.target, "1")
    assert time.monotonic() - start < 30


def test_another_service_is_no_worker(capsys, tmp_path, worker):
    """gRPC that knows none of the calls, or answers them in another version's words."""
    from concurrent import futures

    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        line = fails(capsys, tmp_path / "out", f"127.0.0.1:{port}")
    finally:
        server.stop(None)
        worker.use_local_worker()
    assert f"what listens at 127.0.0.1:{port} does not compute as a worker of tensorflow-federated 0.87.0 does" in line


@pytest.mark.parametrize(
    "workers, timeout, message",
    [
        ("localhost", "2", "worker 'localhost' is not HOST:PORT"),
        ("localhost:99999", "2", "is not HOST:PORT"),
        ("a:1,a:1", "2", "are not distinct"),
        ("localhost:7,127.0.0.1:7", "2", "the workers localhost:7, 127.0.0.1:7 are not distinct"),
        ("a:1", "0", "the workers' timeout is 0 s; it must be above 0"),
        ("a:1", "1e300", "it must be above 0 and at most 1,000,000"),
        ("a..b:1", "2", "no TFF worker answers at a..b:1"),
    ],
)
def test_one_line_for_a_mistake(capsys, tmp_path, workers, timeout, message):
    assert message in fails(capsys, tmp_path / "out", workers, timeout)


@pytest.mark.slow
def test_the_command_runs_a_worker_and_says_who_can_reach_it(tmp_path):
    port = _free_port()
    command = [sys.executable, "-m", "tffcl", "worker", "--port", str(port), "--max-concurrent", "1"]
    serving = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = "".join(serving.stdout.readline() for _ in range(5))
        assert f"port {port}, 1 client computations at a time" in said
        assert "unencrypted gRPC from everyone" in said and f"ssh -N -L {port}:localhost:{port}" in said
        second = subprocess.run(command, capture_output=True, text=True)
        assert second.returncode == 2
        assert second.stderr == f"tffcl: port {port} can't be used (Address already in use); give another --port\n"
        runtime.connect(f"localhost:{port}")
    finally:
        serving.send_signal(signal.SIGTERM)
        _, error = serving.communicate(timeout=120)
    assert serving.returncode == 0 and not error
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
