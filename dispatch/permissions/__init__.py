"""Permissions: which user may call, and so see, which tool.

A tool requires permissions (:class:`~dispatch.permissions.grants.Requirement`), a user holds grants
(:class:`~dispatch.permissions.grants.PermissionSet`), from :class:`Grants` or a callable; the
:class:`~dispatch.permissions.authorizer.Authorizer` decides. Everything that is unknown refuses the call.
"""

from dispatch.permissions.authorizer import Authorizer, GrantsFunction
from dispatch.permissions.grants import (
    GRANTED,
    NO_PERMISSIONS,
    Decision,
    Grants,
    GrantsError,
    PermissionSet,
    Requirement,
    check_permission,
    require_permissions,
)

__all__ = [
    "GRANTED",
    "NO_PERMISSIONS",
    "Authorizer",
    "Decision",
    "Grants",
    "GrantsError",
    "GrantsFunction",
    "PermissionSet",
    "Requirement",
    "check_permission",
    "require_permissions",
]
