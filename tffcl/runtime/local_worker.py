"""TFF's default context over a worker on this machine, and the other contexts of computations."""

import atexit
import os
import sys
import threading
import weakref

from tffcl.errors import UserError
from tffcl.runtime.worker_process import Worker, WorkerSettings

LEAVING_SECONDS = 10.0  # for threads that wait for a worker when the process ends
LARGE_WORKER = 400_000_000  # bytes; after a run of small models, a worker has half as many


def context_options(stub) -> dict:
    """Returns the arguments of a TFF execution context, synchronous or not, over one worker.

    Args:
      stub: Calls the worker; an error that the stub raises ends the computation.
    """
    import tensorflow_federated as tff

    from tffcl.runtime.executor import WorkerExecutor

    def stack(cardinalities):
        # Values are released one by one: with the default, twenty at a time, those of several blocks would stay.
        executor = WorkerExecutor(stub, dispose_batch_size=1)
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
_second_context = None  # for the same worker: while that computes, the next block's argument is packed


def use_local_worker(settings: WorkerSettings | None = None) -> Worker:
    """Makes a worker on this machine TFF's default context: the running one if it is alive, else a new one.

    Args:
      settings: How the worker uses the machine; a running worker with other settings is replaced.

    Returns:
      The worker. It ends with this process, or with `stop_local_worker`.

    Raises:
      UserError: If another context is installed over the default one, and its results are awaited.
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
            _context, _second_context = (tff.framework.SyncExecutionContext(**context_options(stub)) for _ in range(2))
        except BaseException:
            worker.stop()
            raise
        _local = worker
    make_default(_context)
    return _local


def make_default(context):
    """Makes a context TFF's default; raises UserError in a block of one with awaited results, which would go first."""
    import tensorflow_federated as tff

    tff.framework.set_default_context(context)
    installed = tff.framework.get_context_stack().current
    if isinstance(installed, (tff.framework.AsyncContext, tff.program.FederatedContext)):
        raise UserError(
            f"this is inside a block of a TFF context of {type(installed).__name__}, whose results are awaited; leave "
            "the block, or install a synchronous one, as tff.backends.native.create_sync_local_cpp_execution_context()"
        )


def lanes() -> list:
    """Returns the TFF contexts in which blocks of a round can compute at the same time, in threads: two over the local
    worker, one for each of several workers, or just the default context if it is none of these."""
    import tensorflow_federated as tff

    current = tff.framework.get_context_stack().current
    if current is _context and _context is not None:
        return [_context, _second_context]
    return getattr(current, "lanes", None) or [current]


def computes_here() -> bool:
    """Returns whether computations run on this machine, on the cores that this process uses, too."""
    import tensorflow_federated as tff

    return not hasattr(tff.framework.get_context_stack().current, "workers")


def worker_count() -> int:
    """Returns how many workers share a round's clients."""
    import tensorflow_federated as tff

    return len(getattr(tff.framework.get_context_stack().current, "workers", [None]))


def renew_local_worker(above: int = 0):
    """Replaces the running worker by a fresh one with the same settings; no effect if none is running.

    A worker keeps the graphs and the memory of everything it has computed: gigabytes after a few runs.

    Args:
      above: A worker with at most so many bytes of memory is kept, since a fresh one takes a second.
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


@atexit.register
def _end():
    stop_local_worker()
    # An interrupted computation may have left a thread of TFF in a call of gRPC, which fails now. If the interpreter
    # shuts down with a thread in such a call, the process is aborted ("exception not rethrown").
    for context in filter(None, (_context, _second_context)):
        runner = context._async_runner
        runner._event_loop.call_soon_threadsafe(runner._event_loop.stop)
        runner._thread.join(LEAVING_SECONDS)


@atexit.register
def _drop_tffs_own_context():
    # TFF's own default context prints a traceback from its destructor when the interpreter shuts down.
    tff = sys.modules.get("tensorflow_federated")
    if tff is not None and _context is None:
        nothing = tff.framework.ResourceManagingExecutorFactory(lambda cardinalities: None)
        tff.framework.set_default_context(tff.framework.SyncExecutionContext(nothing))


_compiled = {}  # by the computation's id: (a weak reference to it, the compiled computation)
_lock = threading.Lock()


def compile_once(computation):
    """Compiles a computation as TFF's native runtime does, and keeps the result for as long as the computation lives.

    A TFF context keeps its compiled computations to itself: a worker that replaces another, and each of several
    workers, would compile the same rounds again, which takes seconds each time.

    Args:
      computation: A `tff.framework.ConcreteComputation`.

    Returns:
      The result of `tff.backends.native.desugar_and_transform_to_native`.
    """
    import tensorflow_federated as tff

    key = id(computation)  # TFF's hash of a computation serializes all of it
    with _lock:
        if key in _compiled:
            return _compiled[key][1]
        made = tff.backends.native.desugar_and_transform_to_native(computation)
        if made is not computation:  # TFF returns it if it cannot compile it; kept, it would live for ever
            # The callback must not take the lock: it may run while this thread holds it.
            _compiled[key] = weakref.ref(computation, lambda _: _compiled.pop(key, None)), made
        return made


_without_threads = False


def check_process():
    """Raises UserError if TensorFlow cannot compute in this process."""
    if _without_threads:
        raise UserError(
            "this process was forked from one in which TensorFlow has computed, whose threads it lacks; start "
            'processes by multiprocessing.get_context("spawn")'
        )


def _in_child():
    global _local, _without_threads
    _local = None  # a forked process that ends must not end the worker
    module = sys.modules.get("tensorflow.python.eager.context")
    context = module and module.context_safe()
    _without_threads = _without_threads or (context is not None and context._context_handle is not None)


os.register_at_fork(after_in_child=_in_child)
