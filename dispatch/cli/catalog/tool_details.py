"""All details of one tool, for ``dispatch tools NAME``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dispatch.catalog import Catalog
from dispatch.cli.catalog.listed_tool import ListedTool
from dispatch.cli.output import align_columns, make_printable

_DECLARED = {True: "yes", False: "no", None: "not declared"}


def describe_tool(catalog: Catalog, listed: ListedTool, circuits: Mapping[str, str] | None = None) -> str:
    """Return the details of a tool, and the command that calls it.

    Args:
        circuits: state of the circuit by the tool's name; None: it is not shown.
    """
    tool = listed.tool
    service = catalog.service_or_default(tool)
    versions = catalog.versions(tool.name)
    default = catalog.tools[tool.name]
    rows = [
        ("name", tool.name),
        ("description", make_printable(tool.description)),
        ("source", listed.source),
        ("version", tool.version or "not declared"),
        ("fingerprint", listed.fingerprint),
        ("service", f"{service.id}{f' {service.version}' if service.version else ''}"),
        ("request queue", service.request_queue),
        ("response queue", service.response_queue),
        ("read-only", _DECLARED[tool.read_only]),
        ("idempotent", _DECLARED[tool.idempotent]),
        ("destructive", _DECLARED[tool.destructive]),
    ]
    if circuits is not None:
        rows.append(("circuit", circuits.get(tool.name, "unknown")))
    others = [each.version or "without a version" for each in versions if each is not tool]
    for label, value in (
        ("other versions", ", ".join(others)),
        ("default version", "" if tool is default else default.version or "the one without a version"),
        ("rollout", ", ".join(f"{share:g} % to {version}" for version, share in tool.rollout.items())),
        ("requires", f"{service.id} {tool.requires}" if tool.requires else ""),
        ("permissions", ", ".join(catalog.permissions_of(tool))),
        ("config", tool.config),
        ("policy", tool.policy),
        ("service policy", service.policy),
        ("category", tool.category),
        ("tags", ", ".join(tool.tags)),
        ("groups", "" if tool.groups == ("default",) else ", ".join(tool.groups)),
        ("applicable states", "" if tool.applicable_states == ("*",) else ", ".join(tool.applicable_states)),
        ("state after a call", tool.state),
        ("author", tool.author),
    ):
        if value:
            rows.append(
                (
                    label,
                    make_printable(value if isinstance(value, str) else json.dumps(_thaw(value), ensure_ascii=False)),
                )
            )
    for argument in tool.described_arguments:
        need = {True: ", required", False: ", optional", None: ""}[argument.required]
        rows.append((f"  {argument.name}", f"{argument.type}{need}: {make_printable(argument.description)}"))
    text = align_columns(rows)
    if tool.input_schema is not None:
        text += f"\ninput-schema\n{make_printable(json.dumps(tool.input_schema, indent=2, ensure_ascii=False))}"
    words = (f"{argument.name}=…" for argument in tool.described_arguments)
    return f"{text}\n\n{' '.join(['dispatch call', tool.name, *words])}"


def _thaw(value: Any) -> Any:
    return dict(value) if hasattr(value, "items") else value
