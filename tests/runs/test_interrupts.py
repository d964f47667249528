"""Ctrl-C at places where Python loses a KeyboardInterrupt, and the other signals that ask a run to end."""

import gc
import os
import signal
import subprocess
import sys
import threading

import pytest

import tffcl
from tests import own_data
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.lab.cli.main import main
from tffcl.runs import loop, train
from tffcl.runs.run import Interrupted, watch_for_interrupts


@pytest.fixture
def pythons_own_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def send():
    os.kill(os.getpid(), signal.SIGINT)


def test_it_is_raised_at_once_and_remembered(pythons_own_handler):
    with watch_for_interrupts() as watched:
        watched.check()
        with pytest.raises(KeyboardInterrupt):
            send()
        assert watched.requested
        with pytest.raises(KeyboardInterrupt):
            watched.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_one_that_a_callback_loses_is_found(pythons_own_handler):
    def callback(phase, info):
        gc.callbacks.remove(callback)
        send()

    with watch_for_interrupts() as watched:
        gc.callbacks.append(callback)
        gc.collect()
        with pytest.raises(KeyboardInterrupt):
            watched.check()


class Destroyed:
    """Does something when it is destroyed."""

    def __init__(self, action):
        self.action = action

    def __del__(self):
        self.action()


def test_one_that_a_destructor_loses_is_found_and_nothing_is_printed(pythons_own_handler, monkeypatch, capsys):
    """TensorFlow's objects have destructors in Python."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with watch_for_interrupts() as watched:
        Destroyed(send)
        assert watched.requested and capsys.readouterr().err == ""
        Destroyed(lambda: 1 / 0)  # every other mistake is told
        assert "ZeroDivisionError" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            watched.check()
    assert sys.unraisablehook is sys.__unraisablehook__


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP])
def ending(request):
    """A signal that ends a process by default."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


def test_other_signals_that_ask_for_the_end_are_as_ctrl_c(pythons_own_handler, ending):
    with watch_for_interrupts() as watched:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), ending)
        assert watched.requested
        os.kill(os.getpid(), ending)  # as `timeout` does: what is being saved goes on
        with pytest.raises(KeyboardInterrupt):
            send()  # who has no patience
    assert signal.getsignal(ending) is signal.SIG_DFL


def test_they_stay_ignored_and_are_heard_where_ctrl_c_is_ignored(pythons_own_handler, ending):
    """Under nohup, and in the background of a script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with watch_for_interrupts() as watched:
        send()
        assert not watched.requested and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), ending)
    signal.signal(ending, signal.SIG_IGN)
    with watch_for_interrupts() as watched:
        os.kill(os.getpid(), ending)
        assert not watched.requested and signal.getsignal(ending) is signal.SIG_IGN


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "own"])
def test_another_handler_stays(pythons_own_handler, handler):
    signal.signal(signal.SIGINT, handler)
    with watch_for_interrupts() as watched:
        assert signal.getsignal(signal.SIGINT) is handler
        send()
        watched.check()


def test_outside_the_main_thread_nothing_is_set(pythons_own_handler):
    found = []

    def block():
        with watch_for_interrupts() as watched:
            found.append((signal.getsignal(signal.SIGINT), watched.requested))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert found == [(signal.default_int_handler, False)]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_run_stops_after_the_round_in_which_it_was_lost(pythons_own_handler, monkeypatch, capsys, tmp_path):
    """SIGINT comes while the garbage collector calls a library back, as TensorFlow's and pytest's own do."""
    real = loop.next_round

    def lose(phase, info):
        gc.callbacks.remove(lose)
        send()

    def second_round(run):
        if run.round_number == 1:
            gc.callbacks.append(lose)
            gc.collect()
        real(run)

    monkeypatch.setattr(loop, "next_round", second_round)
    assert (
        main(["run", "demo_digits", "--algorithm", "fedavg", "--rounds", "50", "--out", str(tmp_path / "run")]) == 130
    )
    assert "stopped after round 2; --resume goes on" in capsys.readouterr().err
    assert (tmp_path / "run" / "checkpoints" / "round_000002.npz").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["initialize", "next", "finish"])
def test_in_python_it_is_one_error_wherever_the_run_is(pythons_own_handler, tmp_path, monkeypatch, when):
    """While the method initialises, in a round, and where the result is written."""
    training = tffcl.LocalTraining(epochs=2, batch_size=10, learning_rate=0.1)
    method = build_fedavg(own_data.regression(), training)
    clients = tffcl.Population.from_arrays(*own_data.clinics())
    where, place = (train, "after round 1") if when == "finish" else (method, "before the first round")
    real = getattr(where, when)

    def interrupted(*given):
        send()
        return real(*given)

    monkeypatch.setattr(where, when, interrupted)
    with pytest.raises(Interrupted, match=rf"stopped {place}; resume=True goes on"):
        tffcl.train(method, clients, rounds=1, clients_per_round=2, out=tmp_path / "run", show_progress=False)
    monkeypatch.undo()
    assert tffcl.train(
        method, clients, rounds=1, clients_per_round=2, out=tmp_path / "run", resume=True, show_progress=False
    )


_WHILE_CLIENTS_ARE_SENT = """
import os, signal, sys, threading
import numpy as np
import tffcl
from tffcl.models.classifiers import build_mlp
rng = np.random.default_rng(0)
clients = {n: (rng.integers(0, 255, (600, 28, 28, 1)).astype(np.uint8), rng.integers(0, 3, 600)) for n in range(80)}
method = tffcl.algorithms.build_pacfl(build_mlp((28, 28, 1), 3), tffcl.LocalTraining())
real = method.initialize
def initialize(population):
    threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
    return real(population)
method.initialize = initialize
try:
    tffcl.train(method, tffcl.Population.from_arrays(clients), rounds=1, clients_per_round=2,
                out=sys.argv[1], show_progress=False)
except tffcl.UserError as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.slow
def test_a_process_ends_as_it_wants_to_while_data_are_on_their_way_to_the_worker(tmp_path):
    """A thread that is in gRPC when the interpreter is taken down aborts it."""
    done = subprocess.run(
        [sys.executable, "-c", _WHILE_CLIENTS_ARE_SENT, str(tmp_path / "run")], capture_output=True, text=True
    )
    assert done.returncode == 130, done.stderr
