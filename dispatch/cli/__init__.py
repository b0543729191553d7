"""The command line: ``dispatch``, also ``python -m dispatch``. Needs the extra ``cli``."""

from __future__ import annotations

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
        if missing.name not in ("rich", "typer"):
            raise
        from dispatch._internal import install_extra

        sys.stderr.write(f"dispatch: the command line requires the package '{missing.name}': {install_extra('cli')}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return 130
