"""Starts TFF's worker so that it ends with the process that asked for it. This file is run by its path in a fresh
interpreter, and imports only Python's own modules.

    python -I -S worker_launcher.py PARENT DOOR WORKER --port=P ...

PARENT is the process that asks. Without a DOOR ("") this process becomes the worker. With one, the worker is a child in
a network of its own; the only way in is the Unix-domain socket DOOR, whose bytes this process passes on. Standard
output says what has happened: first "private" or "open: why" if there is a DOOR, then "worker PID".

It is a fresh interpreter, because `preexec_fn` is not safe in a process that has threads, and TensorFlow has many.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
import threading
import time

_PORT = 10000  # inside the worker's own network
_DEATH_SIGNAL, _NAME = 1, 15  # of prctl
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # of unshare
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # of network devices
_PIPE_BYTES = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments):
    if getattr(_libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _end_with(parent: int, how: int):
    """Asks for a signal when the parent dies; if it died before, this process must not go on."""
    _call("prctl", _DEATH_SIGNAL, how)
    if os.getppid() != parent:
        os._exit(1)


def _enter_private_network():
    """Leaves all networks for a new one with only a loopback device; raises OSError if the system does not allow it."""
    try:
        _call("unshare", _NEW_NETWORK)
    except OSError:  # a user who is not root may do so in a new user namespace
        _call("unshare", _NEW_USER | _NEW_NETWORK)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _GET_FLAGS, name))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


def _check_private_network():
    """Raises OSError if this process could not enter a network of its own. This is tried in a child, since there is no
    way back."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        try:
            _enter_private_network()
        except OSError as error:
            os.write(writable, str(error).encode())
        os._exit(0)
    os.close(writable)
    os.waitpid(child, 0)
    with open(readable, "rb") as answer:
        if reason := answer.read().decode():
            raise OSError(reason)


def _open_door(door: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(door)
    finally:
        os.umask(before)
    listening.listen(64)
    return listening


def _become(command: list[str]):
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.execv(command[0], command)


def _say(line: str):
    os.write(1, f"{line}\n".encode())


def _hand_on(source: socket.socket, target: socket.socket):
    """Moves bytes from one connection to another until the first ends."""
    readable, writable = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(readable, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    try:
        with contextlib.suppress(OSError):
            while moved := os.splice(source.fileno(), writable, _PIPE_BYTES):
                while moved:
                    moved -= os.splice(readable, target.fileno(), moved)
    finally:
        for connection, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
            with contextlib.suppress(OSError):
                connection.shutdown(how)
        os.close(readable)
        os.close(writable)


def _serve(connection: socket.socket):
    """Connects the worker to somebody who came through the door."""
    with connection, socket.socket(socket.AF_INET, socket.SOCK_STREAM) as inside:
        inside.connect(("127.0.0.1", _PORT))
        inside.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=_hand_on, args=(inside, connection), daemon=True)
        back.start()
        _hand_on(connection, inside)
        back.join()


def _let_in(listening: socket.socket):
    while True:  # connections made before the worker listens wait in the queue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(("127.0.0.1", _PORT)) == 0:
                break
        time.sleep(0.02)
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=_serve_or_drop, args=(connection,), daemon=True).start()


def _serve_or_drop(connection: socket.socket):
    with contextlib.suppress(OSError):  # the worker has just ended
        _serve(connection)


def _keep_door(parent: int, door: str, listening: socket.socket, command: list[str]):
    """Starts the worker and keeps its door until one of the two, or the parent, ends."""
    here = os.getpid()
    worker = os.fork()
    if not worker:
        _end_with(here, signal.SIGKILL)
        _become([*command[:1], *(each for each in command[1:] if not each.startswith("--port=")), f"--port={_PORT}"])
    _call("prctl", _NAME, b"tff-worker-door", 0, 0, 0)
    left = []

    def leave(*_):
        if not left:
            left.append(True)
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)

    signal.signal(signal.SIGTERM, leave)
    _end_with(parent, signal.SIGTERM)
    _say(f"worker {worker}")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    threading.Thread(target=_let_in, args=(listening,), daemon=True).start()
    os.waitpid(worker, 0)
    with contextlib.suppress(OSError):
        os.unlink(door)
        os.rmdir(os.path.dirname(door))
    os._exit(0)


def main(parent: str, door: str, *command: str):
    """Starts the worker as this module's docstring says."""
    if door:
        try:
            _check_private_network()
            listening = _open_door(door)
            _enter_private_network()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(door)
            _say(f"open: {error}")
        else:
            _say("private")
            _keep_door(int(parent), door, listening, list(command))
    _end_with(int(parent), signal.SIGKILL)
    _say(f"worker {os.getpid()}")
    _become(list(command))


if __name__ == "__main__":
    main(*sys.argv[1:])
