"""Versions: SemVer 2.0.0, parsed and ordered with the library ``semver``."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from dispatch._internal.suggestions import excerpt

if TYPE_CHECKING:
    from semver import Version

VERSION_EXAMPLE: Final = "1.4.0"
MAX_VERSION_CHARS: Final = 256
"""Characters of a version, as in node-semver."""
MAX_NUMBER: Final = 2**53 - 1
"""Largest major, minor and patch number, as in node-semver: the largest integer that JSON carries exactly."""


@lru_cache(maxsize=4096)
def parse_version(text: str) -> Version:
    """Return the version; versions compare by precedence, which ignores build metadata.

    Raises:
        ValueError: the text is no version; the message is a clause with the reason.
    """
    if len(text) > MAX_VERSION_CHARS:
        raise ValueError(f"the version has {len(text):,} characters, and {MAX_VERSION_CHARS} are allowed")
    from semver import Version  # here, because it imports argparse: `import dispatch` needs neither

    try:
        version = Version.parse(text)
    except ValueError:
        raise ValueError(f"'{excerpt(text)}' is not a SemVer version") from None
    if max(version.major, version.minor, version.patch) > MAX_NUMBER:
        raise ValueError(f"'{excerpt(text)}' has a number above {MAX_NUMBER}")
    return version


def is_version(text: str) -> bool:
    """Return whether ``text`` is a SemVer version: ``1.4.0``, ``2.0.0-rc.1+build.5``."""
    try:
        parse_version(text)
    except ValueError:
        return False
    return True


def version_key(text: str | None) -> tuple[bool, Version | None]:
    """Return a sort key for declared versions, lowest first; no version (None) sorts below all.

    Raises:
        ValueError: the text is no version.
    """
    return text is not None, None if text is None else parse_version(text)


def is_prerelease(text: str) -> bool:
    """Return whether the version is a prerelease, such as ``2.0.0-rc.1``.

    Raises:
        ValueError: the text is no version.
    """
    return parse_version(text).prerelease is not None
