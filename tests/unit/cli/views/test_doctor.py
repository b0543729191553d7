"""``dispatch doctor --loss``: its options, its table, what is left after Ctrl-C; and on a genuine broker.
``dispatch doctor --packet`` shows every frame, and neither payloads nor secrets.
``dispatch doctor`` opens a session with each instance of a service, and executes no tool.
"""

from __future__ import annotations

import asyncio
import base64
import signal
import subprocess
import sys
import typing
from collections.abc import Callable
from typing import Any

import pytest

from dispatch.catalog import Catalog
from dispatch.cli.doctor import COLUMNS, CheckResult, check_sessions, list_namespace_pairs, rows
from dispatch.devtools.localbroker import Endpoint
from dispatch.devtools.lossprobe import Measurement, ProbeError, RunResult, Variant
from dispatch.protocol.frames import Frame, encode_packet
from dispatch.transports import Security
from tests.helpers.cli_processes import WAIT_S, ended, started
from tests.helpers.dispatcher_and_service import BROKER, Peer, Service, catalog, serving
from tests.helpers.sample_frames import FRAMES, HEADER, PRIVATE
from tests.unit.cli.conftest import Run
from tests.unit.cli.conftest import Run as RunCommand

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
    return (
        RunResult(1_000, 41, 0.5)
        if (side, size, in_flight) == (Variant.PLAIN, 100_000, 64)
        else RunResult(1_000, 0, 0.4)
    )


# -- options --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("option", [("--sizes", "1k"), ("--in-flight", "4"), ("--calls", "100")])
def test_its_options_are_of_no_use_without_it(run: RunCommand, option: tuple[str, str]) -> None:
    end = run("doctor", *BROKER_LOSS, *option)
    assert (end.code, end.out) == (2, "")
    assert "fix: add --loss" in end.err


@pytest.mark.parametrize("option", [("--fix",), ("--admin", "http://127.0.0.1:1")])
def test_the_others_are_of_no_use_with_it(run: RunCommand, option: tuple[str, ...]) -> None:
    end = run("doctor", "--loss", *BROKER_LOSS, *option)
    assert (end.code, end.out) == (2, "")
    assert "run 'dispatch doctor --fix' first" in end.err


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
def test_what_cannot_be_measured_is_wrong_usage(run: RunCommand, option: tuple[str, ...], told: str) -> None:
    end = run("doctor", "--loss", *BROKER_LOSS, *option)
    assert (end.code, end.out) == (2, "")
    assert told in end.err


def test_the_embedded_broker_is_none_to_measure(run: RunCommand) -> None:
    end = run("doctor", "--loss", "--broker", "memory://")
    assert end.code == 2
    assert "'dispatch doctor --loss' cannot reach another process there" in end.err


@pytest.mark.parametrize("address", ["localhost:6650", "pulsar://"])
def test_an_address_that_is_none(run: RunCommand, address: str) -> None:
    end = run("doctor", "--loss", "--broker", address)
    assert (end.code, end.out) == (2, "")
    assert "is not a broker address" in end.err


def test_without_a_broker_it_names_the_command_that_starts_one(run: RunCommand) -> None:
    end = run("doctor", "--loss", *BROKER_LOSS, "--json")
    assert end.code == 4
    assert "dispatch broker start" in end.err
    assert (end.json["complete"], end.json["measurements"], end.json["advice"]) == (
        False,
        [],
        ["Nothing was measured."],
    )


def test_the_namespaces_are_those_of_the_catalogue() -> None:
    assert list_namespace_pairs(None) == [("tg/request", "tg/response")]
    topics = [("a/b", "a/c"), ("d/e", "d/f"), ("a/b", "a/c")]
    catalog = Catalog.of(
        {"id": f"s{at}", "request-queue": f"persistent://{one}/x{at}", "response-queue": f"persistent://{other}/x{at}"}
        for at, (one, other) in enumerate(topics)
    )
    assert list_namespace_pairs(catalog) == topics[:2]


def test_help_teaches_it(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    end = run("doctor", "--help")
    assert end.code == 0
    for part in ("dispatch doctor --loss --sizes 10k,100k --in-flight 16,64", "--calls", "120,1k,10k,100k,1M"):
        assert part in end.out


# -- what it shows --------------------------------------------------------------------------------------------------
def test_each_size_and_number_in_flight_is_asked_for_on_both_sides(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = played(monkeypatch, all_well)
    end = run("doctor", "--loss", *BROKER_LOSS, "--sizes", "1k,10k", "--in-flight", "1,16", "--calls", "100")
    assert (end.code, end.err) == (0, "")
    given, *measured = asked
    assert given[0] == "pulsar://127.0.0.1:1"
    assert given[2:] == ("tg/request", "tg/response")
    assert measured == [
        (side, size, in_flight, 100, None) for size in (1_000, 10_000) for in_flight in (1, 16) for side in Variant
    ]


def test_the_table_and_the_advice(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, as_brokers_are)
    end = run("doctor", "--loss", *BROKER_LOSS, "--sizes", "10k,100k", "--in-flight", "64")
    assert (end.code, end.err) == (0, "")
    first, _, head, *table = end.out.splitlines()
    assert first == ("Broker pulsar://127.0.0.1:1, namespaces tg/request and tg/response: 4 runs of 5 s, about 20 s.")
    assert head.split("  ")[0] == "REPLY"
    assert [cell.strip() for cell in table[0].split("  ") if cell] == ["10 kB", "64", *["1,000", "0 %", "2,500"] * 2]
    assert [cell.strip() for cell in table[1].split("  ") if cell] == [
        *("100 kB", "64"),
        *("1,000", "4.1 %", "1,918"),
        *("1,000", "0 %", "2,500"),
    ]
    assert "- At 100 kB and 64 in flight your broker dropped 4.1 % of a plain client's replies" in end.out
    assert "Only" not in end.out
    assert "\x1b" not in end.out


def test_json_is_one_line_with_everything(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, as_brokers_are)
    end = run("doctor", "--loss", *BROKER_LOSS, "--sizes", "100k", "--in-flight", "64", "--json")
    assert (end.code, end.err) == (0, "")
    (cell,) = end.json["measurements"]
    assert (cell["size"], cell["in_flight"]) == (100_000, 64)
    assert (cell["without_sessions"]["lost"], cell["without_sessions"]["lost_share"]) == (41, 0.041)
    assert (cell["with_sessions"]["lost"], cell["with_sessions"]["calls_per_second"]) == (0, 2_500.0)
    assert end.json["complete"] is True
    assert end.json["advice"][0].startswith("At 100 kB and 64 in flight")


def test_progress_is_for_who_looks_at_stderr_and_the_cursor_comes_back(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(monkeypatch, all_well)
    for module in ("doctor", "base"):
        monkeypatch.setattr(f"dispatch.cli.{module}.is_terminal", lambda stream: stream is sys.stderr)
    end = run("doctor", "--loss", *BROKER_LOSS, "--sizes", "1k", "--in-flight", "1,16", "--json")
    assert end.code == 0
    assert "4/4" in end.err
    assert end.err.rindex("\x1b[?25h") > end.err.rindex("\x1b[?25l")
    assert len(end.json["measurements"]) == 2


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_losses_of_ours_are_a_failed_check(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    played(monkeypatch, lambda side, *_: RunResult(100, 1 if side is Variant.SESSION else 0, 1.0))
    end = run("doctor", "--loss", *BROKER_LOSS, "--sizes", "1k", "--in-flight", "1", *more)
    assert (end.code, end.err) == (1, "")
    assert "With sessions, 1 of 100 calls were lost" in end.out


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_ctrl_c_shows_what_was_measured_by_then(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    def third_is_interrupted(side: Variant, size: int, in_flight: int) -> RunResult:
        if (side, in_flight) == (Variant.PLAIN, 16):
            signal.raise_signal(signal.SIGINT)
        return all_well(side, size, in_flight)

    played(monkeypatch, third_is_interrupted)
    end = run("doctor", "--loss", *BROKER_LOSS, "--sizes", "1k", "--in-flight", "1,16,64", *more)
    assert end.code == 130
    assert end.err.endswith("Interrupted.\n")
    assert "Traceback" not in end.err
    if more:
        assert end.json["complete"] is False
        assert end.json["measurements"][0]["with_sessions"]["calls"] == 100
    else:
        assert "1 kB   1          100" in end.out
        assert "Only 1 of 3 lines was measured" in end.out


def test_what_ended_it_early_is_told_after_the_table(run: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    def second_fails(side: Variant, size: int, in_flight: int) -> RunResult:
        if side is Variant.SESSION:
            raise ProbeError("The probe's service ended with status -9.")
        return all_well(side, size, in_flight)

    played(monkeypatch, second_fails)
    end = run("doctor", "--loss", *BROKER_LOSS, "--sizes", "1k", "--in-flight", "1")
    assert end.code == 4
    assert "1 kB   1          100          0 %         200            -              -             -" in end.out
    assert "Error: The probe's service ended with status -9." in end.err
    assert "fix: dispatch doctor" in end.err


def test_a_row_has_a_cell_for_each_column() -> None:
    run = RunResult(12_345, 3, 1.0)
    assert rows([Measurement(1_500, 1_024, run, None)]) == [
        ("1.5 kB", "1,024", "12,345", "0.024 %", "12,342", "-", "-", "-")
    ]
    assert len(COLUMNS) == 8


# -- on a genuine broker --------------------------------------------------------------------------------------------
@pytest.fixture
def options(pulsar_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Where the broker is, and little to measure."""
    if pulsar_endpoint.token is not None:
        monkeypatch.setenv("DISPATCH_TOKEN", pulsar_endpoint.token)
    return ("--loss", "--broker", pulsar_endpoint.service_url, "--sizes", "120,10k", "--in-flight", "1,8")


@pytest.mark.pulsar
def test_a_broker_is_measured(run: RunCommand, options: tuple[str, ...]) -> None:
    end = run("doctor", *options, "--calls", "80", "--json")
    assert (end.code, end.err) == (0, "")
    assert end.json["complete"] is True
    assert [(cell["size"], cell["in_flight"]) for cell in end.json["measurements"]] == [
        (120, 1),
        (120, 8),
        (10_000, 1),
        (10_000, 8),
    ]
    for cell in end.json["measurements"]:
        for side in Variant:
            assert cell[side]["calls"] == 80
            assert cell[side]["errors"] == {}
            assert cell[side]["calls_per_second"] > 0
        assert cell["with_sessions"]["lost"] == 0
    assert end.json["advice"]


@pytest.mark.pulsar
def test_on_a_terminal_it_shows_a_table(options: tuple[str, ...]) -> None:
    code, out, err = ended("doctor", *options, "--calls", "16", terminal=True, limit=2 * WAIT_S)
    assert (code, err) == (0, "")
    for part in ("120 B", "10 kB", "calls/s", "\x1b[32m"):
        assert part in out


@pytest.mark.pulsar
def test_ctrl_c_while_it_measures(options: tuple[str, ...]) -> None:
    with started("doctor", *options, "--calls", "1000000") as program:
        program.out.wait_for("8 runs of 1,000,000 calls")
        program.interrupt()
        program.assert_interrupted()


PACKET = encode_packet(HEADER, [written for written, _ in FRAMES])


def test_every_frame_is_shown_without_payloads_and_secrets(run: Run) -> None:
    assert len(FRAMES) == len(typing.get_args(Frame))
    end = run("doctor", "--packet", PACKET.hex())
    assert end.code == 0
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
    end = run("doctor", "--packet", text)
    assert end.code == 2
    assert "no packet of a session" in end.err


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
        assert table.sessions == {}
        assert table.ended.reasons == {"closed": 1}


async def test_third_party_services_and_persistent_topics_have_none() -> None:
    async with Peer.as_service():
        result = await checked()
        assert result.status == "skipped"
        assert "third-party" in result.detail
        assert "sessions" not in result.as_dict()
    persistent = {f"{kind}-queue": f"persistent://tg/{kind}/lab" for kind in ("request", "response")}
    assert (await checked(**persistent)).detail == "persistent topics have the plain exchange"
