"""Alerts about the catalogue."""

from __future__ import annotations

from tests.dashboards.alerts.case import Case, series

RELOADED = {each: series("dispatch_catalog_last_reload_successful", each, source="directory") for each in "ab"}
UP = {each: series("dispatch_catalog_source_up", each, source="trustgraph") for each in "ab"}
OTHER_UP = series("dispatch_catalog_source_up", "a", source="folder")
REFUSED = {each: series("dispatch_catalog_refused_items", each, source="trustgraph") for each in "ab"}
HELD = {each: series("dispatch_catalog_held_changes", each, source="trustgraph") for each in "ab"}

CATALOG = (
    Case(
        "DispatchReloadFailed",
        {RELOADED["a"]: "1x4 0x9", RELOADED["b"]: "1x13"},
        "10m",
        {"source": "directory"},
        {"mended within five minutes": {RELOADED["a"]: "1x4 0x4 1x5"}, "only just now": {RELOADED["a"]: "1x7 0x9"}},
        "1",
    ),
    Case(
        "DispatchSourceDown",
        {UP["a"]: "1x4 0x9", UP["b"]: "1x2 0x11", OTHER_UP: "1x13"},
        "10m",
        {"source": "trustgraph"},
        {
            "it recovers within five minutes": {UP["a"]: "1x4 0x4 1x5", UP["b"]: "1x4 0x4 1x5"},
            "only just now": {UP["a"]: "1x7 0x9", UP["b"]: "1x13"},
            "it fails now and then": {UP["a"]: "1x2 0x3 1x1 0x6", UP["b"]: "1x13"},
        },
        "2",
    ),
    Case(
        "DispatchItemsRefused",
        {REFUSED["a"]: "0x4 3x9", REFUSED["b"]: "0x4 2x9"},
        "10m",
        {"source": "trustgraph"},
        {
            "corrected within five minutes": {REFUSED["a"]: "0x4 3x4 0x5", REFUSED["b"]: "0x4 2x4 0x5"},
            "only just now": {REFUSED["a"]: "0x7 3x9", REFUSED["b"]: "0x7 2x9"},
        },
        "3",
    ),
    Case(
        "DispatchChangesHeld",
        {HELD["a"]: "0x4 1x18", HELD["b"]: "0x4 1x18"},
        "20m",
        {"source": "trustgraph"},
        {
            "approved within fifteen minutes": {HELD["a"]: "0x4 1x14 0x5", HELD["b"]: "0x4 1x14 0x5"},
            "only just now": {HELD["a"]: "0x7 1x18", HELD["b"]: "0x7 1x18"},
        },
        "1",
    ),
)
