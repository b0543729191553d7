from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dispatch.devtools.localbroker import LocalBrokerError, PortInUseError, find_free_ports
from dispatch.devtools.localbroker.processes import loopback_interface, require_free


def test_free_ports_differ_and_are_free() -> None:
    found = find_free_ports(20)

    assert len(set(found)) == 20
    for port in found:
        require_free(port, "")


def test_free_ports_are_not_among_those_of_outgoing_connections() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert max(find_free_ports(50)) < first


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_somebody_listens_on_is_in_use(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]

        with pytest.raises(PortInUseError, match=rf"port {port} .* is in use: take --port") as caught:
            require_free(port, "take --port")

    assert caught.value.port == port


def test_a_port_with_nothing_but_closed_connections_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = server.accept()
            accepted.close()  # the side that closes first is left in TIME_WAIT

    require_free(port, "")


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(LocalBrokerError, match="use 1 to 65535"):
        require_free(port, "")


def test_the_loopback_interface_exists() -> None:
    assert loopback_interface() in [name for _, name in socket.if_nameindex()]
