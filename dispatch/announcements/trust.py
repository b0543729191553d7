"""Which announcements a dispatcher accepts, and what of an accepted descriptor is in force. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from dispatch._internal import NamedFields, check_instance, excerpt, explain_keywords
from dispatch.announcements import ServiceRef, check_keys
from dispatch.catalog.items import Item
from dispatch.documents import parse_typed, read_regular_file
from dispatch.messaging.wire import TopicError, TopicName

MAX_TOOLS: Final = 1_000
MAX_INSTANCES: Final = 256
MAX_ITEMS: Final = 20_000
MAX_FILE_BYTES: Final = 1024 * 1024

_REPEATING: Final = ("read-only", "idempotent", "policy")
"""Keys that decide whether a call is repeated: with a false one an order is placed twice."""
_KNOWN_ONLY: Final = "known-instances-only"


class TrustFileError(ValueError):
    """The file of a :class:`Trust` cannot be used; ``str()`` says why."""


class UntrustedError(ValueError):
    """A descriptor is outside the trust; ``str()`` says why."""


class Trust(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", metaclass=NamedFields):
    """Which announcements are accepted. Every service proves that it consumes its request namespace, or signs its
    announcements.

    Attributes:
        namespaces: patterns of ``tenant/namespace`` for all topics of a service, those inside its descriptor included.
            Empty: all namespaces of the tenant of the announcements, ``tg/*``.
        services: patterns of ids of services.
        tools: patterns of names of tools.
        keys: secrets by key id; a signature with one of them is valid.
        signed_only: refuse announcements without a valid signature.
        listed: patterns of ids of services whose ``read-only``, ``idempotent`` and ``policy`` are in force without a
            signature. They decide about repeating a call; of other services these keys are ignored.
        max_tools: tools of one service.
        max_instances: instances of one version of a service.
        max_items: services and tools in all.

    Raises:
        ValueError: a key is too short, ``signed_only`` has no keys, or a limit is out of range.
    """

    namespaces: tuple[str, ...] = ()
    services: tuple[str, ...] = ("*",)
    tools: tuple[str, ...] = ("*",)
    keys: Mapping[str, bytes] = {}
    signed_only: bool = False
    listed: tuple[str, ...] = ()
    max_tools: int = MAX_TOOLS
    max_instances: int = MAX_INSTANCES
    max_items: int = MAX_ITEMS

    def __post_init__(self) -> None:
        for name in ("namespaces", "services", "tools", "listed"):
            given = getattr(self, name)
            if not isinstance(given, (tuple, list)) or not all(isinstance(each, str) for each in given):
                raise TypeError(f"{name} must be a tuple of patterns, such as ('tg/*',), not {given!r}")
        check_keys(self.keys)
        if self.signed_only and not self.keys:
            raise ValueError("signed_only without keys refuses every announcement. Fix: give keys={'ID': b'…'}.")
        for name, limit in (("max_tools", MAX_TOOLS), ("max_instances", MAX_INSTANCES), ("max_items", MAX_ITEMS)):
            check_instance(name, getattr(self, name), int, "a whole number")
            if not 1 <= getattr(self, name) <= limit:
                raise ValueError(f"{name} must be from 1 to {limit:,}, not {getattr(self, name)}")

    @classmethod
    @explain_keywords
    def load(cls, path: str | os.PathLike[str]) -> Trust:
        """Read a file (JSON, YAML) with these attributes in kebab-case (``signed-only``); secrets in ``keys`` are texts.

        Raises:
            TrustFileError: it cannot be read, or is invalid.
        """
        try:
            content, _signature = read_regular_file(path, MAX_FILE_BYTES, "use patterns")
            given = parse_typed(content, path, _TrustFile)
            keys = {id: secret.encode() for id, secret in given.keys.items()}
            return cls(**{**msgspec.structs.asdict(given), "keys": keys})
        except OSError as error:
            problem, fix = f"cannot be read: {error.strerror or error}", "correct the path, or the file's permissions"
        except (ValueError, TypeError) as error:
            problem, fix = f"is invalid: {error}", 'write for instance {"services": ["shop", "crm-*"]}'
        raise TrustFileError(f"the file of trust '{os.fspath(path)}' {problem}. Fix: {fix}.")

    def within(self, tenant: str) -> Trust:
        """Return the same trust with all namespaces of ``tenant``, unless it names namespaces."""
        return self if self.namespaces else msgspec.structs.replace(self, namespaces=(f"{tenant}/*",))

    def check_service(self, ref: ServiceRef) -> None:
        """Check id and topics of a service.

        Raises:
            UntrustedError: they are outside the trust.
        """
        if not _matches(ref.id, self.services):
            raise UntrustedError("its id is none of the trusted ones")
        self._check_topic("request-queue", ref.request_queue)
        self._check_topic("response-queue", ref.response_queue)

    def _check_topic(self, key: str, topic: object) -> None:
        if not isinstance(topic, str):
            raise UntrustedError(f"its {key} is no text")
        try:
            namespace = TopicName.parse(topic).namespace_path
        except TopicError as error:
            raise UntrustedError(f"its {key} is invalid: {error.problem}") from None
        if not _matches(namespace, self.namespaces):
            raise UntrustedError(f"its {key} is in the namespace '{excerpt(namespace)}', which is not trusted")

    def list_ignored(
        self, service: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], *, is_signed: bool
    ) -> list[str]:
        """Return the keys of a service and its tools that are not in force, because its word about them does not count."""
        id = service.get("id")
        if not isinstance(id, str) or self._decides(id, is_signed):
            return []
        params = _params_of(service)
        given = set(service).union(*(set(tool) - params for tool in tools))
        return [key for key in _REPEATING if key in given]

    def _decides(self, id: str, is_signed: bool) -> bool:
        return is_signed or _matches(id, self.listed)

    def make_items(
        self,
        source: str,
        service: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]],
        *,
        is_signed: bool,
        namespace: str = "",
    ) -> tuple[Item, ...]:
        """Return the items of a service: what is in force of its descriptors. They are checked by the reader of descriptors
        when they come into force.

        Args:
            source: id of the source, for messages.
            service, tools: the descriptors.
            is_signed: with one of the keys.
            namespace: see :class:`~dispatch.catalog.items.Item`.

        Raises:
            UntrustedError: the service is outside the trust, or has too many tools.
        """
        ref = read_ref(service)
        self.check_service(ref)
        instances = service.get("instances")
        for entry in instances if isinstance(instances, list) else ():
            for key in ("request-queue", "response-queue"):
                if isinstance(entry, dict) and entry.get(key) is not None:
                    self._check_topic(f"instances[].{key}", entry[key])
        if len(tools) > self.max_tools:
            raise UntrustedError(f"it has {len(tools):,} tools, the limit is {self.max_tools:,}")
        decides = self._decides(ref.id, is_signed)
        proves = not is_signed and not TopicName.parse(ref.request_queue).persistent
        params = _params_of(service)
        items = [
            Item(
                f"{source}:{_key(ref.id, ref.version)}",
                "tool-service",
                _key(ref.id, ref.version),
                _restrict(service, (), decides=decides, proves=proves, is_service=True),
                namespace,
            )
        ]
        for number, tool in enumerate(tools):
            name = tool.get("name")
            if not isinstance(name, str) or not _matches(name, self.tools):
                continue
            raw = _restrict(tool, params, decides=decides, proves=proves, is_service=False)
            raw |= {"type": "tool-service", "service": ref.id}
            if ref.version is not None:
                # Versions of one service have the same tools: each needs the version of the service that it came with.
                for key in {"version", "requires"}.difference(params):
                    if raw.get(key) is None:
                        raw[key] = ref.version
            version = raw.get("version")
            key = _key(name, version if isinstance(version, str) else None)
            items.append(Item(f"{source}:{_key(ref.id, ref.version)}/tools[{number}]", "tool", key, raw, namespace))
        return tuple(items)


class _TrustFile(Trust, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of a :class:`Trust`, whose secrets are texts; the trust that is made of it is checked."""

    keys: dict[str, str] = {}  # type: ignore[assignment] # bytes in a trust

    def __post_init__(self) -> None:
        pass


def read_ref(service: Mapping[str, Any]) -> ServiceRef:
    """Return id, version and topics of a descriptor of a service.

    Raises:
        UntrustedError: one is missing or no text.
    """
    try:
        return msgspec.convert(service, ServiceRef)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UntrustedError(f"its descriptor is invalid: {error}") from None


def _matches(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _key(name: str, version: str | None) -> str:
    return name if version is None else f"{name}@{version}"


def _params_of(service: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the config params: such a key of a tool is a value of the service, not a key of dispatch."""
    params = service.get("config-params")
    entries = params if isinstance(params, list) else ()
    names = (entry.get("name") if isinstance(entry, dict) else entry for entry in entries)
    return frozenset(name for name in names if isinstance(name, str))


def _restrict(
    raw: Mapping[str, Any], params: frozenset[str] | tuple[()], *, decides: bool, proves: bool, is_service: bool
) -> dict[str, Any]:
    """Return a descriptor without the keys that are not honoured. The calls of a service that has proved itself go to
    instances that prove themselves, too."""
    found = {key: value for key, value in raw.items() if decides or key in params or key not in _REPEATING}
    policy = found.get("policy") if "policy" not in params else None
    if not proves or (policy is not None and not isinstance(policy, dict)):
        return found
    if is_service:
        found["policy"] = {**(policy or {}), _KNOWN_ONLY: True}
    elif policy is not None:
        found["policy"] = {key: value for key, value in policy.items() if key != _KNOWN_ONLY}
    return found
