"""Toolkits in YAML, in the form of Chat2Graph."""

from __future__ import annotations

import copy
import errno
import importlib
import itertools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dispatch._internal import excerpt, find_near_names, missing_library, read_text, type_name
from dispatch.catalog.descriptors import CatalogError
from dispatch.documents import (
    WRONG,
    DocumentError,
    Problem,
    Report,
    Rule,
    decode_text,
    describe_kind,
    describe_value,
    is_list,
    is_number,
    is_whole,
    optional,
    parse_yaml,
    read_regular_file,
    replace_file,
    require,
)
from dispatch.toolkit.graph import (
    DEFAULT_HOPS,
    DEFAULT_THRESHOLD,
    Action,
    ConnectMcp,
    McpService,
    McpTool,
    McpTransportConfig,
    McpTransportType,
    Tool,
    ToolGroup,
    ToolkitWarning,
    ToolType,
)

# Tools whose implementation is imported at their first call.


class LocalTool(Tool):
    """A tool of a toolkit file: ``name`` in the module ``module_path``, imported when a model is first shown its schema, or
    at its first call.

    Args:
        name: a function; or a class without arguments of its constructor, whose attribute ``function`` is called, such as a
            subclass of :class:`dispatch.toolkit.Tool`.
        description: text by which the model chooses the tool.
        module_path: name of the module for ``import``.
    """

    def __init__(self, name: str, description: str, module_path: str, *, id: str) -> None:
        super().__init__(name, description, _ImportedFunction(name, module_path), ToolType.LOCAL_TOOL, id=id)
        self.module_path = module_path


def refuse_calls(tool: str, reason: str) -> Callable[..., Any]:
    """Return the function of a tool that cannot be called; it raises RuntimeError with the reason."""

    def refuse(**_arguments: Any) -> Any:
        raise RuntimeError(f"The tool {tool!r} was not executed: {reason}")

    return refuse


class _ImportedFunction:
    """Imports when its signature is read or at the first call. Returns what the function returns: a coroutine, if it is
    one."""

    def __init__(self, name: str, module_path: str) -> None:
        self._name = name
        self._module_path = module_path
        self._function: Any = None
        self._is_reported = False

    @property
    def __wrapped__(self) -> Any:
        """The function, by which ``inspect.signature`` reads its signature."""
        try:
            return self._load("has no schema")
        except RuntimeError as error:
            if not self._is_reported:
                self._is_reported = True
                warnings.warn(str(error), ToolkitWarning, stacklevel=2)
            raise AttributeError("__wrapped__") from error

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._load("was not executed")(*args, **kwargs)

    def _load(self, consequence: str) -> Any:
        if self._function is not None:
            return self._function
        where = f"{self._module_path}.{self._name}"
        try:
            found = getattr(importlib.import_module(self._module_path), self._name)
            self._function = found().function if isinstance(found, type) else found
        except Exception as error:
            raise RuntimeError(
                f"The tool {self._name!r} {consequence}: {where} cannot be loaded ({type_name(error)}: "
                f"{read_text(error)}). Correct 'module_path' or 'name' in the toolkit file, or the module."
            ) from error
        return self._function


# Reads ``mcp_transport_config`` of a toolkit file.


def _kind(kind: type, what: str) -> Rule:
    return optional(require((lambda value: isinstance(value, kind), f"{{kind}} instead of {what}", "remove it")))


def _number(test: Callable[[Any], bool], what: str, fix: str) -> Rule:
    return require((lambda value: is_number(value) and test(value), f"{{shown}} is not a number {what}", fix))


_TRANSPORT: Final[dict[str, Rule]] = {
    "transport_type": require(
        (
            lambda kind: kind != "WEBSOCKET",
            "WEBSOCKET is not supported: MCP has no such transport",
            "write STREAMABLE_HTTP, with the server's http:// address as url",
        ),
        (
            tuple(McpTransportType.__members__).__contains__,
            "{shown} is not a transport",
            f"write one of {', '.join(McpTransportType.__members__)}",
        ),
    ),
    "url": _kind(str, "a text"),
    "command": _kind(str, "a text"),
    "args": _kind(list, "a list"),
    "env": _kind(dict, "an object"),
    "headers": _kind(dict, "an object"),
    "timeout": _number(lambda value: value > 0, "of seconds", "write timeout: 5"),
    "sse_read_timeout": _number(lambda value: value > 0, "of seconds", "write sse_read_timeout: 5"),
}
_SCORE: Final = _number(lambda value: 0 <= value <= 1, "in [0, 1]", "write 0.5")
_HOPS: Final = _number(lambda value: is_whole(value) and value >= 0, "of steps", "write hops: 1")
_LIST: Final = optional(require((is_list, "{kind} instead of a list", "write a list: [...]")))


def read_transport(raw: dict[str, Any], key: str, report: Report) -> McpTransportConfig:
    """Return the transport of an MCP server. Mistakes are reported, with ``key`` as the path of ``raw``."""
    at = f"{key}.mcp_transport_config"
    config = raw.get("mcp_transport_config", {})
    if not isinstance(config, dict):
        report.add_error(at, f"{describe_kind(config)} instead of an object", "write transport_type: STDIO and command")
        return McpTransportConfig(McpTransportType.STDIO)
    for name, rule in _TRANSPORT.items():
        if name in config:
            rule(config[name], report, f"{at}.{name}")
    if report.has_errors:
        return McpTransportConfig(McpTransportType.STDIO)
    return McpTransportConfig.from_dict(config)


# The content of a toolkit file: vertices, edges, operators, and everything that a toolkit does not use.


@dataclass(frozen=True)
class Operator:
    """A step of an agent that may use certain actions.

    Attributes:
        instruction: text for the model.
        output_schema: form of the step's result, as text for the model.
        actions: ids of the actions that the step starts from.
        threshold: smallest score of an edge for recommendations.
        hops: steps along Next edges for recommendations.
    """

    instruction: str
    output_schema: str
    actions: tuple[str, ...]
    threshold: float = DEFAULT_THRESHOLD
    hops: int = DEFAULT_HOPS


@dataclass
class Vertex:
    """One vertex.

    Attributes:
        definition: its object in the file, with the keys that a toolkit does not use.
    """

    id: str
    data: Action | Tool | ToolGroup
    definition: dict[str, Any] | None = None


@dataclass
class ToolkitFile:
    """The content of a toolkit file.

    Attributes:
        vertices: in the order of the file.
        scores: of each edge, by the ids of its vertices.
        chains: rows of action ids that follow each other.
        operators: the steps that use the actions.
        rest: the other keys of the file, for instance ``experts``. They share objects with the definitions, as aliases do.
    """

    vertices: list[Vertex] = field(default_factory=list)
    scores: dict[tuple[str, str], float] = field(default_factory=dict)
    chains: list[list[str]] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    rest: dict[str, Any] = field(default_factory=dict)


# Reads toolkit files. Nothing is imported and no server is contacted.


OWN_KEYS: Final = ("tools", "actions", "toolkit", "scores")
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the largest toolkit file."""
TOOL_TYPES: Final = ("LOCAL_TOOL", "MCP", "DISPATCH_TOOL")
GROUP_PREFIX: Final = "group:"
"""Prefix of the id of an MCP server; the tool that stands for its tools while they are not listed has the name as id."""

TOOL_PREFIX: Final = "tool:"
"""Prefix of the id of a tool if an action has its name as id."""


def read_file(path: str | Path, connect_mcp: ConnectMcp | None = None) -> ToolkitFile:
    """Read a toolkit file.

    Args:
        path: of a YAML file in UTF-8.
        connect_mcp: opens a connection to an MCP server when one of its tools is called.

    Raises:
        CatalogError: mistakes in the file, each with its key and fix; it cannot be read; or PyYAML is missing.
    """
    report = Report(str(path))
    try:
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        document = parse_yaml(decode_text(read_regular_file(path, MAX_FILE_BYTES, "split it")[0]))
    except DocumentError as error:
        raise CatalogError([Problem(str(path), *mistake) for mistake in error.mistakes]) from None
    except OSError as error:
        problem, fix = f"cannot be read: {error.strerror or error}", "give the path of a readable file"
        if isinstance(error, FileNotFoundError):
            problem, fix = "there is no such file", "create it, or correct the path"
        raise CatalogError([Problem(str(path), "", problem, fix)]) from None
    reader = _Reader(report, connect_mcp)
    found = reader.read(document)
    if report.has_errors:
        raise CatalogError(report.problems)
    return found


class _Reader:
    def __init__(self, report: Report, connect_mcp: ConnectMcp | None) -> None:
        self._report = report
        self._connect_mcp = connect_mcp
        self._file = ToolkitFile()
        self._actions: dict[str, str] = {}
        """Ids of actions, by name."""
        self._tools: dict[str, list[str]] = {}
        """Ids of the tools that a name in an action stands for: several for an MCP server with listed tools."""
        self._ids: dict[str, str] = {}
        """Keys of the objects that have an id."""

    def read(self, document: object) -> ToolkitFile:
        if not isinstance(document, dict):
            self._report.add_error(
                "", f"{describe_kind(document)} instead of an object", "write keys such as 'actions:'"
            )
            return self._file
        self._file.rest = {key: value for key, value in document.items() if key not in OWN_KEYS}
        for key in OWN_KEYS:
            if key not in document and (meant := find_near_names(key, map(str, self._file.rest), 1)):
                self._report.add_error(meant[0], f"an unknown key, and there is no '{key}'", f"rename it to '{key}'")
        # Actions have their ids before tools: a tool with the same name gets another one.
        actions = self._objects(document, "actions")
        for key, raw in actions:
            name = self._name(raw, key)
            if name and self._is_new(self._actions, name, f"{key}.name"):
                self._actions[name] = self._id(raw, key, name)
        for key, raw in self._objects(document, "tools"):
            self._read_tool(raw, key)
        for key, raw in actions:
            self._read_action(raw, key)
        self._read_chains(document.get("toolkit"))
        for key, raw in self._objects(document, "operators"):
            self._read_operator(raw, key)
        for key, raw in self._objects(document, "scores"):
            self._read_score(raw, key)
        return self._file

    def _read_tool(self, raw: dict[str, Any], key: str) -> None:
        name = self._name(raw, key)
        if not name or not self._is_new(self._tools, name, f"{key}.name"):
            return
        kind = raw.get("type", "LOCAL_TOOL")
        if kind not in TOOL_TYPES:
            fix = f"write {' or '.join(TOOL_TYPES)}"
            self._report.add_error(f"{key}.type", f"{describe_value(kind)} is not a type of tool", fix)
            self._tools[name] = []
            return
        id = self._id(raw, key, name if name not in self._ids else TOOL_PREFIX + name)
        description = self._text(raw, "desc", key)
        if kind == "MCP":
            transport = read_transport(raw, key, self._report)
            group = McpService.of(name, transport, self._connect_mcp, GROUP_PREFIX + id)
            self._file.vertices.append(Vertex(group.get_id(), group, raw))
            tools = [self._read_listed_tool(each, at, group) for at, each in self._objects(raw, "tools", f"{key}.")]
            tools = tools or [Vertex(id, McpTool(name, description, group, id=id, is_whole=True))]
            self._file.scores.update(((group.get_id(), each.id), 1.0) for each in tools)
        elif kind == "LOCAL_TOOL":
            module = self._text(raw, "module_path", key, is_required=True)
            tools = [Vertex(id, LocalTool(name, description, module, id=id), raw)]
        else:
            refuse = refuse_calls(name, "the toolkit does not follow a dispatcher. Call toolkit.follow(dispatcher).")
            tools = [Vertex(id, Tool(name, description, refuse, ToolType.DISPATCH_TOOL, id=id), raw)]
        self._tools[name] = [each.id for each in tools]
        self._file.vertices += tools

    def _read_listed_tool(self, raw: dict[str, Any], key: str, group: McpService) -> Vertex:
        name = self._name(raw, key)
        id = self._id(raw, key, f"{group.get_id()}/{name}")
        return Vertex(id, McpTool(name, self._text(raw, "desc", key), group, id=id), raw)

    def _read_action(self, raw: dict[str, Any], key: str) -> None:
        name = raw.get("name")
        if not isinstance(name, str) or name not in self._actions:
            return
        id = self._actions[name]
        self._file.vertices.append(Vertex(id, Action(id, name, self._text(raw, "desc", key)), raw))
        for index, reference in enumerate(self._list(raw.get("tools"), f"{key}.tools")):
            at = f"{key}.tools[{index}]"
            for tool in self._resolve(reference, self._tools, at, "tool") or ():
                self._file.scores[id, tool] = 1.0

    def _read_chains(self, chains: object) -> None:
        for index, chain in enumerate(self._list(chains, "toolkit")):
            ids = self._read_actions(chain, f"toolkit[{index}]")
            self._file.chains.append(ids)
            self._file.scores.update(((u, v), 1.0) for u, v in itertools.pairwise(ids))

    def _read_operator(self, raw: dict[str, Any], key: str) -> None:
        actions = self._read_actions(raw.get("actions"), f"{key}.actions")
        threshold = _SCORE(raw.get("threshold", DEFAULT_THRESHOLD), self._report, f"{key}.threshold")
        hops = _HOPS(raw.get("hops", DEFAULT_HOPS), self._report, f"{key}.hops")
        instruction, schema = self._text(raw, "instruction", key), self._text(raw, "output_schema", key)
        self._file.operators.append(Operator(instruction, schema, tuple(actions), threshold, hops))

    def _read_actions(self, references: object, key: str) -> list[str]:
        """Return the ids of the actions that ``references`` name."""
        numbered = enumerate(self._list(references, key))
        found = (self._resolve(each, self._actions, f"{key}[{place}]", "action") for place, each in numbered)
        return [id for id in found if id is not None]

    def _read_score(self, raw: dict[str, Any], key: str) -> None:
        edge = (self._text(raw, "from", key, is_required=True), self._text(raw, "to", key, is_required=True))
        score = _SCORE(raw.get("score"), self._report, f"{key}.score")
        if edge in self._file.scores:
            self._file.scores[edge] = score
        elif all(edge):
            problem = f"no edge from {excerpt(repr(edge[0]))} to {excerpt(repr(edge[1]))}"
            self._report.add_error(key, problem, "write ids of vertices that an action or 'toolkit' connects")

    def _resolve(self, reference: object, known: dict[str, Any], key: str, kind: str) -> Any:
        """Return what ``known`` has for an alias of an object, or for its name."""
        name = _name_of(reference)
        if isinstance(reference, dict) and isinstance(reference.get("id"), str) and reference["id"] in self._ids:
            id = reference["id"]
            if kind == "tool" and name not in known:  # a tool that an MCP server lists
                return [id]
        if isinstance(name, str) and name in known:
            return known[name]
        near = find_near_names(name, known, 1) if isinstance(name, str) else ()
        fix = f"write {near[0]!r}" if near else f"add it to '{kind}s', or remove it here"
        self._report.add_error(key, f"there is no {kind} {describe_value(name)}", fix)
        return None

    def _objects(self, raw: dict[str, Any], name: str, path: str = "") -> list[tuple[str, dict[str, Any]]]:
        found = []
        for index, value in enumerate(self._list(raw.get(name), path + name)):
            key = f"{path}{name}[{index}]"
            if isinstance(value, dict):
                found.append((key, value))
            else:
                self._report.add_error(key, f"{describe_kind(value)} instead of an object", "write its keys")
        return found

    def _list(self, value: object, key: str) -> list[Any]:
        found = _LIST(value, self._report, key)
        return [] if found is None or found is WRONG else found

    def _name(self, raw: dict[str, Any], key: str) -> str:
        return self._text(raw, "name", key, is_required=True)

    def _text(self, raw: dict[str, Any], name: str, key: str, *, is_required: bool = False) -> str:
        value = raw.get(name)
        if isinstance(value, str) and (value.strip() or not is_required):
            return value
        if value is not None or is_required:
            kind = "an empty text" if isinstance(value, str) else describe_kind(value)
            what = f"is {kind} instead of a text" if value is not None else "is missing"
            meant = find_near_names(name, map(str, raw), 1) if name not in raw else ()
            fix = f"rename '{excerpt(meant[0])}' to '{name}', or " if meant else ""
            self._report.add_error(f"{key}.{name}", f"'{name}' {what}", f'{fix}write {name}: "..."')
        return ""

    def _id(self, raw: dict[str, Any], key: str, default: str) -> str:
        id = self._text(raw, "id", key) or default
        if id in self._ids:
            fix = f"write another 'id' at {key} or at {self._ids[id]}"
            self._report.add_error(f"{key}.id", f"the id {excerpt(repr(id))} is that of {self._ids[id]}", fix)
        self._ids[id] = key
        return id

    def _is_new(self, known: dict[str, Any], name: str, key: str) -> bool:
        if name in known:
            self._report.add_error(key, f"a second {excerpt(repr(name))}", "rename one of the two, or remove one")
        return name not in known


# Writes toolkit files. A file that is read and written has the same content; aliases stay aliases.


_TEXT: Final = "tag:yaml.org,2002:str"
_EXPONENT: Final = re.compile(r"-?[0-9][0-9.]*[eE][-+]?[0-9]+\Z")


def write_file(path: str | Path, file: ToolkitFile) -> None:
    """Write a toolkit file.

    Raises:
        ValueError: a tool has a function that a file cannot name, such as a closure.
        ImportError: PyYAML is missing.
        OSError: the file cannot be written.
    """
    try:
        import yaml
    except ImportError:
        raise missing_library("Writing a toolkit file", "PyYAML", "yaml") from None

    class Dumper(yaml.SafeDumper):
        """Quotes two kinds of texts that the reader would change: 1e3, a text in YAML 1.1, and those with U+0085."""

    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-0123456789"))
    Dumper.add_representer(
        str, lambda dumper, text: dumper.represent_scalar(_TEXT, text, '"' if "\x85" in text else None)
    )
    document = _Writer(file).build()
    replace_file(path, yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110))


class _Writer:
    def __init__(self, file: ToolkitFile) -> None:
        # One copy of all: objects that the definitions share with each other and with the rest stay shared.
        definitions = {each.id: each.definition for each in file.vertices}
        self._definitions, self._rest = copy.deepcopy((definitions, file.rest))
        self._file = file
        self._calls: dict[str, list[str]] = {}
        for u, v in file.scores:
            self._calls.setdefault(u, []).append(v)
        self._kinds = {each.id: each.data for each in file.vertices}

    def build(self) -> dict[str, Any]:
        tools, references = self._build_tools()
        vertices = self._file.vertices
        actions = {
            each.id: self._build_action(each.id, each.data) for each in vertices if isinstance(each.data, Action)
        }
        for id, action in actions.items():
            called = self._reference_tools(id, references)
            if called or action.get("tools"):
                action["tools"] = called
        _check_names("tools", tools)
        _check_names("actions", actions.values())
        document = {**self._rest, "tools": tools, "actions": list(actions.values())}
        document["toolkit"] = [[actions[id] for id in chain] for chain in self._build_chains(list(actions))]
        if "operators" in self._rest:
            document["operators"] = document.pop("operators")  # after its anchors
            names = {each["name"] for each in actions.values()}
            for operator in document["operators"] or ():
                if "actions" in operator:
                    operator["actions"] = [each for each in operator["actions"] or [] if _name_of(each) in names]
        scores = [{"from": u, "to": v, "score": score} for (u, v), score in self._file.scores.items() if score != 1.0]
        if scores:
            document["scores"] = scores
        return document

    def _build_tools(self) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
        """Return the objects of tools and servers; and by id, those that an action refers to."""
        tools: list[dict[str, Any]] = []
        references: dict[str, dict[str, Any]] = {}
        for vertex in self._file.vertices:
            data = vertex.data
            if isinstance(data, McpService):
                raw = self._definitions.get(vertex.id) or {"name": data.name, "type": "MCP"}
                raw.setdefault("mcp_transport_config", data.transport_config.to_dict())
                self._add_id(raw, vertex.id.removeprefix(GROUP_PREFIX))
                raw.pop("tools", None)
                listed = [id for id in self._calls.get(vertex.id, ()) if not _is_whole(self._kinds[id])]
                if listed:
                    raw["tools"] = [self._build_listed_tool(id) for id in listed]
                    references.update(zip(listed, raw["tools"], strict=True))
                references[vertex.id] = raw
                tools.append(raw)
            elif isinstance(data, Tool) and not isinstance(data, McpTool):
                references[vertex.id] = self._build_tool(vertex, data)
                tools.append(references[vertex.id])
            elif not isinstance(data, Action | Tool):
                raise ValueError(
                    f"The group {data.name!r} cannot be saved: a file holds MCP servers, not {type(data).__name__}. "
                    "Remove it before saving, and add it after loading."
                )
        return tools, references

    def _build_tool(self, vertex: Vertex, tool: Tool) -> dict[str, Any]:
        raw = self._definitions.get(vertex.id)
        if raw is None and tool.tool_type is ToolType.DISPATCH_TOOL:
            raw = {"name": tool.name, "type": "DISPATCH_TOOL", "desc": tool.description}
        elif raw is None:
            module, name = _find_implementation(tool)
            raw = {"name": name, "type": "LOCAL_TOOL", "module_path": module}
            if tool.description:
                raw["desc"] = tool.description
        self._add_id(raw, vertex.id)
        return raw

    def _build_listed_tool(self, id: str) -> dict[str, Any]:
        tool = self._kinds[id]
        assert isinstance(tool, Tool)
        raw: dict[str, Any] = self._definitions.get(id) or {"name": tool.name}
        raw["id"] = id
        if tool.description:
            raw["desc"] = tool.description
        return raw

    def _build_action(self, id: str, action: Action) -> dict[str, Any]:
        raw = self._definitions.get(id) or {}
        raw |= {"name": action.name}
        if action.description or "desc" in raw:
            raw["desc"] = action.description
        self._add_id(raw, id)
        return raw

    def _add_id(self, raw: dict[str, Any], id: str) -> None:
        name = raw["name"]
        if id != name and not (id == TOOL_PREFIX + name and name in self._kinds):
            raw["id"] = id

    def _reference_tools(self, action: str, references: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the tools that an action calls; a server stands for all its tools."""
        called = {id: None for id in self._calls.get(action, ()) if isinstance(self._kinds[id], Tool)}
        found: list[dict[str, Any]] = []
        for id in called:
            tool = self._kinds[id]
            raw = references.get(id)
            if isinstance(tool, McpTool):
                group = tool.get_tool_group().get_id()
                if called.keys() >= set(self._calls.get(group, ())):
                    raw = references[group]
            if raw is not None and not any(each is raw for each in found):
                found.append(raw)
        return found

    def _build_chains(self, actions: list[str]) -> list[list[str]]:
        """Return the chains of the file as far as their edges exist, then the other edges, then the other actions."""
        known = set(actions)
        open_edges = {edge: None for edge in self._file.scores if known.issuperset(edge)}
        chains: list[list[str]] = []
        for chain in self._file.chains:
            row: list[str] = []
            for id in chain:
                if row and (id not in known or (row[-1], id) not in self._file.scores):
                    chains.append(row)
                    row = []
                if id in known:
                    row.append(id)
            if row:
                chains.append(row)
        for chain in chains:
            for edge in itertools.pairwise(chain):
                open_edges.pop(edge, None)
        chains += [[u, v] for u, v in open_edges]
        placed = set(itertools.chain.from_iterable(chains))
        return chains + [[id] for id in actions if id not in placed]


def _check_names(what: str, objects: Iterable[dict[str, Any]]) -> None:
    seen: set[str] = set()
    for each in objects:
        if not each["name"].strip():
            raise ValueError(
                f"The toolkit cannot be saved: one of its {what} has no name, by which a file refers to it."
            )
        if each["name"] in seen:
            raise ValueError(
                f"The toolkit cannot be saved: two {what} have the name {each['name']!r}, by which a file refers to them. "
                "Rename or remove one."
            )
        seen.add(each["name"])


def _name_of(reference: Any) -> Any:
    """Return the name of an alias of an object, or the name itself."""
    return reference.get("name") if isinstance(reference, dict) else reference


def _is_whole(data: object) -> bool:
    return isinstance(data, McpTool) and data.is_whole


def _find_implementation(tool: Tool) -> tuple[str, str]:
    """Return the module and the name that a loaded file would import for ``tool``.

    Raises:
        ValueError: the function has no such name.
    """
    if isinstance(tool, LocalTool):
        return tool.module_path, tool.name
    kind, function = type(tool), tool.function
    module = sys.modules.get(kind.__module__)
    if kind.__module__ != Tool.__module__ and getattr(module, kind.__qualname__, None) is kind:
        return kind.__module__, kind.__qualname__
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is not None and name == tool.name and getattr(module, name, None) is function:
        return module.__name__, name
    raise ValueError(
        f"The tool {tool.name!r} cannot be saved: a file names a function of a module with the name of the tool, or a class "
        "of a module. Define it as one, or remove the tool before saving and add it after loading."
    )
