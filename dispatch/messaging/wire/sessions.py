"""Which dispatcher a message comes from: a secret that it shows to services, and a public key derived from the secret.

The key is part of each request's id and of the dispatcher's reply topics, which other agents may see in the response
namespace. The secret (property ``session``) is sent to the request namespace alone, which only services consume. A service
checks ``session_key(secret) == key`` before it answers on a dispatcher's reply topic or changes anything that it remembers
of the dispatcher, so that another agent can neither redirect, repeat, settle nor cancel a request. The check needs no state.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Final

SECRET_BYTES: Final = 16
KEY_CHARS: Final = 24
"""96 bits: a second secret with the same key cannot be found by trying."""
MAX_SECRET_CHARS: Final = 64
_HEXADECIMAL: Final = frozenset("0123456789abcdef")
_CACHED: Final = 8_192
"""Keys kept: twice the dispatchers that a service remembers."""


@lru_cache(maxsize=_CACHED)
def session_key(secret: str) -> str:
    """Return the public key, :data:`KEY_CHARS` hexadecimal digits, of a dispatcher's ``secret``."""
    return blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=KEY_CHARS // 2).hexdigest()


def is_sender(secret: str | None, id: str) -> bool:
    """Return whether ``secret`` is that of the dispatcher which made the request ``id``."""
    if secret is None or len(secret) > MAX_SECRET_CHARS:
        return False
    return id[KEY_CHARS : KEY_CHARS + 1] == "." and id[:KEY_CHARS] == session_key(secret)


def is_dispatchers(id: str) -> bool:
    """Return whether ``id`` has the form of the ids that dispatchers give to their requests."""
    return id[KEY_CHARS : KEY_CHARS + 1] == "." and _HEXADECIMAL.issuperset(id[:KEY_CHARS])


class Session:
    """The secret and the key of one dispatcher.

    Args:
        secret: random text, new in each dispatcher.
    """

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.key = session_key(secret)
        self.prefix = f"{self.key}."
        """Prefix of the ids of all requests."""
