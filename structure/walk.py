"""The files that one call goes through, traced from ``Dispatcher.call`` until the request is in its session."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import dispatch
from structure.layers import DISPATCH, ROOT

COUNTING = """\
A real call of "tell-joke" (examples/tools, examples/joke_service.py) on the embedded broker is traced, from Dispatcher.call
until the request is in the session with its instance; the endpoint sends it at the end of the turn. It is the third call of
that tool, so that its instance is known and nothing is imported; telemetry has its defaults.

visit    a function of a file of dispatch/ is called while the innermost function of dispatch/ that runs is in another file.
         Functions of the same file, returns of control and coroutines that are resumed are no visits; other code (Python's
         library, dependencies) is passed through.
return   a visit of a file that was visited before.

Three lists are counted. The chain: the functions that have not returned when the request is sent, outermost first; what a
reader follows from the call to the wire. The pipeline: all visits of dispatcher/, calls/ and routing/, that is the steps
of the call (permission, admission, choice of an instance). All: the guards, formats and helpers too.
"""
PIPELINE = ("dispatch/dispatcher.py", "dispatch/calls/", "dispatch/routing/")
"""Files and folders of the steps of a call."""
SENDS = ("publish", "send_request")
"""Names of the method of a transport, or of a session, that is given a request."""
MOST_FILES = 6
MOST_RETURNS = 3
"""Limits of the chain (the design's six steps in six files)."""


class Visit(NamedTuple):
    """A function that was entered from another file."""

    path: str
    function: str
    depth: int
    """Visits that it is nested in."""


class Walk(NamedTuple):
    """A call, as far as the transport's send."""

    chain: list[Visit]
    visits: list[Visit]

    @property
    def pipeline(self) -> list[Visit]:
        """The visits of :data:`PIPELINE`."""
        return [visit for visit in self.visits if visit.path.startswith(PIPELINE)]

    @property
    def exceeds(self) -> bool:
        """The chain exceeds one of its limits."""
        return len(count_files(self.chain)) > MOST_FILES or count_returns(self.chain) > MOST_RETURNS


def count_files(visits: Iterable[Visit]) -> list[str]:
    """Distinct files, in the order of their first visit."""
    return list(dict.fromkeys(visit.path for visit in visits))


def count_returns(visits: Iterable[Visit]) -> int:
    """Visits of a file that was visited before."""
    paths = [visit.path for visit in visits]
    return len(paths) - len(set(paths))


class Tracer:
    """Profiles the current thread (``sys.setprofile``) from the first frame of ``start`` until a transport sends.

    Args:
        folder: the files that count.
        start: name of the function (``Dispatcher.call``) that begins the walk.
        ends: folders where a function named in :data:`SENDS` ends it.
    """

    def __init__(self, folder: Path, start: str, *ends: Path) -> None:
        self._folder = f"{folder}/"
        self._base = folder.parent
        self._start = start
        self._ends = tuple(f"{end}/" for end in ends)
        self._stack: list[FrameType] = []
        self._root: FrameType | None = None
        self._known: set[FrameType] = set()  # frames themselves: a reused id would hide a visit
        self._visits: list[Visit] = []
        self.walk: Walk | None = None

    def __enter__(self) -> Tracer:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_exc: object) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self.walk is not None:
            return
        if event == "call":
            self._on_call(frame)
        elif event == "return" and self._stack and self._stack[-1] is frame:
            self._stack.pop()

    def _on_call(self, frame: FrameType) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(self._folder):
            return
        if self._root is None and code.co_qualname == self._start:
            self._root = frame
        if not self._stack and frame is not self._root:  # another task, while the call waits
            return
        if frame not in self._known:
            self._known.add(frame)
            if not self._stack or self._stack[-1].f_code.co_filename != code.co_filename:
                self._visits.append(Visit(self._path(frame), code.co_qualname, len(_changes(self._stack))))
        self._stack.append(frame)
        if code.co_name in SENDS and code.co_filename.startswith(self._ends):
            chain = [
                Visit(self._path(each), each.f_code.co_qualname, i) for i, each in enumerate(_changes(self._stack))
            ]
            self.walk = Walk(chain, self._visits)
            self._known.clear()
            self._stack = []

    def _path(self, frame: FrameType) -> str:
        return Path(frame.f_code.co_filename).relative_to(self._base).as_posix()


def _changes(stack: list[FrameType]) -> list[FrameType]:
    """The frames whose caller is in another file."""
    files = [frame.f_code.co_filename for frame in stack]
    return [frame for i, frame in enumerate(stack) if i == 0 or files[i] != files[i - 1]]


def walk_call() -> Walk:
    """Trace one call of ``tell-joke``.

    Raises:
        RuntimeError: no session was reached.
    """
    return asyncio.run(_walk_call())


async def _walk_call() -> Walk:
    broker = "memory://walk"
    server = dispatch.ToolServer(_load_joke_service(), broker, service="joke")
    async with server, dispatch.connect(broker, ROOT / "examples" / "tools") as dispatcher:
        for _ in range(2):
            await dispatcher.call("tell-joke", {"topic": "cats"}, user="alice")
        with Tracer(DISPATCH, "Dispatcher.call", DISPATCH / "transports", DISPATCH / "protocol") as tracer:
            await dispatcher.call("tell-joke", {"topic": "cats"}, user="alice")
    if tracer.walk is None:
        raise RuntimeError(
            f"no function named {' or '.join(SENDS)} in dispatch/transports/ or protocol/ was called by Dispatcher.call"
        )
    return tracer.walk


def _load_joke_service() -> dispatch.ToolService:
    path = ROOT / "examples" / "joke_service.py"
    spec = importlib.util.spec_from_file_location("joke_service", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    service = module.Joke()
    assert isinstance(service, dispatch.ToolService)
    return service


def figures_of(walk: Walk) -> dict[str, dict[str, int]]:
    """Files and returns of each list."""
    lists = {"chain": walk.chain, "pipeline": walk.pipeline, "all": walk.visits}
    return {
        name: {"files": len(count_files(visits)), "returns": count_returns(visits)} for name, visits in lists.items()
    }


def describe(walk: Walk) -> str:
    """All visits, nested as they are called, and the figures. ``*`` marks the chain, ``return`` a file visited before."""
    chain = {(visit.path, visit.function) for visit in walk.chain}
    lines = []
    seen: set[str] = set()
    for visit in walk.visits:
        mark = "*" if (visit.path, visit.function) in chain else " "
        again = "  (return)" if visit.path in seen else ""
        lines.append(f"{mark} {'  ' * visit.depth}{visit.path}  {visit.function}{again}")
        seen.add(visit.path)
    lines += ["", f"{'':10}{'files':>7}{'returns to a file already left':>33}"]
    lines += [f"{name:10}{each['files']:>7}{each['returns']:>33}" for name, each in figures_of(walk).items()]
    return "\n".join([*lines, f"limits of the chain: {MOST_FILES} files, {MOST_RETURNS} returns"])
