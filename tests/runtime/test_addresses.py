"""Which addresses are one worker's, as far as that is known without a network."""

import socket

import pytest

from tffcl.errors import UserError
from tffcl.runtime.addresses import RemoteWorkers


@pytest.mark.parametrize(
    "text",
    ["localhost:7,127.0.0.1:7", "LocalHost:7,[::1]:7", "10.0.0.5:7,10.0.0.5:07", "Node.example:7,node.example.:7"],
)
def test_one_worker_in_two_spellings(text):
    with pytest.raises(UserError, match="are not distinct; each takes part once"):
        RemoteWorkers.parse(text)


def test_no_name_is_looked_up(monkeypatch):
    asked = []
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *args, **how: asked.append(how.get("flags")) or real(*args, **how)
    )
    text = "localhost:7,localhost:8,127.0.0.2:7,node-a:7,node-b:7,a..b:7"
    assert [str(each) for each in RemoteWorkers.parse(text).addresses] == text.split(",")
    assert set(asked) == {socket.AI_NUMERICHOST}
