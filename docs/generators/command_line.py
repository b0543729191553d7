"""Every command of ``dispatch`` with its arguments and options, read from the typer application."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from dispatch.cli.app import app
from docs.generators.docstrings import table


def commands() -> Iterator[tuple[str, Any]]:
    """Yield the name and the object of each command that runs something, ``dispatch broker start`` among them."""
    yield from _below("dispatch", typer.main.get_command(app))


def command_line() -> str:
    """Return one section for each command."""
    root = typer.main.get_command(app)
    sections = [f"{root.epilog}\n\n## Options before the command\n\n{_options(root)}"]
    sections.extend(f"## `{name}`\n\n{_command(name, command)}" for name, command in commands())
    return "\n".join(sections)


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    for each, child in command.commands.items():
        if hasattr(child, "commands"):
            yield from _below(f"{name} {each}", child)
        else:
            yield f"{name} {each}", child


def _command(name: str, command: Any) -> str:
    context = command.context_class(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    return f"```text\n{usage}\n```\n\n{_help(command)}\n\n{_parameters(command, 'argument')}{_options(command)}"


def _help(command: Any) -> str:
    text = _mark_options(re.sub(r"\[bold\](.+?)\[/bold\]", r"`\1`", command.help or ""))
    return re.sub(r"(?<=[.,;] )(?=[2-9]\. )", "\n", text)  # the items of a list, which typer joins


def _mark_options(text: str) -> str:
    """Return ``text`` with options as code: outside of code two hyphens become a dash."""
    return re.sub(r"(`[^`]*`)|(?<![\w-])(--[a-z-]+)", lambda found: found[1] or f"`{found[2]}`", text)


def _options(command: Any) -> str:
    return _parameters(command, "option")


def _parameters(command: Any, kind: str) -> str:
    context = command.context_class(command)
    records = [each.get_help_record(context) for each in command.params if each.param_type_name == kind]
    rows = [(f"`{names}`", _mark_options(meaning)) for names, meaning in filter(None, records)]
    return table((kind.capitalize(), "Meaning"), rows) + "\n" if rows else ""
