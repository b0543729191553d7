"""Checks the policies of a catalogue over the policy of a dispatcher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch.catalog import Catalog, ServiceDescriptor
from dispatch.policy import Policy, PolicyError


def check_policies(catalog: Catalog, policy: Policy, checked: Catalog | None = None) -> None:
    """Check that the policy of each version of each service and tool is valid over ``policy``. Reading a descriptor checked
    it over the defaults only.

    Args:
        checked: a catalogue that was checked over the same policy; only what differs from it is checked.

    Raises:
        PolicyError: one is not; it names the service or the tool.
    """
    merged: dict[tuple[str, str | None], Policy] = {}

    def policy_of(service: ServiceDescriptor) -> Policy:
        key = service.id, service.version
        if key not in merged:
            merged[key] = _merge(policy, service.policy, f"the service '{service.id}'")
        return merged[key]

    changed = set()
    several = catalog.several_tool_versions | (checked.several_tool_versions if checked is not None else frozenset())
    for id in catalog.services:
        versions = catalog.service_versions(id)
        if checked is None or id not in checked.services or checked.service_versions(id) != versions:
            changed.add(id)
            for service in versions:
                policy_of(service)
    for name, default in catalog.tools.items():
        if checked is not None and not changed and checked.tools.get(name) is default and name not in several:
            continue  # perf: most tools at most activations
        tools = catalog.versions(name)
        is_checked = checked is not None and name in checked.tools and checked.versions(name) == tools
        for tool in tools:
            if tool.policy and not (is_checked and tool.service not in changed):
                _merge(policy_of(catalog.service_or_default(tool)), tool.policy, f"the tool '{name}'")


def _merge(base: Policy, raw: Mapping[str, Any], where: str) -> Policy:
    try:
        return base.merged(raw)
    except PolicyError as error:
        raise PolicyError(
            error.key, f"{error.problem} (the policy of {where}, merged with the defaults)", error.fix
        ) from None
