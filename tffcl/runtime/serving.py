"""`tffcl worker`: a worker of this machine for the rounds of another one."""

import signal
import socket
import sys
import time

from tffcl.errors import UserError
from tffcl.runtime.worker_process import Worker, WorkerSettings


def serve(port: int, settings: WorkerSettings):
    """Runs a worker for others until this process is ended: by SIGTERM with exit code 0.

    Raises:
      UserError: If the port is taken or the worker ends by itself.
    """
    _check_free(port)
    # Without a handler of its own the first process of a container ignores the signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    worker = Worker(settings, port).start()
    try:
        while not _listens(port):
            if not worker.alive():
                raise UserError(f"TFF's worker ended while starting on port {port}; is memory short?")
            time.sleep(0.05)
        print(_NOTICE.format(port=port, cores=settings.cores, host=socket.gethostname(), version=_tff_version()), flush=True)
        while worker.alive():
            time.sleep(0.5)
        raise UserError(f"TFF's worker on port {port} has ended: was it killed, or is memory short?")
    finally:
        worker.stop()


_NOTICE = """tffcl worker: TensorFlow Federated {version}, port {port}, {cores} client computations at a time. Ctrl-C ends it.
It takes unencrypted gRPC from everyone who can reach port {port} on any address of this machine, and runs what they send:
TFF's worker can be bound to no single address. Close the port to others, and reach it through an encrypted tunnel:
  ssh -N -L {port}:localhost:{port} {host}        (on the machine that runs the rounds)
  tffcl run ... --workers localhost:{port}"""


def _tff_version() -> str:
    import importlib.metadata

    return importlib.metadata.version("tensorflow-federated")


def _check_free(port: int):
    """gRPC shares a port with another gRPC server without a word; each would get some of the calls."""
    if not 0 < port < 65536:
        raise UserError(f"--port {port}: a port is from 1 to 65535")
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError as error:
        raise UserError(f"port {port} can't be used ({error.strerror}); give another --port") from None


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
