"""Descriptors of tool services and of the tools that refer to them. Immutable values.

Keys in files are in kebab-case (``request-queue``, ``read-only``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, NoReturn, TypeVar

import msgspec

from dispatch._internal import excerpt
from dispatch.policy import repeatable

# Problems in descriptors, and the error that lists them.


Severity = Literal["error", "warning", "info"]

MAX_PROBLEMS_PER_ITEM: Final = 100
"""Problems reported for one descriptor: a malformed megabyte could otherwise yield a hundred thousand."""


class Problem(msgspec.Struct, frozen=True):
    """One problem in a descriptor.

    Attributes:
        file: path of the descriptor, or ``tools[2]`` for a Python value.
        key: path of the value inside the descriptor, such as ``arguments[1].type``; ``""``: the whole file.
        problem: description of the problem.
        fix: how to correct it.
        severity: ``error``: the whole catalogue is not loaded; ``warning``: probably a mistake; ``info``: a note.
    """

    file: str
    key: str
    problem: str
    fix: str
    severity: Severity = "error"

    def __str__(self) -> str:
        where = f"{self.file}: {self.key}" if self.key else self.file
        return f"{where}: {self.problem}. Fix: {self.fix}."


class CatalogError(ValueError):
    """The descriptors are invalid. ``problems`` has all problems, with warnings and notes; ``str()`` lists each error and
    each warning with its file, key and fix."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        errors = [problem for problem in self.problems if problem.severity == "error"]
        warnings = [problem for problem in self.problems if problem.severity == "warning"]
        count = f"{len(errors)} mistake{'' if len(errors) == 1 else 's'}"
        lines = [f"The tools cannot be loaded: {count}."]
        lines += [f"  {problem}" for problem in errors]
        lines += [f"  Warning: {problem}" for problem in warnings]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[CatalogError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class ItemError(ValueError):
    """An item cannot be written or removed.

    Args:
        problem: one sentence.
        fix: what to do.
    """

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem, fix)
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.problem} Fix: {self.fix}."


class Report:
    """Collects the problems of one descriptor while it is read; ``has_errors``: one of them is an error."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.has_errors = False
        self._problems: list[Problem] = []
        self._wrong_keys: set[str] = set()
        self._omitted = 0

    def add_error(self, key: str, problem: str, fix: str) -> None:
        """Add a problem that prevents loading. Only the first error of a key is added: a value that is not readable would
        otherwise be reported as missing, too."""
        self.has_errors = True
        if key and key in self._wrong_keys:
            return
        self._wrong_keys.add(key)
        self._add(Problem(self.file, key, problem, fix, "error"))

    def add_warning(self, key: str, problem: str, fix: str) -> None:
        """Add a problem that does not prevent loading, and is probably a mistake."""
        self._add(Problem(self.file, key, problem, fix, "warning"))

    def add_info(self, key: str, problem: str, fix: str) -> None:
        """Add a note."""
        self._add(Problem(self.file, key, problem, fix, "info"))

    @property
    def problems(self) -> list[Problem]:
        """The problems in the order in which they were added; beyond the limit a last one has the number of the others."""
        if not self._omitted:
            return list(self._problems)
        rest = Problem(
            self.file,
            "",
            f"{self._omitted:,} more problems are not listed",
            "correct the ones above, then check again",
            "error" if self.has_errors else "warning",
        )
        return [*self._problems, rest]

    def _add(self, problem: Problem) -> None:
        if len(self._problems) < MAX_PROBLEMS_PER_ITEM:
            self._problems.append(problem)
        else:
            self._omitted += 1


# JSON values as immutable Python values, and their descriptions in messages.


V = TypeVar("V")

MAX_DEPTH: Final = 32
"""Depth of nested objects and lists. Real descriptors with output schemas have less than ten levels."""

MAX_VALUES: Final = 20_000
"""Values in one descriptor. A YAML alias counts each time it is used, as it would be written out."""

_PLAIN_KEY: Final = re.compile(r"[\w$-]{1,60}")


def _reject_change(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise TypeError("values of a catalogue are immutable: load a new catalogue instead")


class FrozenDict(dict[str, V]):
    """An immutable ``dict``; a subclass of ``dict``, so that every JSON encoder accepts it. Two of them are equal if they
    are the same JSON: 1, 1.0 and ``true`` differ, as they do for a tool that receives them."""

    __slots__ = ()

    __setitem__ = _reject_change
    __delitem__ = _reject_change
    __ior__ = _reject_change
    clear = _reject_change
    pop = _reject_change
    popitem = _reject_change
    setdefault = _reject_change
    update = _reject_change

    def __eq__(self, other: object) -> bool:
        is_equal = dict.__eq__(self, other)
        return _is_same_json(self, other) if is_equal is True and isinstance(other, FrozenDict) else is_equal

    def __ne__(self, other: object) -> bool:
        is_equal = self.__eq__(other)
        return is_equal if is_equal is NotImplemented else not is_equal

    def __hash__(self) -> int:  # type: ignore[override]  # None in dict, which is mutable
        return hash(frozenset(self.items()))

    def __copy__(self) -> FrozenDict[V]:
        return self

    def __deepcopy__(self, _memo: object) -> FrozenDict[V]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


def _is_same_json(one: Any, other: Any) -> bool:
    """Return whether equal values have equal types, at every depth."""
    if one is other:
        return True
    if isinstance(one, dict):
        return isinstance(other, dict) and all(_is_same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return isinstance(other, tuple) and all(map(_is_same_json, one, other))
    return type(one) is type(other)


def freeze_json(value: object, report: Report) -> Any:
    """Return ``value`` as immutable JSON: objects as :class:`FrozenDict`, lists as tuples.

    A value that JSON cannot express (another type, a key that is not a text, a number that is not finite or has more than 64
    bits, half of a surrogate pair, more than :data:`MAX_DEPTH` or :data:`MAX_VALUES`) is reported and read as ``None``.
    """
    return _Freezer(report).freeze(value, "", 0)


class _Freezer:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._remaining = MAX_VALUES

    def freeze(self, value: object, path: str, depth: int) -> Any:
        self._remaining -= 1
        if self._remaining < 0:  # reported once: the loops over lists and objects stop
            self._report.add_error(
                path, f"more than {MAX_VALUES:,} values in one descriptor", "keep data out of the descriptor"
            )
            return None
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, int):
            if -(2**63) <= value < 2**64:
                return int(value)
            return self._report_error(path, "the number has more than 64 bits", "write it as a text")
        if isinstance(value, float):
            if math.isfinite(value):
                return float(value)
            return self._report_error(path, f"{value} is not a JSON number", "write a finite number, or remove the key")
        if isinstance(value, (Mapping, list, tuple)):
            if depth >= MAX_DEPTH:
                return self._report_error(
                    path, f"more than {MAX_DEPTH} nested objects or lists", "make the value flatter"
                )
            return self._mapping(value, path, depth) if isinstance(value, Mapping) else self._list(value, path, depth)
        return self._report_error(
            path, f"a {type(value).__name__} is not a JSON value", "write it as a text, in quotes"
        )

    def _list(self, values: Iterable[object], path: str, depth: int) -> tuple[Any, ...]:
        result = []
        for index, value in enumerate(values):
            result.append(self.freeze(value, f"{path}[{index}]", depth + 1))
            if self._remaining < 0:
                break
        return tuple(result)

    def _mapping(self, value: Mapping[Any, object], path: str, depth: int) -> FrozenDict[Any]:
        result: dict[str, Any] = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                self._report_error(
                    path, f"the key {excerpt(repr(key))} is {describe_kind(key)}, not a text", "put the key in quotes"
                )
            elif (text := self._text(key, path)) is not None:
                result[text] = self.freeze(inner, join_path(path, text), depth + 1)
            if self._remaining < 0:
                break
        return FrozenDict(result)

    def _text(self, value: str, path: str) -> str | None:
        try:
            value.encode()
        except UnicodeEncodeError:
            self._report_error(path, "half of a surrogate pair in a text", "write both halves, or the character")
            return None
        return str(value)

    def _report_error(self, path: str, problem: str, fix: str) -> None:
        self._report.add_error(path, problem, fix)


def thaw(value: Any) -> Any:
    """Return a mutable copy of a frozen value: plain ``dict`` and ``list``."""
    if isinstance(value, dict):
        return {key: thaw(inner) for key, inner in value.items()}
    return [thaw(inner) for inner in value] if isinstance(value, tuple) else value


def join_path(path: str, key: str) -> str:
    """Return the path of ``key`` in the object at ``path``: ``policy.retry``; an unusual key is in brackets."""
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{excerpt(repr(key), 62)}]"
    return f"{path}.{key}" if path else key


def describe_kind(value: object) -> str:
    """Return the kind of a JSON value, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


def describe_value(value: object) -> str:
    """Return a short value itself (``'str'``, ``7``), or the kind of a long one."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return excerpt(repr(value), 62)
    return describe_kind(value)


EMPTY: Final[FrozenDict[Any]] = FrozenDict()
"""The one empty object of all descriptors, which saves memory in large catalogues."""

DEFAULT_GROUPS: Final = ("default",)
"""Groups of a tool that declares none, as in TrustGraph."""

ANY_STATE: Final = ("*",)
"""Applicable states of a tool that declares none, as in TrustGraph: it is offered in every state."""

ARGUMENT_TYPES: Final = ("string", "number", "integer", "boolean", "object", "array")
"""Types of arguments: those of JSON Schema without ``null``. TrustGraph uses ``string`` and ``number``."""


# Descriptors contain texts and frozen JSON, which form no cycles: gc=False excludes them from garbage collection.


class ConfigParam(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """A parameter of a service that its tools configure.

    Attributes:
        name: the key in the tool's descriptor and in the request's ``config``.
        required: each tool of the service must set it. Default false, as in TrustGraph.
    """

    name: str
    required: bool = False


class Instance(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """An instance of a service on topics of its own, so that a dispatcher can balance load between instances.

    Attributes:
        id: unique within the service.
        request_queue: whole name of its request topic.
        response_queue: whole name of its response topic; default: the service's.
        weight: share of the calls relative to the other instances, above 0. Default 1.
        version: SemVer version; default: the service's.
    """

    id: str
    request_queue: str
    response_queue: str
    weight: float = 1
    version: str | None = None


class ServiceDescriptor(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """A tool service: its topics, and the parameters that its tools configure.

    Attributes:
        id: the id that tools refer to.
        request_queue: whole name of the request topic, with TrustGraph's short form expanded.
        response_queue: whole name of the response topic.
        config_params: parameters that its tools configure.
        instances: instances with topics of their own; empty if all share ``request_queue``.
        version: SemVer version; None: not declared.
        policy: policy keys for all its tools, as in the descriptor and checked (for ``Policy.merged``). Empty: none.
        permissions: a user needs all of them to call any tool of the service, besides those of the tool. Empty: none.
    """

    id: str
    request_queue: str
    response_queue: str
    config_params: tuple[ConfigParam, ...] = ()
    instances: tuple[Instance, ...] = ()
    version: str | None = None
    policy: Mapping[str, Any] = EMPTY
    permissions: tuple[str, ...] = ()


class Argument(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """An argument that the model gives.

    Attributes:
        name: its key in the request's ``arguments``.
        type: one of :data:`ARGUMENT_TYPES`. A hint for the model: the service itself checks its arguments.
        description: text for the model.
        required: the argument must be given; None: not declared, as by TrustGraph, and so optional.
    """

    name: str
    type: str
    description: str
    required: bool | None = None


class ToolDescriptor(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """A tool: its interface for the model, and the service that executes it with which config.

    Attributes:
        name: name for the model.
        description: text by which the model chooses the tool.
        service: id of its service.
        arguments: arguments that the model gives.
        config: values of the service's config params, any JSON; sent with every call.
        policy: policy keys of the tool, as in the descriptor and checked; they override those of the service. Empty: none.
        category: of the tool, or None.
        tags: of the tool, for searches.
        author: of the tool, or None.
        output_schema: JSON Schema of its result, or None. Results are not validated.
        read_only: declared to change nothing. Default false, as MCP's ``readOnlyHint``.
        idempotent: declared to have no further effect when repeated. Default false, as MCP's ``idempotentHint``.
        destructive: declared to destroy something (true) or not (false); None: not declared, and treated as true, as MCP's
            ``destructiveHint`` is by default.
        version: SemVer version; None: not declared.
        requires: range of versions; calls go only to versions and instances of the service that are in it. None: to all.
        rollout: share of the calls, in per cent, for other versions of the tool; 100 in all at most. In force on the default
            version.
        permissions: a user needs all of them to call the tool, besides those of its service. Empty: every user may.
        groups: the tool is offered to agents that ask for one of them; see :meth:`Catalog.list`.
        state: state of the agent after a call of the tool, as in TrustGraph; None: unchanged.
        applicable_states: the tool is offered in these states of an agent; ``*``: in all.
        input_schema: JSON Schema 2020-12 of the arguments, in place of ``arguments``; None: ``arguments`` describes them.
    """

    name: str
    description: str
    service: str
    arguments: tuple[Argument, ...] = ()
    config: Mapping[str, Any] = EMPTY
    policy: Mapping[str, Any] = EMPTY
    category: str | None = None
    tags: tuple[str, ...] = ()
    author: str | None = None
    output_schema: Mapping[str, Any] | None = None
    read_only: bool = False
    idempotent: bool = False
    destructive: bool | None = None
    version: str | None = None
    requires: str | None = None
    rollout: Mapping[str, float] = EMPTY
    permissions: tuple[str, ...] = ()
    groups: tuple[str, ...] = msgspec.field(default=DEFAULT_GROUPS, name="group")
    state: str | None = None
    applicable_states: tuple[str, ...] = ANY_STATE
    input_schema: Mapping[str, Any] | None = None

    @property
    def repeatable(self) -> bool:
        """A repeated call has no further effect: see :func:`dispatch.policy.repeatable`."""
        return repeatable(self)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON Schema of the arguments, which models are shown and calls are checked against: ``input_schema``, or that
        of ``arguments``. Only arguments that are declared ``required`` must be given: TrustGraph's descriptors do not
        declare it, and its services have optional arguments."""
        if self.input_schema is not None:
            return self.input_schema
        return {
            "type": "object",
            "properties": {each.name: {"type": each.type, "description": each.description} for each in self.arguments},
            "required": [each.name for each in self.arguments if each.required],
        }

    @property
    def described_arguments(self) -> tuple[Argument, ...]:
        """The arguments for display and for command lines: ``arguments``, or the properties of the input schema's root. The
        type of a property that allows several types, or none by name, is ``any``."""
        if self.input_schema is None:
            return self.arguments
        required = self.input_schema.get("required", ())
        return tuple(
            _describe_property(name, schema, name in required)
            for name, schema in self.input_schema.get("properties", EMPTY).items()
        )

    def is_offered(self, groups: Collection[str] | None = None, state: str | None = None) -> bool:
        """Return whether an agent that asks for ``groups`` in ``state`` is offered the tool, by the rules of TrustGraph's
        ``filter_tools_by_group_and_state``.

        Args:
            groups: the agent asks for; ``*`` asks for all. Default: the group ``default``.
            state: of the agent. Default, also of an empty text: ``undefined``.
        """
        wanted = DEFAULT_GROUPS if groups is None else groups
        is_in_group = "*" in wanted or any(group in wanted for group in self.groups)
        return is_in_group and ("*" in self.applicable_states or (state or "undefined") in self.applicable_states)


def _describe_property(name: str, schema: Mapping[str, Any] | bool, required: bool) -> Argument:
    fields = schema if isinstance(schema, Mapping) else EMPTY
    given = fields.get("type")
    types = [given] if isinstance(given, str) else [each for each in given or () if each != "null"]
    argument_type = types[0] if len(types) == 1 and types[0] in ARGUMENT_TYPES else "any"
    return Argument(name, argument_type, fields.get("description", ""), required)
