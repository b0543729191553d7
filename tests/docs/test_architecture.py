"""docs/architecture.md: the tables of packages, layers and files agree with the code."""

from __future__ import annotations

import re

import pytest

from dispatch import results, schemas
from dispatch.calls import attempt
from dispatch.messaging import flow, plain, wire
from dispatch.protocol import settings
from dispatch.routing import discovery, instance
from dispatch.transports.pulsar import client
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DISPATCH = ROOT / "dispatch"
PACKAGES = dict(re.findall(r"^\| `([\w/]+/)` \| (.+) \|$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("package", PACKAGES)
def test_the_modules_that_a_package_is_said_to_contain_exist(package: str) -> None:
    assert (DISPATCH / package).is_dir()
    for name in re.findall(r"`([a-z_/]+)`", PACKAGES[package]):
        found = [*(DISPATCH / package).rglob(f"{name.rstrip('/')}.py"), *(DISPATCH / package).rglob(name.rstrip("/"))]
        assert found, f"{package}{name}"


def test_every_package_has_a_row() -> None:
    named = {package.partition("/")[0] for package in PACKAGES}
    assert named == {path.parent.name for path in DISPATCH.glob("*/__init__.py")}


def test_the_constants_have_the_values_of_the_code() -> None:
    rows = dict(
        re.findall(r"^\| ([a-z ]+) \| (\S.+?) \|", PAGE.partition("## Constants")[2].partition("## ")[0], re.MULTILINE)
    )
    expected = {
        "window": f"{settings.DEFAULT_SETTINGS.window:,} unacknowledged bytes on each path of a session",
        "pace towards third parties": f"{flow.PACE_RATE // 10**6} MB/s beyond a burst of {flow.PACE_BURST:,} bytes",
        "reply window of fast third parties": f"{flow.PACE_BURST:,} bytes of expected replies",
        "outgoing queue": f"{flow.MAX_QUEUED:,} messages, {flow.MAX_QUEUED_BYTES >> 20} MiB",
        "silence of an instance": f"{settings.DEFAULT_SETTINGS.give_up:g} s, and "
        f"{settings.DEFAULT_SETTINGS.least_probe_timeouts} probe timeouts at least",
        "wait for a first instance": f"{instance.DISCOVERY_S:g} s, "
        f"or {instance.HELLO_WAIT_S:g} s if the call may be repeated",
        "unanswered requests": f"{instance.MAX_UNANSWERED} on a shared topic before its first answer",
        "memory of a lost service": f"{instance.GONE_S:g} s",
        "calls that wait for an instance": f"{attempt.MAX_WAITING:,}",
        "gathering of first instances": f"{discovery.GATHER_S:g} s",
        "first burst": f"{instance.MAX_FIRST} calls at once until {discovery.SPREAD_S:g} s after the first instance",
        "receiver queue": f"{client.RECEIVER_QUEUE:,} permits",
        "stored results": f"{results.RETENTION_S:,.0f} s, {results.MAX_BYTES >> 20} MiB",
        "compiled schemas": f"{schemas.MAX_VALIDATORS:,}",
        "validated value": f"{schemas.MAX_DEPTH} levels, {schemas.MAX_EVALUATIONS:,} evaluations",
        "tombstones": f"{plain.TOMBSTONE_AGE_S:.0f} s, {plain.MAX_TOMBSTONES:,}",
        "largest message": f"the broker's `maxMessageSize` (5 MiB) − {wire.PROPERTIES_BYTES >> 10} KiB",
        "fragment": f"{settings.DEFAULT_SETTINGS.fragment_bytes // 10**6} MB in a session, "
        f"{wire.PART_BYTES >> 10} KiB otherwise",
    }
    assert {name: rows[name] for name in expected} == expected
