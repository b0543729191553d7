"""examples/versions: two versions of a tool side by side."""

from __future__ import annotations

from pathlib import Path

from dispatch.catalog import check_directory

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "versions"


def test_the_new_version_is_rolled_out_beside_the_default_one() -> None:
    catalog, problems = check_directory(FOLDER)
    assert problems == []
    old = catalog.tool("tell-joke")
    new = catalog.tool("tell-joke", "^2")
    assert (old.version, dict(old.rollout), new.version) == ("1.4.0", {"2.0.0": 5}, "2.0.0")
    assert [argument.name for argument in new.described_arguments] == ["topic", "mood"]
    assert catalog.service_of(old) is catalog.service_of(new)
