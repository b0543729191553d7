from __future__ import annotations

import pytest

from dispatch.schemas import InvalidSchemaError
from dispatch.schemas.validator_cache import ValidatorCache


def test_a_schema_is_compiled_once() -> None:
    cache = ValidatorCache()
    schema = {"type": "string"}
    assert cache.get(schema) is cache.get(schema)
    assert cache.get({"type": "string"}) is not cache.get(schema)


def test_it_is_bounded_and_drops_the_least_recently_used() -> None:
    cache = ValidatorCache(2)
    first, second, third = {"type": "string"}, {"type": "integer"}, {"type": "null"}
    of_first = cache.get(first)
    of_second = cache.get(second)
    assert cache.get(first) is of_first
    cache.get(third)
    assert len(cache) == 2
    assert cache.get(first) is of_first
    assert cache.get(second) is not of_second


def test_a_schema_in_the_cache_keeps_its_identity() -> None:
    cache = ValidatorCache(5)
    for number in range(100):  # each schema would be freed, and its id used again
        assert cache.get({"const": number}).find_mistakes(number) == ()


def test_an_invalid_schema_is_not_stored() -> None:
    cache = ValidatorCache()
    with pytest.raises(InvalidSchemaError):
        cache.get({"type": 3})
    assert len(cache) == 0
