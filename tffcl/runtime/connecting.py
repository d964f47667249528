"""Connections to TFF workers, of this machine or of others."""

import time

from tffcl.errors import UserError

MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
CHANNEL_OPTIONS = [
    ("grpc.max_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
]
_START_SECONDS = 240.0  # it takes one, and on a machine that does much else a minute


def open_channel(target: str):
    """Opens a gRPC channel for TFF's messages to `target`, as gRPC writes it."""
    import grpc

    return grpc.insecure_channel(target, CHANNEL_OPTIONS)


def connect(target: str, *, alive=lambda: True, timeout: float = _START_SECONDS, channel=None):
    """Waits for the worker at `target` ("host:port") and returns a `tff.framework` stub that speaks to it.

    Args:
      target: Where the worker listens.
      alive: Whether it runs. When it does not, every call is a `UserError`, but for those that give values back.
      timeout: Seconds to wait.
      channel: The gRPC channel to use; default a new one, which stays open.

    Raises:
      UserError: If the worker ends (`alive()` is false) or does not answer within `timeout` seconds.
    """
    import tensorflow_federated as tff

    stub = tff.framework.RemoteExecutorGrpcStub(channel or open_channel(target))
    for name in ("get_executor", "create_value", "create_struct", "create_call", "create_selection", "compute"):
        setattr(stub, name, _while_alive(getattr(stub, name), alive))
    for name in ("dispose", "dispose_executor"):  # called by destructors, also when the worker has ended with all its values
        setattr(stub, name, _while_alive(getattr(stub, name), alive, needed=False))
    deadline = time.monotonic() + timeout
    while not stub.is_ready:
        if not alive():
            raise UserError(f"TFF's worker at {target} ended while starting; is its port in use, or memory short?")
        if time.monotonic() > deadline:
            raise UserError(f"TFF's worker at {target} has not answered within {timeout:.0f} s")
        time.sleep(0.02)
    return stub


ENDED = "TFF's worker has ended in the middle of a computation: was it killed, or is memory short?"


def _while_alive(call, alive, needed: bool = True):
    def checked(request):
        if alive():
            return call(request)
        if needed:
            raise UserError(ENDED)

    return checked
