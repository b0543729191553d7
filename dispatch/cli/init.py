"""``dispatch init``: create a folder with a service of two functions, its test and its policy."""

from __future__ import annotations

import keyword
import shutil
from pathlib import Path
from typing import Final

from dispatch.cli.base import CliError, Settings, print_out, with_settings
from dispatch.cli.targets import replaces_module
from dispatch.documents import replace_file

TEMPLATE: Final = Path(__file__).parent / "template"
"""The files, with ``{name}`` for the name of the service."""
_FILES: Final = {
    "{name}.py": "service.py.txt",
    "test_{name}.py": "test_service.py.txt",
    "policy.json": "policy.json",
    "compose.yaml": "compose.yaml",
    "README.md": "README.md",
}


@with_settings()
def init(settings: Settings, name: str) -> None:
    """Create a folder with a service of two functions, its test, its policy and a compose file.

    [bold]dispatch init shop && cd shop && pytest && dispatch serve shop.py --watch[/bold]

    Args:
        name (NAME): Name of the service, of its file and of the folder.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii():
        fix = "use the letters a to z, digits and '_', such as shop"
        raise CliError(f"'{name}' cannot be the name of a Python module.", fix)
    if replaces_module(name):
        raise CliError(f"'{name}.py' would replace the module '{name}', which dispatch uses.", "choose another name")
    folder = Path(name)
    if folder.exists():
        raise CliError(f"'{name}' exists already.", "choose another name, or remove it")
    folder.mkdir()
    files = {file.format(name=name): TEMPLATE / template for file, template in _FILES.items()}
    try:
        for file, template in files.items():
            replace_file(folder / file, template.read_text("utf-8").replace("{name}", name))
    except BaseException:
        shutil.rmtree(folder)  # a part of the files would keep the command from being repeated
        raise
    print_out(f"{name}/ has {', '.join(files)}.")
    print_out(f"Next: cd {name} && pytest && dispatch serve {name}.py --watch")
