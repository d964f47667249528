"""Where computations run: TFF workers of this machine, started and stopped by us.

TFF starts its C++ worker as a child that inherits standard output and that nobody can configure. Here the same binary is
started with its streams detached, with TensorFlow's thread counts in its own environment, and with a parent-death signal,
so that it ends with us even after `kill -9`; then it is spoken to as if it were a remote worker. One path serves this
machine and others.
"""

import atexit
import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

from tffcl.errors import UserError
from tffcl.runtime.compiling import compile_once

MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
CHANNEL_OPTIONS = [
    ("grpc.max_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
]
LARGE_WORKER = 400_000_000  # bytes: what a run of small models leaves is half of it
_START_SECONDS = 240.0  # it takes one, and on a machine that does much else a minute

# Runs between fork and exec of the worker, in a fresh interpreter: `preexec_fn` is not safe in a process that has threads,
# and TensorFlow has many. If the parent died before the signal was asked for, the launcher is an orphan and must not exec.
_LAUNCHER = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
if os.getppid() != parent:
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def worker_binary() -> pathlib.Path:
    """Returns the path of the worker that the installed TensorFlow Federated ships.

    Found without importing TFF, which takes seconds.

    Raises:
      UserError: If TFF is not installed or its wheel has no worker.
    """
    import importlib.util

    spec = importlib.util.find_spec("tensorflow_federated")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("tensorflow-federated is not installed; install it with tffcl: python -m pip install uv && uv sync")
    path = pathlib.Path(spec.submodule_search_locations[0]) / "data" / "worker_binary"
    if not path.is_file():
        raise UserError(f"TFF's worker binary is missing at {path}; tensorflow-federated's wheel has it on Linux only")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclasses.dataclass(frozen=True)
class WorkerSettings:
    """How a local worker uses the machine.

    Attributes:
      cores: How many client computations run at a time. One core each is the fastest way to share a machine among
        clients: their models are too small for a step to be split over cores.
    """

    cores: int = dataclasses.field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def __post_init__(self):
        if self.cores < 1:
            raise UserError(f"cores is {self.cores}; it must be 1 or more")

    def environment(self) -> dict[str, str]:
        """The worker's environment variables."""
        return {
            **os.environ,
            "TF_NUM_INTRAOP_THREADS": "1",
            "TF_NUM_INTEROP_THREADS": str(self.cores),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            # glibc's default, eight arenas a core, keeps what many threads freed: memory grows by the round.
            "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", str(self.cores)),
        }


class Worker:
    """A TFF worker process of this machine, ended with this process whatever happens to it.

    The binary listens without encryption on all interfaces (it has no option for one address) for as long as it lives.
    """

    def __init__(self, settings: WorkerSettings = WorkerSettings(), port: int | None = None):
        self.port = port or _free_port()
        self.settings = settings
        self._process = None
        self._channels = []
        self._started = threading.Event()
        self._failure = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def resident_bytes(self) -> int:
        """What the process has in memory; 0 if it has ended."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0

    @property
    def target(self) -> str:
        return f"localhost:{self.port}"

    def start(self) -> "Worker":
        """Starts the process (it answers about a second later; see `connect`)."""
        command = [sys.executable, "-c", _LAUNCHER, str(os.getpid()), str(worker_binary()), f"--port={self.port}"]
        command.append(f"--max_concurrent_computation_calls={self.settings.cores}")
        # Linux sends the parent-death signal when the *thread* that forked ends, so a thread that lives as long as the
        # worker does the forking.
        threading.Thread(target=self._fork_and_wait, args=(command,), name="tff-worker", daemon=True).start()
        self._started.wait()
        if self._failure:
            raise UserError(f"TFF's worker does not start: {self._failure}")
        return self

    def _fork_and_wait(self, command):
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self.settings.environment(),
                start_new_session=True,  # Ctrl-C is for us: we end the worker when we have saved what there is
            )
        except OSError as error:
            self._failure = error
            return
        finally:
            self._started.set()
        self._process.wait()

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def connect(self):
        """Returns what `connect` does, over a connection that `stop` closes."""
        channel = _open_channel(self.target)
        self._channels.append(channel)
        return connect(self.target, alive=self.alive, channel=channel)

    def stop(self):
        """Ends the process and the connections to it, each of which has a thread; no effect if they have ended."""
        if self.alive():
            self._process.kill()  # it keeps nothing that could be lost
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
        while self._channels:
            self._channels.pop().close()


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a worker listens."""

    host: str
    port: int

    def __str__(self):
        return f"{self.host}:{self.port}"


@dataclasses.dataclass(frozen=True)
class RemoteWorkers:
    """Running workers that share each round's clients, see `remote_workers.use_workers`.

    Attributes:
      addresses: Where they listen; each takes part once.
      silence: Seconds without an answer after which one counts as lost.
    """

    addresses: tuple[Address, ...]
    silence: float = 30.0

    def __post_init__(self):
        if not self.silence > 0:
            raise UserError(f"the workers' timeout is {self.silence:g} s; it must be above 0")
        if len(set(self.addresses)) < len(self.addresses):
            raise UserError(f"the workers {', '.join(map(str, self.addresses))} are not distinct; each takes part once")

    @classmethod
    def parse(cls, text: str, silence: float = 30.0) -> "RemoteWorkers":
        """Reads "host:port,host:port".

        Raises:
          UserError: If it is something else, or names a worker twice.
        """
        found = []
        for part in text.split(","):
            host, _, port = part.strip().rpartition(":")
            if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
                raise UserError(f"worker {part[:100]!r} is not HOST:PORT; several are written 10.0.0.5:10000,10.0.0.6:10000")
            found.append(Address(host, int(port)))
        return cls(tuple(found), silence)


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


def _open_channel(target: str):
    import grpc

    return grpc.insecure_channel(target, CHANNEL_OPTIONS)


def connect(target: str, *, alive=lambda: True, timeout: float = _START_SECONDS, channel=None):
    """Waits for the worker at `target` ("host:port") and returns a `tff.framework` stub that speaks to it.

    Args:
      target: Where the worker listens.
      alive: Whether it runs. When it does not, every call is a `UserError`, but for those that give values back.
      timeout: Seconds to wait.
      channel: The gRPC channel to use; default a new one, which stays open.

    Raises:
      UserError: If the worker ends (`alive()` is false) or does not answer within `timeout` seconds.
    """
    import tensorflow_federated as tff

    stub = tff.framework.RemoteExecutorGrpcStub(channel or _open_channel(target))
    for name in ("get_executor", "create_value", "create_struct", "create_call", "create_selection", "compute"):
        setattr(stub, name, _while_alive(getattr(stub, name), alive))
    for name in ("dispose", "dispose_executor"):  # called by destructors, also when the worker has ended with all its values
        setattr(stub, name, _while_alive(getattr(stub, name), alive, needed=False))
    deadline = time.monotonic() + timeout
    while not stub.is_ready:
        if not alive():
            raise UserError(f"TFF's worker at {target} ended while starting; is its port in use, or memory short?")
        if time.monotonic() > deadline:
            raise UserError(f"TFF's worker at {target} has not answered within {timeout:.0f} s")
        time.sleep(0.02)
    return stub


_ENDED = "TFF's worker has ended in the middle of a computation: was it killed, or is memory short?"


def _while_alive(call, alive, needed: bool = True):
    def checked(request):
        if alive():
            return call(request)
        if needed:
            raise UserError(_ENDED)

    return checked


def build_context(stub, *, alive=lambda: True):
    """Returns a synchronous TFF execution context over one worker.

    Args:
      stub: What `connect` returns.
      alive: Whether the worker runs. TFF tries a call again for ever when its worker does not answer; a worker that has
        ended makes the computation fail with a `UserError` instead.
    """
    import tensorflow_federated as tff

    def check():
        if not alive():
            raise UserError(_ENDED)

    return tff.framework.SyncExecutionContext(**context_options(stub, check))


def context_options(stub, check=lambda: None) -> dict:
    """Arguments of a TFF execution context, synchronous or not, over one worker.

    Args:
      stub: Speaks to it.
      check: Called before an executor is asked for; an error in it ends the computation.
    """
    import tensorflow_federated as tff

    def stack(cardinalities):
        check()
        # Values that are done with are given back at once: with the default of twenty at a time several blocks stay.
        executor = tff.framework.RemoteExecutor(stub, dispose_batch_size=1)
        executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})  # 0: a computation without clients
        return executor

    return dict(
        executor_fn=tff.framework.ResourceManagingExecutorFactory(stack),
        compiler_fn=compile_once,
        transform_args=tff.tensorflow.transform_args,
        transform_result=tff.tensorflow.transform_result,
    )


_local: Worker | None = None
_context = None
_second_context = None  # of the same worker: while it computes, the next block's argument is packed


def use_local_worker(settings: WorkerSettings | None = None) -> Worker:
    """Makes a worker of this machine TFF's default context; the running one if it is there and alive.

    Args:
      settings: How the worker uses the machine; other settings than the running worker's replace it.

    Returns:
      The worker. It ends with this process, or with `stop_local_worker`.
    """
    global _local, _context, _second_context
    import tensorflow_federated as tff

    settings = settings or (_local.settings if _local else WorkerSettings())
    if not (_local and _local.alive() and _local.settings == settings):
        stop_local_worker()
        worker = Worker(settings).start()
        try:
            stub = worker.connect()
            _context, _second_context = (build_context(stub, alive=worker.alive) for _ in range(2))
        except BaseException:
            worker.stop()
            raise
        _local = worker
    tff.framework.set_default_context(_context)
    return _local


def lanes() -> list:
    """Returns the TFF contexts in which blocks of a round can compute at the same time, in threads: two over the local worker, one
    for each of several workers, or just the default context where it is none of ours."""
    import tensorflow_federated as tff

    current = tff.framework.get_context_stack().current
    if current is _context and _context is not None:
        return [_context, _second_context]
    return getattr(current, "lanes", None) or [current]


def worker_count() -> int:
    """Returns how many workers share a round's clients."""
    import tensorflow_federated as tff

    return len(getattr(tff.framework.get_context_stack().current, "workers", [None]))


def renew_local_worker(above: int = 0):
    """Puts a fresh worker with the same settings in the place of the one that runs; no effect if there is none.

    A worker keeps the graphs and the memory of all that it has computed, gigabytes after a few runs.

    Args:
      above: Leaves a worker that has no more bytes of memory as it is: a fresh one takes a second.
    """
    if _local and (not above or _local.resident_bytes > above):
        settings = _local.settings
        stop_local_worker()
        use_local_worker(settings)


@atexit.register
def stop_local_worker():
    """Ends the worker that `use_local_worker` started; no effect if there is none."""
    global _local
    worker, _local = _local, None
    if worker:
        worker.stop()


@atexit.register
def _drop_tffs_own_context():
    # TFF's own default context prints a traceback from its destructor when the interpreter takes it down.
    tff = sys.modules.get("tensorflow_federated")
    if tff is not None and _context is None:
        nothing = tff.framework.ResourceManagingExecutorFactory(lambda cardinalities: None)
        tff.framework.set_default_context(tff.framework.SyncExecutionContext(nothing))
