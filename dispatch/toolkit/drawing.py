"""Pictures and exchange formats of toolkits."""

from __future__ import annotations

import html
import math
import tempfile
import textwrap
import webbrowser
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import networkx as nx

from dispatch._internal import missing_library
from dispatch.toolkit.graph import Action, Tool
from dispatch.toolkit.toolkit import Toolkit, Vertex

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Positions of vertices and labels, so that none covers another. Lengths are in points; y points upwards.


Point = tuple[float, float]
Size = tuple[float, float]

ROW_GAP: Final = 26.0
COLUMN_GAP: Final = 96.0
"""Between columns: three scores side by side fit."""
_PLACES: Final = tuple(0.5 + sign * step / 100 for step in range(0, 46, 3) for sign in (1, -1))
"""Where the label of an edge may be, as a share of the edge: near its middle first."""


class Box(NamedTuple):
    """A rectangle by its centre and size."""

    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: Box) -> bool:
        """Return whether the two share an area."""
        return (
            abs(self.x - other.x) * 2 < self.width + other.width
            and abs(self.y - other.y) * 2 < self.height + other.height
        )

    def find_border(self, towards: Point) -> Point:
        """Return where the line from the centre to ``towards`` leaves the rectangle."""
        dx, dy = towards[0] - self.x, towards[1] - self.y
        if not dx and not dy:
            return self.x, self.y
        share = min(self.width / 2 / abs(dx) if dx else math.inf, self.height / 2 / abs(dy) if dy else math.inf, 1.0)
        return self.x + dx * share, self.y + dy * share


def find_depths(roots: Iterable[str], following: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the smallest number of edges from one of ``roots`` to each vertex of ``following``. In a cycle that no root
    reaches, the first vertex counts as a root."""
    depths: dict[str, int] = {}
    for start in [[*roots], *([vertex] for vertex in following)]:
        newest = [vertex for vertex in start if vertex not in depths]
        depth = 0
        while newest:
            depths.update((vertex, depth) for vertex in newest)
            newest = list(dict.fromkeys(v for u in newest for v in following[u] if v not in depths))
            depth += 1
    return depths


def place_vertices(columns: Iterable[Sequence[str]], sizes: Mapping[str, Size], scale: float = 1.0) -> dict[str, Box]:
    """Place each column from left to right, its vertices from top to bottom. A long column becomes several.

    Args:
        scale: of the gaps.
    """
    rows = max(8, math.ceil(1.5 * math.sqrt(len(sizes))))
    placed: dict[str, Box] = {}
    x = 0.0
    for column in columns:
        for start in range(0, len(column), rows):
            part = column[start : start + rows]
            width = max(sizes[vertex][0] for vertex in part)
            height = sum(sizes[vertex][1] + ROW_GAP * scale for vertex in part)
            y = height / 2
            for vertex in part:
                own = sizes[vertex][1] + ROW_GAP * scale
                placed[vertex] = Box(x + width / 2, y - own / 2, *sizes[vertex])
                y -= own
            x += width + COLUMN_GAP * scale
    return placed


def place_labels(
    edges: Sequence[tuple[str, str]], vertices: Mapping[str, Box], sizes: Mapping[tuple[str, str], Size]
) -> dict[tuple[str, str], Box] | None:
    """Place a label on each edge where it covers no vertex and no other label; None: there is no place for one of them."""
    occupied = list(vertices.values())
    placed = {}
    for u, v in edges:
        start, end = vertices[u], vertices[v]
        a, b = start.find_border((end.x, end.y)), end.find_border((start.x, start.y))
        if start is end:  # above its vertex
            above = start.y + start.height / 2 + sizes[u, v][1] / 2 + 1
            a, b = (start.x - start.width / 2, above), (start.x + start.width / 2, above)
        for share in _PLACES:
            box = Box(a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share, *sizes[u, v])
            if not any(box.overlaps(other) for other in occupied):
                break
        else:
            return None
        occupied.append(box)
        placed[u, v] = box
    return placed


# A toolkit as a figure of matplotlib, by its object interface: nothing remains in ``pyplot``.


MAX_VERTICES: Final = 500
"""Vertices of one figure: it would have 30 million pixels."""
LABEL_CHARS: Final = 24
"""Characters of a line of a label."""

_MARGIN, _LEGEND_HEIGHT, _TITLE_HEIGHT, _MIN_WIDTH = 20.0, 40.0, 40.0, 640.0
_BOXES: Final[dict[str, dict[str, str]]] = {
    "Action": {"boxstyle": "round,pad=0.5", "facecolor": "#cfe3f7", "edgecolor": "#2b6cb0"},
    "Tool": {"boxstyle": "square,pad=0.5", "facecolor": "#d5f0d5", "edgecolor": "#2f855a"},
    "ToolGroup": {"boxstyle": "round4,pad=0.6", "facecolor": "#fde7c8", "edgecolor": "#b7791f", "linestyle": "--"},
}
_EDGES: Final[dict[str, dict[str, Any]]] = {
    "Next": {"color": "#2b6cb0", "linewidth": 1.6},
    "Call": {"color": "#2f855a", "linewidth": 1.0},
    "Group_Has_Tool": {"color": "#b7791f", "linewidth": 1.0, "linestyle": "--"},
}


def draw_figure(graph: Toolkit, title: str, show: bool = False) -> Figure:
    """Draw a toolkit: actions, tools and groups in different shapes and colours, edges by kind with their scores. No label
    covers another.

    Args:
        graph: at most 500 vertices.
        show: open the picture with the desktop's viewer or browser.

    Raises:
        ValueError: the toolkit has too many vertices.
        ImportError: matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_library("Drawing a toolkit", "matplotlib", "draw") from None
    if graph.vertices_count() > MAX_VERTICES:
        raise ValueError(
            f"A figure has at most {MAX_VERTICES} vertices, and this toolkit has {graph.vertices_count():,}. "
            "Draw a recommendation of it, or write GraphML."
        )
    figure = Figure(dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    _Drawing(graph, figure, axes).draw(title)
    if show:
        with tempfile.NamedTemporaryFile(prefix="toolkit-", suffix=".png", delete=False) as file:
            figure.savefig(file, format="png")
        webbrowser.open(Path(file.name).as_uri())
    return figure


class _Drawing:
    def __init__(self, graph: Toolkit, figure: Figure, axes: Any) -> None:
        self._graph = graph
        self._figure = figure
        self._axes = axes
        self._renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # of the Agg canvas

    def draw(self, title: str) -> None:
        graph, axes = self._graph, self._axes
        texts = {id: self._create_text(id, properties["data"]) for id, properties in graph.vertices_data()}
        edges = [(u, v) for u, v in graph.edges() if u in texts and v in texts]
        labels = {edge: self._create_label(edge) for edge in edges}
        self._figure.draw_without_rendering()  # the boxes around texts have their size afterwards
        sizes = {id: self._measure(text.get_bbox_patch()) for id, text in texts.items()}
        label_sizes = {edge: self._measure(text.get_bbox_patch()) for edge, text in labels.items()}
        columns = self._build_columns()
        scale, placed = 1.0, None
        while placed is None:
            boxes = place_vertices(columns, sizes, scale)
            placed = place_labels(edges, boxes, label_sizes)
            scale *= 1.3
        self._set_size(boxes)
        for id, box in boxes.items():
            texts[id].set_position((box.x, box.y))
        for edge, box in placed.items():
            labels[edge].set_position((box.x, box.y))
        for edge in edges:
            self._draw_edge(edge, boxes)
        left, top = axes.get_xlim()[0], axes.get_ylim()[1]
        axes.text(left + _MARGIN, top - _TITLE_HEIGHT / 2, title, fontsize=13, va="center", gid="title")
        self._draw_legend()

    def _create_text(self, id: str, data: Vertex) -> Any:
        label = "\n".join(textwrap.wrap(data.name, LABEL_CHARS)) or id
        box = _BOXES[_kind(data)]
        place = {"ha": "center", "va": "center", "gid": f"vertex {id}", "zorder": 3}
        return self._axes.text(0, 0, _escape(label), fontsize=9, bbox=box, **place)

    def _create_label(self, edge: tuple[str, str]) -> Any:
        box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
        text = f"{self._graph.get_score(*edge):.2f}"
        return self._axes.text(0, 0, text, fontsize=7, ha="center", va="center", bbox=box, gid=f"edge {edge}", zorder=2)

    def _measure(self, artist: Any) -> tuple[float, float]:
        """Return width and height in points, with a point to spare."""
        extent = artist.get_window_extent(self._renderer)
        points = 72 / self._figure.dpi
        return float(extent.width) * points + 2, float(extent.height) * points + 2

    def _build_columns(self) -> list[list[str]]:
        """Return actions by their distance from the first ones, each column followed by the tools of its actions and the
        groups of these tools."""
        graph = self._graph
        vertices = graph.vertices()
        actions = [id for id in vertices if graph.is_action(id)]
        following = {id: [each for each in graph.successors(id) if graph.is_action(each)] for id in actions}
        roots = [id for id in actions if not any(graph.is_action(each) for each in graph.predecessors(id))]
        depths = find_depths(roots, following)
        places: dict[str, float] = {**depths}
        for tool in filter(graph.is_tool, vertices):
            places[tool] = min((depths[each] for each in graph.predecessors(tool) if each in depths), default=0) + 0.5
        for group in filter(graph.is_tool_group, vertices):
            places[group] = min((places[each] for each in graph.successors(group)), default=0) + 0.25
        columns: dict[float, list[str]] = {}
        for id in vertices:
            if id in places:
                columns.setdefault(places[id], []).append(id)
        return [columns[key] for key in sorted(columns)]

    def _set_size(self, boxes: dict[str, Box]) -> None:
        lefts, rights = [b.x - b.width / 2 for b in boxes.values()], [b.x + b.width / 2 for b in boxes.values()]
        lows, highs = [b.y - b.height / 2 for b in boxes.values()], [b.y + b.height / 2 for b in boxes.values()]
        left, low = min(lefts, default=0) - _MARGIN, min(lows, default=0) - _MARGIN - _LEGEND_HEIGHT
        width = max(max(rights, default=0) + _MARGIN - left, _MIN_WIDTH)
        height = max(highs, default=0) + _MARGIN + _TITLE_HEIGHT - low
        self._figure.set_size_inches(width / 72, height / 72)
        self._axes.set_xlim(left, left + width)
        self._axes.set_ylim(low, low + height)

    def _draw_edge(self, edge: tuple[str, str], boxes: dict[str, Box]) -> None:
        from matplotlib.patches import FancyArrowPatch

        start, end = boxes[edge[0]], boxes[edge[1]]
        bend = "arc3,rad=0"
        a, b = start.find_border((end.x, end.y)), end.find_border((start.x, start.y))
        if start is end:
            top = start.y + start.height / 2
            a, b, bend = (start.x - start.width / 4, top), (start.x + start.width / 4, top), "arc3,rad=-0.6"
        style = {**_EDGES[_edge_kind(self._graph, *edge)], "arrowstyle": "-|>", "mutation_scale": 10}
        arrow = FancyArrowPatch(a, b, shrinkA=0, shrinkB=0, zorder=1, connectionstyle=bend, **style)
        self._axes.add_patch(arrow)

    def _draw_legend(self) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        handles: list[Any] = [
            Patch(facecolor=style["facecolor"], edgecolor=style["edgecolor"], label=kind)
            for kind, style in _BOXES.items()
        ]
        handles += [Line2D([], [], label=kind, **style) for kind, style in _EDGES.items()]
        self._axes.legend(handles=handles, loc="lower left", ncols=len(handles), fontsize=8, frameon=False)


def _escape(label: str) -> str:
    """Escape the sign that begins a formula in matplotlib."""
    return label.replace("$", r"\$")


# A toolkit as Mermaid and as GraphML.


_SHAPES: Final = {"Action": ("action", "(", ")"), "Tool": ("tool", "[", "]"), "ToolGroup": ("group", "{{", "}}")}
_ARROWS: Final = {"Next": "==>", "Call": "-->", "Group_Has_Tool": "-.->"}


def render_mermaid(graph: Toolkit) -> str:
    """Return a flowchart for Mermaid: actions rounded, tools rectangular, groups hexagonal, edges with their scores."""
    lines = ["flowchart LR"]
    numbers: dict[str, str] = {}
    for id, properties in graph.vertices_data():
        data = properties["data"]
        numbers[id] = f"v{len(numbers)}"
        kind, first, last = _SHAPES[_kind(data)]
        label = html.escape(" ".join(data.name.split())).replace("&#x27;", "'").replace("&", "#").replace("`", "#96;")
        lines.append(f'    {numbers[id]}{first}"{label}"{last}:::{kind}')
    for u, v in graph.edges():
        if u in numbers and v in numbers:
            lines.append(
                f"    {numbers[u]} {_ARROWS[_edge_kind(graph, u, v)]}|{graph.get_score(u, v):.2f}| {numbers[v]}"
            )
    lines += [
        "    classDef action fill:#cfe3f7,stroke:#2b6cb0",
        "    classDef tool fill:#d5f0d5,stroke:#2f855a",
        "    classDef group fill:#fde7c8,stroke:#b7791f,stroke-dasharray:4",
    ]
    return "\n".join(lines) + "\n"


def render_graphml(graph: Toolkit) -> str:
    """Return the toolkit as GraphML: vertices with ``kind``, ``name`` and ``description``, edges with ``kind`` and
    ``score``."""
    plain: nx.DiGraph[str] = nx.DiGraph()
    for id, properties in graph.vertices_data():
        data = properties["data"]
        description = data.description if isinstance(data, Action | Tool) else ""
        plain.add_node(id, kind=_SHAPES[_kind(data)][0], name=_keep_xml(data.name), description=_keep_xml(description))
    for u, v in graph.edges():
        if u in plain and v in plain:
            plain.add_edge(u, v, kind=_edge_kind(graph, u, v).lower(), score=graph.get_score(u, v))
    return "\n".join(nx.generate_graphml(plain)) + "\n"


def _kind(data: Vertex) -> str:
    return "Action" if isinstance(data, Action) else "Tool" if isinstance(data, Tool) else "ToolGroup"


def _edge_kind(graph: Toolkit, u: str, v: str) -> str:
    return "Group_Has_Tool" if graph.is_tool_group(u) else "Next" if graph.is_action(v) else "Call"


def _keep_xml(text: str) -> str:
    """Replace characters that XML cannot hold."""
    return "".join(c if c in "\t\n\r" or (c >= " " and c not in "\ufffe\uffff") else "\ufffd" for c in text)
