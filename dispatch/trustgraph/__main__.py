"""``python -m dispatch.trustgraph``: run one of TrustGraph's programs with :func:`dispatch.trustgraph.agent.install`."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import entry_points

from dispatch.errors import DispatchError
from dispatch.permissions import Grants
from dispatch.policy import Policy
from dispatch.trustgraph.agent import install


def main(arguments: list[str] | None = None) -> None:
    """Install dispatch in TrustGraph's agents, and run a program of TrustGraph."""
    parser = argparse.ArgumentParser(
        prog="python -m dispatch.trustgraph",
        description="Run an agent of TrustGraph whose tool services are called through dispatch: with guards, delivery and "
        "metrics. The published agent (2.8 to 2.11.1) cannot call tool services by itself.",
        epilog="example: python -m dispatch.trustgraph agent-manager-react --pulsar-host pulsar://localhost:6650",
    )
    parser.add_argument(
        "--catalog", metavar="FOLDER", help="descriptors with policies, schemas and permissions of tools"
    )
    parser.add_argument("--policy", metavar="FILE", help="policy of tools without one (JSON or YAML)")
    parser.add_argument("--grants", metavar="FILE", help="permissions of users")
    parser.add_argument(
        "program", metavar="PROGRAM", help="agent-manager-react or agent-orchestrator, with its options"
    )
    parser.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    programs = {
        each.name: each for each in entry_points(group="console_scripts") if each.value.startswith("trustgraph.")
    }
    if given.program not in programs:
        agents = ", ".join(name for name in sorted(programs) if "agent" in name)
        parser.error(
            f"there is no program '{given.program}' of TrustGraph; "
            + (f"choose one of {agents}" if agents else "install it: pip install trustgraph-flow")
        )
    try:
        install(
            catalog=given.catalog,
            policy=None if given.policy is None else Policy.load(given.policy),
            grants=None if given.grants is None else Grants.load(given.grants),
        )
    except (ImportError, ValueError, OSError, DispatchError) as error:
        parser.error(str(error))
    sys.argv = [given.program, *given.options]
    programs[given.program].load()()


if __name__ == "__main__":
    main()
