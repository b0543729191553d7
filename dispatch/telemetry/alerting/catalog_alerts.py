"""Alerts about the catalogue: its reloads, its sources, and items that are not in force."""

from __future__ import annotations

from dispatch.telemetry.alerting.alert import TICKET, Alert
from dispatch.telemetry.alerting.promql import without

CATALOG_ALERTS = (
    Alert(
        "DispatchReloadFailed",
        f"count {without()} (dispatch_catalog_last_reload_successful == 0)",
        "5m",
        TICKET,
        "The last reload of the catalogue or policy failed in <count> processes",
        "In <count> processes of <job> the last reload (<source>) was invalid. The previous catalogue and policy stay in "
        "force there.",
        "catalog",
    ),
    Alert(
        "DispatchSourceDown",
        f"count {without()} (dispatch_catalog_source_up == 0)",
        "5m",
        TICKET,
        "The catalogue's source <source> is out of reach or invalid in <count> processes",
        "In <count> processes of <job> the source <source> has been out of reach or invalid for 5 minutes. Its last valid "
        "items stay in force there; a process that has started since then has none of its tools.",
        "catalog",
    ),
    Alert(
        "DispatchItemsRefused",
        f"max {without()} (dispatch_catalog_refused_items) > 0",
        "5m",
        TICKET,
        "<count> items of the catalogue's source <source> are refused",
        "<count> items of <source> have been invalid for 5 minutes. Each is in force in its last valid version, or not at "
        "all.",
        "catalog",
    ),
    Alert(
        "DispatchChangesHeld",
        f"max {without()} (dispatch_catalog_held_changes) > 0",
        "15m",
        TICKET,
        "<count> changed definitions of the catalogue's source <source> wait for approval",
        "<count> definitions of <source> differ from the approved ones and have waited for 15 minutes. The approved "
        "definitions stay in force.",
        "catalog",
    ),
)
