"""10,000 users and 1,000 tools: what a user sees is what the user may call, and both are what the grants say.

The calls are those of a dispatcher on a transport that answers at once. The grants are evaluated a second time, segment by
segment. The long profile covers all users.
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from benchmarks.micro.instant_transport import AnsweringTransport
from dispatch import Catalog, Dispatcher, Grants
from dispatch.telemetry.observers import SILENT
from tests.helpers.dispatcher_and_service import UNGUARDED
from tests.helpers.run_profile import by_profile

USERS, TOOLS, SERVICES, GROUPS = 10_000, 1_000, 20, 50
CHECKED_USERS = by_profile(short=25, long=USERS)
CALLING_EVERY = by_profile(short=8, long=20)
"""Every so many of the checked users also call each tool: all 10,000 took 10 minutes."""
AREAS = [f"area-{number}" for number in range(20)]
ACTIONS = ["read", "write", "admin"]
PERMISSIONS = [f"{area}:{action}" for area in AREAS for action in ACTIONS]
WILDCARDS = ["*", *(f"{area}:*" for area in AREAS)]


def draw_grants(randomness: random.Random, most: int) -> list[str]:
    grants = randomness.choices(PERMISSIONS, k=randomness.randint(0, most))
    grants += randomness.choices(WILDCARDS[1:], k=randomness.randint(0, most))
    if randomness.random() < 0.1:
        grants.append("*")
    denials = randomness.choices([*PERMISSIONS, *WILDCARDS[1:]], k=randomness.randint(0, 2))
    return [*grants, *(f"!{each}" for each in denials)]


def draw_world(seed: int) -> tuple[Catalog, dict[str, Any]]:
    """Return the tools, and raw grants."""
    randomness = random.Random(seed)
    services = [
        {
            "id": f"service-{number}",
            "request-queue": f"persistent://tg/request/service-{number}",
            "response-queue": f"persistent://tg/response/service-{number}",
            "policy": UNGUARDED,
            **({"permissions": randomness.sample(PERMISSIONS, 1)} if number % 4 == 0 else {}),
        }
        for number in range(SERVICES)
    ]
    tools = [
        {
            "type": "tool-service",
            "name": f"tool-{number}",
            "description": "Does something.",
            "service": f"service-{randomness.randrange(SERVICES)}",
            **({"permissions": randomness.sample(PERMISSIONS, count)} if (count := randomness.randint(0, 3)) else {}),
        }
        for number in range(TOOLS)
    ]
    users = [f"user-{number}" for number in range(USERS)]
    grants = {
        "users": {user: draw_grants(randomness, 8) for user in users if randomness.random() < 0.9},
        "groups": {
            f"group-{number}": {"members": randomness.sample(users, 300), "permissions": draw_grants(randomness, 5)}
            for number in range(GROUPS)
        },
        "everyone": ["area-0:read"],
    }
    return Catalog.of(services, tools), grants


def matches(grant: str, permission: str) -> bool:
    given, wanted = grant.split(":"), permission.split(":")
    return given == wanted or (
        given[-1] == "*" and wanted[: len(given) - 1] == given[:-1] and len(wanted) >= len(given)
    )


def list_permitted(catalog: Catalog, raw: dict[str, Any], user: str) -> set[str]:
    """Evaluate the grants of ``user`` segment by segment."""
    grants = [*raw["everyone"], *raw["users"].get(user, [])]
    for group in raw["groups"].values():
        if user in group["members"]:
            grants += group["permissions"]
    held = {
        permission
        for permission in PERMISSIONS
        if any(not grant.startswith("!") and matches(grant, permission) for grant in grants)
        and not any(grant.startswith("!") and matches(grant[1:], permission) for grant in grants)
    }
    return {
        name
        for name, tool in catalog.tools.items()
        if held.issuperset(tool.permissions) and held.issuperset(catalog.service_of(tool).permissions)
    }


@pytest.mark.long
@pytest.mark.wall_clock
async def test_every_list_equals_the_set_of_calls_that_are_admitted() -> None:
    seed = random.randrange(10**9)
    catalog, raw = draw_world(seed)
    users = [
        *random.Random(seed).sample([*(f"user-{number}" for number in range(USERS))], CHECKED_USERS),
        "unknown",
        "",
    ]
    sizes = set()
    async with Dispatcher(AnsweringTransport(), catalog, grants=Grants.of(raw), telemetry=SILENT) as dispatcher:
        for number, user in enumerate(users):
            listed = [tool.name for tool in await dispatcher.tools(user=user)]
            assert set(listed) == list_permitted(catalog, raw, user), (seed, user)
            sizes.add(len(listed))
            if number % CALLING_EVERY:
                continue
            admitted = []
            for name in catalog.tools:
                result = await dispatcher.execute(name, user=user)
                if result.ok:
                    admitted.append(name)
                else:
                    assert result.error.type == "not-permitted", result.error
            assert listed == admitted, (seed, user)
    assert len(sizes) > 5, "users differ"


@pytest.mark.costly
@pytest.mark.wall_clock
async def test_the_list_of_a_user_among_10_000_takes_milliseconds() -> None:
    catalog, raw = draw_world(1)
    async with Dispatcher(AnsweringTransport(), catalog, grants=Grants.of(raw), telemetry=SILENT) as dispatcher:
        durations = []
        for number in range(50):
            began = time.process_time()
            await dispatcher.tools(user=f"user-{number}")
            durations.append(time.process_time() - began)
    assert sorted(durations)[25] < 0.03
