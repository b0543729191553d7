"""The command line: ``dispatch``, also ``python -m dispatch``. Needs the extra ``cli``."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence

EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        arguments: command line without the program name; None: ``sys.argv[1:]``.
    """
    try:  # all imports: Ctrl-C meanwhile is no fault
        import rich  # noqa: F401 - checks the installation
        import typer  # noqa: F401 - as above

        from dispatch.cli.app import run

        return run(arguments)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("dispatch."):
            raise
        command = "pip install 'tool-dispatch[cli]' (in a checkout: pip install -e '.[cli]')"
        with contextlib.suppress(ModuleNotFoundError):  # of what dispatch itself requires, where nothing is installed
            from dispatch._internal import install_extra

            command = install_extra("cli")
        sys.stderr.write(f"dispatch: the command line requires the package '{missing.name}': {command}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        _end_at_interrupt(arguments)
        sys.stderr.write("Interrupted.\n")
        return 130
    finally:
        _end_at_interrupt(arguments)


def _end_at_interrupt(arguments: Sequence[str] | None) -> None:
    """Let a further Ctrl-C end the process, which ends anyway: the interpreter would print a traceback while it waits for
    its threads. A program that gives ``arguments`` goes on, and keeps its handler."""
    if arguments is None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
