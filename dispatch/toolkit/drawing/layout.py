"""Positions of vertices and labels, so that none covers another. Lengths are in points; y points upwards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

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
