"""The admin endpoint of a process: what it does, for operators and their tools, and actions on it."""

import hashlib
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from dispatch._internal import NamedFields, as_set, check_instance

MIN_TOKEN_CHARS = 16
"""Characters of a bearer token, at least: 16 random ones of base64 are 96 bits."""
TOKEN_RULE = (
    f"it must have {MIN_TOKEN_CHARS} or more printable ASCII characters, without blanks. Create one with: openssl rand "
    "-base64 24"
)
ADMIN_LABEL = "admin"
"""Label of an announced instance with the URL of the admin endpoint of its process."""


class Admin(msgspec.Struct, frozen=True, metaclass=NamedFields):
    """The admin endpoint of a dispatcher or of the services of a process.

    Attributes:
        address: ``HOST:PORT``; port 0: any free one. An address that other machines reach requires tokens.
        read, act: bearer tokens by user: ``read`` may look, ``act`` also act. Both empty: no token is required.
        hosts: further values of ``Host`` under which an endpoint without tokens is reached, such as that of a proxy.
        peers: URLs of admin endpoints of other processes, or ``HOST:PORT``, for the overview of the console.
        labels: of the process, such as a zone.
    """

    address: str = "127.0.0.1:0"
    read: Mapping[str, str] = {}
    act: Mapping[str, str] = {}
    hosts: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        check_instance("address", self.address, str, "HOST:PORT, such as '127.0.0.1:9464'")
        parse_host_port(self.address)
        for name in ("hosts", "peers"):
            if isinstance(value := getattr(self, name), str):
                raise ValueError(f"{name} is one text, not several. Fix: Admin({name}=({value!r},))")
            as_set(name, value)
        for name in ("read", "act", "labels"):
            check_instance(name, getattr(self, name), Mapping, "an object, such as {'alice': '…'}")
        tokens = [*self.read.values(), *self.act.values()]
        for token in tokens:
            check_instance("each token", token, str, "a text")
            if not is_usable_token(token):
                raise ValueError(f"a token is not usable: {TOKEN_RULE}")
        if len(set(tokens)) < len(tokens):
            raise ValueError("two users have the same token: change one.")


def is_usable_token(token: str) -> bool:
    """Return whether a bearer token is long enough, and can be sent in a header."""
    return len(token) >= MIN_TOKEN_CHARS and token.isascii() and token.isprintable() and " " not in token


def hash_token(token: str) -> bytes:
    """Return the hash by which a token is looked up: the time of a look-up by its text would reveal parts of it."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def parse_host_port(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; an IPv6 address is in brackets.

    Raises:
        ValueError: it has another form; the message is a clause without a full stop.
    """
    _, is_url, rest = text.partition("://")
    if is_url:
        raise ValueError(f"'{text}' is a URL: write {rest.partition('/')[0] or '127.0.0.1:9464'}")
    host, separator, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"'{text}' is not HOST:PORT, such as 127.0.0.1:9464")
    if ":" in host and not is_bracketed:
        raise ValueError(f"the address in '{text}' is ambiguous: write [{host}]:{port}")
    return host.strip("[]"), int(port)


def is_endpoint(url: str) -> bool:
    """Return whether ``url`` may be that of an admin endpoint: HTTP, without a user, a query or a fragment."""
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    is_plain = url.isprintable() and " " not in url and not {"@", "?", "#", "\\"}.intersection(url)
    return parts.scheme in ("http", "https") and has_host and is_plain


def check_admin(settings: Admin) -> Admin:
    """Return the settings, which must have tokens if other machines reach the address.

    Raises:
        ValueError: they have none.
    """
    host, _ = parse_host_port(settings.address)
    if not (settings.read or settings.act or is_loopback(host)):
        raise ValueError(
            f"other machines reach '{host}', and there are no tokens. Fix: Admin(act={{'alice': TOKEN}}), on the command "
            "line --admin-tokens FILE; or the address 127.0.0.1"
        )
    return settings


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``: a name, or an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_admin(given: Admin | str | None) -> Admin | None:
    """Return the settings that a program gives: ``Admin(…)``, or an address.

    Raises:
        ValueError: as :func:`check_admin`.
    """
    return None if given is None else check_admin(Admin(given) if isinstance(given, str) else given)
