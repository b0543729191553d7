"""Twelve scenarios of a model's call in every form, against a tool service on the embedded broker and against functions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import dispatch
from dispatch.calling import (
    CallForm,
    FunctionCallResult,
    FunctionCallStatus,
    call_function,
    format_answers,
    function_calling_prompt,
    parse,
)
from tests.helpers.clock import cancel_task
from tests.helpers.dispatcher_and_service import BROKER, catalog, serving

FAILED = FunctionCallStatus.FAILED
ONCE: dict[str, Any] = {"rate-limit": {"rate": "1/m", "burst": 1, "max-wait": 0}, "retry": 1}
SHORT: dict[str, Any] = {"timeout": 1, "retry": 1}
LONG_TEXT = "".join(f"{number}: \U0001f680 größer 你好\n" for number in range(2_000))
KEYS = {"error", "message", "retryable", "retry_after", "alternatives"}
cancelled: list[str] = []


@dispatch.tool(read_only=True)
async def greet(name: str) -> str:
    """Greet a person."""
    return f"hello {name}"


@dispatch.tool()
async def count(to: int) -> AsyncIterator[str]:
    """Count in chunks."""
    for number in range(to):
        yield f"{number} "


@dispatch.tool()
async def refuse() -> str:
    """Fail."""
    raise dispatch.ToolError("no-such-file", "There is no file 'a'.")


@dispatch.tool(policy=ONCE)
async def limited() -> str:
    """Work once a minute."""
    return "done"


@dispatch.tool(tags=["x"])
async def broken() -> str:
    """Work, but for its circuit."""
    return "done"


@dispatch.tool(policy=SHORT)
async def hang() -> str:
    """Never reply."""
    try:
        return str(await asyncio.Event().wait())
    except asyncio.CancelledError:
        cancelled.append("hang")
        raise


@dispatch.tool(permissions=["tools:secret"])
async def greet_secretly() -> str:
    """Require a permission."""
    return "secret"


@dispatch.tool(tags=["x"])
async def report() -> str:
    """Write a long report."""
    return LONG_TEXT


FUNCTIONS: list[Callable[..., Any]] = [greet, count, refuse, limited, broken, hang, greet_secretly, report]


class Lab(dispatch.ToolService):
    """The functions as one tool service, which learns the function from the config values of the tool."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        result = {each.__name__: each for each in FUNCTIONS}[config["function"]](**arguments)
        return await result if asyncio.iscoroutine(result) else result


def describe_services() -> dispatch.Catalog:
    numbers = {"type": "object", "properties": {"to": {"type": "integer"}}, "required": ["to"]}
    names = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    return catalog(
        service={"config-params": [{"name": "function", "required": True}]},
        greet={"function": "greet", "read-only": True, "input-schema": names},
        count={"function": "count", "input-schema": numbers},
        refuse={"function": "refuse"},
        limited={"function": "limited", "policy": ONCE},
        broken={"function": "broken", "tags": ["x"]},
        hang={"function": "hang", "policy": SHORT},
        greet_secretly={"function": "greet_secretly", "permissions": ["tools:secret"]},
        report={"function": "report", "tags": ["x"]},
    )


@contextlib.asynccontextmanager
async def connect(kind: str) -> AsyncIterator[dispatch.Dispatcher]:
    """A dispatcher whose tools are functions of this process, or run in a service; ``bob`` may call the secret one."""
    cancelled.clear()
    source: Any = dispatch.Functions(*FUNCTIONS) if kind == "functions" else describe_services()
    async with contextlib.AsyncExitStack() as stack:
        if kind == "service":
            await stack.enter_async_context(serving(Lab()))
        grants = dispatch.Grants.of({"users": {"bob": ["tools:*"]}})
        yield await stack.enter_async_context(dispatch.connect(BROKER, catalog=[source], grants=grants))


def write(form: CallForm, name: str, args: dict[str, Any]) -> Any:
    """The output of a model that makes one call."""
    text = json.dumps(args, ensure_ascii=False)
    call = f'{{"name": "{name}", "call_objective": "o", "args": {text}}}'
    return {
        CallForm.FUNCTION_CALL: f"I call <function_call>{call}</function_call>.",
        CallForm.TOOL_CALL: f'Now.\n<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>',
        CallForm.FENCE: f"```json\n{call}\n```",
        CallForm.REACT: f"Thought: so be it\nAction: {name}\nArgs: {text}",
        CallForm.OPENAI_CHAT: {"tool_calls": [{"id": "c1", "function": {"name": name, "arguments": text}}]},
        CallForm.OPENAI_RESPONSES: [{"type": "function_call", "call_id": "c1", "name": name, "arguments": text}],
        CallForm.ANTHROPIC: {"content": [{"type": "tool_use", "id": "c1", "name": name, "input": args}]},
        CallForm.GEMINI: {"parts": [{"functionCall": {"id": "c1", "name": name, "args": args}}]},
    }[form]


NATIVE = (CallForm.OPENAI_CHAT, CallForm.OPENAI_RESPONSES, CallForm.ANTHROPIC, CallForm.GEMINI)


def read_answer(form: CallForm, answer: dict[str, Any]) -> str:
    """The text of a tool in the message that gives it back to the model."""
    texts: dict[CallForm, Callable[[], str]] = {
        CallForm.REACT: lambda: answer["content"].removeprefix("Observation: "),
        CallForm.TOOL_CALL: lambda: json.loads(answer["content"].splitlines()[1])["content"],
        CallForm.OPENAI_CHAT: lambda: answer["content"],
        CallForm.OPENAI_RESPONSES: lambda: answer["output"],
        CallForm.ANTHROPIC: lambda: answer["content"][0]["content"],
        CallForm.GEMINI: lambda: next(iter(answer["parts"][0]["functionResponse"]["response"].values())),
    }
    return texts.get(form, lambda: json.loads(answer["content"].splitlines()[1])["output"])()


class Model:
    """A model that writes calls in one form, over the tools of one user.

    Attributes:
        dispatcher: that has the tools.
    """

    def __init__(self, dispatcher: dispatch.Dispatcher, form: CallForm, user: str = "alice") -> None:
        self.dispatcher = dispatcher
        self._form = form
        self._user = user

    async def call(self, name: str, /, **args: Any) -> FunctionCallResult:
        """Make one call; the answer repeats its result in the form of the call, with the id of the call."""
        output = write(self._form, name, args)
        (result,) = await call_function(self.dispatcher.tools(user=self._user), output, context="turn 1") or []
        assert (result.func_name, result.func_args, result.form) == (name, args, self._form)
        (answer,) = format_answers([result])
        assert read_answer(self._form, answer) == result.output
        is_native = self._form.value in ("openai-chat", "openai-responses", "anthropic", "gemini")
        assert result.call_id == ("c1" if is_native else "")
        return result

    async def fail(self, name: str, /, **args: Any) -> dict[str, Any]:
        """Make one call that fails; return its error."""
        result = await self.call(name, **args)
        assert result.status is FAILED
        error: dict[str, Any] = json.loads(result.output)
        assert set(error) == KEYS
        return error


@pytest.fixture(params=["service", "functions"])
def kind(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(params=list(CallForm))
def form(request: pytest.FixtureRequest) -> CallForm:
    chosen: CallForm = request.param
    return chosen


async def test_success(kind: str, form: CallForm) -> None:
    async with connect(kind) as dispatcher:
        result = await Model(dispatcher, form).call("greet", name="Ada")
        assert (result.output, result.status) == ("hello Ada", FunctionCallStatus.SUCCEEDED)


@pytest.mark.costly
async def test_stream(kind: str, form: CallForm) -> None:
    async with connect(kind) as dispatcher:
        assert (await Model(dispatcher, form).call("count", to=3)).output == "0 1 2 "


async def test_tool_error(kind: str, form: CallForm) -> None:
    async with connect(kind) as dispatcher:
        error = await Model(dispatcher, form).fail("refuse")
        assert (error["error"], error["retryable"]) == ("no-such-file", False)
        assert "There is no file 'a'." in error["message"]


async def test_throttled(kind: str, form: CallForm) -> None:
    async with connect(kind) as dispatcher:
        model = Model(dispatcher, form)
        assert (await model.call("limited")).output == "done"
        error = await model.fail("limited")
        assert (error["error"], error["retryable"]) == ("rate-limited", True)
        assert 0 < error["retry_after"] <= 60


async def test_open_circuit(kind: str, form: CallForm) -> None:
    async with connect(kind) as dispatcher:
        dispatcher.breaker("broken").force_open()
        error = await Model(dispatcher, form).fail("broken")
        assert (error["error"], error["alternatives"]) == ("circuit-open", ["report"])


async def test_timeout(kind: str, form: CallForm) -> None:
    async with connect(kind) as dispatcher:
        started = asyncio.get_running_loop().time()
        error = await Model(dispatcher, form).fail("hang")
        assert error["error"] in ("timeout", "expired")
        assert "may have been executed" in error["message"]
        assert asyncio.get_running_loop().time() - started < 3


async def test_cancel(kind: str, form: CallForm) -> None:
    async with connect(kind) as dispatcher:
        task = asyncio.create_task(Model(dispatcher, form).call("hang"))
        await asyncio.sleep(0.5)
        await cancel_task(task)
        await asyncio.sleep(0.1)
        assert cancelled == ["hang"]


@pytest.mark.parametrize("args", [{"to": "three"}, {}])
async def test_bad_arguments(kind: str, form: CallForm, args: dict[str, Any]) -> None:
    async with connect(kind) as dispatcher:
        error = await Model(dispatcher, form).fail("count", **args)
        assert (error["error"], error["retryable"]) == ("invalid-arguments", False)
        assert "not executed" in error["message"]
        assert "to" in error["message"]


async def test_unknown_tool(kind: str, form: CallForm) -> None:
    async with connect(kind) as dispatcher:
        error = await Model(dispatcher, form).fail("greet_secretely")
        assert error["error"] == "unknown-tool"
        assert "greet_secretly" not in error["message"]
        assert "greet_secretly" not in error["alternatives"]
        error = await Model(dispatcher, form, "bob").fail("greet_secretely")
        assert error["alternatives"][0] == "greet_secretly"


async def test_permission(kind: str, form: CallForm) -> None:
    async with connect(kind) as dispatcher:
        assert (await Model(dispatcher, form).fail("greet_secretly"))["error"] == "unknown-tool"
        assert (await Model(dispatcher, form, "bob").call("greet_secretly")).output == "secret"
        # The tools of another user: the dispatcher decides once more, at the call.
        tools = [dispatch.BoundTool(dispatcher, each, "alice") for each in dispatcher.catalog.tools.values()]
        (result,) = await call_function(tools, write(form, "greet_secretly", {})) or []
        assert json.loads(result.output)["error"] == "not-permitted"


async def test_large_result(kind: str, form: CallForm) -> None:
    async with connect(kind) as dispatcher:
        await dispatcher.reload(policy=dispatch.Policy(max_result_chars=10_000))
        model = Model(dispatcher, form)
        shown = (await model.call("report")).output
        assert len(shown) <= 10_000
        text, _, notice = shown.rpartition("\n\n")
        handle = notice.partition('handle="')[2].partition('"')[0]
        while notice:
            page = (await model.call("read_result", handle=handle, offset=len(text), limit=20_000)).output
            part, _, notice = page.rpartition("\n\n") if page.endswith(")]") else (page, "", "")
            text += part
        assert text == LONG_TEXT
        other = await Model(dispatcher, form, "bob").fail("read_result", handle=handle)
        assert other["error"] == "unknown-result"


@pytest.mark.parametrize(
    "name", ["你好, \U0001f469\u200d\U0001f680", "שלום \u202e abc", "a\u0301 \x7f \ufeff", "<\\/tool_call>'\"\\"]
)
async def test_unicode(kind: str, form: CallForm, name: str) -> None:
    async with connect(kind) as dispatcher:
        assert (await Model(dispatcher, form).call("greet", name=name)).output == f"hello {name}"


async def test_functions_read_the_context() -> None:
    async def who(context: dispatch.CallContext) -> str:
        """Return the context."""
        return f"{context.tool} {context.user} {context.context}"

    async with dispatch.connect("memory://", catalog=[dispatch.Functions(who)]) as dispatcher:
        assert (await Model(dispatcher, CallForm.TOOL_CALL).call("who")).output == "who alice turn 1"


async def test_the_prompt_has_read_result_once() -> None:
    async with connect("functions") as dispatcher:
        tools = await dispatcher.tools(user="alice")
        prompt = function_calling_prompt(tools).splitlines()
        lines = [json.loads(line) for line in prompt if line.startswith('{"name": "r')]
        assert [line["name"] for line in lines] == ["refuse", "report", "read_result"]
        assert parse(function_calling_prompt(tools))[0].name == "TOOL"


async def test_errors_of_the_text_have_the_same_form() -> None:
    async with connect("functions") as dispatcher:
        tools = await dispatcher.tools(user="alice")
        text = '<tool_call>{"name" "f"}</tool_call><tool_call>{"name": "refuse", "arguments": {'
        errors = [json.loads(each.output) for each in await call_function(tools, text) or []]
        assert [set(each) for each in errors] == [KEYS] * 2
        assert errors[0]["message"].startswith("The call at line 1, column ")
        assert "the text ended inside its call" in errors[1]["message"]
