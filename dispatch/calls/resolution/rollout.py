"""The versions that share the calls of one tool: a canary gets a few per cent of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from dispatch.catalog.versions import version_key

BUCKETS: Final = 10_000
"""Buckets of users, and of calls without a user: the granularity of a share is 0.01 per cent."""


class Rollout:
    """Assigns buckets to versions of one tool, by share; the rest belongs to the default version.

    The version that a bucket belongs to depends on the shares alone, so that all dispatchers agree. A version whose share is
    raised keeps its buckets. The shares of one or two versions change independently of each other: the lower version has
    the first buckets, the higher one the last. With more versions, another share may move the buckets of those in between.

    Args:
        shares: of versions other than the default one, in per cent, 100 in all at most.
    """

    __slots__ = ("_intervals",)

    def __init__(self, shares: Mapping[str, float]) -> None:
        sizes = [(version, round(shares[version] * BUCKETS / 100)) for version in sorted(shares, key=version_key)]
        intervals = []
        begin = 0
        for version, size in sizes[:-1]:
            intervals.append((begin, begin + size, version))
            begin += size
        for version, size in sizes[-1:]:
            intervals.append((max(begin, BUCKETS - size), BUCKETS, version))
        self._intervals = tuple(intervals)

    def version_of(self, bucket: int) -> str | None:
        """Return the version that ``bucket`` belongs to; None: the default one."""
        for begin, end, version in self._intervals:
            if begin <= bucket < end:
                return version
        return None


def hash_bucket(tool: str, text: str) -> int:
    """Return the bucket of a user, or of an idempotency key, for a tool: another one for each tool, so that the same few
    users do not get every canary."""
    digest = hashlib.blake2b(f"{tool}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % BUCKETS
