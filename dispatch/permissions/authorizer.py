"""Authorization of calls: which user may call, and so see, which tool."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dispatch._internal.arguments import describe_type
from dispatch.permissions.grants import Grants
from dispatch.permissions.grants_watcher import GrantsWatcher
from dispatch.permissions.permission_lookup import LOOKUP_TIMEOUT_S, MAX_CACHED_USERS, GrantsFunction, PermissionLookup
from dispatch.permissions.permission_set import GRANTED, NO_PERMISSIONS, Decision, PermissionSet, Requirement

_UNAVAILABLE: Final = Decision("unavailable")


class _GrantsInForce:
    """Grants, and the permissions of users that have called. A changed file replaces the whole object in one assignment, so
    that no permissions of former grants are used."""

    __slots__ = ("cached", "grants")

    def __init__(self, grants: Grants) -> None:
        self.grants = grants
        self.cached: OrderedDict[str, PermissionSet] = OrderedDict()

    def permissions_of(self, user: str) -> PermissionSet:
        found = self.cached.get(user)
        if found is None:
            found = self.cached[user] = self.grants.permissions_of(user)
            if len(self.cached) > MAX_CACHED_USERS:
                self.cached.popitem(last=False)
        return found


class Authorizer:
    """Decides about calls for one dispatcher. Tools without permissions need no decision.

    Args:
        grants: the grants of all users, or a callable that returns those of one. None: there are none, and every call of a
            tool with permissions is refused.

    Raises:
        TypeError: ``grants`` is something else.
    """

    def __init__(self, grants: Grants | GrantsFunction | None = None) -> None:
        self._in_force = _GrantsInForce(grants) if isinstance(grants, Grants) else None
        self._watcher = GrantsWatcher(grants, self._apply) if isinstance(grants, Grants) and grants.path else None
        self._lookup: PermissionLookup | None = None
        self._listeners: tuple[Callable[[], object], ...] = ()
        if grants is not None and not isinstance(grants, Grants):
            if not callable(grants) or isinstance(grants, type):
                raise TypeError(
                    f"grants must be dispatch.Grants or a callable, not {describe_type(grants)}; load a file with "
                    "dispatch.Grants.load(FILE), or give the content of one to dispatch.Grants.of({…})"
                )
            self._lookup = PermissionLookup(grants)

    @property
    def is_closed(self) -> bool:
        """Whether no permissions can be asked for any more."""
        return self._lookup is not None and self._lookup.is_closed

    def start(self) -> None:
        """Begin to watch the file of the grants, if they have one."""
        if self._watcher is not None:
            self._watcher.start()

    async def close(self) -> None:
        """Stop watching, and end the requests of the callable."""
        self.abandon()
        if self._lookup is not None:
            await self._lookup.close()

    def abandon(self) -> None:
        """Stop watching: all that :meth:`close` does without the event loop."""
        if self._watcher is not None:
            self._watcher.close()

    def _apply(self, grants: Grants) -> None:
        self._in_force = _GrantsInForce(grants)
        for listener in self._listeners:
            listener()

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call ``listener``, in another thread, when the file of the grants changes. Return a function that removes it."""
        self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

        return unsubscribe

    # -- decisions on calls -------------------------------------------------------------------------------------

    def decide(self, user: str, requirement: Requirement, now: float) -> Decision | None:
        """Decide at once whether ``user`` may call a tool. None: not cached, use :meth:`resolve`; or ``user`` is no text.

        Args:
            now: on the loop's clock.
        """
        in_force, lookup = self._in_force, self._lookup
        if in_force is not None:
            # perf: not by way of permissions_of(), which would cost every call one more function
            try:
                permissions = in_force.cached.get(user) or in_force.permissions_of(user)
            except TypeError:  # it cannot be hashed
                return None
            return GRANTED if requirement in permissions.satisfied else permissions.decide(requirement)
        if lookup is None:
            return Decision("no-grants", requirement.permissions[0])
        try:
            answer = lookup.answers.get(user)
        except TypeError:
            return None
        if answer is None or now >= answer.expires_at:
            return None
        lookup.answers.move_to_end(user)
        found = answer.permissions
        if found is None:
            return _UNAVAILABLE
        return GRANTED if requirement in found.satisfied else found.decide(requirement)

    async def resolve(self, user: str, requirement: Requirement, timeout: float = LOOKUP_TIMEOUT_S) -> Decision:
        """Ask for the permissions of ``user``, for at most ``timeout`` seconds, and decide."""
        permissions = await self.fetch_permissions(user, timeout)
        return _UNAVAILABLE if permissions is None else permissions.decide(requirement)

    # -- visibility ---------------------------------------------------------------------------------------------

    def known_permissions(self, user: str, now: float) -> PermissionSet:
        """Return the permissions of ``user`` as far as they are known at once, to hide the tools that the user may not call
        (:meth:`PermissionSet.permits`). While the answer of a callable is not cached there are none: all tools with
        permissions are hidden.

        Args:
            now: on the loop's clock.
        """
        in_force, lookup = self._in_force, self._lookup
        if in_force is not None:
            return in_force.permissions_of(user)
        answer = None if lookup is None else lookup.cached(user, now)
        return NO_PERMISSIONS if answer is None or answer.permissions is None else answer.permissions

    async def fetch_permissions(self, user: str, timeout: float = LOOKUP_TIMEOUT_S) -> PermissionSet | None:
        """Return the permissions of ``user``; None: they could not be resolved."""
        if self._lookup is not None:
            return await self._lookup.fetch(user, timeout)
        return NO_PERMISSIONS if self._in_force is None else self._in_force.permissions_of(user)
