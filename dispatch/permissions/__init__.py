"""Permissions: which user may call, and so see, which tool.

A tool requires permissions (:class:`~dispatch.permissions.permission_set.Requirement`), a user holds grants
(:class:`~dispatch.permissions.permission_set.PermissionSet`), from :class:`Grants` or a callable; the
:class:`~dispatch.permissions.authorizer.Authorizer` decides. Everything that is unknown refuses the call.
"""

from dispatch.permissions.authorizer import Authorizer
from dispatch.permissions.grants import Grants
from dispatch.permissions.grants_errors import GrantsError, GrantsProblem
from dispatch.permissions.permission_lookup import GrantsFunction
from dispatch.permissions.permission_set import (
    GRANTED,
    NO_PERMISSIONS,
    Decision,
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
    "GrantsProblem",
    "PermissionSet",
    "Requirement",
    "check_permission",
    "require_permissions",
]
