"""docs/architecture.md: the tables of packages, layers and files agree with the code."""

from __future__ import annotations

import re

import pytest

from dispatch import results as result_store
from dispatch import schemas as validator
from dispatch import schemas as validator_cache
from dispatch import schemas as value_size
from dispatch.calls import instances as instance_invoker
from dispatch.messaging import flow as outgoing
from dispatch.messaging import flow as pacer
from dispatch.messaging import plain as correlation
from dispatch.messaging import wire as codec
from dispatch.messaging import wire as fragments
from dispatch.protocol import settings
from dispatch.routing import discovery
from dispatch.routing import instance as channel
from dispatch.transports.pulsar import client
from structure.layers import LAYERS
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DISPATCH = ROOT / "dispatch"
PACKAGES = dict(re.findall(r"^\| `([\w/]+/)` \| (.+) \|$", PAGE, re.MULTILINE))
UNNAMED = {"__main__", ""}


def test_the_layers_are_those_that_imports_are_checked_by() -> None:
    for layer, packages in LAYERS.items():
        (line,) = re.findall(rf"^    {layer}  (.+)$", PAGE, re.MULTILINE)
        line = re.sub(
            r"(\S+)/\{([\w,]+)\}", lambda found: " ".join(f"{found[1]}/{each}" for each in found[2].split(",")), line
        )
        assert {name.replace(".", "/") for name in packages if name not in UNNAMED} <= set(line.split()), layer


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
        "pace towards third parties": f"{pacer.PACE_RATE // 10**6} MB/s beyond a burst of {pacer.PACE_BURST:,} bytes",
        "reply window of fast third parties": f"{pacer.PACE_BURST:,} bytes of expected replies",
        "outgoing queue": f"{outgoing.MAX_QUEUED:,} messages, {outgoing.MAX_QUEUED_BYTES >> 20} MiB",
        "silence of an instance": f"{settings.DEFAULT_SETTINGS.give_up:g} s, and "
        f"{settings.DEFAULT_SETTINGS.least_probe_timeouts} probe timeouts at least",
        "wait for a first instance": f"{channel.DISCOVERY_S:g} s, or {channel.HELLO_WAIT_S:g} s if the call may be repeated",
        "unanswered requests": f"{channel.MAX_UNANSWERED} on a shared topic before its first answer",
        "memory of a lost service": f"{channel.GONE_S:g} s",
        "calls that wait for an instance": f"{instance_invoker.MAX_WAITING:,}",
        "gathering of first instances": f"{discovery.GATHER_S:g} s",
        "receiver queue": f"{client.RECEIVER_QUEUE:,} permits",
        "stored results": f"{result_store.RETENTION_S:,.0f} s, {result_store.MAX_BYTES >> 20} MiB",
        "compiled schemas": f"{validator_cache.MAX_VALIDATORS:,}",
        "validated value": f"{value_size.MAX_DEPTH} levels, {validator.MAX_EVALUATIONS:,} evaluations",
        "tombstones": f"{correlation.TOMBSTONE_AGE_S:.0f} s, {correlation.MAX_TOMBSTONES:,}",
        "largest message": f"the broker's `maxMessageSize` (5 MiB) − {codec.PROPERTIES_BYTES >> 10} KiB",
        "fragment": f"{settings.DEFAULT_SETTINGS.fragment_bytes // 10**6} MB in a session, "
        f"{fragments.PART_BYTES >> 10} KiB otherwise",
    }
    assert {name: rows[name] for name in expected} == expected
