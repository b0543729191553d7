"""Lists of the registry: the tools in force, with their sources."""

from __future__ import annotations

from pathlib import Path

import dispatch
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "versions"


async def test_lists_follow_what_is_put_and_removed() -> None:
    jokes = dispatch.Folder(EXAMPLES, id="jokes")
    async with dispatch.connect("memory://", catalog=[jokes]) as dispatcher:
        registry = dispatcher.registry
        assert [(tool.name, tool.version) for tool in registry.list()] == [("tell-joke", "1.4.0")]
        assert [tool.version for tool in registry.list(version="^2", source="jokes")] == ["2.0.0"]
        await registry.put("tool-service", JOKE_SERVICE | {"id": "s"})
        await registry.put("tool", TELL_JOKE | {"name": "tell-pun", "service": "s", "group": ["puns"]})
        assert [tool.name for tool in registry.list(groups=["puns"])] == ["tell-pun"]
        assert [tool.name for tool in registry.list(text="PUN", service="s")] == ["tell-pun"]
        assert [tool.name for tool in registry.list(source="jokes")] == ["tell-joke"]
        await registry.remove("tool", "tell-pun")
        assert registry.list(groups=["puns"]) == ()
