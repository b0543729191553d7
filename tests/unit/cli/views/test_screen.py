"""What ``dispatch top``, ``tail`` and ``calls show`` draw of the values of admin endpoints, and what their keys do."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from dispatch.cli.admin import AdminError, Answers
from dispatch.cli.screen import View, call_line, event_line, merge, render_screen, select_rows, sparkline, waterfall
from dispatch.cli.top import PAGES, TopScreen, plan_action, read_keys
from tests.helpers import admin_values
from tests.helpers.admin_values import A, B, C, call, circuit, instance, timed_out_call, tool


def drawn(renderable: Any, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(renderable)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


class Process:
    """An admin endpoint that answers from ``values`` and remembers actions."""

    url = A

    def __init__(self) -> None:
        self.posted: list[tuple[str, Mapping[str, Any]]] = []

    async def get(self, path: str, kind: Any) -> Any:
        if path == "/api/calls/8124":
            return timed_out_call()
        raise AdminError(f"404 to {path}", 404)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        self.posted.append((path, body))
        return {"event": "action", "until": admin_values.AT + body["for"] if "for" in body else None}


class Processes:
    """A fleet of one process."""

    def __init__(self) -> None:
        self.process = Process()
        self.endpoints = {A: self.process}
        self.read: list[Any] = []
        self.tools: list[dict[str, Any]] = []

    async def fetch(self, tables: Mapping[str, str]) -> dict[str, Any]:
        self.read.append(dict(tables))
        values = admin_values.values()
        values["tools"] = self.tools or values["tools"]
        for name in ("tools", "instances", "circuits"):
            values[name] = merge(name, values[name])
        return {name: values[name] for name in ("processes", *tables)}

    async def ask_each(self, path: str, kind: Any) -> Answers:
        details = {"description": "Price of a product", "policy": [{"key": "timeout", "value": 5.0, "source": "tool"}]}
        lists = {"instance_list": [instance("shop-1")], "circuits": [circuit("price", "open", retry_after=3.2)]}
        history = {"history": {"seconds": 5, "calls": [8, 4, 0, 1], "failed": [0, 4, 0, 0]}}
        return Answers([(A, {**tool("price"), **details, **lists, **history})], {})


async def top() -> tuple[TopScreen, Processes]:
    fleet = Processes()
    screen = TopScreen(fleet, "alice")  # type: ignore[arg-type] # as far as the screen uses it
    await screen.refresh()
    return screen, fleet


async def press(screen: TopScreen, *keys: str) -> str:
    for key in keys:
        await screen.press(key)
    return drawn(screen.render(100, 30), 100)


TOOLS_80 = """\
tool      calls calls/s failed % failed running  p95 ms circuit   up
price     8,123    12.5    212    26.0%       1 1,200.0 open      2 of 3
find      8,123     3.0      2     0.1%       1    40.0 closed    3 of 3
translate 8,123    12.5      0     0.0%       1    40.0 -         -

instance state          running  circuit of state       user  calls refused
shop-2   ejected 12.3 s       2  price      open 3.2 s  bob   4,000     912
shop-1   up                   2  2 others   closed      alice   321       0
words-1  up                   0"""
TOOLS_140 = """\
tool       service  calls  calls/s  failed  % failed  refused  running  queued  p50 ms   p95 ms  circuit    up
price      shop     8,123     12.5     212     26.0%        5        1       0    12.0  1,200.0  open       2 of 3
find       shop     8,123      3.0       2      0.1%        5        1       0    12.0     40.0  closed     3 of 3
translate  words    8,123     12.5       0      0.0%        0        1       0    12.0     40.0  -          -"""
WATERFALL_80 = """\
call 8124  price 1.4.0 of shop  timeout after 2,000.0 ms
                           0           2,000.0 ms
wait for a place           ░                          100.0 ms
attempt 1 shop-2            ███████████             1,000.0 ms  instance-lost
attempt 2 shop-1                        █████████     800.0 ms  timeout  (retry)"""


@pytest.mark.parametrize(("width", "expected"), [(80, TOOLS_80), (140, TOOLS_140)], ids=["80", "140"])
def test_tools_in_trouble_come_first_with_instances_circuits_and_users_below(width: int, expected: str) -> None:
    assert expected in drawn(render_screen(admin_values.values(), View(), width, 40), width)


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("page", PAGES)
async def test_every_table_fits_and_has_its_rows(page: str, width: int) -> None:
    screen, _ = await top()
    await screen.press(str(PAGES.index(page) + 1))
    lines = drawn(screen.render(width, 24), width).splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= width
    first = {"tools": "price", "instances": "shop-2", "circuits": "price", "users": "alice", "sessions": "shop-1"}
    first |= {"calls": "16:20:00.000 8124 timeout", "processes": "shop-2"}
    rows = lines[lines.index(next(line for line in lines if line.startswith("1 tools"))) + 2 :]
    assert " ".join(rows[0].split()).startswith(first[page].replace("16:20:00.000", rows[0].split()[0]))
    assert any("shop-2 is unreachable" in line for line in lines)


def test_a_call_is_a_waterfall_of_waits_and_attempts() -> None:
    lines = [drawn(line, 80) for line in waterfall(timed_out_call(), 80)]
    assert "\n".join([lines[0], *lines[3:]]) == WATERFALL_80
    assert "user alice · the tool may have run" in lines[1]
    assert lines[2].startswith("Tool 'price' did not reply within 2 s.")
    refused = call("1", outcome="rejected", ran="no", attempts=0, waits=[], trail=[])
    assert drawn(waterfall(refused, 80)[-1], 80) == "Nothing was sent."


def test_a_call_is_one_line_without_control_characters() -> None:
    line = call_line(call("8124", "evil\x1b[2J\n", "timeout", ran="maybe", attempts=2, error="deadline", user="")).plain
    expected = r"8124 timeout 12.3 ms evil\x1b[2J - shop-1 deadline 2 attempts may have run"
    assert line.split()[1:] == expected.split()
    assert line.isprintable()


def test_events_are_sentences() -> None:
    ejected, opened = admin_values.values()["events"]
    assert event_line(ejected)[9:] == "instance shop-2 of shop ejected: 5 failures"
    assert event_line(opened)[9:] == "circuit of price: closed → open (failure rate)"
    action = {
        "event": "action",
        "at": 0.0,
        "user": "alice",
        "action": "open",
        "target": "circuit price",
        "reason": "bad",
    }
    assert event_line(action)[9:] == "alice: open circuit price (bad)"
    source = {"event": "source", "at": 0.0, "source": "folder", "old": "", "new": "failed", "problem": "no such folder"}
    assert event_line(source)[9:] == "source folder: new → failed no such folder"
    counts = {"added_count": 2, "changed_count": 1, "removed_count": 0}
    catalog = {"event": "catalog", "at": 0.0, "source": "folder", "tools": 12, "problem": "", **counts}
    assert event_line(catalog)[9:].rstrip() == "catalogue: 12 tools, 2 added, 1 changed, 0 removed by folder"
    assert event_line({"event": "log-level", "at": 0.0, "level": "DEBUG", "url": A})[9:] == "log-level: level DEBUG"


def test_rows_of_several_processes_are_merged_into_the_worst() -> None:
    (price,) = merge(
        "tools",
        [
            tool("price", rate=3.0, failure_rate=0.0),
            tool("price", url=B, rate=1.0, failure_rate=0.4, circuit="open", p95=2.0, instances_up=1),
        ],
    )
    assert (price["calls"], price["rate"], price["failure_rate"], price["p95"]) == (16_246, 4.0, 0.1, 2.0)
    assert (price["circuit"], price["seen"], price["of"], price["instances_up"]) == ("open", 1, 2, 1)
    own = instance("shop-1", kind="own", url=C, in_flight=9, queued=4, requests=77)
    (shop,) = merge("instances", [own, instance("shop-1"), instance("shop-1", "ejected", url=B, seconds_left=3.0)])
    assert (shop["in_flight"], shop["queued"], shop["requests"], shop["state"]) == (4, 4, 77, "ejected")
    assert (shop["urls"], shop["own_url"], shop["seen"], shop["of"]) == ([A, B], C, 1, 2)
    assert "ejected 3.0 s at 1 of 2" in drawn(render_screen({"instances": [shop]}, View("instances"), 100, 9), 100)
    (renamed,) = merge("instances", [own | {"service": "shop-topic"}, instance("shop-1")])
    assert (renamed["service"], renamed["requests"], renamed["own_url"]) == ("shop", 77, C)
    two = [instance("shop-1"), own | {"service": "one"}, own | {"service": "two"}]  # no one knows which of them it is
    assert len(merge("instances", two)) == 3
    (draining,) = merge("instances", [instance("shop-1"), instance("shop-1", "draining", kind="own", url=C)])
    assert draining["state"] == "draining"


def test_rows_are_sorted_and_filtered() -> None:
    values = admin_values.values()

    def names(**choice: Any) -> list[str]:
        return [str(row.get("name") or row.get("id")) for row in select_rows(values, View(**choice))]

    assert names() == ["price", "find", "translate"]
    assert names(sort="name") == ["find", "price", "translate"]
    assert names(sort="failed") == ["price", "find", "translate"]
    assert names(sort="rate", is_reversed=True) == ["find", "translate", "price"]
    assert names(pattern="WORDS") == ["translate"]
    assert names(table="calls", failed_only=True) == ["8124"]


def test_a_tall_table_is_cut_around_the_selected_row() -> None:
    rows = {"tools": [{"name": f"tool-{number:03}", "calls": number} for number in range(200)]}
    text = drawn(render_screen(rows, View(), 80, 24, selected=150), 80)
    assert "tool-150" in text
    assert "tool-000" not in text
    assert "more" in text
    assert len(text.splitlines()) < 24


async def test_keys_open_a_tool_a_call_and_the_calls_of_an_instance() -> None:
    screen, fleet = await top()
    text = await press(screen, "down", "up", "enter")
    for part in ("price 1.4.0 of shop  Price of a product", "█▅ ▂", "policy: timeout 5.0 (tool)", "open 3.2 s", "8124"):
        assert part in text, part
    assert fleet.read[-1] == {"calls": "/api/calls?limit=100&tool=price"}
    assert "attempt 1 shop-2" in await press(screen, "enter")
    assert "policy: timeout" in await press(screen, "escape")
    assert "1 tools" in await press(screen, "escape")
    text = await press(screen, "2", "enter")
    assert "filter 'shop-2'" in text
    assert "8124" in text
    assert "8123" not in text
    assert "an update" not in text
    assert "another table" in await press(screen, "?")
    assert "another table" not in await press(screen, "x")
    assert fleet.process.posted == []


async def test_the_selection_follows_its_row() -> None:
    screen, fleet = await top()
    assert "Open the circuit of 'price'" in await press(screen, "o")
    fleet.tools = [tool("find", circuit="forced-open", failure_rate=0.9), *admin_values.values()["tools"][1:]]
    await screen.refresh()
    assert "Open the circuit of 'price'" in await press(screen, "escape", "o")
    assert "Open the circuit of 'price'" in await press(screen, "escape", "S", "s", "o")
    assert "Open the circuit of 'translate'" in await press(screen, "escape", "end", "o")


async def test_an_action_needs_a_reason_and_can_be_given_up() -> None:
    screen, fleet = await top()
    text = await press(screen, "o")
    assert "Open the circuit of 'price' in 1 process for 5 min (tab: another)?" in text
    await press(screen, "enter", "escape")
    assert fleet.process.posted == []
    text = await press(screen, "o", "tab", *"bad prices!", "backspace", "enter")
    assert "Done: open the circuit of 'price', until" in text
    body = {"action": "open", "version": "1.4.0", "user": "alice", "reason": "bad prices", "for": 1800}
    assert fleet.process.posted == [("/api/circuits/price", body)]
    text = await press(screen, "2", "d")
    assert "Drain needs the admin endpoint of the instance's own process" in text


def test_actions_go_to_the_processes_that_can_do_them() -> None:
    (shop,) = merge("instances", [instance("shop-1"), instance("shop-1", url=B), instance("shop-1", kind="own", url=C)])
    planned = {key: plan_action(key, "instances", shop) for key in "eado"}
    assert planned.pop("o") is None
    assert {key: (each.urls, each.body["action"], bool(each.durations)) for key, each in planned.items()} == {  # type: ignore[union-attr] # actions
        "e": ([A, B], "eject", True),
        "a": ([A, B], "admit", False),
        "d": ([C], "drain", False),
    }
    (own,) = merge("instances", [instance("shop-1", kind="own", url=C)])
    assert plan_action("e", "instances", own) == "No dispatcher on this screen calls this instance."


async def test_a_refused_action_says_why() -> None:
    screen, fleet = await top()

    async def refuse(path: str, body: Mapping[str, Any]) -> Any:
        raise AdminError(f"{A} answers 403 to POST {path}: the token may only read.", 403)

    fleet.process.post = refuse  # type: ignore[method-assign] # refuses
    assert "answers 403 to POST /api/circuits/price" in await press(screen, "c", "x", "enter")


def test_keys_of_a_terminal() -> None:
    keys = ["q", "up", "down", "page up", "enter", "tab", "backspace", "ä", "escape"]
    assert read_keys("q\x1b[A\x1bOB\x1b[5~\r\t\x7fä\x1b") == keys
    assert read_keys("\x1b[1;5C\x00\x1b[6~") == ["page down"]


def test_sparkline_is_relative_to_the_greatest() -> None:
    assert sparkline([0, 1, 8, 4]) == " ▂█▅"
    assert sparkline([0, 0]) == ""
