"""Write the dashboards' JSON: ``python -m dashboards.generate``; ``--check`` only reports files that differ."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import instances, overview, tool

FOLDER = Path(__file__).parent / "json"


def render_dashboards() -> dict[str, str]:
    """Return the text of each file, by file name."""
    made = (overview.build_dashboard(), tool.build_dashboard(), instances.build_dashboard())
    return {f"{each.build().uid}.json": _to_json(each) for each in made}


def _to_json(made: Dashboard) -> str:
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None, folder: Path = FOLDER) -> int:
    """Write the files that differ and delete surplus ones. Returns the exit code: 1 when ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="report files that differ, write nothing")
    check: bool = parser.parse_args(arguments).check
    wanted = render_dashboards()
    there = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))}
    changed = sorted(name for name in {*wanted, *there} if wanted.get(name) != there.get(name))
    for name in changed:
        if not check and name in wanted:
            (folder / name).write_text(wanted[name], encoding="utf-8")
        elif not check:
            (folder / name).unlink()
        sys.stdout.write(f"{'differs' if check else 'written'}: {name}\n")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
