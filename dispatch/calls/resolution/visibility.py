"""Which tools a user sees: those that the user may call. All lists, alternatives and similar names use this module."""

from __future__ import annotations

from collections.abc import Iterable

from dispatch._internal.suggestions import find_near_names
from dispatch.calls.resolution.resolution_errors import error_from_hidden_versions, error_from_unknown_name
from dispatch.calls.resolution.resolved_tool import ResolvedTool
from dispatch.calls.resolution.resolver import ToolResolver
from dispatch.catalog import Catalog, ToolDescriptor, UnknownToolError
from dispatch.errors import DispatchError, ErrorType, RejectedError
from dispatch.permissions import Authorizer, PermissionSet, require_permissions
from dispatch.permissions.error_messages import error_from_decision, error_from_unknown_permissions

MAX_ALTERNATIVES = 3


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


def resolve_visible(
    resolver: ToolResolver, name: str, version: str | None, user: str, authorizer: Authorizer, now: float
) -> ResolvedTool:
    """Resolve a tool for a list of tools, if ``user`` may call it.

    Args:
        version: see :meth:`ToolResolver.tool`.
        now: on the clock of ``authorizer``.

    Raises:
        RejectedError: there is no such tool or version; the user may not call it; or the user's permissions are not cached.
        InvalidArgumentsError: ``version`` is no range.
    """
    try:
        tool = resolver.tool(name, version)
    except RejectedError as error:
        raise hide_names(resolver.catalog, error, name, authorizer.known_permissions(user, now)) from None
    if tool.requirement is not None:
        decision = authorizer.decide(user, tool.requirement, now)
        if decision is None or decision.reason == "unavailable":
            raise error_from_unknown_permissions(user)
        if not decision.is_allowed:
            raise error_from_decision(decision, name, user)
    return tool


def hide_names(catalog: Catalog, error: DispatchError, name: str, permissions: PermissionSet) -> DispatchError:
    """Return ``error``, of a call of ``name``, for a user with ``permissions``: it names only tools that the user may call,
    and no versions of others."""
    if error.type == ErrorType.VERSION_MISMATCH and not select_visible(catalog, permissions, [catalog.tools[name]]):
        return error_from_hidden_versions(name)
    if error.type != ErrorType.UNKNOWN_TOOL:
        return error
    visible = select_visible(catalog, permissions)
    if len(visible) == len(catalog.tools):
        return error
    names = tuple(tool.name for tool in visible)
    return error_from_unknown_name(UnknownToolError(name, find_near_names(name, names), names))


def find_alternatives(catalog: Catalog, name: str, permissions: PermissionSet) -> tuple[str, ...]:
    """Return tools that could serve instead of ``name``: of its category, or with the most tags in common. Tools of other
    services come first, because a failure of one tool is often one of its whole service.

    Args:
        permissions: of the user; tools that the user may not call are left out.
    """
    tool = catalog.tools.get(name)
    if tool is None or not (tool.category or tool.tags):
        return ()
    tags = frozenset(tool.tags)

    def rank(other: ToolDescriptor) -> tuple[bool, int]:
        same = tool.category is not None and other.category == tool.category
        return other.service == tool.service, -len(tags.intersection(other.tags)) - same

    near = [
        other
        for other in catalog.tools.values()
        if other.name != name
        and (not tags.isdisjoint(other.tags) or (tool.category is not None and other.category == tool.category))
    ]
    visible = select_visible(catalog, permissions, near)
    return tuple(other.name for other in sorted(visible, key=rank)[:MAX_ALTERNATIVES])
