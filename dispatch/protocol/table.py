"""The sessions of one process: which one a packet belongs to, the handshake of a callee, and RESET."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from dispatch.protocol import frames
from dispatch.protocol.delivery import ReceiveWindow
from dispatch.protocol.events import Event, Failure
from dispatch.protocol.session import CalleeSession, CallerSession, Session, check_inboxes
from dispatch.protocol.settings import DEFAULT_SETTINGS, EndedSessions, Settings, fit_settings

SessionEvents = tuple[Session, list[Event]]
"""What a packet, or a timer, has caused in a session."""


class SessionTable:
    """The sessions of one process.

    Args:
        name: of the process, for its peers.
        incarnation: random name of this run.
        inboxes: own topics, one for each path.
        random_bytes: a source of randomness; genuine ones unguessable.
        secret: proves to callees that the inboxes are this caller's; never sent towards other callers.
        may_reply_to: called with an inbox and a secret: whether packets may be sent there, and the inbox belongs to the
            holder of the secret. Default: never, for a process that is a caller only.
        on_named: called with what a caller that has opened a session calls this service; ``""``: it says nothing.
        settings: constants.
        max_message_bytes: returns the size of the largest packet that new sessions may send; None: any.

    Attributes:
        sessions: by the address of their peers' packets.
        changes: sessions added and removed since the start.
        ended: sums over the sessions that have ended.
        outbox: packets that belong to no session (ACCEPT, RESET), each with the inbox that it goes to. Bounded.
        malformed: what arrived and was no packet.
        unknown: packets without a session: late ones, or forged.
        refused_hellos: HELLOs with an inbox that is not allowed.
    """

    def __init__(
        self,
        name: str,
        incarnation: str,
        inboxes: Sequence[str],
        *,
        random_bytes: Callable[[int], bytes],
        secret: str = "",
        may_reply_to: Callable[[str, str], bool] = lambda _inbox, _secret: False,
        on_named: Callable[[str], object] = lambda _service: None,
        settings: Settings = DEFAULT_SETTINGS,
        max_message_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.inboxes = list(inboxes)
        self.receive_window = ReceiveWindow(settings)
        self.sessions: dict[int, Session] = {}
        self.changes = 0
        self.ended = EndedSessions()
        self.outbox: list[tuple[str, bytes]] = []
        self.malformed = 0
        self.unknown = 0
        self.refused_hellos = 0
        self.is_accepting = True
        """Whether HELLO opens sessions; a draining process leaves it to a successor of its name."""
        self._random_bytes = random_bytes
        self._secret = secret
        self._may_reply_to = may_reply_to
        self._on_named = on_named
        self._settings = settings
        self._max_message_bytes = max_message_bytes
        self._half_open: dict[tuple[int, str], CalleeSession] = {}
        """Callee sessions without a packet of their callers, by the ids and secrets of these."""
        self._by_inbox: dict[str, CalleeSession] = {}
        """Open callee sessions by the first inbox of their callers."""

    def connect(self, inbox: str, now: float, service: str = "") -> CallerSession:
        """Open a session with the process that consumes ``inbox``, of the service of this id. ``SessionOpened`` or
        ``SessionClosed`` follows."""
        session = CallerSession(
            frames.create_address(self._random_bytes(8)),
            self._session_settings(),
            self.receive_window,
            now,
            name=self.name,
            incarnation=self.incarnation,
            secret=self._secret,
            inboxes=self.inboxes,
            peer_inbox=inbox,
            service=service,
        )
        self._add(session)
        return session

    def _session_settings(self) -> Settings:
        """Return the settings of a new session."""
        limit = self._max_message_bytes
        return self._settings if limit is None else fit_settings(self._settings, limit())

    def _add(self, session: Session) -> None:
        self.sessions[session.id] = session
        self.changes += 1

    def replace_inboxes(self, inboxes: Sequence[str]) -> None:
        """Replace the inboxes of the paths, and tell all callees. The first one stays; it can stand in for others."""
        self.inboxes = list(inboxes)
        for session in self.sessions.values():
            if isinstance(session, CallerSession):
                session.add_paths(self.inboxes)

    def receive_packet(self, data: bytes, now: float) -> Sequence[SessionEvents]:
        """Process one packet; never raises. Return the sessions that it concerns, with their events."""
        try:
            packet = frames.decode_packet(data)
        except frames.MalformedPacketError:
            self.malformed += 1
            return ()
        if not 0 <= packet.path < self._settings.max_paths:
            self.malformed += 1
            return ()
        session = self.sessions.get(packet.to)
        if session is None:
            return self._receive_unknown(packet, now)
        if not session.is_open and isinstance(session, CalleeSession):
            return self._open(session, packet, now)
        events = session.receive(packet, now)
        if session.is_closed:
            self.forget(session)
        return ((session, events),)

    def _receive_unknown(self, packet: frames.Packet, now: float) -> Sequence[SessionEvents]:
        for frame in packet.frames:
            if type(frame) is frames.Hello and packet.to == frames.HELLO_ADDRESS:
                return self._receive_hello(frame, now)
        self.unknown += 1
        for frame in packet.frames:
            if type(frame) is frames.From and packet.to != frames.HELLO_ADDRESS and self._may_reset(frame):
                header = (frames.VERSION, frame.id, 0, frames.UNNUMBERED, 0, 0, 0, 0, 0)
                self._post(frame.inbox, frames.encode_packet(header, [(frames.RESET, packet.to, self.incarnation)]))
                break
        return ()

    def _may_reset(self, frame: frames.From) -> bool:
        return (
            0 < frame.id < 1 << 63
            and len(frame.inbox) <= frames.MAX_NAME_CHARS
            and self._may_reply_to(frame.inbox, frame.secret)
        )

    def _post(self, inbox: str, packet: bytes) -> None:
        if len(self.outbox) < self._settings.max_resets:
            self.outbox.append((inbox, packet))

    def answer_late(self, data: bytes) -> tuple[str, bytes] | None:
        """Answer a probe while the event loop processes no packets: return an inbox and the packet for it that shows that
        this process runs. Called on another thread; changes nothing, and never raises."""
        try:
            packet = frames.decode_packet(data)
        except frames.MalformedPacketError:
            return None
        session = self.sessions.get(packet.to)
        is_probe = any(type(frame) is frames.From for frame in packet.frames)
        if not is_probe or not isinstance(session, CalleeSession) or session.is_closed:
            return None
        return session.peer_inboxes[0], session.alive_packet()

    # -- the callee's handshake ---------------------------------------------------------------------------------

    def _receive_hello(self, hello: frames.Hello, now: float) -> Sequence[SessionEvents]:
        if not (self.is_accepting and self._is_usable(hello)):
            self.refused_hellos += 1
            return ()
        ended: Sequence[SessionEvents] = ()
        session = self._find_session(hello)
        if session is None:
            ended = self._make_room(now)
            nonce = self._random_bytes(frames.NONCE_BYTES)
            settings = self._session_settings()
            session = CalleeSession(hello, nonce, self._may_reply_to, settings, self.receive_window, now)
            self._add(session)
            self._half_open[hello.id, hello.secret] = session
        version = frames.VERSION if frames.VERSION in hello.versions else 0
        proof = frames.derive_proof(hello.secret, hello.id, session.nonce, self.name, self.incarnation)
        accept = (
            frames.ACCEPT,
            version,
            frames.FEATURES & hello.features,
            self.name,
            self.incarnation,
            session.nonce,
            proof,
            self._settings.data_window,
        )
        header = (frames.VERSION, hello.id, 0, frames.UNNUMBERED, 0, 0, session.load, 0, self.receive_window.share)
        self._post(hello.inboxes[0], frames.encode_packet(header, [accept]))
        return ended

    def _is_usable(self, hello: frames.Hello) -> bool:
        return (
            0 < hello.id < 1 << 63
            and 0 < len(hello.secret.encode("utf-8", "surrogatepass")) <= frames.MAX_SECRET_CHARS
            and len(hello.name) <= frames.MAX_NAME_CHARS
            and len(hello.incarnation) <= frames.MAX_NAME_CHARS
            and check_inboxes(hello.inboxes, self._settings.max_paths, frames.MAX_NAME_CHARS)
            and all(self._may_reply_to(inbox, hello.secret) for inbox in hello.inboxes)
        )

    def _find_session(self, hello: frames.Hello) -> CalleeSession | None:
        """Return the session that an earlier copy of ``hello`` has created."""
        known = self._by_inbox.get(hello.inboxes[0])
        if known is not None and known.caller == (hello.id, hello.secret):
            return known
        return self._half_open.get((hello.id, hello.secret))

    def _make_room(self, now: float) -> Sequence[SessionEvents]:
        """End sessions for a new one: half-open ones that are old, and the one that was idle longest."""
        settings, half_open = self._settings, self._half_open
        ended = []
        while half_open:
            oldest = next(iter(half_open.values()))
            if len(half_open) < settings.max_half_open and now - oldest.heard_at < settings.half_open:
                break
            ended.append((oldest, self.end(oldest, now, Failure.IDLE)))
        if len(self._by_inbox) >= settings.max_sessions:
            idle = [each for each in self._by_inbox.values() if not each.running]
            if idle:
                longest = min(idle, key=attrgetter("heard_at"))
                ended.append((longest, self.end(longest, now, Failure.EVICTED)))
        return ended

    def _open(self, session: CalleeSession, packet: frames.Packet, now: float) -> Sequence[SessionEvents]:
        """The caller has proved that it got ACCEPT: its session replaces an older one of the same caller."""
        del self._half_open[session.caller]
        inbox = session.peer_inboxes[0]
        former = self._by_inbox.get(inbox)
        ended: list[SessionEvents] = []
        if former is not None:
            ended.append((former, self.end(former, now, Failure.REPLACED)))
        self._by_inbox[inbox] = session
        self._on_named(session.service)
        events = session.receive(packet, now)
        if session.is_closed:
            self.forget(session)
        return (*ended, (session, events))

    # -- the end ------------------------------------------------------------------------------------------------

    def end(self, session: Session, now: float, reason: Failure = Failure.CLOSED) -> list[Event]:
        """End a session, tell its peer, and forget it. Return its last events."""
        events = session.close(now, reason)
        for index, packet in session.packets_to_send(now):
            self.outbox.append((session.peer_inboxes[index], packet))
        self.forget(session)
        return events

    def forget(self, session: Session) -> None:
        """Remove a session that has ended. Idempotent."""
        if self.sessions.pop(session.id, None) is None:
            return
        self.changes += 1
        # After the removal: a scrape on another thread may miss this session once, and never counts it twice.
        self.ended.add(session.statistics, session.end_reason or Failure.CLOSED, was_open=session.is_open)
        if isinstance(session, CalleeSession):
            self._half_open.pop(session.caller, None)
            inbox = session.peer_inboxes[0]
            if self._by_inbox.get(inbox) is session:
                del self._by_inbox[inbox]
