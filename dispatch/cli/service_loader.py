"""Loading of a tool service from ``MODULE:CLASS``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from dispatch._internal.suggestions import find_near_names, join_alternatives
from dispatch._internal.user_code import read_text
from dispatch.cli.exit_codes import CliError
from dispatch.serving.tool_service import ToolService, read_invoke


def load_service(target: str) -> object:
    """Load the service that ``target`` names.

    Args:
        target: ``package.module:CLASS`` or ``path/to/file.py:CLASS``. CLASS may be a class without constructor arguments, an
            instance, or a function that returns one; default: the module's only service class.

    Raises:
        CliError: the target does not exist, cannot be imported, or is not a service.
    """
    module_name, _, name = target.rpartition(":") if _has_name(target) else (target, "", "")
    module = _import_file(Path(module_name)) if _is_path(module_name) else _import_module(module_name)
    found = _only_service(module, module_name) if not name else _attribute(module, module_name, name)
    return _instance(found, f"{module_name}:{name or getattr(found, '__name__', '')}")


def _has_name(target: str) -> bool:
    return ":" in target and not target.endswith(".py")


def _is_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise CliError(f"The file '{path}' does not exist.", "give the path of the file with your service class")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CliError(f"'{path}' is not a Python file.", "give a file with the extension .py")
    sys.path.insert(0, str(path.resolve().parent))  # modules beside it can be imported, as when Python runs the file
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _import_failed(str(path), error) from error
    return module


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))  # as 'python -m' does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CliError(
                f"The module '{error.name}' does not exist.",
                "give MODULE:CLASS with an importable module, or the path of a file: jokes.py:Joke",
            ) from None
        raise _import_failed(name, error) from error
    except Exception as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: Exception) -> CliError:
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
        where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    text = error.msg if isinstance(error, SyntaxError) else read_text(error)
    return CliError(
        f"'{name}' cannot be imported: {type(error).__name__}: {text}{where}.",
        "fix the module; --verbose shows the traceback",
    )


def _attribute(module: ModuleType, module_name: str, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            near = _find_near_services(found, part)
            fix = (
                f"did you mean {join_alternatives(near)}?"
                if near
                else "give the name of your service class after the ':'"
            )
            raise CliError(f"'{module_name}' has no '{name}'.", fix) from None
    return found


def _find_near_services(owner: Any, name: str) -> tuple[str, ...]:
    """Return names of ``owner`` that ``name`` may mean: of services, or else of functions and classes that lead to one. A
    constant is never served."""
    names = [known for known in dir(owner) if not known.startswith("_")]
    services = [known for known in names if _is_service(getattr(owner, known, None))]
    near = find_near_names(name, services) or tuple(
        known for known in services if known.casefold() in name.casefold() or name.casefold() in known.casefold()
    )
    others = [known for known in names if callable(getattr(owner, known, None)) and known not in services]
    return near or find_near_names(name, others)


def _is_service(value: Any) -> bool:
    """Return whether ``value`` is a class with an ``invoke``, or an object of one; not the base class itself."""
    return value is not ToolService and callable(getattr(value, "invoke", None))


def _only_service(module: ModuleType, module_name: str) -> Any:
    own = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, ToolService) and value.__module__ == module.__name__
    ]
    if len(own) == 1:
        return own[0]
    example = f"{module_name}:{own[0].__name__ if own else 'Joke'}"
    names = ", ".join(value.__name__ for value in own)
    raise CliError(
        f"'{module_name}' has several services: {names}." if own else f"'{module_name}' has no ToolService class.",
        f"select one: {example}",
    )


def _instance(found: Any, name: str) -> object:
    try:
        if inspect.isclass(found) or (inspect.isroutine(found) and not hasattr(found, "invoke")):
            found = found()
        read_invoke(found)
    except Exception as error:
        # The message about a wrong 'invoke' is specific; constructor arguments can only come from the module.
        fix = (
            "fix the class"
            if "invoke" in str(error)
            else "the class is created without arguments; if it needs some, create the instance in the module and name it"
        )
        raise CliError(f"'{name}' cannot be served: {type(error).__name__}: {error}.", fix) from error
    return found
