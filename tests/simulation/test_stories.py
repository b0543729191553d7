"""Random stories of the session protocol: at most one execution, one final event, right content, nothing retained at rest.

``make test`` runs 60 stories, ``make test-long`` 10,000. A failure names the seed of its story.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.helpers.run_profile import by_profile
from tests.simulation.story import run_story

SHARDS = by_profile(short=1, long=10)
STORIES = by_profile(short=60, long=4_000) // SHARDS
EXPECTED = {
    *("lost", "duplicated", "reordered", "lost in an outage", "forged"),
    *("answered", "answered stream", "refused", "refused after chunks", "cancelled", "withdrawn", "caller killed"),
    *("failed: deadline, may have run", "failed: too_large, may have run", "retries", "refused: draining"),
    *("cancelled while running", "peer draining", "drains", "closes", "paths added", "backpressure", "without credit"),
}
"""Events that must occur in each shard: stories without them check less than they claim."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("shard", range(SHARDS))
def test_guarantees_hold_in_random_stories(shard: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(shard * STORIES, (shard + 1) * STORIES):
        counts.update(run_story(seed))
    assert counts["stories"] == STORIES
    assert EXPECTED - counts.keys() == set()


def test_a_story_is_the_same_each_time() -> None:
    assert run_story(5) == run_story(5)
