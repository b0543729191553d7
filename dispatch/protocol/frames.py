"""Packets and frames. A packet is one message: one msgpack array, whose last element is an array of frames.

Frames are written as tuples, which msgspec encodes fastest, and read as typed structs, so that a hostile packet fails in the
decoder. Further elements of a known frame and unknown frames are ignored: later versions may add both.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final

import msgspec

# The proof in a handshake, and the address of a session.
#
# Agents can read whatever is sent towards dispatchers. So the address of packets towards an instance is never sent: both
# peers derive it from the secret in HELLO, which only consumers of the instance's inbox read, and from the nonce in ACCEPT.
# Another run of the instance has another nonce, and so another address.


NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 16
MAX_SECRET_CHARS: Final = 64
"""Longest secret: the longest key of BLAKE2b."""
MAX_NAME_CHARS: Final = 512
"""Longest name, incarnation or inbox of a peer."""


def derive_proof(secret: str, id: int, nonce: bytes, name: str, incarnation: str) -> bytes:
    """Return what only a process that has read the HELLO with ``secret`` and ``id`` can send."""
    about = f"proof {id} {len(name)} {name} {incarnation} ".encode() + nonce
    return blake2b(about, key=secret.encode(), digest_size=PROOF_BYTES).digest()


def derive_address(secret: str, id: int, nonce: bytes) -> int:
    """Return the callee's address for the session."""
    digest = blake2b(f"address {id} ".encode() + nonce, key=secret.encode(), digest_size=8).digest()
    return create_address(digest)


def create_address(random: bytes) -> int:
    """Return an address made of eight random bytes: 63 bits, not 0."""
    return (int.from_bytes(random) >> 1) or 1


VERSION: Final = 1
"""The version of the protocol."""
PACKET_START: Final = 0x9A
"""The first byte of a packet: a msgpack array of ten elements. No UTF-8 text begins with it."""
ACK_NOW: Final = 1
"""A flag of a packet: acknowledge at once."""
HELLO_ADDRESS: Final = 0
"""The address of a HELLO."""
UNNUMBERED: Final = -1
"""The number of a packet that is not acknowledged."""

(
    HELLO,
    ACCEPT,
    REQUEST,
    REPLY,
    CHUNK,
    END,
    REFUSED,
    CANCEL,
    ACK,
    WINDOW,
    PING,
    GOAWAY,
    RESET,
    CONT,
    FROM,
    PATHS,
    CLOSE,
    ALIVE,
    CREDIT,
) = range(19)

FRAME_BYTES: Final = 24
"""Estimated size of a frame without its payload."""
TRACE_BYTES: Final = 80
"""Estimated size of a reply's trace context."""
PACKET_BYTES: Final = 300
"""Estimated size of a packet without its frames, with what the broker adds."""
CHUNK_BYTES: Final = 64
"""Bytes that a chunk counts in its stream's flow control, beside its payload: a window bounds the number of chunks, too."""
STREAM_CREDIT: Final = 1
"""A feature: flow control of each stream (:class:`Credit`). Without it a callee sends chunks as they are produced."""
FEATURES: Final = STREAM_CREDIT
"""Optional features of this implementation, a bit each; a session uses those that both peers have."""


class Status:
    """The form of a reply's payload."""

    TEXT: Final = 0
    """UTF-8 text: the tool's result."""
    ERROR: Final = 1
    """JSON ``{"type": …, "message": …}``: the tool's error."""


class _Frame(msgspec.Struct, array_like=True, gc=False):
    pass


class Hello(_Frame, tag=HELLO):
    """Caller to callee: opens a session.

    Attributes:
        versions: that the caller speaks.
        features: that it has.
        name: of the caller.
        incarnation: random name of its run.
        id: the address of the callee's packets.
        secret: known to the caller and to those that consume the callee's inbox; never sent in the other direction.
        inboxes: topics for the callee's packets, one for each path.
        data_window: see :class:`Window`.
        stream_window: see :class:`Credit`; absent from callers without that feature.
        service: id of the service's descriptor at the caller, for the callee's metrics; may be absent.
    """

    versions: list[int]
    features: int
    name: str
    incarnation: str
    id: int
    secret: str
    inboxes: list[str]
    data_window: int
    stream_window: int = 0
    service: str = ""


class Accept(_Frame, tag=ACCEPT):
    """Callee to caller: the answer to HELLO.

    Attributes:
        version: of the session; 0: none that both peers speak.
        features: that both have.
        name, incarnation: of the callee.
        nonce: random; the address of the caller's packets is derived from it and from the secret.
        proof: shows that the callee knows the secret.
        data_window: see :class:`Window`.
    """

    version: int
    features: int
    name: str
    incarnation: str
    nonce: bytes
    proof: bytes
    data_window: int


class Request(_Frame, tag=REQUEST):
    """A request. ``number`` counts from 0, and all frames about the request have it. ``deadline`` in milliseconds of the
    sender's clock, which each packet tells: a retransmission does not extend it; 0: none. ``target``: the tool."""

    number: int
    deadline: int
    target: str
    headers: dict[str, str] | None
    payload: bytes


class Reply(_Frame, tag=REPLY):
    """A complete reply. ``trace``: the trace context of its span, as ``traceparent`` and ``tracestate``; absent: none."""

    number: int
    status: int
    payload: bytes
    trace: dict[str, str] | None = None


class Chunk(_Frame, tag=CHUNK):
    """A part of a streamed reply; ``index`` counts from 0."""

    number: int
    index: int
    payload: bytes


class End(_Frame, tag=END):
    """The end of a streamed reply of so many chunks, with an error or an empty payload; ``trace`` as in REPLY."""

    number: int
    chunks: int
    status: int
    payload: bytes
    trace: dict[str, str] | None = None


class Refused(_Frame, tag=REFUSED):
    """The tool is not executed, or not to its end. ``retry_after_ms`` -1: unknown; ``trace`` as in REPLY."""

    number: int
    reason: str
    retry_after_ms: int
    message: str = ""
    trace: dict[str, str] | None = None


class Cancel(_Frame, tag=CANCEL):
    """The caller no longer waits. Also fills the number of a request that was withdrawn before it was sent."""

    number: int


class Ack(_Frame, tag=ACK):
    """Packets of a path that have arrived: ``[low, high, low, high …]``, newest first. ``delay_us``: between the arrival of
    the newest one and this acknowledgement."""

    path: int
    delay_us: int
    ranges: list[int]


class Window(_Frame, tag=WINDOW):
    """Flow control of the application's memory: the sender of this frame accepts so many bytes since the start."""

    data: int


class Ping(_Frame, tag=PING):
    """Asks for an acknowledgement."""


class Goaway(_Frame, tag=GOAWAY):
    """The callee accepts no further requests, and finishes the others."""

    reason: str


class Reset(_Frame, tag=RESET):
    """The process does not know that address: it has restarted, or is another one of the same name."""

    address: int
    incarnation: str


class Cont(_Frame, tag=CONT):
    """A fragment of a large payload.

    Attributes:
        message: number of the payload, counted by its sender.
        offset: place of the piece.
        total: bytes of the whole payload.
        number: of the request that the payload belongs to.
        head: at offset 0 the encoded frame with an empty payload; else None.
        piece: the bytes. It ends the packet.
    """

    message: int
    offset: int
    total: int
    number: int
    head: bytes | None
    piece: memoryview


class From(_Frame, tag=FROM):
    """Caller to callee, with a probe: where a process that does not know the address sends RESET;
    ``secret`` as in HELLO."""

    id: int
    inbox: str
    secret: str


class Paths(_Frame, tag=PATHS):
    """The inboxes of a caller, one for each path: replaces those before, and is not shorter."""

    inboxes: list[str]


class Close(_Frame, tag=CLOSE):
    """The sender has ended the session."""

    reason: str


class Alive(_Frame, tag=ALIVE):
    """Callee to caller: the process runs, although its event loop does not process packets at present. The answer to a probe
    from another thread; it acknowledges nothing."""


class Credit(_Frame, tag=CREDIT):
    """Caller to callee: flow control of one stream. The callee begins the next chunk of a stream while its chunks since the
    start have fewer than ``data`` bytes, each one its payload and 64; before the first CREDIT ``stream_window`` of HELLO."""

    number: int
    data: int


Frame = (
    Hello
    | Accept
    | Request
    | Reply
    | Chunk
    | End
    | Refused
    | Cancel
    | Ack
    | Window
    | Ping
    | Goaway
    | Reset
    | Cont
    | From
    | Paths
    | Close
    | Alive
    | Credit
)
Payload = Request | Reply | Chunk | End
"""The frames that can be fragmented."""


class _Header(msgspec.Struct, array_like=True, gc=False):
    """The fields of a packet before its frames.

    Attributes:
        version: of the protocol.
        to: the receiver's address for the session.
        path: index of the path.
        number: counted for each path, from 0; -1 (:data:`UNNUMBERED`): not acknowledged.
        clock: the sender's, in milliseconds since its session began.
        flags: bit 0 (:data:`ACK_NOW`): acknowledge at once.
        load: requests that the sender executes.
        data: payload bytes that the sender has sent since the start, without retransmissions.
        window: unacknowledged bytes that the receiver may have on each path.
    """

    version: int
    to: int
    path: int
    number: int
    clock: int
    flags: int
    load: int
    data: int
    window: int


class Packet(_Header, array_like=True, gc=False):
    """One packet.

    Attributes:
        frames: what it carries.
    """

    frames: list[Frame]


class _RawPacket(_Header, array_like=True, gc=False):
    """A packet whose frames are decoded one by one."""

    frames: list[msgspec.Raw]


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Packet).decode
_decode_raw = msgspec.msgpack.Decoder(_RawPacket).decode
_decode_frame: Any = msgspec.msgpack.Decoder(Frame).decode
_decode_payload: Any = msgspec.msgpack.Decoder(Payload).decode
_decode_kind = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class MalformedPacketError(ValueError):
    """The bytes are no packet."""


def is_packet(data: bytes) -> bool:
    """Return whether ``data`` can be a packet: no UTF-8 text begins like one."""
    return data[:1] == b"\x9a"


def decode_packet(data: bytes) -> Packet:
    """Decode one packet.

    Raises:
        MalformedPacketError: the bytes are no packet of this version.
    """
    try:
        packet = _decode(data)
    except msgspec.ValidationError:
        packet = _decode_known_frames(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPacketError(str(error)) from None
    if packet.version != VERSION:
        raise MalformedPacketError(f"a packet of version {packet.version}")
    return packet


def _decode_known_frames(data: bytes) -> Packet:
    """Decode a packet that may have frames of a later version, which are left out."""
    try:
        raw = _decode_raw(data)
        frames = []
        for each in raw.frames:
            kind = msgspec.msgpack.decode(_decode_kind(each)[0], type=int)
            if HELLO <= kind <= CREDIT:
                frames.append(_decode_frame(each))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError) as error:
        raise MalformedPacketError(str(error)) from None
    return Packet(**{**msgspec.structs.asdict(raw), "frames": frames})


def decode_payload_frame(head: bytes) -> Payload | None:
    """Decode the frame of a fragmented payload, which is empty in ``head``. None: it is none of them."""
    try:
        frame: Payload = _decode_payload(head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return frame


def encode_packet(header: tuple[int, ...], frames: list[tuple[Any, ...]]) -> bytes:
    """Encode one packet.

    Args:
        header: the fields of :class:`Packet` before ``frames``.
        frames: as tuples, the kind first. A last :class:`Cont` is appended without a copy of its piece.
    """
    last = frames[-1] if frames else ()
    if not last or last[0] != CONT:
        return encode((*header, frames))
    # The piece is the last element of everything: an empty binary (2 bytes) is replaced by it.
    head = encode((*header, [*frames[:-1], (*last[:-1], b"")]))
    return b"".join((head[:-2], b"\xc6", len(last[-1]).to_bytes(4), last[-1]))
