"""The content of a toolkit file: vertices, edges, operators, and everything that a toolkit does not use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dispatch.toolkit.action import Action
from dispatch.toolkit.graph import DEFAULT_HOPS, DEFAULT_THRESHOLD
from dispatch.toolkit.tool import Tool
from dispatch.toolkit.tool_group import ToolGroup


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
