"""Results of MCP: what a model reads, and what else there is."""

from __future__ import annotations

import pytest
from mcp import types

from dispatch.calls.local import LocalResult
from dispatch.errors import ToolError
from dispatch.mcp.conversion import read_result
from dispatch.result import ResultContent


def text(value: str) -> types.TextContent:
    return types.TextContent(type="text", text=value)


def result(*blocks: types.ContentBlock, structured: object = None, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=list(blocks), structured_content=structured, is_error=is_error)


def test_one_text_needs_no_content() -> None:
    assert read_result(result(text("a")), "server") == LocalResult("a", None, "server")


def test_everything_else_is_kept() -> None:
    assert read_result(result(text("a"), text("b"), structured={"n": 1}), "").content == ResultContent(
        ({"type": "text", "text": "a"}, {"type": "text", "text": "b"}), {"n": 1}
    )
    assert read_result(result(), "") == LocalResult("", ResultContent())


def test_a_model_reads_the_texts_and_what_the_rest_is() -> None:
    found = read_result(
        result(
            text("a cat"),
            types.ImageContent(type="image", data="AAAA", mime_type="image/png"),
            types.AudioContent(type="audio", data="AAA=", mime_type="audio/wav"),
            types.ResourceLink(type="resource_link", uri="file:///cat.txt", name="cat", description="About cats."),
            types.EmbeddedResource(
                type="resource", resource=types.TextResourceContents(uri="file:///a.txt", text="meow")
            ),
            types.EmbeddedResource(
                type="resource", resource=types.BlobResourceContents(uri="file:///b.bin", blob="AAAA")
            ),
        ),
        "",
    )
    assert found.text.splitlines() == [
        "a cat",
        "[image: image/png, 3 bytes]",
        "[audio: audio/wav, 2 bytes]",
        "[link: file:///cat.txt, cat, About cats.]",
        "meow",
        "[resource: file:///b.bin]",
    ]
    assert found.content is not None
    assert [block["type"] for block in found.content.blocks] == [
        "text",
        "image",
        "audio",
        "resource_link",
        "resource",
        "resource",
    ]
    assert found.content.blocks[1]["mimeType"] == "image/png"


def test_an_error_of_the_tool() -> None:
    with pytest.raises(ToolError, match="no such order") as caught:
        read_result(result(text("no such order"), is_error=True), "")
    assert caught.value.type == "tool-error"
