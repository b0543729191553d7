"""The guards of all tools of one dispatcher. Those of a removed tool are retained for calls in flight, and for the tool to
return: deleting and creating a tool resets no limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from dispatch._internal.permit import Clock, Randomness
from dispatch._internal.retention import Retention
from dispatch.calls.resolution.resolved_tool import ResolvedTool, meter_label
from dispatch.calls.tool_guards import RateLimits, ToolGuards, create_rate_limiter, rate_limits_of
from dispatch.policy import Policy, RateLimit
from dispatch.resilience.rate_limit.async_rate_limiter import AsyncRateLimiter, LimiterBucket, user_buckets
from dispatch.resilience.rate_limit.user_buckets import UserBuckets
from dispatch.telemetry.call_observer import NULL_DISPATCHER, DispatcherObserver

GuardKey = tuple[bool, str, str | None]
"""The key of guards: whether they belong to a tool or to a service that is called without one, the name of the tool or the
id of the service, and the version of the tool."""
Owner = tuple[bool, str]
"""A tool or a service with all its versions: the first parts of a :data:`GuardKey`."""
FindPolicy = Callable[[GuardKey], tuple[Policy, bool] | None]
"""Returns the policy of a key, and whether its tool is repeatable; None: the catalogue in force does not have it."""
NO_LIMITS: RateLimits = (None, None, None)


class _OwnerState(msgspec.Struct, eq=False):
    """What the versions of one tool share.

    Attributes:
        versions: with guards.
        limits: of ``rates``.
        rates: the rate limiter; None: no limits.
    """

    versions: tuple[str | None, ...] = ()
    limits: RateLimits = NO_LIMITS
    rates: AsyncRateLimiter | None = None


class GuardRegistry:
    """The guards of all tools of one dispatcher, created at the first call of each version of a tool. The versions of one
    tool share its rate limits, because a further version must not raise the limit of a user; all others belong to a version.

    Args:
        clock: the loop's.
        randomness: see :class:`ToolGuards`.
        observer: of the dispatcher.
        find: of the catalogue in force; None: every key has the policy that :meth:`of` is given.
    """

    def __init__(
        self,
        clock: Clock,
        randomness: Randomness,
        observer: DispatcherObserver = NULL_DISPATCHER,
        find: FindPolicy | None = None,
    ) -> None:
        self._clock = clock
        self._observer = observer
        self._randomness = randomness
        self._find = find
        self._guards: dict[GuardKey, ToolGuards] = {}
        self._owners: dict[Owner, _OwnerState] = {}
        self._retention: Retention[GuardKey] = Retention(
            self._drop, lambda key, callback: self._guards[key].calls.await_idle(callback)
        )
        self._users: dict[RateLimit, UserBuckets[LimiterBucket]] = {}
        self._user_holders: Counter[RateLimit] = Counter()
        """The number of tools with each shared rate limit."""
        self._user_retention: Retention[RateLimit] = Retention(self._users.pop, lambda _rate, _callback: False)

    def of_tool(self, tool: ResolvedTool) -> ToolGuards:
        """Return the guards of a version of a tool."""
        key = (tool.is_tool, tool.label, tool.version)
        guards = self._guards.get(key)
        return self._add(key, tool.policy, repeatable=tool.repeatable) if guards is None else guards

    def of(self, key: GuardKey, policy: Policy, *, repeatable: bool) -> ToolGuards:
        """Return the guards of ``key``.

        New guards get the policy of the catalogue in force; ``policy`` if that does not have the tool, because the call
        began with a former one.
        """
        guards = self._guards.get(key)
        return self._add(key, policy, repeatable=repeatable) if guards is None else guards

    def _add(self, key: GuardKey, policy: Policy, *, repeatable: bool) -> ToolGuards:
        if self._find is not None:
            found = self._find(key)
            if found is None:
                self._retention.add(key)
            else:
                policy, repeatable = found
        is_tool, name, version = key
        label = meter_label(name, is_tool=is_tool)
        owner = self._owners.get((is_tool, name))
        if owner is None:
            owner = self._owners[is_tool, name] = _OwnerState()
        owner.versions = (*owner.versions, version)
        self._hold_users(policy.shared_user_rate_limit)
        guards = self._guards[key] = ToolGuards(
            policy,
            repeatable=repeatable,
            clock=self._clock,
            randomness=self._randomness,
            rates=partial(self._rates, owner),
            observer=self._observer.observe_tool(label, version),
            label=label,
        )
        return guards

    def _rates(self, owner: _OwnerState, policy: Policy) -> AsyncRateLimiter | None:
        """Return the rate limiter of a tool: the same one for all its versions, which have the same limits."""
        limits = rate_limits_of(policy)
        if limits != owner.limits:
            owner.limits, owner.rates = limits, create_rate_limiter(policy, self._shared)
        return owner.rates

    def _drop(self, key: GuardKey) -> None:
        """Drop the guards of a removed version without calls in flight, and its metric series; with the last version also
        those of the tool."""
        is_tool, name, version = key
        guards = self._guards.pop(key)
        rate = guards.policy.shared_user_rate_limit
        if rate is not None and self._release_users(rate):
            self._users.pop(rate, None)  # it was retained with the guards
        owner = self._owners[is_tool, name]
        owner.versions = tuple(each for each in owner.versions if each != version)
        if version is not None:
            self._observer.release_version(guards.label, version)
        if not owner.versions:
            del self._owners[is_tool, name]
            self._observer.release_tool(guards.label)

    def renew(self, find: FindPolicy, owners: Iterable[Owner]) -> None:
        """Apply another catalogue.

        Args:
            find: of the catalogue. The guards of a key that it does not have are retained.
            owners: whose definition or policy has changed.
        """
        self._find = find
        keys = [
            (*owner, version) for owner in owners if owner in self._owners for version in self._owners[owner].versions
        ]
        for key in keys:
            guards = self._guards[key]
            found = find(key)
            if found is None:
                self._retention.add(key)
                continue
            self._retention.restore(key)
            if found != (guards.policy, guards.repeatable):
                former = guards.policy.shared_user_rate_limit
                self._hold_users(found[0].shared_user_rate_limit)
                guards.reconfigure(found[0], repeatable=found[1])
                if former is not None and self._release_users(former):
                    self._user_retention.add(former)
            guards.renew_rates()  # another version may have had other limits meanwhile

    @property
    def waiting(self) -> dict[str, int]:
        """Calls that wait for a rate limit or the bulkhead, by the tool's label."""
        waiting: Counter[str] = Counter()
        for guards in self.all():
            waiting[guards.label] += guards.waiting_for_bulkhead
        for (is_tool, name), owner in self._owners.copy().items():
            if owner.rates is not None:
                waiting[meter_label(name, is_tool=is_tool)] += owner.rates.limiter.waiting
        return waiting

    def all(self) -> list[ToolGuards]:
        """Return the guards of all tools that were called, with those of tools removed lately."""
        return list(self._guards.values())

    @property
    def owners(self) -> list[Owner]:
        """The owners of :meth:`all`."""
        return list(self._owners)

    @property
    def calls_in_flight(self) -> int:
        """Calls in flight, with streams and retries, of all tools."""
        return sum(guards.calls.count for guards in self._guards.values())

    async def wait_idle(self) -> None:
        """Wait until no call is in flight."""
        while busy := next((guards for guards in self._guards.values() if guards.calls.count), None):
            await busy.calls.wait_idle()

    def close(self) -> None:
        """Reject all calls that wait. Nothing is dropped any more."""
        self._retention.close()
        self._user_retention.close()
        for guards in self._guards.values():
            guards.close()

    # -- rate limits of users that several tools share ----------------------------------------------------------

    def _shared(self, rate: RateLimit) -> UserBuckets[LimiterBucket]:
        users = self._users.get(rate)
        if users is None:
            users = self._users[rate] = user_buckets(rate)
        return users

    def _hold_users(self, rate: RateLimit | None) -> None:
        if rate is not None:
            self._user_holders[rate] += 1
            self._user_retention.restore(rate)

    def _release_users(self, rate: RateLimit) -> bool:
        """Count one tool less with that limit. Return whether none has it."""
        self._user_holders[rate] -= 1
        if self._user_holders[rate]:
            return False
        del self._user_holders[rate]
        return True
