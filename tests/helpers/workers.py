"""Pytest plugin: how the processes of pytest-xdist share the tests, and what they tell each other.

Registered by tests/conftest.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class ModuleScheduling(LoadGroupScheduling):
    """Assigns whole modules to workers, apart from tests with a group of their own, in the order of the tests.

    pytest-xdist looks through everything that a worker has been assigned each time that a test ends: one test at a time
    would cost the controller a millisecond and more for each. Fixtures of a module are set up once.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._indices: dict[str, int] = {}

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        self._indices = {id: index for index, id in enumerate(collection)}

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget modules that have ended: nothing looks through them again."""
        super().mark_test_complete(node, item_index, duration)
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Assign a module. perf: pytest-xdist searches the list of all tests for each of its tests."""
        scope, unit = self.workqueue.popitem(last=False)
        self.assigned_work.setdefault(node, {})[scope] = unit
        node.send_runtest_some([self._indices[id] for id, is_complete in unit.items() if not is_complete])

    def _split_scope(self, nodeid: str) -> str:
        return super()._split_scope(nodeid).partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    if config.getoption("dist") != "loadgroup" or config.getoption("long_profile"):
        return None  # the long form of a module has parts that take minutes: they run beside each other
    config.option.loadscopereorder = False  # by the number of tests, which says little of their time
    return ModuleScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Let a worker tell the controller what it shows, and nothing else: of six messages for each test four are without
    consequence. They take a third of a short test's processor time, in the worker and in the controller.
    """
    options = session.config.option
    if options.verbose > 0 or options.durations or options.xmlpath:
        return  # they show the times of setup and teardown, or where each test is
    for plugin in session.config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":  # of pytest-xdist: a module that is no import
            plugin.sendevent = _brief(plugin.sendevent)  # type: ignore[attr-defined]


def _brief(send: Callable[..., None]) -> Callable[..., None]:
    """Return a function that sends a message of this worker if the controller needs it."""

    def send_needed(name: str, **values: Any) -> None:
        if name in ("logstart", "logfinish"):
            return
        if name == "testreport" and values["data"]["outcome"] == "passed":
            if values["data"]["when"] != "call":
                return
            values["data"]["keywords"] = {}
        send(name, **values)

    return send_needed
