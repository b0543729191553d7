"""A folder stays valid whatever is put and removed; the commands on it: tests/unit/cli/commands/catalog/test_items.py."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.catalog import check_directory
from dispatch.cli.base import CliError
from dispatch.cli.items import NOT_STORED, ItemDocument, ItemFolder, ItemTarget

NAMES = st.sampled_from(["one", "two"])
VERSIONS = st.sampled_from(["", "@1.0.0", "@2.0.0-beta"])
PARAMS = st.lists(st.fixed_dictionaries({"name": st.just("style"), "required": st.booleans()}), max_size=1)
SERVICES = st.builds(
    lambda params, queue: {"request-queue": queue, "response-queue": "response:tg:x", "config-params": params},
    PARAMS,
    st.sampled_from(["request:tg:x", "x"]),
)
TOOLS = st.builds(
    lambda service, style: {"type": "tool-service", "description": "Work.", "service": service, **style},
    NAMES,
    st.sampled_from([{}, {"style": "pun"}]),
)
PUTS = st.one_of(
    st.tuples(st.builds(ItemTarget, st.just("tool-service"), st.builds(str.__add__, NAMES, VERSIONS)), SERVICES),
    st.tuples(st.builds(ItemTarget, st.just("tool"), st.builds(str.__add__, NAMES, VERSIONS)), TOOLS),
)
STEPS = st.lists(st.tuples(st.booleans(), PUTS), min_size=1, max_size=12)


@settings(max_examples=60)
@given(STEPS)
def test_no_change_makes_a_valid_folder_invalid(steps: list[tuple[bool, tuple[ItemTarget, Any]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        for kind in ("tool", "tool-service"):
            (path / kind).mkdir()
        folder = ItemFolder(name)
        expected: dict[ItemTarget, Any] = {}
        for is_put, (target, raw) in steps:
            try:
                if is_put:
                    stored = folder.put(target, ItemDocument(json.dumps(raw), ".json", raw))
                    assert stored.existed == (target in expected)
                    expected[target] = raw
                else:
                    assert (folder.remove(target, force=False) is None) == (expected.pop(target, None) is None)
            except CliError:
                pass
            else:
                assert folder.find(target) == expected.get(target, NOT_STORED)
            catalog, problems = check_directory(name)
            assert catalog is not None, problems
            assert {(kind, key) for kind in ("tool", "tool-service") for key in folder.list_keys(kind)} == set(expected)
            assert not list(path.rglob(".*"))
