"""Changes of the catalogue are reported once each: as a log line, an event and counters."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from dispatch.telemetry.events import MAX_NAMES, Event, Events
from dispatch.telemetry.observers import (
    NO_PROPERTIES,
    NULL_DISPATCHER,
    SILENT,
    DispatcherObserver,
    HeldChange,
    RefusedItem,
    ShadowedItem,
    Telemetry,
)
from dispatch.telemetry.reporting import MAX_LINES, MAX_SHOWN_CHARS, TelemetryDispatcherObserver
from tests.helpers.telemetry_capture import Board

FOLDER, REMOTE = "folder:tools", "trustgraph"
BAD = RefusedItem(REMOTE, "tool/find", "arguments[0].type", "'text' is no type", 'use "string"')


def activate(
    observer: DispatcherObserver,
    sources: tuple[str, ...],
    tools: int,
    fingerprints: Mapping[str, str] = NO_PROPERTIES,
    *,
    is_reload: bool = False,
    **names: Collection[str],
) -> None:
    """Report an activation; ``names``: added, changed or removed."""
    listed = {kind: names.get(kind, ()) for kind in ("added", "changed", "removed")}
    observer.on_activated(sources, tools, listed, fingerprints, is_reload=is_reload)


class Bench:
    """An observer with everything that it reports, and a clock that stands still."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "dispatch.transitions")
        self.caplog = caplog
        self.board = Board()
        self.events: list[Event] = []
        self.sink = Events()
        self.sink.subscribe(self.events.append)
        self.now = 0.0
        self.observer = self.make()

    def make(self) -> TelemetryDispatcherObserver:
        telemetry = Telemetry(registry=self.board.registry, traces="off")
        return TelemetryDispatcherObserver(telemetry, self.sink, "", lambda: self.now)

    def read_events(self) -> list[dict[str, Any]]:
        """Return the events since the last reading, without their times."""
        found = [event.as_dict() for event in self.events]
        self.events.clear()
        for each in found:
            assert each.pop("at") > 1_600_000_000
        return found

    def read_lines(self) -> list[tuple[str, str]]:
        """Return the log lines since the last reading, with their levels."""
        found = [(record.levelname, record.getMessage()) for record in self.caplog.records]
        self.caplog.clear()
        return found


@pytest.fixture
def bench(caplog: pytest.LogCaptureFixture) -> Bench:
    return Bench(caplog)


def test_an_activation_has_the_names_their_numbers_and_the_fingerprints(bench: Bench) -> None:
    fingerprints = {"a": "1" * 64, "z": "9" * 64}
    activate(bench.observer, (FOLDER, REMOTE), 7, fingerprints, added=["a"], changed=["b"], removed=["c"])
    assert bench.read_events() == [
        {
            "event": "catalog",
            "source": "folder:tools, trustgraph",
            "ok": True,
            "tools": 7,
            "problem": "",
            "added": ("a",),
            "changed": ("b",),
            "removed": ("c",),
            "added_count": 1,
            "changed_count": 1,
            "removed_count": 1,
            "fingerprints": {"a": "1" * 64},
        }
    ]
    line = "catalogue activated (folder:tools, trustgraph): 1 added, 1 changed, 1 removed, 7 in force"
    assert bench.read_lines() == [("INFO", line)]
    assert bench.board["catalog_reloads_total folder:tools ok"] == 1
    assert bench.board["catalog_reloads_total trustgraph ok"] == 1
    assert bench.board["catalog_last_reload_successful trustgraph"] == 1


def test_the_names_of_an_activation_are_bounded_and_their_numbers_are_not(bench: Bench) -> None:
    names = {f"tool-{number}": None for number in range(MAX_NAMES + 500)}
    activate(bench.observer, (FOLDER,), len(names), dict.fromkeys(names, "0" * 64), added=names.keys())
    (event,) = bench.read_events()
    assert event["added"] == tuple(names)[:MAX_NAMES]
    assert event["added_count"] == MAX_NAMES + 500
    assert len(event["fingerprints"]) == MAX_NAMES


def test_a_failed_reload_is_counted_and_reported(bench: Bench) -> None:
    activate(bench.observer, (FOLDER,), 3)
    bench.read_events()
    bench.read_lines()
    bench.observer.on_reload_rejected((FOLDER,), 3, "not JSON")
    (event,) = bench.read_events()
    assert (event["ok"], event["tools"], event["problem"]) == (False, 3, "not JSON")
    assert bench.read_lines() == [("WARNING", "catalogue not reloaded, the previous one stays in force: not JSON")]
    assert bench.board["catalog_reloads_total folder:tools failed"] == 1
    assert bench.board["catalog_last_reload_successful folder:tools"] == 0


def test_the_next_successful_reload_makes_a_rejected_one_good(bench: Bench) -> None:
    last = "catalog_last_reload_successful"
    bench.observer.on_source_changed(REMOTE, "", "ok")
    bench.observer.on_reload_rejected((REMOTE, FOLDER), 3, "not JSON")
    activate(bench.observer, (REMOTE,), 3)
    assert (bench.board[f"{last} trustgraph"], bench.board[f"{last} folder:tools"]) == (1, 0), "it was no reload"
    activate(bench.observer, (REMOTE,), 3, is_reload=True)
    assert bench.board[f"{last} trustgraph"] == 1
    assert bench.board.of(FOLDER) == [], "it was never in force"


def test_the_states_of_a_source_are_reported(bench: Bench) -> None:
    changes = [
        ("", "failed", "no answer"),
        ("failed", "ok", ""),
        ("ok", "stale", "no\nanswer"),
        ("stale", "removed", ""),
    ]
    for change in changes:
        bench.observer.on_source_changed(REMOTE, *change)
    events = bench.read_events()
    assert {each["event"] for each in events} == {"source"}
    assert [(each["old"], each["new"], each["problem"]) for each in events] == changes
    assert bench.read_lines() == [
        ("WARNING", "source trustgraph: added, failed (no answer)"),
        ("INFO", "source trustgraph: failed to ok"),
        ("WARNING", "source trustgraph: ok to stale (no\\nanswer)"),
        ("INFO", "source trustgraph: stale to removed"),
    ]


def test_a_source_that_flaps_repeats_no_line_within_ten_seconds(bench: Bench) -> None:
    for _ in range(5):
        bench.observer.on_source_changed(REMOTE, "ok", "stale", "no answer")
        bench.observer.on_source_changed(REMOTE, "stale", "ok")
    assert len(bench.read_lines()) == 2
    assert len(bench.read_events()) == 10
    bench.now = 10.0
    bench.observer.on_source_changed(REMOTE, "ok", "stale", "no answer")
    line = "source trustgraph: ok to stale (no answer) (4 more since the last line)"
    assert bench.read_lines() == [("WARNING", line)]


def test_a_refused_item_is_reported_once_until_it_was_valid(bench: Bench) -> None:
    for _ in range(3):
        bench.observer.on_refused_items(REMOTE, [BAD])
        bench.now += 60
    assert bench.read_events() == [
        {
            "event": "item-refused",
            "source": REMOTE,
            "origin": "tool/find",
            "key": "arguments[0].type",
            "problem": "'text' is no type",
            "fix": 'use "string"',
        }
    ]
    line = "item of trustgraph refused: tool/find: arguments[0].type: 'text' is no type. Fix: use \"string\"."
    assert bench.read_lines() == [("WARNING", line)]

    bench.observer.on_refused_items(REMOTE, [])
    assert bench.read_events() == bench.read_lines() == []
    bench.observer.on_refused_items(REMOTE, [BAD])
    assert len(bench.read_events()) == len(bench.read_lines()) == 1


def test_only_the_new_ones_of_several_refused_items_are_reported(bench: Bench) -> None:
    other = RefusedItem(REMOTE, "tool/send", "", "not JSON", "correct the syntax")
    bench.observer.on_refused_items(REMOTE, [BAD])
    bench.read_events()
    bench.read_lines()
    bench.observer.on_refused_items(REMOTE, [BAD, other])
    assert [each["origin"] for each in bench.read_events()] == ["tool/send"]
    line = "item of trustgraph refused: tool/send: not JSON. Fix: correct the syntax."
    assert bench.read_lines() == [("WARNING", line)]


def test_the_facts_of_a_line_are_attributes_of_the_record(bench: Bench) -> None:
    bench.observer.on_refused_items(REMOTE, [BAD])
    (record,) = bench.caplog.records
    facts = {key: value for key, value in vars(record).items() if key.startswith("dispatch_")}
    assert facts == {
        "dispatch_source": REMOTE,
        "dispatch_origin": "tool/find",
        "dispatch_key": "arguments[0].type",
        "dispatch_problem": "'text' is no type",
        "dispatch_fix": 'use "string"',
    }


def test_a_shadowed_item_is_reported_with_both_origins(bench: Bench) -> None:
    item = ShadowedItem("find", REMOTE, "tool/find", FOLDER, "tools/tool/find.json")
    for _ in range(2):
        bench.observer.on_shadowed_items(REMOTE, [item])
    (event,) = bench.read_events()
    assert event == {
        "event": "item-shadowed",
        "name": "find",
        "source": REMOTE,
        "origin": "tool/find",
        "active_source": FOLDER,
        "active_origin": "tools/tool/find.json",
    }
    why = "because folder:tools (tools/tool/find.json) precedes it"
    line = f"item of trustgraph shadowed: 'find' (tool/find) is not in force, {why}"
    assert bench.read_lines() == [("WARNING", line)]


def test_a_held_change_is_reported_with_both_fingerprints(bench: Bench) -> None:
    change = HeldChange(REMOTE, "find", "a" * 64, "b" * 64)
    for _ in range(2):
        bench.observer.on_held_changes(REMOTE, [change])
    (event,) = bench.read_events()
    assert event == {"event": "change-held", "source": REMOTE, "name": "find", "old": "a" * 64, "new": "b" * 64}
    line = (
        "change of 'find' from trustgraph held: the former definition aaaaaaaaaaaa stays in force, and the definition "
        "bbbbbbbbbbbb waits. Review it, then approve it with `dispatch tools approve find`."
    )
    assert bench.read_lines() == [("WARNING", line)]
    bench.observer.on_held_changes(REMOTE, [HeldChange(REMOTE, "new", "", "c" * 64)])
    ((_, line),) = bench.read_lines()
    assert "the tool is not in force, and the definition cccccccccccc waits" in line


def test_lines_and_events_of_ten_thousand_invalid_items_are_bounded(bench: Bench) -> None:
    items = [RefusedItem(REMOTE, f"tool/{number}", "", "x" * 10_000, "y") for number in range(10_000)]
    bench.observer.on_refused_items(REMOTE, items)
    lines = bench.read_lines()
    assert len(lines) == MAX_LINES + 1
    assert max(len(text) for _, text in lines) <= MAX_SHOWN_CHARS
    assert lines[-1][1] == "9,980 more items of trustgraph are not listed here; see `dispatch tools`"
    assert len(bench.read_events()) == MAX_NAMES
    bench.observer.on_refused_items(REMOTE, items)
    assert bench.read_lines() == bench.read_events() == []


def test_the_reports_of_a_source_are_forgotten_with_it(bench: Bench) -> None:
    bench.observer.on_refused_items(REMOTE, [BAD])
    bench.observer.on_source_changed(REMOTE, "ok", "removed")
    bench.read_events()
    bench.observer.on_refused_items(REMOTE, [BAD])
    assert len(bench.read_events()) == 1


def test_the_series_of_a_removed_source_are_removed_and_those_of_a_closed_dispatcher_stay(bench: Bench) -> None:
    bench.observer.on_source_changed(REMOTE, "", "ok")
    bench.observer.on_source_changed(FOLDER, "", "ok")
    activate(bench.observer, (REMOTE, FOLDER), 1)
    assert len(bench.board.of(REMOTE)) == 3
    bench.observer.on_source_changed(REMOTE, "ok", "removed")
    assert bench.board.of(REMOTE) == []
    bench.observer.close()
    assert bench.board["catalog_reloads_total folder:tools ok"] == 1


def test_a_source_of_two_dispatchers_keeps_its_series_until_both_have_removed_it(bench: Bench) -> None:
    other = bench.make()
    for each in (bench.observer, other):
        each.on_source_changed(REMOTE, "", "ok")
        activate(each, (REMOTE,), 1)
    bench.observer.on_source_changed(REMOTE, "ok", "removed")
    assert bench.board["catalog_reloads_total trustgraph ok"] == 2
    other.on_source_changed(REMOTE, "ok", "removed")
    assert bench.board.of(REMOTE) == []


def test_without_metrics_and_listeners_only_lines_are_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.transitions")
    observer = TelemetryDispatcherObserver(SILENT, Events(), "", lambda: 0.0)
    for each in (observer, NULL_DISPATCHER):
        each.on_source_changed(REMOTE, "", "ok")
        activate(each, (REMOTE,), 1, added=("find",))
        each.on_reload_rejected((REMOTE,), 1, "not JSON")
        each.on_refused_items(REMOTE, (BAD,))
        each.on_shadowed_items(REMOTE, ())
        each.on_held_changes(REMOTE, ())
        each.on_source_changed(REMOTE, "ok", "removed")
    observer.close()
    assert len(caplog.records) == 5, "the null observer writes none"
