"""Documents in JSON or YAML: files that are read by their declaration, and followed. Every mistake is reported at once, with
its path and its fix."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import inspect
import json
import logging
import math
import os
import re
import secrets
import stat
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar

import msgspec

from dispatch._internal import excerpt, find_near_names, install_extra, write_json

# Problems in documents.


Severity = Literal["error", "warning", "info"]

MAX_PROBLEMS_PER_ITEM: Final = 100
"""Problems reported for one document: a malformed megabyte could otherwise yield a hundred thousand."""


class Problem(msgspec.Struct, frozen=True):
    """One problem in a document.

    Attributes:
        file: path of the document, or ``tools[2]`` for a Python value; ``""``: named elsewhere.
        key: path of the value inside the document, such as ``arguments[1].type``; ``""``: the whole file.
        problem: description of the problem.
        fix: how to correct it.
        severity: ``error``: the document is not used; ``warning``: probably a mistake; ``info``: a note.
    """

    file: str
    key: str
    problem: str
    fix: str
    severity: Severity = "error"

    def __str__(self) -> str:
        where = "".join(f"{each}: " for each in (self.file, self.key) if each)
        return f"{where}{self.problem}. Fix: {self.fix}."


def list_mistakes(what: str, problems: Iterable[Problem]) -> str:
    """Return ``what``, the number of ``problems``, and a line for each."""
    lines = [f"  {each}" for each in problems]
    return "\n".join([f"{what}: {len(lines)} mistake{'' if len(lines) == 1 else 's'}.", *lines])


class Report:
    """Collects the problems of one document while it is read; ``has_errors``: one of them is an error.

    Args:
        file: see :class:`Problem`.
        repeats_keys: several errors of one key are added. Otherwise the first one: a value that is not readable would be
            reported as missing, too.
    """

    def __init__(self, file: str, *, repeats_keys: bool = False) -> None:
        self.file = file
        self.has_errors = False
        self._repeats_keys = repeats_keys
        self._problems: list[Problem] = []
        self._wrong_keys: set[str] = set()
        self._omitted = 0

    def add_error(self, key: str, problem: str, fix: str) -> None:
        """Add a problem that prevents loading."""
        self.has_errors = True
        if key and key in self._wrong_keys and not self._repeats_keys:
            return
        self._wrong_keys.add(key)
        self._add(Problem(self.file, key, problem, fix, "error"))

    def add_warning(self, key: str, problem: str, fix: str) -> None:
        """Add a problem that does not prevent loading, and is probably a mistake."""
        self._add(Problem(self.file, key, problem, fix, "warning"))

    def add_info(self, key: str, problem: str, fix: str) -> None:
        """Add a note."""
        self._add(Problem(self.file, key, problem, fix, "info"))

    @property
    def problems(self) -> list[Problem]:
        """The problems in the order in which they were added; beyond the limit a last one has the number of the others."""
        if not self._omitted:
            return list(self._problems)
        rest = Problem(
            self.file,
            "",
            f"{self._omitted:,} more problems are not listed",
            "correct the ones above, then check again",
            "error" if self.has_errors else "warning",
        )
        return [*self._problems, rest]

    def _add(self, problem: Problem) -> None:
        if len(self._problems) < MAX_PROBLEMS_PER_ITEM:
            self._problems.append(problem)
        else:
            self._omitted += 1


# JSON values as immutable Python values, and their descriptions in messages.


V = TypeVar("V")

MAX_DEPTH: Final = 32
"""Depth of nested objects and lists. Real descriptors with output schemas have less than ten levels."""

MAX_VALUES: Final = 20_000
"""Values in one descriptor. A YAML alias counts each time it is used, as it would be written out."""

_PLAIN_KEY: Final = re.compile(r"[\w$-]{1,60}")


def _reject_change(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise TypeError("values of a catalogue are immutable: load a new catalogue instead")


class FrozenDict(dict[str, V]):
    """An immutable ``dict``; a subclass of ``dict``, so that every JSON encoder accepts it. Two of them are equal if they
    are the same JSON: 1, 1.0 and ``true`` differ, as they do for a tool that receives them."""

    __slots__ = ()

    __setitem__ = _reject_change
    __delitem__ = _reject_change
    __ior__ = _reject_change
    clear = _reject_change
    pop = _reject_change
    popitem = _reject_change
    setdefault = _reject_change
    update = _reject_change

    def __eq__(self, other: object) -> bool:
        is_equal = dict.__eq__(self, other)
        return _is_same_json(self, other) if is_equal is True and isinstance(other, FrozenDict) else is_equal

    def __ne__(self, other: object) -> bool:
        is_equal = self.__eq__(other)
        return is_equal if is_equal is NotImplemented else not is_equal

    def __hash__(self) -> int:  # type: ignore[override]  # None in dict, which is mutable
        return hash(frozenset(self.items()))

    def __copy__(self) -> FrozenDict[V]:
        return self

    def __deepcopy__(self, _memo: object) -> FrozenDict[V]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


def _is_same_json(one: Any, other: Any) -> bool:
    """Return whether equal values have equal types, at every depth."""
    if one is other:
        return True
    if isinstance(one, dict):
        return isinstance(other, dict) and all(_is_same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return isinstance(other, tuple) and all(map(_is_same_json, one, other))
    return type(one) is type(other)


def freeze_json(value: object, report: Report) -> Any:
    """Return ``value`` as immutable JSON: objects as :class:`FrozenDict`, lists as tuples.

    A value that JSON cannot express (another type, a key that is not a text, a number that is not finite or has more than 64
    bits, half of a surrogate pair, more than :data:`MAX_DEPTH` or :data:`MAX_VALUES`) is reported and read as ``None``.
    """
    return _Freezer(report).freeze(value, "", 0)


class _Freezer:
    def __init__(self, report: Report) -> None:
        self._report_error = report.add_error
        self._remaining = MAX_VALUES

    def freeze(self, value: object, path: str, depth: int) -> Any:
        self._remaining -= 1
        if self._remaining < 0:  # reported once: the loops over lists and objects stop
            return self._report_error(
                path, f"more than {MAX_VALUES:,} values in one descriptor", "keep data out of the descriptor"
            )
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, int):
            if -(2**63) <= value < 2**64:
                return int(value)
            return self._report_error(path, "the number has more than 64 bits", "write it as a text")
        if isinstance(value, float):
            if math.isfinite(value):
                return float(value)
            return self._report_error(path, f"{value} is not a JSON number", "write a finite number, or remove the key")
        if isinstance(value, (Mapping, list, tuple)):
            if depth >= MAX_DEPTH:
                return self._report_error(
                    path, f"more than {MAX_DEPTH} nested objects or lists", "make the value flatter"
                )
            return self._mapping(value, path, depth) if isinstance(value, Mapping) else self._list(value, path, depth)
        return self._report_error(
            path, f"a {type(value).__name__} is not a JSON value", "write it as a text, in quotes"
        )

    def _list(self, values: Iterable[object], path: str, depth: int) -> tuple[Any, ...]:
        result = []
        for index, value in enumerate(values):
            result.append(self.freeze(value, f"{path}[{index}]", depth + 1))
            if self._remaining < 0:
                break
        return tuple(result)

    def _mapping(self, value: Mapping[Any, object], path: str, depth: int) -> FrozenDict[Any]:
        result: dict[str, Any] = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                self._report_error(
                    path, f"the key {excerpt(repr(key))} is {describe_kind(key)}, not a text", "put the key in quotes"
                )
            elif (text := self._text(key, path)) is not None:
                result[text] = self.freeze(inner, join_path(path, text), depth + 1)
            if self._remaining < 0:
                break
        return FrozenDict(result)

    def _text(self, value: str, path: str) -> str | None:
        try:
            value.encode()
        except UnicodeEncodeError:
            return self._report_error(path, "half of a surrogate pair in a text", "write both halves, or the character")
        return str(value)


def thaw(value: Any) -> Any:
    """Return a mutable copy of a frozen value: plain ``dict`` and ``list``."""
    if isinstance(value, dict):
        return {key: thaw(inner) for key, inner in value.items()}
    return [thaw(inner) for inner in value] if isinstance(value, tuple) else value


def is_finite(value: object) -> bool:
    """Return whether a value of JSON's types has no number that JSON cannot express, at any depth."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    return not isinstance(value, list) or all(map(is_finite, value))


def join_path(path: str, key: str) -> str:
    """Return the path of ``key`` in the object at ``path``: ``policy.retry``; an unusual key is in brackets."""
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{excerpt(repr(key), 62)}]"
    return f"{path}.{key}" if path else key


def describe_kind(value: object) -> str:
    """Return the kind of a JSON value, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


def describe_value(value: object) -> str:
    """Return a short value itself (``'str'``, ``7``), or the kind of a long one."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return excerpt(repr(value), 62)
    return describe_kind(value)


EMPTY: Final[FrozenDict[Any]] = FrozenDict()
"""The one empty object of all descriptors, which saves memory in large catalogues."""

# Parsers of JSON and YAML that report the place of each syntax error.


YAML_EXTRA: Final = install_extra("yaml")
Mistake = tuple[str, str, str]
"""Key, problem and fix; the key ``""`` is the whole document."""


class DocumentError(ValueError):
    """A file or a text is not a valid document. A mistake with a key is a duplicate key."""

    def __init__(self, *mistakes: Mistake) -> None:
        super().__init__("; ".join(problem for _key, problem, _fix in mistakes))
        self.mistakes = mistakes


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        DocumentError: the text is empty, not JSON (RFC 8259: no comments, no NaN), or an object has a duplicate key.
    """
    _reject_empty(text)
    duplicates: dict[str, None] = {}

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = {sys.intern(key): inner for key, inner in pairs}  # thousands of descriptors have the same keys
        if len(value) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    duplicates[key] = None
                seen.add(key)
        return value

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DocumentError(("", f"not JSON: {error.msg} at {place}", f"correct {place}")) from None
    except RecursionError:
        raise DocumentError(_TOO_DEEP) from None
    except ValueError as error:  # NaN and Infinity; a whole number of thousands of digits
        raise DocumentError(("", f"not JSON: {excerpt(str(error), 120)}", "write a finite number, or a text")) from None
    if duplicates:
        raise DocumentError(*(_duplicate(key) for key in list(duplicates)[:20]))
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _reject_empty(text: str) -> None:
    if not text.strip():
        raise DocumentError(("", EMPTY_FILE, "write its content, or delete the file"))


EMPTY_FILE: Final = "the file is empty"
_TOO_DEEP: Final[Mistake] = "", "too many nested objects or lists", "make the value flatter"


def _duplicate(key: str, place: str = "") -> Mistake:
    return excerpt(key), f"duplicate key '{excerpt(key)}' in one object{place}", "remove one of the two"


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text with JSON's types: ``no`` and ``2024-01-01`` are texts, only ``true`` and ``false``
    are booleans, and merge keys are not supported.

    Raises:
        DocumentError: PyYAML is not installed, or the text is empty, not YAML, or has a duplicate key in a mapping.
    """
    try:
        import yaml  # an extra: not needed for JSON
    except ImportError:
        raise DocumentError(("", "PyYAML is needed to read YAML", f"{YAML_EXTRA}, or write the file as JSON")) from None
    _reject_empty(text)
    try:
        loader = _yaml_loader()(text)
        try:
            value, duplicates = loader.get_single_data(), loader.duplicates
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "an unknown place"
        what = excerpt(error.problem or error.context or "not readable", 120)
        fix = f"correct {place}" + (": YAML is indented with blanks, not tabs" if "\\t" in what else "")
        raise DocumentError(("", f"not YAML: {what} at {place}", fix)) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        what = excerpt(" ".join(str(error).split()), 120)
        raise DocumentError(("", f"not YAML: {what}", "remove that character")) from None
    except RecursionError:
        raise DocumentError(_TOO_DEEP) from None
    except ValueError as error:  # an explicit tag on a value that does not fit it
        what = excerpt(str(error), 120)
        raise DocumentError(("", f"not YAML: {what}", "write the value as a text, in quotes")) from None
    if duplicates:
        raise DocumentError(*(_duplicate(key, f" (line {line})") for key, line in duplicates[:20]))
    return value


@functools.cache
def _yaml_loader() -> Any:
    """Return PyYAML's safe loader with JSON's plain scalars instead of YAML 1.1's: the latter would read the style ``no`` as
    false, and a version ``2024-01-01`` as a date. Merge keys (``<<``) are not supported: nested ones grow without bound."""
    import yaml
    from yaml.constructor import BaseConstructor

    class JsonLoader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's attribute

        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.duplicates: list[tuple[str, int]] = []

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        self.duplicates.append((key.value, key.start_mark.line + 1))
                    seen.add(key.value)
            # Not SafeConstructor's, which would follow an explicit !!merge tag.
            return BaseConstructor.construct_mapping(self, node, deep)

    number = r"-?(?:0|[1-9][0-9]*)"
    for tag, pattern, first in (
        ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
        ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
        ("int", number, "-0123456789"),
        ("float", rf"{number}(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-0123456789"),
    ):
        JsonLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), list(first))
    return JsonLoader


PARSERS: Final = {".json": parse_json, ".yaml": parse_yaml, ".yml": parse_yaml}
"""By the suffix of a file. A document with another one is JSON."""

# Files: bounded reading, atomic writing, following.


Signature = tuple[int, int, int, int, int]
Typed = TypeVar("Typed")
NOT_REGULAR: Final[Mistake] = "", "not a regular file", "put a file in its place"


def sign_status(status: os.stat_result) -> Signature:
    """Return what changes with every change of a file; the last two are times in nanoseconds.

    Raises:
        DocumentError: it is not a regular file.
    """
    if not stat.S_ISREG(status.st_mode):
        raise DocumentError(NOT_REGULAR)
    return status.st_ino, status.st_dev, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def sign_file(path: str | os.PathLike[str]) -> Signature | None:
    """Return :func:`sign_status` of a file; None: there is no regular file that can be read."""
    try:
        return sign_status(os.stat(path))
    except (OSError, ValueError):  # ValueError: a NUL character, or no regular file
        return None


def read_regular_file(path: str | os.PathLike[str], max_bytes: int, too_large: str) -> tuple[bytes, Signature]:
    """Return the content of a file and its signature. Never waits for a pipe.

    Args:
        max_bytes: of the largest file.
        too_large: the fix of a larger one.

    Raises:
        DocumentError: it is not a regular file, or too large.
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:  # a NUL character, half of a surrogate pair
        raise OSError(errno.EINVAL, "this cannot be the name of a file") from None
    try:
        signature = sign_status(os.fstat(descriptor))
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    check_size(content, max_bytes, too_large)
    return content, signature


def check_size(content: bytes, max_bytes: int, too_large: str) -> None:
    """Check the size of a content.

    Raises:
        DocumentError: it is too large, with ``too_large`` as the fix.
    """
    if len(content) > max_bytes:
        raise DocumentError(("", f"more than {max_bytes:,} bytes", too_large))


def decode_text(content: bytes) -> str:
    """Return the text of a file in UTF-8.

    Raises:
        DocumentError: it is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")  # some editors begin a UTF-8 file with a byte order mark
    except UnicodeDecodeError as error:
        encoding = "UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "LATIN1"
        problem = f"not UTF-8: byte {error.start:,} begins no character"
        raise DocumentError(("", problem, f"if it is {encoding}, convert it: iconv -f {encoding} -t UTF-8")) from None


def parse_document(content: bytes, path: str | os.PathLike[str]) -> Any:
    """Return the value of a file's content, in YAML or JSON by the suffix of its name.

    Raises:
        DocumentError: it is not valid.
    """
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    return PARSERS.get(suffix, parse_json)(decode_text(content))


def parse_typed(content: bytes, path: str | os.PathLike[str], kind: type[Typed]) -> Typed:
    """Return the value of a file's content as a type of msgspec, for files that programs write, and for those with secrets:
    their first mistake is enough, and its text has no value of the file.

    Raises:
        DocumentError: it is not valid; the first mistake.
    """
    try:
        return msgspec.convert(parse_document(content, path), kind)
    except msgspec.ValidationError as error:
        raise DocumentError(("", excerpt(str(error), 200), "correct it")) from None


def load_document(path: str | os.PathLike[str], max_bytes: int, too_large: str, example: str) -> Any:
    """Return the value of a file in YAML or JSON.

    Args:
        max_bytes, too_large: see :func:`read_regular_file`.
        example: the fix of an empty file.

    Raises:
        DocumentError: it cannot be read, or is not valid.
    """
    try:
        return parse_document(read_regular_file(path, max_bytes, too_large)[0], path)
    except OSError as error:
        raise DocumentError(("", f"cannot be read: {error.strerror or error}", "name a readable file")) from None
    except DocumentError as error:
        if error.mistakes[0][1] == EMPTY_FILE:
            raise DocumentError(("", EMPTY_FILE, example)) from None
        raise


def replace_file(path: str | os.PathLike[str], text: str, mode: int | None = None) -> None:
    """Write a file atomically: a reader sees the former contents or the new ones.

    Args:
        path: of the file; its folder exists.
        text: the new contents.
        mode: permission bits; None: those of the former file, or of any new file.

    Raises:
        OSError: it cannot be written, with ``path`` as its file; the former file is as it was.
    """
    if mode is None:
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(path).st_mode & 0o777
    temporary = os.path.join(os.path.dirname(path), f".dispatch-{secrets.token_hex(8)}.tmp")
    try:
        # Not tempfile.mkstemp: its files are private, and the umask can only be read by changing it for all threads.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            if mode is not None:
                os.chmod(temporary, mode)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:  # not of the temporary file; that of a write names no file
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def find_write_fix(error: OSError, otherwise: str) -> str:
    """Return what to do about a file that cannot be written: make room for it, or ``otherwise``."""
    return "make room on its disk, or raise its quota or limit of size" if error.errno in _NO_ROOM else otherwise


@contextlib.contextmanager
def lock_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Exclude other threads and processes that lock the same folder. A lock of the folder leaves no file behind."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# Following of a file: a valid change comes into force, an invalid one is reported once and changes nothing.


POLL_S: Final = 1.0
"""Seconds between two checks of a file."""
SETTLE_S: Final = 0.2
"""Seconds after which an invalid file is read again before it is reported: it may have been written in part."""
RACY_S: Final = 2.0
"""Seconds for which the content of a changed file is compared on each check: a second change within the granularity of the
file system's clock (2 s on FAT) does not change the file's time."""

Content = TypeVar("Content")
Struct = TypeVar("Struct", bound=msgspec.Struct)


class FileWatch(Generic[Content]):
    """Keeps the content of a file up to date, in a daemon thread. Polling follows what notifications miss: an atomic rename,
    the swap of the ``..data`` link of a Kubernetes ConfigMap, network file systems.

    Args:
        path: the file.
        read: returns its bytes.
        parse: returns what they mean; both raise a ValueError whose text says why the file cannot be used.
        on_change: receives it, in the thread.
        what: name of the content in the log.
        logger: of messages.

    Attributes:
        wait: waits for that many seconds; returns whether the watch is closed.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[Path], bytes],
        parse: Callable[[bytes], Content],
        on_change: Callable[[Content], object],
        what: str,
        logger: logging.Logger,
    ) -> None:
        self._path = path
        self._read = read
        self._parse = parse
        self._on_change = on_change
        self._what = what
        self._logger = logger
        self._closed = threading.Event()
        self.wait: Callable[[float], bool] = self._closed.wait
        self._thread: threading.Thread | None = None
        # The first check reads the file, which may have changed since it was loaded.
        self._signature: Signature | None = None
        self._content: bytes | None = None
        self._problem = ""

    def start(self) -> None:
        """Begin to watch. A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"dispatch-{self._what}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop watching. Does not wait for the thread, which may be reading from a file system that hangs."""
        self._closed.set()

    def _run(self) -> None:
        while not self.wait(POLL_S):
            self.check()

    def check(self) -> None:
        """Read the file if it has changed, and report a problem once; what is in force stays."""
        try:
            value = self.poll()
            if value is not None:
                self._on_change(value)
        except ValueError as error:
            self._report(str(error))
        except Exception as error:  # a bug of on_change must not end the watch; it is called again
            self._signature = self._content = None
            self._report(f"{type(error).__name__}: {error}")

    def poll(self) -> Content | None:
        """Return the content of the file if it has changed; None: it has not.

        Raises:
            ValueError: it cannot be used.
        """
        signature = sign_file(self._path)
        if signature is not None and signature == self._signature:
            return None
        try:
            value = self._read_changed()
        except ValueError:
            if self._problem:
                raise
            self.wait(SETTLE_S)
            value = self._read_changed()
        is_racy = signature is None or time.time() - signature[3] / 1e9 < RACY_S
        self._signature = None if is_racy else signature
        if self._problem:
            self._problem = ""
            self._logger.info("the %s in '%s' are valid again", self._what, self._path)
        return value

    def _read_changed(self) -> Content | None:
        content = self._read(self._path)
        if content == self._content:
            return None
        value = self._parse(content)
        if self._content is not None:
            self._logger.info("%s loaded from '%s'", self._what, self._path)  # without the value: it may be a secret
        self._content = content
        return value

    def _report(self, problem: str) -> None:
        """Log a problem once."""
        if problem != self._problem:
            self._problem = problem
            self._logger.warning("the %s in force stay, because the file is invalid: %s", self._what, problem)


# Declarations: what may be in a document. A rule reads one value; a struct has a rule for each field, in its annotation.


Rule = Callable[[Any, Report, str], Any]
"""Returns what the value at a path means, or :data:`WRONG` and has added the mistakes."""
WRONG: Final = type("Wrong", (), {"__slots__": ()})()
"""What a rule returns for a value with mistakes."""


Words = str | Callable[[Any], str]
"""A sentence about a value, in which ``{!r}`` is the value, ``{shown}`` a short form of it and ``{kind}`` its kind
(:func:`describe_value`, :func:`describe_kind`); or what makes one."""
Need = tuple[Callable[[Any], object], Words, Words]
"""A test, the problem of a value that fails it, and the fix, which has no such fields."""


def refuse(report: Report, path: str, problem: str, fix: str) -> Any:
    """Add a mistake; return :data:`WRONG`."""
    report.add_error(path, problem, fix)
    return WRONG


def require(*needs: Need) -> Rule:
    """Return a rule for a value that meets all of ``needs``, and is used as it is. The first one that it fails counts."""

    def read(value: Any, report: Report, path: str) -> Any:
        for test, problem, fix in needs:
            if not test(value):
                if isinstance(problem, str):
                    problem = problem.format(value, shown=describe_value(value), kind=describe_kind(value))
                else:
                    problem = problem(value)
                return refuse(report, path, problem, fix if isinstance(fix, str) else fix(value))
        return value

    return read


def optional(rule: Rule) -> Rule:
    """Return a rule for what ``rule`` reads, or null."""
    return lambda value, report, path: None if value is None else rule(value, report, path)


def list_of(rule: Rule, *needs: Need) -> Rule:
    """Return a rule for a list that meets ``needs``, whose elements ``rule`` reads; it is read as a tuple."""
    check = require(*needs)

    def read(value: Any, report: Report, path: str) -> Any:
        if check(value, report, path) is WRONG:
            return WRONG
        found = tuple([rule(each, report, f"{path}[{index}]") for index, each in enumerate(value)])
        return WRONG if WRONG in found else found

    return read


def map_of(name: Rule, rule: Rule, *needs: Need) -> Rule:
    """Return a rule for an object that meets ``needs``, whose keys ``name`` reads, and ``rule`` its values."""
    check = require(*needs)

    def read(value: Any, report: Report, path: str) -> Any:
        if check(value, report, path) is WRONG:
            return WRONG
        found = {
            key: rule(each, report, join_path(path, key))
            for key, each in value.items()
            if name(key, report, path) is not WRONG
        }
        return WRONG if len(found) < len(value) or WRONG in found.values() else found

    return read


def object_of(kind: type[msgspec.Struct], missing: Mapping[str, str], *needs: Need) -> Rule:
    """Return a rule for an object with the fields of a struct, as which it is read. Unknown keys are mistakes.

    Args:
        missing: the fix of each field without a default, by its key.
        needs: that the object meets.
    """
    check = require(*needs)

    def read(value: Any, report: Report, path: str) -> Any:
        if check(value, report, path) is WRONG:
            return WRONG
        fields = rules_of(kind)
        found: dict[str, Any] = {}
        for key in value:
            if key not in fields:
                near = find_near_names(str(key), fields, 1)
                fix = f"rename it to '{near[0]}'" if near else f"remove it; the keys are {', '.join(fields)}"
                report.add_error(join_path(path, str(key)), "an unknown key", fix)
                found[""] = WRONG
        for key, fix in missing.items():
            if key not in value:
                report.add_error(join_path(path, key), "the key is missing", fix)
                found[""] = WRONG
        for key, (field, rule) in fields.items():
            if key in value:
                found[field] = rule(value[key], report, join_path(path, key))
        return WRONG if WRONG in found.values() else kind(**found)

    return read


@functools.cache
def rules_of(kind: type[msgspec.Struct]) -> dict[str, tuple[str, Rule]]:
    """Return, by their keys, the names and the rules of the fields of a struct that have one."""
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        hints |= inspect.get_annotations(base, eval_str=True) if base not in (object, msgspec.Struct) else {}
    rules = {field: next(filter(callable, getattr(hint, "__metadata__", ())), None) for field, hint in hints.items()}
    keys = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
    return {key: (field, rule) for key, field in keys if (rule := rules[field]) is not None}


def is_number(value: object) -> bool:
    """Return whether ``value`` is a JSON number: ``true`` is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Return whether ``value`` is a whole number without a fraction: 2.0 is none."""
    return isinstance(value, int) and not isinstance(value, bool)


# Variables of the environment in the texts of a document.


_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-((?:(?!\$\{)[^}])*))?\}")
_UNKNOWN_FORM: Final = re.compile(r"\$\{(?=.)\w*\W?")
"""The begin of a form of other programs, such as ``${env:NAME}``: what follows may be a secret."""


def expand_variables(value: Any, environment: Mapping[str, str], report: Report, path: str) -> Any:
    """Return a frozen JSON value with the variables ``${NAME}`` and ``${NAME:-DEFAULT}`` in its texts replaced; keys and
    other values are unchanged. A text with a mistake is read as ``""``."""
    if isinstance(value, dict):
        pairs = (
            (key, expand_variables(each, environment, report, join_path(path, key))) for key, each in value.items()
        )
        return FrozenDict(pairs)
    if isinstance(value, tuple):
        elements = enumerate(value)
        return tuple([expand_variables(each, environment, report, f"{path}[{index}]") for index, each in elements])
    if not isinstance(value, str) or "${" not in value:
        return value
    unknown = _UNKNOWN_FORM.search(_VARIABLE.sub("", value))
    if unknown is not None:
        fix = "write ${NAME} or ${NAME:-default}, with the name of an environment variable"
        report.add_error(path, f"'{excerpt(unknown[0])}…' is no form of a variable", fix)
        return ""

    def value_of(match: re.Match[str]) -> str:
        name, default = match.groups()
        found = environment.get(name) or default
        if found is None:
            fix = f"set it, or write a default: ${{{name}:-…}}"
            report.add_error(path, f"the environment variable '{name}' is not set", fix)
        return found or ""

    return _VARIABLE.sub(value_of, value)


# The rules of keys with an example of their values, which their fixes show. Null counts as a missing key.


class Key(msgspec.Struct, frozen=True):
    """The rule of a key of an object.

    Attributes:
        test: of the kind of its value.
        what: that kind, such as ``a text``.
        example: of a value.
        then: reads a value of that kind.
        is_required: it must be given.
    """

    test: Callable[[Any], bool]
    what: str
    example: Any
    then: Rule | None = None
    is_required: bool = False

    def __call__(self, value: Any, report: Report, path: str) -> Any:
        if self.test(value):
            return value if self.then is None else self.then(value, report, path)
        name = f"'{key_of(path)}'" if path else "the document"
        problem = f"{name} is {describe_kind(value)}, not {self.what}"
        return refuse(report, path, problem, show_key(path, self.example))


def key_of(path: str) -> str:
    """Return the last key of a path to a declared key."""
    return path.rpartition(".")[2]


def show_key(path: str, example: object) -> str:
    """Return the fix of a wrong value; the path "" is the whole document."""
    return f'write "{key_of(path)}": {write_json(example)}' if path else f"write {write_json(example)}"


def is_text(value: object) -> bool:
    """Return whether ``value`` is a text."""
    return isinstance(value, str)


def is_list(value: object) -> bool:
    """Return whether ``value`` is a list, which is a tuple after :func:`freeze_json`."""
    return isinstance(value, (tuple, list))


def text_key(example: str, then: Rule | None = None, *, is_required: bool = False, may_be_empty: bool = True) -> Key:
    """Return the rule of a text."""

    def read(text: str, report: Report, path: str) -> Any:
        if not text.strip():
            return refuse(report, path, f"'{key_of(path)}' is empty", show_key(path, example))
        return text if then is None else then(text, report, path)

    return Key(is_text, "a text", example, then if may_be_empty else read, is_required)


def name_key(example: str) -> Key:
    """Return the rule of a name or an id: one line, bounded, without blanks around it."""
    return text_key(example, _read_name, is_required=True, may_be_empty=False)


MAX_NAME_CHARS: Final = 256
"""Characters of a name or an id: they appear in metric labels, log lines and texts for models."""


def _read_name(name: str, report: Report, path: str) -> Any:
    if not name.isprintable():
        return refuse(report, path, "a control character in a name", "use letters, digits, '-' and '_'")
    if len(name) > MAX_NAME_CHARS:
        return refuse(report, path, f"{len(name):,} characters", f"use a name of at most {MAX_NAME_CHARS}")
    if name.strip() != name:
        return refuse(report, path, f"{describe_value(name)} has blanks around it", show_key(path, name.strip()))
    return sys.intern(name)


FLAG_KEY: Final = Key(lambda value: isinstance(value, bool), "true or false", True)


def texts_key(example: str, *, may_be_empty: bool = False) -> Key:
    """Return the rule of a list of texts, which are read without duplicates. ``may_be_empty``: a text may be blank."""
    fix = f"write {write_json(example)}, or remove it"
    elements = list_of(
        require(
            (is_text, "{shown} instead of a text", fix),
            (lambda text: may_be_empty or text.strip(), "an empty text", fix),
        )
    )

    def read(values: Any, report: Report, path: str) -> Any:
        texts = elements(values, report, path)
        # Interned: thousands of tools share a few tags, groups and permissions.
        return texts if texts is WRONG else tuple(dict.fromkeys(map(sys.intern, texts)))

    return Key(is_list, "a list", [example], read)


def object_key(example: Mapping[str, Any], then: Rule | None = None) -> Key:
    """Return the rule of an object."""
    return Key(lambda value: isinstance(value, dict), "an object", example, then)


def objects_key(kind: type[msgspec.Struct], example: Mapping[str, Any], unique: str, problem: str, fix: str) -> Key:
    """Return the rule of a list of objects with the fields of a struct. One that is no object is read as None.

    Args:
        unique: field in which no two of them may be equal.
        problem: of one that is equal, with ``{}`` for its value; ``fix``: of it.
    """

    def read_one(value: Any, report: Report, path: str) -> Any:
        if not isinstance(value, dict):
            report.add_error(path, f"{describe_value(value)} instead of an object", f"write {write_json(example)}")
            return None
        found = read_struct(kind, value, report, path)
        warn_of_unknown_keys(value, rules_of(kind), report, path)
        return found

    elements = list_of(read_one)

    def read(values: Any, report: Report, path: str) -> Any:
        found = elements(values, report, path)
        seen: set[str] = set()
        for index, each in enumerate(found):
            name = getattr(each, unique, "")
            if name and name in seen:
                report.add_error(f"{path}[{index}].{unique}", problem.format(excerpt(name)), fix)
            seen.add(name)
        return found

    return Key(is_list, "a list", [example], read)


def read_struct(
    kind: type[Struct], raw: Mapping[str, Any], report: Report, path: str = "", known: Iterable[str] = (), **fields: Any
) -> Struct:
    """Return the struct in an object. After an error it must not be used: a required text with a mistake is ``""``.

    Args:
        known: keys that the object may have besides those of the struct.
        fields: that are not in the object.
    """
    rules = rules_of(kind)
    found = fields
    for key, (field, rule) in rules.items():
        value, at = raw.get(key), f"{path}.{key}" if path else key
        if value is not None:
            value = rule(value, report, at)
            if value is not WRONG:
                found[field] = value
        elif isinstance(rule, Key) and rule.is_required:
            state = "null" if key in raw else "missing"
            fix = explain_missing(raw, key, rule.example, (*rules, *known))
            report.add_error(at, f"the required key '{key}' is {state}", fix)
    if report.has_errors:
        found = {**dict.fromkeys(kind.__struct_fields__[: -len(kind.__struct_defaults__) or None], ""), **found}
    return kind(**found)


def explain_missing(raw: Mapping[str, Any], key: str, example: object, known: Iterable[str]) -> str:
    """Return the fix of a missing key: rename a similar one, or add it."""
    fix = f'add "{key}": {write_json(example)}'
    known = frozenset(known)
    meant = find_near_names(key, [other for other in raw if other not in known], 1)
    return f"rename '{excerpt(meant[0])}' to '{key}', or {fix}" if meant else fix


def warn_of_unknown_keys(
    raw: Mapping[str, Any],
    known: Collection[str],
    report: Report,
    path: str = "",
    silent: Collection[str] = (),
    otherwise: str = "remove it",
) -> None:
    """Report a warning for each key that is neither known nor in ``silent``. ``otherwise``: what to do with a key that means
    no known one."""
    for key in raw:
        if key not in known and key not in silent:
            meant = find_near_names(key, known, 1)
            fix = f"rename it to '{meant[0]}' if you meant that, or {otherwise}" if meant else otherwise
            report.add_warning(join_path(path, key), "an unknown key, which is ignored", fix)
