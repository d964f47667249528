"""Where TFF computes: a worker of this machine, workers of other machines. Imports neither TensorFlow nor TFF by itself."""

from tffcl.runtime.local_worker import (
    CHANNEL_OPTIONS,
    LARGE_WORKER,
    MESSAGE_BYTES,
    Address,
    RemoteWorkers,
    Worker,
    WorkerSettings,
    connect,
    context_options,
    lanes,
    renew_local_worker,
    serve,
    stop_local_worker,
    use_local_worker,
    worker_binary,
    worker_count,
)

__all__ = [
    "CHANNEL_OPTIONS", "LARGE_WORKER", "MESSAGE_BYTES", "Address", "RemoteWorkers", "Worker", "WorkerSettings", "connect", "context_options",
    "lanes", "renew_local_worker", "serve", "stop_local_worker", "use_local_worker", "worker_binary", "worker_count",
]  # fmt: skip
