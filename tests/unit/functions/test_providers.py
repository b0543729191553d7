"""Providers of values by type."""

from __future__ import annotations

from typing import Protocol

import pytest

from dispatch.functions.sources import Providers


class Database:
    pass


class CallableDatabase(Database):
    def __call__(self) -> str:
        return "not a factory"


class Reader(Protocol):
    def read(self) -> str: ...


class File:
    def read(self) -> str:
        return "text"


def test_an_instance_and_a_factory() -> None:
    providers = Providers()
    assert Database not in providers
    database = CallableDatabase()
    providers.add(Database, database)
    assert Database in providers
    assert providers.get(Database) is providers.get(Database) is database
    providers.add(Database, Database)
    assert providers.get(Database) is not providers.get(Database)


def test_a_protocol_that_cannot_be_checked() -> None:
    providers = Providers()
    file = File()
    providers.add(Reader, file)
    assert providers.get(Reader) is file
    providers.add(Reader, lambda: "created")
    assert providers.get(Reader) == "created"
    providers.add(Reader, File)
    assert isinstance(providers.get(Reader), File)


def test_what_cannot_be_provided() -> None:
    providers = Providers()
    with pytest.raises(TypeError, match=r"provide\(\) needs a class, not 'Database'\. Fix"):
        providers.add("Database", Database())  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"the provider of Database is 3, neither an instance of it nor a function\. Fix"
    ):
        providers.add(Database, 3)
    with pytest.raises(LookupError, match=r"no provider of Database\. Fix: call dispatcher\.provide\(Database"):
        providers.get(Database)
