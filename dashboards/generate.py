"""Write the dashboards' JSON: ``python -m dashboards.generate``; with ``--check`` only say whether it is what is there."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import instances, overview, tool

FOLDER = Path(__file__).parent / "json"


def rendered() -> dict[str, str]:
    """The name of each file, and what is to be in it."""
    made = (overview.dashboard(), tool.dashboard(), instances.dashboard())
    return {f"{each.build().uid}.json": _text(each) for each in made}


def _text(made: Dashboard) -> str:
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None, folder: Path = FOLDER) -> int:
    """Returns the exit code: 1 when ``--check`` finds another text, or a file too many."""
    parser = argparse.ArgumentParser(prog="python -m dashboards.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check: bool = parser.parse_args(arguments).check
    wanted = rendered()
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
