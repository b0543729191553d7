from __future__ import annotations

import pytest

from dispatch.catalog.versions import VERSION_EXAMPLE, is_version


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0",
        "1.4.0",
        "10.20.30",
        "1.0.0-rc.1",
        "1.0.0-alpha-a.b",
        "2.0.0+build.5",
        "1.0.0-0A.is.legal+x-1",
        VERSION_EXAMPLE,
    ],
)
def test_versions(text: str) -> None:
    assert is_version(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2",
        "v1.2.3",
        "01.2.3",
        "1.2.3.4",
        "1.2.3-",
        "1.2.3-01",
        "1.2.3+",
        "1.2.x",
        " 1.2.3",
        "1.2.٣",
        "1.0.0-" + "a" * 300,
    ],
)
def test_invalid_versions(text: str) -> None:
    assert not is_version(text)
