"""The telemetry benchmark: each contender does what its name says, and missed targets are reported."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from opentelemetry.context import get_current
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from benchmarks.micro import otel_sdk, rounds, telemetry, telemetry_stacks
from benchmarks.micro.guard_stacks import opened
from benchmarks.micro.instant_transport import AnsweringTransport
from benchmarks.micro.memory import Reading, Retained
from benchmarks.micro.telemetry import DIFFERENCES, Figures, main, report
from benchmarks.micro.telemetry_stacks import SAMPLED, STACKS, UNSAMPLED

NAMES = [stack.name for stack in STACKS]
WITHOUT_SDK = ("bare", "off", "metrics", "default", "off-in-trace", "record-call", "record-attempt", "start-no-sdk")


@pytest.fixture(autouse=True)
def freezes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the objects of other tests collectable."""
    monkeypatch.setattr(rounds.gc, "freeze", lambda: None)


class Kept(SpanProcessor):
    """Keeps spans."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """The spans that contenders make."""
    made = Kept()

    def providing(sampler: object) -> TracerProvider:
        provider = TracerProvider(sampler=sampler)  # type: ignore[arg-type] # one of the two below
        provider.add_span_processor(made)
        return provider

    monkeypatch.setattr(telemetry_stacks, "recording", lambda: providing(ALWAYS_ON))
    monkeypatch.setattr(telemetry_stacks, "refusing", lambda: providing(ALWAYS_OFF))
    return made


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The context that each request carried."""
    found: list[str | None] = []
    asked = AnsweringTransport.asked

    def looking(self: AnsweringTransport, properties: dict[str, str], on_failure: object) -> None:
        found.append(properties.get("traceparent"))
        asked(self, properties, on_failure)  # type: ignore[arg-type] # as it came

    monkeypatch.setattr(AnsweringTransport, "asked", looking)
    return found


TREE = ["send persistent://tg/request/double", "execute_tool work"]


@pytest.mark.parametrize(
    ("name", "spans", "parent"),
    [
        *((name, [], None) for name in ("off", "metrics", "default")),
        ("unsampled", [], "-00"),
        ("sampled", TREE, "-03"),
        ("everything", TREE, "-03"),
        ("sdk-spans", ["send", "execute_tool work"], None),
        ("sdk-unsampled", [], "-02"),
        ("off-in-trace", [], None),
        ("parent-unsampled", [], f"{UNSAMPLED.trace_id:032x}-{UNSAMPLED.span_id:016x}-00"),
        ("parent-sampled", TREE, "-01"),
    ],
)
async def test_spans_and_trace_parent_of_each_contender(
    kept: Kept, sent: list[str | None], name: str, spans: list[str], parent: str | None
) -> None:
    async with AsyncExitStack() as exits:
        await opened(next(stack for stack in STACKS if stack.name == name), exits)
    assert [span.name for span in kept.spans] == spans
    (carried,) = sent
    if parent is None:
        assert carried is None
    else:
        assert carried is not None
        assert carried.endswith(parent)
    if name == "parent-sampled":
        assert {span.context.trace_id for span in kept.spans if span.context} == {SAMPLED.trace_id}
    assert not get_current(), "a contender's context must not get to the next one"


async def test_sdk_spans_have_as_many_attributes_as_those_of_dispatch(kept: Kept) -> None:
    for name in ("sampled", "sdk-spans"):
        async with AsyncExitStack() as exits:
            await opened(next(stack for stack in STACKS if stack.name == name), exits)
    own, sdk = [[len(span.attributes or ()) for span in kept.spans[at : at + 2]] for at in (0, 2)]
    assert own == sdk


def test_each_difference_names_existing_contenders() -> None:
    for each in DIFFERENCES:
        assert {each.over, each.under} <= set(NAMES)
        assert each.over != each.under
    assert {each.over: each.limit for each in DIFFERENCES if each.limit} == {
        "metrics": 2.0,
        "unsampled": 0.3,
        "sampled": 40.0,
    }
    assert len(set(NAMES)) == len(NAMES)


def test_every_contender_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    assert main(["--rounds", "2", "--blocks", "1", "--no-memory", "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert {name: len(costs) for name, costs in written["costs_us"].items()} == dict.fromkeys(NAMES, 2)
    assert [(each["over"], len(each["rounds"])) for each in written["differences_us"]] == [
        (each.over, 2) for each in DIFFERENCES
    ]
    assert written["absent"] == written["retained"] == {}
    assert "load before" in capsys.readouterr().err


def test_without_the_sdk_its_contenders_are_reported_and_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(otel_sdk.importlib.util, "find_spec", lambda _name: None)
    assert main(["--rounds", "1", "--blocks", "1"]) == 0
    out = capsys.readouterr().out
    left_out = next(line for line in out.splitlines() if line.startswith("Not installed"))
    assert "opentelemetry-sdk" in left_out
    assert "pip install 'tool-dispatch[otel]'" in left_out
    names = left_out.partition("skipped: ")[2].partition(". ")[0].split(", ")
    assert names == sorted([name for name in NAMES if name not in WITHOUT_SDK] + ["memory"])


def test_the_report_says_what_was_missed() -> None:
    blocks = {"metrics": {0: [53.0]}, "off": {0: [50.0]}}
    figures = Figures({name: {0: of[0][0]} for name, of in blocks.items()}, blocks=blocks)
    reading = Reading(10 * 2**20, 1_000, 110)
    figures.kept["calls"] = Retained("calls", 10, reading, reading, 1)
    text = report(figures, STACKS[:3])
    assert ["metrics", "metrics", "-", "off", "3.00", "≤", "2", "MISSED"] in [
        line.split() for line in text.splitlines()
    ]
    assert "10.0 → 10.0" in text
    blocks["metrics"][0] = [52.0]
    assert "MISSED" not in report(figures, STACKS[:3])


def test_a_place_that_cannot_be_written_is_said_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry.asyncio, "run", lambda *_args: pytest.fail("it was measured"))
    (tmp_path / "file").touch()
    assert main(["--json", str(tmp_path / "file" / "figures.json")]) == 2
    assert "--json" in capsys.readouterr().err
