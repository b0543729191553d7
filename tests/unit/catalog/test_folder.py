from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dispatch.catalog import Catalog, CatalogError, Problem, check_directory, load_directory
from dispatch.catalog import folder as folder_reader
from tests.helpers.descriptor_folder import SERVICE, TOOL

EXAMPLES = Path(__file__).parents[3] / "examples" / "tools"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good folder of one service and one tool."""
    put(tmp_path, "tool-service/joke-service.json", SERVICE)
    put(tmp_path, "tool/tell-joke.json", TOOL)
    return tmp_path


def put(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(content)
    return path


def only_error(folder: Path) -> Problem:
    catalog, problems = check_directory(folder)
    assert catalog is None
    errors = [problem for problem in problems if problem.severity == "error"]
    assert len(errors) == 1, errors
    return errors[0]


def test_a_good_folder(folder: Path) -> None:
    catalog, problems = check_directory(folder)
    assert problems == []
    assert catalog == Catalog.of([SERVICE], [TOOL])
    assert load_directory(str(folder)) == catalog


def test_the_examples_load_without_a_word() -> None:
    catalog, problems = check_directory(EXAMPLES)
    assert problems == []
    assert sorted(catalog.services) == ["calculator-service", "custom-rag", "joke-service", "story-service"]
    assert sorted(catalog.tools) == ["calculate", "query-customers", "query-products", "tell-joke", "tell-story"]
    assert catalog.tool("query-customers").config == {"collection": "customers"}
    assert catalog.service_of("query-products") is catalog.service_of("query-customers")


def test_the_file_name_is_the_id_or_name_of_an_item_that_states_none(tmp_path: Path) -> None:
    put(tmp_path, "tool-service/joke-service.json", {key: value for key, value in SERVICE.items() if key != "id"})
    put(tmp_path, "tool/tell-joke.json", {key: value for key, value in TOOL.items() if key != "name"})
    assert load_directory(tmp_path) == Catalog.of([SERVICE], [TOOL])


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".YAML"])
def test_yaml_beside_json(folder: Path, suffix: str) -> None:
    put(folder, f"tool/pun{suffix}", "type: tool-service\ndescription: Tell a pun  # short\nservice: joke-service\n")
    assert load_directory(folder).tool("pun").description == "Tell a pun"


def test_a_missing_folder(tmp_path: Path) -> None:
    problem = only_error(tmp_path / "nowhere")
    assert (problem.file, problem.key) == (str(tmp_path / "nowhere"), "")
    assert problem.problem == "there is no such folder"
    assert "tool-service/joke-service.json" in problem.fix


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    path = put(tmp_path, "tools.json", {})
    problem = only_error(path)
    assert (problem.file, problem.problem) == (str(path), "not a folder")
    assert "use the folder with" in problem.fix
    assert "dispatch.McpServers('tools.json')" in problem.fix
    assert "'dispatch serve shop.py'" in only_error(put(tmp_path, "shop.py", {})).fix


def test_an_empty_folder(tmp_path: Path) -> None:
    problem = only_error(tmp_path)
    assert problem.file == str(tmp_path)
    assert "neither tool-service/ nor tool/" in problem.problem
    assert "tool/tell-joke.json" in problem.fix


def test_a_descriptor_beside_the_two_folders_is_noted(folder: Path) -> None:
    path = put(folder, "x.json", TOOL)
    put(folder, "notes.txt", {})
    _, (note,) = check_directory(folder)
    assert (note.severity, note.file) == ("info", str(path))
    assert "move a descriptor of a tool into tool/" in note.fix


def test_the_folder_of_one_kind_is_told_from_a_folder_of_descriptors(folder: Path) -> None:
    assert only_error(folder / "tool").fix == f"give the folder above it: {folder}"


def test_a_link_to_nothing_and_a_missing_file_are_told(folder: Path) -> None:
    (folder / "tool" / "other.json").symlink_to("nowhere")
    assert only_error(folder).fix == "it is a symbolic link to nothing: correct it, or delete it"
    assert "correct the path of the file of MCP servers" in only_error(folder / "mcp.json").fix


def test_a_file_is_not_renamed_to_a_folder(tmp_path: Path) -> None:
    put(tmp_path, "tool.json", TOOL)
    (problem,) = (each for each in check_directory(tmp_path)[1] if each.severity == "error")
    assert "rename" not in problem.fix


def test_folders_of_almost_the_right_names(tmp_path: Path) -> None:
    put(tmp_path, "tools/tell-joke.json", TOOL)
    put(tmp_path, "tool_service/joke-service.json", SERVICE)
    assert only_error(tmp_path).fix == "rename 'tool_service' to 'tool-service'; rename 'tools' to 'tool'"


def test_one_folder_of_the_two_is_missing(tmp_path: Path) -> None:
    put(tmp_path, "tool-service/joke-service.json", SERVICE)
    put(tmp_path, "tools/tell-joke.json", TOOL)
    catalog, (warning,) = check_directory(tmp_path)
    assert catalog == Catalog.of([SERVICE])
    assert (warning.severity, warning.problem) == ("warning", "there is no tool/ in this folder")
    assert warning.fix == "rename 'tools' to 'tool'"


def test_folders_without_a_descriptor(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool-service").mkdir()
    catalog, (warning,) = check_directory(tmp_path)
    assert catalog == Catalog.empty()
    assert warning.severity == "warning"
    assert "there are no tools" in warning.problem


def test_a_syntax_error_names_line_and_column(folder: Path) -> None:
    path = put(folder, "tool/tell-joke.json", '{\n  "type": "tool-service",\n  "name" "tell-joke"\n}')
    problem = only_error(folder)
    assert problem.file == str(path)
    assert "line 3, column 10" in problem.problem
    assert problem.fix == "correct line 3, column 10"
    put(folder, "tool/tell-joke.json", TOOL)
    path = put(folder, "tool-service/joke-service.json", json.dumps(SERVICE)[:-1] + ', "id": "other"}')
    problem = only_error(folder)  # the tools of the service are not called wrong
    assert (problem.file, problem.key) == (str(path), "id")


def test_a_file_that_is_too_big(folder: Path) -> None:
    path = put(folder, "tool/tell-joke.json", json.dumps(TOOL) + " " * folder_reader.MAX_FILE_BYTES)
    problem = only_error(folder)
    assert problem.file == str(path)
    assert "more than 1,048,576 bytes" in problem.problem
    assert problem.fix


def test_the_largest_file_is_read(folder: Path) -> None:
    text = json.dumps(TOOL)
    put(folder, "tool/tell-joke.json", text + " " * (folder_reader.MAX_FILE_BYTES - len(text)))
    assert load_directory(folder) == Catalog.of([SERVICE], [TOOL])


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    path = folder / "tool" / "gone.json"
    path.symlink_to(folder / "nowhere.json")
    problem = only_error(folder)
    assert problem.file == str(path)
    assert "cannot be read: No such file" in problem.problem


@pytest.mark.parametrize("place", [".", "tool-service", "tool"])
def test_a_folder_that_cannot_be_listed(folder: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    real = os.scandir
    closed = folder / place

    def refuse(path: str) -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)  # the tests may run as root, whom no mode keeps out
    problem = only_error(folder)
    assert problem.file == str(closed)
    assert "Permission denied" in problem.problem
    assert "readable" in problem.fix


@pytest.mark.parametrize("kind", ["tool-service", "tool"])
def test_too_many_files(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(folder_reader, "MAX_FILES", 2)
    for index in range(2):
        put(folder, f"{kind}/t{index}.json", {})
    problem = only_error(folder)
    assert (problem.file, problem.problem) == (str(folder / kind), "more than 2 files")


def test_other_files_are_passed_over(folder: Path) -> None:
    put(folder, "README.md", "about")
    put(folder, "tool/notes.txt", "about")
    put(folder, "tool/.hidden.json", "{")
    catalog, (note,) = check_directory(folder)
    assert catalog == Catalog.of([SERVICE], [TOOL])
    assert (note.file, note.severity) == (str(folder / "tool" / "notes.txt"), "info")


def test_an_odd_file_name_is_printable_in_messages(folder: Path) -> None:
    bad = os.fsencode(folder / "tool") + b"/a\xff\x1b.json"
    Path(os.fsdecode(bad)).write_bytes(b"{")
    problem = only_error(folder)
    assert problem.file.endswith(r"/a\xff\x1b.json")
    assert str(problem).isprintable()


def test_every_mistake_in_every_file_always_in_the_same_order(folder: Path) -> None:
    put(folder, "tool-service/b.json", SERVICE | {"id": "b", "version": 1})
    put(folder, "tool-service/a.json", "nonsense")
    put(folder, "tool/z.json", TOOL)
    put(folder, "tool/c.yaml", "a: [")
    put(folder, "tool/d.json", [])
    catalog, problems = check_directory(folder)
    assert catalog is None
    found = [(Path(problem.file).name, problem.key) for problem in problems]
    assert found == [("a.json", ""), ("c.yaml", ""), ("b.json", "version"), ("d.json", ""), ("z.json", "name")]
    assert check_directory(folder)[1] == problems
    with pytest.raises(CatalogError) as raised:
        load_directory(folder)
    assert raised.value.problems == tuple(problems)
    assert "tell-joke.json" in str(raised.value)  # the other file of that name


def test_json_needs_no_yaml() -> None:
    code = (
        "import sys; import dispatch.catalog as c; c.load_directory(sys.argv[1]); "
        "sys.exit('yaml was imported' if 'yaml' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(EXAMPLES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
