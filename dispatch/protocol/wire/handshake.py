"""The proof in a handshake, and the address of a session.

Agents can read whatever is sent towards dispatchers. So the address of packets towards an instance is never sent: both peers
derive it from the secret in HELLO, which only consumers of the instance's inbox read, and from the nonce in ACCEPT. Another
run of the instance has another nonce, and so another address.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

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
