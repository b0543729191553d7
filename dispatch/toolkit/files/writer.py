"""Writes toolkit files. A file that is read and written has the same content; aliases stay aliases."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dispatch.catalog.readers.parsing import YAML_EXTRA
from dispatch.toolkit.action import Action
from dispatch.toolkit.files.local_tool import LocalTool
from dispatch.toolkit.files.reader import GROUP_PREFIX, TOOL_PREFIX
from dispatch.toolkit.files.toolkit_file import ToolkitFile, Vertex
from dispatch.toolkit.mcp_service import McpService, McpTool
from dispatch.toolkit.tool import Tool, ToolType


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
        raise ImportError(
            f"Writing a toolkit file needs PyYAML, which is not installed. Install it: {YAML_EXTRA}"
        ) from None
    document = _Writer(file).build()
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    Path(path).write_text(text, encoding="utf-8")


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
        actions = {each.id: self._build_action(each, each.data) for each in self._file.vertices if _is_action(each)}
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
            for operator in document["operators"] or ():
                known = [each for each in operator.get("actions") or [] if self._is_kept(each, actions)]
                if "actions" in operator:
                    operator["actions"] = known
        scores = [{"from": u, "to": v, "score": score} for (u, v), score in self._file.scores.items() if score != 1.0]
        if scores:
            document["scores"] = scores
        return document

    def _is_kept(self, reference: Any, actions: dict[str, dict[str, Any]]) -> bool:
        name = reference.get("name") if isinstance(reference, dict) else reference
        return any(each["name"] == name for each in actions.values())

    def _build_tools(self) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
        """Return the objects of tools and servers; and by id, those that an action refers to."""
        tools: list[dict[str, Any]] = []
        references: dict[str, dict[str, Any]] = {}
        for vertex in self._file.vertices:
            data = vertex.data
            if isinstance(data, McpService):
                raw = self._definition(vertex) or {"name": data.name, "type": "MCP"}
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
        raw = self._definition(vertex)
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

    def _build_action(self, vertex: Vertex, action: Any) -> dict[str, Any]:
        raw = self._definition(vertex) or {}
        raw |= {"name": action.name}
        if action.description or "desc" in raw:
            raw["desc"] = action.description
        self._add_id(raw, vertex.id)
        return raw

    def _definition(self, vertex: Vertex) -> dict[str, Any] | None:
        return self._definitions.get(vertex.id)

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
                if row and (row[-1], id) not in self._file.scores:
                    chains.append(row)
                    row = []
                if id in known:
                    row.append(id)
                elif row:
                    chains.append(row)
                    row = []
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
        if each["name"] in seen:
            raise ValueError(
                f"The toolkit cannot be saved: two {what} have the name {each['name']!r}, by which a file refers to them. "
                "Rename or remove one."
            )
        seen.add(each["name"])


def _is_action(vertex: Vertex) -> bool:
    return isinstance(vertex.data, Action)


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
