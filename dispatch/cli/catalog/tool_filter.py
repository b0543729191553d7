"""Which tools ``dispatch tools`` lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dispatch.catalog import Catalog
from dispatch.cli.catalog.listed_tool import ListedTool, UnusedItem, list_tool
from dispatch.cli.exit_codes import CliError


class ToolFilter(NamedTuple):
    """The conditions of :meth:`dispatch.Catalog.list`, with the same meaning."""

    category: str | None = None
    tags_any: Sequence[str] = ()
    service: str | None = None
    source: str | None = None
    text: str = ""
    permission: str | None = None
    groups: Sequence[str] | None = None
    state: str | None = None
    version: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether every tool is listed."""
        return self == ToolFilter()

    def select(self, catalog: Catalog) -> list[ListedTool]:
        """Return the tools in force that meet all conditions.

        Raises:
            CliError: the version is no range.
        """
        try:
            return [list_tool(catalog, tool) for tool in catalog.list(**self._asdict())]
        except ValueError as error:
            raise CliError(str(error)) from None

    def select_unused(self, items: Sequence[UnusedItem]) -> list[UnusedItem]:
        """Return the items that meet the conditions on the source and on the text in the name: the others cannot be judged,
        because the descriptor of an item that is not in force may be invalid."""
        text = self.text.casefold()
        return [each for each in items if text in each.name.casefold() and self.source in (None, each.source)]
