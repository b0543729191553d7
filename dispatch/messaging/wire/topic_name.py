"""Names of Pulsar topics: parse, check, expand TrustGraph's short form."""

from __future__ import annotations

import re
from typing import Final, NoReturn

import msgspec

from dispatch._internal.suggestions import excerpt, find_near_names

EXAMPLE: Final = "non-persistent://tg/request/joke"

MAX_TOPIC_CHARS: Final = 1_000
"""A broker uses topic names in file and metadata paths, whose lengths are limited."""

_SCHEMES: Final = {"persistent": True, "non-persistent": False}
# TrustGraph's classes of queue: flows are persistent, requests, responses and notifications are not.
_CLASSES: Final = {"flow": True, "request": False, "response": False, "notify": False}
# The characters that a broker allows in tenant and namespace.
_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)


class TopicError(ValueError):
    """An invalid topic name: ``problem`` says why, ``fix`` what to write."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}. Fix: {fix}.")
        self.problem = problem
        self.fix = fix

    def __reduce__(self) -> tuple[type[TopicError], tuple[str, str]]:
        return type(self), (self.problem, self.fix)


class TopicName(msgspec.Struct, frozen=True):
    """A parsed topic name; ``str()`` returns the full name.

    Attributes:
        persistent: the broker retains messages until they are acknowledged; otherwise it delivers them to the
            connected consumers and drops them.
        tenant: such as ``tg``.
        namespace: such as ``request``; with its tenant it is the :attr:`namespace_path`.
        name: such as ``joke``.
    """

    persistent: bool
    tenant: str
    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str, *, example: str = EXAMPLE) -> TopicName:
        """Parse ``text``: ``persistent://tenant/namespace/name``, ``non-persistent://…``, or
        TrustGraph's short form ``class:topicspace:topic`` (``request:tg:joke`` is
        ``non-persistent://tg/request/joke``; only the class ``flow`` is persistent).

        Raises:
            TopicError: it names none; ``example`` is what the error's fix shows.
        """
        whole = f"write a whole name, for example {example!r}"
        if not text:
            raise TopicError("the topic name is empty", whole)
        if len(text) > MAX_TOPIC_CHARS:
            raise TopicError(f"the topic name has {len(text):,} characters, the limit is {MAX_TOPIC_CHARS:,}", whole)
        if not text.isprintable() or any(c.isspace() for c in text):
            raise TopicError(f"'{excerpt(text)}' has a blank or a control character in it", "take it out")
        if "://" not in text:
            return cls._short(text, whole)
        scheme, path = text.split("://", 1)
        if scheme not in _SCHEMES:
            _wrong("scheme", scheme, tuple(_SCHEMES), whole)
        parts = path.split("/")
        if len(parts) == 4:
            raise TopicError(
                f"'{excerpt(text)}' has four parts: the old form with a cluster, or a '/' in the topic's own name",
                "leave the cluster out, and write another character for '/'",
            )
        if len(parts) != 3 or not all(parts):
            raise TopicError(
                f"'{excerpt(text)}' is not of the form {scheme}://tenant/namespace/name",
                f"write all three parts, for example {example!r}",
            )
        return cls._checked(_SCHEMES[scheme], *parts, whole=whole)

    @classmethod
    def _short(cls, text: str, whole: str) -> TopicName:
        parts = text.split(":", 2)
        if len(parts) != 3 or not all(parts):
            raise TopicError(f"'{excerpt(text)}' is no whole topic name", whole)
        queue_class, topicspace, topic = parts
        if queue_class not in _CLASSES:
            _wrong("queue class", queue_class, tuple(_CLASSES), whole)
        return cls._checked(_CLASSES[queue_class], topicspace, queue_class, topic, whole=whole)

    @classmethod
    def _checked(cls, persistent: bool, tenant: str, namespace: str, name: str, *, whole: str) -> TopicName:
        for what, part in (("tenant", tenant), ("namespace", namespace)):
            if not _ENTITY.fullmatch(part):
                raise TopicError(
                    f"the {what} '{excerpt(part)}' has a character that Pulsar does not allow there",
                    "use letters, digits and - = : . _ only",
                )
        if "/" in name:
            raise TopicError(f"the topic's own name '{excerpt(name)}' has a '/' in it", whole)
        return cls(persistent, tenant, namespace, name)

    @property
    def namespace_path(self) -> str:
        """Tenant and namespace, as in Pulsar's tools: ``tg/response``."""
        return f"{self.tenant}/{self.namespace}"

    def sibling(self, name: str) -> TopicName:
        """Return another topic in the same namespace, persistent if this one is.

        Raises:
            TopicError: ``name`` is no topic's own name.
        """
        scheme = "persistent" if self.persistent else "non-persistent"
        return type(self).parse(f"{scheme}://{self.namespace_path}/{name}")

    def __str__(self) -> str:
        scheme = "persistent" if self.persistent else "non-persistent"
        return f"{scheme}://{self.namespace_path}/{self.name}"


def _wrong(what: str, given: str, allowed: tuple[str, ...], whole: str) -> NoReturn:
    meant = find_near_names(given, allowed, 1)
    fix = f"write {meant[0]!r}" if meant else f"{whole}; the {what} is one of {', '.join(allowed)}"
    raise TopicError(f"'{excerpt(given)}' is no {what} of a topic", fix)
