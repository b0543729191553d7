"""What ``dispatch serve`` and ``dispatch export`` name: a tool service or functions, in a module or a file."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
import typing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from dispatch._internal import find_near_names, read_text
from dispatch.cli.base import CliError, suggest
from dispatch.functions import MODULE_PROVIDERS, FunctionSource, list_functions
from dispatch.functions.schema import is_declared
from dispatch.serving.tool_service import ToolService, read_invoke


class Target(NamedTuple):
    """What a target names.

    Attributes:
        module: the module.
        implementation: a tool service; None: functions.
        functions: the module, functions or sources of them; empty: a tool service.
    """

    module: ModuleType
    implementation: object | None
    functions: tuple[object, ...]


def name_target(target: str) -> str:
    """Return the name that a service of functions has by default: of the file without its suffix, or of the module.

    Raises:
        CliError: it is a folder.
    """
    module_name, _ = _split(target)
    if not _is_path(module_name):
        return module_name.rpartition(".")[2]
    path = Path(module_name)
    if path.is_dir():  # which may have no name
        _require_file(path)
    return path.stem


def load_target(target: str) -> Target:
    """Load what ``target`` names.

    Args:
        target: ``package.module``, ``path/to/file.py``, or either with ``:NAME``: a service class without constructor
            arguments, an instance, or a function that returns one; or with ``:NAME,NAME``: functions. Default: the functions
            of the module that are declared with ``@dispatch.tool``, else its only service class, else its public functions.

    Raises:
        CliError: the target does not exist, cannot be imported, or is neither.
    """
    module_name, names = _split(target)
    module = _import_file(Path(module_name)) if _is_path(module_name) else _import_module(module_name)
    if not names:
        return _read_module(module, module_name)
    found = [_attribute(module, module_name, name) for name in names]
    others = [name for name, value in zip(names, found, strict=True) if not _has_functions(value)]
    if not others and (len(names) > 1 or not _may_create_service(found[0])):
        return Target(module, None, tuple(found))
    if len(names) > 1:
        raise CliError(
            f"'{others[0]}' in '{module_name}' is no function that can be served with others.",
            "name functions, or serve it as a target of its own",
        )
    return Target(module, _instance(found[0], f"{module_name}:{names[0]}"), ())


def _split(target: str) -> tuple[str, list[str]]:
    has_names = ":" in target and not target.endswith(".py")
    module_name, _, names = target.rpartition(":") if has_names else (target, "", "")
    if not module_name:
        raise CliError("No target is given.", "give an importable module, or the path of a file: shop.py")
    return module_name, [name.strip() for name in names.split(",") if name.strip()]


def _read_module(module: ModuleType, module_name: str) -> Target:
    functions = [value for _, value in list_functions(module)]
    services = [value for value in vars(module).values() if _is_own_service(value, module)]
    has_declared = any(map(is_declared, functions))
    if has_declared and services:
        names = ",".join(name for name, value in list_functions(module) if is_declared(value))
        raise CliError(
            f"'{module_name}' has functions and the service class {services[0].__name__}.",
            f"select one of both: {module_name}:{services[0].__name__} or {module_name}:{names}",
        )
    if has_declared or (functions and not services):
        return Target(module, None, (module,))
    if len(services) == 1:
        return Target(module, _instance(services[0], f"{module_name}:{services[0].__name__}"), ())
    if services:
        names = ", ".join(each.__name__ for each in services)
        raise CliError(
            f"'{module_name}' has several services: {names}.", f"select one: {module_name}:{services[0].__name__}"
        )
    fix = "define a function with a docstring, and declare it with @dispatch.tool"
    if getattr(module, "__file__", None) is None and hasattr(module, "__path__"):
        raise CliError(
            f"'{module_name}' is a folder.", f"give the path of a file with functions: {module_name}/shop.py"
        )
    for name, value in vars(module).items():
        if isinstance(value, FunctionSource) or (_is_service(value) and not inspect.isclass(value)):
            fix = f"name its variable: {module_name}:{name}"
            break
        if inspect.isclass(value) and (method := _find_declared_method(value)):
            fix = f"write tools = dispatch.Functions({method}) behind the class, and name it: {module_name}:tools"
    raise CliError(f"'{module_name}' has no functions and no ToolService class.", fix)


def _find_declared_method(cls: type) -> str:
    """Return how the first method of ``cls`` with ``@dispatch.tool`` is given; empty: it has none."""
    return next((f"{cls.__name__}(…).{each}" for each in vars(cls) if is_declared(vars(cls)[each])), "")


def _is_own_service(value: Any, module: ModuleType) -> bool:
    return inspect.isclass(value) and issubclass(value, ToolService) and value.__module__ == module.__name__


def _has_functions(value: Any) -> bool:
    """Return whether ``value`` is a function, or has functions."""
    is_function = inspect.isroutine(value) and not hasattr(value, "invoke")
    return is_function or isinstance(value, ModuleType | FunctionSource) or is_declared(value)


def _may_create_service(function: Any) -> bool:
    """Return whether ``function`` may return a service: it has no parameters, is not declared as a tool, and its annotation
    names nothing else."""
    if not inspect.isroutine(function) or is_declared(function):
        return False
    try:
        if inspect.signature(function).parameters:
            return False
        returned = typing.get_type_hints(function).get("return", Any)
    except Exception:  # no signature, or the text of an annotation, which is any expression
        return True
    return returned in (Any, object) or hasattr(returned, "invoke")


def _is_path(name: str) -> bool:
    return name.endswith((".py", ".json", ".yaml", ".yml")) or "/" in name or not name.strip(".")


def replaces_module(name: str) -> bool:
    """Return whether a file of this name would replace a module of Python, or dispatch itself, in this process."""
    return name in sys.modules and name in (*sys.stdlib_module_names, "dispatch")


def _require_file(path: Path) -> None:
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "is no regular file" if path.exists() else "does not exist"
        raise CliError(f"'{path}' {problem}.", "give the path of the file with your functions, such as shop.py")


def _import_file(path: Path) -> ModuleType:
    _require_file(path)
    if replaces_module(path.stem):
        raise CliError(f"'{path}' would replace the module '{path.stem}', which dispatch uses.", "rename the file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CliError(f"'{path}' is not a Python file.", "give a file with the extension .py")
    sys.path.insert(0, str(path.resolve().parent))  # modules beside it can be imported, as when Python runs the file
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
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
                "give an importable module, or the path of a file: shop.py; a function stands behind a colon: shop.py:price",
            ) from None
        raise _import_failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


_NOT_USERS: Final = (str(Path(__file__).parents[1]), os.path.dirname(os.__file__))
"""The folders of dispatch and of Python, whose lines are not those of a mistake in a user's module."""


def _import_failed(name: str, error: Exception | SystemExit) -> CliError:
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if not each.filename.startswith(("<frozen importlib", *_NOT_USERS))]
        where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    if isinstance(error, SystemExit):
        return CliError(
            f"'{name}' ends the program when it is imported: sys.exit({read_text(error)}){where}.",
            "write what only the program does below: if __name__ == '__main__':",
        )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = f"{error.msg} in Python {version}" if isinstance(error, SyntaxError) else read_text(error)
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
            otherwise = "give the name of your service class, or of your functions, after the ':'"
            fix = suggest(_find_near_services(found, part), otherwise)
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


def _instance(found: Any, name: str) -> object:
    try:
        if inspect.isclass(found) or (inspect.isroutine(found) and not hasattr(found, "invoke")):
            found = found()
        read_invoke(found)
    except (Exception, SystemExit) as error:
        # The message about a wrong 'invoke' is specific; constructor arguments can only come from the module.
        text = read_text(error)
        fix = (
            "fix the class"
            if "invoke" in text
            else "the class is created without arguments; if it needs some, create the instance in the module and name it"
        )
        functions = _find_declared_method(found if inspect.isclass(found) else type(found))
        if isinstance(found, list | tuple | set):
            functions = f"*{name.rpartition(':')[2]}"
        if functions:
            fix = f"write tools = dispatch.Functions({functions}), and name it: {name.rpartition(':')[0]}:tools"
        raise CliError(f"'{name}' cannot be served: {type(error).__name__}: {text}.", fix) from error
    return found


# Loading a second time, for ``dispatch serve --watch``.


_NEVER_RELOADED: Final = ("dispatch", "__main__")


class Reloader:
    """Loads a target again when a file of its own modules has changed: those below the folder of its file or package.

    Args:
        target: as of :func:`load_target`, which has loaded it.
        module: of the target.
    """

    def __init__(self, target: str, module: ModuleType) -> None:
        self._target = target
        top = sys.modules.get(module.__name__.partition(".")[0], module)
        file = getattr(top, "__file__", None) or getattr(module, "__file__", None) or ""
        self._folder = os.path.dirname(os.path.abspath(file))
        self._own_folders = self._list_folders()
        self._former = self._sign_files()

    def has_changed(self) -> bool:
        """Return whether a file has changed since the last call of this method, or since the construction."""
        former, current = self._former, self._sign_files()
        self._former = former | current  # a file that is being replaced is missing for a moment
        return self._former != former

    @contextmanager
    def load(self) -> Iterator[Target]:
        """Load the target again. If the context raises, the former modules and provided values are in force again.

        Raises:
            CliError: as :func:`load_target`.
        """
        own = self._list_modules()
        provided = MODULE_PROVIDERS.copy()
        path = list(sys.path)
        for name in own:
            del sys.modules[name]
        importlib.invalidate_caches()
        try:
            yield load_target(self._target)
        except BaseException:
            for name in self._list_modules():
                del sys.modules[name]
            sys.modules.update(own)
            MODULE_PROVIDERS.restore(provided)
            raise
        finally:
            sys.path[:] = path
            self._own_folders = self._list_folders()

    def _list_modules(self) -> dict[str, ModuleType]:
        return {
            name: module
            for name, module in sys.modules.items()
            if name.partition(".")[0] not in _NEVER_RELOADED and self._is_own(getattr(module, "__file__", None))
        }

    def _is_own(self, file: object) -> bool:
        if not isinstance(file, str) or "site-packages" in file:
            return False
        return os.path.abspath(file).startswith(f"{self._folder}{os.sep}")

    def _list_folders(self) -> set[str]:
        return {os.path.dirname(os.path.abspath(str(each.__file__))) for each in self._list_modules().values()}

    def _sign_files(self) -> dict[str, tuple[int, int]]:
        """Return time and size of each Python file in the folders of the target's own modules."""
        signatures = {}
        for folder in self._own_folders:
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".py"):
                        status = entry.stat()
                        signatures[entry.path] = (status.st_mtime_ns, status.st_size)
        return signatures
