"""The structure report: figures of ``dispatch`` and their limits."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from structure import layers
from structure.naming import find_banned_verbs, find_misnamed_exceptions, parse_files
from structure.policy_keys import find_policy_keys
from structure.telemetry_conditionals import find_telemetry_conditionals
from structure.vocabulary import Hit, find_words

PROSE = ("dispatch", "dashboards", "benchmarks", "examples", "tests", "docs", "README.md", "CONTRIBUTING.md")
"""Files and folders whose prose is searched for the private vocabulary."""
NOT_PROSE = ("tests/structure/",)
"""The tests of the search itself."""


class Limit(NamedTuple):
    """The largest value of a figure. With ``is_enforced`` false, ``--check`` reports an excess and does not fail."""

    most: int
    is_enforced: bool = True


LIMITS: dict[str, Limit] = {
    "top_level_modules": Limit(6),
    "layers": Limit(7),
    "module_cycles": Limit(0),
    "package_cycles": Limit(0),
    "policy_keys": Limit(52),  # 50 of the call path, and two of what models write and read
    "banned_verbs": Limit(0),
    "telemetry_conditionals": Limit(0),
    "misnamed_exceptions": Limit(0),
}
"""By :attr:`Figure.key`. To enforce a limit that holds, remove its ``is_enforced=False``."""


class Figure(NamedTuple):
    """One figure of the report; ``found`` lists what it counts, or what exceeds its limit."""

    key: str
    title: str
    value: int
    found: list[str]

    @property
    def limit(self) -> Limit | None:
        """The limit of :data:`LIMITS`; None without one."""
        return LIMITS.get(self.key)

    @property
    def exceeds(self) -> bool:
        """Whether the value is above the limit."""
        return self.limit is not None and self.value > self.limit.most


def measure_structure() -> list[Figure]:
    """Every figure of the structure, in the order of the report."""
    modules = layers.find_modules()
    trees = parse_files(layers.ROOT, list(modules.values()))
    banned, exceptions = find_banned_verbs(trees), find_misnamed_exceptions(trees)
    conditionals = find_telemetry_conditionals(trees)
    keys = find_policy_keys()
    return [
        *_measure_imports(modules),
        Figure("policy_keys", "keys that a policy accepts", len(keys), keys),
        Figure("banned_verbs", "functions named by a banned verb", len(banned), [str(each) for each in banned]),
        Figure(
            "telemetry_conditionals",
            "conditionals on telemetry in the call path",
            len(conditionals),
            [str(each) for each in conditionals],
        ),
        Figure(
            "misnamed_exceptions",
            "exceptions without 'Error', others with it",
            len(exceptions),
            [str(each) for each in exceptions],
        ),
    ]


def _measure_imports(modules: dict[str, Path]) -> list[Figure]:
    top = [name for name, path in modules.items() if name and "." not in name and path.name != "__init__.py"]
    used = layers.layers_used(modules)
    imports = layers.find_imports(modules)
    executed = [each for each in imports if not each.is_type and not each.is_factory]
    by_module, by_package = layers.find_module_cycles(executed), layers.find_package_cycles(executed)
    with_types = layers.find_module_cycles(each for each in imports if not each.is_factory)
    for_types = [cycle for cycle in with_types if cycle not in by_module]
    return [
        Figure("top_level_modules", "modules at the top level of dispatch/", len(top), sorted(top)),
        Figure(
            "layers", "layers of packages", len(used), [f"{layer}: {' '.join(p)}" for layer, p in used.items()][::-1]
        ),
        Figure("module_cycles", "import cycles between modules", len(by_module), _joined(by_module)),
        Figure("package_cycles", "import cycles between packages", len(by_package), _joined(by_package)),
        Figure("type_cycles", "further cycles, by imports for type checkers", len(for_types), _joined(for_types)),
    ]


def _joined(cycles: list[list[str]]) -> list[str]:
    return [" ↔ ".join(cycle) for cycle in cycles]


def find_private_words(root: Path = layers.ROOT) -> list[Hit]:
    """Every word of the private vocabulary in :data:`PROSE`."""
    hits: list[Hit] = []
    for place in PROSE:
        start = root / place
        paths = [start] if start.is_file() else sorted([*start.rglob("*.py"), *start.rglob("*.md")])
        for path in paths:
            name = path.relative_to(root).as_posix()
            if not name.startswith(NOT_PROSE):
                hits += find_words(name, path.read_text("utf-8"))
    return hits
