"""The guards of a tool and what was measured of it. They outlive calls and changes of the policy."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import cache, partial
from math import exp, inf, log
from typing import Any

import msgspec

from dispatch._internal import Clock, Randomness, Retention
from dispatch.calls.resolution import ResolvedTool, meter_label
from dispatch.policy import DEFAULT_RETRY, Breaker, Policy, RateLimit, parse_quota
from dispatch.resilience.aio import AsyncBulkhead, AsyncRateLimiter, user_buckets
from dispatch.resilience.balancer import CERTAIN_RATIO
from dispatch.resilience.breaker import CircuitBreaker, State
from dispatch.resilience.durations import AGE_S, FEW, LatencyHistogram, Quantile
from dispatch.resilience.fleet import Fleet
from dispatch.resilience.leases import FleetRateLimiter, QuotaLease, RateLease, SlotsLease, UserLeases
from dispatch.resilience.rate_limit import REPLACED, Bucket, CombinedBucket, LeakyBucket, RateLimiter, UserBuckets
from dispatch.resilience.retry import MIN_REPEATS_PER_S, Hedging, RetryBudget, RetryPolicy
from dispatch.routing.instance import InFlight
from dispatch.routing.pool import UNRESPONSIVE_S, InstancePool
from dispatch.telemetry.observers import NULL_DISPATCHER, DispatcherObserver

_log = logging.getLogger("dispatch.calls")

SharedUsers = Callable[[RateLimit], UserBuckets[Any]]
"""Returns the buckets of users for a rate that several tools share."""
RateLimits = tuple[RateLimit | None, RateLimit | None, RateLimit | None, str | None]

USUAL_QUANTILE = 0.95
"""The usual duration of an attempt is this quantile of the measured ones."""
MAX_INSTANCE_BREAKERS = 512
"""Instances with a circuit breaker of their own, for each tool: twice as many as a service has at once."""
UNRESPONSIVE_FACTOR = 3.0
"""Multiple of the usual duration after which a call may be at an instance that hangs; not before :data:`UNRESPONSIVE_S`."""
RESPONSE_CHECK_S = 0.1
"""Seconds between two searches for an instance that hangs: each reads the requests in flight."""
LEAST_MEDIAN = 3
"""Durations from which their median tells a cold start from the others."""
USUAL_OF = 64
"""Answers over which the usual duration of a tool is averaged, as the base of comparisons between instances."""
LEAST_DURATION_S = 1e-4
"""Shortest duration that is compared: below it the noise of the event loop prevails."""
_LEAST_LOG = log(LEAST_DURATION_S)
_NONE: AbstractSet[str] = frozenset()


class ToolGuards:
    """The guards of one tool, for one dispatcher.

    Args:
        policy: in force for the tool.
        repeatable: the tool may be executed twice for one call.
        clock: the loop's.
        randomness: for backoff and open durations.
        rates: returns the rate limiter for a policy.
        observer: of the dispatcher.
        label: of the tool in metrics and events.
        service: id of the service that executes the tool.
        version: of the tool; None: it declares none.
        fleet: of the dispatcher; None: it belongs to none.

    Attributes:
        policy: in force for the tool.
        version: of the tool; None: not declared.
        breaker, bulkhead, rates, retrying, hedging: the guards; None: off.
        instance_breakers: circuit breakers of the tool at single instances.
        calls: in flight, with streams and retries.
        budget: limits retries and hedges.
        durations: of attempts.
        usual: the usual duration of an attempt (:data:`USUAL_QUANTILE`).
        pool: the instances that were called last; their ejections end when the breaker closes.
        answered_by, answered_at: the instance that answered last, and when; ``""`` before the first answer, and after a
            failure of that instance.
        overtook: when the attempt began, of those that were answered, that began last.
        answered: when each instance answered last, while there are several.
        unresponsive: instances that answer no request of the tool, while others do. They get none, if another instance may.
        check_at: when that is found out next.
        observer: of the tool's calls.
    """

    __slots__ = (
        "_counted_at",
        "_dispatcher_observer",
        "_fleet",
        "_made_room_at",
        "_randomness",
        "_rate_limiter",
        "_recovery",
        "_slots",
        "_usual_log",
        "answered",
        "answered_at",
        "answered_by",
        "breaker",
        "budget",
        "bulkhead",
        "calls",
        "check_at",
        "clock",
        "durations",
        "fleet_label",
        "hedging",
        "instance_breakers",
        "label",
        "observer",
        "overtook",
        "policy",
        "pool",
        "rates",
        "records",
        "repeatable",
        "retrying",
        "service",
        "unresponsive",
        "usual",
        "version",
    )

    def __init__(
        self,
        policy: Policy,
        *,
        repeatable: bool,
        clock: Clock,
        randomness: Randomness,
        rates: Callable[[Policy], AsyncRateLimiter | None],
        observer: DispatcherObserver = NULL_DISPATCHER,
        label: str = "",
        service: str = "",
        version: str | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        self._fleet = fleet
        self._slots: SlotsLease | None = None
        self._dispatcher_observer = observer
        self.label = label
        self.version = version
        self.fleet_label = label if version is None else f"{label}@{version}"
        self.set_service(service)
        self.clock = clock
        self._randomness = randomness
        self._rate_limiter = rates
        self.instance_breakers: dict[str, CircuitBreaker] = {}
        self.policy = policy
        self.repeatable = repeatable
        self.calls = InFlight()
        self.pool: InstancePool | None = None
        self.answered_by = ""
        self.answered_at = 0.0
        self.overtook = -inf
        self.answered: dict[str, float] = {}
        self.unresponsive: AbstractSet[str] = _NONE
        self.check_at = 0.0
        self._made_room_at = self._counted_at = -inf
        self._usual_log: float | None = None
        self._recovery = -inf, 0.0, False
        """When it was last asked whether the tool has recovered, since which time, and the answer."""
        self.durations = LatencyHistogram(clock)
        self.usual = Quantile(self.durations, USUAL_QUANTILE, FEW)
        retry = policy.retry or DEFAULT_RETRY  # hedges are limited by the budget, too
        self.budget = RetryBudget(retry.budget_ratio, MIN_REPEATS_PER_S, clock)
        self.breaker = self._breaker()
        self.bulkhead = None if policy.bulkhead is None else AsyncBulkhead(policy.bulkhead)
        self._share_bulkhead()
        self.rates = rates(policy)
        self.retrying = self._retrying()
        self.hedging = self._hedging()

    def set_service(self, service: str) -> None:
        """Set the id of the service that executes the tool."""
        self.service = service
        self.observer = self._dispatcher_observer.observe_tool(self.label, self.version, service)
        self.records = self._dispatcher_observer.record_calls(self.label, self.version, service)

    def reconfigure(self, policy: Policy, *, repeatable: bool) -> None:
        """Apply another policy. Breakers keep their state, calls in flight and in the queue their places, measurements stay,
        and so do the counted calls of each rate limit that is the same. A call that waits while the rate limits change is
        admitted, queued or rejected by the new ones."""
        former, self.policy, self.repeatable = self.policy, policy, repeatable
        if policy.breaker is None or self.breaker is None:
            self.breaker = self._breaker()
            self.instance_breakers.clear()
        else:
            for breaker in (self.breaker, *self.instance_breakers.values()):
                breaker.reconfigure(policy.breaker)
        if policy.bulkhead is None or self.bulkhead is None:
            self.bulkhead = None if policy.bulkhead is None else AsyncBulkhead(policy.bulkhead)
        elif policy.bulkhead != former.bulkhead:
            self.bulkhead.reconfigure(policy.bulkhead)
        if policy.bulkhead != former.bulkhead:
            self._share_bulkhead()
        if rate_limits_of(policy) != rate_limits_of(former):
            self.renew_rates()
        retry = policy.retry or DEFAULT_RETRY
        self.budget.ratio = retry.budget_ratio
        self.retrying = self._retrying()
        if policy.hedging != former.hedging or (self.hedging is None) == repeatable:
            self.hedging = self._hedging()

    def _share_bulkhead(self) -> None:
        """Share the limit of the bulkhead with the fleet, if its policy says so."""
        self.leave_fleet()
        settings = self.policy.bulkhead
        if self.bulkhead is None or settings is None or settings.scope == "process":
            return
        guard = self.bulkhead.guard
        if self._fleet is None:
            warn_without_fleet(self.label)
            guard.set_limit(settings.max_concurrent_calls)
        else:
            self._slots = SlotsLease(f"slots:{self.fleet_label}", guard, self.clock())
            self._fleet.add(self._slots)

    def leave_fleet(self) -> None:
        """Share the bulkhead no longer."""
        if self._slots is not None and self._fleet is not None:
            self._fleet.remove(self._slots)
            self._slots = None

    def _breaker(self) -> CircuitBreaker | None:
        settings = self.policy.breaker
        return None if settings is None else self._new_breaker(settings, None)

    def _new_breaker(self, settings: Breaker, instance: str | None) -> CircuitBreaker:
        return CircuitBreaker(
            settings,
            clock=self.clock,
            randomness=self._randomness,
            on_transition=partial(self._report_transition, instance),
            on_recovery=self._on_recovery if instance is None else None,
        )

    def _report_transition(self, instance: str | None, old: State, new: State, reason: str) -> None:
        observer = self._dispatcher_observer
        observer.on_circuit_transition(self.label, self.version, self.service, instance, old, new, reason)

    def _on_recovery(self) -> None:
        if self.pool is not None:
            self.pool.balancer.end_ejections()

    def renew_rates(self) -> None:
        """Apply the rate limiter for the policy: the same one for all versions of a tool."""
        self.rates = self._rate_limiter(self.policy)

    def _retrying(self) -> RetryPolicy | None:
        retry = self.policy.retry
        if retry is None or retry.max_attempts == 1:
            return None
        return RetryPolicy(
            retry, repeatable=self.repeatable, budget=self.budget, durations=self.durations, randomness=self._randomness
        )

    def _hedging(self) -> Hedging | None:
        delay = self.policy.hedging
        if delay is None or not self.repeatable:
            return None
        return Hedging(delay, budget=self.budget, durations=self.durations, clock=self.clock)

    def breaker_of(self, instance: str) -> CircuitBreaker | None:
        """Return the breaker of this tool at one instance; None: off."""
        breaker = self.instance_breakers.get(instance)
        if breaker is None and self.policy.breaker is not None:
            while len(self.instance_breakers) >= MAX_INSTANCE_BREAKERS:
                del self.instance_breakers[next(iter(self.instance_breakers))]  # the oldest: probably gone
            breaker = self.instance_breakers[instance] = self._new_breaker(self.policy.breaker, instance)
        return breaker

    def record_failure(self, instance: str, now: float) -> bool:
        """Record a failure of ``instance``. True: it says nothing about the tool, because another instance has answered
        since, within the breaker's time window, has not failed since and is still there."""
        answered_by, breaker, pool = self.answered_by, self.breaker, self.pool
        if answered_by == instance:
            self.answered_by = answered_by = ""
        if not answered_by or breaker is None or pool is None:
            return False
        return now - self.answered_at < breaker.settings.window_duration and answered_by in pool.balancer

    def find_unresponsive(self, now: float, *, must_wait: bool = False) -> None:
        """Find the instances that do not answer while others do (:meth:`InstancePool.find_unresponsive`), if that is due.
        They get no further request of the tool until they answer, or what they do not answer has ended. ``must_wait``: a
        call waits, perhaps for the places of calls at such an instance."""
        pool = self.pool
        if now >= self.check_at and pool is not None:
            self.check_at = now + RESPONSE_CHECK_S
            self.answered = {name: at for name, at in self.answered.items() if name in pool.balancer}
            counts = must_wait or (self.calls.count >= CERTAIN_RATIO and now >= self._counted_at + UNRESPONSIVE_S)
            if counts:
                self._counted_at = now
            self.unresponsive = pool.find_unresponsive(
                self.label,
                self._overdue_s(now),
                self.answered,
                self.overtook,
                counts=counts,
                must_wait=must_wait,
            )

    def _overdue_s(self, now: float) -> float:
        """Return after how many seconds a request of the tool should have been answered; infinite: no duration is known."""
        usual = self.usual.value(now)
        if usual is None and self._usual_log is not None:
            usual = exp(self._usual_log)
        if usual is None and self.bulkhead is not None:
            usual = self.bulkhead.guard.answer_s
        return inf if usual is None else max(UNRESPONSIVE_S, UNRESPONSIVE_FACTOR * usual)

    def answer_s(self, now: float) -> float | None:
        """Seconds within which the tool usually answers: the usual duration, of which timeouts are a part, but not less than
        that of recent answers alone. None: it is not known."""
        usual, guard = self.usual.value(now), None if self.bulkhead is None else self.bulkhead.guard
        answer_s = None if guard is None or now >= self.answered_at + AGE_S else guard.answer_s
        return answer_s if usual is None else usual if answer_s is None else max(usual, answer_s)

    def is_impatient(self, took: float) -> bool:
        """Whether an attempt that timed out after ``took`` seconds, sooner than is usual, says nothing about its instance:
        answers that take as long are not rare. Of few durations the usual one is the longest, perhaps that of a cold start:
        the median decides."""
        median = self.durations.quantile(0.5, LEAST_MEDIAN)
        return median is None or took < UNRESPONSIVE_FACTOR * median

    def has_recovered(self, began: float, now: float) -> bool:
        """Return whether the tool works again after calls that ``began`` then and time out now: it has answered a later one,
        and of those from the second half of that time none waits for much longer than is usual."""
        usual, since = self.usual.value(now), (began + now) / 2
        if usual is None or self.pool is None or self.overtook <= began:
            return False
        asked_at, former, answer = self._recovery
        if now >= asked_at + RESPONSE_CHECK_S or since < former:  # perf: of many that time out at once, one asks
            until = now - UNRESPONSIVE_FACTOR * usual
            answer = since < until and not self.pool.has_requests(self.label, since, until)
            self._recovery = now, since, answer
        return answer

    def makes_room(self, began: float, now: float) -> bool:
        """Return whether an overdue attempt ends for calls that wait for its place: none was admitted after it ``began``.
        True once in :data:`UNRESPONSIVE_S`."""
        guard = None if self.bulkhead is None else self.bulkhead.guard
        if guard is None or not guard.waiting or guard.granted_at > began or now < self._made_room_at + UNRESPONSIVE_S:
            return False
        self._made_room_at = now
        return True

    def is_overdue(self, waited: float) -> bool:
        """Return whether the service would have answered a request that has waited for so many seconds."""
        return waited >= self._overdue_s(self.clock())

    def record_slowness(self, duration: float) -> float:
        """Record the duration of an answered attempt. Return the logarithm of its ratio to the tool's usual one: the
        geometric mean over all instances."""
        value = log(duration) if duration > LEAST_DURATION_S else _LEAST_LOG
        usual = self._usual_log
        if usual is None:
            self._usual_log = value
            return 0.0
        self._usual_log = usual + (value - usual) / USUAL_OF
        return value - usual

    def is_mean_within(self, seconds: float) -> bool:
        """Return whether the geometric mean of the durations of answers is known, for instances known by name, and at most
        so many seconds."""
        mean, pool = self._usual_log, self.pool
        return mean is not None and exp(mean) <= seconds and pool is not None and pool.known > 0

    def slowness_of_error(self, duration: float) -> float | None:
        """Return the same for an attempt that the tool answered with an error, at least 0: an instance that fails at once is
        not fast, and its failures are not usual. None: no usual duration is known."""
        usual = self._usual_log
        return None if usual is None else max(0.0, log(max(duration, LEAST_DURATION_S)) - usual)

    def admits(self, instance: str) -> bool:
        """Whether that instance answers, and its breaker would admit a call. Nothing changes."""
        if instance in self.unresponsive:
            return False
        breaker = self.instance_breakers.get(instance)
        return breaker is None or breaker.can_admit()

    @property
    def waiting(self) -> int:
        """Calls that wait for a rate limit or the bulkhead. For a rate limit, those of all versions of the tool."""
        return self.waiting_for_bulkhead + (0 if self.rates is None else self.rates.limiter.waiting)

    @property
    def waiting_for_bulkhead(self) -> int:
        """Calls that wait for the bulkhead."""
        return 0 if self.bulkhead is None else self.bulkhead.guard.waiting

    def close(self) -> None:
        """Reject the calls that wait; those in flight go on."""
        if self.bulkhead is not None:
            self.bulkhead.close()
        if self.rates is not None:
            self.rates.close()


def rate_limits_of(policy: Policy) -> RateLimits:
    """Return the rate limits of a policy: of the tool, of a user, of a user over several tools, and the quota."""
    return policy.rate_limit, policy.user_rate_limit, policy.shared_user_rate_limit, policy.quota


@cache
def warn_without_fleet(label: str) -> None:
    """Report once that limits of a tool hold for this process alone."""
    text = "the policy of %s has limits of a fleet, and this dispatcher belongs to none: they hold for this process alone. "
    _log.warning(text + 'Use connect(fleet="NAME") in each of them.', label)


def create_rate_limiter(
    policy: Policy,
    shared_users: SharedUsers = user_buckets,
    fleet: Fleet | None = None,
    label: str = "",
    former: AsyncRateLimiter | None = None,
) -> AsyncRateLimiter | None:
    """Return a rate limiter for the limits of a policy; None: it has none. Its ``leases`` are to be added to the fleet.

    Args:
        shared_users: returns the buckets of users for the limit that several tools share.
        fleet: None: every limit belongs to this process.
        label: of the tool.
        former: of the tool until now, whose calls count for each limit that is the same; None: there was none.
    """
    limits = tool_limit, user_limit, shared_limit, quota = rate_limits_of(policy)
    if limits == NO_LIMITS:
        return None
    is_shared = any(each is not None and each.scope == "fleet" for each in (tool_limit, user_limit, shared_limit))
    if fleet is None and (is_shared or quota is not None):
        warn_without_fleet(label)
    everywhere = None if shared_limit is None else shared_users(shared_limit)
    now = time.monotonic() if fleet is None else fleet.clock()
    leases: list[Any] = []
    leased = () if former is None else former.leases
    bucket: Bucket | None = None
    users: UserBuckets[Any] | None = None
    if tool_limit is not None:
        rate, burst = tool_limit.per_second, tool_limit.capacity
        lease: RateLease | None = None
        if former is not None and tool_limit.has_buckets_of(former.rate):
            bucket = former.tool_bucket
            lease = next((each for each in leased if isinstance(each, RateLease)), None)
        elif fleet is not None and tool_limit.scope == "fleet":
            key = f"rate:{label}"
            lease = RateLease(key, rate, burst, {}, fleet.share_of(key, rate), now)
            bucket = lease.bucket
        else:
            bucket = LeakyBucket(burst, rate)
        if lease is not None:
            lease.weights = dict(tool_limit.weights)
            leases.append(lease)
    tool_bucket = bucket
    if quota is not None:
        calls, per = parse_quota(quota)
        key = f"quota:{label}:{per}"
        reserve = next((each for each in leased if isinstance(each, QuotaLease) and each.key == key), None)
        if reserve is None:
            reserve = QuotaLease(key, calls, per, time.time, now)
            if fleet is None:
                reserve.be_local(now)
        reserve.set_limit(calls)
        leases.append(reserve)
        bucket = reserve.bucket if bucket is None else CombinedBucket(bucket, reserve.bucket)
    if user_limit is not None:
        if former is not None and user_limit.has_buckets_of(former.user_rate):
            users = former.here
        elif fleet is not None and user_limit.scope == "fleet":
            users = UserLeases(f"rate:{label}", user_limit.per_second, user_limit.capacity, fleet)
        if isinstance(users, UserLeases):
            leases.append(users)
    counted = [*leases, *([everywhere] if isinstance(everywhere, UserLeases) else [])]
    limiter = AsyncRateLimiter(
        *(tool_limit, user_limit),
        everywhere=everywhere,
        shared_rate=shared_limit,
        bucket=bucket,
        here=users,
        kind=FleetRateLimiter if counted else RateLimiter,
    )
    core = limiter.limiter
    if isinstance(core, FleetRateLimiter):
        core.counts = tuple(each.demand.counts for each in counted)
        core.quota = next((each.bucket for each in leases if isinstance(each, QuotaLease)), None)
        for each in counted:
            each.attach(core)
    limiter.tool_bucket, limiter.leases = tool_bucket, leases
    return limiter


# The guards of all tools of one dispatcher. Those of a removed tool are retained for calls in flight, and for the tool to
# return: deleting and creating a tool resets no limit.


GuardKey = tuple[bool, str, str | None]
"""The key of guards: whether they belong to a tool or to a service that is called without one, the name of the tool or the
id of the service, and the version of the tool."""
Owner = tuple[bool, str]
"""A tool or a service with all its versions: the first parts of a :data:`GuardKey`."""
FindTool = Callable[[GuardKey], ResolvedTool | None]
"""Returns the tool, or the service, of a key; None: the catalogue in force does not have it."""
NO_LIMITS: RateLimits = (None, None, None, None)


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
        find: of the catalogue in force.
        fleet: of the dispatcher; None: it belongs to none.
    """

    def __init__(
        self, clock: Clock, randomness: Randomness, observer: DispatcherObserver, find: FindTool, fleet: Fleet | None
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._observer = observer
        self._randomness = randomness
        self._find = find
        self._guards: dict[GuardKey, ToolGuards] = {}
        self._owners: dict[Owner, _OwnerState] = {}
        self._retention: Retention[GuardKey] = Retention(
            self._drop, lambda key, callback: self._guards[key].calls.await_idle(callback)
        )
        self._users: dict[RateLimit, UserBuckets[Any]] = {}
        self._user_holders: Counter[RateLimit] = Counter()
        """The number of tools with each shared rate limit."""
        self._user_retention: Retention[RateLimit] = Retention(self._drop_users, lambda _rate, _callback: False)

    def of_tool(self, tool: ResolvedTool) -> ToolGuards:
        """Return the guards of a version of a tool. New guards get the policy of the catalogue in force; that of ``tool`` if
        the catalogue does not have it, because the call began with a former one."""
        key = (tool.is_tool, tool.label, tool.version)
        guards = self._guards.get(key)
        return self._add(key, tool) if guards is None else guards

    def find(self, tool: ResolvedTool) -> ToolGuards | None:
        """Return the guards of a version of a tool; None: it was not called."""
        return self._guards.get((tool.is_tool, tool.label, tool.version))

    def _add(self, key: GuardKey, tool: ResolvedTool) -> ToolGuards:
        found = self._find(key)
        if found is None:
            self._retention.add(key)
        else:
            tool = found
        is_tool, name, version = key
        label = meter_label(name, is_tool=is_tool)
        owner = self._owners.setdefault((is_tool, name), _OwnerState())
        owner.versions = (*owner.versions, version)
        self._hold_users(tool.policy.shared_user_rate_limit)
        guards = self._guards[key] = ToolGuards(
            tool.policy,
            repeatable=tool.repeatable,
            clock=self._clock,
            randomness=self._randomness,
            rates=partial(self._rates, owner, label),
            observer=self._observer,
            label=label,
            service=tool.service_id,
            version=version,
            fleet=self._fleet,
        )
        return guards

    def _rates(self, owner: _OwnerState, label: str, policy: Policy) -> AsyncRateLimiter | None:
        """Return the rate limiter of a tool: the same one for all its versions, which have the same limits."""
        limits = rate_limits_of(policy)
        if limits != owner.limits:
            former, owner.limits = owner.rates, limits
            owner.rates = create_rate_limiter(policy, self._shared, self._fleet, label, former)
            self._leave_fleet(former)
            if self._fleet is not None and owner.rates is not None:
                for each in owner.rates.leases:
                    self._fleet.add(each)
            if former is not None:
                former.close(REPLACED)
        return owner.rates

    def _leave_fleet(self, rates: AsyncRateLimiter | None) -> None:
        if self._fleet is not None and rates is not None:
            for each in rates.leases:
                self._fleet.remove(each)

    def _drop(self, key: GuardKey) -> None:
        """Drop the guards of a removed version without calls in flight, and its metric series; with the last version also
        those of the tool."""
        is_tool, name, version = key
        guards = self._guards.pop(key)
        guards.leave_fleet()
        rate = guards.policy.shared_user_rate_limit
        if rate is not None and self._release_users(rate):
            self._drop_users(rate)  # it was retained with the guards
        owner = self._owners[is_tool, name]
        owner.versions = tuple(each for each in owner.versions if each != version)
        if version is not None:
            self._observer.release_version(guards.label, version)
        if not owner.versions:
            self._leave_fleet(owner.rates)
            del self._owners[is_tool, name]
            self._observer.release_tool(guards.label)

    def renew(self, find: FindTool, owners: Iterable[Owner]) -> None:
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
            if found.service_id != guards.service:
                guards.set_service(found.service_id)
            if (found.policy, found.repeatable) != (guards.policy, guards.repeatable):
                former = guards.policy.shared_user_rate_limit
                self._hold_users(found.policy.shared_user_rate_limit)
                guards.reconfigure(found.policy, repeatable=found.repeatable)
                if former is not None and self._release_users(former):
                    self._user_retention.add(former)
            guards.renew_rates()  # another version may have had other limits meanwhile

    def circuits(self) -> list[tuple[str, CircuitBreaker]]:
        """Return the circuit breaker of each version of each tool, with its name in the fleet."""
        return [(each.fleet_label, each.breaker) for each in self._guards.values() if each.breaker is not None]

    @property
    def waiting(self) -> dict[tuple[str, str], int]:
        """Calls that wait for a rate limit or the bulkhead, by the tool's label and its service. Those that wait for a rate
        limit, which the versions of a tool share, count for the first version."""
        waiting: Counter[tuple[str, str]] = Counter()
        counted: set[str] = set()
        for guards in self.all():
            rates = None if guards.label in counted else guards.rates
            counted.add(guards.label)
            waiting[guards.label, guards.service] += guards.waiting_for_bulkhead + (
                0 if rates is None else rates.limiter.waiting
            )
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

    def _shared(self, rate: RateLimit) -> UserBuckets[Any]:
        users = self._users.get(rate)
        if users is None:
            if self._fleet is None or rate.scope == "process":
                users = user_buckets(rate)
            else:
                leases = users = UserLeases(f"rate:{rate.rate}", rate.per_second, rate.capacity, self._fleet)
                self._fleet.add(leases)
            self._users[rate] = users
        return users

    def _drop_users(self, rate: RateLimit) -> None:
        users = self._users.pop(rate, None)
        if self._fleet is not None and isinstance(users, UserLeases):
            self._fleet.remove(users)

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
