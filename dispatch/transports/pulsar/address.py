"""Reading a Pulsar service URL."""

from __future__ import annotations

from dispatch.outcome import TransportError

_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}


def endpoints(url: str) -> list[tuple[str, int]]:
    """The hosts and ports of ``pulsar://host:port,host:port``.

    Raises:
        TransportError: not such a URL.
    """
    scheme, separator, rest = url.partition("://")
    found: list[tuple[str, int]] = []
    if separator and scheme in _PORTS:
        for part in rest.rstrip("/").split(","):
            host, port = _split(part)
            if not host or not (port.isdigit() or port == "") or any(c in host for c in "/@?# "):
                break
            found.append((host, int(port or _PORTS[scheme])))
        else:
            return found
    raise TransportError(
        "bad-address",
        f"'{url}' is no broker address; write pulsar://HOST:6650, pulsar+ssl://HOST:6651 or memory://",
        sent=False,
    )


def _split(part: str) -> tuple[str, str]:
    if part.startswith("["):  # an IPv6 address
        host, _, port = part[1:].partition("]")
        return host, port.lstrip(":")
    host, _, port = part.partition(":")
    return host, port
