"""Versions: SemVer 2.0.0, parsed and ordered with the library ``semver``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from dispatch._internal import excerpt
from dispatch.catalog.descriptors import Instance, ServiceDescriptor, ToolDescriptor

if TYPE_CHECKING:
    from semver import Version


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


# Version ranges with the semantics of node-semver 7: ``^1.4``, ``~2.1``, ``1.x``, ``1.2 - 2.3``, ``>=1 <3 || 4.0.0``.
#
# The grammar is the one that node-semver documents (its ``range.bnf``), with ``v`` before a version, ``~>`` for ``~`` and a
# blank after an operator. Texts outside it that node-semver accepts by accident (``1.2.3*``, ``^=1.0.0``) are errors.
#
# The package node-semver of PyPI (0.9.1) does not replace it: of the 133 ranges in tests/unit/catalog/node_semver_pairs.json
# it answers 4 differently, and it accepts 8 of the 50 invalid texts, such as ``x.1``.


MAX_RANGE_CHARS: Final = 256
"""Characters of a range. It bounds the number of comparators as well."""

_PART: Final = r"(?:0|[1-9]\d*|[xX*])"
_LABEL: Final = r"(?:\d*[a-zA-Z-][0-9a-zA-Z-]*|0|[1-9]\d*)"
_PARTIAL: Final = rf"v?({_PART})(?:\.({_PART})(?:\.({_PART})(?:-({_LABEL}(?:\.{_LABEL})*))?)?)?"
_BUILD: Final = re.compile(r"\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*")
_HYPHEN_RANGE: Final = re.compile(rf"{_PARTIAL} - {_PARTIAL}", re.ASCII)
_SIMPLE: Final = re.compile(rf"(~>?|\^|[<>]=?|=|) ?{_PARTIAL}(?: |$)", re.ASCII)

Condition = tuple[str, str]
"""An operator and a version, both as text."""
_IMPOSSIBLE: Final[Condition] = ("<", "0.0.0-0")
_EVERYTHING: Final[Condition] = (">=", "0.0.0")


class Comparator(NamedTuple):
    """One condition on a version: ``operator`` is ``<``, ``<=``, ``>``, ``>=`` or ``=``."""

    operator: str
    version: Version

    def accepts(self, version: Version) -> bool:
        """Return whether the version meets the condition, by precedence alone."""
        order = version.compare(self.version)
        if order == 0:
            return self.operator in ("=", "<=", ">=")
        return self.operator[0] == ("<" if order < 0 else ">")


class Partial(NamedTuple):
    """A version whose last numbers may be missing or wildcards."""

    numbers: tuple[int, ...]
    """The known ones: major, minor and patch."""
    prerelease: str | None
    has_gap: bool
    """A number stands behind a wildcard: ``1.x.5``."""

    @classmethod
    def of(cls, *groups: str | None) -> Partial:
        """Return the partial version of the groups of :data:`_PARTIAL`."""
        *parts, prerelease = groups
        texts = [part or "x" for part in parts]
        numbers = tuple(map(int, takewhile(str.isdigit, texts)))
        return cls(numbers, prerelease, any(map(str.isdigit, texts[len(numbers) :])))

    @property
    def is_whole(self) -> bool:
        """Whether it names one version."""
        return len(self.numbers) == 3

    def lowest(self, suffix: str = "") -> str:
        """Return the version, or the lowest one that it covers with ``suffix``."""
        if self.is_whole:
            suffix = f"-{self.prerelease}" if self.prerelease else ""
        return _join((*self.numbers, 0, 0)) + suffix

    def increment(self, position: int) -> str:
        """Return the version after it with a higher major (0), minor (1) or patch (2) number."""
        return _join((*self.numbers[:position], self.numbers[position] + 1, 0, 0))

    def end(self) -> str:
        """Return the first version above all that a partial version covers."""
        return self.increment(len(self.numbers) - 1)


def _join(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers[:3]))


Alternative = tuple[Comparator, ...]
"""Comparators that a version must all meet; none: any version."""


@dataclass(frozen=True, slots=True, repr=False)
class Range:
    """A parsed range: :meth:`includes`. Two ranges with one text are equal.

    Attributes:
        text: as it was written.
        alternatives: a version satisfies one of them.
    """

    text: str
    alternatives: tuple[Alternative, ...] = field(compare=False)

    def includes(self, version: str | Version | None) -> bool:
        """Return whether the version satisfies the range. None and a text that is no version satisfy none.

        A prerelease satisfies a range only if the range names a prerelease of the same major, minor and patch number, as in
        node-semver: a user of ``>=2.0.0-rc.1`` accepts that release's risk, not that of ``3.0.0-alpha``.
        """
        if isinstance(version, str):
            try:
                version = parse_version(version)
            except ValueError:
                return False
        if version is None:
            return False
        for comparators in self.alternatives:
            if all(each.accepts(version) for each in comparators) and (
                version.prerelease is None or _names_prerelease_of(comparators, version)
            ):
                return True
        return False

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Range: {self.text}>"


@lru_cache(maxsize=1024)
def parse_range(text: str) -> Range:
    """Return the range that ``text`` means.

    Raises:
        ValueError: it is no range; the message is a clause with the reason.
    """
    if len(text) > MAX_RANGE_CHARS:
        raise ValueError(f"the range has {len(text):,} characters, and {MAX_RANGE_CHARS} are allowed")
    alternatives = [" ".join(_BUILD.sub("", each).split()) for each in text.split("||")]
    try:
        expanded = tuple(map(_expand, alternatives))
    except ValueError as error:
        raise ValueError(f"'{excerpt(text)}' is not a version range: {error}") from None
    # One that accepts every version replaces all others, so that no prerelease that another one names is accepted.
    return Range(text, ((),) if () in expanded else expanded)


def _names_prerelease_of(comparators: Alternative, version: Version) -> bool:
    return any(
        each.version.prerelease is not None and each.version.to_tuple()[:3] == version.to_tuple()[:3]
        for each in comparators
    )


def _expand(text: str) -> Alternative:
    """Expand one alternative into comparators."""
    hyphen = _HYPHEN_RANGE.fullmatch(text)
    conditions: list[Condition] = []
    if hyphen is not None:
        groups = hyphen.groups()
        conditions = _expand_hyphen(Partial.of(*groups[:4]), Partial.of(*groups[4:]))
    else:
        position = 0
        while position < len(text):
            simple = _SIMPLE.match(text, position)
            if simple is None:
                raise ValueError(f"cannot read '{excerpt(text[position:])}'")
            operator, *parts = simple.groups()
            conditions += _expand_simple(operator, Partial.of(*parts))
            position = simple.end()
    return tuple(
        Comparator(operator, parse_version(version))
        for operator, version in conditions
        if (operator, version) != _EVERYTHING
    )


def _expand_simple(operator: str, partial: Partial) -> list[Condition]:
    """Expand an operator and its version."""
    if operator.startswith(("~", "^")):
        return _expand_compatible(operator[0], partial)
    if partial.has_gap:
        raise ValueError("a number stands behind a wildcard")
    if partial.is_whole:
        return [(operator or "=", partial.lowest())]
    if not partial.numbers:
        return [_IMPOSSIBLE] if operator in ("<", ">") else []
    if operator == ">":
        return [(">=", partial.end())]
    if operator == "<=":
        return [("<", f"{partial.end()}-0")]
    if operator == "<":
        return [("<", partial.lowest("-0"))]
    lowest = (">=", partial.lowest())
    return [lowest] if operator == ">=" else [lowest, ("<", f"{partial.end()}-0")]


def _expand_compatible(operator: str, partial: Partial) -> list[Condition]:
    """Expand ``~`` (the same minor number) or ``^`` (the same first number that is not 0)."""
    if not partial.numbers:
        return []
    last = len(partial.numbers) - 1
    position = min(last, 1)
    if operator == "^":
        position = next((index for index, number in enumerate(partial.numbers) if number), last)
    return [(">=", partial.lowest()), ("<", f"{partial.increment(position)}-0")]


def _expand_hyphen(lowest: Partial, highest: Partial) -> list[Condition]:
    """Expand ``LOWEST - HIGHEST``, both inclusive."""
    conditions = [(">=", lowest.lowest())] if lowest.numbers else []
    if highest.numbers:
        conditions.append(("<=", highest.lowest()) if highest.is_whole else ("<", f"{highest.end()}-0"))
    return conditions


# Selects among the versions of one tool or of one service.


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
    releases = [each for each in versions if each.version is None or parse_version(each.version).prerelease is None]
    targets = {target for each in versions if isinstance(each, ToolDescriptor) for target in each.rollout}
    candidates = [each for each in releases if each.version not in targets]
    return (candidates or releases or versions)[0]


def select_highest(versions: Iterable[D], range: Range) -> D | None:
    """Return the first of ``versions``, which are the highest first, that is in ``range``; one without a version is in
    none."""
    return next((each for each in versions if range.includes(each.version)), None)


def select_version(default: D, versions: Iterable[D], range: Range) -> D | None:
    """Return ``default`` if it is in ``range``, otherwise the highest of ``versions`` that is; None: no version is.

    The default precedes a higher version that is being rolled out: a range must not bypass the share of that version.
    """
    if range.includes(default.version):
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
        (each for each in versions if any(range.includes(instance.version) for instance in each.instances)), None
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
    with contextlib.suppress(ValueError):
        return select_service(ordered, requires) or select_default(ordered)
    return select_default(ordered)
