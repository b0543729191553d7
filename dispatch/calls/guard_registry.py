"""The guards of all tools of one dispatcher. Those of a removed tool are retained for calls in flight, and for the tool to
return: deleting and creating a tool resets no limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from dispatch._internal.permit import Clock, Randomness
from dispatch._internal.retention import Retention
from dispatch.calls.tool_guards import ToolGuards
from dispatch.policy import Policy, RateLimit
from dispatch.resilience.rate_limit.async_rate_limiter import LimiterBucket, user_buckets
from dispatch.resilience.rate_limit.user_buckets import UserBuckets
from dispatch.telemetry.call_observer import NULL_DISPATCHER, DispatcherObserver

FindPolicy = Callable[[Any], tuple[Policy, bool] | None]
"""Returns the policy of a key, and whether its tool is repeatable; None: the catalogue in force does not have it."""


class GuardRegistry:
    """The guards of all tools of one dispatcher, created at the first call of each tool.

    Args:
        clock: the loop's.
        randomness: see :class:`ToolGuards`.
        observer: of the dispatcher.
        label: returns the label of a key in metrics and events.
        find: of the catalogue in force; None: every key has the policy that :meth:`of` is given.
    """

    def __init__(
        self,
        clock: Clock,
        randomness: Randomness,
        observer: DispatcherObserver = NULL_DISPATCHER,
        label: Callable[[Any], str] = str,
        find: FindPolicy | None = None,
    ) -> None:
        self._label = label
        self._clock = clock
        self._observer = observer
        self._randomness = randomness
        self._find = find
        self._guards: dict[Any, ToolGuards] = {}
        self._retention: Retention[Any] = Retention(
            self._drop, lambda key, callback: self._guards[key].calls.await_idle(callback)
        )
        self._users: dict[RateLimit, UserBuckets[LimiterBucket]] = {}
        self._user_holders: Counter[RateLimit] = Counter()
        """The number of tools with each shared rate limit."""
        self._user_retention: Retention[RateLimit] = Retention(self._users.pop, lambda _rate, _callback: False)

    def of(self, key: Any, policy: Policy, *, repeatable: bool) -> ToolGuards:
        """Return the guards of ``key``.

        New guards get the policy of the catalogue in force; ``policy`` if that does not have the tool, because the call
        began with a former one.
        """
        guards = self._guards.get(key)
        return self._add(key, policy, repeatable=repeatable) if guards is None else guards

    def _add(self, key: Any, policy: Policy, *, repeatable: bool) -> ToolGuards:
        if self._find is not None:
            found = self._find(key)
            if found is None:
                self._retention.add(key)
            else:
                policy, repeatable = found
        label = self._label(key)
        self._hold_users(policy.shared_user_rate_limit)
        guards = self._guards[key] = ToolGuards(
            policy,
            repeatable=repeatable,
            clock=self._clock,
            randomness=self._randomness,
            shared_users=self._shared,
            observer=self._observer.observe_tool(label),
            label=label,
        )
        return guards

    def _drop(self, key: Any) -> None:
        """Drop the guards of a removed tool without calls in flight, and its metric series."""
        guards = self._guards.pop(key)
        rate = guards.policy.shared_user_rate_limit
        if rate is not None and self._release_users(rate):
            del self._users[rate]  # it was retained with the guards
        self._observer.release_tool(guards.label)

    def renew(self, find: FindPolicy, keys: Iterable[Any]) -> None:
        """Apply another catalogue.

        Args:
            find: of the catalogue. The guards of a key that it does not have are retained.
            keys: of the tools whose definition or policy has changed.
        """
        self._find = find
        for key in keys:
            guards = self._guards.get(key)
            if guards is None:
                continue
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

    def all(self) -> list[ToolGuards]:
        """Return the guards of all tools that were called, with those of tools removed lately."""
        return list(self._guards.values())

    @property
    def keys(self) -> list[Any]:
        """The keys of :meth:`all`."""
        return list(self._guards)

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
