"""TFF's worker as a process on this machine that ends with this process.

TFF starts its C++ worker as a child that inherits standard output and cannot be configured. Here the same binary is
started with its streams detached, with TensorFlow's thread counts in its own environment, and with a parent-death
signal, so that it ends with this process even after `kill -9`. It is then called as if it were a remote worker.

The binary of TFF 0.87 listens on all interfaces, without encryption or credentials. Its only option for this is the
number `--port`, so that neither an address nor a Unix-domain socket can be named; and since it knows no credentials, a
token on this side would keep nobody out. Therefore a private worker is started in a network namespace of its own, where
nobody else can reach its port. The only way in is a Unix-domain socket in a directory that only this user can enter
(see `worker_launcher`). This costs one small process and a copy of each message. If the system allows no namespace
(some containers, and systems that forbid user namespaces to all but root), the worker listens on a port that is drawn
for each process, and `tffcl doctor` says so.
"""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from tffcl.errors import UserError
from tffcl.runtime.addresses import connect, open_channel

_LAUNCHER = pathlib.Path(__file__).with_name("worker_launcher.py")
_LONGEST_DOOR = 100  # bytes of the path of a Unix-domain socket


def worker_binary() -> pathlib.Path:
    """Returns the path of the worker that the installed TensorFlow Federated ships.

    The path is found without importing TFF, which takes seconds.

    Raises:
      UserError: If TFF is not installed or its wheel has no worker.
    """
    spec = importlib.util.find_spec("tensorflow_federated")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "tensorflow-federated is not installed; install it with tffcl: python -m pip install uv && uv sync"
        )
    path = pathlib.Path(spec.submodule_search_locations[0]) / "data" / "worker_binary"
    if not path.is_file():
        raise UserError(f"TFF's worker binary is missing at {path}; tensorflow-federated's wheel has it on Linux only")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _usable_cores() -> int:
    """Returns how many cores this process may use: those that it is bound to, but in a container no more than its share
    of the machine's time is worth."""
    import joblib  # takes a fifth of a second

    return joblib.cpu_count()


@dataclasses.dataclass(frozen=True)
class WorkerSettings:
    """How a local worker uses the machine.

    Attributes:
      cores: How many client computations run at a time. One core each is the fastest way to share a machine among
        clients: their models are too small for a step to be split over cores. The default is the number of cores that
        this process may use.
    """

    cores: int = dataclasses.field(default_factory=_usable_cores)

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
            # By default TensorFlow builds the gradients of convolutions again in every step.
            "TF_MKL_OPTIMIZE_PRIMITIVE_MEMUSE": os.environ.get("TF_MKL_OPTIMIZE_PRIMITIVE_MEMUSE", "false"),
            # Threads that compute clients wait for each other if they share one of glibc's memory arenas, which are
            # given to threads in turn. With one arena per core, two threads share one in a quarter of all workers,
            # which then take twice as long; glibc's default, eight per core, keeps what many threads freed.
            "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", str(4 * self.cores)),
        }


class Worker:
    """A TFF worker process on this machine, which ends with this process whatever happens.

    Attributes:
      settings: How it uses the machine.
      port: Where it listens, on all interfaces, unless it is private.
      pid: The worker's process ID; None before it is started.
      open_because: Why it is not private; "" if it is, or was not asked to be.
    """

    def __init__(self, settings: WorkerSettings = WorkerSettings(), port: int | None = None, *, private: bool = False):
        """Makes a worker that is not started yet.

        Args:
          settings: How it uses the machine.
          port: Where it listens; default a free one.
          private: Whether only this user gets in, if the system allows that.
        """
        self.port, self.settings, self.pid, self.open_because = port or _free_port(), settings, None, ""
        self._door = None
        if private:
            self._door = os.path.join(tempfile.mkdtemp(prefix="tffcl-worker-"), "door")
        self._process, self._owner = None, os.getpid()
        self._channels = []
        self._started = threading.Event()
        self._failure = None

    @property
    def resident_bytes(self) -> int:
        """The bytes that the process has in memory; 0 if it has ended."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return 0

    @property
    def target(self) -> str:
        """The worker's address, as gRPC writes it."""
        return f"unix:{self._door}" if self._door else f"localhost:{self.port}"

    def start(self) -> "Worker":
        """Starts the process (it answers about a second later; see `connect`)."""
        # Linux sends the parent-death signal when the *thread* that forked ends, so a thread that lives as long as the
        # worker does the forking.
        threading.Thread(target=self._fork_and_wait, name="tff-worker", daemon=True).start()
        self._started.wait()
        if self._failure:
            self._leave_door()
            raise UserError(f"TFF's worker does not start: {self._failure}")
        return self

    def _fork_and_wait(self):
        try:
            door = self._door or ""
            if len(os.fsencode(door)) > _LONGEST_DOOR:
                self.open_because, door = f"the name of the temporary directory {os.path.dirname(door)} is too long", ""
            launch = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), door]
            worker = [str(worker_binary()), f"--port={self.port}"]
            self._process = subprocess.Popen(
                [*launch, *worker, f"--max_concurrent_computation_calls={self.settings.cores}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self.settings.environment(),
                # Ctrl-C is for this process, which saves what there is and then ends the worker. A process group is
                # enough for that; in a session of its own `nice` would not reach the worker, since Linux divides its
                # time among sessions first.
                process_group=0,
            )
            with self._process.stdout as output:
                for line in output:
                    kind, _, about = line.strip().partition(" ")
                    if kind == "open:":
                        self.open_because = about
                    elif kind == "worker":
                        self.pid = int(about)
                        break
            if self.pid is None:
                self._failure = "its launcher ended"
            if self.open_because:
                self._leave_door()
        except (OSError, UserError) as error:
            self._failure = error
            return
        finally:
            self._started.set()
        self._process.wait()

    def _leave_door(self):
        if self._door:
            for remove, path in ((os.unlink, self._door), (os.rmdir, os.path.dirname(self._door))):
                with contextlib.suppress(OSError):
                    remove(path)
            self._door = None

    def alive(self) -> bool:
        """Whether it runs and answers this process. A forked process lacks the threads of a connection, and would wait
        for ever when it releases values that its parent got from the worker."""
        return self._owner == os.getpid() and self._process is not None and self._process.poll() is None

    def connect(self):
        """Returns the stub of `addresses.connect`, over a connection that `stop` closes."""
        channel = open_channel(self.target)
        self._channels.append(channel)
        return connect(self.target, alive=self.alive, channel=channel)

    def stop(self):
        """Ends the process and the connections to it, each of which has a thread; no effect if they have ended, or in a
        process that was forked from the one that made the worker."""
        if self._owner != os.getpid():
            return
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                # it holds nothing that could be lost; the process at its door ends with it
                os.kill(self.pid, signal.SIGKILL)
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._leave_door()
        while self._channels:
            self._channels.pop().close()


def serve(port: int, settings: WorkerSettings):
    """Runs a worker for others until this process is ended: by SIGTERM with exit code 0.

    Raises:
      UserError: If the port is taken, or the worker ends unasked.
    """
    _check_free(port)
    # The first process of a container ignores the signal unless it has a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    worker = Worker(settings, port).start()
    try:
        while not _listens(port):
            if not worker.alive():
                raise UserError(f"TFF's worker ended while starting on port {port}; is memory short?")
            time.sleep(0.05)
        tff, host = importlib.metadata.version("tensorflow-federated"), socket.gethostname()
        print(_NOTICE.format(port=port, cores=settings.cores, host=host, version=tff), flush=True)
        while worker.alive():
            time.sleep(0.5)
        raise UserError(f"TFF's worker on port {port} has ended: was it killed, or is memory short?")
    finally:
        worker.stop()


_NOTICE = """\
tffcl worker: TensorFlow Federated {version}, port {port}, {cores} client computations at a time. Ctrl-C ends it.
It takes unencrypted gRPC from everyone who can reach port {port} on any address of this machine, and runs what they \
send:
TFF's worker can be bound to no single address. Close the port to others, and reach it through an encrypted tunnel:
  ssh -N -L {port}:localhost:{port} {host}        (on the machine that runs the rounds)
  tffcl run ... --workers localhost:{port}"""


def _check_free(port: int):
    """Raises UserError if the port is taken. gRPC would share it with another server, and each would get some calls."""
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
