"""``dispatch init``, ``serve`` and ``export`` for functions, as a user's own processes on a genuine broker."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dispatch
from tests.helpers.cli_processes import ended, environment, started

pytestmark = pytest.mark.pulsar

TOOLS = """
import asyncio
import dispatch

@dispatch.tool(read_only=True)
async def version() -> int:
    "Version of this file."
    await asyncio.sleep(0.05)
    return {version}
"""


@pytest.fixture
def url(pulsar_endpoint: Any) -> str:
    return str(pulsar_endpoint.service_url)


def test_a_created_service_runs_as_it_is(tmp_path: Path, url: str) -> None:
    name = f"shop_{secrets.token_hex(4)}"
    code, out, err = ended("init", name, cwd=tmp_path)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"Next: cd {name} && pytest && dispatch serve {name}.py --watch"
    folder = tmp_path / name
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    options = ("--policy", "policy.json", "--user", "alice")
    with started("serve", f"{name}.py", "--watch", cwd=folder, DISPATCH_BROKER=url) as program:
        program.err.wait_for("Tools: price, order.")
        call = ("call", "order", "product=lamp", "quantity=2", *options)
        assert ended(*call, cwd=folder, DISPATCH_BROKER=url) == (0, "alice pays 39.00 euros; 2 ordered in all.\n", "")
        assert ended("export", f"{name}.py", "--to", "tools", cwd=folder)[0] == 0
        program.terminate()
        assert program.wait() == 0


def test_several_services_share_a_process(tmp_path: Path, url: str) -> None:
    names = [f"several_{secrets.token_hex(4)}" for _ in range(2)]
    for number, name in enumerate(names):
        (tmp_path / f"{name}.py").write_text(TOOLS.format(version=number).replace("version()", f"version_{number}()"))
    files = [f"{name}.py" for name in names]
    assert ended("export", *files, "--to", "tools", cwd=tmp_path)[0] == 0
    environ = {"DISPATCH_BROKER": url, "DISPATCH_INSTANCE": "one", "DISPATCH_ADMIN": "127.0.0.1:0"}
    with started("serve", *files, "--json", cwd=tmp_path, **environ) as program:
        program.out.wait_for('"ready"', times=2)
        for number in range(2):
            assert ended("call", f"version_{number}", cwd=tmp_path, DISPATCH_BROKER=url)[:2] == (0, f"{number}\n")
        assert "Admin: http://127.0.0.1:" in program.err.text()
        assert program.out.text().count('"instance": "one"') == 2
        program.terminate()
        assert program.wait() == 0
        assert program.out.text().count('"event": "stopped"') == 2


async def test_no_call_is_lost_while_functions_are_replaced(tmp_path: Path, url: str) -> None:
    name = f"watched_{secrets.token_hex(4)}"
    file = tmp_path / f"{name}.py"
    file.write_text(TOOLS.format(version=0))
    described = dispatch.ToolServer(functions=[_version], broker="memory://", service=name).descriptors
    catalog = dispatch.Catalog.of([described.service], described.tools)
    edits = 5
    with started("serve", f"{name}.py", "--watch", cwd=tmp_path, DISPATCH_BROKER=url) as program:
        await asyncio.to_thread(program.err.wait_for, "Tools: version.")
        seen: list[int] = []
        async with dispatch.connect(url, catalog, policy={"retry": 1}) as dispatcher:
            is_done = asyncio.Event()

            async def call() -> None:
                while not is_done.is_set():
                    seen.append(int(await dispatcher.call("version")))

            callers = [asyncio.create_task(call()) for _ in range(8)]
            for edit in range(1, edits + 1):
                text = TOOLS.format(version=edit)
                await asyncio.to_thread(file.write_text, f"def (:{text}")
                await asyncio.to_thread(program.err.wait_for, "the former functions stay", edit)
                await asyncio.to_thread(file.write_text, text)
                await asyncio.to_thread(program.err.wait_for, "loaded again. Tools: version.", edit)
                await asyncio.sleep(0.2)
            is_done.set()
            await asyncio.gather(*callers)
        assert set(seen) == set(range(edits + 1))
        assert len(seen) > 100


async def test_a_new_function_is_a_tool_of_every_agent(tmp_path: Path, url: str) -> None:
    name = f"edited_{secrets.token_hex(4)}"
    file = tmp_path / f"{name}.py"
    file.write_text(TOOLS.format(version=0))
    added = f"another_{name}"
    with started("serve", f"{name}.py", "--watch", cwd=tmp_path, DISPATCH_BROKER=url) as program:
        await asyncio.to_thread(program.err.wait_for, "Tools: version.")
        async with dispatch.connect(url, [dispatch.Announced()]) as dispatcher:
            text = TOOLS.format(version=1).replace("async def version()", f"async def {added}()")
            await asyncio.to_thread(file.write_text, TOOLS.format(version=0) + text)
            await asyncio.to_thread(program.err.wait_for, f"loaded again. Tools: version, {added}.")
            async with asyncio.timeout(20):
                while added not in dispatcher.catalog.tools:  # noqa: ASYNC110 - another process announces it
                    await asyncio.sleep(0.01)
            assert await dispatcher.call(added) == "1"


@dispatch.tool(name="version", read_only=True)
async def _version() -> int:
    """Version of this file."""
    return 0
