"""``dispatch call``: call a tool."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec
import typer

from dispatch._internal import find_near_names
from dispatch.calls.error_messages import error_from_unknown_name
from dispatch.calls.resolution import ToolResolver
from dispatch.catalog import Argument, Catalog, ServiceDescriptor, ToolDescriptor, UnknownToolError
from dispatch.cli.base import (
    CliError,
    Exit,
    Settings,
    exit_code_of,
    format_result,
    is_servers_file,
    print_call_error,
    print_err,
    print_json,
    print_out,
    print_warning,
    run_async,
    suggest,
    with_settings,
)
from dispatch.cli.sources import list_sources, load_catalog
from dispatch.dispatcher import Dispatcher, connect
from dispatch.documents import DocumentError, decode_text
from dispatch.errors import DispatchError, ErrorType, Outcome
from dispatch.messaging.wire import MAX_MESSAGE_BYTES, is_local_queue
from dispatch.policy import DEFAULT_POLICY, MAX_SECONDS, Policy
from dispatch.results import CallResult
from dispatch.routing.discovery import WARN_MISSING_S
from dispatch.routing.instance import SHARED
from dispatch.schemas import SchemaValidator


@with_settings("broker", "catalog", "policy", "grants", "announced", "trust", "token_file", "trust_certs")
def call(
    settings: Settings,
    tool: str,
    words: Annotated[list[str] | None, typer.Argument()] = None,
    arguments: Annotated[str | None, typer.Option("--arguments", "-a")] = None,
    user: Annotated[str, typer.Option("--user", "-u")] = "",
    timeout: Annotated[float | None, typer.Option("--timeout", "-t")] = None,
    stream: bool = False,
    json: bool = False,
) -> None:
    """Call a tool and print its result.

    The result goes to stdout. An error goes to stderr with message, outcome and type, and determines the exit code.

    [bold]dispatch call tell-joke topic=cats[/bold]

    Without a catalogue the tool is one of the services that announce themselves on the broker.

    [bold]dispatch call tell-story subject="a goat" words=60 --stream[/bold]

    [bold]echo '{"topic": "cats"}' | dispatch call tell-joke --arguments - --json[/bold]

    While no instance of the service is known, a line on stderr says until when the call waits; Ctrl-C ends it.

    Exit codes: 0 success · 1 the tool's own error · 2 invalid arguments or unknown tool · 3 timeout · 4 transport ·
    5 throttled or rejected · 130 interrupted

    Args:
        tool (TOOL): Name of the tool; 'dispatch tools' lists them.
        words (KEY=VALUE): Arguments, typed by the tool's descriptor. KEY:=JSON passes any JSON value.
        arguments (JSON|@FILE|-): Arguments as a JSON object, from a file, or from stdin. KEY=VALUE overrides them.
        user: User on whose behalf the tool is called.
        timeout (SECONDS): Timeout of the whole call. Default: the tool's policy (30 s; a stream 300 s).
        stream: Print chunks of the reply as they arrive.
        json: Print the result as one line of JSON; with --stream, one line per chunk before it.
    """

    def read(catalog: Catalog) -> dict[str, Any]:
        return read_arguments(catalog.tool(tool), words or (), arguments, print_warning)

    if timeout is not None and not 0 < timeout <= MAX_SECONDS:
        raise CliError(f"--timeout {timeout:g} is out of range.", f"give seconds above 0, {MAX_SECONDS:g} at most")
    broker = settings.call_url
    if broker == settings.broker_url:
        settings.require_pulsar_url("dispatch call")
    known: Catalog | None = None
    given: Arguments = read
    if not settings.uses_announced and not any(map(is_servers_file, settings.catalog_folders)):
        known = load_catalog(settings)
        try:
            given = read(known)
        except UnknownToolError as unknown:
            # Checked before connecting, so that a mistyped name is reported without a broker.
            error = error_from_unknown_name(unknown)
            raise typer.Exit(
                show(CallResult(tool, error.outcome, error=error), None, streamed=False, json=json)
            ) from None
    policy = settings.load_policy()
    dispatcher = connect(
        broker,
        known or list_sources(settings, until=tool),
        policy=policy,
        grants=settings.load_grants(),
        security=settings.security(),
    )
    result = run_async(
        call_tool(dispatcher, tool, given, user=user, timeout=timeout, stream=stream, json=json, policy=policy)
    )
    catalog = dispatcher.catalog
    service = catalog.service_or_default(catalog.tools[tool]) if tool in catalog.tools else None
    uses_announced = settings.uses_announced
    raise typer.Exit(show(result, service, streamed=stream, json=json, uses_announced=uses_announced))


Arguments = dict[str, Any] | Callable[[Catalog], dict[str, Any]]
"""The arguments of a call, or a function that reads them once the catalogue is there."""


def read_given(given: Arguments, catalog: Catalog) -> dict[str, Any]:
    """Return the arguments of a call; none of an unknown tool, whose call is refused.

    Raises:
        CliError: they cannot be read.
    """
    if isinstance(given, dict):
        return given
    try:
        return given(catalog)
    except UnknownToolError:
        return {}


WAIT_REPORT_S: Final = WARN_MISSING_S + 0.1
"""Seconds of a call after which it is reported until when it waits: just after the log says that no instance is known."""


@contextlib.contextmanager
def report_wait(
    dispatcher: Dispatcher, tool: str, policy: Policy, timeout: float | None, *, stream: bool
) -> Iterator[asyncio.TimerHandle]:
    """Print until when the call in the context waits, once, if no instance of the tool's service is known after
    :data:`WAIT_REPORT_S`. The call goes on: a third-party service, which is known by its replies only, may execute it."""
    resolved = ToolResolver(dispatcher.catalog, policy).describe(tool) if tool in dispatcher.catalog.tools else None
    values = policy if resolved is None else resolved.policy
    limit = (values.stream_timeout if stream else values.timeout) if timeout is None else timeout
    if stream:
        limit = min(limit, values.stream_idle_timeout)  # for the first chunk
    began = datetime.now()

    def report() -> None:
        if resolved is not None and all(each.id == SHARED for each in dispatcher.instances(resolved.service_id)):
            until = began + timedelta(seconds=limit)
            print_err(
                f"Waiting for a reply until {until:%H:%M:%S} ({limit:g} s in all). Ctrl-C ends the call; --timeout SECONDS "
                "limits it."
            )

    timer = asyncio.get_running_loop().call_later(WAIT_REPORT_S, report)
    try:
        yield timer
    finally:
        timer.cancel()


async def call_tool(
    dispatcher: Dispatcher,
    tool: str,
    arguments: Arguments,
    *,
    user: str,
    timeout: float | None,
    stream: bool = False,
    json: bool = False,
    policy: Policy = DEFAULT_POLICY,
) -> CallResult:
    """Connect, call, disconnect. With ``stream`` each chunk is printed to stdout as it arrives. A failed connection is a
    result like any other error."""
    chunks: list[str] = []
    results: list[CallResult] = []
    started = time.monotonic()
    try:
        async with dispatcher:
            given = read_given(arguments, dispatcher.catalog)
            with report_wait(dispatcher, tool, policy, timeout, stream=stream) as timer:
                if not stream:
                    return await dispatcher.execute(tool, given, user=user, timeout=timeout)
                async for chunk in dispatcher.stream(tool, given, user=user, timeout=timeout, on_result=results.append):
                    timer.cancel()
                    chunks.append(chunk)
                    if json:
                        print_json({"chunk": chunk})
                    else:
                        print_out(format_result(chunk), end="")
    except DispatchError as error:
        if not results:  # no request was made
            results.append(CallResult(tool, error.outcome, error=error, duration=time.monotonic() - started))
    finally:
        # An interrupted line is terminated, so that the next output starts a new one.
        if not json and chunks and not chunks[-1].endswith("\n"):
            print_out("")
    return msgspec.structs.replace(results[-1], text="".join(chunks))


def show(
    result: CallResult, service: ServiceDescriptor | None, *, streamed: bool, json: bool, uses_announced: bool = False
) -> Exit:
    """Print the result and return the exit code.

    Args:
        service: service of the tool; None if the tool is unknown.
        streamed: whether the chunks have been printed.
        uses_announced: whether announced services were asked.
    """
    if json:
        line = result.as_dict()
        print_json({"result": line} if streamed else line)
    elif result.error is not None:
        print_call_error(result.error, _hint(result, service, uses_announced))
    elif not streamed:
        print_out(format_result(result.text), end="" if result.text.endswith("\n") else "\n")
    return exit_code_of(result.error)


def _hint(result: CallResult, service: ServiceDescriptor | None, uses_announced: bool) -> str:
    is_unknown = result.error is not None and result.error.type == ErrorType.UNKNOWN_TOOL
    if is_unknown and uses_announced:
        return (
            "'dispatch ping' lists the services that announce themselves; --catalog DIR names a folder of descriptors"
        )
    if is_unknown:
        return "--announced looks among the services that announce themselves on the broker, too"
    is_missing = result.error is not None and result.error.type == ErrorType.NO_INSTANCE
    is_unanswered = result.outcome is Outcome.TIMEOUT and result.chunks == 0 and result.instance is None
    hints = ["give it more time with --timeout SECONDS"] if is_unanswered else []
    if service is not None and not is_local_queue(service.request_queue) and (is_missing or is_unanswered):
        hints.append(
            f"check with 'dispatch doctor' that a service consumes {service.request_queue}; 'dispatch serve' starts one"
        )
    return ", or ".join(hints)


# Parsing of ``key=value`` words into a tool's arguments, typed by its descriptor.


Warn = Callable[[str], None]

_JSON_KINDS: Mapping[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}
_EXAMPLES = {"number": "2.5", "integer": "3", "boolean": "true", "object": '{"a": 1}', "array": "[1, 2]"}


def read_arguments(
    tool: ToolDescriptor, words: Iterable[str], document: str | None, warn: Warn, stdin: BinaryIO | None = None
) -> dict[str, Any]:
    """Read the arguments for ``tool``: those of ``document``, overridden by ``words``.

    Args:
        tool: declares the type of each argument. An undeclared argument is sent after a warning with similar names, because
            the service decides.
        words: ``key=value`` (typed by the descriptor; undeclared, and where several types are allowed: a string if that is
            allowed) or ``key:=JSON``.
        document: a JSON object, ``@FILE``, or ``-`` for stdin.
        warn: receives warnings for the user.
        stdin: stream for ``-``; None: that of the process.

    Raises:
        CliError: the input cannot be read, is not an object, or a value does not match its declared type.
    """
    given = {} if document is None else _read_document(document, stdin)
    declared = {argument.name: argument for argument in tool.described_arguments}
    seen: set[str] = set()
    for word in words:
        key, value = _parse_word(word, declared, tool.input_schema)
        if key in seen:
            raise CliError(
                f"The argument '{key}' is given twice.", "give it once; for several values write a JSON array"
            )
        seen.add(key)
        given[key] = value
    _check_against_descriptor(tool, given, declared, warn)
    return given


def _parse_word(word: str, declared: Mapping[str, Argument], schema: Mapping[str, Any] | None) -> tuple[str, Any]:
    key, separator, text = word.partition("=")
    if word.startswith("{"):
        raise CliError(f"'{word}' is not key=value.", f"write --arguments {_quote(word)}")
    if not separator or not key.rstrip(":"):
        fix = _quote(_find_example(word, declared))
        raise CliError(f"'{word}' is not key=value.", f"write {fix}, or give --arguments JSON")
    if key.endswith(":"):
        key = key[:-1]
        return key, _parse_json(text, f"The value of '{key}:='", f"write JSON, for instance {key}:='[1, 2]'")
    kind = declared[key].type if key in declared else "string"
    if kind in _JSON_KINDS:
        return key, _parse_typed(key, text, kind)
    return key, text if kind == "string" or schema is None else _parse_any(key, text, schema)


def _parse_any(key: str, text: str, schema: Mapping[str, Any]) -> Any:
    """Return the text, or the JSON value in it where the schema of the arguments allows that and no text."""
    try:
        validator = SchemaValidator({name: value for name, value in schema.items() if name != "required"})
        if not validator.find_mistakes({key: text}):
            return text
        value = json.loads(text, parse_constant=_reject_constant)
        return text if validator.find_mistakes({key: value}) else value
    except (ValueError, RecursionError):  # no JSON; or the schema itself has a mistake, which the call reports
        return text


def _find_example(word: str, declared: Mapping[str, Argument]) -> str:
    """Return what was probably meant by a word that has no key."""
    name, colon, text = word.removeprefix("--").partition(":")
    if name in declared:
        return f"{name}={text if colon else 'VALUE'}"
    return "topic=cats" if not word or "=" in word else f"{next(iter(declared), 'topic')}={word}"


def _parse_typed(key: str, text: str, kind: str) -> Any:
    stripped = text.strip()
    as_string = shlex.quote(json.dumps(text, ensure_ascii=False))
    fix = f"write {_quote(f'{key}={_EXAMPLES[kind]}')}; to send it as a string: {key}:={as_string}"
    problem = f"'{key}' is {'an' if kind[0] in 'aio' else 'a'} {kind}, and {stripped!r} is not one."
    try:
        value = json.loads(stripped.lower() if kind == "boolean" else stripped, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        raise CliError(problem, fix) from None
    if not isinstance(value, _JSON_KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
        raise CliError(problem, fix)
    return value


def _read_document(document: str, stdin: BinaryIO | None) -> dict[str, Any]:
    if document == "-":
        what, text = "The input of --arguments -", _read_limited(stdin or sys.stdin.buffer, "stdin")
    elif document.startswith("@"):
        what = f"The file '{document[1:]}'"
        try:
            with Path(document[1:]).open("rb") as file:
                text = _read_limited(file, document[1:])
        except OSError as error:
            raise CliError(
                f"{what} cannot be read: {error.strerror or error}.", "give the path after the @: --arguments @FILE"
            ) from None
    else:
        what, text = "--arguments", document
    fix = """write an object of named values, for instance '{"topic": "cats"}'"""
    if text is document and text.endswith(".json"):
        fix = f"to read a file, write --arguments @{text}"
    value = _parse_json(text, what, fix)
    if not isinstance(value, dict):
        kinds = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
        raise CliError(f"{what} is {kinds.get(type(value), 'null')}, not a JSON object.", fix)
    return value


def _read_limited(file: BinaryIO, name: str) -> str:
    content = file.read(MAX_MESSAGE_BYTES + 1)
    if len(content) > MAX_MESSAGE_BYTES:
        raise CliError(
            f"{name} has more than {MAX_MESSAGE_BYTES:,} bytes, the limit of a message.",
            "send less, for instance a reference instead of the data",
        )
    try:
        return decode_text(content)
    except DocumentError as error:
        _key, problem, fix = error.mistakes[0]
        raise CliError(f"{name} is {problem}.", fix) from None


def _parse_json(text: str, what: str, fix: str) -> Any:
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise CliError(f"{what} is not JSON: {error.msg} (line {error.lineno}, column {error.colno}).", fix) from None
    except (ValueError, RecursionError) as error:
        raise CliError(f"{what} is not JSON: {error}.", fix) from None


def _reject_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def _check_against_descriptor(
    tool: ToolDescriptor, given: Mapping[str, Any], declared: Mapping[str, Argument], warn: Warn
) -> None:
    if declared:  # a descriptor without arguments leaves them unspecified
        for key in given:
            if key not in declared:
                hint = suggest(find_near_names(key, declared), f"declared are {', '.join(declared)}.")
                warn(f"'{tool.name}' declares no argument '{key}'; it is sent anyway: {hint}")
    missing = [name for name, argument in declared.items() if argument.required and name not in given]
    if missing:
        warn(f"'{tool.name}' requires {', '.join(missing)}, which is missing.")


def _quote(word: str) -> str:
    return f"'{word}'" if any(c in word for c in ' "[]{}') else word
