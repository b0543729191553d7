"""``dispatch doctor``: what is missing, and the command that mends it.
``dispatch doctor --loss``: its options, its table, what is left after Ctrl-C; and on a genuine broker.
``dispatch doctor --packet`` shows every frame, and neither payloads nor secrets.
``dispatch doctor`` opens a session with each instance of a service, and executes no tool.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import typing
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.broker import Endpoint
from dispatch.catalog import Catalog
from dispatch.cli.doctor import (
    CheckResult,
    check_sessions,
    check_token_expiry,
    default_admin_url,
    list_losses,
    list_namespace_pairs,
    list_namespaces,
)
from dispatch.devtools.localbroker import DetachedBroker
from dispatch.devtools.lossprobe import VARIANTS, Measurement, ProbeError, RunResult, Variant
from dispatch.protocol.frames import Frame, encode_packet
from dispatch.transports import Security
from tests.helpers.cli_processes import WAIT_S, ended, started
from tests.helpers.dispatcher_and_service import BROKER, Peer, Service, catalog, serving
from tests.helpers.sample_frames import FRAMES, HEADER, PRIVATE
from tests.helpers.secured_broker import SUPER_USER, SecuredBroker
from tests.unit.cli.conftest import Ended, Run, write_catalog

NOBODY = "http://127.0.0.1:1"


def statuses(end: Ended) -> dict[str, str]:
    return {check["name"]: check["status"] for check in end.json["checks"]}


def finding(end: Ended, name: str) -> dict[str, Any]:
    (found,) = [check for check in end.json["checks"] if check["name"] == name]
    return dict(found)


@contextlib.contextmanager
def no_pulsar() -> Iterator[str]:
    """The URL of a server that hangs up on everyone."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        yield f"pulsar://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT_S)


def test_without_a_broker_it_names_the_command_that_starts_one(run: Run) -> None:
    end = run("doctor", "--broker", "pulsar://127.0.0.1:1", code=1)
    assert "failed   connection: nothing answers at 127.0.0.1:1" in end.out
    assert "fix: dispatch broker start" in end.out
    assert end.out.endswith("1 failed.\n")


def test_something_else_at_that_port(run: Run) -> None:
    with no_pulsar() as url:
        end = run("doctor", "--broker", url, "--admin", NOBODY, "--json")
    assert end.code == 1
    assert statuses(end) == {"connection": "ok", "admin interface": "skipped", "handshake": "failed"}
    assert "does not speak the Pulsar protocol" in finding(end, "handshake")["detail"]
    assert "pulsar+ssl://" in finding(end, "handshake")["fix"]


def test_repair_without_the_admin_interface_is_a_failure(run: Run) -> None:
    with no_pulsar() as url:
        end = run("doctor", "--broker", url, "--admin", NOBODY, "--fix", "--json")
    assert end.code == 1
    assert statuses(end)["repair"] == "failed"
    assert "--admin URL" in finding(end, "repair")["fix"]


@pytest.mark.parametrize("address", ["localhost:6650", "pulsar://"])
@pytest.mark.parametrize("loss", [(), ("--loss",)])
def test_an_address_that_is_none(run: Run, loss: tuple[str, ...], address: str) -> None:
    assert "is not a broker address" in run.refused("doctor", *loss, "--broker", address)


def test_an_admin_address_that_is_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_ADMIN", "0.0.0.0:9464")  # where other commands listen: not the broker's interface
    assert run("doctor", "--broker", "pulsar://127.0.0.1:1", "--json").json["admin"] == "http://127.0.0.1:8080"
    err = run.refused("doctor", "--broker", "pulsar://127.0.0.1:1", "--admin", "localhost:8080")
    assert "is not an admin URL" in err
    assert "change --admin" in err


def test_mistakes_in_the_catalogue_are_one_of_its_lines(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools", service="another")
    end = run("doctor", "--broker", "pulsar://127.0.0.1:1", "--json")
    assert statuses(end) == {"catalogue": "failed", "connection": "failed"}
    assert finding(end, "catalogue")["fix"] == "dispatch check tools"


@pytest.mark.parametrize(
    ("broker", "admin"),
    [
        ("pulsar://example.org", "http://example.org:8080"),
        ("pulsar+ssl://one:1,two:2", "http://one:8080"),
        ("pulsar://[::1]:6650", "http://[::1]:8080"),
    ],
)
def test_the_admin_interface_is_looked_for_on_the_brokers_host(
    monkeypatch: pytest.MonkeyPatch, broker: str, admin: str
) -> None:
    monkeypatch.setattr("dispatch.devtools.localbroker.status", lambda: None)
    assert default_admin_url(broker) == admin


def test_that_of_our_own_broker_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    state = DetachedBroker("process", "pulsar://127.0.0.1:7650", "http://127.0.0.1:7080")
    monkeypatch.setattr("dispatch.devtools.localbroker.status", lambda: state)
    assert default_admin_url("pulsar://localhost:7650") == "http://127.0.0.1:7080"
    assert default_admin_url("pulsar://127.0.0.1:7650") == "http://127.0.0.1:7080"
    assert default_admin_url("pulsar://localhost:6650") == "http://localhost:8080"
    assert default_admin_url("pulsar://elsewhere:7650") == "http://elsewhere:8080"


def test_namespaces_are_those_of_the_catalogues_topics() -> None:
    assert list_namespaces(None) == ["tg/request", "tg/response", "tg/flow", "tg/notify"]
    queues = {"request-queue": "non-persistent://a/b/x", "response-queue": "persistent://a/c/x"}
    further = {"id": "2", "request-queue": "non-persistent://d/e/x", "response-queue": "non-persistent://a/b/y"}
    assert list_namespaces(Catalog.of([{"id": "s", **queues, "instances": [further]}])) == ["a/b", "a/c", "d/e"]


HOUR, DAY = 3_600.0, 86_400.0
NOW = 1_800_000_000.0


def jwt(**claims: object) -> str:
    parts = [{"alg": "HS256", "typ": "JWT"}, claims]
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
    return ".".join((*encoded, "c2ln"))


def test_the_doctor_says_that_the_token_has_expired(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_TOKEN", jwt(sub="agents", exp=time.time() - 2.5 * HOUR))
    with no_pulsar() as url:
        found = finding(run("doctor", "--broker", url, "--admin", NOBODY, "--json"), "token")
    assert found["status"] == "failed"
    assert found["detail"].startswith("the token of 'agents' has EXPIRED, 2 hours ago (2")
    assert "DISPATCH_TOKEN" in found["fix"]


@pytest.mark.parametrize(
    ("token", "status", "detail"),
    [
        (
            jwt(sub="a", exp=NOW - 30),
            "failed",
            "the token of 'a' has EXPIRED, less than a minute ago (2027-01-15 07:59:30 UTC)",
        ),
        (jwt(exp=NOW), "failed", "the token has EXPIRED, less than a minute ago (2027-01-15 08:00:00 UTC)"),
        (
            jwt(sub="a", exp=NOW + 2 * DAY + 5),
            "warning",
            "the token of 'a' expires in 2 days (2027-01-17 08:00:05 UTC)",
        ),
        (jwt(sub="a", exp=NOW + 40 * DAY), "ok", "the token of 'a' expires in 40 days (2027-02-24 08:00:00 UTC)"),
        (jwt(sub="a"), "ok", "the token of 'a' does not expire"),
        (jwt(sub="a", exp="tomorrow"), "warning", "the token of 'a' has an invalid expiry ('exp': 'tomorrow')"),
        (jwt(sub="a", exp=1e300), "warning", "the token of 'a' has an invalid expiry ('exp': 1e+300)"),
        ("not-a-token", "skipped", "not a JWT: only the broker knows its expiry"),
        ("a.b.c", "skipped", "not a JWT: only the broker knows its expiry"),
        ("a.W10.c", "skipped", "not a JWT: only the broker knows its expiry"),
    ],
)
def test_what_a_token_says_of_its_expiry(token: str, status: str, detail: str) -> None:
    found = check_token_expiry(token, NOW)
    assert (found.status, found.detail) == (status, detail)


# -- on a genuine broker --------------------------------------------------------------------------------------------


@pytest.fixture
def options(pulsar_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Where the broker is."""
    if pulsar_endpoint.token is not None:
        monkeypatch.setenv("DISPATCH_TOKEN", pulsar_endpoint.token)
    return ("--broker", pulsar_endpoint.service_url, "--admin", pulsar_endpoint.web_url)


@pytest.fixture
def missing(tmp_path: Path, pulsar_endpoint: Endpoint) -> Iterator[str]:
    """A tenant that is not there, and a catalogue in ``tools/`` that needs it."""
    tenant = f"doctor-{secrets.token_hex(4)}"
    service = write_catalog(tmp_path / "tools") / "tool-service" / "joke-service.json"
    service.write_text(service.read_text().replace("://tg/", f"://{tenant}/"))
    yield tenant
    namespaces = [f"namespaces/{tenant}/request", f"namespaces/{tenant}/response"]
    for path in (*namespaces, f"tenants/{tenant}"):
        request = urllib.request.Request(f"{pulsar_endpoint.web_url}/admin/v2/{path}", method="DELETE")
        if pulsar_endpoint.token is not None:
            request.add_header("Authorization", f"Bearer {pulsar_endpoint.token}")
        try:
            urllib.request.urlopen(request, timeout=WAIT_S).close()
        except urllib.error.HTTPError as missing:  # a test that did not make it has nothing to take away
            missing.close()


@pytest.mark.pulsar
def test_where_nothing_is_missing_all_is_well(run: Run, options: tuple[str, ...]) -> None:
    assert run.clean("doctor", *options).out.endswith("All checks passed.\n")
    as_json = run("doctor", *options, "--json", code=0)
    assert as_json.json["ok"] is True
    assert statuses(as_json) == dict.fromkeys(
        (
            "connection",
            "admin interface",
            "handshake",
            "tenant tg",
            "namespace tg/request",
            "namespace tg/response",
            "namespace tg/flow",
            "namespace tg/notify",
            "round trip tg/request → tg/response",
        ),
        "ok",
    )


@pytest.mark.pulsar
def test_a_tenant_that_is_missing_is_told_and_made(run: Run, options: tuple[str, ...], missing: str) -> None:
    end = run("doctor", *options, "--json", code=1)
    assert statuses(end) == {
        "catalogue": "ok",
        "connection": "ok",
        "admin interface": "ok",
        "handshake": "ok",
        f"tenant {missing}": "failed",
        f"namespace {missing}/request": "failed",
        f"namespace {missing}/response": "failed",
        f"round trip {missing}/request → {missing}/response": "skipped",
        "service joke-service": "warning",
        "sessions of joke-service": "skipped",
    }
    assert f"pulsar-admin tenants create {missing}" in finding(end, f"tenant {missing}")["fix"]
    assert "dispatch doctor --fix" in finding(end, f"namespace {missing}/request")["fix"]
    repaired = run("doctor", *options, "--fix", "--json", code=0)
    assert finding(repaired, "repair")["detail"] == f"created {missing}, {missing}/request, {missing}/response"
    assert statuses(repaired)[f"round trip {missing}/request → {missing}/response"] == "ok"
    assert run("doctor", *options, "--fix", "--json").code == 0


@pytest.mark.pulsar
def test_without_the_admin_interface_the_broker_itself_tells(
    run: Run, pulsar_endpoint: Endpoint, options: tuple[str, ...], missing: str
) -> None:
    end = run("doctor", "--broker", pulsar_endpoint.service_url, "--admin", NOBODY, "--json", code=1)
    assert statuses(end)["admin interface"] == "skipped"
    found = finding(end, f"namespace {missing}/request")
    assert (found["status"], found["detail"]) == ("failed", "does not exist")
    assert f"pulsar-admin namespaces create {missing}/request" in found["fix"]
    assert f"pulsar-admin tenants create {missing}" in found["fix"]


@pytest.mark.pulsar
def test_who_listens(run: Run, options: tuple[str, ...], tmp_path: Path) -> None:
    topic = f"cli-{secrets.token_hex(6)}"
    folder = write_catalog(tmp_path / "tools", topic=topic)
    nobody = finding(run("doctor", *options, "--json"), "service joke-service")
    assert nobody["status"] == "warning"
    assert nobody["fix"] == f"dispatch serve MODULE:CLASS --service {topic}"
    (tmp_path / "jokes.py").write_text("class Joke:\n    async def invoke(self, config, arguments): ...\n")
    with started("serve", f"{tmp_path}/jokes.py:Joke", "--service", topic, *options[:2]) as service:
        service.err.wait_for("Ctrl-C drains")
        end = run("doctor", *options, "--catalog", str(folder), "--json")
        somebody = finding(end, "service joke-service")
    (session,) = finding(end, "sessions of joke-service")["sessions"]
    assert session["instance"].startswith(topic)
    assert 0 < session["rtt_ms"] < 1000
    assert (somebody["status"], somebody["detail"]) == ("ok", f"1 consuming non-persistent://tg/request/{topic}")


@pytest.mark.pulsar
def test_tokens_and_certificates(
    run: Run, secured_broker: SecuredBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_catalog(tmp_path / "catalogue")
    (tmp_path / "right").write_text(secured_broker.token(SUPER_USER))
    (tmp_path / "wrong").write_text("not-a-token")
    (tmp_path / "stranger").write_text(secured_broker.token("stranger"))
    plain = ("--broker", secured_broker.service_url, "--admin", secured_broker.web_url)
    tls = ("--broker", secured_broker.service_url_tls, "--admin", secured_broker.web_url)
    trusted = ("--trust-certs", str(secured_broker.ca_file))

    def checks(*arguments: str) -> dict[str, Any]:
        return {check["name"]: check for check in run("doctor", *arguments, "--json").json["checks"]}

    assert run("doctor", *plain, "--token-file", "right", "--json").json["ok"] is True
    assert run("doctor", *tls, *trusted, "--token-file", "right", "--json").json["ok"] is True
    for token in ((), ("--token-file", "wrong")):
        handshake = checks(*plain, *token)["handshake"]
        assert handshake["status"] == "failed"
        assert "DISPATCH_TOKEN" in handshake["fix"]
    assert "--trust-certs" in checks(*tls, "--token-file", "right")["handshake"]["fix"]
    foreign = checks(*plain, "--token-file", "stranger")["namespace tg/request"]
    assert foreign["status"] == "failed"
    assert "whose role has permission for tg/request" in foreign["fix"]

    monkeypatch.setenv("DISPATCH_TOKEN_FILE", "wrong")
    err = run.refused(
        "call", "tell-joke", "topic=cats", "--catalog", "catalogue", "--broker", secured_broker.service_url, code=4
    )
    assert "outcome transport · type unauthorized" in err
    assert "not-a-token" not in err


BROKER_LOSS = ("--broker", "pulsar://127.0.0.1:1")


def played(
    monkeypatch: pytest.MonkeyPatch,
    run_of: Callable[[Variant, int, int], RunResult],
    failure: BaseException | None = None,
) -> list[tuple[Any, ...]]:
    """In the probe's place: runs as ``run_of`` says, on no broker. Returns what it was made with and asked for."""
    asked: list[tuple[Any, ...]] = []

    class Played:
        def __init__(self, *given: Any) -> None:
            asked.append(given)

        async def __aenter__(self) -> Played:
            return self

        async def __aexit__(self, *_exc: object) -> None:
            return None

        async def measure(
            self, side: Variant, *, size: int, in_flight: int, calls: int | None, seconds: float | None
        ) -> RunResult:
            asked.append((side, size, in_flight, calls, seconds))
            run = run_of(side, size, in_flight)
            await asyncio.sleep(0)  # where a Ctrl-C is noticed
            return run

    monkeypatch.setattr("dispatch.devtools.lossprobe.Probe", Played)
    return asked


def all_well(side: Variant, size: int, in_flight: int) -> RunResult:
    return RunResult(100, 0, 0.5)


def as_brokers_are(side: Variant, size: int, in_flight: int) -> RunResult:
    return RunResult(1_000, 41, 0.5) if (side, size, in_flight) == ("plain", 100_000, 64) else RunResult(1_000, 0, 0.4)


# -- options --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("option", [("--sizes", "1k"), ("--in-flight", "4"), ("--calls", "100")])
def test_its_options_are_of_no_use_without_it(run: Run, option: tuple[str, str]) -> None:
    assert "fix: add --loss" in run.refused("doctor", *BROKER_LOSS, *option)


@pytest.mark.parametrize("option", [("--fix",), ("--admin", "http://127.0.0.1:1")])
def test_the_others_are_of_no_use_with_it(run: Run, option: tuple[str, ...]) -> None:
    assert "run 'dispatch doctor --fix' first" in run.refused("doctor", "--loss", *BROKER_LOSS, *option)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (("--sizes", "10q"), "'10q' is not a size"),
        (("--in-flight", "0"), "'0' is not a whole number from 1 to 1,024"),
        (("--calls", "10"), "--calls 10 is out of range with 256 in flight"),
        (("--sizes", "1M", "--in-flight", "500"), "500 replies of 1 MB in flight"),
        (("--calls", "0"), "--calls"),
    ],
)
def test_what_cannot_be_measured_is_wrong_usage(run: Run, option: tuple[str, ...], told: str) -> None:
    assert told in run.refused("doctor", "--loss", *BROKER_LOSS, *option)


def test_the_embedded_broker_is_none_to_measure(run: Run) -> None:
    err = run.refused("doctor", "--loss", "--broker", "memory://")
    assert "'dispatch doctor --loss' cannot reach another process there" in err


def test_without_a_broker_nothing_is_measured(run: Run) -> None:
    end = run("doctor", "--loss", *BROKER_LOSS, "--json", code=4)
    assert "dispatch broker start" in end.err
    found = (end.json["complete"], end.json["measurements"], end.json["advice"])
    assert found == (False, [], ["Nothing was measured."])


def test_the_namespaces_are_those_of_the_catalogue() -> None:
    assert list_namespace_pairs(None) == [("tg/request", "tg/response")]
    topics = [("a/b", "a/c"), ("d/e", "d/f"), ("a/b", "a/c")]
    catalog = Catalog.of(
        {"id": f"s{at}", "request-queue": f"persistent://{one}/x{at}", "response-queue": f"persistent://{other}/x{at}"}
        for at, (one, other) in enumerate(topics)
    )
    assert list_namespace_pairs(catalog) == topics[:2]


def test_help_teaches_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    end = run("doctor", "--help", code=0)
    for part in ("dispatch doctor --loss --sizes 10k,100k --in-flight 16,64", "--calls", "120,1k,10k,100k,1M"):
        assert part in end.out


# -- what it shows --------------------------------------------------------------------------------------------------
def test_each_size_and_number_in_flight_is_asked_for_on_both_sides(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = played(monkeypatch, all_well)
    run.clean("doctor", "--loss", *BROKER_LOSS, "--sizes", "1k,10k", "--in-flight", "1,16", "--calls", "100")
    given, *measured = asked
    assert given[0] == "pulsar://127.0.0.1:1"
    assert given[2:] == ("tg/request", "tg/response")
    assert measured == [
        (side, size, in_flight, 100, None) for size in (1_000, 10_000) for in_flight in (1, 16) for side in VARIANTS
    ]


def test_the_table_and_the_advice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, as_brokers_are)
    end = run.clean("doctor", "--loss", *BROKER_LOSS, "--sizes", "10k,100k", "--in-flight", "64")
    first, _, head, *table = end.out.splitlines()
    assert first == ("Broker pulsar://127.0.0.1:1, namespaces tg/request and tg/response: 4 runs of 5 s, about 20 s.")
    assert head.split("  ")[0] == "REPLY"
    assert [cell.strip() for cell in table[0].split("  ") if cell] == ["10 kB", "64", *["1,000", "0 %", "2,500"] * 2]
    found = [cell.strip() for cell in table[1].split("  ") if cell]
    assert found == [*("100 kB", "64"), *("1,000", "4.1 %", "1,918"), *("1,000", "0 %", "2,500")]
    assert "- At 100 kB and 64 in flight your broker dropped 4.1 % of a plain client's replies" in end.out
    assert "Only" not in end.out
    assert "\x1b" not in end.out


def test_json_is_one_line_with_everything(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, as_brokers_are)
    end = run.clean("doctor", "--loss", *BROKER_LOSS, "--sizes", "100k", "--in-flight", "64", "--json")
    (cell,) = end.json["measurements"]
    assert (cell["size"], cell["in_flight"]) == (100_000, 64)
    assert (cell["without_sessions"]["lost"], cell["without_sessions"]["lost_share"]) == (41, 0.041)
    assert (cell["with_sessions"]["lost"], cell["with_sessions"]["calls_per_second"]) == (0, 2_500.0)
    assert end.json["complete"] is True
    assert end.json["advice"][0].startswith("At 100 kB and 64 in flight")


def test_progress_is_for_who_looks_at_stderr_and_the_cursor_comes_back(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(monkeypatch, all_well)
    for module in ("doctor", "base"):
        monkeypatch.setattr(f"dispatch.cli.{module}.is_terminal", lambda stream: stream is sys.stderr)
    end = run("doctor", "--loss", *BROKER_LOSS, "--sizes", "1k", "--in-flight", "1,16", "--json", code=0)
    assert "4/4" in end.err
    assert end.err.rindex("\x1b[?25h") > end.err.rindex("\x1b[?25l")
    assert len(end.json["measurements"]) == 2


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_losses_of_ours_are_a_failed_check(run: Run, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]) -> None:
    played(monkeypatch, lambda side, *_: RunResult(100, 1 if side == "session" else 0, 1.0))
    end = run.clean("doctor", "--loss", *BROKER_LOSS, "--sizes", "1k", "--in-flight", "1", *more, code=1)
    assert "With sessions, 1 of 100 calls were lost" in end.out


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_ctrl_c_shows_what_was_measured_by_then(
    run: Run, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    def third_is_interrupted(side: Variant, size: int, in_flight: int) -> RunResult:
        if (side, in_flight) == ("plain", 16):
            signal.raise_signal(signal.SIGINT)
        return all_well(side, size, in_flight)

    played(monkeypatch, third_is_interrupted)
    end = run("doctor", "--loss", *BROKER_LOSS, "--sizes", "1k", "--in-flight", "1,16,64", *more, code=130)
    assert end.err.endswith("Interrupted.\n")
    assert "Traceback" not in end.err
    if more:
        assert end.json["complete"] is False
        assert end.json["measurements"][0]["with_sessions"]["calls"] == 100
    else:
        assert "1 kB   1          100" in end.out
        assert "Only 1 of 3 lines was measured" in end.out


def test_what_ended_it_early_is_told_after_the_table(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def second_fails(side: Variant, size: int, in_flight: int) -> RunResult:
        if side == "session":
            raise ProbeError("The probe's service ended with status -9.")
        return all_well(side, size, in_flight)

    played(monkeypatch, second_fails)
    end = run("doctor", "--loss", *BROKER_LOSS, "--sizes", "1k", "--in-flight", "1", code=4)
    assert "1 kB   1          100          0 %         200            -              -             -" in end.out
    assert "Error: The probe's service ended with status -9." in end.err
    assert "fix: dispatch doctor" in end.err


def test_a_row_has_a_cell_for_each_column() -> None:
    run = RunResult(12_345, 3, 1.0)
    found = [*zip(*list_losses([Measurement(1_500, 1_024, run, None)]).columns.values(), strict=True)]
    assert found == [("1.5 kB", "1,024", "12,345", "0.024 %", "12,342", "-", "-", "-")]


# -- on a genuine broker --------------------------------------------------------------------------------------------
@pytest.fixture
def loss_options(options: tuple[str, ...]) -> tuple[str, ...]:
    """Where the broker is, and little to measure."""
    return ("--loss", *options[:2], "--sizes", "120,10k", "--in-flight", "1,8")


@pytest.mark.pulsar
def test_a_broker_is_measured(run: Run, loss_options: tuple[str, ...]) -> None:
    end = run.clean("doctor", *loss_options, "--calls", "80", "--json")
    assert end.json["complete"] is True
    found = [(cell["size"], cell["in_flight"]) for cell in end.json["measurements"]]
    assert found == [(120, 1), (120, 8), (10_000, 1), (10_000, 8)]
    for cell in end.json["measurements"]:
        for side in ("without_sessions", "with_sessions"):
            assert cell[side]["calls"] == 80
            assert cell[side]["errors"] == {}
            assert cell[side]["calls_per_second"] > 0
        assert cell["with_sessions"]["lost"] == 0
    assert end.json["advice"]


@pytest.mark.pulsar
def test_on_a_terminal_it_shows_a_table(loss_options: tuple[str, ...]) -> None:
    code, out, err = ended("doctor", *loss_options, "--calls", "16", terminal=True, limit=2 * WAIT_S)
    assert (code, err) == (0, "")
    for part in ("120 B", "10 kB", "calls/s", "\x1b[32m"):
        assert part in out


@pytest.mark.pulsar
def test_ctrl_c_while_it_measures(loss_options: tuple[str, ...]) -> None:
    with started("doctor", *loss_options, "--calls", "1000000") as program:
        program.out.wait_for("8 runs of 1,000,000 calls")
        program.interrupt()
        program.assert_interrupted()


PACKET = encode_packet(HEADER, [written for written, _ in FRAMES])


def test_every_frame_is_shown_without_payloads_and_secrets(run: Run) -> None:
    assert len(FRAMES) == len(typing.get_args(Frame))
    end = run("doctor", "--packet", PACKET.hex(), code=0)
    assert PRIVATE not in end.out
    lines = end.out.splitlines()
    assert lines[1] == "to       77"
    assert "HELLO  versions [1, 2], features 0, name agent, incarnation d1, id 8, secret hidden" in end.out
    assert "REQUEST  number 4, deadline 2000, target calculator, headers ['idempotency-key'], payload 7 bytes" in lines
    assert "REFUSED  number 4, reason overloaded, retry_after_ms 250, message 7 characters, trace None" in lines
    assert "PING" in lines
    assert len(lines) == len(HEADER) + len(FRAMES)


@pytest.mark.parametrize(
    "text", [PACKET.hex(":"), f"0x{PACKET.hex()}", base64.b64encode(PACKET).decode()], ids=["colons", "0x", "base64"]
)
def test_a_packet_may_be_written_in_several_ways(run: Run, text: str) -> None:
    end = run("doctor", "--json", "--packet", text)
    assert end.json["number"] == 5
    assert [frame["frame"] for frame in end.json["frames"]][:3] == ["HELLO", "ACCEPT", "REQUEST"]


@pytest.mark.parametrize("given", [PACKET, PACKET.hex().encode()], ids=["bytes", "hexadecimal"])
def test_a_packet_may_come_from_stdin(given: bytes) -> None:
    end = subprocess.run(
        [sys.executable, "-m", "dispatch", "doctor", "--packet", "-"], input=given, capture_output=True, check=True
    )
    assert b"calculator" in end.stdout
    assert PRIVATE.encode() not in end.stdout


@pytest.mark.parametrize("text", ["9a", "hello world!", "9a01", "7b7d"])
def test_what_is_no_packet_is_wrong_usage(run: Run, text: str) -> None:
    assert "no packet of a session" in run.refused("doctor", "--packet", text)


def test_it_is_an_action_of_its_own(run: Run) -> None:
    assert run("doctor", "--packet", PACKET.hex(), "--fix").code == 2


async def checked(**service: Any) -> CheckResult:
    services = list(catalog(service=service).services.values())
    (result,) = [each async for each in check_sessions(BROKER, Security(), services)]
    return result


async def test_each_instance_is_reported() -> None:
    service = Service(lambda _arguments: "done")
    async with serving(service, instance="b") as server, serving(service, instance="a"):
        result = await checked()
        assert (result.name, result.status) == ("sessions of lab", "ok")
        one, other = result.as_dict()["sessions"]
        assert (one["instance"], other["instance"], other["incarnation"]) == ("a", "b", server.incarnation)
        for each in (one, other):
            assert 0 < each["rtt_ms"] < 1000
            assert (each["running"], each["window"], each["paths"], each["retransmissions"]) == (0, 48_000, 1, 0)
            assert each["packets"] > 5
        assert "a answers in " in result.detail
        assert "executes 0 requests, window 48,000 bytes, 1 path; b answers" in result.detail
    assert service.requests == []


async def test_its_sessions_are_ended() -> None:
    async with serving(lambda _arguments: "done") as server:
        await checked()
        table = server.session_table
        assert (table.sessions, table.ended.reasons) == ({}, {"closed": 1})


async def test_third_party_services_and_persistent_topics_have_none() -> None:
    async with Peer.as_service():
        result = await checked()
        assert result.status == "skipped"
        assert "third-party" in result.detail
        assert "sessions" not in result.as_dict()
    persistent = {f"{kind}-queue": f"persistent://tg/{kind}/lab" for kind in ("request", "response")}
    assert (await checked(**persistent)).detail == "persistent topics have the plain exchange"
