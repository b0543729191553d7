"""Debian's Prometheus: found on the machine; in CI it has to be there, elsewhere its tests are left out and it is said."""

from __future__ import annotations

import shutil

INSTALL = "apt-get install prometheus"
"""How it gets there. `.ci/run` does that."""


class PrometheusMissing(Exception):
    """``prometheus`` or ``promtool`` is not on the machine."""


def find(program: str) -> str:
    """The path of ``prometheus`` or ``promtool``.

    Raises:
        PrometheusMissing: it is not there.
    """
    # Debian has them in /usr/bin, and so has whoever unpacked a release somewhere on PATH.
    found = shutil.which(program)
    if found is None:
        raise PrometheusMissing(f"{program} is missing; on Debian: {INSTALL}")
    return found
