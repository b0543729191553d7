from __future__ import annotations

import pytest

from dispatch.catalog.fields import ItemKey


@pytest.mark.parametrize(
    ("key", "name", "version"),
    [
        ("tell-joke", "tell-joke", None),
        ("tell-joke@2.0.0", "tell-joke", "2.0.0"),
        ("tell@joke@2.0.0-rc.1+b", "tell@joke", "2.0.0-rc.1+b"),
        ("tell@joke", "tell@joke", None),
        ("tell-joke@2.0", "tell-joke@2.0", None),
        ("tell-joke@v2.0.0", "tell-joke@v2.0.0", None),
        ("@2.0.0", "@2.0.0", None),
        ("", "", None),
    ],
)
def test_a_version_after_the_last_at_sign_is_split_off(key: str, name: str, version: str | None) -> None:
    assert ItemKey.parse(key) == (name, version)
