"""What listens where a worker should: each kind of it is refused in a line that names the place, in seconds."""

import contextlib
import socket
import threading
import time
from concurrent import futures

import grpc
import pytest

from tffcl.errors import UserError
from tffcl.runtime import RemoteWorkers, remote_workers

CALLS = tuple("GetExecutor CreateValue CreateCall CreateStruct CreateSelection Compute Dispose DisposeExecutor".split())
SETTINGS_FRAME = b"\0\0\0\4\0\0\0\0\0"  # with which an HTTP/2 server begins


@contextlib.contextmanager
def listening(talk):
    """A server that lets `talk(connection)` have each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=quietly, args=(server.accept()[0],), daemon=True).start()

        def quietly(connection):
            with contextlib.suppress(OSError), connection:
                talk(connection)

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def answering(answer):
    """A gRPC server whose calls are TFF's, all answered by `answer(request, context)`; None knows none of them."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    if answer:
        handlers = {name: grpc.unary_unary_rpc_method_handler(answer) for name in CALLS}
        for group in ("tensorflow_federated.v0.ExecutorGroup", "tensorflow_federated.v0.Executor"):
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(group, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


@contextlib.contextmanager
def nobody():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def no_such_host():
    yield "nosuch.invalid:10000"


def refuse(code):
    return lambda request, context: context.abort(code, "a server's own reason\nof two lines")


FAKES = {
    "nobody": nobody,
    "no such host": no_such_host,
    "closes at once": lambda: listening(lambda connection: None),
    "says nothing": lambda: listening(lambda connection: time.sleep(20)),
    "speaks HTTP": lambda: listening(lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")),
    "speaks garbage": lambda: listening(lambda connection: connection.sendall(bytes(range(256)))),
    "closes after the first words": lambda: listening(lambda connection: connection.sendall(SETTINGS_FRAME)),
    "knows none of the calls": lambda: answering(None),
    "answers nothing at all": lambda: answering(lambda request, context: b""),
    "answers something else": lambda: answering(lambda request, context: b"\x0a\x03abc"),
    "answers no message": lambda: answering(lambda request, context: b"\xff\xff\xff"),
    "fails inside": lambda: answering(refuse(grpc.StatusCode.INTERNAL)),
    "wants credentials": lambda: answering(refuse(grpc.StatusCode.UNAUTHENTICATED)),
    "has no room": lambda: answering(refuse(grpc.StatusCode.RESOURCE_EXHAUSTED)),
}


# Of these nothing that gRPC understands ever comes: how long a worker may be silent is all that they take.
SILENT = ("closes at once", "says nothing", "speaks HTTP", "speaks garbage")


@pytest.mark.parametrize("fake", FAKES)
def test_what_is_no_worker_is_told_in_a_line(fake, worker):
    start = time.monotonic()
    try:
        with FAKES[fake]() as target, pytest.raises(UserError) as told:
            remote_workers.use_workers(RemoteWorkers.parse(target, 0.2 if fake in SILENT else 1.0))
    finally:
        worker.use_local_worker()
    assert target in str(told.value) and "\n" not in str(told.value) and len(str(told.value)) < 500
    assert time.monotonic() - start < 60
