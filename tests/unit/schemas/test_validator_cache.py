from __future__ import annotations

from typing import Any

import pytest

from dispatch.schemas import InvalidSchemaError, ValidatorCache


def create_cache(limit: int = 10) -> ValidatorCache[Any]:
    return ValidatorCache(lambda schema: schema, limit)


def test_a_schema_is_compiled_once() -> None:
    cache = create_cache()
    schema = {"type": "string"}
    assert cache.get(schema) is cache.get(schema)
    assert cache.get({"type": "string"}) is not cache.get(schema)


def test_it_is_bounded_and_drops_the_least_recently_used() -> None:
    cache = create_cache(2)
    first, second, third = {"type": "string"}, {"type": "integer"}, {"type": "null"}
    of_first = cache.get(first)
    of_second = cache.get(second)
    assert cache.get(first) is of_first
    cache.get(third)
    assert len(cache) == 2
    assert cache.get(first) is of_first
    assert cache.get(second) is not of_second


def test_a_schema_in_the_cache_keeps_its_identity() -> None:
    cache = create_cache(5)
    for number in range(100):  # each schema would be freed, and its id used again
        assert cache.get({"const": number}).find_mistakes(number) == ()


def test_an_invalid_schema_is_not_stored() -> None:
    cache = create_cache()
    with pytest.raises(InvalidSchemaError):
        cache.get({"type": 3})
    assert len(cache) == 0
