"""docs/architecture.md: the tables of packages, layers and files agree with the code."""

from __future__ import annotations

import re

import pytest

from structure.layers import LAYERS
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DISPATCH = ROOT / "dispatch"
PACKAGES = dict(re.findall(r"^\| `([\w/]+/)` \| (.+) \|$", PAGE, re.MULTILINE))
UNNAMED = {"__main__", "_version", ""}


def test_the_layers_are_those_that_imports_are_checked_by() -> None:
    for layer, packages in LAYERS.items():
        (line,) = re.findall(rf"^    {layer}  (.+)$", PAGE, re.MULTILINE)
        line = re.sub(
            r"(\S+)/\{([\w,]+)\}", lambda found: " ".join(f"{found[1]}/{each}" for each in found[2].split(",")), line
        )
        assert {name.replace(".", "/") for name in packages if name not in UNNAMED} <= set(line.split()), layer


@pytest.mark.parametrize("package", PACKAGES)
def test_the_modules_that_a_package_is_said_to_contain_exist(package: str) -> None:
    assert (DISPATCH / package).is_dir()
    for name in re.findall(r"`([a-z_/]+)`", PACKAGES[package]):
        found = [*(DISPATCH / package).rglob(f"{name.rstrip('/')}.py"), *(DISPATCH / package).rglob(name.rstrip("/"))]
        assert found, f"{package}{name}"


def test_every_package_has_a_row() -> None:
    named = {package.partition("/")[0] for package in PACKAGES}
    assert named == {path.parent.name for path in DISPATCH.glob("*/__init__.py")}
