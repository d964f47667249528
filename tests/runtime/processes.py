"""Worker processes of this machine that are nobody's default, spoken to as if they were on others."""

import contextlib

from tffcl import runtime

SILENCE = 60.0  # on a busy machine a worker that lives may be silent for seconds


@contextlib.contextmanager
def pair_of_workers():
    """Gives a block two of them."""
    processes = Processes()
    processes.start(2)
    yield processes
    for worker in processes.started:
        worker.stop()


class Processes:
    """Workers that were started by a test, for it to end."""

    def __init__(self):
        self.started = []

    def start(self, count):
        workers = [runtime.Worker(runtime.WorkerSettings(cores=1)).start() for _ in range(count)]
        self.started += workers
        for worker in workers:
            runtime.connect(worker.target, alive=worker.alive)
        return workers

    def use(self, workers, silence=SILENCE):
        from tffcl.runtime.remote_workers import use_workers

        return use_workers(runtime.RemoteWorkers.parse(",".join(worker.target for worker in workers), silence))
