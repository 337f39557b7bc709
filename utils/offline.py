"""No network for notebooks under test: connections leave this machine only as errors."""

from __future__ import annotations

import ipaddress
import sys
from typing import Any

LOOPBACK = ("localhost", "ip6-localhost", "", "0.0.0.0", "::")


class NetworkBlocked(PermissionError):
    """A notebook under test asked for the network."""


def _is_local(host: Any) -> bool:
    host = host.decode() if isinstance(host, bytes) else host
    if host is None or host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(str(host).partition("%")[0]).is_loopback
    except ValueError:
        return False  # a name: looking it up would already leave the machine


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = args[1]
        host = address[0] if isinstance(address, tuple) else None  # a str or bytes address is a Unix socket
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = args[0]
    else:
        return
    if not _is_local(host):
        raise NetworkBlocked(f"no network in notebooks: blocked {event} to {host!r}; make the data in the notebook")


def block_network() -> None:
    """Block every socket of this Python process except loopback, for good (an audit hook cannot be taken out)."""
    sys.addaudithook(_hook)
