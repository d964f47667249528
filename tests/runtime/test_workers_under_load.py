"""Workers on a machine that has several times as much to do as it can: slow ones are waited for, lost ones are told and
replaced.

The load is made here: processes that only count, started and ended by the tests.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.runs.stopped_runs import rounds_written
from tffcl import runtime
from tffcl.lab.cli.main import main
from tffcl.runtime.remote_workers import RemoteWorker

BUSY = 6
SETTINGS = [
    "--rounds=6",
    "--set=partition.clients=16",
    "--set=model.hidden=8",
    "--set=train.clients_per_round=8",
    "--set=train.local_epochs=1",
    "--set=evaluation.every=3",
    "--set=checkpoint.every=2",
]


@pytest.fixture(scope="module")
def load():
    # What else the machine does counts, and the suite's other processes from their first second on.
    others = max(round(os.getloadavg()[0]), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")))
    count = max(0, BUSY - others)
    busy = [subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"]) for _ in range(count)]
    yield
    for each in busy:
        each.kill()
        each.wait()


class Line:
    """A line to a worker that can go dead: connections stay, nothing comes through."""

    def __init__(self, port: int):
        self.port, self.dead = port, threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.target = f"localhost:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                outside, _ = self._listening.accept()
                inside = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                return
            for pair in ((outside, inside), (inside, outside)):
                threading.Thread(target=self._hand_on, args=pair, daemon=True).start()

    def _hand_on(self, source, target):
        try:
            while data := source.recv(1 << 16):
                if self.dead.is_set():
                    time.sleep(3600)
                target.sendall(data)
        except OSError:
            return

    def close(self):
        self._listening.close()


def run(out, workers, timeout="20", resume=False):
    command = ["run", "demo_digits", "--algorithm", "pacfl", "--out", str(out), *SETTINGS]
    return main([*command, "--workers", workers, "--worker-timeout", timeout, *(["--resume"] if resume else [])])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert main(["run", "demo_digits", "--algorithm", "pacfl", "--out", str(out), *SETTINGS]) == 0
    return json.loads((out / "summary.json").read_text())


@pytest.mark.slow
def test_a_slow_worker_is_not_taken_for_a_foreign_one(load, processes, monkeypatch):
    """It answers, but the first computation takes longer than the silence that is allowed."""
    (there,) = processes.start(1)
    real = RemoteWorker._try

    async def slowly(self):
        time.sleep(6)
        return await real(self)

    monkeypatch.setattr(RemoteWorker, "_try", slowly)
    context = processes.use([there], silence=2.0)
    assert not context.workers[0].lost


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["stopped", "dead line"])
def test_a_run_survives_a_worker_that_is_lost_in_a_round(load, processes, undisturbed, tmp_path, capfd, fault):
    first, second = processes.start(2)
    line, out = Line(first.port), tmp_path / "run"
    faults = {"stopped": lambda: os.kill(first.pid, signal.SIGSTOP), "dead line": line.dead.set}

    def disturb():
        while rounds_written(out) < 2:
            time.sleep(0.01)
        time.sleep(0.05)  # in the middle of the next round
        faults[fault]()

    disturbing = threading.Thread(target=disturb, daemon=True)
    disturbing.start()
    target = line.target if fault == "dead line" else first.target
    assert run(out, f"{target},{second.target}") == 0
    disturbing.join()
    line.close()
    said = capfd.readouterr().err
    assert f"the worker at {target} is lost" in said and f"goes to {second.target}" in said and "Traceback" not in said
    found = json.loads((out / "summary.json").read_text())
    assert rounds_written(out) == 6 and found["clusters"] == undisturbed["clusters"]
    assert found["accuracy"]["cluster"]["mean"] == pytest.approx(undisturbed["accuracy"]["cluster"]["mean"], abs=0.02)


ALONE = """
import sys
from tffcl.lab.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_process_whose_workers_are_silent_ends_with_a_line_and_not_by_an_abort(load, processes, tmp_path):
    """The only worker is stopped in a round; the call to it still waits in a thread when the process ends."""
    (only,) = processes.start(1)
    out = tmp_path / "run"
    command = ["run", "demo_digits", "--algorithm", "fedavg", "--rounds", "500", "--out", str(out)]
    command += ["--workers", only.target, "--worker-timeout", "3"]
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while rounds_written(out) < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    os.kill(only.pid, signal.SIGSTOP)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 2, (process.returncode, said)
    assert "no worker is left" in said and "--resume" in said and "Traceback" not in said and "not rethrown" not in said


@pytest.mark.slow
def test_a_process_that_gives_up_on_a_busy_trial_is_not_aborted(load, processes, tmp_path):
    (only,) = processes.start(1)
    os.kill(only.pid, signal.SIGSTOP)
    code = f"""
import sys
from tffcl.errors import UserError
from tffcl.runtime import Address
from tffcl.runtime.remote_workers import RemoteWorker
worker = RemoteWorker(Address("127.0.0.1", {only.port}), 1.0)
answers = iter([True, True, False])
worker.answers = lambda *_: next(answers)
try:
    worker.connect()
except UserError as error:
    print(error)
    sys.exit(2)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (2, ""), done.stderr
    assert "fell silent for 1 s in a first small computation" in done.stdout


def test_leaving_ends_the_thread_of_a_connection(tff_worker):
    """Else it would be in gRPC when the interpreter is taken down, which aborts the process."""
    worker = RemoteWorker(runtime.Address("127.0.0.1", 9), 1.0)
    worker.leave()
    assert not worker._thread.is_alive()
