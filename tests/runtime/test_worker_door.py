"""The local worker's way in: nobody else reaches it, and nothing is left of it."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from tffcl import runtime
from tffcl.runtime import worker_launcher


@pytest.fixture
def private():
    worker = runtime.Worker(private=True).start()
    if worker.open_because:
        worker.stop()
        pytest.skip(f"this system lets nobody have a network of their own: {worker.open_because}")
    yield worker
    worker.stop()


def listens_to(pid):
    """The TCP ports that are listened to in the network of a process."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A":
                found.add(int(local.rpartition(":")[2], 16))
    return found


def gone(pid):
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.02)
    return not os.path.exists(f"/proc/{pid}") or ") Z " in pathlib.Path(f"/proc/{pid}/stat").read_text()


def test_its_port_is_in_a_network_of_its_own_and_its_door_is_this_users(private):
    private.connect()
    door = pathlib.Path(private.target.removeprefix("unix:"))
    assert listens_to(private.pid) == {worker_launcher._PORT}
    with socket.socket() as probe:
        assert (
            worker_launcher._PORT in listens_to("self") or probe.connect_ex(("127.0.0.1", worker_launcher._PORT)) != 0
        )
    assert (door.parent.stat().st_mode & 0o777, door.stat().st_mode & 0o077) == (0o700, 0)
    pid = private.pid
    private.stop()
    assert gone(pid) and not door.parent.exists() and not private.alive()


@pytest.mark.parametrize("hidden", [True, False], ids=["private", "open"])
def test_ctrl_c_is_not_for_it_but_the_niceness_of_its_process_is(hidden):
    worker = runtime.Worker(private=hidden).start()
    try:
        assert os.getpgid(worker.pid) != os.getpgid(0), "a Ctrl-C would end it before the run is saved"
        assert os.getsid(worker.pid) == os.getsid(0), "Linux would give it as much time as a run at niceness 0"
    finally:
        worker.stop()


def test_a_killed_worker_is_seen(private):
    private.connect()
    os.kill(private.pid, signal.SIGKILL)
    assert gone(private.pid)
    deadline = time.monotonic() + 20
    while private.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not private.alive()


STARTED = """
import time
from tffcl import runtime
worker = runtime.Worker(private=True).start()
print(worker.pid, worker.target, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_nothing_is_left_when_its_process_is_killed():
    process = subprocess.Popen([sys.executable, "-c", STARTED], stdout=subprocess.PIPE, text=True)
    pid, target = process.stdout.readline().split()
    process.kill()
    process.communicate()
    assert gone(int(pid))
    deadline = time.monotonic() + 20
    while (left := os.path.exists(target.removeprefix("unix:"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def test_where_there_is_no_network_of_ones_own_the_worker_is_open_and_says_so(monkeypatch, tmp_path):
    """And is reached directly, whatever proxy the machine has for other places."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("a" * 120)))
    (tmp_path / ("a" * 120)).mkdir()
    worker = runtime.Worker(private=True).start()
    try:
        assert "is too long" in worker.open_because and worker.target == f"localhost:{worker.port}"
        worker.connect()
        assert worker.port in listens_to(worker.pid)
        assert not [*(tmp_path / ("a" * 120)).iterdir()]
    finally:
        worker.stop()


def test_two_at_a_time_do_not_meet(private):
    other = runtime.Worker(private=True).start()
    try:
        assert other.target != private.target
        assert os.readlink(f"/proc/{other.pid}/ns/net") != os.readlink(f"/proc/{private.pid}/ns/net")
    finally:
        other.stop()


HALF_PRIVATE = """
import os, sys
from tffcl.runtime import worker_launcher

def refuse():
    worker_launcher._call("unshare", worker_launcher._NEW_USER | worker_launcher._NEW_NETWORK)
    raise PermissionError(1, "nobody may set a device up")

worker_launcher._enter_private_network = refuse
worker_launcher.main(str(os.getppid()), sys.argv[1], "/usr/bin/readlink", "/proc/self/ns/net")
"""


def test_where_a_network_can_be_entered_but_not_used_the_worker_stays_outside(private, tmp_path):
    """As where the system lets everybody have a user namespace, and nobody do anything in it."""
    where = tmp_path / "where"
    readlink = f"import os; open({str(where)!r}, 'w').write(os.readlink('/proc/self/ns/net'))"
    code = HALF_PRIVATE.replace('"/usr/bin/readlink", "/proc/self/ns/net"', f"sys.executable, '-c', {readlink!r}")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "door")], capture_output=True, text=True)
    assert done.stdout.startswith("open: [Errno 1] nobody may set a device up") and "worker " in done.stdout, done
    assert where.read_text() == os.readlink("/proc/self/ns/net") and not (tmp_path / "door").exists()
