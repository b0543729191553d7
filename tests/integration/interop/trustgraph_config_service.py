"""TrustGraph's published config service as a process of its own. Its store, the only part that needs Cassandra, is in
memory: each start begins with an empty one."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable


class ConfigTableStore:
    """The ten methods of ``trustgraph.tables.config.ConfigTableStore`` that the service calls."""

    def __init__(self, *_connection: object) -> None:
        self._texts: dict[tuple[str, str, str], str] = {}
        self._version = 0

    def _of(self, workspace: str | None = None, kind: str | None = None) -> Iterable[tuple[str, str, str, str]]:
        return [
            (*place, text)
            for place, text in sorted(self._texts.items())
            if workspace in (None, place[0]) and kind in (None, place[1])
        ]

    async def inc_version(self) -> None:
        self._version += 1

    async def get_version(self) -> int:
        return self._version

    async def put_config(self, workspace: str, cls: str, key: str, value: str) -> None:
        self._texts[workspace, cls, key] = value

    async def delete_key(self, workspace: str, cls: str, key: str) -> None:
        self._texts.pop((workspace, cls, key), None)

    async def get_value(self, workspace: str, cls: str, key: str) -> str | None:
        return self._texts.get((workspace, cls, key))

    async def get_keys(self, workspace: str, cls: str) -> list[str]:
        return [key for _, _, key, _ in self._of(workspace, cls)]

    async def get_values(self, workspace: str, cls: str) -> list[list[str]]:
        return [[key, text] for _, _, key, text in self._of(workspace, cls)]

    async def get_keys_all_ws(self, cls: str) -> list[tuple[str, str]]:
        return [(workspace, key) for workspace, _, key, _ in self._of(kind=cls)]

    async def get_values_all_ws(self, cls: str) -> list[tuple[str, str, str]]:
        return [(workspace, key, text) for workspace, _, key, text in self._of(kind=cls)]

    async def get_all_for_workspace(self, workspace: str) -> list[tuple[str, str, str]]:
        return [(kind, key, text) for _, kind, key, text in self._of(workspace)]


if __name__ == "__main__":
    tables = types.ModuleType("trustgraph.tables.config")
    tables.__dict__["ConfigTableStore"] = ConfigTableStore
    sys.modules["trustgraph.tables.config"] = tables
    from trustgraph.config.service import run

    run()
