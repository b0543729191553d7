"""The announcements of admin endpoints, by which consoles and ``dispatch top`` find the processes on a broker."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from dispatch import announcements
from dispatch._internal import cancel_and_wait, loop_clock
from dispatch.admin import ADMIN_LABEL, is_endpoint
from dispatch.announcements.trust import Trust
from dispatch.serving.announcer import DescriptorAnnouncer
from dispatch.transports import Message, Transport

logger = logging.getLogger("dispatch.admin")

SILENT_S: Final = 60.0
"""Seconds without an announcement for which a process is listed. One that was killed is listed as out of reach meanwhile."""
MAX_ANNOUNCED: Final = 1_000
"""Processes on a topic; further ones are not listed."""
_FIX: Final = " Name its URL: 'dispatch top URL', --peer or Admin(peers=…)."
REFUSED: Final = (
    "the admin endpoint of %s is not announced on %s, so that others do not find it: %s" + _FIX,
    "the admin endpoint of %s answers no questions about %s, so that 'dispatch top' may miss it: %s" + _FIX,
    "the console of %s reads nothing on %s, so that it shows this process and those of --peer and Admin(peers=…): %s",
)


class _Peer(msgspec.Struct, eq=False):
    name: str
    heard_at: float


class PeerTable:
    """The processes that announce an admin endpoint on one topic. Pure: no input or output, no clock.

    Each announcement is a claim: that of another process adds an entry at most. It changes no other one, and only the
    process itself, which knows the secret of its incarnation, can end its entry before :data:`SILENT_S`.

    Args:
        trust: whose keys verify signatures, and are required if it accepts only signed announcements.
        now: the time, in seconds.
        was_disconnected_since: returns whether announcements may be missing since a time: no entry ends meanwhile.
    """

    def __init__(self, trust: Trust, now: Callable[[], float], was_disconnected_since: Callable[[float], bool]) -> None:
        self._trust = trust
        self._now = now
        self._was_disconnected_since = was_disconnected_since
        self._peers: dict[tuple[str, str], _Peer] = {}
        """By URL and incarnation."""

    def receive(self, source: Message) -> None:
        """Process a message of the topic. Never raises."""
        payload = source.data()
        try:
            message = announcements.decode_announcement(payload)
        except announcements.MalformedAnnouncementError:
            return
        if self._trust.signed_only and not announcements.is_signed(payload, self._trust.keys):
            return
        url, incarnation = message.instance.labels.get(ADMIN_LABEL, ""), message.instance.incarnation
        known = self._peers.get((url, incarnation))
        if message.announce == announcements.BYE:
            if known is not None and incarnation.endswith(announcements.hash_secret(message.secret)):
                del self._peers[url, incarnation]
        elif known is not None:
            known.heard_at = self._now()
        elif is_endpoint(url):
            if len(self._peers) >= MAX_ANNOUNCED:
                self._expire()
            if len(self._peers) < MAX_ANNOUNCED:
                self._peers[url, incarnation] = _Peer(message.instance.id, self._now())

    def _expire(self) -> None:
        since = self._now() - SILENT_S
        if not self._was_disconnected_since(since):
            self._peers = {key: each for key, each in self._peers.items() if each.heard_at >= since}

    def names(self) -> dict[str, str]:
        """Return the name of each process by its URL: as the first one announced itself there."""
        self._expire()
        found: dict[str, str] = {}
        for (url, _), each in self._peers.items():
            found.setdefault(url, each.name)
        return found


class EndpointAnnouncer:
    """Announces an admin endpoint on one topic, in the background, and perhaps learns of others there.

    Args:
        transport: a started connection.
        topic: of the announcements of tools, beside which endpoints are announced.
        keys: that sign them.
        url, name: of the process.
        trust: of the announcements of others; None: they are not read.

    Attributes:
        settings: topic, keys and trust.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        keys: Mapping[str, bytes],
        url: str,
        name: str,
        trust: Trust | None = None,
    ) -> None:
        table = None if trust is None else PeerTable(trust, loop_clock(), transport.was_disconnected_since)
        self._table = table
        self.settings = topic, keys, trust
        self._url = url
        topic, name, secret = announcements.admin_topic(topic), name[: announcements.MAX_TEXT], os.urandom(16).hex()
        # Where it is asked, and where it answers.
        descriptor: dict[str, Any] = {
            "id": name,
            "request-queue": announcements.question_topic(topic),
            "response-queue": topic,
        }
        self._announcer = DescriptorAnnouncer(
            transport,
            announcements.Announce(
                topic=topic, keys=dict(islice(keys.items(), announcements.MAX_SIGNATURES)), labels={ADMIN_LABEL: url}
            ),
            lambda: (descriptor, ()),
            instance=name,
            incarnation=announcements.hash_secret(secret),
            stats=dict,
            secret=secret,
            receive=None if table is None else table.receive,
            refused=REFUSED,
            log=logger,
        )
        self._task = asyncio.create_task(self._announcer.start(), name="dispatch-admin-announcements")

    def others(self) -> dict[str, str]:
        """Return the names of other processes by their URLs."""
        names = {} if self._table is None else self._table.names()
        names.pop(self._url, None)
        return names

    async def close(self) -> None:
        """Say that the endpoint ends."""
        await cancel_and_wait((self._task,))
        await self._announcer.close()
