"""``dispatch put``, ``get``, ``rm``, ``tools`` and ``check`` on TrustGraph's published config service."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatch.cli import main
from tests.helpers.cli_processes import started
from tests.helpers.followed_config import SERVICE, TOOL

pytestmark = pytest.mark.pulsar

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def options(url: str, workspace: str) -> tuple[str, ...]:
    return "--broker", url, "--workspace", workspace


@pytest.fixture
def command(options: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path, own_logging: None) -> Command:
    """``command(…)`` in this process, with these options: exit code, stdout, stderr."""

    def run(*words: str, value: object = None) -> tuple[int, str, str]:
        file = tmp_path / "item.json"
        file.write_text(json.dumps(value))
        capsys.readouterr()
        code = main([*(str(file) if word == "FILE" else word for word in words), *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def read(output: tuple[int, str, str]) -> Any:
    code, out, err = output
    assert code == 0, err
    return json.loads(out)


def test_items_are_written_read_and_removed(command: Command, options: tuple[str, ...]) -> None:
    workspace = options[-1]
    assert command("put", "tool/tell-joke", "FILE", value=TOOL)[0] == 2  # its service is not there
    assert command("put", "tool-service/joke-service", "FILE", value=SERVICE)[0] == 0
    written = read(command("put", "--type", "tool", "--key", "tell-joke", "FILE", "--json", value=TOOL))
    assert written == {
        "item": "tool/tell-joke",
        "place": f"trustgraph:{workspace}/tool/tell-joke",
        "replaced": False,
        "warnings": [],
    }
    assert read(command("get", "tool/tell-joke", "--json")) == TOOL
    assert command("get", "tool")[1] == "tell-joke\n"
    (row,) = read(command("tools", "--json"))
    assert (row["name"], row["source"]) == ("tell-joke", "trustgraph")
    assert read(command("check", "--json"))["ok"] is True
    assert command("rm", "tool-service/joke-service")[0] == 2
    assert command("rm", "tool/tell-joke")[0] == 0
    assert command("rm", "tool-service/joke-service")[0] == 0
    assert read(command("tools", "--json")) == []


def test_descriptors_of_functions_are_exported(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "exported_shop.py"
    file.write_text("def price(product: str) -> float:\n    'Price of a product.'\n    return 9.5\n")
    code, out, err = command("export", str(file), "--service", "shop", "--trustgraph")
    assert (code, err) == (0, "")
    assert out.splitlines() == ["tool-service/shop: written.", "tool/price: written."]
    written = read(command("get", "tool/price", "--json"))
    assert (written["service"], written["tool"]) == ("shop", "price")
    assert written["arguments"] == [{"name": "product", "type": "string", "description": "", "required": True}]
    assert read(command("get", "tool-service/shop", "--json"))["config-params"] == [{"name": "tool", "required": True}]
    assert read(command("check", "--json"))["ok"] is True


def test_a_change_is_shown_while_it_comes_into_force(command: Command, options: tuple[str, ...]) -> None:
    assert command("put", "tool-service/joke-service", "FILE", value=SERVICE)[0] == 0
    with started("tools", "--watch", *options) as program:
        program.out.wait_for("TOOL")
        assert command("put", "tool/tell-joke", "FILE", value=TOOL)[0] == 0
        program.out.wait_for("+ tell-joke")
        assert command("rm", "tool/tell-joke")[0] == 0
        program.out.wait_for("- tell-joke")
        program.interrupt()
        program.assert_interrupted()
