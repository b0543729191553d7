"""Of the command line: a service's error named a topic that its user never wrote; `dispatch serve` said nothing when no
request came, and "1 requests" at its end; `doctor --loss`, interrupted after 2 of 40 lines, concluded that nothing was lost;
Ctrl-C in the first 0.3 s printed a traceback; help showed ``<bool>`` beside flags.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from dispatch import ToolServer, TransportError
from dispatch.cli import serve
from dispatch.devtools.lossprobe import Measurement, RunResult, give_advice
from dispatch.transports.errors import opening_failed
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, Service, dispatching
from tests.unit.cli.conftest import Run as RunCommand
from tests.unit.cli.conftest import as_if_alone, run

__all__ = ["as_if_alone", "run"]
Captured = pytest.CaptureFixture[str]

INTERRUPTED = """
import sys
class CtrlC:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
sys.argv = [{program!r}, "tools"]
from dispatch.cli import main
sys.exit(main())
"""


def lab(transport: MemoryTransport | None = None) -> ToolServer:
    return ToolServer(
        Service(lambda _: "done"), transport or BROKER, request_queue=REQUESTS, response_queue=RESPONSES, instance="a"
    )


async def test_an_error_names_the_topic_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    async def subscribe(_self: object, topic: str, *_arguments: object, **_options: object) -> None:
        raise opening_failed("TopicNotFound", url=BROKER, topic=topic)

    monkeypatch.setattr(MemoryTransport, "subscribe", subscribe)
    with pytest.raises(TransportError, match=f"topic {REQUESTS}") as caught:
        await lab().start()
    assert "dispatch-instance" not in str(caught.value)


@pytest.mark.parametrize("calls", [0, 1])
async def test_a_service_without_requests_says_so_once(capsys: Captured, calls: int) -> None:
    server = lab()
    serving = asyncio.create_task(serve.serve_until_signal([serve.ServerReporter(server, json=False)]))
    await idle()
    async with dispatching() as dispatcher:
        for _ in range(calls):
            await dispatcher.call("work")
        await advance(3 * serve.IDLE_S)
    signal.raise_signal(signal.SIGTERM)
    await serving
    lines = capsys.readouterr().err.splitlines()
    said = [line for line in lines if line.startswith("No request has arrived in 15 s.")]
    assert len(said) == (not calls)
    assert all(REQUESTS in line for line in said)
    assert lines[-1] == (
        "Drained. 1 request received, 0 rejected." if calls else "Drained. 0 requests received, 0 rejected."
    )


def test_a_part_of_a_measurement_allows_no_conclusion() -> None:
    well = RunResult(100, 0, 1.0)
    cells = [Measurement(120, 1, well, well), Measurement(120, 16, well, None)]
    first = give_advice(cells, planned=40)[0]
    assert first.startswith("This allows no conclusion: 2 of 40 lines were measured")
    assert give_advice(cells)[0].startswith("Nothing was lost:")


@pytest.mark.parametrize("module", ["dispatch.calls", "dispatch.cli.app", "typer"])
def test_ctrl_c_while_the_command_line_is_imported(module: str) -> None:
    program = INTERRUPTED.format(module=module, program="/usr/bin/dispatch")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "Interrupted.\n")


def test_ctrl_c_while_a_program_imports_dispatch_is_the_programs() -> None:
    program = INTERRUPTED.format(module="dispatch.calls", program="agent.py")
    program = program.replace("from dispatch.cli import main", "from dispatch import connect")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode != 130
    assert ended.stderr.endswith("KeyboardInterrupt\n")


@pytest.mark.parametrize("command", ["", "doctor", "serve", "demo", "broker start", "rules export"])
def test_flags_have_no_type_in_the_help(run: RunCommand, command: str) -> None:
    out = run(*command.split(), "--help").out
    assert "--help" in out
    assert "<bool>" not in out
