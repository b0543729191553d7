"""Selects among the versions of one tool or of one service."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from dispatch.catalog.descriptors import Instance, ServiceDescriptor, ToolDescriptor
from dispatch.catalog.version_ranges import Range, parse_range
from dispatch.catalog.versions import is_prerelease, version_key

D = TypeVar("D", ServiceDescriptor, ToolDescriptor)


def sort_versions(descriptors: Iterable[D]) -> tuple[D, ...]:
    """Return the versions of one name, highest first; one without a version is the lowest. Versions of one precedence are in
    the order of their texts."""
    versions = tuple(descriptors)
    if len(versions) < 2:
        return versions
    return tuple(sorted(versions, key=lambda each: (version_key(each.version), each.version or ""), reverse=True))


def select_default(versions: Sequence[D]) -> D:
    """Return the default of ``versions``, which are the highest first: the highest that is no prerelease, otherwise the
    highest.

    A version to which another tool version's ``rollout`` gives a share is no default: it gets that share only.
    """
    if len(versions) == 1:
        return versions[0]
    releases = [each for each in versions if each.version is None or not is_prerelease(each.version)]
    targets = {target for each in versions if isinstance(each, ToolDescriptor) for target in each.rollout}
    candidates = [each for each in releases if each.version not in targets]
    return (candidates or releases or versions)[0]


def select_highest(versions: Iterable[D], range: Range) -> D | None:
    """Return the first of ``versions``, which are the highest first, that is in ``range``; one without a version is in
    none."""
    return next((each for each in versions if each.version is not None and range.includes(each.version)), None)


def select_version(default: D, versions: Iterable[D], range: Range) -> D | None:
    """Return ``default`` if it is in ``range``, otherwise the highest of ``versions`` that is; None: no version is.

    The default precedes a higher version that is being rolled out: a range must not bypass the share of that version.
    """
    if default.version is not None and range.includes(default.version):
        return default
    return select_highest(versions, range)


def to_range(version: str | Range) -> Range:
    """Return a range that is given as its text or as a range.

    Raises:
        ValueError: the text is no range.
    """
    return parse_range(version) if isinstance(version, str) else version


def list_versions(descriptors: Iterable[ServiceDescriptor | ToolDescriptor | Instance]) -> tuple[str, ...]:
    """Return the declared versions of descriptors, in their order."""
    return tuple(each.version for each in descriptors if each.version is not None)


def select_service(versions: Sequence[ServiceDescriptor], requires: str | None) -> ServiceDescriptor | None:
    """Return the highest version of a service that satisfies a tool's ``requires``, itself or with one of its instances;
    None: no version does.

    Args:
        versions: of the service, highest first.
        requires: a valid range; None: the default version.
    """
    if requires is None:
        return select_default(versions)
    range = parse_range(requires)
    return select_highest(versions, range) or next(
        (each for each in versions if any(_is_in(range, instance.version) for instance in each.instances)), None
    )


def find_service_version(versions: Sequence[ServiceDescriptor], requires: str | None) -> ServiceDescriptor:
    """Return the version of a service that a tool uses: that of :func:`select_service`, or the default one if no version
    satisfies ``requires``, in which case calls are rejected.

    Args:
        versions: of the service, at least one, in any order.
        requires: a range; None, or a text that is no range: the default version.
    """
    if len(versions) == 1:
        return versions[0]
    ordered = sort_versions(versions)
    if requires is not None:
        with contextlib.suppress(ValueError):
            return select_service(ordered, requires) or select_default(ordered)
    return select_default(ordered)


def _is_in(range: Range, version: str | None) -> bool:
    return version is not None and range.includes(version)
