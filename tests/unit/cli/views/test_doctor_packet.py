"""``dispatch doctor --packet`` shows every frame, and neither payloads nor secrets."""

from __future__ import annotations

import base64
import subprocess
import sys
import typing

import pytest

from dispatch.protocol.frames import Frame, encode_packet
from tests.helpers.sample_frames import FRAMES, HEADER, PRIVATE
from tests.unit.cli.conftest import Run

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
