"""Figures: groups are drawn, labels do not cover each other, nothing stays behind."""

from __future__ import annotations

import gc
import itertools
import random
import subprocess
import sys
import weakref
import webbrowser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.transforms import Bbox

from dispatch.toolkit import Toolkit, ToolkitService
from dispatch.toolkit.drawing import Box, find_depths
from tests.unit.toolkit.samples import Group, action, four_actions, tool


def build_random(seed: int, actions: int, tools: int, groups: int) -> ToolkitService:
    randomness = random.Random(seed)
    service = ToolkitService()
    for number in range(actions):
        one = action(number)
        one.name += " " + "x" * randomness.randrange(30)
        before = randomness.sample(range(number), min(number, randomness.randrange(3)))
        service.add_action(one, [], [(action(each), randomness.random()) for each in before])
    for number in range(tools):
        callers = randomness.sample(range(actions), 1 + randomness.randrange(3))
        service.add_tool(tool(number), [(action(each), randomness.random()) for each in callers])
    for number in range(groups):
        service.add_tool_group(Group(str(number), "find", "count"), [(action(number), 0.5)])
    return service


def list_boxes(figure: Any) -> dict[str, Bbox]:
    """The boxes of all labels, in pixels, after drawing."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    texts = [text for text in figure.axes[0].texts if text.get_gid()]
    boxes = {text.get_gid(): (text.get_bbox_patch() or text).get_window_extent(renderer) for text in texts}
    assert len(boxes) == len(texts)
    legend = figure.axes[0].get_legend()
    return {**boxes, "legend": legend.get_window_extent(renderer)}


@pytest.mark.costly
def test_no_label_of_60_vertices_covers_another() -> None:
    service = build_random(1, 20, 31, 3)
    toolkit = service.get_toolkit()
    assert toolkit.vertices_count() == 60
    figure = service.visualize(toolkit, "Sixty")
    boxes = list_boxes(figure)
    assert len(boxes) == 60 + len(toolkit.edges()) + 2  # title and legend
    overlaps = [(a, b) for a, b in itertools.combinations(boxes, 2) if boxes[a].overlaps(boxes[b])]
    assert overlaps == []
    width, height = figure.canvas.get_width_height()
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height for box in boxes.values())


def test_every_kind_and_score_is_shown() -> None:
    service = four_actions()
    service.add_tool_group(Group("shop $5$", "search"), [(action(1), 0.25)])
    figure = service.visualize(service.get_toolkit(), "All kinds")
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert {"Action 1", "tool_1", r"shop \$5\$", "search", "0.25", "0.90", "1.00", "All kinds"} <= texts
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["Action", "Tool", "ToolGroup", "Next", "Call", "Group_Has_Tool"]
    styles = {
        (type(text.get_bbox_patch().get_boxstyle()).__name__, text.get_bbox_patch().get_facecolor())
        for text in figure.axes[0].texts
        if (text.get_gid() or "").startswith("vertex")
    }
    assert len(styles) == 3


def test_an_empty_toolkit_a_cycle_and_a_loop() -> None:
    service = ToolkitService()
    assert service.visualize(service.get_toolkit(), "Empty").axes[0].texts[0].get_text() == "Empty"
    service.add_action(action(1), [], [])
    service.add_action(action(2), [(action(1), 1.0)], [(action(1), 1.0)])
    boxes = list_boxes(service.visualize(service.get_toolkit(), "Cycle"))
    assert not [(a, b) for a, b in itertools.combinations(boxes, 2) if boxes[a].overlaps(boxes[b])]
    service.add_action(action(3), [(action(3), 0.5)], [])
    boxes = list_boxes(service.visualize(service.get_toolkit(), "Loop"))
    assert not [(a, b) for a, b in itertools.combinations(boxes, 2) if boxes[a].overlaps(boxes[b])]


def test_pyplot_is_not_imported_and_the_figure_is_freed() -> None:
    script = (
        "import sys\nfrom dispatch.toolkit import ToolkitService\ns = ToolkitService()\n"
        "s.visualize(s.get_toolkit(), 't').savefig(sys.stdout.buffer)\nassert 'matplotlib.pyplot' not in sys.modules"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)
    assert ended.stdout.startswith(b"\x89PNG")
    service = four_actions()
    reference = weakref.ref(service.visualize(service.get_toolkit(), "Freed"))
    gc.collect()
    assert reference() is None


def test_a_recommendation_draws_nothing() -> None:
    script = (
        "import sys\nfrom dispatch.toolkit import Action, ToolkitService\ns = ToolkitService()\na = Action('a', 'A', '')\n"
        "s.add_action(a, [], [])\ns.recommend_tools_actions([a])\nassert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_show_opens_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    service = four_actions()
    service.visualize(service.get_toolkit(), "Shown", show=True)
    assert len(opened) == 1
    assert opened[0].startswith("file://")


def test_too_many_vertices() -> None:
    toolkit = Toolkit()
    for number in range(501):
        toolkit.add_vertex(str(number), data=action(number))
    with pytest.raises(ValueError, match="at most 500 vertices, and this toolkit has 501"):
        ToolkitService().visualize(toolkit, "Large")


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"tool-dispatch\[draw\]"):
        ToolkitService().visualize(Toolkit(), "")


def test_without_networkx_the_error_names_the_extra() -> None:
    script = "import sys\nsys.modules['networkx'] = None\nimport dispatch.toolkit"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "pip install 'tool-dispatch[toolkit]'" in ended.stderr


Coordinate = st.integers(-100, 100)


@given(Coordinate, Coordinate, st.integers(1, 50), st.integers(1, 50), Coordinate, Coordinate)
def test_the_border_is_on_the_box_and_towards_the_point(x: int, y: int, w: int, h: int, px: int, py: int) -> None:
    box = Box(x, y, w, h)
    bx, by = box.find_border((px, py))
    assert abs(bx - x) <= w / 2 + 1e-9
    assert abs(by - y) <= h / 2 + 1e-9
    assert abs((bx - x) * (py - y) - (by - y) * (px - x)) < 1e-6


def test_depths_count_from_the_roots_and_cycles_have_one() -> None:
    following = {"a": ["b", "c"], "b": ["c"], "c": [], "x": ["y"], "y": ["x"]}
    assert find_depths(["a"], following) == {"a": 0, "b": 1, "c": 1, "x": 0, "y": 1}
