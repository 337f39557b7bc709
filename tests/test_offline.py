"""The network is blocked for what is under test, and loopback is not."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from utils.offline import NetworkBlocked, _is_local

TEST_NET = "192.0.2.1"  # an address reserved for documentation: nobody is there


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", None, b"localhost"])
def test_loopback_is_local(host: object) -> None:
    assert _is_local(host)


@pytest.mark.parametrize("host", [TEST_NET, "10.0.0.1", "pytorch.org", b"pytorch.org", "2001:db8::1"])
def test_the_rest_is_not(host: object) -> None:
    assert not _is_local(host)


def test_connections_are_blocked_before_they_are_made() -> None:
    with socket.socket() as s, pytest.raises(NetworkBlocked, match="make the data in the notebook"):
        s.connect((TEST_NET, 80))
    with socket.socket(type=socket.SOCK_DGRAM) as s, pytest.raises(NetworkBlocked):
        s.sendto(b"x", (TEST_NET, 9))
    with pytest.raises(NetworkBlocked):
        socket.getaddrinfo("pytorch.org", 443)
    with pytest.raises(urllib.error.URLError, match="no network in notebooks"):
        urllib.request.urlopen("https://pytorch.org", timeout=1)


def test_loopback_works() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        server.accept()[0].sendall(b"hello")
        assert client.recv(5) == b"hello"
