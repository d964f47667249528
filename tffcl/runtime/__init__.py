"""Where TFF computes: a worker on this machine, or workers on others. Importing it loads neither TensorFlow nor TFF."""

from tffcl.runtime.addresses import CHANNEL_OPTIONS, MESSAGE_BYTES, Address, RemoteWorkers, connect
from tffcl.runtime.local_worker import (
    LARGE_WORKER,
    check_process,
    computes_here,
    context_options,
    lanes,
    make_default,
    renew_local_worker,
    stop_local_worker,
    use_local_worker,
    worker_count,
)
from tffcl.runtime.worker_process import Worker, WorkerSettings, serve, worker_binary

__all__ = [
    "CHANNEL_OPTIONS", "LARGE_WORKER", "MESSAGE_BYTES", "Address", "RemoteWorkers", "Worker", "WorkerSettings",
    "check_process", "computes_here", "connect", "context_options",
    "lanes", "make_default", "renew_local_worker", "serve", "stop_local_worker", "use_local_worker", "worker_binary",
    "worker_count",
]  # fmt: skip
