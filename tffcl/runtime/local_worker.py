"""TFF's default context over a worker of this machine, and what else computations run in."""

import atexit
import os
import sys

from tffcl.errors import UserError
from tffcl.runtime.compiling import compile_once
from tffcl.runtime.connecting import ENDED
from tffcl.runtime.forking import check_process
from tffcl.runtime.worker_process import Worker, WorkerSettings

_LEAVING_SECONDS = 10.0
LARGE_WORKER = 400_000_000  # bytes: what a run of small models leaves is half of it


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
            raise UserError(ENDED)

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
    check_process()
    import tensorflow_federated as tff

    settings = settings or (_local.settings if _local else WorkerSettings())
    if not (_local and _local.alive() and _local.settings == settings):
        stop_local_worker()
        worker = Worker(settings, private=True).start()
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


def stop_local_worker():
    """Ends the worker that `use_local_worker` started; no effect if there is none."""
    global _local
    worker, _local = _local, None
    if worker:
        worker.stop()


def _leave_to_parent():
    global _local
    _local = None  # a forked process that ends must not end it


os.register_at_fork(after_in_child=_leave_to_parent)


@atexit.register
def _end():
    stop_local_worker()
    # Who was interrupted may have left a thread of TFF in a call of gRPC, which fails now. When the interpreter is taken down
    # with a thread in there, the process is aborted ("exception not rethrown").
    for context in filter(None, (_context, _second_context)):
        runner = context._async_runner
        runner._event_loop.call_soon_threadsafe(runner._event_loop.stop)
        runner._thread.join(_LEAVING_SECONDS)


@atexit.register
def _drop_tffs_own_context():
    # TFF's own default context prints a traceback from its destructor when the interpreter takes it down.
    tff = sys.modules.get("tensorflow_federated")
    if tff is not None and _context is None:
        nothing = tff.framework.ResourceManagingExecutorFactory(lambda cardinalities: None)
        tff.framework.set_default_context(tff.framework.SyncExecutionContext(nothing))
