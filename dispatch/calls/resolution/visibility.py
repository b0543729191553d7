"""Which tools a user sees: those that the user may call. All lists, alternatives and similar names use this module."""

from __future__ import annotations

from collections.abc import Iterable

from dispatch._internal.suggestions import find_near_names
from dispatch.calls.resolution.resolution_errors import error_from_unknown_name
from dispatch.catalog import Catalog, ToolDescriptor, UnknownToolError
from dispatch.errors import RejectedError
from dispatch.permissions import Authorizer, PermissionSet, require_permissions
from dispatch.permissions.error_messages import error_from_unknown_permissions


def select_visible(
    catalog: Catalog, permissions: PermissionSet, tools: Iterable[ToolDescriptor] | None = None
) -> tuple[ToolDescriptor, ...]:
    """Return those of ``tools`` that a user with ``permissions`` may call, in their order.

    Args:
        catalog: that the tools belong to.
        permissions: of the user.
        tools: None: the default version of each tool.
    """
    permissions_of, permits = catalog.permissions_of, permissions.permits
    if tools is None:
        tools = catalog.tools.values()
    return tuple(tool for tool in tools if not (names := permissions_of(tool)) or permits(require_permissions(names)))


async def list_visible(
    catalog: Catalog, authorizer: Authorizer, user: str, tools: Iterable[ToolDescriptor]
) -> tuple[ToolDescriptor, ...]:
    """Return those of ``tools`` that ``user`` may call, in their order. If a tool requires permissions, those of the user
    are asked for.

    Raises:
        RejectedError: ``permissions-unavailable``: they could not be resolved.
    """
    found = tuple(tools)
    if not any(catalog.permissions_of(tool) for tool in found):
        return found
    permissions = await authorizer.fetch_permissions(user)
    if permissions is None:
        raise error_from_unknown_permissions(user)
    return select_visible(catalog, permissions, found)


def error_from_hidden_name(name: str, visible: Iterable[ToolDescriptor]) -> RejectedError:
    """Return the error of a call of ``name``, which the catalogue does not have. It names only ``visible`` tools."""
    names = tuple(tool.name for tool in visible)
    return error_from_unknown_name(UnknownToolError(name, find_near_names(name, names), names))
