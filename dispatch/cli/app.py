"""The command-line application: its commands, and conversion of errors and Ctrl-C to messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dispatch import __version__
from dispatch.cli import (
    bench,
    broker,
    call,
    calls,
    check,
    demo,
    doctor,
    items,
    monitoring,
    relay,
    serve,
    toolkit,
    tools,
    top,
    wire,
)
from dispatch.cli.base import (
    EXIT_CODES_HELP,
    Exit,
    Settings,
    begin_output,
    escape_unencodable_output,
    open_closed_streams,
    report_error,
    report_interrupt,
    with_settings,
)


class ErrorHandlingGroup(TyperGroup):
    """Converts Ctrl-C and a closed output to exit codes. A command may have a name of two words: ``tools approve``, beside
    ``tools``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = " ".join(args[:2])
        if len(args) > 1 and name in self.commands:
            return name, self.commands[name], args[2:]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().parse_args(ctx, args)
        except KeyboardInterrupt:  # while typer imports pydantic; it would exit without a word
            raise typer.Exit(report_interrupt()) from None
        except Exception as error:
            _add_hint(error, "Options of a command are written after it.")
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            code = report_interrupt()
        except BrokenPipeError:
            code = _discard_output()
        except Exception as error:
            if getattr(getattr(error, "ctx", None), "info_name", None) == "call":
                _add_hint(error, "Arguments of the tool are written KEY=VALUE, such as topic=cats.")
            raise
        else:
            return result
        raise typer.Exit(code)


def _add_hint(error: Any, hint: str) -> None:
    """Add ``hint`` to typer's error about an option that does not exist."""
    if hasattr(error, "possibilities"):
        error.message, error.possibilities = f"{error.format_message()}. {hint}", None


app = typer.Typer(
    name="dispatch",
    cls=ErrorHandlingGroup,
    help="Call tools of AI agents over Apache Pulsar. Start with [bold]dispatch demo[/bold]; then serve a tool, call it, "
    "and check the connection with [bold]dispatch doctor[/bold].",
    epilog=EXIT_CODES_HELP,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dispatch {__version__}")
        raise typer.Exit


@app.callback()
@with_settings("broker", "catalog", "policy", "grants", "token_file", "trust_certs")
def root(
    settings: Settings,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Accept options before the command; ``settings`` passes them to it."""


app.command("demo")(demo.demo)
app.command("call")(call.call)
app.command("tools")(tools.tools)
app.command("tools approve")(tools.approve)
app.command("find")(tools.find)
app.command("check")(check.check)
app.command("put")(items.put)
app.command("rm")(items.rm)
app.command("get")(items.get)
app.command("init")(serve.init)
app.command("size")(bench.size)
app.command("serve")(serve.serve)
app.command("export")(items.export)
app.command("mcp")(serve.mcp)
app.command("relay")(relay.relay)
app.command("ping")(wire.ping)
app.command("info")(wire.info)
app.command("stats")(wire.stats)
app.command("top")(top.top)
app.command("tail")(calls.tail)
app.command("calls")(calls.calls)
app.command("calls show")(calls.show)
app.command("mirror")(items.mirror)
app.command("doctor")(doctor.doctor)
app.add_typer(broker.app, name="broker")
app.add_typer(monitoring.dashboards_app, name="dashboards")
app.add_typer(monitoring.rules_app, name="rules")
app.add_typer(toolkit.app, name="toolkit")
app.command("bench", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench.bench)


def _without_flag_types(command: Any) -> Any:
    """Remove ``<bool>`` beside flags from the help of a command and its subcommands."""
    get_params = command.get_params

    def params(ctx: Any) -> Any:
        found = get_params(ctx)
        for param in found:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return found

    command.get_params = params
    for each in getattr(command, "commands", {}).values():
        _without_flag_types(each)
    return command


@cache  # building it takes 20 ms of processor time
def _build_command() -> Any:
    return _without_flag_types(typer.main.get_command(app))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. Never raises."""
    open_closed_streams()
    escape_unencodable_output()
    begin_output(owns_process=arguments is None)
    given = sys.argv[1:] if arguments is None else list(arguments)
    as_json = "--json" in given
    command = _build_command()
    try:
        # Not standalone: typer raises its errors, and returns the exit code.
        code = command.main(args=given or ["--help"], prog_name="dispatch", standalone_mode=not as_json)
        return code or Exit.OK
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # of the help, which click turns into exit code 1
            return _discard_output()
        code = end.code if isinstance(end.code, int) else Exit.OK if end.code is None else Exit.FAILED
        return code if given else Exit.USAGE  # no command was given
    except (KeyboardInterrupt, typer.Abort):
        return report_interrupt()
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # the ImportError of pulsar-client's extension module
            return report_interrupt()
        try:
            return report_error(error, "--verbose" in given or "-v" in given, as_json)
        except BrokenPipeError:
            return _discard_output()


def _discard_output() -> Exit:
    """Discard what is buffered for a reader that has closed the output: the interpreter would report it at its exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(null, stream.fileno())
    return Exit.BROKEN_PIPE
