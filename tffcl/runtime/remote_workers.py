"""Several TFF workers, on this machine or on others, as one execution context.

TFF's own mergeable context divides the clients of a computation among the workers; each computes its share, and the
partial aggregates are merged. This module adds that the workers compute at the same time (TFF 0.87's remote executor
blocks the one event loop that they share there), and that the share of a worker that ends or hangs goes to another.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import importlib.metadata
import logging
import os
import socket
import sys
import threading
import time
import weakref

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.errors import RESUME, UserError
from tffcl.runtime import Address, RemoteWorkers
from tffcl.runtime.addresses import open_channel
from tffcl.runtime.local_worker import LEAVING_SECONDS

_LOOK_SECONDS = 2.0  # to look for a lost worker, while the round waits
_TRIAL_SECONDS = 120.0  # for the first computation of a worker that keeps answering, but is slow
_REFUSED_SECONDS = 0.5  # between two checks whether a worker still accepts connections

# When no worker is left, every share fails, and asyncio would print a traceback for all but the first.
logging.getLogger("asyncio").addFilter(lambda record: "exception was never retrieved" not in record.getMessage())

# gRPC watches a channel in a thread, which fails if the channel is closed just then, as when a worker is given up.
_excepthook = threading.excepthook


def _quietly(args):
    if not (isinstance(args.exc_value, ValueError) and "Channel closed" in str(args.exc_value)):
        _excepthook(args)


threading.excepthook = _quietly


class WorkerLost(Exception):
    """A worker does not answer any more; the message says which one, and how this was noticed."""


def _forwarded(name: str, *, to_lost: bool = True):
    def call(self, request):
        if to_lost or not self._worker.lost:
            return self._call(name, request)

    return call


class _Stub(tff.framework.RemoteExecutorStub):
    """Calls one worker, counts the bytes of the messages, and does not call a lost worker again."""

    def __init__(self, worker: "RemoteWorker", channel: grpc.Channel):
        self._worker = worker
        self._inner = tff.framework.RemoteExecutorGrpcStub(channel)

    def _call(self, name, request):
        worker = self._worker
        worker.check()
        worker.sent_bytes += request.ByteSize()
        try:
            response = getattr(self._inner, name)(request)
        except grpc.RpcError as error:
            worker.check()
            if isinstance(error, tff.framework.RetryableError) and not worker.answers():
                worker.lose("the connection broke and a new one is not answered")
                worker.check()
            raise  # TFF sends everything again to a worker that was restarted
        worker.received_bytes += response.ByteSize()
        return response

    get_executor = _forwarded("get_executor")
    create_value = _forwarded("create_value")
    create_struct = _forwarded("create_struct")
    create_call = _forwarded("create_call")
    create_selection = _forwarded("create_selection")
    compute = _forwarded("compute")
    dispose = _forwarded("dispose", to_lost=False)
    dispose_executor = _forwarded("dispose_executor", to_lost=False)

    @property
    def is_ready(self):
        return self._inner.is_ready


class RemoteWorker:
    """A connection to a worker, and the thread in which calls to it wait.

    Attributes:
      address: Where it listens.
      silence: Seconds without an answer after which it counts as lost.
      lost: How it was lost, or None.
      lost_since: When it was lost, or last looked for since, by `time.monotonic`.
      sent_bytes: The bytes of all messages to it.
      received_bytes: The bytes of all messages from it.
    """

    def __init__(self, address: Address, silence: float):
        self.address, self.silence = address, silence
        self.lost: str | None = None
        self.lost_since = 0.0
        self.sent_bytes = self.received_bytes = 0
        self._channel = open_channel(str(address))
        self._stub = _Stub(self, self._channel)
        self._context = tff.framework.AsyncExecutionContext(**runtime.context_options(self._stub))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"tff-worker-{address}", daemon=True)
        self._thread.start()
        _connected.add(self)

    def check(self):
        """Raises WorkerLost if it is lost."""
        if self.lost:
            raise WorkerLost(f"the worker at {self.address} is lost: {self.lost}")

    def lose(self, why: str):
        """Gives the worker up: calls that wait for it fail."""
        if not self.lost:
            self.lost, self.lost_since = why, time.monotonic()
        self._channel.close()

    def leave(self):
        """Ends the connection and its thread."""
        self._channel.close()  # a call that waits fails
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LEAVING_SECONDS)

    def answers(self, seconds: float | None = None) -> bool:
        """Whether the worker accepts and answers a new connection within `seconds`, by default those of `silence`.

        A process that is stopped or a machine that hangs may still accept connections, but does not answer them. A
        worker that computes answers at once, in another thread.
        """
        deadline = time.monotonic() + (seconds or self.silence)
        # Without a pool of its own, a channel shares the connection that already exists.
        options = [*runtime.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(str(self.address), options) as channel:
            ready = grpc.channel_ready_future(channel)
            # A process that has just been killed accepts connections until the system has closed its sockets. A channel
            # that is then refused keeps trying, so this loop checks again and again whether it is refused.
            while self._accepts(left := deadline - time.monotonic()):
                with contextlib.suppress(grpc.FutureTimeoutError):
                    ready.result(timeout=min(_REFUSED_SECONDS, left))
                    return True
            ready.cancel()
        return False

    def _accepts(self, seconds: float) -> bool:
        try:
            host = self.address.host.removeprefix("[").removesuffix("]")  # only gRPC has brackets around IPv6 addresses
            socket.create_connection((host, self.address.port), timeout=max(seconds, 0.001)).close()
        except (OSError, UnicodeError):  # the latter if it cannot be the name of a host
            return False
        return seconds > 0

    def connect(self):
        """Makes sure that the worker is there and computes as this version of TFF does.

        Raises:
          UserError: If it does not answer, or not as a worker of this version would.
        """
        if not self.answers():
            raise UserError(
                f"no TFF worker answers at {self.address} (waited {self.silence:g} s at most); start one there: "
                f"tffcl worker --port {self.address.port}"
            )
        call = asyncio.run_coroutine_threadsafe(self._try(), self._loop)
        deadline = time.monotonic() + max(_TRIAL_SECONDS, self.silence)
        while not call.done():
            concurrent.futures.wait([call], timeout=max(self.silence, 1.0))
            if call.done():
                break
            if not self.answers():
                self.lose("it fell silent in the first computation")
                raise UserError(
                    f"the TFF worker at {self.address} fell silent for {self.silence:g} s in a first small computation"
                )
            if time.monotonic() > deadline:
                self.lose("it is too slow")
                raise UserError(
                    f"the TFF worker at {self.address} answers, but has not done a first small computation within "
                    f"{_TRIAL_SECONDS:g} s: its machine has too much else to do"
                )
        try:
            found = call.result()
        except Exception as error:
            self.lose("it failed the first computation")
            reason = (error.details() if isinstance(error, grpc.Call) else str(error)) or type(error).__name__
            raise UserError(_foreign(self.address, reason.splitlines()[0][:200])) from None
        if found != _TRIED_RESULT:
            raise UserError(_foreign(self.address, f"it computed {found} instead of {_TRIED_RESULT}"))

    async def _try(self):
        computation, argument = _build_trial()
        total, rows = await self._context.invoke(computation, argument)
        return int(total), np.asarray(rows).tolist()

    async def invoke(self, comp, arg):
        """Runs a computation on this worker; the caller's event loop stays free.

        Raises:
          WorkerLost: If the worker ends or falls silent before it has answered.
        """
        call = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._context.invoke(comp, arg), self._loop))
        call.add_done_callback(lambda done: done.cancelled() or done.exception())  # even if nobody waits any more
        while not call.done():
            await asyncio.wait({call}, timeout=self.silence / 2)
            if not call.done() and not await asyncio.to_thread(self.answers):
                self.lose(f"it has not answered for {self.silence:g} s")
        try:
            return call.result()
        except Exception:
            self.check()  # the error of a lost worker's call does not show the reason
            raise


_connected: "weakref.WeakSet[RemoteWorker]" = weakref.WeakSet()


@atexit.register
def _leave_all():
    # A thread that still waits inside gRPC when the interpreter shuts down aborts the process ("exception not
    # rethrown").
    for worker in list(_connected):
        worker.leave()


def _in_child():
    for worker in list(_connected):
        worker.lost = "this process was forked, and the connection is its parent's"
    _connected.clear()


os.register_at_fork(after_in_child=_in_child)


def _foreign(address: Address, reason: str) -> str:
    return (
        f"what listens at {address} does not compute as a worker of tensorflow-federated "
        f"{importlib.metadata.version('tensorflow-federated')} does ({reason}); "
        f"start one there from the same version: tffcl worker --port {address.port}"
    )


_TRIED_RESULT = (6, [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])


def _build_trial():
    """Builds a computation that uses what rounds use: sequences, a sum, a custom aggregation of unknown size."""

    @tff.tensorflow.computation(tff.SequenceType(np.int32))
    def add_up(numbers):
        return numbers.reduce(np.int32(0), lambda total, number: total + number)

    @tff.tensorflow.computation(tff.SequenceType(np.int32))
    def row(numbers):
        return tf.range(2.0)[tf.newaxis] + tf.cast(numbers.reduce(0, lambda total, _: total), tf.float32)

    rows_type = tff.TensorType(np.float32, [None, 2])

    @tff.tensorflow.computation
    def none():
        return tf.compat.v1.placeholder_with_default(np.zeros([0, 2], np.float32), [None, 2])

    @tff.tensorflow.computation(rows_type, tff.TensorType(np.float32, [1, 2]))
    def append(rows, new):
        return tf.concat([rows, new], 0)

    @tff.tensorflow.computation(rows_type, rows_type)
    def join(first, second):
        return tf.concat([first, second], 0)

    @tff.tensorflow.computation(rows_type)
    def as_it_is(rows):
        return tf.identity(rows)

    @tff.federated_computation(tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS))
    def trial(numbers):
        rows = tff.federated_aggregate(tff.federated_map(row, numbers), none(), append, join, as_it_is)
        return tff.federated_sum(tff.federated_map(add_up, numbers)), rows

    return trial, [[1], [2], [3]]


class _Share(tff.framework.AsyncContext):
    """One worker's share of every computation, which goes to another worker if that one is lost."""

    def __init__(self, workers: list[RemoteWorker], place: int):
        self._workers, self._place = workers, place
        self.whole_type = None  # the type of the argument of the computation that is being shared

    async def invoke(self, comp, arg):
        if self._is_after_merge(comp.type_signature):
            arg = without_clients(arg, comp.type_signature.parameter)
        return await self.run(comp, arg)

    async def run(self, comp, arg):
        """Runs a computation unchanged on a worker that is not lost."""
        while True:
            worker = self._next()
            try:
                return await worker.invoke(comp, arg)
            except WorkerLost as error:
                print(f"\ntffcl: {error}; its share of the round goes to {self._next().address}", file=sys.stderr)

    def _is_after_merge(self, signature: tff.FunctionType) -> bool:
        """Whether this is the last part of a computation, after the aggregation, and all its results are the server's.

        TFF passes the whole argument to that part again, including the clients' examples, which it does not use.
        """
        parameter = signature.parameter
        return (
            self.whole_type is not None
            and isinstance(parameter, tff.StructType)
            and len(parameter) == 2
            and parameter[0].is_equivalent_to(self.whole_type)
            and not any(placements(signature.result, tff.CLIENTS))
        )

    def _next(self) -> RemoteWorker:
        order = [*self._workers[self._place :], *self._workers[: self._place]]
        worker = next((each for each in order if not each.lost), None)
        if worker is None:
            why = "; ".join(f"{each.address}: {each.lost}" for each in self._workers)
            raise UserError(f"no worker is left ({why}); start them again and use {RESUME}")
        return worker


class _Lane(tff.framework.SyncContext):
    """Runs whole computations on one worker, or on another one if that one is lost."""

    def __init__(self, share: _Share):
        self._share = share

    def invoke(self, comp, arg=None):
        """See `tff.framework.SyncContext`."""
        return asyncio.run(self._share.run(comp, arg))


class WorkersContext(tff.framework.SyncContext):
    """Divides the clients of every computation among workers.

    Attributes:
      workers: The workers, in the order of their addresses.
    """

    def __init__(self, workers: list[RemoteWorker]):
        self.workers = workers
        self._shares = [_Share(workers, place) for place in range(len(workers))]
        self._mergeable = tff.backends.native.create_mergeable_comp_execution_context(self._shares)

    @property
    def lanes(self) -> list[tff.framework.SyncContext]:
        """A context for each worker, in which a block of a round's clients computes.

        Lost workers that are back are used again.
        """
        self._look_for_lost()
        return [_Lane(share) for share in self._shares]

    def invoke(self, comp, arg=None):
        """See `tff.framework.SyncContext`. Lost workers that are back are used again."""
        self._look_for_lost()
        for share in self._shares:
            share.whole_type = comp.type_signature.parameter
        return self._mergeable.invoke(comp, deal(arg, comp.type_signature.parameter, len(self.workers)))

    def _look_for_lost(self):
        for place, worker in enumerate(self.workers):
            if not worker.lost or time.monotonic() - worker.lost_since < worker.silence:
                continue
            worker.lost_since = time.monotonic()  # the next look comes as long after this one
            if worker.answers(_LOOK_SECONDS):
                fresh = RemoteWorker(worker.address, worker.silence)
                with contextlib.suppress(UserError):
                    fresh.connect()
                    self.workers[place] = fresh  # the shares have the same list
                    print(f"\ntffcl: the worker at {fresh.address} is back", file=sys.stderr)


_current: WorkersContext | None = None


def use_workers(remote: RemoteWorkers) -> WorkersContext:
    """Makes running workers TFF's default context. Those already in use stay if the addresses are the same and one of
    them answers: the next of several runs goes on without a lost one, as the next round does.

    Args:
      remote: The addresses at which they listen.

    Raises:
      UserError: If one is not there, or does not compute a small trial correctly.
    """
    global _current
    if not isinstance(remote, RemoteWorkers):
        wanted = 'a tffcl.RemoteWorkers, as RemoteWorkers.parse("host:10000,...") makes one'
        raise UserError(f"workers is of {type(remote).__name__}; it must be {wanted}")
    known = _current.workers if _current else []
    same = [worker.address for worker in known] == list(remote.addresses)  # else the earlier ones are not asked
    if not (same and [worker for worker in known if _still_there(worker)]):
        workers = [RemoteWorker(address, remote.silence) for address in remote.addresses]
        for worker in workers:
            worker.connect()
        _current = WorkersContext(workers)
    for worker in _current.workers:
        worker.silence = remote.silence
    runtime.make_default(_current)
    return _current


def _still_there(worker: RemoteWorker) -> bool:
    if not worker.lost and not worker.answers():
        worker.lose("it does not answer any more")
        print(f"\ntffcl: the worker at {worker.address} does not answer any more", file=sys.stderr)
    return not worker.lost


def deal(argument, type_spec, hands: int):
    """Reorders the clients so that contiguous shares get every `hands`-th of them.

    A round's clients come largest first, and TFF divides them into contiguous shares: the first worker would get all
    the large ones. All values at clients are reordered in the same way.
    """
    if argument is None or hands == 1:
        return argument
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.placement is not tff.CLIENTS or type_spec.all_equal or not isinstance(argument, (list, tuple)):
            return argument
        return [each for hand in range(hands) for each in argument[hand::hands]]
    if isinstance(type_spec, tff.StructType) and isinstance(argument, tff.structure.Struct):
        types = [each for _, each in tff.structure.iter_elements(type_spec)]
        elements = zip(tff.structure.iter_elements(argument), types, strict=True)
        return tff.structure.Struct([(name, deal(value, kind, hands)) for (name, value), kind in elements])
    return argument


def placements(type_spec, placement):
    """Yields the parts of a type that are at a placement."""
    if isinstance(type_spec, tff.FederatedType):
        if type_spec.placement is placement:
            yield type_spec
    elif isinstance(type_spec, tff.StructType):
        for part in type_spec:
            yield from placements(part, placement)


def without_clients(argument, type_spec):
    """Returns an argument without its clients; what is at the server stays."""
    if isinstance(type_spec, tff.FederatedType):
        return [] if type_spec.placement is tff.CLIENTS and not type_spec.all_equal else argument
    if isinstance(type_spec, tff.StructType) and any(placements(type_spec, tff.CLIENTS)):
        parts = zip(tff.structure.name_list_with_nones(type_spec), tff.structure.from_container(argument), type_spec)
        return tff.structure.Struct([(name, without_clients(part, kind)) for name, part, kind in parts])
    return argument
