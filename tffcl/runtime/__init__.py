"""Where TFF computes: a worker of this machine, workers of other machines. Imports neither TensorFlow nor TFF by itself."""

from tffcl.runtime.addresses import Address, RemoteWorkers
from tffcl.runtime.connecting import CHANNEL_OPTIONS, MESSAGE_BYTES, connect
from tffcl.runtime.forking import check_process
from tffcl.runtime.local_worker import (
    LARGE_WORKER,
    context_options,
    lanes,
    renew_local_worker,
    stop_local_worker,
    use_local_worker,
    worker_count,
)
from tffcl.runtime.serving import serve
from tffcl.runtime.worker_process import Worker, WorkerSettings, worker_binary

__all__ = [
    "CHANNEL_OPTIONS", "LARGE_WORKER", "MESSAGE_BYTES", "Address", "RemoteWorkers", "Worker", "WorkerSettings", "check_process", "connect", "context_options",
    "lanes", "renew_local_worker", "serve", "stop_local_worker", "use_local_worker", "worker_binary", "worker_count",
]  # fmt: skip
