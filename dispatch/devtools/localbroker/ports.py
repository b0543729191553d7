"""Free loopback ports for local servers."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import ExitStack
from pathlib import Path

from dispatch.devtools.localbroker.errors import LocalBrokerError, PortInUseError

LOOPBACK = "127.0.0.1"
_LOWEST = 15_000
_HIGHEST = 32_767
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def find_free_ports(count: int) -> tuple[int, ...]:
    """Find `count` different loopback ports without a listener.

    They are below the ephemeral range: while a broker is down, a reconnecting client could otherwise get the broker's port
    as its source port and prevent the broker's restart.
    """
    with ExitStack() as stack:
        found: list[int] = []
        for port in random.sample(range(_LOWEST, _highest() + 1), k=200):
            candidate = stack.enter_context(_tcp_socket())
            if _bind(candidate, port):
                found.append(port)
            if len(found) == count:
                return tuple(found)
        while len(found) < count:  # no free port below the ephemeral range
            candidate = stack.enter_context(_tcp_socket())
            candidate.bind((LOOPBACK, 0))
            found.append(candidate.getsockname()[1])
        return tuple(found)


def require_free(port: int, fix: str) -> None:
    """Raise `PortInUseError` with `fix` in its message unless a server can listen on loopback `port`."""
    if not 0 < port < 65_536:
        raise LocalBrokerError(f"{port} is not a TCP port: use 1 to 65535")
    with _tcp_socket() as probe:
        if not _bind(probe, port):
            raise PortInUseError(port, fix)


def loopback_interface() -> str:
    """Return the name of the loopback interface: `lo` on Linux, `lo0` on macOS and BSD."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")


def _highest() -> int:
    try:
        first_ephemeral = int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _HIGHEST
    # The machine's ephemeral range includes these ports: no better choice exists.
    return min(_HIGHEST, first_ephemeral - 1) if first_ephemeral > _LOWEST + 1_000 else _HIGHEST


def _tcp_socket() -> socket.socket:
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Like the broker: ignores connections in TIME_WAIT, conflicts with a listener.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return probe


def _bind(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind((LOOPBACK, port))
    except PermissionError as error:
        raise LocalBrokerError(f"this user has no permission for port {port}: use one above 1023") from error
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
