"""A session pair whose packets take time, with counts to be read."""

from __future__ import annotations

from dispatch.protocol import CallerSession
from dispatch.protocol.events import RequestReceived
from tests.helpers.session_pair import DISPATCHER, INSTANCE, Pair


class DelayedSessionPair(Pair):
    """An open session. Packets towards the names in ``down`` are lost; the others arrive 1 ms later."""

    delay = 0.001

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher, self.instance = self.tables[DISPATCHER], self.tables[INSTANCE]
        self.down: set[str] = set()
        self.lose = lambda inbox, _packet: inbox in self.down
        self.exchange()

    def connect(self) -> CallerSession:
        """Open a session and exchange its handshake."""
        self.caller = self.dispatcher.connect(INSTANCE, self.now)
        self.exchange()
        return self.caller

    @property
    def requests(self) -> list[RequestReceived]:
        """All requests that the instance has received."""
        return [each for each in self.events[INSTANCE] if isinstance(each, RequestReceived)]
