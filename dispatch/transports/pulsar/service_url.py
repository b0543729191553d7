"""Reading a Pulsar service URL."""

from __future__ import annotations

from dispatch.transports.errors import bad_address

DEFAULT_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}
"""Pulsar's ports of each scheme."""


def endpoints(url: str) -> list[tuple[str, int]]:
    """The hosts and ports of ``pulsar://host:port,host:port``.

    Raises:
        TransportError: not such a URL.
    """
    scheme, separator, rest = url.partition("://")
    found: list[tuple[str, int]] = []
    if separator and scheme in DEFAULT_PORTS:
        for part in rest.rstrip("/").split(","):
            host, port = _split(part)
            port = port or str(DEFAULT_PORTS[scheme])
            if not _usable(host) or not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
                break
            found.append((host, int(port)))
        else:
            return found
    admin = " (http is for Pulsar's admin interface)" if scheme in ("http", "https") else ""
    raise bad_address(url, admin)


def broker_urls(url: str) -> list[str]:
    """Return the URL of each broker of ``url``. The one of a single broker is ``url`` itself.

    Raises:
        TransportError: not such a URL.
    """
    brokers = endpoints(url)
    if len(brokers) == 1:
        return [url]
    scheme = url.partition("://")[0]
    return [f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in brokers]


def _usable(host: str) -> bool:
    return host != "" and host.isprintable() and not any(c in host for c in "/@?# ")


def _split(part: str) -> tuple[str, str]:
    if part.startswith("["):  # an IPv6 address
        host, bracket, port = part[1:].partition("]")
        return (host, port[1:]) if bracket and port[:1] in ("", ":") else ("", "")
    host, _, port = part.partition(":")
    return host, port
