"""Reads toolkit files. Nothing is imported and no server is contacted."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final

from dispatch._internal.suggestions import excerpt, find_near_names
from dispatch.catalog.errors import CatalogError, Report
from dispatch.catalog.frozen_json import describe_kind, describe_value
from dispatch.catalog.readers.parsing import DocumentError, parse_yaml
from dispatch.toolkit.action import Action
from dispatch.toolkit.files.local_tool import LocalTool, create_unbound_tool
from dispatch.toolkit.files.toolkit_file import Operator, ToolkitFile, Vertex
from dispatch.toolkit.files.transport_reader import read_transport
from dispatch.toolkit.graph import DEFAULT_HOPS, DEFAULT_THRESHOLD
from dispatch.toolkit.mcp_service import ConnectMcp, McpService, McpTool

OWN_KEYS: Final = ("tools", "actions", "toolkit", "scores")
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
        CatalogError: mistakes in the file, each with its key and fix; or PyYAML is missing.
        OSError: the file cannot be read.
    """
    report = Report(str(path))
    try:
        document = parse_yaml(Path(path).read_bytes().decode())
    except DocumentError as error:
        for key, problem, fix in error.mistakes:
            report.add_error(key, problem, fix)
        raise CatalogError(report.problems) from None
    except UnicodeDecodeError as error:
        report.add_error("", f"not UTF-8: byte {error.start}", "save the file in UTF-8")
        raise CatalogError(report.problems) from None
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
        if kind == "DISPATCH_TOOL":
            self._tools[name] = [id]
            self._file.vertices.append(Vertex(id, create_unbound_tool(name, description, id), raw))
            return
        if kind == "LOCAL_TOOL":
            module = self._text(raw, "module_path", key, is_required=True)
            self._tools[name] = [id]
            self._file.vertices.append(Vertex(id, LocalTool(name, description, module, id=id), raw))
            return
        transport = read_transport(raw, key, self._report)
        group = McpService.of(name, transport, self._connect_mcp, GROUP_PREFIX + id)
        self._file.vertices.append(Vertex(group.get_id(), group, raw))
        listed = self._objects(raw, "tools", f"{key}.") if "tools" in raw else []
        tools = [self._read_listed_tool(each, at, group) for at, each in listed]
        tools = tools or [Vertex(id, McpTool(name, description, group, id=id, is_whole=True))]
        self._tools[name] = [each.id for each in tools]
        for each in tools:
            self._file.vertices.append(each)
            self._file.scores[group.get_id(), each.id] = 1.0

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
            key = f"toolkit[{index}]"
            found = [
                self._resolve(reference, self._actions, f"{key}[{place}]", "action")
                for place, reference in enumerate(self._list(chain, key))
            ]
            ids = [id for id in found if id is not None]
            self._file.chains.append(ids)
            self._file.scores.update(((u, v), 1.0) for u, v in itertools.pairwise(ids))

    def _read_operator(self, raw: dict[str, Any], key: str) -> None:
        actions = [
            self._resolve(reference, self._actions, f"{key}.actions[{place}]", "action")
            for place, reference in enumerate(self._list(raw.get("actions"), f"{key}.actions"))
        ]
        threshold = self._score(raw.get("threshold", DEFAULT_THRESHOLD), f"{key}.threshold")
        hops = raw.get("hops", DEFAULT_HOPS)
        if isinstance(hops, bool) or not isinstance(hops, int) or hops < 0:
            self._report.add_error(f"{key}.hops", f"{describe_value(hops)} is not a number of steps", "write hops: 1")
            hops = DEFAULT_HOPS
        self._file.operators.append(
            Operator(
                self._text(raw, "instruction", key),
                self._text(raw, "output_schema", key),
                tuple(id for id in actions if id is not None),
                threshold,
                hops,
            )
        )

    def _read_score(self, raw: dict[str, Any], key: str) -> None:
        edge = (self._text(raw, "from", key, is_required=True), self._text(raw, "to", key, is_required=True))
        score = self._score(raw.get("score"), f"{key}.score")
        if edge in self._file.scores:
            self._file.scores[edge] = score
        elif all(edge):
            problem = f"no edge from {excerpt(repr(edge[0]))} to {excerpt(repr(edge[1]))}"
            self._report.add_error(key, problem, "write ids of vertices that an action or 'toolkit' connects")

    def _score(self, value: object, key: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            self._report.add_error(key, f"{describe_value(value)} is not a number in [0, 1]", "write 0.5")
            return 1.0
        return float(value)

    def _resolve(self, reference: object, known: dict[str, Any], key: str, kind: str) -> Any:
        """Return what ``known`` has for an alias of an object, or for its name."""
        name = reference.get("name") if isinstance(reference, dict) else reference
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
        if value is None or isinstance(value, list):
            return value or []
        self._report.add_error(key, f"{describe_kind(value)} instead of a list", "write a list: [...]")
        return []

    def _name(self, raw: dict[str, Any], key: str) -> str:
        return self._text(raw, "name", key, is_required=True)

    def _text(self, raw: dict[str, Any], name: str, key: str, *, is_required: bool = False) -> str:
        value = raw.get(name)
        if isinstance(value, str) and (value.strip() or not is_required):
            return value
        if value is not None or is_required:
            what = f"{describe_kind(value)} instead of a text" if value is not None else "is missing"
            self._report.add_error(f"{key}.{name}", f"'{name}' {what}", f'write {name}: "..."')
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
