"""The window of one receiver, divided among its senders. Many senders share the receiver's channel at the broker."""

from __future__ import annotations

from typing import Protocol

from dispatch.protocol.settings import Settings


class WindowedSession(Protocol):
    """A session that tells its peer the peer's part of the window."""

    is_window_due: bool
    """The peer must learn of a smaller part at once."""


class ReceiveWindow:
    """Divides :attr:`Settings.window` among the peers that may be sending.

    Attributes:
        share: unacknowledged bytes that each sender may have on each path.
        due: sessions whose peers must learn of a smaller share.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._senders: dict[WindowedSession, float] = {}
        self._told = settings.window
        self.share = settings.window
        self.due: list[WindowedSession] = []

    @property
    def senders(self) -> int:
        """Number of peers that may be sending."""
        return len(self._senders)

    def add(self, session: WindowedSession) -> None:
        """The peer of ``session`` may send from now on."""
        if session not in self._senders:
            self._senders[session] = 0.0
            self._divide()

    def discard(self, session: WindowedSession) -> None:
        """It has nothing to send any more."""
        if self._senders.pop(session, None) is not None:
            self._divide()

    def record(self, session: WindowedSession, now: float, recent: float) -> None:
        """The peer of ``session`` sends without being asked: it counts for ``recent`` seconds."""
        senders = self._senders
        is_new = session not in senders
        senders.pop(session, None)
        senders[session] = now  # at the end: oldest first
        gone = False
        while (oldest := next(iter(senders))) is not session and senders[oldest] < now - recent:
            del senders[oldest]
            gone = True
        if is_new or gone:
            self._divide()

    def _divide(self) -> None:
        settings, windows = self._settings, self._settings.senders_at_full_window
        self.share = max(settings.window * windows // max(len(self._senders), windows), settings.least_window)
        if 2 * self.share <= self._told:
            for session in self._senders:
                if not session.is_window_due:
                    session.is_window_due = True
                    self.due.append(session)
            self._told = self.share
        elif self.share > self._told:
            self._told = self.share
