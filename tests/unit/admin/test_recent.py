"""The counts of recent calls: those of each tool by slots of time, and of each user, agree with the calls."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dispatch.admin.recent import MAX_UNCOUNTED, SLOT_S, SLOTS, RecentCalls
from dispatch.errors import DispatchError, ErrorType, InvalidArgumentsError, Outcome, ToolError
from dispatch.results import CallResult

ERRORS: tuple[DispatchError | None, ...] = (
    *(None, None, None, ToolError("failed")),
    InvalidArgumentsError("wrong", ErrorType.INVALID_ARGUMENTS),
)


@pytest.mark.parametrize(("users", "failing"), [(3, 1), (3 * MAX_UNCOUNTED, 1), (3, 50)])
def test_counts_of_tools_and_users_agree_with_their_calls(users: int, failing: int) -> None:
    """``users`` call two tools. One call in ``failing`` has an outcome by chance; the others fail."""
    now, chance = 1000.0, random.Random(users + failing)
    recent = RecentCalls(lambda: now)
    tools = [recent.record_calls(name, None, "shop") for name in ("price", "order")]
    ended: Counter[tuple[str, int]] = Counter()
    failed: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    called: Counter[str] = Counter()
    last: dict[str, float] = {}
    for number in range(4_000):
        now += chance.choice((0.0, 0.001, 0.004))
        tool, user = chance.choice(tools), f"user-{chance.randrange(users)}"
        error = chance.choice(ERRORS) if number % failing == 0 else ToolError("failed")
        if chance.random() < 0.01:
            tool.add_cancelled(user, now - 0.5, 0.5, None, "")
        else:
            outcome = Outcome.SUCCESS if error is None else error.outcome
            tool.add(user, now - 0.5, CallResult(tool.tool.label, outcome, error=error, duration=0.5), None, "")
            of = refused if isinstance(error, InvalidArgumentsError) else failed
            of.update([] if error is None else [user, tool.tool.label])
        ended[tool.tool.label, int(now / SLOT_S)] += 1
        called.update([user, tool.tool.label])
        last[user] = now
        if chance.random() < 0.001:
            recent.count()
    recent.count()
    for each in tools:
        label = each.tool.label
        assert (each.calls, each.failed, each.refused) == (called[label], failed[label], refused[label])
        slots = range(int(now / SLOT_S) - SLOTS + 1, int(now / SLOT_S) + 1)
        assert each.history()[0] == [ended[label, slot] for slot in slots]
        assert sum(each.history()[1]) == failed[label]
    assert len(recent.users) == min(users, 1_000)
    for user, of_user in recent.users.items():
        if users < 1_000:
            assert (of_user.calls, of_user.failed, of_user.refused) == (called[user], failed[user], refused[user])
            assert of_user.last == pytest.approx(last[user])
