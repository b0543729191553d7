"""What the walk of a call counts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from structure.walk import Tracer, Walk, count_files, count_returns, figures_of, walk_call

FILES = {
    "dispatcher": """
        from walked import transport, wire
        from walked.calls import perform

        class Dispatcher:
            async def call(self):
                wire.encode()
                self.check()
                await perform()

            def check(self):
                return [wire.encode() for _ in range(1)]
    """,
    "wire": """
        def encode():
            return helper()

        def helper():
            return b""
    """,
    "calls": """
        import asyncio
        from walked import transport, wire

        async def perform():
            await asyncio.sleep(0)
            wire.encode()
            transport.connected()
            transport.publish()
            wire.encode()
    """,
    "transport": """
        def connected():
            return True

        def publish():
            return connected()
    """,
}


@pytest.fixture
def walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package ``walked`` in which a call goes through four files."""
    folder = tmp_path / "walked"
    folder.mkdir()
    (folder / "__init__.py").write_text("", "utf-8")
    for name, source in FILES.items():
        lines = [line.removeprefix("        ") for line in source.strip("\n").splitlines()]
        target = folder / "transports" / "memory.py" if name == "transport" else folder / f"{name}.py"
        target.parent.mkdir(exist_ok=True)
        target.write_text("\n".join(lines), "utf-8")
    (folder / "transport.py").write_text("from walked.transports.memory import connected, publish", "utf-8")
    (folder / "transports" / "__init__.py").write_text("", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "walked"]:
        del sys.modules[name]


def load(name: str) -> ModuleType:
    __import__(name)
    return sys.modules[name]


async def trace(folder: Path) -> Walk:
    dispatcher = load("walked.dispatcher")

    async def disturb() -> None:  # another task, which runs while the call waits
        load("walked.wire").encode()

    with Tracer(folder, "Dispatcher.call", folder / "transports") as tracer:
        await asyncio.gather(dispatcher.Dispatcher().call(), disturb())
    assert tracer.walk is not None
    return tracer.walk


async def test_visits_are_calls_into_another_file(walked: Path) -> None:
    walk = await trace(walked)
    assert [(visit.depth, visit.path, visit.function) for visit in walk.visits] == [
        (0, "walked/dispatcher.py", "Dispatcher.call"),
        (1, "walked/wire.py", "encode"),
        (1, "walked/wire.py", "encode"),  # called by a helper of the same file as the caller: a return to wire.py
        (1, "walked/calls.py", "perform"),
        (2, "walked/wire.py", "encode"),
        (2, "walked/transports/memory.py", "connected"),
        (2, "walked/transports/memory.py", "publish"),
    ]
    assert len(count_files(walk.visits)) == 4
    assert count_returns(walk.visits) == 3


async def test_the_chain_is_what_has_not_returned(walked: Path) -> None:
    walk = await trace(walked)
    assert count_files(walk.chain) == ["walked/dispatcher.py", "walked/calls.py", "walked/transports/memory.py"]
    assert count_returns(walk.chain) == 0
    assert not walk.exceeds


def test_a_call_of_the_joke_service_reaches_the_session() -> None:
    walk = walk_call()
    assert walk.chain[0].path == "dispatch/dispatcher.py"
    assert walk.chain[-1].path == "dispatch/protocol/session.py"
    figures = figures_of(walk)
    assert figures["chain"]["files"] <= figures["all"]["files"]
    assert {visit.path for visit in walk.chain} <= {visit.path for visit in walk.visits}
    assert figures["pipeline"]["files"] == len({visit.path for visit in walk.pipeline}) > 2
