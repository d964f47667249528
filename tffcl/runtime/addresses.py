"""Addresses of the workers that share a round's clients, and connections to them."""

import contextlib
import dataclasses
import re
import socket
import time

from tffcl.errors import UserError


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a worker listens."""

    host: str
    port: int

    def __str__(self):
        return f"{self.host}:{self.port}"


_THIS_MACHINE = ("127.0.0.1", "::1", "0.0.0.0", "::", "localhost")  # all of these connect to this machine
_LONGEST_SILENCE = 1_000_000  # seconds; the timeout of sockets has a limit not far above
_PARSED = 'RemoteWorkers.parse("10.0.0.5:10000,10.0.0.6:10000") makes them of a text'


@dataclasses.dataclass(frozen=True)
class RemoteWorkers:
    """Running workers that share each round's clients, see `remote_workers.use_workers`.

    Attributes:
      addresses: The addresses at which they listen; each is used once.
      silence: Seconds without an answer after which a worker counts as lost.
    """

    addresses: tuple[Address, ...]
    silence: float = 30.0

    def __post_init__(self):
        if not all(isinstance(each, Address) for each in self.addresses):
            raise UserError(f"addresses is {self.addresses!r:.80}; {_PARSED}")
        if not 0 < self.silence <= _LONGEST_SILENCE:
            raise UserError(
                f"the workers' timeout is {self.silence:g} s; it must be above 0 and at most {_LONGEST_SILENCE:,}"
            )
        if len({_known_as(each) for each in self.addresses}) < len(self.addresses):
            raise UserError(f"the workers {', '.join(map(str, self.addresses))} are not distinct; each takes part once")

    @classmethod
    def parse(cls, text: str, silence: float = 30.0) -> "RemoteWorkers":
        """Reads "host:port,host:port".

        Raises:
          UserError: If the text has another form, or names a worker twice.
        """
        if not isinstance(text, str):
            raise UserError(f"workers is of {type(text).__name__}; {_PARSED}")
        found = []
        for part in text.split(","):
            host, _, port = part.strip().rpartition(":")
            if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 65536:
                raise UserError(
                    f"worker {part[:100]!r} is not HOST:PORT; several are written 10.0.0.5:10000,10.0.0.6:10000"
                )
            found.append(Address(host, int(port)))
        return cls(tuple(found), silence)


def _known_as(address: Address) -> tuple[str, int]:
    """Returns the same for all ways to write an address, as far as possible without looking up names in the network."""
    host = address.host.strip("[]").casefold().rstrip(".")
    with contextlib.suppress(OSError, UnicodeError):  # for a name, which only the network knows
        host = str(socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)[0][4][0])
    host = host.removeprefix("::ffff:")
    return ("localhost" if host in _THIS_MACHINE else host), address.port


MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
CHANNEL_OPTIONS = [
    ("grpc.max_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # gRPC would look for a worker, even one of this machine, behind the proxy of $http_proxy.
    ("grpc.enable_http_proxy", 0),
]
_START_SECONDS = 240.0  # a start takes one second, and on a busy machine a minute


def open_channel(target: str):
    """Opens a gRPC channel for TFF's messages to `target`, as gRPC writes it."""
    import grpc

    return grpc.insecure_channel(target, CHANNEL_OPTIONS)


def connect(target: str, *, alive=lambda: True, channel=None):
    """Waits for the worker at `target` ("host:port") and returns a `tff.framework` stub that calls it.

    Args:
      target: Where the worker listens.
      alive: Returns whether it runs. If not, every call raises `UserError`, except the calls that release values.
      channel: The gRPC channel to use; default a new one, which stays open.

    Raises:
      UserError: If the worker ends (`alive()` is false) or does not answer within four minutes.
    """
    import tensorflow_federated as tff

    stub = tff.framework.RemoteExecutorGrpcStub(channel or open_channel(target))
    for name in ("get_executor", "create_value", "create_struct", "create_call", "create_selection", "compute"):
        setattr(stub, name, _while_alive(getattr(stub, name), alive))
    # called by destructors, even if the worker has ended with all its values
    for name in ("dispose", "dispose_executor"):
        setattr(stub, name, _while_alive(getattr(stub, name), alive, needed=False))
    deadline = time.monotonic() + _START_SECONDS
    while not stub.is_ready:
        if not alive():
            raise UserError(f"TFF's worker at {target} ended while starting; is its port in use, or memory short?")
        if time.monotonic() > deadline:
            raise UserError(f"TFF's worker at {target} has not answered within {_START_SECONDS:.0f} s")
        time.sleep(0.02)
    return stub


def _while_alive(call, alive, needed: bool = True):
    def checked(request):
        if alive():
            return call(request)
        if needed:
            raise UserError("TFF's worker has ended in the middle of a computation: was it killed, or is memory short?")

    return checked
