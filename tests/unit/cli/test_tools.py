"""``dispatch tools`` with ``approve`` and ``--watch`` (a display that records, and a process), and ``dispatch find``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import dispatch
from benchmarks.catalog.folder_edits import write_file
from dispatch import search
from dispatch.catalog import Item
from dispatch.catalog.catalog import ListConditions
from dispatch.cli.base import CliError
from dispatch.cli.tools import ToolWatch, WatchedState
from dispatch.telemetry.events import CircuitChanged, Event, ItemRefused
from tests.helpers.cli_processes import REPO, Program, ended, environment, started
from tests.helpers.dispatcher_and_service import tool_of, topics_of
from tests.helpers.followed_config import SERVICE, TOOL
from tests.helpers.metrics_port import expose_metrics
from tests.helpers.word_llama import needs_word_llama
from tests.unit.cli.conftest import Run, write_catalog
from tests.unit.search.embedders import fail_to_import


def test_into_a_pipe_it_is_aligned_text(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools", version="1.4.0")
    end = run.clean("tools")
    (row,) = run("tools", "--json").json
    print = row["fingerprint"][:12]
    assert end.out == (
        "TOOL       VERSION  SERVICE       SOURCE        FINGERPRINT   ARGUMENTS                       DESCRIPTION\n"
        f"tell-joke  1.4.0    joke-service  folder:tools  {print}  topic: string, words?: integer  "
        "Tell a joke. It is short.\n"
    )


def test_json_is_the_descriptors(run: Run, catalog_folder: Path) -> None:
    (tool,) = run("tools", "--catalog", str(catalog_folder), "--json").json
    assert tool["name"] == "tell-joke"
    assert tool["config"] == {"style": "pun"}
    assert tool["request-queue"] == "non-persistent://tg/request/joke"
    assert [argument["type"] for argument in tool["arguments"]] == ["string", "integer"]
    assert run("tools", "tell-joke", "--catalog", str(catalog_folder), "--json").json == tool


def test_one_tool_in_full_with_the_command_that_calls_it(run: Run, catalog_folder: Path) -> None:
    end = run("tools", "tell-joke", "--catalog", str(catalog_folder), code=0)
    assert "non-persistent://tg/response/joke" in end.out
    assert "integer, optional: How long." in end.out
    assert end.out.endswith("\ndispatch call tell-joke topic=… words=…\n")


def test_an_unknown_tool_has_its_near_names(run: Run, catalog_folder: Path) -> None:
    assert "Did you mean 'tell-joke'?" in run.refused("tools", "tel-joke", "--catalog", str(catalog_folder))


def test_an_empty_catalogue_says_so(run: Run, tmp_path: Path) -> None:
    for kind in ("tool", "tool-service"):
        (tmp_path / "tools" / kind).mkdir(parents=True)
    end = run("tools", code=0)
    assert end.out == "tools contains no tools.\n"
    assert "no descriptors in this folder" in end.err


def test_a_file_without_mcp_servers_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    assert run("tools", "--catalog", "mcp.json").out == "mcp.json contains no tools.\n"


def write_tool(folder: Path, name: str, file: str | None = None, **keys: object) -> None:
    tool = {"type": "tool-service", "name": name, "description": f"Do {name}.", "service": "joke-service", **keys}
    (folder / "tool" / f"{file or name}.json").write_text(json.dumps(tool))


def names(run: Run, *options: str) -> list[str]:
    return [tool["name"] for tool in run("tools", "--json", *options).json]


@pytest.mark.costly
def test_filters_are_those_of_the_catalogues_list(run: Run, tmp_path: Path) -> None:
    folder = write_catalog(tmp_path / "tools", category="fun", tags=["short"], permissions=["tools:jokes"])
    write_tool(folder, "sing", group=["music"], version="1.0.0", **{"applicable-states": ["awake"]})
    write_tool(folder, "sing", "sing@2.0.0", version="2.0.0", rollout={"1.0.0": 5}, tags=["loud"])
    assert names(run) == ["sing", "tell-joke"]
    assert names(run, "--category", "fun") == ["tell-joke"]
    assert names(run, "--tag", "loud", "--tag", "short") == ["sing", "tell-joke"]
    assert names(run, "--tag", "quiet") == []
    assert names(run, "--service", "joke-service") == ["sing", "tell-joke"]
    assert names(run, "--source", "folder:tools") == ["sing", "tell-joke"]
    assert names(run, "--source", "trustgraph") == []
    assert names(run, "--text", "JOKE") == ["tell-joke"]
    assert names(run, "--permission", "tools:jokes") == ["tell-joke"]
    assert names(run, "--group", "music") == []
    assert names(run, "--version", "^1", "--group", "music", "--state", "awake") == ["sing"]
    assert [tool["version"] for tool in run("tools", "--json", "--version", "^1").json] == ["1.0.0"]
    assert run("tools", "--text", "nothing").out == "No tool meets these conditions.\n"
    assert "one" in run.refused("tools", "--version", "one")


def test_a_tool_in_full_names_its_other_versions_permissions_and_schema(run: Run, tmp_path: Path) -> None:
    folder = write_catalog(tmp_path / "tools")
    properties = {"song": {"type": "string"}, "loud": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["song"]}
    write_tool(folder, "sing", "sing@1.0.0", rollout={"2.0.0": 5}, permissions=["tools:music"])
    write_tool(folder, "sing", "sing@2.0.0", **{"input-schema": schema})
    out = run("tools", "sing").out
    for expected in (
        "version         1.0.0",
        "source          folder:tools",
        "other versions  2.0.0",
        "rollout         5 % to 2.0.0",
        "permissions     tools:music",
    ):
        assert expected in out
    newer = run("tools", "sing", "--version", "^2")
    assert "default version  1.0.0" in newer.out
    assert '"song": {' in newer.out
    assert newer.out.endswith("\ndispatch call sing song=… loud=…\n")


def test_several_folders_are_one_catalogue_and_the_first_one_wins(run: Run, tmp_path: Path) -> None:
    one, two = write_catalog(tmp_path / "one"), write_catalog(tmp_path / "two", description="Another joke.")
    write_tool(two, "sing")
    both = ("--catalog", str(one), "--catalog", str(two))
    listed = {tool["name"]: tool for tool in run("tools", "--json", *both).json}
    found = {name: tool["source"] for name, tool in listed.items()}
    assert found == {"tell-joke": f"folder:{one}", "sing": f"folder:{two}"}
    assert listed["tell-joke"]["description"] == "Tell a joke. It is short."
    assert "2 items are not in force; 'dispatch tools --all' says why." in run("tools", *both, code=0).err


def test_all_names_what_is_not_in_force_with_reason_and_fix(run: Run, tmp_path: Path) -> None:
    one, two = write_catalog(tmp_path / "one"), write_catalog(tmp_path / "two")
    write_tool(one, "sing", "sing@1.0.0", rollout={"2.0.0": 5})
    write_tool(one, "sing", "sing@2.0.0")
    (one / "tool" / "search.json").write_text('{"type": "mcp-tool", "name": "search"}')
    broken = write_catalog(tmp_path / "broken", service="joke-servise")
    options = ("--all", "--catalog", str(one), "--catalog", str(two), "--catalog", str(broken))
    rows = run("tools", "--json", *options).json
    unused = {(row["status"], row["name"]): row for row in rows if row["status"] != "in-force"}
    assert set(unused) == {
        ("shadowed", "joke-service"),
        ("shadowed", "tell-joke"),
        ("version", "sing"),
        ("foreign", "search"),
        ("refused", ""),
    }
    assert unused["shadowed", "tell-joke"]["kind"] == "tool"
    assert unused["shadowed", "joke-service"]["kind"] == "tool-service"
    assert "5 % of the calls" in unused["version", "sing"]["reason"]
    assert "mcp-tool" in unused["foreign", "search"]["reason"]
    assert unused["refused", ""]["fix"].startswith('write "service": "joke-service"')
    text = run("tools", *options, code=0)
    assert "NOT IN FORCE" in text.out
    assert 'write "service": "joke-service"' in text.out
    assert run("tools", *options[1:]).code == 2


def test_a_folder_that_is_given_twice(run: Run, catalog_folder: Path) -> None:
    assert "is given twice" in run.refused("tools", "--catalog", str(catalog_folder), "--catalog", str(catalog_folder))


def test_held_definitions_are_listed(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    assert {row["status"] for row in run("tools", "--all", "--json").json} == {"in-force"}
    (tmp_path / "approved.json").write_text(json.dumps({"approved": {"tool/tell-joke": ["0" * 64]}}))
    rows = run("tools", "--all", "--json", "--approvals", "approved.json").json
    (held,) = (row for row in rows if row["status"] == "held")
    assert (held["name"], held["fix"]) == ("tell-joke", "dispatch tools approve tell-joke")
    (tmp_path / "approved.json").write_text("[]")
    assert "is not a file of approvals" in run.refused("tools", "--approvals", "approved.json", code=1)


def test_a_tool_that_is_not_in_force_says_why(run: Run, tmp_path: Path) -> None:
    folder = write_catalog(tmp_path / "tools")
    (folder / "tool" / "search.json").write_text('{"type": "mcp-tool", "name": "search"}')
    err = run.refused("tools", "search")
    assert "The tool 'search' is foreign: tools/tool/search.json: another runtime executes" in err


def test_a_terminal_shows_one_line_for_each_tool_in_colour(tmp_path: Path) -> None:
    write_tool(write_catalog(tmp_path / "tools"), "sing", description="Sing about a topic. " * 20)
    code, out, _ = ended("tools", "--catalog", "tools", terminal=True, cwd=tmp_path, COLUMNS="80")
    assert code == 0
    assert "\x1b[36mtell-joke" in out
    header, sing, joke = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    assert "Fingerprint" in header
    assert sing.startswith("sing ")
    assert sing.rstrip().endswith("…")
    assert joke.startswith("tell-joke ")


TOOLS: dict[str, dict[str, Any]] = {
    "tell-joke": {"description": "Tells a funny story.", "tags": ["fun"]},
    "exchange": {"description": "Converts an amount of dollars into euros.", "category": "finance"},
    "sunrise": {"description": "Tells when the sun rises.", "tags": ["fun", "weather"]},
}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    write_file(tmp_path / "tools", "tool-service/lab.json", {"id": "lab", **topics_of("lab")})
    for name, keys in TOOLS.items():
        write_file(tmp_path / "tools", f"tool/{name}.json", tool_of("lab", name, **keys))
    return str(tmp_path / "tools")


@needs_word_llama
def test_tools_are_found_by_meaning(run: Run, folder: str) -> None:
    (found,) = run("find", "currency rates of money", "--catalog", folder, "--json", "--limit", "1", code=0).json
    assert (found["name"], found["description"]) == ("exchange", TOOLS["exchange"]["description"])
    assert 0 < found["score"] <= 1
    assert "similar meaning" in found["why"]


def test_the_table(run: Run, folder: str) -> None:
    heading, first, *_ = run("find", "a funny joke", "--catalog", folder, code=0).out.splitlines()
    assert heading.split() == ["TOOL", "SCORE", "WHY", "DESCRIPTION"]
    assert first.startswith("tell-joke  0.")
    assert "common words: " in first
    assert first.endswith("Tells a funny story.")


def test_without_the_extra_words_decide(run: Run, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.ToolSearch.__init__, "__defaults__", (fail_to_import,))
    (found,) = run("find", "funny", "--catalog", folder, "--json").json
    assert found["name"] == "tell-joke"
    assert found["why"] == "common words: funny; searched by words only: the extra 'search' is not installed"


@pytest.mark.costly
def test_conditions(run: Run, folder: str) -> None:
    found = [each["name"] for each in run("find", "sun", "--catalog", folder, "--tag", "weather", "--json").json]
    assert found == ["sunrise"]
    assert run("find", "sun", "--catalog", folder, "--category", "none").out == "No tool meets these conditions.\n"
    assert run("find", "sun", "--catalog", folder, "--category", "none", "--json").json == []


def test_nothing_found_is_the_list_with_score_zero(run: Run, folder: str) -> None:
    found = run("find", "?", "--catalog", folder, "--json").json
    assert sorted(each["name"] for each in found) == sorted(TOOLS)
    assert {each["score"] for each in found} == {0}


def test_an_unknown_folder_is_reported(run: Run) -> None:
    end = run("find", "sun", "--catalog", "missing")
    assert end.code != 0
    assert "missing" in end.err


OLD = "0" * 64


def write_approvals(folder: Path, *keys: str) -> Path:
    file = folder / "approved.json"
    file.write_text(json.dumps({"approved": {key: [OLD] for key in keys}}))
    return file


def approved(file: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(file.read_text())["approved"]
    return value


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Approvals of another definition of ``tell-joke``, and of a tool that is not there."""
    write_catalog(tmp_path / "tools")
    return write_approvals(tmp_path, "tool/tell-joke", "tool/other")


def test_it_replaces_the_approval_of_the_name_and_nothing_else(run: Run, file: Path) -> None:
    (tool,) = run("tools", "--json").json
    end = run.clean("tools", "approve", "tell-joke", "--approvals", str(file), "--yes")
    assert f"  - {OLD}\n  + {tool['fingerprint']}\n" in end.out
    assert '"description": "Tell a joke. It is short."' in end.out
    assert end.out.endswith(f"{file}: approved tool/tell-joke.\n")
    assert approved(file) == {"tool/other": [OLD], "tool/tell-joke": [tool["fingerprint"]]}
    assert "'tell-joke' is not held" in run.refused("tools", "approve", "tell-joke", "--approvals", str(file), "--yes")


def test_json(run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_APPROVALS", str(file))
    assert run("tools", "approve", "tell-joke", "--json").code == 2
    assert approved(file)["tool/tell-joke"] == [OLD]
    value = run("tools", "approve", "tell-joke", "--json", "--yes").json
    assert value["file"] == str(file)
    (row,) = value["approved"]
    assert (row["kind"], row["name"], row["source"], row["old"]) == ("tool", "tell-joke", "folder:tools", [OLD])
    assert row["new"] == approved(file)["tool/tell-joke"]
    assert row["definitions"][0]["name"] == "tell-joke"


def test_a_changed_service_is_approved_with_its_tool(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    file = write_approvals(tmp_path, "tool/tell-joke", "tool-service/joke-service")
    assert run("tools", "approve", "tell-joke", "--approvals", str(file), "--yes").code == 0
    assert OLD not in {print for prints in approved(file).values() for print in prints}


def test_a_service_alone(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    file = write_approvals(tmp_path, "tool/tell-joke", "tool-service/joke-service")
    assert run("tools", "approve", "joke-service", "--approvals", str(file), "--yes").code == 0
    assert approved(file)["tool/tell-joke"] == [OLD]
    assert approved(file)["tool-service/joke-service"] != [OLD]


def test_a_name_that_is_not_held_is_refused_with_those_that_are(run: Run, file: Path) -> None:
    err = run.refused("tools", "approve", "tell-joke", "sing", "--approvals", str(file), "--yes")
    assert "'sing' is not held, so nothing was approved; held are tell-joke." in err
    assert approved(file)["tool/tell-joke"] == [OLD]


def test_without_a_terminal_it_needs_yes_and_shows_the_change(run: Run, file: Path) -> None:
    end = run("tools", "approve", "tell-joke", "--approvals", str(file), code=2)
    assert f"  - {OLD}" in end.out
    assert "--yes" in end.err
    assert approved(file)["tool/tell-joke"] == [OLD]


def test_without_a_file(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    assert "--approvals FILE" in run.refused("tools", "approve", "tell-joke")


def test_a_file_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    err = run.refused("tools", "approve", "tell-joke", "--approvals", str(tmp_path), "--yes", code=1)
    assert "cannot be read" in err


def test_the_help_is_its_own(run: Run) -> None:
    end = run("tools", "approve", "--help", code=0)
    assert "dispatch tools approve" in end.out
    assert "dispatch tools tell-joke" not in end.out


def write_watched_tool(folder: Path, name: str, **keys: object) -> None:
    tool = {"type": "tool-service", "name": name, "description": f"Do {name}.", "service": "joke-service", **keys}
    temporary = folder / "tool" / f".{name}"
    temporary.write_text(json.dumps(tool))
    temporary.replace(folder / "tool" / f"{name}.json")


@contextmanager
def watching(folder: Path, *options: str, terminal: bool = False) -> Iterator[Program]:
    """The command on ``folder``, once it has shown the tools."""
    with started("tools", "--watch", "--catalog", str(folder), *options, terminal=terminal) as program:
        program.out.wait_for("tell-joke")
        yield program


def test_lines_for_each_change_until_ctrl_c(catalog_folder: Path) -> None:
    with watching(catalog_folder, "--all") as program:
        program.out.wait_for("Everything is in force.")
        write_watched_tool(catalog_folder, "sing", version="1.0.0")
        program.out.wait_for("+ sing 1.0.0 ")
        write_watched_tool(catalog_folder, "sing", version="1.0.1")
        program.out.wait_for("~ sing 1.0.1 ")
        write_watched_tool(catalog_folder, "sing", service="joke-servise")
        program.out.wait_for(f"source folder:{catalog_folder}: stale: ")
        program.out.wait_for('Fix: write "service": "joke-service"')
        (catalog_folder / "tool" / "sing.json").unlink()
        program.out.wait_for(f"source folder:{catalog_folder}: ok")
        program.out.wait_for("- sing")
        program.interrupt()
        program.assert_interrupted()
        assert program.err.text() == "Interrupted.\n"


def test_one_json_line_for_each_event(catalog_folder: Path) -> None:
    with watching(catalog_folder, "--json") as program:
        write_watched_tool(catalog_folder, "sing")
        program.out.wait_for('"added": ["sing"]')
        program.interrupt()
        program.assert_interrupted()
    start, *events = map(json.loads, program.out.text().splitlines())
    assert (start["event"], start["sources"]) == ("tools", {f"folder:{catalog_folder}": "ok"})
    assert [tool["name"] for tool in start["tools"]] == ["tell-joke"]
    (changed,) = (event for event in events if event["event"] == "catalog" and event["added"])
    assert changed["source"] == f"folder:{catalog_folder}"
    assert set(changed["fingerprints"]) == {"sing"}


def test_a_live_table_of_the_selected_tools_on_a_terminal_and_the_cursor_comes_back(catalog_folder: Path) -> None:
    with watching(catalog_folder, "--text", "joke", terminal=True) as program:
        write_watched_tool(catalog_folder, "dance")
        write_watched_tool(catalog_folder, "tell-other-joke")
        program.out.wait_for("+ tell-other-joke")
        program.interrupt()
        program.assert_interrupted()
    out = program.out.text()
    assert "dance" not in out
    assert "\x1b[?25l" in out
    assert out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")
    assert "Fingerprint" in out


def test_a_reader_that_closes_the_pipe_ends_it_quietly(catalog_folder: Path) -> None:
    command = [sys.executable, "-m", "dispatch", "tools", "--watch", "--catalog", str(catalog_folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPO, env=environment()
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        write_watched_tool(catalog_folder, "sing")
        assert process.wait(30) == 141
        assert process.stderr.read() == b""


async def test_the_circuits_of_a_running_agent(catalog_folder: Path, run: Run) -> None:
    telemetry = dispatch.Telemetry(registry=CollectorRegistry())
    with expose_metrics(telemetry) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        async with dispatch.connect("memory://", catalog_folder, telemetry=telemetry) as dispatcher:
            breaker = dispatcher.breaker("tell-joke")
            options = ("--catalog", str(catalog_folder), "--metrics", url)
            code, table = await _in_thread(lambda: _output(run, "tools", *options))
            assert code == 0
            header, row = table.splitlines()
            assert row[header.index("CIRCUIT") :].split()[0] == "closed"
            code, details = await _in_thread(lambda: _output(run, "tools", "tell-joke", *options))
            assert "circuit         closed" in details
            code, rows = await _in_thread(lambda: _output(run, "tools", "--json", *options))
            assert json.loads(rows)[0]["circuit"] == "closed"
            with watching(catalog_folder, "--metrics", url) as program:
                breaker.force_open()
                await _in_thread(lambda: program.out.wait_for("circuit of tell-joke: closed → forced-open"))
                program.interrupt()
                await _in_thread(program.assert_interrupted)


async def _in_thread(function: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(function)


def _output(run: Run, *words: str) -> tuple[int, str]:
    end = run(*words)
    return end.code, end.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("tell-joke",), 2, "--text tell-joke"),
        (("--metrics", "http://127.0.0.1:1/metrics"), 4, "cannot be read"),
        (("--trustgraph", "--broker", "memory://"), 2, "memory:// is the embedded broker"),
        (("--version", "one"), 2, "one"),
    ],
)
def test_mistakes_of_the_user(run: Run, tmp_path: Path, words: tuple[str, ...], code: int, message: str) -> None:
    write_catalog(tmp_path / "tools")
    end = run("tools", "--watch", *words)
    assert end.code == code
    assert message in end.err


Shown = tuple[str, Any]


class Recorder:
    """Records what is shown."""

    def __init__(self) -> None:
        self.shown: asyncio.Queue[Shown] = asyncio.Queue()
        self.states: list[WatchedState] = []

    def show(self, event: Event | str | None, changes: Sequence[str], state: WatchedState) -> None:
        if event is None:
            self._record("start", sorted(state.tools), state)
        elif not isinstance(event, str):
            self._record(type(event).__name__, list(changes), state)
        elif event:
            self._record("note", event, state)
        else:
            self._record("state", dict(state.circuits or {}), state)

    def _record(self, kind: str, value: Any, state: WatchedState) -> None:
        self.shown.put_nowait((kind, value))
        self.states.append(state)

    async def next(self, kind: str) -> Any:
        """What is shown next of that kind."""
        async with asyncio.timeout(10):
            while True:
                found, value = await self.shown.get()
                if found == kind:
                    return value

    async def next_changes(self) -> list[str]:
        """The lines of the next activation that changes a wanted tool."""
        while True:
            lines: list[str] = await self.next("CatalogChanged")
            if lines:
                return lines


class Pushed:
    """A source whose items are pushed."""

    id = "pushed"

    def __init__(self, *items: Item) -> None:
        self._items: Sequence[Item] = items
        self._changed = asyncio.Event()

    def push(self, *items: Item) -> None:
        self._items = items
        self._changed.set()

    async def discover(self) -> Sequence[Item]:
        return self._items

    async def changes(self) -> AsyncIterator[None]:
        while True:
            await self._changed.wait()
            self._changed.clear()
            yield


def item(raw: Mapping[str, Any]) -> Item:
    kind, key = ("tool-service", raw["id"]) if "id" in raw else ("tool", raw["name"])
    return Item(f"{kind}/{key}", kind, key, dict(raw))


@contextlib.asynccontextmanager
async def watching_tools(
    source: Pushed, wanted: ListConditions | None = None, metrics: Sequence[str] = ()
) -> AsyncIterator[Recorder]:
    recorder = Recorder()
    dispatcher = dispatch.connect("memory://watched", [source])
    watch = ToolWatch(dispatcher, wanted or ListConditions(), None, metrics, recorder.show)
    task = asyncio.create_task(watch.run())
    try:
        yield recorder
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert not dispatcher.is_connected


async def test_each_change_of_the_tools_that_are_wanted_is_one_line() -> None:
    source = Pushed(item(SERVICE), item(TOOL))
    async with watching_tools(source, ListConditions(text="joke")) as recorder:
        assert await recorder.next("start") == ["tell-joke"]
        sing, joke = TOOL | {"name": "sing", "description": "Sing."}, TOOL | {"name": "joke", "version": "1.0.0"}
        source.push(*map(item, (SERVICE, TOOL, sing, joke)))
        (added,) = await recorder.next_changes()
        assert added.startswith("+ joke 1.0.0  ")
        source.push(item(SERVICE), item(TOOL | {"description": "Tell another joke", "policy": {"timeout": 3}}))
        changed, removed = await recorder.next_changes()
        assert changed.startswith("~ tell-joke  ")
        assert removed == "- joke"


async def test_an_activation_with_many_refused_items_is_read_once() -> None:
    source = Pushed(item(SERVICE), item(TOOL))
    async with watching_tools(source) as recorder:
        await recorder.next("start")
        source.push(item(SERVICE), item(TOOL), *(item({"name": f"broken-{number}"}) for number in range(100)))
        for _ in range(100):
            assert await recorder.next(ItemRefused.__name__) == []
        assert len({id(state) for state in recorder.states}) == 2  # at the start, and after the activation
        assert len([each for each in recorder.states[-1].unused if each.status == "refused"]) >= 100


async def test_circuits_that_change_become_unknown_and_return(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Mapping[str, str] | CliError] = [
        {},
        {"tell-joke": "closed"},
        {"tell-joke": "open", "other": "open"},
        CliError("The metrics cannot be read."),
        {"tell-joke": "closed"},
    ]

    def read(_urls: Sequence[str]) -> Mapping[str, str]:
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, CliError):
            raise found
        return found

    monkeypatch.setattr("dispatch.cli.tools.read_circuits", read)
    monkeypatch.setattr("dispatch.cli.tools.CIRCUITS_EVERY_S", 0.001)
    async with watching_tools(Pushed(item(SERVICE), item(TOOL)), metrics=["http://agent/metrics"]) as recorder:
        assert await recorder.next("state") == {"tell-joke": "closed"}
        assert await recorder.next(CircuitChanged.__name__) == ["circuit of tell-joke: closed → open"]
        assert await recorder.next("note") == "The metrics cannot be read."
        assert {} in [state.circuits for state in recorder.states]
        assert await recorder.next("note") == "The metrics are read again."
        assert await recorder.next(CircuitChanged.__name__) == ["circuit of tell-joke: open → closed"]
