"""Visibility of tools with permissions: a user sees, and errors name, the tools that the user may call."""

from __future__ import annotations

from collections.abc import Collection

import pytest

import dispatch
from dispatch import Dispatcher, Grants, RejectedError
from tests.helpers.dispatcher_and_service import catalog
from tests.helpers.permitting_dispatcher import GRANTS, Directory, permitting, read_stream

VISIBLE = {"alice": ["jokes", "time", "jokers"], "bob": ["time", "jokers"], "": ["time", "jokers"]}


@pytest.mark.parametrize("user", VISIBLE)
@pytest.mark.parametrize("is_callable", [False, True])
async def test_a_user_sees_the_tools_that_the_user_may_call(user: str, is_callable: bool) -> None:
    async def ask(name: str) -> Collection[str]:
        return ["tools:*"] if name == "alice" else ["tools:time"]

    async with permitting(ask if is_callable else GRANTS) as dispatcher:
        tools = await dispatcher.tools(user=user)
        assert [tool.name for tool in tools] == VISIBLE[user]
        assert {tool.user for tool in tools} == {user}
        found = await dispatcher.tools(text="joke", user=user)
        assert [tool.name for tool in found] == [name for name in VISIBLE[user] if "joke" in name]
        for tool in ("jokes", "time", "jokers"):
            if tool in VISIBLE[user]:
                assert dispatcher.tool(tool, user=user).name == tool
            else:
                with pytest.raises(RejectedError) as caught:
                    dispatcher.tool(tool, user=user)
                assert caught.value.type == "not-permitted"


@pytest.mark.parametrize(("user", "near"), [("alice", ("jokes", "jokers")), ("bob", ("jokers",))])
@pytest.mark.parametrize("how", ["execute", "stream", "tool"])
async def test_errors_name_no_hidden_tool(user: str, near: tuple[str, ...], how: str) -> None:
    async def ask(dispatcher: Dispatcher) -> object:
        if how == "tool":
            return dispatcher.tool("joke", user=user)
        return await (read_stream(dispatcher, "joke", user) if how == "stream" else dispatcher.call("joke", user=user))

    async with permitting(GRANTS) as dispatcher:
        with pytest.raises(RejectedError) as caught:
            await ask(dispatcher)
        error = caught.value
        assert error.type == "unknown-tool"
        assert set(error.alternatives) == set(near)
        assert ("jokes" in error.message) is (user == "alice")
        refused = await dispatcher.execute("jokes", user="bob")
        assert refused.error is not None
        assert refused.error.alternatives == ("time", "jokers")
        assert "another tool (time, jokers)" in refused.error.message


async def test_alternatives_of_a_failed_call_name_no_hidden_tool() -> None:
    async with permitting(GRANTS) as dispatcher:
        for user, alternatives in (("alice", ("jokes", "time")), ("mallory", ("time",)), ("bob", ("time",))):
            result = await dispatcher.execute("jokers", user=user, timeout=1)
            assert result.error is not None
            assert result.error.alternatives == alternatives


async def test_while_a_callables_answer_is_not_cached_tools_with_permissions_are_hidden() -> None:
    directory = Directory(["tools:*"])
    async with permitting(directory) as dispatcher:
        assert dispatcher.tool("jokers", user="alice").name == "jokers"
        with pytest.raises(RejectedError, match=r"Use Dispatcher\.tools\(\)") as caught:
            dispatcher.tool("jokes", user="alice")
        assert (caught.value.type, caught.value.retryable) == ("permissions-unavailable", True)
        result = await dispatcher.execute("joke", user="alice")
        assert result.error is not None
        assert result.error.alternatives == ("jokers",)
        await dispatcher.tools(user="alice")
        assert dispatcher.tool("jokes", user="alice").name == "jokes"


async def test_a_list_fails_if_permissions_are_needed_and_unavailable() -> None:
    directory = Directory()
    directory.error = RuntimeError("down")
    async with permitting(directory) as dispatcher:
        with pytest.raises(RejectedError) as caught:
            await dispatcher.tools(user="alice")
        assert caught.value.type == "permissions-unavailable"
        found = await dispatcher.tools(text="jokers", user="alice")
        assert [tool.name for tool in found] == ["jokers"]
    async with permitting(None) as dispatcher:
        assert [tool.name for tool in await dispatcher.tools(user="alice")] == ["jokers"]


def test_handles_are_available_before_the_start() -> None:
    dispatcher = dispatch.connect(
        "memory://", catalog(work={"permissions": ["a"]}), grants=Grants.of({"everyone": ["a"]})
    )
    assert dispatcher.tool("work").name == "work"
